"""Groups of the classic protocol: members join, the leader assigns the partitions, all get their assignment. Pure.

No store, no clock, no task. A transition is (group, request, time) → (group, replies, whether to store it).

    EMPTY ──join──▶ PREPARING ──all have joined, or deadline──▶ COMPLETING ──the leader has assigned──▶ STABLE
      ▲                │  ▲                                         │                                     │
      └─no members left┘  └────────── a member joins, leaves, or joins again with changed metadata ───────┘

Member metadata is passed on and never decoded. Errors are Kafka's, in the order in which Kafka checks for them.

Before: group_runtime.py, which passes requests, stores transitions and sends replies.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from lakestream.coordination.groups.errors import GroupError
from lakestream.coordination.groups.messages import (
    Group,
    GroupLimits,
    GroupResult,
    InitialRebalanceDelay,
    Instant,
    JoinRequest,
    JoinResult,
    LeaveTransition,
    LeavingMember,
    MemberSubscription,
    Reply,
    SyncRequest,
    SyncResult,
    Ticket,
    Transition,
)
from lakestream.metadata.group_records import GroupRecord, GroupState, Member, MemberProtocol

REBALANCE_MS_MIN: Final = 1_000
"""A member with a shorter rebalance timeout would itself be removed in most rebalances."""


def resumed(record: GroupRecord, now: Instant) -> Group:
    """Returns the group as its next coordinator loads it. Its members continue without a rebalance."""
    builder = _GroupBuilder(Group(record=record), now)
    for member in record.members.values():
        builder.count(member, 1)
    if record.state in (GroupState.PREPARING, GroupState.COMPLETING):
        builder.deadline_ms = now.ms + builder.rebalance_ms
    if record.state is GroupState.COMPLETING:
        builder.unsynced = set(record.members)
    return builder.build().group


def restarted(record: GroupRecord, joining: Iterable[tuple[str, Ticket]], now: Instant) -> Transition[Group]:
    """Starts a rebalance. `joining`: the members that have joined already, in the order of their requests."""
    builder = _GroupBuilder(resumed(record, now), now)
    for member_id, ticket in joining:
        builder.wait_for_join(member_id, ticket)
    builder.protocol = builder.choose_protocol()
    builder.to_store = True
    builder.rebalance()
    return builder.build()


def join(group: Group, request: JoinRequest, now: Instant, limits: GroupLimits) -> Transition[Group]:
    builder = _GroupBuilder(group, now)
    if error := _join_error(builder, request, limits):
        return builder.refuse(request.ticket, JoinResult(error, request.member_id))
    if not request.member_id:
        _join_new(builder, request, limits)
    elif request.member_id in builder.pending and request.instance_id is None:
        del builder.pending[request.member_id]
        builder.add(request, request.member_id, limits)
    elif error := unknown_member_error(builder.members, request.member_id, request.instance_id):
        builder.reply(request.ticket, JoinResult(error, request.member_id))
    else:
        _rejoin(builder, request)
    return builder.build()


def sync(group: Group, request: SyncRequest, now: Instant, limits: GroupLimits) -> Transition[Group]:
    builder = _GroupBuilder(group, now)
    error = _sync_error(group, request)
    if error is None and builder.state is GroupState.PREPARING:
        error = GroupError.REBALANCE_IN_PROGRESS
    leads = builder.state is GroupState.COMPLETING and request.member_id == builder.leader
    if error is None and leads and builder.size + sum(map(len, request.assignments.values())) > limits.bytes_max:
        error = GroupError.UNKNOWN_SERVER_ERROR
    if error is not None:
        return builder.refuse(request.ticket, SyncResult(error, request.member_id))
    builder.unsynced.discard(request.member_id)
    builder.wait_for_sync(request.member_id, request.ticket)
    if leads:
        builder.assign(request.assignments)
    elif builder.state is GroupState.STABLE:
        builder.send_assignments()
    return builder.build()


def heartbeat(record: GroupRecord, member_id: str, instance_id: str | None, generation: int) -> GroupError | None:
    """Checks a heartbeat, which changes nothing. REBALANCE_IN_PROGRESS: it is valid, and the member must rejoin."""
    if error := unknown_member_error(record.members, member_id, instance_id):
        return error
    if generation != record.generation:
        return GroupError.ILLEGAL_GENERATION
    return GroupError.REBALANCE_IN_PROGRESS if record.state is GroupState.PREPARING else None


def leave(group: Group, leavers: Sequence[LeavingMember], now: Instant) -> LeaveTransition[Group]:
    builder = _GroupBuilder(group, now)
    errors = []
    for leaver in leavers:
        member_id, error = _leaving_member(builder, leaver)
        if error is None:
            builder.pending.pop(member_id, None)
            builder.remove([member_id])
        errors.append(error)
    if any(error is None for error in errors):
        builder.rebalance_after_removal()
    return LeaveTransition(builder.build(), tuple(errors))


def expire(group: Group, member_ids: Iterable[str], now: Instant) -> Transition[Group]:
    """Removes members whose sessions have expired. A member whose request waits for a reply is alive."""
    builder = _GroupBuilder(group, now)
    expired = [
        one
        for one in member_ids
        if one in builder.members and one not in builder.joining and one not in builder.syncing
    ]
    if expired:
        builder.remove(expired)
        builder.rebalance_after_removal()
    return builder.build()


def tick(group: Group, now: Instant, limits: GroupLimits) -> Transition[Group]:
    """Applies the deadlines that have passed."""
    builder = _GroupBuilder(group, now)
    if late := [member_id for member_id, until_ms in builder.pending.items() if until_ms <= now.ms]:
        for member_id in late:
            del builder.pending[member_id]
        builder.rebalance_after_removal()
    if builder.deadline_ms is not None and builder.deadline_ms <= now.ms:
        if builder.state is GroupState.PREPARING:
            builder.end_joining(limits)
        elif builder.unsynced:
            builder.remove(list(builder.unsynced))
            builder.rebalance_after_removal()
        else:
            builder.deadline_ms = None
    return builder.build()


def extend_deadlines(group: Group, ms: int) -> Group:
    """Postpones all deadlines."""
    return replace(
        group,
        deadline_ms=None if group.deadline_ms is None else group.deadline_ms + ms,
        pending={member_id: until_ms + ms for member_id, until_ms in group.pending.items()},
    )


# ── checks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def unknown_member_error(members: Mapping[str, Member], member_id: str, instance_id: str | None) -> GroupError | None:
    member = members.get(member_id)
    if instance_id is not None and (member is None or member.instance_id != instance_id):
        holder = static_member(members, instance_id)
        return GroupError.UNKNOWN_MEMBER_ID if holder is None else GroupError.FENCED_INSTANCE_ID
    return None if member is not None else GroupError.UNKNOWN_MEMBER_ID


def static_member(members: Mapping[str, Member], instance_id: str) -> str | None:
    return next((member_id for member_id, member in members.items() if member.instance_id == instance_id), None)


def _join_error(builder: "_GroupBuilder", request: JoinRequest, limits: GroupLimits) -> GroupError | None:
    if not limits.session_ms_min <= request.session_ms <= limits.session_ms_max:
        return GroupError.INVALID_SESSION_TIMEOUT
    if not builder.supports(request):
        return GroupError.INCONSISTENT_GROUP_PROTOCOL
    member = builder.members.get(request.member_id)
    if member is None and request.instance_id is not None:
        member = builder.members.get(static_member(builder.members, request.instance_id) or "")
    is_counted = member is not None or request.member_id in builder.pending
    if not is_counted and len(builder.members) + len(builder.pending) >= limits.members_max:
        return GroupError.GROUP_MAX_SIZE_REACHED
    size = _member(request, request.member_id or request.new_id).size - (member.size if member else 0)
    return GroupError.GROUP_MAX_SIZE_REACHED if builder.size + size > limits.bytes_max else None


def _sync_error(group: Group, request: SyncRequest) -> GroupError | None:
    record = group.record
    if error := unknown_member_error(record.members, request.member_id, request.instance_id):
        return error
    if request.generation != record.generation:
        return GroupError.ILLEGAL_GENERATION
    if request.protocol_type not in (None, record.protocol_type) or request.protocol not in (None, record.protocol):
        return GroupError.INCONSISTENT_GROUP_PROTOCOL
    return None


def _leaving_member(builder: "_GroupBuilder", leaver: LeavingMember) -> tuple[str, GroupError | None]:
    """Returns the id of the leaving member. An administrator names a static member by its instance id alone."""
    if not leaver.member_id and leaver.instance_id is not None:
        member_id = static_member(builder.members, leaver.instance_id)
        return (member_id, None) if member_id is not None else ("", GroupError.UNKNOWN_MEMBER_ID)
    if leaver.member_id in builder.pending:
        return leaver.member_id, None
    return leaver.member_id, unknown_member_error(builder.members, leaver.member_id, leaver.instance_id)


# ── joining ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _join_new(builder: "_GroupBuilder", request: JoinRequest, limits: GroupLimits) -> None:
    if request.instance_id is not None:
        old_id = static_member(builder.members, request.instance_id)
        if old_id is not None:
            _join_static(builder, request, old_id)
            return
    elif request.requires_known_member_id:
        builder.pending[request.new_id] = builder.now.ms + request.session_ms
        builder.reply(request.ticket, JoinResult(GroupError.MEMBER_ID_REQUIRED, request.new_id))
        return
    builder.add(request, request.new_id, limits)


def _join_static(builder: "_GroupBuilder", request: JoinRequest, old_id: str) -> None:
    """Replaces a static member that joined with another member id."""
    leader = builder.leader
    builder.rename(old_id, request.new_id)
    builder.update(request, request.new_id)
    if builder.state is not GroupState.STABLE or builder.choose_protocol() != builder.protocol:
        builder.wait_for_join(request.new_id, request.ticket)
        builder.rebalance()
        return
    builder.to_store = True
    leads = builder.leader == request.new_id
    if not request.supports_skipping_assignment:  # a client named as the leader would assign partitions
        builder.reply(request.ticket, builder.joined(request.new_id)._replace(leader=leader or "", members=()))
    else:
        builder.reply(request.ticket, builder.joined(request.new_id)._replace(skip_assignment=leads))


def _rejoin(builder: "_GroupBuilder", request: JoinRequest) -> None:
    """Handles a join of an existing member.

    If its metadata is unchanged, the response was probably lost, and it is sent again. But a leader that joins again
    has to assign the partitions.
    """
    same = builder.members[request.member_id].protocols == request.protocols
    follows = builder.state is GroupState.STABLE and builder.leader != request.member_id
    if same and (follows or builder.state is GroupState.COMPLETING):
        builder.reply(request.ticket, builder.joined(request.member_id))
        return
    builder.update(request, request.member_id)
    builder.wait_for_join(request.member_id, request.ticket)
    builder.rebalance()


def _member(request: JoinRequest, member_id: str) -> Member:
    return Member(
        member_id,
        request.instance_id,
        request.client_id,
        request.host,
        request.session_ms,
        max(REBALANCE_MS_MIN, request.rebalance_ms),
        request.protocols,
    )


class _GroupBuilder:
    """The mutable state of a group during a transition."""

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
        self.initial_delay = group.initial_delay
        self.size = group.size
        self.to_store = False
        self._group = group
        self._since_ms = record.since_ms
        self._replies: list[Reply] = []

    def build(self) -> Transition[Group]:
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
            initial_delay=self.initial_delay,
            supported=self.supported,
            size=self.size,
        )
        return Transition(group, tuple(self._replies), self.to_store)

    def refuse(self, ticket: Ticket, result: GroupResult) -> Transition[Group]:
        """Returns a transition that only replies with an error."""
        return Transition(self._group, (Reply(ticket, result),))

    def reply(self, ticket: Ticket, result: GroupResult) -> None:
        self._replies.append(Reply(ticket, result))

    # ── members ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def rebalance_ms(self) -> int:
        return max((member.rebalance_ms for member in self.members.values()), default=0)

    def supports(self, request: JoinRequest) -> bool:
        if not self.members:
            return bool(request.protocol_type and request.protocols)
        all_members = len(self.members)
        return request.protocol_type == self.protocol_type and any(
            self.supported.get(protocol.name) == all_members for protocol in request.protocols
        )

    def add(self, request: JoinRequest, member_id: str, limits: GroupLimits) -> None:
        if not self.members:
            self.protocol_type = request.protocol_type
        self._put(_member(request, member_id))
        if self.leader is None:
            self.leader = member_id
        if self.initial_delay is not None:
            self.initial_delay = self.initial_delay._replace(has_new_members=True)
        self.wait_for_join(member_id, request.ticket)
        if self.state is GroupState.EMPTY:
            self._start_initial_delay(limits)
        else:
            self.rebalance()

    def update(self, request: JoinRequest, member_id: str) -> None:
        self._put(
            msgspec.structs.replace(
                self.members[member_id],
                session_ms=request.session_ms,
                rebalance_ms=max(REBALANCE_MS_MIN, request.rebalance_ms),
                protocols=request.protocols,
            )
        )

    def rename(self, old_id: str, new_id: str) -> None:
        """Requests that wait under the old id fail as fenced."""
        old = self.members.pop(old_id)
        self.members[new_id] = new = msgspec.structs.replace(old, member_id=new_id)
        self.count(old, -1)
        self.count(new, 1)
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.unsynced:
            self.unsynced.discard(old_id)
            self.unsynced.add(new_id)
        self._reply_removed(old_id, GroupError.FENCED_INSTANCE_ID)

    def remove(self, member_ids: Sequence[str]) -> None:
        for member_id in member_ids:
            member = self.members.pop(member_id, None)
            if member is None:
                continue  # a client received this id and did not join with it
            self.count(member, -1)
            self.unsynced.discard(member_id)
            self._reply_removed(member_id, GroupError.UNKNOWN_MEMBER_ID)
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

    def _reply_removed(self, member_id: str, error: GroupError) -> None:
        if (ticket := self.joining.pop(member_id, None)) is not None:
            self.reply(ticket, JoinResult(error, member_id))
        if (ticket := self.syncing.pop(member_id, None)) is not None:
            self.reply(ticket, SyncResult(error, member_id))

    def wait_for_join(self, member_id: str, ticket: Ticket) -> None:
        """Adds a waiting join. A second request of a member ends the first, which its client has abandoned."""
        if (before := self.joining.get(member_id)) is not None:
            self.reply(before, JoinResult(GroupError.REBALANCE_IN_PROGRESS, member_id))
        self.joining[member_id] = ticket

    def wait_for_sync(self, member_id: str, ticket: Ticket) -> None:
        if (before := self.syncing.get(member_id)) is not None:
            self.reply(before, SyncResult(GroupError.REBALANCE_IN_PROGRESS, member_id))
        self.syncing[member_id] = ticket

    # ── from one generation to the next ──────────────────────────────────────────────────────────────────────────────

    def _enter(self, state: GroupState) -> None:
        self.state = state
        self._since_ms = self.now.wall_ms

    def _start_initial_delay(self, limits: GroupLimits) -> None:
        """Waits for more members, so that all members that join now need one rebalance."""
        self._enter(GroupState.PREPARING)
        wait_ms = min(limits.initial_delay_ms, self.rebalance_ms)
        self.initial_delay = InitialRebalanceDelay(self.rebalance_ms - wait_ms)
        self.deadline_ms = self.now.ms + wait_ms
        if wait_ms == 0:
            self.end_joining(limits)

    def rebalance(self) -> None:
        """Requires all members to join again. Ends the join phase immediately if all have joined."""
        if self.state is not GroupState.PREPARING:
            for member_id, ticket in self.syncing.items():
                self.reply(ticket, SyncResult(GroupError.REBALANCE_IN_PROGRESS, member_id))
            self.syncing.clear()
            self.unsynced.clear()
            self._enter(GroupState.PREPARING)
            self.deadline_ms = self.now.ms + self.rebalance_ms
        if self.initial_delay is None and not self.pending and len(self.joining) == len(self.members):
            self._complete()

    def rebalance_after_removal(self) -> None:
        """Continues the rebalance without the removed members, or starts one."""
        if self.state is GroupState.EMPTY:
            return
        if self.members:
            if self.to_store or self.state is GroupState.PREPARING:
                self.rebalance()
        else:
            self.initial_delay = None
            self._complete()

    def end_joining(self, limits: GroupLimits) -> None:
        """Ends the join phase, unless the group is new and members joined during its initial delay."""
        if (
            self.initial_delay is not None
            and self.initial_delay.has_new_members
            and self.initial_delay.remaining_ms > 0
        ):
            wait_ms = min(limits.initial_delay_ms, self.initial_delay.remaining_ms)
            self.initial_delay = InitialRebalanceDelay(self.initial_delay.remaining_ms - wait_ms)
            self.deadline_ms = self.now.ms + wait_ms
            return
        self.initial_delay = None
        self._complete()

    def _complete(self) -> None:
        """Starts the next generation with the members that have joined and the static members, which may be absent."""
        absent = [one for one, member in self.members.items() if one not in self.joining and not member.instance_id]
        self.remove(absent)
        if not self.members:
            self._empty()
            return
        if self.leader not in self.joining:
            if not self.joining:  # waits until their sessions expire, or a member joins
                self.deadline_ms = self.now.ms + self.rebalance_ms
                return
            self.leader = next(iter(self.joining))
        self.generation += 1
        self.protocol = self.choose_protocol()
        self.members = {one: msgspec.structs.replace(member, assignment=b"") for one, member in self.members.items()}
        self.size = sum(member.size for member in self.members.values())
        self._enter(GroupState.COMPLETING)
        self.deadline_ms = self.now.ms + self.rebalance_ms
        self.unsynced = set(self.members)
        self.to_store = True
        for member_id, ticket in self.joining.items():
            self.reply(ticket, self.joined(member_id))
        self.joining.clear()

    def _empty(self) -> None:
        self.generation += 1
        self.protocol = self.leader = None
        self.deadline_ms = None
        self.unsynced.clear()
        self._enter(GroupState.EMPTY)
        self.to_store = True

    def choose_protocol(self) -> str:
        """Returns the protocol with most votes. Each member votes for its first protocol that all members support."""
        common = {name for name, count in self.supported.items() if count == len(self.members)}
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes.update(_first(member.protocols, common))
        return max(votes, key=lambda protocol: votes[protocol])

    def joined(self, member_id: str) -> JoinResult:
        members: tuple[MemberSubscription, ...] = ()
        if member_id == self.leader:
            members = tuple(
                MemberSubscription(one.member_id, one.instance_id, one.metadata(self.protocol))
                for one in self.members.values()
            )
        return JoinResult(
            None, member_id, self.generation, self.protocol_type, self.protocol, self.leader or "", members
        )

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Stores the leader's assignments. Members without one get an empty assignment."""
        self.members = {
            one: msgspec.structs.replace(member, assignment=assignments.get(one, b""))
            for one, member in self.members.items()
        }
        self.size = sum(member.size for member in self.members.values())
        self._enter(GroupState.STABLE)
        self.to_store = True
        self.send_assignments()

    def send_assignments(self) -> None:
        for member_id, ticket in self.syncing.items():
            assignment = self.members[member_id].assignment
            self.reply(ticket, SyncResult(None, member_id, self.protocol_type, self.protocol, assignment))
        self.syncing.clear()
        if not self.unsynced:
            self.deadline_ms = None


def _first(protocols: Iterable[MemberProtocol], common: set[str]) -> list[str]:
    return [protocol.name for protocol in protocols if protocol.name in common][:1]
