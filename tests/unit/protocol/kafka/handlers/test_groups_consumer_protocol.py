"""Tests of groups of the consumer protocol: invalid heartbeats, epochs, mixed groups, admin requests."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from tests.harness.kafka.consumer_group_scenarios import (
    BEAT,
    DESCRIBE,
    FENCED_EPOCH,
    INVALID_REQUEST,
    JOIN_FIELDS,
    NO_ASSIGNOR,
    NO_PATTERN,
    NOT_FOUND,
    STALE_EPOCH,
    UNKNOWN_MEMBER,
    UNRELEASED,
    ConsumerMember,
)
from tests.harness.kafka.group_scenarios import (
    COMMIT,
    FENCED,
    FETCH,
    INCONSISTENT,
    INVALID_GROUP,
    NON_EMPTY,
    REBALANCING,
    SUBSCRIBED,
    Member,
    committed,
)
from tests.harness.kafka.kafka_handlers import Serving
from tests.harness.log.brokers import World

from lakestream.coordination.groups.consumer_protocol import read_assignment

LIST, DESCRIBE_CLASSIC, DELETE, DELETE_OFFSETS = 16, 15, 42, 47


@pytest_asyncio.fixture
async def serving() -> AsyncIterator[Serving]:
    world = World()
    serving = await Serving.open(world)
    yield serving
    await serving.close()
    await world.close()


async def described(serving: Serving, group: str = "g") -> Any:
    body = {"group_ids": [group], "include_authorized_operations": False}
    return (await serving.request(DESCRIBE, 1, body)).groups[0]


# ── invalid input ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"member_id": ""}, INVALID_REQUEST),
        ({"group_id": ""}, INVALID_REQUEST),
        ({"group_id": "g" * 1001}, INVALID_GROUP),
        ({"instance_id": ""}, INVALID_REQUEST),
        ({"instance_id": "i" * 1001}, INVALID_REQUEST),
        ({"member_id": "é" * 501}, INVALID_REQUEST),
        ({"rack_id": "r" * 1001}, INVALID_REQUEST),
        ({"rack_id": ""}, INVALID_REQUEST),
        ({"rebalance_timeout": -1}, INVALID_REQUEST),
        ({"rebalance_timeout": -2}, INVALID_REQUEST),
        ({"topic_partitions": None}, INVALID_REQUEST),
        ({"topic_partitions": [{"topic_id": UUID(int=1), "partitions": [0]}]}, INVALID_REQUEST),
        ({"subscribed_topic_names": None}, INVALID_REQUEST),
        ({"member_epoch": -3}, INVALID_REQUEST),
        ({"member_epoch": -2}, INVALID_REQUEST),
        ({"server_assignor": "magic"}, NO_ASSIGNOR),
        ({"subscribed_topic_regex": "(", "subscribed_topic_names": None}, NO_PATTERN),
        ({"subscribed_topic_regex": "x" * 10_000}, NO_PATTERN),
        ({"member_epoch": 9}, UNKNOWN_MEMBER),
        ({"member_id": "existing", "member_epoch": 9}, FENCED_EPOCH),
        ({"instance_id": "one"}, UNRELEASED),
        ({"instance_id": "one", "member_epoch": 1}, FENCED),
        ({"instance_id": "two", "member_epoch": 1}, UNKNOWN_MEMBER),
        ({"instance_id": "one", "member_epoch": -1}, FENCED),
        ({"member_epoch": -1}, UNKNOWN_MEMBER),
    ],
)
async def test_group_does_not_change_when_a_heartbeat_is_invalid(
    serving: Serving, fields: dict[str, Any], code: int
) -> None:
    await serving.topic()
    await ConsumerMember(serving, id_="existing", instance="one").join()
    before = await serving.services.groups.describe("g")
    rejected = await ConsumerMember(serving, id_="new").heartbeat(**{**JOIN_FIELDS, **fields})
    assert rejected.error_code == code
    assert rejected.error_message
    assert await serving.services.groups.describe("g") is before
    assert (await serving.services.groups.names())[0].name == "g"


async def test_group_is_not_created_when_a_heartbeat_is_invalid(serving: Serving) -> None:
    assert (await ConsumerMember(serving).join(server_assignor="magic")).error_code == NO_ASSIGNOR
    assert await serving.services.groups.describe("g") is None


# ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def commit(member: ConsumerMember, offset: int, version: int = 9, **more: Any) -> int:
    one = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": 0, "committed_metadata": ""}
    body = {
        "group_id": member.group,
        "generation_id_or_member_epoch": member.epoch,
        "member_id": member.id,
        "group_instance_id": None,
        "retention_time": -1,
        "topics": [{"name": "t", "partitions": [one]}],
        **more,
    }
    response = await member.serving.request(COMMIT, version, body)
    return int(response.topics[0].partitions[0].error_code)


async def fetch_offsets(member: ConsumerMember, **more: Any) -> int:
    requested = {
        "group_id": member.group,
        "member_id": member.id,
        "member_epoch": member.epoch,
        "topics": [{"name": "t", "partition_indexes": [0]}],
        **more,
    }
    return int((await member.serving.request(FETCH, 9, {"groups": [requested]})).groups[0].error_code)


async def test_commit_and_fetch_of_offsets_require_the_member_epoch(serving: Serving) -> None:
    await serving.topic()
    member = ConsumerMember(serving)
    await member.join()
    assert await commit(member, 7) == 0
    assert (await committed(serving)).committed_offset == 7
    assert await fetch_offsets(member) == 0
    assert await commit(member, 8, version=8) == 35, "this version has no member epochs"
    assert await commit(member, 8, member_id="", generation_id_or_member_epoch=-1) == UNKNOWN_MEMBER
    for change, code in (("member_epoch", STALE_EPOCH), ("member_id", UNKNOWN_MEMBER)):
        invalid = {"member_epoch": 5} if change == "member_epoch" else {"member_id": "x"}
        assert await fetch_offsets(member, **invalid) == code
    assert await commit(member, 8, generation_id_or_member_epoch=5) == STALE_EPOCH
    assert await commit(member, 8, member_id="x") == UNKNOWN_MEMBER
    assert await fetch_offsets(ConsumerMember(serving, "missing")) == 0, "a group that does not exist has no offsets"
    assert (await committed(serving)).committed_offset == 7


async def test_groups_and_offsets_are_not_deleted_while_members_are_subscribed(serving: Serving) -> None:
    await serving.topic()
    member = ConsumerMember(serving)
    await member.join()
    await commit(member, 7)
    body = {"group_id": "g", "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]}
    assert (await serving.request(DELETE_OFFSETS, 0, body)).topics[0].partitions[0].error_code == SUBSCRIBED
    assert (await serving.request(DELETE, 2, {"groups_names": ["g"]})).results[0].error_code == NON_EMPTY
    await member.leave()
    assert (await serving.request(DELETE, 2, {"groups_names": ["g"]})).results[0].error_code == 0
    assert (await committed(serving)).committed_offset == -1
    assert (await described(serving)).error_code == NOT_FOUND


# ── admin requests ───────────────────────────────────────────────────────────────────────────────────────────────────


async def listed(serving: Serving, **filters: Any) -> dict[str, tuple[str, str, str]]:
    response = await serving.request(LIST, 5, {"states_filter": [], "types_filter": [], **filters})
    return {one.group_id: (one.group_type, one.group_state, one.protocol_type) for one in response.groups}


async def test_list_groups_returns_groups_of_both_protocols(serving: Serving) -> None:
    await serving.topic()
    await Member(serving, "old").alone()
    member = ConsumerMember(serving, "new")
    await member.join()
    assert await listed(serving) == {
        "old": ("classic", "Stable", "consumer"),
        "new": ("consumer", "Stable", "consumer"),
    }
    assert set(await listed(serving, types_filter=["Consumer"])) == {"new"}
    assert set(await listed(serving, types_filter=["classic"])) == {"old"}
    await ConsumerMember(serving, "new", "n").join()
    assert (await listed(serving))["new"][1] == "Reconciling"
    assert set(await listed(serving, states_filter=["reconciling"])) == {"new"}
    for one in (member, ConsumerMember(serving, "new", "n")):
        await one.leave()
    assert (await listed(serving))["new"][1] == "Empty"


async def test_describe_requests_return_only_groups_of_their_protocol(serving: Serving) -> None:
    await serving.topic()
    await Member(serving, "old").alone()
    await ConsumerMember(serving, "new").join()
    assert (await described(serving, "old")).error_code == NOT_FOUND
    body = {"groups": ["new"], "include_authorized_operations": False}
    rejected = (await serving.request(DESCRIBE_CLASSIC, 6, body)).groups[0]
    assert (rejected.error_code, rejected.group_state) == (NOT_FOUND, "Dead")
    assert (await serving.request(DESCRIBE_CLASSIC, 5, body)).groups[0].error_code == 0


# ── mixed groups ─────────────────────────────────────────────────────────────────────────────────────────────────────


def assigned_numbers(synced: Any) -> set[int]:
    return {number for _, number in read_assignment(synced.assignment)}


async def test_group_is_upgraded_and_downgraded_when_members_join_and_leave(serving: Serving) -> None:
    topic_id = UUID(hex=await serving.topic(partitions=4))
    old = Member(serving)
    await old.alone_with("t", range(4))
    new = ConsumerMember(serving)
    assert (await new.join()).error_code == 0
    assert (new.epoch, new.owned) == (2, {}), "the classic member still has all partitions"
    group = await described(serving)
    assert {one.member_id: one.member_type for one in group.members} == {"m": 1, old.id: 0}
    assert await old.heartbeat() == REBALANCING
    assert (await old.join()).generation_id == 2, (
        "it revokes all partitions before it rejoins, so the join does not wait"
    )
    share = assigned_numbers(await old.sync())
    assert len(share) == 2
    assert await old.heartbeat() == 0
    await new.heartbeat()
    assert set(new.owned[topic_id]) | share == {0, 1, 2, 3}
    assert (await old.commit(3)).error_code == 0
    await new.leave()
    assert (await described(serving)).error_code == NOT_FOUND
    assert await old.heartbeat() == REBALANCING
    assert (await old.join()).leader == old.id, "the group is downgraded to the classic protocol"
    assert (await old.sync({old.id: b"all"})).assignment == b"all"
    assert (await listed(serving))["g"][:2] == ("classic", "Stable")


async def test_empty_group_accepts_members_of_either_protocol(serving: Serving) -> None:
    await serving.topic()
    old = Member(serving)
    await old.alone()
    await old.leave()
    new = ConsumerMember(serving)
    assert (await new.join()).error_code == 0
    assert new.epoch > old.generation
    await new.leave()
    rejoined = Member(serving)
    await rejoined.alone()
    assert rejoined.generation > new.epoch
    assert (await listed(serving))["g"][0] == "classic"


async def test_group_is_not_upgraded_when_its_metadata_is_malformed(serving: Serving) -> None:
    await serving.topic()
    for protocols, assignment in (
        ([{"name": "range", "metadata": b"\0\3\x7f\xff\xff\xff"}], b""),
        (None, b"malformed"),
    ):
        old = Member(serving, f"g{assignment!r}")
        old.protocols = protocols or old.protocols
        await old.join()
        await old.sync({old.id: assignment})
        before = await serving.services.groups.describe(old.group)
        rejected = await ConsumerMember(serving, old.group).join()
        assert rejected.error_code == NOT_FOUND
        assert "cannot be upgraded" in rejected.error_message
        assert await serving.services.groups.describe(old.group) is before
        assert await old.heartbeat() == 0


async def test_group_is_not_upgraded_when_it_has_another_protocol_type(serving: Serving) -> None:
    old = Member(serving)
    old.protocol_type = "connect"
    await old.alone()
    assert (await ConsumerMember(serving).join()).error_code == NOT_FOUND
    assert await old.heartbeat() == 0


@pytest.mark.parametrize(
    ("protocol_type", "metadata"), [("consumer", b"\0\1\0\0"), ("connect", b"\0\0\0\0\0\0\xff\xff\xff\xff")]
)
async def test_classic_member_is_rejected_when_its_metadata_is_malformed(
    serving: Serving, protocol_type: str, metadata: bytes
) -> None:
    await serving.topic()
    await ConsumerMember(serving).join()
    before = await serving.services.groups.describe("g")
    old = Member(serving)
    old.protocol_type, old.protocols = protocol_type, [{"name": "range", "metadata": metadata}]
    assert (await old.join()).error_code == INCONSISTENT
    assert await serving.services.groups.describe("g") is before


async def test_api_versions_contains_the_consumer_protocol(serving: Serving) -> None:
    response = await serving.request(18, 4, {"client_software_name": "me", "client_software_version": "1.0"})
    finalized = {one.name: one.max_version_level for one in response.finalized_features}
    assert finalized == {"group.version": 1, "transaction.version": 2}
    assert {one.api_key for one in response.api_keys} >= {BEAT, DESCRIBE}


@pytest.mark.parametrize("name", [None, ""])
async def test_metadata_returns_topics_when_requested_by_id(serving: Serving, name: str | None) -> None:
    """Java sends an empty name instead of null."""
    topic_id = UUID(hex=await serving.topic())
    requested = [{"topic_id": topic_id, "name": name}, {"topic_id": UUID(int=5), "name": name}]
    existing, missing = (await serving.request(3, 13, {"topics": requested, "allow_auto_topic_creation": False})).topics
    assert (existing.error_code, existing.name, len(existing.partitions)) == (0, "t", 2)
    assert (missing.error_code, missing.topic_id) == (100, UUID(int=5))
