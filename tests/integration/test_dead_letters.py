"""The dead letters of a topic, as a user meets them: values of several kinds that are not what they should be, the
command that names each of them, a schema that comes late, the repair; and consumers who notice nothing of all that.
"""

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema
from tests.integration.kafka_clients import Record
from tests.integration.programs import cluster_of
from tests.integration.test_history_clients import move
from tests.integration.test_typed_tables import ORDER, REGISTRY, Make, Topic, order, stores_of, topic_of

from lakestream.cli.main import main
from lakestream.testing.brokers import Brokers

Rejects = Callable[..., list[dict[str, Any]]]
UNFRAMED = "it does not begin with a zero byte and the id of a schema"
LATE = {"type": "record", "name": "Order", "fields": [{"name": "note", "type": "string"}]}

__all__ = ["topic_of"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    yield from cluster_of("one-sqlite", tmp_path_factory)


@pytest.fixture
def rejects(cluster: Brokers, capsys: pytest.CaptureFixture[str]) -> Rejects:
    """Each of them, as a program reads them."""

    def said(topic: str, *more: str) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert main(["table", "rejects", topic, "--rows", "--json", *more, *stores_of(cluster)]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return said


def framed(schema_id: int, schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    """What a serializer writes that knows another registry."""
    out = io.BytesIO(b"\0" + schema_id.to_bytes(4, "big"))
    out.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def send(topic: Topic, *records: tuple[bytes, bytes | None]) -> None:
    topic.client.produce(topic.name, [Record(value, key) for value, key in records])
    topic.sent += [value for value, _ in records]
    move(topic.cluster)


def test_each_is_named_until_it_is_repaired(
    cluster: Brokers, topic_of: Make, rejects: Rejects, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topic_of("letters", {**REGISTRY, "lakestream.key.schema": "registry"})
    good = topic.serialized(ORDER, order(1))
    topic.registry.set_compatibility("letters-value", level="NONE")
    wrong = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
    other = topic.serialized(wrong, {"id": "x"})
    known = int.from_bytes(other[1:5], "big")
    late = framed(known + 1, LATE, {"note": "late"})
    lie = b"\0\0\1\0\0whatever"
    send(topic, (good, None), (lie, None), (good[:-1], None), (other, None), (good, b"bad"), (late, None))

    found = rejects("letters")
    assert [(one["offset"], one["schema_id"], one["repairable"]) for one in found] == [
        (1, 65536, False),
        (2, int.from_bytes(good[1:5], "big"), False),
        (3, known, False),
        (4, int.from_bytes(good[1:5], "big"), False),
        (5, known + 1, False),
    ]
    reasons = {one["offset"]: one["reason"] for one in found}
    assert reasons[1] == "schema 65536: Schema 65536 not found"
    assert "tags" in reasons[2], "the field that was cut off"
    assert reasons[3] == "no column fits id"
    assert reasons[4] == f"key: {UNFRAMED}"
    assert reasons[5] == f"schema {known + 1}: Schema {known + 1} not found"
    assert [one["offset"] for one in rejects("letters", "--newest", "--limit", "2")] == [5, 4]
    assert [one["offset"] for one in rejects("letters", "--partition", "0", "--from-offset", "4")] == [4, 5]

    assert topic.registry.register_schema("letters-value", Schema(json.dumps(LATE), "AVRO")) == known + 1
    assert [(one["offset"], one["reason"]) for one in rejects("letters") if one["repairable"]] == [(5, None)]
    assert main(["table", "rejects", "letters", *stores_of(cluster)]) == 0
    said = capsys.readouterr().out
    assert "topic letters: 5 dead letters" in said
    assert "1 can be repaired: lakestream topic repair letters" in said
    assert "not found" in said, "of the one that nobody knows still"
    assert main(["table", "rejects", "letters", "--rows", "--newest", "--limit", "1", *stores_of(cluster)]) == 0
    line, *below = capsys.readouterr().out.splitlines()
    assert line.startswith("0/5 ")
    assert line.endswith("it can be repaired")
    assert [text.partition(":")[0] for text in below] == ["1 of these can be repaired", "there are more than these 1"]

    assert main(["topic", "repair", "letters", *stores_of(cluster)]) == 0
    assert [one["offset"] for one in rejects("letters")] == [1, 2, 3, 4]
    assert topic.by_duckdb('_stream."offset", note')[5] == (5, "late")
    topic.assert_that_consumers_get_what_was_sent()


def test_plain_json(topic_of: Make, rejects: Rejects) -> None:
    topic = topic_of("plain", {"lakestream.value.schema": "json"})
    topic.send(b'{"n":1}', b"no json", b'{ "n" : 2 }')
    ((offset, value),) = [(one["offset"], one["value"]) for one in rejects("plain")]
    assert (offset, value) == (1, "no json")
    topic.assert_that_consumers_get_what_was_sent()
