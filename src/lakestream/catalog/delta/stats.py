"""Converts the column statistics of an Iceberg manifest entry to Delta's statistics of a file, in JSON. Pure.

Columns have their names in files. A bound may be absent, or wider than the values, but never narrower: Delta's
timestamps have milliseconds, so an upper bound is rounded up. Delta has no bounds of binaries and booleans. Floats and
doubles have bounds only if no value is NaN, which is the largest value in Spark.
"""

import math
import struct
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final

import msgspec

from lakestream.catalog.manifests import avro_schemas as f
from lakestream.catalog.table_metadata.json_model import Json

NAN_COUNTS: Final = 137
_encode = msgspec.json.Encoder(decimal_format="number").encode
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND_US: Final = 1_000
_DIGITS: Final = Context(prec=40)
"""More digits than a decimal has. Python's default of 28 could round a bound to the wrong side."""


def stats_of(data_file: Mapping[int, Any], schema: Json, names: Mapping[int, str]) -> str:
    """Returns the statistics. `data_file`: of a manifest entry, by field id."""
    stats: Json = {"numRecords": data_file[f.RECORD_COUNT]}
    nulls = data_file.get(f.NULL_COUNTS) or {}
    lower, upper = data_file.get(f.LOWER_BOUNDS) or {}, data_file.get(f.UPPER_BOUNDS) or {}
    nans = data_file.get(NAN_COUNTS) or {}

    def low(field: Json) -> Any:
        return _bound(field, lower, nans, is_upper=False)

    def high(field: Json) -> Any:
        return _bound(field, upper, nans, is_upper=True)

    for name, fact in (("minValues", low), ("maxValues", high), ("nullCount", lambda one: nulls.get(one["id"]))):
        if found := _tree(schema, names, fact):
            stats[name] = found
    return _encode(stats).decode()


def _tree(kind: Json, names: Mapping[int, str], fact: Any) -> Json:
    """Returns the values of leaf columns outside of lists and maps."""
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
        return None  # a time out of Python's range, or bytes that are not UTF-8


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
    """Decodes a bound, also of a column that was int when the file was written."""
    if len(raw) not in (4, 8):
        raise ValueError("not a number")
    return int.from_bytes(raw, "little", signed=True)


def _time(microseconds: int, is_upper: bool) -> str:
    milliseconds = -(-microseconds // _MILLISECOND_US) if is_upper else microseconds // _MILLISECOND_US
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds")
