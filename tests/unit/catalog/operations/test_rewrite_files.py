"""Rewrites: only live files are replaced, concurrent appends are kept, no files left after a failed commit."""

from collections.abc import Sequence

import pytest
from tests.harness.catalog.iceberg_tables import catalog_over
from tests.harness.catalog.topic_tables import entries_of, file_of, manifests_of, moved, offsets_in, topic_table, totals

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.errors import CommitStateUnknown, IncompatibleTable, Unsupported
from lakestream.catalog.manifests import avro_schemas as f
from lakestream.catalog.manifests.data_file import FileDescription
from lakestream.catalog.manifests.manifest import DELETED, read_entries
from lakestream.catalog.manifests.merge import FAN_IN, NAME_SUFFIX
from lakestream.catalog.operations.append import append
from lakestream.catalog.operations.live_files import LiveFileReader
from lakestream.catalog.operations.rewrite_files import FilesChanged, Rewrite, rewrite
from lakestream.catalog.table_metadata.updates import (
    RemoveProperties,
    SetProperties,
    SetSnapshotRef,
    UpgradeFormatVersion,
)
from lakestream.catalog.topic_table.live_file import LiveFile
from lakestream.catalog.topic_table.offsets import NEXT_OFFSETS, next_offsets
from lakestream.clock import SystemClock
from lakestream.errors import Conflict, Missing, Rejected, Unavailable, Uncertain
from lakestream.metadata.memory import MemoryMetadataStore as MetadataInMemory
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.store import Put, Stored
from lakestream.storage.memory import MemoryObjectStore


class LossyStore(MetadataInMemory):
    lose = False

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        lose, self.lose = self.lose, False
        return [Uncertain("no answer") for _ in puts] if lose else await super().put(puts)


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
    """A table with three files of one partition and one of another."""
    loaded = await topic_table(catalog)
    for start in (0, 10, 20):
        loaded = await added(catalog, loaded, 0, start, start + 10)
    return await added(catalog, loaded, 1, 0, 10)


async def added(catalog: Catalog, loaded: LoadedTable, partition: int, start: int, end: int) -> LoadedTable:
    file = file_of(loaded, partition, start, end)
    await catalog.objects.create(catalog.locations.key_of(file.location), [b"rows"])
    return await append(catalog, loaded, [file], moved((partition, start, end)))


async def live(catalog: Catalog, loaded: LoadedTable) -> list[LiveFile]:
    listing = await LiveFileReader(catalog.objects, catalog.locations).of_main(loaded.metadata)
    return sorted(listing.data, key=lambda file: (file.partition, file.offset_first or 0))


async def merged(catalog: Catalog, loaded: LoadedTable, start: int, end: int, name: str = "merged") -> Rewrite:
    removed = [
        one for one in await live(catalog, loaded) if one.partition == 0 and start <= (one.offset_first or 0) < end
    ]
    return Rewrite(operation="replace", removed=removed, files=[await stored(catalog, loaded, start, end, name)])


async def stored(catalog: Catalog, loaded: LoadedTable, start: int, end: int, name: str) -> FileDescription:
    file = file_of(loaded, 0, start, end, name)
    await catalog.objects.create(catalog.locations.key_of(file.location), [b"rows"])
    return file


async def keys(objects: MemoryObjectStore) -> set[str]:
    return {info.key async for page in objects.walk("tables") for info in page}


async def test_rewrite_replaces_files_and_keeps_the_others(catalog: Catalog, table: LoadedTable) -> None:
    before = await offsets_in(catalog, table.metadata)
    after = await rewrite(catalog, table, await merged(catalog, table, 0, 20))
    assert await offsets_in(catalog, after.metadata) == before
    assert len(await live(catalog, after)) == 3
    assert next_offsets(after.metadata) == {0: 30, 1: 10}
    summary = after.metadata["snapshots"][-1]["summary"]
    assert summary["operation"] == "replace"
    assert (summary["deleted-data-files"], summary["added-data-files"]) == ("2", "1")
    assert totals(after.metadata)[:2] == ["40", "3"]


async def test_deleted_entries_are_only_in_the_manifests_of_the_rewrite(catalog: Catalog, table: LoadedTable) -> None:
    after = await rewrite(catalog, table, await merged(catalog, table, 0, 30))
    deleted = []
    for manifest in await manifests_of(catalog, after.metadata):
        body = bytes(await catalog.objects.get(catalog.locations.key_of(manifest.manifest_path)))
        deleted += [entry for entry in read_entries(body, "") if entry[f.STATUS] == DELETED]
    newest = after.metadata["snapshots"][-1]["snapshot-id"]
    assert [entry[f.SNAPSHOT_ID] for entry in deleted] == [newest] * 3
    assert sorted(entry[f.SEQUENCE_NUMBER] for entry in deleted) == [1, 2, 3]
    after = await added(catalog, after, 0, 30, 40)
    assert sum(one.deleted_files_count for one in await manifests_of(catalog, after.metadata)) == 0


async def test_rewrite_keeps_concurrent_appends(catalog: Catalog, table: LoadedTable) -> None:
    change = await merged(catalog, table, 0, 30)
    now = await added(catalog, table, 0, 30, 40)
    after = await rewrite(catalog, table, change)
    assert await offsets_in(catalog, after.metadata) == await offsets_in(catalog, now.metadata)
    assert next_offsets(after.metadata) == {0: 40, 1: 10}
    assert after.metadata["snapshots"][-1]["summary"][NEXT_OFFSETS] == '{"0":40,"1":10}'


async def test_second_rewrite_of_the_same_files_fails_and_leaves_no_file(
    catalog: Catalog, table: LoadedTable, objects: MemoryObjectStore
) -> None:
    one, other = await merged(catalog, table, 0, 20, "one"), await merged(catalog, table, 10, 30, "other")
    after = await rewrite(catalog, table, one)
    there = await keys(objects)
    with pytest.raises(FilesChanged, match="rewritten or removed concurrently"):
        await rewrite(catalog, table, other)
    assert await keys(objects) == there - {catalog.locations.key_of(other.files[0].location)}
    assert set((await offsets_in(catalog, after.metadata)).values()) == {1}


async def test_rewrite_fails_after_a_concurrent_delete(catalog: Catalog, table: LoadedTable) -> None:
    known = await merged(catalog, table, 0, 20)
    with_deletes = await _with_delete_file(catalog, table)
    with pytest.raises(FilesChanged, match="deleted concurrently"):
        await rewrite(catalog, table, known)
    again = await merged(catalog, with_deletes, 0, 20, "again")
    listing = await LiveFileReader(catalog.objects, catalog.locations).of_main(with_deletes.metadata)
    (deletes,) = listing.deletes
    change = Rewrite(
        operation="replace",
        removed=again.removed,
        files=again.files,
        deletes_known=frozenset({deletes.location}),
        deletes_removed=frozenset({deletes.location}),
    )
    after = await rewrite(catalog, with_deletes, change)
    assert (await LiveFileReader(catalog.objects, catalog.locations).of_main(after.metadata)).deletes == ()


async def _with_delete_file(catalog: Catalog, loaded: LoadedTable) -> LoadedTable:
    """Commits a position delete file; only its manifest exists."""
    import msgspec

    from lakestream.catalog.manifests.manifest import EntryWriter, ManifestFile, write_list
    from lakestream.catalog.table_metadata.updates import AddSnapshot
    from lakestream.catalog.topic_table.checks import layout_of
    from lakestream.catalog.topic_table.offsets import main_of

    metadata = loaded.metadata
    layout = layout_of(metadata)
    writer = EntryWriter(layout)
    file = msgspec.structs.replace(file_of(loaded, 0, 0, 1), location=f"{metadata['location']}/data/deletes.parquet")

    class Deletes(EntryWriter):
        def _fields(self, file: FileDescription) -> dict[int, object]:
            return {**super()._fields(file), f.CONTENT: 1}

    body = writer.manifest([Deletes(layout).added(file, 77)])
    place = f"{metadata['location']}/metadata/deletes.avro"
    await catalog.objects.create(catalog.locations.key_of(place), [body])
    number = metadata["last-sequence-number"] + 1
    manifest = ManifestFile(
        manifest_path=place,
        manifest_length=len(body),
        partition_spec_id=0,
        content=1,
        sequence_number=number,
        min_sequence_number=number,
        added_snapshot_id=77,
        added_files_count=1,
        added_rows_count=1,
    )
    snapshot = {
        "snapshot-id": 77,
        "parent-snapshot-id": main_of(metadata),
        "sequence-number": number,
        "timestamp-ms": metadata["last-updated-ms"] + 1,
        "manifest-list": f"{metadata['location']}/metadata/snap-77.avro",
        "summary": {"operation": "delete"},
    }
    listed = [*await manifests_of(catalog, metadata), manifest]
    body = write_list(listed, snapshot, 2)
    await catalog.objects.create(catalog.locations.key_of(snapshot["manifest-list"]), [body])
    return await catalog.commit(loaded.table_id, [], [AddSnapshot(snapshot), SetSnapshotRef("main", "branch", 77)])


async def test_properties_are_computed_from_the_committed_metadata(catalog: Catalog, table: LoadedTable) -> None:
    change = await merged(catalog, table, 0, 20)
    await catalog.commit(table.table_id, [], [SetProperties({"count": "1"})])
    counted = Rewrite(
        operation="replace",
        removed=change.removed,
        files=change.files,
        properties_for=lambda metadata: {"count": metadata["properties"]["count"] + "+1"},
    )
    after = await rewrite(catalog, table, counted)
    assert after.metadata["properties"]["count"] == "1+1"


async def test_files_stay_when_the_rewrite_state_is_unknown(
    catalog: Catalog, table: LoadedTable, store: LossyStore, objects: MemoryObjectStore
) -> None:
    change = await merged(catalog, table, 0, 20)
    store.lose = True
    with pytest.raises(CommitStateUnknown):
        await rewrite(catalog, table, change)
    assert catalog.locations.key_of(change.files[0].location) in await keys(objects)
    after = await rewrite(catalog, await catalog.load_id(table.table_id), change)
    assert set((await offsets_in(catalog, after.metadata)).values()) == {1}


async def test_rewrite_is_rejected_when_rows_or_offsets_do_not_match(catalog: Catalog, table: LoadedTable) -> None:
    removed = (await live(catalog, table))[:2]
    for file in (
        await stored(catalog, table, 0, 19, "fewer"),
        await stored(catalog, table, 0, 30, "more"),
        file_of(table, 1, 0, 20, "elsewhere"),
        file_of(table, 0, 5, 25, "moved"),
    ):
        with pytest.raises(Rejected):
            await rewrite(catalog, table, Rewrite(operation="replace", removed=removed, files=[file]))


async def test_rewrite_fails_when_the_table_is_incompatible(catalog: Catalog, table: LoadedTable) -> None:
    change = await merged(catalog, table, 0, 20)
    back = await catalog.commit(
        table.table_id, [], [SetSnapshotRef("main", "branch", table.metadata["snapshots"][1]["snapshot-id"])]
    )
    with pytest.raises(IncompatibleTable):
        await rewrite(catalog, back, change)


async def test_rewrite_is_unsupported_in_format_version_3(catalog: Catalog, table: LoadedTable) -> None:
    change = await merged(catalog, table, 0, 20)
    newer = await catalog.commit(table.table_id, [], [UpgradeFormatVersion(3)])
    with pytest.raises(Unsupported, match="format version 3"):
        await rewrite(catalog, newer, change)


async def test_rewrite_succeeds_when_next_offsets_were_removed(catalog: Catalog, table: LoadedTable) -> None:
    bare = await catalog.commit(table.table_id, [], [RemoveProperties([NEXT_OFFSETS])])
    after = await rewrite(catalog, bare, await merged(catalog, bare, 0, 20))
    assert next_offsets(after.metadata) == {0: 30, 1: 10}


async def test_filtered_manifests_are_merged(catalog: Catalog) -> None:
    loaded = await topic_table(catalog)
    for start in range(0, 40):
        loaded = await added(catalog, loaded, 0, start, start + 1)
        if start % 4 == 3:
            loaded = await rewrite(catalog, loaded, await merged(catalog, loaded, start - 3, start + 1, f"m{start}"))
    listed = await manifests_of(catalog, loaded.metadata)
    assert len(listed) <= FAN_IN + 1
    assert all(one.manifest_path.endswith(NAME_SUFFIX) for one in listed)
    assert set((await offsets_in(catalog, loaded.metadata)).values()) == {1}
    assert len(await entries_of(catalog, loaded.metadata)) == 10


async def test_remaining_files_keep_their_sequence_numbers(catalog: Catalog) -> None:
    """Deletes apply by sequence number. Here the manifests were merged before one of their files was removed."""
    loaded = await topic_table(catalog)
    for start in range(FAN_IN + 2):
        loaded = await added(catalog, loaded, 0, start, start + 1)
    before = {file.location: file.sequence_number for file in await live(catalog, loaded)}
    assert len(set(before.values())) == FAN_IN + 2
    loaded = await rewrite(catalog, loaded, await merged(catalog, loaded, 3, 5))
    after = {file.location: file.sequence_number for file in await live(catalog, loaded)}
    assert {place: number for place, number in after.items() if place in before} == {
        place: number for place, number in before.items() if place in after
    }
    assert max(after.values()) == loaded.metadata["last-sequence-number"]
