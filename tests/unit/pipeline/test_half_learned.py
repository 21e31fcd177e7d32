"""A driver that is stopped in the middle of what it learns knows the table as it has become by then."""

from typing import Any

import pytest
from tests.unit.data.brokers import World
from tests.unit.pipeline.driving import read_here
from tests.unit.pipeline.typed_world import REGISTRY, Typed, encoded, record

from lakestream.catalog.shapes import schema_of
from lakestream.coordination.schemas.shelf import SchemaShelf
from lakestream.errors import Unavailable
from lakestream.metadata.topics import NamedTopic
from lakestream.pipeline.typed_topics import TypedTopics
from lakestream.schemas.typing import Part, WantedSchema


class Shaky(SchemaShelf):
    """One id cannot be asked for now."""

    silent = 0

    async def source_of(self, context: str, schema_id: int) -> Any:
        if schema_id == self.silent:
            raise Unavailable("it does not answer")
        return await super().source_of(context, schema_id)


async def test_what_was_learned_before_something_failed_is_known_with_its_columns() -> None:
    world = World()
    typed = await Typed.start(world, REGISTRY)
    narrow, wide = record(("id", "int")), record(("id", "long"))
    await typed.append(encoded(narrow, {"id": 1}, await typed.register(narrow)))
    await typed.driving.rounds.run()
    catalog, shelf = typed.driving.catalog, Shaky(world.server.client())
    topics, named = TypedTopics(catalog, shelf, world.clock, read_here), NamedTopic("t", await world.topics.get("t"))
    prepared = await topics.prepare(named, await catalog.load_id(typed.partition.topic_id))
    assert prepared.typing is not None
    shelf.silent = 99
    wanted = [WantedSchema(Part.VALUE, number) for number in (await typed.register(wide), 99)]
    with pytest.raises(Unavailable):
        await topics.learn(named, prepared.table, prepared.typing, wanted, [])
    again = await topics.prepare(named, prepared.table)
    assert again.typing is not None
    assert len(again.typing.value.writers) == 2
    assert [one["type"] for one in schema_of(again.table.metadata)["fields"] if one["name"] == "id"] == ["long"]
    typed.close()
    await world.close()
