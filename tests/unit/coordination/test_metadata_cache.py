"""The cache of topics: missing topics are confirmed in the store, at a bounded cost per client request."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

from lakestream.aio.background import follow
from lakestream.clock import SystemClock
from lakestream.coordination import metadata_cache
from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.errors import Missing
from lakestream.metadata import keys
from lakestream.metadata.memory import MemoryMetadataStore, MemoryServer
from lakestream.metadata.store import Folder, Key, Record, Scanned
from lakestream.metadata.topics import Topic, Topics


class CountsReads(MemoryMetadataStore):
    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.gets = 0
        self.scans: list[bool] = []
        """Scans of the topics: whether each was confirmed."""

    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        self.gets += 1
        return await super().get(key, confirmed=confirmed)

    async def scan(
        self,
        folder: Folder,
        start: str = "",
        end: str | None = None,
        *,
        limit: int | None = None,
        guard: Key | None = None,
        confirmed: bool = False,
    ) -> Scanned:
        if folder == keys.TOPICS:
            self.scans.append(confirmed)
        return await super().scan(folder, start, end, limit=limit, guard=guard, confirmed=confirmed)


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer(SystemClock())


@pytest.fixture
def store(server: MemoryServer) -> CountsReads:
    return CountsReads(server)  # gets no change notifications: not created by the server


@pytest_asyncio.fixture
async def cache(store: CountsReads) -> AsyncIterator[MetadataCache]:
    cache = MetadataCache(store)
    await cache.refresh_topics()
    store.scans.clear()
    store.gets = 0
    yield cache
    await cache.close()


async def test_unknown_id_causes_no_scan_of_all_topics(cache: MetadataCache, store: CountsReads) -> None:
    for _ in range(100):
        with pytest.raises(Missing, match="no topic has the id 0ld"):
            await cache.name_of_id("0ld")
    assert store.scans == []
    assert store.gets == 1


async def test_cached_missing_ids_are_bounded(cache: MetadataCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_cache, "MISSING_IDS_MAX", 10)
    for number in range(50):
        with pytest.raises(Missing):
            await cache.name_of_id(f"{number}")
    assert len(cache._missing_ids) == 10


async def test_new_topic_is_found_by_its_id_with_a_confirmed_read(
    cache: MetadataCache, store: CountsReads, server: MemoryServer
) -> None:
    await Topics(server.client()).create("new", Topic("id", 1))
    assert await cache.name_of_id("id") == "new"
    assert store.scans == [True], "a deposed leader may not have it yet"
    assert await cache.name_of_id("id") == "new"
    assert len(store.scans) == 1


async def test_id_is_missing_after_its_topic_is_evicted(
    cache: MetadataCache, server: MemoryServer, store: CountsReads
) -> None:
    topics = Topics(server.client())
    await topics.create("old", Topic("id", 1))
    assert await cache.name_of_id("id") == "old"
    await topics.delete("old")
    cache.evict("old")
    store.scans.clear()
    with pytest.raises(Missing):
        await cache.name_of_id("id")
    assert store.scans == []


class FailsOnce(MemoryMetadataStore):
    fails = False

    async def scan(
        self,
        folder: Folder,
        start: str = "",
        end: str | None = None,
        *,
        limit: int | None = None,
        guard: Key | None = None,
        confirmed: bool = False,
    ) -> Scanned:
        if self.fails:
            self.fails = False
            raise RuntimeError("a bug")
        return await super().scan(folder, start, end, limit=limit, guard=guard, confirmed=confirmed)


async def test_watch_continues_after_an_unexpected_error(server: MemoryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_cache, "follow", partial(follow, retry_s=0.001))
    store = FailsOnce(server)
    server._clients[store] = None  # subscribes to change notifications
    cache = MetadataCache(store)
    await cache.start()
    await asyncio.sleep(0.01)
    store.fails = True
    await Topics(server.client()).create("one", Topic("id", 1))
    for _ in range(1_000):
        if cache.cached_topic("one"):
            break
        await asyncio.sleep(0.001)
    assert cache.cached_topic("one") == Topic("id", 1)
    assert not store.fails
    await cache.close()


class StaleScans(MemoryMetadataStore):
    """Store whose unconfirmed scans read from a deposed leader."""

    def __init__(self, server: MemoryServer, before: MemoryServer) -> None:
        super().__init__(server)
        self._before = before.client()

    async def scan(
        self,
        folder: Folder,
        start: str = "",
        end: str | None = None,
        *,
        limit: int | None = None,
        guard: Key | None = None,
        confirmed: bool = False,
    ) -> Scanned:
        if not confirmed:
            return await self._before.scan(folder, start, end, limit=limit, guard=guard)
        return await super().scan(folder, start, end, limit=limit, guard=guard, confirmed=confirmed)


async def test_refresh_reads_topics_confirmed(server: MemoryServer) -> None:
    """A recreated topic causes one event: the refresh after it is the last for a long time."""
    topics = Topics(server.client())
    await topics.create("visits", Topic("old", 1))
    before = server.snapshot()
    await topics.delete("visits")
    await topics.create("visits", Topic("new", 1))
    cache = MetadataCache(StaleScans(server, before))
    await cache.refresh_topics()
    assert cache.topics == {"visits": Topic("new", 1)}
