"""Members that use the classic protocol in a group of the consumer protocol, during a rolling upgrade. Pure.

For them the coordinator acts as the leader: it decodes their subscriptions and owned partitions (consumer_protocol.py),
reconciles them like all other members, and encodes their assignment for the classic protocol. No request waits for
other members: a JoinGroup gets its response immediately, and if the member must join again, its next heartbeat gets
REBALANCE_IN_PROGRESS.

Before: transitions.py.  After: consumer_group.py, which reconciles.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from lakestream.coordination.groups import consumer_group
from lakestream.coordination.groups.classic_group import REBALANCE_MS_MIN
from lakestream.coordination.groups.consumer_group import static_member
from lakestream.coordination.groups.consumer_protocol import (
    CONSUMER,
    InvalidConsumerProtocol,
    Subscription,
    read_subscription,
    write_assignment,
)
from lakestream.coordination.groups.errors import GroupError, GroupRequestFailed
from lakestream.coordination.groups.messages import (
    ConsumerGroup,
    GroupLimits,
    Instant,
    JoinRequest,
    JoinResult,
    LeaveTransition,
    LeavingMember,
    PendingHeartbeat,
    Reply,
    SyncRequest,
    SyncResult,
    Transition,
)
from lakestream.coordination.groups.topics_image import TopicsImage
from lakestream.metadata.group_records import ClassicSide, ConsumerGroupRecord, ConsumerMember, Progress


def join(
    group: ConsumerGroup, request: JoinRequest, image: TopicsImage, now: Instant, limits: GroupLimits
) -> Transition[ConsumerGroup]:
    try:
        return _join(group, request, image, now, limits)
    except GroupRequestFailed as failed:
        return Transition(group, (Reply(request.ticket, JoinResult(failed.error, request.member_id)),))


def sync(group: ConsumerGroup, request: SyncRequest, image: TopicsImage) -> Transition[ConsumerGroup]:
    try:
        member, side = _classic_member(group.record, request.member_id, request.instance_id)
        protocol = side.protocols[0]
        _check_sync(group.record, member, request, protocol.name)
    except GroupRequestFailed as failed:
        return Transition(group, (Reply(request.ticket, SyncResult(failed.error, request.member_id)),))
    assignment = write_assignment(read_subscription(protocol.metadata).version, image.named(member.assigned))
    deadlines_ms = {other: ms for other, ms in group.deadlines_ms.items() if other != request.member_id}
    reply = Reply(request.ticket, SyncResult(None, request.member_id, CONSUMER, protocol.name, assignment))
    return Transition(replace(group, deadlines_ms=deadlines_ms), (reply,))


class ClassicHeartbeat(NamedTuple):
    group: ConsumerGroup
    error: GroupError | None


def heartbeat(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, now: Instant
) -> ClassicHeartbeat:
    """Checks a heartbeat. REBALANCE_IN_PROGRESS: it is valid, and the member must join again by a deadline set now."""
    try:
        member, _ = _classic_member(group.record, member_id, instance_id)
        if generation != member.epoch:
            raise GroupRequestFailed(
                GroupError.ILLEGAL_GENERATION, f"member {member_id} is at {member.epoch}, not {generation}"
            )
    except GroupRequestFailed as failed:
        return ClassicHeartbeat(group, failed.error)
    if not _must_rejoin(group.record, member_id, member):
        return ClassicHeartbeat(group, None)
    deadlines_ms = {member_id: now.ms + member.rebalance_ms, **group.deadlines_ms}
    return ClassicHeartbeat(replace(group, deadlines_ms=deadlines_ms), GroupError.REBALANCE_IN_PROGRESS)


def leave(group: ConsumerGroup, leavers: Sequence[LeavingMember], now: Instant) -> LeaveTransition[ConsumerGroup]:
    leaving: list[str] = []
    errors: list[GroupError | None] = []
    for leaver in leavers:
        try:
            leaving.append(_leaving(group.record, leaver, leaving))
            errors.append(None)
        except GroupRequestFailed as failed:
            errors.append(failed.error)
    return LeaveTransition(consumer_group.without_members(group, leaving, now), tuple(errors))


# ── joining ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _join(
    group: ConsumerGroup, request: JoinRequest, image: TopicsImage, now: Instant, limits: GroupLimits
) -> Transition[ConsumerGroup]:
    if not limits.session_ms_min <= request.session_ms <= limits.session_ms_max:
        raise GroupRequestFailed(GroupError.INVALID_SESSION_TIMEOUT, f"invalid session timeout {request.session_ms} ms")
    _check_protocols(group.record, request)
    subscription = _subscription(request)
    if not request.member_id and request.instance_id is None and request.requires_known_member_id:
        return Transition(group, (Reply(request.ticket, JoinResult(GroupError.MEMBER_ID_REQUIRED, request.new_id)),))
    old_id, old = _current_member(group.record, request)
    consumer_group.check_size(group, old, limits)
    fields: dict[str, Any] = {
        "instance_id": request.instance_id,
        "rack": subscription.rack,
        "client_id": request.client_id,
        "host": request.host,
        "rebalance_ms": max(REBALANCE_MS_MIN, request.rebalance_ms),
        "names": tuple(sorted(set(subscription.topics))),
        "pattern": None,
        "assignor": None,
        "classic": ClassicSide(request.session_ms, request.protocols),
    }
    new = consumer_group.updated(old or ConsumerMember(), fields)
    owned = image.partitions(subscription.owned)
    pending = PendingHeartbeat(request.ticket, request.member_id or request.new_id, owned, is_classic_join=True)
    return consumer_group.with_member(group, old_id, old, new, pending, now, limits)


def _check_protocols(record: ConsumerGroupRecord, request: JoinRequest) -> None:
    """Checks that all classic members share a protocol, which they need if the group becomes a classic one again."""
    sides = [member.classic for member in record.members.values() if member.classic is not None]
    supported = Counter(name for side in sides for name in {protocol.name for protocol in side.protocols})
    shared = any(supported[protocol.name] == len(sides) for protocol in request.protocols)
    if request.protocol_type != CONSUMER or not shared:
        text = f"the members have no protocol in common with {request.member_id or request.client_id}"
        raise GroupRequestFailed(GroupError.INCONSISTENT_GROUP_PROTOCOL, text)


def _subscription(request: JoinRequest) -> Subscription:
    """Decodes all subscriptions of the member: an invalid one could not be used for an assignment."""
    try:
        first, *_ = [read_subscription(protocol.metadata) for protocol in request.protocols]
    except InvalidConsumerProtocol as error:
        raise GroupRequestFailed(GroupError.INCONSISTENT_GROUP_PROTOCOL, f"invalid subscription: {error}") from error
    return first


def _current_member(record: ConsumerGroupRecord, request: JoinRequest) -> tuple[str, ConsumerMember | None]:
    """Returns the member's id and its current state, which is None for a new member."""
    if request.instance_id is None:
        member_id = request.member_id or request.new_id
        return member_id, record.members.get(member_id)
    holder = static_member(record, request.instance_id)
    if not request.member_id:  # it replaces the current member of its instance
        return (
            (request.new_id, None) if holder is None else (holder, consumer_group.as_rejoining(record.members[holder]))
        )
    if holder is None:
        raise GroupRequestFailed(
            GroupError.UNKNOWN_MEMBER_ID, f"the group has no member of instance {request.instance_id}"
        )
    if holder != request.member_id:
        raise GroupRequestFailed(
            GroupError.FENCED_INSTANCE_ID, f"instance {request.instance_id} is member {holder} now"
        )
    return holder, record.members[holder]


# ── checks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _classic_member(
    record: ConsumerGroupRecord, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember, ClassicSide]:
    holder = member_id if instance_id is None else static_member(record, instance_id)
    if holder is not None and holder != member_id:
        raise GroupRequestFailed(GroupError.FENCED_INSTANCE_ID, f"instance {instance_id} is member {holder} now")
    member = None if holder is None else record.members.get(holder)
    if member is None or member.classic is None:
        raise GroupRequestFailed(
            GroupError.UNKNOWN_MEMBER_ID, f"the group has no member {member_id} of the classic protocol"
        )
    return member, member.classic


def _check_sync(record: ConsumerGroupRecord, member: ConsumerMember, request: SyncRequest, protocol: str) -> None:
    if request.generation != member.epoch:
        raise GroupRequestFailed(GroupError.ILLEGAL_GENERATION, f"member {request.member_id} is at {member.epoch}")
    if request.protocol_type not in (None, CONSUMER) or request.protocol not in (None, protocol):
        raise GroupRequestFailed(
            GroupError.INCONSISTENT_GROUP_PROTOCOL, f"member {request.member_id} has protocol {protocol}"
        )
    if record.epoch > member.epoch and member.progress is not Progress.REVOKING:
        raise GroupRequestFailed(GroupError.REBALANCE_IN_PROGRESS, "join again")


def _must_rejoin(record: ConsumerGroupRecord, member_id: str, member: ConsumerMember) -> bool:
    """Returns whether the member must join again: for a new epoch, a revocation, or partitions that are free now."""
    if member.epoch < record.epoch or member.progress is Progress.REVOKING:
        return True
    if member.progress is not Progress.WAITING:
        return False
    missing = member.target - member.assigned
    return all(missing.isdisjoint(other.reserved) for one, other in record.members.items() if one != member_id)


def _leaving(record: ConsumerGroupRecord, leaver: LeavingMember, removed: Sequence[str]) -> str:
    """Returns the id of the leaving member. An administrator names a static member of either protocol by its instance
    id alone."""
    if not leaver.member_id and leaver.instance_id is not None:
        member_id = static_member(record, leaver.instance_id)
        if member_id is None or member_id in removed:
            raise GroupRequestFailed(
                GroupError.UNKNOWN_MEMBER_ID, f"the group has no member of instance {leaver.instance_id}"
            )
        return member_id
    _classic_member(record, leaver.member_id, leaver.instance_id)
    if leaver.member_id in removed:
        raise GroupRequestFailed(GroupError.UNKNOWN_MEMBER_ID, f"member {leaver.member_id} has left already")
    return leaver.member_id
