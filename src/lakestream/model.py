"""The nouns of the project: small frozen values that every layer may use."""

from typing import NamedTuple, TypeAlias

KiB = 1024
MiB = 1024 * KiB

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Record bytes as they travel: never joined, copied only where they must be."""


class PartitionId(NamedTuple):
    """One log. Named by the topic's id, never its name: a recreated topic never meets an old writer."""

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
