"""The columns of a table as a tree with field ids: read from Iceberg's JSON of a schema, and written to it. Pure.

Before: the table's metadata.  After: merge.py, which grows them by the shape of a schema; workers, which fill them.

What is in a schema and is not ours (types of later versions of Iceberg, defaults, …) is carried along as it is.
"""

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import msgspec

from lakestream.schemas.shape import Kind, Primitive

_PARAMETERS: Final = re.compile(r"(fixed)\[\s*(\d{1,9})\s*\]|(decimal)\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_FIELD_WORDS: Final = frozenset(("id", "name", "type", "required", "doc"))


@dataclass(frozen=True, slots=True)
class Foreign:
    """A type that no schema of ours becomes: of a later version of Iceberg."""

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
    """A field of a struct; also the element of a list, and key and value of a map, under these names."""

    field_id: int
    name: str
    type: ColumnType
    required: bool = False
    doc: str = ""
    more: str = ""
    """What else its JSON has, as JSON; empty: nothing."""


def columns_of(schema: Any) -> tuple[Column, ...]:
    """Of a schema as Iceberg's metadata has it."""
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
    """As Iceberg spells it; None: it is none that our schemas become."""
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
    """As they stand in Iceberg's JSON."""
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
    """The columns that a type is made of, in order."""
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
    """At all depths, each before what is inside it."""
    for column in columns:
        yield column
        yield from all_columns(inner_columns(column.type))


def pruned(columns: Sequence[Column], wanted: Set[int]) -> tuple[Column, ...]:
    """Those with such numbers and what they are in. What others have added is not in our files, nor what we have no
    type for: to readers it is null there, or whatever the table's schema says of rows that are older than a column."""
    return tuple(found for column in columns if (found := _pruned(column, wanted)) is not None)


def _pruned(column: Column, wanted: Set[int]) -> Column | None:
    match column.type:
        case Primitive():
            return column if column.field_id in wanted else None
        case Foreign():
            return None
        case Fields(fields):
            inner = pruned(fields, wanted)
            return replace(column, type=Fields(inner)) if inner else None
        case ListColumn(element):
            found = _pruned(element, wanted)
            return None if found is None else replace(column, type=ListColumn(found))
        case MapColumn(key, value):
            kept = _pruned(key, wanted), _pruned(value, wanted)
            return None if kept[0] is None or kept[1] is None else replace(column, type=MapColumn(kept[0], kept[1]))


def leaf_ids(columns: Sequence[Column]) -> set[int]:
    """Of those that hold values themselves."""
    return {column.field_id for column in all_columns(columns) if not inner_columns(column.type)}
