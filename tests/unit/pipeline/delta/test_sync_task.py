"""Tests Delta tables over Iceberg tables on a disk, with commits of pipeline, maintenance and other engines.

Read by delta-rs and by DuckDB.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from pyiceberg.manifest import DataFileContent
from tests.harness.catalog.delta_readers import Seen, duckdb, read
from tests.harness.table.history_tables import TOPIC_ID, Lake, many, rows_of
from tests.harness.table.reference_codec import Record
from tests.unit.data.table.test_history_rows_without_offsets import drop_not_null, inserted, without_offsets

from lakestream.catalog.delta.log import LOG_RETENTION_MS, DeltaLog
from lakestream.catalog.delta.schema import check_delta
from lakestream.catalog.operations.expire_snapshots import ExpirySettings
from lakestream.catalog.operations.remove_orphan_files import OrphanSettings
from lakestream.catalog.table_metadata.json_model import Json, schema_of
from lakestream.catalog.table_metadata.updates import AddSchema, SetCurrentSchema, SetProperties
from lakestream.catalog.topic_table.properties import HAS_DELTA
from lakestream.cli.doctor.delta import delta_findings
from lakestream.clock import RandomIds
from lakestream.data.table.arrow.types import SCHEMA
from lakestream.errors import Misconfigured, Unavailable
from lakestream.metadata.claims import Claims
from lakestream.metadata.topics import Topic, Topics
from lakestream.pipeline.delta.sync_task import DeltaSyncTask
from lakestream.pipeline.maintenance.job import LocalRewrites
from lakestream.pipeline.maintenance.service import Maintenance, MaintenanceSettings
from lakestream.pipeline.maintenance.small_files import MergeSettings
from lakestream.pipeline.maintenance.worker import FileRewriter

EAGER = MaintenanceSettings(visit_ms=0, idle_ms=0, merge=MergeSettings(files_min=2, many=2, young_ms=0))
BOTH = {"lakestream.table.formats": "iceberg,delta"}


@pytest.fixture
async def lake(tmp_path: Path) -> AsyncIterator[Lake]:
    made = await Lake(tmp_path).open()
    await Topics(made.server.client()).create("orders", Topic(TOPIC_ID, 1, BOTH))
    yield made
    await made.close()


def sync_task_of(lake: Lake) -> DeltaSyncTask:
    metadata = lake.server.client()
    return DeltaSyncTask(lake.catalog, Topics(metadata), metadata.now_ms)


def maintenance_of(lake: Lake, sync_task: DeltaSyncTask, settings: MaintenanceSettings = EAGER) -> Maintenance:
    metadata = lake.server.client()
    job = LocalRewrites(FileRewriter(lake.store, lake.catalog.locations, RandomIds()))
    return Maintenance(lake.catalog, Topics(metadata), Claims(metadata), job, metadata.now_ms, settings, sync_task)


async def root(lake: Lake) -> Path:
    return lake.root / lake.key((await lake.table()).metadata["location"]) / "data"


def seen(records: Sequence[Record]) -> list[Seen]:
    return [Seen(record.offset, record.value) for record in records]


async def lagging_reason(sync_task: DeltaSyncTask) -> str:
    await sync_task.sync_all()
    return sync_task.statuses[TOPIC_ID].lagging


def commit(folder: Path, version: int) -> list[Json]:
    return [json.loads(line) for line in (folder / "_delta_log" / f"{version:020d}.json").read_text().splitlines()]


async def set_fields(lake: Lake, fields: list[Json]) -> None:
    table = await lake.table()
    schema = {**schema_of(table.metadata), "fields": fields, "schema-id": len(table.metadata["schemas"])}
    await lake.catalog.commit(TOPIC_ID, [], [AddSchema(schema), SetCurrentSchema(-1)])


async def fields(lake: Lake) -> list[Json]:
    found: list[Json] = schema_of((await lake.table()).metadata)["fields"]
    return found


async def test_files_without_offsets_in_all_rows_are_not_listed(lake: Lake) -> None:
    sync_task = sync_task_of(lake)
    await drop_not_null(lake)
    await lake.move(many(0, 10))
    rows = without_offsets(rows_of(many(0, 3)), range(3), "null _stream")
    await lake.replace([await inserted(lake, rows)], keep=True)
    await lake.move(many(10, 15))
    assert await lagging_reason(sync_task) == ""
    assert read(await root(lake)) == seen(many(0, 15))
    found = [one async for one in delta_findings(lake.catalog, "orders", Topic(TOPIC_ID, 1, BOTH))]
    assert ["has the table's own" in one.text for one in found] == [True], found


async def test_moved_rows_are_in_both_tables(lake: Lake) -> None:
    sync_task = sync_task_of(lake)
    assert await lagging_reason(sync_task) == ""  # no record was moved yet
    await lake.move(many(0, 10))
    await lake.move(many(10, 15))
    assert await lagging_reason(sync_task) == ""
    folder = await root(lake)
    assert read(folder) == seen(many(0, 15))
    await lake.move(many(15, 16))
    await sync_task.sync_all()
    assert read(folder) == seen(many(0, 16))
    table = DeltaTable(str(folder))
    metadata = (await lake.table()).metadata
    assert table.transaction_version(TOPIC_ID) == metadata["last-sequence-number"] == 3
    newest = table.history(1)[0]
    assert newest["lakestream.next-offsets"] == '{"0":16}'
    assert newest["lakestream.snapshot-id"] == str(metadata["current-snapshot-id"])
    assert metadata["properties"][HAS_DELTA] == "true"
    assert len(table.to_pyarrow_table()) == 16  # also by readers of protocol version 1
    await sync_task.sync_all()
    assert DeltaTable(str(folder)).version() == 1, "no commit without changes"


async def test_statistics_let_readers_skip_files(lake: Lake) -> None:
    await lake.move(many(0, 10))
    await lake.move(many(10, 20))
    await sync_task_of(lake).sync_all()
    stats = [json.loads(line["add"]["stats"]) for line in commit(await root(lake), 0) if "add" in line]
    assert sorted((one["minValues"]["_stream"]["offset"], one["maxValues"]["_stream"]["offset"]) for one in stats) == [
        (0, 9),
        (10, 19),
    ]
    assert all(one["numRecords"] == 10 and one["nullCount"]["value"] == 0 for one in stats)
    with duckdb() as connection:
        query = f"FROM delta_scan('{await root(lake)}') SELECT count(*) WHERE _stream.\"offset\" >= 15"
        assert connection.execute(query).fetchone() == (5,)


async def test_merge_is_committed_without_data_change(lake: Lake) -> None:
    sync_task = sync_task_of(lake)
    await lake.move(many(0, 10))
    await sync_task.sync_all()
    await lake.move(many(10, 20))  # not synced before the merge
    assert (await maintenance_of(lake, sync_task).maintain()).files_merged == 2
    await lake.move(many(20, 22))
    assert await lagging_reason(sync_task) == ""
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


async def test_rows_deleted_by_copy_on_write_are_removed(lake: Lake) -> None:
    sync_task = sync_task_of(lake)
    (first,) = await lake.move(many(0, 10))
    await lake.move(many(10, 20))
    await sync_task.sync_all()
    # Copy on write: a new file without the rows.
    await lake.replace([await lake.foreign_file(rows_of(many(3, 20)).cast(SCHEMA))])
    assert await lagging_reason(sync_task) == ""
    assert read(await root(lake)) == seen(many(3, 20))
    assert first.location


async def test_sync_waits_until_maintenance_applied_delete_files(lake: Lake) -> None:
    sync_task = sync_task_of(lake)
    (file,) = await lake.move(many(0, 10))
    await sync_task.sync_all()
    positions = pa.table({"file_path": [file.location] * 2, "pos": pa.array([0, 7], pa.int64())})
    deletes = await lake.foreign_file(positions, content=DataFileContent.POSITION_DELETES)
    await lake.replace([], [deletes], keep=True)
    await lake.move(many(10, 20))
    assert "have delete files" in await lagging_reason(sync_task)
    folder = await root(lake)
    assert read(folder) == seen(many(0, 10)), "it stays at its consistent version"
    done = await maintenance_of(lake, sync_task, MaintenanceSettings(visit_ms=0, idle_ms=0)).maintain()
    assert (done.files_merged, done.failed) == (1, 0)
    assert await lagging_reason(sync_task) == ""
    left = [record for record in many(0, 20) if record.offset not in (0, 7)]
    assert read(folder) == seen(left)
    assert await lake.read_all() == left


async def test_foreign_columns_are_kept_when_maintenance_applies_delete_files(lake: Lake) -> None:
    sync_task = sync_task_of(lake)
    await lake.move(many(0, 10))
    await set_fields(lake, [*await fields(lake), {"id": 16, "name": "country", "type": "string", "required": False}])
    more = pa.field("country", pa.string(), metadata={b"PARQUET:field_id": b"16"})
    rows = rows_of(many(0, 10)).cast(SCHEMA).append_column(more, pa.array([f"c{at}" for at in range(10)]))
    file = await lake.foreign_file(rows)
    await lake.replace([file])
    await sync_task.sync_all()
    positions = pa.table({"file_path": [file.file_path], "pos": pa.array([4], pa.int64())})
    await lake.replace([], [await lake.foreign_file(positions, content=DataFileContent.POSITION_DELETES)], keep=True)
    assert "have delete files" in await lagging_reason(sync_task)
    assert (await maintenance_of(lake, sync_task).maintain()).failed == 0
    assert await lagging_reason(sync_task) == ""
    left = [at for at in range(10) if at != 4]
    with duckdb() as connection:
        query = f"SELECT _stream.\"offset\", country FROM delta_scan('{await root(lake)}') ORDER BY 1"
        assert connection.execute(query).fetchall() == [(at, f"c{at}") for at in left]
    assert [record.offset for record in await lake.read_all()] == left


async def test_added_renamed_and_replaced_columns_are_readable(lake: Lake) -> None:
    sync_task = sync_task_of(lake)
    await lake.move(many(0, 5))
    await sync_task.sync_all()
    await set_fields(lake, [{"id": 16, "name": "country", "type": "string", "required": False}, *await fields(lake)])
    await lake.move(many(5, 6))
    assert await lagging_reason(sync_task) == ""
    folder = await root(lake)
    assert read(folder) == seen(many(0, 6))
    assert DeltaTable(str(folder)).to_pyarrow_table().column("country").null_count == 6
    renamed = [one | {"name": {"value": "payload"}.get(one["name"], one["name"])} for one in await fields(lake)]
    await set_fields(lake, renamed)
    await lake.move(many(6, 8))
    assert await lagging_reason(sync_task) == ""
    assert read(folder, "payload") == seen(many(0, 8))
    assert DeltaTable(str(folder)).protocol().min_reader_version == 3
    # A new column with the name of a dropped one is another column.
    dropped = [one for one in renamed if one["name"] != "country"]
    await set_fields(lake, [*dropped, {"id": 17, "name": "value", "type": "string", "required": False}])
    await lake.move(many(8, 9))
    assert await lagging_reason(sync_task) == ""
    assert read(folder, "payload") == seen(many(0, 9))
    with duckdb() as connection:
        assert connection.execute(f"SELECT DISTINCT value FROM delta_scan('{folder}')").fetchall() == [(None,)]


async def test_sync_waits_until_maintenance_rewrote_files_with_other_column_names(lake: Lake) -> None:
    sync_task = sync_task_of(lake)
    await lake.move(many(0, 5))
    await sync_task.sync_all()
    await set_fields(lake, [one | {"name": {"value": "v"}.get(one["name"], one["name"])} for one in await fields(lake)])
    rows = rows_of(many(0, 5)).cast(SCHEMA)
    await lake.replace([await lake.foreign_file(rows.rename_columns({"value": "v"}))])
    assert "column v under the name v, not value" in await lagging_reason(sync_task)
    assert sync_task.blocking_files(TOPIC_ID)[1]
    await maintenance_of(lake, sync_task).maintain()
    assert await lagging_reason(sync_task) == ""
    assert read(await root(lake), "v") == seen(many(0, 5))


async def test_sync_waits_while_a_column_has_an_unsupported_type(lake: Lake) -> None:
    sync_task = sync_task_of(lake)
    await lake.move(many(0, 5))
    await sync_task.sync_all()
    before = await fields(lake)
    await set_fields(lake, [{"id": 16, "name": "at", "type": "time", "required": False}, *before])
    await lake.move(many(5, 6))
    assert await lagging_reason(sync_task) == "column at has the type time, which Delta does not support"
    with pytest.raises(
        Misconfigured, match=r"lakestream\.table\.formats cannot have delta: column at has the type time"
    ):
        await check_delta(lake.catalog, TOPIC_ID)
    assert read(await root(lake)) == seen(many(0, 5))
    await set_fields(lake, before)
    assert await lagging_reason(sync_task) == ""
    assert read(await root(lake)) == seen(many(0, 6))


async def test_concurrent_and_late_sync_tasks_commit_each_change_once(lake: Lake) -> None:
    one, other, late = sync_task_of(lake), sync_task_of(lake), sync_task_of(lake)
    for start in range(0, 30, 3):
        await lake.move(many(start, start + 3))
        await asyncio.gather(one.sync_all(), other.sync_all())
        assert (one.statuses[TOPIC_ID].lagging, other.statuses[TOPIC_ID].lagging) == ("", "")
        if not start:
            await late.sync_all()
    assert await lagging_reason(late) == ""
    folder = await root(lake)
    assert read(folder) == seen(many(0, 30))
    assert DeltaTable(str(folder)).version() == 9, "one commit for each snapshot"


async def test_lost_response_of_a_delta_commit_is_resolved(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    sync_task = sync_task_of(lake)
    await lake.move(many(0, 5))
    await sync_task.sync_all()
    await lake.move(many(5, 8))
    create = type(lake.store).create

    async def lost(self: Any, key: str, body: Any) -> None:
        await create(self, key, body)
        if "_delta_log" in key:
            raise Unavailable("the answer was lost")

    monkeypatch.setattr(type(lake.store), "create", lost)
    assert "lost" in await lagging_reason(sync_task)
    monkeypatch.undo()
    assert await lagging_reason(sync_task) == ""
    assert await lagging_reason(sync_task_of(lake)) == ""  # another driver, without caches
    assert read(await root(lake)) == seen(many(0, 8))
    assert DeltaTable(str(await root(lake))).version() == 1


async def test_table_is_readable_from_its_checkpoint_when_old_commits_are_deleted(lake: Lake) -> None:
    sync_task = sync_task_of(lake)
    for start in range(22):
        await lake.move(many(start, start + 1))
        await sync_task.sync_all()
    folder = await root(lake)
    log = folder / "_delta_log"
    assert json.loads((log / "_last_checkpoint").read_text())["version"] == 19
    for version in range(19):
        (log / f"{version:020d}.json").unlink()
    assert read(folder) == seen(many(0, 22))
    await lake.move(many(22, 24))
    assert await lagging_reason(sync_task_of(lake)) == ""
    (log / "_last_checkpoint").unlink()  # only a hint
    await lake.move(many(24, 25))
    assert await lagging_reason(sync_task_of(lake)) == ""
    assert read(folder) == seen(many(0, 25))


async def test_old_commits_before_a_checkpoint_are_deleted(lake: Lake) -> None:
    sync_task = sync_task_of(lake)
    for start in range(22):
        await lake.move(many(start, start + 1))
        await sync_task.sync_all()
    folder = await root(lake) / "_delta_log"
    log = DeltaLog(lake.store, f"{lake.key((await lake.table()).metadata['location'])}/data/_delta_log")
    now_ms = await lake.server.client().now_ms()
    assert await log.remove_old(now_ms) == 0, "no commit is old"
    assert await log.remove_old(now_ms + LOG_RETENTION_MS + 60_000) == 19
    assert sorted(path.name[17:] for path in folder.glob("0*")) == [
        "019.checkpoint.parquet",
        "019.json",
        "020.json",
        "021.json",
    ]
    assert (await log.read()).version == 21


async def test_commit_of_another_engine_to_the_delta_table_is_reverted(lake: Lake) -> None:
    sync_task = sync_task_of(lake)
    await lake.move(many(0, 10))
    await sync_task.sync_all()
    folder = await root(lake)
    DeltaTable(str(folder)).delete("_stream['offset'] = 3")
    DeltaTable(str(folder)).create_checkpoint()
    assert len(read(folder)) == 9
    await lake.move(many(10, 12))
    assert await lagging_reason(sync_task) == ""
    assert read(folder) == seen(many(0, 12))


async def test_sync_starts_and_stops_with_the_setting(lake: Lake) -> None:
    metadata = lake.server.client()
    topics = Topics(metadata)
    sync_task = sync_task_of(lake)
    await topics.set("orders", {})
    await lake.move(many(0, 5))
    await sync_task.sync_all()
    assert sync_task.statuses == {}
    assert not (await root(lake) / "_delta_log").exists()
    await topics.set("orders", BOTH)
    assert await lagging_reason(sync_task) == ""
    assert read(await root(lake)) == seen(many(0, 5))
    await topics.set("orders", {})
    await lake.move(many(5, 6))
    await sync_task.sync_all()
    assert read(await root(lake)) == seen(many(0, 5))


async def test_special_characters_in_file_and_column_names_are_readable(lake: Lake) -> None:
    sync_task = sync_task_of(lake)
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
    await set_fields(lake, [{"id": 16, "name": "a b;c", "type": "string", "required": False}, *await fields(lake)])
    assert await lagging_reason(sync_task) == ""
    assert read(await root(lake)) == seen(many(0, 5))


async def doctor_findings(lake: Lake, settings: dict[str, str] = BOTH) -> list[str]:
    found = delta_findings(lake.catalog, "orders", Topic(TOPIC_ID, 1, settings))
    return [f"{finding.level.value} {finding.text}" async for finding in found]


async def test_doctor_reports_differences_between_the_file_lists(lake: Lake) -> None:
    sync_task = sync_task_of(lake)
    assert await doctor_findings(lake, {}) == []
    assert (await doctor_findings(lake))[0].startswith("note does not exist yet")
    await lake.move(many(0, 5))
    await lake.move(many(5, 10))
    await sync_task.sync_all()
    place = f"file://{await root(lake)}"
    assert await doctor_findings(lake) == [f"ok version 0 has the table's own 2 files; it is {place}"]
    await lake.replace([await lake.foreign_file(rows_of(many(0, 9)).cast(SCHEMA))])
    lagging = "note version 0 lags: it lacks 1 file, and has 2 that the table no longer has"
    assert await doctor_findings(lake) == [lagging]
    assert "switched off: it stays at version 0" in (await doctor_findings(lake, {}))[0]
    for path in (await root(lake)).glob("partition=0/*.parquet"):
        path.unlink()
    assert "which no longer exists" in (await doctor_findings(lake))[0]


async def test_files_are_kept_while_the_delta_table_lists_them(lake: Lake) -> None:
    """The Delta table lags because of an unsupported column; meanwhile files are merged and snapshots expire."""
    sync_task = sync_task_of(lake)
    await lake.move(many(0, 5))
    await lake.move(many(5, 10))
    await sync_task.sync_all()
    plain = await fields(lake)
    await set_fields(lake, [*plain, {"id": 16, "name": "at", "type": "time", "required": False}])
    immediately = MaintenanceSettings(
        visit_ms=0,
        idle_ms=0,
        merge=EAGER.merge,
        expiry=ExpirySettings(age_ms=0, grace_ms=0),
        orphans=OrphanSettings(age_ms=-1, every_ms=0),
    )
    maintenance = maintenance_of(lake, sync_task, immediately)
    await lake.catalog.change(TOPIC_ID, lambda _: [SetProperties({"history.expire.max-snapshot-age-ms": "1"})])
    for _ in range(3):
        await asyncio.sleep(0.01)
        assert (await maintenance.maintain()).failed == 0
        await sync_task.sync_all()
    assert len((await lake.table()).metadata["snapshots"]) == 1
    folder = await root(lake)
    assert len(list(folder.rglob("partition=0/*.parquet"))) == 3
    assert read(folder) == seen(many(0, 10))
    await set_fields(lake, plain)
    assert await lagging_reason(sync_task) == ""
    for _ in range(2):
        await maintenance.maintain()
    assert len(list(folder.rglob("partition=0/*.parquet"))) == 1, "now all but one are orphan files"
    assert read(folder) == seen(many(0, 10))


@pytest.mark.parametrize("folder", ["-other/data", "/data/_delta_log", "/other"])
async def test_sync_waits_when_a_file_is_outside_of_the_data_folder(lake: Lake, folder: str) -> None:
    sync_task = sync_task_of(lake)
    await lake.move(many(0, 10))
    assert await lagging_reason(sync_task) == ""
    elsewhere = f"{(await lake.table()).metadata['location']}{folder}"
    await lake.replace([await lake.foreign_file(rows_of(many(10, 20)), folder=elsewhere)], keep=True)
    assert "outside of the folder" in await lagging_reason(sync_task)
    assert read(await root(lake)) == seen(many(0, 10))
