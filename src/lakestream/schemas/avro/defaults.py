"""Whether a default is a value of its type, by Java's rules: of a union, any branch will do."""

from typing import Any, Final

from lakestream.schemas.avro.types import Array, AvroType, EnumOf, Fixed, Map, Plain, Record, Union

_BITS: Final = {"int": 31, "long": 63}
_NOT_FINITE: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_DEPTH_MAX: Final = 128


def fits(value: Any, type_: AvroType, depth: int = 0) -> bool:
    if depth > _DEPTH_MAX:
        return False
    match type_:
        case Plain(kind):
            return _fits_plain(value, kind)
        case Fixed(size=size):
            return _is_bytes(value) and len(value) == size
        case EnumOf(symbols=symbols):
            return isinstance(value, str) and value in symbols
        case Array(items):
            return isinstance(value, list) and all(fits(one, items, depth + 1) for one in value)
        case Map(values):
            return isinstance(value, dict) and all(fits(one, values, depth + 1) for one in value.values())
        case Union(branches):
            return any(fits(value, branch, depth + 1) for branch in branches)
        case Record():
            return isinstance(value, dict) and all(
                fits(value[part.name], part.type, depth + 1) if part.name in value else bool(part.default)
                for part in type_.fields
            )


def _fits_plain(value: Any, kind: str) -> bool:
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "bytes":
            return _is_bytes(value)
        case "int" | "long":
            return isinstance(value, int) and not isinstance(value, bool) and _is_within(value, _BITS[kind])
        case _:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return is_number or (isinstance(value, str) and value in _NOT_FINITE)


def _is_bytes(value: Any) -> bool:
    """As JSON says them: one character up to 255 for each."""
    return isinstance(value, str) and all(ord(character) < 256 for character in value)


def _is_within(value: int, bits: int) -> bool:
    return -(1 << bits) <= value < 1 << bits
