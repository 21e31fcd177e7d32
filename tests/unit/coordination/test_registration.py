"""A broker is known to the others as long as it lives, under one id at a time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
import pytest_asyncio

from lakestream.clock import SystemClock
from lakestream.coordination import registration
from lakestream.coordination.registration import Registration
from lakestream.errors import Conflict, Missing, Unavailable, Uncertain
from lakestream.metadata.brokers import Broker, Brokers
from lakestream.metadata.memory import MemoryServer, MemoryStore
from lakestream.metadata.node_ids import NodeIds
from lakestream.metadata.store import Put, Stored


class Shaky(MemoryStore):
    """The answers of its next puts are lost on the way back."""

    lost_answers = 0

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        answers = await super().put(puts)
        if self.lost_answers:
            self.lost_answers -= 1
            return [Uncertain("no answer") for _ in puts]
        return answers


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer(SystemClock())


@pytest.fixture
def store(server: MemoryServer) -> Shaky:
    return Shaky(server)


@pytest_asyncio.fixture
async def broker(store: Shaky, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Registration]:
    monkeypatch.setattr(registration, "RETRY_MS", 1)
    broker = Registration(store, Broker(0, "host", 1))
    await broker.start()
    yield broker
    await broker.close()


async def known(server: MemoryServer) -> list[Broker]:
    return await Brokers(server.client()).all()


async def registered_anew(store: MemoryStore, broker: Registration) -> None:
    before = broker._session
    for session in list(store._sessions):
        session.end()
    await until(lambda: broker._session is not before and broker.holds)


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(5_000):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to that")


async def test_it_comes_and_goes(server: MemoryServer, store: Shaky) -> None:
    broker = Registration(store, Broker(0, "host", 1, "zone"))
    assert await broker.start() == broker.broker == Broker(0, "host", 1, "zone")
    assert broker.holds
    assert await known(server) == [broker.broker]
    await broker.close()
    assert not broker.holds
    assert await known(server) == []


async def test_a_lost_session_is_replaced_under_the_same_id(
    server: MemoryServer, store: Shaky, broker: Registration
) -> None:
    await registered_anew(store, broker)
    assert await known(server) == [broker.broker] == [Broker(0, "host", 1)]


async def test_an_id_that_somebody_took_meanwhile_is_left_to_him(
    server: MemoryServer, store: Shaky, broker: Registration
) -> None:
    other = Registration(server.client(), Broker(0, "other", 2))
    store._sessions[0].end()
    await other.start()  # before the first one has noticed
    await until(lambda: broker.holds)
    assert broker.broker == Broker(1, "host", 1), "it says who it is now, not who it was"
    assert await known(server) == [other.broker, broker.broker]
    await other.close()


async def test_the_id_of_another_address_is_not_taken_whoever_lives(server: MemoryServer, store: Shaky) -> None:
    """Clients are still connected to this one by an id that it had. If that were another broker's by now, they would
    ask this one for what is the other's, and be told for ever that it is not the coordinator."""
    ids = NodeIds(server.client())
    assert [await ids.of(address) for address in ("host:1", "other:2")] == [0, 1]
    broker, former = (Registration(client, Broker(0, "host", 1)) for client in (store, server.client()))
    await broker.start()
    store._sessions[0].end()
    await former.start()  # as an attempt does whose answer was lost: nobody knows its record's version
    await until(lambda: broker.holds)
    assert broker.broker == Broker(2, "host", 1), "1 is other:2's, though that one is not there"
    assert await ids.of("third:3") == 3, "2 is host:1's from now on"
    await former.close()
    await broker.close()


async def test_nobody_is_left_without_an_id_for_a_bug(
    store: Shaky, broker: Registration, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def taken(*_: object) -> None:
        raise Conflict

    monkeypatch.setattr(Brokers, "register", taken)
    with pytest.raises(Unavailable, match="every node id that host:1 could have"):
        await Registration(store, Broker(0, "host", 1)).start()


async def test_a_record_of_its_own_that_lives_on_is_taken_over(
    server: MemoryServer, store: Shaky, broker: Registration
) -> None:
    """It believes that its session is lost; the store does not know yet, and will end it soon."""
    (old,) = store._sessions
    old._lost.set()
    await until(lambda: broker.holds)
    assert await known(server) == [broker.broker] == [Broker(0, "host", 1)]
    server.delete_of(old)
    assert await known(server) == [broker.broker], "it hangs on the new session"


async def test_a_registration_without_an_answer_is_tried_again_and_leaves_no_second_one(
    server: MemoryServer, store: Shaky, broker: Registration
) -> None:
    store.lost_answers = 3
    await registered_anew(store, broker)
    assert store.lost_answers == 0
    assert await known(server) == [broker.broker]
