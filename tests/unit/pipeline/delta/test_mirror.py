"""A Delta table beside its Iceberg table on the disk, with what the pipeline, maintenance and others do to that one;
read by delta-rs and by DuckDB."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from pyiceberg.manifest import DataFileContent
from tests.unit.data.table.lakes import TOPIC_ID, Lake, many, rows_of
from tests.unit.data.table.plain import Record
from tests.unit.pipeline.delta.readers import Seen, duckdb, read

from lakestream.catalog.delta.choosing import check_delta
from lakestream.catalog.delta.log import LOG_KEPT_MS, DeltaLog
from lakestream.catalog.delta.paths import HAS_DELTA
from lakestream.catalog.expire import ExpirySettings
from lakestream.catalog.orphans import OrphanSettings
from lakestream.catalog.shapes import Json, schema_of
from lakestream.catalog.updates import AddSchema, SetCurrentSchema, SetProperties
from lakestream.cli.doctor_delta import delta_findings
from lakestream.clock import RandomIds
from lakestream.data.table.arrow import SCHEMA
from lakestream.errors import Misconfigured, Unavailable
from lakestream.metadata.claims import Claims
from lakestream.metadata.topics import Topic, Topics
from lakestream.pipeline.delta.mirror import DeltaMirror
from lakestream.pipeline.maintenance.job import LocalRewrites
from lakestream.pipeline.maintenance.maintain import Maintenance, MaintenanceSettings
from lakestream.pipeline.maintenance.merging import MergeSettings
from lakestream.pipeline.maintenance.work import Rewriting

EAGER = MaintenanceSettings(look_ms=0, idle_ms=0, merge=MergeSettings(files_min=2, many=2, young_ms=0))
BOTH = {"lakestream.table.formats": "iceberg,delta"}


@pytest.fixture
async def lake(tmp_path: Path) -> AsyncIterator[Lake]:
    made = await Lake(tmp_path).open()
    await Topics(made.server.client()).create("orders", Topic(TOPIC_ID, 1, BOTH))
    yield made
    await made.close()


def mirror_of(lake: Lake) -> DeltaMirror:
    metadata = lake.server.client()
    return DeltaMirror(lake.catalog, Topics(metadata), metadata.now_ms)


def keeper(lake: Lake, mirror: DeltaMirror, settings: MaintenanceSettings = EAGER) -> Maintenance:
    metadata = lake.server.client()
    job = LocalRewrites(Rewriting(lake.store, lake.catalog.locations, RandomIds()))
    return Maintenance(lake.catalog, Topics(metadata), Claims(metadata), job, metadata.now_ms, settings, mirror)


async def root(lake: Lake) -> Path:
    return lake.root / lake.key((await lake.table()).metadata["location"]) / "data"


def seen(records: Sequence[Record]) -> list[Seen]:
    return [Seen(record.offset, record.value) for record in records]


async def behind(mirror: DeltaMirror) -> str:
    await mirror.look()
    return mirror.standings[TOPIC_ID].behind


def commit(folder: Path, version: int) -> list[Json]:
    return [json.loads(line) for line in (folder / "_delta_log" / f"{version:020d}.json").read_text().splitlines()]


async def evolved(lake: Lake, fields: list[Json]) -> None:
    table = await lake.table()
    schema = {**schema_of(table.metadata), "fields": fields, "schema-id": len(table.metadata["schemas"])}
    await lake.catalog.commit(TOPIC_ID, [], [AddSchema(schema), SetCurrentSchema(-1)])


async def fields(lake: Lake) -> list[Json]:
    found: list[Json] = schema_of((await lake.table()).metadata)["fields"]
    return found


async def test_what_is_moved_is_in_both(lake: Lake) -> None:
    mirror = mirror_of(lake)
    assert await behind(mirror) == ""  # nothing was moved yet
    await lake.move(many(0, 10))
    await lake.move(many(10, 15))
    assert await behind(mirror) == ""
    folder = await root(lake)
    assert read(folder) == seen(many(0, 15))
    await lake.move(many(15, 16))
    await mirror.look()
    assert read(folder) == seen(many(0, 16))
    table = DeltaTable(str(folder))
    metadata = (await lake.table()).metadata
    assert table.transaction_version(TOPIC_ID) == metadata["last-sequence-number"] == 3
    newest = table.history(1)[0]
    assert newest["lakestream.next-offsets"] == '{"0":16}'
    assert newest["lakestream.snapshot-id"] == str(metadata["current-snapshot-id"])
    assert metadata["properties"][HAS_DELTA] == "true"
    assert len(table.to_pyarrow_table()) == 16  # also by those who know only the first version of the protocol
    await mirror.look()
    assert DeltaTable(str(folder)).version() == 1, "nothing new, no commit"


async def test_statistics_pass_over_files(lake: Lake) -> None:
    await lake.move(many(0, 10))
    await lake.move(many(10, 20))
    await mirror_of(lake).look()
    stats = [json.loads(line["add"]["stats"]) for line in commit(await root(lake), 0) if "add" in line]
    assert sorted((one["minValues"]["_stream"]["offset"], one["maxValues"]["_stream"]["offset"]) for one in stats) == [
        (0, 9),
        (10, 19),
    ]
    assert all(one["numRecords"] == 10 and one["nullCount"]["value"] == 0 for one in stats)
    with duckdb() as connection:
        query = f"FROM delta_scan('{await root(lake)}') SELECT count(*) WHERE _stream.\"offset\" >= 15"
        assert connection.execute(query).fetchone() == (5,)


async def test_merged_files_are_no_new_rows(lake: Lake) -> None:
    mirror = mirror_of(lake)
    await lake.move(many(0, 10))
    await mirror.look()
    await lake.move(many(10, 20))  # not followed before it is merged
    assert (await keeper(lake, mirror).maintain()).files_merged == 2
    await lake.move(many(20, 22))
    assert await behind(mirror) == ""
    folder = await root(lake)
    assert read(folder) == seen(many(0, 22))
    changes = [
        [
            (kind, line[kind]["dataChange"])
            for line in commit(folder, version)
            for kind in ("add", "remove")
            if kind in line
        ]
        for version in range(4)
    ]
    assert changes == [
        [("add", True)],
        [("add", True)],
        [("remove", False), ("remove", False), ("add", False)],
        [("add", True)],
    ]


async def test_rows_that_others_delete_go(lake: Lake) -> None:
    mirror = mirror_of(lake)
    (first,) = await lake.move(many(0, 10))
    await lake.move(many(10, 20))
    await mirror.look()
    # Copy on write: another file without the row.
    await lake.replace([await lake.foreign_file(rows_of(many(3, 20)).cast(SCHEMA))])
    assert await behind(mirror) == ""
    assert read(await root(lake)) == seen(many(3, 20))
    assert first.location


async def test_deletes_beside_the_data_are_worked_in_first(lake: Lake) -> None:
    mirror = mirror_of(lake)
    (file,) = await lake.move(many(0, 10))
    await mirror.look()
    positions = pa.table({"file_path": [file.location] * 2, "pos": pa.array([0, 7], pa.int64())})
    deletes = await lake.foreign_file(positions, content=DataFileContent.POSITION_DELETES)
    await lake.replace([], [deletes], keep=True)
    await lake.move(many(10, 20))
    assert "deleted without the files being written anew" in await behind(mirror)
    folder = await root(lake)
    assert read(folder) == seen(many(0, 10)), "it waits, whole"
    done = await keeper(lake, mirror, MaintenanceSettings(look_ms=0, idle_ms=0)).maintain()
    assert (done.files_merged, done.failed) == (1, 0)
    assert await behind(mirror) == ""
    left = [record for record in many(0, 20) if record.offset not in (0, 7)]
    assert read(folder) == seen(left)
    assert await lake.read_all() == left


async def test_columns_of_others_stay_where_deletes_are_worked_in(lake: Lake) -> None:
    mirror = mirror_of(lake)
    await lake.move(many(0, 10))
    await evolved(lake, [*await fields(lake), {"id": 16, "name": "country", "type": "string", "required": False}])
    more = pa.field("country", pa.string(), metadata={b"PARQUET:field_id": b"16"})
    rows = rows_of(many(0, 10)).cast(SCHEMA).append_column(more, pa.array([f"c{at}" for at in range(10)]))
    file = await lake.foreign_file(rows)
    await lake.replace([file])
    await mirror.look()
    positions = pa.table({"file_path": [file.file_path], "pos": pa.array([4], pa.int64())})
    await lake.replace([], [await lake.foreign_file(positions, content=DataFileContent.POSITION_DELETES)], keep=True)
    assert "deleted without" in await behind(mirror)
    assert (await keeper(lake, mirror).maintain()).failed == 0
    assert await behind(mirror) == ""
    left = [at for at in range(10) if at != 4]
    with duckdb() as connection:
        query = f"SELECT _stream.\"offset\", country FROM delta_scan('{await root(lake)}') ORDER BY 1"
        assert connection.execute(query).fetchall() == [(at, f"c{at}") for at in left]
    assert [record.offset for record in await lake.read_all()] == left


async def test_columns_come_and_change_their_names(lake: Lake) -> None:
    mirror = mirror_of(lake)
    await lake.move(many(0, 5))
    await mirror.look()
    await evolved(lake, [{"id": 16, "name": "country", "type": "string", "required": False}, *await fields(lake)])
    await lake.move(many(5, 6))
    assert await behind(mirror) == ""
    folder = await root(lake)
    assert read(folder) == seen(many(0, 6))
    assert DeltaTable(str(folder)).to_pyarrow_table().column("country").null_count == 6
    renamed = [one | {"name": {"value": "payload"}.get(one["name"], one["name"])} for one in await fields(lake)]
    await evolved(lake, renamed)
    await lake.move(many(6, 8))
    assert await behind(mirror) == ""
    assert read(folder, "payload") == seen(many(0, 8))
    assert DeltaTable(str(folder)).protocol().min_reader_version == 3
    # One that takes the name of another is not that one.
    dropped = [one for one in renamed if one["name"] != "country"]
    await evolved(lake, [*dropped, {"id": 17, "name": "value", "type": "string", "required": False}])
    await lake.move(many(8, 9))
    assert await behind(mirror) == ""
    assert read(folder, "payload") == seen(many(0, 9))
    with duckdb() as connection:
        assert connection.execute(f"SELECT DISTINCT value FROM delta_scan('{folder}')").fetchall() == [(None,)]


async def test_files_under_other_names_wait(lake: Lake) -> None:
    mirror = mirror_of(lake)
    await lake.move(many(0, 5))
    await mirror.look()
    await evolved(lake, [one | {"name": {"value": "v"}.get(one["name"], one["name"])} for one in await fields(lake)])
    rows = rows_of(many(0, 5)).cast(SCHEMA)
    await lake.replace([await lake.foreign_file(rows.rename_columns({"value": "v"}))])
    assert "column v under the name v, not value" in await behind(mirror)
    assert mirror.in_the_way(TOPIC_ID)[1]
    await keeper(lake, mirror).maintain()
    assert await behind(mirror) == ""
    assert read(await root(lake), "v") == seen(many(0, 5))


async def test_what_delta_cannot_say_waits(lake: Lake) -> None:
    mirror = mirror_of(lake)
    await lake.move(many(0, 5))
    await mirror.look()
    before = await fields(lake)
    await evolved(lake, [{"id": 16, "name": "at", "type": "time", "required": False}, *before])
    await lake.move(many(5, 6))
    assert await behind(mirror) == "column at is of type time, which Delta does not have"
    with pytest.raises(Misconfigured, match=r"lakestream\.table\.formats: no delta, since column at is of type time"):
        await check_delta(lake.catalog, TOPIC_ID)
    assert read(await root(lake)) == seen(many(0, 5))
    await evolved(lake, before)
    assert await behind(mirror) == ""
    assert read(await root(lake)) == seen(many(0, 6))


async def test_two_at_once_and_one_that_was_away(lake: Lake) -> None:
    one, other, late = mirror_of(lake), mirror_of(lake), mirror_of(lake)
    for start in range(0, 30, 3):
        await lake.move(many(start, start + 3))
        await asyncio.gather(one.look(), other.look())
        assert (one.standings[TOPIC_ID].behind, other.standings[TOPIC_ID].behind) == ("", "")
        if not start:
            await late.look()
    assert await behind(late) == ""
    folder = await root(lake)
    assert read(folder) == seen(many(0, 30))
    assert DeltaTable(str(folder)).version() == 9, "one commit for each"


async def test_a_crash_between_the_commits_is_healed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = mirror_of(lake)
    await lake.move(many(0, 5))
    await mirror.look()
    await lake.move(many(5, 8))
    create = type(lake.store).create

    async def lost(self: Any, key: str, body: Any) -> None:
        await create(self, key, body)
        if "_delta_log" in key:
            raise Unavailable("the answer was lost")

    monkeypatch.setattr(type(lake.store), "create", lost)
    assert "lost" in await behind(mirror)
    monkeypatch.undo()
    assert await behind(mirror) == ""
    assert await behind(mirror_of(lake)) == ""  # another driver, which knows nothing
    assert read(await root(lake)) == seen(many(0, 8))
    assert DeltaTable(str(await root(lake))).version() == 1


async def test_checkpoints_and_an_old_log(lake: Lake) -> None:
    mirror = mirror_of(lake)
    for start in range(22):
        await lake.move(many(start, start + 1))
        await mirror.look()
    folder = await root(lake)
    log = folder / "_delta_log"
    assert json.loads((log / "_last_checkpoint").read_text())["version"] == 19
    for version in range(19):
        (log / f"{version:020d}.json").unlink()
    assert read(folder) == seen(many(0, 22))
    await lake.move(many(22, 24))
    assert await behind(mirror_of(lake)) == ""
    (log / "_last_checkpoint").unlink()  # only a hint
    await lake.move(many(24, 25))
    assert await behind(mirror_of(lake)) == ""
    assert read(folder) == seen(many(0, 25))


async def test_an_old_log_is_forgotten_up_to_a_checkpoint(lake: Lake) -> None:
    mirror = mirror_of(lake)
    for start in range(22):
        await lake.move(many(start, start + 1))
        await mirror.look()
    folder = await root(lake) / "_delta_log"
    log = DeltaLog(lake.store, f"{lake.key((await lake.table()).metadata['location'])}/data/_delta_log")
    now_ms = await lake.server.client().now_ms()
    assert await log.forget_old(now_ms) == 0, "none is old"
    assert await log.forget_old(now_ms + LOG_KEPT_MS + 60_000) == 19
    assert sorted(path.name[17:] for path in folder.glob("0*")) == [
        "019.checkpoint.parquet",
        "019.json",
        "020.json",
        "021.json",
    ]
    assert (await log.read()).version == 21


async def test_what_others_commit_to_it_is_put_right(lake: Lake) -> None:
    mirror = mirror_of(lake)
    await lake.move(many(0, 10))
    await mirror.look()
    folder = await root(lake)
    DeltaTable(str(folder)).delete("_stream['offset'] = 3")
    DeltaTable(str(folder)).create_checkpoint()
    assert len(read(folder)) == 9
    await lake.move(many(10, 12))
    assert await behind(mirror) == ""
    assert read(folder) == seen(many(0, 12))


async def test_switched_on_later_and_off_again(lake: Lake) -> None:
    metadata = lake.server.client()
    topics = Topics(metadata)
    mirror = mirror_of(lake)
    await topics.set("orders", {})
    await lake.move(many(0, 5))
    await mirror.look()
    assert mirror.standings == {}
    assert not (await root(lake) / "_delta_log").exists()
    await topics.set("orders", BOTH)
    assert await behind(mirror) == ""
    assert read(await root(lake)) == seen(many(0, 5))
    await topics.set("orders", {})
    await lake.move(many(5, 6))
    await mirror.look()
    assert read(await root(lake)) == seen(many(0, 5))


async def test_odd_names_of_files_and_columns(lake: Lake) -> None:
    mirror = mirror_of(lake)
    await lake.move(many(0, 5))
    table = await lake.table()
    odd = f"{table.metadata['location']}/data/a b/x=1%20+ü/100% #1.parquet"
    file = await lake.foreign_file(rows_of(many(0, 5)).cast(SCHEMA))
    body = (lake.root / lake.key(file.file_path)).read_bytes()
    (lake.root / lake.key(odd)).parent.mkdir(parents=True)
    (lake.root / lake.key(odd)).write_bytes(body)
    file[1] = odd
    assert file.file_path == odd
    await lake.replace([file])
    await evolved(lake, [{"id": 16, "name": "a b;c", "type": "string", "required": False}, *await fields(lake)])
    assert await behind(mirror) == ""
    assert read(await root(lake)) == seen(many(0, 5))


async def said_by_doctor(lake: Lake, settings: dict[str, str] = BOTH) -> list[str]:
    found = delta_findings(lake.catalog, "orders", Topic(TOPIC_ID, 1, settings))
    return [f"{finding.level.value} {finding.said}" async for finding in found]


async def test_doctor_compares_files(lake: Lake) -> None:
    mirror = mirror_of(lake)
    assert await said_by_doctor(lake, {}) == []
    assert (await said_by_doctor(lake))[0].startswith("note nothing yet")
    await lake.move(many(0, 5))
    await lake.move(many(5, 10))
    await mirror.look()
    place = f"file://{await root(lake)}"
    assert await said_by_doctor(lake) == [f"ok version 0 has the table's own 2 files; it is {place}"]
    await lake.replace([await lake.foreign_file(rows_of(many(0, 9)).cast(SCHEMA))])
    behind_it = "note version 0 is behind: it lacks 1 file, and has 2 that the table no longer has"
    assert await said_by_doctor(lake) == [behind_it]
    assert "switched off: it stays at version 0" in (await said_by_doctor(lake, {}))[0]
    for path in (await root(lake)).glob("partition=0/*.parquet"):
        path.unlink()
    assert "which is not there any more" in (await said_by_doctor(lake))[0]


async def test_files_that_delta_lists_outlive_their_snapshots(lake: Lake) -> None:
    """It waits, for a column that it cannot say; meanwhile the table is merged and its snapshots expire."""
    mirror = mirror_of(lake)
    await lake.move(many(0, 5))
    await lake.move(many(5, 10))
    await mirror.look()
    plain = await fields(lake)
    await evolved(lake, [*plain, {"id": 16, "name": "at", "type": "time", "required": False}])
    at_once = MaintenanceSettings(
        look_ms=0,
        idle_ms=0,
        merge=EAGER.merge,
        expiry=ExpirySettings(age_ms=0, grace_ms=0),
        orphans=OrphanSettings(age_ms=-1, every_ms=0),
    )
    maintenance = keeper(lake, mirror, at_once)
    await lake.catalog.change(TOPIC_ID, lambda _: [SetProperties({"history.expire.max-snapshot-age-ms": "1"})])
    for _ in range(3):
        await asyncio.sleep(0.01)
        assert (await maintenance.maintain()).failed == 0
        await mirror.look()
    assert len((await lake.table()).metadata["snapshots"]) == 1
    folder = await root(lake)
    assert len(list(folder.rglob("partition=0/*.parquet"))) == 3
    assert read(folder) == seen(many(0, 10))
    await evolved(lake, plain)
    assert await behind(mirror) == ""
    for _ in range(2):
        await maintenance.maintain()
    assert len(list(folder.rglob("partition=0/*.parquet"))) == 1, "now they are orphans"
    assert read(folder) == seen(many(0, 10))
