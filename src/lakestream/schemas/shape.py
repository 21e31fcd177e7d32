"""What a schema is made of when it becomes columns: one tree of types for Avro, JSON and Protobuf alike.

Before: `avro/`, `json/`, `protobuf/`, which read the text of a schema.  After: the table's columns, and the frames that
values are decoded into.

The types are those of Iceberg v2. Every field is optional: a table outlives the schemas of its values.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class Kind(Enum):
    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    STRING = "string"
    UUID = "uuid"
    FIXED = "fixed"
    BINARY = "binary"
    DECIMAL = "decimal"


@dataclass(frozen=True, slots=True)
class Primitive:
    kind: Kind
    length: int = 0
    """Of a FIXED, in bytes."""
    precision: int = 0
    scale: int = 0
    """Of a DECIMAL."""

    def __str__(self) -> str:
        """As Iceberg spells it."""
        if self.kind is Kind.FIXED:
            return f"fixed[{self.length}]"
        if self.kind is Kind.DECIMAL:
            return f"decimal({self.precision}, {self.scale})"
        return str(self.kind.value)


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: "Type"
    aliases: tuple[str, ...] = ()
    """Names that it had before, as its schema says."""
    number: int | None = None
    """Where the schema numbers its fields (Protobuf): a field with another name and the same number is the same."""
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Struct:
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class ListOf:
    element: "Type"


@dataclass(frozen=True, slots=True)
class MapOf:
    key: Primitive
    value: "Type"


Type: TypeAlias = Primitive | Struct | ListOf | MapOf


def children(kind: Type) -> Iterator[Type]:
    """The types that a type is made of, in order."""
    match kind:
        case Struct(fields):
            yield from (field.type for field in fields)
        case ListOf(element):
            yield element
        case MapOf(key, value):
            yield from (key, value)
