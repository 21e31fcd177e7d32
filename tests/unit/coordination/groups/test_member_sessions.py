"""Sessions that continue on the next coordinator: when they expire, whatever the stored times are."""

import pytest

from lakestream.coordination.groups.member_sessions import MemberSessions
from lakestream.coordination.groups.messages import AnyGroup, ConsumerGroup, Group, GroupLimits
from lakestream.metadata.group_records import ClassicSide, ConsumerGroupRecord, ConsumerMember, GroupRecord, Member

LIMITS = GroupLimits(session_ms=45_000)
NOW, STORE_NOW = 1_000_000, 9_000_000
CLASSIC = Group(record=GroupRecord(members={"m": Member("m", None, "", "", 45_000, 1, ())}))
CONSUMER = ConsumerGroup(record=ConsumerGroupRecord(members={"m": ConsumerMember()}))
UPGRADED = ConsumerGroup(record=ConsumerGroupRecord(members={"m": ConsumerMember(classic=ClassicSide(45_000, ()))}))


@pytest.mark.parametrize("group", [CLASSIC, CONSUMER, UPGRADED])
@pytest.mark.parametrize(
    ("silent_ms", "left_ms"),
    [
        (0, 45_000),
        (10_000, 35_000),
        (22_500, 22_500),
        (44_000, 22_500),
        (10**12, 22_500),
        (-60_000, 45_000),
        (-(10**12), 45_000),
    ],
)
def test_session_ends_between_half_and_a_whole_session_after_a_takeover(
    group: AnyGroup, silent_ms: int, left_ms: int
) -> None:
    sessions = MemberSessions(LIMITS, {"m": STORE_NOW - silent_ms}, STORE_NOW, NOW)
    assert sessions.expirations_ms(group, NOW) == {"m": NOW + left_ms}
    assert sessions.expirations_ms(group, NOW + 1_000) == {"m": NOW + left_ms}
    sessions.heard("m", NOW + 2_000)
    assert sessions.expirations_ms(group, NOW + 3_000) == {"m": NOW + 47_000}


def test_whole_session_when_no_time_is_stored() -> None:
    """An older broker wrote the group."""
    sessions = MemberSessions(LIMITS, {"other": STORE_NOW - 40_000}, STORE_NOW, NOW)
    assert sessions.expirations_ms(CLASSIC, NOW) == {"m": NOW + 45_000}


def test_stored_time_is_that_of_the_last_heartbeat_also_after_several_takeovers() -> None:
    sessions = MemberSessions(LIMITS, {}, STORE_NOW, NOW)
    sessions.heard("m", NOW)
    assert sessions.to_store(CLASSIC, STORE_NOW + 20_000, NOW + 20_000) == {"m": STORE_NOW}
    sessions = MemberSessions(LIMITS, {"m": STORE_NOW}, STORE_NOW + 30_000, NOW)  # its loop has another clock
    assert sessions.to_store(CLASSIC, STORE_NOW + 50_000, NOW + 20_000) == {"m": STORE_NOW}


def test_member_whose_request_waits_is_stored_as_heard_now() -> None:
    waiting = Group(record=CLASSIC.record, joining={"m": 1})
    sessions = MemberSessions(LIMITS, {"m": STORE_NOW - 40_000}, STORE_NOW, NOW)
    assert sessions.expirations_ms(waiting, NOW) == {}
    assert sessions.to_store(waiting, STORE_NOW + 5_000, NOW + 5_000) == {"m": STORE_NOW + 5_000}


def test_times_are_stored_every_half_of_the_shortest_session() -> None:
    members = {one: Member(one, None, "", "", ms, 1, ()) for one, ms in {"long": 60_000, "short": 10_000}.items()}
    group = Group(record=GroupRecord(members=members))
    sessions = MemberSessions(LIMITS, {}, STORE_NOW, NOW)
    assert sessions.store_due_ms(Group()) is None
    assert sessions.store_due_ms(group) == NOW + 5_000
    sessions.to_store(group, STORE_NOW, NOW + 5_000)
    assert sessions.store_due_ms(group) == NOW + 10_000


def test_suspension_extends_the_bound_after_a_takeover() -> None:
    sessions = MemberSessions(LIMITS, {"m": STORE_NOW - 44_000}, STORE_NOW, NOW)
    sessions.extend(7_000)
    assert sessions.expirations_ms(CLASSIC, NOW) == {"m": NOW + 29_500}
