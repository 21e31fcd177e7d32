"""Query and results of `lakestream table dead-letters`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from lakestream.model import Span
from lakestream.pipeline.tasks import Reason

OFFSET_END: Final = 2**63 - 1
BYTES_SHOWN: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterQuery:
    partition: int | None = None
    offset_start: int = 0
    newest_first: bool = False
    bytes_shown: int = BYTES_SHOWN
    """Bytes of a key or a value, at most."""
    limit: int | None = None
    """Maximum number of dead letters. Memory holds no more than this for each file."""
    files_max: int | None = None
    """Of a summary: maximum number of files, the newest of those that may have dead letters."""

    @property
    def first(self) -> slice:
        """Selects, from dead letters by offset, as many as the limit allows."""
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
    """0 if it is unknown."""
    reason: str
    """Empty if the row can be repaired."""
    is_repairable: bool
    """If there is a reason: whether the value or the key can be repaired."""
    key: bytes | None
    value: bytes | None
    """The first bytes."""
    value_size: int


@dataclass(slots=True)
class Summary:
    rows: int = 0
    repairable: int = 0
    """Rows that can be repaired."""
    spelled: int = 0
    """Rows, not counted above, with columns and with bytes that the columns do not restore."""
    reasons: Counter[Reason] = field(default_factory=Counter)
    """Number of rows by reason. A row may have two: one for its value, one for its key."""
    firsts: dict[Reason, tuple[int, int]] = field(default_factory=dict)
    """Partition and offset of the first row by reason."""
    left: list[str] = field(default_factory=list)
    """For each file that was left out, the reason."""
    files_skipped: int = 0
    """Files beyond the limit of the query."""
