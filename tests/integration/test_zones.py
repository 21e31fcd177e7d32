"""Clients that say where they are talk to the brokers of their zone, whichever partition it is."""

import json
import time
from collections.abc import Iterator

import confluent_kafka
import pytest
from tests.integration.kafka_clients import Confluent, Record
from tests.integration.programs import cluster_of, settings_for

from lakestream.testing.brokers import Brokers

PARTITIONS = 6


@pytest.fixture(scope="module", params=[name for name in settings_for("three-sqlite") if name.startswith("three")])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    for cluster in cluster_of(request.param, tmp_path_factory):
        client = Confluent(cluster.bootstrap)
        client.create_topic("events", PARTITIONS)
        client.produce("events", [Record(b"x", partition=number) for number in range(PARTITIONS) for _ in range(10)])
        yield cluster


def read(settings: dict[str, str]) -> tuple[set[int], list[str]]:
    """Read everything; returns which brokers the records came from, by port, and what the client complained of."""
    said: list[str] = []
    stats: list[str] = []
    consumer = confluent_kafka.Consumer(
        settings | {"group.id": "none", "enable.auto.commit": False, "statistics.interval.ms": 200},
        stats_cb=stats.append,
        logger=_Heard(said),
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
    told = json.loads(stats[-1])
    consumer.close()
    ports = {
        broker["nodeid"]: int(broker["nodename"].rpartition(":")[2])
        for broker in told["brokers"].values()
        if broker["nodeid"] >= 0
    }
    partitions = told["topics"]["events"]["partitions"]
    return {ports[partition["broker"]] for number, partition in partitions.items() if number != "-1"}, said


class _Heard:
    def __init__(self, said: list[str]) -> None:
        self._said = said

    def log(self, level: int, message: str, *arguments: object) -> None:
        self._said.append(message % arguments)


def test_a_reader_with_a_rack_reads_there(cluster: Brokers) -> None:
    for broker in cluster:
        assert read({"bootstrap.servers": cluster.bootstrap, "client.rack": broker.zone}) == ({broker.port}, [])


def test_a_client_that_names_its_zone_in_its_id_reads_there(cluster: Brokers) -> None:
    for broker, name in zip(cluster, ("zone_id", "diskless_az", "zone_id"), strict=True):
        settings = {"bootstrap.servers": cluster.bootstrap, "client.id": f"reader,{name}={broker.zone}"}
        assert read(settings) == ({broker.port}, [])


def test_without_a_zone_partitions_are_spread_over_all(cluster: Brokers) -> None:
    brokers, said = read({"bootstrap.servers": cluster.bootstrap, "client.rack": "where nobody is"})
    assert len(brokers) > 1
    assert said == []
