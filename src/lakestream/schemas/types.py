"""Neutral type tree between a schema and the columns of a table, the same for Avro, JSON and Protobuf.

Before: `avro/`, `json/`, `protobuf/`, which parse schemas.  After: the columns of the table, and the column buffers
that values are decoded into.

The types are those of Iceberg v2. Every field is optional, because a table lives longer than the schemas of its values.
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
    """In bytes, for FIXED only."""
    precision: int = 0
    scale: int = 0
    """Precision and scale are for DECIMAL only."""

    def __str__(self) -> str:
        """Returns the type in Iceberg's notation."""
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
    """Earlier names of the field, as declared by its schema."""
    number: int | None = None
    """Field number (Protobuf only). Two fields with the same number are the same field, whatever their names."""
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
    """Yields the types of the fields, of the element, or of key and value."""
    match kind:
        case Struct(fields):
            yield from (field.type for field in fields)
        case ListOf(element):
            yield element
        case MapOf(key, value):
            yield from (key, value)
