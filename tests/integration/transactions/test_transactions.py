"""Transactions of stock clients with real brokers: consumers read exactly the records of committed transactions."""

import asyncio
import gc
import itertools
import random
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest
from tests.harness.clients.kafka_clients import Confluent as Client
from tests.harness.clients.moved_records import SNAPSHOT_REFRESH_S, move
from tests.harness.clients.programs import PROGRAMS, SOAK, require_javac, require_program, run, running_cluster
from tests.harness.clients.transactional_clients import (
    READERS,
    TRANSACTIONAL_CLIENTS,
    TransactionalClient,
    coordinator_of,
    read_committed,
)

from lakestream.testing.brokers import SQLITE_AND_DISK, BrokerProcesses, running_brokers

PARTITIONS: Final = 2
KILLS: Final = 12 if SOAK else 2
ONE: Final = "one"
THREE: Final = "three"
PAIRS: Final = (
    list(itertools.product((ONE, THREE), TRANSACTIONAL_CLIENTS))
    if SOAK
    else [(ONE, "kafka-python"), (ONE, "aiokafka"), (THREE, "confluent-kafka")]
)

every_client = pytest.mark.parametrize(("cluster", "client"), PAIRS, indirect=["cluster"])
on_each_cluster = pytest.mark.parametrize("cluster", [ONE, THREE] if SOAK else [ONE], indirect=True)
pytestmark = pytest.mark.filterwarnings("default")  # warnings come from the clients


@pytest.fixture(autouse=True)
def _clients_leave_nothing() -> Iterator[None]:
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster("one-sqlite", tmp_path_factory)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster("three-oxia-s3", tmp_path_factory)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> BrokerProcesses:
    brokers: BrokerProcesses = request.getfixturevalue(request.param)
    return brokers


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


def create_topics(cluster: BrokerProcesses, *topics: str) -> str:
    for topic in topics:
        Client(cluster.bootstrap).create_topic(topic, PARTITIONS)
    return cluster.bootstrap


def values(number: int) -> list[bytes]:
    return [f"{number}.{part}".encode() for part in range(3)]


@every_client
def test_consumers_read_only_committed_transactions(cluster: BrokerProcesses, client: str, topic: str) -> None:
    """The transactions follow one another without a pause."""
    bootstrap = create_topics(cluster, topic)
    outcomes = [number % 3 != 1 for number in range(7)]
    with closing(TRANSACTIONAL_CLIENTS[client](bootstrap, topic)) as writer:
        for number, commits in enumerate(outcomes):
            writer.begin()
            for partition, value in itertools.product(range(PARTITIONS), values(number)):
                writer.send_async(topic, partition, value)
            (writer.commit if commits else writer.abort)()
    expected = [value for number, commits in enumerate(outcomes) if commits for value in values(number)]
    for reader, partition in zip(READERS, itertools.cycle(range(PARTITIONS)), strict=False):
        assert read_committed(bootstrap, topic, partition, len(expected), client=reader) == expected, reader


@every_client
def test_old_producer_is_fenced_by_a_new_one_with_its_id(cluster: BrokerProcesses, client: str, topic: str) -> None:
    bootstrap = create_topics(cluster, topic)
    old = TRANSACTIONAL_CLIENTS[client](bootstrap, topic)
    old.begin()
    old.send(topic, 0, b"zombie")
    with closing(TRANSACTIONAL_CLIENTS[client](bootstrap, topic)) as current:
        current.begin()
        current.send(topic, 0, b"young")
        with pytest.raises(Exception, match=r"(?i)fence|epoch|state|abort"):  # the error text depends on the client
            send_and_commit(old, topic, b"late")
        current.commit()
    assert read_committed(bootstrap, topic, 0, 1) == [b"young"]
    with suppress(Exception):  # the producer is fenced, and close may raise that error again
        old.close()


def send_and_commit(writer: TransactionalClient, topic: str, value: bytes) -> None:
    writer.send(topic, 0, value)
    writer.commit()


@on_each_cluster
def test_transaction_is_aborted_after_its_timeout(cluster: BrokerProcesses, topic: str) -> None:
    bootstrap = create_topics(cluster, topic)
    slow = TRANSACTIONAL_CLIENTS["confluent-kafka"](bootstrap, topic, timeout_ms=4_000)
    slow.begin()
    slow.send(topic, 0, b"slow")
    time.sleep(10)
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        slow.commit()
    assert raised.value.args[0].code() in (confluent_kafka.KafkaError._FENCED, 47, 90)
    with closing(TRANSACTIONAL_CLIENTS["confluent-kafka"](bootstrap, topic)) as writer:
        writer.begin()
        writer.send(topic, 0, b"quick")
        writer.commit()
    assert read_committed(bootstrap, topic, 0, 1) == [b"quick"]


@every_client
def test_every_record_is_transformed_once_when_transactions_are_aborted(
    cluster: BrokerProcesses, client: str, topic: str
) -> None:
    """Every second transaction is aborted, and a second member continues after the first."""
    target = f"{topic}-out"
    bootstrap = create_topics(cluster, topic, target)
    sent = [f"{number}".encode() for number in range(40)]
    with closing(TRANSACTIONAL_CLIENTS[client](bootstrap, f"{topic}-source")) as writer:
        writer.begin()
        for number, value in enumerate(sent):
            writer.send_async(topic, number % PARTITIONS, value)
        writer.commit()
    left = len(sent)
    for count in (20, left):
        with closing(TRANSACTIONAL_CLIENTS[client](bootstrap, f"{topic}-transform")) as writer:
            left -= writer.transform(topic, target, f"{topic}-group", min(count, left))
    assert left == 0
    transformed = [read_committed(bootstrap, target, partition, 20) for partition in range(PARTITIONS)]
    assert transformed == [sent[partition::PARTITIONS] for partition in range(PARTITIONS)]


@on_each_cluster
def test_transactions_are_read_when_half_of_them_is_in_the_table(cluster: BrokerProcesses, topic: str) -> None:
    """Another transaction is open in between, so only the first halves of a committed and of an aborted transaction are
    moved to the table."""
    bootstrap = create_topics(cluster, topic)
    kind = TRANSACTIONAL_CLIENTS["confluent-kafka"]
    with (
        closing(kind(bootstrap, f"{topic}-good")) as good,
        closing(kind(bootstrap, f"{topic}-bad")) as bad,
        closing(kind(bootstrap, f"{topic}-long")) as long,
    ):
        for writer in (good, bad, long):
            writer.begin()
        for part in range(3):
            good.send(topic, 0, b"good %d" % part)
            bad.send(topic, 0, b"bad %d" % part)
        long.send(topic, 0, b"long 0")
        for part in range(3, 6):
            good.send(topic, 0, b"good %d" % part)
            bad.send(topic, 0, b"bad %d" % part)
        good.commit()
        bad.abort()
        expected = [b"good 0", b"good 1", b"good 2"]
        assert read_committed(bootstrap, topic, 0, 3) == expected
        move(cluster)
        time.sleep(SNAPSHOT_REFRESH_S)
        for reader in READERS:
            assert read_committed(bootstrap, topic, 0, 3, client=reader) == expected, reader
        long.send(topic, 0, b"long 1")
        long.commit()
        expected += [b"long 0", b"good 3", b"good 4", b"good 5", b"long 1"]
        for reader in READERS:
            assert read_committed(bootstrap, topic, 0, 8, client=reader) == expected, reader
        move(cluster)
        time.sleep(SNAPSHOT_REFRESH_S)
        for reader in READERS:
            assert read_committed(bootstrap, topic, 0, 8, client=reader) == expected, reader


@on_each_cluster
def test_java_client_uses_the_second_version_of_the_transaction_protocol(cluster: BrokerProcesses, topic: str) -> None:
    """The broker adds partitions implicitly, and every transaction has a new epoch."""
    program = require_program("kafka-class")
    require_javac()
    target = f"{topic}-out"
    bootstrap = create_topics(cluster, topic, target)
    source = PROGRAMS / "JavaTransactions.java"
    output = dict(
        line.partition(" ")[::2] for line in run([program, str(source), bootstrap, topic, target]).splitlines()
    )
    expected = {f"{number}.{part}" for number in range(15) if number % 3 != 2 for part in range(2)}
    committed = output["committed"].split()
    assert set(committed) == expected
    assert len(committed) == len(expected)
    assert [value for value in committed if value.endswith(".0")] == sorted(
        (value for value in expected if value.endswith(".0")), key=float
    )
    assert output["all"] == "30"
    transformed = output["transformed"].split()
    assert sorted(transformed) == sorted(f"t{value}" for value in expected)
    assert output["aborted"] == "some true"
    assert output["zombie"] in ("ProducerFencedException", "InvalidProducerEpochException")
    assert output["young"] == "true"
    assert output["slow"] in ("ProducerFencedException", "InvalidProducerEpochException")
    assert output["after"] == "slow 21"


# Killed brokers


def test_decided_transaction_is_completed_by_another_broker_when_the_coordinator_is_killed(
    three: BrokerProcesses, topic: str
) -> None:
    """The coordinator is killed immediately after its response, before any marker is written."""
    bootstrap = create_topics(three, topic)
    for number in range(KILLS):
        with closing(TRANSACTIONAL_CLIENTS["confluent-kafka"](bootstrap, f"{topic}-{number}")) as writer:
            writer.begin()
            for partition in range(PARTITIONS):
                writer.send(topic, partition, b"%d" % number)
            victim = coordinator_of(three, f"{topic}-{number}")
            (writer.abort if number % 3 == 2 else writer.commit)()
            victim.kill()
        expected = [b"%d" % earlier for earlier in range(number + 1) if earlier % 3 != 2]
        for partition in range(PARTITIONS):
            assert read_committed(bootstrap, topic, partition, len(expected)) == expected
        asyncio.run(victim.start())


def test_decided_transaction_is_completed_after_a_restart_of_the_only_broker(tmp_path: Path, topic: str) -> None:
    with running_brokers(tmp_path, 1, SQLITE_AND_DISK, ["--profile", "cost"]) as cluster:
        bootstrap = create_topics(cluster, topic)
        with closing(TRANSACTIONAL_CLIENTS["confluent-kafka"](bootstrap, topic)) as writer:
            writer.begin()
            for partition in range(PARTITIONS):
                writer.send(topic, partition, b"x")
            writer.commit()
            cluster[0].kill()
            cluster[0].begin()
            for partition in range(PARTITIONS):
                assert read_committed(bootstrap, topic, partition, 1) == [b"x"]
            writer.begin()
            writer.send(topic, 0, b"y")
            writer.commit()
        assert read_committed(bootstrap, topic, 0, 2) == [b"x", b"y"]


def test_transactions_are_in_both_logs_or_in_none_when_coordinators_are_killed(tmp_path: Path, topic: str) -> None:
    """Acknowledged transactions are in both logs."""
    rng = random.Random(7)
    acked: list[bytes] = []
    with running_brokers(tmp_path, 3, SQLITE_AND_DISK) as cluster:
        bootstrap = create_topics(cluster, topic)
        for number in range(KILLS + 1):
            value = b"%d" % number
            writer = TRANSACTIONAL_CLIENTS["confluent-kafka"](bootstrap, f"{topic}-{number % 2}")
            writer.begin()
            for partition in range(PARTITIONS):
                writer.send(topic, partition, value)
            victim = coordinator_of(cluster, f"{topic}-{number % 2}")
            kill_timer = threading.Timer(rng.uniform(0, 0.01), victim.kill)
            kill_timer.start()
            try:
                writer.commit()
                acked.append(value)
            except confluent_kafka.KafkaException as error:
                print(f"{number}: {error}")
            finally:
                kill_timer.join()
                writer.close()
                victim.begin()
        logs = [read_committed(bootstrap, topic, partition, len(acked), 2.0) for partition in range(PARTITIONS)]
        assert sorted(logs[0]) == sorted(logs[1]), "each transaction is in both logs, or in none"
        assert set(acked) <= set(logs[0])
        assert len(set(logs[0])) == len(logs[0])
