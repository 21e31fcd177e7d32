"""Topics by name, and crashes between two steps of a change."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from lakestream.clock import SystemClock
from lakestream.errors import Conflict, Corrupt, Missing, Rejected, Unavailable
from lakestream.metadata import keys
from lakestream.metadata.claims import Claims
from lakestream.metadata.memory import MemoryMetadataStore, MemoryServer
from lakestream.metadata.store import ANY, Key, Put, Record, Stored, put_one
from lakestream.metadata.topics import Topic, Topics


class FailsAfterDeletes(MemoryMetadataStore):
    """The machine fails after a number of deletes."""

    deletes_left = 0

    async def delete(self, key: Key, expected: int | None = ANY) -> bool:
        if not self.deletes_left:
            raise Unavailable("dead")
        self.deletes_left -= 1
        return await super().delete(key, expected)


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer(SystemClock())


@pytest.fixture
def topics(server: MemoryServer) -> Topics:
    return Topics(server.client())


async def test_create_creates_the_partitions_of_a_topic(server: MemoryServer, topics: Topics) -> None:
    topic = await topics.create("orders", Topic("id", 3, {"profile": "cost"}))
    assert await topics.get("orders") == topic
    assert await topics.all() == {"orders": topic}
    assert [await Claims(server.client()).floor(partition) for partition in topic.partitions()] == [0, 0, 0]


async def test_set_replaces_the_settings(topics: Topics) -> None:
    await topics.create("orders", Topic("id", 1))
    changed = await topics.set("orders", {"profile": "latency"})
    assert changed == Topic("id", 1, {"profile": "latency"}) == await topics.get("orders")


async def test_missing_topic_is_missing_in_every_call(topics: Topics) -> None:
    with pytest.raises(Missing, match="topic orders does not exist"):
        await topics.get("orders")
    with pytest.raises(Missing):
        await topics.set("orders", {})
    with pytest.raises(Missing):
        await topics.delete("orders")


async def test_create_conflicts_when_the_name_exists(server: MemoryServer, topics: Topics) -> None:
    first = await topics.create("orders", Topic("one", 1))
    with pytest.raises(Conflict, match="Topic 'orders' already exists"):
        await topics.create("orders", Topic("two", 1))
    assert await topics.get("orders") == first
    assert await Claims(server.client()).floor(Topic("two", 1).partitions()[0]) is None


@pytest.mark.parametrize("steps", range(10))
async def test_interrupted_delete_is_completed_by_the_next_one(
    server: MemoryServer, topics: Topics, steps: int
) -> None:
    topic = await topics.create("orders", Topic("id", 3))
    failing = FailsAfterDeletes(server)
    failing.deletes_left = steps
    try:
        await Topics(failing).delete("orders")
    except Unavailable:
        claims = Claims(server.client())
        assert await claims.floor(topic.partitions()[0]) is None, "the first step deletes it"
        await topics.delete("orders")
    with pytest.raises(Missing):
        await topics.get("orders")
    left = [path for path in server._entries if "id" in path]
    assert left == []


class CountsPuts(MemoryMetadataStore):
    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.puts = 0

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        self.puts += 1
        return await super().put(puts)


async def test_thousands_of_partitions_are_created_in_few_round_trips(server: MemoryServer) -> None:
    store = CountsPuts(server)
    topic = await Topics(store).create("orders", Topic("id", 5_000))
    assert store.puts <= 11
    grown = await Topics(store).grow("orders", 9_000)
    assert store.puts <= 20
    claims = Claims(store)
    last = grown.partitions()[-1]
    assert [await claims.floor(last), await claims.table_end(last)] == [0, 0]
    assert topic.topic_id == grown.topic_id
    await Topics(store).delete("orders")
    assert [path for path in server._entries if "id" in path] == []


async def test_create_writes_nothing_when_the_name_exists(server: MemoryServer, topics: Topics) -> None:
    await topics.create("orders", Topic("one", 1))
    store = CountsPuts(server)
    with pytest.raises(Conflict, match="Topic 'orders' already exists"):
        await Topics(store).create("orders", Topic("two", 1_000))
    assert store.puts == 0


class StaleReads(MemoryMetadataStore):
    """Reads return the state at its creation, except for confirmed reads."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self._stale = server.snapshot()

    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        return await super().get(key, confirmed=True) if confirmed else self._stale.get(key.path)


async def test_create_succeeds_when_a_stale_read_still_has_the_name(server: MemoryServer, topics: Topics) -> None:
    await topics.create("orders", Topic("one", 1))
    stale = Topics(StaleReads(server))
    await topics.delete("orders")
    assert await stale.create("orders", Topic("two", 1)) == Topic("two", 1)


class LosesResult(MemoryMetadataStore):
    """The last of several puts gets no response."""

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        results = await super().put(puts)
        return [*results[:-1], Unavailable("no response")] if len(puts) > 1 else results


async def test_topic_does_not_exist_when_creating_its_partitions_fails(server: MemoryServer, topics: Topics) -> None:
    with pytest.raises(Unavailable):
        await Topics(LosesResult(server)).create("orders", Topic("id", 3))
    with pytest.raises(Missing):
        await topics.get("orders")
    assert [path for path in server._entries if "id" in path] == []


class HangsAtSecondPut(MemoryMetadataStore):
    """The second put takes effect, and its call never returns."""

    puts = 0

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        self.puts += 1
        results = await super().put(puts)
        if self.puts == 2:
            await asyncio.get_running_loop().create_future()
        return results


async def test_cancelled_create_leaves_no_partitions(server: MemoryServer) -> None:
    creating = asyncio.create_task(Topics(HangsAtSecondPut(server)).create("orders", Topic("id", 3)))
    await asyncio.sleep(0.01)
    assert [path for path in server._entries if "id" in path] != []
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert [path for path in server._entries if "id" in path] == []


async def test_damaged_record_is_corrupt_and_named_in_the_message(server: MemoryServer, topics: Topics) -> None:
    await put_one(server.client(), keys.topic_key("orders"), b"\xff{")
    with pytest.raises(Corrupt, match="metadata record /topics/orders is not a topic"):
        await topics.get("orders")


class ConcurrentChange(MemoryMetadataStore):
    """Another client changes the topic just before the next put or delete of it."""

    def __init__(self, server: MemoryServer, change: Callable[[], Awaitable[object]]) -> None:
        super().__init__(server)
        self._change: Callable[[], Awaitable[object]] | None = change

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        await self._run_change([put.key for put in puts])
        return await super().put(puts)

    async def delete(self, key: Key, expected: int | None = ANY) -> bool:
        await self._run_change([key])
        return await super().delete(key, expected)

    async def _run_change(self, changed_keys: Sequence[Key]) -> None:
        if self._change is not None and any(key.home == keys.TOPICS.home for key in changed_keys):
            change, self._change = self._change, None
            await change()


async def test_grow_adds_partitions_and_keeps_the_settings(server: MemoryServer, topics: Topics) -> None:
    await topics.create("orders", Topic("id", 1, {"retention.ms": "1"}))
    grown = await topics.grow("orders", 3)
    assert grown == Topic("id", 3, {"retention.ms": "1"}) == await topics.get("orders")
    assert [await Claims(server.client()).floor(partition) for partition in grown.partitions()] == [0, 0, 0]
    with pytest.raises(Rejected, match="topic orders already has 3 partitions"):
        await topics.grow("orders", 3)
    with pytest.raises(Missing):
        await topics.grow("other", 3)


async def test_concurrent_grows_leave_the_larger_topic(server: MemoryServer, topics: Topics) -> None:
    await topics.create("orders", Topic("id", 1))
    late = Topics(ConcurrentChange(server, lambda: topics.grow("orders", 2)))
    assert await late.grow("orders", 4) == Topic("id", 4) == await topics.get("orders")
    late = Topics(ConcurrentChange(server, lambda: topics.grow("orders", 9)))
    with pytest.raises(Rejected):
        await late.grow("orders", 6)
    assert await topics.get("orders") == Topic("id", 9)


async def test_grow_leaves_no_partitions_when_the_topic_is_deleted_concurrently(
    server: MemoryServer, topics: Topics
) -> None:
    await topics.create("orders", Topic("id", 1))
    with pytest.raises(Missing):
        await Topics(ConcurrentChange(server, lambda: topics.delete("orders"))).grow("orders", 3)
    claims = Claims(server.client())
    assert [await claims.floor(partition) for partition in Topic("id", 3).partitions()] == [None, None, None]


async def test_delete_succeeds_when_the_topic_grows_concurrently(server: MemoryServer, topics: Topics) -> None:
    await topics.create("orders", Topic("id", 1))
    await Topics(ConcurrentChange(server, lambda: topics.grow("orders", 3))).delete("orders")
    claims = Claims(server.client())
    assert [await claims.floor(partition) for partition in Topic("id", 3).partitions()] == [None, None, None]
    assert await topics.all() == {}


async def test_concurrent_alters_keep_all_settings(server: MemoryServer, topics: Topics) -> None:
    await topics.create("orders", Topic("id", 1, {"a": "1"}))
    late = Topics(ConcurrentChange(server, lambda: topics.alter("orders", lambda topic: topic.settings | {"b": "2"})))
    altered = await late.alter("orders", lambda topic: topic.settings | {"c": "3"})
    assert altered.settings == {"a": "1", "b": "2", "c": "3"}
    assert await topics.get("orders") == altered
