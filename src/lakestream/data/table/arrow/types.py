"""Arrow types of a table's columns, from which Parquet files are written.

Produced by `write/batch_decoder.py` and `typed/`, consumed by `batch_encoder.py`.

Bytes of the stream's own columns are views (`binary_view`): a row points into the buffer that was read or decompressed,
and no bytes are copied. Parquet is written from them directly. Columns of converted values are plain strings and bytes,
which Arrow can pick rows from. Field ids are in the metadata of the fields, where pyarrow expects them.
"""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.catalog.topic_table.columns import FIRST_FREE_ID, iceberg_schema
from lakestream.schemas.columns import Column, ColumnType, Fields, Foreign, ListColumn, MapColumn, columns_of
from lakestream.schemas.types import Kind, Primitive

_ID_KEY: Final = b"PARQUET:field_id"

_PRIMITIVES: Final = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.DATE: pa.date32(),
    Kind.TIME: pa.time64("us"),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
    Kind.STRING: pa.string(),
    Kind.BINARY: pa.binary(),
    Kind.UUID: pa.uuid(),
}
_VIEWS: Final = {Kind.STRING: pa.string_view(), Kind.BINARY: pa.binary_view()}


def primitive_type(kind: Primitive) -> Any:
    match kind.kind:
        case Kind.FIXED:
            return pa.binary(kind.length)
        case Kind.DECIMAL:
            return pa.decimal128(kind.precision, kind.scale)
        case one:
            return _PRIMITIVES[one]


def field_of(column: Column) -> Any:
    return pa.field(column.name, _type(column), not column.required, {_ID_KEY: str(column.field_id).encode()})


def arrow_schema(columns: Sequence[Column]) -> Any:
    """Returns the schema. None of the columns may be `Foreign`: `files.writable` leaves those out."""
    return pa.schema([field_of(column) for column in columns])


def field_id_of(field: Any) -> int | None:
    """Returns the field id in the metadata of an Arrow or Parquet field, or None."""
    field_id = (field.metadata or {}).get(_ID_KEY)
    return None if field_id is None else int(field_id)


def _type(column: Column) -> Any:
    kind: ColumnType = column.type
    match kind:
        case Primitive(one):
            return _VIEWS.get(one, _PRIMITIVES.get(one)) if column.field_id < FIRST_FREE_ID else primitive_type(kind)
        case Fields(fields):
            return pa.struct([field_of(field) for field in fields])
        case ListColumn(element):
            return pa.list_(field_of(element))
        case MapColumn(key, value):
            return pa.map_(field_of(key), field_of(value))
        case Foreign(text):
            raise TypeError(f"column {column.name} has type {text}, which has no Arrow type")


PLAIN_COLUMNS: Final = columns_of(iceberg_schema())
"""Columns of a topic whose values are bytes."""
SCHEMA: Final = arrow_schema(PLAIN_COLUMNS)
STREAM_TYPE: Final = SCHEMA.field("_stream").type
HEADERS_TYPE: Final = STREAM_TYPE.field("headers").type
HEADER_TYPE: Final = HEADERS_TYPE.value_type
