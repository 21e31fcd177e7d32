"""Clients with a rack or zone use the brokers of their zone for every partition."""

import json
import time
from collections.abc import Iterator

import confluent_kafka
import pytest
from tests.harness.clients.kafka_clients import Confluent, Record
from tests.harness.clients.programs import running_cluster, settings_for

from lakestream.testing.brokers import BrokerProcesses

pytestmark = pytest.mark.alone

PARTITIONS = 6


@pytest.fixture(scope="module", params=[name for name in settings_for("three-sqlite") if name.startswith("three")])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    for cluster in running_cluster(request.param, tmp_path_factory):
        client = Confluent(cluster.bootstrap)
        client.create_topic("events", PARTITIONS)
        client.produce("events", [Record(b"x", partition=number) for number in range(PARTITIONS) for _ in range(10)])
        yield cluster


def read(settings: dict[str, str]) -> tuple[set[int], list[str]]:
    """Reads all records. Returns the ports of the brokers that served them, and the warnings of the client."""
    warnings: list[str] = []
    stats: list[str] = []
    consumer = confluent_kafka.Consumer(
        settings | {"group.id": "none", "enable.auto.commit": False, "statistics.interval.ms": 200},
        stats_cb=stats.append,
        logger=_WarningLog(warnings),
    )
    consumer.assign([confluent_kafka.TopicPartition("events", number, 0) for number in range(PARTITIONS)])
    left, deadline = 10 * PARTITIONS, time.monotonic() + 30
    while left and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            left -= 1
    assert left == 0
    del stats[:]
    while not stats:
        consumer.poll(0.1)
    statistics = json.loads(stats[-1])
    consumer.close()
    ports = {
        broker["nodeid"]: int(broker["nodename"].rpartition(":")[2])
        for broker in statistics["brokers"].values()
        if broker["nodeid"] >= 0
    }
    partitions = statistics["topics"]["events"]["partitions"]
    return {ports[partition["broker"]] for number, partition in partitions.items() if number != "-1"}, warnings


class _WarningLog:
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def log(self, level: int, message: str, *arguments: object) -> None:
        self._lines.append(message % arguments)


def test_consumer_with_a_rack_reads_from_the_broker_of_its_zone(cluster: BrokerProcesses) -> None:
    for broker in cluster:
        assert read({"bootstrap.servers": cluster.bootstrap, "client.rack": broker.zone}) == ({broker.port}, [])


def test_consumer_with_a_zone_in_its_client_id_reads_from_the_broker_of_its_zone(cluster: BrokerProcesses) -> None:
    for broker, name in zip(cluster, ("zone_id", "diskless_az", "zone_id"), strict=True):
        settings = {"bootstrap.servers": cluster.bootstrap, "client.id": f"reader,{name}={broker.zone}"}
        assert read(settings) == ({broker.port}, [])


def test_partitions_are_spread_over_all_brokers_when_no_broker_is_in_the_zone(cluster: BrokerProcesses) -> None:
    brokers, warnings = read({"bootstrap.servers": cluster.bootstrap, "client.rack": "unknown-zone"})
    assert len(brokers) > 1
    assert warnings == []
