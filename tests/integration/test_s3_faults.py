"""A real S3 server behind a network that loses answers, swallows everything or is cut; and a server that dies.

What must hold: no call hangs, no write is reported done that is not there, and none is reported as somebody else's that
is ours.
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
from lakestream.storage.opening import open_store
from lakestream.storage.probe import probe
from lakestream.storage.retrying import Retrying, RetrySettings
from lakestream.testing.processes import listens
from lakestream.testing.servers import Proxy, S3Server, s3_server, toxiproxy

CLOCK, IDS = SystemClock(), RandomIds()
BODY = [b"one ", b"two"]


class Bench(NamedTuple):
    server: S3Server
    network: Proxy
    far: ObjectStore
    """Through the faulty network, without retries."""
    near: ObjectStore
    """Straight to the server, to see what is really there."""

    def retrying(self, **settings: int) -> Retrying:
        return Retrying(self.far, RetrySettings(**settings), random.Random(1))


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with s3_server(tmp_path) as server, toxiproxy() as toxics:
        server.bucket("lake")
        network = await toxics.proxy(f"127.0.0.1:{server.port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_access_key)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{network.port}")
        far = open_store("s3://lake", CLOCK, IDS)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        yield Bench(server, network, far, open_store("s3://lake", CLOCK, IDS))


async def heal_after(network: Proxy, toxic: str, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await network.remove(toxic)


LOST_ANSWERS = [("reset_peer", {"timeout": 0}), ("limit_data", {"bytes": 10})]


@pytest.mark.parametrize(("toxic", "attributes"), LOST_ANSWERS, ids=["reset", "cut"])
async def test_a_create_whose_answer_is_lost_is_uncertain_and_the_object_is_whole(
    bench: Bench, toxic: str, attributes: dict[str, int]
) -> None:
    await bench.network.add(toxic, attributes)
    with pytest.raises(Uncertain) as raised:
        await bench.far.create("k", BODY)
    assert "\n" not in str(raised.value)
    assert bytes(await bench.near.get("k")) == b"one two"
    with pytest.raises(Conflict):
        await bench.near.create("k", BODY)


@pytest.mark.parametrize(("toxic", "attributes"), LOST_ANSWERS, ids=["reset", "cut"])
async def test_retrying_finds_out_that_it_was_us(bench: Bench, toxic: str, attributes: dict[str, int]) -> None:
    name = await bench.network.add(toxic, attributes)
    healing = asyncio.create_task(heal_after(bench.network, name, 1.0))
    await bench.retrying().create("k", BODY)
    await healing
    assert bytes(await bench.near.get("k")) == b"one two"


async def test_retrying_finds_out_that_it_was_somebody_else(bench: Bench) -> None:
    await bench.near.create("k", [b"theirs!"])
    name = await bench.network.add("reset_peer", {"timeout": 0})
    healing = asyncio.create_task(heal_after(bench.network, name, 1.0))
    with pytest.raises(Conflict):
        await bench.retrying().create("k", BODY)
    await healing
    assert bytes(await bench.near.get("k")) == b"theirs!"


async def test_an_outcome_that_cannot_be_found_out_in_time_is_uncertain(bench: Bench) -> None:
    await bench.network.add("reset_peer", {"timeout": 0})
    begun_s = asyncio.get_running_loop().time()
    with pytest.raises(Uncertain, match="gave up after"):
        await bench.retrying(deadline_ms=1500).create("k", BODY)
    assert asyncio.get_running_loop().time() - begun_s < 6.0
    assert bytes(await bench.near.get("k")) == b"one two"


@pytest.mark.parametrize("stream", ["downstream", "upstream"])
async def test_a_black_hole_takes_no_longer_than_the_deadline(bench: Bench, stream: str) -> None:
    await bench.network.add("timeout", {"timeout": 0}, stream=stream)
    store = bench.retrying(try_timeout_ms=500, deadline_ms=2000)
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
        begun_s = loop.time()
        with pytest.raises(kind):
            await call
        assert loop.time() - begun_s < 8.0


async def test_a_black_hole_that_ends_is_survived(bench: Bench) -> None:
    name = await bench.network.add("timeout", {"timeout": 0})
    healing = asyncio.create_task(heal_after(bench.network, name, 1.2))
    store = bench.retrying(try_timeout_ms=500)
    await asyncio.gather(*(store.create(f"k/{number}", BODY) for number in range(5)))
    await healing
    assert [info.key async for page in bench.near.walk("k") for info in page] == [f"k/{n}" for n in range(5)]


async def test_a_server_that_is_killed_and_comes_back(bench: Bench) -> None:
    store = bench.retrying(try_timeout_ms=2000)
    await store.put("before", BODY)
    writes = [asyncio.create_task(store.create(f"k/{number}", [bytes(MiB)])) for number in range(8)]
    await asyncio.sleep(0.01)
    bench.server.process.kill()
    await asyncio.sleep(1.0)
    bench.server.process.start()
    await bench.server.process.wait_ready(lambda: listens(bench.server.port))
    await asyncio.gather(*writes)
    for number in range(8):
        assert (await bench.near.head(f"k/{number}")).size == MiB
    assert bytes(await store.get("before")) == b"one two"


async def test_a_cut_network_is_known_to_have_carried_nothing(bench: Bench) -> None:
    """No connection, no doubt: the error is not Uncertain."""
    await bench.network.cut()
    with pytest.raises(Unavailable, match="no connection") as raised:
        await bench.far.create("k", BODY)
    assert not isinstance(raised.value, Uncertain)
    with pytest.raises(Unavailable, match="no connection"):
        await probe(bench.far, "s3://lake", CLOCK, IDS)
    await bench.network.mend()
    await bench.retrying().create("k", BODY)


async def test_a_large_create_on_a_taken_key_is_resolved(bench: Bench) -> None:
    """This server hangs up on the body of a refused create; bare, nobody knows, with a look it is a Conflict."""
    await bench.near.create("k", [b"theirs"])
    for _ in range(3):
        with pytest.raises(Conflict):
            await bench.retrying().create("k", [bytes(MiB)] * 12)
    assert bytes(await bench.near.get("k")) == b"theirs"


async def test_a_process_that_ends_right_after_a_call_ends_well(bench: Bench) -> None:
    """Without the wait at exit in remote.py, obstore's threads abort up to a third of these."""
    script = """
import asyncio
from lakestream.clock import RandomIds, SystemClock
from lakestream.storage.opening import open_store

async def main() -> None:
    await open_store("s3://lake", SystemClock(), RandomIds()).put("k", [b"x"])

asyncio.run(main())
"""
    for _ in range(5):
        processes = [await asyncio.create_subprocess_exec(sys.executable, "-c", script) for _ in range(4)]
        assert [await process.wait() for process in processes] == [0] * 4


async def test_a_read_that_is_cut_in_the_middle_is_never_short(bench: Bench) -> None:
    await bench.near.put("large", [bytes(MiB)] * 4)
    name = await bench.network.add("limit_data", {"bytes": 100_000})
    with pytest.raises(Unavailable):
        await bench.far.get("large")
    await bench.network.remove(name)
    assert len(await bench.retrying().get("large")) == 4 * MiB
