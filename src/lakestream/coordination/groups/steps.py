"""One step of a group, whichever protocol it speaks at the moment. Pure.

Before: held.py.  After: classic.py, groups of the classic protocol; consumer.py and mixed.py, those of the new one;
migration.py, from one to the other.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lakestream.coordination.groups import classic, consumer, migration, mixed
from lakestream.coordination.groups.landscape import Landscape
from lakestream.coordination.groups.refusals import Refusal, Refused
from lakestream.coordination.groups.values import (
    JOIN,
    AnyGroup,
    Beat,
    ConsumerGroup,
    Instant,
    Join,
    Leaver,
    Left,
    Rules,
    Step,
    Sync,
)
from lakestream.metadata.group_records import AnyGroup as AnyRecord
from lakestream.metadata.group_records import ConsumerMember, GroupRecord, Member


class Ground(NamedTuple):
    """What a step stands on."""

    landscape: Landscape
    now: Instant
    rules: Rules


def resumed(record: AnyRecord, now: Instant) -> AnyGroup:
    return classic.resumed(record, now) if isinstance(record, GroupRecord) else consumer.resumed(record, now)


def join(group: AnyGroup, wish: Join, on: Ground) -> Step[AnyGroup]:
    if isinstance(group, ConsumerGroup) and group.record.is_empty:
        group = migration.emptied(group, on.now)
    if isinstance(group, ConsumerGroup):
        return _protocol_kept(group, mixed.join(group, wish, on.landscape, on.now, on.rules), on)
    return classic.join(group, wish, on.now, on.rules)


def sync(group: AnyGroup, wish: Sync, on: Ground) -> Step[AnyGroup]:
    if isinstance(group, ConsumerGroup):
        return mixed.sync(group, wish, on.landscape)
    return classic.sync(group, wish, on.now, on.rules)


class Heard(NamedTuple):
    step: Step[AnyGroup]
    refusal: Refusal | None


def heartbeat(group: AnyGroup, member_id: str, instance_id: str | None, generation: int, on: Ground) -> Heard:
    if not isinstance(group, ConsumerGroup):
        return Heard(Step(group, ()), classic.heartbeat(group.record, member_id, instance_id, generation))
    step = Step(group, ())
    if group.landscape is not on.landscape:  # topics changed, and all of the new protocol may be away for a while
        step = consumer.settled(group, on.landscape, on.now)
    heard = mixed.heartbeat(step.group, member_id, instance_id, generation, on.now)
    return Heard(step._replace(group=heard.group), heard.refusal)


def beat(name: str, group: AnyGroup, said: Beat, on: Ground) -> Step[AnyGroup]:
    """A heartbeat of the new protocol. Raises Refused; the group is as it was then."""
    if isinstance(group, ConsumerGroup):
        return _protocol_kept(group, consumer.beat(group, said, on.landscape, on.now, on.rules), on)
    if said.epoch != JOIN:
        raise Refused(Refusal.GROUP_ID_NOT_FOUND, f"group {name} is not one of the new protocol")
    upgraded = migration.upgraded(name, group, on.landscape)
    step = consumer.beat(upgraded.group, said, on.landscape, on.now, on.rules)
    return step._replace(told=(*upgraded.told, *step.told), to_store=True)


def settled(group: AnyGroup, on: Ground) -> Step[AnyGroup]:
    """All who asked are led on."""
    if isinstance(group, ConsumerGroup):
        return consumer.settled(group, on.landscape, on.now)
    return Step(group, ())


def leave(group: AnyGroup, leavers: Sequence[Leaver], on: Ground) -> Left[AnyGroup]:
    if isinstance(group, ConsumerGroup):
        left = mixed.leave(group, leavers, on.now)
        return Left(_protocol_kept(group, left.step, on), left.refusals)
    return classic.leave(group, leavers, on.now)


def abandoned(group: AnyGroup, wish: Join, on: Ground) -> Step[AnyGroup]:
    """Whoever joined is gone before it was told its id: nobody knows it, and nobody ever will. A static member is known
    by its instance."""
    if isinstance(group, ConsumerGroup):
        is_lost = wish.instance_id is None and wish.new_id in group.record.members
    else:
        is_lost = group.joining.get(wish.new_id) == wish.ticket
    return leave(group, [Leaver(wish.new_id)], on).step if is_lost else Step(group, ())


def expire(group: AnyGroup, member_ids: Sequence[str], on: Ground) -> Step[AnyGroup]:
    if isinstance(group, ConsumerGroup):
        return _protocol_kept(group, consumer.without(group, member_ids, on.now), on)
    return classic.expire(group, member_ids, on.now)


def tick(group: AnyGroup, on: Ground) -> Step[AnyGroup]:
    if isinstance(group, ConsumerGroup):
        return _protocol_kept(group, consumer.tick(group, on.now), on)
    return classic.tick(group, on.now, on.rules)


def delayed(group: AnyGroup, ms: int) -> AnyGroup:
    return consumer.delayed(group, ms) if isinstance(group, ConsumerGroup) else classic.delayed(group, ms)


def session_ms(member: Member | ConsumerMember, rules: Rules) -> int:
    if isinstance(member, Member):
        return member.session_ms
    return rules.session_ms if member.classic is None else member.classic.session_ms


def _protocol_kept(before: ConsumerGroup, step: Step[ConsumerGroup], on: Ground) -> Step[AnyGroup]:
    """The new protocol, as long as anybody speaks it."""
    if not migration.is_classic_again(step.group.record):
        return step
    back = migration.downgraded(step.group, before.record.epoch, on.landscape, on.now)
    return back._replace(told=(*step.told, *back.told))
