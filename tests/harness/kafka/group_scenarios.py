"""Scenarios of group requests at every version, for test_handlers.py, and a classic member for tests."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from tests.harness.kafka.kafka_handlers import Serving

from lakestream.coordination.groups.consumer_protocol import write_assignment

Scenario = Callable[[Serving, int], Awaitable[None]]

JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT, FETCH, FIND = 11, 14, 12, 13, 8, 9, 10
NOT_COORDINATOR, ILLEGAL_GENERATION, INCONSISTENT, INVALID_GROUP, UNKNOWN_MEMBER = 16, 22, 23, 24, 25
INVALID_SESSION, REBALANCING, NON_EMPTY, NOT_FOUND, ID_REQUIRED, FENCED, SUBSCRIBED = 26, 27, 68, 69, 79, 82, 86
UNKNOWN_TOPIC, METADATA_TOO_LARGE, UNKNOWN_TOPIC_ID, INVALID_REQUEST = 3, 12, 100, 42


def subscription(*topics: str) -> bytes:
    """Encodes a subscription as Kafka's consumers do."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\1" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff" + b"\0\0\0\0"


class Member:
    """A classic member."""

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
        response = await self.serving.request(JOIN, self.version, body)
        self.id = response.member_id
        if response.error_code == 0:
            self.generation = response.generation_id
        return response

    async def join(self) -> Any:
        """Joins, with a second request that has the assigned member id."""
        response = await self.join_once()
        return await self.join_once() if response.error_code == ID_REQUIRED else response

    async def sync(self, assignments: dict[str, bytes] | None = None, version: int = 5) -> Any:
        listed = [{"member_id": member, "assignment": bytes_} for member, bytes_ in (assignments or {}).items()]
        return await self.serving.request(SYNC, version, {**self._identity, "assignments": listed})

    async def heartbeat(self, version: int = 4) -> int:
        return int((await self.serving.request(HEARTBEAT, version, self._identity)).error_code)

    async def leave(self, version: int = 5) -> Any:
        one = {"member_id": self.id, "group_instance_id": self.instance}
        body = {"group_id": self.group, "members": [one], "member_id": self.id}
        return await self.serving.request(LEAVE, version, body)

    async def commit(self, offset: int, topic: str = "t", partition: int = 0, version: int = 9, **more: Any) -> Any:
        one = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": 0, **more}
        body = {
            **self._identity,
            "generation_id_or_member_epoch": self.generation,
            "retention_time": -1,
            "topics": [{"name": topic, "partitions": [one]}],
        }
        return (await self.serving.request(COMMIT, version, body)).topics[0].partitions[0]

    async def alone(self) -> None:
        """Joins as the only member, and assigns itself all partitions."""
        assert (await self.join()).error_code == 0
        assert (await self.sync({self.id: b"all"})).error_code == 0

    async def alone_with(self, topic: str, numbers: range) -> None:
        """Joins as the only member, and assigns itself partitions of a topic in the consumer format."""
        assert (await self.join()).error_code == 0
        share = write_assignment(1, {topic: list(numbers)})
        assert (await self.sync({self.id: share})).error_code == 0

    @property
    def _identity(self) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
        }


async def committed(serving: Serving, group: str = "g", topic: str = "t", partition: int = 0) -> Any:
    request = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [partition]}]}
    response = await serving.request(FETCH, 9, {"groups": [request]})
    assert response.groups[0].error_code == 0
    return response.groups[0].topics[0].partitions[0]


# ── scenarios, by request ────────────────────────────────────────────────────────────────────────────────────────────


async def find_coordinator(serving: Serving, version: int) -> None:
    if version < 4:
        response = await serving.request(FIND, version, {"key": "g", "key_type": 0})
        assert (response.error_code, response.node_id, response.port) == (0, 0, 9092)
    else:
        several = await serving.request(FIND, version, {"key_type": 0, "coordinator_keys": ["g", "h" * 1001]})
        existing, rejected = several.coordinators
        assert (existing.key, existing.error_code, existing.node_id, existing.host) == ("g", 0, 0, "127.0.0.1")
        assert (rejected.error_code, rejected.node_id) == (INVALID_GROUP, -1)
    if version >= 1:
        for kind, code in ((1, 0), (2, INVALID_REQUEST), (7, INVALID_REQUEST)):  # transactions, share groups, unknown
            body = {"key": "x", "key_type": kind, "coordinator_keys": ["x"]}
            response = await serving.request(FIND, version, body)
            assert (response if version < 4 else response.coordinators[0]).error_code == code


async def join_group(serving: Serving, version: int) -> None:
    member = Member(serving, version=version)
    if version >= 4:
        first = await member.join_once()
        assert (first.error_code, first.generation_id) == (ID_REQUIRED, -1)
        assert first.member_id.startswith("tester-")
    joined = await member.join_once()
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id == joined.members[0].member_id
    assert joined.members[0].metadata == subscription("t")
    if version >= 7:
        assert joined.protocol_type == "consumer"
    unknown = Member(serving, version=version)
    unknown.id = "unknown"
    assert (await unknown.join_once()).error_code == UNKNOWN_MEMBER
    unknown.id = "é" * 501
    assert (await unknown.join_once()).error_code == INVALID_REQUEST
    if version >= 5:
        assert (await Member(serving, instance="i" * 1001, version=version).join_once()).error_code == INVALID_REQUEST
    long_name = Member(serving, version=version)
    long_name.protocols = [{"name": "range" * 201, "metadata": b""}]
    assert (await long_name.join_once()).error_code == INVALID_REQUEST
    other = Member(serving, version=version)
    other.protocols = [{"name": "other", "metadata": b""}]
    assert (await other.join_once()).error_code == INCONSISTENT
    short_session = Member(serving, version=version)
    short_session.session_ms = 10
    assert (await short_session.join_once()).error_code == INVALID_SESSION
    assert (await Member(serving, group="", version=version).join_once()).error_code == INVALID_GROUP
    if version >= 5:
        static = Member(serving, "static", "one", version)
        assert (await static.join_once()).error_code == 0
        replacement = Member(serving, "static", "one", version)
        await replacement.join_once()
        assert replacement.id != static.id
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
        body = {**member._identity, "protocol_type": "other", "protocol_name": "range", "assignments": []}
        assert (await serving.request(SYNC, version, body)).error_code == INCONSISTENT
    member.id = "unknown"
    assert (await member.sync({}, version)).error_code == UNKNOWN_MEMBER


async def heartbeat(serving: Serving, version: int) -> None:
    member = Member(serving)
    await member.alone()
    assert await member.heartbeat(version) == 0
    member.generation += 1
    assert await member.heartbeat(version) == ILLEGAL_GENERATION
    member.id = "unknown"
    assert await member.heartbeat(version) == UNKNOWN_MEMBER
    assert await Member(serving, "missing").heartbeat(version) == UNKNOWN_MEMBER


async def leave_group(serving: Serving, version: int) -> None:
    member = Member(serving)
    await member.alone()
    left = await member.leave(version)
    assert left.error_code == 0
    repeated = await member.leave(version)
    if version >= 3:
        assert (left.members[0].member_id, left.members[0].error_code) == (member.id, 0)
        assert (repeated.error_code, repeated.members[0].error_code) == (0, UNKNOWN_MEMBER)
        static = Member(serving, "static", "one")
        await static.join()
        static.id = ""
        assert (await static.leave(version)).members[0].error_code == 0
    else:
        assert repeated.error_code == UNKNOWN_MEMBER
    assert (await serving.services.groups.describe("g")).members == {}  # type: ignore[union-attr]


async def offset_commit(serving: Serving, version: int) -> None:
    topic_id = await serving.topic()
    topic = {"name": "t", "topic_id": UUID(hex=topic_id)}
    partitions = [
        {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": 0, "committed_metadata": "note"},
        {"partition_index": 1, "committed_offset": 6, "committed_leader_epoch": -1, "committed_metadata": "x" * 5000},
        {"partition_index": 2, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": None},
    ]
    deleted = {"name": "deleted", "topic_id": UUID(int=7), "partitions": partitions[:1]}
    body = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time": -1,
        "topics": [{**topic, "partitions": partitions}, deleted],
    }
    response = await serving.request(COMMIT, version, body)
    codes = [one.error_code for one in response.topics[0].partitions]
    assert codes == [0, METADATA_TOO_LARGE, UNKNOWN_TOPIC]
    assert response.topics[1].partitions[0].error_code == (UNKNOWN_TOPIC_ID if version >= 10 else UNKNOWN_TOPIC)
    stored = await committed(serving)
    assert (stored.committed_offset, stored.metadata) == (5, "note")
    assert stored.committed_leader_epoch == (0 if version >= 6 else -1)
    body |= {"generation_id_or_member_epoch": 3, "member_id": "unknown"}
    rejected = await serving.request(COMMIT, version, body)
    assert rejected.topics[0].partitions[0].error_code == UNKNOWN_MEMBER
    body |= {"group_id": "missing"}
    rejected = await serving.request(COMMIT, version, body)
    assert rejected.topics[0].partitions[0].error_code == (NOT_FOUND if version >= 9 else ILLEGAL_GENERATION)


async def offset_fetch(serving: Serving, version: int) -> None:
    topic_id = await serving.topic()
    await Member(serving).commit(5, committed_metadata="note")
    topics = [{"name": "t", "topic_id": UUID(hex=topic_id), "partition_indexes": [0, 1]}]
    for group, offset in (("g", 5), ("missing", -1)):
        response = await fetched(serving, version, group, topics)
        assert [one.committed_offset for one in response.topics[0].partitions] == [offset, -1]
        assert [one.error_code for one in response.topics[0].partitions] == [0, 0]
        assert response.topics[0].partitions[0].metadata == ("note" if group == "g" else "")
    deleted = [{"name": "deleted", "topic_id": UUID(int=7), "partition_indexes": [0]}]
    response = await fetched(serving, version, "g", deleted)
    assert response.topics[0].partitions[0].error_code == (UNKNOWN_TOPIC_ID if version >= 10 else 0)
    if version >= 2:
        every = await fetched(serving, version, "g", None)
        assert every.error_code == 0
        assert [one.committed_offset for one in every.topics[0].partitions] == [5]
        assert (await fetched(serving, version, "g" * 2000, None)).error_code == INVALID_GROUP


async def fetched(serving: Serving, version: int, group: str, topics: Any) -> Any:
    one = {"group_id": group, "topics": topics, "member_id": None, "member_epoch": -1}
    response = await serving.request(FETCH, version, {**one, "groups": [one], "require_stable": True})
    return response.groups[0] if version >= 8 else response


async def offset_delete(serving: Serving, version: int) -> None:
    await serving.topic()
    await serving.topic("u")
    member = Member(serving)
    await member.alone()
    await member.commit(5)
    await member.commit(6, topic="u")
    topics = [{"name": name, "partitions": [{"partition_index": 0}]} for name in ("t", "u", "deleted")]
    deleted = await serving.request(47, version, {"group_id": "g", "topics": topics})
    assert deleted.error_code == 0
    codes = [topic.partitions[0].error_code for topic in deleted.topics]
    assert codes == [SUBSCRIBED, 0, UNKNOWN_TOPIC]
    assert (await committed(serving)).committed_offset == 5
    assert (await committed(serving, topic="u")).committed_offset == -1
    assert (await serving.request(47, version, {"group_id": "missing", "topics": []})).error_code == NOT_FOUND
    connect = Member(serving, "connect")
    connect.protocol_type = "connect"
    await connect.alone()
    assert (await serving.request(47, version, {"group_id": "connect", "topics": []})).error_code == NON_EMPTY


async def list_groups(serving: Serving, version: int) -> None:
    await serving.topic()
    await Member(serving).alone()
    await Member(serving, "simple").commit(5)
    listed = (await serving.request(16, version, {"states_filter": [], "types_filter": []})).groups
    by_id = {group.group_id: group for group in listed}
    assert set(by_id) == {"g", "simple"}
    assert (by_id["g"].protocol_type, by_id["simple"].protocol_type) == ("consumer", "")
    if version >= 4:
        assert (by_id["g"].group_state, by_id["simple"].group_state) == ("Stable", "Empty")
        stable = await serving.request(16, version, {"states_filter": ["stable"], "types_filter": []})
        assert [group.group_id for group in stable.groups] == ["g"]
    if version >= 5:
        assert by_id["g"].group_type == "classic"
        assert (await serving.request(16, version, {"types_filter": ["consumer"], "states_filter": []})).groups == ()


async def describe_groups(serving: Serving, version: int) -> None:
    member = Member(serving)
    await member.alone()
    body = {"groups": ["g", "missing"], "include_authorized_operations": True}
    existing, missing = (await serving.request(15, version, body)).groups
    assert (existing.error_code, existing.group_state, existing.protocol_type, existing.protocol_data) == (
        0,
        "Stable",
        "consumer",
        "range",
    )
    (one,) = existing.members
    assert (one.member_id, one.client_id, one.member_assignment) == (member.id, "tester", b"all")
    assert one.member_metadata == subscription("t")
    assert missing.group_state == "Dead"
    assert missing.error_code == (NOT_FOUND if version >= 6 else 0)
    if version >= 3:
        assert existing.authorized_operations == 0b101001000


async def delete_groups(serving: Serving, version: int) -> None:
    await serving.topic()
    member = Member(serving)
    await member.alone()
    await member.commit(5)
    await Member(serving, "simple").commit(5)
    deleted = (await serving.request(42, version, {"groups_names": ["g", "simple", "missing"]})).results
    assert [one.error_code for one in deleted] == [NON_EMPTY, 0, NOT_FOUND]
    assert (await committed(serving, "simple")).committed_offset == -1
    assert (await committed(serving)).committed_offset == 5
    await member.leave()
    assert (await serving.request(42, version, {"groups_names": ["g"]})).results[0].error_code == 0
    assert (await serving.request(16, 5, {"states_filter": [], "types_filter": []})).groups == ()


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
