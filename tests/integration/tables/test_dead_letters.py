"""Dead letters of a topic, end to end. Consumers are not affected by them.

Values of several formats do not match their schemas; the command lists them; a schema is registered late; repair adds
the columns.
"""

import asyncio
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema
from tests.harness.clients.kafka_clients import CLIENTS, Record
from tests.harness.clients.moved_records import move
from tests.harness.clients.programs import running_cluster
from tests.harness.log.unreadable_batches import UNREADABLE, count_of, served
from tests.integration.tables.test_typed_tables import ORDER, REGISTRY, Make, Topic, order, stores_of, topic_of

from lakestream.cli.main import main
from lakestream.config.settings import Settings
from lakestream.metadata.pipeline_status import PipelineStatusStore
from lakestream.records.batch import RecordBatch
from lakestream.server.node import open_node
from lakestream.testing.brokers import BrokerProcesses

DeadLetters = Callable[..., list[dict[str, Any]]]
UNFRAMED = "does not start with a zero byte and a schema id"
LATE = {"type": "record", "name": "Order", "fields": [{"name": "note", "type": "string"}]}

__all__ = ["topic_of"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster("one-sqlite", tmp_path_factory)


@pytest.fixture
def dead_letters(cluster: BrokerProcesses, capsys: pytest.CaptureFixture[str]) -> DeadLetters:
    """Returns the dead letters as the JSON output of the command."""

    def listed(topic: str, *more: str) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert main(["table", "dead-letters", topic, "--rows", "--json", *more, *stores_of(cluster)]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return listed


def framed(schema_id: int, schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    """Returns a value as written by a serializer with another registry."""
    out = io.BytesIO(b"\0" + schema_id.to_bytes(4, "big"))
    out.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def send(topic: Topic, *records: tuple[bytes, bytes | None]) -> None:
    topic.client.produce(topic.name, [Record(value, key) for value, key in records])
    topic.sent += [value for value, _ in records]
    move(topic.cluster)


def forget_pipelines(cluster: BrokerProcesses) -> None:
    """Removes the statuses of pipelines, as the next driver does an hour after their end."""

    async def forget() -> None:
        options = dict(zip(*[iter(stores_of(cluster))] * 2, strict=True))
        settings = Settings(
            data_dir=Path(options["--data-dir"]), metadata=options["--metadata"], storage=options["--storage"]
        )
        async with open_node(settings) as node:
            await PipelineStatusStore(node.stores.metadata).remove_old(2**60)

    asyncio.run(forget())


def test_dead_letters_are_listed_until_they_are_repaired(
    cluster: BrokerProcesses, topic_of: Make, dead_letters: DeadLetters, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topic_of("letters", {**REGISTRY, "lakestream.key.schema": "registry"})
    good = topic.serialized(ORDER, order(1))
    topic.registry.set_compatibility("letters-value", level="NONE")
    wrong = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
    other = topic.serialized(wrong, {"id": "x"})
    known = int.from_bytes(other[1:5], "big")
    late = framed(known + 1, LATE, {"note": "late"})
    unknown = b"\0\0\1\0\0whatever"
    send(topic, (good, None), (unknown, None), (good[:-1], None), (other, None), (good, b"bad"), (late, None))

    letters = dead_letters("letters")
    assert [(letter["offset"], letter["schema_id"], letter["repairable"]) for letter in letters] == [
        (1, 65536, False),
        (2, int.from_bytes(good[1:5], "big"), False),
        (3, known, False),
        (4, int.from_bytes(good[1:5], "big"), False),
        (5, known + 1, False),
    ]
    reasons = {letter["offset"]: letter["reason"] for letter in letters}
    assert reasons[1] == "schema 65536: Schema 65536 not found"
    assert "tags" in reasons[2], "the field that was cut off"
    assert reasons[3] == "no column fits id"
    assert reasons[4] == f"key: {UNFRAMED}"
    assert reasons[5] == f"schema {known + 1}: Schema {known + 1} not found"
    assert [letter["offset"] for letter in dead_letters("letters", "--newest", "--limit", "2")] == [5, 4]
    assert [letter["offset"] for letter in dead_letters("letters", "--partition", "0", "--from-offset", "4")] == [4, 5]

    assert topic.registry.register_schema("letters-value", Schema(json.dumps(LATE), "AVRO")) == known + 1
    assert [(letter["offset"], letter["reason"]) for letter in dead_letters("letters") if letter["repairable"]] == [
        (5, None)
    ]
    assert main(["table", "dead-letters", "letters", *stores_of(cluster)]) == 0
    output = capsys.readouterr().out
    assert "topic letters: 5 dead letters" in output
    assert "1 can be repaired: lakestream table repair letters" in output
    assert "not found" in output, "the reason of the value with an unregistered id"
    assert main(["table", "dead-letters", "letters", "--rows", "--newest", "--limit", "1", *stores_of(cluster)]) == 0
    line, *following = capsys.readouterr().out.splitlines()
    assert line.startswith("0/5 ")
    assert line.endswith("it can be repaired")
    assert [text.partition(":")[0] for text in following] == ["1 of these can be repaired", "more than these 1 exist"]

    forget_pipelines(cluster)
    assert main(["doctor", "--topic", "letters", *stores_of(cluster)]) == 0
    output = capsys.readouterr().out
    assert re.search(r"note letters dead letters +5 rows without columns", output), output
    assert "1 can be repaired; lakestream table dead-letters letters" in output

    assert main(["table", "repair", "letters", *stores_of(cluster)]) == 0
    assert [letter["offset"] for letter in dead_letters("letters")] == [1, 2, 3, 4]
    assert topic.by_duckdb('_stream."offset", note')[5] == (5, "late")
    topic.assert_consumers_read_all_values()


def test_dead_letters_of_plain_json(topic_of: Make, dead_letters: DeadLetters) -> None:
    topic = topic_of("plain", {"lakestream.value.schema": "json"})
    topic.send(b'{"n":1}', b"no json", b'{ "n" : 2 }')
    ((offset, value),) = [(letter["offset"], letter["value"]) for letter in dead_letters("plain")]
    assert (offset, value) == (1, "no json")
    topic.assert_consumers_read_all_values()


@pytest.mark.parametrize("settings", [{}, REGISTRY], ids=["plain", "typed"])
def test_unreadable_batches_from_older_brokers_are_dead_letters(
    cluster: BrokerProcesses,
    topic_of: Make,
    dead_letters: DeadLetters,
    settings: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Brokers validate records before they accept them; the log may contain invalid records from older versions."""
    topic = topic_of(f"forged-{'typed' if settings else 'plain'}", settings)
    good = topic.serialized(ORDER, order(1)) if settings else b"good"
    topic.client.produce(topic.name, [Record(good)])
    bad: dict[int, bytes] = {}
    for forge, _ in UNREADABLE.values():
        batch = forge()
        offset = append(cluster, topic.name, batch)
        bad[offset] = served(batch, offset)
        (end,) = topic.client.produce(topic.name, [Record(good)])
    move(cluster)

    rows = dict(topic.by_duckdb(f'_stream."offset", {"_stream.value" if settings else "value"}'))
    assert len(rows) == 2 * len(bad) + 1
    assert {offset: rows[offset] for offset in bad} == bad
    for client in CLIENTS.values():
        records = client(cluster.bootstrap).read(topic.name, "earliest", len(rows))
        assert [record.offset for record in records] == sorted(rows)
        for record in records:
            assert record.value == bad.get(record.offset or 0, good)
            assert [name for name, _ in record.headers] == ["lakestream.unreadable"] * (record.offset in bad)
    assert topic.client.bounds(topic.name) == (0, end + 1)
    assert end >= sum(map(count_of, bad.values()))

    letters = dead_letters(topic.name)
    assert [(letter["offset"], letter["key"], letter["value_size"]) for letter in letters] == [
        (offset, None, len(batch)) for offset, batch in bad.items()
    ]
    for (_, reason), letter in zip(UNREADABLE.values(), letters, strict=True):
        assert reason in letter["reason"]
    assert main(["table", "dead-letters", topic.name, *stores_of(cluster)]) == 0
    assert f"topic {topic.name}: {len(bad)} dead letters" in capsys.readouterr().out
    doctor = main(["doctor", "--full", "--topic", topic.name, "--json", *stores_of(cluster)])
    assert (doctor, [line for line in capsys.readouterr().out.splitlines() if '"bad"' in line]) == (0, [])


def append(cluster: BrokerProcesses, topic: str, batch: bytes) -> int:
    """Appends a batch to the log without validation; returns its offset."""
    settings = Settings(data_dir=cluster[0]._log.parent / "data", metadata=cluster.metadata, storage=cluster.storage)

    async def run() -> int:
        async with open_node(settings) as node:
            (partition,) = (await node.topics.get(topic)).partitions()
            return (await node.log.append(partition, RecordBatch.parse(batch))).offset_start

    return asyncio.run(run())
