"""Values become columns as their topic says: the registry is asked once, the table grows, and no data stops a topic."""

from datetime import time
from typing import Any

import pytest
from tests.unit.data.brokers import World
from tests.unit.pipeline.driving import Driving, read_here
from tests.unit.pipeline.typed_world import REGISTRY, Typed, encoded, record

from lakestream.catalog.shapes import schema_of
from lakestream.catalog.updates import AddSchema, SetCurrentSchema
from lakestream.coordination.schemas.shelf import SchemaShelf
from lakestream.metadata.topics import NamedTopic
from lakestream.pipeline.typed_topics import UNKNOWN_AGAIN_MS, TypedTopics
from lakestream.schemas.model import Format


def raw(row: dict[str, Any]) -> Any:
    return row["_stream"]["value"]


def number(row: dict[str, Any]) -> Any:
    return row["_stream"]["schema_id"]


V1 = record(("id", "int"), ("name", "string"))
V2 = record(("id", "long"), ("name", "string"), ("price", ["null", "double"]))


async def test_a_schema_becomes_columns_in_the_first_round(typed: Typed) -> None:
    one = await typed.register(V1)
    await typed.append(encoded(V1, {"id": 1, "name": "a"}, one), None)
    done = await typed.driving.rounds.run()
    assert (done.records, done.left, done.stuck) == (2, False, [])
    assert [len(moves) for moves in typed.driving.job.runs] == [1, 1], "one question, one answer"
    first, tombstone = await typed.rows()
    assert (first["id"], first["name"], number(first), raw(first)) == (1, "a", one, None)
    assert (tombstone["id"], number(tombstone), raw(tombstone)) == (None, None, None)
    assert await typed.columns() == {"id": "int", "name": "string"}
    await typed.append(encoded(V1, {"id": 2, "name": "b"}, one))
    await typed.driving.rounds.run()
    assert len(typed.driving.job.runs) == 3, "nothing more was asked"


async def test_another_version_adds_and_widens_columns(typed: Typed) -> None:
    one, two = await typed.register(V1), await typed.register(V2)
    await typed.append(encoded(V1, {"id": 1, "name": "a"}, one))
    await typed.driving.rounds.run()
    values = [encoded(V2, {"id": 2**40, "name": "b", "price": 1.5}, two), encoded(V1, {"id": 3, "name": "c"}, one)]
    await typed.append(*values)
    await typed.driving.rounds.run()
    assert await typed.columns() == {"id": "long", "name": "string", "price": "double"}
    rows = await typed.rows()
    assert [(row["id"], row.get("price"), number(row), raw(row)) for row in rows] == [
        (1, None, one, None),
        (2**40, 1.5, two, None),
        (3, None, one, None),
    ]


async def test_a_change_that_does_not_fit_keeps_bytes_and_goes_on(typed: Typed) -> None:
    other = record(("id", "string"), ("name", "string"))
    one, two = await typed.register(V1), await typed.register(other)
    value = encoded(other, {"id": "x", "name": "b"}, two)
    await typed.append(encoded(V1, {"id": 1, "name": "a"}, one), value, encoded(V1, {"id": 3, "name": "c"}, one))
    done = await typed.driving.rounds.run()
    assert (done.records, done.stuck) == (3, [])
    assert await typed.columns() == {"id": "int", "name": "string"}
    rows = await typed.rows()
    assert [(row["id"], row["name"], raw(row)) for row in rows] == [(1, "a", None), (None, "b", value), (3, "c", None)]


async def test_an_id_that_nobody_knows_is_looked_for_again(typed: Typed) -> None:
    unknown = encoded(V1, {"id": 1, "name": "a"}, 1)
    await typed.append(unknown, b"", b"no frame")
    done = await typed.driving.rounds.run()
    assert (done.records, done.stuck) == (3, [])
    assert [(raw(row), number(row)) for row in await typed.rows()] == [(unknown, 1), (b"", None), (b"no frame", None)]
    one = await typed.register(V1)
    assert one == 1
    await typed.append(unknown)
    await typed.driving.rounds.run()
    assert raw((await typed.rows())[3]) == unknown, "it was asked for a moment ago"
    typed.world.clock.ms += UNKNOWN_AGAIN_MS
    await typed.append(unknown)
    await typed.driving.rounds.run()
    last = (await typed.rows())[4]
    assert (raw(last), last["id"]) == (None, 1)


async def test_ever_new_ids_do_not_stop_a_topic(typed: Typed) -> None:
    await typed.append(*(b"\0" + (10_000 + one).to_bytes(4, "big") + b"x" for one in range(500)))
    done = await typed.driving.rounds.run()
    assert (done.records, done.stuck, done.left) == (500, [], False)
    one = await typed.register(V1)
    typed.world.clock.ms += UNKNOWN_AGAIN_MS
    await typed.append(encoded(V1, {"id": 1, "name": "a"}, one))
    await typed.driving.rounds.run()
    assert (await typed.rows())[500]["id"] == 1, "nor do they keep others from being known"


async def test_stop_says_why(world: World) -> None:
    typed = await Typed.start(world, REGISTRY | {"lakestream.on.invalid": "stop"})
    await typed.append(b"no frame")
    done = await typed.driving.rounds.run()
    assert "partition 0, offsets 0 to 1" in done.stuck[0]
    assert "lakestream.on.invalid is stop" in done.stuck[0]
    await world.topics.set("t", REGISTRY)
    world.clock.ms += 60_000
    done = await typed.driving.rounds.run()
    assert (done.records, done.stuck) == (1, [])
    typed.close()


@pytest.mark.parametrize("choice", ["latest", "t-value@latest", "t-value@1"])
async def test_values_without_an_id_are_of_one_schema(world: World, choice: str) -> None:
    typed = await Typed.start(world, {"lakestream.value.schema": choice})
    await typed.append(encoded(V1, {"id": 1, "name": "a"}))
    await typed.driving.rounds.run()
    assert raw((await typed.rows())[0]) == encoded(V1, {"id": 1, "name": "a"}), "there is no schema yet"
    await typed.register(V1)
    await typed.append(encoded(V1, {"id": 2, "name": "b"}))
    await typed.driving.rounds.run()
    row = (await typed.rows())[1]
    assert (row["id"], row["name"], raw(row), number(row)) == (2, "b", None, -1)
    await typed.register(V2)
    value = encoded(V2, {"id": 3, "name": "c", "price": None})
    await typed.append(value)
    await typed.driving.rounds.run()
    row = (await typed.rows())[2]
    assert (row["id"], raw(row)) == ((3, None) if choice != "t-value@1" else (None, value))
    typed.close()


async def test_keys_have_columns_of_their_own(world: World) -> None:
    typed = await Typed.start(world, {"lakestream.key.schema": "registry"})
    key = record(("shop", "int"), name="Key")
    one = await typed.register(key, "t-key")
    keys = [encoded(key, {"shop": 7}, one), b"plain", None]
    await typed.append(b"a", b"b", b"c", keys=keys)
    await typed.driving.rounds.run()
    rows = await typed.rows()
    assert [(row["value"], row["_key"], row["_stream"]["key"]) for row in rows] == [
        (b"a", {"shop": 7}, keys[0]),
        (b"b", None, b"plain"),
        (b"c", None, None),
    ]
    typed.close()


async def test_a_topic_changes_its_mind(world: World) -> None:
    typed = await Typed.start(world, {})
    one = await typed.register(record(("value", "int")))
    await typed.append(b"bytes")
    await typed.driving.rounds.run()
    await world.topics.set("t", REGISTRY)
    await typed.append(encoded(record(("value", "int")), {"value": 5}, one))
    await typed.driving.rounds.run()
    await world.topics.set("t", {})
    await typed.append(b"bytes again")
    await typed.driving.rounds.run()
    assert await typed.columns() == {"value": "binary", "value_": "int"}
    rows = await typed.rows()
    found = [(row["value"], row.get("value_"), number(row)) for row in rows]
    assert found == [(b"bytes", None, None), (None, 5, one), (b"bytes again", None, None)]
    typed.close()


async def test_bytes_after_columns(typed: Typed) -> None:
    one = await typed.register(V1)
    await typed.append(encoded(V1, {"id": 1, "name": "a"}, one))
    await typed.driving.rounds.run()
    await typed.world.topics.set("t", {})
    await typed.append(b"bytes")
    await typed.driving.rounds.run()
    assert await typed.columns() == {"id": "int", "name": "string", "value": "binary"}
    assert (await typed.rows())[1]["value"] == b"bytes"


async def test_two_drivers_agree_on_columns_and_numbers(typed: Typed) -> None:
    one, two = await typed.register(V1), await typed.register(V2)
    other = await Driving.start(typed.world)
    await typed.append(encoded(V1, {"id": 1, "name": "a"}, one))
    await typed.driving.rounds.run()
    await typed.append(encoded(V2, {"id": 2, "name": "b", "price": 2.5}, two))
    other.changed.look_again([typed.partition])
    await other.rounds.run()
    await typed.append(encoded(V2, {"id": 3, "name": "c", "price": 3.5}, two))
    await typed.driving.rounds.run()
    assert [(row["id"], row.get("price"), raw(row)) for row in await typed.rows()] == [
        (1, None, None),
        (2, 2.5, None),
        (3, 3.5, None),
    ]


async def test_a_dropped_column_stops_the_topic_with_a_reason(typed: Typed) -> None:
    one = await typed.register(V1)
    await typed.append(encoded(V1, {"id": 1, "name": "a"}, one))
    await typed.driving.rounds.run()

    def dropped(metadata: Any) -> list[Any]:
        fields = [field for field in schema_of(metadata)["fields"] if field["name"] != "name"]
        return [AddSchema({"type": "struct", "fields": fields}), SetCurrentSchema(-1)]

    await typed.driving.catalog.change(typed.partition.topic_id, dropped)
    await typed.append(encoded(V1, {"id": 2, "name": "b"}, one))
    fresh = await Driving.start(typed.world)
    fresh.changed.look_again([typed.partition])
    done = await fresh.rounds.run()
    assert "column name, which values are made of again, was dropped" in done.stuck[0]


def framed(schema_id: int, message: bytes, value: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + message + value


async def test_messages_of_one_protobuf_schema_and_fields_by_number(typed: Typed) -> None:
    one = await typed.register(
        'syntax = "proto3"; message A { int32 id = 1; string name = 2; } message B { int32 id = 1; string note = 2; }',
        kind=Format.PROTOBUF,
    )
    two = await typed.register(
        'syntax = "proto3"; message A { int32 id = 1; string title = 2; string name = 3; }', kind=Format.PROTOBUF
    )
    first, second = b"\x08\x05\x12\x01a", b"\x08\x06\x12\x01b"
    await typed.append(framed(one, b"\0", first), framed(one, b"\x02\x02", second))
    await typed.driving.rounds.run()
    assert await typed.columns() == {"id": "int", "name": "string", "note": "string"}
    await typed.append(framed(two, b"\0", b"\x08\x07\x12\x01c\x1a\x01d"), framed(one, b"\x04\x08\x02", b"x"))
    done = await typed.driving.rounds.run()
    assert (done.records, done.stuck) == (2, [])
    # Number 2 of A has another name now, and its old name belongs to number 3. In B number 2 is what it was.
    assert await typed.columns() == {"id": "int", "title": "string", "note": "string", "name": "string"}
    table = await typed.driving.catalog.load_id(typed.partition.topic_id)
    ids = {one["name"]: one["id"] for one in schema_of(table.metadata)["fields"]}
    writers = (await typed.driving.catalog.writers.all(typed.partition.topic_id)).values
    bound = {number: [bound.field_id for bound in writer.columns if bound] for number, writer in writers.items()}
    assert bound == {
        one: [ids["id"], ids["title"]],
        -1: [ids["id"], ids["note"]],
        two: [ids["id"], ids["title"], ids["name"]],
    }
    assert [raw(row) is None for row in await typed.rows()] == [True, True, True, False]


async def test_plain_json_is_widened_as_it_comes(world: World) -> None:
    typed = await Typed.start(world, {"lakestream.value.schema": "json"})
    await typed.append(b'{"a":1}', b'{"a":2,"b":{"c":"x"}}')
    await typed.driving.rounds.run()
    assert await typed.columns() == {"a": "long", "b": _struct_of("c", 18)}
    await typed.append(b'{"a":1.5,"b":{"c":"y","d":true}}', b'{"a":"text"}', b"[1, 2]", b"{", None)
    done = await typed.driving.rounds.run()
    assert (done.records, done.stuck) == (5, [])
    assert list(await typed.columns()) == ["a", "b", "a_double", "a_string"]
    rows = await typed.rows()
    assert [(row["a"], row.get("a_double"), (row["b"] or {}).get("c"), raw(row)) for row in rows] == [
        (1, None, None, None),
        (2, None, "x", None),
        (None, 1.5, "y", None),
        (None, None, None, None),
        (None, None, None, b"[1, 2]"),
        (None, None, None, b"{"),
        (None, None, None, None),
    ]
    runs = len(typed.driving.job.runs)
    await typed.append(b'{"a":3}', b'{"a":2.5}')
    await typed.driving.rounds.run()
    assert len(typed.driving.job.runs) == runs + 1, "nothing is new"
    typed.close()


def _struct_of(name: str, number: int) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"id": number, "name": name, "required": False, "type": "string"}]}


async def test_a_table_that_another_driver_widened_meanwhile_is_looked_at_again(typed: Typed) -> None:
    """Who knows the newer writer must not write its numbers into the column as it was before."""
    narrow, wide = record(("id", "int")), record(("id", "long"))
    catalog, topic_id = typed.driving.catalog, typed.partition.topic_id
    await typed.append(encoded(narrow, {"id": 1}, await typed.register(narrow)))
    await typed.driving.rounds.run()
    before = await catalog.load_id(topic_id)
    await typed.append(encoded(wide, {"id": 2**40}, await typed.register(wide)))
    await typed.driving.rounds.run()
    other = TypedTopics(catalog, SchemaShelf(typed.world.server.client()), typed.world.clock, read_here)
    prepared = await other.prepare(NamedTopic("t", await typed.world.topics.get("t")), before)
    assert prepared.typing is not None
    assert len(prepared.typing.value.writers) == 2
    assert [one["type"] for one in schema_of(prepared.table.metadata)["fields"] if one["name"] == "id"] == ["long"]


async def test_a_schema_that_says_more_than_delta_can(world: World) -> None:
    """The field has no column as long as the table is a Delta table too: that one goes on, and no byte is lost."""
    typed = await Typed.start(world, {**REGISTRY, "lakestream.table.formats": "iceberg,delta"})
    clock = record(("id", "int"), ("at", {"type": "int", "logicalType": "time-millis"}))
    one = await typed.register(clock)
    value = encoded(clock, {"id": 1, "at": time(10, 30)}, one)
    await typed.append(value)
    await typed.driving.rounds.run()
    assert await typed.columns() == {"id": "int"}
    (row,) = await typed.rows()
    assert (row["id"], number(row), raw(row)) == (1, one, value)
    await world.topics.set("t", REGISTRY)
    catalog, shelf = typed.driving.catalog, SchemaShelf(world.server.client())
    named = NamedTopic("t", await world.topics.get("t"))
    table = await catalog.load_id(typed.partition.topic_id)
    await TypedTopics(catalog, shelf, world.clock, read_here).mend(named, table)
    assert await typed.columns() == {"id": "int", "at": "time"}, "a repair types the rows anew"
    typed.close()
