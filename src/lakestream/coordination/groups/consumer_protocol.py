"""Subscriptions and assignments of Kafka's consumers in the classic protocol: decoder and encoder. Pure.

They are decoded only where the coordinator needs them: in groups with members of both protocols (classic_members.py,
protocol_migration.py), and, as Kafka does, before offsets are deleted or expire. The bytes come from clients, so every
length is checked; of a newer version, the fields of version 3 are read. Metadata of other protocol types (`connect`,
`stream`) is never decoded.
"""

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from lakestream.errors import Rejected
from lakestream.metadata.group_records import AnyGroupRecord, ConsumerGroupRecord

CONSUMER: Final = "consumer"
"""The protocol type of consumers, in either protocol."""
NEWEST: Final = 3
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


class InvalidConsumerProtocol(Rejected):
    """The bytes are not a subscription or an assignment."""


class Subscription(NamedTuple):
    version: int
    topics: tuple[str, ...]
    owned: frozenset[tuple[str, int]] = frozenset()
    """Topic names and partition numbers; empty for clients that revoke all partitions before they join."""
    rack: str | None = None


def read_subscription(data: bytes) -> Subscription:
    reader = _SubscriptionReader(data)
    version = reader.version()
    topics = reader.texts()
    reader.skip_bytes()
    owned = reader.partitions() if version >= 1 else frozenset[tuple[str, int]]()
    if version >= 2:
        reader.int32()  # the generation in which it owned them
    rack = reader.nullable_text() if version >= 3 else None
    return Subscription(version, topics, owned, rack)


def read_assignment(data: bytes) -> frozenset[tuple[str, int]]:
    """Decodes an assignment. Empty bytes are an assignment without partitions."""
    if not data:
        return frozenset()
    reader = _SubscriptionReader(data)
    reader.version()
    return reader.partitions()


def write_assignment(version: int, assigned: Mapping[str, list[int]]) -> bytes:
    parts = [_INT16.pack(min(version, NEWEST)), _INT32.pack(len(assigned))]
    for name, numbers in sorted(assigned.items()):
        text = name.encode()
        parts += [_INT16.pack(len(text)), text, struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)]
    return b"".join([*parts, _INT32.pack(-1)])


class _SubscriptionReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def version(self) -> int:
        version = self.int16()
        if version < 0:
            raise InvalidConsumerProtocol(f"invalid consumer protocol version {version}")
        return version

    def int16(self) -> int:
        return int(_INT16.unpack(self._take(_INT16.size))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self._take(_INT32.size))[0])

    def count(self, bytes_min: int) -> int:
        """Reads the length of a list whose elements have at least `bytes_min` bytes each."""
        count = self.int32()
        if not 0 <= count * bytes_min <= len(self._data) - self._at:
            raise InvalidConsumerProtocol(f"a list of {count} elements in {len(self._data)} bytes")
        return count

    def text(self) -> str:
        text = self.nullable_text()
        if text is None:
            raise InvalidConsumerProtocol("a name is null")
        return text

    def texts(self) -> tuple[str, ...]:
        return tuple(self.text() for _ in range(self.count(_INT16.size)))

    def nullable_text(self) -> str | None:
        size = self.int16()
        if size == -1:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise InvalidConsumerProtocol(f"a name is not UTF-8 ({error})") from error

    def skip_bytes(self) -> None:
        size = self.int32()
        if size != -1:
            self._take(size)

    def partitions(self) -> frozenset[tuple[str, int]]:
        partitions: set[tuple[str, int]] = set()
        for _ in range(self.count(_INT16.size + _INT32.size)):
            name = self.text()
            partitions.update((name, self.int32()) for _ in range(self.count(_INT32.size)))
        return frozenset(partitions)

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size] if size >= 0 else b""
        if size < 0 or len(taken) < size:
            raise InvalidConsumerProtocol(f"{size} bytes at {self._at} of {len(self._data)}")
        self._at += size
        return taken


def subscribed_topics(group: AnyGroupRecord) -> frozenset[str] | None:
    """Returns the topics that members subscribe to. None if a subscription cannot be read: it may be any topic."""
    if not group.members:
        return frozenset()
    if isinstance(group, ConsumerGroupRecord):
        return frozenset(group.topics).union(*(member.names for member in group.members.values()))
    if group.protocol_type != CONSUMER or group.protocol is None:
        return None
    all_topics: set[str] = set()
    for member in group.members.values():
        topics = topics_of(member.metadata(group.protocol))
        if topics is None:
            return None
        all_topics |= topics
    return frozenset(all_topics)


@lru_cache(maxsize=1_000)
def topics_of(metadata: bytes) -> frozenset[str] | None:
    """Returns the topics of a subscription, of which only version and topics are read. None if they are invalid."""
    reader = _SubscriptionReader(metadata)
    try:
        reader.int16()
        return frozenset(reader.texts())
    except InvalidConsumerProtocol:
        return None
