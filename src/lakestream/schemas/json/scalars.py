"""What two schemas say of texts, numbers and single values, compared; and bounds, which objects and arrays have too."""

import json
from fractions import Fraction
from typing import Any, Final

from lakestream.schemas.json.changes import Trouble
from lakestream.schemas.json.sorts import Sort, Sorted

_STRING_BOUNDS: Final = ("maxLength", "minLength")
_CONDITION: Final = ("if", "then", "else")


def troubles(old: Sorted, new: Sorted) -> list[Trouble]:
    """Both of the same sort."""
    match old.sort:
        case Sort.STRING:
            return bounds(old, new, *_STRING_BOUNDS) + _pattern(old, new)
        case Sort.NUMBER:
            return _numbers(old, new)
        case Sort.VALUES:
            return _values(old.word("enum"), new.word("enum"))
        case Sort.ONE_VALUE:
            return [] if _same(old.word("const"), new.word("const")) else [Trouble("ENUM_ARRAY_CHANGED", ("const",))]
        case Sort.CONDITION:
            same = all(_same(old.word(word), new.word(word)) for word in _CONDITION)
            return [] if same else [Trouble("CONDITION_CHANGED", ("if",))]
        case _:
            return []


def bounds(old: Sorted, new: Sorted, *words: str) -> list[Trouble]:
    return [trouble for word in words for trouble in bound(word, old.word(word), new.word(word))]


def bound(word: str, old: Any, new: Any) -> list[Trouble]:
    """A limit that came or became tighter. The word says on which side it is."""
    if not _is_number(new):
        return []
    constant = "".join(f"_{letter}" if letter.isupper() else letter for letter in word).upper()
    if not _is_number(old):
        return [Trouble(f"{constant}_ADDED", (word,), f"{word} {new} is new")]
    is_upper = "max" in word.lower()
    if is_upper and new < old:
        return [Trouble(f"{constant}_DECREASED", (word,), f"{word} went down from {old} to {new}")]
    if not is_upper and new > old:
        return [Trouble(f"{constant}_INCREASED", (word,), f"{word} went up from {old} to {new}")]
    return []


def _pattern(old: Sorted, new: Sorted) -> list[Trouble]:
    before, after = old.word("pattern"), new.word("pattern")
    if after is None or after == before:
        return []
    return [Trouble("PATTERN_ADDED" if before is None else "PATTERN_CHANGED", ("pattern",))]


def _numbers(old: Sorted, new: Sorted) -> list[Trouble]:
    found = []
    before, after = _limits(old), _limits(new)
    for word, limit in after.items():
        found += bound(word, before[word], limit)
    found += _multiples(old.word("multipleOf"), new.word("multipleOf"))
    if new.is_integer and not old.is_integer:
        found.append(Trouble("TYPE_NARROWED"))
    return found


def _limits(number: Sorted) -> dict[str, Any]:
    """Draft 4 says by true or false whether a limit is itself excluded."""
    limits = {word: number.word(word) for word in ("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum")}
    for plain, exclusive in (("maximum", "exclusiveMaximum"), ("minimum", "exclusiveMinimum")):
        if limits[exclusive] is True:
            limits[plain], limits[exclusive] = None, limits[plain]
    return limits


def _multiples(before: Any, after: Any) -> list[Trouble]:
    if not _is_number(after):
        return []
    if not _is_number(before):
        return [Trouble("MULTIPLE_OF_ADDED", ("multipleOf",))]
    old, new = Fraction(str(before)), Fraction(str(after))
    if not new or not old or (old / new).denominator == 1:
        return []
    return [Trouble("MULTIPLE_OF_EXPANDED" if (new / old).denominator == 1 else "MULTIPLE_OF_CHANGED", ("multipleOf",))]


def _values(before: Any, after: Any) -> list[Trouble]:
    old, new = ({json.dumps(value, sort_keys=True) for value in values or ()} for values in (before, after))
    if old <= new:
        return []
    return [Trouble("ENUM_ARRAY_NARROWED" if new <= old else "ENUM_ARRAY_CHANGED", ("enum",))]


def _same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
