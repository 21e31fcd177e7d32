"""What a table's columns are called inside its Parquet files: by field id, the same for ever. Pure.

Iceberg's readers go by field ids and do not care. Readers of Delta go by names, so a column keeps the one in files that
it was first given, whatever it is called in the table by now; and one that takes the name of a dropped column gets one
of its own. Names that differ in case only are the same: to Spark they are.

Derived from the schemas that the table's metadata keeps, so everybody who writes files comes to the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lakestream.catalog.shapes import Json, schema_of
from lakestream.schemas.columns import Column, Fields, ListColumn, MapColumn, columns_of


def parquet_names(schemas: Sequence[Json], known: Mapping[int, str] | None = None) -> dict[int, str]:
    """Of the fields of all structs. `known`: names that are settled already."""
    names = dict(known or {})
    taken: set[tuple[int, str]] = set()
    ordered = sorted(schemas, key=lambda schema: schema.get("schema-id", 0))
    for schema in ordered:
        taken.update((above, names[one["id"]].lower()) for above, one in fields_of(schema) if one["id"] in names)
    for schema in ordered:
        for above, field in fields_of(schema):
            if field["id"] not in names:
                name = _free(field["name"], field["id"], above, taken)
                names[field["id"]] = name
                taken.add((above, name.lower()))
    return names


def fields_of(kind: Any, above: int = 0) -> Iterator[tuple[int, Json]]:
    """Every field of every struct, and the id of what the struct is: a field, an element, a key or a value; 0: the
    table's own."""
    if not isinstance(kind, dict):
        return
    match kind.get("type", "struct"):
        case "list":
            yield from fields_of(kind["element"], kind["element-id"])
        case "map":
            yield from fields_of(kind["key"], kind["key-id"])
            yield from fields_of(kind["value"], kind["value-id"])
        case _:
            for field in kind["fields"]:
                yield above, field
                yield from fields_of(field["type"], field["id"])


def file_columns(metadata: Json) -> tuple[Column, ...]:
    """The columns of a table as its files have them: for whoever writes some."""
    return named_in_files(columns_of(schema_of(metadata)), parquet_names(metadata["schemas"]))


def named_in_files(columns: Sequence[Column], names: Mapping[int, str]) -> tuple[Column, ...]:
    """The same columns as files have them."""
    return tuple(_named(column, names) for column in columns)


def _named(column: Column, names: Mapping[int, str]) -> Column:
    name = names.get(column.field_id, column.name)
    match column.type:
        case Fields(fields):
            return replace(column, name=name, type=Fields(named_in_files(fields, names)))
        case ListColumn(element):
            return replace(column, name=name, type=ListColumn(_named(element, names)))
        case MapColumn(key, value):
            return replace(column, name=name, type=MapColumn(_named(key, names), _named(value, names)))
        case _:
            return replace(column, name=name)


def _free(name: str, field_id: int, above: int, taken: set[tuple[int, str]]) -> str:
    if (above, name.lower()) not in taken:
        return name
    name = f"{name}_{field_id}"
    while (above, name.lower()) in taken:
        name += "_"
    return name
