"""Avro's logical types, and the types that they are valid for."""

import math
from collections.abc import Mapping
from typing import Any, Final

from lakestream.schemas.avro.types import Logical

_BASES: Final = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "decimal": ("bytes", "fixed"),
    "uuid": ("string", "fixed"),
    "duration": ("fixed",),
    "big-decimal": ("bytes",),
}
_UUID_SIZE, _DURATION_SIZE = 16, 12


def is_valid(kind: str, raw: Mapping[str, Any]) -> bool:
    """Returns whether the logical type is valid for its type. The Avro specification requires that readers ignore an
    invalid one. Unknown logical types are kept in the schema and have no effect."""
    name = raw.get("logicalType")
    if name is None or not isinstance(name, str) or name not in _BASES:
        return name is None or isinstance(name, str)
    if kind not in _BASES[name]:
        return False
    size = raw.get("size")
    if name == "decimal":
        return _is_decimal(raw, size if kind == "fixed" else None)
    if kind == "fixed":
        return size == (_UUID_SIZE if name == "uuid" else _DURATION_SIZE)
    return True


def _is_decimal(raw: Mapping[str, Any], size: Any) -> bool:
    precision, scale = raw.get("precision", 0), raw.get("scale", 0)
    if not (_is_whole(precision) and _is_whole(scale) and 0 <= scale <= precision > 0):
        return False
    return not isinstance(size, int) or precision <= math.floor(math.log10(2) * (8 * size - 1))


def _is_whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def logical_of(raw: Mapping[str, Any]) -> Logical | None:
    """Returns the logical type of a validated type."""
    name = raw.get("logicalType")
    if name not in _BASES:
        return None
    if name == "decimal":
        return Logical(name, raw["precision"], raw.get("scale", 0))
    return Logical(name)
