"""Tasks of the driver to its workers, and their outcomes: small values that Spark transports.

Before: backlog.py and plan.py, which decide what to move.  After: worker.py writes files in a worker; commit.py commits
them to the table.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from lakestream.catalog.manifests.data_file import FileDescription
from lakestream.catalog.topic_table.file_layout import PLAIN_LAYOUT, FileLayout
from lakestream.metadata.claims import Medium
from lakestream.model import MiB, PartitionId
from lakestream.schemas.columns import Column
from lakestream.schemas.value_format import ConversionErrors, ConversionSettings, InferredSchema, MissingSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSettings:
    """Sent with every task. Contains no credentials: each worker takes them from its own environment."""

    storage_url: str
    segments_dir: str | None
    window_bytes: int = 32 * MiB  # of one move, read at once
    memory_bytes: int = 64 * MiB  # of all moves in memory together, before decompression
    at_once: int = 16  # concurrent moves in one worker
    file_bytes_max: int = 128 * MiB  # of a Parquet file, which is in memory while it is written


@dataclass(frozen=True, slots=True)
class Piece:
    """Batches of one partition in one object or segment.

    Only batches that become rows: not markers, not aborted batches. The offsets are those of the log, not those in the
    batches' bytes.
    """

    medium: Medium
    name: str
    byte_starts: tuple[int, ...]
    byte_ends: tuple[int, ...]
    base_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """Offsets `[start, end)` of a log, which become rows of a table. Without pieces there are no rows."""

    partition: PartitionId
    start: int
    end: int
    size: int
    pieces: tuple[Piece, ...]
    location: str
    """Of the table; its files are in the folder `data` there."""
    properties: tuple[tuple[str, str], ...] = ()
    """The table properties for writing files."""
    columns: tuple[Column, ...] = ()
    """All columns of a table with schemas, including columns that other engines added. Empty: `PLAIN_COLUMNS`."""
    conversion: ConversionSettings | None = None
    """None: values are bytes in the column `value`, and the table never had schemas."""
    layout: FileLayout = PLAIN_LAYOUT


@dataclass(frozen=True, slots=True)
class MoveResult:
    """The files are stored, but not committed."""

    move: Move
    files: tuple[FileDescription, ...]
    record_count: int
    converted_count: int = 0
    """Values that have columns."""
    unconverted_count: int = 0
    """Values that keep their bytes in `_stream.value`, with columns or without. In a table without schemas: record
    batches that cannot be read."""
    errors: tuple[ConversionErrors, ...] = ()
    """Why values have no columns, or batches cannot be read, the most frequent first; their number is limited."""


@dataclass(frozen=True, slots=True)
class SchemasMissing:
    """No file is stored: the move lacks schemas of its values. The driver adds them and runs the move again."""

    move: Move
    schemas: tuple[MissingSchema, ...] = ()
    inferred: tuple[InferredSchema, ...] = ()


@dataclass(frozen=True, slots=True)
class MoveFailed:
    """A move that cannot become rows, for example because of a damaged batch or a missing object.

    Its topic stalls until an operator repairs it.
    """

    move: Move
    reason: str
    temporary: bool
    """For example a store that did not respond: the next micro-batch retries, and no action is needed."""


class Reason(NamedTuple):
    """Why rows keep their bytes."""

    text: str
    schema_id: int
    """The schema id in front of the bytes; 0 if there is none."""


FinishedMove: TypeAlias = MoveResult | MoveFailed
Outcome: TypeAlias = FinishedMove | SchemasMissing
