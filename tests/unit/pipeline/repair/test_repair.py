"""Tests repairs: rows that keep their bytes get columns at the same offsets when their schemas are available."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from tests.harness.catalog.external_engine import rewrite_file
from tests.harness.catalog.iceberg_tables import ROOT
from tests.harness.log.brokers import World
from tests.harness.pipeline.pipeline_driver import read_schema
from tests.harness.pipeline.schema_topic import REGISTRY, SchemaTopic, encoded, record

from lakestream.catalog.errors import Unsupported
from lakestream.catalog.locations import Locations
from lakestream.catalog.operations.live_files import LiveFileReader
from lakestream.catalog.table_metadata.json_model import schema_of
from lakestream.catalog.table_metadata.updates import AddSchema, SetCurrentSchema
from lakestream.clock import RandomIds
from lakestream.coordination.schema_registry.schema_reader import SchemaReader
from lakestream.metadata.topics import NamedTopic
from lakestream.pipeline.maintenance.job import LocalRewrites
from lakestream.pipeline.maintenance.tasks import Result, Task
from lakestream.pipeline.maintenance.worker import FileRewriter
from lakestream.pipeline.repair.repair import RepairDone, Repairs
from lakestream.pipeline.topic_schemas import TopicSchemas

V1 = record(("id", "int"), ("name", "string"))
VALUE = encoded(V1, {"id": 1, "name": "a"}, 1)


class InterruptedRewrites(LocalRewrites):
    """Calls `interrupt` before the first rewrite."""

    def __init__(self, work: FileRewriter, interrupt: Callable[[], Awaitable[Any]] | None) -> None:
        super().__init__(work)
        self._others = interrupt

    async def run(self, tasks: Sequence[Task]) -> list[Result]:
        interrupt, self._others = self._others, None
        if interrupt is not None:
            await interrupt()
        return await super().run(tasks)


async def repair(topic: SchemaTopic, *, interrupt: Callable[[], Awaitable[Any]] | None = None) -> RepairDone:
    """Repairs the topic without caches, as a command does."""
    catalog = topic.pipeline.catalog
    reader = SchemaReader(topic.world.server.client())
    job = InterruptedRewrites(FileRewriter(topic.world.objects, Locations(ROOT), RandomIds()), interrupt)
    repairs = Repairs(catalog, TopicSchemas(catalog, reader, topic.world.clock, read_schema), job)
    return await repairs.run(NamedTopic("t", await topic.world.topics.get("t")))


def cells(row: dict[str, Any]) -> tuple[Any, ...]:
    stream = row["_stream"]
    return stream["offset"], row.get("id"), stream["schema_id"], stream["value"], stream["key"]


async def test_rows_get_columns_when_their_schema_was_registered_later(topic: SchemaTopic) -> None:
    await topic.append(VALUE, b"never", None, VALUE, keys=[b"k", None, b"k", b"l"])
    await topic.pipeline.micro_batches.run()
    before = await topic.rows()
    assert [cells(row)[3] for row in before] == [VALUE, b"never", None, VALUE]
    assert await topic.register(V1) == 1
    done = await repair(topic)
    assert (done.rows_before, done.rows_after, done.files_written) == (3, 1, 1)
    assert [(reason, count) for (reason, _), count in done.reasons.items()] == [
        ("does not start with a zero byte and a schema id", 1)
    ]
    rows = await topic.rows()
    assert [cells(row) for row in rows] == [
        (0, 1, 1, None, b"k"),
        (1, None, None, b"never", None),
        (2, None, None, None, b"k"),
        (3, 1, 1, None, b"l"),
    ]
    interrupt = ("timestamp", "timestamp_type", "headers", "partition")
    assert [[row["_stream"][name] for name in interrupt] for row in rows] == [
        [row["_stream"][name] for name in interrupt] for row in before
    ]
    again = await repair(topic)
    assert (again.rows_before, again.rows_after, again.files_written) == (1, 1, 0)


async def test_rows_get_columns_when_the_topic_got_a_schema_later(world: World) -> None:
    topic = await SchemaTopic.start(world, {})
    await topic.register(V1)
    await topic.append(VALUE)
    await topic.pipeline.micro_batches.run()
    with pytest.raises(Unsupported, match="has no schema"):
        await repair(topic)
    await world.topics.set("t", REGISTRY)
    done = await repair(topic)
    assert (done.rows_before, done.rows_after) == (1, 0)
    (row,) = await topic.rows()
    assert cells(row) == (0, 1, 1, None, None)
    assert row["value"] is None
    topic.close()


async def test_rows_get_columns_when_an_engine_added_a_fitting_column(topic: SchemaTopic) -> None:
    one, two = await topic.register(V1), await topic.register(record(("id", "int"), ("name", "string"), ("x", "long")))
    three = await topic.register(record(("id", "int"), ("name", "string"), ("x", "string")))
    await topic.append(encoded(V1, {"id": 1, "name": "a"}, one))
    await topic.append(encoded(record(("id", "int"), ("name", "string"), ("x", "string")), _x("b", "s"), three))
    await topic.append(encoded(record(("id", "int"), ("name", "string"), ("x", "long")), _x("c", 5), two))
    await topic.pipeline.micro_batches.run()
    rows = await topic.rows()
    lost = [cells(row) for row in rows if cells(row)[3] is not None]
    assert lost[0][:3] == (1, 2, three), "x is a long: strings have no column"
    done = await repair(topic)
    assert (done.rows_before, done.rows_after) == (1, 1)

    def with_string_column(metadata: Any) -> list[Any]:
        """As `ALTER TABLE … ADD COLUMN x_ string` of an engine."""
        number = metadata["last-column-id"] + 1
        fields = [*schema_of(metadata)["fields"], {"id": number, "name": "x_", "type": "string", "required": False}]
        return [AddSchema({"type": "struct", "fields": fields}), SetCurrentSchema(-1)]

    await topic.pipeline.catalog.change(topic.partition.topic_id, with_string_column)
    done = await repair(topic)
    assert (done.rows_before, done.rows_after) == (1, 0)
    assert [(row["name"], row["x"], row["x_"], row["_stream"]["value"]) for row in (await topic.rows())] == [
        ("a", None, None, None),
        ("b", None, "s", None),
        ("c", 5, None, None),
    ]
    assert (await topic.rows())[1]["_stream"]["schema_id"] == -1, "the same schema, bound to other columns"


def _x(name: str, x: Any) -> dict[str, Any]:
    return {"id": 2, "name": name, "x": x}


async def test_repair_starts_again_when_other_drivers_change_the_files(topic: SchemaTopic) -> None:
    await topic.append(VALUE)
    await topic.pipeline.micro_batches.run()
    await topic.register(V1)
    newer = record(("id", "int"), ("name", "string"), ("x", "long"))

    async def interrupt() -> None:
        await repair(topic)  # so that this repair finds its file replaced, and starts again
        await topic.append(encoded(newer, _x("b", 7), await topic.register(newer)), b"never")
        await topic.pipeline.micro_batches.run()

    done = await repair(topic, interrupt=interrupt)
    assert (done.left, done.rows_before, done.rows_after) == ([], 1, 1)
    assert [(row.get("name"), row.get("x")) for row in await topic.rows()] == [("a", None), ("b", 7), (None, None)]


async def test_repair_starts_again_when_a_file_was_replaced_and_deleted(topic: SchemaTopic) -> None:
    await topic.append(VALUE, b"never")
    await topic.pipeline.micro_batches.run()
    await topic.register(V1)
    (before,) = await data_files(topic)

    async def interrupt() -> None:
        await repair(topic)
        await topic.world.objects.delete([before])

    done = await repair(topic, interrupt=interrupt)
    assert (done.left, done.rows_before, done.rows_after) == ([], 1, 1)


async def data_files(topic: SchemaTopic) -> list[str]:
    """Returns the keys of the data files."""
    table = await topic.pipeline.catalog.load_id(topic.partition.topic_id)
    listing = await LiveFileReader(topic.world.objects, Locations(ROOT)).of_main(table.metadata)
    return [Locations(ROOT).key_of(file.location) for file in listing.data]


async def test_file_without_foreign_columns_is_repaired_when_the_table_has_some(topic: SchemaTopic) -> None:
    await topic.append(VALUE)
    await topic.pipeline.micro_batches.run()

    def with_foreign_column(metadata: Any) -> list[Any]:
        fields = [*schema_of(metadata)["fields"], {"id": 500, "name": "x", "type": "int", "required": False}]
        return [AddSchema({"type": "struct", "fields": fields}), SetCurrentSchema(-1)]

    await topic.pipeline.catalog.change(topic.partition.topic_id, with_foreign_column)
    await topic.register(V1)
    done = await repair(topic)
    assert (done.rows_after, done.left) == (0, []), "the file does not have the column"


async def test_rows_are_repaired_when_another_engine_sorted_them(topic: SchemaTopic) -> None:
    """As `rewrite_data_files` does with another sort order."""
    await topic.append(VALUE, b"never", VALUE)
    await topic.pipeline.micro_batches.run()
    await _reverse_rows(topic, with_bounds=True)
    assert await topic.register(V1) == 1
    done = await repair(topic)
    assert (done.rows_before, done.rows_after, done.left) == (3, 1, [])
    assert [cells(row)[:4] for row in await topic.rows()] == [
        (0, 1, 1, None),
        (1, None, None, b"never"),
        (2, 1, 1, None),
    ]


async def test_file_without_offset_bounds_is_skipped(topic: SchemaTopic) -> None:
    await topic.append(VALUE)
    await topic.pipeline.micro_batches.run()
    await _reverse_rows(topic, with_bounds=False)
    await topic.append(VALUE)
    await topic.pipeline.micro_batches.run()
    assert await topic.register(V1) == 1
    done = await repair(topic)
    assert [reason.partition(" ")[2] for reason in done.left] == [
        "has no bounds of its offsets: run CALL system.rewrite_data_files, then repair again"
    ]
    assert [cells(row)[3] for row in await topic.rows()] == [VALUE, None], "the other file is repaired"


async def _reverse_rows(topic: SchemaTopic, *, with_bounds: bool) -> None:
    await rewrite_file(topic, lambda rows: rows.take(list(range(len(rows)))[::-1]), with_bounds=with_bounds)


async def test_rows_get_columns_when_the_latest_schema_was_registered_later(world: World) -> None:
    topic = await SchemaTopic.start(world, {"lakestream.value.schema": "latest"})
    await topic.append(VALUE[5:])
    await topic.pipeline.micro_batches.run()
    await topic.register(V1)
    done = await repair(topic)
    assert (done.rows_before, done.rows_after, list(await topic.columns())) == (1, 0, ["id", "name"])
    topic.close()


async def test_rows_keep_their_bytes_when_their_columns_do_not_restore_them(topic: SchemaTopic) -> None:
    """A list in a block with a size, as some libraries write it, is encoded without the size when it is restored."""
    value = b"\0\0\0\0\1" + bytes([2, 1, 2, 10, 0])
    await topic.append(value)
    await topic.pipeline.micro_batches.run()
    await topic.register(record(("id", "int"), ("sizes", {"type": "array", "items": "int"})))
    done = await repair(topic)
    assert (done.rows_before, done.rows_after, done.files_written) == (1, 1, 1)
    (row,) = await topic.rows()
    assert (row["id"], row["sizes"], row["_stream"]["value"]) == (1, [5], value)
    assert (await repair(topic)).files_written == 0


async def test_keys_get_columns_when_their_schema_was_registered_later(world: World) -> None:
    topic = await SchemaTopic.start(world, {"lakestream.key.schema": "registry"})
    await topic.append(b"plain", b"other", keys=[VALUE, None])
    await topic.pipeline.micro_batches.run()
    await topic.register(V1, "t-key")
    assert (await repair(topic)).files_written == 1
    rows = await topic.rows()
    assert [row["_key"] for row in rows] == [{"id": 1, "name": "a"}, None]
    assert [(row["value"], row["_stream"]["key"]) for row in rows] == [(b"plain", VALUE), (b"other", None)]
    assert (await repair(topic)).files_written == 0
    topic.close()


async def test_keys_are_repaired_when_their_column_was_renamed(world: World) -> None:
    topic = await SchemaTopic.start(world, {"lakestream.key.schema": "registry"})
    await topic.register(V1, "t-key")
    await topic.append(b"plain", keys=[VALUE])
    await topic.pipeline.micro_batches.run()

    def renamed(metadata: Any) -> list[Any]:
        fields = [{**one, "name": one["name"].replace("_key", "renamed")} for one in schema_of(metadata)["fields"]]
        return [AddSchema({"type": "struct", "fields": fields}), SetCurrentSchema(-1)]

    await topic.pipeline.catalog.change(topic.partition.topic_id, renamed)
    await topic.append(b"other", keys=[encoded(V1, {"id": 2, "name": "b"}, 2)])
    await topic.pipeline.micro_batches.run()
    await topic.register(record(("id", "int"), ("name", "string"), ("more", ["null", "string"])), "t-key")
    done = await repair(topic)
    assert done.left == []
    topic.close()
