"""The catalog over stores in memory: results of commits, and which files stay or are deleted."""

import asyncio
import gzip
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.harness.catalog.iceberg_tables import (
    LOCATION,
    NAME,
    ROOT,
    SCHEMA,
    AcceptAll,
    append,
    catalog_over,
    field,
    snapshot,
)

from lakestream.catalog import catalog as module
from lakestream.catalog import metadata_files
from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import CommitFailed, CommitStateUnknown, NoSuchTable, TableExists
from lakestream.catalog.identifiers import DEFAULT_NAMESPACE, TableName, check_table_name
from lakestream.catalog.metadata_files import MetadataFile
from lakestream.catalog.pointers import TableEntry
from lakestream.catalog.purge import LATE_WRITES_MS, PurgeTask
from lakestream.catalog.table_metadata import updates as u
from lakestream.catalog.table_metadata.builder import NewTable, apply_updates
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.table_metadata.requirements import AssertCreate, AssertRefSnapshotId, AssertTableUuid
from lakestream.clock import SystemClock
from lakestream.errors import Conflict, Corrupt, Missing, Rejected, Unavailable, Uncertain
from lakestream.metadata import keys
from lakestream.metadata.memory import MemoryMetadataStore as MetadataInMemory
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.store import Put, Stored
from lakestream.model import MiB
from lakestream.storage.memory import MemoryObjectStore

OTHER = TableName(DEFAULT_NAMESPACE, "other")


class LossyStore(MetadataInMemory):
    """Loses responses of puts: before or after they took effect, or with an unknown result."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.lose: str = ""

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        lose, self.lose = self.lose, ""
        if lose == "before":
            return [Uncertain("no answer") for _ in puts]
        if lose == "refused":
            return [Unavailable("not reachable") for _ in puts]
        done = await super().put(puts)
        return [Uncertain("no answer") for _ in puts] if lose == "after" else done


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer(SystemClock())


@pytest.fixture
def objects() -> MemoryObjectStore:
    return MemoryObjectStore(SystemClock())


@pytest.fixture
async def store(server: MemoryServer) -> LossyStore:
    return LossyStore(server)


@pytest.fixture
async def catalog(store: LossyStore, objects: MemoryObjectStore) -> Catalog:
    catalog = catalog_over(store, objects)
    await catalog.start()
    return catalog


async def files(objects: MemoryObjectStore) -> list[str]:
    return [info.key async for page in objects.walk("") for info in page]


async def head(catalog: Catalog, name: TableName = NAME) -> int:
    number: int = (await catalog.load(name)).metadata["current-snapshot-id"]
    return number


async def test_create_commit_load(catalog: Catalog, objects: MemoryObjectStore) -> None:
    created = await catalog.create(NAME, NewTable(SCHEMA, properties={"a": "b"}))
    assert created.metadata_location.startswith(f"{ROOT}/tables/default/orders-")
    assert "/metadata/00000-" in created.metadata_location
    committed = await catalog.commit(
        NAME, [AssertRefSnapshotId("main")], append(1, 1, location=created.metadata["location"])
    )
    assert "/metadata/00001-" in committed.metadata_location
    assert committed.metadata["metadata-log"][0]["metadata-file"] == created.metadata_location
    loaded = await catalog.load(NAME)
    assert (loaded.metadata, loaded.table_id) == (committed.metadata, created.table_id)
    assert (await catalog.load_id(created.table_id)).metadata_location == committed.metadata_location
    stored = json.loads(bytes(await objects.get(committed.metadata_location.removeprefix(f"{ROOT}/"))))
    assert stored["current-snapshot-id"] == 1
    with pytest.raises(TableExists):
        await catalog.create(NAME, NewTable(SCHEMA))
    assert len(await files(objects)) == 2


async def test_field_ids_are_reassigned_only_with_fresh_ids(catalog: Catalog) -> None:
    inner = {"type": "struct", "fields": [field(0, "x", "int")]}
    schema = {"type": "struct", "fields": [field(5, "outer", inner), field(9, "text")]}
    spec = {"fields": [{"source-id": 9, "field-id": 2000, "transform": "identity", "name": "text"}]}
    fresh = (await catalog.create(NAME, NewTable(schema, spec=spec, fresh_ids=True))).metadata
    assert [one["id"] for one in fresh["schemas"][0]["fields"]] == [1, 2]
    assert fresh["schemas"][0]["fields"][0]["type"]["fields"][0]["id"] == 3
    assert fresh["partition-specs"][0]["fields"][0]["source-id"] == 2
    assert fresh["partition-specs"][0]["fields"][0]["field-id"] == 1000
    kept = (await catalog.create(OTHER, NewTable(schema, spec=spec))).metadata
    assert [one["id"] for one in kept["schemas"][0]["fields"]] == [5, 9]
    assert kept["partition-specs"][0]["fields"][0]["field-id"] == 2000


async def test_failed_commit_leaves_no_file(catalog: Catalog, objects: MemoryObjectStore) -> None:
    table = await catalog.create(NAME, NewTable(SCHEMA))
    before = await files(objects)
    for requirement in (AssertRefSnapshotId("main", 7), AssertTableUuid("x"), AssertCreate()):
        with pytest.raises(CommitFailed, match="Requirement failed"):
            await catalog.commit(NAME, [requirement], append(1, 1))
    with pytest.raises(NoSuchTable):
        await catalog.commit(OTHER, [], append(1, 1))
    with pytest.raises(Rejected):
        await catalog.commit(NAME, [AssertTableUuid(table.metadata["table-uuid"])], [u.SetCurrentSchema(4)])
    assert await files(objects) == before
    assert await head(catalog) == -1


async def test_commit_succeeds_when_the_clock_is_behind(catalog: Catalog) -> None:
    """The clock is behind that of the last writer: timestamps of the table do not go back."""
    await catalog.create(NAME, NewTable(SCHEMA, location=LOCATION))
    ahead = snapshot(1, 1, at_ms=catalog.clock.now_ms() + 30 * 60_000)
    await catalog.commit(NAME, [], [u.AddSnapshot(ahead), u.SetSnapshotRef("main", "branch", 1)])
    changed = await catalog.commit(NAME, [], [u.SetProperties({"owner": "team"})])
    assert changed.metadata["last-updated-ms"] == ahead["timestamp-ms"]


async def test_one_of_many_commits_to_the_same_snapshot_succeeds(
    server: MemoryServer, objects: MemoryObjectStore
) -> None:
    catalogs = [catalog_over(server.client(), objects, seed) for seed in range(8)]
    await catalogs[0].start()
    await catalogs[0].create(NAME, NewTable(SCHEMA, location=LOCATION))
    answers = await asyncio.gather(
        *(one.commit(NAME, [AssertRefSnapshotId("main")], append(10 + place, 1)) for place, one in enumerate(catalogs)),
        return_exceptions=True,
    )
    won = [place for place, answer in enumerate(answers) if not isinstance(answer, Exception)]
    assert len(won) == 1
    assert all(isinstance(answer, CommitFailed) for place, answer in enumerate(answers) if place not in won)
    assert await head(catalogs[0]) == 10 + won[0]
    assert len(await files(objects)) == 2  # the files of failed commits are deleted


async def test_concurrent_commits_without_conflict_all_succeed(
    server: MemoryServer, objects: MemoryObjectStore
) -> None:
    catalogs = [catalog_over(server.client(), objects, seed) for seed in range(5)]
    await catalogs[0].start()
    await catalogs[0].create(NAME, NewTable(SCHEMA))
    changes = [u.SetProperties({f"p{place}": "x"}) for place in range(5)]
    await asyncio.gather(*(one.commit(NAME, [], [change]) for one, change in zip(catalogs, changes, strict=True)))
    assert len((await catalogs[0].load(NAME)).metadata["properties"]) == 5
    assert len(await files(objects)) == 6


async def test_commit_resolves_a_lost_response(catalog: Catalog, store: LossyStore, objects: MemoryObjectStore) -> None:
    await catalog.create(NAME, NewTable(SCHEMA, location=LOCATION))
    store.lose = "after"
    assert (await catalog.commit(NAME, [], append(1, 1))).metadata["current-snapshot-id"] == 1
    before = await files(objects)
    store.lose = "before"
    with pytest.raises(CommitStateUnknown):
        await catalog.commit(NAME, [], append(2, 2, 1))
    assert len(await files(objects)) == len(before) + 1  # the commit may still take effect
    store.lose = "refused"
    with pytest.raises(Unavailable, match="not reachable"):
        await catalog.commit(NAME, [], append(2, 2, 1))
    assert len(await files(objects)) == len(before) + 1
    assert (await catalog.commit(NAME, [AssertRefSnapshotId("main", 1)], append(2, 2, 1))).metadata["refs"]


class OvertakenStore(LossyStore):
    """The next put takes effect, another commit follows, and the response is lost."""

    overtake: Catalog | None = None

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        overtake, self.overtake = self.overtake, None
        done = await super().put(puts)
        if overtake is None:
            return done
        await overtake.commit(NAME, [], [u.SetProperties({"later": "x"})])
        return [Uncertain("no answer") for _ in puts]


async def test_lost_response_is_resolved_from_the_metadata_log(
    server: MemoryServer, objects: MemoryObjectStore
) -> None:
    store = OvertakenStore(server)
    catalog, other = catalog_over(store, objects), catalog_over(server.client(), objects, seed=2)
    await catalog.start()
    await catalog.create(NAME, NewTable(SCHEMA, location=LOCATION))
    store.overtake = other
    committed = await catalog.commit(NAME, [AssertRefSnapshotId("main")], append(1, 1))
    assert committed.metadata["current-snapshot-id"] == 1
    assert (await catalog.load(NAME)).metadata["properties"] == {"later": "x"}


class OvertakenTwiceStore(OvertakenStore):
    """Two more commits follow, which remove it from the metadata log."""

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        overtake = self.overtake
        done = await super().put(puts)
        if overtake is not None:
            await overtake.commit(NAME, [], [u.SetProperties({"later": "y"})])
        return done


async def test_commit_state_is_unknown_when_the_metadata_log_is_too_short(
    server: MemoryServer, objects: MemoryObjectStore
) -> None:
    store = OvertakenTwiceStore(server)
    catalog, other = catalog_over(store, objects), catalog_over(server.client(), objects, seed=2)
    await catalog.start()
    await catalog.create(
        NAME, NewTable(SCHEMA, location=LOCATION, properties={"write.metadata.previous-versions-max": "1"})
    )
    store.overtake = other
    with pytest.raises(CommitStateUnknown):
        await catalog.commit(NAME, [AssertRefSnapshotId("main")], append(1, 1))
    assert await head(catalog) == 1, "it took effect: after CommitFailed the client would repeat it"


async def test_create_keeps_its_file_when_the_response_was_lost(catalog: Catalog, store: LossyStore) -> None:
    store.lose = "before"
    with pytest.raises(CommitStateUnknown):
        await catalog.create(NAME, NewTable(SCHEMA))
    assert not await catalog.exists(NAME)
    await catalog.create(NAME, NewTable(SCHEMA))


async def test_staged_create_is_committed_with_a_snapshot(catalog: Catalog, objects: MemoryObjectStore) -> None:
    staged = await catalog.stage(NAME, NewTable(SCHEMA))
    assert not await catalog.exists(NAME)
    assert await files(objects) == []
    made: list[u.Update] = [
        u.AssignUuid(staged["table-uuid"]),
        u.AddSchema(staged["schemas"][0]),
        u.SetCurrentSchema(-1),
        u.AddSpec(staged["partition-specs"][0]),
        u.SetDefaultSpec(-1),
        u.AddSortOrder(staged["sort-orders"][0]),
        u.SetDefaultSortOrder(-1),
        u.SetLocation(staged["location"]),
        *append(1, 1, location=staged["location"]),
    ]
    with pytest.raises(Rejected, match="needs a location"):
        await catalog.commit(NAME, [AssertCreate()], [one for one in made[:-2] if not isinstance(one, u.SetLocation)])
    table = await catalog.commit(NAME, [AssertCreate()], made)
    assert table.metadata["table-uuid"] == staged["table-uuid"]
    assert await head(catalog) == 1
    with pytest.raises(CommitFailed, match="exists"):
        await catalog.commit(NAME, [AssertCreate()], made)
    with pytest.raises(Rejected, match="cannot require"):
        await catalog.commit(OTHER, [AssertCreate(), AssertRefSnapshotId("main")], made)


async def test_old_metadata_files_are_deleted_when_the_property_is_set(
    catalog: Catalog, objects: MemoryObjectStore
) -> None:
    properties = {"write.metadata.previous-versions-max": "2", "write.metadata.delete-after-commit.enabled": "true"}
    await catalog.create(NAME, NewTable(SCHEMA, properties=properties))
    for number in range(5):
        await catalog.commit(NAME, [], [u.SetProperties({"n": str(number)})])
    assert len(await files(objects)) == 3
    await catalog.commit(NAME, [], [u.RemoveProperties(["write.metadata.delete-after-commit.enabled"])])
    assert len(await files(objects)) == 4


async def test_commit_reads_the_new_file_when_the_old_one_was_deleted(
    server: MemoryServer, objects: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    one, two = (catalog_over(server.client(), objects, seed) for seed in (1, 2))
    await one.start()
    table_id = (await one.create(NAME, NewTable(SCHEMA, properties=properties))).table_id
    real, old = two.pointers.find_id, await two.pointers.find_id(table_id)
    for number in range(3):
        await one.commit(NAME, [], [u.SetProperties({"n": str(number)})])

    async def before(table_id: str, *, confirmed: bool = False) -> TableEntry:
        return await real(table_id, confirmed=True) if confirmed else old

    monkeypatch.setattr(two.pointers, "find_id", before)
    changed = await two.commit(table_id, [], [u.SetProperties({"m": "1"})])
    assert (changed.metadata["properties"]["n"], changed.metadata["properties"]["m"]) == ("2", "1")


async def test_metadata_files_are_compressed_when_the_property_is_set(
    catalog: Catalog, objects: MemoryObjectStore
) -> None:
    table = await catalog.create(NAME, NewTable(SCHEMA, properties={"write.metadata.compression-codec": "gzip"}))
    assert table.metadata_location.endswith(".gz.metadata.json")
    stored = bytes(await objects.get(table.metadata_location.removeprefix(f"{ROOT}/")))
    assert json.loads(gzip.decompress(stored)) == msgspec.json.decode(table.file.raw)
    fresh = catalog_over(catalog.pointers._store, objects)  # with an empty cache
    assert (await fresh.load(NAME)).metadata == table.metadata


async def test_event_loop_is_responsive_when_a_large_gzip_file_is_read(
    catalog: Catalog, objects: MemoryObjectStore
) -> None:
    table = await catalog.create(NAME, NewTable(SCHEMA))
    padding = b',"padding":"' + b"x" * (48 << 20) + b'"}'
    await objects.put(
        catalog.locations.key_of(table.metadata_location), [gzip.compress(bytes(table.file.raw)[:-1] + padding, 1)]
    )
    reading = asyncio.create_task(catalog_over(catalog.pointers._store, objects).load(NAME))
    longest_s = 0.0
    while not reading.done():
        before_s = time.thread_time()
        await asyncio.sleep(0.001)
        longest_s = max(longest_s, time.thread_time() - before_s)
    assert len((await reading).file.raw) > 48 << 20
    assert longest_s < 0.03


async def test_metadata_without_snapshots_is_the_same_otherwise(catalog: Catalog) -> None:
    created = await catalog.create(NAME, NewTable(SCHEMA, properties={"a": "b"}))
    loaded = await catalog.commit(NAME, [], append(1, 1, location=created.metadata["location"]))
    without = loaded.file.without_snapshots()
    assert len(loaded.metadata["snapshots"]) == 1
    assert without == {**loaded.metadata, "snapshots": [], "snapshot-log": [], "metadata-log": []}
    for damaged in (b"{", b"[]", b'{"format-version":9}', b"[" * 100_000, b'{"schemas":{}}'):
        with pytest.raises(Corrupt, match=r"x\.metadata\.json is damaged"):
            MetadataFile("x.metadata.json", damaged).without_snapshots()


async def test_a_damaged_or_missing_file_is_named(catalog: Catalog, objects: MemoryObjectStore) -> None:
    table = await catalog.create(NAME, NewTable(SCHEMA))
    key = table.metadata_location.removeprefix(f"{ROOT}/")
    for damaged in (b"{", b"[]", b'{"format-version":9}', gzip.compress(b"{}")[:-3], b"[" * 100_000, b'{"a":"\xff"}'):
        await objects.put(key, [damaged])
        with pytest.raises(Corrupt, match="orders"):
            _ = (await catalog_over(catalog.pointers._store, objects).load(NAME)).metadata
    await objects.delete([key])
    with pytest.raises(Corrupt, match="missing"):
        await catalog_over(catalog.pointers._store, objects).load(NAME)


async def test_repaired_metadata_file_is_read_again(catalog: Catalog, objects: MemoryObjectStore) -> None:
    table = await catalog.create(NAME, NewTable(SCHEMA))
    key = catalog.locations.key_of(table.metadata_location)
    good = bytes(await objects.get(key))
    reader = catalog_over(catalog.pointers._store, objects)
    await objects.put(key, [good[:-1]])
    with pytest.raises(Corrupt, match="damaged"):
        _ = (await reader.load(NAME)).metadata
    await objects.put(key, [good])
    assert (await reader.load(NAME)).metadata == table.metadata


async def test_register(catalog: Catalog, objects: MemoryObjectStore) -> None:
    table = await catalog.create(NAME, NewTable(SCHEMA))
    place = table.metadata_location
    with pytest.raises(Rejected, match="overlap"):
        await catalog.register(OTHER, place)
    await catalog.drop(NAME)
    again = await catalog.register(OTHER, place.replace("s3://", "s3a://"))
    assert again.metadata == table.metadata
    for wrong, why in [
        ("s3://elsewhere/x.metadata.json", "not under the storage root"),
        (f"{ROOT}/../x.metadata.json", "segment"),
        (f"{ROOT}/wal/segment", "not named like"),
        (f"{ROOT}/no.metadata.json", "no file"),
    ]:
        with pytest.raises(Rejected, match=why):
            await catalog.register(NAME, wrong)
    await objects.put("x/y.metadata.json", [b'{"format-version": 2}'])
    with pytest.raises(Rejected, match="not the metadata of an Iceberg table"):
        await catalog.register(NAME, f"{ROOT}/x/y.metadata.json")
    outside = {**table.metadata, "location": "s3://elsewhere/t"}
    await objects.put("x/z.metadata.json", [msgspec.json.encode(outside)])
    with pytest.raises(Rejected, match="not under the storage root"):
        await catalog.register(NAME, f"{ROOT}/x/z.metadata.json")
    with pytest.raises(TableExists):
        await catalog.register(OTHER, await _elsewhere(objects, table.metadata))
    newer = await _elsewhere(objects, table.metadata)
    assert (await catalog.register(OTHER, newer, overwrite=True)).metadata_location == newer


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"current-schema-id": 55}, "current-schema-id is 55"),
        ({"default-spec-id": 55}, "default-spec-id is 55"),
        ({"default-sort-order-id": 55}, "default-sort-order-id is 55"),
        ({"statistics": [5]}, "Expected `object`, got `int`"),
        ({"partition-statistics": "all"}, "Expected `array . null`, got `str`"),
        ({"partition-specs": [{"spec-id": 0, "fields": [{"name": "x"}]}]}, "missing required field `transform`"),
        ({"sort-orders": [{"order-id": 0, "fields": [{"source-id": "x"}]}]}, "Expected `int . null`"),
        ({"next-row-id": "x"}, "Expected `int`, got `str`"),
        ({"schemas": [{"schema-id": 0, "fields": [{"x": 1}]}]}, "name"),
        ({"refs": {"tag": {"snapshot-id": 1, "type": "tag", "max-ref-age-ms": "1"}}}, "Expected `int . null`"),
    ],
)
async def test_register_is_rejected_when_the_metadata_is_invalid(
    catalog: Catalog, objects: MemoryObjectStore, change: Json, reason: str
) -> None:
    table = await catalog.create(NAME, NewTable(SCHEMA))
    await catalog.drop(NAME)
    location = await _elsewhere(objects, table.metadata | change)
    with pytest.raises(Rejected, match=reason):
        await catalog.register(NAME, location, check=AcceptAll())


@pytest.mark.parametrize(
    ("padding", "reason"),
    [
        (b"[" + b"[]," * 500_000 + b"[]]", "has more than 500000 values"),
        (b'"' + b" " * (32 * MiB) + b'"', "decompresses to more than 33554432 bytes"),
    ],
)
async def test_only_an_operator_registers_metadata_that_takes_seconds_to_parse(
    catalog: Catalog, objects: MemoryObjectStore, padding: bytes, reason: str
) -> None:
    """A few kilobytes in the bucket: gzip."""
    table = await catalog.create(NAME, NewTable(SCHEMA))
    await catalog.drop(NAME)
    key = table.metadata_location.removeprefix(f"{ROOT}/")
    stored = gzip.compress(bytes(table.file.raw)[:-1] + b',"padding":' + padding + b"}", 1)
    await objects.put(key, [stored])
    with pytest.raises(Rejected, match=reason):
        await catalog.register(NAME, table.metadata_location, check=AcceptAll())
    await catalog.register(NAME, table.metadata_location)


async def test_the_event_loop_runs_while_a_large_commit_of_a_client_is_applied(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_thread, threads = threading.get_ident(), []

    def recorded(*args: Any) -> Json:
        threads.append(threading.get_ident())
        return apply_updates(*args)

    await catalog.create(NAME, NewTable(SCHEMA))
    monkeypatch.setattr(module, "apply_updates", recorded)
    await catalog.commit(NAME, [], [u.SetProperties({"a": "b"})], AcceptAll())
    await catalog.create(OTHER, NewTable(SCHEMA))
    assert len(threads) == 2
    assert loop_thread not in threads


async def test_a_client_cannot_fill_a_table_with_values(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every later load of the table would parse them."""
    monkeypatch.setattr(metadata_files, "CLIENT_VALUES_MAX", 1_000)
    await catalog.create(NAME, NewTable(SCHEMA))
    padded = u.AddSchema({"fields": [*SCHEMA["fields"], field(4, "more")], "x": [[]] * 1_000})
    with pytest.raises(Rejected, match="metadata would have more than 1000 values: expire snapshots"):
        await catalog.commit(NAME, [], [padded], AcceptAll())
    await catalog.commit(NAME, [], [padded])
    await catalog.commit(NAME, [], [u.RemoveSchemas([1])], AcceptAll())


async def test_commas_in_strings_are_no_values(catalog: Catalog, objects: MemoryObjectStore) -> None:
    offsets = json.dumps({str(number): number for number in range(600_000)})
    table = await catalog.create(NAME, NewTable(SCHEMA, properties={"a": offsets}))
    await catalog.drop(NAME)
    await catalog.register(NAME, table.metadata_location, check=AcceptAll())


async def test_commit_leaves_no_file_when_the_table_is_dropped_concurrently(
    catalog: Catalog, objects: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest metadata file of a dropped table must be its last one, for a later registration."""
    table = await catalog.create(NAME, NewTable(SCHEMA, location=LOCATION))
    move = catalog.pointers.move

    async def too_late(found: TableEntry, *arguments: Any) -> TableEntry:
        await catalog.drop(NAME)
        return await move(found, *arguments)

    monkeypatch.setattr(catalog.pointers, "move", too_late)
    with pytest.raises(NoSuchTable, match="dropped concurrently"):
        await catalog.commit(NAME, [], append(1, 1))
    names = [catalog.locations.url_of(info.key) async for page in objects.walk("") for info in page]
    assert names == [table.metadata_location]


async def _elsewhere(objects: MemoryObjectStore, metadata: dict[str, object]) -> str:
    copy = {**metadata, "location": f"{ROOT}/tables/mine/t"}
    await objects.put("tables/mine/t/metadata/00007-x.metadata.json", [msgspec.json.encode(copy)])
    return f"{ROOT}/tables/mine/t/metadata/00007-x.metadata.json"


@pytest.mark.parametrize("place", ["s3://elsewhere/t", f"{ROOT}/wal/t", ROOT, f"{ROOT}/a/../../b", "nonsense"])
async def test_create_is_rejected_when_the_location_is_outside_of_the_root(catalog: Catalog, place: str) -> None:
    with pytest.raises(Rejected):
        await catalog.create(NAME, NewTable(SCHEMA, location=place))
    await catalog.create(NAME, NewTable(SCHEMA))
    with pytest.raises(Rejected):
        await catalog.commit(NAME, [], [u.SetLocation(place)])
    with pytest.raises(Rejected):
        await catalog.commit(NAME, [], [u.SetProperties({"write.metadata.path": place})])


async def test_create_is_rejected_when_locations_overlap(catalog: Catalog) -> None:
    table = await catalog.create(NAME, NewTable(SCHEMA, location=f"{ROOT}/tables/mine/orders/"))
    assert table.metadata["location"] == f"{ROOT}/tables/mine/orders"
    for place in (f"{ROOT}/tables/mine", f"{ROOT}/tables/mine/orders", f"{ROOT}/tables/mine/orders/inner"):
        with pytest.raises(Rejected, match="overlap"):
            await catalog.create(OTHER, NewTable(SCHEMA, location=place))
    for place in (f"{ROOT}/tables/mine/orders/deeper", f"{ROOT}/tables/elsewhere"):
        with pytest.raises(Rejected, match="cannot become"):
            await catalog.commit(NAME, [], [u.SetLocation(place)])
    same = await catalog.commit(NAME, [], [u.SetLocation(f"{ROOT}/tables/mine/orders/")])
    assert same.metadata == table.metadata


async def test_a_topics_table_has_the_topics_id(catalog: Catalog, objects: MemoryObjectStore) -> None:
    table = await catalog.create(NAME, NewTable(SCHEMA, location=LOCATION), topic_id="f" * 32)
    assert (table.table_id, table.topic_id) == ("f" * 32, "f" * 32)
    await catalog.rename(NAME, OTHER)
    loaded = await catalog.load_id("f" * 32)
    assert (loaded.name, loaded.topic_id) == (OTHER, "f" * 32)
    await catalog.commit("f" * 32, [AssertRefSnapshotId("main")], append(1, 1))
    assert await head(catalog, OTHER) == 1
    with pytest.raises(TableExists):
        await catalog.create(NAME, NewTable(SCHEMA), topic_id="f" * 32)
    with pytest.raises(Rejected, match="table of a topic"):
        await catalog.register(OTHER, await _elsewhere(objects, table.metadata), overwrite=True)
    await catalog.rename("f" * 32, NAME)
    await catalog.create(OTHER, NewTable(SCHEMA))
    await catalog.drop("f" * 32)
    assert await catalog.exists(OTHER)
    with pytest.raises(NoSuchTable):
        await catalog.load_id("f" * 32)
    with pytest.raises(NoSuchTable):
        await catalog.rename("f" * 32, NAME)
    await catalog.create(NAME, NewTable(SCHEMA), topic_id="f" * 32)


async def test_drop_keeps_files_and_purge_deletes_them(
    catalog: Catalog, store: LossyStore, objects: MemoryObjectStore
) -> None:
    await objects.put("wal/x", [b"not yours"])
    kept = await catalog.create(NAME, NewTable(SCHEMA))
    await catalog.drop(NAME)
    gone = await catalog.create(NAME, NewTable(SCHEMA))
    folder = gone.metadata["location"].removeprefix(f"{ROOT}/")
    for number in range(2500):
        await objects.put(f"{folder}/data/{number}.parquet", [b"x"])
    await catalog.drop(NAME, purge=True)
    assert not await catalog.exists(NAME)
    purging = PurgeTask(catalog, store, objects)
    purging.start()
    await asyncio.sleep(0.1)
    await purging.close()
    assert [found async for found in catalog.pointers.all()] == []
    assert await files(objects) == [kept.metadata_location.removeprefix(f"{ROOT}/"), "wal/x"]


async def test_purge_keeps_files_of_an_overlapping_table(
    catalog: Catalog, store: LossyStore, objects: MemoryObjectStore
) -> None:
    await catalog.create(NAME, NewTable(SCHEMA, location=f"{ROOT}/tables/mine/a"))
    await catalog.drop(NAME, purge=True)
    await catalog.create(OTHER, NewTable(SCHEMA))
    found = await catalog.pointers.find(OTHER)
    await catalog.pointers.move(found, found.table.metadata_location, f"{ROOT}/tables/mine")
    before = await files(objects)
    assert await PurgeTask(catalog, store, objects).purge() == 1
    assert await files(objects) == before


async def test_purge_keeps_files_of_a_dropped_table_below(
    catalog: Catalog, store: LossyStore, objects: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner may register it again."""
    parent = await catalog.create(NAME, NewTable(SCHEMA, location=f"{ROOT}/tables/w"))
    await catalog.drop(NAME)
    monkeypatch.setattr(catalog, "_check_not_in_a_table", lambda location: asyncio.sleep(0))  # as of an older version
    child = await catalog.create(OTHER, NewTable(SCHEMA, location=f"{ROOT}/tables/w/child"))
    await objects.put("tables/w/child/data/1.parquet", [b"x"])
    await objects.put("tables/w/data/1.parquet", [b"x"])
    await catalog.drop(OTHER)
    await catalog.register(NAME, parent.metadata_location)
    await catalog.drop(NAME, purge=True)
    assert await PurgeTask(catalog, store, objects).purge() == 1
    keys_left = sorted([info.key async for page in objects.walk("tables") for info in page])
    assert keys_left == ["tables/w/child/data/1.parquet", child.metadata_location.removeprefix(f"{ROOT}/")]
    await catalog.register(OTHER, child.metadata_location)


async def test_purge_deletes_all_metadata_files_of_its_table(
    catalog: Catalog, store: LossyStore, objects: MemoryObjectStore
) -> None:
    place = f"{ROOT}/tables/w"
    await catalog.create(NAME, NewTable(SCHEMA, location=place))
    await catalog.commit(NAME, [], [u.SetProperties({"write.metadata.path": f"{place}/elsewhere"})])
    await catalog.commit(NAME, [], [u.SetProperties({"a": "b"})])
    await catalog.drop(NAME, purge=True)
    assert await PurgeTask(catalog, store, objects).purge() == 1
    assert [info.key async for page in objects.walk("tables") for info in page] == []


async def test_create_is_rejected_below_the_folder_of_a_dropped_table(catalog: Catalog) -> None:
    await catalog.create(NAME, NewTable(SCHEMA, location=f"{ROOT}/tables/w"))
    await catalog.drop(NAME)
    for place in ("tables/w/child", "tables/w/a/b/c"):
        with pytest.raises(Rejected, match=f"{place}: it is in the folder of another table, which was dropped"):
            await catalog.create(OTHER, NewTable(SCHEMA, location=f"{ROOT}/{place}"))
    await catalog.create(OTHER, NewTable(SCHEMA, location=f"{ROOT}/tables/v"))


class ManualClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.ms = 1_800_000_000_000

    def now_ms(self) -> int:
        return self.ms


async def test_late_files_of_a_purged_table_are_deleted_after_a_day(objects: MemoryObjectStore) -> None:
    """Files of a driver that was killed before its commit failed."""
    clock = ManualClock()
    store = MetadataInMemory(MemoryServer(clock))
    catalog = catalog_over(store, objects)
    await catalog.start()
    places = []
    for _ in range(2):  # a recreated topic table has the same id, that of the topic
        table = await catalog.create(NAME, NewTable(SCHEMA), topic_id="f" * 32)
        places.append(table.metadata["location"].removeprefix(f"{ROOT}/"))
        await catalog.drop(NAME, purge=True)
        assert await PurgeTask(catalog, store, objects).purge() == 1
    third = await catalog.create(NAME, NewTable(SCHEMA), topic_id="f" * 32)
    kept = third.metadata_location.removeprefix(f"{ROOT}/")
    late = [f"{place}/data/partition=0/late.parquet" for place in places]
    for file in late:
        await objects.put(file, [b"x"])
    clock.ms += LATE_WRITES_MS
    assert await PurgeTask(catalog, store, objects).purge() == 0
    assert await files(objects) == sorted([kept, *late])  # a process may still be writing
    clock.ms += 1
    assert await PurgeTask(catalog, store, objects).purge() == 0
    assert await files(objects) == [kept]
    assert (await store.scan(keys.PURGED)).records == []


async def test_late_purge_keeps_data_of_a_staged_create(
    objects: MemoryObjectStore,
) -> None:
    clock = ManualClock()
    store = MetadataInMemory(MemoryServer(clock))
    catalog = catalog_over(store, objects)
    await catalog.start()
    await catalog.create(NAME, NewTable(SCHEMA, location=f"{ROOT}/tables/mine/a"))
    await catalog.drop(NAME, purge=True)
    assert await PurgeTask(catalog, store, objects).purge() == 1
    staged = await catalog.stage(OTHER, NewTable(SCHEMA, location=f"{ROOT}/tables/mine"))
    await objects.put("tables/mine/a/data/f.parquet", [b"rows"])
    clock.ms += LATE_WRITES_MS + 1
    assert await PurgeTask(catalog, store, objects).purge() == 0
    assert await files(objects) == ["tables/mine/a/data/f.parquet"]
    await catalog.staged.remove(staged["table-uuid"])
    assert await PurgeTask(catalog, store, objects).purge() == 0
    assert await files(objects) == []
    assert (await store.scan(keys.PURGED)).records == []


async def test_late_purge_keeps_a_new_table_in_the_same_folder(objects: MemoryObjectStore) -> None:
    clock = ManualClock()
    store = MetadataInMemory(MemoryServer(clock))
    catalog = catalog_over(store, objects)
    await catalog.start()
    await catalog.create(NAME, NewTable(SCHEMA, location=f"{ROOT}/tables/mine/a"))
    await catalog.drop(NAME, purge=True)
    assert await PurgeTask(catalog, store, objects).purge() == 1
    table = await catalog.create(OTHER, NewTable(SCHEMA, location=f"{ROOT}/tables/mine/a/b"))
    clock.ms += 2 * LATE_WRITES_MS
    await PurgeTask(catalog, store, objects).purge()
    assert await files(objects) == [table.metadata_location.removeprefix(f"{ROOT}/")]


async def test_late_purge_keeps_files_of_a_dropped_table_in_the_same_folder(objects: MemoryObjectStore) -> None:
    clock = ManualClock()
    store = MetadataInMemory(MemoryServer(clock))
    catalog = catalog_over(store, objects)
    await catalog.start()
    await catalog.create(NAME, NewTable(SCHEMA, location=LOCATION))
    await catalog.drop(NAME, purge=True)
    assert await PurgeTask(catalog, store, objects).purge() == 1
    table = await catalog.create(OTHER, NewTable(SCHEMA, location=LOCATION))
    await catalog.drop(OTHER)
    clock.ms += 2 * LATE_WRITES_MS
    await PurgeTask(catalog, store, objects).purge()
    assert await files(objects) == [table.metadata_location.removeprefix(f"{ROOT}/")]
    assert (await store.scan(keys.PURGED)).records == []


@pytest.mark.parametrize("name", ["", "x" * 256, "a\x1fb", "a\nb", "\ud800", "ü" * 128])
def test_names_are_bounded(name: str) -> None:
    with pytest.raises(Rejected):
        check_table_name(("default",), name)
    with pytest.raises(Rejected):
        check_table_name((name,), "t")
    with pytest.raises(Rejected):
        check_table_name(("n",) * 9, "t")


async def test_metadata_file_cache_is_bounded(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("lakestream.catalog.metadata_files.CACHE_BYTES_MAX", 20_000)
    await catalog.create(NAME, NewTable(SCHEMA, location=LOCATION))
    for number in range(1, 60):
        await catalog.commit(NAME, [], append(number, number, number - 1 or None))
    assert catalog._files._cached_bytes <= 20_000
    assert sum(len(raw) for raw in catalog._files._cache.values()) == catalog._files._cached_bytes
    assert await head(catalog) == 59


async def test_snapshot_of_another_branch_does_not_conflict_with_main(catalog: Catalog) -> None:
    await catalog.create(NAME, NewTable(SCHEMA, location=LOCATION))
    await catalog.commit(NAME, [], append(1, 1))
    aside: list[u.Update] = [u.AddSnapshot(snapshot(2, 2, 1)), u.SetSnapshotRef("b", "branch", 2)]
    await catalog.commit(NAME, [AssertRefSnapshotId("b")], aside)
    with pytest.raises(CommitFailed, match="sequence number"):
        await catalog.commit(NAME, [AssertRefSnapshotId("main", 1)], append(3, 2, 1))
    await catalog.commit(NAME, [AssertRefSnapshotId("main", 1)], append(3, 3, 1))
