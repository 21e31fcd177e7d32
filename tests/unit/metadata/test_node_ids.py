"""An id never leads to two addresses."""

import asyncio

import pytest

from lakestream.clock import SystemClock
from lakestream.metadata.brokers import Broker, Brokers, Registered
from lakestream.metadata.memory import MemoryServer, MemoryStore
from lakestream.metadata.node_ids import NodeIds
from lakestream.metadata.store import Session


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(MemoryServer(SystemClock()))


async def started(store: MemoryStore, address: str) -> tuple[int, Session]:
    session = await store.session(60_000)
    node_id = await NodeIds(store).of(address)
    host, _, port = address.partition(":")
    registered = await Brokers(store).register(Registered(Broker(node_id, host, int(port)), None), session)
    assert registered.broker.node_id == node_id
    return node_id, session


async def test_one_that_comes_back_has_its_id_again(store: MemoryStore) -> None:
    ids = [await started(store, f"host:{number}") for number in range(3)]
    assert [node_id for node_id, _ in ids] == [0, 1, 2]
    for _, session in ids:
        await session.close()
    assert [(await started(store, f"host:{number}"))[0] for number in (2, 0, 1)] == [2, 0, 1]


async def test_nobody_takes_the_id_of_one_that_is_gone(store: MemoryStore) -> None:
    _, session = await started(store, "first:1")
    await session.close()
    assert (await started(store, "second:1"))[0] == 1


async def test_one_that_comes_back_before_it_is_forgotten_takes_another(store: MemoryStore) -> None:
    _, old = await started(store, "host:1")
    second, _ = await started(store, "host:1")
    await old.close()
    assert second == 1
    assert await NodeIds(store).of("host:1") == 0
    assert await NodeIds(store).of("other:1") == 2


async def test_who_starts_at_the_same_time_shares_no_id(store: MemoryStore) -> None:
    found = await asyncio.gather(*(NodeIds(store).of(f"host:{number}") for number in range(20)))
    assert sorted(found) == list(range(20))
