"""The requests of groups at every version, for test_handlers.py; and a group member for other tests."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from tests.unit.protocol.kafka.serving import Serving

from lakestream.coordination.groups.embedded import write_assignment

Scenario = Callable[[Serving, int], Awaitable[None]]

JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT, FETCH, FIND = 11, 14, 12, 13, 8, 9, 10
NOT_COORDINATOR, ILLEGAL_GENERATION, INCONSISTENT, INVALID_GROUP, UNKNOWN_MEMBER = 16, 22, 23, 24, 25
INVALID_SESSION, REBALANCING, NON_EMPTY, NOT_FOUND, ID_REQUIRED, FENCED, SUBSCRIBED = 26, 27, 68, 69, 79, 82, 86
UNKNOWN_TOPIC, METADATA_TOO_LARGE, UNKNOWN_TOPIC_ID, INVALID_REQUEST = 3, 12, 100, 42


def subscription(*topics: str) -> bytes:
    """As Kafka's consumers write it."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\1" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff" + b"\0\0\0\0"


class Member:
    """Speaks to a broker as a consumer does."""

    def __init__(self, serving: Serving, group: str = "g", instance: str | None = None, version: int = 9) -> None:
        self.serving = serving
        self.group = group
        self.instance = instance
        self.version = version
        self.id = ""
        self.generation = -1
        self.protocols = [{"name": "range", "metadata": subscription("t")}]
        self.protocol_type = "consumer"
        self.session_ms = 10_000

    async def join_once(self) -> Any:
        body = {
            "group_id": self.group,
            "session_timeout": self.session_ms,
            "rebalance_timeout": 20_000,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "protocol_type": self.protocol_type,
            "protocols": self.protocols,
        }
        answer = await self.serving.ask(JOIN, self.version, body)
        self.id = answer.member_id
        if answer.error_code == 0:
            self.generation = answer.generation_id
        return answer

    async def join(self) -> Any:
        """With the id that it is told first."""
        answer = await self.join_once()
        return await self.join_once() if answer.error_code == ID_REQUIRED else answer

    async def sync(self, assignments: dict[str, bytes] | None = None, version: int = 5) -> Any:
        given = [{"member_id": member, "assignment": bytes_} for member, bytes_ in (assignments or {}).items()]
        return await self.serving.ask(SYNC, version, {**self._who, "assignments": given})

    async def heartbeat(self, version: int = 4) -> int:
        return int((await self.serving.ask(HEARTBEAT, version, self._who)).error_code)

    async def leave(self, version: int = 5) -> Any:
        one = {"member_id": self.id, "group_instance_id": self.instance}
        body = {"group_id": self.group, "members": [one], "member_id": self.id}
        return await self.serving.ask(LEAVE, version, body)

    async def commit(self, offset: int, topic: str = "t", partition: int = 0, version: int = 9, **more: Any) -> Any:
        one = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": 0, **more}
        body = {
            **self._who,
            "generation_id_or_member_epoch": self.generation,
            "retention_time": -1,
            "topics": [{"name": topic, "partitions": [one]}],
        }
        return (await self.serving.ask(COMMIT, version, body)).topics[0].partitions[0]

    async def alone(self) -> None:
        """Joins, leads, and has all."""
        assert (await self.join()).error_code == 0
        assert (await self.sync({self.id: b"all"})).error_code == 0

    async def alone_with(self, topic: str, numbers: range) -> None:
        """Joins, leads, and has some partitions of a topic, in the words of consumers."""
        assert (await self.join()).error_code == 0
        share = write_assignment(1, {topic: list(numbers)})
        assert (await self.sync({self.id: share})).error_code == 0

    @property
    def _who(self) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
        }


async def committed(serving: Serving, group: str = "g", topic: str = "t", partition: int = 0) -> Any:
    wanted = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [partition]}]}
    answer = await serving.ask(FETCH, 9, {"groups": [wanted]})
    assert answer.groups[0].error_code == 0
    return answer.groups[0].topics[0].partitions[0]


async def together(*calls: Awaitable[Any]) -> list[Any]:
    return list(await asyncio.wait_for(asyncio.gather(*calls), 10))


# ── one for each request ─────────────────────────────────────────────────────────────────────────────────────────────


async def find_coordinator(serving: Serving, version: int) -> None:
    if version < 4:
        answer = await serving.ask(FIND, version, {"key": "g", "key_type": 0})
        assert (answer.error_code, answer.node_id, answer.port) == (0, 0, 9092)
    else:
        several = await serving.ask(FIND, version, {"key_type": 0, "coordinator_keys": ["g", "h" * 1001]})
        found, refused = several.coordinators
        assert (found.key, found.error_code, found.node_id, found.host) == ("g", 0, 0, "127.0.0.1")
        assert (refused.error_code, refused.node_id) == (INVALID_GROUP, -1)
    if version >= 1:
        for kind, code in ((1, 0), (2, INVALID_REQUEST), (7, INVALID_REQUEST)):  # transactions, share groups, what?
            body = {"key": "x", "key_type": kind, "coordinator_keys": ["x"]}
            answer = await serving.ask(FIND, version, body)
            assert (answer if version < 4 else answer.coordinators[0]).error_code == code


async def join_group(serving: Serving, version: int) -> None:
    member = Member(serving, version=version)
    if version >= 4:
        told = await member.join_once()
        assert (told.error_code, told.generation_id) == (ID_REQUIRED, -1)
        assert told.member_id.startswith("tester-")
    joined = await member.join_once()
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id == joined.members[0].member_id
    assert joined.members[0].metadata == subscription("t")
    if version >= 7:
        assert joined.protocol_type == "consumer"
    stranger = Member(serving, version=version)
    stranger.id = "nobody"
    assert (await stranger.join_once()).error_code == UNKNOWN_MEMBER
    stranger.id = "é" * 501
    assert (await stranger.join_once()).error_code == INVALID_REQUEST
    if version >= 5:
        assert (await Member(serving, instance="i" * 1001, version=version).join_once()).error_code == INVALID_REQUEST
    wordy = Member(serving, version=version)
    wordy.protocols = [{"name": "range" * 201, "metadata": b""}]
    assert (await wordy.join_once()).error_code == INVALID_REQUEST
    other = Member(serving, version=version)
    other.protocols = [{"name": "other", "metadata": b""}]
    assert (await other.join_once()).error_code == INCONSISTENT
    hasty = Member(serving, version=version)
    hasty.session_ms = 10
    assert (await hasty.join_once()).error_code == INVALID_SESSION
    assert (await Member(serving, group="", version=version).join_once()).error_code == INVALID_GROUP
    if version >= 5:
        static = Member(serving, "static", "one", version)
        assert (await static.join_once()).error_code == 0
        again = Member(serving, "static", "one", version)
        await again.join_once()
        assert again.id != static.id
        assert (await static.join_once()).error_code == FENCED


async def sync_group(serving: Serving, version: int) -> None:
    member = Member(serving)
    await member.join()
    member.generation += 1
    assert (await member.sync({}, version)).error_code == ILLEGAL_GENERATION
    member.generation -= 1
    synced = await member.sync({member.id: b"mine"}, version)
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    if version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
        body = {**member._who, "protocol_type": "other", "protocol_name": "range", "assignments": []}
        assert (await serving.ask(SYNC, version, body)).error_code == INCONSISTENT
    member.id = "nobody"
    assert (await member.sync({}, version)).error_code == UNKNOWN_MEMBER


async def heartbeat(serving: Serving, version: int) -> None:
    member = Member(serving)
    await member.alone()
    assert await member.heartbeat(version) == 0
    member.generation += 1
    assert await member.heartbeat(version) == ILLEGAL_GENERATION
    member.id = "nobody"
    assert await member.heartbeat(version) == UNKNOWN_MEMBER
    assert await Member(serving, "nothing").heartbeat(version) == UNKNOWN_MEMBER


async def leave_group(serving: Serving, version: int) -> None:
    member = Member(serving)
    await member.alone()
    left = await member.leave(version)
    assert left.error_code == 0
    again = await member.leave(version)
    if version >= 3:
        assert (left.members[0].member_id, left.members[0].error_code) == (member.id, 0)
        assert (again.error_code, again.members[0].error_code) == (0, UNKNOWN_MEMBER)
        static = Member(serving, "static", "one")
        await static.join()
        static.id = ""
        assert (await static.leave(version)).members[0].error_code == 0
    else:
        assert again.error_code == UNKNOWN_MEMBER
    assert (await serving.services.groups.describe("g")).members == {}  # type: ignore[union-attr]


async def offset_commit(serving: Serving, version: int) -> None:
    topic_id = await serving.topic()
    topic = {"name": "t", "topic_id": UUID(hex=topic_id)}
    partitions = [
        {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": 0, "committed_metadata": "note"},
        {"partition_index": 1, "committed_offset": 6, "committed_leader_epoch": -1, "committed_metadata": "x" * 5000},
        {"partition_index": 2, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": None},
    ]
    gone = {"name": "gone", "topic_id": UUID(int=7), "partitions": partitions[:1]}
    body = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time": -1,
        "topics": [{**topic, "partitions": partitions}, gone],
    }
    answer = await serving.ask(COMMIT, version, body)
    codes = [one.error_code for one in answer.topics[0].partitions]
    assert codes == [0, METADATA_TOO_LARGE, UNKNOWN_TOPIC]
    assert answer.topics[1].partitions[0].error_code == (UNKNOWN_TOPIC_ID if version >= 10 else UNKNOWN_TOPIC)
    found = await committed(serving)
    assert (found.committed_offset, found.metadata) == (5, "note")
    assert found.committed_leader_epoch == (0 if version >= 6 else -1)
    body |= {"generation_id_or_member_epoch": 3, "member_id": "nobody"}
    refused = await serving.ask(COMMIT, version, body)
    assert refused.topics[0].partitions[0].error_code == UNKNOWN_MEMBER
    body |= {"group_id": "nothing"}
    refused = await serving.ask(COMMIT, version, body)
    assert refused.topics[0].partitions[0].error_code == (NOT_FOUND if version >= 9 else ILLEGAL_GENERATION)


async def offset_fetch(serving: Serving, version: int) -> None:
    topic_id = await serving.topic()
    await Member(serving).commit(5, committed_metadata="note")
    topics = [{"name": "t", "topic_id": UUID(hex=topic_id), "partition_indexes": [0, 1]}]
    for group, offset in (("g", 5), ("nothing", -1)):
        answer = await fetched(serving, version, group, topics)
        assert [one.committed_offset for one in answer.topics[0].partitions] == [offset, -1]
        assert [one.error_code for one in answer.topics[0].partitions] == [0, 0]
        assert answer.topics[0].partitions[0].metadata == ("note" if group == "g" else "")
    gone = [{"name": "gone", "topic_id": UUID(int=7), "partition_indexes": [0]}]
    answer = await fetched(serving, version, "g", gone)
    assert answer.topics[0].partitions[0].error_code == (UNKNOWN_TOPIC_ID if version >= 10 else 0)
    if version >= 2:
        every = await fetched(serving, version, "g", None)
        assert every.error_code == 0
        assert [one.committed_offset for one in every.topics[0].partitions] == [5]
        assert (await fetched(serving, version, "g" * 2000, None)).error_code == INVALID_GROUP


async def fetched(serving: Serving, version: int, group: str, topics: Any) -> Any:
    one = {"group_id": group, "topics": topics, "member_id": None, "member_epoch": -1}
    answer = await serving.ask(FETCH, version, {**one, "groups": [one], "require_stable": True})
    return answer.groups[0] if version >= 8 else answer


async def offset_delete(serving: Serving, version: int) -> None:
    await serving.topic()
    await serving.topic("u")
    member = Member(serving)
    await member.alone()
    await member.commit(5)
    await member.commit(6, topic="u")
    topics = [{"name": name, "partitions": [{"partition_index": 0}]} for name in ("t", "u", "gone")]
    deleted = await serving.ask(47, version, {"group_id": "g", "topics": topics})
    assert deleted.error_code == 0
    codes = [topic.partitions[0].error_code for topic in deleted.topics]
    assert codes == [SUBSCRIBED, 0, UNKNOWN_TOPIC]
    assert (await committed(serving)).committed_offset == 5
    assert (await committed(serving, topic="u")).committed_offset == -1
    assert (await serving.ask(47, version, {"group_id": "nothing", "topics": []})).error_code == NOT_FOUND
    connect = Member(serving, "connect")
    connect.protocol_type = "connect"
    await connect.alone()
    assert (await serving.ask(47, version, {"group_id": "connect", "topics": []})).error_code == NON_EMPTY


async def list_groups(serving: Serving, version: int) -> None:
    await serving.topic()
    await Member(serving).alone()
    await Member(serving, "simple").commit(5)
    listed = (await serving.ask(16, version, {"states_filter": [], "types_filter": []})).groups
    found = {group.group_id: group for group in listed}
    assert set(found) == {"g", "simple"}
    assert (found["g"].protocol_type, found["simple"].protocol_type) == ("consumer", "")
    if version >= 4:
        assert (found["g"].group_state, found["simple"].group_state) == ("Stable", "Empty")
        stable = await serving.ask(16, version, {"states_filter": ["stable"], "types_filter": []})
        assert [group.group_id for group in stable.groups] == ["g"]
    if version >= 5:
        assert found["g"].group_type == "classic"
        assert (await serving.ask(16, version, {"types_filter": ["consumer"], "states_filter": []})).groups == ()


async def describe_groups(serving: Serving, version: int) -> None:
    member = Member(serving)
    await member.alone()
    body = {"groups": ["g", "nothing"], "include_authorized_operations": True}
    found, missing = (await serving.ask(15, version, body)).groups
    assert (found.error_code, found.group_state, found.protocol_type, found.protocol_data) == (
        0,
        "Stable",
        "consumer",
        "range",
    )
    (one,) = found.members
    assert (one.member_id, one.client_id, one.member_assignment) == (member.id, "tester", b"all")
    assert one.member_metadata == subscription("t")
    assert missing.group_state == "Dead"
    assert missing.error_code == (NOT_FOUND if version >= 6 else 0)
    if version >= 3:
        assert found.authorized_operations == 0b101001000


async def delete_groups(serving: Serving, version: int) -> None:
    await serving.topic()
    member = Member(serving)
    await member.alone()
    await member.commit(5)
    await Member(serving, "simple").commit(5)
    deleted = (await serving.ask(42, version, {"groups_names": ["g", "simple", "nothing"]})).results
    assert [one.error_code for one in deleted] == [NON_EMPTY, 0, NOT_FOUND]
    assert (await committed(serving, "simple")).committed_offset == -1
    assert (await committed(serving)).committed_offset == 5
    await member.leave()
    assert (await serving.ask(42, version, {"groups_names": ["g"]})).results[0].error_code == 0
    assert (await serving.ask(16, 5, {"states_filter": [], "types_filter": []})).groups == ()


SCENARIOS: dict[int, Scenario] = {
    FIND: find_coordinator,
    JOIN: join_group,
    SYNC: sync_group,
    HEARTBEAT: heartbeat,
    LEAVE: leave_group,
    COMMIT: offset_commit,
    FETCH: offset_fetch,
    47: offset_delete,
    16: list_groups,
    15: describe_groups,
    42: delete_groups,
}
