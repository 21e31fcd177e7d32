"""Mutants of the rules of typed tables, and of Delta tables over the same files (see mutants.py)."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
from tests.simulation.mutant import Mutant

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.delta import sync
from lakestream.catalog.delta.actions import encoded
from lakestream.catalog.delta.diff import file_diff
from lakestream.catalog.delta.log import DeltaLog
from lakestream.catalog.delta.state import DeltaState
from lakestream.catalog.delta.sync import DeltaSyncResult, DeltaTables
from lakestream.catalog.operations.update_schema import schema_updates
from lakestream.catalog.table_metadata.json_model import schema_of
from lakestream.catalog.topic_table.columns import STREAM
from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.table.write import partitioned_writer
from lakestream.data.typed import values_to_columns
from lakestream.errors import Conflict
from lakestream.metadata import keys
from lakestream.metadata.store import put_one
from lakestream.metadata.writer_schemas import Writers, _encode
from lakestream.pipeline import topic_schemas
from lakestream.pipeline.delta.sync_task import DeltaSyncTask
from lakestream.pipeline.maintenance import plan as maintenance_plan
from lakestream.pipeline.topic_schemas import TopicSchemas
from lakestream.schemas.columns import columns_of
from lakestream.schemas.value_format import SchemaMode, ValuePart
from lakestream.schemas.writer_schema import WriterSchema

grouped, sort_keys, typed_rows = (
    partitioned_writer.grouped,
    partitioned_writer.sort_keys,
    values_to_columns.ValueConverter._rows,
)

# ── writers and columns ──────────────────────────────────────────────────────────────────────────────────────────────


async def _store_none(self: Writers, topic_id: str, part: ValuePart, writer: WriterSchema) -> WriterSchema:
    return writer


async def _overwrite(self: Writers, topic_id: str, part: ValuePart, writer: WriterSchema) -> WriterSchema:
    await put_one(self._store, keys.writer_key(topic_id, part.value, writer.number), _encode(writer))
    return writer


async def _evolve_nothing(catalog: Catalog, table_id: str, grow: Any) -> tuple[LoadedTable, Any]:
    """Does not change the table."""
    loaded = await catalog.load_id(table_id)
    return loaded, grow(columns_of(schema_of(loaded.metadata)), loaded.metadata["last-column-id"] + 1)


async def _evolve_unconditionally(catalog: Catalog, table_id: str, grow: Any) -> tuple[LoadedTable, Any]:
    """Plans the columns once, and commits them even if the table's columns have changed since."""
    before = (await catalog.load_id(table_id)).metadata
    made = grow(columns_of(schema_of(before)), before["last-column-id"] + 1)
    return await catalog.change(table_id, lambda metadata: schema_updates(before, made)), made


async def _bind_over(
    self: TopicSchemas, topic: Any, table: LoadedTable, part: ValuePart, writer: WriterSchema
) -> LoadedTable:
    """Binds a writer schema again under its old number."""
    state = topic.parts[part]
    if await self._bound_shape(state, writer, "") is None:
        return table
    table, made = await self._add_columns(topic, table, part, state.parsed[writer.number])
    if made.bindings != writer.columns:
        again, writers = topic_schemas._numbered(writer, writer.number, made), self._catalog.writers
        assert isinstance(writers, Writers)
        state.writers[writer.number] = await _overwrite(writers, table.table_id, part, again)
    return table


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _none_differ(addresses: Any, sizes: Any, other_addresses: Any, other_sizes: Any, result: Any) -> None:
    """Treats each value as restorable from its columns."""
    result[:] = 0


def _number_rows_by_key(self: values_to_columns.ValueConverter, batch: Any, keeps_bytes: str = "") -> Any:
    """Sets the writer number of a row to that of its key."""
    values, keys = self._values.convert, self._keys.convert

    def confused(located: Any, offsets: Any, slots: Any, unreadable: Any) -> Any:
        result = values(located, offsets, slots, unreadable)
        if self._settings.key.mode is SchemaMode.NONE:
            return result
        key = keys(ByteSpans.of(batch.column(STREAM).field("key")), offsets, slots)
        return replace(result, numbers=np.where(key.numbers != 0, key.numbers, result.numbers))

    with patch.object(self._values, "convert", confused):
        return typed_rows(self, batch, keeps_bytes)


def _never_stop(self: values_to_columns.ValueConverter) -> None:
    """Continues, whatever the setting of the topic."""


# ── layouts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _values_of_next_group(rows: Any, columns: Any, cuts: Any, partition: int) -> Any:
    """Gives each group the partition values of the next one."""
    codes, groups = grouped(rows, columns, cuts, partition)
    return codes, [*groups[1:], *groups[:1]]


def _one_group(rows: Any, columns: Any, cuts: Any, partition: int) -> Any:
    codes, groups = grouped(rows, columns, cuts, partition)
    return codes * 0, groups[:1]


def _unsorted(rows: Any, columns: Any, sort: Any) -> list[Any]:
    return []


def _reversed_terms(rows: Any, columns: Any, sort: Any) -> list[Any]:
    """Sorts by the last term first."""
    return sort_keys(rows, columns, sort[::-1])


def _one_merge(files: Any) -> list[Any]:
    """Merges files of different partitions of the table."""
    return [list(files)]


# ── Delta ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _overwrite_version(self: DeltaLog, state: DeltaState, actions: Any) -> DeltaState:
    listed, version = list(actions), state.version + 1
    await self._objects.put(self._key(f"{version:020d}.json"), [encoded(listed)])
    return state.after(version, listed)


async def _iceberg_first(self: DeltaTables, table_id: str, now_ms: int) -> DeltaSyncResult:
    """Reads Delta's state with the Iceberg state of the driver's previous sync."""
    known_before = self.__dict__.setdefault("known_before", {})
    newest = await self._catalog.load_id(table_id, confirmed=True)
    loaded, known_before[table_id] = known_before.get(table_id, newest), newest
    for _ in range(sync.TRIES_MAX):
        state = await self._read(loaded)
        table_sync = sync._TableSync(self._catalog, self._listings, self._footers, loaded, state)
        try:
            await table_sync.sync(now_ms)
        except sync._SyncBlocked as why:
            return DeltaSyncResult(
                table_sync.current.state.version, table_sync.commits, str(why), why.with_deletes, why.misnamed
            )
        except Conflict:
            continue
        return DeltaSyncResult(table_sync.current.state.version, table_sync.commits)
    raise Conflict("others commit all the time: it is tried again")


async def _list_nothing(self: DeltaSyncTask, loaded: LoadedTable) -> frozenset[str]:
    return frozenset()


def _only_added_files(state: DeltaState, paths: frozenset[str]) -> Any:
    """Removes no file."""
    return file_diff(state, paths)._replace(removed=frozenset())


TYPED = ("typed", "new columns")
LAYOUTS = ("layouts",)

TYPED_MUTANTS = (
    Mutant(
        "a writer schema is stored before its rows",
        "rows have numbers of writer schemas that are not stored",
        [(Writers, "create", _store_none)],
        TYPED,
    ),
    Mutant(
        "a number belongs to one writer schema",
        "a writer schema overwrites another",
        [(Writers, "create", _overwrite)],
        TYPED,
    ),
    Mutant(
        "a schema with new bindings is a new writer schema",
        "a writer schema with more columns is changed in place",
        [(TopicSchemas, "_rebind_columns", _bind_over)],
        ("typed",),
    ),
    Mutant(
        "columns are added before their writer schema is stored",
        "a writer schema is stored whose columns the table does not have",
        [(topic_schemas, "evolve", _evolve_nothing)],
        TYPED,
    ),
    Mutant(
        "columns are planned again after a concurrent commit",
        "a driver reuses the field id of another driver's column",
        [(topic_schemas, "evolve", _evolve_unconditionally)],
        ("typed",),
    ),
    Mutant(
        "values are kept unless columns restore them byte for byte",
        "every value with columns loses its bytes",
        [(values_to_columns, "differing", _none_differ)],
        TYPED,
    ),
    Mutant(
        "a Delta version is written once",
        "a Delta commit overwrites another",
        [(DeltaLog, "commit", _overwrite_version)],
        ("typed",),
    ),
    Mutant(
        "Delta is read before Iceberg",
        "Delta is synced to an older snapshot",
        [(DeltaTables, "sync", _iceberg_first)],
        ("typed",),
    ),
    Mutant(
        "files of Delta are not deleted",
        "maintenance ignores Delta",
        [(DeltaSyncTask, "listed", _list_nothing)],
        ("typed",),
    ),
    Mutant(
        "files removed from Iceberg are removed from Delta",
        "rewritten files stay in Delta",
        [(sync, "file_diff", _only_added_files)],
        ("typed",),
    ),
    Mutant(
        "a file has the partition values of its rows",
        "a file has the partition values of other rows",
        [(partitioned_writer, "grouped", _values_of_next_group)],
        LAYOUTS,
    ),
    Mutant(
        "a file has rows of one partition",
        "rows of several partitions are in one file",
        [(partitioned_writer, "grouped", _one_group)],
        LAYOUTS,
    ),
    Mutant(
        "rows of a file have its sort order",
        "rows are unsorted, and the file has a sort order",
        [(partitioned_writer, "sort_keys", _unsorted)],
        LAYOUTS,
    ),
    Mutant(
        "rows are sorted by the first term first",
        "rows are sorted by the last term first",
        [(partitioned_writer, "sort_keys", _reversed_terms)],
        LAYOUTS,
    ),
    Mutant(
        "files are merged within a partition of the table",
        "files of several partitions are merged into one",
        [(maintenance_plan, "_by_values", _one_merge)],
        LAYOUTS,
    ),
    Mutant(
        "keys have their own writer schemas",
        "a row has the number of its key's writer schema",
        [(values_to_columns.ValueConverter, "_rows", _number_rows_by_key)],
        ("layouts", "invalid records"),
    ),
    Mutant(
        "invalid records stop a topic that is configured so",
        "a topic continues after an invalid record",
        [(values_to_columns.ValueConverter, "_stop", _never_stop)],
        ("invalid records",),
    ),
)
