"""Members that speak the classic protocol in a group of the new one, while its clients are upgraded one by one. Pure.

For them the coordinator is the leader: it reads what they subscribe to and what they have (embedded.py), leads them
towards the target as it leads all others, and writes down their share in words that they know. Nobody waits for
anybody: a JoinGroup is answered at once, and whoever is to come again hears so with its next heartbeat.

Before: steps.py.  Beside: consumer.py, which leads.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from lakestream.coordination.groups import consumer
from lakestream.coordination.groups.classic import REBALANCE_MS_MIN
from lakestream.coordination.groups.consumer import CONSUMER, static_member
from lakestream.coordination.groups.embedded import Poisoned, Subscription, read_subscription, write_assignment
from lakestream.coordination.groups.landscape import Landscape
from lakestream.coordination.groups.refusals import Refusal, Refused
from lakestream.coordination.groups.values import (
    Asked,
    ConsumerGroup,
    Instant,
    Join,
    Joined,
    Leaver,
    Left,
    Rules,
    Step,
    Sync,
    Synced,
    Told,
)
from lakestream.metadata.group_records import ClassicSide, ConsumerGroupRecord, ConsumerMember, Progress


def join(group: ConsumerGroup, wish: Join, landscape: Landscape, now: Instant, rules: Rules) -> Step[ConsumerGroup]:
    try:
        return _joined(group, wish, landscape, now, rules)
    except Refused as refused:
        return Step(group, (Told(wish.ticket, Joined(refused.refusal, wish.member_id)),))


def sync(group: ConsumerGroup, wish: Sync, landscape: Landscape) -> Step[ConsumerGroup]:
    try:
        member, side = _classic_member(group.record, wish.member_id, wish.instance_id)
        protocol = side.protocols[0]
        _check_sync(group.record, member, wish, protocol.name)
    except Refused as refused:
        return Step(group, (Told(wish.ticket, Synced(refused.refusal, wish.member_id)),))
    share = write_assignment(read_subscription(protocol.metadata).version, landscape.named(member.assigned))
    until = {other: ms for other, ms in group.until.items() if other != wish.member_id}
    told = Told(wish.ticket, Synced(None, wish.member_id, CONSUMER, protocol.name, share))
    return Step(replace(group, until=until), (told,))


class Heard(NamedTuple):
    group: ConsumerGroup
    refusal: Refusal | None


def heartbeat(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, now: Instant) -> Heard:
    """REBALANCE_IN_PROGRESS: it was heard, and has to join again, by a time that is set now."""
    try:
        member, _ = _classic_member(group.record, member_id, instance_id)
        if generation != member.epoch:
            raise Refused(Refusal.ILLEGAL_GENERATION, f"member {member_id} is at {member.epoch}, not {generation}")
    except Refused as refused:
        return Heard(group, refused.refusal)
    if not _has_news(group.record, member_id, member):
        return Heard(group, None)
    until = {member_id: now.ms + member.rebalance_ms, **group.until}
    return Heard(replace(group, until=until), Refusal.REBALANCE_IN_PROGRESS)


def leave(group: ConsumerGroup, leavers: Sequence[Leaver], now: Instant) -> Left[ConsumerGroup]:
    leaving: list[str] = []
    refusals: list[Refusal | None] = []
    for leaver in leavers:
        try:
            leaving.append(_leaving(group.record, leaver, leaving))
            refusals.append(None)
        except Refused as refused:
            refusals.append(refused.refusal)
    return Left(consumer.without(group, leaving, now), tuple(refusals))


# ── joining ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _joined(group: ConsumerGroup, wish: Join, landscape: Landscape, now: Instant, rules: Rules) -> Step[ConsumerGroup]:
    if not rules.session_ms_min <= wish.session_ms <= rules.session_ms_max:
        raise Refused(Refusal.INVALID_SESSION_TIMEOUT, f"a session of {wish.session_ms} ms")
    _check_protocols(group.record, wish)
    subscription = _subscription(wish)
    if not wish.member_id and wish.instance_id is None and wish.asks_id_first:
        return Step(group, (Told(wish.ticket, Joined(Refusal.MEMBER_ID_REQUIRED, wish.new_id)),))
    old_id, old = _found(group.record, wish)
    consumer.check_size(group, old, rules)
    wanted: dict[str, Any] = {
        "instance_id": wish.instance_id,
        "rack": subscription.rack,
        "client_id": wish.client_id,
        "host": wish.host,
        "rebalance_ms": max(REBALANCE_MS_MIN, wish.rebalance_ms),
        "names": tuple(sorted(set(subscription.topics))),
        "pattern": None,
        "assignor": None,
        "classic": ClassicSide(wish.session_ms, wish.protocols),
    }
    new = consumer.updated(old or ConsumerMember(), wanted)
    owned = landscape.partitions(subscription.owned)
    asked = Asked(wish.ticket, wish.member_id or wish.new_id, owned, joins=True)
    return consumer.taken_in(group, old_id, old, new, asked, now, rules)


def _check_protocols(record: ConsumerGroupRecord, wish: Join) -> None:
    """It must know one that all others of its kind know: they may be alone again one day."""
    sides = [member.classic for member in record.members.values() if member.classic is not None]
    known = Counter(name for side in sides for name in {protocol.name for protocol in side.protocols})
    shared = any(known[protocol.name] == len(sides) for protocol in wish.protocols)
    if wish.protocol_type != CONSUMER or not shared:
        text = f"the members have no protocol in common with {wish.member_id or wish.client_id}"
        raise Refused(Refusal.INCONSISTENT_GROUP_PROTOCOL, text)


def _subscription(wish: Join) -> Subscription:
    """All of them must be readable, or nobody could ever assign anything by them."""
    try:
        first, *_ = [read_subscription(protocol.metadata) for protocol in wish.protocols]
    except Poisoned as error:
        raise Refused(Refusal.INCONSISTENT_GROUP_PROTOCOL, f"a subscription cannot be read: {error}") from error
    return first


def _found(record: ConsumerGroupRecord, wish: Join) -> tuple[str, ConsumerMember | None]:
    """The member as it was, and under which id; None: it is new."""
    if wish.instance_id is None:
        member_id = wish.member_id or wish.new_id
        return member_id, record.members.get(member_id)
    holder = static_member(record, wish.instance_id)
    if not wish.member_id:  # it takes the place of the one before it
        return (wish.new_id, None) if holder is None else (holder, consumer.begun_anew(record.members[holder]))
    if holder is None:
        raise Refused(Refusal.UNKNOWN_MEMBER_ID, f"the group has no member of instance {wish.instance_id}")
    if holder != wish.member_id:
        raise Refused(Refusal.FENCED_INSTANCE_ID, f"instance {wish.instance_id} is member {holder} by now")
    return holder, record.members[holder]


# ── the others ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _classic_member(
    record: ConsumerGroupRecord, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember, ClassicSide]:
    holder = member_id if instance_id is None else static_member(record, instance_id)
    if holder is not None and holder != member_id:
        raise Refused(Refusal.FENCED_INSTANCE_ID, f"instance {instance_id} is member {holder} by now")
    member = None if holder is None else record.members.get(holder)
    if member is None or member.classic is None:
        raise Refused(Refusal.UNKNOWN_MEMBER_ID, f"the group has no such member {member_id} of the classic protocol")
    return member, member.classic


def _check_sync(record: ConsumerGroupRecord, member: ConsumerMember, wish: Sync, protocol: str) -> None:
    if wish.generation != member.epoch:
        raise Refused(Refusal.ILLEGAL_GENERATION, f"member {wish.member_id} is at {member.epoch}")
    if wish.protocol_type not in (None, CONSUMER) or wish.protocol not in (None, protocol):
        raise Refused(Refusal.INCONSISTENT_GROUP_PROTOCOL, f"member {wish.member_id} has protocol {protocol}")
    if record.epoch > member.epoch and member.progress is not Progress.REVOKING:
        raise Refused(Refusal.REBALANCE_IN_PROGRESS, "join again")


def _has_news(record: ConsumerGroupRecord, member_id: str, member: ConsumerMember) -> bool:
    """Another epoch; or it has to give something back; or all that it waits for is free by now."""
    if member.epoch < record.epoch or member.progress is Progress.REVOKING:
        return True
    if member.progress is not Progress.WAITING:
        return False
    wanted = member.target - member.assigned
    return all(wanted.isdisjoint(other.held) for one, other in record.members.items() if one != member_id)


def _leaving(record: ConsumerGroupRecord, leaver: Leaver, gone: Sequence[str]) -> str:
    """An administrator names a static member by its instance alone, whichever protocol it speaks."""
    if not leaver.member_id and leaver.instance_id is not None:
        member_id = static_member(record, leaver.instance_id)
        if member_id is None or member_id in gone:
            raise Refused(Refusal.UNKNOWN_MEMBER_ID, f"the group has no member of instance {leaver.instance_id}")
        return member_id
    _classic_member(record, leaver.member_id, leaver.instance_id)
    if leaver.member_id in gone:
        raise Refused(Refusal.UNKNOWN_MEMBER_ID, f"member {leaver.member_id} has left already")
    return leaver.member_id
