"""Names of a table's columns in its Parquet files, by field id. They never change. Pure.

Iceberg's readers use field ids. Readers of Delta use names, so a column keeps its first name in files, whatever its
name in the table is later, and a column with the name of a dropped column gets another one. Names that differ only in
case are the same, as in Spark.

The names are derived from the schemas in the table's metadata, so all writers of files use the same ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lakestream.catalog.table_metadata.json_model import Json, schema_of
from lakestream.schemas.columns import Column, Fields, ListColumn, MapColumn, columns_of


def parquet_names(schemas: Sequence[Json], known: Mapping[int, str] | None = None) -> dict[int, str]:
    """Returns names by id for the fields of all structs. `known`: names in use already."""
    names = dict(known or {})
    taken: set[tuple[int, str]] = set()
    ordered = sorted(schemas, key=lambda schema: schema.get("schema-id", 0))
    for schema in ordered:
        taken.update((above, names[one["id"]].lower()) for above, one in fields_of(schema) if one["id"] in names)
    for schema in ordered:
        for above, field in fields_of(schema):
            if field["id"] not in names:
                name = _free_name(field["name"], field["id"], above, taken)
                names[field["id"]] = name
                taken.add((above, name.lower()))
    return names


def fields_of(kind: Any, above: int = 0) -> Iterator[tuple[int, Json]]:
    """Yields every field of every struct with the id of the struct: of a field, an element, a key or a value.

    For top-level columns that id is 0.
    """
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
    """Returns the columns of a table with their names in files, for writers of files."""
    return named_in_files(columns_of(schema_of(metadata)), parquet_names(metadata["schemas"]))


def named_in_files(columns: Sequence[Column], names: Mapping[int, str]) -> tuple[Column, ...]:
    """Returns the columns with their names in files."""
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


def _free_name(name: str, field_id: int, above: int, taken: set[tuple[int, str]]) -> str:
    if (above, name.lower()) not in taken:
        return name
    name = f"{name}_{field_id}"
    while (above, name.lower()) in taken:
        name += "_"
    return name
