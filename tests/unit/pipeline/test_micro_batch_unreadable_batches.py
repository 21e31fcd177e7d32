"""Tests unreadable record batches in the log: each becomes one row, and the records behind them are moved."""

from typing import Any, Final

import pytest
from tests.harness.catalog.iceberg_tables import ROOT
from tests.harness.log.brokers import World
from tests.harness.log.unreadable_batches import UNREADABLE, as_record, count_of, served
from tests.harness.pipeline.schema_topic import REGISTRY, SchemaTopic, encoded, record
from tests.harness.table.reference_codec import Record, batch_of, read_batch
from tests.unit.pipeline.dead_letters.test_scan import letters, summary
from tests.unit.pipeline.repair.test_repair import repair

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.locations import Locations
from lakestream.clock import RandomIds
from lakestream.data.table.arrow.unreadable_batches import HEADER
from lakestream.data.table.history import TableHistory
from lakestream.records.batch import RecordBatch, build, control_batch
from lakestream.records.file_region import as_bytes

V1: Final = record(("id", "int"))
TOPICS: Final = {
    "plain": {},
    "registry": REGISTRY,
    "json": {"lakestream.value.schema": "json"},
    "latest": {"lakestream.value.schema": "latest"},
    "keys": {"lakestream.key.schema": "registry"},
}
GOOD: Final = {
    "plain": b"good",
    "registry": encoded(V1, {"id": 7}, 1),
    "json": b'{"id":7}',
    "latest": encoded(V1, {"id": 7}),
    "keys": b"good",
}


def reason_of(row: dict[str, Any]) -> str:
    ((key, value, raw),) = (tuple(header.values()) for header in row["_stream"]["headers"])
    assert (key, raw) == (HEADER, None)
    return str(value.decode())


async def append(topic: SchemaTopic, batch: bytes) -> int:
    """Appends a batch without validation of its records, as older brokers did."""
    appended = await topic.log.append(topic.partition, RecordBatch.parse(batch))
    topic.pipeline.changed.requeue([topic.partition])
    return appended.offset_start


async def fill(topic: SchemaTopic, good: bytes) -> dict[int, bytes]:
    """Appends readable and unreadable batches in turns; returns the unreadable ones by offset."""
    await topic.append(good)
    unreadable = {}
    for forge, _ in UNREADABLE.values():
        batch = forge()
        offset = await append(topic, batch)
        unreadable[offset] = served(batch, offset)
        await topic.append(good)
    return unreadable


async def history(topic: SchemaTopic, end: int) -> list[Record]:
    """Reads the history as consumers do."""
    catalog = Catalog(topic.world.server.client(), topic.world.objects, Locations(ROOT), topic.world.clock, RandomIds())
    table, found, offset = TableHistory(catalog, topic.world.objects, 1 << 26), list[Record](), 0
    try:
        while offset < end:
            history_read = await table.read(topic.partition, offset, 1 << 20)
            assert history_read.offset_next > offset
            found += [
                one
                for _, pieces in history_read.batches
                for one in read_batch(as_bytes(pieces))
                if one.offset >= offset
            ]
            offset = history_read.offset_next
    finally:
        await table.close()
    return found


@pytest.mark.parametrize("kind", TOPICS)
async def test_unreadable_batch_becomes_one_row_and_the_topic_continues(world: World, kind: str) -> None:
    topic, good = await SchemaTopic.start(world, TOPICS[kind]), GOOD[kind]
    await topic.register(V1)
    unreadable = await fill(topic, good)
    end = max(unreadable) + count_of(unreadable[max(unreadable)]) + 1
    done = await topic.pipeline.micro_batches.run()
    assert (done.stalled, done.left) == ([], False)
    assert await world.claims.table_end(topic.partition) == end
    assert await world.claims.floor(topic.partition) == end, "the log can be trimmed"

    rows = {row["_stream"]["offset"]: row for row in await topic.rows()}
    assert len(rows) == 2 * len(unreadable) + 1
    reasons = {offset: reason_of(rows[offset]) for offset in unreadable}
    for (_, part), reason in zip(UNREADABLE.values(), reasons.values(), strict=True):
        assert part in reason
    in_column = kind in ("plain", "keys")
    for offset, row in rows.items():
        value = row["value"] if in_column else row["_stream"]["value"]
        assert value == unreadable.get(offset, good if in_column else None)
        assert in_column or row.get("id") == (None if offset in unreadable else 7)

    found = {one.offset: one for one in await history(topic, end)}
    assert found.keys() == rows.keys()
    for offset, one in found.items():
        assert (
            one == as_record(unreadable[offset], offset, reasons[offset]) if offset in unreadable else one.value == good
        )

    found_letters = await letters(topic)
    assert [(one.offset, one.reason, one.is_repairable) for one in found_letters] == [
        (offset, reasons[offset], False) for offset in unreadable
    ]
    assert [(one.key, one.value, one.value_size) for one in found_letters] == [
        (None, batch[:4096], len(batch)) for batch in unreadable.values()
    ]
    counts = await summary(topic)
    assert (counts.rows, counts.repairable, counts.spelled) == (len(unreadable), 0, 0)
    assert {reason.text: count for reason, count in counts.reasons.items()} == {
        reason: list(reasons.values()).count(reason) for reason in reasons.values()
    }
    status = topic.pipeline.micro_batches.statuses.by_id[topic.partition.topic_id]
    assert status.unconverted == len(unreadable)
    assert any(reason in status.conversion_error for reason in reasons.values())
    topic.close()


@pytest.mark.parametrize("kind", ["registry", "json", "latest"])
async def test_repair_keeps_rows_of_unreadable_batches(world: World, kind: str) -> None:
    topic = await SchemaTopic.start(world, {})
    unreadable = await fill(topic, GOOD[kind])
    await topic.pipeline.micro_batches.run()
    await topic.register(V1)
    await world.topics.set("t", TOPICS[kind])
    assert [one.offset for one in await letters(topic) if not one.is_repairable] == list(unreadable)
    done = await repair(topic)
    assert (done.rows_before, done.rows_after, done.left) == (2 * len(unreadable) + 1, len(unreadable), [])
    assert sum(done.reasons.values()) == len(unreadable)
    rows = {row["_stream"]["offset"]: row for row in await topic.rows()}
    assert {offset: row["_stream"]["value"] for offset, row in rows.items() if offset in unreadable} == unreadable
    assert {row["id"] for offset, row in rows.items() if offset not in unreadable} == {7}
    again = await repair(topic)
    assert (again.files_written, again.rows_after) == (0, len(unreadable))
    assert [one.offset for one in await letters(topic)] == list(unreadable)
    topic.close()


async def test_unreadable_batch_gets_no_columns_when_a_schema_fits_its_bytes(world: World) -> None:
    topic, unreadable = await SchemaTopic.start(world, TOPICS["latest"]), UNREADABLE["no records"][0]()
    await topic.register(record(("all", {"type": "fixed", "name": "All", "size": len(unreadable)})))
    offset = await append(topic, unreadable)
    await topic.pipeline.micro_batches.run()
    (row,) = await topic.rows()
    assert (row["_stream"]["offset"], row["_stream"]["value"], row["_stream"]["schema_id"]) == (
        offset,
        served(unreadable, offset),
        None,
    )
    topic.close()


async def test_topic_stalls_at_an_unreadable_batch_when_the_action_is_stop(world: World) -> None:
    topic = await SchemaTopic.start(world, {**REGISTRY, "lakestream.invalid.record.action": "stop"})
    await append(topic, UNREADABLE["no records"][0]())
    (reason,) = (await topic.pipeline.micro_batches.run()).stalled
    assert "lakestream.invalid.record.action is stop: set it to keep" in str(reason)
    topic.close()


async def test_copied_record_with_the_header_is_a_dead_letter(topic: SchemaTopic) -> None:
    """A client copied the record of an unreadable batch from the history: it has the header."""
    await topic.register(V1)
    good = encoded(V1, {"id": 7}, 1)
    header = (HEADER.encode(), b"why")
    await append(topic, batch_of([Record(0, 1_700_000_000_000, 0, None, good, (header,))]))
    await topic.append(good)
    await topic.pipeline.micro_batches.run()
    copy, row = await topic.rows()
    assert (copy["id"], copy["_stream"]["value"], row["id"], row["_stream"]["value"]) == (None, good, 7, None)
    assert [(one.offset, one.reason) for one in await letters(topic)] == [(0, "why")]


@pytest.mark.parametrize("commits", [True, False])
async def test_unreadable_batch_of_a_transaction_becomes_a_row_only_when_committed(world: World, commits: bool) -> None:
    topic = await SchemaTopic.start(world, {})
    body = build(
        b"\xff" * 50,
        3,
        attributes=0x10,
        base_timestamp=1,
        max_timestamp=1,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
    )
    await topic.log.append(topic.partition, RecordBatch.parse(body), 1)
    await topic.log.append(topic.partition, RecordBatch.parse(control_batch(7, 0, commits, 1, 0)), 1)
    await topic.append(b"good")
    await topic.pipeline.micro_batches.run()
    expected = [(0, served(body, 0)), (4, b"good")] if commits else [(4, b"good")]
    assert await topic.pipeline.rows(topic.partition) == expected
    topic.close()


async def test_topic_stalls_when_the_bytes_of_a_batch_are_damaged(world: World) -> None:
    topic = await SchemaTopic.start(world, {})
    await append(topic, UNREADABLE["no records"][0]())
    (name,) = await world.names()
    body = bytearray(await world.objects.get(name))
    body[body.index(b"\xff" * 50)] ^= 1
    await world.objects.put(name, [bytes(body)])
    done = await topic.pipeline.micro_batches.run()
    assert "its checksum does not match its bytes" in str(done.stalled)
    topic.close()


async def test_topic_without_schemas_has_no_dead_letters_when_all_batches_are_readable(world: World) -> None:
    topic = await SchemaTopic.start(world, {})
    await topic.append(b"good")
    await topic.pipeline.micro_batches.run()
    assert await letters(topic) == []
    assert (await summary(topic)).rows == 0
    topic.close()
