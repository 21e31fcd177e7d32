"""Topics by name, and what a crash between two steps leaves behind."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from lakestream.clock import SystemClock
from lakestream.errors import Conflict, Corrupt, Missing, Rejected, Unavailable
from lakestream.metadata import keys
from lakestream.metadata.claims import Claims
from lakestream.metadata.memory import MemoryServer, MemoryStore
from lakestream.metadata.store import ANY, Key, Put, Record, Stored, put_one
from lakestream.metadata.topics import Topic, Topics


class Dying(MemoryStore):
    """Its machine dies before the n-th delete."""

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


async def test_a_topic_has_its_logs(server: MemoryServer, topics: Topics) -> None:
    topic = await topics.create("orders", Topic("id", 3, {"profile": "cost"}))
    assert await topics.get("orders") == topic
    assert await topics.all() == {"orders": topic}
    assert [await Claims(server.client()).floor(partition) for partition in topic.partitions()] == [0, 0, 0]


async def test_settings_are_replaced(topics: Topics) -> None:
    await topics.create("orders", Topic("id", 1))
    changed = await topics.set("orders", {"profile": "latency"})
    assert changed == Topic("id", 1, {"profile": "latency"}) == await topics.get("orders")


async def test_what_is_not_there(topics: Topics) -> None:
    with pytest.raises(Missing, match="there is no topic orders"):
        await topics.get("orders")
    with pytest.raises(Missing):
        await topics.set("orders", {})
    with pytest.raises(Missing):
        await topics.delete("orders")


async def test_a_name_is_taken_once(server: MemoryServer, topics: Topics) -> None:
    first = await topics.create("orders", Topic("one", 1))
    with pytest.raises(Conflict, match="topic orders exists already"):
        await topics.create("orders", Topic("two", 1))
    assert await topics.get("orders") == first
    assert await Claims(server.client()).floor(Topic("two", 1).partitions()[0]) is None


@pytest.mark.parametrize("steps", range(10))
async def test_a_deletion_that_died_is_finished_by_the_next(server: MemoryServer, topics: Topics, steps: int) -> None:
    topic = await topics.create("orders", Topic("id", 3))
    dying = Dying(server)
    dying.deletes_left = steps
    try:
        await Topics(dying).delete("orders")
    except Unavailable:
        claims = Claims(server.client())
        assert await claims.floor(topic.partitions()[0]) is None, "gone from the start"
        await topics.delete("orders")
    with pytest.raises(Missing):
        await topics.get("orders")
    left = [path for path in server._entries if "id" in path]
    assert left == []


class Counting(MemoryStore):
    """How often it is called for a write, and what for."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.puts = 0

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        self.puts += 1
        return await super().put(puts)


async def test_very_many_logs_are_made_in_few_round_trips(server: MemoryServer) -> None:
    store = Counting(server)
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


async def test_a_name_that_is_taken_makes_no_logs(server: MemoryServer, topics: Topics) -> None:
    await topics.create("orders", Topic("one", 1))
    store = Counting(server)
    with pytest.raises(Conflict, match="topic orders exists already"):
        await Topics(store).create("orders", Topic("two", 1_000))
    assert store.puts == 0


class Deposed(MemoryStore):
    """Answers what it knew when it was made, unless it must be certain."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self._known = server.snapshot()

    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        return await super().get(key, confirmed=True) if confirmed else self._known.get(key.path)


async def test_a_name_that_was_freed_meanwhile_can_be_taken(server: MemoryServer, topics: Topics) -> None:
    await topics.create("orders", Topic("one", 1))
    old = Topics(Deposed(server))
    await topics.delete("orders")
    assert await old.create("orders", Topic("two", 1)) == Topic("two", 1)


class Forgetful(MemoryStore):
    """One of many puts gets no answer."""

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        answers = await super().put(puts)
        return [*answers[:-1], Unavailable("no answer")] if len(puts) > 1 else answers


async def test_a_topic_whose_logs_are_not_all_made_does_not_exist(server: MemoryServer, topics: Topics) -> None:
    with pytest.raises(Unavailable):
        await Topics(Forgetful(server)).create("orders", Topic("id", 3))
    with pytest.raises(Missing):
        await topics.get("orders")
    assert [path for path in server._entries if "id" in path] == []


class Slow(MemoryStore):
    """Writes, and never answers the second call."""

    puts = 0

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        self.puts += 1
        answers = await super().put(puts)
        if self.puts == 2:
            await asyncio.get_running_loop().create_future()
        return answers


async def test_who_leaves_while_a_topic_is_made_leaves_nothing(server: MemoryServer) -> None:
    creating = asyncio.create_task(Topics(Slow(server)).create("orders", Topic("id", 3)))
    await asyncio.sleep(0.01)
    assert [path for path in server._entries if "id" in path] != []
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert [path for path in server._entries if "id" in path] == []


async def test_a_damaged_record_is_corrupt_and_named(server: MemoryServer, topics: Topics) -> None:
    await put_one(server.client(), keys.topic_key("orders"), b"\xff{")
    with pytest.raises(Corrupt, match="metadata record /topics/orders is not a topic"):
        await topics.get("orders")


class Interrupted(MemoryStore):
    """Somebody else does something just before the next put or delete of a topic."""

    def __init__(self, server: MemoryServer, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(server)
        self._meanwhile: Callable[[], Awaitable[object]] | None = meanwhile

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        await self._interrupt([put.key for put in puts])
        return await super().put(puts)

    async def delete(self, key: Key, expected: int | None = ANY) -> bool:
        await self._interrupt([key])
        return await super().delete(key, expected)

    async def _interrupt(self, touched: Sequence[Key]) -> None:
        if self._meanwhile is not None and any(key.home == keys.TOPICS.home for key in touched):
            meanwhile, self._meanwhile = self._meanwhile, None
            await meanwhile()


async def test_a_topic_grows(server: MemoryServer, topics: Topics) -> None:
    await topics.create("orders", Topic("id", 1, {"retention.ms": "1"}))
    grown = await topics.grow("orders", 3)
    assert grown == Topic("id", 3, {"retention.ms": "1"}) == await topics.get("orders")
    assert [await Claims(server.client()).floor(partition) for partition in grown.partitions()] == [0, 0, 0]
    with pytest.raises(Rejected, match="topic orders has 3 partitions already"):
        await topics.grow("orders", 3)
    with pytest.raises(Missing):
        await topics.grow("other", 3)


async def test_two_who_grow_a_topic_at_once_leave_the_larger(server: MemoryServer, topics: Topics) -> None:
    await topics.create("orders", Topic("id", 1))
    late = Topics(Interrupted(server, lambda: topics.grow("orders", 2)))
    assert await late.grow("orders", 4) == Topic("id", 4) == await topics.get("orders")
    late = Topics(Interrupted(server, lambda: topics.grow("orders", 9)))
    with pytest.raises(Rejected):
        await late.grow("orders", 6)
    assert await topics.get("orders") == Topic("id", 9)


async def test_a_topic_that_is_deleted_while_it_grows_leaves_nothing(server: MemoryServer, topics: Topics) -> None:
    await topics.create("orders", Topic("id", 1))
    with pytest.raises(Missing):
        await Topics(Interrupted(server, lambda: topics.delete("orders"))).grow("orders", 3)
    claims = Claims(server.client())
    assert [await claims.floor(partition) for partition in Topic("id", 3).partitions()] == [None, None, None]


async def test_a_topic_that_grows_while_it_is_deleted_is_deleted(server: MemoryServer, topics: Topics) -> None:
    await topics.create("orders", Topic("id", 1))
    await Topics(Interrupted(server, lambda: topics.grow("orders", 3))).delete("orders")
    claims = Claims(server.client())
    assert [await claims.floor(partition) for partition in Topic("id", 3).partitions()] == [None, None, None]
    assert await topics.all() == {}


async def test_settings_altered_at_once_are_all_kept(server: MemoryServer, topics: Topics) -> None:
    await topics.create("orders", Topic("id", 1, {"a": "1"}))
    late = Topics(Interrupted(server, lambda: topics.alter("orders", lambda topic: topic.settings | {"b": "2"})))
    altered = await late.alter("orders", lambda topic: topic.settings | {"c": "3"})
    assert altered.settings == {"a": "1", "b": "2", "c": "3"}
    assert await topics.get("orders") == altered
