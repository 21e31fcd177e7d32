"""From the classic protocol to the new one and back, with members that go on. Pure.

    to the new one     when a member that speaks it joins: the others are members that speak the classic one (mixed.py)
    back               when the last one that speaks it leaves; or, if nobody is left, when a classic one joins

Epochs and generations go on counting, so that whatever an old member says is known as old.
"""

from collections.abc import Mapping

from lakestream.coordination.groups import classic
from lakestream.coordination.groups.consumer import CONSUMER
from lakestream.coordination.groups.embedded import (
    Poisoned,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
)
from lakestream.coordination.groups.landscape import Landscape
from lakestream.coordination.groups.refusals import Refusal, Refused
from lakestream.coordination.groups.values import Asked, ConsumerGroup, Group, Instant, Step, Synced, Ticket, Told
from lakestream.metadata.group_records import (
    NOTHING,
    ClassicSide,
    ConsumerGroupRecord,
    ConsumerMember,
    GroupRecord,
    Member,
    Partitions,
    State,
    size_of,
)
from lakestream.model import PartitionId


def upgraded(name: str, group: Group, landscape: Landscape) -> Step[ConsumerGroup]:
    """Whoever waits to be let in is let in; whoever waits for its share is to come again. Refused, if members cannot be
    understood."""
    record = group.record
    if record.members and record.protocol_type != CONSUMER:
        text = f"group {name} is one of {record.protocol_type}, not of consumers"
        raise Refused(Refusal.GROUP_ID_NOT_FOUND, text)
    try:
        said = {member_id: _subscription(member, record) for member_id, member in record.members.items()}
        members = _upgraded(record, said, landscape)
    except Poisoned as error:
        text = f"group {name} cannot be upgraded: what its members say cannot be read ({error})"
        raise Refused(Refusal.GROUP_ID_NOT_FOUND, text) from error
    new = ConsumerGroupRecord(
        epoch=record.generation, target_epoch=record.generation, members=members, since_ms=record.since_ms
    )
    joins = (Asked(one, who, landscape.partitions(said[who].owned), joins=True) for who, one in group.joining.items())
    syncs = (Told(one, Synced(Refusal.REBALANCE_IN_PROGRESS, who)) for who, one in group.syncing.items())
    size = size_of(members)
    return Step(ConsumerGroup(record=new, asking=tuple(joins), size=size), tuple(syncs), to_store=bool(members))


def is_classic_again(record: ConsumerGroupRecord) -> bool:
    return bool(record.members) and all(member.classic is not None for member in record.members.values())


def downgraded(group: ConsumerGroup, epoch: int, landscape: Landscape, now: Instant) -> Step[Group]:
    """All are to join again; those who just do, have. `epoch`: the last that members know of, so that they hear of a
    rebalance, not of a generation that they never saw: they would think that they lost everything."""
    members = {
        member_id: _downgraded(member_id, member, member.classic, landscape)
        for member_id, member in group.record.members.items()
        if member.classic is not None
    }
    record = GroupRecord(
        state=State.STABLE,
        generation=epoch,
        protocol_type=CONSUMER,
        members=members,
        since_ms=now.wall_ms,
    )
    joining: Mapping[str, Ticket] = {asked.member_id: asked.ticket for asked in group.asking if asked.joins}
    return classic.begun_anew(record, joining, now)


def emptied(group: ConsumerGroup, now: Instant) -> Group:
    """A group without members is of no protocol."""
    record = group.record
    return classic.resumed(GroupRecord(generation=record.epoch, protocol_type=CONSUMER, since_ms=record.since_ms), now)


def _upgraded(record: GroupRecord, said: Mapping[str, Subscription], landscape: Landscape) -> dict[str, ConsumerMember]:
    shares = {member_id: read_assignment(member.assignment) for member_id, member in record.members.items()}
    holds = _holds(said, shares, landscape)
    return {
        member_id: ConsumerMember(
            instance_id=member.instance_id,
            rack=said[member_id].rack,
            client_id=member.client_id,
            host=member.host,
            rebalance_ms=member.rebalance_ms,
            names=tuple(sorted(set(said[member_id].topics))),
            epoch=record.generation,
            epoch_before=record.generation,
            assigned=holds[member_id],
            target=holds[member_id],
            classic=ClassicSide(member.session_ms, member.protocols),
        )
        for member_id, member in record.members.items()
    }


def _subscription(member: Member, record: GroupRecord) -> Subscription:
    """All that it said must be readable, whichever of it was chosen."""
    chosen = record.protocol if record.protocol is not None else member.protocols[0].name
    return {known.name: read_subscription(known.metadata) for known in member.protocols}[chosen]


def _holds(
    said: Mapping[str, Subscription], shares: Mapping[str, frozenset[tuple[str, int]]], landscape: Landscape
) -> dict[str, Partitions]:
    """What each may have in its hands: its share; and what it had when it joined, since it may not have heard of its
    share yet. What several claim is of whom it was given to."""
    taken: set[PartitionId] = set()
    holds: dict[str, Partitions] = dict.fromkeys(said, NOTHING)
    for claims in (shares, {member_id: one.owned for member_id, one in said.items()}):
        for member_id, named in claims.items():
            free = landscape.partitions(named) - taken
            taken |= free
            holds[member_id] |= free
    return holds


def _downgraded(member_id: str, member: ConsumerMember, side: ClassicSide, landscape: Landscape) -> Member:
    version = read_subscription(side.protocols[0].metadata).version
    return Member(
        member_id,
        member.instance_id,
        member.client_id,
        member.host,
        side.session_ms,
        member.rebalance_ms,
        side.protocols,
        write_assignment(version, landscape.named(member.assigned)),
    )
