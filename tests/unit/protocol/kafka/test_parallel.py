"""Requests about very many partitions: their round trips overlap, but only so many at a time."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.data.brokers import World
from tests.unit.protocol.kafka.serving import Serving

from lakestream.metadata.memory import MemoryStore
from lakestream.metadata.store import Key, Record
from lakestream.protocol.kafka.dispatch import Dispatcher
from lakestream.protocol.kafka.parallel import AT_ONCE_MAX, answers

PARTITIONS = 200


class Far(MemoryStore):
    """Some time away; it knows how many were on their way at once."""

    under_way = most = 0

    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.001)
        self.under_way -= 1
        return await super().get(key, confirmed=confirmed)


NUMBERS = range(PARTITIONS)
REQUESTS: list[tuple[int, int, dict[str, Any]]] = [
    (2, 11, {"name": "t", "partitions": [{"partition_index": n, "timestamp": -2} for n in NUMBERS]}),
    (21, 2, {"name": "t", "partitions": [{"partition_index": n, "offset": 0} for n in NUMBERS]}),
    (23, 4, {"topic": "t", "partitions": [{"partition": n, "leader_epoch": 0} for n in NUMBERS]}),
    (61, 0, {"name": "t", "partition_indexes": list(NUMBERS)}),
    (35, 4, {"topic": "t", "partitions": list(NUMBERS)}),
]


@pytest.mark.parametrize(
    ("key", "version", "topic"), REQUESTS, ids=["offsets", "delete", "epochs", "producers", "dirs"]
)
async def test_partitions_are_looked_at_together(key: int, version: int, topic: dict[str, Any]) -> None:
    world = World()
    serving = await Serving.open(world)
    await serving.topic(partitions=PARTITIONS)
    far = Far(world.server)
    serving.services = replace(serving.services, log=await world.broker(metadata=far))
    serving.dispatcher = Dispatcher(serving.services)
    rest = {"replica_id": -1} if key in (2, 23) else {"timeout": 1000} if key == 21 else {}
    answer = await serving.ask(key, version, {"topics": [topic]} | rest)
    topics = answer.results[0].topics if key == 35 else answer.topics
    assert [part for part in topics[0].partitions if getattr(part, "error_code", 0)] == []
    assert len(topics[0].partitions) == PARTITIONS
    assert AT_ONCE_MAX / 2 <= far.most <= AT_ONCE_MAX
    await serving.close()
    await world.close()


async def test_calls_are_made_as_they_are_needed() -> None:
    made = 0
    ended = 0

    async def call(number: int) -> int:
        nonlocal ended
        await asyncio.sleep(0)
        ended += 1
        return number

    def calls() -> Any:
        nonlocal made
        for number in range(1_000):
            made += 1
            assert made - ended <= AT_ONCE_MAX
            yield call(number)

    assert await answers(calls()) == list(range(1_000))
