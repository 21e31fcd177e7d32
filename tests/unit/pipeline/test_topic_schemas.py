"""Tests schemas of topics in drivers: concurrent drivers agree, and a crash in between leaves nothing wrong."""

import asyncio

from tests.harness.log.brokers import World
from tests.harness.pipeline.pipeline_driver import PipelineDriver, read_schema
from tests.harness.pipeline.schema_topic import REGISTRY, SchemaTopic, encoded, record

from lakestream.catalog.operations.create_topic_table import ensure_table
from lakestream.catalog.table_metadata.json_model import schema_of
from lakestream.catalog.topic_table.properties import bound_ids
from lakestream.coordination.schema_registry.schema_reader import SchemaReader
from lakestream.errors import Unavailable
from lakestream.metadata.topics import NamedTopic
from lakestream.metadata.writer_schemas import Writers
from lakestream.pipeline.topic_schemas import Prepared, TopicSchemas
from lakestream.schemas.columns import all_columns, columns_of
from lakestream.schemas.types import Field, Kind, Primitive, Struct
from lakestream.schemas.value_format import ConversionSettings, InferredSchema, MissingSchema, ValuePart
from lakestream.schemas.writer_schema import ColumnBinding, WriterSchema

JSON = {"lakestream.value.schema": "json", "lakestream.key.schema": "registry"}


def ids(bounds: tuple[ColumnBinding | None, ...]) -> set[int]:
    return {found for one in bounds if one for found in (one.field_id, *ids(one.children))}


async def test_concurrent_drivers_store_the_same_writer_schemas(world: World) -> None:
    topic = await SchemaTopic.start(world, JSON)
    keys = [
        await topic.register(record((f"k{number % 3}", "int"), ("same", "long")), f"k{number}") for number in range(6)
    ]
    catalog = topic.pipeline.catalog
    table = await ensure_table(catalog, "t", topic.partition.topic_id, JSON)
    named = NamedTopic("t", await world.topics.get("t"))

    def inferred(number: int) -> InferredSchema:
        fields = (Field(f"v{number}", Primitive(Kind.LONG)), Field("same", Primitive(Kind.STRING)))
        return InferredSchema(ValuePart.VALUE, "JSON", f'{{"number": {number}}}', "", Struct(fields))

    async def resolve(driver: int) -> Prepared:
        topics = TopicSchemas(catalog, SchemaReader(world.server.client()), world.clock, read_schema)
        schemas = [MissingSchema(ValuePart.KEY, keys[(driver + step) % len(keys)]) for step in range(4)]
        prepared = await topics.resolve(named, table, ConversionSettings(), schemas, [])
        for step in range(3):
            prepared = await topics.resolve(named, table, ConversionSettings(), [], [inferred((driver * 2 + step) % 6)])
        return prepared

    prepared = await asyncio.gather(*(resolve(driver) for driver in range(5)))
    metadata = (await catalog.load_id(topic.partition.topic_id)).metadata
    columns = columns_of(schema_of(metadata))
    column_ids = [column.field_id for column in all_columns(columns)]
    assert len(set(column_ids)) == len(column_ids)
    assert sorted(one.name for one in columns) == ["_key", "_stream", "same", "v0", "v1", "v2", "v3", "v4", "v5"]
    writers = await catalog.writers.all(topic.partition.topic_id)
    assert {one.schema_id for one in writers.keys.values()} == set(keys)
    assert sorted(one.text for one in writers.values.values()) == [f'{{"number": {number}}}' for number in range(6)]
    for writer in (*writers.values.values(), *writers.keys.values()):
        assert ids(writer.columns) <= set(column_ids) & bound_ids(metadata)
        assert None not in writer.columns
    for one in prepared:
        assert one.conversion is not None
        for part_settings in (one.conversion.value, one.conversion.key):
            for writer in part_settings.writers:
                assert (
                    writer
                    == writers.of(ValuePart.VALUE if part_settings is one.conversion.value else ValuePart.KEY)[
                        writer.number
                    ]
                )
    topic.close()


class FailingWriters(Writers):
    """Fails to store the first record, as if the driver had ended."""

    def __init__(self, world: World) -> None:
        super().__init__(world.server.client())
        self.failures = 1

    async def create(self, topic_id: str, part: ValuePart, writer: WriterSchema) -> WriterSchema:
        if self.failures:
            self.failures -= 1
            raise Unavailable("gone")
        return await super().create(topic_id, part, writer)


async def test_columns_are_reused_when_a_driver_ended_before_it_stored_the_writer_schema(world: World) -> None:
    topic = await SchemaTopic.start(world, REGISTRY)
    schema = record(("id", "int"), ("Id", "string"), ("_stream", "long"))
    one = await topic.register(schema)
    topic.pipeline.catalog.writers = FailingWriters(world)
    await topic.append(encoded(schema, {"id": 1, "Id": "x", "_stream": 2}, one))
    done = await topic.pipeline.micro_batches.run()
    assert (done.records, done.stalled) == (0, []), "the next micro-batch retries"
    assert list(await topic.columns()) == ["id", "Id_", "_stream_"]
    other = await PipelineDriver.start(world)
    done = await other.micro_batches.run()
    assert done.records == 1
    assert list(await topic.columns()) == ["id", "Id_", "_stream_"]
    (row,) = await topic.rows()
    assert (row["id"], row["Id_"], row["_stream_"], row["_stream"]["value"]) == (1, "x", 2, None)
    topic.close()


async def test_widest_of_several_shapes_is_resolved_first(world: World) -> None:
    """The shapes are of several logs: workers with the other shapes request schemas again."""
    topic = await SchemaTopic.start(world, JSON)
    catalog = topic.pipeline.catalog
    table = await ensure_table(catalog, "t", topic.partition.topic_id, JSON)
    named = NamedTopic("t", await world.topics.get("t"))
    topics = TopicSchemas(catalog, SchemaReader(world.server.client()), world.clock, read_schema)
    shapes = [
        InferredSchema(ValuePart.VALUE, "JSON", text, "", Struct((Field("n", Primitive(kind)),)))
        for text, kind in (("whole", Kind.LONG), ("double", Kind.DOUBLE))
    ]
    prepared = await topics.resolve(named, table, ConversionSettings(), [], shapes)
    assert prepared.conversion is not None
    assert [one.text for one in prepared.conversion.value.writers] == ["double"]
    topic.close()
