"""Compares the keywords of two schemas for strings, numbers and constants, and the bounds of all types."""

import json
from fractions import Fraction
from typing import Any, Final

from lakestream.schemas.json.incompatibilities import Incompatibility
from lakestream.schemas.json.schema_kind import ClassifiedSchema, SchemaKind

_STRING_BOUNDS: Final = ("maxLength", "minLength")
_CONDITION: Final = ("if", "then", "else")


def compare(old: ClassifiedSchema, new: ClassifiedSchema) -> list[Incompatibility]:
    """Compares two schemas of the same kind."""
    match old.kind:
        case SchemaKind.STRING:
            return bounds(old, new, *_STRING_BOUNDS) + _pattern(old, new)
        case SchemaKind.NUMBER:
            return _numbers(old, new)
        case SchemaKind.VALUES:
            return _values(old.keyword("enum"), new.keyword("enum"))
        case SchemaKind.ONE_VALUE:
            return (
                []
                if _same(old.keyword("const"), new.keyword("const"))
                else [Incompatibility("ENUM_ARRAY_CHANGED", ("const",))]
            )
        case SchemaKind.CONDITION:
            same = all(_same(old.keyword(keyword), new.keyword(keyword)) for keyword in _CONDITION)
            return [] if same else [Incompatibility("CONDITION_CHANGED", ("if",))]
        case _:
            return []


def bounds(old: ClassifiedSchema, new: ClassifiedSchema, *keywords: str) -> list[Incompatibility]:
    return [
        incompatibility
        for keyword in keywords
        for incompatibility in bound(keyword, old.keyword(keyword), new.keyword(keyword))
    ]


def bound(keyword: str, old: Any, new: Any) -> list[Incompatibility]:
    """Returns an incompatibility if a limit was added or became tighter. The keyword contains `max` or `min`."""
    if not _is_number(new):
        return []
    constant = "".join(f"_{letter}" if letter.isupper() else letter for letter in keyword).upper()
    if not _is_number(old):
        return [Incompatibility(f"{constant}_ADDED", (keyword,), f"{keyword} {new} is new")]
    is_upper = "max" in keyword.lower()
    if is_upper and new < old:
        return [Incompatibility(f"{constant}_DECREASED", (keyword,), f"{keyword} decreased from {old} to {new}")]
    if not is_upper and new > old:
        return [Incompatibility(f"{constant}_INCREASED", (keyword,), f"{keyword} increased from {old} to {new}")]
    return []


def _pattern(old: ClassifiedSchema, new: ClassifiedSchema) -> list[Incompatibility]:
    before, after = old.keyword("pattern"), new.keyword("pattern")
    if after is None or after == before:
        return []
    return [Incompatibility("PATTERN_ADDED" if before is None else "PATTERN_CHANGED", ("pattern",))]


def _numbers(old: ClassifiedSchema, new: ClassifiedSchema) -> list[Incompatibility]:
    found = []
    before, after = _limits(old), _limits(new)
    for keyword, limit in after.items():
        found += bound(keyword, before[keyword], limit)
    found += _multiples(old.keyword("multipleOf"), new.keyword("multipleOf"))
    if new.is_integer and not old.is_integer:
        found.append(Incompatibility("TYPE_NARROWED"))
    return found


def _limits(number: ClassifiedSchema) -> dict[str, Any]:
    """Returns the limits. In draft 4, `exclusiveMaximum` and `exclusiveMinimum` are booleans."""
    limits = {
        keyword: number.keyword(keyword) for keyword in ("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum")
    }
    for plain, exclusive in (("maximum", "exclusiveMaximum"), ("minimum", "exclusiveMinimum")):
        if limits[exclusive] is True:
            limits[plain], limits[exclusive] = None, limits[plain]
    return limits


def _multiples(before: Any, after: Any) -> list[Incompatibility]:
    if not _is_number(after):
        return []
    if not _is_number(before):
        return [Incompatibility("MULTIPLE_OF_ADDED", ("multipleOf",))]
    old, new = Fraction(str(before)), Fraction(str(after))
    if not new or not old or (old / new).denominator == 1:
        return []
    return [
        Incompatibility(
            "MULTIPLE_OF_EXPANDED" if (new / old).denominator == 1 else "MULTIPLE_OF_CHANGED", ("multipleOf",)
        )
    ]


def _values(before: Any, after: Any) -> list[Incompatibility]:
    old, new = ({json.dumps(value, sort_keys=True) for value in values or ()} for values in (before, after))
    if old <= new:
        return []
    return [Incompatibility("ENUM_ARRAY_NARROWED" if new <= old else "ENUM_ARRAY_CHANGED", ("enum",))]


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
