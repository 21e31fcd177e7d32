"""A typed table end to end: a stock serializer writes, the pipeline makes columns, engines see them, and a consumer
that starts from the beginning gets every byte that was produced, out of these columns.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.integration.engines import duckdb_of, pyiceberg_of, spark_of, uri_of
from tests.integration.kafka_clients import Confluent, Record
from tests.integration.programs import SOAK, cluster_of
from tests.integration.test_history_clients import move

from lakestream.cli.main import main
from lakestream.testing.brokers import Brokers

REGISTRY: Final = {"lakestream.value.schema": "registry"}
ORDER: Final = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {
            "name": "customer",
            "type": {"type": "record", "name": "Customer", "fields": [{"name": "name", "type": "string"}]},
        },
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    yield from cluster_of("one-sqlite", tmp_path_factory)


class Topic:
    def __init__(self, cluster: Brokers, name: str, settings: dict[str, str]) -> None:
        self.cluster, self.name = cluster, name
        self.client = Confluent(cluster.bootstrap)
        self.client.create_topic(name, configs=settings)
        self.registry = SchemaRegistryClient({"url": uri_of(cluster)})
        self.sent: list[bytes | None] = []

    def serialized(self, schema: dict[str, Any], value: dict[str, Any]) -> bytes:
        serializer = AvroSerializer(self.registry, json.dumps(schema))
        made = serializer(value, SerializationContext(self.name, MessageField.VALUE))
        assert isinstance(made, bytes)
        return made

    def send(self, *values: bytes | None) -> None:
        self.client.produce(self.name, [Record(value, b"k") for value in values])
        self.sent += values
        move(self.cluster)

    def close(self) -> None:
        self.registry.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def assert_that_consumers_get_what_was_sent(self) -> None:
        found = self.client.read(self.name, "earliest", len(self.sent))
        assert [record.value for record in found] == self.sent

    def by_duckdb(self, columns: str) -> list[tuple[Any, ...]]:
        with duckdb_of(self.cluster) as connection:
            query = f'SELECT {columns} FROM lake.default."{self.name}" ORDER BY _stream."offset"'
            return connection.execute(query).fetchall()


Make = Callable[[str, dict[str, str]], Topic]


@pytest.fixture
def topic_of(cluster: Brokers) -> Iterator["Make"]:
    with ExitStack() as opened:

        def made(name: str, settings: dict[str, str]) -> Topic:
            topic = Topic(cluster, name, settings)
            opened.callback(topic.close)
            return topic

        yield made


def stores_of(cluster: Brokers) -> list[str]:
    """For commands that work beside brokers."""
    folder = str(cluster[0]._log.parent / "data")
    return ["--data-dir", folder, "--metadata", cluster.metadata, "--storage", cluster.storage]


def order(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "customer": {"name": f"c{number}"}, "total": Decimal("1.50"), "tags": ["a", "b"], **more}


def test_a_stock_serializer_makes_a_table_with_columns(cluster: Brokers, topic_of: Make, tmp_path: Path) -> None:
    topic = topic_of("orders", REGISTRY)
    topic.send(*(topic.serialized(ORDER, order(number)) for number in range(3)), None)
    columns = "id, customer.name, total, tags"
    rows = [(number, f"c{number}", Decimal("1.50"), ["a", "b"]) for number in range(3)]
    assert topic.by_duckdb(columns) == [*rows, (None, None, None, None)]
    table = pyiceberg_of(cluster).load_table("default.orders")
    assert [field.name for field in table.schema().fields] == ["id", "customer", "total", "tags", "_stream"]
    found = table.scan(row_filter="id = 1").to_arrow().to_pylist()
    assert [(row["id"], row["customer"], row["_stream"]["value"]) for row in found] == [(1, {"name": "c1"}, None)]
    assert table.scan().to_arrow().num_rows == 4
    topic.assert_that_consumers_get_what_was_sent()
    if SOAK:
        with spark_of(cluster, tmp_path) as spark:
            found = spark.rows("SELECT id, customer.name FROM lake.default.orders WHERE id IS NOT NULL ORDER BY id")
            assert [tuple(row) for row in found] == [(number, f"c{number}") for number in range(3)]


def test_versions_come_and_a_wrong_one_stops_nothing(
    cluster: Brokers, topic_of: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topic_of("growing", REGISTRY)
    topic.send(topic.serialized(ORDER, order(1)))
    more = {**ORDER, "fields": [*ORDER["fields"], {"name": "paid", "type": "boolean", "default": False}]}
    topic.send(topic.serialized(more, order(2, paid=True)), topic.serialized(ORDER, order(3)))
    topic.registry.set_compatibility("growing-value", level="NONE")
    wrong = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
    bad = topic.serialized(wrong, {"id": "x"})
    lie = b"\0\0\1\0\0" + b"whatever"
    topic.send(bad, lie, b"no frame", topic.serialized(more, order(4, paid=False)))
    assert topic.by_duckdb("id, paid, _stream.value IS NULL") == [
        (1, None, True),
        (2, True, True),
        (3, None, True),
        (None, None, False),
        (None, None, False),
        (None, None, False),
        (4, False, True),
    ]
    topic.assert_that_consumers_get_what_was_sent()
    assert main(["table", "rejects", "growing", *stores_of(cluster), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["rows"], said["repairable"]) == (3, 0)
    assert {reason["offset"] for reason in said["reasons"]} == {3, 4, 5}


def test_rows_of_before_get_columns_by_repair(
    cluster: Brokers, topic_of: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topic_of("late", {})
    topic.send(*(topic.serialized(ORDER, order(number)) for number in range(5)))
    assert (
        main(["topic", "alter", "late", "--bootstrap", cluster.bootstrap, "--set", "lakestream.value.schema=registry"])
        == 0
    )
    assert main(["topic", "repair", "late", *stores_of(cluster)]) == 0
    assert "5 of 5 rows have their columns now" in capsys.readouterr().out
    assert topic.by_duckdb('id, _stream."offset", value') == [(number, number, None) for number in range(5)]
    topic.assert_that_consumers_get_what_was_sent()


def test_plain_json_has_columns_too(topic_of: Make) -> None:
    topic = topic_of("events", {"lakestream.value.schema": "json"})
    topic.send(b'{"user":"a","n":1}', b'{"user":"b","n":2,"at":{"lat":1.5}}')
    topic.send(b'{ "user" : "c", "n": 3 }', b"no json", b'{"n":"not a number"}', None)
    rows = topic.by_duckdb('"user", n, "at".lat')
    assert rows[:3] == [("a", 1, None), ("b", 2, 1.5), ("c", 3, None)]
    topic.assert_that_consumers_get_what_was_sent()


def test_a_record_that_is_not_what_it_should_be_is_refused(topic_of: Make) -> None:
    topic = topic_of("strict", {**REGISTRY, "lakestream.on.invalid": "reject"})
    good = topic.serialized(ORDER, order(1))
    topic.send(good)
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": topic.cluster.bootstrap})
    for value in (good[:-1], b"\0\0\0\x7f\xff"):
        producer.produce(topic.name, value, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(30) == 0
    assert [error and error.code() for error in errors] == [KafkaError.INVALID_RECORD] * 2
    topic.send(good)
    topic.assert_that_consumers_get_what_was_sent()
