"""A range enters the table once; what is refused leaves nothing behind; what others do in between is followed."""

from collections.abc import Sequence

import pytest
from tests.unit.catalog.tables import ROOT, catalog_over
from tests.unit.catalog.topic import (
    entries_of,
    file_of,
    files_of,
    foreign_commit,
    manifests_of,
    moved,
    offsets_in,
    topic_table,
    totals,
)

from lakestream.catalog import manifest_schemas as f
from lakestream.catalog.append import append
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.data_files import MovedRange
from lakestream.catalog.errors import CommitRefused, CommitUnknown, NoSuchTable, TableAltered
from lakestream.catalog.names import TableName
from lakestream.catalog.next_offsets import NEXT_OFFSETS, next_offsets
from lakestream.catalog.requirements import Requirement
from lakestream.catalog.updates import (
    AddSchema,
    AddSpec,
    RemoveSnapshots,
    SetCurrentSchema,
    SetDefaultSpec,
    SetProperties,
    SetSnapshotRef,
    Update,
    UpgradeFormatVersion,
)
from lakestream.clock import SystemClock
from lakestream.errors import Conflict, Missing, Rejected, Unavailable, Uncertain
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.memory import MemoryStore as MetadataInMemory
from lakestream.metadata.store import Put, Stored
from lakestream.storage.memory import MemoryStore


class Doubtful(MetadataInMemory):
    """The answer of one put is lost, before or after it took effect; then it may fail to say how things stand."""

    lose = ""

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        lose, self.lose = self.lose, ""
        if lose == "before":
            return [Uncertain("no answer") for _ in puts]
        done = await super().put(puts)
        return [Uncertain("no answer") for _ in puts] if lose == "after" else done


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore(SystemClock())


@pytest.fixture
async def store() -> Doubtful:
    return Doubtful(MemoryServer(SystemClock()))


@pytest.fixture
def catalog(store: Doubtful, objects: MemoryStore) -> Catalog:
    return catalog_over(store, objects)


@pytest.fixture
async def table(catalog: Catalog) -> LoadedTable:
    return await topic_table(catalog)


async def add(catalog: Catalog, loaded: LoadedTable, *ranges: tuple[int, int, int], name: str = "a") -> LoadedTable:
    return await append(catalog, loaded, files_of(loaded, moved(*ranges), name), moved(*ranges))


async def altered(catalog: Catalog, loaded: LoadedTable, *updates: Update) -> LoadedTable:
    return await catalog.commit(loaded.table_id, [], updates)


async def manifest_files(objects: MemoryStore) -> list[str]:
    keys = [info.key async for page in objects.walk("") for info in page]
    return [key for key in keys if key.endswith(".avro")]


async def test_a_range_enters_the_table(catalog: Catalog, table: LoadedTable) -> None:
    assert next_offsets(table.metadata) == {}
    first = await add(catalog, table, (0, 0, 10), (1, 0, 5))
    second = await add(catalog, first, (1, 5, 6))
    assert next_offsets(second.metadata) == {0: 10, 1: 6}
    assert await offsets_in(catalog, second.metadata) == dict.fromkeys(
        [(0, offset) for offset in range(10)] + [(1, offset) for offset in range(6)], 1
    )
    assert totals(second.metadata) == ["16", "3", str(1010 + 1005 + 1001)]
    newest = second.metadata["snapshots"][-1]
    assert (
        newest["summary"] | {"operation": "append", "added-data-files": "1", "added-records": "1"}
        == (newest["summary"])
    )
    assert newest["summary"][NEXT_OFFSETS] == second.metadata["properties"][NEXT_OFFSETS] == '{"0":10,"1":6}'
    assert newest["parent-snapshot-id"] == first.metadata["current-snapshot-id"]


async def test_entries_say_what_iceberg_wants_to_know(catalog: Catalog, table: LoadedTable) -> None:
    loaded = await add(catalog, table, (1, 0, 5))
    (entry,) = await entries_of(catalog, loaded.metadata)
    assert entry[f.STATUS] == 1
    assert entry[f.SNAPSHOT_ID] == loaded.metadata["current-snapshot-id"]
    assert entry[f.SEQUENCE_NUMBER] is None, "it inherits that of its manifest"
    assert entry[f.DATA_FILE][f.PARTITION] == {1000: 1}
    assert entry[f.DATA_FILE][f.SORT_ORDER_ID] == 1
    (manifest,) = await manifests_of(catalog, loaded.metadata)
    assert (manifest.added_files_count, manifest.added_rows_count, manifest.sequence_number) == (1, 5, 1)
    assert manifest.partitions == [
        {f.CONTAINS_NULL: False, f.CONTAINS_NAN: None, f.LOWER_BOUND: b"\1\0\0\0", f.UPPER_BOUND: b"\1\0\0\0"}
    ]


async def test_several_ranges_of_a_partition_may_follow_each_other(catalog: Catalog, table: LoadedTable) -> None:
    ranges = moved((0, 5, 9), (0, 0, 5))
    one = file_of(table, 0, 3, 7)  # a file need not end where a range does
    loaded = await append(catalog, table, [one], ranges)
    assert next_offsets(loaded.metadata) == {0: 9}


async def test_a_range_without_records_is_a_snapshot_too(catalog: Catalog, table: LoadedTable) -> None:
    first = await append(catalog, table, [], moved((0, 0, 7)))
    assert next_offsets(first.metadata) == {0: 7}
    assert await manifests_of(catalog, first.metadata) == []
    second = await add(catalog, first, (0, 7, 8))
    third = await append(catalog, second, [], moved((0, 8, 9)))
    assert next_offsets(third.metadata) == {0: 9}
    assert len(await manifests_of(catalog, third.metadata)) == 1
    assert len(third.metadata["snapshots"]) == 3


@pytest.mark.parametrize(
    "ranges", [((0, 9, 12),), ((0, 11, 12),), ((0, 10, 11), (1, 1, 2)), ((0, 10, 12), (0, 13, 14))]
)
async def test_what_does_not_follow_is_refused(
    catalog: Catalog, table: LoadedTable, objects: MemoryStore, ranges: tuple[tuple[int, int, int], ...]
) -> None:
    loaded = await add(catalog, table, (0, 0, 10))
    there = await manifest_files(objects)
    with pytest.raises(CommitRefused, match="do not follow"):
        await add(catalog, loaded, *ranges)
    assert await manifest_files(objects) == there


async def test_of_two_who_saw_the_same_table_one_wins(
    catalog: Catalog, table: LoadedTable, objects: MemoryStore
) -> None:
    won = await add(catalog, table, (0, 0, 10))
    there = await manifest_files(objects)
    with pytest.raises(CommitRefused):
        await add(catalog, table, (0, 0, 12), name="b")
    assert await manifest_files(objects) == there, "the loser's manifests are gone"
    assert (await catalog.load_id(table.table_id)).metadata == won.metadata


async def test_a_foreign_rewrite_in_between_is_followed(catalog: Catalog, table: LoadedTable) -> None:
    first = await add(catalog, table, (0, 0, 10))
    rewritten = await foreign_commit(catalog, first, 77)
    with pytest.raises(CommitRefused):
        await add(catalog, first, (0, 10, 20))
    second = await add(catalog, rewritten, (0, 10, 20))
    assert await offsets_in(catalog, second.metadata) == dict.fromkeys([(0, offset) for offset in range(20)], 1)
    assert "total-records" not in second.metadata["snapshots"][-1]["summary"], "the rewrite did not say, so we cannot"


async def test_expired_snapshots_change_nothing(catalog: Catalog, table: LoadedTable) -> None:
    first = await add(catalog, table, (0, 0, 10))
    ours = first.metadata["current-snapshot-id"]
    rewritten = await foreign_commit(catalog, first, 77)
    expired = await altered(catalog, rewritten, RemoveSnapshots([ours]))
    assert next_offsets(expired.metadata) == {0: 10}
    second = await add(catalog, expired, (0, 10, 20))
    assert next_offsets(second.metadata) == {0: 20}


async def test_a_table_that_was_rolled_back_stops(catalog: Catalog, table: LoadedTable) -> None:
    first = await add(catalog, table, (0, 0, 10))
    second = await add(catalog, first, (0, 10, 20))
    old, new = first.metadata["current-snapshot-id"], second.metadata["current-snapshot-id"]
    back = await altered(catalog, second, SetSnapshotRef("main", "branch", old))
    with pytest.raises(TableAltered, match=f"set_current_snapshot to {new}.*'lakestream.accept-rollback' = '{old}'"):
        await add(catalog, back, (0, 20, 30))
    later = await foreign_commit(catalog, back, 78)
    with pytest.raises(TableAltered):
        next_offsets(later.metadata)
    forward = await altered(catalog, later, SetSnapshotRef("main", "branch", new))
    assert next_offsets((await add(catalog, forward, (0, 20, 30))).metadata) == {0: 30}


async def test_the_loss_of_a_rollback_can_be_accepted(catalog: Catalog, table: LoadedTable) -> None:
    first = await add(catalog, table, (0, 0, 10))
    second = await add(catalog, first, (0, 10, 20))
    old = first.metadata["current-snapshot-id"]
    back = await altered(catalog, second, SetSnapshotRef("main", "branch", old))
    accepted = await altered(catalog, back, SetProperties({"lakestream.accept-rollback": str(old)}))
    third = await add(catalog, accepted, (0, 20, 30))
    assert next_offsets(third.metadata) == {0: 30}
    assert {offset for _, offset in await offsets_in(catalog, third.metadata)} == {*range(10), *range(20, 30)}
    again = await altered(catalog, third, SetSnapshotRef("main", "branch", old))
    with pytest.raises(TableAltered):
        next_offsets((await altered(catalog, again, SetProperties({"lakestream.accept-rollback": "1"}))).metadata)


async def test_a_column_that_was_dropped_or_changed_stops(catalog: Catalog, table: LoadedTable) -> None:
    (schema,) = table.metadata["schemas"]
    value, stream = schema["fields"]
    without = [one for one in stream["type"]["fields"] if one["name"] != "timestamp_type"]
    for fields, told in (
        ([stream], "column value was dropped"),
        ([value, {**stream, "type": {**stream["type"], "fields": without}}], "_stream.timestamp_type was dropped"),
        ([{**value, "type": "string"}, stream], "value is string now, not binary"),
    ):
        changed = await altered(catalog, table, AddSchema({**schema, "fields": fields}), SetCurrentSchema(-1))
        with pytest.raises(TableAltered, match=told):
            await add(catalog, changed, (0, 0, 1))
        await altered(catalog, changed, SetCurrentSchema(0))
    assert next_offsets((await add(catalog, table, (0, 0, 1))).metadata) == {0: 1}


async def test_a_schema_that_changes_under_a_commit_is_looked_at_first(catalog: Catalog, table: LoadedTable) -> None:
    (schema,) = table.metadata["schemas"]
    await altered(catalog, table, AddSchema({**schema, "fields": schema["fields"][:1]}), SetDefaultSpec(0))
    renamed = {**schema, "fields": [{**schema["fields"][0], "name": "payload"}, schema["fields"][1]]}
    changed = await altered(catalog, table, AddSchema(renamed), SetCurrentSchema(-1))
    with pytest.raises(CommitRefused, match="current schema id"):
        await add(catalog, table, (0, 0, 1))
    assert next_offsets((await add(catalog, changed, (0, 0, 1))).metadata) == {0: 1}, "names may change"


async def test_a_table_partitioned_in_another_way_gets_files_by_partition_still(
    catalog: Catalog, table: LoadedTable
) -> None:
    spec = {"fields": [{"name": "day", "transform": "day", "source-id": 5}]}
    changed = await altered(catalog, table, AddSpec(spec), SetDefaultSpec(-1))
    loaded = await add(catalog, changed, (0, 0, 10))
    (manifest,) = await manifests_of(catalog, loaded.metadata)
    assert manifest.partition_spec_id == 0


async def test_format_version_3_numbers_its_rows(catalog: Catalog, table: LoadedTable) -> None:
    first = await add(catalog, table, (0, 0, 10))
    upgraded = await altered(catalog, first, UpgradeFormatVersion(3))
    second = await add(catalog, upgraded, (0, 10, 15))
    assert sorted(one.first_row_id or 0 for one in await manifests_of(catalog, second.metadata)) == [0, 5]
    assert second.metadata["next-row-id"] == 15, "those that were there before the upgrade got theirs now"
    third = await add(catalog, second, (0, 15, 17))
    assert sorted(one.first_row_id or 0 for one in await manifests_of(catalog, third.metadata)) == [0, 5, 15]
    assert third.metadata["next-row-id"] == 17


async def test_what_becomes_of_main_is_kept(catalog: Catalog, table: LoadedTable) -> None:
    first = await add(catalog, table, (0, 0, 10))
    head = first.metadata["current-snapshot-id"]
    kept = await altered(catalog, first, SetSnapshotRef("main", "branch", head, 5, 1000))
    second = await add(catalog, kept, (0, 10, 20))
    assert (
        second.metadata["refs"]["main"] | {"min-snapshots-to-keep": 5, "max-snapshot-age-ms": 1000}
        == (second.metadata["refs"]["main"])
    )


# Answers that are lost


async def test_a_commit_whose_answer_was_lost_was_made(catalog: Catalog, store: Doubtful, table: LoadedTable) -> None:
    store.lose = "after"
    loaded = await add(catalog, table, (0, 0, 10))
    assert next_offsets(loaded.metadata) == {0: 10}


async def test_after_an_unknown_outcome_everything_stays(
    catalog: Catalog, store: Doubtful, table: LoadedTable, objects: MemoryStore
) -> None:
    store.lose = "before"
    with pytest.raises(CommitUnknown):
        await add(catalog, table, (0, 0, 10))
    assert len(await manifest_files(objects)) == 2
    assert next_offsets((await catalog.load_id(table.table_id)).metadata) == {}


class Overtaken(Catalog):
    """Others commit twice, and forget what was before, between our commit and its lost answer."""

    async def commit(
        self, table: TableName | str, requirements: Sequence[Requirement], updates: Sequence[Update]
    ) -> LoadedTable:
        done = await super().commit(table, requirements, updates)
        if not self.overtakes:
            return done
        self.overtakes = False
        await foreign_commit(self, done, 77)
        raise CommitRefused("requirement failed: main has changed")

    overtakes = False


async def test_a_refusal_of_what_was_made_after_all_is_not_believed(store: Doubtful, objects: MemoryStore) -> None:
    plain = catalog_over(store, objects)
    table = await topic_table(plain)
    catalog = Overtaken(store, objects, plain.locations, plain.clock, plain.ids)
    catalog.overtakes = True
    loaded = await add(catalog, table, (0, 0, 10))
    assert next_offsets(loaded.metadata) == {0: 10}
    assert len(await offsets_in(catalog, loaded.metadata)) == 10


async def test_a_table_that_was_dropped_under_a_commit(
    catalog: Catalog, table: LoadedTable, objects: MemoryStore
) -> None:
    await catalog.drop(table.table_id)
    with pytest.raises(NoSuchTable):
        await add(catalog, table, (0, 0, 10))
    assert await manifest_files(objects) == []


# What must never reach a table


@pytest.mark.parametrize(
    ("files", "ranges"),
    [
        ([(0, 0, 11)], [(0, 0, 10)]),
        ([(1, 0, 10)], [(0, 0, 10)]),
        ([(0, 0, 6), (0, 5, 10)], [(0, 0, 10)]),
        ([(0, 0, 5), (0, 0, 5)], [(0, 0, 10)]),
        ([], [(0, 10, 10)]),
        ([], [(0, -1, 10)]),
    ],
)
async def test_files_that_do_not_fit_their_ranges(
    catalog: Catalog, table: LoadedTable, files: list[tuple[int, int, int]], ranges: list[tuple[int, int, int]]
) -> None:
    with pytest.raises(Rejected):
        await append(catalog, table, [file_of(table, *one) for one in files], [MovedRange(*one) for one in ranges])
    assert ROOT in table.metadata["location"]
