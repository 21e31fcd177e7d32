"""Transactions of stock clients against real brokers: what is committed is seen as a whole, and nothing else is."""

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
from tests.integration.kafka_clients import Confluent as Client
from tests.integration.programs import SOAK, cluster_of, java_sources_run, need, run
from tests.integration.test_history_clients import SEEN_S, move
from tests.integration.transactional_clients import READERS, WRITERS, Writer, coordinator_of, read_committed

from lakestream.testing.brokers import SQLITE_AND_DISK, Brokers, running_brokers

PARTITIONS: Final = 2
KILLS: Final = 12 if SOAK else 2
ONE: Final = "one"
THREE: Final = "three"
PAIRS: Final = (
    list(itertools.product((ONE, THREE), WRITERS))
    if SOAK
    else [(ONE, "kafka-python"), (ONE, "aiokafka"), (THREE, "confluent-kafka")]
)

every_client = pytest.mark.parametrize(("cluster", "client"), PAIRS, indirect=["cluster"])
on_both = pytest.mark.parametrize("cluster", [ONE, THREE] if SOAK else [ONE], indirect=True)
pytestmark = pytest.mark.filterwarnings("default")  # what the clients are warned of is their own affair


@pytest.fixture(autouse=True)
def _clients_leave_nothing() -> Iterator[None]:
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    yield from cluster_of("one-sqlite", tmp_path_factory)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    yield from cluster_of("three-oxia-s3", tmp_path_factory)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Brokers:
    found: Brokers = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


def made(cluster: Brokers, *topics: str) -> str:
    for topic in topics:
        Client(cluster.bootstrap).create_topic(topic, PARTITIONS)
    return cluster.bootstrap


def values(number: int) -> list[bytes]:
    return [f"{number}.{part}".encode() for part in range(3)]


@every_client
def test_what_is_committed_is_read_and_nothing_else(cluster: Brokers, client: str, topic: str) -> None:
    """Transactions follow one another without a pause."""
    bootstrap = made(cluster, topic)
    fates = [number % 3 != 1 for number in range(7)]
    with closing(WRITERS[client](bootstrap, topic)) as writer:
        for number, commits in enumerate(fates):
            writer.begin()
            for partition, value in itertools.product(range(PARTITIONS), values(number)):
                writer.post(topic, partition, value)
            (writer.commit if commits else writer.abort)()
    expected = [value for number, commits in enumerate(fates) if commits for value in values(number)]
    for reader, partition in zip(READERS, itertools.cycle(range(PARTITIONS)), strict=False):
        assert read_committed(bootstrap, topic, partition, len(expected), client=reader) == expected, reader


@every_client
def test_a_zombie_is_fenced(cluster: Brokers, client: str, topic: str) -> None:
    bootstrap = made(cluster, topic)
    old = WRITERS[client](bootstrap, topic)
    old.begin()
    old.send(topic, 0, b"zombie")
    with closing(WRITERS[client](bootstrap, topic)) as young:
        young.begin()
        young.send(topic, 0, b"young")
        with pytest.raises(Exception, match=r"(?i)fence|epoch|state|abort"):  # each has its own words for it
            send_and_commit(old, topic, b"late")
        young.commit()
    assert read_committed(bootstrap, topic, 0, 1) == [b"young"]
    with suppress(Exception):  # it is fenced, and may say so once more
        old.close()


def send_and_commit(writer: Writer, topic: str, value: bytes) -> None:
    writer.send(topic, 0, value)
    writer.commit()


@on_both
def test_one_that_takes_too_long_is_aborted(cluster: Brokers, topic: str) -> None:
    bootstrap = made(cluster, topic)
    slow = WRITERS["confluent-kafka"](bootstrap, topic, timeout_ms=4_000)
    slow.begin()
    slow.send(topic, 0, b"slow")
    time.sleep(10)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        slow.commit()
    assert refused.value.args[0].code() in (confluent_kafka.KafkaError._FENCED, 47, 90)
    with closing(WRITERS["confluent-kafka"](bootstrap, topic)) as writer:
        writer.begin()
        writer.send(topic, 0, b"quick")
        writer.commit()
    assert read_committed(bootstrap, topic, 0, 1) == [b"quick"]


@every_client
def test_consume_transform_produce(cluster: Brokers, client: str, topic: str) -> None:
    """Every record is transformed once, though every second transaction is aborted, and another member goes on."""
    target = f"{topic}-out"
    bootstrap = made(cluster, topic, target)
    sent = [f"{number}".encode() for number in range(40)]
    with closing(WRITERS[client](bootstrap, f"{topic}-source")) as writer:
        writer.begin()
        for number, value in enumerate(sent):
            writer.post(topic, number % PARTITIONS, value)
        writer.commit()
    left = len(sent)
    for count in (20, left):
        with closing(WRITERS[client](bootstrap, f"{topic}-transform")) as writer:
            left -= writer.transform(topic, target, f"{topic}-group", min(count, left))
    assert left == 0
    done = [read_committed(bootstrap, target, partition, 20) for partition in range(PARTITIONS)]
    assert done == [sent[partition::PARTITIONS] for partition in range(PARTITIONS)]


@on_both
def test_half_in_the_table_and_half_in_the_log(cluster: Brokers, topic: str) -> None:
    """Another transaction is open in between, so only the first half of a committed one, and of an aborted one, has
    left the log."""
    bootstrap = made(cluster, topic)
    kind = WRITERS["confluent-kafka"]
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
        time.sleep(SEEN_S)
        for reader in READERS:
            assert read_committed(bootstrap, topic, 0, 3, client=reader) == expected, reader
        long.send(topic, 0, b"long 1")
        long.commit()
        expected += [b"long 0", b"good 3", b"good 4", b"good 5", b"long 1"]
        for reader in READERS:
            assert read_committed(bootstrap, topic, 0, 8, client=reader) == expected, reader
        move(cluster)
        time.sleep(SEEN_S)
        for reader in READERS:
            assert read_committed(bootstrap, topic, 0, 8, client=reader) == expected, reader


@on_both
def test_the_java_client(cluster: Brokers, topic: str) -> None:
    """It leaves it to us to add partitions, and has a new epoch for every transaction."""
    program = need("kafka-class")
    java_sources_run()
    target = f"{topic}-out"
    bootstrap = made(cluster, topic, target)
    source = Path(__file__).with_name("JavaTransactions.java")
    said = dict(line.partition(" ")[::2] for line in run([program, str(source), bootstrap, topic, target]).splitlines())
    expected = {f"{number}.{part}" for number in range(15) if number % 3 != 2 for part in range(2)}
    committed = said["committed"].split()
    assert set(committed) == expected
    assert len(committed) == len(expected)
    assert [value for value in committed if value.endswith(".0")] == sorted(
        (value for value in expected if value.endswith(".0")), key=float
    )
    assert said["all"] == "30"
    transformed = said["transformed"].split()
    assert sorted(transformed) == sorted(f"t{value}" for value in expected)
    assert said["aborted"] == "some true"
    assert said["zombie"] in ("ProducerFencedException", "InvalidProducerEpochException")
    assert said["young"] == "true"
    assert said["slow"] in ("ProducerFencedException", "InvalidProducerEpochException")
    assert said["after"] == "slow 21"


# ── brokers that die ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_commit_that_was_decided_is_ended_by_another_broker(three: Brokers, topic: str) -> None:
    """Its coordinator is killed as soon as it has answered: no log has a marker, since these wait to be stored."""
    bootstrap = made(three, topic)
    for number in range(KILLS):
        with closing(WRITERS["confluent-kafka"](bootstrap, f"{topic}-{number}")) as writer:
            writer.begin()
            for partition in range(PARTITIONS):
                writer.send(topic, partition, b"%d" % number)
            victim = coordinator_of(three, f"{topic}-{number}")
            (writer.abort if number % 3 == 2 else writer.commit)()
            victim.kill()
        expected = [b"%d" % one for one in range(number + 1) if one % 3 != 2]
        for partition in range(PARTITIONS):
            assert read_committed(bootstrap, topic, partition, len(expected)) == expected
        asyncio.run(victim.start())


def test_one_broker_that_is_killed_ends_it_after_its_restart(tmp_path: Path, topic: str) -> None:
    with running_brokers(tmp_path, 1, SQLITE_AND_DISK, ["--profile", "cost"]) as cluster:
        bootstrap = made(cluster, topic)
        with closing(WRITERS["confluent-kafka"](bootstrap, topic)) as writer:
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


def test_coordinators_that_are_killed_at_any_moment_tear_nothing(tmp_path: Path, topic: str) -> None:
    """Whatever the client was told: a transaction is in both logs or in none, and what was acknowledged is in both."""
    luck = random.Random(7)
    acked: list[bytes] = []
    with running_brokers(tmp_path, 3, SQLITE_AND_DISK) as cluster:
        bootstrap = made(cluster, topic)
        for number in range(KILLS + 1):
            value = b"%d" % number
            writer = WRITERS["confluent-kafka"](bootstrap, f"{topic}-{number % 2}")
            writer.begin()
            for partition in range(PARTITIONS):
                writer.send(topic, partition, value)
            victim = coordinator_of(cluster, f"{topic}-{number % 2}")
            killing = threading.Timer(luck.uniform(0, 0.01), victim.kill)
            killing.start()
            try:
                writer.commit()
                acked.append(value)
            except confluent_kafka.KafkaException as error:
                print(f"{number}: {error}")
            finally:
                killing.join()
                writer.close()
                victim.begin()
        found = [read_committed(bootstrap, topic, partition, len(acked), 2.0) for partition in range(PARTITIONS)]
        assert sorted(found[0]) == sorted(found[1]), "each is in both logs, or in none"
        assert set(acked) <= set(found[0])
        assert len(set(found[0])) == len(found[0])
