"""Converts Avro types to column types.

| Avro                                     | column                                                            |
|------------------------------------------|-------------------------------------------------------------------|
| union of null and one other type         | column of that type: every column may be null                     |
| union of several types                   | struct with a field for each but null, named after it; one is set |
| enum                                     | string                                                            |
| decimal of more than 38 digits           | binary                                                            |
| (local) timestamps in nanoseconds        | microseconds                                                      |
| time, date, decimal, uuid                | the same type of Iceberg                                          |

Types without bytes (null, empty records) and recursive types are omitted. The codec uses the result of `columns_of`
too, because both must walk the same tree.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from lakestream.schemas.avro.analysis import TypeProperties
from lakestream.schemas.avro.types import (
    Array,
    AvroType,
    EnumOf,
    Fixed,
    Logical,
    Map,
    Named,
    Plain,
    Record,
    Union,
    is_null,
    kind_of,
    simple_name,
)
from lakestream.schemas.types import Field, Kind, ListOf, MapOf, Primitive, Struct, Type

VALUE: Final = "value"
"""The column of a schema that is not a record."""
DIGITS_MAX: Final = 38
_DEPTH_MAX: Final = 32
_VISITS_MAX: Final = 4_000
"""Limits the number of columns: a record may be used often, so a small schema can have very many."""
_PLAIN: Final = {
    "boolean": Kind.BOOLEAN,
    "int": Kind.INT,
    "long": Kind.LONG,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "bytes": Kind.BINARY,
    "string": Kind.STRING,
}
_LOGICAL: Final = {
    "date": Kind.DATE,
    "time-millis": Kind.TIME,
    "time-micros": Kind.TIME,
    "timestamp-millis": Kind.TIMESTAMPTZ,
    "timestamp-micros": Kind.TIMESTAMPTZ,
    "timestamp-nanos": Kind.TIMESTAMPTZ,
    "local-timestamp-millis": Kind.TIMESTAMP,
    "local-timestamp-micros": Kind.TIMESTAMP,
    "local-timestamp-nanos": Kind.TIMESTAMP,
    "uuid": Kind.UUID,
}


@dataclass(frozen=True, slots=True)
class Columns:
    """The shape of a schema, with the Avro type of each of its nodes."""

    type: Type
    avro: AvroType
    """Never a union of null and one other type."""
    places: tuple[int, ...] = ()
    """The position of each child among the fields or branches."""
    children: tuple["Columns", ...] = ()


def columns_of(top: AvroType) -> Columns:
    """Returns the columns of a schema."""
    walk = _Walk(TypeProperties.of(top))
    if isinstance(top, Record):
        columns = walk.visit(top)
        return columns if columns is not None else Columns(Struct(()), top)
    inner = walk.visit(top)
    if inner is None:
        return Columns(Struct(()), top)
    return Columns(Struct((Field(VALUE, inner.type),)), top, (0,), (inner,))


def only_branch(union: Union) -> int | None:
    """Returns the position of the only branch that is not null, or None if there are several."""
    positions = [position for position, branch in enumerate(union.branches) if not is_null(branch)]
    return positions[0] if len(positions) == 1 else None


@dataclass(slots=True)
class _Walk:
    properties: TypeProperties
    open: set[int] = field(default_factory=set)
    """Records that contain the current type."""
    depth: int = 0
    visits: int = 0

    def visit(self, type_: AvroType) -> Columns | None:
        """Returns None if the type is omitted."""
        if self.depth >= _DEPTH_MAX or self.visits >= _VISITS_MAX or self.properties.is_empty(type_):
            return None
        self.depth += 1
        self.visits += 1
        try:
            return self._visit(type_)
        finally:
            self.depth -= 1

    def _visit(self, type_: AvroType) -> Columns | None:
        match type_:
            case Plain() | Fixed() | EnumOf():
                return _leaf(type_)
            case Array(items):
                inner = self.visit(items)
                return Columns(ListOf(inner.type), type_, (0,), (inner,)) if inner else None
            case Map(values):
                inner = self.visit(values)
                key = Primitive(Kind.STRING)
                return Columns(MapOf(key, inner.type), type_, (0,), (inner,)) if inner else None
            case Union(branches):
                if (only := only_branch(type_)) is not None:
                    return self.visit(branches[only])
                return self._struct(type_, list(zip(_names(branches), branches, strict=True)))
            case Record():
                return self._record(type_)

    def _record(self, record: Record) -> Columns | None:
        if id(record) in self.open:
            return None
        self.open.add(id(record))
        try:
            columns = self._struct(record, [(field.name, field.type) for field in record.fields])
        finally:
            self.open.discard(id(record))
        if columns is None:
            return None
        assert isinstance(columns.type, Struct)
        sources = [record.fields[place] for place in columns.places]
        fields = tuple(
            Field(column.name, column.type, source.aliases, doc=source.doc)
            for column, source in zip(columns.type.fields, sources, strict=True)
        )
        return Columns(Struct(fields), record, columns.places, columns.children)

    def _struct(self, type_: Record | Union, parts: list[tuple[str, AvroType]]) -> Columns | None:
        found = [(place, name, self.visit(part)) for place, (name, part) in enumerate(parts)]
        kept = [(place, name, inner) for place, name, inner in found if inner is not None]
        if not kept:
            return None
        fields = tuple(Field(name, inner.type) for _, name, inner in kept)
        return Columns(
            Struct(fields), type_, tuple(place for place, _, _ in kept), tuple(inner for _, _, inner in kept)
        )


def _leaf(type_: Plain | Fixed | EnumOf) -> Columns:
    if isinstance(type_, EnumOf):
        return Columns(Primitive(Kind.STRING), type_)
    if (logical := _logical(type_.logical)) is not None:
        return Columns(logical, type_)
    if isinstance(type_, Fixed):
        return Columns(Primitive(Kind.FIXED, length=type_.size), type_)
    return Columns(Primitive(_PLAIN[type_.kind]), type_)


def _logical(logical: Logical | None) -> Primitive | None:
    if logical is None:
        return None
    if logical.name == "decimal":
        if logical.precision > DIGITS_MAX:
            return None
        return Primitive(Kind.DECIMAL, precision=logical.precision, scale=logical.scale)
    kind = _LOGICAL.get(logical.name)
    return Primitive(kind) if kind is not None else None


def _names(branches: tuple[AvroType, ...]) -> list[str]:
    """Returns the names of the fields for the branches of a union.

    The names are derived from the types and not from the positions, because branches may be added and removed. They
    differ in more than case, because some engines fold case."""
    simple = [simple_name(branch.name) if isinstance(branch, Named) else kind_of(branch) for branch in branches]
    count, taken, names = Counter(name.lower() for name in simple), set[str](), list[str]()
    for branch, name in zip(branches, simple, strict=True):
        if isinstance(branch, Named) and count[name.lower()] > 1:
            name = branch.name.replace(".", "_")
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        names.append(name)
    return names
