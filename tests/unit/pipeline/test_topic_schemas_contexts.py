"""Tests schema contexts: an id refers to another schema in each context, and a table distinguishes them."""

from typing import Any

import pytest
from tests.harness.log.brokers import World
from tests.harness.pipeline.pipeline_driver import PipelineDriver
from tests.harness.pipeline.schema_topic import REGISTRY, SchemaTopic, encoded, record
from tests.unit.pipeline.repair.test_repair import repair

from lakestream.schemas.value_format import ValuePart

CONTEXT = "lakestream.schema.context"
DEFAULT, PROD = record(("id", "int")), record(("name", "string"))


async def moved(topic: SchemaTopic, *values: bytes) -> list[dict[str, Any]]:
    await topic.append(*values)
    done = await topic.pipeline.micro_batches.run()
    assert done.stalled == []
    return await topic.rows()


async def test_ids_are_looked_up_in_the_context_of_the_topic(world: World) -> None:
    topic = await SchemaTopic.start(world, REGISTRY | {CONTEXT: ".prod"})
    assert await topic.register(DEFAULT) == await topic.register(PROD, ":.prod:t-value") == 1
    (row,) = await moved(topic, encoded(PROD, {"name": "a"}, 1))
    assert (row["name"], row["_stream"]["value"]) == ("a", None)
    assert row["_stream"]["schema_id"] < 0, "number 1 is that of the default context"
    assert list(await topic.columns()) == ["name"]
    topic.close()


async def test_old_rows_keep_their_writer_schemas_when_the_context_changes(world: World) -> None:
    """The same id is then another schema for new values, also in a new driver."""
    topic = await SchemaTopic.start(world, REGISTRY)
    assert await topic.register(DEFAULT) == await topic.register(PROD, ":.prod:t-value") == 1
    await moved(topic, encoded(DEFAULT, {"id": 7}, 1))
    for context, value in ((".prod", encoded(PROD, {"name": "a"}, 1)), ("", encoded(DEFAULT, {"id": 8}, 1))):
        await world.topics.set("t", REGISTRY | {CONTEXT: context})
        await moved(topic, value)
    topic.pipeline = await PipelineDriver.start(world)
    await world.topics.set("t", REGISTRY | {CONTEXT: "prod"})
    rows = await moved(topic, encoded(PROD, {"name": "b"}, 1))
    assert [(row.get("id"), row.get("name"), row["_stream"]["value"]) for row in rows] == [
        (7, None, None),
        (None, "a", None),
        (8, None, None),
        (None, "b", None),
    ]
    numbers = [row["_stream"]["schema_id"] for row in rows]
    assert numbers[0] == numbers[2] == 1
    assert numbers[1] == numbers[3] == -1
    writers = (await topic.pipeline.catalog.writers.all(topic.partition.topic_id)).of(ValuePart.VALUE)
    assert {one.number: (one.context, one.schema_id) for one in writers.values()} == {1: (".", 1), -1: (".prod", 1)}
    topic.close()


async def test_id_is_looked_up_immediately_after_a_change_of_the_context(world: World) -> None:
    topic = await SchemaTopic.start(world, REGISTRY | {CONTEXT: ".prod"})
    value = encoded(DEFAULT, {"id": 7}, await topic.register(DEFAULT))
    (row,) = await moved(topic, value)
    assert row["_stream"]["value"] == value
    await world.topics.set("t", REGISTRY)
    _, row = await moved(topic, value)
    assert (row["id"], row["_stream"]["value"]) == (7, None), (
        "without a pause: it was unknown in the other context only"
    )
    topic.close()


@pytest.mark.parametrize("choice", ["latest", "t-value@1", ":.other:s@1"])
async def test_subject_is_looked_up_in_its_own_or_the_topics_context(world: World, choice: str) -> None:
    """A subject with its own context overrides that of the topic."""
    named = {"lakestream.value.schema": choice, "lakestream.key.schema": "latest"}
    topic = await SchemaTopic.start(world, named | {CONTEXT: ".prod"})
    await topic.register(DEFAULT)
    await topic.register(DEFAULT, "t-key")
    await topic.register(PROD, ":.other:s" if choice.startswith(":") else ":.prod:t-value")
    await topic.register(PROD, ":.prod:t-key")
    await topic.append(encoded(PROD, {"name": "a"}), keys=[encoded(PROD, {"name": "k"})])
    await topic.pipeline.micro_batches.run()
    (row,) = await topic.rows()
    assert (row["name"], row["_key"]) == ("a", {"name": "k"})
    topic.close()


async def test_same_id_in_two_contexts_gives_two_writer_schemas(world: World) -> None:
    """Without an id in front of the values."""
    topic = await SchemaTopic.start(world, {"lakestream.value.schema": "latest"})
    assert await topic.register(DEFAULT) == await topic.register(PROD, ":.prod:t-value") == 1
    await moved(topic, encoded(DEFAULT, {"id": 7}))
    await world.topics.set("t", {"lakestream.value.schema": ":.prod:t-value@1"})
    rows = await moved(topic, encoded(PROD, {"name": "a"}))
    assert [(row.get("id"), row.get("name"), row["_stream"]["value"]) for row in rows] == [
        (7, None, None),
        (None, "a", None),
    ]
    topic.close()


async def test_repair_uses_the_current_context(world: World) -> None:
    topic = await SchemaTopic.start(world, REGISTRY)
    await topic.register(PROD, ":.prod:t-value")
    value = encoded(PROD, {"name": "a"}, 1)
    (row,) = await moved(topic, value)
    assert row["_stream"]["value"] == value
    assert (await repair(topic)).rows_after == 1, "it is unknown in the default context"
    await world.topics.set("t", REGISTRY | {CONTEXT: ".prod"})
    assert (await repair(topic)).rows_after == 0
    (row,) = await topic.rows()
    assert (row["name"], row["_stream"]["value"], row["_stream"]["schema_id"]) == ("a", None, -1)
    topic.close()
