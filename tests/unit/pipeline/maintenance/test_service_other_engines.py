"""Tests maintenance of tables with files, deletes and columns of other engines, and concurrent readers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyiceberg.manifest import DataFileContent
from tests.harness.table.history_tables import Lake, many, rows_of
from tests.harness.table.reference_codec import Record

from lakestream.catalog.operations.live_files import LiveFileReader, LiveFiles
from lakestream.clock import RandomIds
from lakestream.data.table.arrow.types import SCHEMA
from lakestream.errors import Corrupt
from lakestream.metadata.claims import Claims
from lakestream.metadata.topics import Topic, Topics
from lakestream.pipeline.maintenance.job import LocalRewrites
from lakestream.pipeline.maintenance.service import Maintenance, MaintenanceSettings
from lakestream.pipeline.maintenance.small_files import MergeSettings
from lakestream.pipeline.maintenance.table_file import TableFiles
from lakestream.pipeline.maintenance.tasks import SourceFile
from lakestream.pipeline.maintenance.worker import FileRewriter

EAGER = MaintenanceSettings(visit_ms=0, idle_ms=0, merge=MergeSettings(files_min=2, many=2, young_ms=0))


@pytest.fixture
async def lake(tmp_path: Path) -> AsyncIterator[Lake]:
    made = await Lake(tmp_path).open()
    yield made
    await made.close()


async def maintenance_of(lake: Lake, **settings: str) -> Maintenance:
    metadata = lake.server.client()
    topics = Topics(metadata)
    chosen = {name.replace("_", "."): text for name, text in settings.items()}
    await topics.create("orders", Topic("0123456789abcdef0123456789abcdef", 1, chosen))
    job = LocalRewrites(FileRewriter(lake.store, lake.catalog.locations, RandomIds()))
    return Maintenance(lake.catalog, topics, Claims(metadata), job, metadata.now_ms, EAGER)


async def listing(lake: Lake) -> LiveFiles:
    return await LiveFileReader(lake.store, lake.catalog.locations).of_main((await lake.table()).metadata)


def last_of_each(records: list[Record]) -> list[Record]:
    last = {record.key: record.offset for record in records}
    return [record for record in records if last[record.key] == record.offset]


async def test_files_of_other_engines_are_merged_with_those_of_the_pipeline(lake: Lake) -> None:
    await lake.move(many(0, 10))
    await lake.replace([await lake.foreign_file(rows_of(many(0, 5))), await lake.foreign_file(rows_of(many(5, 10)))])
    await lake.move(many(10, 12))
    done = await (await maintenance_of(lake)).maintain()
    assert (done.files_merged, done.files_written, done.failed) == (3, 1, 0)
    assert await lake.read_all() == many(0, 12)
    await lake.move(many(12, 14))
    assert await lake.read_all() == many(0, 14)


async def test_deleted_rows_stay_deleted_after_a_merge(lake: Lake) -> None:
    (file,) = await lake.move(many(0, 10))
    await lake.move(many(10, 20))
    positions = pa.table({"file_path": [file.location] * 2, "pos": pa.array([0, 7], pa.int64())})
    deletes = await lake.foreign_file(positions, content=DataFileContent.POSITION_DELETES)
    await lake.replace([], [deletes], keep=True)
    left = [record for record in many(0, 20) if record.offset not in (0, 7)]
    assert await lake.read_all() == left
    done = await (await maintenance_of(lake)).maintain()
    assert (done.files_merged, done.failed) == (2, 0)
    assert await lake.read_all() == left
    (merged,) = (await listing(lake)).data
    assert merged.record_count == 18


async def test_merged_rows_are_sorted_by_offset_again(lake: Lake) -> None:
    rows = rows_of(many(0, 20))
    shuffled = rows.take(pa.array([(number * 7) % 20 for number in range(20)]))
    await lake.move(many(0, 20))
    halves = [await lake.foreign_file(shuffled.slice(0, 9)), await lake.foreign_file(shuffled.slice(9))]
    await lake.replace(halves)
    await (await maintenance_of(lake)).maintain()
    assert len((await listing(lake)).data) == 1
    assert await lake.read_all() == many(0, 20)


def widened(rows: pa.Table) -> pa.Table:
    """Adds a filled column with a field id, as an engine does."""
    more = pa.field("country", pa.string(), metadata={b"PARQUET:field_id": b"16"})
    plain = rows.cast(SCHEMA)
    return plain.append_column(more, pa.array([f"land {number}" for number in range(len(rows))]))


async def test_foreign_columns_are_kept_when_rows_are_removed(lake: Lake) -> None:
    await lake.move(many(0, 20))
    await lake.replace([await lake.foreign_file(widened(rows_of(many(0, 20))))])
    await lake.move(many(20, 22))
    maintenance = await maintenance_of(lake, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    done = await maintenance.maintain()
    assert (done.failed, done.rows_removed) == (0, 17)
    assert await lake.read_all() == last_of_each(many(0, 22))
    (file, _) = sorted((await listing(lake)).data, key=lambda file: file.offset_first or 0)
    kept = pq.read_table(lake.root / lake.key(file.location))
    assert kept.column("country").to_pylist() == ["land 17", "land 18", "land 19"]


async def test_files_with_foreign_columns_are_not_merged(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    await lake.move(many(0, 20))
    halves = [await lake.foreign_file(widened(rows_of(many(start, start + 10)))) for start in (0, 10)]
    await lake.replace(halves)
    maintenance = await maintenance_of(lake)
    assert (await maintenance.maintain()).failed == 1
    assert "columns that are not the stream's own" in caplog.text
    assert (await maintenance.maintain()).failed == 0  # it is not retried for a while
    assert {file.location for file in (await listing(lake)).data} == {file.file_path for file in halves}


async def test_no_file_is_rewritten_when_the_table_has_equality_deletes(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    await lake.move(many(0, 10))
    await lake.move(many(10, 20))
    by_key = pa.table({"key": [b"k1"]})
    await lake.replace([], [await lake.foreign_file(by_key, content=DataFileContent.EQUALITY_DELETES)], keep=True)
    before = await listing(lake)
    assert (await (await maintenance_of(lake)).maintain()).files_merged == 0
    assert "equality deletes" in caplog.text
    assert await listing(lake) == before


async def test_concurrent_reader_gets_every_record(lake: Lake) -> None:
    """A broker replays the topic while its files are merged and its snapshots expire."""
    maintenance = await maintenance_of(lake)
    maintenance._settings = MaintenanceSettings(
        visit_ms=0, idle_ms=0, merge=EAGER.merge, expiry=type(EAGER.expiry)(age_ms=1, grace_ms=1)
    )
    done = False

    async def keep() -> None:
        nonlocal done
        for start in range(0, 60, 3):
            await lake.move(many(start, start + 3))
            if start % 6 == 3:
                await maintenance.maintain()
        done = True

    async def read() -> int:
        rounds = 0
        while not done:
            found = await lake.read_all()
            assert found == many(0, len(found))
            rounds += 1
            await asyncio.sleep(0)
        return rounds

    _, rounds = await asyncio.gather(keep(), read())
    assert rounds > 1
    assert await lake.read_all() == many(0, 60)


async def test_maintenance_fails_when_the_table_names_a_file_elsewhere(lake: Lake) -> None:
    """As older versions accepted it: the file is neither merged, which would copy the rows, nor replaced or deleted."""
    await lake.move(many(0, 10))
    elsewhere = f"{(await lake.table()).metadata['location']}-other/data"
    await lake.replace([await lake.foreign_file(rows_of(many(10, 20)), folder=elsewhere)], keep=True)
    before = {info.key async for page in lake.store.walk("tables") for info in page}
    done = await (await maintenance_of(lake)).maintain()
    assert (done.failed, done.files_merged, done.files_removed, done.orphans_removed) == (1, 0, 0, 0)
    assert before == {info.key async for page in lake.store.walk("tables") for info in page}
    with pytest.raises(Corrupt, match="it is not under"):
        await listing(lake)


async def test_worker_reads_no_file_outside_of_the_table_folder(lake: Lake) -> None:
    (own,) = await lake.move(many(0, 10))
    folder = lake.catalog.locations.table((await lake.table()).metadata["location"])
    other = lake.catalog.locations.table(f"{folder.location}-other")
    source = SourceFile(own.location, own.size, 0, 9, False, ())
    assert (await TableFiles(lake.store, folder).open(source)).footer.file_size == own.size
    with pytest.raises(Corrupt, match="it is not under"):
        await TableFiles(lake.store, other).open(source)
    with pytest.raises(Corrupt, match="it is not under"):
        await TableFiles(lake.store, folder).open(source._replace(deletes=(f"{other.location}/data/d.parquet",)))
