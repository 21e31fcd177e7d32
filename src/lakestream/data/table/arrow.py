"""The columns of `catalog/topic_layout.py` in Arrow: what `decode.py` makes, `encode.py` takes, and Parquet files are
written from.

Bytes are views (`binary_view`): a row says where its bytes lie, in the buffer that was read or decompressed, and none
is copied. Parquet is written from them directly. The field numbers travel in the fields' metadata, where pyarrow looks
for them.
"""

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.catalog.topic_layout import COLUMNS, Column

_ID_KEY: Final = b"PARQUET:field_id"

_PRIMITIVES: Final = {
    "int": pa.int32(),
    "long": pa.int64(),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary_view(),
    "string": pa.string_view(),
}


def _field(column: Column) -> Any:
    return _numbered(column.name, _type(column), column.field_id, nullable=not column.required)


def _type(column: Column) -> Any:
    if column.type == "struct":
        return pa.struct(_fields(column.fields))
    if column.type == "list":
        return pa.list_(_numbered("element", pa.struct(_fields(column.fields)), column.element_id, nullable=False))
    return _PRIMITIVES[column.type]


def _fields(columns: Iterable[Column]) -> list[Any]:
    return [_field(column) for column in columns]


def _numbered(name: str, kind: Any, field_id: int, *, nullable: bool) -> Any:
    return pa.field(name, kind, nullable, {_ID_KEY: str(field_id).encode()})


SCHEMA: Final = pa.schema(_fields(COLUMNS))
STREAM_TYPE: Final = SCHEMA.field("_stream").type
HEADERS_TYPE: Final = STREAM_TYPE.field("headers").type
HEADER_TYPE: Final = HEADERS_TYPE.value_type
