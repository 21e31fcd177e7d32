"""Converts a group from the classic protocol to KIP-848 and back, without losing its members. Pure.

    upgrade      when a member of the new protocol joins; the others stay as classic members (classic_members.py)
    downgrade    when the last member of the new protocol leaves, or when a classic member joins an empty group

Epochs and generations keep counting, so requests with an older epoch are recognised as stale.
"""

from collections.abc import Mapping

from lakestream.coordination.groups import classic_group, consumer_group
from lakestream.coordination.groups.consumer_protocol import (
    CONSUMER,
    InvalidConsumerProtocol,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
)
from lakestream.coordination.groups.errors import GroupError, GroupRequestFailed
from lakestream.coordination.groups.messages import (
    ConsumerGroup,
    Group,
    Instant,
    PendingHeartbeat,
    Reply,
    SyncResult,
    Transition,
)
from lakestream.coordination.groups.topics_image import TopicsImage
from lakestream.metadata.group_records import (
    NOTHING,
    ClassicSide,
    ConsumerGroupRecord,
    ConsumerMember,
    GroupRecord,
    GroupState,
    Member,
    Partitions,
    size_of,
)
from lakestream.model import PartitionId


def upgraded(name: str, group: Group, image: TopicsImage) -> Transition[ConsumerGroup]:
    """Converts a classic group. Waiting joins stay pending, and members whose SyncGroup waits must join again.

    Raises GroupRequestFailed if the metadata of a member cannot be decoded."""
    record = group.record
    if record.members and record.protocol_type != CONSUMER:
        text = f"group {name} has protocol type {record.protocol_type!r}, not {CONSUMER!r}"
        raise GroupRequestFailed(GroupError.GROUP_ID_NOT_FOUND, text)
    try:
        subscriptions = {member_id: _subscription(member, record) for member_id, member in record.members.items()}
        members = _upgraded(record, subscriptions, image)
    except InvalidConsumerProtocol as error:
        text = f"group {name} cannot be upgraded: invalid member metadata ({error})"
        raise GroupRequestFailed(GroupError.GROUP_ID_NOT_FOUND, text) from error
    new = ConsumerGroupRecord(
        epoch=record.generation, target_epoch=record.generation, members=members, since_ms=record.since_ms
    )
    joins = tuple(
        PendingHeartbeat(ticket, one, image.partitions(subscriptions[one].owned), is_classic_join=True)
        for one, ticket in group.joining.items()
    )
    syncs = tuple(
        Reply(ticket, SyncResult(GroupError.REBALANCE_IN_PROGRESS, one)) for one, ticket in group.syncing.items()
    )
    after = ConsumerGroup(record=new, pending_heartbeats=joins, size=size_of(members))
    return Transition(after, syncs, to_store=bool(members))


def has_only_classic_members(record: ConsumerGroupRecord) -> bool:
    return bool(record.members) and all(member.classic is not None for member in record.members.values())


def downgraded(group: ConsumerGroup, epoch: int, image: TopicsImage, now: Instant) -> Transition[Group]:
    """Converts a group of the consumer protocol. All members must join again; pending joins count as joined.

    `epoch` is the newest epoch that members have seen. With it they detect a rebalance. With a generation that they
    have not seen, they would treat their partitions as lost. Requests of members that are gone, or that another client
    of the same instance id replaced, are answered here."""
    members = {
        member_id: _downgraded(member_id, member, member.classic, image)
        for member_id, member in group.record.members.items()
        if member.classic is not None
    }
    record = GroupRecord(
        state=GroupState.STABLE,
        generation=epoch,
        protocol_type=CONSUMER,
        members=members,
        since_ms=now.wall_ms,
    )
    pending = group.pending_heartbeats
    joining = [(one.member_id, one.ticket) for one in pending if one.is_classic_join and one.member_id in members]
    rejections = consumer_group.unknown_member_replies(
        one for one in pending if not one.is_classic_join or one.member_id not in members
    )
    transition = classic_group.restarted(record, joining, now)
    return transition._replace(replies=(*rejections, *transition.replies))


def emptied(group: ConsumerGroup, now: Instant) -> Transition[Group]:
    """Converts a group without members: the next member decides its protocol."""
    record = group.record
    empty = GroupRecord(generation=record.epoch, protocol_type=CONSUMER, since_ms=record.since_ms)
    return Transition(
        classic_group.resumed(empty, now), consumer_group.unknown_member_replies(group.pending_heartbeats)
    )


def _upgraded(
    record: GroupRecord, subscriptions: Mapping[str, Subscription], image: TopicsImage
) -> dict[str, ConsumerMember]:
    assignments = {member_id: read_assignment(member.assignment) for member_id, member in record.members.items()}
    holds = _owned_partitions(subscriptions, assignments, image)
    return {
        member_id: ConsumerMember(
            instance_id=member.instance_id,
            rack=subscriptions[member_id].rack,
            client_id=member.client_id,
            host=member.host,
            rebalance_ms=member.rebalance_ms,
            names=tuple(sorted(set(subscriptions[member_id].topics))),
            epoch=record.generation,
            epoch_before=record.generation,
            assigned=holds[member_id],
            target=holds[member_id],
            classic=ClassicSide(member.session_ms, member.protocols),
        )
        for member_id, member in record.members.items()
    }


def _subscription(member: Member, record: GroupRecord) -> Subscription:
    """Returns the subscription of the chosen protocol, or of the member's first. Raises if one is invalid.

    The chosen protocol is the last generation's: a member that joined again since then may no longer support it.
    """
    read = [read_subscription(protocol.metadata) for protocol in member.protocols]
    names = [protocol.name for protocol in member.protocols]
    return read[names.index(record.protocol)] if record.protocol in names else read[0]


def _owned_partitions(
    subscriptions: Mapping[str, Subscription], assignments: Mapping[str, frozenset[tuple[str, int]]], image: TopicsImage
) -> dict[str, Partitions]:
    """Returns the partitions that each member may own now.

    These are its assignment and the partitions it owned when it joined, since it may not have received its assignment
    yet. A partition that several members own belongs to the one it is assigned to."""
    taken: set[PartitionId] = set()
    holds: dict[str, Partitions] = dict.fromkeys(subscriptions, NOTHING)
    for source in (assignments, {member_id: one.owned for member_id, one in subscriptions.items()}):
        for member_id, named in source.items():
            free = image.partitions(named) - taken
            taken |= free
            holds[member_id] |= free
    return holds


def _downgraded(member_id: str, member: ConsumerMember, side: ClassicSide, image: TopicsImage) -> Member:
    version = read_subscription(side.protocols[0].metadata).version
    return Member(
        member_id,
        member.instance_id,
        member.client_id,
        member.host,
        side.session_ms,
        member.rebalance_ms,
        side.protocols,
        write_assignment(version, image.named(member.assigned)),
    )
