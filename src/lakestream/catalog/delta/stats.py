"""What a manifest of Iceberg says of a file's columns, as Delta says it of a file: JSON beside its path. Pure.

By the names that columns have in the files. A bound may be left out, or wider than the values, never narrower; times
end with the millisecond in Delta, so the upper one is rounded up. Of bytes and of booleans Delta keeps none. Numbers
with a fraction have one only where it is known that none of them is NaN: to Spark that is the largest.
"""

import math
import struct
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final

import msgspec

from lakestream.catalog import manifest_schemas as f
from lakestream.catalog.shapes import Json

NAN_COUNTS: Final = 137
_encode = msgspec.json.Encoder(decimal_format="number").encode
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND_US: Final = 1_000
_DIGITS: Final = Context(prec=40)
"""More than a decimal has: Python's own are 28, and would round a bound to the wrong side."""


def stats_of(data_file: Mapping[int, Any], schema: Json, names: Mapping[int, str]) -> str:
    """`data_file`: as the entry of a manifest has it, by field id."""
    said: Json = {"numRecords": data_file[f.RECORD_COUNT]}
    nulls = data_file.get(f.NULL_COUNTS) or {}
    lower, upper = data_file.get(f.LOWER_BOUNDS) or {}, data_file.get(f.UPPER_BOUNDS) or {}
    nans = data_file.get(NAN_COUNTS) or {}

    def low(field: Json) -> Any:
        return _bound(field, lower, nans, is_upper=False)

    def high(field: Json) -> Any:
        return _bound(field, upper, nans, is_upper=True)

    for name, fact in (("minValues", low), ("maxValues", high), ("nullCount", lambda one: nulls.get(one["id"]))):
        if found := _tree(schema, names, fact):
            said[name] = found
    return _encode(said).decode()


def _tree(kind: Json, names: Mapping[int, str], fact: Any) -> Json:
    """Of the leaves that a row has once: what is in lists and maps is not counted in rows."""
    found: Json = {}
    for field in kind["fields"]:
        if isinstance(field["type"], str):
            value = fact(field)
        elif field["type"]["type"] == "struct":
            value = _tree(field["type"], names, fact) or None
        else:
            continue
        if value is not None:
            found[names[field["id"]]] = value
    return found


def _bound(field: Json, bounds: Mapping[int, bytes], nans: Mapping[int, int], *, is_upper: bool) -> Any:
    raw, kind = bounds.get(field["id"]), field["type"]
    if raw is None or (kind in ("float", "double") and nans.get(field["id"]) != 0):
        return None
    try:
        return _value(kind, bytes(raw), is_upper)
    except (ValueError, OverflowError, struct.error):
        return None  # of a time that has no date, of bytes that are no text: then there is none


def _value(kind: str, raw: bytes, is_upper: bool) -> Any:
    match kind:
        case "int" | "long":
            return _number(raw)
        case "float" | "double":
            (value,) = struct.unpack("<f" if len(raw) == 4 else "<d", raw)
            return value if math.isfinite(value) else None
        case "string":
            return raw.decode()
        case "date":
            return (date(1970, 1, 1) + timedelta(days=_number(raw))).isoformat()
        case "timestamp" | "timestamptz":
            return _time(_number(raw), is_upper) + ("Z" if kind == "timestamptz" else "")
    if kind.startswith("decimal("):
        scale = int(kind.rstrip(")").partition(",")[2])
        return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-scale, _DIGITS)
    return None


def _number(raw: bytes) -> int:
    """Also of a column that was narrower when the file was written."""
    if len(raw) not in (4, 8):
        raise ValueError("no number")
    return int.from_bytes(raw, "little", signed=True)


def _time(microseconds: int, is_upper: bool) -> str:
    milliseconds = -(-microseconds // _MILLISECOND_US) if is_upper else microseconds // _MILLISECOND_US
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds")
