"""A broker that knows too little, or what was true once, says what clients retry, and knows better the next time."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest_asyncio
from tests.unit.data.brokers import World
from tests.unit.protocol.kafka.serving import Serving

from lakestream.coordination.cluster import ClusterView
from lakestream.errors import Unavailable
from lakestream.metadata.memory import MemoryStore
from lakestream.metadata.store import Key, Record
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Dispatcher
from lakestream.protocol.kafka.errors import Code
from lakestream.testing.batches import make_batch


class Unreachable(MemoryStore):
    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        raise Unavailable("the store cannot answer now")


@pytest_asyncio.fixture
async def serving() -> AsyncIterator[Serving]:
    world = World()
    serving = await Serving.open(world)
    yield serving
    await serving.close()
    await world.close()


async def fetched(serving: Serving, name: str = "t") -> Any:
    wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    body = {"max_wait": 0, "min_bytes": 0, "topics": [{"topic": name, "partitions": [wanted]}]}
    answer = await serving.ask(1, 12, body)
    return answer.responses[0].partitions[0]


async def test_a_consumer_is_told_to_look_elsewhere_while_the_store_cannot_answer(serving: Serving) -> None:
    """The Java consumer throws at its user when a fetch is answered with a time-out."""
    await serving.topic()
    lost = ClusterView(Unreachable(serving.world.server))
    serving.dispatcher = Dispatcher(replace(serving.services, view=lost))
    assert (await fetched(serving)).error_code == Code.NOT_LEADER_OR_FOLLOWER


async def test_a_topic_that_was_made_again_is_found_though_no_event_came(serving: Serving) -> None:
    deaf = ClusterView(MemoryStore(serving.world.server))
    other = await Serving.open(serving.world, node_id=1)
    services = replace(serving.services, view=deaf)
    services.log.when_gone(deaf.forget_log)
    serving.dispatcher = Dispatcher(services)
    await other.topic()
    await serving.produce("t", "old")
    await other.ask(20, 5, {"topic_names": ["t"], "timeout": 1000})
    await other.topic()
    await other.produce("t", "another")
    codes = [(await serving.produce("t", "new")).error_code for _ in range(2)]
    assert codes == [Code.UNKNOWN_TOPIC_OR_PARTITION, Code.NONE], "denied once, then looked for"
    assert (await fetched(serving)).high_watermark == 2
    await other.close()


async def test_an_old_id_never_means_a_partition_of_the_new_topic(serving: Serving) -> None:
    """The broker knows the old topic from before it grew, so it asks the store for the partition: and finds another."""
    deaf = ClusterView(MemoryStore(serving.world.server))
    old = await serving.topic(partitions=1)
    serving.dispatcher = Dispatcher(replace(serving.services, view=deaf))
    await deaf.topic("t")
    other = await Serving.open(serving.world, node_id=1)
    await other.ask(20, 5, {"topic_names": ["t"], "timeout": 1000})
    await other.topic(partitions=2)
    data = [{"topic_id": UUID(hex=old), "partition_data": [{"index": 1, "records": make_batch([b"x"])}]}]
    produced = await serving.ask(0, 13, {"acks": -1, "timeout": 5000, "topic_data": data})
    assert produced.responses[0].partition_responses[0].error_code == Code.UNKNOWN_TOPIC_ID
    await other.close()


async def test_a_fetch_with_an_old_id_never_reads_the_new_topic(serving: Serving) -> None:
    deaf = ClusterView(MemoryStore(serving.world.server))
    old = await serving.topic(partitions=1)
    serving.dispatcher = Dispatcher(replace(serving.services, view=deaf))
    await deaf.topic("t")
    other = await Serving.open(serving.world, node_id=1)
    await other.ask(20, 5, {"topic_names": ["t"], "timeout": 1000})
    await other.topic(partitions=2)
    wanted = {"partition": 1, "fetch_offset": 0, "partition_max_bytes": 1000}
    body = {"max_wait": 0, "min_bytes": 0, "topics": [{"topic_id": UUID(hex=old), "partitions": [wanted]}]}
    answer = await serving.ask(1, 13, body)
    assert answer.responses[0].partitions[0].error_code == Code.UNKNOWN_TOPIC_ID
    await other.close()


async def test_a_topic_that_is_half_deleted_can_be_deleted_by_its_id(serving: Serving) -> None:
    """Its logs went first, then the broker died; the name is still taken."""
    topic_id = await serving.topic()
    await serving.services.claims.bury_logs([PartitionId(topic_id, number) for number in range(2)])
    serving.services.view.forget("t")
    body = {"topics": [{"name": None, "topic_id": UUID(hex=topic_id)}], "timeout": 1000}
    codes = [(await serving.ask(20, 6, body)).responses[0].error_code for _ in range(2)]
    assert codes == [Code.NONE, Code.UNKNOWN_TOPIC_ID]
    await serving.topic()
