"""Avro types as a tree with resolved names. A recursive record is a cycle of objects."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

_SHOWN_MAX: Final = 8
"""Branches of a union that a message lists."""


@dataclass(frozen=True, slots=True)
class Logical:
    """A logical type. Those that are invalid for their type are omitted, as the Avro specification requires."""

    name: str
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Plain:
    kind: str
    """null, boolean, int, long, float, double, bytes or string."""
    logical: Logical | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further attributes of the schema; likewise in the other types."""


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    name: str
    size: int
    logical: Logical | None = None
    aliases: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class EnumOf:
    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    items: "AvroType"
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    values: "AvroType"
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    branches: tuple["AvroType", ...]


@dataclass(frozen=True, slots=True, eq=False)
class RecordField:
    """A field of a record."""

    name: str
    type: "AvroType"
    aliases: tuple[str, ...] = ()
    default: tuple[Any, ...] = ()
    """Empty, or the default as JSON. A tuple, because a default may be null."""
    doc: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Record:
    name: str
    aliases: tuple[str, ...] = ()
    doc: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple[RecordField, ...] = ()
    """Set after all fields are parsed, because they may contain the record itself."""


AvroType: TypeAlias = Plain | Fixed | EnumOf | Array | Map | Union | Record
Named: TypeAlias = Fixed | EnumOf | Record


def kind_of(type_: AvroType) -> str:
    """Returns Avro's name of the kind of a type."""
    match type_:
        case Plain(kind):
            return kind
        case Fixed():
            return "fixed"
        case EnumOf():
            return "enum"
        case Array():
            return "array"
        case Map():
            return "map"
        case Union():
            return "union"
        case Record():
            return "record"


def describe(type_: AvroType) -> str:
    """Returns the type for a message."""
    if isinstance(type_, Named):
        return f"{kind_of(type_)} {type_.name}"
    if isinstance(type_, Union):
        shown = ", ".join(describe(branch) for branch in type_.branches[:_SHOWN_MAX])
        return f"union of {shown}" if len(type_.branches) <= _SHOWN_MAX else f"union of {shown}, …"
    return kind_of(type_)


def is_null(type_: AvroType) -> bool:
    return isinstance(type_, Plain) and type_.kind == "null"


def simple_name(name: str) -> str:
    """Returns a name without its namespace."""
    return name.rpartition(".")[2]
