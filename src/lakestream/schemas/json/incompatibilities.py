"""Incompatibilities of two JSON Schemas, with Confluent's names and a message for each."""

from dataclasses import dataclass, replace
from typing import Final

INCOMPATIBILITIES_MAX: Final = 100
"""Of one pair of schemas. A schema that is used twice counts twice, so lists of nested schemas would grow
exponentially."""
_OPEN: Final = (
    "the property is new, but older values may already have a property of this name with any value, because their "
    "schema is open (additionalProperties is not false)"
)
MESSAGES: Final = {
    "TYPE_CHANGED": "the type was changed",
    "TYPE_NARROWED": "number was changed to integer",
    "SCHEMA_ADDED": "a schema was added where any value was allowed",
    "REQUIRED_ATTRIBUTE_ADDED": "the property became required and has no default",
    "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL": "a new property is required and has no default",
    "REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL": "a new property is required and has no default",
    "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL": _OPEN,
    "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL": _OPEN,
    "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL": "the property was removed, and the new schema is closed",
    "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": "the property was removed, and it does not match "
    "the new schema of additional properties",
    "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": "the new property does not match the older schema of "
    "additional properties",
    "ADDITIONAL_PROPERTIES_REMOVED": "additional properties are no longer allowed",
    "ADDITIONAL_PROPERTIES_NARROWED": "a schema of additional properties was added",
    "UNEVALUATED_PROPERTIES_REMOVED": "unevaluated properties are no longer allowed",
    "UNEVALUATED_PROPERTIES_NARROWED": "a schema of unevaluated properties was added",
    "DEPENDENCY_ARRAY_ADDED": "a property now requires other properties",
    "DEPENDENCY_ARRAY_EXTENDED": "a property now requires more properties than before",
    "DEPENDENCY_ARRAY_CHANGED": "a property now requires different properties than before",
    "DEPENDENCY_SCHEMA_ADDED": "a property now requires a schema",
    "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL": "the item was removed, and the new schema allows no additional items",
    "ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": "the item was removed, and it does not match the new "
    "schema of additional items",
    "ITEM_ADDED_TO_OPEN_CONTENT_MODEL": "older values may have any value at the position of the new item",
    "ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": "the new item does not match the older schema of "
    "additional items",
    "ADDITIONAL_ITEMS_REMOVED": "additional items are no longer allowed",
    "ADDITIONAL_ITEMS_NARROWED": "a schema of additional items was added",
    "UNEVALUATED_ITEMS_REMOVED": "unevaluated items are no longer allowed",
    "UNEVALUATED_ITEMS_NARROWED": "a schema of unevaluated items was added",
    "UNIQUE_ITEMS_ADDED": "items must now be unique",
    "PATTERN_ADDED": "strings must now match a pattern",
    "PATTERN_CHANGED": "strings must now match a different pattern",
    "MULTIPLE_OF_ADDED": "numbers must now be multiples of a number",
    "MULTIPLE_OF_EXPANDED": "numbers must now be multiples of a larger number",
    "MULTIPLE_OF_CHANGED": "numbers must now be multiples of a different number",
    "ENUM_ARRAY_NARROWED": "fewer values are allowed",
    "ENUM_ARRAY_CHANGED": "different values are allowed",
    "COMBINED_TYPE_CHANGED": "the keyword that combines schemas was changed",
    "COMBINED_TYPE_SUBSCHEMAS_CHANGED": "the combined schemas are incompatible with the older ones",
    "PRODUCT_TYPE_EXTENDED": "one more schema must match",
    "SUM_TYPE_NARROWED": "there are fewer alternative schemas",
    "NOT_TYPE_EXTENDED": "more values are excluded",
    "CONDITION_CHANGED": "a condition was added or changed",
}
"""Messages by name. The messages of bounds are in `compare_scalars.bound`."""


@dataclass(frozen=True, slots=True)
class Incompatibility:
    change: str
    path: tuple[str, ...] = ()
    message: str = ""

    def below(self, *names: str) -> "Incompatibility":
        return replace(self, path=names + self.path)

    def __str__(self) -> str:
        return f"{self.change} at '{'/'.join(('#', *self.path))}': {self.message or MESSAGES[self.change]}"


def below(incompatibilities: list[Incompatibility], *names: str) -> list[Incompatibility]:
    return [incompatibility.below(*names) for incompatibility in incompatibilities]
