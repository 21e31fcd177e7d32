"""Fixtures of the tests of log, WAL, table and verification."""

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio
from tests.harness.log.brokers import World


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert left == [], "every task has an owner that ends it"
