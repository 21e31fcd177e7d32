"""Transitions of groups of the classic protocol."""

from typing import Any

import pytest
from tests.harness.groups.classic_group import OPENING_MS, REBALANCE_MS, SESSION_MS, ClassicGroupDriver, protocols

from lakestream.coordination.groups import classic_group
from lakestream.coordination.groups.errors import GroupError
from lakestream.coordination.groups.messages import (
    GroupLimits,
    JoinResult,
    LeavingMember,
    MemberSubscription,
    SyncRequest,
    SyncResult,
)
from lakestream.metadata.groups import GroupState


@pytest.fixture
def driver() -> ClassicGroupDriver:
    return ClassicGroupDriver()


# ── join ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_new_member_joins_again_with_the_id_in_the_response(driver: ClassicGroupDriver) -> None:
    reply = driver.joined(driver.send_join())
    assert reply == JoinResult(GroupError.MEMBER_ID_REQUIRED, "m1")
    assert driver.state is GroupState.EMPTY
    ticket = driver.send_join("m1")
    assert ticket not in driver.results
    driver.wait(OPENING_MS)
    assert driver.joined(ticket) == JoinResult(
        None, "m1", 1, "consumer", "range", "m1", (MemberSubscription("m1", None, b"m"),), skip_assignment=False
    )
    assert driver.record.state is GroupState.COMPLETING


def test_unused_member_id_expires(driver: ClassicGroupDriver) -> None:
    driver.send_join()
    driver.wait(SESSION_MS)
    assert driver.joined(driver.send_join("m1")).error is GroupError.UNKNOWN_MEMBER_ID
    assert not driver.group.pending
    assert driver.stored == 0


def test_empty_group_delays_its_first_rebalance(driver: ClassicGroupDriver) -> None:
    first = driver.join_new()
    driver.wait(OPENING_MS - 1)
    second = driver.join_new()
    driver.wait(1)
    assert first not in driver.results, "a member joined during the delay: it is extended"
    driver.wait(OPENING_MS)
    assert driver.joined(first).generation == driver.joined(second).generation == 1
    assert [one.member_id for one in driver.joined(first).members] == ["m1", "m2"]
    assert driver.joined(second).members == ()


def test_initial_delay_is_limited_by_the_rebalance_timeout(driver: ClassicGroupDriver) -> None:
    first = driver.join_new(rebalance_ms=1_200)
    for _ in range(5):
        driver.wait(400)
        driver.join_new(rebalance_ms=1_200)
    assert driver.joined(first).generation == 1


def test_first_member_gets_a_generation_immediately_without_initial_delay() -> None:
    driver = ClassicGroupDriver(limits=GroupLimits(initial_delay_ms=0))
    assert driver.joined(driver.join_new()).generation == 1


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_session_timeout_out_of_range_is_rejected(driver: ClassicGroupDriver, session_ms: int) -> None:
    rejected = driver.joined(driver.join_new(session_ms=session_ms))
    assert rejected.error is GroupError.INVALID_SESSION_TIMEOUT
    assert not driver.record.members


def test_join_is_rejected_without_a_common_protocol(driver: ClassicGroupDriver) -> None:
    driver.stable(1)
    before = driver.group
    for request in ({"protocols": protocols("other")}, {"protocols": ()}, {"protocol_type": "connect"}):
        assert driver.joined(driver.join_new(**request)).error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert driver.group is before, "the group is unchanged"
    empty = ClassicGroupDriver()
    for request in ({"protocols": ()}, {"protocol_type": ""}):
        assert empty.joined(empty.join_new(**request)).error is GroupError.INCONSISTENT_GROUP_PROTOCOL


def test_protocol_with_most_votes_is_chosen(driver: ClassicGroupDriver) -> None:
    tickets = [
        driver.join_new(protocols=protocols("only-mine", "a", "b")),
        driver.join_new(protocols=protocols("b", "a")),
        driver.join_new(protocols=protocols("b", "a", "c")),
    ]
    driver.wait(OPENING_MS)
    driver.wait(OPENING_MS)
    assert {driver.joined(ticket).protocol for ticket in tickets} == {"b"}


def test_join_is_rejected_when_the_group_reaches_a_limit() -> None:
    driver = ClassicGroupDriver(limits=GroupLimits(initial_delay_ms=0, members_max=2, bytes_max=100))
    driver.join_new()
    pending = driver.joined(driver.send_join()).member_id
    assert driver.joined(driver.send_join()).error is GroupError.GROUP_MAX_SIZE_REACHED
    assert driver.joined(driver.join_new()).error is GroupError.GROUP_MAX_SIZE_REACHED
    large = protocols("range", metadata=b"x" * 100)
    assert driver.joined(driver.send_join(pending, protocols=large)).error is GroupError.GROUP_MAX_SIZE_REACHED
    assert driver.send_join(pending) not in driver.results, "the id that was given out counts as a member"


@pytest.mark.parametrize(
    "words", [{"instance_id": "x" * 100}, {"client_id": "x" * 100}, {"protocols": protocols("x" * 100, "range")}]
)
def test_all_stored_fields_of_a_member_count_towards_the_size_limit(words: dict[str, Any]) -> None:
    driver = ClassicGroupDriver(limits=GroupLimits(initial_delay_ms=0, bytes_max=100))
    before = driver.group
    assert driver.joined(driver.join_new(**words)).error is GroupError.GROUP_MAX_SIZE_REACHED
    assert driver.group is before


# ── rebalancing ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_new_member_starts_a_rebalance(driver: ClassicGroupDriver) -> None:
    leader, follower = driver.stable(2)
    stored = driver.stored
    new = driver.join_new()
    assert driver.state is GroupState.PREPARING
    assert driver.heartbeat(leader) is driver.heartbeat(follower) is GroupError.REBALANCE_IN_PROGRESS
    assert driver.stored == stored, "nothing is stored until all have joined"
    repeated = [driver.send_join(leader), driver.send_join(follower)]
    assert [driver.joined(ticket).generation for ticket in (new, *repeated)] == [2, 2, 2]
    assert driver.joined(repeated[0]).leader == leader
    assert driver.stored == stored + 1


def test_member_is_removed_when_it_does_not_rejoin_in_time(driver: ClassicGroupDriver) -> None:
    leader, follower = driver.stable(2)
    new = driver.join_new()
    driver.send_join(follower)
    driver.wait(REBALANCE_MS - 1)
    assert new not in driver.results
    driver.wait(1)
    assert driver.joined(new).generation == 2
    assert driver.record.leader == follower, "the leader was removed: another member leads"
    assert driver.heartbeat(leader) is GroupError.UNKNOWN_MEMBER_ID


def test_follower_gets_the_same_result_when_it_rejoins_unchanged(driver: ClassicGroupDriver) -> None:
    leader, follower = driver.stable(2)
    assert driver.joined(driver.send_join(follower)) == JoinResult(None, follower, 1, "consumer", "range", leader)
    assert driver.state is GroupState.STABLE


def test_repeated_join_gets_the_same_result(driver: ClassicGroupDriver) -> None:
    ticket = driver.join_new()
    driver.wait(OPENING_MS)
    missed = driver.joined(ticket)
    assert driver.joined(driver.send_join(missed.member_id)) == missed
    assert driver.state is GroupState.COMPLETING


def test_leader_starts_a_rebalance_when_it_rejoins(driver: ClassicGroupDriver) -> None:
    leader, _ = driver.stable(2)
    assert driver.send_join(leader) not in driver.results
    assert driver.state is GroupState.PREPARING


def test_member_starts_a_rebalance_when_its_metadata_changes(driver: ClassicGroupDriver) -> None:
    _, follower = driver.stable(2)
    driver.send_join(follower, protocols=protocols("range", metadata=b"another topic"))
    assert driver.state is GroupState.PREPARING


def test_first_join_is_answered_when_the_member_joins_twice(driver: ClassicGroupDriver) -> None:
    _, follower = driver.stable(2)
    driver.join_new()
    first = driver.send_join(follower)
    driver.send_join(follower)
    assert driver.joined(first).error is GroupError.REBALANCE_IN_PROGRESS


def test_rebalance_waits_for_a_new_member_id_that_has_not_joined(driver: ClassicGroupDriver) -> None:
    leader, follower = driver.stable(2)
    new = driver.join_new()
    pending = driver.joined(driver.send_join()).member_id
    driver.send_join(leader)
    driver.send_join(follower)
    assert new not in driver.results
    driver.send_join(pending)
    assert driver.joined(new).generation == 2
    assert pending in driver.record.members


# ── sync ────────────────────────────────────────────────────────────────────────────────────────────────────────


def completing(driver: ClassicGroupDriver, count: int = 2) -> list[str]:
    tickets = [driver.join_new() for _ in range(count)]
    while driver.state is GroupState.PREPARING:
        driver.wait(OPENING_MS)
    return [driver.joined(ticket).member_id for ticket in tickets]


def test_members_get_their_assignments_when_the_leader_has_synced(driver: ClassicGroupDriver) -> None:
    leader, follower = completing(driver)
    waiting = driver.send_sync(follower)
    assert waiting not in driver.results
    stored = driver.stored
    leader_ticket = driver.send_sync(leader, {"m2": "second", "unknown": "x"})
    assert driver.synced(waiting) == SyncResult(None, follower, "consumer", "range", b"second")
    assert driver.synced(leader_ticket).assignment == b"", "a member that the leader left out gets an empty assignment"
    assert driver.stored == stored + 1
    assert driver.synced(driver.send_sync(follower)).assignment == b"second", "a repeated sync gets the same result"
    assert driver.group.deadline_ms is None


def test_sync_errors_are_those_of_kafka(driver: ClassicGroupDriver) -> None:
    leader, follower = completing(driver)
    assert driver.synced(driver.send_sync("unknown")).error is GroupError.UNKNOWN_MEMBER_ID
    assert driver.synced(driver.send_sync(leader, generation=0)).error is GroupError.ILLEGAL_GENERATION
    for protocol_type, protocol in (("connect", None), (None, "other")):
        request = SyncRequest(99, leader, None, 1, protocol_type, protocol, {})
        (reply,) = classic_group.sync(driver.group, request, driver.now, driver.limits).replies
        assert reply.result.error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    request = SyncRequest(99, leader, "instance", 1, None, None, {})
    (reply,) = classic_group.sync(driver.group, request, driver.now, driver.limits).replies
    assert reply.result.error is GroupError.UNKNOWN_MEMBER_ID
    driver.send_sync(leader)
    driver.join_new()
    assert driver.synced(driver.send_sync(follower)).error is GroupError.REBALANCE_IN_PROGRESS


def test_assignments_that_are_too_large_are_rejected() -> None:
    driver = ClassicGroupDriver(limits=GroupLimits(initial_delay_ms=0, bytes_max=100))
    leader = driver.joined(driver.join_new()).member_id
    before = driver.group
    assert driver.synced(driver.send_sync(leader, {leader: "x" * 200})).error is GroupError.UNKNOWN_SERVER_ERROR
    assert driver.group is before


def test_waiting_sync_must_rejoin_when_a_member_joins(driver: ClassicGroupDriver) -> None:
    _, follower = completing(driver)
    waiting = driver.send_sync(follower)
    driver.join_new()
    assert driver.synced(waiting).error is GroupError.REBALANCE_IN_PROGRESS


def test_member_is_removed_when_it_does_not_sync_in_time(driver: ClassicGroupDriver) -> None:
    leader, silent = completing(driver)
    driver.send_sync(leader)
    driver.wait(REBALANCE_MS)
    assert silent not in driver.record.members
    assert driver.state is GroupState.PREPARING
    assert driver.heartbeat(leader) is GroupError.REBALANCE_IN_PROGRESS


def test_leader_is_removed_when_it_does_not_assign_in_time(driver: ClassicGroupDriver) -> None:
    leader, follower = completing(driver)
    waiting = driver.send_sync(follower)
    driver.wait(REBALANCE_MS)
    assert driver.synced(waiting).error is GroupError.REBALANCE_IN_PROGRESS
    assert leader not in driver.record.members
    assert driver.joined(driver.send_join(follower)).leader == follower


# ── going ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rebalance_starts_when_a_member_leaves(driver: ClassicGroupDriver) -> None:
    leader, follower = driver.stable(2)
    stored = driver.stored
    assert driver.leave(leader) == (None,)
    assert driver.stored == stored + 1, "the next coordinator must not load it as a member"
    assert (driver.state, driver.record.leader) == (GroupState.PREPARING, follower)
    assert driver.joined(driver.send_join(follower)).generation == 2


def test_group_is_empty_when_the_last_member_leaves(driver: ClassicGroupDriver) -> None:
    one, other = driver.stable(2)
    assert driver.leave(one, "unknown", other) == (None, GroupError.UNKNOWN_MEMBER_ID, None)
    assert (driver.state, driver.record.generation, driver.record.leader) == (GroupState.EMPTY, 2, None)
    assert driver.record.protocol_type == "consumer"
    assert driver.record.since_ms == driver.now.wall_ms
    assert driver.group.size == 0
    assert not driver.group.supported
    driver.join_new(protocol_type="connect", protocols=protocols("other"))
    assert driver.record.protocol_type == "connect"


def test_waiting_request_of_a_leaving_member_is_answered(driver: ClassicGroupDriver) -> None:
    leader, _ = driver.stable(2)
    new = driver.join_new()
    driver.leave(driver.record.members[next(reversed(driver.record.members))].member_id)
    assert driver.joined(new).error is GroupError.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(leader) is GroupError.REBALANCE_IN_PROGRESS


def test_leave_succeeds_with_a_new_member_id_that_has_not_joined(driver: ClassicGroupDriver) -> None:
    pending = driver.joined(driver.send_join()).member_id
    assert driver.leave(pending) == (None,)
    assert driver.stored == 0
    assert driver.joined(driver.send_join(pending)).error is GroupError.UNKNOWN_MEMBER_ID


def test_member_is_removed_when_its_session_expires(driver: ClassicGroupDriver) -> None:
    leader, follower = driver.stable(2)
    driver.expire(follower)
    assert list(driver.record.members) == [leader]
    assert driver.state is GroupState.PREPARING
    driver.expire(leader)
    assert driver.record.state is GroupState.EMPTY


def test_member_with_a_waiting_request_does_not_expire(driver: ClassicGroupDriver) -> None:
    leader, follower = driver.stable(2)
    driver.join_new()
    driver.send_join(follower)
    driver.expire(follower)
    assert follower in driver.record.members
    driver.expire(leader)
    assert driver.state is GroupState.COMPLETING, "all remaining members have joined"


def test_heartbeat_errors_are_those_of_kafka(driver: ClassicGroupDriver) -> None:
    leader, follower = completing(driver)
    assert driver.heartbeat(follower) is None, (
        "a member that has joined may send heartbeats before it has its assignment"
    )
    assert driver.heartbeat(leader, generation=0) is GroupError.ILLEGAL_GENERATION
    assert driver.heartbeat("unknown") is GroupError.UNKNOWN_MEMBER_ID
    assert ClassicGroupDriver().heartbeat("unknown") is GroupError.UNKNOWN_MEMBER_ID


# ── static members ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_static_member_rejoins_without_a_rebalance(driver: ClassicGroupDriver) -> None:
    leader, follower = driver.stable(1)[0], ""
    follower = driver.joined(rejoin_all(driver, leader, instance="i")).member_id
    stored = driver.stored
    ticket = driver.join_new(instance="i")
    rejoined = driver.joined(ticket)
    assert (rejoined.error, rejoined.generation, rejoined.leader) == (None, 2, leader)
    assert rejoined.member_id != follower
    assert driver.state is GroupState.STABLE
    assert driver.stored == stored + 1
    assert driver.synced(driver.send_sync(rejoined.member_id)).assignment == b"yours"
    assert driver.heartbeat(follower, instance="i") is GroupError.FENCED_INSTANCE_ID
    assert driver.heartbeat(rejoined.member_id, instance="i") is None
    assert driver.leave(LeavingMember(follower, "i")) == (GroupError.FENCED_INSTANCE_ID,)


def rejoin_all(driver: ClassicGroupDriver, leader: str, instance: str) -> int:
    """Adds a static member and completes the rebalance."""
    ticket = driver.join_new(instance=instance)
    driver.send_join(leader)
    member = driver.joined(ticket).member_id
    driver.send_sync(leader, {member: "yours"})
    driver.send_sync(member)
    assert driver.state is GroupState.STABLE
    return ticket


@pytest.mark.parametrize("supports_skipping_assignment", [True, False])
def test_static_leader_rejoins_and_assigns_nothing(
    driver: ClassicGroupDriver, supports_skipping_assignment: bool
) -> None:
    (old,) = driver.stable(1, instance="i")
    rejoined = driver.joined(driver.join_new(instance="i", supports_skipping_assignment=supports_skipping_assignment))
    assert (rejoined.error, rejoined.generation, driver.record.leader) == (None, 1, rejoined.member_id)
    if supports_skipping_assignment:
        assert rejoined.skip_assignment
        assert rejoined.leader == rejoined.member_id
        assert len(rejoined.members) == 1
    else:  # it would assign: the response names another leader
        assert (rejoined.leader, rejoined.members, rejoined.skip_assignment) == (old, (), False)


def test_static_member_starts_a_rebalance_when_it_rejoins_with_another_protocol(driver: ClassicGroupDriver) -> None:
    driver.stable(1, instance="i", protocols=protocols("a", "b"))
    rejoined = driver.joined(driver.join_new(instance="i", protocols=protocols("b", "a")))
    assert (rejoined.generation, rejoined.protocol) == (2, "b")


def test_older_member_is_fenced_when_two_have_the_same_instance_id(driver: ClassicGroupDriver) -> None:
    first = driver.join_new(instance="i")
    second = driver.join_new(instance="i")
    assert driver.joined(first).error is GroupError.FENCED_INSTANCE_ID
    driver.wait(OPENING_MS)
    assert driver.joined(second).generation == 1
    third = driver.join_new(instance="i")
    assert driver.joined(third).generation == 2, "the leader assigns to the old id: all must join again"
    old = driver.joined(second).member_id
    assert driver.joined(driver.send_join(old, instance="i")).error is GroupError.FENCED_INSTANCE_ID
    assert driver.joined(driver.send_join(old, instance="other")).error is GroupError.UNKNOWN_MEMBER_ID


def test_static_member_may_be_absent_during_a_rebalance(driver: ClassicGroupDriver) -> None:
    (away,) = driver.stable(1, instance="i")
    new = driver.join_new()
    driver.wait(REBALANCE_MS)
    assert away in driver.record.members
    assert driver.joined(new).leader == driver.joined(new).member_id, "a member that is not away leads"
    assert {one.member_id for one in driver.joined(new).members} == {away, driver.joined(new).member_id}


def test_group_waits_for_its_static_members_when_all_are_away(driver: ClassicGroupDriver) -> None:
    members = [driver.join_new(instance="a"), driver.join_new(instance="b"), driver.join_new()]
    driver.wait(OPENING_MS)
    driver.wait(OPENING_MS)
    dynamic = driver.joined(members[2]).member_id
    driver.leave(dynamic)
    driver.wait(REBALANCE_MS)
    assert (driver.state, driver.record.generation) == (GroupState.PREPARING, 1)
    rejoined = driver.send_join(driver.joined(members[0]).member_id, instance="a")
    driver.wait(REBALANCE_MS)
    assert driver.joined(rejoined).generation == 2


def test_administrator_removes_a_static_member_by_its_instance(driver: ClassicGroupDriver) -> None:
    driver.stable(1, instance="i")
    assert driver.leave(LeavingMember("", "other"), LeavingMember("", "i")) == (GroupError.UNKNOWN_MEMBER_ID, None)
    assert driver.state is GroupState.EMPTY


# ── the next coordinator ─────────────────────────────────────────────────────────────────────────────────────────────


def test_next_coordinator_continues_a_stable_group(driver: ClassicGroupDriver) -> None:
    leader, follower = driver.stable(2)
    after = driver.reload()
    assert after.heartbeat(leader) is after.heartbeat(follower) is None
    assert after.synced(after.send_sync(follower)).assignment == f"of {follower}".encode()
    assert (after.state, after.record.generation, after.stored) == (GroupState.STABLE, 1, driver.stored)
    assert after.group.supported == driver.group.supported
    assert after.group.size == driver.group.size


def test_next_coordinator_continues_a_rebalance(driver: ClassicGroupDriver) -> None:
    leader, follower = completing(driver)
    after = driver.reload()
    waiting = after.send_sync(follower)
    assert after.joined(after.send_join(leader)).members != (), "its response may have been lost"
    after.send_sync(leader, {follower: "yours"})
    assert after.synced(waiting).assignment == b"yours"
    silent = driver.reload()
    silent.wait(REBALANCE_MS)
    assert silent.state is GroupState.EMPTY, "members that never sync are removed"


def test_member_that_left_is_unknown_to_the_next_coordinator(driver: ClassicGroupDriver) -> None:
    leader, follower = driver.stable(2)
    driver.leave(leader)
    after = driver.reload()
    assert after.heartbeat(follower) is GroupError.REBALANCE_IN_PROGRESS
    assert after.joined(after.send_join(follower)).generation == 2


def test_deadlines_are_extended_after_a_suspension(driver: ClassicGroupDriver) -> None:
    driver.send_join()
    driver.join_new()
    later = classic_group.extend_deadlines(driver.group, 5_000)
    assert later.deadline_ms == (driver.group.deadline_ms or 0) + 5_000
    assert later.pending == {member: until + 5_000 for member, until in driver.group.pending.items()}
    assert classic_group.extend_deadlines(later, 0) == later
