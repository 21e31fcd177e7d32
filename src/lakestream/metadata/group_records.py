"""Stored records of a group: of the classic or the consumer protocol, and its committed offsets.

Above: groups.py, which reads and writes them. The record of the consumer protocol is packed: topic ids and lists of
subscribed names are stored once, because a thousand members share them.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from lakestream.metadata.codec import check_format, decode_record
from lakestream.metadata.store import Record
from lakestream.model import PartitionId

FORMAT: Final = 1
BLOCK_PARTITIONS: Final = 32
"""Partitions of a topic whose committed offsets share a record."""
PARTITION_BYTES: Final = 3
"""Maximum size of a packed partition number up to 65,535."""

Partitions: TypeAlias = frozenset[PartitionId]
NOTHING: Final[Partitions] = frozenset()


class GroupState(Enum):
    EMPTY = "empty"
    PREPARING = "preparing"
    COMPLETING = "completing"
    STABLE = "stable"
    DEAD = "dead"


def bytes_of(*words: str | bytes | None) -> int:
    """Returns the size of texts in a record."""
    return sum(len(word if isinstance(word, bytes) or word.isascii() else word.encode()) for word in words if word)


class MemberProtocol(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An assignment protocol that a member supports. Its metadata is opaque."""

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
    protocols: tuple[MemberProtocol, ...]
    assignment: bytes = b""

    @property
    def size(self) -> int:
        """Approximate number of stored bytes."""
        words = bytes_of(self.member_id, self.instance_id, self.client_id, self.host, self.assignment)
        return words + sum(protocol.size for protocol in self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        return next((supported.metadata for supported in self.protocols if supported.name == protocol), b"")


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="classic"):
    """State of a group of the classic protocol, for its next coordinator."""

    format: int = FORMAT
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = {}
    since_ms: int = -1
    """Wall time of the last change of state. Groups that are empty for long expire."""

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_dead(self) -> bool:
        """Whether its deletion has begun."""
        return self.state is GroupState.DEAD


# ── consumer protocol (KIP-848) ──────────────────────────────────────────────────────────────────────────────────────


class Progress(Enum):
    """State of a member's reconciliation with its target assignment."""

    STABLE = "stable"
    REVOKING = "revoking"
    WAITING = "waiting"


class TopicShape(msgspec.Struct, frozen=True, array_like=True):
    topic_id: str
    partition_count: int

    @property
    def size(self) -> int:
        """Approximate number of stored bytes, with the current and target assignment of each partition."""
        return bytes_of(self.topic_id) + 2 * PARTITION_BYTES * self.partition_count


class ClassicSide(msgspec.Struct, frozen=True, array_like=True):
    """Data of a member that uses the classic protocol in a group of the consumer protocol."""

    session_ms: int
    protocols: tuple[MemberProtocol, ...]


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
    """The member must revoke them, and has not confirmed it yet."""
    target: Partitions = NOTHING
    classic: ClassicSide | None = None

    @property
    def reserved(self) -> Partitions:
        """Partitions that must not be assigned to other members."""
        return self.assigned | self.revoking if self.revoking else self.assigned

    @property
    def size(self) -> int:
        """Approximate number of stored bytes of its subscription. Its partitions are counted with their topics."""
        protocols = sum(protocol.size for protocol in self.classic.protocols) if self.classic else 0
        words = (self.pattern, self.instance_id, self.rack, self.client_id, self.host, self.assignor)
        return protocols + bytes_of(*self.names, *words)


def size_of(members: Mapping[str, ConsumerMember]) -> int:
    return sum(bytes_of(member_id) + member.size for member_id, member in members.items())


class ConsumerGroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """State of a group of the consumer protocol, for its next coordinator."""

    epoch: int = 0
    target_epoch: int = 0
    members: dict[str, ConsumerMember] = {}
    topics: dict[str, TopicShape] = {}
    """Subscribed topics, as in the target assignment."""
    since_ms: int = -1
    """Wall time since which it has members, or has none."""

    @property
    def topics_size(self) -> int:
        """Approximate number of stored bytes that do not depend on the members' subscriptions."""
        return sum(bytes_of(name) + shape.size for name, shape in self.topics.items())

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_dead(self) -> bool:
        return False


AnyGroupRecord: TypeAlias = GroupRecord | ConsumerGroupRecord

_Packed: TypeAlias = list[list[int]]
"""Partitions: for each topic its index in the list of ids, then the partition numbers."""


class _PackedMember(msgspec.Struct, frozen=True, array_like=True):
    member_id: str
    instance_id: str | None
    rack: str | None
    client_id: str
    host: str
    rebalance_ms: int
    names: int
    """Index in the list of subscriptions."""
    pattern: str | None
    assignor: str | None
    epoch: int
    epoch_before: int
    progress: Progress
    assigned: _Packed
    revoking: _Packed
    target: _Packed | None
    """None if equal to `assigned`."""
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
            index = self._topics.setdefault(topic_id, len(self._topics))
            by_topic.setdefault(index, [index]).append(number)
        return list(by_topic.values())


def _unpacked(packed: _PackedConsumerGroup) -> ConsumerGroupRecord:
    def partitions(by_topic: _Packed) -> Partitions:
        ids = packed.topic_ids
        return frozenset(PartitionId(ids[index], number) for index, *numbers in by_topic for number in numbers)

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


class CommitSequence(NamedTuple):
    """Order of the offset commits of a group, independent of the brokers' clocks."""

    term: int = -1
    """Version of the group's owner record that the coordinator read: it grows with each coordinator."""
    number: int = 0
    """Number of the commit within the term."""


class Committed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    generation: int
    expires_ms: int = -1
    """Set by old clients; -1: the broker's retention applies."""
    sequence: CommitSequence = CommitSequence()
    """Of two offsets, the one with the later sequence is kept."""


class BlockId(NamedTuple):
    """The partitions of a topic whose committed offsets share a record."""

    topic_id: str
    number: int
    """Of its first partition, divided by BLOCK_PARTITIONS."""

    @classmethod
    def of(cls, partition: PartitionId) -> "BlockId":
        return cls(partition.topic_id, partition.number // BLOCK_PARTITIONS)


class _OffsetBlock(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    offsets: dict[int, Committed]
    """By partition number."""


class LastHeartbeats(msgspec.Struct, frozen=True, kw_only=True):
    """When each member of a group was heard last, for its next coordinator."""

    format: int = FORMAT
    heard_ms: dict[str, int] = {}
    """By member id, by the metadata store's clock."""


# ── bytes ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_encode = msgspec.msgpack.Encoder().encode
_decode_group = msgspec.msgpack.Decoder(GroupRecord | _PackedConsumerGroup).decode
_decode_offset = msgspec.msgpack.Decoder(Committed).decode
_decode_block = msgspec.msgpack.Decoder(_OffsetBlock).decode
_decode_heartbeats = msgspec.msgpack.Decoder(LastHeartbeats).decode


def packed_group(group: AnyGroupRecord) -> bytes:
    return _encode(group if isinstance(group, GroupRecord) else _Packing().pack(group))


def group_of(record: Record) -> AnyGroupRecord:
    def unpack(value: bytes) -> tuple[AnyGroupRecord, int]:
        group = _decode_group(value)
        return group if isinstance(group, GroupRecord) else _unpacked(group), group.format

    group, format = decode_record(record, unpack, "a group")
    check_format(record, format, FORMAT)
    return group


def packed_heartbeats(heard_ms: Mapping[str, int]) -> bytes:
    return _encode(LastHeartbeats(heard_ms=dict(heard_ms)))


def heartbeats_of(record: Record) -> dict[str, int]:
    heartbeats = decode_record(record, _decode_heartbeats, "the last heartbeats of a group")
    check_format(record, heartbeats.format, FORMAT)
    return heartbeats.heard_ms


def packed_offset(committed: Committed) -> bytes:
    return _encode(committed)


def offset_of(record: Record) -> Committed:
    return decode_record(record, _decode_offset, "an offset")


def packed_block(offsets: dict[int, Committed]) -> bytes:
    return _encode(_OffsetBlock(offsets=offsets))


def block_of(record: Record) -> dict[int, Committed]:
    block = decode_record(record, _decode_block, "a block of offsets")
    check_format(record, block.format, FORMAT)
    return block.offsets
