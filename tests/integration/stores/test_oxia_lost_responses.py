"""Oxia behind a network that loses responses: an executed write is recognised or uncertain, and never repeated."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lakestream.errors import Conflict, Misconfigured, Unavailable, Uncertain
from lakestream.metadata.oxia import OxiaSettings, OxiaStore
from lakestream.metadata.store import ABSENT, ANY, Create, Created, Folder, Key, Put, Stored, put_one
from lakestream.testing.servers import OxiaServer, Proxy, oxia_standalone, toxiproxy

pytestmark = pytest.mark.alone

LOG = Folder("/log/t/0", "/log/t/0")
FLOOR = LOG.key("floor")
LOST_MS = 600
"""Duration of a temporary fault: longer than the timeout of a request, shorter than the retry budget of a call."""


@dataclass(frozen=True)
class Environment:
    server: OxiaServer
    network: Proxy
    remote: OxiaStore
    """Reaches the server through the faulty network."""
    direct: OxiaStore
    """Reaches the server directly, and so reads its true state."""

    @asynccontextmanager
    async def faulty(
        self, toxic: str, attributes: dict[str, int], *, stream: str = "downstream"
    ) -> AsyncIterator[None]:
        name = await self.network.add(toxic, attributes, stream=stream)
        try:
            yield
        finally:
            await self.network.remove(name)


def settings_of(port: int) -> OxiaSettings:
    settings = OxiaSettings.from_url(f"oxia://127.0.0.1:{port}/default")
    return replace(settings, request_timeout_ms=300, retry_budget_ms=3_000)


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[Environment]:
    async with oxia_standalone(tmp_path) as server, toxiproxy() as proxies:
        network = await proxies.proxy(f"127.0.0.1:{server.port}")
        remote = await OxiaStore.open(settings_of(network.port))
        direct = await OxiaStore.open(settings_of(server.port))
        try:
            await put_one(direct, FLOOR, b"0")
            yield Environment(server, network, remote, direct)
        finally:
            await remote.close()
            await direct.close()


async def names(environment: Environment) -> list[tuple[str, bytes]]:
    return [(record.name, record.value) for record in (await environment.direct.scan(LOG, "0", "9")).records]


async def wait_until(store: OxiaStore, key: Key, value: bytes | None) -> int:
    """Waits until a record has a value (None: until it is deleted); returns its version."""
    async with asyncio.timeout(6):
        while True:
            stored = await store.get(key)
            if (stored.value if stored else None) == value:
                return stored.version if stored else ABSENT
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("toxic", ["timeout", "reset_peer"])
async def test_create_succeeds_when_its_response_was_lost(environment: Environment, toxic: str) -> None:
    async with environment.faulty(toxic, {"timeout": 0}):
        call = asyncio.create_task(environment.remote.create([Create(LOG.key("1"), b"mine", FLOOR)]))
        await asyncio.sleep(LOST_MS / 1000)
    (result,) = await call
    assert isinstance(result, Created)
    assert result.guard is not None
    assert result.guard.value == b"0"
    stored = await environment.direct.get(LOG.key("1"))
    assert stored is not None
    assert (stored.value, stored.version, stored.created_ms) == (b"mine", result.version, result.created_ms)
    assert await names(environment) == [("1", b"mine")]


async def test_create_conflicts_when_its_request_was_lost_and_another_client_created_the_key(
    environment: Environment,
) -> None:
    async with environment.faulty("timeout", {"timeout": 0}, stream="upstream"):
        call = asyncio.create_task(environment.remote.create([Create(LOG.key("1"), b"mine", FLOOR)]))
        await asyncio.sleep(LOST_MS / 1000)
        (other,) = await environment.direct.create([Create(LOG.key("1"), b"theirs", FLOOR)])
        assert isinstance(other, Created)
    (result,) = await call
    assert type(result) is Conflict
    assert await names(environment) == [("1", b"theirs")]


async def test_create_takes_effect_once_when_its_request_arrives_late_and_twice(environment: Environment) -> None:
    async with environment.faulty("timeout", {"timeout": 0}, stream="upstream"):
        call = asyncio.create_task(environment.remote.create([Create(LOG.key("1"), b"mine", FLOOR)]))
        await asyncio.sleep(LOST_MS / 1000)
        assert await names(environment) == []
    (result,) = await call
    assert isinstance(result, Created)
    await asyncio.sleep(0.2)
    stored = await environment.direct.get(LOG.key("1"))
    assert stored is not None
    assert (stored.value, stored.version) == (b"mine", result.version)


async def test_writes_are_uncertain_when_no_response_arrives_within_the_retry_budget(environment: Environment) -> None:
    async with environment.faulty("timeout", {"timeout": 0}):
        async with asyncio.timeout(5):
            puts = [Put(LOG.key("2"), b"mine", ABSENT), Put(LOG.key("3"), b"mine", ANY)]
            created, stored, read = await asyncio.gather(
                environment.remote.create([Create(LOG.key("1"), b"mine", FLOOR)]),
                environment.remote.put(puts),
                environment.remote.get(LOG.key("1")),
                return_exceptions=True,
            )
        assert isinstance(created, list)
        assert isinstance(stored, list)
        assert [type(result) for result in [*created, *stored]] == [Uncertain] * 3
        assert type(read) is Unavailable
        assert await names(environment) == [("1", b"mine"), ("2", b"mine"), ("3", b"mine")]
    assert await environment.remote.get(LOG.key("1"), confirmed=True) is not None


async def test_puts_succeed_when_their_responses_were_lost(environment: Environment) -> None:
    first = await put_one(environment.direct, LOG.key("1"), b"old")
    async with environment.faulty("timeout", {"timeout": 0}):
        puts = [Put(LOG.key("1"), b"new", first.version), Put(LOG.key("2"), b"any", ANY)]
        call = asyncio.create_task(environment.remote.put(puts))
        await wait_until(environment.direct, LOG.key("2"), b"any")
        await asyncio.sleep(LOST_MS / 1000)
    versioned, plain = await call
    assert isinstance(versioned, Stored)
    assert isinstance(plain, Stored)
    assert await names(environment) == [("1", b"new"), ("2", b"any")]
    stored = await environment.direct.get(LOG.key("2"))
    assert stored is not None
    assert stored.version == plain.version


async def test_put_does_not_overwrite_a_newer_value_when_its_response_was_lost(environment: Environment) -> None:
    async with environment.faulty("timeout", {"timeout": 0}):
        call = asyncio.create_task(environment.remote.put([Put(LOG.key("1"), b"mine", ANY)]))
        await wait_until(environment.direct, LOG.key("1"), b"mine")
        await put_one(environment.direct, LOG.key("1"), b"newer")
        await asyncio.sleep(LOST_MS / 1000)
    (result,) = await call
    assert type(result) is Uncertain
    assert await names(environment) == [("1", b"newer")]


async def test_versioned_put_is_uncertain_when_its_value_was_overwritten(environment: Environment) -> None:
    first = await put_one(environment.direct, LOG.key("1"), b"old")
    async with environment.faulty("timeout", {"timeout": 0}):
        call = asyncio.create_task(environment.remote.put([Put(LOG.key("1"), b"mine", first.version)]))
        version = await wait_until(environment.direct, LOG.key("1"), b"mine")
        await put_one(environment.direct, LOG.key("1"), b"newer", version)
        await asyncio.sleep(LOST_MS / 1000)
    (result,) = await call
    assert type(result) is Uncertain
    assert await names(environment) == [("1", b"newer")]


async def test_versioned_delete_succeeds_and_plain_delete_is_uncertain_when_responses_were_lost(
    environment: Environment,
) -> None:
    stored = [await put_one(environment.direct, LOG.key(name), b"x") for name in ("1", "2", "3", "4")]
    async with environment.faulty("timeout", {"timeout": 0}):
        versioned = asyncio.create_task(environment.remote.delete(LOG.key("1"), stored[0].version))
        plain = asyncio.create_task(environment.remote.delete(LOG.key("2")))
        ranged = asyncio.create_task(environment.remote.delete_range(LOG, "3", "4"))
        await asyncio.sleep(LOST_MS / 1000)
    assert await versioned is True
    with pytest.raises(Uncertain):
        await plain
    await ranged
    assert await names(environment) == [("4", b"x")]


async def test_put_is_unavailable_while_disconnected_and_succeeds_after_the_reconnect(environment: Environment) -> None:
    await environment.network.cut()
    async with asyncio.timeout(4.5):
        (result,) = await environment.remote.put([Put(LOG.key("1"), b"x", ABSENT)])
    assert isinstance(result, Unavailable)
    await environment.network.restore()
    assert isinstance(await put_one(environment.remote, LOG.key("2"), b"x"), Stored)


async def test_watch_resumes_without_gaps_after_a_disconnect(environment: Environment) -> None:
    watch = environment.remote.watch(LOG.path)
    assert (await anext(watch)).everything
    await environment.network.cut()
    await put_one(environment.direct, LOG.key("1"), b"x")
    await put_one(environment.direct, LOG.key("2"), b"x")
    await environment.network.restore()
    seen: set[str] = set()
    async with asyncio.timeout(5):
        while len(seen) < 2:
            changes = await anext(watch)
            assert not changes.everything
            seen |= changes.paths
    assert seen == {"/log/t/0/1", "/log/t/0/2"}
    await watch.aclose()


async def test_acknowledged_writes_watch_and_session_are_kept_when_the_server_is_restarted(
    environment: Environment,
) -> None:
    watch = environment.direct.watch(LOG.path)
    assert (await anext(watch)).everything
    session = await environment.direct.session(15_000)
    await environment.direct.put([Put(LOG.key("1"), b"x"), Put(LOG.key("2"), b"ephemeral", ANY, session)])
    environment.server.process.kill()
    during = asyncio.create_task(environment.direct.put([Put(LOG.key("3"), b"x", ABSENT)]))
    await asyncio.sleep(0.3)
    environment.server.process.start()
    (result,) = await during
    assert isinstance(result, Stored)
    assert await names(environment) == [("1", b"x"), ("2", b"ephemeral"), ("3", b"x")]
    assert not session.lost
    seen: set[str] = set()
    async with asyncio.timeout(5):
        while "/log/t/0/3" not in seen:
            changes = await anext(watch)
            seen |= changes.paths
    await watch.aclose()
    await session.close()
    assert [name for name, _ in await names(environment)] == ["1", "3"]


async def test_session_is_lost_for_client_and_server_when_disconnected(environment: Environment) -> None:
    session = await environment.remote.session(2_000)
    await environment.remote.put([Put(LOG.key("1"), b"x", ANY, session)])
    await environment.network.cut()
    async with asyncio.timeout(6):
        await session.wait_lost()
    await wait_until(environment.direct, LOG.key("1"), None)
    assert session.lost


async def test_error_names_an_unknown_namespace(environment: Environment) -> None:
    with pytest.raises(Misconfigured, match="the namespace does not exist"):
        await OxiaStore.open(OxiaSettings.from_url(f"oxia://127.0.0.1:{environment.server.port}/nowhere"))


async def test_error_is_one_line_within_the_start_timeout_when_the_server_is_unreachable(
    environment: Environment,
) -> None:
    await environment.network.cut()
    settings = replace(settings_of(environment.network.port), start_timeout_ms=500)
    async with asyncio.timeout(10):
        with pytest.raises(Unavailable, match=r"metadata store oxia://127.0.0.1:\d+/default does not respond"):
            await OxiaStore.open(settings)
