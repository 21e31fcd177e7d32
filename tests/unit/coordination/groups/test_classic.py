"""The rules of the classic protocol, one by one."""

from typing import Any

import pytest
from tests.unit.coordination.groups.classic_group import OPENING_MS, REBALANCE_MS, SESSION_MS, Talk, protocols

from lakestream.coordination.groups import classic
from lakestream.coordination.groups.refusals import Refusal
from lakestream.coordination.groups.values import Joined, Leaver, Present, Rules, Sync, Synced
from lakestream.metadata.groups import State


@pytest.fixture
def talk() -> Talk:
    return Talk()


# ── coming ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_member_is_told_its_id_and_comes_again_with_it(talk: Talk) -> None:
    told = talk.joined(talk.ask_join())
    assert told == Joined(Refusal.MEMBER_ID_REQUIRED, "m1")
    assert talk.state is State.EMPTY
    ticket = talk.ask_join("m1")
    assert ticket not in talk.answers
    talk.wait(OPENING_MS)
    assert talk.joined(ticket) == Joined(
        None, "m1", 1, "consumer", "range", "m1", (Present("m1", None, b"m"),), skip_assignment=False
    )
    assert talk.record.state is State.COMPLETING


def test_an_id_that_nobody_comes_with_is_forgotten(talk: Talk) -> None:
    talk.ask_join()
    talk.wait(SESSION_MS)
    assert talk.joined(talk.ask_join("m1")).refusal is Refusal.UNKNOWN_MEMBER_ID
    assert not talk.group.pending
    assert talk.stored == 0


def test_an_empty_group_waits_a_little_for_more_members(talk: Talk) -> None:
    first = talk.join_new()
    talk.wait(OPENING_MS - 1)
    second = talk.join_new()
    talk.wait(1)
    assert first not in talk.answers, "somebody came while it waited: it waits once more"
    talk.wait(OPENING_MS)
    assert talk.joined(first).generation == talk.joined(second).generation == 1
    assert [one.member_id for one in talk.joined(first).members] == ["m1", "m2"]
    assert talk.joined(second).members == ()


def test_it_does_not_wait_longer_than_its_members_do(talk: Talk) -> None:
    first = talk.join_new(rebalance_ms=1_200)
    for _ in range(5):
        talk.wait(400)
        talk.join_new(rebalance_ms=1_200)
    assert talk.joined(first).generation == 1


def test_without_a_wait_the_first_member_begins_at_once() -> None:
    talk = Talk(rules=Rules(opening_ms=0))
    assert talk.joined(talk.join_new()).generation == 1


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_a_session_is_neither_too_short_nor_too_long(talk: Talk, session_ms: int) -> None:
    refused = talk.joined(talk.join_new(session_ms=session_ms))
    assert refused.refusal is Refusal.INVALID_SESSION_TIMEOUT
    assert not talk.record.members


def test_who_has_no_protocol_in_common_stays_out(talk: Talk) -> None:
    talk.stable(1)
    before = talk.group
    for wish in ({"protocols": protocols("other")}, {"protocols": ()}, {"protocol_type": "connect"}):
        assert talk.joined(talk.join_new(**wish)).refusal is Refusal.INCONSISTENT_GROUP_PROTOCOL
    assert talk.group is before, "the state is untouched"
    empty = Talk()
    for wish in ({"protocols": ()}, {"protocol_type": ""}):
        assert empty.joined(empty.join_new(**wish)).refusal is Refusal.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_is_voted_for_among_those_that_all_know(talk: Talk) -> None:
    tickets = [
        talk.join_new(protocols=protocols("only-mine", "a", "b")),
        talk.join_new(protocols=protocols("b", "a")),
        talk.join_new(protocols=protocols("b", "a", "c")),
    ]
    talk.wait(OPENING_MS)
    talk.wait(OPENING_MS)
    assert {talk.joined(ticket).protocol for ticket in tickets} == {"b"}


def test_only_so_many_members_and_bytes() -> None:
    talk = Talk(rules=Rules(opening_ms=0, members_max=2, bytes_max=100))
    talk.join_new()
    pending = talk.joined(talk.ask_join()).member_id
    assert talk.joined(talk.ask_join()).refusal is Refusal.GROUP_MAX_SIZE_REACHED
    assert talk.joined(talk.join_new()).refusal is Refusal.GROUP_MAX_SIZE_REACHED
    large = protocols("range", metadata=b"x" * 100)
    assert talk.joined(talk.ask_join(pending, protocols=large)).refusal is Refusal.GROUP_MAX_SIZE_REACHED
    assert talk.ask_join(pending) not in talk.answers, "its place is kept"


@pytest.mark.parametrize(
    "words", [{"instance_id": "x" * 100}, {"client_id": "x" * 100}, {"protocols": protocols("x" * 100, "range")}]
)
def test_all_that_is_stored_of_a_member_counts(words: dict[str, Any]) -> None:
    talk = Talk(rules=Rules(opening_ms=0, bytes_max=100))
    before = talk.group
    assert talk.joined(talk.join_new(**words)).refusal is Refusal.GROUP_MAX_SIZE_REACHED
    assert talk.group is before


# ── rebalancing ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_member_makes_all_join_again(talk: Talk) -> None:
    leader, follower = talk.stable(2)
    stored = talk.stored
    new = talk.join_new()
    assert talk.state is State.PREPARING
    assert talk.beat(leader) is talk.beat(follower) is Refusal.REBALANCE_IN_PROGRESS
    assert talk.stored == stored, "until all have joined, nothing is worth a write"
    again = [talk.ask_join(leader), talk.ask_join(follower)]
    assert [talk.joined(ticket).generation for ticket in (new, *again)] == [2, 2, 2]
    assert talk.joined(again[0]).leader == leader
    assert talk.stored == stored + 1


def test_who_does_not_join_again_in_time_is_out(talk: Talk) -> None:
    leader, follower = talk.stable(2)
    new = talk.join_new()
    talk.ask_join(follower)
    talk.wait(REBALANCE_MS - 1)
    assert new not in talk.answers
    talk.wait(1)
    assert talk.joined(new).generation == 2
    assert talk.record.leader == follower, "the leader is gone: another one leads"
    assert talk.beat(leader) is Refusal.UNKNOWN_MEMBER_ID


def test_a_follower_that_joins_again_with_nothing_new_gets_its_answer_again(talk: Talk) -> None:
    leader, follower = talk.stable(2)
    assert talk.joined(talk.ask_join(follower)) == Joined(None, follower, 1, "consumer", "range", leader)
    assert talk.state is State.STABLE


def test_a_member_that_missed_its_answer_gets_it_again(talk: Talk) -> None:
    ticket = talk.join_new()
    talk.wait(OPENING_MS)
    missed = talk.joined(ticket)
    assert talk.joined(talk.ask_join(missed.member_id)) == missed
    assert talk.state is State.COMPLETING


def test_a_leader_that_joins_again_wants_to_assign(talk: Talk) -> None:
    leader, _ = talk.stable(2)
    assert talk.ask_join(leader) not in talk.answers
    assert talk.state is State.PREPARING


def test_a_member_with_something_new_to_say_makes_all_join_again(talk: Talk) -> None:
    _, follower = talk.stable(2)
    talk.ask_join(follower, protocols=protocols("range", metadata=b"another topic"))
    assert talk.state is State.PREPARING


def test_who_asks_twice_is_answered_once_for_each(talk: Talk) -> None:
    _, follower = talk.stable(2)
    talk.join_new()
    first = talk.ask_join(follower)
    talk.ask_join(follower)
    assert talk.joined(first).refusal is Refusal.REBALANCE_IN_PROGRESS


def test_an_id_that_was_given_out_is_waited_for(talk: Talk) -> None:
    leader, follower = talk.stable(2)
    new = talk.join_new()
    pending = talk.joined(talk.ask_join()).member_id
    talk.ask_join(leader)
    talk.ask_join(follower)
    assert new not in talk.answers
    talk.ask_join(pending)
    assert talk.joined(new).generation == 2
    assert pending in talk.record.members


# ── assigning ────────────────────────────────────────────────────────────────────────────────────────────────────────


def completing(talk: Talk, count: int = 2) -> list[str]:
    tickets = [talk.join_new() for _ in range(count)]
    while talk.state is State.PREPARING:
        talk.wait(OPENING_MS)
    return [talk.joined(ticket).member_id for ticket in tickets]


def test_everybody_hears_what_it_has_when_the_leader_has_come(talk: Talk) -> None:
    leader, follower = completing(talk)
    waiting = talk.ask_sync(follower)
    assert waiting not in talk.answers
    stored = talk.stored
    mine = talk.ask_sync(leader, {"m2": "second", "nobody": "x"})
    assert talk.synced(waiting) == Synced(None, follower, "consumer", "range", b"second")
    assert talk.synced(mine).assignment == b"", "whom the leader left out has nothing"
    assert talk.stored == stored + 1
    assert talk.synced(talk.ask_sync(follower)).assignment == b"second", "it may ask again"
    assert talk.group.deadline_ms is None


def test_sync_is_refused_as_kafka_does(talk: Talk) -> None:
    leader, follower = completing(talk)
    assert talk.synced(talk.ask_sync("nobody")).refusal is Refusal.UNKNOWN_MEMBER_ID
    assert talk.synced(talk.ask_sync(leader, generation=0)).refusal is Refusal.ILLEGAL_GENERATION
    for protocol_type, protocol in (("connect", None), (None, "other")):
        wish = Sync(99, leader, None, 1, protocol_type, protocol, {})
        (told,) = classic.sync(talk.group, wish, talk.now, talk.rules).told
        assert told.answer.refusal is Refusal.INCONSISTENT_GROUP_PROTOCOL
    wish = Sync(99, leader, "instance", 1, None, None, {})
    (told,) = classic.sync(talk.group, wish, talk.now, talk.rules).told
    assert told.answer.refusal is Refusal.UNKNOWN_MEMBER_ID
    talk.ask_sync(leader)
    talk.join_new()
    assert talk.synced(talk.ask_sync(follower)).refusal is Refusal.REBALANCE_IN_PROGRESS


def test_assignments_that_nobody_could_store_are_refused() -> None:
    talk = Talk(rules=Rules(opening_ms=0, bytes_max=100))
    leader = talk.joined(talk.join_new()).member_id
    before = talk.group
    assert talk.synced(talk.ask_sync(leader, {leader: "x" * 200})).refusal is Refusal.UNKNOWN_SERVER_ERROR
    assert talk.group is before


def test_whoever_waits_for_its_share_joins_again_when_somebody_comes(talk: Talk) -> None:
    _, follower = completing(talk)
    waiting = talk.ask_sync(follower)
    talk.join_new()
    assert talk.synced(waiting).refusal is Refusal.REBALANCE_IN_PROGRESS


def test_who_never_asks_for_its_share_is_out(talk: Talk) -> None:
    leader, silent = completing(talk)
    talk.ask_sync(leader)
    talk.wait(REBALANCE_MS)
    assert silent not in talk.record.members
    assert talk.state is State.PREPARING
    assert talk.beat(leader) is Refusal.REBALANCE_IN_PROGRESS


def test_a_leader_that_never_assigns_is_out(talk: Talk) -> None:
    leader, follower = completing(talk)
    waiting = talk.ask_sync(follower)
    talk.wait(REBALANCE_MS)
    assert talk.synced(waiting).refusal is Refusal.REBALANCE_IN_PROGRESS
    assert leader not in talk.record.members
    assert talk.joined(talk.ask_join(follower)).leader == follower


# ── going ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_when_one_leaves_the_others_join_again(talk: Talk) -> None:
    leader, follower = talk.stable(2)
    stored = talk.stored
    assert talk.leave(leader) == (None,)
    assert talk.stored == stored + 1, "it is not to come back by itself when the coordinator dies"
    assert (talk.state, talk.record.leader) == (State.PREPARING, follower)
    assert talk.joined(talk.ask_join(follower)).generation == 2


def test_when_the_last_one_leaves_the_group_is_empty(talk: Talk) -> None:
    one, other = talk.stable(2)
    assert talk.leave(one, "nobody", other) == (None, Refusal.UNKNOWN_MEMBER_ID, None)
    assert (talk.state, talk.record.generation, talk.record.leader) == (State.EMPTY, 2, None)
    assert talk.record.protocol_type == "consumer"
    assert talk.record.since_ms == talk.now.wall_ms
    assert talk.group.size == 0
    assert not talk.group.supported
    talk.join_new(protocol_type="connect", protocols=protocols("other"))
    assert talk.record.protocol_type == "connect"


def test_whoever_leaves_while_it_waits_hears_so(talk: Talk) -> None:
    leader, _ = talk.stable(2)
    new = talk.join_new()
    talk.leave(talk.record.members[next(reversed(talk.record.members))].member_id)
    assert talk.joined(new).refusal is Refusal.UNKNOWN_MEMBER_ID
    assert talk.beat(leader) is Refusal.REBALANCE_IN_PROGRESS


def test_an_id_that_was_given_out_may_leave_too(talk: Talk) -> None:
    pending = talk.joined(talk.ask_join()).member_id
    assert talk.leave(pending) == (None,)
    assert talk.stored == 0
    assert talk.joined(talk.ask_join(pending)).refusal is Refusal.UNKNOWN_MEMBER_ID


def test_who_is_silent_for_too_long_is_out(talk: Talk) -> None:
    leader, follower = talk.stable(2)
    talk.expire(follower)
    assert list(talk.record.members) == [leader]
    assert talk.state is State.PREPARING
    talk.expire(leader)
    assert talk.record.state is State.EMPTY


def test_who_waits_for_an_answer_is_not_silent(talk: Talk) -> None:
    leader, follower = talk.stable(2)
    talk.join_new()
    talk.ask_join(follower)
    talk.expire(follower)
    assert follower in talk.record.members
    talk.expire(leader)
    assert talk.state is State.COMPLETING, "all that are left have joined"


def test_heartbeats(talk: Talk) -> None:
    leader, follower = completing(talk)
    assert talk.beat(follower) is None, "a member that has joined may send them before it knows what it has"
    assert talk.beat(leader, generation=0) is Refusal.ILLEGAL_GENERATION
    assert talk.beat("nobody") is Refusal.UNKNOWN_MEMBER_ID
    assert Talk().beat("nobody") is Refusal.UNKNOWN_MEMBER_ID


# ── static members ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_static_member_comes_back_without_a_rebalance(talk: Talk) -> None:
    leader, follower = talk.stable(1)[0], ""
    follower = talk.joined(rejoin_all(talk, leader, instance="i")).member_id
    stored = talk.stored
    ticket = talk.join_new(instance="i")
    back = talk.joined(ticket)
    assert (back.refusal, back.generation, back.leader) == (None, 2, leader)
    assert back.member_id != follower
    assert talk.state is State.STABLE
    assert talk.stored == stored + 1
    assert talk.synced(talk.ask_sync(back.member_id)).assignment == b"yours"
    assert talk.beat(follower, instance="i") is Refusal.FENCED_INSTANCE_ID
    assert talk.beat(back.member_id, instance="i") is None
    assert talk.leave(Leaver(follower, "i")) == (Refusal.FENCED_INSTANCE_ID,)


def rejoin_all(talk: Talk, leader: str, instance: str) -> int:
    """A static member comes into the group, and all is settled again."""
    ticket = talk.join_new(instance=instance)
    talk.ask_join(leader)
    member = talk.joined(ticket).member_id
    talk.ask_sync(leader, {member: "yours"})
    talk.ask_sync(member)
    assert talk.state is State.STABLE
    return ticket


@pytest.mark.parametrize("may_skip", [True, False])
def test_a_static_leader_comes_back_and_assigns_nothing(talk: Talk, may_skip: bool) -> None:
    (old,) = talk.stable(1, instance="i")
    back = talk.joined(talk.join_new(instance="i", may_skip=may_skip))
    assert (back.refusal, back.generation, talk.record.leader) == (None, 1, back.member_id)
    if may_skip:
        assert back.skip_assignment
        assert back.leader == back.member_id
        assert len(back.members) == 1
    else:  # it would assign: it is told that another one leads
        assert (back.leader, back.members, back.skip_assignment) == (old, (), False)


def test_a_static_member_that_comes_back_with_another_protocol_makes_all_join_again(talk: Talk) -> None:
    talk.stable(1, instance="i", protocols=protocols("a", "b"))
    back = talk.joined(talk.join_new(instance="i", protocols=protocols("b", "a")))
    assert (back.generation, back.protocol) == (2, "b")


def test_two_with_the_same_instance_id_the_older_ends(talk: Talk) -> None:
    first = talk.join_new(instance="i")
    second = talk.join_new(instance="i")
    assert talk.joined(first).refusal is Refusal.FENCED_INSTANCE_ID
    talk.wait(OPENING_MS)
    assert talk.joined(second).generation == 1
    third = talk.join_new(instance="i")
    assert talk.joined(third).generation == 2, "while the leader assigns to the old id, all join again"
    old = talk.joined(second).member_id
    assert talk.joined(talk.ask_join(old, instance="i")).refusal is Refusal.FENCED_INSTANCE_ID
    assert talk.joined(talk.ask_join(old, instance="other")).refusal is Refusal.UNKNOWN_MEMBER_ID


def test_a_static_member_may_be_away_during_a_rebalance(talk: Talk) -> None:
    (away,) = talk.stable(1, instance="i")
    new = talk.join_new()
    talk.wait(REBALANCE_MS)
    assert away in talk.record.members
    assert talk.joined(new).leader == talk.joined(new).member_id, "somebody who is there leads"
    assert {one.member_id for one in talk.joined(new).members} == {away, talk.joined(new).member_id}


def test_if_only_static_members_are_left_and_all_are_away_the_group_waits_for_them(talk: Talk) -> None:
    members = [talk.join_new(instance="a"), talk.join_new(instance="b"), talk.join_new()]
    talk.wait(OPENING_MS)
    talk.wait(OPENING_MS)
    dynamic = talk.joined(members[2]).member_id
    talk.leave(dynamic)
    talk.wait(REBALANCE_MS)
    assert (talk.state, talk.record.generation) == (State.PREPARING, 1)
    back = talk.ask_join(talk.joined(members[0]).member_id, instance="a")
    talk.wait(REBALANCE_MS)
    assert talk.joined(back).generation == 2


def test_an_administrator_removes_a_static_member_by_its_instance(talk: Talk) -> None:
    talk.stable(1, instance="i")
    assert talk.leave(Leaver("", "other"), Leaver("", "i")) == (Refusal.UNKNOWN_MEMBER_ID, None)
    assert talk.state is State.EMPTY


# ── the next coordinator ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_next_coordinator_goes_on_where_the_last_one_was(talk: Talk) -> None:
    leader, follower = talk.stable(2)
    after = talk.load()
    assert after.beat(leader) is after.beat(follower) is None
    assert after.synced(after.ask_sync(follower)).assignment == f"of {follower}".encode()
    assert (after.state, after.record.generation, after.stored) == (State.STABLE, 1, talk.stored)
    assert after.group.supported == talk.group.supported
    assert after.group.size == talk.group.size


def test_it_goes_on_in_the_middle_of_a_rebalance(talk: Talk) -> None:
    leader, follower = completing(talk)
    after = talk.load()
    waiting = after.ask_sync(follower)
    assert after.joined(after.ask_join(leader)).members != (), "it may have missed its answer"
    after.ask_sync(leader, {follower: "yours"})
    assert after.synced(waiting).assignment == b"yours"
    silent = talk.load()
    silent.wait(REBALANCE_MS)
    assert silent.state is State.EMPTY, "of those who never ask, none is left"


def test_who_has_left_does_not_come_back_with_the_next_coordinator(talk: Talk) -> None:
    leader, follower = talk.stable(2)
    talk.leave(leader)
    after = talk.load()
    assert after.beat(follower) is Refusal.REBALANCE_IN_PROGRESS
    assert after.joined(after.ask_join(follower)).generation == 2


def test_a_coordinator_that_slept_gives_everybody_more_time(talk: Talk) -> None:
    talk.ask_join()
    talk.join_new()
    later = classic.delayed(talk.group, 5_000)
    assert later.deadline_ms == (talk.group.deadline_ms or 0) + 5_000
    assert later.pending == {member: until + 5_000 for member, until in talk.group.pending.items()}
    assert classic.delayed(later, 0) == later
