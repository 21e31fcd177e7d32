"""A table with converted values, end to end: a stock serializer writes, the pipeline converts values to columns,
engines read them, and a consumer that starts from the beginning gets every byte that was produced from these columns.
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
from tests.harness.clients.kafka_clients import Confluent, Record
from tests.harness.clients.moved_records import move
from tests.harness.clients.programs import SOAK, running_cluster
from tests.harness.engines.engines import duckdb_of, pyiceberg_of, spark_of, uri_of

from lakestream.cli.main import main
from lakestream.testing.brokers import BrokerProcesses

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
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster("one-sqlite", tmp_path_factory)


class Topic:
    def __init__(self, cluster: BrokerProcesses, name: str, settings: dict[str, str]) -> None:
        self.cluster, self.name = cluster, name
        self.client = Confluent(cluster.bootstrap)
        self.client.create_topic(name, configs=settings)
        self.registry = SchemaRegistryClient({"url": uri_of(cluster)})
        self.sent: list[bytes | None] = []

    def serialized(self, schema: dict[str, Any], value: dict[str, Any]) -> bytes:
        serializer = AvroSerializer(self.registry, json.dumps(schema))
        value_bytes = serializer(value, SerializationContext(self.name, MessageField.VALUE))
        assert isinstance(value_bytes, bytes)
        return value_bytes

    def send(self, *values: bytes | None) -> None:
        self.client.produce(self.name, [Record(value, b"k") for value in values])
        self.sent += values
        move(self.cluster)

    def close(self) -> None:
        self.registry.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def assert_consumers_read_all_values(self) -> None:
        records = self.client.read(self.name, "earliest", len(self.sent))
        assert [record.value for record in records] == self.sent

    def by_duckdb(self, columns: str) -> list[tuple[Any, ...]]:
        with duckdb_of(self.cluster) as connection:
            query = f'SELECT {columns} FROM lake.default."{self.name}" ORDER BY _stream."offset"'
            return connection.execute(query).fetchall()


Make = Callable[[str, dict[str, str]], Topic]


@pytest.fixture
def topic_of(cluster: BrokerProcesses) -> Iterator["Make"]:
    with ExitStack() as opened:

        def create(name: str, settings: dict[str, str]) -> Topic:
            topic = Topic(cluster, name, settings)
            opened.callback(topic.close)
            return topic

        yield create


def stores_of(cluster: BrokerProcesses) -> list[str]:
    """Returns the options of commands that use the stores of the brokers."""
    folder = str(cluster[0]._log.parent / "data")
    return ["--data-dir", folder, "--metadata", cluster.metadata, "--storage", cluster.storage]


def order(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "customer": {"name": f"c{number}"}, "total": Decimal("1.50"), "tags": ["a", "b"], **more}


def test_table_has_columns_when_a_stock_serializer_is_used(
    cluster: BrokerProcesses, topic_of: Make, tmp_path: Path
) -> None:
    topic = topic_of("orders", REGISTRY)
    topic.send(*(topic.serialized(ORDER, order(number)) for number in range(3)), None)
    columns = "id, customer.name, total, tags"
    rows = [(number, f"c{number}", Decimal("1.50"), ["a", "b"]) for number in range(3)]
    assert topic.by_duckdb(columns) == [*rows, (None, None, None, None)]
    table = pyiceberg_of(cluster).load_table("default.orders")
    assert [field.name for field in table.schema().fields] == ["id", "customer", "total", "tags", "_stream"]
    orders = table.scan(row_filter="id = 1").to_arrow().to_pylist()
    assert [(row["id"], row["customer"], row["_stream"]["value"]) for row in orders] == [(1, {"name": "c1"}, None)]
    assert table.scan().to_arrow().num_rows == 4
    topic.assert_consumers_read_all_values()
    if SOAK:
        with spark_of(cluster, tmp_path) as spark:
            orders = spark.rows("SELECT id, customer.name FROM lake.default.orders WHERE id IS NOT NULL ORDER BY id")
            assert [tuple(row) for row in orders] == [(number, f"c{number}") for number in range(3)]


def test_new_schema_versions_add_columns_and_an_incompatible_one_is_kept_as_bytes(
    cluster: BrokerProcesses, topic_of: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topic_of("growing", REGISTRY)
    topic.send(topic.serialized(ORDER, order(1)))
    more = {**ORDER, "fields": [*ORDER["fields"], {"name": "paid", "type": "boolean", "default": False}]}
    topic.send(topic.serialized(more, order(2, paid=True)), topic.serialized(ORDER, order(3)))
    topic.registry.set_compatibility("growing-value", level="NONE")
    wrong = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
    bad = topic.serialized(wrong, {"id": "x"})
    unknown = b"\0\0\1\0\0" + b"whatever"
    topic.send(bad, unknown, b"no frame", topic.serialized(more, order(4, paid=False)))
    assert topic.by_duckdb("id, paid, _stream.value IS NULL") == [
        (1, None, True),
        (2, True, True),
        (3, None, True),
        (None, None, False),
        (None, None, False),
        (None, None, False),
        (4, False, True),
    ]
    topic.assert_consumers_read_all_values()
    assert main(["table", "dead-letters", "growing", *stores_of(cluster), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["repairable"]) == (3, 0)
    assert {reason["offset"] for reason in report["reasons"]} == {3, 4, 5}


def test_repair_adds_columns_to_rows_from_before_the_schema(
    cluster: BrokerProcesses, topic_of: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topic_of("late", {})
    topic.send(*(topic.serialized(ORDER, order(number)) for number in range(5)))
    assert (
        main(["topic", "alter", "late", "--bootstrap", cluster.bootstrap, "--set", "lakestream.value.schema=registry"])
        == 0
    )
    assert main(["table", "repair", "late", *stores_of(cluster)]) == 0
    assert "5 of 5 rows have their columns now" in capsys.readouterr().out
    assert topic.by_duckdb('id, _stream."offset", value') == [(number, number, None) for number in range(5)]
    topic.assert_consumers_read_all_values()


def test_table_has_columns_when_values_are_plain_json(topic_of: Make) -> None:
    topic = topic_of("events", {"lakestream.value.schema": "json"})
    topic.send(b'{"user":"a","n":1}', b'{"user":"b","n":2,"at":{"lat":1.5}}')
    topic.send(b'{ "user" : "c", "n": 3 }', b"no json", b'{"n":"not a number"}', None)
    rows = topic.by_duckdb('"user", n, "at".lat')
    assert rows[:3] == [("a", 1, None), ("b", 2, 1.5), ("c", 3, None)]
    topic.assert_consumers_read_all_values()


def test_record_that_does_not_match_its_schema_is_rejected(topic_of: Make) -> None:
    topic = topic_of("strict", {**REGISTRY, "lakestream.invalid.record.action": "reject"})
    good = topic.serialized(ORDER, order(1))
    topic.send(good)
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": topic.cluster.bootstrap})
    for value in (good[:-1], b"\0\0\0\x7f\xff"):
        producer.produce(topic.name, value, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(30) == 0
    assert [error and error.code() for error in errors] == [KafkaError.INVALID_RECORD] * 2
    topic.send(good)
    topic.assert_consumers_read_all_values()
