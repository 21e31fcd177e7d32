"""Kafka Streams, Kafka Connect and a Python program, exactly once: those in examples/, killed and started again."""

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
from tests.integration import kafka_clients
from tests.integration.programs import SOAK, java_sources_run, need

from lakestream.testing.brokers import OXIA_AND_S3, SQLITE_AND_DISK, Brokers, running_brokers
from lakestream.testing.processes import Process, free_port

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
STORES: Final = [SQLITE_AND_DISK, OXIA_AND_S3] if SOAK else [SQLITE_AND_DISK]
SESSION: Final = ("session.timeout.ms=6000", "heartbeat.interval.ms=500")
"""So long a group waits for a member that was killed."""
WAIT_S: Final = 300.0 if SOAK else 90.0
WORDS: Final = ("alpha", "beta", "gamma", "delta", "epsilon")
LINES: Final = 5_000 if SOAK else 1_000
LINES_PER_S: Final = 100
BATCH: Final = 100
"""Lines in a transaction of the source."""
COPIED: Final = 5_100

pytestmark = pytest.mark.timeout(600 if SOAK else 240)  # Java starts slowly where others work too


@pytest.fixture
def _apps() -> None:
    """They can be run here."""
    need("kafka-apps-class")
    java_sources_run()


@contextmanager
def running(process: Process) -> Iterator[Process]:
    process.start()
    try:
        yield process
    finally:
        process.kill()


def wait_until(what: str, holds: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {WAIT_S:.0f} s: {what}; {log.read_text()[-3000:]}"
        time.sleep(0.1)


class Committed:
    """The records of a topic that are committed, as they come."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "log_level": 0}
        own = {"isolation.level": "read_committed", "auto.offset.reset": "error"}
        self._consumer = confluent_kafka.Consumer(settings | own)
        self._consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
        self.values: dict[bytes, list[bytes]] = defaultdict(list)
        """By key."""
        self.count = 0

    def has(self, count: int) -> bool:
        """Whether there are so many now, or more."""
        for message in self._consumer.consume(10_000, 0.5):
            if message.error() is None:
                self.values[message.key() or b""].append(message.value() or b"")
                self.count += 1
        return self.count >= count

    def more(self, count: int) -> Callable[[], bool]:
        """Whether there are so many more than now."""
        goal = self.count + count
        return lambda: self.has(goal)

    def close(self) -> None:
        self.has(0)  # what nobody expects would come now
        self._consumer.close()


@contextmanager
def lines_coming(bootstrap: str, topic: str, lines: list[str]) -> Iterator[threading.Thread]:
    """Each once, over a while, whatever becomes of brokers."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    failed: list[object] = []

    def send() -> None:
        for line in lines:
            producer.produce(topic, line.encode(), on_delivery=lambda error, _: failed.append(error) if error else None)
            producer.poll(1 / LINES_PER_S)
        assert producer.flush(WAIT_S) == 0

    thread = threading.Thread(target=send)
    thread.start()
    yield thread
    thread.join()
    assert not failed


@pytest.mark.usefixtures("_apps")
@pytest.mark.parametrize("stores", STORES)
def test_streams_counts_every_word_once(stores: str, tmp_path: Path) -> None:
    """The application is killed, then a broker, while lines come."""
    luck = random.Random(3)
    lines = [" ".join(luck.choices(WORDS, k=3)) for _ in range(LINES)]
    expected = Counter(word for line in lines for word in line.split())
    log = tmp_path / "streams.log"
    with running_brokers(tmp_path / "brokers", 2, stores) as cluster:
        own = [f"state.dir={tmp_path / 'state'}", "topology.optimization=none", *SESSION]
        source = str(EXAMPLES / "WordCount.java")
        with running(Process("kafka-apps-class", [source, cluster.bootstrap, *own], log)) as app:
            wait_until("it runs", lambda: "\nRUNNING" in log.read_text(), log)
            counts = Committed(cluster.bootstrap, "counts", partitions=2)
            with lines_coming(cluster.bootstrap, "lines", lines) as coming:
                wait_until("it counts", lambda: counts.has(200), log)
                app.kill()
                app.start()
                wait_until("it goes on", counts.more(200), log)
                cluster[1].kill()
                cluster[1].begin()
                coming.join()
            wait_until("all is counted", lambda: counts.has(expected.total()), log)
        counts.close()
        found = {word.decode(): list(map(int, numbers)) for word, numbers in counts.values.items()}
        assert found == {word: list(range(1, count + 1)) for word, count in expected.items()}


def test_a_program_that_transforms_is_killed_and_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "transform.log"
    lines = [f"line {number}" for number in range(LINES)]
    with running_brokers(tmp_path / "brokers", 1, SQLITE_AND_DISK) as cluster:
        kafka_clients.Confluent(cluster.bootstrap).create_topic("lines", 2)
        kafka_clients.Confluent(cluster.bootstrap).create_topic("loud", 2)
        command = [sys.executable, str(EXAMPLES / "transform.py"), "--bootstrap", cluster.bootstrap]
        with running(Process("transform", ["lines", "loud"], log, command=command)) as program:
            loud = Committed(cluster.bootstrap, "loud", partitions=2)
            with lines_coming(cluster.bootstrap, "lines", lines) as coming:
                for pause_s in (0, 0.05):
                    wait_until("it transforms", loud.more(LINES // 10), log)
                    time.sleep(pause_s)
                    program.kill()
                    program.start()
                coming.join()
            wait_until("all is transformed", lambda: loud.has(LINES), log)
        loud.close()
        assert sorted(loud.values[b""]) == sorted(line.upper().encode() for line in lines)


# ── Connect ──────────────────────────────────────────────────────────────────────────────────────────────────────────


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
def test_connect_copies_every_line_once(stores: str, copy_file: ModuleType, tmp_path: Path) -> None:
    """The worker is killed when the source is in the middle of the file. The sink is paused then: a file has no
    transactions, and lines after its last commit of offsets would be in it twice, with any broker."""
    original, copy, log = tmp_path / "in.txt", tmp_path / "out.txt", tmp_path / "connect.log"
    port = free_port()
    with running_brokers(tmp_path / "brokers", 2, stores) as cluster:
        settings = copy_file.worker_settings(cluster.bootstrap, port)
        for name, value in (one.split("=") for one in SESSION):
            settings |= {name: value, f"consumer.{name}": value}
        path = copy_file.write_settings(tmp_path, settings)
        with running(Process("kafka-apps-class", [copy_file.WORKER, str(path)], log)) as process:
            worker = copy_file.Worker(port)
            original.write_text(numbered(0, 50))
            own = {"batch.size": str(BATCH), "producer.override.transaction.timeout.ms": "3000"}
            worker.put("source", copy_file.source(original, "copied") | own)
            worker.put("sink", copy_file.sink(copy, "copied"))
            wait_until("the first lines are copied", lambda: is_same(original, copy), log)
            wait_until("that is committed", lambda: has_committed_all(cluster, "connect-sink", "copied"), log)
            worker.pause("sink")
            wait_until("it is paused", lambda: set(worker.states("sink")) == {"PAUSED"}, log)
            with original.open("a") as more:
                more.write(numbered(50, COPIED))
            lines = Committed(cluster.bootstrap, "copied", partitions=1)
            wait_until("more lines are there", lambda: lines.has(4 * BATCH), log)
            process.kill()
            assert not lines.has(COPIED), "it was killed in the middle"
            process.start()
            worker.resume("sink")
            wait_until("all lines are there", lambda: lines.has(COPIED), log)
            wait_until("all lines are copied", lambda: is_same(original, copy), log)
        lines.close()
        assert [value.decode() for value in lines.values[b""]] == original.read_text().splitlines()


def numbered(start: int, end: int) -> str:
    """Long ones: the source forgets the rest of what it has read with the last full batch, where that is below 1 KB and
    nothing follows."""
    return "".join(f"{f'line {number} ':.<100}\n" for number in range(start, end))


def is_same(one: Path, other: Path) -> bool:
    return other.exists() and one.read_text() == other.read_text()


def has_committed_all(cluster: Brokers, group: str, topic: str) -> bool:
    """What is behind the last record is a marker."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "log_level": 0})
    where = confluent_kafka.TopicPartition(topic, 0)
    (found,) = consumer.committed([where], 10)
    _, end = consumer.get_watermark_offsets(where, 10)
    consumer.close()
    return bool(found.offset >= end - 1)
