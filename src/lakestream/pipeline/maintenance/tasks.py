"""What the driver asks of a worker, and what it hears back: small values that travel through Spark.

Before: merging.py, compacting.py, rows.py decide.  After: work.py does it; maintain.py commits what came of it.
"""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from lakestream.catalog.data_files import FileDescription
from lakestream.catalog.file_layout import PLAIN_LAYOUT, FileLayout
from lakestream.schemas.columns import Column
from lakestream.schemas.typing import Inferred, Misfits, Typing, WantedSchema
from lakestream.schemas.writers import Writer


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
    spec_id: int | None = None
    values: tuple[Any, ...] = ()
    """Of its partition spec: what is written anew of it stays in that partition. None: the stream's partition alone."""


class Writing(NamedTuple):
    """How files are written."""

    layout: FileLayout = PLAIN_LAYOUT
    """Of the table now. Which partition rows are in does not change by it, but for those that get new values."""
    properties: tuple[tuple[str, str], ...] = ()
    """Of the table, as far as they say something of it."""


PLAIN_WRITING: Final = Writing()


@dataclass(frozen=True, slots=True)
class Merge:
    """The rows of all sources, which are of one partition of the table, in as few files as may be."""

    partition: int
    sources: tuple[Source, ...]
    location: str
    """Of the table."""
    target: int
    columns: tuple[Column, ...] = ()
    """That values and keys are typed into, and the stream's own. Empty: the table has only these and that of bytes."""
    writing: Writing = PLAIN_WRITING


@dataclass(frozen=True, slots=True)
class Forget:
    """Write each source anew without rows that are before both."""

    partition: int
    sources: tuple[Source, ...]
    location: str
    target: int
    before_ms: int
    before_offset: int
    columns: tuple[Column, ...] = ()
    writing: Writing = PLAIN_WRITING


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
    columns: tuple[Column, ...] = ()
    writing: Writing = PLAIN_WRITING


@dataclass(frozen=True, slots=True)
class Repair:
    """Type the values of sources anew, as is said now; write those anew where fewer rows keep their bytes then."""

    partition: int
    sources: tuple[Source, ...]
    location: str
    target: int
    columns: tuple[Column, ...]
    typing: Typing
    writers: tuple[Writer, ...]
    """All that rows of the table may be of."""
    own_ids: tuple[int, ...]
    """Of the columns that values and keys are in. A file with others is left as it is."""
    writing: Writing = PLAIN_WRITING


Task: TypeAlias = Merge | Forget | Compact | Repair


@dataclass(frozen=True, slots=True)
class Written:
    """The files are stored; nobody knows of them yet."""

    gone: tuple[str, ...]
    """The sources that they are to replace."""
    files: tuple[FileDescription, ...]
    reached: int = 0
    """Of a compaction: up to where the partition is clean then."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """The files are stored."""

    gone: tuple[str, ...] = ()
    files: tuple[FileDescription, ...] = ()
    rows_before: int = 0
    """That keep their bytes in the sources."""
    rows_after: int = 0
    """That keep them when they are typed as is said now."""
    misfits: tuple[Misfits, ...] = ()
    """Why."""


@dataclass(frozen=True, slots=True)
class RepairWants:
    """As `pipeline.tasks.Wants`."""

    schemas: tuple[WantedSchema, ...]
    inferred: tuple[Inferred, ...]


@dataclass(frozen=True, slots=True)
class NotDone:
    reason: str


Result: TypeAlias = Written | Repaired | RepairWants | NotDone
