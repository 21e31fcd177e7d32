"""Small immutable values that every layer may use."""

from typing import NamedTuple, TypeAlias

KiB = 1024
MiB = 1024 * KiB

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Record bytes: never joined, and copied only where it is necessary."""


class PartitionId(NamedTuple):
    """A partition's log, by topic id: after a topic was recreated, an old writer cannot write to the new topic."""

    topic_id: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.number}"


class Span(NamedTuple):
    """A half-open range of bytes."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start
