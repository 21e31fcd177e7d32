"""What JSON text may have in each of its places, and which columns that makes. For schemas and inferred shapes alike.

Before: `columns.py` (a JSON Schema) and `data/typed/json_infer.py` (values without one).  After: the shape, in which
columns are in the order of the *variants* met on a walk through the parts; the program of `data/typed/json_program.py`
is made on the same walk.

A place may hold values of several JSON types. Under a key each of them is a column: `x` for the first, then `x_string`,
`x_double`, …; in a list or a map, which have one type only, the text of the JSON value itself is kept, as a string. So
is all that columns cannot say: what may be anything, what is nested in itself, what has too many parts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from lakestream.schemas.shape import Field, Kind, ListOf, MapOf, Primitive, Struct, Type

VALUE: Final = "value"
"""The column of values that are no record."""
_NUMBERS: Final = frozenset((Kind.INT, Kind.LONG, Kind.FLOAT, Kind.DOUBLE))


class Read(Enum):
    """How a value becomes the slot of a column. The text comes first, the column's kind second."""

    BOOLEAN = ("boolean", Kind.BOOLEAN)
    INT = ("integer", Kind.INT)
    LONG = ("integer", Kind.LONG)
    DAYS = ("integer", Kind.DATE)
    """Since 1970: Kafka Connect's Date."""
    MILLIS_OF_DAY = ("integer", Kind.TIME)
    MILLIS = ("integer", Kind.TIMESTAMPTZ)
    DOUBLE = ("number", Kind.DOUBLE)
    STRING = ("string", Kind.STRING)
    DATE = ("string", Kind.DATE)
    TIME = ("string", Kind.TIME)
    TIMESTAMP = ("string", Kind.TIMESTAMPTZ)
    UUID = ("string", Kind.UUID)
    RAW = ("any", Kind.STRING)
    """The text of the value as it stands."""
    FLOAT = ("number", Kind.FLOAT)
    DECIMAL = ("number", Kind.DECIMAL)
    """Kafka Connect's Decimal, with all of its places."""
    BINARY = ("string", Kind.BINARY)
    """Base64."""

    @property
    def json(self) -> str:
        return self.value[0]

    @property
    def kind(self) -> Kind:
        return self.value[1]


@dataclass(frozen=True, slots=True)
class Scalar:
    read: Read
    precision: int = 0
    scale: int = 0
    """Of a DECIMAL."""


@dataclass(frozen=True, slots=True)
class Record:
    keys: tuple[tuple[str, "Part"], ...]


@dataclass(frozen=True, slots=True)
class Many:
    """An array. Its element has one variant."""

    element: "Part"


@dataclass(frozen=True, slots=True)
class Named:
    """An object whose keys are data: a map. Its value has one variant."""

    value: "Part"


Variant: TypeAlias = Scalar | Record | Many | Named


@dataclass(frozen=True, slots=True)
class Part:
    """What may stand at a place, besides null: one variant for each JSON type, the first one first. None: only null (or
    an empty object or array, of which nothing can be said yet)."""

    variants: tuple[Variant, ...] = ()

    def of(self, json: str) -> Variant | None:
        return next((one for one in self.variants if json_of(one) == json), None)


NOTHING: Final = Part()
RAW: Final = Part((Scalar(Read.RAW),))


def json_of(variant: Variant) -> str:
    """The JSON type; integers and other numbers are two, and "any" is all."""
    match variant:
        case Scalar(read):
            return read.json
        case Many():
            return "array"
        case Record() | Named():
            return "object"


def joined(one: Part, other: Part) -> Part:
    """What may be either."""
    if one == RAW or other == RAW:
        return RAW
    variants = list(one.variants)
    for variant in other.variants:
        place = next((at for at, mine in enumerate(variants) if _is_alike(mine, variant)), None)
        if place is None:
            variants.append(variant)
        elif (both := _joined(variants[place], variant)) is None:
            return RAW
        else:
            variants[place] = both
    return Part(tuple(variants))


def _is_alike(one: Variant, other: Variant) -> bool:
    kinds = {json_of(one), json_of(other)}
    return len(kinds) == 1 or kinds == {"integer", "number"}


def _joined(one: Variant, other: Variant) -> Variant | None:
    """None: there is no column for both."""
    match one, other:
        case _ if one == other:
            return one
        case Scalar(mine), Scalar(theirs):
            if mine.json == "string":
                return Scalar(Read.STRING)
            if mine.kind in (Kind.INT, Kind.LONG) and theirs.kind in (Kind.INT, Kind.LONG):
                return Scalar(Read.LONG)
            return Scalar(Read.DOUBLE) if {mine.kind, theirs.kind} <= _NUMBERS else None
        case Many(mine), Many(theirs):
            return Many(single(joined(mine, theirs)))
        case Named(mine), Named(theirs):
            return Named(single(joined(mine, theirs)))
        case Record(mine), Record(theirs):
            keys = dict(mine)
            for key, part in theirs:
                keys[key] = joined(keys[key], part) if key in keys else part
            return Record(tuple(keys.items()))
        case _:
            return None


def single(part: Part) -> Part:
    """For a place that can have one column only."""
    return part if len(part.variants) == 1 else RAW


def has_columns(part: Part) -> bool:
    return bool(part.variants)


def is_record(part: Part) -> bool:
    """Whether its keys are columns of their own."""
    return len(part.variants) == 1 and isinstance(part.variants[0], Record)


def root_of(part: Part) -> Record:
    """The columns of whole values."""
    if is_record(part):
        only = part.variants[0]
        assert isinstance(only, Record)
        return only
    return Record(((VALUE, part if has_columns(part) else RAW),))


def shape_of(part: Part) -> Struct:
    return Struct(tuple(_fields(root_of(part))))


def _fields(record: Record) -> Iterator[Field]:
    """Names differ also for who does not tell upper case from lower; none has a dot, which engines take for a path."""
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


def _suffix(variant: Variant) -> str:
    match variant:
        case Scalar(read):
            return read.kind.value
        case Record():
            return "struct"
        case Many():
            return "list"
        case Named():
            return "map"


def _type_of(variant: Variant) -> Type:
    match variant:
        case Scalar(read, precision, scale):
            return Primitive(read.kind, precision=precision, scale=scale)
        case Record():
            return Struct(tuple(_fields(variant)))
        case Many(element):
            return ListOf(_type_of(element.variants[0]))
        case Named(value):
            return MapOf(Primitive(Kind.STRING), _type_of(value.variants[0]))
