"""`lakestream.on.invalid=reject`, as stock producers meet it: which record, which field, which rule; nothing is lost.

With stock serializers, also of a context of the registry. What is let in has columns.

Reasons are read by kafka-python: confluent-kafka (2.16) shows the text of the error's number, whatever a broker says.
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
from tests.integration.engines import duckdb_of, uri_of
from tests.integration.kafka_clients import Confluent
from tests.integration.programs import cluster_of
from tests.integration.test_history_clients import move

from lakestream.testing.brokers import Brokers

with warnings.catch_warnings():  # it loads its schemas in a way that Python 3.11 calls old
    warnings.simplefilter("ignore")
    import kafka  # type: ignore[import-untyped]

REJECT: Final = {"lakestream.value.schema": "registry", "lakestream.on.invalid": "reject"}
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
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    yield from cluster_of("one-sqlite", tmp_path_factory)


@contextmanager
def registry_of(cluster: Brokers, context: str = "") -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": uri_of(cluster) + (f"/contexts/{context}" if context else "")}) as client:
        yield client


def made(cluster: Brokers, name: str, **settings: str) -> str:
    configs = REJECT | {f"lakestream.{key.replace('_', '.')}": value for key, value in settings.items()}
    Confluent(cluster.bootstrap).create_topic(name, configs=configs, partitions=1)
    return name


def produced(cluster: Brokers, topic: str, *values: bytes) -> list[str]:
    """In one batch: what each of them hears; empty: nothing is wrong."""
    with kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=1000) as producer:
        sent = [producer.send(topic, value) for value in values]
        producer.flush(60)
        return ["" if one.succeeded() else str(one.exception) for one in sent]


def refused(cluster: Brokers, topic: str, value: bytes) -> str:
    """What its only record hears; the number of the error is for confluent-kafka to say."""
    heard: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(topic, value, on_delivery=lambda error, _: heard.append(error))
    assert producer.flush(60) == 0
    assert [error and error.code() for error in heard] == [KafkaError.INVALID_RECORD]
    (said,) = produced(cluster, topic, value)
    return said


def stored(cluster: Brokers, topic: str, count: int) -> list[bytes | None]:
    return [record.value for record in Confluent(cluster.bootstrap).read(topic, "earliest", count)]


def serialized(client: SchemaRegistryClient, topic: str, value: Any) -> bytes:
    latest = {"auto.register.schemas": False, "use.latest.version": True, "validate": False}
    return bytes(JSONSerializer(None, client, conf=latest)(value, SerializationContext(topic, MessageField.VALUE)))


def test_a_json_schema_with_a_reference(cluster: Brokers) -> None:
    topic = made(cluster, "people")
    with registry_of(cluster) as registry:
        registry.register_schema("address", Schema(json.dumps(ADDRESS), "JSON"))
        named = [SchemaReference("address.json", "address", 1)]
        registry.register_schema("people-value", Schema(json.dumps(PERSON), "JSON", named))
        good = serialized(registry, topic, {"name": "Ada", "age": 36, "address": {"zip": "12345"}})
        wrong = {
            "/age: 200 is greater than the maximum of 120": {"name": "Ada", "age": 200},
            '"name" is a required property': {"age": 1},
            '/address/zip: "x" does not match "^[0-9]{5}$"': {"name": "Ada", "address": {"zip": "x"}},
            '/age: "1" is not of type "integer"': {"name": "Ada", "age": "1"},
        }
        bad = {reason: serialized(registry, topic, value) for reason, value in wrong.items()}
    assert produced(cluster, topic, good) == [""]
    for reason, value in bad.items():
        assert reason in refused(cluster, topic, value)
    # In a batch each hears what is wrong with itself, the others that they are not to blame.
    heard = produced(cluster, topic, good, *bad.values(), good[:5] + b'{"name": "Ada"')
    assert "part of a batch" in heard[0]
    for reason, said in zip([*bad, "it is no JSON: it ends too early"], heard[1:], strict=True):
        assert reason in said
    assert produced(cluster, topic, good) == [""]
    assert stored(cluster, topic, 2) == [good, good]


def test_avro_and_protobuf_name_the_field(cluster: Brokers) -> None:
    topic = made(cluster, "orders")
    with registry_of(cluster) as registry:
        order = AvroSerializer(registry, json.dumps(ORDER))({"id": 1}, SerializationContext(topic, MessageField.VALUE))
        proto = 'syntax = "proto3"; message Order { int32 id = 1; string note = 2; }'
        number = registry.register_schema("other-value", Schema(proto, "PROTOBUF"))
    assert order is not None
    message = b"\0" + number.to_bytes(4, "big") + b"\0\x12\x09short"
    for value, field in ((order[:-1], "field id"), (message, "note")):
        said = refused(cluster, topic, value)
        assert field in said.partition("InvalidRecordError: ")[2], said
    assert "32767" in refused(cluster, topic, b"\0\0\0\x7f\xff")
    assert "admission.refused topic=orders reason='record 0 of the batch is not" in cluster.logs()


def test_plain_json(cluster: Brokers) -> None:
    topic = made(cluster, "events", value_schema="json")
    good, twice, cut = b'{"a": 1}', b'{"a": 1, "a": 2}', b'{"a": 1'
    _, second, third = produced(cluster, topic, good, twice, cut)
    assert 'the key "a" is there twice' in second
    assert "it ends too early" in third
    assert produced(cluster, topic, good, b"3") == ["", ""]
    # An idempotent producer goes on behind what was refused.
    heard: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for value in (b"4", cut, b"5"):
        producer.produce(topic, value, on_delivery=lambda error, _: heard.append(error))
        assert producer.flush(60) == 0
    assert [error and error.code() for error in heard] == [None, KafkaError.INVALID_RECORD, None]
    assert stored(cluster, topic, 4) == [good, b"3", b"4", b"5"]


def test_a_context_of_the_registry(cluster: Brokers) -> None:
    """The same id, another schema: the gate, the table and its readers go by the topic's context."""
    topic = made(cluster, "prod", schema_context=".prod")
    with registry_of(cluster) as default, registry_of(cluster, ".prod") as prod:
        default.register_schema("first", Schema('"string"', "AVRO"))
        prod.register_schema(
            "prod-value", Schema(json.dumps(PERSON | {"properties": {"age": {"type": "integer"}}}), "JSON")
        )
        assert prod.get_latest_version("prod-value").schema_id == 1, "as the first one of the default context"
        good = serialized(prod, topic, {"name": "Ada", "age": 36})
    assert good[:5] == b"\0\0\0\0\1"
    assert '"name" is a required property' in refused(cluster, topic, good[:5] + b'{"age": 36}')
    assert produced(cluster, topic, good) == [""]
    move(cluster)
    with duckdb_of(cluster) as connection:
        found = connection.execute("SELECT age, _stream.schema_id FROM lake.default.prod").fetchall()
    assert found == [(36, -1)]
    assert stored(cluster, topic, 1) == [good], "made of the columns"
