"""Exactly-once applications of examples/ with Kafka Streams, Kafka Connect and Python, killed and restarted."""

import importlib.util
import random
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

import confluent_kafka
import pytest
from tests.harness.clients import kafka_clients
from tests.harness.clients.programs import SOAK, require_javac, require_program

from lakestream.testing.brokers import OXIA_AND_S3, SQLITE_AND_DISK, BrokerProcesses, running_brokers
from lakestream.testing.processes import Process, free_port

EXAMPLES: Final = Path(__file__).parents[3] / "examples"
STORES: Final = [SQLITE_AND_DISK, OXIA_AND_S3] if SOAK else [SQLITE_AND_DISK]
SESSION: Final = ("session.timeout.ms=6000", "heartbeat.interval.ms=500")
"""Session timeout, after which a killed member is removed."""
WAIT_S: Final = 300.0 if SOAK else 90.0
WORDS: Final = ("alpha", "beta", "gamma", "delta", "epsilon")
LINES: Final = 5_000 if SOAK else 1_000
LINES_PER_S: Final = 100
BATCH: Final = 100
"""Lines in one transaction of the source."""
COPIED: Final = 5_100

pytestmark = [pytest.mark.alone, pytest.mark.timeout(600 if SOAK else 240)]  # Java starts slowly on a busy machine


@pytest.fixture
def _apps() -> None:
    """Requires the programs and Java."""
    require_program("kafka-apps-class")
    require_javac()


@contextmanager
def running(process: Process) -> Iterator[Process]:
    process.start()
    try:
        yield process
    finally:
        process.kill()


def wait_until(what: str, condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {WAIT_S:.0f} s; {log.read_text()[-3000:]}"
        time.sleep(0.1)


class CommittedRecords:
    """Committed records of a topic."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "log_level": 0}
        options = {"isolation.level": "read_committed", "auto.offset.reset": "error"}
        self._consumer = confluent_kafka.Consumer(settings | options)
        self._consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
        self.values: dict[bytes, list[bytes]] = defaultdict(list)
        """Values by key."""
        self.count = 0

    def has(self, count: int) -> bool:
        """Reads available records; returns whether there are at least `count` records so far."""
        for message in self._consumer.consume(10_000, 0.5):
            if message.error() is None:
                self.values[message.key() or b""].append(message.value() or b"")
                self.count += 1
        return self.count >= count

    def more(self, count: int) -> Callable[[], bool]:
        """Returns a condition: `count` further records."""
        goal = self.count + count
        return lambda: self.has(goal)

    def close(self) -> None:
        self.has(0)  # reads unexpected records
        self._consumer.close()


@contextmanager
def producing_lines(bootstrap: str, topic: str, lines: list[str]) -> Iterator[threading.Thread]:
    """Produces each line once at a steady rate, also if brokers fail."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    errors: list[object] = []

    def send() -> None:
        for line in lines:
            producer.produce(topic, line.encode(), on_delivery=lambda error, _: errors.append(error) if error else None)
            producer.poll(1 / LINES_PER_S)
        assert producer.flush(WAIT_S) == 0

    thread = threading.Thread(target=send)
    thread.start()
    yield thread
    thread.join()
    assert not errors


@pytest.mark.usefixtures("_apps")
@pytest.mark.parametrize("stores", STORES)
def test_kafka_streams_counts_every_word_once_when_application_and_broker_are_killed(
    stores: str, tmp_path: Path
) -> None:
    """Kills the application, then a broker, while lines are produced."""
    rng = random.Random(3)
    lines = [" ".join(rng.choices(WORDS, k=3)) for _ in range(LINES)]
    expected = Counter(word for line in lines for word in line.split())
    log = tmp_path / "streams.log"
    with running_brokers(tmp_path / "brokers", 2, stores) as cluster:
        options = [f"state.dir={tmp_path / 'state'}", "topology.optimization=none", *SESSION]
        source = str(EXAMPLES / "WordCount.java")
        with running(Process("kafka-apps-class", [source, cluster.bootstrap, *options], log)) as app:
            wait_until("the application is running", lambda: "\nRUNNING" in log.read_text(), log)
            counts = CommittedRecords(cluster.bootstrap, "counts", partitions=2)
            with producing_lines(cluster.bootstrap, "lines", lines) as producing:
                wait_until("words are counted", lambda: counts.has(200), log)
                app.kill()
                app.start()
                wait_until("words are counted after the restart", counts.more(200), log)
                cluster[1].kill()
                cluster[1].begin()
                producing.join()
            wait_until("all words are counted", lambda: counts.has(expected.total()), log)
        counts.close()
        actual = {word.decode(): list(map(int, numbers)) for word, numbers in counts.values.items()}
        assert actual == {word: list(range(1, count + 1)) for word, count in expected.items()}


def test_transform_writes_every_line_once_when_it_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "transform.log"
    lines = [f"line {number}" for number in range(LINES)]
    with running_brokers(tmp_path / "brokers", 1, SQLITE_AND_DISK) as cluster:
        kafka_clients.Confluent(cluster.bootstrap).create_topic("lines", 2)
        kafka_clients.Confluent(cluster.bootstrap).create_topic("loud", 2)
        command = [sys.executable, str(EXAMPLES / "transform.py"), "--bootstrap", cluster.bootstrap]
        with running(Process("transform", ["lines", "loud"], log, command=command)) as program:
            loud = CommittedRecords(cluster.bootstrap, "loud", partitions=2)
            with producing_lines(cluster.bootstrap, "lines", lines) as producing:
                for pause_s in (0, 0.05):
                    wait_until("lines are transformed", loud.more(LINES // 10), log)
                    time.sleep(pause_s)
                    program.kill()
                    program.start()
                producing.join()
            wait_until("all lines are transformed", lambda: loud.has(LINES), log)
        loud.close()
        assert sorted(loud.values[b""]) == sorted(line.upper().encode() for line in lines)


# Kafka Connect


@pytest.fixture
def copy_file() -> ModuleType:
    spec = importlib.util.spec_from_file_location("copy_file", EXAMPLES / "copy_file.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("_apps")
@pytest.mark.parametrize("stores", STORES)
def test_kafka_connect_copies_every_line_once_when_the_worker_is_killed(
    stores: str, copy_file: ModuleType, tmp_path: Path
) -> None:
    """Kills the worker while the source is in the middle of the file.

    The sink is paused before. Lines after its last offset commit would be written twice with any broker, because a file
    has no transactions."""
    original, copy, log = tmp_path / "in.txt", tmp_path / "out.txt", tmp_path / "connect.log"
    port = free_port()
    with running_brokers(tmp_path / "brokers", 2, stores) as cluster:
        settings = copy_file.worker_settings(cluster.bootstrap, port)
        for name, value in (setting.split("=") for setting in SESSION):
            settings |= {name: value, f"consumer.{name}": value}
        path = copy_file.write_settings(tmp_path, settings)
        with running(Process("kafka-apps-class", [copy_file.WORKER, str(path)], log)) as process:
            worker = copy_file.Worker(port)
            original.write_text(numbered_lines(0, 50))
            options = {"batch.size": str(BATCH), "producer.override.transaction.timeout.ms": "3000"}
            worker.put("source", copy_file.source(original, "copied") | options)
            worker.put("sink", copy_file.sink(copy, "copied"))
            wait_until("the first lines are copied", lambda: is_same(original, copy), log)
            wait_until(
                "the offsets of the sink are committed",
                lambda: has_committed_end(cluster, "connect-sink", "copied"),
                log,
            )
            worker.pause("sink")
            wait_until("the sink is paused", lambda: set(worker.states("sink")) == {"PAUSED"}, log)
            with original.open("a") as more:
                more.write(numbered_lines(50, COPIED))
            lines = CommittedRecords(cluster.bootstrap, "copied", partitions=1)
            wait_until("more lines are in the topic", lambda: lines.has(4 * BATCH), log)
            process.kill()
            assert not lines.has(COPIED), "the worker was killed in the middle of the file"
            process.start()
            worker.resume("sink")
            wait_until("all lines are in the topic", lambda: lines.has(COPIED), log)
            wait_until("all lines are copied", lambda: is_same(original, copy), log)
        lines.close()
        assert [value.decode() for value in lines.values[b""]] == original.read_text().splitlines()


def numbered_lines(start: int, end: int) -> str:
    """Returns long lines: the source connector drops less than 1 KB after its last full batch if nothing follows."""
    return "".join(f"{f'line {number} ':.<100}\n" for number in range(start, end))


def is_same(original: Path, copy: Path) -> bool:
    return copy.exists() and original.read_text() == copy.read_text()


def has_committed_end(cluster: BrokerProcesses, group: str, topic: str) -> bool:
    """Returns whether the committed offset is the end of the log, apart from a transaction marker."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "log_level": 0})
    partition = confluent_kafka.TopicPartition(topic, 0)
    (committed,) = consumer.committed([partition], 10)
    _, end = consumer.get_watermark_offsets(partition, 10)
    consumer.close()
    return bool(committed.offset >= end - 1)
