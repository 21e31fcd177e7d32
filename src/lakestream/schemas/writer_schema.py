"""How the values of one schema are converted to columns of one table and back. Plain data.

A table stores one writer schema for each number in its column `_stream.schema_id` as long as it has rows with that
number, because a schema may be deleted from the registry while the table still needs it. A number from 1 on is the id
in the registry, of values that begin with this id. Negative numbers are assigned by the table: for shapes of JSON
without a schema, values without an id in front, further messages of one Protobuf schema, and schemas of contexts other
than the default one, which have ids of their own.
"""

from typing import Final

import msgspec

from lakestream.model import KiB, MiB

DEFAULT_CONTEXT: Final = "."


class ColumnBinding(msgspec.Struct, frozen=True, array_like=True):
    """The column of a field of the shape; the position among its siblings identifies the field. A list has one child,
    its element; a map has two, key and value."""

    field_id: int
    children: tuple["ColumnBinding | None", ...] = ()
    """None: this part of the shape has no column. Rows whose value contains it also store the bytes."""


class WriterSchema(msgspec.Struct, frozen=True):
    number: int
    format: str
    """A value of `model.Format`, or another format of `format_codecs.py`. Empty: the schema cannot be read, `text` is
    the reason, and its values stay bytes."""
    text: str
    references: tuple[tuple[str, str], ...] = ()
    """Name and text of all referenced schemas, each before the schemas that refer to it."""
    schema_id: int = 0
    """The id in the registry, within the context; 0 if it has none."""
    framed: bool = False
    """Whether values begin with a zero byte and the id (Confluent's wire format). In Protobuf the message indexes
    follow."""
    message: tuple[int, ...] = ()
    """Protobuf: indexes of the message, as in the wire format; empty: the first message."""
    style: str = ""
    """JSON: style of the text, so that values can be restored byte for byte."""
    columns: tuple[ColumnBinding | None, ...] = ()
    """One for each field of the shape."""
    context: str = DEFAULT_CONTEXT
    """Context of the registry. The same id is another schema in another context."""


CODECS_WEIGHT_MAX: Final = 8 * MiB
_CODEC_WEIGHT: Final = 32 * KiB


def weight_of(writer: WriterSchema) -> int:
    return weight_of_texts(writer.text, writer.references)


def weight_of_texts(text: str, references: tuple[tuple[str, str], ...] = ()) -> int:
    """Returns the cache weight of the codec of a schema, in characters. A codec takes about ten times as many bytes.

    The constant part limits a cache to 256 codecs of small schemas."""
    return _CODEC_WEIGHT + len(text) + sum(len(other) for _, other in references)


class UnknownWriterSchema(Exception):
    """Rows have the number of a writer schema that the reader has not loaded. The caller loads it and retries."""

    def __init__(self, number: int) -> None:
        super().__init__(f"writer schema {number}: not loaded")
        self.number = number
