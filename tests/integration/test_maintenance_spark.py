"""Maintenance on a real Spark, over a table on the disk; and the table afterwards, as another engine reads it."""

import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.pipeline.maintenance.tables import HOUR, MINUTE, TOPIC_ID, Row, World

from lakestream.catalog.locations import Locations
from lakestream.clock import RandomIds
from lakestream.errors import Unavailable
from lakestream.pipeline.job import SparkJob, WorkSettings
from lakestream.pipeline.maintenance.job import SparkRewrites
from lakestream.pipeline.maintenance.maintain import Maintenance
from lakestream.pipeline.spark import SparkSettings
from lakestream.storage.file import FileStore

# pyspark leaves sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@pytest.fixture
async def spark(tmp_path: Path) -> AsyncIterator[SparkJob]:
    settings = WorkSettings(storage_url=tmp_path.as_uri(), segments_dir=None)
    job = SparkJob(settings, SparkSettings(master="local[2]"))
    yield job
    await job.close()
    gc.collect()


async def test_small_files_and_old_records_go_and_duckdb_agrees(spark: SparkJob, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    world = World()
    world.objects = FileStore(tmp_path, world.clock, RandomIds())
    world.catalog = type(world.catalog)(
        world.metadata, world.objects, Locations(tmp_path.as_uri()), world.clock, world.ids
    )
    await world.start(
        partitions=2,
        settings={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"},
    )
    log: dict[int, list[Row]] = {0: [], 1: []}
    for number in range(20):
        for partition, own in log.items():
            rows = [Row(number * 3 + place, b"k%d" % (number % 5 + place), b"v", 1) for place in range(3)]
            own += rows
            await world.append(rows, partition)
    world.clock.ms += 2 * MINUTE
    work = WorkSettings(storage_url=tmp_path.as_uri(), segments_dir=None)
    rewrites = SparkRewrites(lambda: spark.spark, work)
    maintenance = Maintenance(world.catalog, world.topics, world.claims, rewrites, world._now_ms)
    with pytest.raises(Unavailable, match="not there yet"):
        await rewrites.run([])
    await spark.start()
    done = await maintenance.maintain()
    assert (done.failed, done.rows_removed) == (0, 2 * (60 - 7))
    world.clock.ms += 20 * MINUTE
    done = await maintenance.maintain()
    assert done.failed == 0
    for partition, own in log.items():
        last = {row.key: row.offset for row in own}
        assert await world.rows(partition) == [row for row in own if last[row.key] == row.offset]
    world.clock.ms += 2 * HOUR
    await maintenance.maintain()
    table = await world.catalog.load_id(TOPIC_ID)
    assert len(table.metadata["snapshots"]) == 1
    with duckdb.connect() as connection:
        files = [file.location.removeprefix("file://") for number in log for file in await world.files(number)]
        (count,) = connection.execute("SELECT count(*) FROM read_parquet($1)", [files]).fetchone()
    assert count == 14
    await rewrites.close()
