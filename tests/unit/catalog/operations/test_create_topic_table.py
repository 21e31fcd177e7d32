"""Tables of topics: created once, found by topic id, renamed when a new topic has the name, dropped, registered."""

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest
from tests.harness.catalog.iceberg_tables import SCHEMA, AcceptAll, catalog_over
from tests.harness.catalog.topic_tables import TOPIC, TOPIC_ID, files_of, moved, topic_table

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.errors import IncompatibleTable, NoSuchTable, TableExists
from lakestream.catalog.identifiers import NAME_BYTES_MAX, TableName
from lakestream.catalog.operations.append import append
from lakestream.catalog.operations.create_topic_table import ensure_table, topic_deleted
from lakestream.catalog.purge import PurgeTask
from lakestream.catalog.table_metadata.builder import NewTable
from lakestream.catalog.table_metadata.updates import RemoveProperties, RemoveSnapshots, SetProperties, Update
from lakestream.catalog.topic_table.columns import iceberg_schema
from lakestream.catalog.topic_table.offsets import LAST_COMMIT, NEXT_OFFSETS, next_offsets, parse_offsets, text_of
from lakestream.clock import SeededIds, SystemClock
from lakestream.errors import Rejected
from lakestream.metadata.claims import Claims
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.topics import Topic, Topics
from lakestream.model import PartitionId
from lakestream.storage.memory import MemoryObjectStore as ObjectsInMemory
from lakestream.testing.fault_injection import CALM, Line
from lakestream.testing.faulty_metadata import FaultyMetadata
from lakestream.testing.simulation import SimClock, SimLoop, simulate

LOG = PartitionId(TOPIC_ID, 0)
NEW_ID = "fedcba9876543210fedcba9876543210"
NAME = TableName(("default",), TOPIC)


@pytest.fixture
async def server() -> MemoryServer:
    return MemoryServer(SystemClock())


@pytest.fixture
async def catalog(server: MemoryServer) -> Catalog:
    catalog = catalog_over(server.client())
    await catalog.start()
    return catalog


async def test_table_of_a_topic_is_created_once(catalog: Catalog) -> None:
    made = await ensure_table(catalog, TOPIC, TOPIC_ID, {})
    assert (made.table_id, made.topic_id, made.name) == (TOPIC_ID, TOPIC_ID, NAME)
    metadata = made.metadata
    assert metadata["schemas"][0]["fields"] == iceberg_schema()["fields"]
    assert metadata["partition-specs"][0]["fields"][0]["source-id"] == 3
    assert [order["order-id"] for order in metadata["sort-orders"]] == [0, 1], (
        "unsorted, which Spark needs, and by offset"
    )
    assert metadata["sort-orders"][1]["fields"][0]["source-id"] == 4
    assert metadata["default-sort-order-id"] == 1
    assert metadata["format-version"] == 2
    assert metadata["properties"][NEXT_OFFSETS] == "{}"
    assert metadata["properties"]["lakestream.topic-id"] == TOPIC_ID
    again = await ensure_table(catalog, "whatever", TOPIC_ID, {})
    assert again.metadata_location == made.metadata_location


async def test_table_is_created_in_the_namespace_of_the_setting(catalog: Catalog) -> None:
    made = await ensure_table(catalog, TOPIC, TOPIC_ID, {"lakestream.table.namespace": "shop.raw"})
    assert made.name == TableName(("shop", "raw"), TOPIC)
    with pytest.raises(Rejected):
        await ensure_table(catalog, TOPIC, NEW_ID, {"lakestream.table.namespace": "shop..raw"})


async def test_renamed_table_still_belongs_to_the_topic(catalog: Catalog) -> None:
    await topic_table(catalog)
    await catalog.rename(TOPIC_ID, TableName(("default",), "mine"))
    assert (await ensure_table(catalog, TOPIC, TOPIC_ID, {})).name.name == "mine"


async def test_table_of_a_deleted_topic_is_renamed(catalog: Catalog) -> None:
    old = await topic_table(catalog)
    ranges = moved((0, 0, 5))
    await append(catalog, old, files_of(old, ranges), ranges)
    await topic_deleted(catalog, TOPIC_ID, drop=False)
    new = await ensure_table(catalog, TOPIC, NEW_ID, {})
    assert (new.name, next_offsets(new.metadata)) == (NAME, {})
    kept = await catalog.load(TableName(("default",), "orders_01234567"))
    assert kept.table_id == TOPIC_ID
    assert next_offsets(kept.metadata) == {0: 5}
    assert new.metadata["location"] != kept.metadata["location"]


async def test_full_topic_id_is_appended_when_the_short_name_exists(catalog: Catalog) -> None:
    await topic_table(catalog)
    await catalog.create(TableName(("default",), "orders_01234567"), NewTable(SCHEMA))
    await ensure_table(catalog, TOPIC, NEW_ID, {})
    assert (await catalog.load_id(TOPIC_ID)).name.name == f"orders_{TOPIC_ID}"


async def test_name_of_a_renamed_table_is_truncated(catalog: Catalog) -> None:
    long = "x" * 249
    await ensure_table(catalog, long, TOPIC_ID, {})
    await ensure_table(catalog, long, NEW_ID, {})
    assert len((await catalog.load_id(TOPIC_ID)).name.name) <= NAME_BYTES_MAX


async def test_table_of_no_topic_is_not_renamed(catalog: Catalog) -> None:
    await catalog.create(NAME, NewTable(SCHEMA))
    with pytest.raises(
        TableExists, match=r"default\.orders already exists and belongs to no topic: .*lakestream\.table\.namespace"
    ):
        await ensure_table(catalog, TOPIC, TOPIC_ID, {})


@pytest.mark.parametrize("seed", range(20))
def test_concurrent_creates_give_one_table(seed: int) -> None:
    async def scenario(loop: SimLoop) -> None:
        clock = SimClock(loop)
        server, objects = MemoryServer(clock), ObjectsInMemory(clock)
        world = catalog_over(server.client(), objects)
        await topic_table(world)

        def far(number: int) -> Coroutine[Any, Any, LoadedTable]:
            machine = loop.machine(f"m{number}")
            line = Line(loop, machine, "metadata", CALM, Counter())
            ids = SeededIds(random.Random(100 + number))
            catalog = Catalog(FaultyMetadata(server, line), objects, world.locations, clock, ids)
            return machine.call(ensure_table(catalog, TOPIC, NEW_ID, {}))

        made = await asyncio.gather(*(far(number) for number in range(4)))
        assert {one.metadata["table-uuid"] for one in made} == {made[0].metadata["table-uuid"]}
        assert (await world.load(NAME)).table_id == NEW_ID
        assert (await world.load_id(TOPIC_ID)).name.name == "orders_01234567"

    simulate(seed, scenario)


async def test_table_is_dropped_with_its_topic_when_the_setting_is_drop(server: MemoryServer) -> None:
    objects = ObjectsInMemory(SystemClock())
    catalog = catalog_over(server.client(), objects)
    await topic_table(catalog)
    await topic_deleted(catalog, TOPIC_ID, drop=True)
    await topic_deleted(catalog, TOPIC_ID, drop=True)
    with pytest.raises(NoSuchTable):
        await catalog.load_id(TOPIC_ID)
    await PurgeTask(catalog, server.client(), objects).purge()
    assert [page async for page in objects.walk("")] == []


async def test_table_created_after_the_topics_deletion_is_dropped(server: MemoryServer) -> None:
    """The deletion of the topic reads the table's record just before the pipeline creates it."""
    catalog, topics = catalog_over(server.client()), Topics(server.client())
    await catalog.start()
    topic = await topics.create(TOPIC, Topic(TOPIC_ID, 1, {"lakestream.table.on.delete": "drop"}))

    async def overtaken(going: Topic) -> None:
        await topic_deleted(catalog, going.topic_id, drop=True)
        with pytest.raises(NoSuchTable, match="is being deleted"):
            await ensure_table(catalog, TOPIC, TOPIC_ID, topic.settings)

    await topics.delete(TOPIC, before_name=overtaken)
    assert not await catalog.exists(NAME)


# Registration of a dropped table


@pytest.fixture
async def dropped(catalog: Catalog, server: MemoryServer) -> str:
    """Returns the location of the last metadata file of a dropped topic table."""
    await Topics(server.client()).create(TOPIC, Topic(TOPIC_ID, 1))
    table = await topic_table(catalog)
    ranges = moved((0, 0, 5))
    last = await append(catalog, table, files_of(table, ranges), ranges)
    claims = Claims(server.client())
    await claims.create_logs([LOG])
    await claims.advance_table_end(LOG, 5)
    await catalog.drop(NAME)
    return last.metadata_location


async def test_register_is_rejected_when_the_table_claims_records_of_the_log(
    catalog: Catalog, server: MemoryServer, dropped: str
) -> None:
    """A trim would delete the records between, which are only in the log."""
    back = await catalog.register(NAME, dropped)
    forged = await catalog.commit(TOPIC_ID, [], [SetProperties({NEXT_OFFSETS: '{"0":6}'})])
    await catalog.drop(NAME)
    with pytest.raises(Rejected, match="before offset 6 are in the table, but only those before 5 have left the log"):
        await catalog.register(NAME, forged.metadata_location, check=AcceptAll())
    assert (await catalog.register(NAME, back.metadata_location, check=AcceptAll())).table_id == TOPIC_ID
    await catalog.drop(NAME)
    assert (await catalog.register(NAME, forged.metadata_location)).table_id == TOPIC_ID


@pytest.mark.parametrize("has_property", [True, False])
async def test_register_is_rejected_when_a_snapshot_claims_records_of_the_log(
    catalog: Catalog, dropped: str, has_property: bool
) -> None:
    """Without the property the snapshot on `main` decides, and clients can move `main`."""
    key = catalog.locations.key_of(dropped)
    metadata = msgspec.json.decode(bytes(await catalog.objects.get(key)))
    old = metadata["snapshots"][-1]
    forged = {**old, "snapshot-id": 7, "summary": {**old["summary"], NEXT_OFFSETS: '{"0":1000}'}}
    metadata["snapshots"].append(forged)
    if not has_property:
        del metadata["properties"][NEXT_OFFSETS]
    place = dropped.replace(".metadata.json", "-forged.metadata.json")
    await catalog.objects.create(catalog.locations.key_of(place), [msgspec.json.encode(metadata)])
    with pytest.raises(Rejected, match="before offset 1000 are in the table, but only those before 5 have left"):
        await catalog.register(NAME, place, check=AcceptAll())


async def test_registered_table_belongs_to_its_topic_again(catalog: Catalog, dropped: str) -> None:
    back = await catalog.register(NAME, dropped)
    assert (back.table_id, back.topic_id) == (TOPIC_ID, TOPIC_ID)
    found = await catalog.load_id(TOPIC_ID)
    assert (found.name, next_offsets(found.metadata)) == (NAME, {0: 5})
    with pytest.raises(TableExists, match=r"topic orders already has a table: default\.orders"):
        await catalog.register(TableName(("default",), "copy"), dropped)


async def test_topic_table_may_be_registered_with_another_name(catalog: Catalog, dropped: str) -> None:
    mine = TableName(("default",), "mine")
    assert (await catalog.register(mine, dropped, overwrite=True)).table_id == TOPIC_ID
    assert (await ensure_table(catalog, TOPIC, TOPIC_ID, {})).name == mine


async def test_registration_renames_the_table_of_another_topic(catalog: Catalog, dropped: str) -> None:
    await catalog.create(NAME, NewTable(SCHEMA), topic_id=NEW_ID)
    assert (await catalog.register(NAME, dropped)).table_id == TOPIC_ID
    assert (await catalog.load_id(NEW_ID)).name.name == "orders_fedcba98"


@pytest.mark.parametrize("overwrite", [False, True])
async def test_register_is_rejected_when_a_table_of_no_topic_has_the_name(
    catalog: Catalog, dropped: str, overwrite: bool
) -> None:
    await catalog.create(NAME, NewTable(SCHEMA))
    with pytest.raises(TableExists, match="no topic: rename it"):
        await catalog.register(NAME, dropped, overwrite=overwrite)
    await catalog.create(TableName(("default",), "mine"), NewTable(SCHEMA))
    with pytest.raises(TableExists):
        await catalog.register(TableName(("default",), "mine"), dropped, overwrite=overwrite)


async def test_table_of_a_deleted_topic_is_registered_as_an_ordinary_table(
    catalog: Catalog, server: MemoryServer, dropped: str
) -> None:
    await Topics(server.client()).delete(TOPIC)
    back = await catalog.register(NAME, dropped)
    assert back.topic_id == ""
    assert back.table_id != TOPIC_ID


async def test_register_fails_when_the_topic_is_deleted_concurrently(
    catalog: Catalog, server: MemoryServer, dropped: str
) -> None:
    async def beside(_: Topic) -> None:
        with pytest.raises(NoSuchTable, match="is being deleted"):
            await catalog.register(NAME, dropped)

    await Topics(server.client()).delete(TOPIC, before_name=beside)
    assert not await catalog.exists(NAME)


# Next offsets


@pytest.mark.parametrize("text", ["", "null", "[1]", '{"a": 1}', '{"0": "1"}', '{"0": -1}', '{"-1": 5}', '{"0": 1.5}'])
def test_invalid_next_offsets_are_incompatible(text: str) -> None:
    with pytest.raises(IncompatibleTable, match="next-offsets"):
        parse_offsets(text)


def test_next_offsets_round_trip() -> None:
    assert text_of({10: 5, 2: 2**63 - 1}) == '{"2":9223372036854775807,"10":5}'
    assert parse_offsets(text_of({10: 5, 2: 2**63 - 1})) == {10: 5, 2: 2**63 - 1}


async def test_removed_next_offsets_are_read_from_snapshots(catalog: Catalog) -> None:
    table = await topic_table(catalog)
    ranges = moved((0, 0, 5))
    loaded = await append(catalog, table, files_of(table, ranges), ranges)

    async def offsets_after(*updates: Update) -> dict[int, int]:
        return next_offsets((await catalog.commit(TOPIC_ID, [], updates)).metadata)

    assert await offsets_after(RemoveProperties([NEXT_OFFSETS])) == {0: 5}
    assert await offsets_after(RemoveProperties([LAST_COMMIT])) == {0: 5}
    with pytest.raises(IncompatibleTable, match="the table was rolled back"):
        await offsets_after(SetProperties({NEXT_OFFSETS: '{"0": 4}'}))
    bare = {name: text for name, text in loaded.metadata["snapshots"][0]["summary"].items() if name != NEXT_OFFSETS}
    stripped = {**loaded.metadata, "properties": {}, "snapshots": [loaded.metadata["snapshots"][0] | {"summary": bare}]}
    with pytest.raises(IncompatibleTable, match="set it again"):
        next_offsets(stripped)


async def test_table_without_snapshots_is_incompatible(catalog: Catalog) -> None:
    table = await topic_table(catalog)
    ranges = moved((0, 0, 5))
    loaded = await append(catalog, table, files_of(table, ranges), ranges)
    gone = await catalog.commit(TOPIC_ID, [], [RemoveSnapshots([loaded.metadata["current-snapshot-id"]])])
    with pytest.raises(IncompatibleTable, match="restore its snapshots from a backup, or delete the topic"):
        next_offsets(gone.metadata)
