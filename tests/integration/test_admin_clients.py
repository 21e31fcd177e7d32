"""Topics, settings, partitions, records and the cluster, administered by stock clients against a real broker."""

import gc
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic
from tests.integration.kafka_clients import Confluent, Record
from tests.integration.programs import SETTINGS, SOAK, cluster_of

from lakestream.testing.brokers import Brokers

with warnings.catch_warnings():  # it loads its schemas in a way that Python 3.11 calls old
    warnings.simplefilter("ignore")
    import kafka  # type: ignore[import-untyped]
    import kafka.admin  # type: ignore[import-untyped]
    import kafka.errors  # type: ignore[import-untyped]

WAIT_S = 30

pytestmark = pytest.mark.filterwarnings("default")  # what the clients are warned of is their own affair


@pytest.fixture(scope="module", params=list(SETTINGS) if SOAK else ["one-sqlite", "three-oxia-s3"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    yield from cluster_of(request.param, tmp_path_factory)


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


def done(futures: dict[Any, Any]) -> Any:
    """The one result, or its error."""
    (future,) = futures.values()
    return future.result(WAIT_S)


def refused(futures: dict[Any, Any]) -> int:
    with pytest.raises(KafkaException) as error:
        done(futures)
    return int(error.value.args[0].code())


def wait_for_partitions(address: str, topic: str, count: int) -> None:
    """Other brokers hear of them some milliseconds later, as they do in Kafka; librdkafka gives up at once if it asks
    one of those."""
    for _ in range(100):
        known = AdminClient({"bootstrap.servers": address}).list_topics(topic, timeout=WAIT_S)
        if len(known.topics[topic].partitions) == count:
            return
        time.sleep(0.02)
    raise AssertionError(f"{address} does not know {count} partitions of {topic}")


# ── confluent-kafka ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def admin(cluster: Brokers) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def test_topics_are_made_described_grown_and_deleted(admin: AdminClient, topic: str) -> None:
    new = NewTopic(topic, 2, 3, config={"retention.ms": "60000"})
    done(admin.create_topics([new], validate_only=True))
    assert topic not in admin.list_topics(timeout=WAIT_S).topics
    done(admin.create_topics([new]))
    assert refused(admin.create_topics([new])) == KafkaError.TOPIC_ALREADY_EXISTS
    assert refused(admin.create_topics([NewTopic("no good", 1)])) == KafkaError.TOPIC_EXCEPTION
    assert refused(admin.create_topics([NewTopic(f"{topic}-x", 0)])) == KafkaError.INVALID_PARTITIONS
    described = done(
        admin.describe_topics(confluent_kafka.TopicCollection([topic]), include_authorized_operations=True)
    )
    assert [len(partition.replicas) for partition in described.partitions] == [1, 1]
    assert len(described.authorized_operations) == 8

    assert refused(admin.create_partitions([NewPartitions(topic, 2)])) == KafkaError.INVALID_PARTITIONS
    done(admin.create_partitions([NewPartitions(topic, 5)], validate_only=True))
    done(admin.create_partitions([NewPartitions(topic, 5)]))
    assert len(admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions) == 5

    done(admin.delete_topics([topic]))
    assert refused(admin.delete_topics([topic])) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_new_partitions_serve_at_once(cluster: Brokers, admin: AdminClient, topic: str) -> None:
    done(admin.create_topics([NewTopic(topic, 1)]))
    client = Confluent(cluster.bootstrap)
    assert client.produce(topic, [Record(b"a")]) == [0]
    done(admin.create_partitions([NewPartitions(topic, 4)]))
    for broker in cluster:
        wait_for_partitions(broker.address, topic, 4)
    for partition in range(1, 4):
        assert client.produce(topic, [Record(b"b", partition=partition)]) == [0]
        assert [record.value for record in client.read(topic, 0, 1, partition)] == [b"b"]


def test_settings_of_topics(admin: AdminClient, topic: str) -> None:
    done(admin.create_topics([NewTopic(topic, 1, config={"segment.bytes": "52428800"})]))

    def settings() -> dict[str, ConfigEntry]:
        return dict(done(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)])))

    def change(name: str, operation: AlterConfigOpType, value: str | None) -> dict[Any, Any]:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        return admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])])

    before = settings()
    assert before["segment.bytes"].value == "52428800"
    assert ConfigSource(before["segment.bytes"].source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert before["retention.ms"].value == "604800000"
    assert before["retention.ms"].is_default
    done(change("retention.ms", AlterConfigOpType.SET, "1000"))
    done(change("cleanup.policy", AlterConfigOpType.APPEND, "compact"))
    assert settings()["retention.ms"].value == "1000"
    assert settings()["cleanup.policy"].value == "delete,compact"
    done(change("cleanup.policy", AlterConfigOpType.SUBTRACT, "compact"))
    assert settings()["cleanup.policy"].value == "delete"
    done(change("retention.ms", AlterConfigOpType.DELETE, None))
    assert settings()["retention.ms"].is_default
    for name, value in (("retention.mz", "1"), ("retention.ms", "soon"), ("local.retention.ms", "5")):
        assert refused(change(name, AlterConfigOpType.SET, value)) == KafkaError.INVALID_CONFIG
    assert refused(change("retention.ms", AlterConfigOpType.APPEND, "1")) == KafkaError.INVALID_CONFIG
    bad = admin.create_topics([NewTopic(f"{topic}-x", 1, config={"remote.storage.enable": "true"})])
    assert refused(bad) == KafkaError.INVALID_CONFIG
    missing = admin.describe_configs([ConfigResource(ResourceType.TOPIC, f"{topic}-x")])
    assert refused(missing) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_settings_that_are_replaced_whole(admin: AdminClient, topic: str) -> None:
    done(admin.create_topics([NewTopic(topic, 1, config={"retention.ms": "5000", "max.message.bytes": "99999"})]))
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        done(admin.alter_configs([ConfigResource(ResourceType.TOPIC, topic, set_config={"retention.ms": "7000"})]))
    settings = done(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    assert settings["retention.ms"].value == "7000"
    assert settings["max.message.bytes"].is_default


def test_settings_of_brokers_can_be_read_but_not_changed(cluster: Brokers, admin: AdminClient) -> None:
    for node_id in range(len(cluster)):
        resource = ConfigResource(ResourceType.BROKER, str(node_id))
        settings = done(admin.describe_configs([resource]))
        assert settings["node.id"].value == str(node_id)
        assert all(entry.is_read_only for entry in settings.values())
    entry = ConfigEntry("log.retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.BROKER, "0", incremental_configs=[entry])
    assert refused(admin.incremental_alter_configs([change])) == KafkaError.INVALID_REQUEST


def test_records_are_deleted_on_every_broker(cluster: Brokers, admin: AdminClient, topic: str) -> None:
    done(admin.create_topics([NewTopic(topic, 1)]))
    clients = [Confluent(broker.address) for broker in cluster]
    clients[0].produce(topic, [Record(str(number).encode()) for number in range(10)])
    for client in clients:
        assert client.bounds(topic) == (0, 10)
    assert done(admin.delete_records([TopicPartition(topic, 0, 4)])).low_watermark == 4
    for client in clients:
        assert client.bounds(topic) == (4, 10)
        assert client.read(topic, "earliest", 1)[0].offset == 4
    assert refused(admin.delete_records([TopicPartition(topic, 0, 11)])) == KafkaError.OFFSET_OUT_OF_RANGE
    assert done(admin.delete_records([TopicPartition(topic, 0, 2)])).low_watermark == 4
    assert done(admin.delete_records([TopicPartition(topic, 0, confluent_kafka.OFFSET_END)])).low_watermark == 10
    assert clients[0].produce(topic, [Record(b"more")]) == [10]
    newest = done(admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.max_timestamp()}))  # type: ignore[no-untyped-call]
    assert newest.offset == 10


def test_the_cluster_is_described(cluster: Brokers, admin: AdminClient) -> None:
    described = admin.describe_cluster(include_authorized_operations=True).result(WAIT_S)
    assert sorted(node.id for node in described.nodes) == list(range(len(cluster)))
    assert {f"{node.host}:{node.port}" for node in described.nodes} == {broker.address for broker in cluster}
    assert described.controller.id in range(len(cluster))
    assert len(described.authorized_operations) == 7
    assert described.cluster_id


def test_a_compacted_topic_wants_keys(cluster: Brokers, admin: AdminClient, topic: str) -> None:
    done(admin.create_topics([NewTopic(topic, 1, config={"cleanup.policy": "compact"})]))
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": "lz4"})
    errors: list[KafkaError | None] = []
    for key in (b"key", None):
        producer.produce(topic, b"value" * 100, key, on_delivery=lambda error, _: errors.append(error))
        producer.flush(WAIT_S)
    assert [error.code() if error else None for error in errors] == [None, KafkaError.INVALID_RECORD]


# ── kafka-python ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def python_admin(cluster: Brokers) -> Iterator[Any]:
    with closing(kafka.admin.KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))) as admin:
        yield admin
    with warnings.catch_warnings():  # it leaves sockets to the collector
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_kafka_python_administers_topics(python_admin: Any, topic: str) -> None:
    python_admin.create_topics({topic: {"num_partitions": 2, "configs": {"retention.ms": "60000"}}})
    with pytest.raises(kafka.errors.TopicAlreadyExistsError):
        python_admin.create_topics([topic])
    with pytest.raises(kafka.errors.InvalidConfigurationError):
        python_admin.create_topics({f"{topic}-x": {"configs": {"nonsense": "1"}}})
    python_admin.create_partitions({topic: 3})
    with pytest.raises(kafka.errors.InvalidPartitionsError):
        python_admin.create_partitions({topic: 3})
    (described,) = python_admin.describe_topics([topic])
    assert len(described["partitions"]) == 3
    paged = python_admin.describe_topic_partitions([topic], response_partition_limit=2)
    assert [len(found["partitions"]) for found in paged["topics"]] == [2]
    assert paged["next_cursor"] == {"topic_name": topic, "partition_index": 2}
    python_admin.delete_topics([topic])
    assert topic not in python_admin.list_topics()


def test_kafka_python_administers_settings(cluster: Brokers, python_admin: Any, topic: str) -> None:
    python_admin.create_topics([topic])

    def resource(configs: Any = None) -> Any:
        return kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, topic, configs)

    def settings() -> dict[str, Any]:
        return dict(python_admin.describe_configs([resource()], config_filter="all")["topic"][topic])

    assert settings()["retention.ms"]["value"] == "604800000"
    python_admin.alter_configs([resource({"retention.ms": "1234", "cleanup.policy": ("APPEND", "compact")})])
    assert settings()["retention.ms"]["value"] == "1234"
    assert settings()["cleanup.policy"]["value"] == "delete,compact"
    python_admin.reset_configs([resource(["retention.ms"])])
    assert settings()["retention.ms"]["value"] == "604800000"
    resources = python_admin.list_config_resources()
    assert topic in str(resources)


def test_kafka_python_looks_at_the_cluster(cluster: Brokers, python_admin: Any, topic: str) -> None:
    python_admin.create_topics({topic: {"num_partitions": 2}})
    Confluent(cluster.bootstrap).produce(topic, [Record(b"x" * 100)] * 3)
    described = python_admin.describe_cluster()
    assert len(described["brokers"]) == len(cluster)
    partition = kafka.TopicPartition(topic, 0)
    assert python_admin.delete_records({partition: 2})[partition]["low_watermark"] == 2
    producers = python_admin.describe_producers([partition])[partition]
    assert "last_sequence=2" in str(producers)
    directories = python_admin.describe_log_dirs([topic])
    assert str(directories).count("'partition_index': 0") == 1, directories
    quorum = python_admin.describe_metadata_quorum()
    assert len(quorum["topics"][0]["partitions"][0]["current_voters"]) == len(cluster)
    elected = python_admin.elect_leaders(0, {topic: [0]}, raise_errors=False)
    assert "every broker serves every partition" in str(elected)
    assert python_admin.list_partition_reassignments() == {}
