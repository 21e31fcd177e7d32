"""Which members may commit and fetch offsets, and when offsets expire."""

import pytest

from lakestream.coordination.groups.consumer_protocol import subscribed_topics, topics_of
from lakestream.coordination.groups.errors import GroupError
from lakestream.coordination.groups.offset_rules import (
    Committer,
    commit_error,
    expired,
    offset_delete_error,
    offset_fetch_error,
    transaction_commit_error,
)
from lakestream.metadata.group_records import (
    AnyGroupRecord,
    ClassicSide,
    Committed,
    ConsumerGroupRecord,
    ConsumerMember,
    GroupRecord,
    GroupState,
    Member,
    MemberProtocol,
    TopicShape,
)
from lakestream.model import PartitionId

DAY = 24 * 60 * 60 * 1000
NOW, KEPT = 100 * DAY, 7 * DAY
P, Q, DELETED = PartitionId("aa", 0), PartitionId("bb", 0), PartitionId("cc", 0)
NAMES = {"aa": "a", "bb": "b"}


def subscription(*topics: str) -> bytes:
    names = b"".join(len(topic.encode()).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\3" + len(topics).to_bytes(4, "big") + names + b"\0\0\0\0"


def group(state: GroupState, metadata: bytes = b"", kind: str = "consumer", since_ms: int = 0) -> GroupRecord:
    member = Member("m", "i", "client", "/host", 10, 20, (MemberProtocol("range", metadata),))
    return GroupRecord(
        state=state,
        generation=3,
        protocol_type=kind,
        protocol="range",
        members={} if state is GroupState.EMPTY else {"m": member},
        since_ms=since_ms,
    )


SIMPLE = Committer()
MEMBER = Committer("m", None, 3)


@pytest.mark.parametrize(
    ("record", "committer", "error"),
    [
        (None, SIMPLE, None),
        (None, MEMBER, GroupError.GROUP_ID_NOT_FOUND),
        (None, MEMBER._replace(supports_group_id_not_found=False), GroupError.ILLEGAL_GENERATION),
        (group(GroupState.EMPTY), SIMPLE, None),
        (group(GroupState.EMPTY), MEMBER, GroupError.UNKNOWN_MEMBER_ID),
        (group(GroupState.STABLE), SIMPLE, GroupError.UNKNOWN_MEMBER_ID),
        (group(GroupState.STABLE), MEMBER, None),
        (group(GroupState.STABLE), MEMBER._replace(instance_id="i"), None),
        (group(GroupState.STABLE), MEMBER._replace(instance_id="i", member_id="old"), GroupError.FENCED_INSTANCE_ID),
        (group(GroupState.STABLE), MEMBER._replace(instance_id="j"), GroupError.UNKNOWN_MEMBER_ID),
        (group(GroupState.STABLE), MEMBER._replace(generation=2), GroupError.ILLEGAL_GENERATION),
        (group(GroupState.STABLE), MEMBER._replace(generation=-1), GroupError.ILLEGAL_GENERATION),
        (group(GroupState.STABLE), MEMBER._replace(member_id="x"), GroupError.UNKNOWN_MEMBER_ID),
        (group(GroupState.PREPARING), MEMBER, None),
        (group(GroupState.COMPLETING), MEMBER, GroupError.REBALANCE_IN_PROGRESS),
    ],
)
def test_commit_is_checked_by_member_and_generation(
    record: GroupRecord | None, committer: Committer, error: GroupError | None
) -> None:
    assert commit_error(record, committer) is error


@pytest.mark.parametrize(
    ("record", "committer", "error"),
    [
        (None, SIMPLE, None),
        (None, MEMBER, GroupError.ILLEGAL_GENERATION),
        (group(GroupState.STABLE), SIMPLE, None),
        (group(GroupState.STABLE), MEMBER, None),
        (group(GroupState.STABLE), MEMBER._replace(generation=2), GroupError.ILLEGAL_GENERATION),
        (group(GroupState.STABLE), MEMBER._replace(member_id="x"), GroupError.UNKNOWN_MEMBER_ID),
        (group(GroupState.STABLE), MEMBER._replace(instance_id="i", member_id="old"), GroupError.FENCED_INSTANCE_ID),
        (group(GroupState.COMPLETING), MEMBER, None),
    ],
)
def test_transactional_commit_is_checked_by_member_and_generation(
    record: GroupRecord | None, committer: Committer, error: GroupError | None
) -> None:
    """Any other error code would be fatal for a producer."""
    assert transaction_commit_error(record, committer) is error


NEW = ConsumerGroupRecord(
    epoch=5,
    members={
        "new": ConsumerMember(epoch=4, names=("a", "later")),
        "old": ConsumerMember(epoch=3, classic=ClassicSide(10, ())),
    },
    topics={"b": TopicShape("bb", 1)},
)
EMPTY = ConsumerGroupRecord(epoch=6)


@pytest.mark.parametrize(
    ("record", "committer", "error"),
    [
        (EMPTY, SIMPLE, None),
        (EMPTY, Committer("new", None, 4), GroupError.UNKNOWN_MEMBER_ID),
        (NEW, SIMPLE, GroupError.UNKNOWN_MEMBER_ID),
        (NEW, Committer("new", None, 4), None),
        (NEW, Committer("new", None, 3), GroupError.STALE_MEMBER_EPOCH),
        (NEW, Committer("new", None, 5), GroupError.STALE_MEMBER_EPOCH),
        (NEW, Committer("new", None, -1), GroupError.STALE_MEMBER_EPOCH),
        (NEW, Committer("new", None, 4, supports_group_id_not_found=False), GroupError.UNSUPPORTED_VERSION),
        (NEW, Committer("old", None, 3, supports_group_id_not_found=False), None),
        (NEW, Committer("old", None, 4), GroupError.ILLEGAL_GENERATION),
        (NEW, Committer("x", None, 4), GroupError.UNKNOWN_MEMBER_ID),
    ],
)
def test_commit_is_checked_by_member_and_epoch_in_the_consumer_protocol(
    record: ConsumerGroupRecord, committer: Committer, error: GroupError | None
) -> None:
    assert commit_error(record, committer) is error


def test_offset_fetch_needs_the_current_epoch() -> None:
    assert offset_fetch_error(NEW, "new", 4) is None
    assert offset_fetch_error(NEW, "new", 3) is GroupError.STALE_MEMBER_EPOCH
    assert offset_fetch_error(NEW, "old", 4) is GroupError.ILLEGAL_GENERATION
    assert offset_fetch_error(NEW, "x", 4) is GroupError.UNKNOWN_MEMBER_ID
    assert offset_fetch_error(group(GroupState.STABLE), "x", 4) is None, "the classic protocol has no such check"


def test_subscribed_topics_of_consumer_protocol_members() -> None:
    assert subscribed_topics(NEW) == frozenset({"a", "later", "b"})
    assert offset_delete_error(NEW) is None
    assert expired_partitions(NEW, a=0, b=0, deleted=NOW) == [DELETED]
    assert expired_partitions(ConsumerGroupRecord(since_ms=NOW - KEPT), a=0) == [P]
    assert expired_partitions(ConsumerGroupRecord(since_ms=NOW - KEPT + 1), a=0) == []


def expired_partitions(record: AnyGroupRecord, **committed_ms: int) -> list[PartitionId]:
    partitions = {"a": P, "b": Q, "deleted": DELETED}
    offsets = {partitions[name]: Committed(1, 0, "", ms, 1) for name, ms in committed_ms.items()}
    return expired(record, offsets, NAMES.get, NOW, KEPT)


def test_offsets_of_an_empty_group_expire_some_time_after_its_last_member() -> None:
    assert expired_partitions(group(GroupState.EMPTY, since_ms=NOW - KEPT), a=0) == [P]
    assert expired_partitions(group(GroupState.EMPTY, since_ms=NOW - KEPT + 1), a=0) == []
    assert expired_partitions(group(GroupState.EMPTY, since_ms=0), a=NOW - DAY) == [], "a client still commits to it"


def test_offsets_expire_by_their_own_age_when_the_group_never_had_members() -> None:
    simple = group(GroupState.EMPTY, kind="", since_ms=NOW)
    assert expired_partitions(simple, a=NOW - KEPT, b=NOW - KEPT + 1) == [P]


def test_offsets_of_subscribed_topics_do_not_expire() -> None:
    record = group(GroupState.STABLE, subscription("a"))
    assert expired_partitions(record, a=0, b=0) == [Q]
    assert expired_partitions(record, a=0, b=NOW - DAY) == []


@pytest.mark.parametrize(("metadata", "kind"), [(b"poison", "consumer"), (subscription("a"), "connect")])
def test_no_offset_expires_when_subscriptions_cannot_be_read(metadata: bytes, kind: str) -> None:
    assert expired_partitions(group(GroupState.STABLE, metadata, kind), a=0, b=0) == []


def test_offsets_of_a_deleted_topic_expire_immediately() -> None:
    assert expired_partitions(group(GroupState.STABLE, b"poison"), a=NOW, deleted=NOW) == [DELETED]
    assert expired_partitions(group(GroupState.EMPTY, since_ms=NOW), deleted=NOW) == [DELETED]


def test_retention_time_of_an_old_client_applies() -> None:
    offsets = {P: Committed(1, 0, "", NOW - 10, 1, NOW), Q: Committed(1, 0, "", 0, 1, NOW + 1)}
    assert expired(group(GroupState.EMPTY, since_ms=0), offsets, NAMES.get, NOW, KEPT) == [P]


def test_offsets_can_be_deleted_when_subscriptions_are_readable() -> None:
    assert offset_delete_error(group(GroupState.EMPTY, kind="connect")) is None
    assert offset_delete_error(group(GroupState.STABLE, subscription("a"))) is None
    assert offset_delete_error(group(GroupState.STABLE, b"poison")) is GroupError.NON_EMPTY_GROUP
    assert offset_delete_error(group(GroupState.STABLE, subscription("a"), "connect")) is GroupError.NON_EMPTY_GROUP


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\0",
        b"\0\1\x7f\xff\xff\xff",
        b"\0\1\0\0\0\1\x7f\xffab",
        b"\0\1\0\0\0\1\xff\xff",
        b"\0\1\0\0\0\1\0\1\xff",
    ],
)
def test_invalid_subscription_has_no_topics(metadata: bytes) -> None:
    assert topics_of(metadata) is None


def test_topics_of_a_subscription() -> None:
    assert topics_of(subscription("a", "bö")) == frozenset(["a", "bö"])
    assert topics_of(subscription()) == frozenset()
    assert subscribed_topics(group(GroupState.EMPTY)) == frozenset()
    assert subscribed_topics(group(GroupState.STABLE, subscription("a"))) == frozenset(["a"])
