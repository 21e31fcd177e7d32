"""Three real Oxia nodes, and what happens to a client when one of them dies or hangs under load."""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from lakestream.errors import Conflict, Unavailable, Uncertain
from lakestream.metadata.oxia import OxiaSettings, OxiaStore
from lakestream.metadata.oxia.shards import hash_of
from lakestream.metadata.store import ABSENT, ANY, Create, Created, Folder, Put, Stored, put_one
from lakestream.testing.servers import OxiaCluster, OxiaNode, oxia_cluster, toxiproxy

SHARDS = 4
LOGS = [Folder(f"/log/t/{number}", f"/log/t/{number}") for number in range(12)]
REQUEST_MS, BUDGET_MS = 1_000, 5_000
CALL_S_MAX = (BUDGET_MS + REQUEST_MS) / 1000 + 2
"""By its settings, and something for a busy machine."""


@dataclass(frozen=True)
class World:
    cluster: OxiaCluster
    stores: list[OxiaStore]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with oxia_cluster(tmp_path, shards=SHARDS) as cluster, AsyncExitStack() as stack:
        settings = replace(OxiaSettings.from_url(cluster.url), request_timeout_ms=REQUEST_MS, retry_budget_ms=BUDGET_MS)
        stores = [await stack.enter_async_context(closing(await OxiaStore.open(settings))) for _ in range(2)]
        yield World(cluster, stores)


@asynccontextmanager
async def closing(store: OxiaStore) -> AsyncIterator[OxiaStore]:
    try:
        yield store
    finally:
        await store.close()


def leader_of(cluster: OxiaCluster, home: str) -> OxiaNode:
    return cluster.leaders()[hash_of(home) * SHARDS >> 32]


@dataclass
class Writer:
    """Appends to one log as a broker does: at its own idea of the end, moving on when another was there first."""

    store: OxiaStore
    log: Folder
    acked: dict[str, bytes] = field(default_factory=dict)
    calls_s: list[float] = field(default_factory=list)
    end: int = 0

    async def run(self, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        while not stop.is_set():
            began_s = loop.time()
            await self.append()
            self.calls_s.append(loop.time() - began_s)

    async def append(self) -> None:
        name, value = f"{self.end:020d}", uuid.uuid4().hex.encode()
        (answer,) = await self.store.create([Create(self.log.key(name), value, self.log.key("floor"))])
        if isinstance(answer, Created) or (isinstance(answer, Uncertain) and await self.is_there(name, value)):
            self.acked[name] = value
        if isinstance(answer, (Created, Conflict)):
            self.end += 1

    async def is_there(self, name: str, value: bytes) -> bool:
        try:
            there = await self.store.get(self.log.key(name), confirmed=True)
        except Unavailable:
            return False
        return there is not None and there.value == value


async def check(world: World, writers: list[Writer]) -> None:
    """No acknowledged create is missing or changed, and none is there twice."""
    for log in LOGS:
        scanned = await world.stores[0].scan(log, "", "floor", confirmed=True)
        there = {record.name: record.value for record in scanned.records}
        assert list(there) == [f"{number:020d}" for number in range(len(there))]
        assert max(Counter(there.values()).values()) == 1
        mine = [writer for writer in writers if writer.log == log]
        assert not mine[0].acked.keys() & mine[1].acked.keys()
        for writer in mine:
            assert writer.acked.items() <= there.items()


async def all_go_on(writers: list[Writer]) -> None:
    """Until each has appended some more. The coordinator may need a while to notice that a node is gone."""
    before = [len(writer.acked) for writer in writers]
    async with asyncio.timeout(60):
        while any(len(writer.acked) < count + 5 for writer, count in zip(writers, before, strict=True)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@asynccontextmanager
async def load(world: World) -> AsyncIterator[list[Writer]]:
    """Two clients that append to the same logs while the block runs; then all that they were told is checked."""
    writers = [Writer(store, log) for log in LOGS for store in world.stores]
    stop = asyncio.Event()
    tasks = [asyncio.create_task(writer.run(stop)) for writer in writers]
    try:
        await all_go_on(writers)
        yield writers
    finally:
        stop.set()
        await asyncio.gather(*tasks)
    assert max(max(writer.calls_s) for writer in writers) < CALL_S_MAX
    await check(world, writers)


async def test_a_killed_leader_under_load_of_two_clients(world: World) -> None:
    async with load(world) as writers:
        for _ in range(2):
            victim = leader_of(world.cluster, LOGS[0].home)
            victim.kill()
            await all_go_on(writers)
            await victim.restart()
            await asyncio.sleep(1)


async def test_a_frozen_leader_holds_nobody_up_for_longer_than_the_budget(world: World) -> None:
    async with load(world) as writers:
        victim = leader_of(world.cluster, LOGS[0].home)
        victim.freeze()
        await all_go_on(writers)
        victim.thaw()
        await all_go_on(writers)


async def test_every_kind_of_call_ends_in_time_when_all_nodes_hang(world: World) -> None:
    store, log = world.stores[0], LOGS[0]
    session = await store.session(60_000)
    for node in world.cluster.nodes:
        node.freeze()
    async with asyncio.timeout(CALL_S_MAX):
        answers = await asyncio.gather(
            store.get(log.key("1")),
            store.get(log.key("1"), confirmed=True),
            store.scan(log, guard=log.key("floor")),
            store.floor(log, "1"),
            put_one(store, log.key("1"), b"", ABSENT),
            put_one(store, log.key("2"), b"", ANY),
            store.create([Create(log.key("3"), b"", log.key("floor"))]),
            store.put([Put(log.key("4"), b"", ANY, session)]),
            store.delete(log.key("5")),
            store.now_ms(),
            return_exceptions=True,
        )
    for answer in answers:
        assert isinstance(answer[0] if isinstance(answer, list) else answer, Unavailable)
    for node in world.cluster.nodes:
        node.thaw()


async def test_a_confirmed_read_does_not_believe_a_deposed_leader(tmp_path: Path) -> None:
    key, guard = LOGS[0].key("1"), LOGS[0].key("floor")
    async with toxiproxy() as network, oxia_cluster(tmp_path, shards=SHARDS, network=network) as cluster:
        settings = replace(OxiaSettings.from_url(cluster.url), request_timeout_ms=REQUEST_MS)
        async with closing(await OxiaStore.open(settings)) as store:
            await store.put([Put(key, b"old"), Put(guard, b"old")])
            deposed = await cut_off_the_leader(cluster, key.home)
            async with asyncio.timeout(60):
                while not isinstance((await store.put([Put(guard, b"new"), Put(key, b"new")]))[1], Stored):
                    pass
            # These clients come in by the node that nobody told that it leads no more, and so by the map of yesterday,
            # which may name no other node: they need the rest to find the one that leads now.
            addresses = (deposed.address, *(node.address for node in cluster.nodes))
            yesterdays = replace(settings, addresses=addresses, retry_budget_ms=30_000)
            async with closing(await fooled_store(yesterdays)) as fooled:
                scanned = await fooled.scan(LOGS[0], guard=guard, confirmed=True)
                assert [record.value for record in [*scanned.records, scanned.guard] if record] == [b"new"] * 3
            async with closing(await fooled_store(yesterdays)) as fooled:
                (answer,) = await fooled.create([Create(LOGS[0].key("2"), b"mine", guard)])
                assert isinstance(answer, Created)
                assert answer.guard is not None
                assert answer.guard.value == b"new"


async def fooled_store(settings: OxiaSettings) -> OxiaStore:
    """One that reads what was. On a busy machine it may hear of the new leader before it has read anything."""
    async with asyncio.timeout(60):
        while True:
            store = await OxiaStore.open(settings)
            if [record.value for record in (await store.scan(LOGS[0])).records] == [b"old", b"old"]:
                return store
            await store.close()


async def cut_off_the_leader(cluster: OxiaCluster, home: str) -> OxiaNode:
    """Until another was elected. Clients still reach the old one, and it answers them."""
    deposed = leader_of(cluster, home)
    assert deposed.inner is not None
    await deposed.inner.cut()
    async with asyncio.timeout(60):
        while cluster.leaders().get(hash_of(home) * SHARDS >> 32) in (None, deposed):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return deposed


async def test_an_ephemeral_record_outlives_the_leader(world: World) -> None:
    store, other = world.stores
    session = await store.session(4_000)
    (answer,) = await store.put([Put(LOGS[0].key("me"), b"here", ANY, session)])
    assert isinstance(answer, Stored)
    leader_of(world.cluster, LOGS[0].home).kill()
    async with asyncio.timeout(20):
        for _ in range(6):
            await asyncio.sleep(1)
            assert await other.get(LOGS[0].key("me"), confirmed=True) is not None
            assert not session.lost
    await session.close()
    assert await other.get(LOGS[0].key("me"), confirmed=True) is None


async def test_a_watch_goes_on_under_the_next_leader(world: World) -> None:
    store, other = world.stores
    async with aclosing(store.watch("/log/")) as changes:
        assert (await anext(changes)).everything
        await put_one(other, LOGS[0].key("1"), b"")
        async with asyncio.timeout(5):
            assert (await anext(changes)).paths == {LOGS[0].key("1").path}
        leader_of(world.cluster, LOGS[0].home).kill()
        await put_one(other, LOGS[0].key("2"), b"", ABSENT)
        async with asyncio.timeout(10):
            while LOGS[0].key("2").path not in (change := await anext(changes)).paths:
                assert not change.everything, "the feed is resumed, not begun anew"
