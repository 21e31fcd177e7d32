"""Files give way to others only while they are there; appends are followed; what is refused leaves nothing behind."""

from collections.abc import Sequence

import pytest
from tests.unit.catalog.tables import catalog_over
from tests.unit.catalog.topic import entries_of, file_of, manifests_of, moved, offsets_in, topic_table, totals

from lakestream.catalog import manifest_schemas as f
from lakestream.catalog.append import append
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.data_files import FileDescription
from lakestream.catalog.errors import CommitUnknown, TableAltered, Unsupported
from lakestream.catalog.listing import Listings, LiveFile
from lakestream.catalog.manifests import DELETED, read_entries
from lakestream.catalog.merging import FAN_IN, NAME_END
from lakestream.catalog.next_offsets import NEXT_OFFSETS, next_offsets
from lakestream.catalog.rewrite import FilesChanged, Rewrite, rewrite
from lakestream.catalog.updates import RemoveProperties, SetProperties, SetSnapshotRef, UpgradeFormatVersion
from lakestream.clock import SystemClock
from lakestream.errors import Conflict, Missing, Rejected, Unavailable, Uncertain
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.memory import MemoryStore as MetadataInMemory
from lakestream.metadata.store import Put, Stored
from lakestream.storage.memory import MemoryStore


class Doubtful(MetadataInMemory):
    lose = False

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        lose, self.lose = self.lose, False
        return [Uncertain("no answer") for _ in puts] if lose else await super().put(puts)


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
    """Three files of one partition, and one of another."""
    loaded = await topic_table(catalog)
    for start in (0, 10, 20):
        loaded = await added(catalog, loaded, 0, start, start + 10)
    return await added(catalog, loaded, 1, 0, 10)


async def added(catalog: Catalog, loaded: LoadedTable, partition: int, start: int, end: int) -> LoadedTable:
    file = file_of(loaded, partition, start, end)
    await catalog.objects.create(catalog.locations.key_of(file.location), [b"rows"])
    return await append(catalog, loaded, [file], moved((partition, start, end)))


async def live(catalog: Catalog, loaded: LoadedTable) -> list[LiveFile]:
    listing = await Listings(catalog.objects, catalog.locations).of_main(loaded.metadata)
    return sorted(listing.data, key=lambda file: (file.partition, file.offset_first or 0))


async def merged(catalog: Catalog, loaded: LoadedTable, start: int, end: int, name: str = "merged") -> Rewrite:
    gone = [one for one in await live(catalog, loaded) if one.partition == 0 and start <= (one.offset_first or 0) < end]
    return Rewrite(operation="replace", gone=gone, files=[await stored(catalog, loaded, start, end, name)])


async def stored(catalog: Catalog, loaded: LoadedTable, start: int, end: int, name: str) -> FileDescription:
    file = file_of(loaded, 0, start, end, name)
    await catalog.objects.create(catalog.locations.key_of(file.location), [b"rows"])
    return file


async def keys(objects: MemoryStore) -> set[str]:
    return {info.key async for page in objects.walk("tables") for info in page}


async def test_files_become_one_and_the_rest_stays(catalog: Catalog, table: LoadedTable) -> None:
    before = await offsets_in(catalog, table.metadata)
    after = await rewrite(catalog, table, await merged(catalog, table, 0, 20))
    assert await offsets_in(catalog, after.metadata) == before
    assert len(await live(catalog, after)) == 3
    assert next_offsets(after.metadata) == {0: 30, 1: 10}
    summary = after.metadata["snapshots"][-1]["summary"]
    assert summary["operation"] == "replace"
    assert (summary["deleted-data-files"], summary["added-data-files"]) == ("2", "1")
    assert totals(after.metadata)[:2] == ["40", "3"]


async def test_what_was_taken_out_is_said_by_that_snapshot_and_not_by_the_next(
    catalog: Catalog, table: LoadedTable
) -> None:
    after = await rewrite(catalog, table, await merged(catalog, table, 0, 30))
    told = []
    for manifest in await manifests_of(catalog, after.metadata):
        body = bytes(await catalog.objects.get(catalog.locations.key_of(manifest.manifest_path)))
        told += [entry for entry in read_entries(body, "") if entry[f.STATUS] == DELETED]
    newest = after.metadata["snapshots"][-1]["snapshot-id"]
    assert [entry[f.SNAPSHOT_ID] for entry in told] == [newest] * 3
    assert sorted(entry[f.SEQUENCE_NUMBER] for entry in told) == [1, 2, 3]
    after = await added(catalog, after, 0, 30, 40)
    assert sum(one.deleted_files_count for one in await manifests_of(catalog, after.metadata)) == 0


async def test_what_was_appended_meanwhile_stays(catalog: Catalog, table: LoadedTable) -> None:
    change = await merged(catalog, table, 0, 30)
    now = await added(catalog, table, 0, 30, 40)
    after = await rewrite(catalog, table, change)
    assert await offsets_in(catalog, after.metadata) == await offsets_in(catalog, now.metadata)
    assert next_offsets(after.metadata) == {0: 40, 1: 10}
    assert after.metadata["snapshots"][-1]["summary"][NEXT_OFFSETS] == '{"0":40,"1":10}'


async def test_of_two_that_replace_the_same_one_is_refused_and_leaves_nothing(
    catalog: Catalog, table: LoadedTable, objects: MemoryStore
) -> None:
    one, other = await merged(catalog, table, 0, 20, "one"), await merged(catalog, table, 10, 30, "other")
    after = await rewrite(catalog, table, one)
    there = await keys(objects)
    with pytest.raises(FilesChanged, match="rewritten or removed by somebody else"):
        await rewrite(catalog, table, other)
    assert await keys(objects) == there - {catalog.locations.key_of(other.files[0].location)}
    assert set((await offsets_in(catalog, after.metadata)).values()) == {1}


async def test_a_delete_in_between_is_not_undone(catalog: Catalog, table: LoadedTable) -> None:
    known = await merged(catalog, table, 0, 20)
    with_deletes = await _with_delete_file(catalog, table)
    with pytest.raises(FilesChanged, match="deleted meanwhile"):
        await rewrite(catalog, table, known)
    again = await merged(catalog, with_deletes, 0, 20, "again")
    listing = await Listings(catalog.objects, catalog.locations).of_main(with_deletes.metadata)
    (deletes,) = listing.deletes
    change = Rewrite(
        operation="replace",
        gone=again.gone,
        files=again.files,
        deletes_known=frozenset({deletes.location}),
        deletes_gone=frozenset({deletes.location}),
    )
    after = await rewrite(catalog, with_deletes, change)
    assert (await Listings(catalog.objects, catalog.locations).of_main(after.metadata)).deletes == ()


async def _with_delete_file(catalog: Catalog, loaded: LoadedTable) -> LoadedTable:
    """A merge-on-read delete, as far as manifests tell of it."""
    import msgspec

    from lakestream.catalog.manifests import EntryWriter, ManifestFile, write_list
    from lakestream.catalog.next_offsets import main_of
    from lakestream.catalog.topic_shape import layout_of
    from lakestream.catalog.updates import AddSnapshot

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


async def test_properties_are_made_of_what_they_are_committed_to(catalog: Catalog, table: LoadedTable) -> None:
    change = await merged(catalog, table, 0, 20)
    await catalog.commit(table.table_id, [], [SetProperties({"count": "1"})])
    counted = Rewrite(
        operation="replace",
        gone=change.gone,
        files=change.files,
        properties_for=lambda metadata: {"count": metadata["properties"]["count"] + "+1"},
    )
    after = await rewrite(catalog, table, counted)
    assert after.metadata["properties"]["count"] == "1+1"


async def test_an_unknown_outcome_leaves_everything_where_it_is(
    catalog: Catalog, table: LoadedTable, store: Doubtful, objects: MemoryStore
) -> None:
    change = await merged(catalog, table, 0, 20)
    store.lose = True
    with pytest.raises(CommitUnknown):
        await rewrite(catalog, table, change)
    assert catalog.locations.key_of(change.files[0].location) in await keys(objects)
    after = await rewrite(catalog, await catalog.load_id(table.table_id), change)
    assert set((await offsets_in(catalog, after.metadata)).values()) == {1}


async def test_rows_do_not_become_more_and_do_not_move(catalog: Catalog, table: LoadedTable) -> None:
    gone = (await live(catalog, table))[:2]
    for file in (
        await stored(catalog, table, 0, 19, "fewer"),
        await stored(catalog, table, 0, 30, "more"),
        file_of(table, 1, 0, 20, "elsewhere"),
        file_of(table, 0, 5, 25, "moved"),
    ):
        with pytest.raises(Rejected):
            await rewrite(catalog, table, Rewrite(operation="replace", gone=gone, files=[file]))


async def test_a_table_that_a_person_has_to_look_at_first_is_left_alone(catalog: Catalog, table: LoadedTable) -> None:
    change = await merged(catalog, table, 0, 20)
    back = await catalog.commit(
        table.table_id, [], [SetSnapshotRef("main", "branch", table.metadata["snapshots"][1]["snapshot-id"])]
    )
    with pytest.raises(TableAltered):
        await rewrite(catalog, back, change)


async def test_rows_with_ids_stay_where_they_are(catalog: Catalog, table: LoadedTable) -> None:
    change = await merged(catalog, table, 0, 20)
    newer = await catalog.commit(table.table_id, [], [UpgradeFormatVersion(3)])
    with pytest.raises(Unsupported, match="format v3"):
        await rewrite(catalog, newer, change)


async def test_a_property_that_was_removed_is_still_known(catalog: Catalog, table: LoadedTable) -> None:
    bare = await catalog.commit(table.table_id, [], [RemoveProperties([NEXT_OFFSETS])])
    after = await rewrite(catalog, bare, await merged(catalog, bare, 0, 20))
    assert next_offsets(after.metadata) == {0: 30, 1: 10}


async def test_manifests_that_lost_files_are_merged_like_others(catalog: Catalog) -> None:
    loaded = await topic_table(catalog)
    for start in range(0, 40):
        loaded = await added(catalog, loaded, 0, start, start + 1)
        if start % 4 == 3:
            loaded = await rewrite(catalog, loaded, await merged(catalog, loaded, start - 3, start + 1, f"m{start}"))
    listed = await manifests_of(catalog, loaded.metadata)
    assert len(listed) <= FAN_IN + 1
    assert all(one.manifest_path.endswith(NAME_END) for one in listed)
    assert set((await offsets_in(catalog, loaded.metadata)).values()) == {1}
    assert len(await entries_of(catalog, loaded.metadata)) == 10


async def test_files_keep_the_numbers_of_the_commits_that_brought_them(catalog: Catalog) -> None:
    """Deletes go by them. Here they stand in manifests that were merged before one of their files was taken out."""
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
