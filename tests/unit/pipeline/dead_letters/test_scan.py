"""Tests dead letters of a topic: each row with its reason, and whether a repair would add its columns."""

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from tests.harness.catalog.external_engine import rewrite_file
from tests.harness.catalog.iceberg_tables import ROOT
from tests.harness.log.brokers import World
from tests.harness.pipeline.pipeline_driver import PipelineDriver, read_schema
from tests.harness.pipeline.schema_topic import REGISTRY, SchemaTopic, encoded, record
from tests.unit.pipeline.repair.test_repair import repair

from lakestream.catalog.locations import Locations
from lakestream.catalog.operations.live_files import LiveFileReader
from lakestream.catalog.operations.rewrite_files import FilesChanged
from lakestream.catalog.table_metadata.json_model import schema_of
from lakestream.catalog.table_metadata.updates import AddSchema, SetCurrentSchema
from lakestream.catalog.topic_table.live_file import POSITION_DELETES
from lakestream.coordination.schema_registry.schema_reader import SchemaReader
from lakestream.data.typed.values_to_columns import NULL_FIELD
from lakestream.errors import Unavailable
from lakestream.metadata.topics import NamedTopic
from lakestream.pipeline.dead_letters import partition_cursor as partition_cursor
from lakestream.pipeline.dead_letters.dry_run import DryRunDependencies, TableDryRun
from lakestream.pipeline.dead_letters.file_scan import NOTHING_FILLED, scan_file
from lakestream.pipeline.dead_letters.model import DeadLetter, DeadLetterQuery, Summary
from lakestream.pipeline.dead_letters.scan import DeadLetters
from lakestream.pipeline.maintenance.table_file import TableFiles
from lakestream.pipeline.repair.candidates import source_of
from lakestream.records.batch import RecordBatch
from lakestream.schemas.model import Format
from lakestream.testing.batches import make_batch

V1 = record(("id", "int"), ("name", "string"))
VALUE = encoded(V1, {"id": 1, "name": "a"}, 1)
UNFRAMED = "does not start with a zero byte and a schema id"
ALL = DeadLetterQuery()


def dead_letters(topic: SchemaTopic) -> DeadLetters:
    """Returns new dead letters without caches, as a command does."""
    reader = SchemaReader(topic.world.server.client())
    return DeadLetters(topic.pipeline.catalog, reader, topic.world.clock, read_schema)


async def named(topic: SchemaTopic) -> NamedTopic:
    return NamedTopic("t", await topic.world.topics.get("t"))


async def letters(topic: SchemaTopic, query: DeadLetterQuery = ALL) -> list[DeadLetter]:
    left: list[str] = []
    found = [letter async for letter in dead_letters(topic).letters(await named(topic), query, left)]
    assert left == []
    return found


async def summary(topic: SchemaTopic, query: DeadLetterQuery = ALL) -> Summary:
    return await dead_letters(topic).summary(await named(topic), query)


async def outcomes(topic: SchemaTopic, query: DeadLetterQuery = ALL) -> list[tuple[int, str, bool]]:
    return [(letter.offset, letter.reason, letter.is_repairable) for letter in await letters(topic, query)]


async def moved(topic: SchemaTopic, *values: bytes | None, keys: list[bytes | None] | None = None) -> None:
    await topic.append(*values, keys=keys)
    await topic.pipeline.micro_batches.run()


async def test_rows_are_repairable_when_their_schema_was_registered_later(topic: SchemaTopic) -> None:
    await moved(topic, VALUE, b"never", None, VALUE, keys=[b"k", None, b"k", b"l"])
    first, second, third = await letters(topic)
    assert (first.offset, first.reason, first.is_repairable) == (0, "schema 1: Schema 1 not found", False)
    assert (first.schema_id, first.key, first.value, first.value_size) == (1, b"k", VALUE, len(VALUE))
    assert (second.offset, second.reason, second.schema_id, second.key) == (1, UNFRAMED, 0, None)
    assert third.offset == 3
    before = await topic.rows(), await topic.columns()
    assert await topic.register(V1) == 1
    assert await outcomes(topic) == [(0, "", True), (1, UNFRAMED, False), (3, "", True)]
    counts = await summary(topic)
    assert (counts.rows, counts.repairable, counts.spelled, counts.left) == (3, 2, 0, [])
    assert [(reason.text, count) for reason, count in counts.reasons.items()] == [(UNFRAMED, 1)]
    assert list(counts.firsts.values()) == [(0, 1)]
    assert (await topic.rows(), await topic.columns()) == before, "the scan changes nothing"
    assert (await topic.pipeline.catalog.writers.all(topic.partition.topic_id)).values == {}
    await repair(topic)
    assert await outcomes(topic) == [(1, UNFRAMED, False)]


async def test_each_kind_of_conversion_error_has_its_reason(topic: SchemaTopic) -> None:
    one = await topic.register(V1)
    two = await topic.register(record(("id", "string"), ("name", "string")))
    good = encoded(V1, {"id": 1, "name": "a"}, one)
    other = encoded(record(("id", "string"), ("name", "string")), {"id": "x", "name": "b"}, two)
    await moved(topic, good, good[:-1], other, b"\0\0\0\0\x63abc")
    found = await letters(topic)
    assert [(letter.offset, letter.schema_id, letter.is_repairable) for letter in found] == [
        (1, one, False),
        (2, two, False),
        (3, 99, False),
    ]
    cut, misfit, unknown = (letter.reason for letter in found)
    assert "name" in cut
    assert misfit == "no column fits id"
    assert unknown == "schema 99: Schema 99 not found"


async def test_row_with_columns_and_other_spelling_is_no_dead_letter(topic: SchemaTopic) -> None:
    """A list in a block with a size has columns, and keeps its bytes because this encoding is not the usual one."""
    value = b"\0\0\0\0\1" + bytes([2, 1, 2, 10, 0])
    await topic.register(record(("id", "int"), ("sizes", {"type": "array", "items": "int"})))
    await moved(topic, value, b"never")
    assert await outcomes(topic) == [(1, UNFRAMED, False)]
    counts = await summary(topic)
    assert (counts.rows, counts.repairable, counts.spelled) == (1, 0, 1)


async def test_row_is_no_dead_letter_when_a_repair_would_only_remove_its_bytes(world: World) -> None:
    """One text has another style than most; the style was added to the writer schemas later."""
    topic = await SchemaTopic.start(world, {"lakestream.value.schema": "json"})
    await moved(topic, *[b'{"n":1}'] * 150, b'{"n": 2}')
    await moved(topic, *[b'{"n": 3}'] * 60)
    rows = await topic.rows()
    assert [row["n"] for row in rows if row["_stream"]["value"] is not None] == [2]
    assert await outcomes(topic) == []
    assert (await summary(topic)).spelled == 1
    await repair(topic)
    assert (await summary(topic)).spelled == 0
    topic.close()


DECIMAL = {
    "type": "number",
    "title": "org.apache.kafka.connect.data.Decimal",
    "connect.type": "bytes",
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "9"},
}
CONNECT = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "b": {"type": "string", "connect.type": "bytes"},
        "t": {"type": "string", "format": "date"},
        "f": {"type": "number", "connect.type": "float32"},
        "d": DECIMAL,
        "x": {"type": "number"},
        "many": {"type": "array", "items": {"type": "array", "items": DECIMAL}},
    },
}


@pytest.mark.parametrize(
    "field",
    ['"b":"no base64!"', '"t":"nodate"', '"f":1e39', '"d":1e5', '"x":1e400', '"many":[[],[1.00],[2.00,1e5]]'],
)
async def test_row_is_a_dead_letter_when_a_field_is_null_in_its_column(topic: SchemaTopic, field: str) -> None:
    """With other fields, or alone. Rows around it, and a row that only has another spelling, are no dead letters."""
    head = b"\0" + (await topic.register(json.dumps(CONNECT), kind=Format.JSON)).to_bytes(4, "big")
    good, many = b'{"n":1,"d":1.50}', b'{"n":1,"many":[[1.00],[2.00]]}'
    bad = [f'{{"n":2,{field}}}'.encode(), f"{{{field}}}".encode()]
    await moved(topic, *(head + value for value in (good, many, bad[0], good, bad[1], b'{"n" : 3}', many)))
    assert await outcomes(topic) == [(2, NULL_FIELD, False), (4, NULL_FIELD, False)]
    counts = await summary(topic)
    assert (counts.rows, counts.spelled) == (2, 1)
    assert [row["n"] for row in await topic.rows()] == [1, 1, 2, 1, None, 3, 1]


async def test_row_is_a_dead_letter_when_all_columns_are_null(world: World) -> None:
    topic = await SchemaTopic.start(world, {"lakestream.value.schema": "json"})
    await moved(topic, *[b'{"n":1}'] * 150, b"null", b'{"n": 2}')
    assert await outcomes(topic) == [(150, NOTHING_FILLED, False)]
    assert (await summary(topic)).spelled == 1
    topic.close()


async def test_row_with_an_invalid_key_is_counted_once(world: World) -> None:
    topic = await SchemaTopic.start(world, {"lakestream.value.schema": "json", "lakestream.key.schema": "registry"})
    await moved(topic, *[b'{"n":1}'] * 150, b'{"n": 2}', keys=[*[None] * 150, b"bad"])
    assert await outcomes(topic) == [(150, f"key: {UNFRAMED}", False)]
    counts = await summary(topic)
    assert (counts.rows, counts.spelled) == (1, 0)
    topic.close()


async def test_row_with_other_spelling_is_repairable_when_it_lacks_columns(topic: SchemaTopic) -> None:
    await moved(topic, b"\0\0\0\0\1" + bytes([2, 1, 2, 10, 0]))
    await topic.register(record(("id", "int"), ("sizes", {"type": "array", "items": "int"})))
    assert await outcomes(topic) == [(0, "", True)]
    await repair(topic)
    assert await outcomes(topic) == []
    assert (await summary(topic)).spelled == 1


async def test_row_is_repairable_when_an_engine_added_a_fitting_column(topic: SchemaTopic) -> None:
    await topic.register(V1)
    two = await topic.register(other := record(("id", "string"), ("name", "string")))
    await moved(topic, VALUE, encoded(other, {"id": "x", "name": "b"}, two))
    assert await outcomes(topic) == [(1, "no column fits id", False)]

    def with_string_column(metadata: Any) -> list[Any]:
        number = metadata["last-column-id"] + 1
        fields = [*schema_of(metadata)["fields"], {"id": number, "name": "id_", "type": "string", "required": False}]
        return [AddSchema({"type": "struct", "fields": fields}), SetCurrentSchema(-1)]

    await topic.pipeline.catalog.change(topic.partition.topic_id, with_string_column)
    assert await outcomes(topic) == [(1, "", True)]
    await repair(topic)
    assert await outcomes(topic) == []


async def test_rows_are_repairable_when_the_latest_schema_was_registered_later(world: World) -> None:
    topic = await SchemaTopic.start(world, {"lakestream.value.schema": "latest"})
    await moved(topic, VALUE[5:])
    ((_, reason, is_repairable),) = await outcomes(topic)
    assert (reason.partition(":")[0], is_repairable) == ("the topic's schema is not available", False)
    before = await topic.columns()
    await topic.register(V1)
    assert await outcomes(topic) == [(0, "", True)]
    assert await topic.columns() == before
    topic.close()


async def test_rows_are_dead_letters_when_the_topic_got_a_schema_later(world: World) -> None:
    topic = await SchemaTopic.start(world, {})
    await topic.register(V1)
    await moved(topic, VALUE, b"never")
    assert await outcomes(topic) == [], "without a schema, values in bytes are no dead letters"
    await world.topics.set("t", REGISTRY)
    assert await outcomes(topic) == [(0, "", True), (1, UNFRAMED, False)]
    topic.close()


async def test_value_that_is_no_json_is_a_dead_letter(world: World) -> None:
    topic = await SchemaTopic.start(world, {"lakestream.value.schema": "json"})
    await moved(topic, b'{"a":1}', b"no json", b'{"a":2}', None)
    ((offset, reason, _),) = await outcomes(topic)
    assert (offset, bool(reason)) == (1, True)
    topic.close()


async def test_key_without_columns_is_a_dead_letter(world: World) -> None:
    topic = await SchemaTopic.start(world, {"lakestream.key.schema": "registry"})
    await moved(topic, b"plain", b"other", b"third", keys=[VALUE, None, b"bad"])
    assert await outcomes(topic) == [(0, "key: schema 1: Schema 1 not found", False), (2, f"key: {UNFRAMED}", False)]
    await topic.register(V1, "t-key")
    assert await outcomes(topic) == [(0, "", True), (2, f"key: {UNFRAMED}", False)]
    await repair(topic)
    assert await outcomes(topic) == [(2, f"key: {UNFRAMED}", False)]
    topic.close()


async def test_row_has_both_reasons_when_value_and_key_are_invalid(world: World) -> None:
    topic = await SchemaTopic.start(world, {**REGISTRY, "lakestream.key.schema": "registry"})
    await moved(topic, b"never", keys=[b"bad"])
    assert await outcomes(topic) == [(0, f"{UNFRAMED}; key: {UNFRAMED}", False)]
    counts = await summary(topic)
    assert (counts.rows, sorted(reason.text for reason in counts.reasons)) == (1, [UNFRAMED, f"key: {UNFRAMED}"])
    topic.close()


async def test_query_selects_order_offsets_and_bytes(topic: SchemaTopic) -> None:
    for start in range(0, 6, 2):
        await moved(topic, b"a%d" % start, b"b%d" % start)
    assert len(await data_files(topic)) == 3
    assert [one.offset for one in await letters(topic)] == [0, 1, 2, 3, 4, 5]
    assert [one.offset for one in await letters(topic, DeadLetterQuery(newest_first=True))] == [5, 4, 3, 2, 1, 0]
    assert [one.offset for one in await letters(topic, DeadLetterQuery(offset_start=3))] == [3, 4, 5]
    assert [one.offset for one in await letters(topic, DeadLetterQuery(offset_start=3, newest_first=True))] == [5, 4, 3]
    assert await letters(topic, DeadLetterQuery(partition=1)) == []
    assert (await summary(topic, DeadLetterQuery(offset_start=5))).rows == 1
    (first, *_) = await letters(topic, DeadLetterQuery(bytes_shown=1))
    assert (first.value, first.value_size) == (b"a", 2)


async def test_dead_letters_of_several_partitions_are_ordered_by_time(world: World) -> None:
    partitions = await world.topic(partitions=2)
    await world.topics.set("t", REGISTRY)
    topic = SchemaTopic(world, await world.broker(), await PipelineDriver.start(world), partitions[0])
    for at, (number, time) in enumerate([(0, 1_000), (1, 500), (0, 3_000), (1, 2_000)]):
        batch = make_batch([b"%d" % at], timestamp_ms=time)
        await topic.log.append(partitions[number], RecordBatch.parse(batch))
    topic.pipeline.changed.requeue(partitions)
    await topic.pipeline.micro_batches.run()
    assert [(one.partition, one.offset, one.timestamp_ms) for one in await letters(topic)] == [
        (1, 0, 500),
        (0, 0, 1_000),
        (1, 1, 2_000),
        (0, 1, 3_000),
    ]
    newest = await letters(topic, DeadLetterQuery(newest_first=True))
    assert [one.timestamp_ms for one in newest] == [3_000, 2_000, 1_000, 500]
    topic.close()


async def test_dead_letters_are_ordered_by_offset_when_files_overlap(world: World) -> None:
    """Each table partition has a file with all offsets."""
    settings = {**REGISTRY, "lakestream.table.partition": "_stream.partition, truncate(1, _stream.key)"}
    topic = await SchemaTopic.start(world, settings)
    for _ in range(2):
        await moved(topic, *(b"%d" % at for at in range(6)), keys=[b"ab"[at % 2 : at % 2 + 1] for at in range(6)])
    assert len(await data_files(topic)) == 4
    assert [one.offset for one in await letters(topic)] == list(range(12))
    assert [one.offset for one in await letters(topic, DeadLetterQuery(newest_first=True))] == list(range(12))[::-1]
    for limit in (1, 5, 8, 12, 13):
        assert [one.offset for one in await letters(topic, DeadLetterQuery(limit=limit))] == list(range(12))[:limit]
        newest = await letters(topic, DeadLetterQuery(limit=limit, newest_first=True))
        assert [one.offset for one in newest] == list(range(12))[::-1][:limit]
    topic.close()


async def test_scan_continues_when_files_are_replaced(topic: SchemaTopic) -> None:
    await moved(topic, VALUE, b"never")
    await moved(topic, VALUE, b"again")
    await topic.register(V1)
    left: list[str] = []
    stream = dead_letters(topic).letters(await named(topic), ALL, left)
    assert (await anext(stream)).offset == 0
    before = await data_files(topic)
    await repair(topic)
    await topic.world.objects.delete(before)
    assert [(one.offset, one.reason) async for one in stream] == [(1, UNFRAMED), (3, UNFRAMED)]
    assert left == []


@pytest.mark.parametrize("deleted", [[0], [1, 2], [0, 1, 2, 3]])
async def test_deleted_rows_are_no_dead_letters(topic: SchemaTopic, deleted: list[int]) -> None:
    await moved(topic, b"a", VALUE, b"b", None)
    await topic.register(V1)
    dry_run, catalog = await begin_dry_run(topic), topic.pipeline.catalog
    (live,) = dry_run.files(0, ALL.window)
    folder = catalog.locations.table(dry_run.table.metadata["location"])
    file = await TableFiles(catalog.objects, folder).open(source_of(live, dry_run.listing))
    file.deleted = np.array(deleted)
    found = await scan_file(file, dry_run._request(live, ALL.window, DeadLetterQuery(bytes_shown=10), is_last=True))
    left = {0: b"a", 1: VALUE, 2: b"b"}.items()
    assert [(one["offset"], one["value"]) for one in found.letters.to_pylist()] == [
        (offset, value[:10]) for offset, value in left if offset not in deleted
    ]


async def begin_dry_run(topic: SchemaTopic) -> TableDryRun:
    reader, catalog = SchemaReader(topic.world.server.client()), topic.pipeline.catalog
    dependencies = DryRunDependencies(
        catalog, reader, topic.world.clock, read_schema, LiveFileReader(catalog.objects, catalog.locations)
    )
    return await TableDryRun.begin(dependencies, await named(topic))


async def test_scan_raises_files_changed_when_deletes_were_replaced(topic: SchemaTopic) -> None:
    """The data file is still in the table, but another delete file has its deleted rows."""
    await moved(topic, b"never")
    dry_run = await begin_dry_run(topic)
    (live,) = dry_run.files(0, ALL.window)
    expired = live._replace(
        location=f"{live.location}.deletes.parquet", content=POSITION_DELETES, referenced_file=live.location
    )
    dry_run.listing = replace(dry_run.listing, deletes=(expired,))
    with pytest.raises(FilesChanged):
        await dry_run.scan(live, ALL.window, ALL)
    assert dry_run.left == []


async def test_scan_returns_no_more_dead_letters_than_the_limit(topic: SchemaTopic) -> None:
    await moved(topic, *(b"%d" % at for at in range(50)))
    dry_run = await begin_dry_run(topic)
    (live,) = dry_run.files(0, ALL.window)
    for query, offsets in [
        (DeadLetterQuery(limit=3), [0, 1, 2]),
        (DeadLetterQuery(limit=3, newest_first=True), [49, 48, 47]),
        (DeadLetterQuery(limit=3, offset_start=48), [48, 49]),
    ]:
        assert len((await dry_run.scan(live, query.window, query)).letters) == len(offsets)
        assert [one.offset for one in await letters(topic, query)] == offsets
    assert (await summary(topic, DeadLetterQuery(limit=3))).rows == 50


async def test_missing_file_is_reported(topic: SchemaTopic) -> None:
    await moved(topic, b"never")
    await topic.world.objects.delete(await data_files(topic))
    (reason,) = (await summary(topic)).left
    assert "is missing or truncated" in reason
    left: list[str] = []
    assert [one async for one in dead_letters(topic).letters(await named(topic), ALL, left)] == []
    assert left == [reason]


async def test_rows_are_not_repairable_when_their_file_has_a_foreign_column(topic: SchemaTopic) -> None:
    await moved(topic, VALUE, b"never")
    await _add_filled_column(topic)
    await topic.register(V1)
    blocked = "its file has the column foreign, which is not the stream's own: repair skips the file"
    assert await outcomes(topic) == [(0, blocked, False), (1, UNFRAMED, False)]
    counts = await summary(topic)
    assert (counts.rows, counts.repairable) == (2, 0)
    assert {reason.text for reason in counts.reasons} == {blocked, UNFRAMED}


async def _add_filled_column(topic: SchemaTopic) -> None:
    """Adds a column and rewrites the file with values for it, as an engine does."""
    foreign = {"id": 500, "name": "foreign", "type": "int", "required": False}

    def with_foreign_column(metadata: Any) -> list[Any]:
        fields = [*schema_of(metadata)["fields"], foreign]
        return [AddSchema({"type": "struct", "fields": fields}), SetCurrentSchema(-1)]

    await topic.pipeline.catalog.change(topic.partition.topic_id, with_foreign_column)
    kind = pa.field("foreign", pa.int32(), metadata={"PARQUET:field_id": "500"})
    await rewrite_file(topic, lambda rows: rows.append_column(kind, pa.array(range(len(rows)), pa.int32())))


async def test_rows_are_not_repairable_when_the_setting_would_remove_other_columns(topic: SchemaTopic) -> None:
    """A repair would remove columns from more rows than it would add them to, so it skips the file."""
    await topic.register(V1)
    await moved(topic, VALUE, VALUE, b'{"a":1}')
    await topic.world.topics.set("t", {"lakestream.value.schema": "json"})
    ((offset, reason, is_repairable),) = await outcomes(topic)
    assert (offset, is_repairable) == (2, False)
    assert reason.endswith("repair skips the file")
    assert (await repair(topic)).files_written == 0


async def test_scan_fails_when_files_keep_changing(topic: SchemaTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_cursor, "TRIES_MAX", 1)
    await moved(topic, VALUE)
    await moved(topic, VALUE)
    await topic.register(V1)
    stream = dead_letters(topic).letters(await named(topic), ALL, [])
    await anext(stream)
    before = await data_files(topic)
    await repair(topic)
    await topic.world.objects.delete(before)
    with pytest.raises(Unavailable, match="were replaced by other writers"):
        await anext(stream)


async def data_files(topic: SchemaTopic) -> list[str]:
    """Returns the keys of the data files."""
    table = await topic.pipeline.catalog.load_id(topic.partition.topic_id)
    listing = await LiveFileReader(topic.world.objects, Locations(ROOT)).of_main(table.metadata)
    return [Locations(ROOT).key_of(file.location) for file in listing.data]


V2 = record(("id", "int"), ("name", "string"), ("x", "long"))
MISFIT = record(("id", "string"), ("name", "string"))
LISTED = record(("id", "int"), ("sizes", {"type": "array", "items": "int"}))


def _values(luck: random.Random, count: int) -> list[bytes | None]:
    """Returns values of four schemas, the last of which is registered later, and invalid values."""
    kinds = (
        lambda: encoded(V1, {"id": luck.randint(0, 9), "name": "a"}, 1),
        lambda: encoded(V2, {"id": 1, "name": "b", "x": luck.randint(0, 9)}, 2),
        lambda: encoded(MISFIT, {"id": "s", "name": "c"}, 3),
        lambda: encoded(LISTED, {"id": 1, "sizes": [1, 2]}, 4),
        lambda: b"\0\0\0\0\4" + bytes([2, 1, 2, 10, 0]),
        lambda: encoded(V1, {"id": 1, "name": "cut off"}, 1)[:-2],
        lambda: b"never",
        lambda: None,
    )
    return [luck.choice(kinds)() for _ in range(count)]


@pytest.mark.parametrize("seed", range(4))
async def test_repair_repairs_exactly_the_repairable_rows(world: World, seed: int) -> None:
    luck = random.Random(seed)
    settings = {**REGISTRY, **luck.choice([{}, {"lakestream.table.partition": "bucket(2, _stream.offset)"}])}
    topic = await SchemaTopic.start(world, settings)
    for schema in (V1, V2, MISFIT):
        await topic.register(schema)
    for _ in range(3):
        await moved(topic, *_values(luck, luck.randint(1, 12)))
    await topic.register(LISTED)
    before, found, counts = await topic.rows(), await letters(topic), await summary(topic)
    await repair(topic)
    after = await topic.rows()
    changed = [old["_stream"]["offset"] for old, new in zip(before, after, strict=True) if _is_improved(old, new)]
    assert [one.offset for one in found if one.is_repairable] == changed
    assert (counts.rows, counts.repairable) == (len(found), len(changed))
    raw = [row["_stream"]["offset"] for row in after if row["_stream"]["value"] is not None]
    left = await letters(topic)
    assert [one.offset for one in left if one.is_repairable] == []
    assert len(raw) == len(left) + (await summary(topic)).spelled, (
        "each row with bytes is a dead letter or has another spelling"
    )
    assert [one.offset for one in await letters(topic, DeadLetterQuery(newest_first=True))] == [
        one.offset for one in left
    ][::-1]
    topic.close()


def _is_improved(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether a row has more columns than before, or no longer has its bytes."""
    filled = [{name for name, value in row.items() if value is not None} for row in (old, new)]
    return filled[0] != filled[1] or (old["_stream"]["value"] is None) != (new["_stream"]["value"] is None)
