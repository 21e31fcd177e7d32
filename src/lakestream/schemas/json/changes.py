"""What may be wrong between two versions of a JSON Schema, by the names that the registry's users look for."""

from dataclasses import dataclass, replace
from typing import Final

_OPEN: Final = (
    "the property is new, and older values may have anything under its name: their schema is open "
    "(additionalProperties is not false)"
)
SAID: Final = {
    "TYPE_CHANGED": "the type is another one",
    "TYPE_NARROWED": "a number may only be an integer now",
    "SCHEMA_ADDED": "what could be anything has a schema now",
    "REQUIRED_ATTRIBUTE_ADDED": "the property is required now and has no default",
    "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL": "a new property is required and has no default",
    "REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL": "a new property is required and has no default",
    "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL": _OPEN,
    "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL": _OPEN,
    "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL": "the property is gone, and the new schema is closed",
    "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": "the property is gone, and what the new "
    "schema says of additional properties does not fit it",
    "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": "the new property does not fit what the older schema "
    "says of additional properties",
    "ADDITIONAL_PROPERTIES_REMOVED": "additional properties are no longer allowed",
    "ADDITIONAL_PROPERTIES_NARROWED": "additional properties have a schema now",
    "UNEVALUATED_PROPERTIES_REMOVED": "unevaluated properties are no longer allowed",
    "UNEVALUATED_PROPERTIES_NARROWED": "unevaluated properties have a schema now",
    "DEPENDENCY_ARRAY_ADDED": "a property requires others now",
    "DEPENDENCY_ARRAY_EXTENDED": "a property requires more others now",
    "DEPENDENCY_ARRAY_CHANGED": "a property requires others than before",
    "DEPENDENCY_SCHEMA_ADDED": "a property requires a schema now",
    "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL": "the item is gone, and the new schema allows no additional ones",
    "ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": "the item is gone, and what the new schema says of "
    "additional ones does not fit it",
    "ITEM_ADDED_TO_OPEN_CONTENT_MODEL": "older values may have anything in the place of the new item",
    "ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": "the new item does not fit what the older schema says of "
    "additional ones",
    "ADDITIONAL_ITEMS_REMOVED": "additional items are no longer allowed",
    "ADDITIONAL_ITEMS_NARROWED": "additional items have a schema now",
    "UNEVALUATED_ITEMS_REMOVED": "unevaluated items are no longer allowed",
    "UNEVALUATED_ITEMS_NARROWED": "unevaluated items have a schema now",
    "UNIQUE_ITEMS_ADDED": "items have to be unique now",
    "PATTERN_ADDED": "texts have to match a pattern now",
    "PATTERN_CHANGED": "texts have to match another pattern",
    "MULTIPLE_OF_ADDED": "numbers have to be multiples now",
    "MULTIPLE_OF_EXPANDED": "numbers have to be multiples of a multiple now",
    "MULTIPLE_OF_CHANGED": "numbers have to be multiples of another number",
    "ENUM_ARRAY_NARROWED": "fewer values are allowed",
    "ENUM_ARRAY_CHANGED": "other values are allowed",
    "COMBINED_TYPE_CHANGED": "schemas are combined in another way",
    "COMBINED_TYPE_SUBSCHEMAS_CHANGED": "the combined schemas do not fit those before",
    "PRODUCT_TYPE_EXTENDED": "one more schema has to fit",
    "SUM_TYPE_NARROWED": "there are fewer schemas to choose from",
    "NOT_TYPE_EXTENDED": "more is excluded",
    "CONDITION_CHANGED": "a condition was added or is another one",
}
"""Bounds are not in here: `bound` says theirs."""


@dataclass(frozen=True, slots=True)
class Trouble:
    change: str
    path: tuple[str, ...] = ()
    said: str = ""

    def below(self, *names: str) -> "Trouble":
        return replace(self, path=names + self.path)

    def __str__(self) -> str:
        return f"{self.change} at '{'/'.join(('#', *self.path))}': {self.said or SAID[self.change]}"


def below(troubles: list[Trouble], *names: str) -> list[Trouble]:
    return [trouble.below(*names) for trouble in troubles]
