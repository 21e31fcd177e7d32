"""Checks that a default is a value of its type, by Java's rules: a default of a union may be of any branch."""

from typing import Any, Final

from lakestream.schemas.avro.types import Array, AvroType, EnumOf, Fixed, Map, Plain, Record, Union

_BITS: Final = {"int": 31, "long": 63}
_NOT_FINITE: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_DEPTH_MAX: Final = 128


def fits(value: Any, type_: AvroType) -> bool:
    return _DefaultCheck().fits(value, type_, 0)


class _DefaultCheck:
    """Check of one default. Each pair of an inner value and a type is checked once, because a union of several records
    tries all of them at each level of the value."""

    def __init__(self) -> None:
        self._results: dict[tuple[int, int], bool] = {}

    def fits(self, value: Any, type_: AvroType, depth: int) -> bool:
        if depth > _DEPTH_MAX:
            return False
        pair = (id(value), id(type_))
        if (result := self._results.get(pair)) is None:
            result = self._results[pair] = self._fits(value, type_, depth + 1)
        return result

    def _fits(self, value: Any, type_: AvroType, depth: int) -> bool:
        match type_:
            case Plain(kind):
                return _fits_plain(value, kind)
            case Fixed(size=size):
                return _is_bytes(value) and len(value) == size
            case EnumOf(symbols=symbols):
                return isinstance(value, str) and value in symbols
            case Array(items):
                return isinstance(value, list) and all(self.fits(one, items, depth) for one in value)
            case Map(values):
                return isinstance(value, dict) and all(self.fits(one, values, depth) for one in value.values())
            case Union(branches):
                return any(self.fits(value, branch, depth) for branch in branches)
            case Record():
                return isinstance(value, dict) and all(
                    self.fits(value[field.name], field.type, depth) if field.name in value else bool(field.default)
                    for field in type_.fields
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
    """Returns whether a JSON value represents bytes: a string with one character up to U+00FF for each byte."""
    return isinstance(value, str) and all(ord(character) < 256 for character in value)


def _is_within(value: int, bits: int) -> bool:
    return -(1 << bits) <= value < 1 << bits
