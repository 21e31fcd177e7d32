"""Both protocols in one group: classic members that the coordinator leads, and the way from one to the other."""

from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import pytest

from lakestream.coordination.groups import steps
from lakestream.coordination.groups.embedded import read_assignment, write_assignment
from lakestream.coordination.groups.landscape import Landscape
from lakestream.coordination.groups.refusals import Refusal, Refused
from lakestream.coordination.groups.steps import Ground
from lakestream.coordination.groups.values import (
    LEAVE,
    LEAVE_FOR_A_WHILE,
    Answer,
    AnyGroup,
    Beat,
    Beaten,
    ConsumerGroup,
    Group,
    Instant,
    Join,
    Joined,
    Leaver,
    Rules,
    Step,
    Sync,
    Synced,
)
from lakestream.metadata.group_records import (
    ConsumerMember,
    GroupRecord,
    Member,
    Partitions,
    Progress,
    Protocol,
    State,
)
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId

REBALANCE_MS = 60_000
A = TypeVar("A", bound=Answer)


def subscription(*owned: int, version: int = 1) -> bytes:
    has = write_assignment(1, {"t": list(owned)})[2:-4] if version else b""
    return version.to_bytes(2, "big") + b"\0\0\0\1\0\1t\xff\xff\xff\xff" + has


def parts(*numbers: int) -> Partitions:
    return frozenset(PartitionId("T", number) for number in numbers)


@dataclass
class Talk:
    """What was said to a group, and what it answered."""

    group: AnyGroup = field(default_factory=Group)
    landscape: Landscape = field(default_factory=lambda: Landscape({"t": Topic("T", 4)}))
    now_ms: int = 0
    tickets: int = 0
    answers: dict[int, Answer] = field(default_factory=dict)

    @property
    def on(self) -> Ground:
        return Ground(self.landscape, Instant(self.now_ms, self.now_ms), Rules(opening_ms=0))

    def take(self, step: Step[AnyGroup]) -> None:
        self.group = step.group
        self.answers.update({told.ticket: told.answer for told in step.told})

    def _answer(self, kind: type[A]) -> A:
        self.take(steps.settled(self.group, self.on))
        answer = self.answers[self.tickets]
        assert isinstance(answer, kind)
        return answer

    def beat(
        self, member_id: str, epoch: int = 0, owned: Partitions | None = None, instance: str | None = None
    ) -> Beaten:
        self.tickets += 1
        names = ("t",) if epoch == 0 else None
        owned = frozenset() if epoch == 0 else owned
        said = Beat(member_id, epoch, instance, None, "", "", REBALANCE_MS, names, owned=owned, ticket=self.tickets)
        self.take(steps.beat("g", self.group, said, self.on))
        return self._answer(Beaten)

    def ask_to_join(
        self,
        member_id: str = "",
        *owned: int,
        instance: str | None = None,
        metadata: bytes | None = None,
        kind: str = "consumer",
        id_first: bool = False,
        protocols: tuple[str, ...] = ("range",),
    ) -> int:
        self.tickets += 1
        said = subscription(*owned) if metadata is None else metadata
        known = tuple(Protocol(name, said) for name in protocols)
        wish = Join(
            self.tickets, member_id, f"new-{self.tickets}", instance, "c", "/h", 10_000, REBALANCE_MS, kind, known
        )
        self.take(steps.join(self.group, wish._replace(asks_id_first=id_first), self.on))
        return self.tickets

    def join(self, member_id: str = "", *owned: int, **more: object) -> Joined:
        self.ask_to_join(member_id, *owned, **more)  # type: ignore[arg-type]
        return self._answer(Joined)

    def sync(self, member_id: str, generation: int, protocol: str | None = None) -> Synced:
        self.tickets += 1
        wish = Sync(self.tickets, member_id, None, generation, None, protocol, {})
        self.take(steps.sync(self.group, wish, self.on))
        return self._answer(Synced)

    def share(self, member_id: str, generation: int) -> set[int]:
        synced = self.sync(member_id, generation)
        assert synced.refusal is None
        return {number for _, number in read_assignment(synced.assignment)}

    def heartbeat(self, member_id: str, generation: int) -> Refusal | None:
        step, refusal = steps.heartbeat(self.group, member_id, None, generation, self.on)
        self.take(step)
        return refusal

    def leave(self, *leavers: Leaver) -> tuple[Refusal | None, ...]:
        left = steps.leave(self.group, leavers, self.on)
        self.take(left.step)
        return left.refusals

    def member(self, member_id: str) -> ConsumerMember:
        assert isinstance(self.group, ConsumerGroup)
        return self.group.record.members[member_id]


def classic(
    state: State = State.STABLE, *, owned: tuple[int, ...] = (), given: tuple[int, ...] | None = (0, 1)
) -> Talk:
    """A classic group at generation 7, with one member."""
    share = b"" if given is None else write_assignment(1, {"t": list(given)})
    member = Member("old", None, "c", "/h", 10_000, REBALANCE_MS, (Protocol("range", subscription(*owned)),), share)
    record = GroupRecord(
        state=state, generation=7, protocol_type="consumer", protocol="range", leader="old", members={"old": member}
    )
    return Talk(steps.resumed(record, Instant(0, 0)))


@pytest.fixture
def talk() -> Talk:
    """A group of the new protocol, with one member that has all."""
    talk = Talk()
    assert talk.beat("new").assigned == parts(0, 1, 2, 3)
    return talk


# ── classic members in it ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_coordinator_leads(talk: Talk) -> None:
    joined = talk.join(protocols=("roundrobin", "range"))
    assert joined == Joined(None, "new-2", 2, "consumer", "roundrobin", "", ())
    assert talk.share("new-2", 2) == set(), "nothing is free yet"
    assert talk.heartbeat("new-2", 2) is None
    kept = talk.beat("new", 1).assigned
    assert kept is not None
    talk.beat("new", 1, kept)
    assert talk.heartbeat("new-2", 2) is Refusal.REBALANCE_IN_PROGRESS, "all that it waits for is free"
    assert talk.join("new-2").generation == 2
    assert talk.share("new-2", 2) == {0, 1, 2, 3} - {one.number for one in kept}
    assert talk.heartbeat("new-2", 2) is None


def test_a_cooperative_member_gives_back_before_it_goes_on() -> None:
    talk = classic(given=(0, 1, 2, 3))
    talk.beat("new")
    assert talk.heartbeat("old", 7) is Refusal.REBALANCE_IN_PROGRESS
    assert talk.join("old", 0, 1, 2, 3).generation == 7, "not yet"
    kept = talk.share("old", 7)
    assert len(kept) == 2
    assert talk.beat("new", 8).assigned is None
    assert talk.heartbeat("old", 7) is Refusal.REBALANCE_IN_PROGRESS
    assert talk.join("old", *kept).generation == 8
    assert talk.beat("new", 8).assigned == parts(0, 1, 2, 3) - parts(*kept)
    assert talk.share("old", 8) == kept


def test_a_new_one_is_told_its_id_first(talk: Talk) -> None:
    before = talk.group
    assert talk.join(id_first=True).refusal is Refusal.MEMBER_ID_REQUIRED
    assert talk.group.record is before.record
    assert talk.join("new-2", id_first=True).refusal is None


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ({"kind": "connect"}, Refusal.INCONSISTENT_GROUP_PROTOCOL),
        ({"metadata": b"poison"}, Refusal.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, Refusal.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ("other",)}, Refusal.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "x", "instance": "i"}, Refusal.FENCED_INSTANCE_ID),
        ({"member_id": "x", "instance": "j"}, Refusal.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_may_not_come_in(talk: Talk, words: dict[str, object], refusal: Refusal) -> None:
    assert talk.join(instance="i").refusal is None
    before = talk.group.record
    assert talk.join(**words).refusal is refusal  # type: ignore[arg-type]
    assert talk.group.record is before


def test_what_is_refused(talk: Talk) -> None:
    talk.join()
    assert talk.sync("nobody", 2).refusal is Refusal.UNKNOWN_MEMBER_ID
    assert talk.sync("new", 2).refusal is Refusal.UNKNOWN_MEMBER_ID, "it speaks the other protocol"
    assert talk.sync("new-2", 1).refusal is Refusal.ILLEGAL_GENERATION
    assert talk.sync("new-2", 2, "other").refusal is Refusal.INCONSISTENT_GROUP_PROTOCOL
    assert talk.heartbeat("nobody", 2) is Refusal.UNKNOWN_MEMBER_ID
    assert talk.heartbeat("new-2", 1) is Refusal.ILLEGAL_GENERATION
    talk.beat("another")
    assert talk.sync("new-2", 2).refusal is Refusal.REBALANCE_IN_PROGRESS
    with pytest.raises(Refused, check=lambda refused: refused.refusal is Refusal.UNKNOWN_MEMBER_ID):
        talk.beat("nobody", 3)


def test_who_does_not_ask_for_its_share_or_come_again_is_out(talk: Talk) -> None:
    talk.join()
    talk.now_ms = REBALANCE_MS
    talk.take(steps.tick(talk.group, talk.on))
    assert talk.sync("new-2", 2).refusal is Refusal.UNKNOWN_MEMBER_ID
    joined = talk.join()
    talk.share(joined.member_id, joined.generation)
    assert talk.group.next_deadline_ms is None
    talk.beat("another")
    assert talk.heartbeat(joined.member_id, joined.generation) is Refusal.REBALANCE_IN_PROGRESS
    talk.now_ms += 10
    talk.heartbeat(joined.member_id, joined.generation)
    assert talk.group.next_deadline_ms == 2 * REBALANCE_MS, "from when it first heard so"
    talk.now_ms = 2 * REBALANCE_MS
    talk.take(steps.tick(talk.group, talk.on))
    assert talk.heartbeat(joined.member_id, joined.generation) is Refusal.UNKNOWN_MEMBER_ID


def test_classic_members_notice_new_partitions_while_all_others_are_away() -> None:
    talk = Talk()
    talk.beat("new", instance="i")
    joined = talk.join()
    talk.share(joined.member_id, joined.generation)
    talk.beat("new", LEAVE_FOR_A_WHILE, instance="i")
    assert talk.join(joined.member_id).generation == 2
    assert len(talk.share(joined.member_id, 2)) == 2
    talk.landscape = Landscape({"t": Topic("T", 8)})
    assert talk.heartbeat(joined.member_id, 2) is Refusal.REBALANCE_IN_PROGRESS
    assert talk.join(joined.member_id).generation == 3
    assert len(talk.share(joined.member_id, 3)) == 4


def test_classic_members_leave(talk: Talk) -> None:
    one, two = talk.join(), talk.join(instance="i")
    assert talk.leave(Leaver("new"), Leaver("x"), Leaver("", "i"), Leaver("", "j"), Leaver(two.member_id, "i")) == (
        Refusal.UNKNOWN_MEMBER_ID,
        Refusal.UNKNOWN_MEMBER_ID,
        None,
        Refusal.UNKNOWN_MEMBER_ID,
        Refusal.UNKNOWN_MEMBER_ID,
    )
    assert talk.leave(Leaver(one.member_id)) == (None,)
    assert set(talk.group.record.members) == {"new"}
    assert talk.leave(Leaver(one.member_id)) == (Refusal.UNKNOWN_MEMBER_ID,)


def test_an_administrator_puts_out_a_static_member_of_either_protocol() -> None:
    talk = Talk()
    talk.beat("new", instance="i")
    assert talk.leave(Leaver("", "i")) == (None,)
    assert talk.group.record.is_empty


def test_a_static_member_changes_its_protocol_and_keeps_its_place(talk: Talk) -> None:
    talk.beat("static", instance="i")
    kept = talk.beat("new", 1).assigned
    talk.beat("new", 1, kept)
    mine = talk.beat("static", 2, instance="i").assigned
    assert mine
    joined = talk.join(instance="i")
    assert (joined.generation, talk.share(joined.member_id, 2)) == (2, {one.number for one in mine})
    again = talk.beat("again", instance="i")
    assert (again.epoch, again.assigned) == (2, mine), "the classic one need not have left"
    assert talk.sync(joined.member_id, 2).refusal is Refusal.UNKNOWN_MEMBER_ID
    talk.beat("again", LEAVE_FOR_A_WHILE, instance="i")
    assert talk.join(instance="i").refusal is None


# ── from one protocol to the other ───────────────────────────────────────────────────────────────────────────────────


def test_an_upgrade_takes_nothing_from_anybody() -> None:
    talk = classic()
    told = talk.beat("new")
    assert (told.epoch, told.assigned) == (8, parts(2, 3)), "what was nobody's"
    old = talk.member("old")
    assert (old.epoch, old.progress, old.assigned, old.names) == (7, Progress.STABLE, parts(0, 1), ("t",))
    assert steps.session_ms(old, talk.on.rules) == 10_000
    assert steps.session_ms(talk.member("new"), talk.on.rules) == 45_000


@pytest.mark.parametrize("state", [State.COMPLETING, State.STABLE, State.PREPARING])
def test_what_a_member_had_when_it_joined_it_may_still_have(state: State) -> None:
    talk = classic(state, owned=(0, 1, 2), given=None if state is State.COMPLETING else (0, 1))
    assert talk.beat("new").assigned == parts(3)


def test_whoever_waits_to_join_is_let_in() -> None:
    """It may not be told to come again: aiokafka ends when it hears that."""
    talk = classic()
    waiting = talk.ask_to_join()
    talk.beat("new")
    joined = talk.answers[waiting]
    assert isinstance(joined, Joined)
    assert (joined.refusal, joined.generation) == (None, 8)
    assert len(talk.share(joined.member_id, 8)) == 1, "what was nobody's is shared with the other one"


def test_whoever_waits_for_its_share_is_to_come_again() -> None:
    talk = classic(State.COMPLETING)
    other = Member("other", None, "c", "/h", 10_000, REBALANCE_MS, (Protocol("range", subscription()),))
    assert isinstance(talk.group, Group)
    members = {**talk.group.record.members, "other": other}
    talk.group = steps.resumed(msgspec.structs.replace(talk.group.record, members=members), talk.on.now)
    talk.tickets += 1
    talk.take(steps.sync(talk.group, Sync(talk.tickets, "other", None, 7, None, None, {}), talk.on))
    waiting = talk.tickets
    talk.beat("new")
    assert talk.answers[waiting].refusal is Refusal.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("kind", ["connect", "stream"])
def test_other_kinds_of_groups_are_not_upgraded(kind: str) -> None:
    talk = Talk()
    talk.join(kind=kind)
    before = talk.group
    with pytest.raises(Refused, check=lambda refused: refused.refusal is Refusal.GROUP_ID_NOT_FOUND):
        talk.beat("new")
    assert talk.group is before


def test_when_the_last_of_the_new_protocol_leaves_the_group_is_classic_again() -> None:
    talk = classic()
    talk.beat("new")
    joined = talk.join("old")
    talk.share("old", joined.generation)
    talk.beat("new", LEAVE)
    record = talk.group.record
    assert isinstance(record, GroupRecord)
    assert (record.state, record.generation, record.protocol_type) == (State.PREPARING, 8, "consumer")
    assert talk.heartbeat("old", 8) is Refusal.REBALANCE_IN_PROGRESS, "it keeps what it has until it joins"
    assert record.members["old"].session_ms == 10_000
    again = talk.join("old")
    assert (again.generation, again.leader, len(again.members)) == (9, "old", 1)


def test_who_joins_while_the_last_one_leaves_need_not_come_again(talk: Talk) -> None:
    asked = talk.ask_to_join()
    talk.take(steps.expire(talk.group, ["new"], talk.on))
    answer = talk.answers[asked]
    assert isinstance(answer, Joined)
    assert (answer.refusal, answer.leader) == (None, answer.member_id)


def test_a_static_member_that_was_the_last_of_the_new_protocol_takes_the_group_back() -> None:
    talk = Talk()
    talk.beat("new", instance="i")
    joined = talk.join(instance="i")
    assert (joined.refusal, joined.leader) == (None, joined.member_id)
    assert isinstance(talk.group, Group)


def test_an_empty_group_is_of_whoever_comes(talk: Talk) -> None:
    talk.beat("new", LEAVE)
    joined = talk.join()
    assert (joined.leader, joined.generation) == (joined.member_id, 3)
    talk.leave(Leaver(joined.member_id))
    assert talk.beat("again").epoch == 5
