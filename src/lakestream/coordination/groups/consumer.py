"""Groups of the new protocol (KIP-848): the coordinator decides who shall have what, and each member is led there step
by step by its own heartbeats. Pure: no store, no clock, no task.

    the group's epoch    grows with every change of members, subscriptions or topics
    the target           what everybody shall have at that epoch (assignors.py)
    a member's epoch     the newest epoch whose target it has reached, but for what others still hold

A member first gives back what is no longer its own (REVOKING) and tells so; only then does it come to the new epoch and
gets what is free of its share, and the rest when others have let go of it (WAITING). So no partition ever has two
owners, although nobody stops.

A heartbeat is taken in two halves. `beat` hears what is said; `settled` finds the target and leads on all who asked
since the last time. Between the two the last step is being stored: a thousand members that come at once cost a few
targets, not a thousand.

Before: steps.py.  Beside: mixed.py, members that speak the classic protocol; migration.py, from one to the other.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec

from lakestream.coordination.groups import patterns
from lakestream.coordination.groups.assignors import ASSIGNORS, Subscriber
from lakestream.coordination.groups.landscape import Landscape
from lakestream.coordination.groups.refusals import Refusal, Refused
from lakestream.coordination.groups.values import (
    JOIN,
    LEAVE,
    LEAVE_FOR_A_WHILE,
    UNCHANGED_MS,
    Answer,
    Asked,
    Beat,
    Beaten,
    ConsumerGroup,
    Instant,
    Joined,
    Rules,
    Step,
    Told,
)
from lakestream.metadata.group_records import (
    NOTHING,
    ConsumerGroupRecord,
    ConsumerMember,
    Partitions,
    Progress,
    size_of,
)

CONSUMER = "consumer"
"""The protocol type of consumers, in either protocol."""


def resumed(record: ConsumerGroupRecord, now: Instant) -> ConsumerGroup:
    """A group as its next coordinator finds it: its members go on as if nothing had happened."""
    until = {
        member_id: now.ms + member.rebalance_ms
        for member_id, member in record.members.items()
        if member.progress is Progress.REVOKING
    }
    return ConsumerGroup(record=record, until=until, size=size_of(record.members))


def beat(group: ConsumerGroup, said: Beat, landscape: Landscape, now: Instant, rules: Rules) -> Step[ConsumerGroup]:
    """What follows from what was said; who stays is answered by `settled`, unless all is well. Raises Refused."""
    if said.epoch in (LEAVE, LEAVE_FOR_A_WHILE):
        return _left(group, said, now)
    _check_words(said)
    record = group.record
    old_id, old = _found(record, said)
    check_size(group, old, rules)
    new = _updated(old or ConsumerMember(), said)
    knew = None if old is None else old.assigned
    asked = Asked(said.ticket, said.member_id, said.owned, knew, said.is_full)
    if new is old and group.landscape is landscape and is_at_target(record, new):
        return Step(group, (Told(said.ticket, _answer(asked, new)),))
    return taken_in(group, old_id, old, new, asked, now, rules)


def settled(group: ConsumerGroup, landscape: Landscape, now: Instant) -> Step[ConsumerGroup]:
    """With a target for everybody and for the topics as they are now, and all who asked led one step towards it."""
    record = group.record
    if group.landscape is not landscape or record.epoch != record.target_epoch:
        record = retargeted(record, landscape)
    walk = _Walk(record)
    until = dict(group.until)
    told = []
    for asked in group.asking:
        member = walk.members.get(asked.member_id)
        if member is None or asked.joins != (member.classic is not None):
            told.append(Told(asked.ticket, _gone(asked)))
            continue
        led = walk.lead(asked.member_id, member, asked.owned)
        _set_deadline(until, asked, member, led, now)
        told.append(Told(asked.ticket, _answer(asked, led)))
    to_store = walk.changed or record is not group.record
    if walk.changed:
        record = msgspec.structs.replace(record, members=walk.members)
    after = replace(group, record=record, landscape=landscape, asking=(), until=until)
    return Step(after, tuple(told), to_store)


def without(group: ConsumerGroup, member_ids: Iterable[str], now: Instant) -> Step[ConsumerGroup]:
    """Without members that left, were not heard of, or have not done in time what they should."""
    gone = {member_id for member_id in member_ids if member_id in group.record.members}
    if not gone:
        return Step(group, ())
    members = {member_id: member for member_id, member in group.record.members.items() if member_id not in gone}
    record = msgspec.structs.replace(
        group.record,
        members=members,
        epoch=group.record.epoch + 1,
        since_ms=group.record.since_ms if members else now.wall_ms,
    )
    after = replace(
        group,
        record=record,
        asking=tuple(asked for asked in group.asking if asked.member_id not in gone),
        until={member_id: ms for member_id, ms in group.until.items() if member_id not in gone},
        size=size_of(members),
    )
    told = (Told(asked.ticket, _gone(asked)) for asked in group.asking if asked.member_id in gone)
    return Step(after, tuple(told), to_store=True)


def tick(group: ConsumerGroup, now: Instant) -> Step[ConsumerGroup]:
    """What happens by time alone."""
    return without(group, [member_id for member_id, ms in group.until.items() if ms <= now.ms], now)


def delayed(group: ConsumerGroup, ms: int) -> ConsumerGroup:
    """Everybody gets so much more time."""
    return replace(group, until={member_id: until_ms + ms for member_id, until_ms in group.until.items()})


def is_at_target(record: ConsumerGroupRecord, member: ConsumerMember) -> bool:
    return member.progress is Progress.STABLE and member.epoch == record.target_epoch == record.epoch


def is_stable(record: ConsumerGroupRecord) -> bool:
    return all(is_at_target(record, member) for member in record.members.values())


def static_member(record: ConsumerGroupRecord, instance_id: str) -> str | None:
    return next((one for one, member in record.members.items() if member.instance_id == instance_id), None)


# ── who is it ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_words(said: Beat) -> None:
    if said.assignor is not None and said.assignor not in ASSIGNORS:
        known = ", ".join(ASSIGNORS)
        raise Refused(Refusal.UNSUPPORTED_ASSIGNOR, f"there is no assignor {said.assignor}, only {known}")
    if said.pattern:
        patterns.check(said.pattern)


def _found(record: ConsumerGroupRecord, said: Beat) -> tuple[str, ConsumerMember | None]:
    """The member as it was, and under which id; None: it is new."""
    if said.instance_id is not None:
        return _found_static(record, said.instance_id, said)
    member = record.members.get(said.member_id)
    if said.epoch == JOIN:
        return said.member_id, None if member is None else begun_anew(member)
    if member is None:
        raise Refused(Refusal.UNKNOWN_MEMBER_ID, f"the group has no member {said.member_id}")
    _check_epoch(member, said)
    return said.member_id, member


def _found_static(record: ConsumerGroupRecord, instance_id: str, said: Beat) -> tuple[str, ConsumerMember | None]:
    member_id = static_member(record, instance_id)
    member = None if member_id is None else record.members[member_id]
    if said.epoch == JOIN:
        if member_id is None or member is None:
            return said.member_id, None
        if member_id != said.member_id and member.epoch != LEAVE_FOR_A_WHILE and member.classic is None:
            text = f"instance {instance_id} is still in use by member {member_id}"
            raise Refused(Refusal.UNRELEASED_INSTANCE_ID, text)
        return member_id, begun_anew(member)
    if member_id is None or member is None:
        raise Refused(Refusal.UNKNOWN_MEMBER_ID, f"the group has no member of instance {instance_id}")
    if member_id != said.member_id:
        raise Refused(Refusal.FENCED_INSTANCE_ID, f"instance {instance_id} is member {member_id} by now")
    _check_epoch(member, said)
    return member_id, member


def begun_anew(member: ConsumerMember) -> ConsumerMember:
    """Whoever joins has nothing in its hands. What it shall have stays the same."""
    return msgspec.structs.replace(
        member, epoch=JOIN, epoch_before=JOIN, progress=Progress.STABLE, assigned=NOTHING, revoking=NOTHING
    )


def _check_epoch(member: ConsumerMember, said: Beat) -> None:
    """An answer may have been lost: then the member is one epoch behind, and has no more than it was given."""
    repeats = said.epoch == member.epoch_before and said.owned is not None and said.owned <= member.assigned
    if said.epoch != member.epoch and not repeats:
        text = f"member {said.member_id} is at epoch {member.epoch}, not {said.epoch}: join again"
        raise Refused(Refusal.FENCED_MEMBER_EPOCH, text)


def _left(group: ConsumerGroup, said: Beat, now: Instant) -> Step[ConsumerGroup]:
    """Repeated, it is refused: nobody is there any longer."""
    member_id, record = said.member_id, group.record
    if said.instance_id is not None:
        found = static_member(record, said.instance_id)
        if found is None:
            raise Refused(Refusal.UNKNOWN_MEMBER_ID, f"the group has no member of instance {said.instance_id}")
        if found != member_id:
            raise Refused(Refusal.FENCED_INSTANCE_ID, f"instance {said.instance_id} is member {found} by now")
    member = record.members.get(member_id)
    if member is None:
        raise Refused(Refusal.UNKNOWN_MEMBER_ID, f"the group has no member {member_id}")
    farewell = Told(said.ticket, Beaten(None, member_id, said.epoch))
    if said.epoch == LEAVE:
        step = without(group, [member_id], now)
        return step._replace(told=(*step.told, farewell))
    away = msgspec.structs.replace(begun_anew(member), epoch=LEAVE_FOR_A_WHILE)
    record = msgspec.structs.replace(record, members={**record.members, member_id: away})
    until = {other: ms for other, ms in group.until.items() if other != member_id}
    return Step(replace(group, record=record, until=until), (farewell,), to_store=True)


# ── what it wants ────────────────────────────────────────────────────────────────────────────────────────────────────


def _updated(member: ConsumerMember, said: Beat) -> ConsumerMember:
    """The same object, if nothing changed."""
    wanted: dict[str, Any] = {"client_id": said.client_id, "host": said.host, "classic": None}
    if said.rebalance_ms != UNCHANGED_MS:
        wanted["rebalance_ms"] = said.rebalance_ms
    if said.names is not None:
        wanted["names"] = tuple(sorted(set(said.names)))
    if said.pattern is not None:
        wanted["pattern"] = said.pattern or None
    for name in ("instance_id", "rack", "assignor"):
        if (value := getattr(said, name)) is not None:
            wanted[name] = value
    return updated(member, wanted)


def updated(member: ConsumerMember, wanted: dict[str, Any]) -> ConsumerMember:
    changes = {name: value for name, value in wanted.items() if getattr(member, name) != value}
    return msgspec.structs.replace(member, **changes) if changes else member


def taken_in(
    group: ConsumerGroup,
    old_id: str,
    old: ConsumerMember | None,
    new: ConsumerMember,
    asked: Asked,
    now: Instant,
    rules: Rules,
) -> Step[ConsumerGroup]:
    """The group with a member that is new, or has something new to say; and it waits for its next step. Another epoch
    only if others may have to do with it: not when a static member comes back under another id."""
    record, member_id = group.record, asked.member_id
    before = record.members.get(old_id)
    size = group.size - (0 if before is None else size_of({old_id: before})) + size_of({member_id: new})
    if size > group.size and size + record.topics_size > rules.bytes_max:
        text = f"what is stored of the members and their partitions has {size + record.topics_size} bytes"
        raise Refused(Refusal.GROUP_MAX_SIZE_REACHED, text)
    if before is not new or old_id != member_id:
        members = {**record.members, member_id: new}
        if old_id != member_id:
            members.pop(old_id, None)
        changed = old is None or _subscription(old) != _subscription(new)
        since_ms = now.wall_ms if not record.members else record.since_ms
        record = msgspec.structs.replace(record, members=members, epoch=record.epoch + changed, since_ms=since_ms)
    until = group.until
    if old_id != member_id and old_id in until:
        until = {other: ms for other, ms in until.items() if other != old_id}
    after = replace(group, record=record, asking=(*group.asking, asked), until=until, size=size)
    return Step(after, (), to_store=record is not group.record)


def check_size(group: ConsumerGroup, old: ConsumerMember | None, rules: Rules) -> None:
    if old is None and len(group.record.members) >= rules.members_max:
        text = f"the group has {len(group.record.members)} members already"
        raise Refused(Refusal.GROUP_MAX_SIZE_REACHED, text)


def _subscription(member: ConsumerMember) -> tuple[object, ...]:
    return member.names, member.pattern, member.assignor, member.rack


# ── the target ───────────────────────────────────────────────────────────────────────────────────────────────────────


def retargeted(record: ConsumerGroupRecord, landscape: Landscape) -> ConsumerGroupRecord:
    """With a target for all members and topics as they are now. Another epoch, if topics came, went or grew."""
    by_subscription: dict[tuple[object, ...], frozenset[str]] = {}
    wanted: dict[str, frozenset[str]] = {}
    for member_id, member in record.members.items():
        key = member.names, member.pattern
        if key not in by_subscription:
            by_subscription[key] = topics_of(member, landscape)
        wanted[member_id] = by_subscription[key]
    seen = {name: landscape.shape(name) for name in sorted(frozenset[str]().union(*by_subscription.values()))}
    if seen != record.topics:
        is_news = record.epoch == record.target_epoch  # else there is a new epoch already
        record = msgspec.structs.replace(record, epoch=record.epoch + is_news, topics=seen)
    if record.target_epoch == record.epoch:
        return record
    ids = {names: frozenset(seen[name].topic_id for name in names) for names in set(by_subscription.values())}
    subscribers = {
        member_id: Subscriber(ids[wanted[member_id]], member.instance_id, member.target)
        for member_id, member in record.members.items()
    }
    counts = {shape.topic_id: shape.partition_count for shape in seen.values()}
    targets = ASSIGNORS[assignor_of(record)](subscribers, counts)
    members = {
        member_id: updated(member, {"target": targets[member_id]}) for member_id, member in record.members.items()
    }
    return msgspec.structs.replace(record, members=members, target_epoch=record.epoch)


def assignor_of(record: ConsumerGroupRecord) -> str:
    """The one that most members ask for."""
    votes = [member.assignor for member in record.members.values() if member.assignor is not None]
    return max(ASSIGNORS, key=votes.count)


def topics_of(member: ConsumerMember, landscape: Landscape) -> frozenset[str]:
    """The names of those that it reads, as far as they exist."""
    matched = () if member.pattern is None else landscape.matching(member.pattern)
    return frozenset(name for name in (*member.names, *matched) if name in landscape.topics)


# ── step by step ─────────────────────────────────────────────────────────────────────────────────────────────────────


class _Walk:
    """Members on their way to the target, one after another."""

    def __init__(self, record: ConsumerGroupRecord) -> None:
        self.members = record.members
        self.changed = False
        self._epoch = record.target_epoch
        self._holders: dict[object, str] | None = None

    def lead(self, member_id: str, member: ConsumerMember, owned: Partitions | None) -> ConsumerMember:
        """One step, if it can make one."""
        led = self._led(member_id, member, owned)
        if led is not member:
            if not self.changed:
                self.members, self.changed = dict(self.members), True
            self.members[member_id] = led
            self._note(member_id, member, led)
        return led

    def _led(self, member_id: str, member: ConsumerMember, owned: Partitions | None) -> ConsumerMember:
        if member.progress is Progress.REVOKING and (owned is None or owned & member.revoking):
            return member  # it has not given back yet
        if member.progress is Progress.STABLE and member.epoch == self._epoch:
            return member
        revoke = member.assigned - member.target
        stay = member.assigned & member.target
        if revoke and (owned is None or owned & revoke):
            return msgspec.structs.replace(member, progress=Progress.REVOKING, assigned=stay, revoking=revoke)
        assigned = stay | self._free(member_id, member.target - member.assigned)
        wanted: dict[str, Any] = {
            "progress": Progress.STABLE if assigned == member.target else Progress.WAITING,
            "assigned": assigned,
            "revoking": NOTHING,
        }
        if member.epoch != self._epoch:
            wanted |= {"epoch": self._epoch, "epoch_before": member.epoch}
        return updated(member, wanted)

    def _free(self, member_id: str, wanted: Partitions) -> Partitions:
        if not wanted:
            return NOTHING
        if self._holders is None:
            self._holders = {one: who for who, member in self.members.items() for one in member.held}
        holders = self._holders
        return frozenset(one for one in wanted if holders.get(one, member_id) == member_id)

    def _note(self, member_id: str, before: ConsumerMember, after: ConsumerMember) -> None:
        if self._holders is not None:
            for one in before.held - after.held:
                self._holders.pop(one, None)
            self._holders.update(dict.fromkeys(after.held, member_id))


def _set_deadline(
    until: dict[str, int], asked: Asked, before: ConsumerMember, after: ConsumerMember, now: Instant
) -> None:
    """One that joins has to ask for its assignment next; one of the new protocol, to give back what it was told to."""
    if asked.joins or (after.progress is Progress.REVOKING and after.revoking != before.revoking):
        until[asked.member_id] = now.ms + after.rebalance_ms
    elif after.progress is not Progress.REVOKING:
        until.pop(asked.member_id, None)


def _answer(asked: Asked, member: ConsumerMember) -> Answer:
    if member.classic is not None:
        return Joined(None, asked.member_id, member.epoch, CONSUMER, member.classic.protocols[0].name)
    knows = asked.knew == member.assigned and asked.owned in (None, member.assigned)
    is_news = asked.wants_all or not knows
    return Beaten(None, asked.member_id, member.epoch, member.assigned if is_news else None)


def _gone(asked: Asked) -> Answer:
    if asked.joins:
        return Joined(Refusal.UNKNOWN_MEMBER_ID, asked.member_id)
    return Beaten(Refusal.UNKNOWN_MEMBER_ID, asked.member_id)
