"""Who may commit offsets, and when they are forgotten."""

import pytest

from lakestream.coordination.groups.offsets import (
    Committer,
    commit_refusal,
    deletion_refusal,
    expired,
    fetch_refusal,
    transaction_refusal,
)
from lakestream.coordination.groups.refusals import Refusal
from lakestream.coordination.groups.subscription import subscribed_topics, topics_of
from lakestream.metadata.group_records import (
    AnyGroup,
    ClassicSide,
    Committed,
    ConsumerGroupRecord,
    ConsumerMember,
    GroupRecord,
    Member,
    Protocol,
    State,
    TopicShape,
)
from lakestream.model import PartitionId

DAY = 24 * 60 * 60 * 1000
NOW, KEPT = 100 * DAY, 7 * DAY
P, Q, GONE = PartitionId("aa", 0), PartitionId("bb", 0), PartitionId("cc", 0)
NAMES = {"aa": "a", "bb": "b"}


def subscription(*topics: str) -> bytes:
    names = b"".join(len(topic.encode()).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\3" + len(topics).to_bytes(4, "big") + names + b"\0\0\0\0"


def group(state: State, metadata: bytes = b"", kind: str = "consumer", since_ms: int = 0) -> GroupRecord:
    member = Member("m", "i", "client", "/host", 10, 20, (Protocol("range", metadata),))
    return GroupRecord(
        state=state,
        generation=3,
        protocol_type=kind,
        protocol="range",
        members={} if state is State.EMPTY else {"m": member},
        since_ms=since_ms,
    )


SIMPLE = Committer()
MEMBER = Committer("m", None, 3)


@pytest.mark.parametrize(
    ("record", "who", "refusal"),
    [
        (None, SIMPLE, None),
        (None, MEMBER, Refusal.GROUP_ID_NOT_FOUND),
        (None, MEMBER._replace(knows_missing_groups=False), Refusal.ILLEGAL_GENERATION),
        (group(State.EMPTY), SIMPLE, None),
        (group(State.EMPTY), MEMBER, Refusal.UNKNOWN_MEMBER_ID),
        (group(State.STABLE), SIMPLE, Refusal.UNKNOWN_MEMBER_ID),
        (group(State.STABLE), MEMBER, None),
        (group(State.STABLE), MEMBER._replace(instance_id="i"), None),
        (group(State.STABLE), MEMBER._replace(instance_id="i", member_id="old"), Refusal.FENCED_INSTANCE_ID),
        (group(State.STABLE), MEMBER._replace(instance_id="j"), Refusal.UNKNOWN_MEMBER_ID),
        (group(State.STABLE), MEMBER._replace(generation=2), Refusal.ILLEGAL_GENERATION),
        (group(State.STABLE), MEMBER._replace(generation=-1), Refusal.ILLEGAL_GENERATION),
        (group(State.STABLE), MEMBER._replace(member_id="x"), Refusal.UNKNOWN_MEMBER_ID),
        (group(State.PREPARING), MEMBER, None),
        (group(State.COMPLETING), MEMBER, Refusal.REBALANCE_IN_PROGRESS),
    ],
)
def test_who_may_commit(record: GroupRecord | None, who: Committer, refusal: Refusal | None) -> None:
    assert commit_refusal(record, who) is refusal


@pytest.mark.parametrize(
    ("record", "who", "refusal"),
    [
        (None, SIMPLE, None),
        (None, MEMBER, Refusal.ILLEGAL_GENERATION),
        (group(State.STABLE), SIMPLE, None),
        (group(State.STABLE), MEMBER, None),
        (group(State.STABLE), MEMBER._replace(generation=2), Refusal.ILLEGAL_GENERATION),
        (group(State.STABLE), MEMBER._replace(member_id="x"), Refusal.UNKNOWN_MEMBER_ID),
        (group(State.STABLE), MEMBER._replace(instance_id="i", member_id="old"), Refusal.FENCED_INSTANCE_ID),
        (group(State.COMPLETING), MEMBER, None),
    ],
)
def test_who_may_commit_with_a_transaction(record: GroupRecord | None, who: Committer, refusal: Refusal | None) -> None:
    """Another refusal than these would be the end of a producer."""
    assert transaction_refusal(record, who) is refusal


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
    ("record", "who", "refusal"),
    [
        (EMPTY, SIMPLE, None),
        (EMPTY, Committer("new", None, 4), Refusal.UNKNOWN_MEMBER_ID),
        (NEW, SIMPLE, Refusal.UNKNOWN_MEMBER_ID),
        (NEW, Committer("new", None, 4), None),
        (NEW, Committer("new", None, 3), Refusal.STALE_MEMBER_EPOCH),
        (NEW, Committer("new", None, 5), Refusal.STALE_MEMBER_EPOCH),
        (NEW, Committer("new", None, -1), Refusal.STALE_MEMBER_EPOCH),
        (NEW, Committer("new", None, 4, knows_missing_groups=False), Refusal.UNSUPPORTED_VERSION),
        (NEW, Committer("old", None, 3, knows_missing_groups=False), None),
        (NEW, Committer("old", None, 4), Refusal.ILLEGAL_GENERATION),
        (NEW, Committer("x", None, 4), Refusal.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_may_commit_in_the_new_protocol(
    record: ConsumerGroupRecord, who: Committer, refusal: Refusal | None
) -> None:
    assert commit_refusal(record, who) is refusal


def test_who_may_read_what_was_committed() -> None:
    assert fetch_refusal(NEW, "new", 4) is None
    assert fetch_refusal(NEW, "new", 3) is Refusal.STALE_MEMBER_EPOCH
    assert fetch_refusal(NEW, "old", 4) is Refusal.ILLEGAL_GENERATION
    assert fetch_refusal(NEW, "x", 4) is Refusal.UNKNOWN_MEMBER_ID
    assert fetch_refusal(group(State.STABLE), "x", 4) is None, "the classic protocol does not ask"


def test_members_of_the_new_protocol_say_what_they_read() -> None:
    assert subscribed_topics(NEW) == frozenset({"a", "later", "b"})
    assert deletion_refusal(NEW) is None
    assert forgotten(NEW, a=0, b=0, gone=NOW) == [GONE]
    assert forgotten(ConsumerGroupRecord(since_ms=NOW - KEPT), a=0) == [P]
    assert forgotten(ConsumerGroupRecord(since_ms=NOW - KEPT + 1), a=0) == []


def forgotten(record: AnyGroup, **committed_ms: int) -> list[PartitionId]:
    places = {"a": P, "b": Q, "gone": GONE}
    offsets = {places[name]: Committed(1, 0, "", ms, 1) for name, ms in committed_ms.items()}
    return expired(record, offsets, NAMES.get, NOW, KEPT)


def test_offsets_of_an_empty_group_go_some_time_after_its_last_member() -> None:
    assert forgotten(group(State.EMPTY, since_ms=NOW - KEPT), a=0) == [P]
    assert forgotten(group(State.EMPTY, since_ms=NOW - KEPT + 1), a=0) == []
    assert forgotten(group(State.EMPTY, since_ms=0), a=NOW - DAY) == [], "somebody commits to it still"


def test_offsets_of_those_who_never_were_members_go_by_their_own_age() -> None:
    simple = group(State.EMPTY, kind="", since_ms=NOW)
    assert forgotten(simple, a=NOW - KEPT, b=NOW - KEPT + 1) == [P]


def test_members_keep_what_they_read() -> None:
    record = group(State.STABLE, subscription("a"))
    assert forgotten(record, a=0, b=0) == [Q]
    assert forgotten(record, a=0, b=NOW - DAY) == []


@pytest.mark.parametrize(("metadata", "kind"), [(b"poison", "consumer"), (subscription("a"), "connect")])
def test_of_whom_nobody_knows_what_it_reads_nothing_goes(metadata: bytes, kind: str) -> None:
    assert forgotten(group(State.STABLE, metadata, kind), a=0, b=0) == []


def test_what_belongs_to_a_topic_that_is_gone_goes_at_once() -> None:
    assert forgotten(group(State.STABLE, b"poison"), a=NOW, gone=NOW) == [GONE]
    assert forgotten(group(State.EMPTY, since_ms=NOW), gone=NOW) == [GONE]


def test_a_client_of_old_may_have_said_how_long() -> None:
    offsets = {P: Committed(1, 0, "", NOW - 10, 1, NOW), Q: Committed(1, 0, "", 0, 1, NOW + 1)}
    assert expired(group(State.EMPTY, since_ms=0), offsets, NAMES.get, NOW, KEPT) == [P]


def test_offsets_may_be_deleted_where_it_is_known_what_is_read() -> None:
    assert deletion_refusal(group(State.EMPTY, kind="connect")) is None
    assert deletion_refusal(group(State.STABLE, subscription("a"))) is None
    assert deletion_refusal(group(State.STABLE, b"poison")) is Refusal.NON_EMPTY_GROUP
    assert deletion_refusal(group(State.STABLE, subscription("a"), "connect")) is Refusal.NON_EMPTY_GROUP


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
def test_a_poisoned_subscription_says_nothing(metadata: bytes) -> None:
    assert topics_of(metadata) is None


def test_a_subscription() -> None:
    assert topics_of(subscription("a", "bö")) == frozenset(["a", "bö"])
    assert topics_of(subscription()) == frozenset()
    assert subscribed_topics(group(State.EMPTY)) == frozenset()
    assert subscribed_topics(group(State.STABLE, subscription("a"))) == frozenset(["a"])
