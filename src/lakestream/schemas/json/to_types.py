"""Converts a JSON Schema to JSON types (`json_types.py`), from which the columns are made.

Only the types of values matter: bounds, patterns and similar keywords restrict values, not columns. `oneOf`, `anyOf`
and `allOf` of records are one record with all their keys; of scalars, several variants. Values without a schema and
recursive schemas are stored as JSON text.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from lakestream.schemas.json.compare_arrays import item_schemas, schema_of_items
from lakestream.schemas.json.json_types import (
    NOTHING,
    RAW,
    ArrayType,
    Conversion,
    JsonType,
    JsonTypeUnion,
    MapType,
    RecordType,
    ScalarType,
    as_single_type,
    json_type_of,
    shape_of,
    union_of,
)
from lakestream.schemas.json.references import Subschema
from lakestream.schemas.json.schema_kind import ALL, ANY, ONE, ClassifiedSchema, SchemaKind, types_of

DEPTH_MAX: Final = 30
PARTS_MAX: Final = 4_000
"""Limits the number of columns: each use of a definition adds columns."""
KEYS_MAX: Final = 1_000
"""Of one record."""

_FORMATS: Final = {
    "date": Conversion.DATE,
    "time": Conversion.TIME,
    "date-time": Conversion.TIMESTAMP,
    "uuid": Conversion.UUID,
}
_CONNECT: Final = {
    "org.apache.kafka.connect.data.Date": Conversion.DAYS,
    "org.apache.kafka.connect.data.Time": Conversion.MILLIS_OF_DAY,
    "org.apache.kafka.connect.data.Timestamp": Conversion.MILLIS,
}
_INTS: Final = ("int8", "int16", "int32")
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_DIGITS_MAX: Final = 38
_OBJECT_KEYWORDS: Final = ("properties", "additionalProperties", "patternProperties")
_ARRAY_KEYWORDS: Final = ("items", "prefixItems")


def types_of_schema(subschema: Subschema) -> JsonTypeUnion:
    types = _Walk().types(subschema, ())
    return RAW if types is None else types


@dataclass(slots=True)
class _Walk:
    count: int = field(default=0)

    def types(self, subschema: Subschema, above: tuple[int, ...]) -> JsonTypeUnion | None:
        """Returns the types of a subschema, or None if it does not restrict the type."""
        self.count += 1
        contents = subschema.contents
        if isinstance(contents, bool):
            return None if contents else NOTHING
        if id(contents) in above or len(above) >= DEPTH_MAX or self.count > PARTS_MAX:
            return RAW
        above = (*above, id(contents))
        if subschema.ref is None:
            return self._own_types(subschema, above)
        target = self.types(subschema.follow(), above)
        return target if subschema.is_only_ref else _both(self._own_types(subschema.without_ref(), above), target)

    def _own_types(self, subschema: Subschema, above: tuple[int, ...]) -> JsonTypeUnion | None:
        types = self._typed(subschema, above)
        for one in self._combined(subschema, ALL, above):
            types = _both(types, one)
        for criterion in (ANY, ONE):
            choices = self._combined(subschema, criterion, above)
            if choices:
                types = _both(types, _any_of(choices))
        return _bounded(types)

    def _combined(self, subschema: Subschema, criterion: str, above: tuple[int, ...]) -> list[JsonTypeUnion | None]:
        parts = subschema.contents.get(criterion)
        return [self.types(subschema.below(one), above) for one in parts] if isinstance(parts, list) else []

    def _typed(self, subschema: Subschema, above: tuple[int, ...]) -> JsonTypeUnion | None:
        contents = subschema.contents
        types = types_of(contents)
        if not types:
            types = _implied(contents)
        if not types:
            return None
        variants: list[JsonType] = []
        for kind in types:
            variant = self._variant(subschema, kind, above)
            if variant == ScalarType(Conversion.RAW):
                return RAW
            if variant is not None and all(json_type_of(variant) != json_type_of(other) for other in variants):
                variants.append(variant)
        return JsonTypeUnion(tuple(variants))

    def _variant(self, subschema: Subschema, kind: str, above: tuple[int, ...]) -> JsonType | None:
        match kind:
            case "boolean":
                return ScalarType(Conversion.BOOLEAN)
            case "integer":
                return ScalarType(_integer(subschema.contents))
            case "number":
                return _number(subschema.contents)
            case "string":
                return ScalarType(_string(subschema.contents))
            case "array":
                return self._array(ClassifiedSchema(SchemaKind.ARRAY, subschema), above)
            case "object":
                return self._object(ClassifiedSchema(SchemaKind.OBJECT, subschema), above)
            case _:
                return None

    def _array(self, schema: ClassifiedSchema, above: tuple[int, ...]) -> JsonType | None:
        if schema.keyword("maxItems") == 0:
            return None
        items: list[Subschema | None] = [*item_schemas(schema)] or [schema_of_items(schema)]
        return ArrayType(
            as_single_type(_any_of([None if item is None else self.types(item, above) for item in items]) or RAW)
        )

    def _object(self, schema: ClassifiedSchema, above: tuple[int, ...]) -> JsonType | None:
        if schema.keyword("maxProperties") == 0:
            return None
        named = schema.named("properties")
        if named and len(named) <= KEYS_MAX:
            keys = [(key, self.types(subschema, above)) for key, subschema in named.items()]
            return RecordType(tuple((key, RAW if types is None else types) for key, types in keys))
        others = list(schema.named("patternProperties").values())
        if isinstance(rest := schema.keyword("additionalProperties"), dict):
            others.append(schema.subschema.below(rest))
        if named or not others:
            return ScalarType(Conversion.RAW)
        return MapType(as_single_type(_any_of([self.types(subschema, above) for subschema in others]) or RAW))


def _implied(contents: dict[str, Any]) -> list[str]:
    """Returns the types implied by other keywords of a schema without `type`."""
    if "const" in contents:
        return [_type_of(contents["const"])]
    if isinstance(values := contents.get("enum"), list):
        types = list(dict.fromkeys(_type_of(value) for value in values))
        return [kind for kind in types if kind != "integer" or "number" not in types]
    types = ["object"] if any(keyword in contents for keyword in _OBJECT_KEYWORDS) else []
    return types + (["array"] if any(keyword in contents for keyword in _ARRAY_KEYWORDS) else [])


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _integer(contents: dict[str, Any]) -> Conversion:
    """Returns the conversion, with the hints of Kafka Connect's converter."""
    conversion = _CONNECT.get(str(contents.get("title")))
    if conversion is not None and "connect.type" in contents:
        return conversion
    return Conversion.INT if contents.get("connect.type") in _INTS else Conversion.LONG


def _number(contents: dict[str, Any]) -> ScalarType:
    """Returns the type, with the hints of Kafka Connect's converter."""
    match contents.get("connect.type"):
        case "float32":
            return ScalarType(Conversion.FLOAT)
        case "bytes" if contents.get("title") == _DECIMAL:
            return _decimal(contents.get("connect.parameters")) or ScalarType(Conversion.DOUBLE)
        case _:
            return ScalarType(Conversion.DOUBLE)


def _decimal(parameters: Any) -> ScalarType | None:
    """Returns the decimal of Connect's parameters, which are strings. Returns None if they have no scale, or if a
    column cannot have so many digits."""
    if not isinstance(parameters, dict):
        return None
    try:
        scale = int(str(parameters["scale"]))
        precision = int(str(parameters.get("connect.decimal.precision", _DIGITS_MAX)))
    except (KeyError, ValueError):
        return None
    return (
        ScalarType(Conversion.DECIMAL, precision, scale)
        if 0 <= scale <= precision <= _DIGITS_MAX and precision
        else None
    )


def _string(contents: dict[str, Any]) -> Conversion:
    if (conversion := _FORMATS.get(str(contents.get("format")))) is not None:
        return conversion
    is_base64 = contents.get("connect.type") == "bytes" or contents.get("contentEncoding") == "base64"
    return Conversion.BINARY if is_base64 else Conversion.STRING


def _any_of(parts: list[JsonTypeUnion | None]) -> JsonTypeUnion | None:
    """Returns the union of types, or None if one of them is not restricted."""
    result = NOTHING
    for types in parts:
        if types is None:
            return None
        result = union_of(result, types)
    return result


def _both(one: JsonTypeUnion | None, other: JsonTypeUnion | None) -> JsonTypeUnion | None:
    """Returns the types of values that must match both."""
    if one is None or other is None:
        return one if other is None else other
    if RAW in (one, other):
        return other if one == RAW else one
    variants: list[JsonType] = []
    for variant in one.variants:
        match variant, other.of(json_type_of(variant)):
            case RecordType() as left_type, RecordType() as right_type:
                keys = dict(left_type.keys)
                for key, types in right_type.keys:
                    keys[key] = (_both(keys[key], types) or types) if key in keys else types
                variants.append(RecordType(tuple(keys.items())))
            case left_type, right_type:
                if right_type is not None or not other.variants or not one.variants:
                    variants.append(left_type)
    return JsonTypeUnion(tuple(variants)) if variants else one


def _bounded(types: JsonTypeUnion | None) -> JsonTypeUnion | None:
    """Replaces types that cannot have columns: a record without columns or with too many keys becomes JSON text, and a
    decimal that is not the only type becomes a double."""
    if types is None:
        return None
    if len(types.variants) > 1:
        types = JsonTypeUnion(
            tuple(ScalarType(Conversion.DOUBLE) if _is_decimal(one) else one for one in types.variants)
        )
    for variant in types.variants:
        if isinstance(variant, RecordType) and (len(variant.keys) > KEYS_MAX or not _has_columns(variant)):
            return RAW
    return types


def _is_decimal(variant: JsonType) -> bool:
    return isinstance(variant, ScalarType) and variant.conversion is Conversion.DECIMAL


def _has_columns(record: RecordType) -> bool:
    return bool(shape_of(JsonTypeUnion((record,))).fields)
