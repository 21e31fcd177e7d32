"""An S3 server behind a network that loses responses, drops all packets or is cut; and a server that is killed.

No call hangs, no write is reported as successful that is not stored, and no own write is reported as a conflict.
"""

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import NamedTuple

import pytest

from lakestream.clock import RandomIds, SystemClock
from lakestream.errors import Conflict, Unavailable, Uncertain
from lakestream.model import MiB
from lakestream.storage.object_store import ObjectStore
from lakestream.storage.open_store import open_store
from lakestream.storage.retrying import RetryingStore, RetrySettings
from lakestream.storage.startup_check import check_store
from lakestream.testing.processes import listens
from lakestream.testing.servers import Proxy, S3Server, s3_server, toxiproxy

pytestmark = pytest.mark.alone

CLOCK, IDS = SystemClock(), RandomIds()
BODY = [b"one ", b"two"]


class Stores(NamedTuple):
    server: S3Server
    network: Proxy
    remote: ObjectStore
    """Reaches the server through the faulty network, without retries."""
    direct: ObjectStore
    """Reaches the server directly, and so reads its true state."""

    def retrying(self, **settings: int) -> RetryingStore:
        return RetryingStore(self.remote, RetrySettings(**settings), random.Random(1))


@pytest.fixture
async def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stores]:
    async with s3_server(tmp_path) as server, toxiproxy() as toxics:
        server.bucket("lake")
        network = await toxics.proxy(f"127.0.0.1:{server.port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_access_key)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{network.port}")
        remote = open_store("s3://lake", CLOCK, IDS)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        yield Stores(server, network, remote, open_store("s3://lake", CLOCK, IDS))


async def heal_after(network: Proxy, toxic: str, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await network.remove(toxic)


LOST_RESPONSES = [("reset_peer", {"timeout": 0}), ("limit_data", {"bytes": 10})]


@pytest.mark.parametrize(("toxic", "attributes"), LOST_RESPONSES, ids=["reset", "cut"])
async def test_create_is_uncertain_and_the_object_complete_when_the_response_is_lost(
    stores: Stores, toxic: str, attributes: dict[str, int]
) -> None:
    await stores.network.add(toxic, attributes)
    with pytest.raises(Uncertain) as raised:
        await stores.remote.create("k", BODY)
    assert "\n" not in str(raised.value)
    assert bytes(await stores.direct.get("k")) == b"one two"
    with pytest.raises(Conflict):
        await stores.direct.create("k", BODY)


@pytest.mark.parametrize(("toxic", "attributes"), LOST_RESPONSES, ids=["reset", "cut"])
async def test_retried_create_succeeds_when_the_stored_object_is_its_own(
    stores: Stores, toxic: str, attributes: dict[str, int]
) -> None:
    name = await stores.network.add(toxic, attributes)
    healing = asyncio.create_task(heal_after(stores.network, name, 1.0))
    await stores.retrying().create("k", BODY)
    await healing
    assert bytes(await stores.direct.get("k")) == b"one two"


async def test_retried_create_conflicts_when_another_client_stored_the_object(stores: Stores) -> None:
    await stores.direct.create("k", [b"theirs!"])
    name = await stores.network.add("reset_peer", {"timeout": 0})
    healing = asyncio.create_task(heal_after(stores.network, name, 1.0))
    with pytest.raises(Conflict):
        await stores.retrying().create("k", BODY)
    await healing
    assert bytes(await stores.direct.get("k")) == b"theirs!"


async def test_retried_create_is_uncertain_when_no_response_arrives_within_the_deadline(stores: Stores) -> None:
    await stores.network.add("reset_peer", {"timeout": 0})
    start_s = asyncio.get_running_loop().time()
    with pytest.raises(Uncertain, match="gave up after"):
        await stores.retrying(deadline_ms=1500).create("k", BODY)
    assert asyncio.get_running_loop().time() - start_s < 6.0
    assert bytes(await stores.direct.get("k")) == b"one two"


@pytest.mark.parametrize("stream", ["downstream", "upstream"])
async def test_calls_end_within_the_deadline_when_all_packets_are_dropped(stores: Stores, stream: str) -> None:
    await stores.network.add("timeout", {"timeout": 0}, stream=stream)
    store = stores.retrying(try_timeout_ms=500, deadline_ms=2000)
    loop = asyncio.get_running_loop()

    async def walk() -> None:
        async for _ in store.walk(""):
            pass

    calls: list[tuple[Awaitable[object], type[Unavailable]]] = [
        (store.create("k", BODY), Uncertain),
        (store.put("p", BODY), Uncertain),
        (store.get("k"), Unavailable),
        (walk(), Unavailable),
    ]
    for call, kind in calls:
        start_s = loop.time()
        with pytest.raises(kind):
            await call
        assert loop.time() - start_s < 8.0


async def test_retried_creates_succeed_when_dropped_packets_are_temporary(stores: Stores) -> None:
    name = await stores.network.add("timeout", {"timeout": 0})
    healing = asyncio.create_task(heal_after(stores.network, name, 1.2))
    store = stores.retrying(try_timeout_ms=500)
    await asyncio.gather(*(store.create(f"k/{number}", BODY) for number in range(5)))
    await healing
    assert [info.key async for page in stores.direct.walk("k") for info in page] == [f"k/{n}" for n in range(5)]


async def test_retried_creates_succeed_when_the_server_is_restarted(stores: Stores) -> None:
    store = stores.retrying(try_timeout_ms=2000)
    await store.put("before", BODY)
    writes = [asyncio.create_task(store.create(f"k/{number}", [bytes(MiB)])) for number in range(8)]
    await asyncio.sleep(0.01)
    stores.server.process.kill()
    await asyncio.sleep(1.0)
    stores.server.process.start()
    await stores.server.process.wait_ready(lambda: listens(stores.server.port))
    await asyncio.gather(*writes)
    for number in range(8):
        assert (await stores.direct.head(f"k/{number}")).size == MiB
    assert bytes(await store.get("before")) == b"one two"


async def test_create_is_unavailable_but_not_uncertain_when_no_connection_can_be_opened(stores: Stores) -> None:
    await stores.network.cut()
    with pytest.raises(Unavailable, match="no connection") as raised:
        await stores.remote.create("k", BODY)
    assert not isinstance(raised.value, Uncertain)
    with pytest.raises(Unavailable, match="no connection"):
        await check_store(stores.remote, "s3://lake", CLOCK, IDS)
    await stores.network.restore()
    await stores.retrying().create("k", BODY)


async def test_retried_large_create_conflicts_when_the_key_exists(stores: Stores) -> None:
    """The server closes the connection during the body of a rejected create; the retry checks the object."""
    await stores.direct.create("k", [b"theirs"])
    for _ in range(3):
        with pytest.raises(Conflict):
            await stores.retrying().create("k", [bytes(MiB)] * 12)
    assert bytes(await stores.direct.get("k")) == b"theirs"


async def test_process_exits_with_zero_immediately_after_a_call(stores: Stores) -> None:
    """Without the wait at exit in obstore_store.py, threads of obstore abort up to a third of these processes."""
    script = """
import asyncio
from lakestream.clock import RandomIds, SystemClock
from lakestream.storage.open_store import open_store

async def main() -> None:
    await open_store("s3://lake", SystemClock(), RandomIds()).put("k", [b"x"])

asyncio.run(main())
"""
    for _ in range(5):
        processes = [await asyncio.create_subprocess_exec(sys.executable, "-c", script) for _ in range(4)]
        assert [await process.wait() for process in processes] == [0] * 4


async def test_read_fails_instead_of_returning_less_when_it_is_interrupted(stores: Stores) -> None:
    await stores.direct.put("large", [bytes(MiB)] * 4)
    name = await stores.network.add("limit_data", {"bytes": 100_000})
    with pytest.raises(Unavailable):
        await stores.remote.get("large")
    await stores.network.remove(name)
    assert len(await stores.retrying().get("large")) == 4 * MiB
