"""A broker that knows too little, or what was true once, says what clients retry, and knows better the next time."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest_asyncio
from tests.unit.data.brokers import World
from tests.unit.protocol.kafka.serving import Serving

from lakestream.coordination.cluster import ClusterView
from lakestream.errors import Unavailable
from lakestream.metadata.memory import MemoryStore
from lakestream.metadata.store import Key, Record
from lakestream.protocol.kafka.dispatch import Dispatcher
from lakestream.protocol.kafka.errors import Code


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
