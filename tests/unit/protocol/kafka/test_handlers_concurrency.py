"""Tests of requests for many partitions: their store reads are concurrent, up to a limit."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.harness.kafka.kafka_handlers import Serving
from tests.harness.log.brokers import World

from lakestream.aio.gather import LIMIT, gather_limited
from lakestream.metadata.memory import MemoryMetadataStore
from lakestream.metadata.store import Key, Record
from lakestream.protocol.kafka.dispatch import Dispatcher

PARTITIONS = 200


class SlowStore(MemoryMetadataStore):
    """Each read takes 1 ms. Counts the maximum of concurrent reads."""

    active = most = 0

    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        self.active += 1
        self.most = max(self.most, self.active)
        await asyncio.sleep(0.001)
        self.active -= 1
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
async def test_partitions_of_one_request_are_read_concurrently_up_to_a_limit(
    key: int, version: int, topic: dict[str, Any]
) -> None:
    world = World()
    serving = await Serving.open(world)
    await serving.topic(partitions=PARTITIONS)
    slow = SlowStore(world.server)
    serving.services = replace(serving.services, log=await world.broker(metadata=slow))
    serving.dispatcher = Dispatcher(serving.services)
    rest = {"replica_id": -1} if key in (2, 23) else {"timeout": 1000} if key == 21 else {}
    response = await serving.request(key, version, {"topics": [topic]} | rest)
    topics = response.results[0].topics if key == 35 else response.topics
    assert [part for part in topics[0].partitions if getattr(part, "error_code", 0)] == []
    assert len(topics[0].partitions) == PARTITIONS
    assert LIMIT / 2 <= slow.most <= LIMIT
    await serving.close()
    await world.close()


async def test_gather_limited_creates_coroutines_only_when_they_can_run() -> None:
    created = 0
    ended = 0

    async def call(number: int) -> int:
        nonlocal ended
        await asyncio.sleep(0)
        ended += 1
        return number

    def calls() -> Any:
        nonlocal created
        for number in range(1_000):
            created += 1
            assert created - ended <= LIMIT
            yield call(number)

    assert await gather_limited(calls()) == list(range(1_000))
