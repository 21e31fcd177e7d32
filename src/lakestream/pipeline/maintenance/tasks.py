"""Maintenance tasks of the driver to its workers, and their results: small values that Spark transports.

Before: small_files.py, key_compaction.py, row_retention.py plan them.  After: worker.py runs them; service.py commits
the results.
"""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from lakestream.catalog.manifests.data_file import FileDescription
from lakestream.catalog.topic_table.file_layout import PLAIN_LAYOUT, FileLayout
from lakestream.schemas.columns import Column
from lakestream.schemas.value_format import ConversionErrors, ConversionSettings, InferredSchema, MissingSchema
from lakestream.schemas.writer_schema import WriterSchema


class SourceFile(NamedTuple):
    """A file of the table, with rows of one partition."""

    location: str
    size: int
    offset_first: int
    offset_last: int
    has_tombstones: bool
    """Whether it has, or may have, tombstones."""
    deletes: tuple[str, ...]
    """Position delete files that may apply to it."""
    spec_id: int | None = None
    values: tuple[Any, ...] = ()
    """Values of its partition spec: its rewritten rows stay in that partition. Without a spec id: only the stream's
    partition is kept."""


class Writing(NamedTuple):
    """How files are written."""

    layout: FileLayout = PLAIN_LAYOUT
    """The current layout of the table. Rows stay in their table partition, unless their values change."""
    properties: tuple[tuple[str, str], ...] = ()
    """The table properties for writing files."""


PLAIN_WRITING: Final = Writing()


@dataclass(frozen=True, slots=True)
class Merge:
    """Writes the rows of all sources, which are in one table partition, to as few files as possible."""

    partition: int
    sources: tuple[SourceFile, ...]
    location: str
    """Of the table."""
    target: int
    columns: tuple[Column, ...] = ()
    """The columns of values and keys, and the stream's own. Empty: the table has no schemas."""
    writing: Writing = PLAIN_WRITING


@dataclass(frozen=True, slots=True)
class RemoveRows:
    """Rewrites each source without the rows that are before both the time and the offset."""

    partition: int
    sources: tuple[SourceFile, ...]
    location: str
    target: int
    before_ms: int
    before_offset: int
    columns: tuple[Column, ...] = ()
    writing: Writing = PLAIN_WRITING


@dataclass(frozen=True, slots=True)
class Compact:
    """Rewrites the sources with rows that a newer row of the same key in `[dirty_from, end)` supersedes.

    Tombstones before `tombstones_before` are removed, too, but never the row at `newest`.
    """

    partition: int
    sources: tuple[SourceFile, ...]
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
    """Converts the values of sources again; rewrites a source if fewer of its rows keep their bytes."""

    partition: int
    sources: tuple[SourceFile, ...]
    location: str
    target: int
    columns: tuple[Column, ...]
    conversion: ConversionSettings
    writers: tuple[WriterSchema, ...]
    """All writer schemas of rows in the table."""
    own_ids: tuple[int, ...]
    """Ids of the columns of values and keys. A file with other columns is not rewritten."""
    writing: Writing = PLAIN_WRITING


Task: TypeAlias = Merge | RemoveRows | Compact | Repair


@dataclass(frozen=True, slots=True)
class RewrittenFiles:
    """The files are stored, but not committed."""

    removed: tuple[str, ...]
    """The sources that the files replace."""
    files: tuple[FileDescription, ...]
    reached: int = 0
    """Of a compaction: the offset up to which the partition is clean after the commit."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """The files are stored, but not committed."""

    removed: tuple[str, ...] = ()
    files: tuple[FileDescription, ...] = ()
    rows_before: int = 0
    """Rows that keep their bytes in the sources."""
    rows_after: int = 0
    """Rows that keep their bytes when they are converted with the current schemas."""
    errors: tuple[ConversionErrors, ...] = ()
    """Why these rows keep their bytes."""


@dataclass(frozen=True, slots=True)
class RepairSchemasMissing:
    """As `pipeline.tasks.SchemasMissing`."""

    schemas: tuple[MissingSchema, ...]
    inferred: tuple[InferredSchema, ...]


@dataclass(frozen=True, slots=True)
class TaskFailed:
    reason: str


Result: TypeAlias = RewrittenFiles | Repaired | RepairSchemasMissing | TaskFailed
