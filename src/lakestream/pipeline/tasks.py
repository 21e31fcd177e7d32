"""What the driver asks of a worker, and what it hears back: small values that travel through Spark.

Before: plan.py decides what to move; backlog.py knows where its bytes lie.  After: work.py, in a worker, makes files of
them; commit.py puts these into the table.
"""

from dataclasses import dataclass
from typing import TypeAlias

from lakestream.catalog.data_files import FileDescription
from lakestream.catalog.file_layout import PLAIN_LAYOUT, FileLayout
from lakestream.metadata.claims import Medium
from lakestream.model import PartitionId
from lakestream.schemas.columns import Column
from lakestream.schemas.typing import Inferred as Inferred
from lakestream.schemas.typing import Misfits as Misfits
from lakestream.schemas.typing import Mode as Mode
from lakestream.schemas.typing import OnInvalid as OnInvalid
from lakestream.schemas.typing import Part as Part
from lakestream.schemas.typing import Typed as Typed
from lakestream.schemas.typing import Typing as Typing
from lakestream.schemas.typing import WantedSchema as WantedSchema


@dataclass(frozen=True, slots=True)
class Piece:
    """Batches of one partition in one object or segment. Only those that become rows: markers and what was aborted are
    left out. Offsets are those of the log, not those that stand in the bytes."""

    medium: Medium
    name: str
    byte_starts: tuple[int, ...]
    byte_ends: tuple[int, ...]
    base_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """Offsets `[start, end)` of a log, which become rows of a table. Without pieces nothing of it is a row."""

    partition: PartitionId
    start: int
    end: int
    size: int
    pieces: tuple[Piece, ...]
    location: str
    """Of the table: its files go into the folder `data` there."""
    properties: tuple[tuple[str, str], ...] = ()
    """Of the table, as far as they say how files are written."""
    columns: tuple[Column, ...] = ()
    """Of a typed table: all it has, ours and those of others. Empty: those of `topic_layout.COLUMNS`."""
    typing: Typing | None = None
    """None: values are bytes, in the column `value`, and the table has never been typed."""
    layout: FileLayout = PLAIN_LAYOUT


@dataclass(frozen=True, slots=True)
class Moved:
    """The files are stored; nobody knows of them yet."""

    move: Move
    files: tuple[FileDescription, ...]
    record_count: int
    typed_count: int = 0
    """Values that have columns."""
    raw_count: int = 0
    """Values that keep their bytes in `_stream.value`, with columns or without."""
    misfits: tuple[Misfits, ...] = ()
    """Why values have no columns, the most frequent first; not many, however many reasons there are."""


@dataclass(frozen=True, slots=True)
class Wants:
    """Nothing is stored: values have schemas that the move says nothing of. The same is moved again once it does."""

    move: Move
    schemas: tuple[WantedSchema, ...] = ()
    inferred: tuple[Inferred, ...] = ()


@dataclass(frozen=True, slots=True)
class Stuck:
    """The bytes of a move cannot become rows: a damaged batch, an object that is gone. Its topic waits until somebody
    mends it."""

    move: Move
    reason: str
    temporary: bool
    """The store did not answer, or the like: the next round tries again, and nobody need do anything."""


Settled: TypeAlias = Moved | Stuck
Outcome: TypeAlias = Settled | Wants
