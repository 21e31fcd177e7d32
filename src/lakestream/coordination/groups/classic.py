"""Groups of the classic protocol: members join, one of them shares out the partitions, all hear what they have. Pure:
no store, no clock, no task. A step is (group, what somebody asks, when) → (group, who is told what, is it to be
stored).

    EMPTY ──join──▶ PREPARING ──all have joined, or it took too long──▶ COMPLETING ──the leader has assigned──▶ STABLE
      ▲                │  ▲                                                 │                                     │
      └──nobody is left┘  └────────── somebody comes, goes, or joins with something new to say ───────────────────┘

What members say of themselves is passed on and never read. Errors are Kafka's, in the order in which Kafka finds them.

Before: held.py, which asks, stores and tells.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from lakestream.coordination.groups.refusals import Refusal
from lakestream.coordination.groups.values import (
    Answer,
    Group,
    Instant,
    Join,
    Joined,
    Leaver,
    Left,
    Opening,
    Present,
    Rules,
    Step,
    Sync,
    Synced,
    Ticket,
    Told,
)
from lakestream.metadata.group_records import GroupRecord, Member, Protocol, State

REBALANCE_MS_MIN: Final = 1_000
"""A member that gives the others less time than this would only be put out itself."""


def resumed(record: GroupRecord, now: Instant) -> Group:
    """A group as its next coordinator finds it: its members go on as if nothing had happened."""
    draft = _Draft(Group(record=record), now)
    for member in record.members.values():
        draft.count(member, 1)
    if record.state in (State.PREPARING, State.COMPLETING):
        draft.deadline_ms = now.ms + draft.rebalance_ms
    if record.state is State.COMPLETING:
        draft.unsynced = set(record.members)
    return draft.step().group


def begun_anew(record: GroupRecord, joining: Mapping[str, Ticket], now: Instant) -> Step[Group]:
    """A group whose members all have to join again, and some have."""
    draft = _Draft(resumed(record, now), now)
    draft.joining = dict(joining)
    draft.protocol = draft.chosen_protocol()
    draft.to_store = True
    draft.rebalance()
    return draft.step()


def join(group: Group, wish: Join, now: Instant, rules: Rules) -> Step[Group]:
    draft = _Draft(group, now)
    if refusal := _join_refusal(draft, wish, rules):
        return draft.refuse(wish.ticket, Joined(refusal, wish.member_id))
    if not wish.member_id:
        _join_new(draft, wish, rules)
    elif wish.member_id in draft.pending and wish.instance_id is None:
        del draft.pending[wish.member_id]
        draft.add(wish, wish.member_id, rules)
    elif refusal := stranger(draft.members, wish.member_id, wish.instance_id):
        draft.tell(wish.ticket, Joined(refusal, wish.member_id))
    else:
        _join_again(draft, wish)
    return draft.step()


def sync(group: Group, wish: Sync, now: Instant, rules: Rules) -> Step[Group]:
    draft = _Draft(group, now)
    refusal = _sync_refusal(group, wish)
    if refusal is None and draft.state is State.PREPARING:
        refusal = Refusal.REBALANCE_IN_PROGRESS
    leads = draft.state is State.COMPLETING and wish.member_id == draft.leader
    if refusal is None and leads and draft.size + sum(map(len, wish.assignments.values())) > rules.bytes_max:
        refusal = Refusal.UNKNOWN_SERVER_ERROR
    if refusal is not None:
        return draft.refuse(wish.ticket, Synced(refusal, wish.member_id))
    draft.unsynced.discard(wish.member_id)
    draft.wait_for_sync(wish.member_id, wish.ticket)
    if leads:
        draft.assign(wish.assignments)
    elif draft.state is State.STABLE:
        draft.tell_assignments()
    return draft.step()


def heartbeat(record: GroupRecord, member_id: str, instance_id: str | None, generation: int) -> Refusal | None:
    """A sign of life changes nothing here. REBALANCE_IN_PROGRESS: it was heard, and the member is to join again."""
    if refusal := stranger(record.members, member_id, instance_id):
        return refusal
    if generation != record.generation:
        return Refusal.ILLEGAL_GENERATION
    return Refusal.REBALANCE_IN_PROGRESS if record.state is State.PREPARING else None


def leave(group: Group, leavers: Sequence[Leaver], now: Instant) -> Left[Group]:
    draft = _Draft(group, now)
    refusals = []
    for leaver in leavers:
        member_id, refusal = _leaving(draft, leaver)
        if refusal is None:
            draft.pending.pop(member_id, None)
            draft.remove([member_id])
        refusals.append(refusal)
    if any(refusal is None for refusal in refusals):
        draft.go_on_without()
    return Left(draft.step(), tuple(refusals))


def expire(group: Group, member_ids: Iterable[str], now: Instant) -> Step[Group]:
    """Members that were not heard of for too long. Whoever waits for an answer is there."""
    draft = _Draft(group, now)
    gone = [one for one in member_ids if one in draft.members and one not in draft.joining and one not in draft.syncing]
    if gone:
        draft.remove(gone)
        draft.go_on_without()
    return draft.step()


def tick(group: Group, now: Instant, rules: Rules) -> Step[Group]:
    """What happens by time alone."""
    draft = _Draft(group, now)
    if late := [member_id for member_id, until_ms in draft.pending.items() if until_ms <= now.ms]:
        for member_id in late:
            del draft.pending[member_id]
        draft.go_on_without()
    if draft.deadline_ms is not None and draft.deadline_ms <= now.ms:
        if draft.state is State.PREPARING:
            draft.end_joining(rules)
        elif draft.unsynced:
            draft.remove(list(draft.unsynced))
            draft.go_on_without()
        else:
            draft.deadline_ms = None
    return draft.step()


def delayed(group: Group, ms: int) -> Group:
    """Everybody gets so much more time."""
    return replace(
        group,
        deadline_ms=None if group.deadline_ms is None else group.deadline_ms + ms,
        pending={member_id: until_ms + ms for member_id, until_ms in group.pending.items()},
    )


# ── who may ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def stranger(members: Mapping[str, Member], member_id: str, instance_id: str | None) -> Refusal | None:
    known = members.get(member_id)
    if instance_id is not None and (known is None or known.instance_id != instance_id):
        holder = static_member(members, instance_id)
        return Refusal.UNKNOWN_MEMBER_ID if holder is None else Refusal.FENCED_INSTANCE_ID
    return None if known is not None else Refusal.UNKNOWN_MEMBER_ID


def static_member(members: Mapping[str, Member], instance_id: str) -> str | None:
    return next((member_id for member_id, member in members.items() if member.instance_id == instance_id), None)


def _join_refusal(draft: "_Draft", wish: Join, rules: Rules) -> Refusal | None:
    if not rules.session_ms_min <= wish.session_ms <= rules.session_ms_max:
        return Refusal.INVALID_SESSION_TIMEOUT
    if not draft.supports(wish):
        return Refusal.INCONSISTENT_GROUP_PROTOCOL
    known = draft.members.get(wish.member_id)
    if known is None and wish.instance_id is not None:
        known = draft.members.get(static_member(draft.members, wish.instance_id) or "")
    has_place = known is not None or wish.member_id in draft.pending
    if not has_place and len(draft.members) + len(draft.pending) >= rules.members_max:
        return Refusal.GROUP_MAX_SIZE_REACHED
    size = _member(wish, wish.member_id or wish.new_id).size - (known.size if known else 0)
    return Refusal.GROUP_MAX_SIZE_REACHED if draft.size + size > rules.bytes_max else None


def _sync_refusal(group: Group, wish: Sync) -> Refusal | None:
    record = group.record
    if refusal := stranger(record.members, wish.member_id, wish.instance_id):
        return refusal
    if wish.generation != record.generation:
        return Refusal.ILLEGAL_GENERATION
    if wish.protocol_type not in (None, record.protocol_type) or wish.protocol not in (None, record.protocol):
        return Refusal.INCONSISTENT_GROUP_PROTOCOL
    return None


def _leaving(draft: "_Draft", leaver: Leaver) -> tuple[str, Refusal | None]:
    """An administrator names a static member by its instance alone."""
    if not leaver.member_id and leaver.instance_id is not None:
        member_id = static_member(draft.members, leaver.instance_id)
        return (member_id, None) if member_id is not None else ("", Refusal.UNKNOWN_MEMBER_ID)
    if leaver.member_id in draft.pending:
        return leaver.member_id, None
    return leaver.member_id, stranger(draft.members, leaver.member_id, leaver.instance_id)


# ── joining ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _join_new(draft: "_Draft", wish: Join, rules: Rules) -> None:
    if wish.instance_id is not None:
        old_id = static_member(draft.members, wish.instance_id)
        if old_id is not None:
            _join_for(draft, wish, old_id)
            return
    elif wish.asks_id_first:
        draft.pending[wish.new_id] = draft.now.ms + wish.session_ms
        draft.tell(wish.ticket, Joined(Refusal.MEMBER_ID_REQUIRED, wish.new_id))
        return
    draft.add(wish, wish.new_id, rules)


def _join_for(draft: "_Draft", wish: Join, old_id: str) -> None:
    """A static member came back under another id: it takes the place of the old one."""
    leader = draft.leader
    draft.rename(old_id, wish.new_id)
    draft.update(wish, wish.new_id)
    if draft.state is not State.STABLE or draft.chosen_protocol() != draft.protocol:
        draft.wait_for_join(wish.new_id, wish.ticket)
        draft.rebalance()
        return
    draft.to_store = True
    leads = draft.leader == wish.new_id
    if not wish.may_skip:  # it would assign as a leader does: so it is not told that it leads
        draft.tell(wish.ticket, draft.joined(wish.new_id)._replace(leader=leader or "", members=()))
    else:
        draft.tell(wish.ticket, draft.joined(wish.new_id)._replace(skip_assignment=leads))


def _join_again(draft: "_Draft", wish: Join) -> None:
    """Whoever has nothing new to say most likely did not get its answer. But a leader that joins wants to assign."""
    same = draft.members[wish.member_id].protocols == wish.protocols
    settled = draft.state is State.COMPLETING or (draft.state is State.STABLE and draft.leader != wish.member_id)
    if same and settled:
        draft.tell(wish.ticket, draft.joined(wish.member_id))
        return
    draft.update(wish, wish.member_id)
    draft.wait_for_join(wish.member_id, wish.ticket)
    draft.rebalance()


def _member(wish: Join, member_id: str) -> Member:
    return Member(
        member_id,
        wish.instance_id,
        wish.client_id,
        wish.host,
        wish.session_ms,
        max(REBALANCE_MS_MIN, wish.rebalance_ms),
        wish.protocols,
    )


class _Draft:
    """A group in the middle of a step."""

    def __init__(self, group: Group, now: Instant) -> None:
        record = group.record
        self.now = now
        self.state = record.state
        self.generation = record.generation
        self.protocol_type = record.protocol_type
        self.protocol = record.protocol
        self.leader = record.leader
        self.members = dict(record.members)
        self.joining = dict(group.joining)
        self.syncing = dict(group.syncing)
        self.unsynced = set(group.unsynced)
        self.pending = dict(group.pending)
        self.supported = dict(group.supported)
        self.deadline_ms = group.deadline_ms
        self.opening = group.opening
        self.size = group.size
        self.to_store = False
        self._group = group
        self._since_ms = record.since_ms
        self._told: list[Told] = []

    def step(self) -> Step[Group]:
        record = msgspec.structs.replace(
            self._group.record,
            state=self.state,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            members=self.members,
            since_ms=self._since_ms,
        )
        group = replace(
            self._group,
            record=record,
            joining=self.joining,
            syncing=self.syncing,
            unsynced=frozenset(self.unsynced),
            pending=self.pending,
            deadline_ms=self.deadline_ms,
            opening=self.opening,
            supported=self.supported,
            size=self.size,
        )
        return Step(group, tuple(self._told), self.to_store)

    def refuse(self, ticket: Ticket, answer: Answer) -> Step[Group]:
        """The state is untouched."""
        return Step(self._group, (Told(ticket, answer),))

    def tell(self, ticket: Ticket, answer: Answer) -> None:
        self._told.append(Told(ticket, answer))

    # ── members ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def rebalance_ms(self) -> int:
        return max((member.rebalance_ms for member in self.members.values()), default=0)

    def supports(self, wish: Join) -> bool:
        if not self.members:
            return bool(wish.protocol_type and wish.protocols)
        everybody = len(self.members)
        return wish.protocol_type == self.protocol_type and any(
            self.supported.get(protocol.name) == everybody for protocol in wish.protocols
        )

    def add(self, wish: Join, member_id: str, rules: Rules) -> None:
        if not self.members:
            self.protocol_type = wish.protocol_type
        self._put(_member(wish, member_id))
        if self.leader is None:
            self.leader = member_id
        if self.opening is not None:
            self.opening = self.opening._replace(newcomers=True)
        self.wait_for_join(member_id, wish.ticket)
        if self.state is State.EMPTY:
            self._open(rules)
        else:
            self.rebalance()

    def update(self, wish: Join, member_id: str) -> None:
        self._put(
            msgspec.structs.replace(
                self.members[member_id],
                session_ms=wish.session_ms,
                rebalance_ms=max(REBALANCE_MS_MIN, wish.rebalance_ms),
                protocols=wish.protocols,
            )
        )

    def rename(self, old_id: str, new_id: str) -> None:
        """Whoever still waits under the old id is told to end."""
        old = self.members.pop(old_id)
        self.members[new_id] = new = msgspec.structs.replace(old, member_id=new_id)
        self.count(old, -1)
        self.count(new, 1)
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.unsynced:
            self.unsynced.discard(old_id)
            self.unsynced.add(new_id)
        self._answer_leaver(old_id, Refusal.FENCED_INSTANCE_ID)

    def remove(self, member_ids: Sequence[str]) -> None:
        for member_id in member_ids:
            member = self.members.pop(member_id, None)
            if member is None:
                continue  # an id that was given out, and nobody came with
            self.count(member, -1)
            self.unsynced.discard(member_id)
            self._answer_leaver(member_id, Refusal.UNKNOWN_MEMBER_ID)
            self.to_store = True
        if self.leader not in self.members:
            self.leader = next(iter(self.members), None)

    def count(self, member: Member, times: int) -> None:
        self.size += times * member.size
        for protocol in {protocol.name for protocol in member.protocols}:
            self.supported[protocol] = self.supported.get(protocol, 0) + times
            if not self.supported[protocol]:
                del self.supported[protocol]

    def _put(self, member: Member) -> None:
        if (old := self.members.get(member.member_id)) is not None:
            self.count(old, -1)
        self.count(member, 1)
        self.members[member.member_id] = member

    def _answer_leaver(self, member_id: str, refusal: Refusal) -> None:
        if (ticket := self.joining.pop(member_id, None)) is not None:
            self.tell(ticket, Joined(refusal, member_id))
        if (ticket := self.syncing.pop(member_id, None)) is not None:
            self.tell(ticket, Synced(refusal, member_id))

    def wait_for_join(self, member_id: str, ticket: Ticket) -> None:
        """One at a time: who asks again has given up on the first."""
        if (before := self.joining.get(member_id)) is not None:
            self.tell(before, Joined(Refusal.REBALANCE_IN_PROGRESS, member_id))
        self.joining[member_id] = ticket

    def wait_for_sync(self, member_id: str, ticket: Ticket) -> None:
        if (before := self.syncing.get(member_id)) is not None:
            self.tell(before, Synced(Refusal.REBALANCE_IN_PROGRESS, member_id))
        self.syncing[member_id] = ticket

    # ── from one generation to the next ──────────────────────────────────────────────────────────────────────────────

    def _enter(self, state: State) -> None:
        self.state = state
        self._since_ms = self.now.wall_ms

    def _open(self, rules: Rules) -> None:
        """Others will come in a moment: one rebalance for all of them."""
        self._enter(State.PREPARING)
        wait_ms = min(rules.opening_ms, self.rebalance_ms)
        self.opening = Opening(self.rebalance_ms - wait_ms)
        self.deadline_ms = self.now.ms + wait_ms
        if wait_ms == 0:
            self.end_joining(rules)

    def rebalance(self) -> None:
        """All are to join again; at once, if all have."""
        if self.state is not State.PREPARING:
            for member_id, ticket in self.syncing.items():
                self.tell(ticket, Synced(Refusal.REBALANCE_IN_PROGRESS, member_id))
            self.syncing.clear()
            self.unsynced.clear()
            self._enter(State.PREPARING)
            self.deadline_ms = self.now.ms + self.rebalance_ms
        if self.opening is None and not self.pending and len(self.joining) == len(self.members):
            self._complete()

    def go_on_without(self) -> None:
        """Somebody has left, and what follows from that."""
        if self.state is State.EMPTY:
            return
        if self.members:
            if self.to_store or self.state is State.PREPARING:
                self.rebalance()
        else:
            self.opening = None
            self._complete()

    def end_joining(self, rules: Rules) -> None:
        """The time to join is over, unless the group is new and somebody came while it waited."""
        if self.opening is not None and self.opening.newcomers and self.opening.left_ms > 0:
            wait_ms = min(rules.opening_ms, self.opening.left_ms)
            self.opening = Opening(self.opening.left_ms - wait_ms)
            self.deadline_ms = self.now.ms + wait_ms
            return
        self.opening = None
        self._complete()

    def _complete(self) -> None:
        """The next generation: of those who have joined, and of static members, who may be away for a while."""
        absent = [one for one, member in self.members.items() if one not in self.joining and not member.instance_id]
        self.remove(absent)
        if not self.members:
            self._empty()
            return
        if self.leader not in self.joining:
            if not self.joining:  # until their sessions are over, or somebody comes
                self.deadline_ms = self.now.ms + self.rebalance_ms
                return
            self.leader = next(iter(self.joining))
        self.generation += 1
        self.protocol = self.chosen_protocol()
        self.members = {one: msgspec.structs.replace(member, assignment=b"") for one, member in self.members.items()}
        self.size = sum(member.size for member in self.members.values())
        self._enter(State.COMPLETING)
        self.deadline_ms = self.now.ms + self.rebalance_ms
        self.unsynced = set(self.members)
        self.to_store = True
        for member_id, ticket in self.joining.items():
            self.tell(ticket, self.joined(member_id))
        self.joining.clear()

    def _empty(self) -> None:
        self.generation += 1
        self.protocol = self.leader = None
        self.deadline_ms = None
        self.unsynced.clear()
        self._enter(State.EMPTY)
        self.to_store = True

    def chosen_protocol(self) -> str:
        """Each votes for the first in its list of those that all know."""
        known_to_all = {name for name, count in self.supported.items() if count == len(self.members)}
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes.update(_first(member.protocols, known_to_all))
        return max(votes, key=lambda protocol: votes[protocol])

    def joined(self, member_id: str) -> Joined:
        members: tuple[Present, ...] = ()
        if member_id == self.leader:
            members = tuple(
                Present(one.member_id, one.instance_id, one.metadata(self.protocol)) for one in self.members.values()
            )
        return Joined(None, member_id, self.generation, self.protocol_type, self.protocol, self.leader or "", members)

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """What the leader has decided. Whom it left out has nothing."""
        self.members = {
            one: msgspec.structs.replace(member, assignment=assignments.get(one, b""))
            for one, member in self.members.items()
        }
        self.size = sum(member.size for member in self.members.values())
        self._enter(State.STABLE)
        self.to_store = True
        self.tell_assignments()

    def tell_assignments(self) -> None:
        for member_id, ticket in self.syncing.items():
            assignment = self.members[member_id].assignment
            self.tell(ticket, Synced(None, member_id, self.protocol_type, self.protocol, assignment))
        self.syncing.clear()
        if not self.unsynced:
            self.deadline_ms = None


def _first(protocols: Iterable[Protocol], known_to_all: set[str]) -> list[str]:
    return [protocol.name for protocol in protocols if protocol.name in known_to_all][:1]
