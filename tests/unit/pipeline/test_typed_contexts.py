"""Contexts of the registry: the same id is another schema in each, and a table keeps them apart."""

from typing import Any

import pytest
from tests.unit.data.brokers import World
from tests.unit.pipeline.driving import Driving
from tests.unit.pipeline.maintenance.test_repair import repair
from tests.unit.pipeline.typed_world import REGISTRY, Typed, encoded, record

from lakestream.schemas.typing import Part

CONTEXT = "lakestream.schema.context"
HERE, THERE = record(("id", "int")), record(("name", "string"))


async def sent(typed: Typed, *values: bytes) -> list[dict[str, Any]]:
    await typed.append(*values)
    done = await typed.driving.rounds.run()
    assert done.stuck == []
    return await typed.rows()


async def test_ids_are_those_of_the_topics_context(world: World) -> None:
    typed = await Typed.start(world, REGISTRY | {CONTEXT: ".prod"})
    assert await typed.register(HERE) == await typed.register(THERE, ":.prod:t-value") == 1
    (row,) = await sent(typed, encoded(THERE, {"name": "a"}, 1))
    assert (row["name"], row["_stream"]["value"]) == ("a", None)
    assert row["_stream"]["schema_id"] < 0, "1 is for the schema of the default context"
    assert list(await typed.columns()) == ["name"]
    typed.close()


async def test_a_topic_changes_its_context(world: World) -> None:
    """Rows keep the writers that they have; the same id is then another one, for what comes and for who comes."""
    typed = await Typed.start(world, REGISTRY)
    assert await typed.register(HERE) == await typed.register(THERE, ":.prod:t-value") == 1
    await sent(typed, encoded(HERE, {"id": 7}, 1))
    for context, value in ((".prod", encoded(THERE, {"name": "a"}, 1)), ("", encoded(HERE, {"id": 8}, 1))):
        await world.topics.set("t", REGISTRY | {CONTEXT: context})
        await sent(typed, value)
    typed.driving = await Driving.start(world)
    await world.topics.set("t", REGISTRY | {CONTEXT: "prod"})
    rows = await sent(typed, encoded(THERE, {"name": "b"}, 1))
    assert [(row.get("id"), row.get("name"), row["_stream"]["value"]) for row in rows] == [
        (7, None, None),
        (None, "a", None),
        (8, None, None),
        (None, "b", None),
    ]
    numbers = [row["_stream"]["schema_id"] for row in rows]
    assert numbers[0] == numbers[2] == 1
    assert numbers[1] == numbers[3] == -1
    writers = (await typed.driving.catalog.writers.all(typed.partition.topic_id)).of(Part.VALUE)
    assert {one.number: (one.context, one.schema_id) for one in writers.values()} == {1: (".", 1), -1: (".prod", 1)}
    typed.close()


async def test_an_id_that_only_another_context_knows(world: World) -> None:
    typed = await Typed.start(world, REGISTRY | {CONTEXT: ".prod"})
    value = encoded(HERE, {"id": 7}, await typed.register(HERE))
    (row,) = await sent(typed, value)
    assert row["_stream"]["value"] == value
    await world.topics.set("t", REGISTRY)
    _, row = await sent(typed, value)
    assert (row["id"], row["_stream"]["value"]) == (7, None), "at once: that nobody knew it was said elsewhere"
    typed.close()


@pytest.mark.parametrize("choice", ["latest", "t-value@1", ":.other:s@1"])
async def test_subjects_of_a_context(world: World, choice: str) -> None:
    """A subject that says its own context means that."""
    named = {"lakestream.value.schema": choice, "lakestream.key.schema": "latest"}
    typed = await Typed.start(world, named | {CONTEXT: ".prod"})
    await typed.register(HERE)
    await typed.register(HERE, "t-key")
    await typed.register(THERE, ":.other:s" if choice.startswith(":") else ":.prod:t-value")
    await typed.register(THERE, ":.prod:t-key")
    await typed.append(encoded(THERE, {"name": "a"}), keys=[encoded(THERE, {"name": "k"})])
    await typed.driving.rounds.run()
    (row,) = await typed.rows()
    assert (row["name"], row["_key"]) == ("a", {"name": "k"})
    typed.close()


async def test_the_same_id_of_two_subjects_without_an_id_in_front(world: World) -> None:
    """They were taken for one schema, as long as contexts were not told apart."""
    typed = await Typed.start(world, {"lakestream.value.schema": "latest"})
    assert await typed.register(HERE) == await typed.register(THERE, ":.prod:t-value") == 1
    await sent(typed, encoded(HERE, {"id": 7}))
    await world.topics.set("t", {"lakestream.value.schema": ":.prod:t-value@1"})
    rows = await sent(typed, encoded(THERE, {"name": "a"}))
    assert [(row.get("id"), row.get("name"), row["_stream"]["value"]) for row in rows] == [
        (7, None, None),
        (None, "a", None),
    ]
    typed.close()


async def test_a_repair_goes_by_the_context_of_now(world: World) -> None:
    typed = await Typed.start(world, REGISTRY)
    await typed.register(THERE, ":.prod:t-value")
    value = encoded(THERE, {"name": "a"}, 1)
    (row,) = await sent(typed, value)
    assert row["_stream"]["value"] == value
    assert (await repair(typed)).rows_after == 1, "the default context does not know it"
    await world.topics.set("t", REGISTRY | {CONTEXT: ".prod"})
    assert (await repair(typed)).rows_after == 0
    (row,) = await typed.rows()
    assert (row["name"], row["_stream"]["value"], row["_stream"]["schema_id"]) == ("a", None, -1)
    typed.close()
