"""What is said of the values and keys of a typed table, and what is found out about them. Plain data: small values that
travel between the driver and its workers (`pipeline/tasks.py`), below both.
"""

from dataclasses import dataclass
from enum import Enum

from lakestream.schemas.shape import Struct
from lakestream.schemas.writers import Writer


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
    REJECT = "reject"
    """Producers hear of it. What is in the log nevertheless (from before, or it contradicts the table) is kept."""
    STOP = "stop"
    """Nothing more of its log is moved: the worker says that it is stuck, and why."""


@dataclass(frozen=True, slots=True)
class Typed:
    """How values, or keys, become columns."""

    mode: Mode = Mode.NONE
    writers: tuple[Writer, ...] = ()
    """Those that values are typed by: one for each schema id (and message) that is known so far, and all shapes of
    JSON. Of a writer without a format the values stay bytes, and its `text` says why."""
    number: int = 0
    """LATEST, FIXED: which of them wrote what comes now."""


@dataclass(frozen=True, slots=True)
class Typing:
    value: Typed = Typed()
    key: Typed = Typed()
    """Its columns are below `_key`. `_stream.key` has the bytes, always."""
    on_invalid: OnInvalid = OnInvalid.KEEP
    asks: bool = True
    """False: nobody is there to ask, or it was asked often enough. What has no writer stays bytes, with a reason."""


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
    style: str = ""
    """JSON: how its text is written, for `Writer.style`."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """What JSON without a schema looks like, where no writer fits it. It becomes a writer with just these words; the
    driver adds the number and the columns."""

    part: Part
    format: str
    text: str
    style: str
    shape: Struct


class Wanted(Exception):
    """There are values whose schemas nobody has told of yet. No error: the driver is asked, and it is tried again."""

    def __init__(self, schemas: tuple[WantedSchema, ...], inferred: tuple[Inferred, ...] = ()) -> None:
        super().__init__(f"{len(schemas)} schemas and {len(inferred)} shapes are wanted")
        self.schemas = schemas
        self.inferred = inferred


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
