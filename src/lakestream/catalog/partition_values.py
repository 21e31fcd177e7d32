"""What the rows of a file have in common by its partition spec: how manifests keep it, and lists sum it up. Pure.

Values are as Avro has them: numbers for dates and times, bytes for UUIDs and decimals. They come from workers, which
made them of rows (`data/table/splitting.py`), or out of manifests, where a file takes the place of others.
"""

import math
import struct
from collections.abc import Sequence
from typing import Any, Final

from lakestream.catalog import manifest_schemas as f
from lakestream.schemas.shape import Kind, Primitive
from lakestream.schemas.single_value import single_value

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
    """Of a field of the partition's record. Names of types count once in a schema: the field's id makes them so."""
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
    """Bytes that hold every number of so many digits, with its sign."""
    return (int(10**precision - 1).bit_length() + 8) // 8


def avro_value(kind: Primitive, value: Any) -> Any:
    """As it is written today: what an older manifest has may be of fewer digits."""
    if value is None or kind.kind is not Kind.DECIMAL:
        return value
    return int.from_bytes(value, "big", signed=True).to_bytes(decimal_size(kind.precision), "big", signed=True)


def summed_up(kinds: Sequence[Primitive], partitions: Sequence[Sequence[Any]]) -> list[dict[int, Any]]:
    """One entry for each field of the spec, over all files of a manifest. Readers skip manifests by it, so a bound that
    is not there says that there are no values."""
    return [_summed_up(kind, [values[place] for values in partitions]) for place, kind in enumerate(kinds)]


def _summed_up(kind: Primitive, values: Sequence[Any]) -> dict[int, Any]:
    there = [value for value in values if value is not None]
    has_nan = kind.kind in _FLOATS and any(math.isnan(value) for value in there)
    ordered = sorted(_ordered(kind, value) for value in there if not (has_nan and math.isnan(value)))
    return {
        f.CONTAINS_NULL: len(there) < len(values),
        f.CONTAINS_NAN: has_nan if kind.kind in _FLOATS else None,
        f.LOWER_BOUND: single_value(kind, ordered[0]) if ordered else None,
        f.UPPER_BOUND: single_value(kind, ordered[-1]) if ordered else None,
    }


def _ordered(kind: Primitive, value: Any) -> Any:
    """What is ordered as Iceberg orders it."""
    match kind.kind:
        case Kind.DECIMAL:
            return int.from_bytes(value, "big", signed=True)
        case Kind.STRING:
            return value.encode()
        case _:
            return value


def widened(kinds: Sequence[Primitive], summaries: Sequence[Sequence[dict[int, Any]]]) -> list[dict[int, Any]]:
    """What sums up all of several manifests."""
    return [_widened(kind, fields) for kind, fields in zip(kinds, zip(*summaries, strict=True), strict=True)]


def _widened(kind: Primitive, fields: Sequence[dict[int, Any]]) -> dict[int, Any]:
    lows = [low for one in fields if (low := one.get(f.LOWER_BOUND)) is not None]
    highs = [high for one in fields if (high := one.get(f.UPPER_BOUND)) is not None]
    has_nan = [one.get(f.CONTAINS_NAN) for one in fields]
    return {
        f.CONTAINS_NULL: any(one[f.CONTAINS_NULL] for one in fields),
        f.CONTAINS_NAN: None if None in has_nan else any(has_nan),
        f.LOWER_BOUND: min(lows, key=lambda low: _read(kind, low), default=None),
        f.UPPER_BOUND: max(highs, key=lambda high: _read(kind, high), default=None),
    }


def _read(kind: Primitive, bound: bytes) -> Any:
    """Of single-value serialisation, what can be compared. Numbers may be shorter: their column was widened since."""
    match kind.kind:
        case Kind.FLOAT | Kind.DOUBLE:
            return struct.unpack("<f" if len(bound) == 4 else "<d", bound)[0]
        case Kind.DECIMAL:
            return int.from_bytes(bound, "big", signed=True)
        case Kind.STRING | Kind.BINARY | Kind.FIXED | Kind.UUID:
            return bound
        case _:
            return int.from_bytes(bound, "little", signed=True)
