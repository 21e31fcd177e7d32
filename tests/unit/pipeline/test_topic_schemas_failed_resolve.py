"""Tests a resolve that fails halfway: the schemas stored before the failure are used with their columns."""

from typing import Any

import pytest
from tests.harness.log.brokers import World
from tests.harness.pipeline.pipeline_driver import read_schema
from tests.harness.pipeline.schema_topic import REGISTRY, SchemaTopic, encoded, record

from lakestream.catalog.table_metadata.json_model import schema_of
from lakestream.coordination.schema_registry.schema_reader import SchemaReader
from lakestream.errors import Unavailable
from lakestream.metadata.topics import NamedTopic
from lakestream.pipeline.topic_schemas import TopicSchemas
from lakestream.schemas.value_format import MissingSchema, ValuePart


class FailingSchemaReader(SchemaReader):
    """Raises Unavailable for one id."""

    unavailable_id = 0

    async def source_of(self, context: str, schema_id: int) -> Any:
        if schema_id == self.unavailable_id:
            raise Unavailable("the registry does not respond")
        return await super().source_of(context, schema_id)


async def test_prepare_returns_the_widened_table_after_a_failed_resolve() -> None:
    world = World()
    topic = await SchemaTopic.start(world, REGISTRY)
    narrow, wide = record(("id", "int")), record(("id", "long"))
    await topic.append(encoded(narrow, {"id": 1}, await topic.register(narrow)))
    await topic.pipeline.micro_batches.run()
    catalog, reader = topic.pipeline.catalog, FailingSchemaReader(world.server.client())
    topics, named = (
        TopicSchemas(catalog, reader, world.clock, read_schema),
        NamedTopic("t", await world.topics.get("t")),
    )
    prepared = await topics.prepare(named, await catalog.load_id(topic.partition.topic_id))
    assert prepared.conversion is not None
    reader.unavailable_id = 99
    missing = [MissingSchema(ValuePart.VALUE, number) for number in (await topic.register(wide), 99)]
    with pytest.raises(Unavailable):
        await topics.resolve(named, prepared.table, prepared.conversion, missing, [])
    again = await topics.prepare(named, prepared.table)
    assert again.conversion is not None
    assert len(again.conversion.value.writers) == 2
    assert [one["type"] for one in schema_of(again.table.metadata)["fields"] if one["name"] == "id"] == ["long"]
    topic.close()
    await world.close()
