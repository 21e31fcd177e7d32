"""Tests of fetch: it reads little more than `max_bytes`, and does not wait without need."""

import asyncio

from tests.harness.kafka.kafka_handlers import Serving
from tests.harness.log.brokers import World

from lakestream.data.log.partition_view import OBJECTS_MAX
from lakestream.records.batch import split

PARTITIONS = 200


async def test_only_some_of_many_partitions_are_read_when_max_bytes_is_small() -> None:
    world = World()
    writer = await Serving.open(world)
    await writer.topic(partitions=PARTITIONS)
    for number in range(PARTITIONS):
        await writer.produce("t", "x" * 1_000, partition=number)
    reader = await Serving.open(world, node_id=1)  # its cache is empty
    world.objects.reads.clear()
    parts = [{"partition": n, "fetch_offset": 0, "partition_max_bytes": 10_000} for n in range(PARTITIONS)]
    parts.append({"partition": PARTITIONS, "fetch_offset": 0, "partition_max_bytes": 10_000})
    body = {"max_wait": 0, "min_bytes": 1, "max_bytes": 5_000, "topics": [{"topic": "t", "partitions": parts}]}
    partitions = (await reader.request(1, 12, body)).responses[0].partitions
    assert [part.partition_index for part in partitions] == list(range(PARTITIONS + 1)), (
        "every partition is in the response"
    )
    assert [part.error_code for part in partitions[:-1]] == [0] * PARTITIONS
    assert {part.high_watermark for part in partitions[:-1]} == {1}
    assert partitions[-1].error_code == 3
    assert 4 <= len([part for part in partitions if part.records]) <= 5
    assert len(world.objects.reads) <= 64
    for serving in (writer, reader):
        await serving.close()
    await world.close()


async def test_fetch_does_not_wait_when_more_records_follow_the_response() -> None:
    """The records after the response exist already, so no append has to end the wait."""
    world = World()
    writer = await Serving.open(world)
    await writer.topic()
    for number in range(OBJECTS_MAX + 5):
        await writer.produce("t", str(number))
    reader = await Serving.open(world, node_id=1)
    counts = []
    async with asyncio.timeout(10):
        for offset, min_bytes in ((0, 1 << 20), (OBJECTS_MAX, 1)):
            part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            body = {"max_wait": 60_000, "min_bytes": min_bytes, "max_bytes": 1 << 20}
            response = await reader.request(1, 12, body | {"topics": [{"topic": "t", "partitions": [part]}]})
            counts.append(len(list(split(response.responses[0].partitions[0].records, "response"))))
    assert counts == [OBJECTS_MAX, 5]
    for serving in (writer, reader):
        await serving.close()
    await world.close()


async def test_topics_count_only_the_records_that_a_response_has() -> None:
    world = World()
    writer = await Serving.open(world)
    topic_id = await writer.topic(partitions=2)
    for number in range(2):
        await writer.produce("t", "x" * 1_000, "y", partition=number)
    produced = world.brokers[0].topic_counts.of(topic_id)
    assert (produced.produced_batches, produced.produced_records, produced.fetched_batches) == (2, 4, 0)
    reader = await Serving.open(world, node_id=1)
    parts = [{"partition": n, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for n in range(2)]
    body = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1_000, "topics": [{"topic": "t", "partitions": parts}]}
    partitions = (await reader.request(1, 12, body)).responses[0].partitions
    (size,) = [len(part.records) for part in partitions if part.records]
    fetched = world.brokers[1].topic_counts.of(topic_id)
    assert (fetched.fetched_batches, fetched.fetched_bytes, fetched.produced_bytes) == (1, size, 0)
    assert produced.produced_bytes == 2 * size
    for serving in (writer, reader):
        await serving.close()
    await world.close()
