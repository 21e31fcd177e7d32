"""The columns of a table as a tree with field ids, parsed from and converted to Iceberg's JSON of a schema. Pure.

Before: the metadata of the table.  After: column_evolution.py, which adds columns for the shape of a schema; workers,
which write them.

Parts of a schema that Lakestream does not use (types of later versions of Iceberg, defaults, …) are kept unchanged.
"""

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import msgspec

from lakestream.schemas.types import Kind, Primitive

_PARAMETERS: Final = re.compile(r"(fixed)\[\s*(\d{1,9})\s*\]|(decimal)\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_FIELD_WORDS: Final = frozenset(("id", "name", "type", "required", "doc"))


@dataclass(frozen=True, slots=True)
class Foreign:
    """A type of a later version of Iceberg. No type of a registered schema is converted to it."""

    text: str


@dataclass(frozen=True, slots=True)
class Fields:
    """A struct."""

    fields: tuple["Column", ...]


@dataclass(frozen=True, slots=True)
class ListColumn:
    element: "Column"


@dataclass(frozen=True, slots=True)
class MapColumn:
    key: "Column"
    value: "Column"


ColumnType: TypeAlias = Primitive | Foreign | Fields | ListColumn | MapColumn


@dataclass(frozen=True, slots=True)
class Column:
    """A field of a struct; also the element of a list, or key or value of a map, which have these names."""

    field_id: int
    name: str
    type: ColumnType
    required: bool = False
    doc: str = ""
    more: str = ""
    """Further attributes of the field, as JSON; empty if there are none."""


def columns_of(schema: Any) -> tuple[Column, ...]:
    """Parses the columns of an Iceberg schema."""
    return tuple(_column(field) for field in schema["fields"])


def _column(field: Any) -> Column:
    more = {name: inner for name, inner in field.items() if name not in _FIELD_WORDS}
    return Column(
        field["id"],
        field["name"],
        _type(field["type"]),
        bool(field.get("required")),
        field.get("doc") or "",
        msgspec.json.encode(more).decode() if more else "",
    )


def _type(kind: Any) -> ColumnType:
    if isinstance(kind, str):
        return primitive_of(kind) or Foreign(kind)
    match kind["type"]:
        case "list":
            return ListColumn(_inner(kind, "element", bool(kind.get("element-required"))))
        case "map":
            return MapColumn(_inner(kind, "key", True), _inner(kind, "value", bool(kind.get("value-required"))))
        case _:
            return Fields(tuple(_column(field) for field in kind["fields"]))


def _inner(kind: Any, part: str, required: bool) -> Column:
    return Column(kind[f"{part}-id"], part, _type(kind[part]), required)


def primitive_of(text: str) -> Primitive | None:
    """Parses Iceberg's notation of a type. Returns None if no type of a registered schema is converted to it."""
    if found := _PARAMETERS.fullmatch(text):
        fixed, length, _, precision, scale = found.groups()
        if fixed:
            return Primitive(Kind.FIXED, length=int(length))
        return Primitive(Kind.DECIMAL, precision=int(precision), scale=int(scale))
    try:
        return Primitive(Kind(text)) if text not in ("fixed", "decimal") else None
    except ValueError:
        return None


def iceberg_fields(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Returns the columns in Iceberg's JSON."""
    return [_iceberg_field(column) for column in columns]


def _iceberg_field(column: Column) -> dict[str, Any]:
    field: dict[str, Any] = {
        "id": column.field_id,
        "name": column.name,
        "required": column.required,
        "type": _iceberg_type(column.type),
    }
    if column.doc:
        field["doc"] = column.doc
    return {**field, **msgspec.json.decode(column.more)} if column.more else field


def _iceberg_type(kind: ColumnType) -> Any:
    match kind:
        case Primitive():
            return str(kind)
        case Foreign(text):
            return text
        case Fields(fields):
            return {"type": "struct", "fields": iceberg_fields(fields)}
        case ListColumn(element):
            return {
                "type": "list",
                "element-id": element.field_id,
                "element": _iceberg_type(element.type),
                "element-required": element.required,
            }
        case MapColumn(key, value):
            return {
                "type": "map",
                "key-id": key.field_id,
                "key": _iceberg_type(key.type),
                "value-id": value.field_id,
                "value": _iceberg_type(value.type),
                "value-required": value.required,
            }


def inner_columns(kind: ColumnType) -> tuple[Column, ...]:
    """Returns the fields of a struct, the element of a list, or key and value of a map."""
    match kind:
        case Fields(fields):
            return fields
        case ListColumn(element):
            return (element,)
        case MapColumn(key, value):
            return (key, value)
        case _:
            return ()


def all_columns(columns: Sequence[Column]) -> Iterator[Column]:
    """Yields the columns of all depths, each before the columns inside it."""
    for column in columns:
        yield column
        yield from all_columns(inner_columns(column.type))


def pruned(columns: Sequence[Column], field_ids: Set[int]) -> tuple[Column, ...]:
    """Returns the columns with these ids, and the columns that contain them.

    Columns that an engine added, and columns of unknown types, are not in the files that Lakestream writes. Readers get
    null for them, or the default that the table's schema has for rows older than a column."""
    return tuple(found for column in columns if (found := _pruned(column, field_ids)) is not None)


def _pruned(column: Column, field_ids: Set[int]) -> Column | None:
    match column.type:
        case Primitive():
            return column if column.field_id in field_ids else None
        case Foreign():
            return None
        case Fields(fields):
            inner = pruned(fields, field_ids)
            return replace(column, type=Fields(inner)) if inner else None
        case ListColumn(element):
            found = _pruned(element, field_ids)
            return None if found is None else replace(column, type=ListColumn(found))
        case MapColumn(key, value):
            kept = _pruned(key, field_ids), _pruned(value, field_ids)
            return None if kept[0] is None or kept[1] is None else replace(column, type=MapColumn(kept[0], kept[1]))


def leaf_ids(columns: Sequence[Column]) -> set[int]:
    """Returns the ids of the columns without inner columns."""
    return {column.field_id for column in all_columns(columns) if not inner_columns(column.type)}
