"""A real Oxia behind a network that loses answers: what took effect is recognised or uncertain, never doubled."""

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

LOG = Folder("/log/t/0", "/log/t/0")
FLOOR = LOG.key("floor")
LOST_MS = 600
"""How long the network is faulty where it heals: longer than a request, shorter than the budget of a call."""


@dataclass(frozen=True)
class World:
    server: OxiaServer
    network: Proxy
    behind: OxiaStore
    """Reaches the server through the faulty network."""
    beside: OxiaStore
    """Reaches it directly, and so knows the truth."""

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
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with oxia_standalone(tmp_path) as server, toxiproxy() as proxies:
        network = await proxies.proxy(f"127.0.0.1:{server.port}")
        behind = await OxiaStore.open(settings_of(network.port))
        beside = await OxiaStore.open(settings_of(server.port))
        try:
            await put_one(beside, FLOOR, b"0")
            yield World(server, network, behind, beside)
        finally:
            await behind.close()
            await beside.close()


async def names(world: World) -> list[tuple[str, bytes]]:
    return [(record.name, record.value) for record in (await world.beside.scan(LOG, "0", "9")).records]


async def wait_until(store: OxiaStore, key: Key, value: bytes | None) -> int:
    """Until the record has this value (None: is gone); returns its version."""
    async with asyncio.timeout(6):
        while True:
            there = await store.get(key)
            if (there.value if there else None) == value:
                return there.version if there else ABSENT
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("toxic", ["timeout", "reset_peer"])
async def test_a_create_whose_answer_was_lost_recognises_itself(world: World, toxic: str) -> None:
    async with world.faulty(toxic, {"timeout": 0}):
        call = asyncio.create_task(world.behind.create([Create(LOG.key("1"), b"mine", FLOOR)]))
        await asyncio.sleep(LOST_MS / 1000)
    (answer,) = await call
    assert isinstance(answer, Created)
    assert answer.guard is not None
    assert answer.guard.value == b"0"
    there = await world.beside.get(LOG.key("1"))
    assert there is not None
    assert (there.value, there.version, there.created_ms) == (b"mine", answer.version, answer.created_ms)
    assert await names(world) == [("1", b"mine")]


async def test_a_create_that_never_arrived_loses_to_another(world: World) -> None:
    async with world.faulty("timeout", {"timeout": 0}, stream="upstream"):
        call = asyncio.create_task(world.behind.create([Create(LOG.key("1"), b"mine", FLOOR)]))
        await asyncio.sleep(LOST_MS / 1000)
        (other,) = await world.beside.create([Create(LOG.key("1"), b"theirs", FLOOR)])
        assert isinstance(other, Created)
    (answer,) = await call
    assert type(answer) is Conflict
    assert await names(world) == [("1", b"theirs")]


async def test_a_create_that_arrives_late_and_twice_takes_effect_once(world: World) -> None:
    async with world.faulty("timeout", {"timeout": 0}, stream="upstream"):
        call = asyncio.create_task(world.behind.create([Create(LOG.key("1"), b"mine", FLOOR)]))
        await asyncio.sleep(LOST_MS / 1000)
        assert await names(world) == []
    (answer,) = await call
    assert isinstance(answer, Created)
    await asyncio.sleep(0.2)
    there = await world.beside.get(LOG.key("1"))
    assert there is not None
    assert (there.value, there.version) == (b"mine", answer.version)


async def test_what_cannot_be_resolved_in_time_is_uncertain(world: World) -> None:
    async with world.faulty("timeout", {"timeout": 0}):
        async with asyncio.timeout(5):
            puts = [Put(LOG.key("2"), b"mine", ABSENT), Put(LOG.key("3"), b"mine", ANY)]
            created, stored, read = await asyncio.gather(
                world.behind.create([Create(LOG.key("1"), b"mine", FLOOR)]),
                world.behind.put(puts),
                world.behind.get(LOG.key("1")),
                return_exceptions=True,
            )
        assert isinstance(created, list)
        assert isinstance(stored, list)
        assert [type(answer) for answer in [*created, *stored]] == [Uncertain] * 3
        assert type(read) is Unavailable
        assert await names(world) == [("1", b"mine"), ("2", b"mine"), ("3", b"mine")]
    assert await world.behind.get(LOG.key("1"), confirmed=True) is not None


async def test_puts_with_and_without_a_version_recognise_themselves(world: World) -> None:
    first = await put_one(world.beside, LOG.key("1"), b"old")
    async with world.faulty("timeout", {"timeout": 0}):
        puts = [Put(LOG.key("1"), b"new", first.version), Put(LOG.key("2"), b"any", ANY)]
        call = asyncio.create_task(world.behind.put(puts))
        await wait_until(world.beside, LOG.key("2"), b"any")
        await asyncio.sleep(LOST_MS / 1000)
    versioned, plain = await call
    assert isinstance(versioned, Stored)
    assert isinstance(plain, Stored)
    assert await names(world) == [("1", b"new"), ("2", b"any")]
    there = await world.beside.get(LOG.key("2"))
    assert there is not None
    assert there.version == plain.version


async def test_a_plain_put_is_never_laid_over_a_newer_one(world: World) -> None:
    async with world.faulty("timeout", {"timeout": 0}):
        call = asyncio.create_task(world.behind.put([Put(LOG.key("1"), b"mine", ANY)]))
        await wait_until(world.beside, LOG.key("1"), b"mine")
        await put_one(world.beside, LOG.key("1"), b"newer")
        await asyncio.sleep(LOST_MS / 1000)
    (answer,) = await call
    assert type(answer) is Uncertain
    assert await names(world) == [("1", b"newer")]


async def test_a_version_that_another_moved_on_from_ours_is_uncertain(world: World) -> None:
    first = await put_one(world.beside, LOG.key("1"), b"old")
    async with world.faulty("timeout", {"timeout": 0}):
        call = asyncio.create_task(world.behind.put([Put(LOG.key("1"), b"mine", first.version)]))
        version = await wait_until(world.beside, LOG.key("1"), b"mine")
        await put_one(world.beside, LOG.key("1"), b"newer", version)
        await asyncio.sleep(LOST_MS / 1000)
    (answer,) = await call
    assert type(answer) is Uncertain
    assert await names(world) == [("1", b"newer")]


async def test_deletes_whose_answer_was_lost(world: World) -> None:
    stored = [await put_one(world.beside, LOG.key(name), b"x") for name in ("1", "2", "3", "4")]
    async with world.faulty("timeout", {"timeout": 0}):
        versioned = asyncio.create_task(world.behind.delete(LOG.key("1"), stored[0].version))
        plain = asyncio.create_task(world.behind.delete(LOG.key("2")))
        ranged = asyncio.create_task(world.behind.delete_range(LOG, "3", "4"))
        await asyncio.sleep(LOST_MS / 1000)
    assert await versioned is True
    with pytest.raises(Uncertain):
        await plain
    await ranged
    assert await names(world) == [("4", b"x")]


async def test_a_cut_network_is_met_by_a_bounded_wait_and_mended_without_help(world: World) -> None:
    await world.network.cut()
    async with asyncio.timeout(4.5):
        (answer,) = await world.behind.put([Put(LOG.key("1"), b"x", ABSENT)])
    assert isinstance(answer, Unavailable)
    await world.network.mend()
    assert isinstance(await put_one(world.behind, LOG.key("2"), b"x"), Stored)


async def test_watch_goes_on_where_it_was_after_a_break(world: World) -> None:
    watch = world.behind.watch(LOG.path)
    assert (await anext(watch)).everything
    await world.network.cut()
    await put_one(world.beside, LOG.key("1"), b"x")
    await put_one(world.beside, LOG.key("2"), b"x")
    await world.network.mend()
    seen: set[str] = set()
    async with asyncio.timeout(5):
        while len(seen) < 2:
            changes = await anext(watch)
            assert not changes.everything
            seen |= changes.paths
    assert seen == {"/log/t/0/1", "/log/t/0/2"}
    await watch.aclose()


async def test_a_server_that_was_killed_is_found_again_with_all_it_acknowledged(world: World) -> None:
    watch = world.beside.watch(LOG.path)
    assert (await anext(watch)).everything
    session = await world.beside.session(15_000)
    await world.beside.put([Put(LOG.key("1"), b"x"), Put(LOG.key("2"), b"ephemeral", ANY, session)])
    world.server.process.kill()
    during = asyncio.create_task(world.beside.put([Put(LOG.key("3"), b"x", ABSENT)]))
    await asyncio.sleep(0.3)
    world.server.process.start()
    (answer,) = await during
    assert isinstance(answer, Stored)
    assert await names(world) == [("1", b"x"), ("2", b"ephemeral"), ("3", b"x")]
    assert not session.lost
    seen: set[str] = set()
    async with asyncio.timeout(5):
        while "/log/t/0/3" not in seen:
            changes = await anext(watch)
            seen |= changes.paths
    await watch.aclose()
    await session.close()
    assert [name for name, _ in await names(world)] == ["1", "3"]


async def test_a_session_that_is_cut_off_is_lost_on_both_sides(world: World) -> None:
    session = await world.behind.session(2_000)
    await world.behind.put([Put(LOG.key("1"), b"x", ANY, session)])
    await world.network.cut()
    async with asyncio.timeout(6):
        await session.wait_lost()
    await wait_until(world.beside, LOG.key("1"), None)
    assert session.lost


async def test_an_unknown_namespace_is_named(world: World) -> None:
    with pytest.raises(Misconfigured, match="no such namespace"):
        await OxiaStore.open(OxiaSettings.from_url(f"oxia://127.0.0.1:{world.server.port}/nowhere"))


async def test_nobody_there_is_one_clear_line_in_bounded_time(world: World) -> None:
    await world.network.cut()
    settings = replace(settings_of(world.network.port), start_timeout_ms=500)
    async with asyncio.timeout(10):
        with pytest.raises(Unavailable, match=r"metadata store oxia://127.0.0.1:\d+/default does not answer"):
            await OxiaStore.open(settings)
