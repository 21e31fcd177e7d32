"""Helpers for tests of groups: topics with records, committed offsets, the coordinator of a group."""

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.harness.clients import kafka_clients
from tests.harness.clients.group_members import Member
from tests.harness.clients.kafka_clients import Record

from lakestream.testing.brokers import BrokerProcesses

PARTITIONS = 4


def fill(bootstrap: str, topic: str, count: int, start: int = 0) -> set[bytes]:
    values = [f"{number}".encode() for number in range(start, start + count)]
    records = [Record(value, partition=number % PARTITIONS) for number, value in enumerate(values)]
    kafka_clients.Confluent(bootstrap).produce(topic, records)
    return set(values)


def create_topic(bootstrap: str, topic: str) -> None:
    kafka_clients.Confluent(bootstrap).create_topic(topic, PARTITIONS)


def values_of(*members: Member) -> list[bytes | None]:
    return [record.value for member in members for record in member.read]


def committed_offsets(bootstrap: str, group: str, topic: str) -> list[int]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partitions = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, number) for number in range(PARTITIONS)])
    offsets = admin.list_consumer_group_offsets([partitions])[group].result(60)
    return [partition.offset for partition in offsets.topic_partitions]


def coordinator_of(cluster: BrokerProcesses, group: str) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    port = admin.describe_consumer_groups([group])[group].result(60).coordinator.port
    return next(number for number, broker in enumerate(cluster) if broker.port == port)


def coordinator_moved(bootstrap: str, group: str, cluster: BrokerProcesses, dead: int) -> bool:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    try:
        described = admin.describe_consumer_groups([group], request_timeout=2)[group].result(5)
    except Exception:
        return False
    return bool(described.coordinator.port != cluster[dead].port)
