"""Tests of brokers with a stale or empty metadata cache: they return retriable codes, and the retry succeeds."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest_asyncio
from tests.harness.kafka.kafka_handlers import Serving
from tests.harness.log.brokers import World

from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.errors import Unavailable
from lakestream.metadata.memory import MemoryMetadataStore
from lakestream.metadata.store import Key, Record
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Dispatcher
from lakestream.protocol.kafka.errors import Code
from lakestream.testing.batches import make_batch


class UnavailableStore(MemoryMetadataStore):
    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        raise Unavailable("the store does not respond")


@pytest_asyncio.fixture
async def serving() -> AsyncIterator[Serving]:
    world = World()
    serving = await Serving.open(world)
    yield serving
    await serving.close()
    await world.close()


async def fetch(serving: Serving, name: str = "t") -> Any:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    body = {"max_wait": 0, "min_bytes": 0, "topics": [{"topic": name, "partitions": [partition]}]}
    response = await serving.request(1, 12, body)
    return response.responses[0].partitions[0]


async def test_fetch_returns_not_leader_when_the_store_is_unavailable(serving: Serving) -> None:
    """The Java consumer raises an error to the application if a fetch returns a timeout."""
    await serving.topic()
    empty = MetadataCache(UnavailableStore(serving.world.server))
    serving.dispatcher = Dispatcher(replace(serving.services, metadata_cache=empty))
    assert (await fetch(serving)).error_code == Code.NOT_LEADER_OR_FOLLOWER


async def test_recreated_topic_is_served_when_its_watch_event_is_missing(serving: Serving) -> None:
    stale = MetadataCache(MemoryMetadataStore(serving.world.server))
    other = await Serving.open(serving.world, node_id=1)
    log = await serving.world.broker(on_partition_deleted=stale.evict_topic_of)
    serving.dispatcher = Dispatcher(replace(serving.services, metadata_cache=stale, log=log))
    await other.topic()
    await serving.produce("t", "old")
    await other.request(20, 5, {"topic_names": ["t"], "timeout": 1000})
    await other.topic()
    await other.produce("t", "another")
    codes = [(await serving.produce("t", "new")).error_code for _ in range(2)]
    assert codes == [Code.UNKNOWN_TOPIC_OR_PARTITION, Code.NONE], "the first error evicts the cached topic"
    assert (await fetch(serving)).high_watermark == 2
    await other.close()


async def test_produce_is_rejected_when_its_topic_id_is_that_of_a_recreated_topic(serving: Serving) -> None:
    """The cached topic has fewer partitions, so the broker reads the topic from the store, and gets the new id."""
    stale = MetadataCache(MemoryMetadataStore(serving.world.server))
    old = await serving.topic(partitions=1)
    serving.dispatcher = Dispatcher(replace(serving.services, metadata_cache=stale))
    await stale.topic("t")
    other = await Serving.open(serving.world, node_id=1)
    await other.request(20, 5, {"topic_names": ["t"], "timeout": 1000})
    await other.topic(partitions=2)
    data = [{"topic_id": UUID(hex=old), "partition_data": [{"index": 1, "records": make_batch([b"x"])}]}]
    produced = await serving.request(0, 13, {"acks": -1, "timeout": 5000, "topic_data": data})
    assert produced.responses[0].partition_responses[0].error_code == Code.UNKNOWN_TOPIC_ID
    await other.close()


async def test_fetch_is_rejected_when_its_topic_id_is_that_of_a_recreated_topic(serving: Serving) -> None:
    stale = MetadataCache(MemoryMetadataStore(serving.world.server))
    old = await serving.topic(partitions=1)
    serving.dispatcher = Dispatcher(replace(serving.services, metadata_cache=stale))
    await stale.topic("t")
    other = await Serving.open(serving.world, node_id=1)
    await other.request(20, 5, {"topic_names": ["t"], "timeout": 1000})
    await other.topic(partitions=2)
    partition = {"partition": 1, "fetch_offset": 0, "partition_max_bytes": 1000}
    body = {"max_wait": 0, "min_bytes": 0, "topics": [{"topic_id": UUID(hex=old), "partitions": [partition]}]}
    response = await serving.request(1, 13, body)
    assert response.responses[0].partitions[0].error_code == Code.UNKNOWN_TOPIC_ID
    await other.close()


async def test_delete_by_id_succeeds_when_an_earlier_delete_was_incomplete(serving: Serving) -> None:
    """The earlier delete removed the logs, but not the name."""
    topic_id = await serving.topic()
    await serving.world.claims.delete_logs([PartitionId(topic_id, number) for number in range(2)])
    serving.services.metadata_cache.evict("t")
    body = {"topics": [{"name": None, "topic_id": UUID(hex=topic_id)}], "timeout": 1000}
    codes = [(await serving.request(20, 6, body)).responses[0].error_code for _ in range(2)]
    assert codes == [Code.NONE, Code.UNKNOWN_TOPIC_ID]
    await serving.topic()
