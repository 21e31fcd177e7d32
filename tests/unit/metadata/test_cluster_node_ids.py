"""A node id never belongs to two addresses."""

import asyncio

import pytest

from lakestream.clock import SystemClock
from lakestream.metadata.brokers import Broker, Brokers, RegisteredBroker
from lakestream.metadata.cluster import NodeIds
from lakestream.metadata.memory import MemoryMetadataStore, MemoryServer
from lakestream.metadata.store import Session


@pytest.fixture
def store() -> MemoryMetadataStore:
    return MemoryMetadataStore(MemoryServer(SystemClock()))


async def started(store: MemoryMetadataStore, address: str) -> tuple[int, Session]:
    session = await store.session(60_000)
    node_id = await NodeIds(store).of(address)
    host, _, port = address.partition(":")
    registered = await Brokers(store).register(RegisteredBroker(Broker(node_id, host, int(port)), None), session)
    assert registered.broker.node_id == node_id
    return node_id, session


async def test_restarted_broker_gets_its_node_id_again(store: MemoryMetadataStore) -> None:
    ids = [await started(store, f"host:{number}") for number in range(3)]
    assert [node_id for node_id, _ in ids] == [0, 1, 2]
    for _, session in ids:
        await session.close()
    assert [(await started(store, f"host:{number}"))[0] for number in (2, 0, 1)] == [2, 0, 1]


async def test_node_id_of_a_dead_broker_is_not_assigned_to_another_address(store: MemoryMetadataStore) -> None:
    _, session = await started(store, "first:1")
    await session.close()
    assert (await started(store, "second:1"))[0] == 1


async def test_broker_gets_another_id_when_its_last_session_is_alive(store: MemoryMetadataStore) -> None:
    _, old = await started(store, "host:1")
    second, _ = await started(store, "host:1")
    await old.close()
    assert second == 1
    assert await NodeIds(store).of("host:1") == 0
    assert await NodeIds(store).of("other:1") == 2


async def test_brokers_that_start_concurrently_get_different_ids(store: MemoryMetadataStore) -> None:
    ids = await asyncio.gather(*(NodeIds(store).of(f"host:{number}") for number in range(20)))
    assert sorted(ids) == list(range(20))
