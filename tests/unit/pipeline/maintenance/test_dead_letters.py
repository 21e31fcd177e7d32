"""The dead letters of a topic: each row with its reason, and what a repair would make of it. Nothing is changed."""

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from tests.unit.catalog.tables import ROOT
from tests.unit.data.brokers import World
from tests.unit.pipeline.driving import Driving, read_here
from tests.unit.pipeline.maintenance.engine import rewritten
from tests.unit.pipeline.maintenance.test_repair import repair
from tests.unit.pipeline.typed_world import REGISTRY, Typed, encoded, record

from lakestream.batch import RecordBatch
from lakestream.catalog.errors import Unsupported
from lakestream.catalog.listing import POSITION_DELETES, Listings
from lakestream.catalog.locations import Locations
from lakestream.catalog.rewrite import FilesChanged
from lakestream.catalog.shapes import schema_of
from lakestream.catalog.updates import AddSchema, SetCurrentSchema
from lakestream.coordination.schemas.shelf import SchemaShelf
from lakestream.data.typed.typing import NULL_FIELD
from lakestream.errors import Unavailable
from lakestream.metadata.topics import NamedTopic
from lakestream.pipeline.maintenance import letters as one_by_one
from lakestream.pipeline.maintenance.dead_letter import Asked, DeadLetter, Summary
from lakestream.pipeline.maintenance.dead_letters import DeadLetters
from lakestream.pipeline.maintenance.files import TableFiles
from lakestream.pipeline.maintenance.looking import NOTHING_FILLED, looked
from lakestream.pipeline.maintenance.sheet import Desk, Sheet
from lakestream.pipeline.maintenance.typed_files import source_of
from lakestream.schemas.model import Format
from lakestream.testing.batches import make_batch

V1 = record(("id", "int"), ("name", "string"))
VALUE = encoded(V1, {"id": 1, "name": "a"}, 1)
UNFRAMED = "it does not begin with a zero byte and the id of a schema"
ALL = Asked()


def view(typed: Typed) -> DeadLetters:
    """As a command makes it: nothing is known from before."""
    shelf = SchemaShelf(typed.world.server.client())
    return DeadLetters(typed.driving.catalog, shelf, typed.world.clock, read_here)


async def named(typed: Typed) -> NamedTopic:
    return NamedTopic("t", await typed.world.topics.get("t"))


async def letters(typed: Typed, asked: Asked = ALL) -> list[DeadLetter]:
    left: list[str] = []
    found = [letter async for letter in view(typed).letters(await named(typed), asked, left)]
    assert left == []
    return found


async def summary(typed: Typed, asked: Asked = ALL) -> Summary:
    return await view(typed).summary(await named(typed), asked)


async def told(typed: Typed, asked: Asked = ALL) -> list[tuple[int, str, bool]]:
    return [(letter.offset, letter.reason, letter.is_repairable) for letter in await letters(typed, asked)]


async def moved(typed: Typed, *values: bytes | None, keys: list[bytes | None] | None = None) -> None:
    await typed.append(*values, keys=keys)
    await typed.driving.rounds.run()


async def test_a_schema_that_came_late(typed: Typed) -> None:
    await moved(typed, VALUE, b"never", None, VALUE, keys=[b"k", None, b"k", b"l"])
    first, second, third = await letters(typed)
    assert (first.offset, first.reason, first.is_repairable) == (0, "schema 1: Schema 1 not found", False)
    assert (first.schema_id, first.key, first.value, first.value_size) == (1, b"k", VALUE, len(VALUE))
    assert (second.offset, second.reason, second.schema_id, second.key) == (1, UNFRAMED, 0, None)
    assert third.offset == 3
    before = await typed.rows(), await typed.columns()
    assert await typed.register(V1) == 1
    assert await told(typed) == [(0, "", True), (1, UNFRAMED, False), (3, "", True)]
    seen = await summary(typed)
    assert (seen.rows, seen.repairable, seen.spelled, seen.left) == (3, 2, 0, [])
    assert [(reason.said, count) for reason, count in seen.reasons.items()] == [(UNFRAMED, 1)]
    assert list(seen.firsts.values()) == [(0, 1)]
    assert (await typed.rows(), await typed.columns()) == before, "to look changes nothing"
    assert (await typed.driving.catalog.writers.all(typed.partition.topic_id)).values == {}
    await repair(typed)
    assert await told(typed) == [(1, UNFRAMED, False)]


async def test_each_kind_of_misfit_has_its_reason(typed: Typed) -> None:
    one = await typed.register(V1)
    two = await typed.register(record(("id", "string"), ("name", "string")))
    good = encoded(V1, {"id": 1, "name": "a"}, one)
    other = encoded(record(("id", "string"), ("name", "string")), {"id": "x", "name": "b"}, two)
    await moved(typed, good, good[:-1], other, b"\0\0\0\0\x63abc")
    found = await letters(typed)
    assert [(letter.offset, letter.schema_id, letter.is_repairable) for letter in found] == [
        (1, one, False),
        (2, two, False),
        (3, 99, False),
    ]
    cut, misfit, unknown = (letter.reason for letter in found)
    assert "name" in cut
    assert misfit == "no column fits id"
    assert unknown == "schema 99: Schema 99 not found"


async def test_what_is_spelled_otherwise_is_no_dead_letter(typed: Typed) -> None:
    """A list in a block that says its size has its columns, and its bytes beside them."""
    value = b"\0\0\0\0\1" + bytes([2, 1, 2, 10, 0])
    await typed.register(record(("id", "int"), ("sizes", {"type": "array", "items": "int"})))
    await moved(typed, value, b"never")
    assert await told(typed) == [(1, UNFRAMED, False)]
    seen = await summary(typed)
    assert (seen.rows, seen.repairable, seen.spelled) == (1, 0, 1)


async def test_bytes_that_a_repair_could_spare_are_no_dead_letters(world: World) -> None:
    """One text was spelled in another way than most; by now that way is known, too."""
    typed = await Typed.start(world, {"lakestream.value.schema": "json"})
    await moved(typed, *[b'{"n":1}'] * 150, b'{"n": 2}')
    await moved(typed, *[b'{"n": 3}'] * 60)
    rows = await typed.rows()
    assert [row["n"] for row in rows if row["_stream"]["value"] is not None] == [2]
    assert await told(typed) == []
    assert (await summary(typed)).spelled == 1
    await repair(typed)
    assert (await summary(typed)).spelled == 0
    typed.close()


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
async def test_a_field_that_is_null_in_its_column_is_told(typed: Typed, field: str) -> None:
    """Beside others, or alone. Rows around it, and one that is only spelled otherwise, have nothing to do with it."""
    head = b"\0" + (await typed.register(json.dumps(CONNECT), kind=Format.JSON)).to_bytes(4, "big")
    good, many = b'{"n":1,"d":1.50}', b'{"n":1,"many":[[1.00],[2.00]]}'
    bad = [f'{{"n":2,{field}}}'.encode(), f"{{{field}}}".encode()]
    await moved(typed, *(head + value for value in (good, many, bad[0], good, bad[1], b'{"n" : 3}', many)))
    assert await told(typed) == [(2, NULL_FIELD, False), (4, NULL_FIELD, False)]
    seen = await summary(typed)
    assert (seen.rows, seen.spelled) == (2, 1)
    assert [row["n"] for row in await typed.rows()] == [1, 1, 2, 1, None, 3, 1]


async def test_a_row_without_anything_in_its_columns_is_not_spelled_otherwise(world: World) -> None:
    typed = await Typed.start(world, {"lakestream.value.schema": "json"})
    await moved(typed, *[b'{"n":1}'] * 150, b"null", b'{"n": 2}')
    assert await told(typed) == [(150, NOTHING_FILLED, False)]
    assert (await summary(typed)).spelled == 1
    typed.close()


async def test_a_row_with_a_bad_key_is_counted_once(world: World) -> None:
    typed = await Typed.start(world, {"lakestream.value.schema": "json", "lakestream.key.schema": "registry"})
    await moved(typed, *[b'{"n":1}'] * 150, b'{"n": 2}', keys=[*[None] * 150, b"bad"])
    assert await told(typed) == [(150, f"key: {UNFRAMED}", False)]
    seen = await summary(typed)
    assert (seen.rows, seen.spelled) == (1, 0)
    typed.close()


async def test_it_gets_columns_though_it_is_spelled_otherwise(typed: Typed) -> None:
    await moved(typed, b"\0\0\0\0\1" + bytes([2, 1, 2, 10, 0]))
    await typed.register(record(("id", "int"), ("sizes", {"type": "array", "items": "int"})))
    assert await told(typed) == [(0, "", True)]
    await repair(typed)
    assert await told(typed) == []
    assert (await summary(typed)).spelled == 1


async def test_a_column_that_somebody_added_since(typed: Typed) -> None:
    await typed.register(V1)
    two = await typed.register(other := record(("id", "string"), ("name", "string")))
    await moved(typed, VALUE, encoded(other, {"id": "x", "name": "b"}, two))
    assert await told(typed) == [(1, "no column fits id", False)]

    def room_for_it(metadata: Any) -> list[Any]:
        number = metadata["last-column-id"] + 1
        fields = [*schema_of(metadata)["fields"], {"id": number, "name": "id_", "type": "string", "required": False}]
        return [AddSchema({"type": "struct", "fields": fields}), SetCurrentSchema(-1)]

    await typed.driving.catalog.change(typed.partition.topic_id, room_for_it)
    assert await told(typed) == [(1, "", True)]
    await repair(typed)
    assert await told(typed) == []


async def test_the_schema_of_all_values_came_late(world: World) -> None:
    typed = await Typed.start(world, {"lakestream.value.schema": "latest"})
    await moved(typed, VALUE[5:])
    ((_, reason, is_repairable),) = await told(typed)
    assert (reason.partition(":")[0], is_repairable) == ("the topic's schema is not to be had", False)
    before = await typed.columns()
    await typed.register(V1)
    assert await told(typed) == [(0, "", True)]
    assert await typed.columns() == before
    typed.close()


async def test_rows_of_before_the_topic_had_a_schema(world: World) -> None:
    typed = await Typed.start(world, {})
    await typed.register(V1)
    await moved(typed, VALUE, b"never")
    with pytest.raises(Unsupported, match="has no schema"):
        await letters(typed)
    await world.topics.set("t", REGISTRY)
    assert await told(typed) == [(0, "", True), (1, UNFRAMED, False)]
    typed.close()


async def test_plain_json(world: World) -> None:
    typed = await Typed.start(world, {"lakestream.value.schema": "json"})
    await moved(typed, b'{"a":1}', b"no json", b'{"a":2}', None)
    ((offset, reason, _),) = await told(typed)
    assert (offset, bool(reason)) == (1, True)
    typed.close()


async def test_keys(world: World) -> None:
    typed = await Typed.start(world, {"lakestream.key.schema": "registry"})
    await moved(typed, b"plain", b"other", b"third", keys=[VALUE, None, b"bad"])
    assert await told(typed) == [(0, "key: schema 1: Schema 1 not found", False), (2, f"key: {UNFRAMED}", False)]
    await typed.register(V1, "t-key")
    assert await told(typed) == [(0, "", True), (2, f"key: {UNFRAMED}", False)]
    await repair(typed)
    assert await told(typed) == [(2, f"key: {UNFRAMED}", False)]
    typed.close()


async def test_a_value_and_a_key_that_are_both_wrong(world: World) -> None:
    typed = await Typed.start(world, {**REGISTRY, "lakestream.key.schema": "registry"})
    await moved(typed, b"never", keys=[b"bad"])
    assert await told(typed) == [(0, f"{UNFRAMED}; key: {UNFRAMED}", False)]
    seen = await summary(typed)
    assert (seen.rows, sorted(reason.said for reason in seen.reasons)) == (1, [UNFRAMED, f"key: {UNFRAMED}"])
    typed.close()


async def test_which_ones_and_in_which_order(typed: Typed) -> None:
    for start in range(0, 6, 2):
        await moved(typed, b"a%d" % start, b"b%d" % start)
    assert len(await data_files(typed)) == 3
    assert [one.offset for one in await letters(typed)] == [0, 1, 2, 3, 4, 5]
    assert [one.offset for one in await letters(typed, Asked(newest_first=True))] == [5, 4, 3, 2, 1, 0]
    assert [one.offset for one in await letters(typed, Asked(offset_start=3))] == [3, 4, 5]
    assert [one.offset for one in await letters(typed, Asked(offset_start=3, newest_first=True))] == [5, 4, 3]
    assert await letters(typed, Asked(partition=1)) == []
    assert (await summary(typed, Asked(offset_start=5))).rows == 1
    (first, *_) = await letters(typed, Asked(bytes_shown=1))
    assert (first.value, first.value_size) == (b"a", 2)


async def test_of_several_partitions_the_oldest_comes_first(world: World) -> None:
    partitions = await world.topic(partitions=2)
    await world.topics.set("t", REGISTRY)
    typed = Typed(world, await world.broker(), await Driving.start(world), partitions[0])
    for at, (number, time) in enumerate([(0, 1_000), (1, 500), (0, 3_000), (1, 2_000)]):
        batch = make_batch([b"%d" % at], timestamp_ms=time)
        await typed.log.append(partitions[number], RecordBatch.parse(batch))
    typed.driving.changed.look_again(partitions)
    await typed.driving.rounds.run()
    assert [(one.partition, one.offset, one.timestamp_ms) for one in await letters(typed)] == [
        (1, 0, 500),
        (0, 0, 1_000),
        (1, 1, 2_000),
        (0, 1, 3_000),
    ]
    newest = await letters(typed, Asked(newest_first=True))
    assert [one.timestamp_ms for one in newest] == [3_000, 2_000, 1_000, 500]
    typed.close()


async def test_files_that_overlap(world: World) -> None:
    """Each partition of the table has a file over all offsets; the rows are told by offset all the same."""
    settings = {**REGISTRY, "lakestream.table.partition": "_stream.partition, truncate(1, _stream.key)"}
    typed = await Typed.start(world, settings)
    for _ in range(2):
        await moved(typed, *(b"%d" % at for at in range(6)), keys=[b"ab"[at % 2 : at % 2 + 1] for at in range(6)])
    assert len(await data_files(typed)) == 4
    assert [one.offset for one in await letters(typed)] == list(range(12))
    assert [one.offset for one in await letters(typed, Asked(newest_first=True))] == list(range(12))[::-1]
    for limit in (1, 5, 8, 12, 13):
        assert [one.offset for one in await letters(typed, Asked(limit=limit))] == list(range(12))[:limit]
        newest = await letters(typed, Asked(limit=limit, newest_first=True))
        assert [one.offset for one in newest] == list(range(12))[::-1][:limit]
    typed.close()


async def test_files_that_are_replaced_while_one_reads(typed: Typed) -> None:
    await moved(typed, VALUE, b"never")
    await moved(typed, VALUE, b"again")
    await typed.register(V1)
    left: list[str] = []
    stream = view(typed).letters(await named(typed), ALL, left)
    assert (await anext(stream)).offset == 0
    before = await data_files(typed)
    await repair(typed)
    await typed.world.objects.delete(before)
    assert [(one.offset, one.reason) async for one in stream] == [(1, UNFRAMED), (3, UNFRAMED)]
    assert left == []


@pytest.mark.parametrize("deleted", [[0], [1, 2], [0, 1, 2, 3]])
async def test_rows_that_were_deleted_are_not_told(typed: Typed, deleted: list[int]) -> None:
    await moved(typed, b"a", VALUE, b"b", None)
    await typed.register(V1)
    sheet, catalog = await begun(typed), typed.driving.catalog
    (live,) = sheet.files(0, ALL.window)
    file = await TableFiles(catalog.objects, catalog.locations).open(source_of(live, sheet.listing))
    file.deleted = np.array(deleted)
    found = await looked(file, sheet._look(live, ALL.window, Asked(bytes_shown=10), asks=False))
    left = {0: b"a", 1: VALUE, 2: b"b"}.items()
    assert [(one["offset"], one["value"]) for one in found.letters.to_pylist()] == [
        (offset, value[:10]) for offset, value in left if offset not in deleted
    ]


async def begun(typed: Typed) -> Sheet:
    shelf, catalog = SchemaShelf(typed.world.server.client()), typed.driving.catalog
    desk = Desk(catalog, shelf, typed.world.clock, read_here, Listings(catalog.objects, catalog.locations))
    return await Sheet.begin(desk, await named(typed))


async def test_deletes_that_are_replaced_while_one_reads(typed: Typed) -> None:
    """The file is there as before, but what was deleted of it is told by another one by now: somebody begins again."""
    await moved(typed, b"never")
    sheet = await begun(typed)
    (live,) = sheet.files(0, ALL.window)
    expired = live._replace(location=f"{live.location}.deletes.parquet", content=POSITION_DELETES, about=live.location)
    sheet.listing = replace(sheet.listing, deletes=(expired,))
    with pytest.raises(FilesChanged):
        await sheet.look(live, ALL.window, ALL)
    assert sheet.left == []


async def test_of_a_file_with_many_letters_only_some_are_kept(typed: Typed) -> None:
    await moved(typed, *(b"%d" % at for at in range(50)))
    sheet = await begun(typed)
    (live,) = sheet.files(0, ALL.window)
    for asked, offsets in [
        (Asked(limit=3), [0, 1, 2]),
        (Asked(limit=3, newest_first=True), [49, 48, 47]),
        (Asked(limit=3, offset_start=48), [48, 49]),
    ]:
        assert len((await sheet.look(live, asked.window, asked)).letters) == len(offsets)
        assert [one.offset for one in await letters(typed, asked)] == offsets
    assert (await summary(typed, Asked(limit=3))).rows == 50


async def test_a_file_that_is_gone_is_said(typed: Typed) -> None:
    await moved(typed, b"never")
    await typed.world.objects.delete(await data_files(typed))
    (said,) = (await summary(typed)).left
    assert "gone" in said
    left: list[str] = []
    assert [one async for one in view(typed).letters(await named(typed), ALL, left)] == []
    assert left == [said]


async def test_a_file_with_columns_of_others_is_looked_at_and_left(typed: Typed) -> None:
    await moved(typed, VALUE, b"never")
    await _given_a_column(typed)
    await typed.register(V1)
    blocked = "its file has the column theirs, which is not the stream's own: repair leaves it"
    assert await told(typed) == [(0, blocked, False), (1, UNFRAMED, False)]
    seen = await summary(typed)
    assert (seen.rows, seen.repairable) == (2, 0)
    assert {reason.said for reason in seen.reasons} == {blocked, UNFRAMED}


async def _given_a_column(typed: Typed) -> None:
    """As an engine does it that rewrites the file with values for it."""
    theirs = {"id": 500, "name": "theirs", "type": "int", "required": False}

    def wider(metadata: Any) -> list[Any]:
        fields = [*schema_of(metadata)["fields"], theirs]
        return [AddSchema({"type": "struct", "fields": fields}), SetCurrentSchema(-1)]

    await typed.driving.catalog.change(typed.partition.topic_id, wider)
    kind = pa.field("theirs", pa.int32(), metadata={"PARQUET:field_id": "500"})
    await rewritten(typed, lambda rows: rows.append_column(kind, pa.array(range(len(rows)), pa.int32())))


async def test_a_topic_that_is_set_to_something_else(typed: Typed) -> None:
    """What is well in the table stays so: a repair would make more rows worse than better, and leaves the file."""
    await typed.register(V1)
    await moved(typed, VALUE, VALUE, b'{"a":1}')
    await typed.world.topics.set("t", {"lakestream.value.schema": "json"})
    ((offset, reason, is_repairable),) = await told(typed)
    assert (offset, is_repairable) == (2, False)
    assert reason.endswith("repair leaves it")
    assert (await repair(typed)).files_written == 0


async def test_a_table_that_never_holds_still(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded: somebody hears of it."""
    monkeypatch.setattr(one_by_one, "TRIES_MAX", 1)
    await moved(typed, VALUE)
    await moved(typed, VALUE)
    await typed.register(V1)
    stream = view(typed).letters(await named(typed), ALL, [])
    await anext(stream)
    before = await data_files(typed)
    await repair(typed)
    await typed.world.objects.delete(before)
    with pytest.raises(Unavailable, match="change all the time"):
        await anext(stream)


async def data_files(typed: Typed) -> list[str]:
    """Their keys."""
    table = await typed.driving.catalog.load_id(typed.partition.topic_id)
    listing = await Listings(typed.world.objects, Locations(ROOT)).of_main(table.metadata)
    return [Locations(ROOT).key_of(file.location) for file in listing.data]


V2 = record(("id", "int"), ("name", "string"), ("x", "long"))
MISFIT = record(("id", "string"), ("name", "string"))
LISTED = record(("id", "int"), ("sizes", {"type": "array", "items": "int"}))


def _values(luck: random.Random, count: int) -> list[bytes | None]:
    """Of four schemas, the last of which comes late; and what is none."""
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
async def test_what_is_said_to_be_repairable_is_what_a_repair_repairs(world: World, seed: int) -> None:
    luck = random.Random(seed)
    settings = {**REGISTRY, **luck.choice([{}, {"lakestream.table.partition": "bucket(2, _stream.offset)"}])}
    typed = await Typed.start(world, settings)
    for schema in (V1, V2, MISFIT):
        await typed.register(schema)
    for _ in range(3):
        await moved(typed, *_values(luck, luck.randint(1, 12)))
    await typed.register(LISTED)
    before, found, seen = await typed.rows(), await letters(typed), await summary(typed)
    await repair(typed)
    after = await typed.rows()
    changed = [old["_stream"]["offset"] for old, new in zip(before, after, strict=True) if _told_of(old, new)]
    assert [one.offset for one in found if one.is_repairable] == changed
    assert (seen.rows, seen.repairable) == (len(found), len(changed))
    raw = [row["_stream"]["offset"] for row in after if row["_stream"]["value"] is not None]
    left = await letters(typed)
    assert [one.offset for one in left if one.is_repairable] == []
    assert len(raw) == len(left) + (await summary(typed)).spelled, "each row with bytes is one or the other"
    assert [one.offset for one in await letters(typed, Asked(newest_first=True))] == [one.offset for one in left][::-1]
    typed.close()


def _told_of(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether a row has more of its columns than before, or its bytes no more."""
    filled = [{name for name, value in row.items() if value is not None} for row in (old, new)]
    return filled[0] != filled[1] or (old["_stream"]["value"] is None) != (new["_stream"]["value"] is None)
