"""Stores in memory, and a topic with schemas in them."""

from collections.abc import AsyncIterator

import pytest
from tests.harness.log.brokers import World
from tests.harness.pipeline.schema_topic import REGISTRY, SchemaTopic


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


@pytest.fixture
async def topic(world: World) -> AsyncIterator[SchemaTopic]:
    topic = await SchemaTopic.start(world, REGISTRY)
    yield topic
    topic.close()
