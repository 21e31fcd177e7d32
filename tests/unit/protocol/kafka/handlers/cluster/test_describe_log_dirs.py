"""Tests of DescribeLogDirs: sizes of partitions whose records are in the log, in the table, or in both."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.harness.catalog.iceberg_tables import catalog_over
from tests.harness.catalog.topic_tables import files_of, moved
from tests.harness.kafka.kafka_handlers import Serving
from tests.harness.log.brokers import World

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.operations.append import append
from lakestream.catalog.operations.create_topic_table import ensure_table
from lakestream.catalog.pointers import TableSize
from lakestream.model import PartitionId
from lakestream.protocol.kafka.handlers.cluster.describe_log_dirs import table_share
from lakestream.testing.batches import make_batch

BATCH_BYTES = len(make_batch([b"a"]))


@pytest_asyncio.fixture
async def serving() -> AsyncIterator[Serving]:
    world = World()
    serving = await Serving.open(world)
    yield serving
    await serving.close()
    await world.close()


@pytest_asyncio.fixture
async def catalog(serving: Serving) -> Catalog:
    catalog = catalog_over(serving.world.server.client(), serving.world.objects)
    await catalog.start()
    return catalog


async def described(serving: Serving) -> dict[int, int]:
    response = await serving.request(35, 4, {"topics": [{"topic": "t", "partitions": [0, 1]}]})
    ((topic,),) = (directory.topics for directory in response.results)
    return {part.partition_index: part.partition_size for part in topic.partitions}


async def move(serving: Serving, catalog: Catalog, topic_id: str, *ranges: tuple[int, int, int]) -> LoadedTable:
    """Moves ranges of a topic into its table, as the pipeline does."""
    loaded = await ensure_table(catalog, "t", topic_id, {})
    loaded = await append(catalog, loaded, files_of(loaded, moved(*ranges)), moved(*ranges))
    for number, _, end in ranges:
        await serving.world.move(serving.services.log, PartitionId(topic_id, number), end)
    return loaded


async def test_size_includes_the_table_when_records_have_left_the_log(serving: Serving, catalog: Catalog) -> None:
    topic_id = await serving.topic(partitions=2)
    for partition, count in ((0, 4), (1, 1)):
        for _ in range(count):
            await serving.produce("t", "a", partition=partition)
    assert await described(serving) == {0: 4 * BATCH_BYTES, 1: BATCH_BYTES}
    await move(serving, catalog, topic_id, (0, 0, 3), (1, 0, 1))
    in_table = 1003 + 1001
    assert await described(serving) == {0: BATCH_BYTES + in_table * 3 // 4, 1: in_table // 4}
    await move(serving, catalog, topic_id, (0, 3, 4))
    in_table += 1001
    assert await described(serving) == {0: in_table * 4 // 5, 1: in_table // 5}


async def test_size_is_read_without_the_metadata_of_the_table(serving: Serving, catalog: Catalog) -> None:
    topic_id = await serving.topic(partitions=2)
    await serving.produce("t", "a")
    loaded = await move(serving, catalog, topic_id, (0, 0, 1))
    await serving.world.objects.delete([catalog.locations.key_of(loaded.metadata_location)])
    assert await described(serving) == {0: 1001, 1: 0}


async def test_size_is_that_of_the_log_when_the_topic_has_no_table(serving: Serving) -> None:
    topic_id = await serving.topic(partitions=2)
    for _ in range(2):
        await serving.produce("t", "a")
    await serving.world.move(serving.services.log, PartitionId(topic_id, 0), 1)
    assert await described(serving) == {0: BATCH_BYTES, 1: 0}


@pytest.mark.parametrize(
    ("table", "floor", "share"),
    [
        (TableSize(900, 9), 3, 300),
        (TableSize(900, 9), 9, 900),
        (TableSize(900, 9), 12, 900),  # the table was dropped and created again
        (TableSize(900, 0), 12, 0),
        (TableSize(0, 9), 9, 0),
    ],
)
def test_share_of_a_partition_is_that_of_its_offsets(table: TableSize, floor: int, share: int) -> None:
    assert table_share(table, floor) == share
