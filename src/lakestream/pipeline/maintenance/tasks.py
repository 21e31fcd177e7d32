"""What the driver asks of a worker, and what it hears back: small values that travel through Spark.

Before: merging.py, compacting.py, rows.py decide.  After: work.py does it; maintain.py commits what came of it.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from lakestream.catalog.data_files import FileDescription


class Source(NamedTuple):
    """A file of the table, of one partition."""

    location: str
    size: int
    offset_first: int
    offset_last: int
    has_tombstones: bool
    """Or may have."""
    deletes: tuple[str, ...]
    """Position delete files that may be about it."""


@dataclass(frozen=True, slots=True)
class Merge:
    """The rows of all sources, by offset, in as few files as may be."""

    partition: int
    sources: tuple[Source, ...]
    location: str
    """Of the table."""
    target: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Write each source anew without rows that are before both."""

    partition: int
    sources: tuple[Source, ...]
    location: str
    target: int
    before_ms: int
    before_offset: int


@dataclass(frozen=True, slots=True)
class Compact:
    """Write those sources anew that have rows which a newer one of the same key supersedes: newer ones are looked for
    in `[dirty_from, end)`. Deletions before `tombstones_before` go too, but never the row at `newest`."""

    partition: int
    sources: tuple[Source, ...]
    location: str
    target: int
    dirty_from: int
    end: int
    tombstones_before: int
    newest: int


Task: TypeAlias = Merge | Forget | Compact


@dataclass(frozen=True, slots=True)
class Written:
    """The files are stored; nobody knows of them yet."""

    gone: tuple[str, ...]
    """The sources that they are to replace."""
    files: tuple[FileDescription, ...]
    reached: int = 0
    """Of a compaction: up to where the partition is clean then."""


@dataclass(frozen=True, slots=True)
class NotDone:
    reason: str


Result: TypeAlias = Written | NotDone
