"""What a schema says at a place, in one word: the sort by which two schemas are compared (`compare.py`).

JSON Schema lets every word stand beside every other. A schema that says several things at once (a type, a list of
values, `anyOf`, …) is taken for all of them together: a COMBINED one. So every comparison is between two simple sorts.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from lakestream.schemas.json.documents import Place


class Sort(Enum):
    ANYTHING = "anything"
    NOTHING = "nothing"
    STRING = "string"
    NUMBER = "number"
    BOOLEAN = "boolean"
    NULL = "null"
    OBJECT = "object"
    ARRAY = "array"
    VALUES = "enum"
    ONE_VALUE = "const"
    NOT = "not"
    CONDITION = "if"
    COMBINED = "combined"


ALL: Final = "allOf"
ANY: Final = "anyOf"
ONE: Final = "oneOf"

_OF_TYPE: Final = {
    "string": Sort.STRING,
    "integer": Sort.NUMBER,
    "number": Sort.NUMBER,
    "boolean": Sort.BOOLEAN,
    "null": Sort.NULL,
    "object": Sort.OBJECT,
    "array": Sort.ARRAY,
}
_WORDS: Final = {
    "object": {
        *("properties", "additionalProperties", "patternProperties", "propertyNames", "required", "dependencies"),
        *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "unevaluatedProperties"),
    },
    "array": {
        *("items", "prefixItems", "additionalItems", "contains", "minItems", "maxItems", "uniqueItems"),
        *("minContains", "maxContains", "unevaluatedItems"),
    },
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "string": {"minLength", "maxLength", "pattern", "format"},
}
"""A schema without a type speaks of the type that its words are for."""
_LONERS: Final = {"enum": Sort.VALUES, "const": Sort.ONE_VALUE, "not": Sort.NOT, "if": Sort.CONDITION}


@dataclass(frozen=True, slots=True, eq=False)
class Sorted:
    sort: Sort
    place: Place
    aspect: str = ""
    """Which of the things that the schema at this place says."""
    criterion: str = ""
    parts: tuple["Look", ...] = ()
    """Of a COMBINED one."""

    @property
    def key(self) -> tuple[int, str]:
        """The same for the same part of the same text."""
        return id(self.place.contents), self.aspect

    def word(self, name: str) -> Any:
        return self.place.contents.get(name)

    def below(self, name: str) -> Place | None:
        """The schema under a word, if there is one."""
        found = self.word(name)
        return self.place.below(found) if isinstance(found, dict | bool) else None

    def named(self, name: str) -> dict[str, Place]:
        """The schemas under a word that holds them by name."""
        found = self.word(name)
        if not isinstance(found, dict):
            return {}
        return {key: self.place.below(part) for key, part in found.items() if isinstance(part, dict | bool)}

    @property
    def is_integer(self) -> bool:
        return self.aspect == "integer"


Look: TypeAlias = Place | Sorted


def sort_of(look: Look) -> Sorted:
    if isinstance(look, Sorted):
        return look
    if isinstance(look.contents, bool):
        return Sorted(Sort.ANYTHING if look.contents else Sort.NOTHING, look)
    if look.ref is not None:
        if look.is_only_ref:
            return sort_of(look.follow())
        return Sorted(Sort.COMBINED, look, "ref", ALL, (look.follow(), look.beside_ref()))
    said = _said(look)
    if not said:
        return Sorted(Sort.ANYTHING, look)
    return said[0] if len(said) == 1 else Sorted(Sort.COMBINED, look, "all", ALL, tuple(said))


def _said(place: Place) -> list[Sorted]:
    """All that the schema says, each by itself."""
    contents = place.contents
    said = [_typed(place, types_of(contents))] if types_of(contents) else []
    said += [Sorted(sort, place, word) for word, sort in _LONERS.items() if word in contents]
    for criterion in (ALL, ANY, ONE):
        if isinstance(parts := contents.get(criterion), list):
            said.append(Sorted(Sort.COMBINED, place, criterion, criterion, tuple(place.below(part) for part in parts)))
    if "type" not in contents:
        said += [_typed(place, [kind]) for kind, words in _WORDS.items() if words & contents.keys()]
    return said


def types_of(contents: dict[str, Any]) -> list[str]:
    types = contents.get("type")
    if isinstance(types, str):
        types = [types]
    return [kind for kind in types or () if kind in _OF_TYPE]


def _typed(place: Place, types: list[str]) -> Sorted:
    each = tuple(Sorted(_OF_TYPE[kind], place, kind) for kind in types)
    return each[0] if len(each) == 1 else Sorted(Sort.COMBINED, place, "types", ANY, each)
