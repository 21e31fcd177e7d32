"""The catalog over stores in memory: commits that win, lose, or do not know; files that stay and files that go."""

import asyncio
import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.unit.catalog.tables import NAME, ROOT, SCHEMA, append, catalog_over, field, snapshot

from lakestream.catalog import updates as u
from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import CommitRefused, CommitUnknown, NoSuchTable, TableExists
from lakestream.catalog.graves import LINGER_MS
from lakestream.catalog.names import DEFAULT_NAMESPACE, TableName, check_table_name
from lakestream.catalog.pointers import Found
from lakestream.catalog.purge import Purging
from lakestream.catalog.requirements import AssertCreate, AssertRefSnapshotId, AssertTableUuid
from lakestream.clock import SystemClock
from lakestream.errors import Conflict, Corrupt, Missing, Rejected, Unavailable, Uncertain
from lakestream.metadata import keys
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.memory import MemoryStore as MetadataInMemory
from lakestream.metadata.store import Put, Stored
from lakestream.storage.memory import MemoryStore

OTHER = TableName(DEFAULT_NAMESPACE, "other")


class Doubtful(MetadataInMemory):
    """Answers of puts may be lost: after they took effect, before, or without anybody knowing which."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.lose: str = ""

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        lose, self.lose = self.lose, ""
        if lose == "before":
            return [Uncertain("no answer") for _ in puts]
        if lose == "refused":
            return [Unavailable("nobody there") for _ in puts]
        done = await super().put(puts)
        return [Uncertain("no answer") for _ in puts] if lose == "after" else done


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer(SystemClock())


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore(SystemClock())


@pytest.fixture
async def store(server: MemoryServer) -> Doubtful:
    return Doubtful(server)


@pytest.fixture
async def catalog(store: Doubtful, objects: MemoryStore) -> Catalog:
    catalog = catalog_over(store, objects)
    await catalog.start()
    return catalog


async def files(objects: MemoryStore) -> list[str]:
    return [info.key async for page in objects.walk("") for info in page]


async def head(catalog: Catalog, name: TableName = NAME) -> int:
    number: int = (await catalog.load(name)).metadata["current-snapshot-id"]
    return number


async def test_create_commit_load(catalog: Catalog, objects: MemoryStore) -> None:
    created = await catalog.create(NAME, SCHEMA, properties={"a": "b"})
    assert created.metadata_location.startswith(f"{ROOT}/tables/default/orders-")
    assert "/metadata/00000-" in created.metadata_location
    committed = await catalog.commit(NAME, [AssertRefSnapshotId("main")], append(1, 1))
    assert "/metadata/00001-" in committed.metadata_location
    assert committed.metadata["metadata-log"][0]["metadata-file"] == created.metadata_location
    loaded = await catalog.load(NAME)
    assert (loaded.metadata, loaded.table_id) == (committed.metadata, created.table_id)
    assert (await catalog.load_id(created.table_id)).metadata_location == committed.metadata_location
    stored = json.loads(bytes(await objects.get(committed.metadata_location.removeprefix(f"{ROOT}/"))))
    assert stored["current-snapshot-id"] == 1
    with pytest.raises(TableExists):
        await catalog.create(NAME, SCHEMA)
    assert len(await files(objects)) == 2


async def test_ids_are_given_anew_only_where_asked(catalog: Catalog) -> None:
    inner = {"type": "struct", "fields": [field(0, "x", "int")]}
    schema = {"type": "struct", "fields": [field(5, "outer", inner), field(9, "text")]}
    spec = {"fields": [{"source-id": 9, "field-id": 2000, "transform": "identity", "name": "text"}]}
    fresh = (await catalog.create(NAME, schema, spec=spec, fresh_ids=True)).metadata
    assert [one["id"] for one in fresh["schemas"][0]["fields"]] == [1, 2]
    assert fresh["schemas"][0]["fields"][0]["type"]["fields"][0]["id"] == 3
    assert fresh["partition-specs"][0]["fields"][0]["source-id"] == 2
    assert fresh["partition-specs"][0]["fields"][0]["field-id"] == 1000
    kept = (await catalog.create(OTHER, schema, spec=spec)).metadata
    assert [one["id"] for one in kept["schemas"][0]["fields"]] == [5, 9]
    assert kept["partition-specs"][0]["fields"][0]["field-id"] == 2000


async def test_a_refused_commit_leaves_nothing(catalog: Catalog, objects: MemoryStore) -> None:
    table = await catalog.create(NAME, SCHEMA)
    before = await files(objects)
    for requirement in (AssertRefSnapshotId("main", 7), AssertTableUuid("x"), AssertCreate()):
        with pytest.raises(CommitRefused, match="requirement failed"):
            await catalog.commit(NAME, [requirement], append(1, 1))
    with pytest.raises(NoSuchTable):
        await catalog.commit(OTHER, [], append(1, 1))
    with pytest.raises(Rejected):
        await catalog.commit(NAME, [AssertTableUuid(table.metadata["table-uuid"])], [u.SetCurrentSchema(4)])
    assert await files(objects) == before
    assert await head(catalog) == -1


async def test_who_has_an_old_clock_can_commit_too(catalog: Catalog) -> None:
    """Behind that of the one who committed last: the table's times do not go back."""
    await catalog.create(NAME, SCHEMA)
    ahead = snapshot(1, 1, at_ms=catalog.clock.now_ms() + 30 * 60_000)
    await catalog.commit(NAME, [], [u.AddSnapshot(ahead), u.SetSnapshotRef("main", "branch", 1)])
    changed = await catalog.commit(NAME, [], [u.SetProperties({"owner": "somebody"})])
    assert changed.metadata["last-updated-ms"] == ahead["timestamp-ms"]


async def test_of_many_commits_to_one_head_one_wins(server: MemoryServer, objects: MemoryStore) -> None:
    catalogs = [catalog_over(server.client(), objects, seed) for seed in range(8)]
    await catalogs[0].start()
    await catalogs[0].create(NAME, SCHEMA)
    answers = await asyncio.gather(
        *(one.commit(NAME, [AssertRefSnapshotId("main")], append(10 + place, 1)) for place, one in enumerate(catalogs)),
        return_exceptions=True,
    )
    won = [place for place, answer in enumerate(answers) if not isinstance(answer, Exception)]
    assert len(won) == 1
    assert all(isinstance(answer, CommitRefused) for place, answer in enumerate(answers) if place not in won)
    assert await head(catalogs[0]) == 10 + won[0]
    assert len(await files(objects)) == 2  # what the losers wrote is gone


async def test_commits_that_do_not_meet_all_get_in(server: MemoryServer, objects: MemoryStore) -> None:
    catalogs = [catalog_over(server.client(), objects, seed) for seed in range(5)]
    await catalogs[0].start()
    await catalogs[0].create(NAME, SCHEMA)
    changes = [u.SetProperties({f"p{place}": "x"}) for place in range(5)]
    await asyncio.gather(*(one.commit(NAME, [], [change]) for one, change in zip(catalogs, changes, strict=True)))
    assert len((await catalogs[0].load(NAME)).metadata["properties"]) == 5
    assert len(await files(objects)) == 6


async def test_an_answer_that_was_lost(catalog: Catalog, store: Doubtful, objects: MemoryStore) -> None:
    await catalog.create(NAME, SCHEMA)
    store.lose = "after"
    assert (await catalog.commit(NAME, [], append(1, 1))).metadata["current-snapshot-id"] == 1
    before = await files(objects)
    store.lose = "before"
    with pytest.raises(CommitUnknown):
        await catalog.commit(NAME, [], append(2, 2, 1))
    assert len(await files(objects)) == len(before) + 1  # it may still arrive
    store.lose = "refused"
    with pytest.raises(Unavailable, match="nobody there"):
        await catalog.commit(NAME, [], append(2, 2, 1))
    assert len(await files(objects)) == len(before) + 1
    assert (await catalog.commit(NAME, [AssertRefSnapshotId("main", 1)], append(2, 2, 1))).metadata["refs"]


class Overtaken(Doubtful):
    """Its next put takes effect, is followed by somebody else's commit, and is never answered."""

    overtake: Catalog | None = None

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        overtake, self.overtake = self.overtake, None
        done = await super().put(puts)
        if overtake is None:
            return done
        await overtake.commit(NAME, [], [u.SetProperties({"later": "x"})])
        return [Uncertain("no answer") for _ in puts]


async def test_a_lost_answer_is_found_in_the_log_of_files(server: MemoryServer, objects: MemoryStore) -> None:
    store = Overtaken(server)
    catalog, other = catalog_over(store, objects), catalog_over(server.client(), objects, seed=2)
    await catalog.start()
    await catalog.create(NAME, SCHEMA)
    store.overtake = other
    committed = await catalog.commit(NAME, [AssertRefSnapshotId("main")], append(1, 1))
    assert committed.metadata["current-snapshot-id"] == 1
    assert (await catalog.load(NAME)).metadata["properties"] == {"later": "x"}


class OvertakenTwice(Overtaken):
    """And by two more, after whom nobody remembers it."""

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        overtake = self.overtake
        done = await super().put(puts)
        if overtake is not None:
            await overtake.commit(NAME, [], [u.SetProperties({"later": "y"})])
        return done


async def test_a_log_of_files_that_is_too_short_proves_nothing(server: MemoryServer, objects: MemoryStore) -> None:
    store = OvertakenTwice(server)
    catalog, other = catalog_over(store, objects), catalog_over(server.client(), objects, seed=2)
    await catalog.start()
    await catalog.create(NAME, SCHEMA, properties={"write.metadata.previous-versions-max": "1"})
    store.overtake = other
    with pytest.raises(CommitUnknown):
        await catalog.commit(NAME, [AssertRefSnapshotId("main")], append(1, 1))
    assert await head(catalog) == 1, "it was made: who hears that it was refused would make it twice"


async def test_a_create_whose_answer_was_lost_keeps_its_file(catalog: Catalog, store: Doubtful) -> None:
    store.lose = "before"
    with pytest.raises(CommitUnknown):
        await catalog.create(NAME, SCHEMA)
    assert not await catalog.exists(NAME)
    await catalog.create(NAME, SCHEMA)


async def test_staged(catalog: Catalog, objects: MemoryStore) -> None:
    staged = await catalog.stage(NAME, SCHEMA)
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
        *append(1, 1),
    ]
    with pytest.raises(Rejected, match="needs a location"):
        await catalog.commit(NAME, [AssertCreate()], made[:-3])
    table = await catalog.commit(NAME, [AssertCreate()], made)
    assert table.metadata["table-uuid"] == staged["table-uuid"]
    assert await head(catalog) == 1
    with pytest.raises(CommitRefused, match="exists"):
        await catalog.commit(NAME, [AssertCreate()], made)
    with pytest.raises(Rejected, match="cannot meet"):
        await catalog.commit(OTHER, [AssertCreate(), AssertRefSnapshotId("main")], made)


async def test_old_metadata_files_go_where_that_is_asked(catalog: Catalog, objects: MemoryStore) -> None:
    asked = {"write.metadata.previous-versions-max": "2", "write.metadata.delete-after-commit.enabled": "true"}
    await catalog.create(NAME, SCHEMA, properties=asked)
    for number in range(5):
        await catalog.commit(NAME, [], [u.SetProperties({"n": str(number)})])
    assert len(await files(objects)) == 3
    await catalog.commit(NAME, [], [u.RemoveProperties(["write.metadata.delete-after-commit.enabled"])])
    assert len(await files(objects)) == 4


async def test_who_looked_before_an_old_metadata_file_went_commits_to_the_new_one(
    server: MemoryServer, objects: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    one, two = (catalog_over(server.client(), objects, seed) for seed in (1, 2))
    await one.start()
    table_id = (await one.create(NAME, SCHEMA, properties=properties)).table_id
    real, old = two.pointers.find_id, await two.pointers.find_id(table_id)
    for number in range(3):
        await one.commit(NAME, [], [u.SetProperties({"n": str(number)})])

    async def before(table_id: str, *, confirmed: bool = False) -> Found:
        return await real(table_id, confirmed=True) if confirmed else old

    monkeypatch.setattr(two.pointers, "find_id", before)
    changed = await two.commit(table_id, [], [u.SetProperties({"m": "1"})])
    assert (changed.metadata["properties"]["n"], changed.metadata["properties"]["m"]) == ("2", "1")


async def test_gzip(catalog: Catalog, objects: MemoryStore) -> None:
    table = await catalog.create(NAME, SCHEMA, properties={"write.metadata.compression-codec": "gzip"})
    assert table.metadata_location.endswith(".gz.metadata.json")
    stored = bytes(await objects.get(table.metadata_location.removeprefix(f"{ROOT}/")))
    assert json.loads(gzip.decompress(stored)) == msgspec.json.decode(table.file.raw)
    fresh = catalog_over(catalog.pointers._store, objects)  # with an empty cache
    assert (await fresh.load(NAME)).metadata == table.metadata


async def test_a_damaged_or_missing_file_is_named(catalog: Catalog, objects: MemoryStore) -> None:
    table = await catalog.create(NAME, SCHEMA)
    key = table.metadata_location.removeprefix(f"{ROOT}/")
    for damaged in (b"{", b"[]", b'{"format-version":9}', gzip.compress(b"{}")[:-3], b"[" * 100_000):
        await objects.put(key, [damaged])
        with pytest.raises(Corrupt, match="orders"):
            _ = (await catalog_over(catalog.pointers._store, objects).load(NAME)).metadata
    await objects.delete([key])
    with pytest.raises(Corrupt, match="missing"):
        await catalog_over(catalog.pointers._store, objects).load(NAME)


async def test_a_metadata_file_that_was_mended_is_read_again(catalog: Catalog, objects: MemoryStore) -> None:
    table = await catalog.create(NAME, SCHEMA)
    key = catalog.locations.key_of(table.metadata_location)
    good = bytes(await objects.get(key))
    reader = catalog_over(catalog.pointers._store, objects)
    await objects.put(key, [good[:-1]])
    with pytest.raises(Corrupt, match="damaged"):
        _ = (await reader.load(NAME)).metadata
    await objects.put(key, [good])
    assert (await reader.load(NAME)).metadata == table.metadata


async def test_register(catalog: Catalog, objects: MemoryStore) -> None:
    table = await catalog.create(NAME, SCHEMA)
    place = table.metadata_location
    with pytest.raises(Rejected, match="overlap"):
        await catalog.register(OTHER, place)
    await catalog.drop(NAME)
    again = await catalog.register(OTHER, place.replace("s3://", "s3a://"))
    assert again.metadata == table.metadata
    for wrong, why in [
        ("s3://elsewhere/x.metadata.json", "not under the storage root"),
        (f"{ROOT}/../x.metadata.json", "segment"),
        (f"{ROOT}/wal/segment", "not called like"),
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


async def test_a_commit_beside_a_drop_leaves_no_file(
    catalog: Catalog, objects: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest metadata file of a dropped table is the one that was its last, for who registers it again."""
    table = await catalog.create(NAME, SCHEMA)
    move = catalog.pointers.move

    async def too_late(found: Found, metadata_location: str, location: str) -> Found:
        await catalog.drop(NAME)
        return await move(found, metadata_location, location)

    monkeypatch.setattr(catalog.pointers, "move", too_late)
    with pytest.raises(NoSuchTable, match="dropped meanwhile"):
        await catalog.commit(NAME, [], append(1, 1))
    names = [catalog.locations.url_of(info.key) async for page in objects.walk("") for info in page]
    assert names == [table.metadata_location]


async def _elsewhere(objects: MemoryStore, metadata: dict[str, object]) -> str:
    copy = {**metadata, "location": f"{ROOT}/mine/t"}
    await objects.put("mine/t/metadata/00007-x.metadata.json", [msgspec.json.encode(copy)])
    return f"{ROOT}/mine/t/metadata/00007-x.metadata.json"


@pytest.mark.parametrize("place", ["s3://elsewhere/t", f"{ROOT}/wal/t", ROOT, f"{ROOT}/a/../../b", "nonsense"])
async def test_a_location_outside_is_refused(catalog: Catalog, place: str) -> None:
    with pytest.raises(Rejected):
        await catalog.create(NAME, SCHEMA, location=place)
    await catalog.create(NAME, SCHEMA)
    with pytest.raises(Rejected):
        await catalog.commit(NAME, [], [u.SetLocation(place)])
    with pytest.raises(Rejected):
        await catalog.commit(NAME, [], [u.SetProperties({"write.metadata.path": place})])


async def test_tables_do_not_share_a_folder(catalog: Catalog) -> None:
    table = await catalog.create(NAME, SCHEMA, location=f"{ROOT}/mine/orders/")
    assert table.metadata["location"] == f"{ROOT}/mine/orders"
    for place in (f"{ROOT}/mine", f"{ROOT}/mine/orders", f"{ROOT}/mine/orders/inner"):
        with pytest.raises(Rejected, match="overlap"):
            await catalog.create(OTHER, SCHEMA, location=place)
    await catalog.commit(NAME, [], [u.SetLocation(f"{ROOT}/mine/orders/deeper")])


async def test_a_topics_table_has_the_topics_id(catalog: Catalog, objects: MemoryStore) -> None:
    table = await catalog.create(NAME, SCHEMA, topic_id="f" * 32)
    assert (table.table_id, table.topic_id) == ("f" * 32, "f" * 32)
    await catalog.rename(NAME, OTHER)
    loaded = await catalog.load_id("f" * 32)
    assert (loaded.name, loaded.topic_id) == (OTHER, "f" * 32)
    await catalog.commit("f" * 32, [AssertRefSnapshotId("main")], append(1, 1))
    assert await head(catalog, OTHER) == 1
    with pytest.raises(TableExists):
        await catalog.create(NAME, SCHEMA, topic_id="f" * 32)
    with pytest.raises(Rejected, match="history of a topic"):
        await catalog.register(OTHER, await _elsewhere(objects, table.metadata), overwrite=True)
    await catalog.rename("f" * 32, NAME)
    await catalog.create(OTHER, SCHEMA)
    await catalog.drop("f" * 32)
    assert await catalog.exists(OTHER)
    with pytest.raises(NoSuchTable):
        await catalog.load_id("f" * 32)
    with pytest.raises(NoSuchTable):
        await catalog.rename("f" * 32, NAME)
    await catalog.create(NAME, SCHEMA, topic_id="f" * 32)


async def test_drop_keeps_the_files_and_purge_removes_them(
    catalog: Catalog, store: Doubtful, objects: MemoryStore
) -> None:
    await objects.put("wal/x", [b"not yours"])
    kept = await catalog.create(NAME, SCHEMA)
    await catalog.drop(NAME)
    gone = await catalog.create(NAME, SCHEMA)
    folder = gone.metadata["location"].removeprefix(f"{ROOT}/")
    for number in range(2500):
        await objects.put(f"{folder}/data/{number}.parquet", [b"x"])
    await catalog.drop(NAME, purge=True)
    assert not await catalog.exists(NAME)
    purging = Purging(catalog, store, objects)
    purging.start()
    await asyncio.sleep(0.1)
    await purging.close()
    assert [found async for found in catalog.pointers.all()] == []
    assert await files(objects) == [kept.metadata_location.removeprefix(f"{ROOT}/"), "wal/x"]


async def test_a_purge_leaves_what_another_table_has(catalog: Catalog, store: Doubtful, objects: MemoryStore) -> None:
    await catalog.create(NAME, SCHEMA, location=f"{ROOT}/mine/a")
    await catalog.drop(NAME, purge=True)
    await catalog.create(OTHER, SCHEMA)
    found = await catalog.pointers.find(OTHER)
    await catalog.pointers.move(found, found.table.metadata_location, f"{ROOT}/mine")
    before = await files(objects)
    assert await Purging(catalog, store, objects).purge() == 1
    assert await files(objects) == before


class Hands:
    """A clock."""

    def __init__(self) -> None:
        self.ms = 1_800_000_000_000

    def now_ms(self) -> int:
        return self.ms


async def test_what_is_written_into_the_folder_of_a_purged_table_goes_a_day_later(objects: MemoryStore) -> None:
    """By a driver that was killed before its commit could find out."""
    clock = Hands()
    store = MetadataInMemory(MemoryServer(clock))
    catalog = catalog_over(store, objects)
    await catalog.start()
    places = []
    for _ in range(2):  # a topic's table has the topic's id, also when it is made anew
        table = await catalog.create(NAME, SCHEMA, topic_id="f" * 32)
        places.append(table.metadata["location"].removeprefix(f"{ROOT}/"))
        await catalog.drop(NAME, purge=True)
        assert await Purging(catalog, store, objects).purge() == 1
    third = await catalog.create(NAME, SCHEMA, topic_id="f" * 32)
    kept = third.metadata_location.removeprefix(f"{ROOT}/")
    late = [f"{place}/data/partition=0/late.parquet" for place in places]
    for file in late:
        await objects.put(file, [b"x"])
    clock.ms += LINGER_MS
    assert await Purging(catalog, store, objects).purge() == 0
    assert await files(objects) == sorted([kept, *late])  # somebody may still be writing
    clock.ms += 1
    assert await Purging(catalog, store, objects).purge() == 0
    assert await files(objects) == [kept]
    assert (await store.scan(keys.PURGED)).records == []


async def test_a_table_that_lies_where_a_purged_one_was_is_left_alone(objects: MemoryStore) -> None:
    clock = Hands()
    store = MetadataInMemory(MemoryServer(clock))
    catalog = catalog_over(store, objects)
    await catalog.start()
    await catalog.create(NAME, SCHEMA, location=f"{ROOT}/mine/a")
    await catalog.drop(NAME, purge=True)
    assert await Purging(catalog, store, objects).purge() == 1
    table = await catalog.create(OTHER, SCHEMA, location=f"{ROOT}/mine/a/b")
    clock.ms += 2 * LINGER_MS
    await Purging(catalog, store, objects).purge()
    assert await files(objects) == [table.metadata_location.removeprefix(f"{ROOT}/")]


@pytest.mark.parametrize("name", ["", "x" * 256, "a\x1fb", "a\nb", "\ud800", "ü" * 128])
def test_names_are_bounded(name: str) -> None:
    with pytest.raises(Rejected):
        check_table_name(("default",), name)
    with pytest.raises(Rejected):
        check_table_name((name,), "t")
    with pytest.raises(Rejected):
        check_table_name(("n",) * 9, "t")


async def test_memory_is_bounded(catalog: Catalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("lakestream.catalog.files.CACHE_BYTES_MAX", 20_000)
    await catalog.create(NAME, SCHEMA)
    for number in range(1, 60):
        await catalog.commit(NAME, [], append(number, number, number - 1 or None))
    assert catalog._files._cached_bytes <= 20_000
    assert sum(len(raw) for raw in catalog._files._cache.values()) == catalog._files._cached_bytes
    assert await head(catalog) == 59


async def test_a_snapshot_of_another_branch_is_no_conflict_of_main(catalog: Catalog) -> None:
    await catalog.create(NAME, SCHEMA)
    await catalog.commit(NAME, [], append(1, 1))
    aside: list[u.Update] = [u.AddSnapshot(snapshot(2, 2, 1)), u.SetSnapshotRef("b", "branch", 2)]
    await catalog.commit(NAME, [AssertRefSnapshotId("b")], aside)
    with pytest.raises(CommitRefused, match="sequence number"):
        await catalog.commit(NAME, [AssertRefSnapshotId("main", 1)], append(3, 2, 1))
    await catalog.commit(NAME, [AssertRefSnapshotId("main", 1)], append(3, 3, 1))
