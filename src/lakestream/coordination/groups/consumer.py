"""Groups of the new protocol (KIP-848): the coordinator decides who shall have what, and each member is led there step
by step by its own heartbeats. Pure: no store, no clock, no task.

    the group's epoch    grows with every change of members, subscriptions or topics
    the target           what everybody shall have at that epoch (assignors.py)
    a member's epoch     the newest epoch whose target it has reached, but for what others still hold

A member first gives back what is no longer its own (REVOKING) and tells so; only then does it come to the new epoch and
gets what is free of its share, and the rest when others have let go of it (WAITING). So no partition ever has two
owners, although nobody stops.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from lakestream.coordination.groups.assignors import ASSIGNORS, NOTHING, Partitions, Subscriber
from lakestream.errors import LakestreamError

JOIN: Final = 0
LEAVE: Final = -1
LEAVE_FOR_A_WHILE: Final = -2
"""Of a static member: it comes back under another id and finds its partitions."""
UNCHANGED_MS: Final = -1


class State(Enum):
    STABLE = "stable"
    REVOKING = "revoking"
    WAITING = "waiting"


class Why(Enum):
    """Why a heartbeat is refused."""

    UNKNOWN_MEMBER = "unknown member"
    FENCED_EPOCH = "fenced member epoch"
    FENCED_INSTANCE = "fenced instance id"
    UNRELEASED_INSTANCE = "unreleased instance id"
    UNKNOWN_ASSIGNOR = "unsupported assignor"
    INVALID_PATTERN = "invalid regular expression"


class Refused(LakestreamError):
    def __init__(self, why: Why, text: str) -> None:
        super().__init__(text)
        self.why = why


class TopicShape(msgspec.Struct, frozen=True, array_like=True):
    topic_id: str
    partition_count: int


Topics: TypeAlias = Mapping[str, TopicShape]
"""All that there are, by name."""
Matching: TypeAlias = Callable[[str], Iterable[str]]
"""The names of topics that a pattern fits."""


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    host: str = ""
    rebalance_timeout_ms: int = 300_000
    names: tuple[str, ...] = ()
    pattern: str | None = None
    assignor: str | None = None
    epoch: int = JOIN
    epoch_before: int = JOIN
    state: State = State.STABLE
    assigned: Partitions = NOTHING
    revoking: Partitions = NOTHING
    """It is to give them back, and has not said yet that it did."""
    target: Partitions = NOTHING

    @property
    def held(self) -> Partitions:
        """Nobody else may have these."""
        return self.assigned | self.revoking


class Group(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    epoch: int = 0
    target_epoch: int = 0
    members: dict[str, Member] = {}
    topics: dict[str, TopicShape] = {}
    """Those that somebody subscribes to, as the target knows them."""


class Beat(NamedTuple):
    """A heartbeat. What is None did not change since the last one."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    host: str = ""
    rebalance_timeout_ms: int = UNCHANGED_MS
    names: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None

    @property
    def is_full(self) -> bool:
        subscribed = self.names is not None or self.pattern is not None
        return self.epoch == JOIN or (
            self.rebalance_timeout_ms != UNCHANGED_MS and subscribed and self.owned is not None
        )


class Answer(NamedTuple):
    member_id: str
    epoch: int
    assigned: Partitions | None = None
    """None: as the member knows it."""


def beat(group: Group, said: Beat, topics: Topics, matching: Matching) -> tuple[Group, Answer]:
    """The group after a heartbeat, and what the member is told. Raises Refused; the group is as it was then."""
    if said.epoch in (LEAVE, LEAVE_FOR_A_WHILE):
        return _left(group, said), Answer(said.member_id, said.epoch)
    if said.assignor is not None and said.assignor not in ASSIGNORS:
        known = ", ".join(ASSIGNORS)
        raise Refused(Why.UNKNOWN_ASSIGNOR, f"there is no assignor {said.assignor}, only {known}")
    old_id, old = _found(group, said)
    new = _updated(old or Member(), said)
    members = {member_id: member for member_id, member in group.members.items() if member_id != old_id}
    changed = old is None or old_id != said.member_id or _subscription(old) != _subscription(new)
    group = _replace(group, {**members, said.member_id: new}, changed=changed)
    group = retargeted(group, topics, matching)
    member = _led_on(group, said.member_id, said.owned)
    group = msgspec.structs.replace(group, members={**group.members, said.member_id: member})
    knows = old is not None and old.assigned == member.assigned and said.owned in (None, member.assigned)
    is_news = said.is_full or not knows
    return group, Answer(said.member_id, member.epoch, member.assigned if is_news else None)


def removed(group: Group, member_id: str) -> Group:
    """Without a member that has not been heard of, or has not given back what it should, for too long."""
    members = {other: member for other, member in group.members.items() if other != member_id}
    return _replace(group, members, changed=member_id in group.members)


def retargeted(group: Group, topics: Topics, matching: Matching) -> Group:
    """With a target for all members and topics as they are now. Another epoch, if topics came, went or grew."""
    wanted = {member_id: _names(member, topics, matching) for member_id, member in group.members.items()}
    seen = {name: topics[name] for name in sorted(frozenset().union(*wanted.values()))}
    if seen != group.topics:
        is_news = group.epoch == group.target_epoch  # else there is a new epoch already
        group = msgspec.structs.replace(group, epoch=group.epoch + is_news, topics=seen)
    if group.target_epoch == group.epoch:
        return group
    subscribers = {
        member_id: Subscriber(
            frozenset(topics[name].topic_id for name in wanted[member_id]), member.instance_id, member.target
        )
        for member_id, member in group.members.items()
    }
    counts = {shape.topic_id: shape.partition_count for shape in seen.values()}
    targets = ASSIGNORS[assignor_of(group)](subscribers, counts)
    members = {
        member_id: msgspec.structs.replace(member, target=targets[member_id])
        for member_id, member in group.members.items()
    }
    return msgspec.structs.replace(group, members=members, target_epoch=group.epoch)


def assignor_of(group: Group) -> str:
    """The one that most members ask for."""
    votes = [member.assignor for member in group.members.values() if member.assignor is not None]
    return max(ASSIGNORS, key=votes.count)


# ── who is it ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _found(group: Group, said: Beat) -> tuple[str, Member | None]:
    """The member as it was, and under which id; None: it is new."""
    if said.instance_id is not None:
        return _found_static(group, said.instance_id, said)
    member = group.members.get(said.member_id)
    if said.epoch == JOIN:
        return said.member_id, None if member is None else _begun_anew(member)
    if member is None:
        raise Refused(Why.UNKNOWN_MEMBER, f"the group has no member {said.member_id}")
    _check_epoch(member, said)
    return said.member_id, member


def _found_static(group: Group, instance_id: str, said: Beat) -> tuple[str, Member | None]:
    found = [(other, member) for other, member in group.members.items() if member.instance_id == instance_id]
    member_id, member = found[0] if found else (said.member_id, None)
    if said.epoch == JOIN:
        if member is None or member_id == said.member_id:
            return member_id, None if member is None else _begun_anew(member)
        if member.epoch != LEAVE_FOR_A_WHILE:
            raise Refused(Why.UNRELEASED_INSTANCE, f"instance {instance_id} is still in use by member {member_id}")
        return member_id, _begun_anew(member)
    if member is None:
        raise Refused(Why.UNKNOWN_MEMBER, f"the group has no member of instance {instance_id}")
    if member_id != said.member_id:
        raise Refused(Why.FENCED_INSTANCE, f"instance {instance_id} is member {member_id} by now")
    _check_epoch(member, said)
    return member_id, member


def _begun_anew(member: Member) -> Member:
    """Whoever joins has nothing in its hands. What it shall have stays the same."""
    return msgspec.structs.replace(
        member, epoch=JOIN, epoch_before=JOIN, state=State.STABLE, assigned=NOTHING, revoking=NOTHING
    )


def _check_epoch(member: Member, said: Beat) -> None:
    """An answer may have been lost: then the member is one epoch behind, and has no more than it was given."""
    repeats = said.epoch == member.epoch_before and said.owned is not None and said.owned <= member.assigned
    if said.epoch != member.epoch and not repeats:
        raise Refused(
            Why.FENCED_EPOCH, f"member {said.member_id} is at epoch {member.epoch}, not {said.epoch}: join again"
        )


def _left(group: Group, said: Beat) -> Group:
    """Repeated, it is refused: nobody is there any longer."""
    member_id = said.member_id
    if said.instance_id is not None:
        found = [(other, one) for other, one in group.members.items() if one.instance_id == said.instance_id]
        if not found:
            raise Refused(Why.UNKNOWN_MEMBER, f"the group has no member of instance {said.instance_id}")
        if found[0][0] != member_id:
            raise Refused(Why.FENCED_INSTANCE, f"instance {said.instance_id} is member {found[0][0]} by now")
    member = group.members.get(member_id)
    if member is None:
        raise Refused(Why.UNKNOWN_MEMBER, f"the group has no member {member_id}")
    if said.epoch == LEAVE:
        return removed(group, member_id)
    away = msgspec.structs.replace(_begun_anew(member), epoch=LEAVE_FOR_A_WHILE)
    return _replace(group, {**group.members, member_id: away}, changed=False)


# ── what it wants ────────────────────────────────────────────────────────────────────────────────────────────────────


def _updated(member: Member, said: Beat) -> Member:
    timeout_ms = said.rebalance_timeout_ms
    return msgspec.structs.replace(
        member,
        instance_id=said.instance_id if said.instance_id is not None else member.instance_id,
        rack=said.rack if said.rack is not None else member.rack,
        client_id=said.client_id,
        host=said.host,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == UNCHANGED_MS else timeout_ms,
        names=member.names if said.names is None else tuple(sorted(set(said.names))),
        pattern=member.pattern if said.pattern is None else said.pattern or None,
        assignor=member.assignor if said.assignor is None else said.assignor,
    )


def _subscription(member: Member) -> tuple[object, ...]:
    return member.names, member.pattern, member.assignor, member.rack


def _names(member: Member, topics: Topics, matching: Matching) -> frozenset[str]:
    matched = () if member.pattern is None else matching(member.pattern)
    return frozenset(name for name in (*member.names, *matched) if name in topics)


def _replace(group: Group, members: dict[str, Member], *, changed: bool) -> Group:
    return msgspec.structs.replace(group, members=members, epoch=group.epoch + changed)


# ── step by step ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _led_on(group: Group, member_id: str, owned: Partitions | None) -> Member:
    """One step towards the target, if it can make one."""
    member = group.members[member_id]
    if member.state is State.REVOKING and (owned is None or owned & member.revoking):
        return member  # it has not given back yet
    if member.state is State.STABLE and member.epoch == group.target_epoch:
        return member
    others = (other.held for other_id, other in group.members.items() if other_id != member_id)
    free = member.target.difference(member.assigned, *others)
    revoke = member.assigned - member.target
    stay = member.assigned & member.target
    if revoke and (owned is None or owned & revoke):
        return msgspec.structs.replace(member, state=State.REVOKING, assigned=stay, revoking=revoke)
    assigned = stay | free
    return msgspec.structs.replace(
        member,
        state=State.STABLE if assigned == member.target else State.WAITING,
        assigned=assigned,
        revoking=NOTHING,
        epoch=group.target_epoch,
        epoch_before=member.epoch if member.epoch != group.target_epoch else member.epoch_before,
    )
