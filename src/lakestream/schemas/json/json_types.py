"""JSON types of values, and their columns: common to JSON Schemas and inferred shapes.

Before: `to_types.py` (a JSON Schema) and `data/typed/json/schema_inference.py` (values without a schema).  After: the
shape, whose columns have the order of the *variants* in a walk of the types. `data/typed/json/program.py` makes the
program of the codec in the same walk.

A value may have one of several JSON types. For the value of a key, each type is a column: `x` for the first, then
`x_string`, `x_double`, …. In a list or a map, which have one type only, the column is a string with the JSON text. So
are values that columns cannot represent: any value, recursive types, and types with too many parts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from lakestream.schemas.types import Field, Kind, ListOf, MapOf, Primitive, Struct, Type

VALUE: Final = "value"
"""The column of values that are not records."""
_NUMBERS: Final = frozenset((Kind.INT, Kind.LONG, Kind.FLOAT, Kind.DOUBLE))


class Conversion(Enum):
    """Conversion of a JSON type to the type of a column."""

    BOOLEAN = ("boolean", Kind.BOOLEAN)
    INT = ("integer", Kind.INT)
    LONG = ("integer", Kind.LONG)
    DAYS = ("integer", Kind.DATE)
    """Days since 1970: Kafka Connect's Date."""
    MILLIS_OF_DAY = ("integer", Kind.TIME)
    MILLIS = ("integer", Kind.TIMESTAMPTZ)
    DOUBLE = ("number", Kind.DOUBLE)
    STRING = ("string", Kind.STRING)
    DATE = ("string", Kind.DATE)
    TIME = ("string", Kind.TIME)
    TIMESTAMP = ("string", Kind.TIMESTAMPTZ)
    UUID = ("string", Kind.UUID)
    RAW = ("any", Kind.STRING)
    """The unchanged JSON text of the value."""
    FLOAT = ("number", Kind.FLOAT)
    DECIMAL = ("number", Kind.DECIMAL)
    """Kafka Connect's Decimal, with all decimal places."""
    BINARY = ("string", Kind.BINARY)
    """Base64."""

    @property
    def json(self) -> str:
        return self.value[0]

    @property
    def kind(self) -> Kind:
        return self.value[1]


@dataclass(frozen=True, slots=True)
class ScalarType:
    conversion: Conversion
    precision: int = 0
    scale: int = 0
    """Precision and scale are for DECIMAL only."""


@dataclass(frozen=True, slots=True)
class RecordType:
    keys: tuple[tuple[str, "JsonTypeUnion"], ...]


@dataclass(frozen=True, slots=True)
class ArrayType:
    """An array. Its element has exactly one variant."""

    element: "JsonTypeUnion"


@dataclass(frozen=True, slots=True)
class MapType:
    """An object whose keys are data: a map. Its value has exactly one variant."""

    value: "JsonTypeUnion"


JsonType: TypeAlias = ScalarType | RecordType | ArrayType | MapType


@dataclass(frozen=True, slots=True)
class JsonTypeUnion:
    """The JSON types that a value may have besides null, in order of appearance.

    Without variants, only null was seen so far, or an empty object or array."""

    variants: tuple[JsonType, ...] = ()

    def of(self, json: str) -> JsonType | None:
        return next((one for one in self.variants if json_type_of(one) == json), None)


NOTHING: Final = JsonTypeUnion()
RAW: Final = JsonTypeUnion((ScalarType(Conversion.RAW),))


def json_type_of(variant: JsonType) -> str:
    """Returns the JSON type. Integers and other numbers are two types; "any" means all types."""
    match variant:
        case ScalarType(conversion):
            return conversion.json
        case ArrayType():
            return "array"
        case RecordType() | MapType():
            return "object"


def union_of(one: JsonTypeUnion, other: JsonTypeUnion) -> JsonTypeUnion:
    """Returns the types of values that may have either type."""
    if one == RAW or other == RAW:
        return RAW
    variants = list(one.variants)
    for variant in other.variants:
        place = next((at for at, left_type in enumerate(variants) if _is_same_kind(left_type, variant)), None)
        if place is None:
            variants.append(variant)
        elif (both := _joined(variants[place], variant)) is None:
            return RAW
        else:
            variants[place] = both
    return JsonTypeUnion(tuple(variants))


def _is_same_kind(one: JsonType, other: JsonType) -> bool:
    kinds = {json_type_of(one), json_type_of(other)}
    return len(kinds) == 1 or kinds == {"integer", "number"}


def _joined(one: JsonType, other: JsonType) -> JsonType | None:
    """Merges two variants. Returns None if no column can represent both."""
    match one, other:
        case _ if one == other:
            return one
        case ScalarType(left_type), ScalarType(right_type):
            if left_type.json == "string":
                return ScalarType(Conversion.STRING)
            if left_type.kind in (Kind.INT, Kind.LONG) and right_type.kind in (Kind.INT, Kind.LONG):
                return ScalarType(Conversion.LONG)
            return ScalarType(Conversion.DOUBLE) if {left_type.kind, right_type.kind} <= _NUMBERS else None
        case ArrayType(left_type), ArrayType(right_type):
            return ArrayType(as_single_type(union_of(left_type, right_type)))
        case MapType(left_type), MapType(right_type):
            return MapType(as_single_type(union_of(left_type, right_type)))
        case RecordType(left_type), RecordType(right_type):
            keys = dict(left_type)
            for key, part in right_type:
                keys[key] = union_of(keys[key], part) if key in keys else part
            return RecordType(tuple(keys.items()))
        case _:
            return None


def as_single_type(part: JsonTypeUnion) -> JsonTypeUnion:
    """Returns the type for a position that can have one column only."""
    return part if len(part.variants) == 1 else RAW


def has_columns(part: JsonTypeUnion) -> bool:
    return bool(part.variants)


def is_record(part: JsonTypeUnion) -> bool:
    """Returns whether the keys become columns."""
    return len(part.variants) == 1 and isinstance(part.variants[0], RecordType)


def root_of(part: JsonTypeUnion) -> RecordType:
    """Returns the record whose keys are the columns of a value."""
    if is_record(part):
        only = part.variants[0]
        assert isinstance(only, RecordType)
        return only
    return RecordType(((VALUE, part if has_columns(part) else RAW),))


def shape_of(part: JsonTypeUnion) -> Struct:
    return Struct(tuple(_fields(root_of(part))))


def _fields(record: RecordType) -> Iterator[Field]:
    """Yields the fields. Their names differ in more than case, and contain no dots, which engines take for paths."""
    taken: set[str] = set()
    for key, part in record.keys:
        for place, variant in enumerate(part.variants):
            name = key.replace(".", "_") or "_"
            if place:
                name = f"{name}_{_suffix(variant)}"
            while name.casefold() in taken:
                name += "_"
            taken.add(name.casefold())
            yield Field(name, _type_of(variant))


def _suffix(variant: JsonType) -> str:
    match variant:
        case ScalarType(conversion):
            return conversion.kind.value
        case RecordType():
            return "struct"
        case ArrayType():
            return "list"
        case MapType():
            return "map"


def _type_of(variant: JsonType) -> Type:
    match variant:
        case ScalarType(conversion, precision, scale):
            return Primitive(conversion.kind, precision=precision, scale=scale)
        case RecordType():
            return Struct(tuple(_fields(variant)))
        case ArrayType(element):
            return ListOf(_type_of(element.variants[0]))
        case MapType(value):
            return MapOf(Primitive(Kind.STRING), _type_of(value.variants[0]))
