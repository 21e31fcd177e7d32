"""What is stored of a group: the record of either protocol, and its committed offsets.

Above: groups.py, which reads and writes them.  The new protocol's record is packed: ids of topics and lists of names
are written once, since a thousand members share them.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from lakestream.errors import Corrupt
from lakestream.metadata.store import Record
from lakestream.model import PartitionId

FORMAT: Final = 1
PARTITION_BYTES: Final = 3
"""A number of a partition, as it is packed: up to 65,535."""

Partitions: TypeAlias = frozenset[PartitionId]
NOTHING: Final[Partitions] = frozenset()


class State(Enum):
    EMPTY = "empty"
    PREPARING = "preparing"
    COMPLETING = "completing"
    STABLE = "stable"
    DEAD = "dead"


def bytes_of(*words: str | bytes | None) -> int:
    """How much they take in a record."""
    return sum(len(word if isinstance(word, bytes) or word.isascii() else word.encode()) for word in words if word)


class Protocol(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A way to share out partitions that a member knows. What it says about itself is nobody's business here."""

    name: str
    metadata: bytes

    @property
    def size(self) -> int:
        return bytes_of(self.name, self.metadata)


class Member(msgspec.Struct, frozen=True, array_like=True, gc=False):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    session_ms: int
    rebalance_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""

    @property
    def size(self) -> int:
        """About so many bytes of it are stored."""
        words = bytes_of(self.member_id, self.instance_id, self.client_id, self.host, self.assignment)
        return words + sum(protocol.size for protocol in self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        return next((known.metadata for known in self.protocols if known.name == protocol), b"")


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="classic"):
    """A group of the classic protocol, as whoever coordinates it next has to know it."""

    format: int = FORMAT
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = {}
    since_ms: int = -1
    """Since when it is in this state, by the wall clock: what is empty for long is forgotten."""

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    @property
    def is_dead(self) -> bool:
        """Whoever deletes it has begun."""
        return self.state is State.DEAD


# ── the new protocol ─────────────────────────────────────────────────────────────────────────────────────────────────


class Progress(Enum):
    """How far a member is on its way to what it shall have."""

    STABLE = "stable"
    REVOKING = "revoking"
    WAITING = "waiting"


class TopicShape(msgspec.Struct, frozen=True, array_like=True):
    topic_id: str
    partition_count: int

    @property
    def size(self) -> int:
        """About so many bytes of it, and of who has and who shall have each partition, are stored."""
        return bytes_of(self.topic_id) + 2 * PARTITION_BYTES * self.partition_count


class ClassicSide(msgspec.Struct, frozen=True, array_like=True):
    """Of a member that speaks the classic protocol in a group of the new one."""

    session_ms: int
    protocols: tuple[Protocol, ...]


class ConsumerMember(msgspec.Struct, frozen=True, kw_only=True):
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    host: str = ""
    rebalance_ms: int = 300_000
    names: tuple[str, ...] = ()
    pattern: str | None = None
    assignor: str | None = None
    epoch: int = 0
    epoch_before: int = 0
    progress: Progress = Progress.STABLE
    assigned: Partitions = NOTHING
    revoking: Partitions = NOTHING
    """It is to give them back, and has not said yet that it did."""
    target: Partitions = NOTHING
    classic: ClassicSide | None = None

    @property
    def held(self) -> Partitions:
        """Nobody else may have these."""
        return self.assigned | self.revoking if self.revoking else self.assigned

    @property
    def size(self) -> int:
        """About so many bytes of what it said are stored. Its partitions are counted with their topics."""
        said = sum(protocol.size for protocol in self.classic.protocols) if self.classic else 0
        words = (self.pattern, self.instance_id, self.rack, self.client_id, self.host, self.assignor)
        return said + bytes_of(*self.names, *words)


def size_of(members: Mapping[str, ConsumerMember]) -> int:
    return sum(bytes_of(member_id) + member.size for member_id, member in members.items())


class ConsumerGroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A group of the new protocol, as whoever coordinates it next has to know it."""

    epoch: int = 0
    target_epoch: int = 0
    members: dict[str, ConsumerMember] = {}
    topics: dict[str, TopicShape] = {}
    """Those that somebody subscribes to, as the target knows them."""
    since_ms: int = -1
    """Since when it has members, or none."""

    @property
    def topics_size(self) -> int:
        """Of the record's bytes, those that do not depend on what members say of themselves."""
        return sum(bytes_of(name) + shape.size for name, shape in self.topics.items())

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_dead(self) -> bool:
        return False


AnyGroup: TypeAlias = GroupRecord | ConsumerGroupRecord

_Packed: TypeAlias = list[list[int]]
"""Partitions: for each topic its place in the list of ids, then the numbers."""


class _PackedMember(msgspec.Struct, frozen=True, array_like=True):
    member_id: str
    instance_id: str | None
    rack: str | None
    client_id: str
    host: str
    rebalance_ms: int
    names: int
    """Its place in the list of subscriptions."""
    pattern: str | None
    assignor: str | None
    epoch: int
    epoch_before: int
    progress: Progress
    assigned: _Packed
    revoking: _Packed
    target: _Packed | None
    """None: what is assigned."""
    classic: ClassicSide | None


class _PackedConsumerGroup(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="consumer"):
    format: int = FORMAT
    epoch: int
    target_epoch: int
    members: list[_PackedMember]
    topics: dict[str, TopicShape]
    topic_ids: list[str]
    subscriptions: list[tuple[str, ...]]
    since_ms: int


class _Packing:
    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        self._subscriptions: dict[tuple[str, ...], int] = {}

    def pack(self, record: ConsumerGroupRecord) -> _PackedConsumerGroup:
        members = [self._member(member_id, member) for member_id, member in record.members.items()]
        return _PackedConsumerGroup(
            epoch=record.epoch,
            target_epoch=record.target_epoch,
            members=members,
            topics=record.topics,
            topic_ids=list(self._topics),
            subscriptions=list(self._subscriptions),
            since_ms=record.since_ms,
        )

    def _member(self, member_id: str, member: ConsumerMember) -> _PackedMember:
        return _PackedMember(
            member_id,
            member.instance_id,
            member.rack,
            member.client_id,
            member.host,
            member.rebalance_ms,
            self._subscriptions.setdefault(member.names, len(self._subscriptions)),
            member.pattern,
            member.assignor,
            member.epoch,
            member.epoch_before,
            member.progress,
            self._partitions(member.assigned),
            self._partitions(member.revoking),
            None if member.target == member.assigned else self._partitions(member.target),
            member.classic,
        )

    def _partitions(self, partitions: Partitions) -> _Packed:
        by_topic: dict[int, list[int]] = {}
        for topic_id, number in sorted(partitions):
            place = self._topics.setdefault(topic_id, len(self._topics))
            by_topic.setdefault(place, [place]).append(number)
        return list(by_topic.values())


def _unpacked(packed: _PackedConsumerGroup) -> ConsumerGroupRecord:
    def partitions(shares: _Packed) -> Partitions:
        ids = packed.topic_ids
        return frozenset(PartitionId(ids[place], number) for place, *numbers in shares for number in numbers)

    members = {
        one.member_id: ConsumerMember(
            instance_id=one.instance_id,
            rack=one.rack,
            client_id=one.client_id,
            host=one.host,
            rebalance_ms=one.rebalance_ms,
            names=packed.subscriptions[one.names],
            pattern=one.pattern,
            assignor=one.assignor,
            epoch=one.epoch,
            epoch_before=one.epoch_before,
            progress=one.progress,
            assigned=(assigned := partitions(one.assigned)),
            revoking=partitions(one.revoking),
            target=assigned if one.target is None else partitions(one.target),
            classic=one.classic,
        )
        for one in packed.members
    }
    return ConsumerGroupRecord(
        epoch=packed.epoch,
        target_epoch=packed.target_epoch,
        members=members,
        topics=packed.topics,
        since_ms=packed.since_ms,
    )


# ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Asked(NamedTuple):
    """When somebody asked for an offset, among all who ask of the group; the clocks of brokers do not matter."""

    term: int = -1
    """Version of the group's owner, as its coordinator knew it: it grows, and each coordinator has greater ones."""
    number: int = 0
    """Of the coordinator's own."""


class Committed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    generation: int
    expires_ms: int = -1
    """Chosen by clients of old; -1: as the broker has it."""
    asked: Asked = Asked()
    """Of two offsets, the one stays that was asked for later."""


# ── bytes ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_encode = msgspec.msgpack.Encoder().encode
_decode_group = msgspec.msgpack.Decoder(GroupRecord | _PackedConsumerGroup).decode
_decode_offset = msgspec.msgpack.Decoder(Committed).decode


def packed_group(group: AnyGroup) -> bytes:
    return _encode(group if isinstance(group, GroupRecord) else _Packing().pack(group))


def group_of(record: Record) -> AnyGroup:
    try:
        group = _decode_group(record.value)
        found = group if isinstance(group, GroupRecord) else _unpacked(group)
    except (msgspec.MsgspecError, ValueError, IndexError) as error:
        raise Corrupt(f"metadata record {record.path} is not a group ({error}); restore it from a backup") from error
    if group.format > FORMAT:
        raise Corrupt(f"metadata record {record.path} is of a newer Lakestream (format {group.format}): upgrade")
    return found


def packed_offset(committed: Committed) -> bytes:
    return _encode(committed)


def offset_of(record: Record) -> Committed:
    try:
        return _decode_offset(record.value)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Corrupt(f"metadata record {record.path} is not an offset ({error}); restore it from a backup") from error
