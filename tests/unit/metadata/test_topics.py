"""Topics by name, and what a crash between two steps leaves behind."""

import pytest

from lakestream.clock import SystemClock
from lakestream.errors import Conflict, Corrupt, Missing, Unavailable
from lakestream.metadata import keys
from lakestream.metadata.claims import Claims
from lakestream.metadata.memory import MemoryServer, MemoryStore
from lakestream.metadata.store import ANY, Key, put_one
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


async def test_a_damaged_record_is_corrupt_and_named(server: MemoryServer, topics: Topics) -> None:
    await put_one(server.client(), keys.topic_key("orders"), b"\xff{")
    with pytest.raises(Corrupt, match="metadata record /topics/orders is not a topic"):
        await topics.get("orders")
