"""What cannot be obeyed or is not known is refused, and a store that does not answer is not taken for an empty one."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest_asyncio
from tests.unit.data.brokers import World
from tests.unit.protocol.kafka.serving import Serving

from lakestream.errors import Unavailable
from lakestream.metadata.memory import MemoryStore
from lakestream.metadata.store import Key, Record
from lakestream.metadata.topics import Topics
from lakestream.protocol.kafka.dispatch import Dispatcher
from lakestream.settings import Profile

REQUEST_TIMED_OUT, INVALID_CONFIG = 7, 40


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


async def created(serving: Serving, validate_only: bool = False, **settings: str) -> Any:
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in settings.items()]
    wanted = {"name": "t", "num_partitions": 1, "replication_factor": 1, "configs": configs}
    answer = await serving.ask(19, 7, {"topics": [wanted], "timeout": 1000, "validate_only": validate_only})
    return answer.topics[0]


async def test_a_profile_that_the_broker_has_not_got_is_refused(world: World) -> None:
    serving = await Serving.open(world, profiles=frozenset([Profile.COST]))
    refused = await created(serving, lakestream_profile="latency")
    assert refused.error_code == INVALID_CONFIG
    assert "--wal-dir" in refused.error_message
    assert (await created(serving, lakestream_profile="cost")).error_code == 0
    configs = [{"name": "lakestream.profile", "config_operation": 0, "value": "latency"}]
    resource = {"resource_type": 2, "resource_name": "t", "configs": configs}
    altered = (await serving.ask(44, 1, {"resources": [resource]})).responses[0]
    assert altered.error_code == INVALID_CONFIG
    assert (await serving.services.topics.get("t")).settings == {"lakestream.profile": "cost"}
    await serving.close()


class Silent(MemoryStore):
    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        raise Unavailable("no answer")


async def test_a_plan_is_not_called_good_when_the_store_does_not_answer(world: World) -> None:
    serving = await Serving.open(world)
    assert (await created(serving, validate_only=True)).error_code == 0
    serving.services = replace(serving.services, topics=Topics(Silent(world.server)))
    serving.dispatcher = Dispatcher(serving.services)
    assert (await created(serving, validate_only=True)).error_code == REQUEST_TIMED_OUT
    await serving.close()
