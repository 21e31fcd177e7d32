"""Maintenance of tables that others have worked on: their files, deletes and columns; and readers beside it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyiceberg.manifest import DataFileContent
from tests.unit.data.table.lakes import Lake, many, rows_of
from tests.unit.data.table.plain import Record

from lakestream.catalog.listing import Listing, Listings
from lakestream.clock import RandomIds
from lakestream.data.table.arrow import SCHEMA
from lakestream.metadata.claims import Claims
from lakestream.metadata.topics import Topic, Topics
from lakestream.pipeline.maintenance.job import LocalRewrites
from lakestream.pipeline.maintenance.maintain import Maintenance, MaintenanceSettings
from lakestream.pipeline.maintenance.merging import MergeSettings
from lakestream.pipeline.maintenance.work import Rewriting

EAGER = MaintenanceSettings(look_ms=0, idle_ms=0, merge=MergeSettings(files_min=2, many=2, young_ms=0))


@pytest.fixture
async def lake(tmp_path: Path) -> AsyncIterator[Lake]:
    made = await Lake(tmp_path).open()
    yield made
    await made.close()


async def keeper(lake: Lake, **settings: str) -> Maintenance:
    metadata = lake.server.client()
    topics = Topics(metadata)
    chosen = {name.replace("_", "."): text for name, text in settings.items()}
    await topics.create("orders", Topic("0123456789abcdef0123456789abcdef", 1, chosen))
    job = LocalRewrites(Rewriting(lake.store, lake.catalog.locations, RandomIds()))
    return Maintenance(lake.catalog, topics, Claims(metadata), job, metadata.now_ms, EAGER)


async def listing(lake: Lake) -> Listing:
    return await Listings(lake.store, lake.catalog.locations).of_main((await lake.table()).metadata)


def last_of_each(records: list[Record]) -> list[Record]:
    last = {record.key: record.offset for record in records}
    return [record for record in records if last[record.key] == record.offset]


async def test_files_of_others_are_merged_with_ours(lake: Lake) -> None:
    await lake.move(many(0, 10))
    await lake.replace([await lake.foreign_file(rows_of(many(0, 5))), await lake.foreign_file(rows_of(many(5, 10)))])
    await lake.move(many(10, 12))
    done = await (await keeper(lake)).maintain()
    assert (done.files_merged, done.files_written, done.failed) == (3, 1, 0)
    assert await lake.read_all() == many(0, 12)
    await lake.move(many(12, 14))
    assert await lake.read_all() == many(0, 14)


async def test_rows_that_were_deleted_stay_deleted(lake: Lake) -> None:
    (file,) = await lake.move(many(0, 10))
    await lake.move(many(10, 20))
    positions = pa.table({"file_path": [file.location] * 2, "pos": pa.array([0, 7], pa.int64())})
    deletes = await lake.foreign_file(positions, content=DataFileContent.POSITION_DELETES)
    await lake.replace([], [deletes], keep=True)
    left = [record for record in many(0, 20) if record.offset not in (0, 7)]
    assert await lake.read_all() == left
    done = await (await keeper(lake)).maintain()
    assert (done.files_merged, done.failed) == (2, 0)
    assert await lake.read_all() == left
    (merged,) = (await listing(lake)).data
    assert merged.record_count == 18


async def test_rows_in_another_order_come_back_into_ours(lake: Lake) -> None:
    rows = rows_of(many(0, 20))
    shuffled = rows.take(pa.array([(number * 7) % 20 for number in range(20)]))
    await lake.move(many(0, 20))
    halves = [await lake.foreign_file(shuffled.slice(0, 9)), await lake.foreign_file(shuffled.slice(9))]
    await lake.replace(halves)
    await (await keeper(lake)).maintain()
    assert len((await listing(lake)).data) == 1
    assert await lake.read_all() == many(0, 20)


def widened(rows: pa.Table) -> pa.Table:
    """With a column that somebody has added and filled; with field ids, as every engine writes them."""
    more = pa.field("country", pa.string(), metadata={b"PARQUET:field_id": b"16"})
    plain = rows.cast(SCHEMA)
    return plain.append_column(more, pa.array([f"land {number}" for number in range(len(rows))]))


async def test_columns_of_others_are_kept_where_rows_go(lake: Lake) -> None:
    await lake.move(many(0, 20))
    await lake.replace([await lake.foreign_file(widened(rows_of(many(0, 20))))])
    await lake.move(many(20, 22))
    maintenance = await keeper(lake, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    done = await maintenance.maintain()
    assert (done.failed, done.rows_removed) == (0, 17)
    assert await lake.read_all() == last_of_each(many(0, 22))
    (file, _) = sorted((await listing(lake)).data, key=lambda file: file.offset_first or 0)
    kept = pq.read_table(lake.root / lake.key(file.location))
    assert kept.column("country").to_pylist() == ["land 17", "land 18", "land 19"]


async def test_columns_of_others_are_not_merged_away(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    await lake.move(many(0, 20))
    halves = [await lake.foreign_file(widened(rows_of(many(start, start + 10)))) for start in (0, 10)]
    await lake.replace(halves)
    maintenance = await keeper(lake)
    assert (await maintenance.maintain()).failed == 1
    assert "columns that are not the stream's own" in caplog.text
    assert (await maintenance.maintain()).failed == 0  # it is not tried again for a while
    assert {file.location for file in (await listing(lake)).data} == {file.file_path for file in halves}


async def test_deletes_by_equality_keep_files_as_they_are(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    await lake.move(many(0, 10))
    await lake.move(many(10, 20))
    by_key = pa.table({"key": [b"k1"]})
    await lake.replace([], [await lake.foreign_file(by_key, content=DataFileContent.EQUALITY_DELETES)], keep=True)
    before = await listing(lake)
    assert (await (await keeper(lake)).maintain()).files_merged == 0
    assert "deleted by equality" in caplog.text
    assert await listing(lake) == before


async def test_who_reads_beside_it_sees_every_record(lake: Lake) -> None:
    """A broker replays the topic again and again while it is merged, compacted and expired under its hands."""
    maintenance = await keeper(lake)
    maintenance._settings = MaintenanceSettings(
        look_ms=0, idle_ms=0, merge=EAGER.merge, expiry=type(EAGER.expiry)(age_ms=1, grace_ms=1)
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
