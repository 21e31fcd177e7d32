"""How much a fetch reads: not much more than it may answer with."""

import asyncio

from tests.unit.data.brokers import World
from tests.unit.protocol.kafka.serving import Serving

from lakestream.batch import split
from lakestream.data.log.log import OBJECTS_MAX

PARTITIONS = 200


async def test_of_very_many_partitions_only_some_are_read_when_the_answer_is_full() -> None:
    world = World()
    writer = await Serving.open(world)
    await writer.topic(partitions=PARTITIONS)
    for number in range(PARTITIONS):
        await writer.produce("t", "x" * 1_000, partition=number)
    reader = await Serving.open(world, node_id=1)  # nothing is in its memory
    world.objects.reads.clear()
    parts = [{"partition": n, "fetch_offset": 0, "partition_max_bytes": 10_000} for n in range(PARTITIONS)]
    parts.append({"partition": PARTITIONS, "fetch_offset": 0, "partition_max_bytes": 10_000})
    body = {"max_wait": 0, "min_bytes": 1, "max_bytes": 5_000, "topics": [{"topic": "t", "partitions": parts}]}
    found = (await reader.ask(1, 12, body)).responses[0].partitions
    assert [part.partition_index for part in found] == list(range(PARTITIONS + 1)), "every partition has its answer"
    assert [part.error_code for part in found[:-1]] == [0] * PARTITIONS
    assert {part.high_watermark for part in found[:-1]} == {1}
    assert found[-1].error_code == 3
    assert 4 <= len([part for part in found if part.records]) <= 5
    assert len(world.objects.reads) <= 64
    for serving in (writer, reader):
        await serving.close()
    await world.close()


async def test_who_wants_more_than_one_answer_takes_is_not_kept_waiting() -> None:
    """What is behind the answer is there already: nothing has to be appended for it."""
    world = World()
    writer = await Serving.open(world)
    await writer.topic()
    for number in range(OBJECTS_MAX + 5):
        await writer.produce("t", str(number))
    reader = await Serving.open(world, node_id=1)
    found = []
    async with asyncio.timeout(10):
        for offset, min_bytes in ((0, 1 << 20), (OBJECTS_MAX, 1)):
            part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            body = {"max_wait": 60_000, "min_bytes": min_bytes, "max_bytes": 1 << 20}
            answer = await reader.ask(1, 12, body | {"topics": [{"topic": "t", "partitions": [part]}]})
            found.append(len(list(split(answer.responses[0].partitions[0].records, "answer"))))
    assert found == [OBJECTS_MAX, 5]
    for serving in (writer, reader):
        await serving.close()
    await world.close()
