"""The columns of a topic's table grow: one commit of metadata, no file is touched.

Before: schemas/growing.py, which says what they have to become.  After: append.py, with files that have them.

What is to become of the columns is asked of the very schema that it is committed to, again after every commit of
others: two drivers, or an engine that adds a column meanwhile, see what the other did, and nothing is added twice.
The ids of columns that values are made of again are kept in a property of the table: without one of these its rows are
no records any more (topic_shape.py), whereas columns of others may come and go.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from lakestream.catalog.bound_columns import BOUND, bound_ids, text_of_ids
from lakestream.catalog.catalog import LoadedTable
from lakestream.catalog.draft import LAST_ADDED
from lakestream.catalog.errors import CommitUnknown
from lakestream.catalog.parquet_names import parquet_names
from lakestream.catalog.shapes import Json, schema_of
from lakestream.catalog.topic_layout import VALUE, VALUE_ID
from lakestream.catalog.topic_shape import check_columns
from lakestream.catalog.updates import AddSchema, RemoveSchemas, SetCurrentSchema, SetProperties, Update
from lakestream.metadata.typed import TableWriters
from lakestream.schemas.columns import Column, columns_of, iceberg_fields
from lakestream.schemas.growing import Grown, beside_stream
from lakestream.schemas.matching import FIRST_FREE_ID
from lakestream.schemas.shape import Kind, Primitive
from lakestream.schemas.typing import Part
from lakestream.schemas.writers import Bound, Writer

SCHEMAS_MAX: Final = 20
"""More of them, and those go that no snapshot names: a table whose JSON has ever new fields would keep them all."""

UNKNOWN_MAX: Final = 5
"""Commits in a row that nobody can tell of: then something else is wrong."""

Grow = Callable[[Sequence[Column], int], Grown]
"""Columns as they are and the first field id that nobody has, to what they have to be."""


class EvolvingWriters(Protocol):
    """As `metadata/typed.py:Writers`."""

    async def all(self, topic_id: str, *, confirmed: bool = False) -> TableWriters: ...

    async def create(self, topic_id: str, part: Part, writer: Writer) -> Writer: ...


class Changing(Protocol):
    async def change(self, table_id: str, updates_for: Callable[[Json], Sequence[Update]]) -> LoadedTable: ...


class Evolving(Changing, Protocol):
    """What typed tables grow in: the catalog; or a sheet of paper, for who only wants to know what would be."""

    @property
    def writers(self) -> EvolvingWriters: ...

    async def load_id(self, table_id: str, *, confirmed: bool = False) -> LoadedTable: ...


async def evolve(catalog: Evolving, table_id: str, grow: Grow) -> tuple[LoadedTable, Grown]:
    """The table with these columns. TableAltered: a column is gone that its rows need. Else as `made_so`."""
    made: list[Grown] = []

    def updates(metadata: Json) -> list[Update]:
        check_columns(metadata)
        made.append(grow(columns_of(schema_of(metadata)), metadata["last-column-id"] + 1))
        return growth(metadata, made[-1])

    return await made_so(catalog, table_id, updates), made[-1]


async def made_so(catalog: Changing, table_id: str, updates_for: Callable[[Json], Sequence[Update]]) -> LoadedTable:
    """As `Catalog.change`, of what asks for nothing where it is so already, whoever did it. So where nobody can tell
    whether a commit was done, it is simply looked at again."""
    for _ in range(UNKNOWN_MAX):
        try:
            return await catalog.change(table_id, updates_for)
        except CommitUnknown as error:
            unknown = error
    raise unknown


def growth(metadata: Json, made: Grown) -> list[Update]:
    """The updates that make it so; none: it is so already. Pure."""
    updates: list[Update] = []
    schema = schema_of(metadata)
    if made.columns != columns_of(schema):
        others = {name: inner for name, inner in schema.items() if name != "schema-id"}
        wider = {**others, "fields": iceberg_fields(_beside_partitions(made.columns, metadata))}
        updates += [*_old_schemas(metadata), AddSchema(wider, made.next_id - 1), SetCurrentSchema(LAST_ADDED)]
    known = bound_ids(metadata)
    if wanted := set(_ids(made.bounds)) - known:
        updates.append(SetProperties({BOUND: text_of_ids(known | wanted)}))
    return updates


def _beside_partitions(columns: Sequence[Column], metadata: Json) -> list[Column]:
    """New columns do not take the names of partition fields: Iceberg's Java library could not load the table then."""
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


def with_value(columns: Sequence[Column], next_id: int) -> Grown:
    """With the column that bytes without a schema are in."""
    if any(column.field_id == VALUE_ID for column in columns):
        return Grown(tuple(columns), (), (), next_id)
    name, used = VALUE, {column.name.casefold() for column in columns}
    while name in used:
        name += "_"
    value = Column(VALUE_ID, name, Primitive(Kind.BINARY))
    return Grown(beside_stream(columns, [value]), (), (), max(next_id, FIRST_FREE_ID))


def _old_schemas(metadata: Json) -> list[Update]:
    used = {snapshot.get("schema-id") for snapshot in metadata["snapshots"]} | {metadata["current-schema-id"]}
    unused = [number for one in metadata["schemas"] if (number := one.get("schema-id", 0)) not in used]
    if len(metadata["schemas"]) <= SCHEMAS_MAX:
        return []
    names, gone, left = parquet_names(metadata["schemas"]), list[int](), list(metadata["schemas"])
    for number in unused:  # not one from which is known what columns are called in files
        fewer = [one for one in left if one.get("schema-id", 0) != number]
        if parquet_names(fewer) == names:
            gone.append(number)
            left = fewer
    return [RemoveSchemas(gone)] if gone else []


def _ids(bounds: Iterable[Bound | None]) -> Iterable[int]:
    for bound in bounds:
        if bound is not None:
            yield bound.field_id
            yield from _ids(bound.children)
