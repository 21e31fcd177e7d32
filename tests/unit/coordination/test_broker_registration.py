"""A live broker is registered under one node id at a time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
import pytest_asyncio

from lakestream.clock import SystemClock
from lakestream.coordination import broker_registration
from lakestream.coordination.broker_registration import BrokerRegistration
from lakestream.errors import Conflict, Missing, Unavailable, Uncertain
from lakestream.metadata.brokers import Broker, Brokers
from lakestream.metadata.cluster import NodeIds
from lakestream.metadata.memory import MemoryMetadataStore, MemoryServer
from lakestream.metadata.store import Put, Stored


class LosesResults(MemoryMetadataStore):
    """Store that loses the results of the next `lost_results` puts."""

    lost_results = 0

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        results = await super().put(puts)
        if self.lost_results:
            self.lost_results -= 1
            return [Uncertain("no response") for _ in puts]
        return results


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer(SystemClock())


@pytest.fixture
def store(server: MemoryServer) -> LosesResults:
    return LosesResults(server)


@pytest_asyncio.fixture
async def broker(store: LosesResults, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BrokerRegistration]:
    monkeypatch.setattr(broker_registration, "RETRY_MS", 1)
    broker = BrokerRegistration(store)
    await broker.start(Broker(0, "host", 1))
    yield broker
    await broker.close()


async def registered_brokers(server: MemoryServer) -> list[Broker]:
    return await Brokers(server.client()).all()


async def lose_session(store: MemoryMetadataStore, broker: BrokerRegistration) -> None:
    before = broker._session
    for session in list(store._sessions):
        session.end()
    await until(lambda: broker._session is not before and broker.is_registered)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(5_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the condition never became true")


async def test_broker_is_registered_between_start_and_close(server: MemoryServer, store: LosesResults) -> None:
    broker = BrokerRegistration(store)
    assert await broker.start(Broker(0, "host", 1, "zone")) == broker.broker == Broker(0, "host", 1, "zone")
    assert broker.is_registered
    assert await registered_brokers(server) == [broker.broker]
    await broker.close()
    assert not broker.is_registered
    assert await registered_brokers(server) == []


async def test_broker_registers_again_with_the_same_id_when_its_session_is_lost(
    server: MemoryServer, store: LosesResults, broker: BrokerRegistration
) -> None:
    await lose_session(store, broker)
    assert await registered_brokers(server) == [broker.broker] == [Broker(0, "host", 1)]


async def test_broker_takes_another_id_when_its_id_was_taken(
    server: MemoryServer, store: LosesResults, broker: BrokerRegistration
) -> None:
    other = BrokerRegistration(server.client())
    store._sessions[0].end()
    await other.start(Broker(0, "other", 2))  # before the first broker notices its lost session
    await until(lambda: broker.is_registered)
    assert broker.broker == Broker(1, "host", 1), "it returns its new id"
    assert await registered_brokers(server) == [other.broker, broker.broker]
    await other.close()


async def test_broker_never_takes_the_id_of_another_address(server: MemoryServer, store: LosesResults) -> None:
    """Clients stay connected to this broker under its former id. If another broker had that id now, they would send the
    other's requests to this broker, and get NOT_COORDINATOR until they reconnect."""
    ids = NodeIds(server.client())
    assert [await ids.of(address) for address in ("host:1", "other:2")] == [0, 1]
    broker, former = (BrokerRegistration(client) for client in (store, server.client()))
    await broker.start(Broker(0, "host", 1))
    store._sessions[0].end()
    await former.start(
        Broker(0, "host", 1)
    )  # like an attempt whose response was lost: the version of its record is unknown
    await until(lambda: broker.is_registered)
    assert broker.broker == Broker(2, "host", 1), "1 belongs to other:2, although it does not run"
    assert await ids.of("third:3") == 3, "2 belongs to host:1 from now on"
    await former.close()
    await broker.close()


async def test_unavailable_when_all_ids_are_taken(
    store: LosesResults, broker: BrokerRegistration, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def taken(*_: object) -> None:
        raise Conflict

    monkeypatch.setattr(Brokers, "register", taken)
    with pytest.raises(Unavailable, match="broker host:1: 10 node ids are used by other brokers"):
        await BrokerRegistration(store).start(Broker(0, "host", 1))


async def test_broker_takes_over_its_own_record_of_the_lost_session(
    server: MemoryServer, store: LosesResults, broker: BrokerRegistration
) -> None:
    """The broker considers its session lost; the store has not ended it yet."""
    (old,) = store._sessions
    old._lost.set()
    await until(lambda: broker.is_registered)
    assert await registered_brokers(server) == [broker.broker] == [Broker(0, "host", 1)]
    server.delete_of(old)
    assert await registered_brokers(server) == [broker.broker], "it belongs to the new session"


async def test_registration_is_retried_when_its_response_is_lost_and_leaves_one_record(
    server: MemoryServer, store: LosesResults, broker: BrokerRegistration
) -> None:
    store.lost_results = 3
    await lose_session(store, broker)
    assert store.lost_results == 0
    assert await registered_brokers(server) == [broker.broker]
