"""Adds and widens columns of a topic's table in one commit of metadata. No file is changed.

Before: schemas/column_evolution.py, which computes the new columns.  After: append.py, with files that have them.

The new columns are computed from the schema that they are committed to, and again after every concurrent commit: so two
drivers, or a driver and an engine, do not add a column twice. The ids of columns from which values are restored are
kept in a property of the table: without them its rows are not records (checks.py), whereas engines may add and drop
other columns.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from lakestream.catalog.catalog import LoadedTable
from lakestream.catalog.errors import CommitStateUnknown
from lakestream.catalog.table_metadata.builder import LAST_ADDED
from lakestream.catalog.table_metadata.json_model import Json, schema_of
from lakestream.catalog.table_metadata.updates import AddSchema, RemoveSchemas, SetCurrentSchema, SetProperties, Update
from lakestream.catalog.topic_table.checks import check_columns
from lakestream.catalog.topic_table.columns import VALUE, VALUE_ID
from lakestream.catalog.topic_table.field_names import parquet_names
from lakestream.catalog.topic_table.properties import BOUND, bound_ids, text_of_ids
from lakestream.metadata.writer_schemas import TableWriters
from lakestream.schemas.column_evolution import EvolvedColumns, insert_before_stream
from lakestream.schemas.column_matching import FIRST_FREE_ID
from lakestream.schemas.columns import Column, columns_of, iceberg_fields
from lakestream.schemas.types import Kind, Primitive
from lakestream.schemas.value_format import ValuePart
from lakestream.schemas.writer_schema import ColumnBinding, WriterSchema

SCHEMAS_MAX: Final = 20
"""With more of them, schemas that no snapshot names are removed: JSON values with new fields would add ever more."""

UNKNOWN_MAX: Final = 5
"""Commits in a row with an unknown result, before the error is raised."""

Grow = Callable[[Sequence[Column], int], EvolvedColumns]
"""Computes new columns from the current ones and the first free field id."""


class EvolvingWriters(Protocol):
    """The part of `metadata/writer_schemas.py:Writers` that the evolution of columns uses."""

    async def all(self, topic_id: str, *, confirmed: bool = False) -> TableWriters: ...

    async def create(self, topic_id: str, part: ValuePart, writer: WriterSchema) -> WriterSchema: ...


class ChangingCatalog(Protocol):
    async def change(self, table_id: str, updates_for: Callable[[Json], Sequence[Update]]) -> LoadedTable: ...


class EvolvingCatalog(ChangingCatalog, Protocol):
    """The catalog, or its dry run (dry_run.py)."""

    @property
    def writers(self) -> EvolvingWriters: ...

    async def load_id(self, table_id: str, *, confirmed: bool = False) -> LoadedTable: ...


async def evolve(catalog: EvolvingCatalog, table_id: str, grow: Grow) -> tuple[LoadedTable, EvolvedColumns]:
    """Commits the columns and returns the table. Raises IncompatibleTable if a column that records need was dropped."""
    evolved: list[EvolvedColumns] = []

    def updates(metadata: Json) -> list[Update]:
        check_columns(metadata)
        evolved.append(grow(columns_of(schema_of(metadata)), metadata["last-column-id"] + 1))
        return schema_updates(metadata, evolved[-1])

    return await commit_until_applied(catalog, table_id, updates), evolved[-1]


async def commit_until_applied(
    catalog: ChangingCatalog, table_id: str, updates_for: Callable[[Json], Sequence[Update]]
) -> LoadedTable:
    """As `Catalog.change`, for `updates_for` that returns no updates if they have been applied already.

    So a commit with an unknown result is retried.
    """
    for _ in range(UNKNOWN_MAX):
        try:
            return await catalog.change(table_id, updates_for)
        except CommitStateUnknown as error:
            unknown = error
    raise unknown


def schema_updates(metadata: Json, evolved: EvolvedColumns) -> list[Update]:
    """Returns the updates that give the table these columns; none if it has them. Pure."""
    updates: list[Update] = []
    schema = schema_of(metadata)
    if evolved.columns != columns_of(schema):
        others = {name: inner for name, inner in schema.items() if name != "schema-id"}
        wider = {**others, "fields": iceberg_fields(_renamed_for_partitions(evolved.columns, metadata))}
        updates += [*_old_schemas(metadata), AddSchema(wider, evolved.next_id - 1), SetCurrentSchema(LAST_ADDED)]
    known = bound_ids(metadata)
    if new := set(_ids(evolved.bindings)) - known:
        updates.append(SetProperties({BOUND: text_of_ids(known | new)}))
    return updates


def _renamed_for_partitions(columns: Sequence[Column], metadata: Json) -> list[Column]:
    """Renames new columns with names of partition fields: Iceberg's Java library cannot load such a table."""
    known = {field["id"] for field in schema_of(metadata)["fields"]}
    taken = {field["name"] for spec in metadata["partition-specs"] for field in spec["fields"]}
    names = {column.name for column in columns}
    found = []
    for column in columns:
        name = column.name
        while column.field_id not in known and name in taken:
            name += "_" if f"{name}_" not in names else "__"
        found.append(column if name == column.name else replace(column, name=name))
    return found


def with_value_column(columns: Sequence[Column], next_id: int) -> EvolvedColumns:
    """Adds the column for values without a schema, if it does not exist."""
    if any(column.field_id == VALUE_ID for column in columns):
        return EvolvedColumns(tuple(columns), (), (), next_id)
    name, used = VALUE, {column.name.casefold() for column in columns}
    while name in used:
        name += "_"
    value = Column(VALUE_ID, name, Primitive(Kind.BINARY))
    return EvolvedColumns(insert_before_stream(columns, [value]), (), (), max(next_id, FIRST_FREE_ID))


def _old_schemas(metadata: Json) -> list[Update]:
    used = {snapshot.get("schema-id") for snapshot in metadata["snapshots"]} | {metadata["current-schema-id"]}
    unused = [number for one in metadata["schemas"] if (number := one.get("schema-id", 0)) not in used]
    if len(metadata["schemas"]) <= SCHEMAS_MAX:
        return []
    names, removed, left = parquet_names(metadata["schemas"]), list[int](), list(metadata["schemas"])
    for number in unused:  # but not one from which names of columns in files are derived
        fewer = [one for one in left if one.get("schema-id", 0) != number]
        if parquet_names(fewer) == names:
            removed.append(number)
            left = fewer
    return [RemoveSchemas(removed)] if removed else []


def _ids(bounds: Iterable[ColumnBinding | None]) -> Iterable[int]:
    for bound in bounds:
        if bound is not None:
            yield bound.field_id
            yield from _ids(bound.children)
