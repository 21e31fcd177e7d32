"""A world of one process, and in it a topic whose values have schemas."""

from collections.abc import AsyncIterator

import pytest
from tests.unit.data.brokers import World
from tests.unit.pipeline.typed_world import REGISTRY, Typed


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


@pytest.fixture
async def typed(world: World) -> AsyncIterator[Typed]:
    typed = await Typed.start(world, REGISTRY)
    yield typed
    typed.close()
