"""Transitions of a group in either protocol. Pure.

Before: group_runtime.py.  After: classic_group.py, groups of the classic protocol; consumer_group.py and
classic_members.py, groups of the consumer protocol; protocol_migration.py, from one to the other.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lakestream.coordination.groups import classic_group, classic_members, consumer_group, protocol_migration
from lakestream.coordination.groups.errors import GroupError, GroupRequestFailed
from lakestream.coordination.groups.messages import (
    JOIN,
    AnyGroup,
    ConsumerGroup,
    GroupLimits,
    HeartbeatRequest,
    Instant,
    JoinRequest,
    LeaveTransition,
    LeavingMember,
    SyncRequest,
    Transition,
)
from lakestream.coordination.groups.topics_image import TopicsImage
from lakestream.metadata.group_records import AnyGroupRecord, ConsumerMember, GroupRecord, Member


class TransitionContext(NamedTuple):
    image: TopicsImage
    now: Instant
    limits: GroupLimits


def resumed(record: AnyGroupRecord, now: Instant) -> AnyGroup:
    return (
        classic_group.resumed(record, now) if isinstance(record, GroupRecord) else consumer_group.resumed(record, now)
    )


def join(group: AnyGroup, request: JoinRequest, context: TransitionContext) -> Transition[AnyGroup]:
    if isinstance(group, ConsumerGroup) and group.record.is_empty:
        emptied = protocol_migration.emptied(group, context.now)
        transition = classic_group.join(emptied.group, request, context.now, context.limits)
        return transition._replace(replies=(*emptied.replies, *transition.replies))
    if isinstance(group, ConsumerGroup):
        joined = classic_members.join(group, request, context.image, context.now, context.limits)
        return _downgraded_if_classic(group, joined, context)
    return classic_group.join(group, request, context.now, context.limits)


def sync(group: AnyGroup, request: SyncRequest, context: TransitionContext) -> Transition[AnyGroup]:
    if isinstance(group, ConsumerGroup):
        return classic_members.sync(group, request, context.image)
    return classic_group.sync(group, request, context.now, context.limits)


class HeartbeatTransition(NamedTuple):
    transition: Transition[AnyGroup]
    error: GroupError | None


def heartbeat(
    group: AnyGroup, member_id: str, instance_id: str | None, generation: int, context: TransitionContext
) -> HeartbeatTransition:
    """Handles a heartbeat of the classic protocol."""
    transition: Transition[AnyGroup] = Transition(group, ())
    if not isinstance(group, ConsumerGroup):
        error = classic_group.heartbeat(group.record, member_id, instance_id, generation)
        return HeartbeatTransition(transition, error)
    if group.image is not context.image:  # topics changed, and all members of the consumer protocol may be away
        reconciled = consumer_group.reconcile(group, context.image, context.now)
        transition, group = reconciled, reconciled.group
    heartbeat = classic_members.heartbeat(group, member_id, instance_id, generation, context.now)
    return HeartbeatTransition(transition._replace(group=heartbeat.group), heartbeat.error)


def consumer_heartbeat(
    name: str, group: AnyGroup, request: HeartbeatRequest, context: TransitionContext
) -> Transition[AnyGroup]:
    """Handles a ConsumerGroupHeartbeat. If it raises GroupRequestFailed, the group is unchanged."""
    image, now, limits = context
    if isinstance(group, ConsumerGroup):
        transition = consumer_group.heartbeat(group, request, image, now, limits)
        return _downgraded_if_classic(group, transition, context)
    if request.epoch != JOIN:
        text = f"group {name} does not use the consumer protocol"
        raise GroupRequestFailed(GroupError.GROUP_ID_NOT_FOUND, text)
    upgraded = protocol_migration.upgraded(name, group, image)
    transition = consumer_group.heartbeat(upgraded.group, request, image, now, limits)
    group = consumer_group.due_for_target(transition.group)
    return Transition(group, (*upgraded.replies, *transition.replies), to_store=True)


def reconciled(group: AnyGroup, context: TransitionContext) -> Transition[AnyGroup]:
    """Answers all pending heartbeats."""
    if isinstance(group, ConsumerGroup):
        return consumer_group.reconcile(group, context.image, context.now)
    return Transition(group, ())


def leave(group: AnyGroup, leavers: Sequence[LeavingMember], context: TransitionContext) -> LeaveTransition[AnyGroup]:
    if isinstance(group, ConsumerGroup):
        left = classic_members.leave(group, leavers, context.now)
        return LeaveTransition(_downgraded_if_classic(group, left.transition, context), left.errors)
    return classic_group.leave(group, leavers, context.now)


def cancel_join(group: AnyGroup, request: JoinRequest, context: TransitionContext) -> Transition[AnyGroup]:
    """Removes a new member whose client disconnected before it received its id: no client can use that id. A static
    member stays, since its client rejoins with the instance id."""
    if isinstance(group, ConsumerGroup):
        is_lost = request.instance_id is None and request.new_id in group.record.members
    else:
        is_lost = group.joining.get(request.new_id) == request.ticket
    return leave(group, [LeavingMember(request.new_id)], context).transition if is_lost else Transition(group, ())


def expire(group: AnyGroup, member_ids: Sequence[str], context: TransitionContext) -> Transition[AnyGroup]:
    if isinstance(group, ConsumerGroup):
        return _downgraded_if_classic(group, consumer_group.without_members(group, member_ids, context.now), context)
    return classic_group.expire(group, member_ids, context.now)


def tick(group: AnyGroup, context: TransitionContext) -> Transition[AnyGroup]:
    if isinstance(group, ConsumerGroup):
        return _downgraded_if_classic(group, consumer_group.tick(group, context.now), context)
    return classic_group.tick(group, context.now, context.limits)


def extend_deadlines(group: AnyGroup, ms: int) -> AnyGroup:
    if isinstance(group, ConsumerGroup):
        return consumer_group.extend_deadlines(group, ms)
    return classic_group.extend_deadlines(group, ms)


def session_ms(member: Member | ConsumerMember, limits: GroupLimits) -> int:
    if isinstance(member, Member):
        return member.session_ms
    return limits.session_ms if member.classic is None else member.classic.session_ms


def is_of_consumer_protocol(member: Member | ConsumerMember) -> bool:
    return isinstance(member, ConsumerMember) and member.classic is None


def _downgraded_if_classic(
    before: ConsumerGroup, transition: Transition[ConsumerGroup], context: TransitionContext
) -> Transition[AnyGroup]:
    """Converts the group to the classic protocol if no member uses the consumer protocol any longer."""
    if not protocol_migration.has_only_classic_members(transition.group.record):
        return transition
    back = protocol_migration.downgraded(transition.group, before.record.epoch, context.image, context.now)
    return back._replace(replies=(*transition.replies, *back.replies))
