"""Iceberg's partition transforms over Arrow columns, by which rows are split and sorted. Loads kernels: import late.

Values come out as Iceberg stores them: numbers for dates and times, bytes for UUIDs.

bucket and truncate are pyiceberg-core's, in Rust. Three things are not left to it:

- It accepts no views, as the stream's own columns are, so these are cast.
- It panics on strings that are not valid UTF-8, and a panic is no `Exception`: Arrow truncates strings, and raises.
- Its `day` (0.11) is one too high in the last second before midnight for times before 1970: time transforms are here.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyiceberg_core import transform as core  # type: ignore[import-untyped]

from lakestream.data.table.arrow.byte_spans import numbers
from lakestream.schemas.layout_terms import Transform
from lakestream.schemas.types import Kind, Primitive

_UNIT_US: Final = {"day": 86_400_000_000, "hour": 3_600_000_000}
_AS_NUMBERS: Final = {
    Kind.DATE: pa.int32(),
    Kind.TIME: pa.int64(),
    Kind.TIMESTAMP: pa.int64(),
    Kind.TIMESTAMPTZ: pa.int64(),
}


def transformed(array: Any, kind: Primitive, transform: Transform) -> Any:
    """Returns a column (no chunks) of that Iceberg type, transformed. Nulls stay null."""
    plain = stored_values(array, kind)
    match transform.name:
        case "identity":
            return plain
        case "void":
            return pa.nulls(len(plain), plain.type)
        case "bucket":
            return core.bucket(plain, transform.width)
        case "truncate" if kind.kind is Kind.STRING:
            return pc.utf8_slice_codeunits(plain, 0, transform.width)
        case "truncate":
            return core.truncate(plain, transform.width)
        case _:
            return _time(plain, kind, transform.name)


def stored_values(array: Any, kind: Primitive) -> Any:
    """Returns the column in a type that Arrow and pyiceberg-core compute with."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_binary_view(array.type):
        array = array.cast(pa.binary())
    elif pa.types.is_string_view(array.type):
        array = array.cast(pa.string())
    number_type = _AS_NUMBERS.get(kind.kind)
    return array if number_type is None else array.cast(number_type)


def _time(plain: Any, kind: Primitive, name: str) -> Any:
    values = numbers(plain, 0)
    if kind.kind is not Kind.DATE:
        values //= _UNIT_US["hour" if name == "hour" else "day"]
    if name in ("year", "month"):
        values = values.view("datetime64[D]").astype(f"datetime64[{name[0].upper()}]").view(np.int64)
    return pa.array(values.astype(np.int32), mask=np.asarray(plain.is_null()) if plain.null_count else None)
