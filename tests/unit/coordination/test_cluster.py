"""Topics as a broker knows them: asked of the store before they are denied, at a price that a client cannot raise."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from lakestream.clock import SystemClock
from lakestream.coordination import cluster
from lakestream.coordination.cluster import ClusterView
from lakestream.errors import Missing
from lakestream.metadata import keys
from lakestream.metadata.memory import MemoryServer, MemoryStore
from lakestream.metadata.store import Folder, Key, Record, Scanned
from lakestream.metadata.topics import Topic, Topics


class Counting(MemoryStore):
    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.gets = 0
        self.scans: list[bool] = []
        """Of the topics; whether they were confirmed."""

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
def store(server: MemoryServer) -> Counting:
    return Counting(server)  # it hears of no changes: made by itself, not by the server


@pytest_asyncio.fixture
async def view(store: Counting) -> AsyncIterator[ClusterView]:
    view = ClusterView(store)
    await view.look_at_topics()
    store.scans.clear()
    store.gets = 0
    yield view
    await view.close()


async def test_an_id_that_nobody_has_costs_no_look_at_all_topics(view: ClusterView, store: Counting) -> None:
    for _ in range(100):
        with pytest.raises(Missing, match="no topic has the id 0ld"):
            await view.name_of_id("0ld")
    assert store.scans == []
    assert store.gets == 1


async def test_ids_that_nobody_has_are_not_all_kept(view: ClusterView, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "GONE_IDS_MAX", 10)
    for number in range(50):
        with pytest.raises(Missing):
            await view.name_of_id(f"{number}")
    assert len(view._gone_ids) == 10


async def test_a_topic_that_is_new_is_found_by_its_id_for_certain(
    view: ClusterView, store: Counting, server: MemoryServer
) -> None:
    await Topics(server.client()).create("new", Topic("id", 1))
    assert await view.name_of_id("id") == "new"
    assert store.scans == [True], "a node that does not lead any more may not know it yet"
    assert await view.name_of_id("id") == "new"
    assert len(store.scans) == 1


async def test_an_id_is_gone_with_its_topic(view: ClusterView, server: MemoryServer, store: Counting) -> None:
    topics = Topics(server.client())
    await topics.create("old", Topic("id", 1))
    assert await view.name_of_id("id") == "old"
    await topics.delete("old")
    view.forget("old")
    store.scans.clear()
    with pytest.raises(Missing):
        await view.name_of_id("id")
    assert store.scans == []


class Buggy(MemoryStore):
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


async def test_a_bug_does_not_end_the_news(server: MemoryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "FEED_RETRY_MS", 1)
    store = Buggy(server)
    server._clients[store] = None  # it hears of changes
    view = ClusterView(store)
    await view.start()
    await asyncio.sleep(0.01)
    store.fails = True
    await Topics(server.client()).create("one", Topic("id", 1))
    for _ in range(1_000):
        if view.known("one"):
            break
        await asyncio.sleep(0.001)
    assert view.known("one") == Topic("id", 1)
    assert not store.fails
    await view.close()


class Deposed(MemoryStore):
    """Its scans are answered by a leader that was deposed, unless it has to be sure."""

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


async def test_an_old_leader_is_not_believed_for_ever(server: MemoryServer) -> None:
    """There is one event for a topic that is made anew: the look that follows it is the last for a long time."""
    topics = Topics(server.client())
    await topics.create("visits", Topic("old", 1))
    before = server.snapshot()
    await topics.delete("visits")
    await topics.create("visits", Topic("new", 1))
    view = ClusterView(Deposed(server, before))
    await view.look_at_topics()
    assert view.topics == {"visits": Topic("new", 1)}
