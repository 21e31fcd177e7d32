"""Evolution of a topic's table in one commit, with concurrent commits."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.harness.catalog.iceberg_tables import catalog_over, field
from tests.harness.catalog.topic_tables import TOPIC, TOPIC_ID, files_of, moved, topic_table

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import IncompatibleTable
from lakestream.catalog.operations.append import append
from lakestream.catalog.operations.create_topic_table import ensure_table, topic_deleted
from lakestream.catalog.operations.update_schema import SCHEMAS_MAX, evolve, with_value_column
from lakestream.catalog.table_metadata.json_model import Json, schema_of
from lakestream.catalog.table_metadata.updates import AddSchema, SetCurrentSchema, SetProperties
from lakestream.catalog.topic_table.checks import check_columns
from lakestream.catalog.topic_table.properties import BOUND, bound_ids, text_of_ids
from lakestream.clock import SystemClock
from lakestream.errors import Conflict, Missing, Unavailable
from lakestream.metadata.memory import MemoryMetadataStore as MetadataInMemory
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.store import Put, Stored
from lakestream.schemas.column_evolution import EvolvedColumns, evolve_columns
from lakestream.schemas.columns import Column
from lakestream.schemas.types import Field, Kind, Primitive, Struct
from lakestream.schemas.value_format import ValuePart
from lakestream.schemas.writer_schema import ColumnBinding, WriterSchema
from lakestream.storage.memory import MemoryObjectStore

REGISTRY = {"lakestream.value.schema": "registry"}
INT, LONG, STRING = (Primitive(kind) for kind in (Kind.INT, Kind.LONG, Kind.STRING))


def struct(**fields: Primitive | Struct) -> Struct:
    return Struct(tuple(Field(name, kind) for name, kind in fields.items()))


class GrowTo:
    """Grows columns to fit a struct type."""

    def __init__(self, shape: Struct) -> None:
        self.shape = shape

    def __call__(self, columns: Sequence[Column], next_id: int) -> EvolvedColumns:
        return evolve_columns(columns, self.shape, next_id)


@pytest.fixture
async def catalog() -> Catalog:
    catalog = catalog_over(MemoryServer(SystemClock()).client())
    await catalog.start()
    return catalog


def names(metadata: Json) -> list[str]:
    return [one["name"] for one in schema_of(metadata)["fields"]]


class OvertakenStore(MetadataInMemory):
    """Two concurrent commits, which remove the old metadata log, precede the next move of a pointer."""

    other: Catalog | None = None

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        other, self.other = self.other, None
        if other is not None:
            for number in "01":
                properties = {"write.metadata.previous-versions-max": "1", "number": number}
                await other.commit(TOPIC_ID, [], [SetProperties(properties)])
        return await super().put(puts)


async def test_evolve_retries_a_commit_with_unknown_state() -> None:
    """The metadata log is too short to find the commit."""
    server, objects = MemoryServer(SystemClock()), MemoryObjectStore(SystemClock())
    store = OvertakenStore(server)
    catalog, other = catalog_over(store, objects), catalog_over(server.client(), objects, seed=2)
    await topic_table(catalog)
    store.other = other
    table, _ = await evolve(catalog, TOPIC_ID, GrowTo(struct(id=INT)))
    assert "id" in names(table.metadata)
    assert table.metadata["properties"]["number"] == "1"


async def set_columns(catalog: Catalog, fields: list[Json]) -> None:
    """Commits a schema as an engine does."""
    schema = {"type": "struct", "fields": fields}
    await catalog.change(TOPIC_ID, lambda _: [AddSchema(schema), SetCurrentSchema(-1)])


async def test_table_of_a_topic_with_schemas_begins_without_value_columns(catalog: Catalog) -> None:
    made = await ensure_table(catalog, TOPIC, TOPIC_ID, REGISTRY)
    assert names(made.metadata) == ["_stream"]
    assert made.metadata["last-column-id"] == 15
    check_columns(made.metadata)


async def test_new_columns_get_new_field_ids(catalog: Catalog) -> None:
    await ensure_table(catalog, TOPIC, TOPIC_ID, REGISTRY)
    made, what = await evolve(catalog, TOPIC_ID, GrowTo(struct(a=INT, b=struct(c=STRING))))
    assert names(made.metadata) == ["a", "b", "_stream"]
    assert what.bindings == (ColumnBinding(16), ColumnBinding(17, (ColumnBinding(18),)))
    assert made.metadata["last-column-id"] == 18
    assert made.metadata["properties"][BOUND] == "16-18"
    again, _ = await evolve(catalog, TOPIC_ID, GrowTo(struct(a=INT, b=struct(c=STRING))))
    assert again.metadata_location == made.metadata_location, "nothing is committed"
    wider, _ = await evolve(catalog, TOPIC_ID, GrowTo(struct(a=LONG)))
    assert schema_of(wider.metadata)["fields"][0] == field(16, "a", "long")
    assert wider.metadata["properties"][BOUND] == "16-18"


async def test_files_written_before_a_schema_change_are_committed(catalog: Catalog) -> None:
    loaded = await topic_table(catalog)
    await evolve(catalog, TOPIC_ID, GrowTo(struct(a=INT)))
    ranges = moved((0, 0, 5))
    now = await append(catalog, await catalog.load_id(TOPIC_ID), files_of(loaded, ranges), ranges)
    assert names(now.metadata) == ["value", "a", "_stream"]


async def test_evolve_sees_columns_added_concurrently(catalog: Catalog) -> None:
    loaded = await ensure_table(catalog, TOPIC, TOPIC_ID, REGISTRY)
    await set_columns(catalog, [*schema_of(loaded.metadata)["fields"], field(16, "foreign")])
    made, what = await evolve(catalog, TOPIC_ID, GrowTo(struct(a=INT)))
    assert names(made.metadata) == ["a", "_stream", "foreign"]
    assert what.bindings == (ColumnBinding(17),)
    await set_columns(catalog, [one for one in schema_of(made.metadata)["fields"] if one["name"] != "foreign"])
    check_columns((await catalog.load_id(TOPIC_ID)).metadata)


async def test_evolve_fails_when_a_bound_column_was_dropped(catalog: Catalog) -> None:
    await ensure_table(catalog, TOPIC, TOPIC_ID, REGISTRY)
    made, _ = await evolve(catalog, TOPIC_ID, GrowTo(struct(a=INT, b=struct(c=STRING))))
    fields = schema_of(made.metadata)["fields"]
    renamed = [{**fields[0], "name": "z"}, *fields[1:]]
    await set_columns(catalog, renamed)
    check_columns((await catalog.load_id(TOPIC_ID)).metadata)
    without = [fields[0], {**fields[1], "type": {"type": "struct", "fields": [field(30, "new")]}}, fields[2]]
    await set_columns(catalog, without)
    with pytest.raises(
        IncompatibleTable, match=r"column b\.c, from which record values are restored, was dropped.* back to 2"
    ):
        await evolve(catalog, TOPIC_ID, GrowTo(struct(d=INT)))


async def test_value_column_is_added_for_values_without_a_schema(catalog: Catalog) -> None:
    await ensure_table(catalog, TOPIC, TOPIC_ID, REGISTRY)
    await evolve(catalog, TOPIC_ID, GrowTo(struct(value=INT)))
    made, _ = await evolve(catalog, TOPIC_ID, with_value_column)
    assert names(made.metadata) == ["value", "value_", "_stream"]
    assert schema_of(made.metadata)["fields"][1] == field(1, "value_", "binary")
    again, _ = await evolve(catalog, TOPIC_ID, with_value_column)
    assert again.metadata_location == made.metadata_location
    fields = schema_of(made.metadata)["fields"]
    await set_columns(catalog, [fields[0], fields[2]])
    with pytest.raises(IncompatibleTable, match="column value was dropped"):
        check_columns((await catalog.load_id(TOPIC_ID)).metadata)


async def test_unused_schemas_are_removed(catalog: Catalog) -> None:
    await ensure_table(catalog, TOPIC, TOPIC_ID, REGISTRY)
    for number in range(SCHEMAS_MAX * 2):
        made, _ = await evolve(catalog, TOPIC_ID, GrowTo(struct(**{f"f{number}": INT})))
    assert len(made.metadata["schemas"]) <= SCHEMAS_MAX + 1
    assert len(names(made.metadata)) == SCHEMAS_MAX * 2 + 1


async def test_concurrent_evolve_adds_a_column_once(catalog: Catalog) -> None:
    await ensure_table(catalog, TOPIC, TOPIC_ID, REGISTRY)
    growing = [GrowTo(struct(a=INT, b=INT)), GrowTo(struct(b=INT, c=INT)), GrowTo(struct(a=INT))]
    done = await asyncio.gather(*(evolve(catalog, TOPIC_ID, one) for one in growing))
    now = await catalog.load_id(TOPIC_ID)
    assert sorted(names(now.metadata)) == ["_stream", "a", "b", "c"]
    ids = {one["name"]: one["id"] for one in schema_of(now.metadata)["fields"]}
    for one, (_, made) in zip(growing, done, strict=True):
        assert made.bindings == tuple(ColumnBinding(ids[field.name]) for field in one.shape.fields)


async def test_writer_schemas_are_removed_with_the_table() -> None:
    store = MemoryServer(SystemClock()).client()
    catalog = catalog_over(store)
    await catalog.start()
    await ensure_table(catalog, TOPIC, TOPIC_ID, REGISTRY)
    await catalog.writers.create(TOPIC_ID, ValuePart.VALUE, WriterSchema(1, "AVRO", "{}"))
    await topic_deleted(catalog, TOPIC_ID, drop=False)
    assert (await catalog.writers.get(TOPIC_ID, 1)).number == 1
    await topic_deleted(catalog, TOPIC_ID, drop=True)
    with pytest.raises(Missing):
        await catalog.writers.get(TOPIC_ID, 1)


@pytest.mark.parametrize("ids", [set(), {16}, {16, 17, 18, 20}, {1, 2_000_000}])
def test_bound_ids_are_stored_as_ranges(ids: set[int]) -> None:
    assert bound_ids({"properties": {BOUND: text_of_ids(ids)}}) == ids


@pytest.mark.parametrize("text", ["x", "16-", "-3", "1,,2", "9999999999"])
def test_invalid_bound_ids_are_ignored(text: str) -> None:
    assert bound_ids({"properties": {BOUND: text}}) == frozenset()


async def test_number_of_bound_ids_is_bounded(catalog: Catalog) -> None:
    await ensure_table(catalog, TOPIC, TOPIC_ID, REGISTRY)
    made = await catalog.change(TOPIC_ID, lambda _: [SetProperties({BOUND: "1-999999999,5-999999999"})])
    assert len(bound_ids(made.metadata)) <= 100_000
