"""Partition tuples in manifests, and their summaries in manifest lists. Pure.

Values are as in Avro: numbers for dates and times, bytes for UUIDs and decimals. Workers compute them from rows
(`data/table/write/partitioned_writer.py`); for rewritten files they are read from manifests.
"""

import math
import struct
from collections.abc import Sequence
from typing import Any, Final

from lakestream.catalog.manifests import avro_schemas as f
from lakestream.schemas.single_value import single_value
from lakestream.schemas.types import Kind, Primitive

_PLAIN: Final = {
    Kind.BOOLEAN: "boolean",
    Kind.INT: "int",
    Kind.LONG: "long",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
    Kind.STRING: "string",
    Kind.BINARY: "bytes",
    Kind.DATE: {"type": "int", "logicalType": "date"},
    Kind.TIME: {"type": "long", "logicalType": "time-micros"},
    Kind.TIMESTAMP: {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    Kind.TIMESTAMPTZ: {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
}
_FLOATS: Final = (Kind.FLOAT, Kind.DOUBLE)


def avro_type(kind: Primitive, field_id: int) -> Any:
    """Returns the Avro type of a partition field. Its name contains the field id, because type names must be unique."""
    match kind.kind:
        case Kind.UUID:
            return {"type": "fixed", "name": f"uuid_fixed_{field_id}", "size": 16, "logicalType": "uuid"}
        case Kind.FIXED:
            return {"type": "fixed", "name": f"fixed_{kind.length}_{field_id}", "size": kind.length}
        case Kind.DECIMAL:
            return {
                "type": "fixed",
                "name": f"decimal_{kind.precision}_{kind.scale}_{field_id}",
                "size": decimal_size(kind.precision),
                "logicalType": "decimal",
                "precision": kind.precision,
                "scale": kind.scale,
            }
        case plain:
            return _PLAIN[plain]


def decimal_size(precision: int) -> int:
    """Returns the bytes that every signed number of so many digits fits into."""
    return (int(10**precision - 1).bit_length() + 8) // 8


def avro_value(kind: Primitive, value: Any) -> Any:
    """Returns the value in the field's current size: a decimal from an older manifest may have fewer digits."""
    if value is None or kind.kind is not Kind.DECIMAL:
        return value
    return int.from_bytes(value, "big", signed=True).to_bytes(decimal_size(kind.precision), "big", signed=True)


def partition_summaries(kinds: Sequence[Primitive], partitions: Sequence[Sequence[Any]]) -> list[dict[int, Any]]:
    """Returns the field summaries of a manifest's files, one for each field of the spec.

    Readers skip manifests by them: an absent bound means that there are no values.
    """
    return [_summary(kind, [values[place] for values in partitions]) for place, kind in enumerate(kinds)]


def _summary(kind: Primitive, values: Sequence[Any]) -> dict[int, Any]:
    non_null = [value for value in values if value is not None]
    has_nan = kind.kind in _FLOATS and any(math.isnan(value) for value in non_null)
    ordered = sorted(_ordered(kind, value) for value in non_null if not (has_nan and math.isnan(value)))
    return {
        f.CONTAINS_NULL: len(non_null) < len(values),
        f.CONTAINS_NAN: has_nan if kind.kind in _FLOATS else None,
        f.LOWER_BOUND: single_value(kind, ordered[0]) if ordered else None,
        f.UPPER_BOUND: single_value(kind, ordered[-1]) if ordered else None,
    }


def _ordered(kind: Primitive, value: Any) -> Any:
    """Returns a value that compares as in Iceberg's order."""
    match kind.kind:
        case Kind.DECIMAL:
            return int.from_bytes(value, "big", signed=True)
        case Kind.STRING:
            return value.encode()
        case _:
            return value


def merged_summaries(kinds: Sequence[Primitive], summaries: Sequence[Sequence[dict[int, Any]]]) -> list[dict[int, Any]]:
    """Returns the field summaries of several manifests together."""
    return [_merged_summary(kind, fields) for kind, fields in zip(kinds, zip(*summaries, strict=True), strict=True)]


def _merged_summary(kind: Primitive, fields: Sequence[dict[int, Any]]) -> dict[int, Any]:
    lows = [low for one in fields if (low := one.get(f.LOWER_BOUND)) is not None]
    highs = [high for one in fields if (high := one.get(f.UPPER_BOUND)) is not None]
    has_nan = [one.get(f.CONTAINS_NAN) for one in fields]
    return {
        f.CONTAINS_NULL: any(one[f.CONTAINS_NULL] for one in fields),
        f.CONTAINS_NAN: None if None in has_nan else any(has_nan),
        f.LOWER_BOUND: min(lows, key=lambda low: _comparable(kind, low), default=None),
        f.UPPER_BOUND: max(highs, key=lambda high: _comparable(kind, high), default=None),
    }


def _comparable(kind: Primitive, bound: bytes) -> Any:
    """Decodes a bound for comparison. Numbers may be shorter than the column's type, if it was widened."""
    match kind.kind:
        case Kind.FLOAT | Kind.DOUBLE:
            return struct.unpack("<f" if len(bound) == 4 else "<d", bound)[0]
        case Kind.DECIMAL:
            return int.from_bytes(bound, "big", signed=True)
        case Kind.STRING | Kind.BINARY | Kind.FIXED | Kind.UUID:
            return bound
        case _:
            return int.from_bytes(bound, "little", signed=True)
