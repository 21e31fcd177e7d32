"""Groups of the consumer protocol (KIP-848): the coordinator assigns partitions, members reconcile by heartbeats. Pure.

No store, no clock, no task.

    the group's epoch    grows with every change of members, subscriptions or topics
    the target           the assignment of all members at that epoch (assignors.py)
    a member's epoch     the newest epoch whose target it has reached, except for partitions that others still own

A member first revokes the partitions that are not in its target (REVOKING) and confirms this in a heartbeat. Then it
gets the new epoch and those partitions of its target that are free, and the rest when their owners have revoked them
(WAITING). So no partition ever has two owners, although no member stops consuming.

A heartbeat is handled in two steps. `heartbeat` records its request; `reconcile` computes the target and answers all
heartbeats since its last call. Between the two, the previous transition is being stored: a thousand members that join
together cost a few targets, not a thousand.

Before: transitions.py.  See also: classic_members.py, members that use the classic protocol; protocol_migration.py,
from one protocol to the other.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec

from lakestream.coordination.groups import regex_subscription
from lakestream.coordination.groups.assignors import ASSIGNORS, Subscriber
from lakestream.coordination.groups.consumer_protocol import CONSUMER
from lakestream.coordination.groups.errors import GroupError, GroupRequestFailed
from lakestream.coordination.groups.messages import (
    JOIN,
    LEAVE,
    LEAVE_STATIC,
    UNCHANGED_MS,
    ConsumerGroup,
    GroupLimits,
    GroupResult,
    HeartbeatRequest,
    HeartbeatResult,
    Instant,
    JoinResult,
    PendingHeartbeat,
    Reply,
    Transition,
)
from lakestream.coordination.groups.topics_image import TopicsImage
from lakestream.metadata.group_records import (
    NOTHING,
    ConsumerGroupRecord,
    ConsumerMember,
    Partitions,
    Progress,
    size_of,
)


def resumed(record: ConsumerGroupRecord, now: Instant) -> ConsumerGroup:
    """Returns the group as its next coordinator loads it. Its members continue without a rebalance."""
    deadlines_ms = {
        member_id: now.ms + member.rebalance_ms
        for member_id, member in record.members.items()
        if member.progress is Progress.REVOKING
    }
    return ConsumerGroup(record=record, deadlines_ms=deadlines_ms, size=size_of(record.members))


def heartbeat(
    group: ConsumerGroup, request: HeartbeatRequest, image: TopicsImage, now: Instant, limits: GroupLimits
) -> Transition[ConsumerGroup]:
    """Records the request of a heartbeat. `reconcile` answers it, unless nothing has changed or the member leaves."""
    if request.epoch in (LEAVE, LEAVE_STATIC):
        return _leave(group, request, now)
    _check_subscription(request)
    record = group.record
    old_id, old = _current_member(record, request)
    check_size(group, old, limits)
    new = _updated(old or ConsumerMember(), request)
    last_assigned = None if old is None else old.assigned
    pending = PendingHeartbeat(request.ticket, request.member_id, request.owned, last_assigned, request.is_full)
    if new is old and group.image is image and is_at_target(record, new):
        return Transition(group, (Reply(request.ticket, _result(pending, new)),))
    return with_member(group, old_id, old, new, pending, now, limits)


def reconcile(group: ConsumerGroup, image: TopicsImage, now: Instant) -> Transition[ConsumerGroup]:
    """Updates the target to all members and topics, and moves each member with a pending heartbeat towards it."""
    record = group.record
    if group.image is not image or record.epoch != record.target_epoch:
        record = with_new_target(record, image)
    reconciler = _Reconciler(record)
    deadlines_ms = dict(group.deadlines_ms)
    replies = []
    for pending in group.pending_heartbeats:
        member = reconciler.members.get(pending.member_id)
        if member is None or pending.is_classic_join != (member.classic is not None):
            replies.append(Reply(pending.ticket, _unknown_member(pending)))
            continue
        advanced = reconciler.advance(pending.member_id, member, pending.owned)
        _set_deadline(deadlines_ms, pending, member, advanced, now)
        replies.append(Reply(pending.ticket, _result(pending, advanced)))
    to_store = reconciler.changed or record is not group.record
    if reconciler.changed:
        record = msgspec.structs.replace(record, members=reconciler.members)
    after = replace(group, record=record, image=image, pending_heartbeats=(), deadlines_ms=deadlines_ms)
    return Transition(after, tuple(replies), to_store)


def without_members(group: ConsumerGroup, member_ids: Iterable[str], now: Instant) -> Transition[ConsumerGroup]:
    """Removes members that left, whose sessions expired, or that missed a deadline."""
    removed = {member_id for member_id in member_ids if member_id in group.record.members}
    if not removed:
        return Transition(group, ())
    members = {member_id: member for member_id, member in group.record.members.items() if member_id not in removed}
    record = msgspec.structs.replace(
        group.record,
        members=members,
        epoch=group.record.epoch + 1,
        since_ms=group.record.since_ms if members else now.wall_ms,
    )
    after = replace(
        group,
        record=record,
        pending_heartbeats=tuple(pending for pending in group.pending_heartbeats if pending.member_id not in removed),
        deadlines_ms={member_id: ms for member_id, ms in group.deadlines_ms.items() if member_id not in removed},
        size=size_of(members),
    )
    replies = unknown_member_replies(pending for pending in group.pending_heartbeats if pending.member_id in removed)
    return Transition(after, replies, to_store=True)


def unknown_member_replies(heartbeats: Iterable[PendingHeartbeat]) -> tuple[Reply, ...]:
    """Returns the replies to requests of members that the group no longer has."""
    return tuple(Reply(pending.ticket, _unknown_member(pending)) for pending in heartbeats)


def tick(group: ConsumerGroup, now: Instant) -> Transition[ConsumerGroup]:
    """Applies the deadlines that have passed."""
    return without_members(group, [member_id for member_id, ms in group.deadlines_ms.items() if ms <= now.ms], now)


def extend_deadlines(group: ConsumerGroup, ms: int) -> ConsumerGroup:
    """Postpones all deadlines."""
    return replace(group, deadlines_ms={one: deadline_ms + ms for one, deadline_ms in group.deadlines_ms.items()})


def is_at_target(record: ConsumerGroupRecord, member: ConsumerMember) -> bool:
    return member.progress is Progress.STABLE and member.epoch == record.target_epoch == record.epoch


def is_stable(record: ConsumerGroupRecord) -> bool:
    return all(is_at_target(record, member) for member in record.members.values())


def static_member(record: ConsumerGroupRecord, instance_id: str) -> str | None:
    return next((one for one, member in record.members.items() if member.instance_id == instance_id), None)


# ── the member of a request ──────────────────────────────────────────────────────────────────────────────────────────


def _check_subscription(request: HeartbeatRequest) -> None:
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        text = f"unknown assignor {request.assignor!r}: use {' or '.join(ASSIGNORS)}"
        raise GroupRequestFailed(GroupError.UNSUPPORTED_ASSIGNOR, text)
    if request.pattern:
        regex_subscription.check(request.pattern)


def _current_member(record: ConsumerGroupRecord, request: HeartbeatRequest) -> tuple[str, ConsumerMember | None]:
    """Returns the member's id and its current state, which is None for a new member."""
    if request.instance_id is not None:
        return _current_static_member(record, request.instance_id, request)
    member = record.members.get(request.member_id)
    if request.epoch == JOIN:
        return request.member_id, None if member is None else as_rejoining(member)
    if member is None:
        raise GroupRequestFailed(GroupError.UNKNOWN_MEMBER_ID, f"the group has no member {request.member_id}")
    _check_epoch(member, request)
    return request.member_id, member


def _current_static_member(
    record: ConsumerGroupRecord, instance_id: str, request: HeartbeatRequest
) -> tuple[str, ConsumerMember | None]:
    member_id = static_member(record, instance_id)
    member = None if member_id is None else record.members[member_id]
    if request.epoch == JOIN:
        if member_id is None or member is None:
            return request.member_id, None
        if member_id != request.member_id and member.epoch != LEAVE_STATIC and member.classic is None:
            text = f"instance {instance_id} is still in use by member {member_id}"
            raise GroupRequestFailed(GroupError.UNRELEASED_INSTANCE_ID, text)
        return member_id, as_rejoining(member)
    if member_id is None or member is None:
        raise GroupRequestFailed(GroupError.UNKNOWN_MEMBER_ID, f"the group has no member of instance {instance_id}")
    if member_id != request.member_id:
        raise GroupRequestFailed(GroupError.FENCED_INSTANCE_ID, f"instance {instance_id} is member {member_id} now")
    _check_epoch(member, request)
    return member_id, member


def as_rejoining(member: ConsumerMember) -> ConsumerMember:
    """Returns a member that joins again: it owns no partitions, and its target stays the same."""
    return msgspec.structs.replace(
        member, epoch=JOIN, epoch_before=JOIN, progress=Progress.STABLE, assigned=NOTHING, revoking=NOTHING
    )


def _check_epoch(member: ConsumerMember, request: HeartbeatRequest) -> None:
    """Raises if the epoch is not current. The previous epoch is valid, too, for a member that owns no more than was
    assigned to it: the response with its new epoch may have been lost."""
    repeats = request.epoch == member.epoch_before and request.owned is not None and request.owned <= member.assigned
    if request.epoch != member.epoch and not repeats:
        text = f"member {request.member_id} is at epoch {member.epoch}, not {request.epoch}: join again"
        raise GroupRequestFailed(GroupError.FENCED_MEMBER_EPOCH, text)


def _leave(group: ConsumerGroup, request: HeartbeatRequest, now: Instant) -> Transition[ConsumerGroup]:
    """Removes the member, or marks a static one as away. A repeated request fails, since the member is unknown then."""
    member_id, record = request.member_id, group.record
    if request.instance_id is not None:
        holder = static_member(record, request.instance_id)
        if holder is None:
            raise GroupRequestFailed(
                GroupError.UNKNOWN_MEMBER_ID, f"the group has no member of instance {request.instance_id}"
            )
        if holder != member_id:
            raise GroupRequestFailed(
                GroupError.FENCED_INSTANCE_ID, f"instance {request.instance_id} is member {holder} now"
            )
    member = record.members.get(member_id)
    if member is None:
        raise GroupRequestFailed(GroupError.UNKNOWN_MEMBER_ID, f"the group has no member {member_id}")
    farewell = Reply(request.ticket, HeartbeatResult(None, member_id, request.epoch))
    if request.epoch == LEAVE:
        transition = without_members(group, [member_id], now)
        return transition._replace(replies=(*transition.replies, farewell))
    away = msgspec.structs.replace(as_rejoining(member), epoch=LEAVE_STATIC)
    record = msgspec.structs.replace(record, members={**record.members, member_id: away})
    deadlines_ms = {other: ms for other, ms in group.deadlines_ms.items() if other != member_id}
    return Transition(replace(group, record=record, deadlines_ms=deadlines_ms), (farewell,), to_store=True)


# ── changes of a member ──────────────────────────────────────────────────────────────────────────────────────────────


def _updated(member: ConsumerMember, request: HeartbeatRequest) -> ConsumerMember:
    """Returns the same object if nothing changed."""
    fields: dict[str, Any] = {"client_id": request.client_id, "host": request.host, "classic": None}
    if request.rebalance_ms != UNCHANGED_MS:
        fields["rebalance_ms"] = request.rebalance_ms
    if request.names is not None:
        fields["names"] = tuple(sorted(set(request.names)))
    if request.pattern is not None:
        fields["pattern"] = request.pattern or None
    for name in ("instance_id", "rack", "assignor"):
        if (value := getattr(request, name)) is not None:
            fields[name] = value
    return updated(member, fields)


def updated(member: ConsumerMember, fields: dict[str, Any]) -> ConsumerMember:
    changes = {name: value for name, value in fields.items() if getattr(member, name) != value}
    return msgspec.structs.replace(member, **changes) if changes else member


def with_member(
    group: ConsumerGroup,
    old_id: str,
    old: ConsumerMember | None,
    new: ConsumerMember,
    pending: PendingHeartbeat,
    now: Instant,
    limits: GroupLimits,
) -> Transition[ConsumerGroup]:
    """Adds or updates a member, whose heartbeat is pending then.

    The epoch grows only if the change may affect other members: not when a static member rejoins with another id."""
    record, member_id = group.record, pending.member_id
    replaced = {one: record.members[one] for one in {old_id, member_id} if one in record.members}
    size = group.size - size_of(replaced) + size_of({member_id: new})
    if size > group.size and size + record.topics_size > limits.bytes_max:
        text = f"the group needs {size + record.topics_size} bytes in the store: the limit is {limits.bytes_max}"
        raise GroupRequestFailed(GroupError.GROUP_MAX_SIZE_REACHED, text)
    if replaced != {member_id: new}:
        members = {**record.members, member_id: new}
        if old_id != member_id:
            members.pop(old_id, None)
        changed = old is None or len(replaced) > 1 or _subscription(old) != _subscription(new)
        since_ms = now.wall_ms if not record.members else record.since_ms
        record = msgspec.structs.replace(record, members=members, epoch=record.epoch + changed, since_ms=since_ms)
    deadlines_ms = group.deadlines_ms
    if old_id != member_id and old_id in deadlines_ms:
        deadlines_ms = {other: ms for other, ms in deadlines_ms.items() if other != old_id}
    after = replace(
        group,
        record=record,
        pending_heartbeats=(*group.pending_heartbeats, pending),
        deadlines_ms=deadlines_ms,
        size=size,
    )
    return Transition(after, (), to_store=record is not group.record)


def check_size(group: ConsumerGroup, old: ConsumerMember | None, limits: GroupLimits) -> None:
    if old is None and len(group.record.members) >= limits.members_max:
        text = f"the group has {len(group.record.members)} members already"
        raise GroupRequestFailed(GroupError.GROUP_MAX_SIZE_REACHED, text)


def _subscription(member: ConsumerMember) -> tuple[object, ...]:
    return member.names, member.pattern, member.assignor, member.rack


# ── the target ───────────────────────────────────────────────────────────────────────────────────────────────────────


def with_new_target(record: ConsumerGroupRecord, image: TopicsImage) -> ConsumerGroupRecord:
    """Computes the target for all members and topics. The epoch grows if a subscribed topic was created, deleted or got
    more partitions."""
    by_subscription: dict[tuple[object, ...], frozenset[str]] = {}
    subscribed: dict[str, frozenset[str]] = {}
    for member_id, member in record.members.items():
        key = member.names, member.pattern
        if key not in by_subscription:
            by_subscription[key] = topics_of(member, image)
        subscribed[member_id] = by_subscription[key]
    topics = {name: image.shape(name) for name in sorted(frozenset[str]().union(*by_subscription.values()))}
    if topics != record.topics:
        needs_epoch = record.epoch == record.target_epoch  # else it has a new epoch already
        record = msgspec.structs.replace(record, epoch=record.epoch + needs_epoch, topics=topics)
    if record.target_epoch == record.epoch:
        return record
    ids = {names: frozenset(topics[name].topic_id for name in names) for names in set(by_subscription.values())}
    subscribers = {
        member_id: Subscriber(ids[subscribed[member_id]], member.instance_id, member.target)
        for member_id, member in record.members.items()
    }
    counts = {shape.topic_id: shape.partition_count for shape in topics.values()}
    targets = ASSIGNORS[assignor_of(record)](subscribers, counts)
    members = {
        member_id: updated(member, {"target": targets[member_id]}) for member_id, member in record.members.items()
    }
    return msgspec.structs.replace(record, members=members, target_epoch=record.epoch)


def due_for_target(group: ConsumerGroup) -> ConsumerGroup:
    """Returns the group at an epoch that has no target yet.

    After an upgrade the target is the classic leader's assignment, and a static member that rejoins with the same
    subscription starts no epoch by itself."""
    record = group.record
    if record.epoch > record.target_epoch:
        return group
    return replace(group, record=msgspec.structs.replace(record, epoch=record.epoch + 1))


def assignor_of(record: ConsumerGroupRecord) -> str:
    """Returns the assignor that most members request."""
    votes = [member.assignor for member in record.members.values() if member.assignor is not None]
    return max(ASSIGNORS, key=votes.count)


def topics_of(member: ConsumerMember, image: TopicsImage) -> frozenset[str]:
    """Returns the existing topics that the member subscribes to."""
    matched = () if member.pattern is None else image.matching(member.pattern)
    return frozenset(name for name in (*member.names, *matched) if name in image.topics)


# ── reconciliation ───────────────────────────────────────────────────────────────────────────────────────────────────


class _Reconciler:
    """Moves members towards the target, one after another."""

    def __init__(self, record: ConsumerGroupRecord) -> None:
        self.members = record.members
        self.changed = False
        self._epoch = record.target_epoch
        self._owners: dict[object, str] | None = None

    def advance(self, member_id: str, member: ConsumerMember, owned: Partitions | None) -> ConsumerMember:
        """Moves the member by one state, if possible."""
        advanced = self._next_state(member_id, member, owned)
        if advanced is not member:
            if not self.changed:
                self.members, self.changed = dict(self.members), True
            self.members[member_id] = advanced
            self._update_owners(member_id, member, advanced)
        return advanced

    def _next_state(self, member_id: str, member: ConsumerMember, owned: Partitions | None) -> ConsumerMember:
        if member.progress is Progress.REVOKING and (owned is None or owned & member.revoking):
            return member  # it has not confirmed the revocation yet
        if member.progress is Progress.STABLE and member.epoch == self._epoch:
            return member
        revoke = member.assigned - member.target
        stay = member.assigned & member.target
        if revoke and (owned is None or owned & revoke):
            return msgspec.structs.replace(member, progress=Progress.REVOKING, assigned=stay, revoking=revoke)
        assigned = stay | self._free(member_id, member.target - member.assigned)
        fields: dict[str, Any] = {
            "progress": Progress.STABLE if assigned == member.target else Progress.WAITING,
            "assigned": assigned,
            "revoking": NOTHING,
        }
        if member.epoch != self._epoch:
            fields |= {"epoch": self._epoch, "epoch_before": member.epoch}
        return updated(member, fields)

    def _free(self, member_id: str, missing: Partitions) -> Partitions:
        if not missing:
            return NOTHING
        if self._owners is None:
            self._owners = {one: owner for owner, member in self.members.items() for one in member.reserved}
        owners = self._owners
        return frozenset(one for one in missing if owners.get(one, member_id) == member_id)

    def _update_owners(self, member_id: str, before: ConsumerMember, after: ConsumerMember) -> None:
        if self._owners is not None:
            for one in before.reserved - after.reserved:
                self._owners.pop(one, None)
            self._owners.update(dict.fromkeys(after.reserved, member_id))


def _set_deadline(
    deadlines_ms: dict[str, int], pending: PendingHeartbeat, before: ConsumerMember, after: ConsumerMember, now: Instant
) -> None:
    """Sets a deadline: for a classic member that joins, to request its assignment; for others, to revoke partitions."""
    if pending.is_classic_join or (after.progress is Progress.REVOKING and after.revoking != before.revoking):
        deadlines_ms[pending.member_id] = now.ms + after.rebalance_ms
    elif after.progress is not Progress.REVOKING:
        deadlines_ms.pop(pending.member_id, None)


def _result(pending: PendingHeartbeat, member: ConsumerMember) -> GroupResult:
    if member.classic is not None:
        return JoinResult(None, pending.member_id, member.epoch, CONSUMER, member.classic.protocols[0].name)
    is_current = pending.last_assigned == member.assigned and pending.owned in (None, member.assigned)
    has_changed = pending.is_full or not is_current
    return HeartbeatResult(None, pending.member_id, member.epoch, member.assigned if has_changed else None)


def _unknown_member(pending: PendingHeartbeat) -> GroupResult:
    if pending.is_classic_join:
        return JoinResult(GroupError.UNKNOWN_MEMBER_ID, pending.member_id)
    return HeartbeatResult(GroupError.UNKNOWN_MEMBER_ID, pending.member_id)
