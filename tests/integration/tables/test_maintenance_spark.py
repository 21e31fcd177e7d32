"""Maintenance on a real Spark, of a table on disk, which another engine reads afterwards."""

import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.harness.catalog.maintenance_tables import HOUR, MINUTE, TOPIC_ID, Row, World

from lakestream.catalog.locations import Locations
from lakestream.clock import RandomIds
from lakestream.errors import Unavailable
from lakestream.pipeline.maintenance.job import SparkRewrites
from lakestream.pipeline.maintenance.service import Maintenance
from lakestream.pipeline.spark.job import SparkJob
from lakestream.pipeline.spark.session import SparkSettings
from lakestream.pipeline.tasks import WorkSettings
from lakestream.storage.local_store import FileStore

# pyspark leaves sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@pytest.fixture
async def spark(tmp_path: Path) -> AsyncIterator[SparkJob]:
    settings = WorkSettings(storage_url=tmp_path.as_uri(), segments_dir=None)
    job = SparkJob(settings, SparkSettings(master="local[2]"))
    yield job
    await job.close()
    gc.collect()


async def test_duckdb_reads_the_rows_left_after_rewrites_and_retention(spark: SparkJob, tmp_path: Path) -> None:
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
        for partition, appended in log.items():
            rows = [Row(number * 3 + index, b"k%d" % (number % 5 + index), b"v", 1) for index in range(3)]
            appended += rows
            await world.append(rows, partition)
    world.clock.ms += 2 * MINUTE
    work = WorkSettings(storage_url=tmp_path.as_uri(), segments_dir=None)
    rewrites = SparkRewrites(lambda: spark.spark, work)
    maintenance = Maintenance(world.catalog, world.topics, world.claims, rewrites, world._now_ms)
    with pytest.raises(Unavailable, match="Spark is not running"):
        await rewrites.run([])
    await spark.start()
    stats = await maintenance.maintain()
    assert (stats.failed, stats.rows_removed) == (0, 2 * (60 - 7))
    world.clock.ms += 20 * MINUTE
    stats = await maintenance.maintain()
    assert stats.failed == 0
    for partition, appended in log.items():
        last = {row.key: row.offset for row in appended}
        assert await world.rows(partition) == [row for row in appended if last[row.key] == row.offset]
    world.clock.ms += 2 * HOUR
    await maintenance.maintain()
    table = await world.catalog.load_id(TOPIC_ID)
    assert len(table.metadata["snapshots"]) == 1
    with duckdb.connect() as connection:
        files = [file.location.removeprefix("file://") for number in log for file in await world.files(number)]
        (count,) = connection.execute("SELECT count(*) FROM read_parquet($1)", [files]).fetchone()
    assert count == 14
    await rewrites.close()
