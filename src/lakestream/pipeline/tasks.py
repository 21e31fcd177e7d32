"""What the driver asks of a worker, and what it hears back: small values that travel through Spark.

Before: plan.py decides what to move; backlog.py knows where its bytes lie.  After: work.py, in a worker, makes files of
them; commit.py puts these into the table.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from lakestream.catalog.data_files import FileDescription
from lakestream.metadata.claims import Medium
from lakestream.model import PartitionId
from lakestream.schemas.columns import Column
from lakestream.schemas.shape import Struct
from lakestream.schemas.writers import Writer


@dataclass(frozen=True, slots=True)
class Piece:
    """Batches of one partition in one object or segment. Only those that become rows: markers and what was aborted are
    left out. Offsets are those of the log, not those that stand in the bytes."""

    medium: Medium
    name: str
    byte_starts: tuple[int, ...]
    byte_ends: tuple[int, ...]
    base_offsets: tuple[int, ...]


# Typed tables


class Mode(Enum):
    """How the bytes of a value, or of a key, tell what they are."""

    NONE = "none"
    """They do not: they stay bytes."""
    REGISTRY = "registry"
    """A zero byte and the id of a schema stand in front."""
    LATEST = "latest"
    FIXED = "fixed"
    """These two: they have no id, and are all written with one schema: `Typed.number`."""
    JSON = "json"
    """They are JSON without a schema; the shape is found in them."""


class OnInvalid(Enum):
    """What becomes of a value that is not what its topic says."""

    KEEP = "keep"
    """It keeps its bytes, and has no columns."""
    STOP = "stop"
    """Nothing more of its log is moved: the worker says that it is stuck, and why."""


@dataclass(frozen=True, slots=True)
class Typed:
    """How values, or keys, become columns."""

    mode: Mode = Mode.NONE
    writers: tuple[Writer, ...] = ()
    """All that are known so far. Of a writer without a format the values stay bytes."""
    number: int = 0
    """LATEST, FIXED: which of them wrote what comes now."""


@dataclass(frozen=True, slots=True)
class Typing:
    value: Typed = Typed()
    key: Typed = Typed()
    """Its columns are below `_key`. `_stream.key` has the bytes, always."""
    on_invalid: OnInvalid = OnInvalid.KEEP


class Part(Enum):
    VALUE = "value"
    KEY = "key"


@dataclass(frozen=True, slots=True)
class WantedSchema:
    """An id that stands in front of values, for which the move has no writer."""

    part: Part
    schema_id: int
    message: tuple[int, ...] = ()
    """Protobuf: which message of it; empty: the first."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """What JSON without a schema looks like, where no writer fits it. It becomes a writer with just these words; the
    driver adds the number and the columns."""

    part: Part
    format: str
    text: str
    style: str
    shape: Struct


@dataclass(frozen=True, slots=True)
class Misfits:
    """Values that have no columns, or not all of theirs, for one reason."""

    reason: str
    """In words, with the field where it is known."""
    schema_id: int
    """That stands in front of them; 0: none does."""
    count: int
    offset: int
    """Of the first of them."""


# Moves and what becomes of them


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


Outcome: TypeAlias = Moved | Wants | Stuck
