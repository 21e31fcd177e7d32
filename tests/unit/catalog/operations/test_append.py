"""Appends: each range once, no files left after a failed commit, concurrent commits of engines."""

from collections.abc import Sequence

import pytest
from tests.harness.catalog.iceberg_tables import ROOT, catalog_over
from tests.harness.catalog.topic_tables import (
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

from lakestream.catalog.catalog import Catalog, CommitCheck, LoadedTable
from lakestream.catalog.errors import CommitFailed, CommitStateUnknown, IncompatibleTable, NoSuchTable
from lakestream.catalog.identifiers import TableName
from lakestream.catalog.manifests import avro_schemas as f
from lakestream.catalog.manifests.data_file import MovedRange
from lakestream.catalog.operations.append import append
from lakestream.catalog.table_metadata.requirements import Requirement
from lakestream.catalog.table_metadata.updates import (
    AddSchema,
    AddSnapshot,
    AddSpec,
    RemoveSnapshots,
    SetCurrentSchema,
    SetDefaultSpec,
    SetProperties,
    SetSnapshotRef,
    Update,
    UpgradeFormatVersion,
)
from lakestream.catalog.topic_table.offsets import LAST_COMMIT, NEXT_OFFSETS, next_offsets
from lakestream.clock import SystemClock
from lakestream.errors import Conflict, Missing, Rejected, Unavailable, Uncertain
from lakestream.metadata.memory import MemoryMetadataStore as MetadataInMemory
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.store import Put, Stored
from lakestream.storage.memory import MemoryObjectStore


class LossyStore(MetadataInMemory):
    """Loses the response of one put, before or after it took effect. Later reads may fail too."""

    lose = ""

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        lose, self.lose = self.lose, ""
        if lose == "before":
            return [Uncertain("no answer") for _ in puts]
        done = await super().put(puts)
        return [Uncertain("no answer") for _ in puts] if lose == "after" else done


@pytest.fixture
def objects() -> MemoryObjectStore:
    return MemoryObjectStore(SystemClock())


@pytest.fixture
async def store() -> LossyStore:
    return LossyStore(MemoryServer(SystemClock()))


@pytest.fixture
def catalog(store: LossyStore, objects: MemoryObjectStore) -> Catalog:
    return catalog_over(store, objects)


@pytest.fixture
async def table(catalog: Catalog) -> LoadedTable:
    return await topic_table(catalog)


async def add(catalog: Catalog, loaded: LoadedTable, *ranges: tuple[int, int, int], name: str = "a") -> LoadedTable:
    return await append(catalog, loaded, files_of(loaded, moved(*ranges), name), moved(*ranges))


async def commit_updates(catalog: Catalog, loaded: LoadedTable, *updates: Update) -> LoadedTable:
    return await catalog.commit(loaded.table_id, [], updates)


async def manifest_files(objects: MemoryObjectStore) -> list[str]:
    keys = [info.key async for page in objects.walk("") for info in page]
    return [key for key in keys if key.endswith(".avro")]


async def test_append_adds_rows_and_moves_next_offsets(catalog: Catalog, table: LoadedTable) -> None:
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


async def test_pointer_has_the_size_that_the_current_snapshot_states(catalog: Catalog, table: LoadedTable) -> None:
    assert await catalog.pointers.size_of(table.table_id) == (0, 0)
    first = await add(catalog, table, (0, 0, 10), (1, 0, 5))
    assert await catalog.pointers.size_of(table.table_id) == (1010 + 1005, 15)
    second = await commit_updates(catalog, first, SetProperties({"owner": "me"}))
    assert await catalog.pointers.size_of(table.table_id) == (1010 + 1005, 15)
    for text, size in (("77", 77), ("-1", 0), ("9" * 30, 0), ("much", 0)):
        engine = second.metadata["snapshots"][-1] | {
            "snapshot-id": 1000 + size + len(text),
            "sequence-number": second.metadata["last-sequence-number"] + 1,
            "parent-snapshot-id": second.metadata["current-snapshot-id"],
            "summary": {"operation": "overwrite", "total-files-size": text},
        }
        updates = AddSnapshot(engine), SetSnapshotRef("main", "branch", engine["snapshot-id"])
        second = await commit_updates(catalog, second, *updates)
        assert await catalog.pointers.size_of(table.table_id) == (size, 15)
    await catalog.drop(table.table_id)
    assert await catalog.pointers.size_of(table.table_id) == (0, 0)


async def test_manifest_entries_have_the_required_fields(catalog: Catalog, table: LoadedTable) -> None:
    loaded = await add(catalog, table, (1, 0, 5))
    (entry,) = await entries_of(catalog, loaded.metadata)
    assert entry[f.STATUS] == 1
    assert entry[f.SNAPSHOT_ID] == loaded.metadata["current-snapshot-id"]
    assert entry[f.SEQUENCE_NUMBER] is None, "inherited from the manifest"
    assert entry[f.DATA_FILE][f.PARTITION] == {1000: 1}
    assert entry[f.DATA_FILE][f.SORT_ORDER_ID] == 1
    (manifest,) = await manifests_of(catalog, loaded.metadata)
    assert (manifest.added_files_count, manifest.added_rows_count, manifest.sequence_number) == (1, 5, 1)
    assert manifest.partitions == [
        {f.CONTAINS_NULL: False, f.CONTAINS_NAN: None, f.LOWER_BOUND: b"\1\0\0\0", f.UPPER_BOUND: b"\1\0\0\0"}
    ]


async def test_adjacent_ranges_of_a_partition_are_appended(catalog: Catalog, table: LoadedTable) -> None:
    ranges = moved((0, 5, 9), (0, 0, 5))
    one = file_of(table, 0, 3, 7)  # a file may span several ranges
    loaded = await append(catalog, table, [one], ranges)
    assert next_offsets(loaded.metadata) == {0: 9}


async def test_range_without_records_adds_a_snapshot(catalog: Catalog, table: LoadedTable) -> None:
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
async def test_append_fails_when_a_range_does_not_start_at_the_next_offset(
    catalog: Catalog, table: LoadedTable, objects: MemoryObjectStore, ranges: tuple[tuple[int, int, int], ...]
) -> None:
    loaded = await add(catalog, table, (0, 0, 10))
    there = await manifest_files(objects)
    with pytest.raises(CommitFailed, match="do not follow"):
        await add(catalog, loaded, *ranges)
    assert await manifest_files(objects) == there


async def test_one_of_two_concurrent_appends_succeeds(
    catalog: Catalog, table: LoadedTable, objects: MemoryObjectStore
) -> None:
    won = await add(catalog, table, (0, 0, 10))
    there = await manifest_files(objects)
    with pytest.raises(CommitFailed):
        await add(catalog, table, (0, 0, 12), name="b")
    assert await manifest_files(objects) == there, "the manifests of the failed append are deleted"
    assert (await catalog.load_id(table.table_id)).metadata == won.metadata


async def test_append_succeeds_after_a_rewrite_by_an_engine(catalog: Catalog, table: LoadedTable) -> None:
    first = await add(catalog, table, (0, 0, 10))
    rewritten = await foreign_commit(catalog, first, 77)
    with pytest.raises(CommitFailed):
        await add(catalog, first, (0, 10, 20))
    second = await add(catalog, rewritten, (0, 10, 20))
    assert await offsets_in(catalog, second.metadata) == dict.fromkeys([(0, offset) for offset in range(20)], 1)
    assert "total-records" not in second.metadata["snapshots"][-1]["summary"], (
        "the rewrite has no total, so the append has none"
    )


async def test_append_succeeds_when_old_snapshots_were_expired(catalog: Catalog, table: LoadedTable) -> None:
    first = await add(catalog, table, (0, 0, 10))
    ours = first.metadata["current-snapshot-id"]
    rewritten = await foreign_commit(catalog, first, 77)
    expired = await commit_updates(catalog, rewritten, RemoveSnapshots([ours]))
    assert next_offsets(expired.metadata) == {0: 10}
    second = await add(catalog, expired, (0, 10, 20))
    assert next_offsets(second.metadata) == {0: 20}


async def test_append_fails_when_the_table_was_rolled_back(catalog: Catalog, table: LoadedTable) -> None:
    first = await add(catalog, table, (0, 0, 10))
    second = await add(catalog, first, (0, 10, 20))
    old, new = first.metadata["current-snapshot-id"], second.metadata["current-snapshot-id"]
    back = await commit_updates(catalog, second, SetSnapshotRef("main", "branch", old))
    accept = f"lakestream table accept-rollback orders --snapshot {old}"
    with pytest.raises(IncompatibleTable, match=f"set_current_snapshot to {new}.*{accept}"):
        await add(catalog, back, (0, 20, 30))
    later = await foreign_commit(catalog, back, 78)
    with pytest.raises(IncompatibleTable):
        next_offsets(later.metadata)
    forward = await commit_updates(catalog, later, SetSnapshotRef("main", "branch", new))
    assert next_offsets((await add(catalog, forward, (0, 20, 30))).metadata) == {0: 30}


async def test_append_succeeds_when_the_rollback_was_accepted(catalog: Catalog, table: LoadedTable) -> None:
    first = await add(catalog, table, (0, 0, 10))
    second = await add(catalog, first, (0, 10, 20))
    old = first.metadata["current-snapshot-id"]
    back = await commit_updates(catalog, second, SetSnapshotRef("main", "branch", old))
    accepted = await commit_updates(catalog, back, SetProperties({"lakestream.accept-rollback": str(old)}))
    third = await add(catalog, accepted, (0, 20, 30))
    assert next_offsets(third.metadata) == {0: 30}
    assert {offset for _, offset in await offsets_in(catalog, third.metadata)} == {*range(10), *range(20, 30)}
    again = await commit_updates(catalog, third, SetSnapshotRef("main", "branch", old))
    with pytest.raises(IncompatibleTable):
        next_offsets(
            (await commit_updates(catalog, again, SetProperties({"lakestream.accept-rollback": "1"}))).metadata
        )


async def test_append_fails_when_a_column_was_dropped_or_changed(catalog: Catalog, table: LoadedTable) -> None:
    (schema,) = table.metadata["schemas"]
    value, stream = schema["fields"]
    without = [one for one in stream["type"]["fields"] if one["name"] != "timestamp_type"]
    for fields, error in (
        ([stream], "column value was dropped"),
        ([value, {**stream, "type": {**stream["type"], "fields": without}}], "_stream.timestamp_type was dropped"),
        ([{**value, "type": "string"}, stream], "value was changed from binary to string"),
    ):
        changed = await commit_updates(catalog, table, AddSchema({**schema, "fields": fields}), SetCurrentSchema(-1))
        with pytest.raises(IncompatibleTable, match=error):
            await add(catalog, changed, (0, 0, 1))
        await commit_updates(catalog, changed, SetCurrentSchema(0))
    assert next_offsets((await add(catalog, table, (0, 0, 1))).metadata) == {0: 1}


async def test_append_fails_when_the_schema_changes_concurrently(catalog: Catalog, table: LoadedTable) -> None:
    (schema,) = table.metadata["schemas"]
    await commit_updates(catalog, table, AddSchema({**schema, "fields": schema["fields"][:1]}), SetDefaultSpec(0))
    renamed = {**schema, "fields": [{**schema["fields"][0], "name": "payload"}, schema["fields"][1]]}
    changed = await commit_updates(catalog, table, AddSchema(renamed), SetCurrentSchema(-1))
    with pytest.raises(CommitFailed, match="current schema id"):
        await add(catalog, table, (0, 0, 1))
    assert next_offsets((await add(catalog, changed, (0, 0, 1))).metadata) == {0: 1}, "names may change"


async def test_append_keeps_its_spec_when_an_engine_changes_the_default(catalog: Catalog, table: LoadedTable) -> None:
    spec = {"fields": [{"name": "day", "transform": "day", "source-id": 5}]}
    changed = await commit_updates(catalog, table, AddSpec(spec), SetDefaultSpec(-1))
    loaded = await add(catalog, changed, (0, 0, 10))
    (manifest,) = await manifests_of(catalog, loaded.metadata)
    assert manifest.partition_spec_id == 0


async def test_append_assigns_row_ids_in_format_version_3(catalog: Catalog, table: LoadedTable) -> None:
    first = await add(catalog, table, (0, 0, 10))
    upgraded = await commit_updates(catalog, first, UpgradeFormatVersion(3))
    second = await add(catalog, upgraded, (0, 10, 15))
    assert sorted(one.first_row_id or 0 for one in await manifests_of(catalog, second.metadata)) == [0, 5]
    assert second.metadata["next-row-id"] == 15, "the append assigned row ids to the existing manifests"
    third = await add(catalog, second, (0, 15, 17))
    assert sorted(one.first_row_id or 0 for one in await manifests_of(catalog, third.metadata)) == [0, 5, 15]
    assert third.metadata["next-row-id"] == 17


async def test_total_is_absent_when_the_parent_summary_has_no_number(catalog: Catalog, table: LoadedTable) -> None:
    loaded = await add(catalog, table, (0, 0, 10))
    parent = loaded.metadata["snapshots"][-1]
    foreign = {
        **parent,
        "snapshot-id": 77,
        "parent-snapshot-id": parent["snapshot-id"],
        "sequence-number": loaded.metadata["last-sequence-number"] + 1,
        "summary": {"operation": "append", "total-records": "9" * 5_000, "total-data-files": "1"},
    }
    loaded = await commit_updates(catalog, loaded, AddSnapshot(foreign), SetSnapshotRef("main", "branch", 77))
    loaded = await add(catalog, loaded, (0, 10, 20))
    summary = loaded.metadata["snapshots"][-1]["summary"]
    assert (summary.get("total-records"), summary["total-data-files"]) == (None, "2")


async def test_last_commit_with_too_many_digits_is_ignored(catalog: Catalog, table: LoadedTable) -> None:
    loaded = await add(catalog, table, (0, 0, 10))
    for text in ("9" * 5_000 + "/1", "1/" + "9" * 5_000):
        properties = {**loaded.metadata["properties"], LAST_COMMIT: text}
        assert next_offsets({**loaded.metadata, "properties": properties}) == {0: 10}


async def test_append_keeps_the_retention_of_main(catalog: Catalog, table: LoadedTable) -> None:
    first = await add(catalog, table, (0, 0, 10))
    head = first.metadata["current-snapshot-id"]
    kept = await commit_updates(catalog, first, SetSnapshotRef("main", "branch", head, 5, 1000))
    second = await add(catalog, kept, (0, 10, 20))
    assert (
        second.metadata["refs"]["main"] | {"min-snapshots-to-keep": 5, "max-snapshot-age-ms": 1000}
        == (second.metadata["refs"]["main"])
    )


# Lost responses


async def test_append_succeeds_when_the_response_was_lost(
    catalog: Catalog, store: LossyStore, table: LoadedTable
) -> None:
    store.lose = "after"
    loaded = await add(catalog, table, (0, 0, 10))
    assert next_offsets(loaded.metadata) == {0: 10}


async def test_files_stay_when_the_commit_state_is_unknown(
    catalog: Catalog, store: LossyStore, table: LoadedTable, objects: MemoryObjectStore
) -> None:
    store.lose = "before"
    with pytest.raises(CommitStateUnknown):
        await add(catalog, table, (0, 0, 10))
    assert len(await manifest_files(objects)) == 2
    assert next_offsets((await catalog.load_id(table.table_id)).metadata) == {}


class OvertakenCatalog(Catalog):
    """Two concurrent commits follow ours, and remove the old metadata log, before our lost response."""

    async def commit(
        self,
        table: TableName | str,
        requirements: Sequence[Requirement],
        updates: Sequence[Update],
        check: CommitCheck | None = None,
    ) -> LoadedTable:
        done = await super().commit(table, requirements, updates, check)
        if not self.overtakes:
            return done
        self.overtakes = False
        await foreign_commit(self, done, 77)
        raise CommitFailed("Requirement failed: main has changed")

    overtakes = False


async def test_append_succeeds_when_a_failed_commit_took_effect(store: LossyStore, objects: MemoryObjectStore) -> None:
    plain = catalog_over(store, objects)
    table = await topic_table(plain)
    catalog = OvertakenCatalog(store, objects, plain.locations, plain.clock, plain.ids)
    catalog.overtakes = True
    loaded = await add(catalog, table, (0, 0, 10))
    assert next_offsets(loaded.metadata) == {0: 10}
    assert len(await offsets_in(catalog, loaded.metadata)) == 10


async def test_append_fails_when_the_table_is_dropped_concurrently(
    catalog: Catalog, table: LoadedTable, objects: MemoryObjectStore
) -> None:
    await catalog.drop(table.table_id)
    with pytest.raises(NoSuchTable):
        await add(catalog, table, (0, 0, 10))
    assert await manifest_files(objects) == []


# Invalid files


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
async def test_append_is_rejected_when_files_do_not_match_ranges(
    catalog: Catalog, table: LoadedTable, files: list[tuple[int, int, int]], ranges: list[tuple[int, int, int]]
) -> None:
    with pytest.raises(Rejected):
        await append(catalog, table, [file_of(table, *one) for one in files], [MovedRange(*one) for one in ranges])
    assert ROOT in table.metadata["location"]
