"""Rows that keep their bytes get their columns at the same offsets, once these can be had."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from tests.unit.catalog.tables import ROOT
from tests.unit.data.brokers import World
from tests.unit.pipeline.driving import read_here
from tests.unit.pipeline.maintenance.engine import rewritten
from tests.unit.pipeline.typed_world import REGISTRY, Typed, encoded, record

from lakestream.catalog.errors import Unsupported
from lakestream.catalog.listing import Listings
from lakestream.catalog.locations import Locations
from lakestream.catalog.shapes import schema_of
from lakestream.catalog.updates import AddSchema, SetCurrentSchema
from lakestream.clock import RandomIds
from lakestream.coordination.schemas.shelf import SchemaShelf
from lakestream.metadata.topics import NamedTopic
from lakestream.pipeline.maintenance.job import LocalRewrites
from lakestream.pipeline.maintenance.repair import RepairDone, Repairs
from lakestream.pipeline.maintenance.tasks import Result, Task
from lakestream.pipeline.maintenance.work import Rewriting
from lakestream.pipeline.typed_topics import TypedTopics

V1 = record(("id", "int"), ("name", "string"))
VALUE = encoded(V1, {"id": 1, "name": "a"}, 1)


class Interrupted(LocalRewrites):
    """Others are quicker, once."""

    def __init__(self, work: Rewriting, others: Callable[[], Awaitable[Any]] | None) -> None:
        super().__init__(work)
        self._others = others

    async def run(self, tasks: Sequence[Task]) -> list[Result]:
        others, self._others = self._others, None
        if others is not None:
            await others()
        return await super().run(tasks)


async def repair(typed: Typed, *, others: Callable[[], Awaitable[Any]] | None = None) -> RepairDone:
    """As a command does it: nothing is known from before."""
    catalog = typed.driving.catalog
    shelf = SchemaShelf(typed.world.server.client())
    job = Interrupted(Rewriting(typed.world.objects, Locations(ROOT), RandomIds()), others)
    repairs = Repairs(catalog, TypedTopics(catalog, shelf, typed.world.clock, read_here), job)
    return await repairs.run(NamedTopic("t", await typed.world.topics.get("t")))


def seen(row: dict[str, Any]) -> tuple[Any, ...]:
    stream = row["_stream"]
    return stream["offset"], row.get("id"), stream["schema_id"], stream["value"], stream["key"]


async def test_a_schema_that_came_late(typed: Typed) -> None:
    await typed.append(VALUE, b"never", None, VALUE, keys=[b"k", None, b"k", b"l"])
    await typed.driving.rounds.run()
    before = await typed.rows()
    assert [seen(row)[3] for row in before] == [VALUE, b"never", None, VALUE]
    assert await typed.register(V1) == 1
    done = await repair(typed)
    assert (done.rows_before, done.rows_after, done.files_written) == (3, 1, 1)
    assert [(reason, count) for (reason, _), count in done.reasons.items()] == [
        ("it does not begin with a zero byte and the id of a schema", 1)
    ]
    rows = await typed.rows()
    assert [seen(row) for row in rows] == [
        (0, 1, 1, None, b"k"),
        (1, None, None, b"never", None),
        (2, None, None, None, b"k"),
        (3, 1, 1, None, b"l"),
    ]
    others = ("timestamp", "timestamp_type", "headers", "partition")
    assert [[row["_stream"][name] for name in others] for row in rows] == [
        [row["_stream"][name] for name in others] for row in before
    ]
    again = await repair(typed)
    assert (again.rows_before, again.rows_after, again.files_written) == (1, 1, 0)


async def test_rows_that_were_bytes_before_the_topic_had_a_schema(world: World) -> None:
    typed = await Typed.start(world, {})
    await typed.register(V1)
    await typed.append(VALUE)
    await typed.driving.rounds.run()
    with pytest.raises(Unsupported, match="has no schema"):
        await repair(typed)
    await world.topics.set("t", REGISTRY)
    done = await repair(typed)
    assert (done.rows_before, done.rows_after) == (1, 0)
    (row,) = await typed.rows()
    assert seen(row) == (0, 1, 1, None, None)
    assert row["value"] is None
    typed.close()


async def test_a_column_that_fits_by_now(typed: Typed) -> None:
    one, two = await typed.register(V1), await typed.register(record(("id", "int"), ("name", "string"), ("x", "long")))
    three = await typed.register(record(("id", "int"), ("name", "string"), ("x", "string")))
    await typed.append(encoded(V1, {"id": 1, "name": "a"}, one))
    await typed.append(encoded(record(("id", "int"), ("name", "string"), ("x", "string")), _x("b", "s"), three))
    await typed.append(encoded(record(("id", "int"), ("name", "string"), ("x", "long")), _x("c", 5), two))
    await typed.driving.rounds.run()
    rows = await typed.rows()
    lost = [seen(row) for row in rows if seen(row)[3] is not None]
    assert lost[0][:3] == (1, 2, three), "x is a long: strings have no column"
    done = await repair(typed)
    assert (done.rows_before, done.rows_after) == (1, 1)

    def room_for_it(metadata: Any) -> list[Any]:
        """As an engine does it: ALTER TABLE … ADD COLUMN x_ string."""
        number = metadata["last-column-id"] + 1
        fields = [*schema_of(metadata)["fields"], {"id": number, "name": "x_", "type": "string", "required": False}]
        return [AddSchema({"type": "struct", "fields": fields}), SetCurrentSchema(-1)]

    await typed.driving.catalog.change(typed.partition.topic_id, room_for_it)
    done = await repair(typed)
    assert (done.rows_before, done.rows_after) == (1, 0)
    assert [(row["name"], row["x"], row["x_"], row["_stream"]["value"]) for row in (await typed.rows())] == [
        ("a", None, None, None),
        ("b", None, "s", None),
        ("c", 5, None, None),
    ]
    assert (await typed.rows())[1]["_stream"]["schema_id"] == -1, "the same schema, bound to other columns"


def _x(name: str, x: Any) -> dict[str, Any]:
    return {"id": 2, "name": name, "x": x}


async def test_what_others_move_meanwhile_is_looked_at_too(typed: Typed) -> None:
    await typed.append(VALUE)
    await typed.driving.rounds.run()
    await typed.register(V1)
    newer = record(("id", "int"), ("name", "string"), ("x", "long"))

    async def others() -> None:
        await repair(typed)  # so that we find our file gone, and look again
        await typed.append(encoded(newer, _x("b", 7), await typed.register(newer)), b"never")
        await typed.driving.rounds.run()

    done = await repair(typed, others=others)
    assert (done.left, done.rows_before, done.rows_after) == ([], 1, 1)
    assert [(row.get("name"), row.get("x")) for row in await typed.rows()] == [("a", None), ("b", 7), (None, None)]


async def test_a_file_that_others_replaced_and_removed(typed: Typed) -> None:
    await typed.append(VALUE, b"never")
    await typed.driving.rounds.run()
    await typed.register(V1)
    (before,) = await data_files(typed)

    async def others() -> None:
        await repair(typed)
        await typed.world.objects.delete([before])

    done = await repair(typed, others=others)
    assert (done.left, done.rows_before, done.rows_after) == ([], 1, 1)


async def data_files(typed: Typed) -> list[str]:
    """Their keys."""
    table = await typed.driving.catalog.load_id(typed.partition.topic_id)
    listing = await Listings(typed.world.objects, Locations(ROOT)).of_main(table.metadata)
    return [Locations(ROOT).key_of(file.location) for file in listing.data]


async def test_files_with_columns_of_others_are_left(typed: Typed) -> None:
    await typed.append(VALUE)
    await typed.driving.rounds.run()

    def theirs(metadata: Any) -> list[Any]:
        fields = [*schema_of(metadata)["fields"], {"id": 500, "name": "x", "type": "int", "required": False}]
        return [AddSchema({"type": "struct", "fields": fields}), SetCurrentSchema(-1)]

    await typed.driving.catalog.change(typed.partition.topic_id, theirs)
    await typed.register(V1)
    done = await repair(typed)
    assert (done.rows_after, done.left) == (0, []), "the file has none of it"


async def test_rows_that_somebody_sorted_by_something_else(typed: Typed) -> None:
    """As rewrite_data_files does it with a sort order of its own: the rows are found by their offsets all the same."""
    await typed.append(VALUE, b"never", VALUE)
    await typed.driving.rounds.run()
    await _turned_round(typed, tells=True)
    assert await typed.register(V1) == 1
    done = await repair(typed)
    assert (done.rows_before, done.rows_after, done.left) == (3, 1, [])
    assert [seen(row)[:4] for row in await typed.rows()] == [
        (0, 1, 1, None),
        (1, None, None, b"never"),
        (2, 1, 1, None),
    ]


async def test_a_file_that_does_not_say_its_offsets_is_left(typed: Typed) -> None:
    await typed.append(VALUE)
    await typed.driving.rounds.run()
    await _turned_round(typed, tells=False)
    await typed.append(VALUE)
    await typed.driving.rounds.run()
    assert await typed.register(V1) == 1
    done = await repair(typed)
    assert [reason.partition(" ")[2] for reason in done.left] == [
        "does not say which offsets it has: CALL system.rewrite_data_files, then repair again"
    ]
    assert [seen(row)[3] for row in await typed.rows()] == [VALUE, None], "the others are repaired"


async def _turned_round(typed: Typed, *, tells: bool) -> None:
    await rewritten(typed, lambda rows: rows.take(list(range(len(rows)))[::-1]), tells=tells)


async def test_the_schema_of_all_values_came_late(world: World) -> None:
    typed = await Typed.start(world, {"lakestream.value.schema": "latest"})
    await typed.append(VALUE[5:])
    await typed.driving.rounds.run()
    await typed.register(V1)
    done = await repair(typed)
    assert (done.rows_before, done.rows_after, list(await typed.columns())) == (1, 0, ["id", "name"])
    typed.close()


async def test_rows_that_get_columns_and_need_their_bytes_all_the_same(typed: Typed) -> None:
    """A list in a block that says its size, as some libraries write it, is not how it is written again."""
    value = b"\0\0\0\0\1" + bytes([2, 1, 2, 10, 0])
    await typed.append(value)
    await typed.driving.rounds.run()
    await typed.register(record(("id", "int"), ("sizes", {"type": "array", "items": "int"})))
    done = await repair(typed)
    assert (done.rows_before, done.rows_after, done.files_written) == (1, 1, 1)
    (row,) = await typed.rows()
    assert (row["id"], row["sizes"], row["_stream"]["value"]) == (1, [5], value)
    assert (await repair(typed)).files_written == 0


async def test_keys_whose_schema_came_late(world: World) -> None:
    typed = await Typed.start(world, {"lakestream.key.schema": "registry"})
    await typed.append(b"plain", b"other", keys=[VALUE, None])
    await typed.driving.rounds.run()
    await typed.register(V1, "t-key")
    assert (await repair(typed)).files_written == 1
    rows = await typed.rows()
    assert [row["_key"] for row in rows] == [{"id": 1, "name": "a"}, None]
    assert [(row["value"], row["_stream"]["key"]) for row in rows] == [(b"plain", VALUE), (b"other", None)]
    assert (await repair(typed)).files_written == 0
    typed.close()


async def test_keys_in_a_column_that_somebody_renamed(world: World) -> None:
    typed = await Typed.start(world, {"lakestream.key.schema": "registry"})
    await typed.register(V1, "t-key")
    await typed.append(b"plain", keys=[VALUE])
    await typed.driving.rounds.run()

    def renamed(metadata: Any) -> list[Any]:
        fields = [{**one, "name": one["name"].replace("_key", "who")} for one in schema_of(metadata)["fields"]]
        return [AddSchema({"type": "struct", "fields": fields}), SetCurrentSchema(-1)]

    await typed.driving.catalog.change(typed.partition.topic_id, renamed)
    await typed.append(b"other", keys=[encoded(V1, {"id": 2, "name": "b"}, 2)])
    await typed.driving.rounds.run()
    await typed.register(record(("id", "int"), ("name", "string"), ("more", ["null", "string"])), "t-key")
    done = await repair(typed)
    assert done.left == []
    typed.close()
