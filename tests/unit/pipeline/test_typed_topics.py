"""What drivers find out about schemas: several at once agree, and whoever dies in between leaves nothing wrong."""

import asyncio

from tests.unit.data.brokers import World
from tests.unit.pipeline.driving import Driving, read_here
from tests.unit.pipeline.typed_world import REGISTRY, Typed, encoded, record

from lakestream.catalog.bound_columns import bound_ids
from lakestream.catalog.shapes import schema_of
from lakestream.catalog.topic_tables import ensure_table
from lakestream.coordination.schemas.shelf import SchemaShelf
from lakestream.errors import Unavailable
from lakestream.metadata.topics import NamedTopic
from lakestream.metadata.typed import Writers
from lakestream.pipeline.typed_topics import Prepared, TypedTopics
from lakestream.schemas.columns import all_columns, columns_of
from lakestream.schemas.shape import Field, Kind, Primitive, Struct
from lakestream.schemas.typing import Inferred, Part, Typing, WantedSchema
from lakestream.schemas.writers import Bound, Writer

JSON = {"lakestream.value.schema": "json", "lakestream.key.schema": "registry"}


def ids(bounds: tuple[Bound | None, ...]) -> set[int]:
    return {found for one in bounds if one for found in (one.field_id, *ids(one.children))}


async def test_many_drivers_learn_at_once(world: World) -> None:
    typed = await Typed.start(world, JSON)
    keys = [
        await typed.register(record((f"k{number % 3}", "int"), ("same", "long")), f"k{number}") for number in range(6)
    ]
    catalog = typed.driving.catalog
    table = await ensure_table(catalog, "t", typed.partition.topic_id, JSON)
    named = NamedTopic("t", await world.topics.get("t"))

    def inferred(number: int) -> Inferred:
        fields = (Field(f"v{number}", Primitive(Kind.LONG)), Field("same", Primitive(Kind.STRING)))
        return Inferred(Part.VALUE, "JSON", f'{{"number": {number}}}', "", Struct(fields))

    async def learn(driver: int) -> Prepared:
        topics = TypedTopics(catalog, SchemaShelf(world.server.client()), world.clock, read_here)
        schemas = [WantedSchema(Part.KEY, keys[(driver + step) % len(keys)]) for step in range(4)]
        prepared = await topics.learn(named, table, Typing(), schemas, [])
        for step in range(3):
            prepared = await topics.learn(named, table, Typing(), [], [inferred((driver * 2 + step) % 6)])
        return prepared

    prepared = await asyncio.gather(*(learn(driver) for driver in range(5)))
    now = (await catalog.load_id(typed.partition.topic_id)).metadata
    columns = columns_of(schema_of(now))
    there = [column.field_id for column in all_columns(columns)]
    assert len(set(there)) == len(there)
    assert sorted(one.name for one in columns) == ["_key", "_stream", "same", "v0", "v1", "v2", "v3", "v4", "v5"]
    writers = await catalog.writers.all(typed.partition.topic_id)
    assert {one.schema_id for one in writers.keys.values()} == set(keys)
    assert sorted(one.text for one in writers.values.values()) == [f'{{"number": {number}}}' for number in range(6)]
    for writer in (*writers.values.values(), *writers.keys.values()):
        assert ids(writer.columns) <= set(there) & bound_ids(now)
        assert None not in writer.columns
    for one in prepared:
        assert one.typing is not None
        for side in (one.typing.value, one.typing.key):
            for writer in side.writers:
                assert writer == writers.of(Part.VALUE if side is one.typing.value else Part.KEY)[writer.number]
    typed.close()


class Dying(Writers):
    """The first record is not stored: whoever should have done it is no more."""

    def __init__(self, world: World) -> None:
        super().__init__(world.server.client())
        self.left = 1

    async def create(self, topic_id: str, part: Part, writer: Writer) -> Writer:
        if self.left:
            self.left -= 1
            raise Unavailable("gone")
        return await super().create(topic_id, part, writer)


async def test_columns_without_a_writer_are_found_again(world: World) -> None:
    typed = await Typed.start(world, REGISTRY)
    schema = record(("id", "int"), ("Id", "string"), ("_stream", "long"))
    one = await typed.register(schema)
    typed.driving.catalog.writers = Dying(world)
    await typed.append(encoded(schema, {"id": 1, "Id": "x", "_stream": 2}, one))
    done = await typed.driving.rounds.run()
    assert (done.records, done.stuck) == (0, []), "it is tried again"
    assert list(await typed.columns()) == ["id", "Id_", "_stream_"]
    other = await Driving.start(world)
    done = await other.rounds.run()
    assert done.records == 1
    assert list(await typed.columns()) == ["id", "Id_", "_stream_"]
    (row,) = await typed.rows()
    assert (row["id"], row["Id_"], row["_stream_"], row["_stream"]["value"]) == (1, "x", 2, None)
    typed.close()


async def test_of_shapes_that_come_at_once_the_widest_is_learnt_first(world: World) -> None:
    """They are of several logs: who has the others asks again, and knows of this one then."""
    typed = await Typed.start(world, JSON)
    catalog = typed.driving.catalog
    table = await ensure_table(catalog, "t", typed.partition.topic_id, JSON)
    named = NamedTopic("t", await world.topics.get("t"))
    topics = TypedTopics(catalog, SchemaShelf(world.server.client()), world.clock, read_here)
    shapes = [
        Inferred(Part.VALUE, "JSON", text, "", Struct((Field("n", Primitive(kind)),)))
        for text, kind in (("whole", Kind.LONG), ("double", Kind.DOUBLE))
    ]
    prepared = await topics.learn(named, table, Typing(), [], shapes)
    assert prepared.typing is not None
    assert [one.text for one in prepared.typing.value.writers] == ["double"]
    typed.close()
