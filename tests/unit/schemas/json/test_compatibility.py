"""Compatible and incompatible changes of a JSON Schema, by Confluent's rules."""

import json
from typing import Any

import pytest

from lakestream.schemas.json.schema import JsonSchema, read_json_schema
from lakestream.schemas.model import Format, Source


def read(schema: Any) -> JsonSchema:
    return read_json_schema(Source(Format.JSON, json.dumps(schema)))


def incompatibilities(old: Any, new: Any) -> list[str]:
    return read(new).incompatibilities_reading(read(old))


def changes(old: Any, new: Any) -> list[str]:
    """Returns the incompatibilities without their messages."""
    return [message.partition(": ")[0] for message in incompatibilities(old, new)]


STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
OPEN = {"type": "object", "properties": {"a": STRING}}
CLOSED = {**OPEN, "additionalProperties": False}
PARTIAL = {**OPEN, "additionalProperties": STRING}


def having(base: dict[str, Any], **properties: Any) -> dict[str, Any]:
    return {**base, "properties": {**base["properties"], **properties}}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (INTEGER, NUMBER),
        (STRING, {}),
        (False, STRING),
        (STRING, {"type": ["string", "null"]}),
        (STRING, {"oneOf": [INTEGER, STRING]}),
        ({"allOf": [STRING, {"maxLength": 5}]}, STRING),
        ({"oneOf": [INTEGER, STRING]}, {"anyOf": [STRING, INTEGER, {"type": "null"}]}),
        ({"type": "string", "maxLength": 5}, {"type": "string", "maxLength": 6}),
        ({"type": "string", "minLength": 5, "pattern": "x"}, STRING),
        ({"type": "number", "maximum": 5, "multipleOf": 10}, {"type": "number", "maximum": 5, "multipleOf": 2.5}),
        ({"enum": ["a"]}, {"enum": ["b", "a"]}),
        ({"type": "array", "items": INTEGER, "uniqueItems": True}, {"type": "array", "items": NUMBER}),
        ({"not": INTEGER}, {"not": {"type": "integer", "minimum": 5}}),
        (CLOSED, having(CLOSED, b=INTEGER)),
        (CLOSED, {**having(CLOSED, b={**INTEGER, "default": 1}), "required": ["b"]}),
        (having(OPEN, b=INTEGER), OPEN),
        (having(CLOSED, b=STRING), PARTIAL),
        (PARTIAL, having(PARTIAL, b=STRING)),
        (OPEN, having(OPEN, b={})),
        ({**OPEN, "required": ["a"]}, OPEN),
        (CLOSED, OPEN),
        (OPEN, {"title": "other", **OPEN}),
        ({**OPEN, "dependencies": {"a": ["b"]}}, OPEN),
    ],
)
def test_change_is_compatible_when_it_allows_more_values(old: Any, new: Any) -> None:
    assert incompatibilities(old, new) == []


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        (NUMBER, INTEGER, "TYPE_NARROWED at '#'"),
        (STRING, INTEGER, "TYPE_CHANGED at '#'"),
        ({}, STRING, "TYPE_CHANGED at '#'"),
        ({"type": ["string", "null"]}, STRING, "TYPE_CHANGED at '#'"),
        ({"oneOf": [STRING, INTEGER, {"type": "null"}]}, {"oneOf": [STRING, INTEGER]}, "SUM_TYPE_NARROWED at '#'"),
        ({"allOf": [OPEN, CLOSED]}, {"allOf": [OPEN, CLOSED, {"minProperties": 1}]}, "PRODUCT_TYPE_EXTENDED at '#'"),
        ({"anyOf": [STRING, INTEGER]}, {"oneOf": [STRING, INTEGER]}, "COMBINED_TYPE_CHANGED at '#'"),
        (
            {"oneOf": [STRING, INTEGER]},
            {"oneOf": [STRING, {"type": "null"}]},
            "COMBINED_TYPE_SUBSCHEMAS_CHANGED at '#'",
        ),
        (STRING, {"type": "string", "maxLength": 5}, "MAX_LENGTH_ADDED at '#/maxLength'"),
        ({"type": "number", "minimum": 1}, {"type": "number", "minimum": 2}, "MINIMUM_INCREASED at '#/minimum'"),
        (NUMBER, {"type": "number", "exclusiveMaximum": 2}, "EXCLUSIVE_MAXIMUM_ADDED at '#/exclusiveMaximum'"),
        ({"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}, "PATTERN_CHANGED at '#/pattern'"),
        ({"multipleOf": 2}, {"multipleOf": 10}, "MULTIPLE_OF_EXPANDED at '#/multipleOf'"),
        ({"enum": ["a", "b"]}, {"enum": ["a"]}, "ENUM_ARRAY_NARROWED at '#/enum'"),
        ({"const": 1}, {"const": 2}, "ENUM_ARRAY_CHANGED at '#/const'"),
        ({"not": {"type": "integer", "minimum": 5}}, {"not": INTEGER}, "NOT_TYPE_EXTENDED at '#/not'"),
        ({"type": "array", "items": STRING}, {"type": "array", "items": INTEGER}, "TYPE_CHANGED at '#/items'"),
        ({"type": "array"}, {"type": "array", "minItems": 1}, "MIN_ITEMS_ADDED at '#/minItems'"),
        ({"type": "array"}, {"type": "array", "uniqueItems": True}, "UNIQUE_ITEMS_ADDED at '#/uniqueItems'"),
        ({"items": [STRING]}, {"items": [STRING, STRING]}, "ITEM_ADDED_TO_OPEN_CONTENT_MODEL at '#/items/1'"),
        (OPEN, having(OPEN, a=INTEGER), "TYPE_CHANGED at '#/properties/a'"),
        (OPEN, having(OPEN, b=INTEGER), "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL at '#/properties/b'"),
        (OPEN, {**OPEN, "required": ["a"]}, "REQUIRED_ATTRIBUTE_ADDED at '#/required/a'"),
        (OPEN, CLOSED, "ADDITIONAL_PROPERTIES_REMOVED at '#/additionalProperties'"),
        (OPEN, PARTIAL, "ADDITIONAL_PROPERTIES_NARROWED at '#/additionalProperties'"),
        (having(CLOSED, b=STRING), CLOSED, "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL at '#/properties/b'"),
        (
            CLOSED,
            {**having(CLOSED, b=INTEGER), "required": ["b"]},
            "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL at '#/properties/b'",
        ),
        (OPEN, {**OPEN, "dependencies": {"a": ["b"]}}, "DEPENDENCY_ARRAY_ADDED at '#/dependencies/a'"),
        ({"if": STRING, "then": {"maxLength": 2}}, {"if": STRING, "then": False}, "CONDITION_CHANGED at '#/if'"),
    ],
)
def test_change_is_incompatible_when_it_may_reject_an_older_value(old: Any, new: Any, change: str) -> None:
    assert changes(old, new) == [change]


def test_incompatibility_is_found_behind_references_and_recursion() -> None:
    def tree(kind: dict[str, Any]) -> dict[str, Any]:
        node = {"type": "object", "properties": {"v": kind, "next": {"$ref": "#/definitions/node"}}}
        return {"definitions": {"node": node}, "type": "array", "items": {"$ref": "#/definitions/node"}}

    assert incompatibilities(tree(INTEGER), tree(NUMBER)) == []
    assert "TYPE_CHANGED at '#/items/properties/v'" in changes(tree(INTEGER), tree(STRING))


def test_assumed_compatibility_of_recursive_schemas_is_checked_again() -> None:
    def circle(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
        def node(kind: dict[str, Any], to: str) -> dict[str, Any]:
            return {"type": "object", "properties": {"id": kind, "ref": {"oneOf": [{"$ref": f"#/definitions/{to}"}]}}}

        definitions = {"A": node(first, "C"), "B": node(second, "C"), "C": node(STRING, "A")}
        return {"definitions": definitions, "oneOf": [{"$ref": "#/definitions/A"}, {"$ref": "#/definitions/B"}]}

    assert incompatibilities(circle(INTEGER, {"type": "boolean"}), circle(INTEGER, {"type": "boolean"})) == []
    assert incompatibilities(circle(INTEGER, {"type": "boolean"}), circle({"type": "boolean"}, NUMBER)) != []


def test_message_describes_the_change() -> None:
    assert incompatibilities({"type": "number", "maximum": 5}, {"type": "number", "maximum": 4}) == [
        "MAXIMUM_DECREASED at '#/maximum': maximum decreased from 5 to 4"
    ]


def test_comparison_takes_little_memory_when_each_definition_uses_the_next_one_often() -> None:
    def nested(leaf: Any, depth: int = 20, width: int = 300) -> dict[str, Any]:
        parts = {
            f"d{n}": {
                "type": "object",
                "properties": {f"p{k}": {"$ref": f"#/definitions/d{n + 1}"} for k in range(width)},
            }
            for n in range(depth)
        }
        return {"definitions": {**parts, f"d{depth}": leaf}, "$ref": "#/definitions/d0"}

    assert incompatibilities(nested(INTEGER), nested(NUMBER)) == []
    found = changes(nested(INTEGER), nested(STRING))
    assert len(found) == 100
    assert found[0].startswith("TYPE_CHANGED at '#/properties/p0/properties/p0/")
