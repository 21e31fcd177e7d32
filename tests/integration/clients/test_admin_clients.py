"""Admin requests of stock clients to real brokers: topics, configs, partitions, records and the cluster."""

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
from tests.harness.clients.kafka_clients import Confluent, Record
from tests.harness.clients.programs import SETTINGS, SOAK, running_cluster

from lakestream.testing.brokers import BrokerProcesses

with warnings.catch_warnings():  # kafka-python uses functions that Python 3.11 deprecates
    warnings.simplefilter("ignore")
    import kafka  # type: ignore[import-untyped]
    import kafka.admin  # type: ignore[import-untyped]
    import kafka.errors  # type: ignore[import-untyped]

WAIT_S = 30

pytestmark = pytest.mark.filterwarnings("default")  # warnings come from the clients


@pytest.fixture(scope="module", params=list(SETTINGS) if SOAK else ["one-sqlite", "three-oxia-s3"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster(request.param, tmp_path_factory)


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


def result_of(futures: dict[Any, Any]) -> Any:
    """Returns the only result, or raises its error."""
    (future,) = futures.values()
    return future.result(WAIT_S)


def error_code_of(futures: dict[Any, Any]) -> int:
    with pytest.raises(KafkaException) as error:
        result_of(futures)
    return int(error.value.args[0].code())


def wait_for_partitions(address: str, topic: str, count: int) -> None:
    """Waits until a broker has the partitions, some milliseconds later as in Kafka.

    librdkafka fails immediately if it uses a broker that does not have them."""
    for _ in range(100):
        metadata = AdminClient({"bootstrap.servers": address}).list_topics(topic, timeout=WAIT_S)
        if len(metadata.topics[topic].partitions) == count:
            return
        time.sleep(0.02)
    raise AssertionError(f"{address} does not have {count} partitions of {topic}")


# confluent-kafka


@pytest.fixture
def admin(cluster: BrokerProcesses) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def test_topic_is_created_described_extended_and_deleted(admin: AdminClient, topic: str) -> None:
    new = NewTopic(topic, 2, 3, config={"retention.ms": "60000"})
    result_of(admin.create_topics([new], validate_only=True))
    assert topic not in admin.list_topics(timeout=WAIT_S).topics
    result_of(admin.create_topics([new]))
    assert error_code_of(admin.create_topics([new])) == KafkaError.TOPIC_ALREADY_EXISTS
    assert error_code_of(admin.create_topics([NewTopic("no good", 1)])) == KafkaError.TOPIC_EXCEPTION
    assert error_code_of(admin.create_topics([NewTopic(f"{topic}-x", 0)])) == KafkaError.INVALID_PARTITIONS
    described = result_of(
        admin.describe_topics(confluent_kafka.TopicCollection([topic]), include_authorized_operations=True)
    )
    assert [len(partition.replicas) for partition in described.partitions] == [1, 1]
    assert len(described.authorized_operations) == 8

    assert error_code_of(admin.create_partitions([NewPartitions(topic, 2)])) == KafkaError.INVALID_PARTITIONS
    result_of(admin.create_partitions([NewPartitions(topic, 5)], validate_only=True))
    result_of(admin.create_partitions([NewPartitions(topic, 5)]))
    assert len(admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions) == 5

    result_of(admin.delete_topics([topic]))
    assert error_code_of(admin.delete_topics([topic])) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_replication_that_no_cluster_of_three_could_have_is_rejected(
    cluster: BrokerProcesses, admin: AdminClient, topic: str
) -> None:
    for validate_only in (True, False):
        for factor in (4, 999):
            rejected = admin.create_topics([NewTopic(topic, 1, factor)], validate_only=validate_only)
            assert error_code_of(rejected) == KafkaError.INVALID_REPLICATION_FACTOR
        rejected = admin.create_topics([NewTopic(topic, 1, replica_assignment=[[77]])], validate_only=validate_only)
        assert error_code_of(rejected) == KafkaError.INVALID_REPLICA_ASSIGNMENT
    result_of(admin.create_topics([NewTopic(topic, 2, replica_assignment=[list(range(len(cluster)))] * 2)]))
    wrong = NewPartitions(topic, 3, replica_assignment=[[77]])
    assert error_code_of(admin.create_partitions([wrong])) == KafkaError.INVALID_REPLICA_ASSIGNMENT
    assert len(admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions) == 2


def test_new_partitions_accept_records_on_all_brokers(cluster: BrokerProcesses, admin: AdminClient, topic: str) -> None:
    result_of(admin.create_topics([NewTopic(topic, 1)]))
    client = Confluent(cluster.bootstrap)
    assert client.produce(topic, [Record(b"a")]) == [0]
    result_of(admin.create_partitions([NewPartitions(topic, 4)]))
    for broker in cluster:
        wait_for_partitions(broker.address, topic, 4)
    for partition in range(1, 4):
        assert client.produce(topic, [Record(b"b", partition=partition)]) == [0]
        assert [record.value for record in client.read(topic, 0, 1, partition)] == [b"b"]


def test_topic_configs_are_changed_incrementally(admin: AdminClient, topic: str) -> None:
    result_of(admin.create_topics([NewTopic(topic, 1, config={"segment.bytes": "52428800"})]))

    def settings() -> dict[str, ConfigEntry]:
        return dict(result_of(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)])))

    def change(name: str, operation: AlterConfigOpType, value: str | None) -> dict[Any, Any]:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        return admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])])

    before = settings()
    assert before["segment.bytes"].value == "52428800"
    assert ConfigSource(before["segment.bytes"].source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert before["retention.ms"].value == "604800000"
    assert before["retention.ms"].is_default
    result_of(change("retention.ms", AlterConfigOpType.SET, "1000"))
    result_of(change("cleanup.policy", AlterConfigOpType.APPEND, "compact"))
    assert settings()["retention.ms"].value == "1000"
    assert settings()["cleanup.policy"].value == "delete,compact"
    result_of(change("cleanup.policy", AlterConfigOpType.SUBTRACT, "compact"))
    assert settings()["cleanup.policy"].value == "delete"
    result_of(change("retention.ms", AlterConfigOpType.DELETE, None))
    assert settings()["retention.ms"].is_default
    for name, value in (("retention.mz", "1"), ("retention.ms", "soon"), ("local.retention.ms", "5")):
        assert error_code_of(change(name, AlterConfigOpType.SET, value)) == KafkaError.INVALID_CONFIG
    assert error_code_of(change("retention.ms", AlterConfigOpType.APPEND, "1")) == KafkaError.INVALID_CONFIG
    bad = admin.create_topics([NewTopic(f"{topic}-x", 1, config={"remote.storage.enable": "true"})])
    assert error_code_of(bad) == KafkaError.INVALID_CONFIG
    missing = admin.describe_configs([ConfigResource(ResourceType.TOPIC, f"{topic}-x")])
    assert error_code_of(missing) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_topic_configs_are_replaced_by_alter_configs(admin: AdminClient, topic: str) -> None:
    result_of(admin.create_topics([NewTopic(topic, 1, config={"retention.ms": "5000", "max.message.bytes": "99999"})]))
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        result_of(admin.alter_configs([ConfigResource(ResourceType.TOPIC, topic, set_config={"retention.ms": "7000"})]))
    settings = result_of(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    assert settings["retention.ms"].value == "7000"
    assert settings["max.message.bytes"].is_default


def test_broker_configs_are_changed_if_they_can_change_at_run_time(
    cluster: BrokerProcesses, admin: AdminClient, topic: str
) -> None:
    for node_id in range(len(cluster)):
        resource = ConfigResource(ResourceType.BROKER, str(node_id))
        settings = result_of(admin.describe_configs([resource]))
        assert settings["node.id"].value == str(node_id)
        assert settings["node.id"].is_read_only

    def change(kind: ResourceType, name: str, key: str, value: str | None) -> dict[Any, Any]:
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(key, value, incremental_operation=operation)
        return admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=[entry])])

    def described(kind: ResourceType, name: str, key: str) -> tuple[str, ConfigSource]:
        entry = result_of(admin.describe_configs([ConfigResource(kind, name)]))[key]
        return entry.value, ConfigSource(entry.source)

    assert error_code_of(change(ResourceType.BROKER, "0", "log.retention.ms", "1")) == KafkaError.INVALID_REQUEST
    result_of(change(ResourceType.BROKER, "0", "num.partitions", "6"))
    assert described(ResourceType.BROKER, "0", "num.partitions") == ("6", ConfigSource.DYNAMIC_BROKER_CONFIG)
    result_of(change(ResourceType.BROKER, "0", "num.partitions", None))

    result_of(change(ResourceType.GROUP, topic, "consumer.session.timeout.ms", "50000"))
    resource = ConfigResource(ResourceType.GROUP, topic)
    assert result_of(admin.describe_configs([resource]))["consumer.session.timeout.ms"].value == "50000"
    assert error_code_of(change(ResourceType.GROUP, topic, "retention.ms", "5")) == KafkaError.INVALID_CONFIG


def test_records_are_deleted_on_every_broker(cluster: BrokerProcesses, admin: AdminClient, topic: str) -> None:
    result_of(admin.create_topics([NewTopic(topic, 1)]))
    clients = [Confluent(broker.address) for broker in cluster]
    clients[0].produce(topic, [Record(str(number).encode()) for number in range(10)])
    for client in clients:
        assert client.bounds(topic) == (0, 10)
    assert result_of(admin.delete_records([TopicPartition(topic, 0, 4)])).low_watermark == 4
    for client in clients:
        assert client.bounds(topic) == (4, 10)
        assert client.read(topic, "earliest", 1)[0].offset == 4
    assert error_code_of(admin.delete_records([TopicPartition(topic, 0, 11)])) == KafkaError.OFFSET_OUT_OF_RANGE
    assert result_of(admin.delete_records([TopicPartition(topic, 0, 2)])).low_watermark == 4
    assert result_of(admin.delete_records([TopicPartition(topic, 0, confluent_kafka.OFFSET_END)])).low_watermark == 10
    assert clients[0].produce(topic, [Record(b"more")]) == [10]
    newest = result_of(admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.max_timestamp()}))  # type: ignore[no-untyped-call]
    assert newest.offset == 10


def test_describe_cluster_returns_all_brokers(cluster: BrokerProcesses, admin: AdminClient) -> None:
    described = admin.describe_cluster(include_authorized_operations=True).result(WAIT_S)
    assert sorted(node.id for node in described.nodes) == list(range(len(cluster)))
    assert {f"{node.host}:{node.port}" for node in described.nodes} == {broker.address for broker in cluster}
    assert described.controller.id in range(len(cluster))
    assert len(described.authorized_operations) == 7
    assert described.cluster_id


def test_record_without_a_key_is_rejected_when_the_topic_is_compacted(
    cluster: BrokerProcesses, admin: AdminClient, topic: str
) -> None:
    result_of(admin.create_topics([NewTopic(topic, 1, config={"cleanup.policy": "compact"})]))
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": "lz4"})
    errors: list[KafkaError | None] = []
    for key in (b"key", None):
        producer.produce(topic, b"value" * 100, key, on_delivery=lambda error, _: errors.append(error))
        producer.flush(WAIT_S)
    assert [error.code() if error else None for error in errors] == [None, KafkaError.INVALID_RECORD]


# kafka-python


@pytest.fixture
def python_admin(cluster: BrokerProcesses) -> Iterator[Any]:
    with closing(kafka.admin.KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))) as admin:
        yield admin
    with warnings.catch_warnings():  # kafka-python leaves sockets to the garbage collector
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_kafka_python_creates_describes_and_deletes_topics(python_admin: Any, topic: str) -> None:
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
    assert [len(page["partitions"]) for page in paged["topics"]] == [2]
    assert paged["next_cursor"] == {"topic_name": topic, "partition_index": 2}
    python_admin.delete_topics([topic])
    assert topic not in python_admin.list_topics()


def test_kafka_python_changes_topic_configs(cluster: BrokerProcesses, python_admin: Any, topic: str) -> None:
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


def test_kafka_python_describes_cluster_producers_log_dirs_and_quorum(
    cluster: BrokerProcesses, python_admin: Any, topic: str
) -> None:
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
