"""`lakestream.invalid.record.action=reject` with stock producers and serializers.

The error contains the record, the field and the rule, and no valid record is lost. Accepted records have columns.
Reasons are read with kafka-python, because confluent-kafka (2.16) returns only the text of the error code.
"""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.harness.clients.kafka_clients import Confluent
from tests.harness.clients.moved_records import move
from tests.harness.clients.programs import running_cluster
from tests.harness.engines.engines import duckdb_of, uri_of

from lakestream.testing.brokers import BrokerProcesses

with warnings.catch_warnings():  # kafka-python uses functions that Python 3.11 deprecates
    warnings.simplefilter("ignore")
    import kafka  # type: ignore[import-untyped]

REJECT: Final = {"lakestream.value.schema": "registry", "lakestream.invalid.record.action": "reject"}
ORDER: Final = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
ADDRESS: Final = {"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}}
PERSON: Final = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Person",
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "address": {"$ref": "address.json"},
    },
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster("one-sqlite", tmp_path_factory)


@contextmanager
def registry_of(cluster: BrokerProcesses, context: str = "") -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": uri_of(cluster) + (f"/contexts/{context}" if context else "")}) as client:
        yield client


def create_topic(cluster: BrokerProcesses, name: str, **settings: str) -> str:
    configs = REJECT | {f"lakestream.{key.replace('_', '.')}": value for key, value in settings.items()}
    Confluent(cluster.bootstrap).create_topic(name, configs=configs, partitions=1)
    return name


def produce(cluster: BrokerProcesses, topic: str, *values: bytes) -> list[str]:
    """Sends values in one batch; returns the error of each, empty if there is none."""
    with kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=1000) as producer:
        sent = [producer.send(topic, value) for value in values]
        producer.flush(60)
        return ["" if future.succeeded() else str(future.exception) for future in sent]


def rejection_of(cluster: BrokerProcesses, topic: str, value: bytes) -> str:
    """Sends a single record that must be rejected; returns the error message."""
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    assert [error and error.code() for error in errors] == [KafkaError.INVALID_RECORD]
    (message,) = produce(cluster, topic, value)
    return message


def stored(cluster: BrokerProcesses, topic: str, count: int) -> list[bytes | None]:
    return [record.value for record in Confluent(cluster.bootstrap).read(topic, "earliest", count)]


def serialized(client: SchemaRegistryClient, topic: str, value: Any) -> bytes:
    latest = {"auto.register.schemas": False, "use.latest.version": True, "validate": False}
    return bytes(JSONSerializer(None, client, conf=latest)(value, SerializationContext(topic, MessageField.VALUE)))


def test_json_schema_with_a_reference_rejects_records(cluster: BrokerProcesses) -> None:
    topic = create_topic(cluster, "people")
    with registry_of(cluster) as registry:
        registry.register_schema("address", Schema(json.dumps(ADDRESS), "JSON"))
        references = [SchemaReference("address.json", "address", 1)]
        registry.register_schema("people-value", Schema(json.dumps(PERSON), "JSON", references))
        good = serialized(registry, topic, {"name": "Ada", "age": 36, "address": {"zip": "12345"}})
        invalid = {
            "/age: 200 is greater than the maximum of 120": {"name": "Ada", "age": 200},
            '"name" is a required property': {"age": 1},
            '/address/zip: "x" does not match "^[0-9]{5}$"': {"name": "Ada", "address": {"zip": "x"}},
            '/age: "1" is not of type "integer"': {"name": "Ada", "age": "1"},
        }
        bad = {reason: serialized(registry, topic, value) for reason, value in invalid.items()}
    assert produce(cluster, topic, good) == [""]
    for reason, value in bad.items():
        assert reason in rejection_of(cluster, topic, value)
    # Invalid records of a batch get their own error, valid ones that of the batch.
    errors = produce(cluster, topic, good, *bad.values(), good[:5] + b'{"name": "Ada"')
    assert "part of a batch" in errors[0]
    for reason, message in zip([*bad, "invalid JSON: the value is truncated"], errors[1:], strict=True):
        assert reason in message
    assert produce(cluster, topic, good) == [""]
    assert stored(cluster, topic, 2) == [good, good]


def test_error_names_the_field_of_avro_and_protobuf(cluster: BrokerProcesses) -> None:
    topic = create_topic(cluster, "orders")
    with registry_of(cluster) as registry:
        order = AvroSerializer(registry, json.dumps(ORDER))({"id": 1}, SerializationContext(topic, MessageField.VALUE))
        proto = 'syntax = "proto3"; message Order { int32 id = 1; string note = 2; }'
        number = registry.register_schema("other-value", Schema(proto, "PROTOBUF"))
    assert order is not None
    message = b"\0" + number.to_bytes(4, "big") + b"\0\x12\x09short"
    for value, field in ((order[:-1], "field id"), (message, "note")):
        error = rejection_of(cluster, topic, value)
        assert field in error.partition("InvalidRecordError: ")[2], error
    assert "32767" in rejection_of(cluster, topic, b"\0\0\0\x7f\xff")
    assert "validation.rejected topic=orders reason='record 0 of the batch does not match" in cluster.logs()


def test_invalid_plain_json_is_rejected(cluster: BrokerProcesses) -> None:
    topic = create_topic(cluster, "events", value_schema="json")
    good, twice, cut = b'{"a": 1}', b'{"a": 1, "a": 2}', b'{"a": 1'
    _, second, third = produce(cluster, topic, good, twice, cut)
    assert 'duplicate key "a"' in second
    assert "the value is truncated" in third
    assert produce(cluster, topic, good, b"3") == ["", ""]
    # An idempotent producer continues after a rejected batch.
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for value in (b"4", cut, b"5"):
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(60) == 0
    assert [error and error.code() for error in errors] == [None, KafkaError.INVALID_RECORD, None]
    assert stored(cluster, topic, 4) == [good, b"3", b"4", b"5"]


def test_schemas_are_read_from_the_context_of_the_topic(cluster: BrokerProcesses) -> None:
    """With the same id for another schema: validation, table and history reads use the topic's context."""
    topic = create_topic(cluster, "prod", schema_context=".prod")
    with registry_of(cluster) as default, registry_of(cluster, ".prod") as prod:
        default.register_schema("first", Schema('"string"', "AVRO"))
        prod.register_schema(
            "prod-value", Schema(json.dumps(PERSON | {"properties": {"age": {"type": "integer"}}}), "JSON")
        )
        assert prod.get_latest_version("prod-value").schema_id == 1, (
            "the same id as the first schema of the default context"
        )
        good = serialized(prod, topic, {"name": "Ada", "age": 36})
    assert good[:5] == b"\0\0\0\0\1"
    assert '"name" is a required property' in rejection_of(cluster, topic, good[:5] + b'{"age": 36}')
    assert produce(cluster, topic, good) == [""]
    move(cluster)
    with duckdb_of(cluster) as connection:
        rows = connection.execute("SELECT age, _stream.schema_id FROM lake.default.prod").fetchall()
    assert rows == [(36, -1)]
    assert stored(cluster, topic, 1) == [good], "the value is encoded from the columns"
