"""Groups of the new protocol as clients see them, in bytes: bad words, epochs, static members, both protocols in one
group, and what administrators are told."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from tests.unit.data.brokers import World
from tests.unit.protocol.kafka.consumer_group_scenarios import (
    BEAT,
    DESCRIBE,
    FENCED_EPOCH,
    INVALID_REQUEST,
    JOINING,
    NO_ASSIGNOR,
    NO_PATTERN,
    NOT_FOUND,
    STALE_EPOCH,
    UNKNOWN_MEMBER,
    UNRELEASED,
    NewMember,
)
from tests.unit.protocol.kafka.group_scenarios import (
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
from tests.unit.protocol.kafka.serving import Serving

from lakestream.coordination.groups.embedded import read_assignment

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
    return (await serving.ask(DESCRIBE, 1, body)).groups[0]


# ── bad input ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "code"),
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
        ({"member_id": "there", "member_epoch": 9}, FENCED_EPOCH),
        ({"instance_id": "one"}, UNRELEASED),
        ({"instance_id": "one", "member_epoch": 1}, FENCED),
        ({"instance_id": "two", "member_epoch": 1}, UNKNOWN_MEMBER),
        ({"instance_id": "one", "member_epoch": -1}, FENCED),
        ({"member_epoch": -1}, UNKNOWN_MEMBER),
    ],
)
async def test_bad_words_change_nothing(serving: Serving, words: dict[str, Any], code: int) -> None:
    await serving.topic()
    await NewMember(serving, id_="there", instance="one").join()
    before = await serving.services.groups.describe("g")
    refused = await NewMember(serving, id_="new").say(**{**JOINING, **words})
    assert refused.error_code == code
    assert refused.error_message
    assert await serving.services.groups.describe("g") is before
    assert (await serving.services.groups.names())[0].name == "g"


async def test_bad_words_make_no_group(serving: Serving) -> None:
    assert (await NewMember(serving).join(server_assignor="magic")).error_code == NO_ASSIGNOR
    assert await serving.services.groups.describe("g") is None


# ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def commit(member: NewMember, offset: int, version: int = 9, **more: Any) -> int:
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
    answer = await member.serving.ask(COMMIT, version, body)
    return int(answer.topics[0].partitions[0].error_code)


async def read(member: NewMember, **more: Any) -> int:
    wanted = {
        "group_id": member.group,
        "member_id": member.id,
        "member_epoch": member.epoch,
        "topics": [{"name": "t", "partition_indexes": [0]}],
        **more,
    }
    return int((await member.serving.ask(FETCH, 9, {"groups": [wanted]})).groups[0].error_code)


async def test_members_commit_and_read_with_their_epoch(serving: Serving) -> None:
    await serving.topic()
    member = NewMember(serving)
    await member.join()
    assert await commit(member, 7) == 0
    assert (await committed(serving)).committed_offset == 7
    assert await read(member) == 0
    assert await commit(member, 8, version=8) == 35, "it has to know of epochs"
    assert await commit(member, 8, member_id="", generation_id_or_member_epoch=-1) == UNKNOWN_MEMBER
    for change, code in (("member_epoch", STALE_EPOCH), ("member_id", UNKNOWN_MEMBER)):
        wrong = {"member_epoch": 5} if change == "member_epoch" else {"member_id": "x"}
        assert await read(member, **wrong) == code
    assert await commit(member, 8, generation_id_or_member_epoch=5) == STALE_EPOCH
    assert await commit(member, 8, member_id="x") == UNKNOWN_MEMBER
    assert await read(NewMember(serving, "nothing")) == 0, "a group that is none has no offsets"
    assert (await committed(serving)).committed_offset == 7


async def test_what_members_read_is_not_deleted(serving: Serving) -> None:
    await serving.topic()
    member = NewMember(serving)
    await member.join()
    await commit(member, 7)
    body = {"group_id": "g", "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]}
    assert (await serving.ask(DELETE_OFFSETS, 0, body)).topics[0].partitions[0].error_code == SUBSCRIBED
    assert (await serving.ask(DELETE, 2, {"groups_names": ["g"]})).results[0].error_code == NON_EMPTY
    await member.leave()
    assert (await serving.ask(DELETE, 2, {"groups_names": ["g"]})).results[0].error_code == 0
    assert (await committed(serving)).committed_offset == -1
    assert (await described(serving)).error_code == NOT_FOUND


# ── what administrators see ──────────────────────────────────────────────────────────────────────────────────────────


async def listed(serving: Serving, **filters: Any) -> dict[str, tuple[str, str, str]]:
    answer = await serving.ask(LIST, 5, {"states_filter": [], "types_filter": [], **filters})
    return {one.group_id: (one.group_type, one.group_state, one.protocol_type) for one in answer.groups}


async def test_groups_of_both_protocols_are_listed(serving: Serving) -> None:
    await serving.topic()
    await Member(serving, "old").alone()
    member = NewMember(serving, "new")
    await member.join()
    assert await listed(serving) == {
        "old": ("classic", "Stable", "consumer"),
        "new": ("consumer", "Stable", "consumer"),
    }
    assert set(await listed(serving, types_filter=["Consumer"])) == {"new"}
    assert set(await listed(serving, types_filter=["classic"])) == {"old"}
    await NewMember(serving, "new", "n").join()
    assert (await listed(serving))["new"][1] == "Reconciling"
    assert set(await listed(serving, states_filter=["reconciling"])) == {"new"}
    for one in (member, NewMember(serving, "new", "n")):
        await one.leave()
    assert (await listed(serving))["new"][1] == "Empty"


async def test_each_protocol_has_a_description_of_its_own(serving: Serving) -> None:
    await serving.topic()
    await Member(serving, "old").alone()
    await NewMember(serving, "new").join()
    assert (await described(serving, "old")).error_code == NOT_FOUND
    body = {"groups": ["new"], "include_authorized_operations": False}
    refused = (await serving.ask(DESCRIBE_CLASSIC, 6, body)).groups[0]
    assert (refused.error_code, refused.group_state) == (NOT_FOUND, "Dead")
    assert (await serving.ask(DESCRIBE_CLASSIC, 5, body)).groups[0].error_code == 0


# ── both in one group ────────────────────────────────────────────────────────────────────────────────────────────────


def shares(synced: Any) -> set[int]:
    return {number for _, number in read_assignment(synced.assignment)}


async def test_a_group_is_upgraded_and_goes_back(serving: Serving) -> None:
    topic_id = UUID(hex=await serving.topic(partitions=4))
    old = Member(serving)
    await old.alone_with("t", range(4))
    new = NewMember(serving)
    assert (await new.join()).error_code == 0
    assert (new.epoch, new.owned) == (2, {}), "the other one has all still"
    group = await described(serving)
    assert {one.member_id: one.member_type for one in group.members} == {"m": 1, old.id: 0}
    assert await old.heartbeat() == REBALANCING
    assert (await old.join()).generation_id == 2, "it gives back everything before it joins: so it is there at once"
    share = shares(await old.sync())
    assert len(share) == 2
    assert await old.heartbeat() == 0
    await new.say()
    assert set(new.owned[topic_id]) | share == {0, 1, 2, 3}
    assert (await old.commit(3)).error_code == 0
    await new.leave()
    assert (await described(serving)).error_code == NOT_FOUND
    assert await old.heartbeat() == REBALANCING
    assert (await old.join()).leader == old.id, "the classic protocol again"
    assert (await old.sync({old.id: b"all"})).assignment == b"all"
    assert (await listed(serving))["g"][:2] == ("classic", "Stable")


async def test_an_empty_group_takes_whoever_comes(serving: Serving) -> None:
    await serving.topic()
    old = Member(serving)
    await old.alone()
    await old.leave()
    new = NewMember(serving)
    assert (await new.join()).error_code == 0
    assert new.epoch > old.generation
    await new.leave()
    again = Member(serving)
    await again.alone()
    assert again.generation > new.epoch
    assert (await listed(serving))["g"][0] == "classic"


async def test_poisoned_members_keep_their_group(serving: Serving) -> None:
    await serving.topic()
    for protocols, assignment in (
        ([{"name": "range", "metadata": b"\0\3\x7f\xff\xff\xff"}], b""),
        (None, b"poison"),
    ):
        old = Member(serving, f"g{assignment!r}")
        old.protocols = protocols or old.protocols
        await old.join()
        await old.sync({old.id: assignment})
        before = await serving.services.groups.describe(old.group)
        refused = await NewMember(serving, old.group).join()
        assert refused.error_code == NOT_FOUND
        assert "cannot be upgraded" in refused.error_message
        assert await serving.services.groups.describe(old.group) is before
        assert await old.heartbeat() == 0


async def test_groups_that_are_not_of_consumers_stay_what_they_are(serving: Serving) -> None:
    old = Member(serving)
    old.protocol_type = "connect"
    await old.alone()
    assert (await NewMember(serving).join()).error_code == NOT_FOUND
    assert await old.heartbeat() == 0


@pytest.mark.parametrize(
    ("protocol_type", "metadata"), [("consumer", b"\0\1\0\0"), ("connect", b"\0\0\0\0\0\0\xff\xff\xff\xff")]
)
async def test_who_cannot_be_understood_does_not_come_in(serving: Serving, protocol_type: str, metadata: bytes) -> None:
    await serving.topic()
    await NewMember(serving).join()
    before = await serving.services.groups.describe("g")
    old = Member(serving)
    old.protocol_type, old.protocols = protocol_type, [{"name": "range", "metadata": metadata}]
    assert (await old.join()).error_code == INCONSISTENT
    assert await serving.services.groups.describe("g") is before


async def test_features_say_so(serving: Serving) -> None:
    answer = await serving.ask(18, 4, {"client_software_name": "me", "client_software_version": "1.0"})
    finalized = {one.name: one.max_version_level for one in answer.finalized_features}
    assert finalized == {"group.version": 1, "transaction.version": 2}
    assert {one.api_key for one in answer.api_keys} >= {BEAT, DESCRIBE}


@pytest.mark.parametrize("name", [None, ""])
async def test_topics_are_found_by_the_ids_that_members_are_given(serving: Serving, name: str | None) -> None:
    """Java asks with an empty name, not with none."""
    topic_id = UUID(hex=await serving.topic())
    wanted = [{"topic_id": topic_id, "name": name}, {"topic_id": UUID(int=5), "name": name}]
    found, gone = (await serving.ask(3, 13, {"topics": wanted, "allow_auto_topic_creation": False})).topics
    assert (found.error_code, found.name, len(found.partitions)) == (0, "t", 2)
    assert (gone.error_code, gone.topic_id) == (100, UUID(int=5))
