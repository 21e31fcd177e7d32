"""Rules of typed tables and of Delta tables over the same files, switched off one by one (see mutants.py)."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
from tests.simulation.mutant import Mutant

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.delta import follow
from lakestream.catalog.delta.actions import encoded
from lakestream.catalog.delta.follow import DeltaTables, Followed
from lakestream.catalog.delta.log import DeltaLog
from lakestream.catalog.delta.state import State
from lakestream.catalog.delta.steps import changed
from lakestream.catalog.evolve import growth
from lakestream.catalog.shapes import schema_of
from lakestream.catalog.topic_layout import STREAM
from lakestream.data.table import splitting
from lakestream.data.table.located import Located
from lakestream.data.typed import typing
from lakestream.errors import Conflict
from lakestream.metadata import keys
from lakestream.metadata.store import put_one
from lakestream.metadata.typed import Writers, _encode
from lakestream.pipeline import typed_topics
from lakestream.pipeline.delta.mirror import DeltaMirror
from lakestream.pipeline.maintenance import plan as maintenance_plan
from lakestream.pipeline.typed_topics import TypedTopics
from lakestream.schemas.columns import columns_of
from lakestream.schemas.typing import Mode, Part
from lakestream.schemas.writers import Writer

grouped, sort_keys, typed_rows = splitting.grouped, splitting.sort_keys, typing.Typist._rows

# ── writers and columns ──────────────────────────────────────────────────────────────────────────────────────────────


async def _store_none(self: Writers, topic_id: str, part: Part, writer: Writer) -> Writer:
    return writer


async def _store_over(self: Writers, topic_id: str, part: Part, writer: Writer) -> Writer:
    await put_one(self._store, keys.writer_key(topic_id, part.value, writer.number), _encode(writer))
    return writer


async def _grow_nothing(catalog: Catalog, table_id: str, grow: Any) -> tuple[LoadedTable, Any]:
    """The table stays as it is."""
    loaded = await catalog.load_id(table_id)
    return loaded, grow(columns_of(schema_of(loaded.metadata)), loaded.metadata["last-column-id"] + 1)


async def _grow_blindly(catalog: Catalog, table_id: str, grow: Any) -> tuple[LoadedTable, Any]:
    """What is to become of the columns is asked once, and committed to whatever they are by then."""
    before = (await catalog.load_id(table_id)).metadata
    made = grow(columns_of(schema_of(before)), before["last-column-id"] + 1)
    return await catalog.change(table_id, lambda metadata: growth(before, made)), made


async def _bind_over(self: TypedTopics, topic: Any, table: LoadedTable, part: Part, writer: Writer) -> LoadedTable:
    """Under the number that it has."""
    side = topic.sides[part]
    if await self._known(side, writer, "") is None:
        return table
    table, made = await self._grown(side, table, part, side.shaped[writer.number])
    if made.bounds != writer.columns:
        again, writers = typed_topics._numbered(writer, writer.number, made), self._catalog.writers
        assert isinstance(writers, Writers)
        side.writers[writer.number] = await _store_over(writers, table.table_id, part, again)
    return table


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _all_the_same(addresses: Any, sizes: Any, other_addresses: Any, other_sizes: Any, found: Any) -> None:
    """Whatever is written back is taken for what was produced."""
    found[:] = 0


def _numbers_of_keys(self: typing.Typist, batch: Any) -> Any:
    """What a row says of its writer is what its key says."""
    values, keys = self._values.typed, self._keys.typed

    def confused(located: Any, offsets: Any) -> Any:
        found = values(located, offsets)
        if self._typing.key.mode is Mode.NONE:
            return found
        key = keys(Located.of(batch.column(STREAM).field("key")), offsets)
        return replace(found, numbers=np.where(key.numbers != 0, key.numbers, found.numbers))

    with patch.object(self._values, "typed", confused):
        return typed_rows(self, batch)


def _go_on(self: typing.Typist) -> None:
    """Whatever the topic wants."""


# ── layouts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _others_values(rows: Any, columns: Any, cuts: Any, partition: int) -> Any:
    """Each group has what the next one has."""
    codes, groups = grouped(rows, columns, cuts, partition)
    return codes, [*groups[1:], *groups[:1]]


def _all_in_one(rows: Any, columns: Any, cuts: Any, partition: int) -> Any:
    codes, groups = grouped(rows, columns, cuts, partition)
    return codes * 0, groups[:1]


def _unsorted(rows: Any, columns: Any, sort: Any) -> list[Any]:
    return []


def _backwards(rows: Any, columns: Any, sort: Any) -> list[Any]:
    """The last term counts most."""
    return sort_keys(rows, columns, sort[::-1])


def _side_by_side(files: Any) -> list[Any]:
    """Whatever partitions of the table they are of."""
    return [list(files)]


# ── Delta ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _commit_over(self: DeltaLog, state: State, actions: Any) -> State:
    listed, version = list(actions), state.version + 1
    await self._objects.put(self._key(f"{version:020d}.json"), [encoded(listed)])
    return state.after(version, listed)


async def _iceberg_first(self: DeltaTables, table_id: str, now_ms: int) -> Followed:
    """Delta's state is read when Iceberg's is long known: what it was when this driver last looked."""
    known_before = self.__dict__.setdefault("known_before", {})
    newest = await self._catalog.load_id(table_id, confirmed=True)
    loaded, known_before[table_id] = known_before.get(table_id, newest), newest
    for _ in range(follow.TRIES_MAX):
        known = await self._read(loaded)
        one = follow._One(self._catalog, self._listings, self._footers, loaded, known)
        try:
            await one.lead_on(now_ms)
        except follow._Waits as why:
            return Followed(one.known.state.version, one.commits, str(why), why.in_the_way, why.misnamed)
        except Conflict:
            continue
        return Followed(one.known.state.version, one.commits)
    raise Conflict("others commit all the time: it is tried again")


async def _lists_nothing(self: DeltaMirror, loaded: LoadedTable) -> frozenset[str]:
    return frozenset()


def _only_what_comes(state: State, paths: frozenset[str]) -> Any:
    """What went is not removed."""
    return changed(state, paths)._replace(gone=frozenset())


TYPED = ("typed", "learning")
ARRANGED = ("arranged",)

TYPED_MUTANTS = (
    Mutant(
        "a writer's record is stored before its rows",
        "rows have numbers that nobody can look up",
        [(Writers, "create", _store_none)],
        TYPED,
    ),
    Mutant(
        "a number is of one writer",
        "a writer's record is written over another's",
        [(Writers, "create", _store_over)],
        TYPED,
    ),
    Mutant(
        "a schema that is bound again is another writer",
        "the record of a writer that gets more columns is changed",
        [(TypedTopics, "_bind_again", _bind_over)],
        ("typed",),
    ),
    Mutant(
        "columns come before who writes them",
        "a writer is recorded whose columns the table does not have",
        [(typed_topics, "evolve", _grow_nothing)],
        TYPED,
    ),
    Mutant(
        "columns are asked for again after every commit of others",
        "a driver gives the field id of somebody else's column to its own",
        [(typed_topics, "evolve", _grow_blindly)],
        ("typed",),
    ),
    Mutant(
        "only what comes back byte for byte is not kept",
        "whatever has columns loses its bytes",
        [(typing, "differing", _all_the_same)],
        TYPED,
    ),
    Mutant(
        "a version of Delta is made by one",
        "a commit to Delta is written over another",
        [(DeltaLog, "commit", _commit_over)],
        ("typed",),
    ),
    Mutant(
        "Delta is read before Iceberg",
        "Delta is led to a snapshot that is older than where it is",
        [(DeltaTables, "follow", _iceberg_first)],
        ("typed",),
    ),
    Mutant(
        "what Delta lists is not removed",
        "maintenance knows nothing of Delta",
        [(DeltaMirror, "listed", _lists_nothing)],
        ("typed",),
    ),
    Mutant(
        "what left Iceberg leaves Delta",
        "files that were written anew stay in Delta",
        [(follow, "changed", _only_what_comes)],
        ("typed",),
    ),
    Mutant(
        "a file has what its rows have in common",
        "a file has the partition values of other rows",
        [(splitting, "grouped", _others_values)],
        ARRANGED,
    ),
    Mutant(
        "a file has rows of one partition",
        "rows of several partitions are in one file",
        [(splitting, "grouped", _all_in_one)],
        ARRANGED,
    ),
    Mutant(
        "rows are sorted where a file says so",
        "rows are as they came, and the file says that they are sorted",
        [(splitting, "sort_keys", _unsorted)],
        ARRANGED,
    ),
    Mutant(
        "the first term of an order counts most",
        "the last one does",
        [(splitting, "sort_keys", _backwards)],
        ARRANGED,
    ),
    Mutant(
        "a merge is within a partition of the table",
        "files of several are merged into one",
        [(maintenance_plan, "_by_values", _side_by_side)],
        ARRANGED,
    ),
    Mutant(
        "keys have writers of their own",
        "a row has the number of its key's writer",
        [(typing.Typist, "_rows", _numbers_of_keys)],
        ("arranged", "judged"),
    ),
    Mutant(
        "what does not fit stops where it is to",
        "a topic goes on, whatever does not fit",
        [(typing.Typist, "_stop", _go_on)],
        ("judged",),
    ),
)
