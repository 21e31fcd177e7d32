"""What Kafka's consumers say to one another in the classic protocol: subscriptions and assignments. Pure.

Read only in groups where members of both protocols meet (mixed.py, migration.py). It comes from clients, so every
length is checked; of versions that are newer than ours the known part is read.
"""

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from lakestream.errors import Rejected

NEWEST: Final = 3
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


class Poisoned(Rejected):
    """Not what a consumer would write."""


class Subscription(NamedTuple):
    version: int
    topics: tuple[str, ...]
    owned: frozenset[tuple[str, int]] = frozenset()
    """Names of topics and numbers; of clients that give back everything before they join: none."""
    rack: str | None = None


def read_subscription(data: bytes) -> Subscription:
    reader = _Reader(data)
    version = reader.version()
    topics = tuple(reader.text() for _ in range(reader.count(_INT16.size)))
    reader.skip_bytes()
    owned = reader.partitions() if version >= 1 else frozenset[tuple[str, int]]()
    if version >= 2:
        reader.int32()  # the generation in which it owned them
    rack = reader.nullable_text() if version >= 3 else None
    return Subscription(version, topics, owned, rack)


def read_assignment(data: bytes) -> frozenset[tuple[str, int]]:
    """Nothing at all means: no partitions."""
    if not data:
        return frozenset()
    reader = _Reader(data)
    reader.version()
    return reader.partitions()


def write_assignment(version: int, shares: Mapping[str, list[int]]) -> bytes:
    parts = [_INT16.pack(min(version, NEWEST)), _INT32.pack(len(shares))]
    for name, numbers in sorted(shares.items()):
        word = name.encode()
        parts += [_INT16.pack(len(word)), word, struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)]
    return b"".join([*parts, _INT32.pack(-1)])


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def version(self) -> int:
        version = self.int16()
        if version < 0:
            raise Poisoned(f"version {version} of the consumers' words does not exist")
        return version

    def int16(self) -> int:
        return int(_INT16.unpack(self._take(_INT16.size))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self._take(_INT32.size))[0])

    def count(self, least_bytes: int) -> int:
        """Of things that have at least so many bytes each."""
        count = self.int32()
        if not 0 <= count * least_bytes <= len(self._data) - self._at:
            raise Poisoned(f"a list of {count} in {len(self._data)} bytes")
        return count

    def text(self) -> str:
        word = self.nullable_text()
        if word is None:
            raise Poisoned("a name is missing")
        return word

    def nullable_text(self) -> str | None:
        size = self.int16()
        if size == -1:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise Poisoned(f"a name that is not text ({error})") from error

    def skip_bytes(self) -> None:
        size = self.int32()
        if size != -1:
            self._take(size)

    def partitions(self) -> frozenset[tuple[str, int]]:
        found: set[tuple[str, int]] = set()
        for _ in range(self.count(_INT16.size + _INT32.size)):
            name = self.text()
            found.update((name, self.int32()) for _ in range(self.count(_INT32.size)))
        return frozenset(found)

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size] if size >= 0 else b""
        if size < 0 or len(taken) < size:
            raise Poisoned(f"{size} bytes at {self._at} of {len(self._data)}")
        self._at += size
        return taken
