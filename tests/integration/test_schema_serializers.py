"""The stock serializers of Python, JavaScript and Go, unmodified: what one writes, the others read.

The schemas have references, records go through a broker, and every program talks to another broker's registry.
"""

import base64
import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import Message
from tests.integration.engines import uri_of
from tests.integration.kafka_clients import Confluent, Record
from tests.integration.programs import cluster_of, need, run, settings_for

from lakestream.testing.brokers import Brokers

HEADER: Final = "__value_schema_id"
CUSTOMER: Final = {
    "type": "record",
    "name": "Customer",
    "namespace": "shop",
    "fields": [{"name": "name", "type": "string"}],
}
ORDER: Final = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "customer", "type": "shop.Customer"}],
}
JSON_CUSTOMER_ID: Final = "http://shop/customer.json"
JSON_CUSTOMER: Final = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "$id": JSON_CUSTOMER_ID,
    "title": "Customer",
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}
JSON_ORDER: Final = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "$id": "http://shop/order.json",
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "customer": {"$ref": JSON_CUSTOMER_ID}},
    "required": ["id", "customer"],
}
Headers = list[tuple[str, str | bytes | None]]
FORMATS: Final = ("avro", "avro-guid", "json", "protobuf")


@pytest.fixture(scope="module", params=settings_for("three-sqlite"))
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    yield from cluster_of(request.param, tmp_path_factory)


class Order(NamedTuple):
    id: int
    name: str


class Wire(NamedTuple):
    value: bytes
    header: bytes | None


class Topics(NamedTuple):
    """One for each format, with the schemas of orders and what they refer to."""

    cluster: Brokers
    client: SchemaRegistryClient
    mark: str

    def url(self, number: int) -> str:
        """Of the registry of a broker, as far as there are so many."""
        return uri_of(self.cluster, number % len(self.cluster))

    def topic(self, kind: str) -> str:
        return f"{kind}-{self.mark}"

    def send(self, kind: str, wire: Wire) -> None:
        headers = () if wire.header is None else ((HEADER, wire.header),)
        Confluent(self.cluster.bootstrap).produce(self.topic(kind), [Record(wire.value, headers=headers, partition=0)])

    def received(self, kind: str, count: int) -> list[Wire]:
        records = Confluent(self.cluster.bootstrap).read(self.topic(kind), 0, count, partition=0)
        return [Wire(record.value or b"", dict(record.headers).get(HEADER)) for record in records]


@contextmanager
def client_of(url: str) -> Iterator[SchemaRegistryClient]:
    client = SchemaRegistryClient({"url": url})
    with client:
        yield client


@pytest.fixture(scope="module")
def topics(cluster: Brokers) -> Iterator[Topics]:
    with client_of(uri_of(cluster)) as client:
        yield made_topics(Topics(cluster, client, uuid.uuid4().hex[:8]))


def made_topics(made: Topics) -> Topics:
    client, mark = made.client, made.mark
    client.register_schema(f"customer-{mark}", Schema(json.dumps(CUSTOMER), "AVRO"))
    client.register_schema(f"json-customer-{mark}", Schema(json.dumps(JSON_CUSTOMER), "JSON"))
    avro = Schema(json.dumps(ORDER), "AVRO", [SchemaReference("shop.Customer", f"customer-{mark}", 1)])
    for kind in ("avro", "avro-guid"):
        client.register_schema(f"{made.topic(kind)}-value", avro)
    reference = SchemaReference(JSON_CUSTOMER_ID, f"json-customer-{mark}", 1)
    client.register_schema(f"{made.topic('json')}-value", Schema(json.dumps(JSON_ORDER), "JSON", [reference]))
    for kind in FORMATS:
        Confluent(made.cluster.bootstrap).create_topic(made.topic(kind), partitions=1)
    return made


def protobuf_order() -> type[Message]:
    """Two files, the second of which imports the first, as protoc makes them."""
    pool = descriptor_pool.DescriptorPool()
    for name, message, needs, fields in (
        ("customer.proto", "Customer", [], [("name", 9, None)]),
        ("order.proto", "Order", ["customer.proto"], [("id", 3, None), ("customer", 11, ".shop.Customer")]),
    ):
        file = descriptor_pb2.FileDescriptorProto(name=name, package="shop", syntax="proto3", dependency=needs)
        made = file.message_type.add(name=message)
        for number, (label, kind, of) in enumerate(fields, 1):
            made.field.add(name=label, number=number, type=kind, type_name=of, label=1)
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


PROTO_ORDER: Final = protobuf_order()


class Python:
    """confluent-kafka's own, in this process."""

    def __init__(self, client: SchemaRegistryClient) -> None:
        self._client = client

    def write(self, kind: str, topic: str, order: Order) -> Wire:
        headers: Headers = []
        value = self._serializer(kind)(_spoken(kind, order), SerializationContext(topic, MessageField.VALUE, headers))
        header = dict(headers).get(HEADER)
        assert header is None or isinstance(header, bytes)
        return Wire(value, header)

    def read(self, kind: str, topic: str, wire: Wire) -> Order:
        headers: Headers = [] if wire.header is None else [(HEADER, wire.header)]
        found: Any = self._deserializer(kind)(wire.value, SerializationContext(topic, MessageField.VALUE, headers))
        said = json_format.MessageToDict(found) if isinstance(found, Message) else found
        return Order(int(said["id"]), said["customer"]["name"])

    def _serializer(self, kind: str) -> Any:
        latest = {"auto.register.schemas": False, "use.latest.version": True}
        if kind == "json":
            return JSONSerializer(None, self._client, conf=latest)
        if kind == "protobuf":
            return ProtobufSerializer(PROTO_ORDER, self._client, {"use.deprecated.format": False})
        guid = {"schema.id.serializer": header_schema_id_serializer} if kind == "avro-guid" else {}
        return AvroSerializer(self._client, conf=latest | guid)

    def _deserializer(self, kind: str) -> Any:
        if kind == "json":
            return JSONDeserializer(None, schema_registry_client=self._client)
        if kind == "protobuf":
            return ProtobufDeserializer(PROTO_ORDER, {"use.deprecated.format": False}, self._client)
        return AvroDeserializer(self._client)


class Program:
    """One that takes lines of JSON and answers with such."""

    def __init__(self, command: list[str]) -> None:
        self._command = command

    def exchange(
        self, wires: list[tuple[str, str, Wire]], orders: list[tuple[str, str, Order]]
    ) -> tuple[list[Order], list[Wire]]:
        """It reads what others wrote, and writes itself."""
        questions: list[list[Any]] = [
            ["read", kind, topic, *(_encoded(part) for part in wire)] for kind, topic, wire in wires
        ]
        questions += [["write", kind, topic, *order] for kind, topic, order in orders]
        said = run(self._command, "".join(json.dumps(question) + "\n" for question in questions))
        answers = [json.loads(line) for line in said.splitlines() if line.startswith("[")]
        read, written = answers[: len(wires)], answers[len(wires) :]
        return (
            [Order(int(number), name) for _, number, name in read],
            [Wire(base64.b64decode(value), _decoded(header)) for _, value, header in written],
        )


def _spoken(kind: str, order: Order) -> Any:
    value = {"id": order.id, "customer": {"name": order.name}}
    return json_format.ParseDict(value, PROTO_ORDER()) if kind == "protobuf" else value


def _encoded(part: bytes | None) -> str | None:
    return None if part is None else base64.b64encode(part).decode()


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def test_python_with_itself(topics: Topics) -> None:
    python = Python(topics.client)
    for kind in FORMATS:
        sent = [Order(number, f"{kind} {number}") for number in (1, 2)]
        for order in sent:
            topics.send(kind, python.write(kind, topics.topic(kind), order))
        wires = topics.received(kind, 2)
        with client_of(topics.url(1)) as fresh:
            assert [Python(fresh).read(kind, topics.topic(kind), wire) for wire in wires] == sent
        assert all((wire.header is not None) == (kind == "avro-guid") for wire in wires)


@pytest.mark.parametrize("name", ["javascript", "go"])
def test_others_read_what_python_writes_and_python_what_they_write(topics: Topics, name: str) -> None:
    other = Program(_command(name, uri_of(topics.cluster)))
    python = Python(topics.client)
    named = [(kind, topics.topic(kind)) for kind in FORMATS]
    ours = [Order(number, f"from Python {number}") for number in range(1, len(named) + 1)]
    written = [python.write(kind, topic, order) for (kind, topic), order in zip(named, ours, strict=True)]
    theirs = [Order(number, f"from {name} {number}") for number in range(1, len(named) + 1)]
    own = ("avro-own", f"{name}-{topics.mark}", Order(99, "with a schema of its own"))
    read, (*wires, by_itself) = other.exchange(
        [(*one, wire) for one, wire in zip(named, written, strict=True)],
        [*((*one, order) for one, order in zip(named, theirs, strict=True)), own],
    )
    assert read == ours
    assert python.read("avro", own[1], by_itself) == own[2]
    assert [python.read(*one, wire) for one, wire in zip(named, wires, strict=True)] == theirs
    for one, here, there in zip(named, written, wires, strict=True):
        assert here.value[:5] == there.value[:5] or one[0] == "avro-guid", "the same schema has the same id"
        assert here.header == there.header


def _command(name: str, url: str) -> list[str]:
    if name == "go":
        return [need("schemas-go"), url]
    return [need("schemas-node"), str(Path(__file__).with_name("schemas_client.js")), url]


def test_the_client_of_python_does_all_it_can(topics: Topics) -> None:
    client, subject = topics.client, f"all-{topics.mark}"
    first = Schema(json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}), "AVRO")
    worse = Schema(json.dumps({"type": "record", "name": "R", "fields": [{"name": "b", "type": "int"}]}), "AVRO")
    number = client.register_schema(subject, first)
    assert client.lookup_schema(subject, first).version == 1
    assert client.get_latest_version(subject).schema_id == number
    assert client.get_version(subject, 1).schema_id == number
    assert client.get_versions(subject) == [1]
    assert subject in client.get_subjects()
    assert client.get_subjects_by_schema_id(number) == [subject]
    assert [one.version for one in client.get_schema_versions(number)] == [1]
    guid = client.get_latest_version(subject).guid
    assert guid is not None
    with client_of(topics.url(2)) as fresh:
        assert fresh.get_schema_by_guid(guid).schema_str == fresh.get_schema(number).schema_str
    assert not client.test_compatibility(subject, worse)
    assert not client.test_compatibility_all_versions(subject, worse)
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema(subject, worse)
    assert refused.value.http_status_code == 409
    client.set_compatibility(subject, "NONE")
    assert client.get_compatibility(subject) == "NONE"
    level = client.get_config(subject).compatibility_level
    assert level is not None
    assert level.value == "NONE"
    assert client.test_compatibility(subject, worse)
    client.delete_config(subject)
    client.update_mode(subject, "READONLY")
    assert client.get_mode(subject) == "READONLY"
    client.delete_mode(subject)
    assert client.get_referenced_by(f"customer-{topics.mark}", 1)
    assert "." in client.get_contexts()
    assert client.delete_version(subject, 1) == 1
    assert client.delete_version(subject, 1, permanent=True) == 1
    with pytest.raises(SchemaRegistryError) as gone:
        client.get_versions(subject)
    assert gone.value.error_code == 40401


def test_contexts_are_registries_of_their_own(topics: Topics) -> None:
    with client_of(f"{uri_of(topics.cluster)}/contexts/.{topics.mark}") as client:
        number = client.register_schema("only-here", Schema('"string"', "AVRO"))
        assert number == 1
        assert client.get_subjects() == [f":.{topics.mark}:only-here"]
        assert client.get_schema(number).schema_str == '"string"'
    assert "only-here" not in topics.client.get_subjects()


def test_every_broker_has_the_same_registry(topics: Topics) -> None:
    """Registered at one, read at the next, at once."""
    with ExitStack() as opened:
        count = len(topics.cluster)
        clients = [opened.enter_context(client_of(uri_of(topics.cluster, number))) for number in range(count)]
        for number in range(6):
            here, there = clients[number % count], clients[(number + 1) % count]
            text = json.dumps({"type": "enum", "name": f"E{number}", "symbols": ["A"]}, separators=(",", ":"))
            subject = f"enum-{number}-{topics.mark}"
            made = here.register_schema(subject, Schema(text, "AVRO"))
            assert there.get_schema(made).schema_str == text
            assert there.get_latest_version(subject).schema_id == made
