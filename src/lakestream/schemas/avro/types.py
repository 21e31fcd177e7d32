"""Avro's types as a tree. Names are resolved: a record that holds itself is a circle of objects."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

_SHOWN_MAX: Final = 8
"""Of the branches of a union, in a message."""


@dataclass(frozen=True, slots=True)
class Logical:
    """What a type means beyond its bytes. Only such as fit their type: others are left out, as Avro asks for."""

    name: str
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Plain:
    kind: str
    """null, boolean, int, long, float, double, bytes or string."""
    logical: Logical | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What its text says besides; in other types too."""


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
class Part:
    """A field of a record."""

    name: str
    type: "AvroType"
    aliases: tuple[str, ...] = ()
    default: tuple[Any, ...] = ()
    """None or one, as JSON: a default may be null."""
    doc: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Record:
    name: str
    aliases: tuple[str, ...] = ()
    doc: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple[Part, ...] = ()
    """Put here once, when all of them were read: they may hold the record itself."""


AvroType: TypeAlias = Plain | Fixed | EnumOf | Array | Map | Union | Record
Named: TypeAlias = Fixed | EnumOf | Record


def kind_of(type_: AvroType) -> str:
    """As Avro calls it."""
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


def described(type_: AvroType) -> str:
    """In a message."""
    if isinstance(type_, Named):
        return f"{kind_of(type_)} {type_.name}"
    if isinstance(type_, Union):
        shown = ", ".join(described(branch) for branch in type_.branches[:_SHOWN_MAX])
        return f"union of {shown}" if len(type_.branches) <= _SHOWN_MAX else f"union of {shown}, …"
    return kind_of(type_)


def is_null(type_: AvroType) -> bool:
    return isinstance(type_, Plain) and type_.kind == "null"


def simple_name(name: str) -> str:
    """Without its namespace."""
    return name.rpartition(".")[2]
