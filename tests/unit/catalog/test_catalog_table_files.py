"""A table may name, and maintenance may delete, only files under the table's own location."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.harness.catalog.iceberg_tables import LOCATION, NAME, ROOT, SCHEMA, AcceptAll, append, catalog_over, snapshot
from tests.harness.catalog.topic_tables import TOPIC_ID, file_of, files_of, manifests_of, moved, topic_table

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.commit_checks import added_files
from lakestream.catalog.errors import Unsupported
from lakestream.catalog.identifiers import TableName
from lakestream.catalog.manifests import avro_file
from lakestream.catalog.manifests import avro_schemas as f
from lakestream.catalog.manifests.avro_codec import writer
from lakestream.catalog.manifests.avro_file import read_file, write_file
from lakestream.catalog.manifests.manifest import ManifestFile, write_list
from lakestream.catalog.manifests.remove_files import remove_files
from lakestream.catalog.operations import append as appending
from lakestream.catalog.operations.expire_snapshots import ExpirySettings, expire
from lakestream.catalog.operations.live_files import LiveFileReader
from lakestream.catalog.operations.manifest_writer import manifest_body, manifest_file
from lakestream.catalog.operations.remove_orphan_files import OrphanSettings, remove_orphans
from lakestream.catalog.purge import PurgeTask
from lakestream.catalog.staged_creates import STAGED_MS, StagedTables
from lakestream.catalog.table_metadata import updates as u
from lakestream.catalog.table_metadata.builder import NewTable
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.table_metadata.requirements import AssertCreate
from lakestream.catalog.topic_table.checks import layout_of
from lakestream.catalog.topic_table.columns import OFFSET_ID
from lakestream.catalog.topic_table.offsets import main_of
from lakestream.clock import SystemClock
from lakestream.errors import Corrupt, Rejected
from lakestream.metadata.memory import MemoryServer
from lakestream.model import Buffer
from lakestream.storage.memory import MemoryObjectStore

OTHER = TableName(("default",), "other")
AT_ONCE = ExpirySettings(age_ms=1, grace_ms=0)
VICTIM = f"{ROOT}/tables/default/victim-1/data/f.parquet"
FOREIGN = [
    VICTIM,
    f"{ROOT}/wal/2/a.wal",
    f"{ROOT}/other/report.csv",
    f"{LOCATION}-other/data/f.parquet",
    f"{LOCATION}/data/../../victim/f.parquet",
    f"{LOCATION}//data/f.parquet",
    f"{LOCATION}/data/_delta_log/00000000000000000000.json",
    f"{LOCATION}/data/_DELTA_LOG/00000000000000000000.json",
    LOCATION,
    "s3://elsewhere/data/tables/t/data/f.parquet",
    "/data/tables/t/data/f.parquet",
    "",
]


@pytest.fixture
def objects() -> MemoryObjectStore:
    return MemoryObjectStore(SystemClock())


@pytest.fixture
async def catalog(objects: MemoryObjectStore) -> Catalog:
    catalog = catalog_over(MemoryServer(SystemClock()).client(), objects)
    await catalog.start()
    return catalog


def later_ms(catalog: Catalog) -> int:
    """Returns a time at which snapshots of now may expire."""
    return catalog.clock.now_ms() + 2 * 60 * 60 * 1000


async def keys_in(objects: MemoryObjectStore, folder: str = "") -> set[str]:
    return {info.key async for page in objects.walk(folder) for info in page}


def statistics(path: object, snapshot_id: int = 1) -> u.SetStatistics:
    return u.SetStatistics({"snapshot-id": snapshot_id, "statistics-path": path, "blob-metadata": []})


def partition_statistics(path: object, snapshot_id: int = 1) -> u.SetPartitionStatistics:
    return u.SetPartitionStatistics({"snapshot-id": snapshot_id, "statistics-path": path, "file-size-in-bytes": 1})


# ── paths in metadata ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", FOREIGN)
async def test_commit_is_rejected_when_it_names_a_file_elsewhere(
    catalog: Catalog, objects: MemoryObjectStore, path: str
) -> None:
    await catalog.create(NAME, NewTable(SCHEMA, location=LOCATION))
    before = await keys_in(objects)
    changes: list[u.Update] = [statistics(path), partition_statistics(path)]
    if path:
        changes.append(u.AddSnapshot({**snapshot(1, 1), "manifest-list": path}))
    for change in changes:
        with pytest.raises(Rejected) as refused:
            await catalog.commit(NAME, [], [change])
        assert path in str(refused.value)
        assert LOCATION in str(refused.value)
    assert await keys_in(objects) == before


@pytest.mark.parametrize("path", [None, 7, ["x"], {}])
async def test_commit_is_rejected_when_a_path_is_not_a_string(catalog: Catalog, path: object) -> None:
    await catalog.create(NAME, NewTable(SCHEMA, location=LOCATION))
    with pytest.raises(Rejected, match="not a file path"):
        await catalog.commit(NAME, [], [statistics(path)])


async def test_own_files_are_accepted_in_every_spelling(catalog: Catalog) -> None:
    await catalog.create(NAME, NewTable(SCHEMA, location=LOCATION))
    await catalog.commit(NAME, [], [*append(1, 1), statistics(f"{LOCATION}/metadata/a.puffin")])
    done = await catalog.commit(NAME, [], [statistics(f"{LOCATION}/b.puffin".replace("s3://", "S3A://"))])
    assert len(done.metadata["statistics"]) == 1


@pytest.mark.parametrize(
    "name", ["write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path"]
)
async def test_folders_for_files_are_checked_when_they_are_set(catalog: Catalog, name: str) -> None:
    for place in (f"{ROOT}/wal", f"{LOCATION}-other", f"{ROOT}/tables", "s3://elsewhere/x", f"{LOCATION}/../x", "x"):
        with pytest.raises(Rejected, match=name):
            await catalog.create(NAME, NewTable(SCHEMA, location=LOCATION, properties={name: place}))
    await catalog.create(NAME, NewTable(SCHEMA, location=LOCATION, properties={name: f"{LOCATION}/deep/er/"}))
    for place in (f"{ROOT}/tables/default/victim-1", f"{LOCATION}/data/_delta_log"):
        with pytest.raises(Rejected, match=name):
            await catalog.commit(NAME, [], [u.SetProperties({name: place})])
    changed = await catalog.commit(NAME, [], [u.SetProperties({name: LOCATION})])
    assert changed.metadata["properties"][name] == LOCATION


async def test_folder_property_is_rejected_when_it_is_too_long(catalog: Catalog) -> None:
    loaded = await topic_table(catalog)
    own: str = loaded.metadata["location"]

    def folder(size: int) -> str:
        left = size - len(catalog.locations.key_of(own))
        return own + "".join("/" + "p" * (min(200, left - at) - 1) for at in range(0, left, 200))

    for number, size in enumerate((772, 773)):
        path = folder(size)
        assert len(catalog.locations.key_of(path)) == size
        change = u.SetProperties({"write.metadata.path": path})
        if number:
            with pytest.raises(Rejected, match=r"property write.metadata.path: .* has 773 bytes .*, more than 772"):
                await catalog.commit(TOPIC_ID, [], [change])
        else:
            loaded = await catalog.commit(TOPIC_ID, [], [change])
    ranges = moved((0, 0, 5))
    assert (await appending.append(catalog, loaded, files_of(loaded, ranges), ranges)).metadata["snapshots"]


async def test_invalid_folder_property_can_be_removed(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    await catalog.create(NAME, NewTable(SCHEMA, location=LOCATION))
    await forced(catalog, NAME, [u.SetProperties({"write.data.path": f"{ROOT}/elsewhere"})], monkeypatch)
    await catalog.commit(NAME, [], [u.SetProperties({"a": "b"})])  # set by an earlier commit
    done = await catalog.commit(NAME, [], [u.RemoveProperties(["write.data.path"])])
    assert done.metadata["properties"] == {"a": "b"}


async def forced(
    catalog: Catalog, table: TableName | str, updates: Sequence[u.Update], monkeypatch: pytest.MonkeyPatch
) -> LoadedTable:
    """Commits without the check, as older versions did."""

    async def unchecked(*_: object, **__: object) -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "_check_files", unchecked)
        return await catalog.commit(table, [], updates)


# ── paths in manifests ──────────────────────────────────────────────────────────────────────────────────────────


class Engine:
    """Writes manifests and manifest lists to a topic's table as an engine does."""

    def __init__(self, catalog: Catalog, loaded: LoadedTable) -> None:
        self.catalog = catalog
        self.loaded = loaded
        self.location: str = loaded.metadata["location"]
        self._number = 100

    async def store(self, location: str, body: bytes) -> str:
        await self.catalog.objects.put(self.catalog.locations.key_of(location), [body])
        return location

    async def get(self, location: str) -> Buffer:
        return await self.catalog.objects.get(self.catalog.locations.key_of(location))

    async def manifest(self, path: str, location: str = "") -> ManifestFile:
        """Stores a manifest with one file at `path`."""
        self._number += 1
        layout = layout_of(self.loaded.metadata)
        file = msgspec.structs.replace(file_of(self.loaded, 0, 0, 10), location=path)
        body = manifest_body(layout, [file], self._number)
        place = await self.store(location or f"{self.location}/metadata/m{self._number}.avro", body)
        return manifest_file(layout, [file], place, len(body), self._number, 1)

    async def snapshot(
        self, manifests: Sequence[ManifestFile], parent: Json | None = None, **more: Any
    ) -> list[u.Update]:
        """Returns the updates of a commit to main, after main in `parent`."""
        self._number += 1
        made = snapshot(
            self._number,
            1 if parent is None else parent["last-sequence-number"] + 1,
            None if parent is None else main_of(parent),
            at_ms=self.catalog.clock.now_ms(),
            location=self.location,
        )
        await self.store(made["manifest-list"], write_list(manifests, made, 2))
        return [u.AddSnapshot(made | more), u.SetSnapshotRef("main", "branch", self._number)]

    async def listed(self, metadata: Json) -> list[ManifestFile]:
        return await manifests_of(self.catalog, metadata)

    def data(self, name: str) -> str:
        return f"{self.location}/data/{name}.parquet"


@pytest.fixture
async def engine(catalog: Catalog) -> Engine:
    return Engine(catalog, await topic_table(catalog))


async def commit(engine: Engine, updates: Sequence[u.Update]) -> LoadedTable:
    return await engine.catalog.commit(TOPIC_ID, [], updates, AcceptAll())


@pytest.mark.parametrize("path", FOREIGN)
async def test_commit_is_rejected_when_a_manifest_names_a_file_elsewhere(
    catalog: Catalog, objects: MemoryObjectStore, engine: Engine, path: str
) -> None:
    path = path.replace(LOCATION, engine.location)
    for content in (0, 1):  # data; deletes
        good, bad = await engine.manifest(engine.data("good")), await engine.manifest(path)
        bad = msgspec.structs.replace(bad, content=content)
        before = await keys_in(objects)
        with pytest.raises(Rejected) as refused:
            await commit(engine, await engine.snapshot([good, bad]))
        assert path in str(refused.value)
        assert engine.location in str(refused.value)
        assert {key for key in await keys_in(objects) - before if not key.endswith(".avro")} == set()
    assert main_of((await catalog.load_id(TOPIC_ID)).metadata) is None


async def test_commit_is_rejected_when_a_list_names_a_manifest_elsewhere(engine: Engine) -> None:
    manifest = await engine.manifest(engine.data("good"), f"{ROOT}/tables/default/victim-1/metadata/m0.avro")
    with pytest.raises(Rejected, match="it is not under"):
        await commit(engine, await engine.snapshot([manifest]))


async def test_own_manifests_are_accepted(engine: Engine) -> None:
    first = await commit(engine, await engine.snapshot([await engine.manifest(engine.data("a"))]))
    manifests = [await engine.manifest(engine.data("b")), *await engine.listed(first.metadata)]
    second = await commit(engine, await engine.snapshot(manifests, first.metadata))
    assert len(await engine.listed(second.metadata)) == 2


async def test_file_elsewhere_can_be_removed_from_a_table(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older version accepted it. Otherwise the table could not be repaired."""
    manifest = await engine.manifest(VICTIM)
    first = await forced(engine.catalog, TOPIC_ID, await engine.snapshot([manifest]), monkeypatch)
    out = remove_files(manifest, bytes(await engine.get(manifest.manifest_path)), {VICTIM}, 7)
    assert out is not None
    place = await engine.store(f"{engine.location}/metadata/changed.avro", out.body)
    changed = msgspec.structs.replace(manifest, manifest_path=place, added_files_count=0, deleted_files_count=1)
    done = await commit(engine, await engine.snapshot([changed], first.metadata))
    listing = await LiveFileReader(engine.catalog.objects, engine.catalog.locations).of_main(done.metadata)
    assert listing.data == ()


@pytest.mark.parametrize(
    ("number", "kind", "value"),
    [
        (f.RECORD_COUNT, "string", "10"),
        (f.RECORD_COUNT, "long", 2**63),
        (f.RECORD_COUNT, None, None),
        (f.FILE_SIZE, "double", 1.5),
        (f.FILE_SIZE, None, None),
        (f.FILE_PATH, None, None),
        (f.PARTITION, None, None),
        (f.PARTITION, "string", "0"),
        (f.NULL_COUNTS, "string", "none"),
        (f.LOWER_BOUNDS, "string", "low"),
    ],
)
async def test_a_manifest_is_refused_when_maintenance_cannot_read_an_entry(
    engine: Engine, number: int, kind: Any, value: Any
) -> None:
    manifest = await engine.manifest(engine.data("a"))
    old = read_file(bytes(await engine.get(manifest.manifest_path)), "m.avro")
    (entry,) = old.records()
    *head, data_file = old.schema["fields"]
    fields = [
        field if field["field-id"] != number else {**field, "type": kind}
        for field in data_file["type"]["fields"]
        if kind is not None or field["field-id"] != number
    ]
    schema = {**old.schema, "fields": [*head, {**data_file, "type": {**data_file["type"], "fields": fields}}]}
    entry[f.DATA_FILE][number] = value
    out = bytearray()
    writer(schema)(out, entry)
    await engine.store(manifest.manifest_path, write_file(schema, {}, [bytes(out)]))
    with pytest.raises(Rejected, match=f"a manifest of the commit cannot be read: {manifest.manifest_path} is damaged"):
        await commit(engine, await engine.snapshot([manifest]))
    listings = LiveFileReader(engine.catalog.objects, engine.catalog.locations)
    with pytest.raises(Corrupt, match=f"{manifest.manifest_path} is damaged"):
        await listings.of(engine.loaded.metadata).manifest(manifest)


async def test_bounds_of_any_length_are_accepted_in_tables_that_belong_to_no_topic(
    catalog: Catalog, engine: Engine
) -> None:
    """Column 4 is the offset in the table of a topic, and may be a string in other tables."""

    async def manifest_with_short_bounds(location: str) -> ManifestFile:
        manifest = await engine.manifest(f"{location}/data/a.parquet", f"{location}/metadata/m.avro")
        old = read_file(bytes(await engine.get(manifest.manifest_path)), "m.avro")
        (entry,) = old.records()
        entry[f.DATA_FILE][f.LOWER_BOUNDS] = {OFFSET_ID: b"a"}
        out = bytearray()
        writer(old.schema)(out, entry)
        await engine.store(manifest.manifest_path, write_file(old.schema, {}, [bytes(out)]))
        return manifest

    other = Engine(catalog, await catalog.create(OTHER, NewTable(SCHEMA)))
    updates = await other.snapshot([await manifest_with_short_bounds(other.location)])
    done = await catalog.commit(OTHER, [], updates, AcceptAll())
    assert main_of(done.metadata) is not None
    with pytest.raises(Rejected, match="the bound of a number has 1 bytes"):
        await commit(engine, await engine.snapshot([await manifest_with_short_bounds(engine.location)]))


async def test_manifest_is_checked_whatever_its_list_entry_states(engine: Engine) -> None:
    """Neither the id of an old snapshot, nor a copy of the entry with the id of the replaced snapshot, hides it."""
    first = await commit(engine, await engine.snapshot([await engine.manifest(engine.data("a"))]))
    old = first.metadata["current-snapshot-id"]
    bad = msgspec.structs.replace(await engine.manifest(VICTIM), added_snapshot_id=old, added_files_count=0)
    with pytest.raises(Rejected, match="victim-1"):
        await commit(engine, await engine.snapshot([bad], first.metadata))
    again = await engine.snapshot([bad], first.metadata, **{"snapshot-id": old})
    with pytest.raises(Rejected, match=f"snapshot {old} is removed by the same commit"):
        await commit(engine, [u.RemoveSnapshots([old]), again[0]])


async def test_only_manifests_that_the_commit_adds_are_read(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = engine.loaded
    for number in range(5):
        manifests = [await engine.manifest(engine.data(str(number))), *await engine.listed(loaded.metadata)]
        loaded = await commit(engine, await engine.snapshot(manifests, loaded.metadata if number else None))
    manifests = [await engine.manifest(engine.data("new")), *await engine.listed(loaded.metadata)]
    updates = await engine.snapshot(manifests, loaded.metadata)
    read: list[str] = []
    get = engine.catalog.objects.get

    async def watched(key: str) -> object:
        read.append(key)
        return await get(key)

    monkeypatch.setattr(engine.catalog.objects, "get", watched)
    await commit(engine, updates)
    assert len([key for key in read if "/snap-" in key]) == 2
    assert len([key for key in read if "/m1" in key]) == 1


async def test_commit_is_rejected_when_a_manifest_cannot_be_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = await engine.manifest(engine.data("a"))
    updates = await engine.snapshot([manifest])
    key = engine.catalog.locations.key_of(manifest.manifest_path)
    body = bytes(await engine.catalog.objects.get(key))
    for damaged in (b"", b"Obj", body[:-20], b"x" * 1000):
        await engine.catalog.objects.put(key, [damaged])
        with pytest.raises(Rejected, match="cannot be read"):
            await commit(engine, updates)
    await engine.catalog.objects.delete([key])
    with pytest.raises(Rejected, match="does not exist: write"):
        await commit(engine, updates)
    await engine.catalog.objects.put(key, [body])
    with monkeypatch.context() as patch:
        patch.setattr(added_files, "FILE_BYTES_MAX", 100)
        with pytest.raises(Rejected, match="at most 100"):
            await commit(engine, updates)
    with monkeypatch.context() as patch:
        patch.setattr(avro_file, "UNPACKED_BYTES_MAX", 100)
        with pytest.raises(Rejected, match="decompresses to more than 100"):
            await commit(engine, updates)
    secret = await engine.snapshot([msgspec.structs.replace(manifest, key_metadata=b"key")])
    with pytest.raises(Unsupported, match="encrypted"):
        await commit(engine, secret)
    with pytest.raises(Unsupported, match="has manifests, but no manifest list"):
        await commit(engine, [u.AddSnapshot(updates[0].snapshot | {"manifests": [manifest.manifest_path]})])  # type: ignore[union-attr]
    assert main_of((await commit(engine, updates)).metadata)


# ── existing foreign paths ────────────────────────────────────────────────────────────────────────────────────────────


async def attacked(catalog: Catalog, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Makes a topic's table name files of other tables in every way, as older versions accepted it.

    Then commits a valid snapshot, so that the others may expire. Returns the keys of those files.
    """
    foreign = [f"{ROOT}/tables/default/victim-1/{name}" for name in ("data/f.parquet", "metadata/9.metadata.json")]
    foreign += [f"{ROOT}/wal/2/a.wal", f"{engine.location}-other/x", f"{engine.location}/data/_delta_log/0.json"]
    for path in foreign:
        await engine.store(path, b"not the table's")
    manifests = [await engine.manifest(path) for path in foreign]
    outside = await engine.manifest(engine.data("a"), f"{ROOT}/tables/default/victim-1/metadata/m0.avro")
    foreign.append(outside.manifest_path)
    change = await engine.snapshot([*manifests, outside])
    number = change[0].snapshot["snapshot-id"]  # type: ignore[union-attr]
    more: list[u.Update] = [statistics(foreign[0], number), partition_statistics(foreign[1], number)]
    loaded = await forced(catalog, TOPIC_ID, [*change, *more], monkeypatch)
    list_outside = f"{ROOT}/tables/default/victim-1/metadata/snap-1.avro"
    foreign.append(await engine.store(list_outside, b"a list"))
    change = await engine.snapshot([], loaded.metadata, **{"manifest-list": list_outside})
    loaded = await forced(catalog, TOPIC_ID, change, monkeypatch)
    await commit(engine, await engine.snapshot([await engine.manifest(engine.data("b"))], loaded.metadata))
    return {catalog.locations.key_of(path) for path in foreign}


async def test_expiration_keeps_foreign_files_of_old_snapshots(
    catalog: Catalog, objects: MemoryObjectStore, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = await attacked(catalog, engine, monkeypatch)
    loaded, listings = await catalog.load_id(TOPIC_ID), LiveFileReader(objects, catalog.locations)
    old = [catalog.locations.key_of(one["manifest-list"]) for one in loaded.metadata["snapshots"]]
    done = await expire(catalog, loaded, listings, later_ms(catalog), AT_ONCE)
    assert done.snapshots == 2
    left = await keys_in(objects)
    assert foreign <= left
    assert old[0] not in left  # its own manifest was deleted
    assert old[2] in left


async def test_orphans_are_kept_when_the_table_names_foreign_files(
    catalog: Catalog, objects: MemoryObjectStore, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live list that cannot be read could name any of them."""
    foreign = await attacked(catalog, engine, monkeypatch)
    before, listings = await keys_in(objects), LiveFileReader(objects, catalog.locations)
    with pytest.raises(Corrupt, match="may name only files under its own location"):
        await remove_orphans(catalog, TOPIC_ID, listings, later_ms(catalog), OrphanSettings(age_ms=1))
    assert await keys_in(objects) == before
    assert foreign <= before


async def appended_twice(catalog: Catalog, engine: Engine) -> LoadedTable:
    """Appends twice, so that the first snapshot can expire."""
    loaded = engine.loaded
    for start in (0, 10):
        ranges = moved((0, start, start + 10))
        loaded = await appending.append(catalog, loaded, files_of(loaded, ranges, str(start)), ranges)
    return loaded


async def test_expiration_keeps_a_file_that_a_live_snapshot_names_in_another_role(
    catalog: Catalog, objects: MemoryObjectStore, engine: Engine
) -> None:
    """A statistics path is a data file of the table, in another spelling."""
    loaded = await appended_twice(catalog, engine)
    live = files_of(loaded, moved((0, 10, 20)), "10")[0].location
    first, second = (one["snapshot-id"] for one in loaded.metadata["snapshots"])
    await engine.store(live, b"rows")
    (manifest, *_) = await engine.listed(loaded.metadata)
    as_hadoop = live.replace("s3://", "s3a://")
    loaded = await commit(engine, [statistics(as_hadoop, first), partition_statistics(manifest.manifest_path, first)])
    done = await expire(catalog, loaded, LiveFileReader(objects, catalog.locations), later_ms(catalog), AT_ONCE)
    assert done.snapshots == 1
    assert {catalog.locations.key_of(path) for path in (live, manifest.manifest_path)} <= await keys_in(objects)
    assert main_of(loaded.metadata) == second


async def test_expiration_keeps_files_of_tables_in_one_folder(
    catalog: Catalog, objects: MemoryObjectStore, engine: Engine
) -> None:
    """Two concurrent creates can cause it: then a file may be the other table's."""
    loaded = await appended_twice(catalog, engine)
    other = msgspec.structs.replace((await catalog.pointers.find_id(TOPIC_ID)).table, name="other", topic_id="")
    await catalog.pointers.create("other-id", msgspec.structs.replace(other, location=f"{engine.location}/data"))
    before = await keys_in(objects)
    done = await expire(catalog, loaded, LiveFileReader(objects, catalog.locations), later_ms(catalog), AT_ONCE)
    assert (done.snapshots, done.files) == (1, 0)
    assert before <= await keys_in(objects)


@pytest.mark.parametrize("place", ["/data", ""])
async def test_orphans_are_kept_when_another_table_is_in_the_folder(
    catalog: Catalog, objects: MemoryObjectStore, engine: Engine, place: str
) -> None:
    await engine.store(f"{engine.location}/data/foreign.parquet", b"rows")
    own = (await catalog.pointers.find_id(TOPIC_ID)).table
    other = msgspec.structs.replace(own, name="other", topic_id="", location=f"{engine.location}{place}")
    await catalog.pointers.create("other-id", other)
    before, listings = await keys_in(objects), LiveFileReader(objects, catalog.locations)
    step = await remove_orphans(catalog, TOPIC_ID, listings, later_ms(catalog), OrphanSettings(age_ms=1))
    assert (step.removed, step.following) == (0, "")
    assert await keys_in(objects) == before


async def test_old_metadata_files_elsewhere_are_kept(catalog: Catalog, objects: MemoryObjectStore) -> None:
    """The metadata log of a registered file names them."""
    properties = {"write.metadata.previous-versions-max": "1", "write.metadata.delete-after-commit.enabled": "true"}
    table = await catalog.create(NAME, NewTable(SCHEMA, location=LOCATION, properties=properties))
    await catalog.drop(NAME)
    paths = [f"{ROOT}/tables/victim/metadata/1.metadata.json", f"{LOCATION}/data/live.parquet"]
    log = [{"metadata-file": path, "timestamp-ms": 1} for path in paths]
    place = f"{LOCATION}/metadata/00009-x.metadata.json"
    forged = msgspec.json.encode(table.metadata | {"metadata-log": log})
    for path, body in [*((path, b"x") for path in paths), (place, forged)]:
        await objects.put(catalog.locations.key_of(path), [body])
    await catalog.register(NAME, place)
    await catalog.commit(NAME, [], [u.SetProperties({"a": "b"})])
    await catalog.commit(NAME, [], [u.SetProperties({"a": "c"})])
    assert {catalog.locations.key_of(path) for path in paths} <= await keys_in(objects)


async def test_purge_keeps_files_when_the_folder_is_not_below_the_tables_root(objects: MemoryObjectStore) -> None:
    """Older versions accepted any location under the storage root, also `WAL` beside `wal`."""
    server = MemoryServer(SystemClock())
    store = server.client()
    catalog = catalog_over(store, objects)
    await catalog.start()
    await catalog.create(NAME, NewTable(SCHEMA))
    await catalog.create(OTHER, NewTable(SCHEMA))
    for name, place in ((NAME, f"{ROOT}/other"), (OTHER, f"{ROOT}/WAL")):
        found = await catalog.pointers.find(name)
        await catalog.pointers.move(found, found.table.metadata_location, place)
        await objects.put(f"{catalog.locations.key_of(place)}/foreign.csv", [b"x"])
    before = await keys_in(objects)
    for name in (NAME, OTHER):
        await catalog.drop(name, purge=True)
    assert await PurgeTask(catalog, store, objects).purge() == 2
    assert await keys_in(objects) == before
    assert [found async for found in catalog.pointers.all()] == []


async def test_orphans_are_kept_when_the_folder_is_not_below_the_tables_root(
    catalog: Catalog, objects: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine moved the topic's table there, which older versions accepted."""
    table = await topic_table(catalog)
    await objects.put("other/foreign.csv", [b"x"])
    moved_to = table.metadata | {"location": f"{ROOT}/other"}
    file = await catalog._files.write(moved_to, None)
    found = await catalog.pointers.find_id(TOPIC_ID)
    await catalog.pointers.move(found, file.location, f"{ROOT}/other")
    with pytest.raises(Rejected, match="choose a folder below that"):
        await remove_orphans(
            catalog, TOPIC_ID, LiveFileReader(objects, catalog.locations), later_ms(catalog), OrphanSettings(age_ms=1)
        )
    assert "other/foreign.csv" in await keys_in(objects)


# ── locations of tables ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "place",
    [
        "other",
        "wal",
        "WAL",
        "Wal/x",
        "PROBE/x",
        "tables",
        "tables/",
        "Tables/x",
        "tables/../wal",
        "tables2/x",
        "tables//x",
    ],
)
async def test_create_is_rejected_when_the_location_is_not_below_the_tables_root(catalog: Catalog, place: str) -> None:
    with pytest.raises(Rejected):
        await catalog.create(NAME, NewTable(SCHEMA, location=f"{ROOT}/{place}"))
    with pytest.raises(Rejected):
        await catalog.stage(NAME, NewTable(SCHEMA, location=f"{ROOT}/{place}"))
    with pytest.raises(Rejected):
        await catalog.commit(NAME, [AssertCreate()], _made(f"{ROOT}/{place}"))
    assert not await catalog.exists(NAME)


async def test_create_is_rejected_when_the_folder_has_files(catalog: Catalog, objects: MemoryObjectStore) -> None:
    await objects.put("tables/foreign/report.csv", [b"x"])
    location = f"{ROOT}/tables/foreign"
    with pytest.raises(Rejected, match="not empty, it has"):
        await catalog.create(NAME, NewTable(SCHEMA, location=location))
    with pytest.raises(Rejected, match="not empty"):
        await catalog.stage(NAME, NewTable(SCHEMA, location=location))
    with pytest.raises(Rejected, match="not empty"):
        await catalog.commit(NAME, [AssertCreate()], _made(location))
    assert await keys_in(objects) == {"tables/foreign/report.csv"}


async def test_create_is_rejected_in_the_folder_of_a_dropped_table(
    catalog: Catalog, objects: MemoryObjectStore
) -> None:
    victim = await catalog.create(NAME, NewTable(SCHEMA))
    await catalog.drop(NAME)
    uuid, place = victim.metadata["table-uuid"], victim.metadata["location"]
    with pytest.raises(Rejected, match="not empty"):
        await catalog.create(OTHER, NewTable(SCHEMA, location=place))
    with pytest.raises(Rejected, match="not empty"):
        await catalog.commit(NAME, [AssertCreate()], [u.AssignUuid(uuid), *_made(place)])


def _made(location: str) -> list[u.Update]:
    return [
        u.AddSchema(SCHEMA),
        u.SetCurrentSchema(-1),
        u.AddSpec({"fields": []}),
        u.SetDefaultSpec(-1),
        u.AddSortOrder({"order-id": 0, "fields": []}),
        u.SetDefaultSortOrder(-1),
        u.SetLocation(location),
    ]


@pytest.mark.parametrize("location", ["tables/mine", "tables/mine/inner", "tables/MINE"])
async def test_create_is_rejected_when_it_overlaps_with_a_staged_create(catalog: Catalog, location: str) -> None:
    await catalog.stage(NAME, NewTable(SCHEMA, location=f"{ROOT}/tables/mine"))
    for make in (catalog.create, catalog.stage):
        with pytest.raises(Rejected, match="tables/mine of a create that was staged less than a week ago overlap"):
            await make(OTHER, NewTable(SCHEMA, location=f"{ROOT}/{location}"))


async def test_new_location_does_not_overlap_with_a_staged_create(catalog: Catalog) -> None:
    staged = await catalog.stage(NAME, NewTable(SCHEMA, location=f"{ROOT}/tables/default"))
    table = await catalog.create(OTHER, NewTable(SCHEMA))
    assert not table.metadata["location"].startswith(f"{staged['location']}/")


@pytest.mark.parametrize("inner", ["", "/inner"])
async def test_staged_create_is_rejected_when_another_table_was_created_in_its_folder(
    catalog: Catalog, objects: MemoryObjectStore, inner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two concurrent creates, or an older version, can cause it."""
    place = f"{ROOT}/tables/mine"
    staged = await catalog.stage(NAME, NewTable(SCHEMA, location=place))
    with monkeypatch.context() as patch:
        patch.setattr(StagedTables, "all", _none)
        await catalog.create(OTHER, NewTable(SCHEMA, location=place + inner))
    await catalog.drop(OTHER)
    before = await keys_in(objects)
    with pytest.raises(Rejected, match="another table was created there since this create was staged"):
        await catalog.commit(NAME, [AssertCreate()], [u.AssignUuid(staged["table-uuid"]), *_made(place)])
    assert await keys_in(objects) == before


async def test_staged_create_is_committed_when_an_earlier_try_left_its_metadata_file(
    catalog: Catalog, objects: MemoryObjectStore
) -> None:
    staged = await catalog.stage(NAME, NewTable(SCHEMA))
    await catalog._files.write(staged, None)
    made = [u.AssignUuid(staged["table-uuid"]), *_made(staged["location"])]
    assert (await catalog.commit(NAME, [AssertCreate()], made)).metadata["location"] == staged["location"]


async def _none(self: StagedTables) -> list[tuple[str, str]]:
    return []


@pytest.mark.parametrize("location", ["", f"{ROOT}/tables/mine"])
async def test_a_staged_table_is_created_where_its_data_is(
    catalog: Catalog, objects: MemoryObjectStore, location: str
) -> None:
    staged = await catalog.stage(NAME, NewTable(SCHEMA, location=location))
    uuid, place = staged["table-uuid"], staged["location"]
    await objects.put(f"{catalog.locations.key_of(place)}/data/f.parquet", [b"rows"])
    with pytest.raises(Rejected, match=f"{place} of a create that was staged less than a week ago overlap"):
        await catalog.commit(NAME, [AssertCreate()], [u.AssignUuid(uuid[::-1]), *_made(place)])
    table = await catalog.commit(NAME, [AssertCreate()], [u.AssignUuid(uuid), *_made(place)])
    assert table.metadata["location"] == place
    await catalog.drop(NAME)
    with pytest.raises(Rejected, match="not empty"):  # it was staged once
        await catalog.commit(NAME, [AssertCreate()], [u.AssignUuid(uuid), *_made(place)])


async def test_record_of_a_staged_create_expires(objects: MemoryObjectStore) -> None:
    store = MemoryServer(SystemClock()).client()
    catalog = catalog_over(store, objects)
    await catalog.start()
    staged = await catalog.stage(NAME, NewTable(SCHEMA))
    uuid, place = staged["table-uuid"], staged["location"]
    await catalog.staged.remove_expired(catalog.clock.now_ms())
    assert await catalog.staged.has(uuid, place)
    await catalog.staged.remove_expired(catalog.clock.now_ms() + STAGED_MS + 1_000)
    assert not await catalog.staged.has(uuid, place)


async def test_new_location_is_not_inside_of_another_table(catalog: Catalog) -> None:
    await catalog.create(OTHER, NewTable(SCHEMA, location=f"{ROOT}/tables/default"))
    table = await catalog.create(NAME, NewTable(SCHEMA))
    assert table.metadata["location"].startswith(f"{ROOT}/tables/orders-")


async def test_locations_are_compared_case_insensitively(catalog: Catalog) -> None:
    await catalog.create(NAME, NewTable(SCHEMA, location=f"{ROOT}/tables/mine/orders"))
    with pytest.raises(Rejected, match="overlap"):
        await catalog.create(OTHER, NewTable(SCHEMA, location=f"{ROOT}/tables/MINE"))


async def test_register_is_rejected_when_the_file_is_outside_of_its_location(
    catalog: Catalog, objects: MemoryObjectStore
) -> None:
    table = await catalog.create(NAME, NewTable(SCHEMA, location=LOCATION))
    await catalog.drop(NAME)

    async def register(name: str, **other: Any) -> None:
        place = f"{ROOT}/{name}.metadata.json"
        await objects.put(catalog.locations.key_of(place), [msgspec.json.encode(table.metadata | other)])
        await catalog.register(NAME, place)

    with pytest.raises(Rejected, match="choose a folder below that"):
        await register("other/x", location=f"{ROOT}/other")
    with pytest.raises(Rejected, match="choose a folder below that"):
        await register("tables/x/y", location=f"{ROOT}/tables")
    with pytest.raises(Rejected, match="it is not under"):
        await register("tables/x/y", location=f"{ROOT}/tables/victim")
    with pytest.raises(Rejected, match="it is not under"):
        await register("tables/t/y", statistics=[{"snapshot-id": 1, "statistics-path": VICTIM}])
    with pytest.raises(Rejected, match="property write"):
        await register("tables/t/y", properties={"write.data.path": f"{ROOT}/wal"})
    await register("tables/t/y")
    assert await catalog.exists(NAME)
