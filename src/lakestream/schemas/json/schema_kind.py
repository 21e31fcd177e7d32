"""Classifies a subschema by its kind, which determines how two schemas are compared (`compatibility.py`).

JSON Schema allows all keywords next to each other. A schema with several constraints (a type, a list of values,
`anyOf`, …) is classified as COMBINED, with one part for each constraint. So each comparison is of two simple kinds.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from lakestream.schemas.json.references import Subschema


class SchemaKind(Enum):
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
    "string": SchemaKind.STRING,
    "integer": SchemaKind.NUMBER,
    "number": SchemaKind.NUMBER,
    "boolean": SchemaKind.BOOLEAN,
    "null": SchemaKind.NULL,
    "object": SchemaKind.OBJECT,
    "array": SchemaKind.ARRAY,
}
_KEYWORDS: Final = {
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
"""A schema without a type has the type that its keywords apply to."""
_SINGLE_KEYWORDS: Final = {
    "enum": SchemaKind.VALUES,
    "const": SchemaKind.ONE_VALUE,
    "not": SchemaKind.NOT,
    "if": SchemaKind.CONDITION,
}


@dataclass(frozen=True, slots=True, eq=False)
class ClassifiedSchema:
    kind: SchemaKind
    subschema: Subschema
    aspect: str = ""
    """The constraint of the subschema that this object represents."""
    criterion: str = ""
    parts: tuple["AnySchema", ...] = ()
    """Criterion and parts are for COMBINED only."""

    @property
    def key(self) -> tuple[int, str]:
        """Identifies the constraint in the text of the schema."""
        return id(self.subschema.contents), self.aspect

    def keyword(self, name: str) -> Any:
        return self.subschema.contents.get(name)

    def below(self, name: str) -> Subschema | None:
        """Returns the schema of a keyword, if there is one."""
        contents = self.keyword(name)
        return self.subschema.below(contents) if isinstance(contents, dict | bool) else None

    def named(self, name: str) -> dict[str, Subschema]:
        """Returns the schemas of a keyword that contains schemas by name."""
        contents = self.keyword(name)
        if not isinstance(contents, dict):
            return {}
        return {key: self.subschema.below(part) for key, part in contents.items() if isinstance(part, dict | bool)}

    @property
    def is_integer(self) -> bool:
        return self.aspect == "integer"


AnySchema: TypeAlias = Subschema | ClassifiedSchema


def classify(schema: AnySchema) -> ClassifiedSchema:
    if isinstance(schema, ClassifiedSchema):
        return schema
    if isinstance(schema.contents, bool):
        return ClassifiedSchema(SchemaKind.ANYTHING if schema.contents else SchemaKind.NOTHING, schema)
    if schema.ref is not None:
        if schema.is_only_ref:
            return classify(schema.follow())
        return ClassifiedSchema(SchemaKind.COMBINED, schema, "ref", ALL, (schema.follow(), schema.without_ref()))
    constraints = _constraints(schema)
    if not constraints:
        return ClassifiedSchema(SchemaKind.ANYTHING, schema)
    if len(constraints) == 1:
        return constraints[0]
    return ClassifiedSchema(SchemaKind.COMBINED, schema, "all", ALL, tuple(constraints))


def _constraints(subschema: Subschema) -> list[ClassifiedSchema]:
    """Returns the constraints of a schema."""
    contents = subschema.contents
    constraints = [_typed(subschema, types_of(contents))] if types_of(contents) else []
    constraints += [
        ClassifiedSchema(kind, subschema, keyword) for keyword, kind in _SINGLE_KEYWORDS.items() if keyword in contents
    ]
    for criterion in (ALL, ANY, ONE):
        if isinstance(parts := contents.get(criterion), list):
            constraints.append(
                ClassifiedSchema(
                    SchemaKind.COMBINED, subschema, criterion, criterion, tuple(subschema.below(part) for part in parts)
                )
            )
    if "type" not in contents:
        constraints += [_typed(subschema, [kind]) for kind, keywords in _KEYWORDS.items() if keywords & contents.keys()]
    return constraints


def types_of(contents: dict[str, Any]) -> list[str]:
    types = contents.get("type")
    if isinstance(types, str):
        types = [types]
    return [kind for kind in types or () if kind in _OF_TYPE]


def _typed(subschema: Subschema, types: list[str]) -> ClassifiedSchema:
    each = tuple(ClassifiedSchema(_OF_TYPE[kind], subschema, kind) for kind in types)
    return each[0] if len(each) == 1 else ClassifiedSchema(SchemaKind.COMBINED, subschema, "types", ANY, each)
