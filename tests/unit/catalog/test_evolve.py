"""Columns of a topic's table grow in one commit, whoever else changes it meanwhile."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.unit.catalog.tables import catalog_over, field
from tests.unit.catalog.topic import TOPIC, TOPIC_ID, files_of, moved, topic_table

from lakestream.catalog.append import append
from lakestream.catalog.bound_columns import BOUND, bound_ids, text_of_ids
from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import TableAltered
from lakestream.catalog.evolve import SCHEMAS_MAX, evolve, with_value
from lakestream.catalog.shapes import Json, schema_of
from lakestream.catalog.topic_shape import check_columns
from lakestream.catalog.topic_tables import ensure_table, topic_deleted
from lakestream.catalog.updates import AddSchema, SetCurrentSchema, SetProperties
from lakestream.clock import SystemClock
from lakestream.errors import Conflict, Missing, Unavailable
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.memory import MemoryStore as MetadataInMemory
from lakestream.metadata.store import Put, Stored
from lakestream.schemas.columns import Column
from lakestream.schemas.growing import Grown, grown
from lakestream.schemas.shape import Field, Kind, Primitive, Struct
from lakestream.schemas.typing import Part
from lakestream.schemas.writers import Bound, Writer
from lakestream.storage.memory import MemoryStore

TYPED = {"lakestream.value.schema": "registry"}
INT, LONG, STRING = (Primitive(kind) for kind in (Kind.INT, Kind.LONG, Kind.STRING))


def struct(**fields: Primitive | Struct) -> Struct:
    return Struct(tuple(Field(name, kind) for name, kind in fields.items()))


class Growing:
    """By a shape."""

    def __init__(self, shape: Struct) -> None:
        self.shape = shape

    def __call__(self, columns: Sequence[Column], next_id: int) -> Grown:
        return grown(columns, self.shape, next_id)


@pytest.fixture
async def catalog() -> Catalog:
    catalog = catalog_over(MemoryServer(SystemClock()).client())
    await catalog.start()
    return catalog


def names(metadata: Json) -> list[str]:
    return [one["name"] for one in schema_of(metadata)["fields"]]


class Overtaken(MetadataInMemory):
    """Somebody commits twice right before the next move of a pointer, and has the table forget what was before."""

    other: Catalog | None = None

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        other, self.other = self.other, None
        if other is not None:
            for number in "01":
                properties = {"write.metadata.previous-versions-max": "1", "number": number}
                await other.commit(TOPIC_ID, [], [SetProperties(properties)])
        return await super().put(puts)


async def test_nobody_needs_to_know_who_made_it_so() -> None:
    """The log of files is too short to tell whether it was us."""
    server, objects = MemoryServer(SystemClock()), MemoryStore(SystemClock())
    store = Overtaken(server)
    catalog, other = catalog_over(store, objects), catalog_over(server.client(), objects, seed=2)
    await topic_table(catalog)
    store.other = other
    table, _ = await evolve(catalog, TOPIC_ID, Growing(struct(id=INT)))
    assert "id" in names(table.metadata)
    assert table.metadata["properties"]["number"] == "1"


async def alter(catalog: Catalog, fields: list[Json]) -> None:
    """As an engine does it."""
    schema = {"type": "struct", "fields": fields}
    await catalog.change(TOPIC_ID, lambda _: [AddSchema(schema), SetCurrentSchema(-1)])


async def test_a_typed_table_begins_with_the_stream_alone(catalog: Catalog) -> None:
    made = await ensure_table(catalog, TOPIC, TOPIC_ID, TYPED)
    assert names(made.metadata) == ["_stream"]
    assert made.metadata["last-column-id"] == 15
    check_columns(made.metadata)


async def test_columns_come_with_ids_of_their_own(catalog: Catalog) -> None:
    await ensure_table(catalog, TOPIC, TOPIC_ID, TYPED)
    made, what = await evolve(catalog, TOPIC_ID, Growing(struct(a=INT, b=struct(c=STRING))))
    assert names(made.metadata) == ["a", "b", "_stream"]
    assert what.bounds == (Bound(16), Bound(17, (Bound(18),)))
    assert made.metadata["last-column-id"] == 18
    assert made.metadata["properties"][BOUND] == "16-18"
    again, _ = await evolve(catalog, TOPIC_ID, Growing(struct(a=INT, b=struct(c=STRING))))
    assert again.metadata_location == made.metadata_location, "nothing was to be done"
    wider, _ = await evolve(catalog, TOPIC_ID, Growing(struct(a=LONG)))
    assert schema_of(wider.metadata)["fields"][0] == field(16, "a", "long")
    assert wider.metadata["properties"][BOUND] == "16-18"


async def test_files_of_before_are_still_committed_after(catalog: Catalog) -> None:
    loaded = await topic_table(catalog)
    await evolve(catalog, TOPIC_ID, Growing(struct(a=INT)))
    ranges = moved((0, 0, 5))
    now = await append(catalog, await catalog.load_id(TOPIC_ID), files_of(loaded, ranges), ranges)
    assert names(now.metadata) == ["value", "a", "_stream"]


async def test_what_others_add_meanwhile_is_seen(catalog: Catalog) -> None:
    loaded = await ensure_table(catalog, TOPIC, TOPIC_ID, TYPED)
    await alter(catalog, [*schema_of(loaded.metadata)["fields"], field(16, "theirs")])
    made, what = await evolve(catalog, TOPIC_ID, Growing(struct(a=INT)))
    assert names(made.metadata) == ["a", "_stream", "theirs"]
    assert what.bounds == (Bound(17),)
    await alter(catalog, [one for one in schema_of(made.metadata)["fields"] if one["name"] != "theirs"])
    check_columns((await catalog.load_id(TOPIC_ID)).metadata)


async def test_a_column_that_values_are_made_of_is_missed(catalog: Catalog) -> None:
    await ensure_table(catalog, TOPIC, TOPIC_ID, TYPED)
    made, _ = await evolve(catalog, TOPIC_ID, Growing(struct(a=INT, b=struct(c=STRING))))
    fields = schema_of(made.metadata)["fields"]
    renamed = [{**fields[0], "name": "z"}, *fields[1:]]
    await alter(catalog, renamed)
    check_columns((await catalog.load_id(TOPIC_ID)).metadata)
    without = [fields[0], {**fields[1], "type": {"type": "struct", "fields": [field(30, "new")]}}, fields[2]]
    await alter(catalog, without)
    with pytest.raises(TableAltered, match=r"column b\.c, which values are made of again, was dropped.* back to 2"):
        await evolve(catalog, TOPIC_ID, Growing(struct(d=INT)))


async def test_bytes_get_their_column_back(catalog: Catalog) -> None:
    await ensure_table(catalog, TOPIC, TOPIC_ID, TYPED)
    await evolve(catalog, TOPIC_ID, Growing(struct(value=INT)))
    made, _ = await evolve(catalog, TOPIC_ID, with_value)
    assert names(made.metadata) == ["value", "value_", "_stream"]
    assert schema_of(made.metadata)["fields"][1] == field(1, "value_", "binary")
    again, _ = await evolve(catalog, TOPIC_ID, with_value)
    assert again.metadata_location == made.metadata_location
    fields = schema_of(made.metadata)["fields"]
    await alter(catalog, [fields[0], fields[2]])
    with pytest.raises(TableAltered, match="column value was dropped"):
        check_columns((await catalog.load_id(TOPIC_ID)).metadata)


async def test_schemas_that_nobody_names_go(catalog: Catalog) -> None:
    await ensure_table(catalog, TOPIC, TOPIC_ID, TYPED)
    for number in range(SCHEMAS_MAX * 2):
        made, _ = await evolve(catalog, TOPIC_ID, Growing(struct(**{f"f{number}": INT})))
    assert len(made.metadata["schemas"]) <= SCHEMAS_MAX + 1
    assert len(names(made.metadata)) == SCHEMAS_MAX * 2 + 1


async def test_two_who_grow_at_once_add_a_column_once(catalog: Catalog) -> None:
    await ensure_table(catalog, TOPIC, TOPIC_ID, TYPED)
    growing = [Growing(struct(a=INT, b=INT)), Growing(struct(b=INT, c=INT)), Growing(struct(a=INT))]
    done = await asyncio.gather(*(evolve(catalog, TOPIC_ID, one) for one in growing))
    now = await catalog.load_id(TOPIC_ID)
    assert sorted(names(now.metadata)) == ["_stream", "a", "b", "c"]
    ids = {one["name"]: one["id"] for one in schema_of(now.metadata)["fields"]}
    for one, (_, made) in zip(growing, done, strict=True):
        assert made.bounds == tuple(Bound(ids[field.name]) for field in one.shape.fields)


async def test_writers_go_with_the_table() -> None:
    store = MemoryServer(SystemClock()).client()
    catalog = catalog_over(store)
    await catalog.start()
    await ensure_table(catalog, TOPIC, TOPIC_ID, TYPED)
    await catalog.writers.create(TOPIC_ID, Part.VALUE, Writer(1, "AVRO", "{}"))
    await topic_deleted(catalog, TOPIC_ID, drop=False)
    assert (await catalog.writers.get(TOPIC_ID, 1)).number == 1
    await topic_deleted(catalog, TOPIC_ID, drop=True)
    with pytest.raises(Missing):
        await catalog.writers.get(TOPIC_ID, 1)


@pytest.mark.parametrize("ids", [set(), {16}, {16, 17, 18, 20}, {1, 2_000_000}])
def test_ids_as_text(ids: set[int]) -> None:
    assert bound_ids({"properties": {BOUND: text_of_ids(ids)}}) == ids


@pytest.mark.parametrize("text", ["x", "16-", "-3", "1,,2", "9999999999"])
def test_ids_that_nobody_can_read_count_for_nothing(text: str) -> None:
    assert bound_ids({"properties": {BOUND: text}}) == frozenset()


async def test_a_property_of_others_is_not_believed_to_be_endless(catalog: Catalog) -> None:
    await ensure_table(catalog, TOPIC, TOPIC_ID, TYPED)
    made = await catalog.change(TOPIC_ID, lambda _: [SetProperties({BOUND: "1-999999999,5-999999999"})])
    assert len(bound_ids(made.metadata)) <= 100_000
