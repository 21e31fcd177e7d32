"""What is asked about dead letters, and what is told of them: small values, for `lakestream table rejects`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lakestream.model import Span

OFFSET_END: Final = 2**63 - 1
BYTES_SHOWN: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    partition: int | None = None
    offset_start: int = 0
    newest_first: bool = False
    bytes_shown: int = BYTES_SHOWN
    """Of a key or a value, at most."""
    limit: int | None = None
    """So many letters at most: of a file with many more, only these are kept in memory."""

    @property
    def first(self) -> slice:
        """Of any letters by offset: as many as may be told."""
        if self.limit is None:
            return slice(None)
        return slice(-self.limit, None) if self.newest_first else slice(self.limit)

    @property
    def window(self) -> Span:
        return Span(self.offset_start, OFFSET_END)

    def of(self, partitions: Sequence[int]) -> list[int]:
        return [number for number in partitions if self.partition in (None, number)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    partition: int
    offset: int
    timestamp_ms: int
    schema_id: int
    """0: none is known."""
    reason: str
    """Empty: there is none any more, it can be repaired."""
    is_repairable: bool
    """All of it; or some, where there is a reason nevertheless."""
    key: bytes | None
    value: bytes | None
    """The beginning of it."""
    value_size: int


class Reason(NamedTuple):
    said: str
    schema_id: int
    """That stands in front; 0: none does."""


@dataclass(slots=True)
class Summary:
    rows: int = 0
    repairable: int = 0
    """Of them."""
    spelled: int = 0
    """Besides: rows with columns, and bytes that these do not give back."""
    reasons: Counter[Reason] = field(default_factory=Counter)
    """A row may have two: one for its value, one for its key."""
    firsts: dict[Reason, tuple[int, int]] = field(default_factory=dict)
    """The first of them: partition and offset."""
    left: list[str] = field(default_factory=list)
    """Files that could not be looked at, and why."""
