"""Names follow topics, tables follow ids: what a new topic of an old name gets, and what becomes of the old one."""

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.unit.catalog.tables import SCHEMA, catalog_over
from tests.unit.catalog.topic import TOPIC, TOPIC_ID, files_of, moved, topic_table

from lakestream.catalog.append import append
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.errors import NoSuchTable, TableAltered, TableExists
from lakestream.catalog.names import NAME_BYTES_MAX, TableName
from lakestream.catalog.next_offsets import LAST_COMMIT, NEXT_OFFSETS, next_offsets, parsed, text_of
from lakestream.catalog.purge import Purging
from lakestream.catalog.topic_layout import iceberg_schema
from lakestream.catalog.topic_tables import ensure_table, topic_deleted
from lakestream.catalog.updates import RemoveProperties, RemoveSnapshots, SetProperties, Update
from lakestream.clock import SeededIds, SystemClock
from lakestream.errors import Rejected
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.topics import Topic, Topics
from lakestream.storage.memory import MemoryStore as ObjectsInMemory
from lakestream.testing.faults import CALM, FaultyMetadata, Line
from lakestream.testing.simulation import SimClock, SimLoop, simulate

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


async def test_a_table_is_made_once_for_a_topic(catalog: Catalog) -> None:
    made = await ensure_table(catalog, TOPIC, TOPIC_ID, {})
    assert (made.table_id, made.topic_id, made.name) == (TOPIC_ID, TOPIC_ID, NAME)
    metadata = made.metadata
    assert metadata["schemas"][0]["fields"] == iceberg_schema()["fields"]
    assert metadata["partition-specs"][0]["fields"][0]["source-id"] == 3
    assert [order["order-id"] for order in metadata["sort-orders"]] == [0, 1], (
        "unsorted, which Spark looks for, and ours"
    )
    assert metadata["sort-orders"][1]["fields"][0]["source-id"] == 4
    assert metadata["default-sort-order-id"] == 1
    assert metadata["format-version"] == 2
    assert metadata["properties"][NEXT_OFFSETS] == "{}"
    assert metadata["properties"]["lakestream.topic-id"] == TOPIC_ID
    again = await ensure_table(catalog, "whatever", TOPIC_ID, {})
    assert again.metadata_location == made.metadata_location


async def test_a_table_goes_where_its_topic_wants_it(catalog: Catalog) -> None:
    made = await ensure_table(catalog, TOPIC, TOPIC_ID, {"lakestream.table.namespace": "shop.raw"})
    assert made.name == TableName(("shop", "raw"), TOPIC)
    with pytest.raises(Rejected):
        await ensure_table(catalog, TOPIC, NEW_ID, {"lakestream.table.namespace": "shop..raw"})


async def test_a_renamed_table_is_still_the_topics(catalog: Catalog) -> None:
    await topic_table(catalog)
    await catalog.rename(TOPIC_ID, TableName(("default",), "mine"))
    assert (await ensure_table(catalog, TOPIC, TOPIC_ID, {})).name.name == "mine"


async def test_an_old_table_makes_room_for_a_new_topic(catalog: Catalog) -> None:
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


async def test_room_is_made_also_where_the_short_name_is_taken(catalog: Catalog) -> None:
    await topic_table(catalog)
    await catalog.create(TableName(("default",), "orders_01234567"), SCHEMA)
    await ensure_table(catalog, TOPIC, NEW_ID, {})
    assert (await catalog.load_id(TOPIC_ID)).name.name == f"orders_{TOPIC_ID}"


async def test_the_name_of_an_old_table_fits(catalog: Catalog) -> None:
    long = "x" * 249
    await ensure_table(catalog, long, TOPIC_ID, {})
    await ensure_table(catalog, long, NEW_ID, {})
    assert len((await catalog.load_id(TOPIC_ID)).name.name) <= NAME_BYTES_MAX


async def test_a_table_of_somebody_else_stays_where_it_is(catalog: Catalog) -> None:
    await catalog.create(NAME, SCHEMA)
    with pytest.raises(TableExists, match=r"default\.orders exists and is no topic's: .*lakestream\.table\.namespace"):
        await ensure_table(catalog, TOPIC, TOPIC_ID, {})


@pytest.mark.parametrize("seed", range(20))
def test_many_make_it_at_once(seed: int) -> None:
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


async def test_a_deleted_topic_takes_its_table_along_if_it_is_to(server: MemoryServer) -> None:
    objects = ObjectsInMemory(SystemClock())
    catalog = catalog_over(server.client(), objects)
    await topic_table(catalog)
    await topic_deleted(catalog, TOPIC_ID, drop=True)
    await topic_deleted(catalog, TOPIC_ID, drop=True)
    with pytest.raises(NoSuchTable):
        await catalog.load_id(TOPIC_ID)
    await Purging(catalog, server.client(), objects).purge()
    assert [page async for page in objects.walk("")] == []


async def test_a_table_that_comes_after_its_topics_end_goes_too(server: MemoryServer) -> None:
    """The pipeline makes it while somebody deletes the topic, and looks for a table a moment too early."""
    catalog, topics = catalog_over(server.client()), Topics(server.client())
    await catalog.start()
    topic = await topics.create(TOPIC, Topic(TOPIC_ID, 1, {"lakestream.table.on.delete": "drop"}))

    async def overtaken(going: Topic) -> None:
        await topic_deleted(catalog, going.topic_id, drop=True)
        with pytest.raises(NoSuchTable, match="is being deleted"):
            await ensure_table(catalog, TOPIC, TOPIC_ID, topic.settings)

    await topics.delete(TOPIC, before_name=overtaken)
    assert not await catalog.exists(NAME)


# A dropped table that is registered again


@pytest.fixture
async def dropped(catalog: Catalog, server: MemoryServer) -> str:
    """Where the newest metadata file is of a topic's table that somebody dropped."""
    await Topics(server.client()).create(TOPIC, Topic(TOPIC_ID, 1))
    table = await topic_table(catalog)
    ranges = moved((0, 0, 5))
    last = await append(catalog, table, files_of(table, ranges), ranges)
    await catalog.drop(NAME)
    return last.metadata_location


async def test_a_dropped_table_that_is_registered_again_is_its_topics(catalog: Catalog, dropped: str) -> None:
    back = await catalog.register(NAME, dropped)
    assert (back.table_id, back.topic_id) == (TOPIC_ID, TOPIC_ID)
    found = await catalog.load_id(TOPIC_ID)
    assert (found.name, next_offsets(found.metadata)) == (NAME, {0: 5})
    with pytest.raises(TableExists, match=r"topic orders has its table already: default\.orders"):
        await catalog.register(TableName(("default",), "copy"), dropped)


async def test_it_may_be_called_otherwise(catalog: Catalog, dropped: str) -> None:
    mine = TableName(("default",), "mine")
    assert (await catalog.register(mine, dropped, overwrite=True)).table_id == TOPIC_ID
    assert (await ensure_table(catalog, TOPIC, TOPIC_ID, {})).name == mine


async def test_what_an_older_topic_left_makes_room_for_it(catalog: Catalog, dropped: str) -> None:
    await catalog.create(NAME, SCHEMA, topic_id=NEW_ID)
    assert (await catalog.register(NAME, dropped)).table_id == TOPIC_ID
    assert (await catalog.load_id(NEW_ID)).name.name == "orders_fedcba98"


@pytest.mark.parametrize("overwrite", [False, True])
async def test_a_table_of_somebody_else_does_not_make_room(catalog: Catalog, dropped: str, overwrite: bool) -> None:
    await catalog.create(NAME, SCHEMA)
    with pytest.raises(TableExists, match="no topic's: rename it"):
        await catalog.register(NAME, dropped, overwrite=overwrite)
    await catalog.create(TableName(("default",), "mine"), SCHEMA)
    with pytest.raises(TableExists):
        await catalog.register(TableName(("default",), "mine"), dropped, overwrite=overwrite)


async def test_of_a_topic_that_is_gone_it_is_a_table_like_others(
    catalog: Catalog, server: MemoryServer, dropped: str
) -> None:
    await Topics(server.client()).delete(TOPIC)
    back = await catalog.register(NAME, dropped)
    assert back.topic_id == ""
    assert back.table_id != TOPIC_ID


async def test_it_does_not_come_back_beside_the_end_of_its_topic(
    catalog: Catalog, server: MemoryServer, dropped: str
) -> None:
    async def beside(_: Topic) -> None:
        with pytest.raises(NoSuchTable, match="is being deleted"):
            await catalog.register(NAME, dropped)

    await Topics(server.client()).delete(TOPIC, before_name=beside)
    assert not await catalog.exists(NAME)


# How far it is


@pytest.mark.parametrize("text", ["", "null", "[1]", '{"a": 1}', '{"0": "1"}', '{"0": -1}', '{"-1": 5}', '{"0": 1.5}'])
def test_offsets_that_make_no_sense_are_not_guessed(text: str) -> None:
    with pytest.raises(TableAltered, match="next-offsets"):
        parsed(text)


def test_offsets_as_text() -> None:
    assert text_of({10: 5, 2: 2**63 - 1}) == '{"2":9223372036854775807,"10":5}'
    assert parsed(text_of({10: 5, 2: 2**63 - 1})) == {10: 5, 2: 2**63 - 1}


async def test_offsets_that_were_removed_are_those_of_the_snapshots(catalog: Catalog) -> None:
    table = await topic_table(catalog)
    ranges = moved((0, 0, 5))
    loaded = await append(catalog, table, files_of(table, ranges), ranges)

    async def altered(*updates: Update) -> dict[int, int]:
        return next_offsets((await catalog.commit(TOPIC_ID, [], updates)).metadata)

    assert await altered(RemoveProperties([NEXT_OFFSETS])) == {0: 5}
    assert await altered(RemoveProperties([LAST_COMMIT])) == {0: 5}
    with pytest.raises(TableAltered, match="rolled the table back"):
        await altered(SetProperties({NEXT_OFFSETS: '{"0": 4}'}))
    bare = {name: text for name, text in loaded.metadata["snapshots"][0]["summary"].items() if name != NEXT_OFFSETS}
    stripped = {**loaded.metadata, "properties": {}, "snapshots": [loaded.metadata["snapshots"][0] | {"summary": bare}]}
    with pytest.raises(TableAltered, match="set it again"):
        next_offsets(stripped)


async def test_a_table_that_lost_all_snapshots_stops(catalog: Catalog) -> None:
    table = await topic_table(catalog)
    ranges = moved((0, 0, 5))
    loaded = await append(catalog, table, files_of(table, ranges), ranges)
    gone = await catalog.commit(TOPIC_ID, [], [RemoveSnapshots([loaded.metadata["current-snapshot-id"]])])
    with pytest.raises(TableAltered, match="restore its snapshots from a backup, or delete the topic"):
        next_offsets(gone.metadata)
