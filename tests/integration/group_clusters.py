"""What tests of groups ask of brokers: topics with records in them, what a group has committed, who coordinates it."""

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.integration import kafka_clients
from tests.integration.group_members import Member
from tests.integration.kafka_clients import Record

from lakestream.testing.brokers import Brokers

PARTITIONS = 4


def fill(bootstrap: str, topic: str, count: int, start: int = 0) -> set[bytes]:
    values = [f"{number}".encode() for number in range(start, start + count)]
    records = [Record(value, partition=number % PARTITIONS) for number, value in enumerate(values)]
    kafka_clients.Confluent(bootstrap).produce(topic, records)
    return set(values)


def make(bootstrap: str, topic: str) -> None:
    kafka_clients.Confluent(bootstrap).create_topic(topic, PARTITIONS)


def values_of(*members: Member) -> list[bytes | None]:
    return [one.value for member in members for one in member.read]


def committed(bootstrap: str, group: str, topic: str) -> list[int]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, number) for number in range(PARTITIONS)])
    found = admin.list_consumer_group_offsets([wanted])[group].result(60)
    return [one.offset for one in found.topic_partitions]


def coordinator_of(cluster: Brokers, group: str) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    port = admin.describe_consumer_groups([group])[group].result(60).coordinator.port
    return next(number for number, broker in enumerate(cluster) if broker.port == port)


def moved(bootstrap: str, group: str, cluster: Brokers, dead: int) -> bool:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    try:
        described = admin.describe_consumer_groups([group], request_timeout=2)[group].result(5)
    except Exception:
        return False
    return bool(described.coordinator.port != cluster[dead].port)
