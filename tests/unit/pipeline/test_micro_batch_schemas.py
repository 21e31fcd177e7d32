"""Tests values with schemas: they become columns, columns are added and widened, and no record stops a topic."""

from datetime import time
from typing import Any

import pytest
from tests.harness.log.brokers import World
from tests.harness.pipeline.pipeline_driver import PipelineDriver, read_schema
from tests.harness.pipeline.schema_topic import REGISTRY, SchemaTopic, encoded, record

from lakestream.catalog.table_metadata.json_model import schema_of
from lakestream.catalog.table_metadata.updates import AddSchema, SetCurrentSchema
from lakestream.coordination.schema_registry.schema_reader import SchemaReader
from lakestream.metadata.topics import NamedTopic
from lakestream.pipeline.topic_schemas import UNKNOWN_AGAIN_MS, TopicSchemas
from lakestream.schemas.model import Format


def raw(row: dict[str, Any]) -> Any:
    return row["_stream"]["value"]


def number(row: dict[str, Any]) -> Any:
    return row["_stream"]["schema_id"]


V1 = record(("id", "int"), ("name", "string"))
V2 = record(("id", "long"), ("name", "string"), ("price", ["null", "double"]))


async def test_columns_of_a_schema_are_added_with_its_first_value(topic: SchemaTopic) -> None:
    one = await topic.register(V1)
    await topic.append(encoded(V1, {"id": 1, "name": "a"}, one), None)
    done = await topic.pipeline.micro_batches.run()
    assert (done.records, done.left, done.stalled) == (2, False, [])
    assert [len(moves) for moves in topic.pipeline.job.runs] == [1, 1], (
        "the first run requests the schema, the second one has it"
    )
    first, tombstone = await topic.rows()
    assert (first["id"], first["name"], number(first), raw(first)) == (1, "a", one, None)
    assert (tombstone["id"], number(tombstone), raw(tombstone)) == (None, None, None)
    assert await topic.columns() == {"id": "int", "name": "string"}
    await topic.append(encoded(V1, {"id": 2, "name": "b"}, one))
    await topic.pipeline.micro_batches.run()
    assert len(topic.pipeline.job.runs) == 3, "no schema was requested again"


async def test_new_schema_version_adds_and_widens_columns(topic: SchemaTopic) -> None:
    one, two = await topic.register(V1), await topic.register(V2)
    await topic.append(encoded(V1, {"id": 1, "name": "a"}, one))
    await topic.pipeline.micro_batches.run()
    values = [encoded(V2, {"id": 2**40, "name": "b", "price": 1.5}, two), encoded(V1, {"id": 3, "name": "c"}, one)]
    await topic.append(*values)
    await topic.pipeline.micro_batches.run()
    assert await topic.columns() == {"id": "long", "name": "string", "price": "double"}
    rows = await topic.rows()
    assert [(row["id"], row.get("price"), number(row), raw(row)) for row in rows] == [
        (1, None, one, None),
        (2**40, 1.5, two, None),
        (3, None, one, None),
    ]


async def test_values_keep_bytes_when_their_schema_does_not_fit_the_columns(topic: SchemaTopic) -> None:
    other = record(("id", "string"), ("name", "string"))
    one, two = await topic.register(V1), await topic.register(other)
    value = encoded(other, {"id": "x", "name": "b"}, two)
    await topic.append(encoded(V1, {"id": 1, "name": "a"}, one), value, encoded(V1, {"id": 3, "name": "c"}, one))
    done = await topic.pipeline.micro_batches.run()
    assert (done.records, done.stalled) == (3, [])
    assert await topic.columns() == {"id": "int", "name": "string"}
    rows = await topic.rows()
    assert [(row["id"], row["name"], raw(row)) for row in rows] == [(1, "a", None), (None, "b", value), (3, "c", None)]


async def test_unknown_schema_id_is_looked_up_again_after_a_pause(topic: SchemaTopic) -> None:
    unknown = encoded(V1, {"id": 1, "name": "a"}, 1)
    await topic.append(unknown, b"", b"no frame")
    done = await topic.pipeline.micro_batches.run()
    assert (done.records, done.stalled) == (3, [])
    assert [(raw(row), number(row)) for row in await topic.rows()] == [(unknown, 1), (b"", None), (b"no frame", None)]
    one = await topic.register(V1)
    assert one == 1
    await topic.append(unknown)
    await topic.pipeline.micro_batches.run()
    assert raw((await topic.rows())[3]) == unknown, "it was looked up a moment ago"
    topic.world.clock.ms += UNKNOWN_AGAIN_MS
    await topic.append(unknown)
    await topic.pipeline.micro_batches.run()
    last = (await topic.rows())[4]
    assert (raw(last), last["id"]) == (None, 1)


async def test_many_unknown_schema_ids_do_not_stop_a_topic(topic: SchemaTopic) -> None:
    await topic.append(*(b"\0" + (10_000 + one).to_bytes(4, "big") + b"x" for one in range(500)))
    done = await topic.pipeline.micro_batches.run()
    assert (done.records, done.stalled, done.left) == (500, [], False)
    one = await topic.register(V1)
    topic.world.clock.ms += UNKNOWN_AGAIN_MS
    await topic.append(encoded(V1, {"id": 1, "name": "a"}, one))
    await topic.pipeline.micro_batches.run()
    assert (await topic.rows())[500]["id"] == 1, "other schemas are still looked up"


async def test_topic_stalls_with_a_reason_when_the_action_is_stop(world: World) -> None:
    topic = await SchemaTopic.start(world, REGISTRY | {"lakestream.invalid.record.action": "stop"})
    await topic.append(b"no frame")
    done = await topic.pipeline.micro_batches.run()
    assert "partition 0, offsets 0 to 1" in done.stalled[0]
    assert "lakestream.invalid.record.action is stop" in done.stalled[0]
    await world.topics.set("t", REGISTRY)
    world.clock.ms += 60_000
    done = await topic.pipeline.micro_batches.run()
    assert (done.records, done.stalled) == (1, [])
    topic.close()


@pytest.mark.parametrize("choice", ["latest", "t-value@latest", "t-value@1"])
async def test_values_without_an_id_have_the_schema_of_the_setting(world: World, choice: str) -> None:
    topic = await SchemaTopic.start(world, {"lakestream.value.schema": choice})
    await topic.append(encoded(V1, {"id": 1, "name": "a"}))
    await topic.pipeline.micro_batches.run()
    assert raw((await topic.rows())[0]) == encoded(V1, {"id": 1, "name": "a"}), "no schema is registered yet"
    await topic.register(V1)
    await topic.append(encoded(V1, {"id": 2, "name": "b"}))
    await topic.pipeline.micro_batches.run()
    row = (await topic.rows())[1]
    assert (row["id"], row["name"], raw(row), number(row)) == (2, "b", None, -1)
    await topic.register(V2)
    value = encoded(V2, {"id": 3, "name": "c", "price": None})
    await topic.append(value)
    await topic.pipeline.micro_batches.run()
    row = (await topic.rows())[2]
    assert (row["id"], raw(row)) == ((3, None) if choice != "t-value@1" else (None, value))
    topic.close()


async def test_key_columns_are_separate_from_value_columns(world: World) -> None:
    topic = await SchemaTopic.start(world, {"lakestream.key.schema": "registry"})
    key = record(("shop", "int"), name="Key")
    one = await topic.register(key, "t-key")
    keys = [encoded(key, {"shop": 7}, one), b"plain", None]
    await topic.append(b"a", b"b", b"c", keys=keys)
    await topic.pipeline.micro_batches.run()
    rows = await topic.rows()
    assert [(row["value"], row["_key"], row["_stream"]["key"]) for row in rows] == [
        (b"a", {"shop": 7}, keys[0]),
        (b"b", None, b"plain"),
        (b"c", None, None),
    ]
    topic.close()


async def test_columns_and_bytes_coexist_when_the_schema_setting_changes(world: World) -> None:
    topic = await SchemaTopic.start(world, {})
    one = await topic.register(record(("value", "int")))
    await topic.append(b"bytes")
    await topic.pipeline.micro_batches.run()
    await world.topics.set("t", REGISTRY)
    await topic.append(encoded(record(("value", "int")), {"value": 5}, one))
    await topic.pipeline.micro_batches.run()
    await world.topics.set("t", {})
    await topic.append(b"bytes again")
    await topic.pipeline.micro_batches.run()
    assert await topic.columns() == {"value": "binary", "value_": "int"}
    rows = await topic.rows()
    found = [(row["value"], row.get("value_"), number(row)) for row in rows]
    assert found == [(b"bytes", None, None), (None, 5, one), (b"bytes again", None, None)]
    topic.close()


async def test_value_column_is_added_when_schemas_are_switched_off(topic: SchemaTopic) -> None:
    one = await topic.register(V1)
    await topic.append(encoded(V1, {"id": 1, "name": "a"}, one))
    await topic.pipeline.micro_batches.run()
    await topic.world.topics.set("t", {})
    await topic.append(b"bytes")
    await topic.pipeline.micro_batches.run()
    assert await topic.columns() == {"id": "int", "name": "string", "value": "binary"}
    assert (await topic.rows())[1]["value"] == b"bytes"


async def test_two_drivers_use_the_same_columns_and_writer_numbers(topic: SchemaTopic) -> None:
    one, two = await topic.register(V1), await topic.register(V2)
    other = await PipelineDriver.start(topic.world)
    await topic.append(encoded(V1, {"id": 1, "name": "a"}, one))
    await topic.pipeline.micro_batches.run()
    await topic.append(encoded(V2, {"id": 2, "name": "b", "price": 2.5}, two))
    other.changed.requeue([topic.partition])
    await other.micro_batches.run()
    await topic.append(encoded(V2, {"id": 3, "name": "c", "price": 3.5}, two))
    await topic.pipeline.micro_batches.run()
    assert [(row["id"], row.get("price"), raw(row)) for row in await topic.rows()] == [
        (1, None, None),
        (2, 2.5, None),
        (3, 3.5, None),
    ]


async def test_topic_stalls_when_a_value_column_was_dropped(topic: SchemaTopic) -> None:
    one = await topic.register(V1)
    await topic.append(encoded(V1, {"id": 1, "name": "a"}, one))
    await topic.pipeline.micro_batches.run()

    def dropped(metadata: Any) -> list[Any]:
        fields = [field for field in schema_of(metadata)["fields"] if field["name"] != "name"]
        return [AddSchema({"type": "struct", "fields": fields}), SetCurrentSchema(-1)]

    await topic.pipeline.catalog.change(topic.partition.topic_id, dropped)
    await topic.append(encoded(V1, {"id": 2, "name": "b"}, one))
    fresh = await PipelineDriver.start(topic.world)
    fresh.changed.requeue([topic.partition])
    done = await fresh.micro_batches.run()
    assert "column name, from which record values are restored, was dropped" in done.stalled[0]


def framed(schema_id: int, message: bytes, value: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + message + value


async def test_protobuf_columns_are_bound_by_message_and_field_number(topic: SchemaTopic) -> None:
    one = await topic.register(
        'syntax = "proto3"; message A { int32 id = 1; string name = 2; } message B { int32 id = 1; string note = 2; }',
        kind=Format.PROTOBUF,
    )
    two = await topic.register(
        'syntax = "proto3"; message A { int32 id = 1; string title = 2; string name = 3; }', kind=Format.PROTOBUF
    )
    first, second = b"\x08\x05\x12\x01a", b"\x08\x06\x12\x01b"
    await topic.append(framed(one, b"\0", first), framed(one, b"\x02\x02", second))
    await topic.pipeline.micro_batches.run()
    assert await topic.columns() == {"id": "int", "name": "string", "note": "string"}
    await topic.append(framed(two, b"\0", b"\x08\x07\x12\x01c\x1a\x01d"), framed(one, b"\x04\x08\x02", b"x"))
    done = await topic.pipeline.micro_batches.run()
    assert (done.records, done.stalled) == (2, [])
    # Field 2 of A has another name now, and field 3 has its old name. Field 2 of B is unchanged.
    assert await topic.columns() == {"id": "int", "title": "string", "note": "string", "name": "string"}
    table = await topic.pipeline.catalog.load_id(topic.partition.topic_id)
    ids = {one["name"]: one["id"] for one in schema_of(table.metadata)["fields"]}
    writers = (await topic.pipeline.catalog.writers.all(topic.partition.topic_id)).values
    bound = {number: [bound.field_id for bound in writer.columns if bound] for number, writer in writers.items()}
    assert bound == {
        one: [ids["id"], ids["title"]],
        -1: [ids["id"], ids["note"]],
        two: [ids["id"], ids["title"], ids["name"]],
    }
    assert [raw(row) is None for row in await topic.rows()] == [True, True, True, False]


async def test_columns_of_json_without_a_schema_grow_with_the_values(world: World) -> None:
    topic = await SchemaTopic.start(world, {"lakestream.value.schema": "json"})
    await topic.append(b'{"a":1}', b'{"a":2,"b":{"c":"x"}}')
    await topic.pipeline.micro_batches.run()
    assert await topic.columns() == {"a": "long", "b": _struct_of("c", 18)}
    await topic.append(b'{"a":1.5,"b":{"c":"y","d":true}}', b'{"a":"text"}', b"[1, 2]", b"{", None)
    done = await topic.pipeline.micro_batches.run()
    assert (done.records, done.stalled) == (5, [])
    assert list(await topic.columns()) == ["a", "b", "a_double", "a_string"]
    rows = await topic.rows()
    assert [(row["a"], row.get("a_double"), (row["b"] or {}).get("c"), raw(row)) for row in rows] == [
        (1, None, None, None),
        (2, None, "x", None),
        (None, 1.5, "y", None),
        (None, None, None, None),
        (None, None, None, b"[1, 2]"),
        (None, None, None, b"{"),
        (None, None, None, None),
    ]
    runs = len(topic.pipeline.job.runs)
    await topic.append(b'{"a":3}', b'{"a":2.5}')
    await topic.pipeline.micro_batches.run()
    assert len(topic.pipeline.job.runs) == runs + 1, "no new shape"
    topic.close()


def _struct_of(name: str, number: int) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"id": number, "name": name, "required": False, "type": "string"}]}


async def test_table_is_loaded_again_when_another_driver_widened_a_column(topic: SchemaTopic) -> None:
    """With the newer writer schema but the old table, values would be written to the narrower column."""
    narrow, wide = record(("id", "int")), record(("id", "long"))
    catalog, topic_id = topic.pipeline.catalog, topic.partition.topic_id
    await topic.append(encoded(narrow, {"id": 1}, await topic.register(narrow)))
    await topic.pipeline.micro_batches.run()
    before = await catalog.load_id(topic_id)
    await topic.append(encoded(wide, {"id": 2**40}, await topic.register(wide)))
    await topic.pipeline.micro_batches.run()
    other = TopicSchemas(catalog, SchemaReader(topic.world.server.client()), topic.world.clock, read_schema)
    prepared = await other.prepare(NamedTopic("t", await topic.world.topics.get("t")), before)
    assert prepared.conversion is not None
    assert len(prepared.conversion.value.writers) == 2
    assert [one["type"] for one in schema_of(prepared.table.metadata)["fields"] if one["name"] == "id"] == ["long"]


async def test_field_has_no_column_while_delta_does_not_support_its_type(world: World) -> None:
    """The field has no column while the table has a Delta table, which is not blocked; the value keeps its bytes."""
    topic = await SchemaTopic.start(world, {**REGISTRY, "lakestream.table.formats": "iceberg,delta"})
    clock = record(("id", "int"), ("at", {"type": "int", "logicalType": "time-millis"}))
    one = await topic.register(clock)
    value = encoded(clock, {"id": 1, "at": time(10, 30)}, one)
    await topic.append(value)
    await topic.pipeline.micro_batches.run()
    assert await topic.columns() == {"id": "int"}
    (row,) = await topic.rows()
    assert (row["id"], number(row), raw(row)) == (1, one, value)
    await world.topics.set("t", REGISTRY)
    catalog, reader = topic.pipeline.catalog, SchemaReader(world.server.client())
    named = NamedTopic("t", await world.topics.get("t"))
    table = await catalog.load_id(topic.partition.topic_id)
    await TopicSchemas(catalog, reader, world.clock, read_schema).prepare_repair(named, table)
    assert await topic.columns() == {"id": "int", "at": "time"}, "a repair adds the column"
    topic.close()
