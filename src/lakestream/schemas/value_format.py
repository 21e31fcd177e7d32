"""Settings and results of the conversion of values and keys to columns.

Plain data that the driver and its workers exchange (`pipeline/tasks.py`).
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from lakestream.schemas.types import Struct
from lakestream.schemas.writer_schema import WriterSchema


class SchemaMode(Enum):
    """How the schema of values, or of keys, is determined."""

    NONE = "none"
    """No schema: values are stored as bytes."""
    REGISTRY = "registry"
    """Each value begins with a zero byte and a schema id (Confluent's wire format)."""
    LATEST = "latest"
    FIXED = "fixed"
    """LATEST and FIXED: values have no id, and all are written with one schema, `FieldConversion.number`."""
    JSON = "json"
    """JSON without a schema: the shape is inferred from the values."""


class OnInvalid(Enum):
    """Action for a record whose value or key does not match the schema of its topic."""

    KEEP = "keep"
    """The row stores the bytes, and its columns are null."""
    REJECT = "reject"
    """The broker rejects the record batch. Records that are in the log nevertheless (written earlier, or in conflict
    with the table) are stored as with KEEP."""
    STOP = "stop"
    """The partition is not moved beyond the record: the worker reports the topic as stalled, with the reason."""


@dataclass(frozen=True, slots=True)
class FieldConversion:
    """How values, or keys, are converted to columns."""

    mode: SchemaMode = SchemaMode.NONE
    writers: tuple[WriterSchema, ...] = ()
    """The writer schemas known so far: one for each schema id (and message), and one for each shape of JSON. Values of
    a writer schema without a format stay bytes; its `text` is the reason."""
    number: int = 0
    """LATEST, FIXED: the writer schema of all new values."""


@dataclass(frozen=True, slots=True)
class ConversionSettings:
    value: FieldConversion = FieldConversion()
    key: FieldConversion = FieldConversion()
    """Columns of keys are below `_key`. `_stream.key` always contains the bytes."""
    on_invalid: OnInvalid = OnInvalid.KEEP
    requests_schemas: bool = True
    """Whether a worker raises SchemasMissingError for unknown schemas. If false (no driver, or too many lookups by
    the driver), values without a writer schema stay bytes, with a reason."""


class ValuePart(Enum):
    VALUE = "value"
    KEY = "key"


@dataclass(frozen=True, slots=True)
class MissingSchema:
    """A schema id in front of values for which the move has no writer schema."""

    part: ValuePart
    schema_id: int
    message: tuple[int, ...] = ()
    """Protobuf: indexes of the message; empty: the first message."""
    style: str = ""
    """JSON: style of the text, for `WriterSchema.style`."""


@dataclass(frozen=True, slots=True)
class InferredSchema:
    """The inferred shape of JSON without a schema that fits no known writer schema. The driver makes a writer schema
    of these fields and adds the number and the columns."""

    part: ValuePart
    format: str
    text: str
    style: str
    shape: Struct


class SchemasMissingError(Exception):
    """Values have schemas that the worker does not know. The worker sends them to the driver, which looks them up and
    retries the move."""

    def __init__(self, schemas: tuple[MissingSchema, ...], inferred: tuple[InferredSchema, ...] = ()) -> None:
        super().__init__(f"{len(schemas)} schemas and {len(inferred)} shapes are missing")
        self.schemas = schemas
        self.inferred = inferred


@dataclass(frozen=True, slots=True)
class ConversionErrors:
    """Values that were not, or not fully, converted to columns for one reason."""

    reason: str
    """A sentence, with the field if it is known."""
    schema_id: int
    """The schema id in front of the values; 0 if they have none."""
    count: int
    offset: int
    """Of the first such value."""


CONVERSION_ERRORS_MAX: Final = 20
REASONS_MAX: Final = 1_000
"""At most this many reasons are counted separately: clients can send any number of different schema ids, and each is a
reason of its own."""
OTHER_REASONS: Final = "other reasons"


@dataclass(slots=True)
class ConversionErrorCounts:
    """Counts conversion errors by reason and schema id."""

    _errors: dict[tuple[str, int], ConversionErrors] = field(default_factory=dict)

    def add(self, reason: str, schema_id: int, count: int, offset: int) -> None:
        """Adds values with one reason. `offset` is that of the first of them."""
        if (reason, schema_id) not in self._errors and len(self._errors) >= REASONS_MAX:
            reason, schema_id = OTHER_REASONS, 0
        before = self._errors.get((reason, schema_id), ConversionErrors(reason, schema_id, 0, offset))
        self._errors[reason, schema_id] = ConversionErrors(
            reason, schema_id, before.count + count, min(before.offset, offset)
        )

    @property
    def count(self) -> int:
        return sum(one.count for one in self._errors.values())

    def most_frequent(self) -> tuple[ConversionErrors, ...]:
        """Returns at most CONVERSION_ERRORS_MAX entries, the most frequent first."""
        return tuple(sorted(self._errors.values(), key=lambda one: (-one.count, one.offset))[:CONVERSION_ERRORS_MAX])
