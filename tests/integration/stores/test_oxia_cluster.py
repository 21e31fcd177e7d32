"""Clients of a cluster of three Oxia nodes, when nodes are killed or hang under load."""

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
from lakestream.testing.servers import OxiaCluster, OxiaClusterNode, oxia_cluster, toxiproxy

pytestmark = pytest.mark.alone

SHARDS = 4
LOGS = [Folder(f"/log/t/{number}", f"/log/t/{number}") for number in range(12)]
REQUEST_MS, BUDGET_MS = 1_000, 5_000
CALL_S_MAX = (BUDGET_MS + REQUEST_MS) / 1000 + 2
"""Limit of a call by its settings, plus a margin for a busy machine."""


@dataclass(frozen=True)
class Environment:
    cluster: OxiaCluster
    stores: list[OxiaStore]


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[Environment]:
    async with oxia_cluster(tmp_path, shards=SHARDS) as cluster, AsyncExitStack() as stack:
        settings = replace(OxiaSettings.from_url(cluster.url), request_timeout_ms=REQUEST_MS, retry_budget_ms=BUDGET_MS)
        stores = [await stack.enter_async_context(closing(await OxiaStore.open(settings))) for _ in range(2)]
        yield Environment(cluster, stores)


@asynccontextmanager
async def closing(store: OxiaStore) -> AsyncIterator[OxiaStore]:
    try:
        yield store
    finally:
        await store.close()


def leader_of(cluster: OxiaCluster, home: str) -> OxiaClusterNode:
    return cluster.leaders()[hash_of(home) * SHARDS >> 32]


@dataclass
class Appender:
    """Appends to one log like a broker: at its expected end, which it increases after a conflict."""

    store: OxiaStore
    log: Folder
    acked: dict[str, bytes] = field(default_factory=dict)
    calls_s: list[float] = field(default_factory=list)
    end: int = 0

    async def run(self, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        while not stop.is_set():
            start_s = loop.time()
            await self.append()
            self.calls_s.append(loop.time() - start_s)

    async def append(self) -> None:
        name, value = f"{self.end:020d}", uuid.uuid4().hex.encode()
        (result,) = await self.store.create([Create(self.log.key(name), value, self.log.key("floor"))])
        if isinstance(result, Created) or (isinstance(result, Uncertain) and await self.is_stored(name, value)):
            self.acked[name] = value
        if isinstance(result, (Created, Conflict)):
            self.end += 1

    async def is_stored(self, name: str, value: bytes) -> bool:
        try:
            stored = await self.store.get(self.log.key(name), confirmed=True)
        except Unavailable:
            return False
        return stored is not None and stored.value == value


async def check(environment: Environment, appenders: list[Appender]) -> None:
    """Checks that no acknowledged create is missing, changed or duplicated."""
    for log in LOGS:
        scanned = await environment.stores[0].scan(log, "", "floor", confirmed=True)
        stored = {record.name: record.value for record in scanned.records}
        assert list(stored) == [f"{number:020d}" for number in range(len(stored))]
        assert max(Counter(stored.values()).values()) == 1
        of_log = [appender for appender in appenders if appender.log == log]
        assert not of_log[0].acked.keys() & of_log[1].acked.keys()
        for appender in of_log:
            assert appender.acked.items() <= stored.items()


async def wait_for_progress(appenders: list[Appender]) -> None:
    """Waits until each appender has appended more. The coordinator detects a dead node only after some time."""
    before = [len(appender.acked) for appender in appenders]
    async with asyncio.timeout(60):
        while any(len(appender.acked) < count + 5 for appender, count in zip(appenders, before, strict=True)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@asynccontextmanager
async def load(environment: Environment) -> AsyncIterator[list[Appender]]:
    """Runs two clients that append to the same logs during the block, and then checks all acknowledged appends."""
    appenders = [Appender(store, log) for log in LOGS for store in environment.stores]
    stop = asyncio.Event()
    tasks = [asyncio.create_task(appender.run(stop)) for appender in appenders]
    try:
        await wait_for_progress(appenders)
        yield appenders
    finally:
        stop.set()
        await asyncio.gather(*tasks)
    assert max(max(appender.calls_s) for appender in appenders) < CALL_S_MAX
    await check(environment, appenders)


async def test_acknowledged_creates_are_kept_when_leaders_are_killed_under_load(environment: Environment) -> None:
    async with load(environment) as appenders:
        for _ in range(2):
            victim = leader_of(environment.cluster, LOGS[0].home)
            victim.kill()
            await wait_for_progress(appenders)
            await victim.restart()
            await asyncio.sleep(1)


async def test_calls_end_within_the_retry_budget_when_a_leader_is_frozen(environment: Environment) -> None:
    async with load(environment) as appenders:
        victim = leader_of(environment.cluster, LOGS[0].home)
        victim.freeze()
        await wait_for_progress(appenders)
        victim.thaw()
        await wait_for_progress(appenders)


async def test_all_calls_end_within_the_retry_budget_when_all_nodes_hang(environment: Environment) -> None:
    store, log = environment.stores[0], LOGS[0]
    session = await store.session(60_000)
    for node in environment.cluster.nodes:
        node.freeze()
    async with asyncio.timeout(CALL_S_MAX):
        results = await asyncio.gather(
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
    for result in results:
        assert isinstance(result[0] if isinstance(result, list) else result, Unavailable)
    for node in environment.cluster.nodes:
        node.thaw()


async def test_confirmed_read_returns_the_newest_value_when_a_deposed_leader_responds(tmp_path: Path) -> None:
    key, guard = LOGS[0].key("1"), LOGS[0].key("floor")
    async with toxiproxy() as network, oxia_cluster(tmp_path, shards=SHARDS, network=network) as cluster:
        settings = replace(OxiaSettings.from_url(cluster.url), request_timeout_ms=REQUEST_MS)
        async with closing(await OxiaStore.open(settings)) as store:
            await store.put([Put(key, b"old"), Put(guard, b"old")])
            deposed = await disconnect_leader(cluster, key.home)
            async with asyncio.timeout(60):
                while not isinstance((await store.put([Put(guard, b"new"), Put(key, b"new")]))[1], Stored):
                    pass
            # These clients connect to the deposed node first, and so get an old shard map, which may contain no other
            # node. They need the other addresses to find the current leader.
            addresses = (deposed.address, *(node.address for node in cluster.nodes))
            old_map = replace(settings, addresses=addresses, retry_budget_ms=30_000)
            async with closing(await store_with_old_map(old_map)) as stale:
                scanned = await stale.scan(LOGS[0], guard=guard, confirmed=True)
                assert [record.value for record in [*scanned.records, scanned.guard] if record] == [b"new"] * 3
            async with closing(await store_with_old_map(old_map)) as stale:
                (result,) = await stale.create([Create(LOGS[0].key("2"), b"mine", guard)])
                assert isinstance(result, Created)
                assert result.guard is not None
                assert result.guard.value == b"new"


async def store_with_old_map(settings: OxiaSettings) -> OxiaStore:
    """Opens a client that reads old values. On a busy machine a client may find the new leader first."""
    async with asyncio.timeout(60):
        while True:
            store = await OxiaStore.open(settings)
            if [record.value for record in (await store.scan(LOGS[0])).records] == [b"old", b"old"]:
                return store
            await store.close()


async def disconnect_leader(cluster: OxiaCluster, home: str) -> OxiaClusterNode:
    """Disconnects a leader from the other nodes, and waits for the next leader. Clients can still reach the old one."""
    deposed = leader_of(cluster, home)
    assert deposed.inner is not None
    await deposed.inner.cut()
    async with asyncio.timeout(60):
        while cluster.leaders().get(hash_of(home) * SHARDS >> 32) in (None, deposed):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return deposed


async def test_ephemeral_record_is_kept_when_its_leader_is_killed(environment: Environment) -> None:
    store, other = environment.stores
    session = await store.session(4_000)
    (result,) = await store.put([Put(LOGS[0].key("me"), b"here", ANY, session)])
    assert isinstance(result, Stored)
    leader_of(environment.cluster, LOGS[0].home).kill()
    async with asyncio.timeout(20):
        for _ in range(6):
            await asyncio.sleep(1)
            assert await other.get(LOGS[0].key("me"), confirmed=True) is not None
            assert not session.lost
    await session.close()
    assert await other.get(LOGS[0].key("me"), confirmed=True) is None


async def test_watch_continues_when_its_leader_is_killed(environment: Environment) -> None:
    store, other = environment.stores
    async with aclosing(store.watch("/log/")) as changes:
        assert (await anext(changes)).everything
        await put_one(other, LOGS[0].key("1"), b"")
        async with asyncio.timeout(5):
            assert (await anext(changes)).paths == {LOGS[0].key("1").path}
        leader_of(environment.cluster, LOGS[0].home).kill()
        await put_one(other, LOGS[0].key("2"), b"", ABSENT)
        async with asyncio.timeout(10):
            while LOGS[0].key("2").path not in (change := await anext(changes)).paths:
                assert not change.everything, "the watch is resumed, not restarted"
