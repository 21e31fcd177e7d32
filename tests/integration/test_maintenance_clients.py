"""Maintenance as it runs in a pipeline's own process, on Spark, beside producers: what Kafka clients then read."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.eager_pipeline import COMMAND
from tests.integration.engines import pyiceberg_of
from tests.integration.kafka_clients import CLIENTS, Confluent, Record
from tests.integration.programs import cluster_of
from tests.integration.test_history_clients import NOW_MS, SEEN_S, at_offsets, made

from lakestream.testing.brokers import Brokers
from lakestream.testing.processes import Process

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "3600000"}
KEYS = 10
WAIT_S = 60.0


class Pipeline:
    def __init__(self, cluster: Brokers, folder: Path) -> None:
        self.flags = ["--metadata", cluster.metadata, "--storage", cluster.storage]
        self.flags += ["--data-dir", str(cluster[0]._log.parent / "data")]
        self._log = folder / "pipeline.log"
        own = ["--interval", "300ms", "--master", "local[1]"]
        self._process = Process(
            "pipeline", [*self.flags, *own], self._log, command=COMMAND, environment=cluster.environment
        )

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def run(self) -> Iterator["Pipeline"]:
        self._process.start()
        try:
            yield self
            assert self._process.stop() == 0
            assert "Traceback" not in self.said()
        finally:
            self._process.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    yield from cluster_of("one-sqlite", tmp_path_factory)


@pytest.fixture(scope="module")
def pipeline(cluster: Brokers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    yield from Pipeline(cluster, tmp_path_factory.mktemp("pipeline")).run()


def keyed(at: int) -> Record:
    return Record(b"value %d" % at, b"key %d" % (at % KEYS), (), NOW_MS + at)


def test_a_compacted_topic_and_one_of_small_files(cluster: Brokers, pipeline: Pipeline) -> None:
    client = Confluent(cluster.bootstrap)
    client.create_topic("accounts", configs=COMPACTED)
    client.create_topic("clicks")
    sent: list[Record] = []
    for burst in range(0, 300, 30):
        records = [keyed(at) for at in range(burst, burst + 30)]
        client.produce("accounts", records)
        client.produce("clicks", made(burst, burst + 30))
        sent += at_offsets(records, burst)
        if burst < 150:
            wait_for_rows(cluster, "clicks", burst + 30)  # in a file of their own
    deletion = Record(None, b"key 3", (), NOW_MS + 300)
    client.produce("accounts", [deletion])
    sent += at_offsets([deletion], 300)
    last = {record.key: record for record in sent}
    left = sorted(last.values(), key=lambda record: record.offset or 0)
    wait_for_rows(cluster, "accounts", len(left))
    wait_for_rows(cluster, "clicks", 300)
    assert "maintenance.compacted" in pipeline.said()
    wait_for_merge(cluster, pipeline)
    time.sleep(SEEN_S)  # a broker may know what a table was a second ago
    for name in CLIENTS:
        reader = CLIENTS[name](cluster.bootstrap)
        assert reader.bounds("accounts")[1] == 301, name
        assert reader.read("accounts", "earliest", len(left)) == left, name
        assert reader.read("accounts", 0, len(left)) == left, name
        assert reader.read("clicks", "earliest", 300) == at_offsets(made(0, 300)), name
    client.produce("accounts", [keyed(301)])
    assert client.read("accounts", 0, len(left) + 1)[-1].offset == 301
    command = [sys.executable, "-m", "lakestream", "doctor", "--full", *pipeline.flags]
    said = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert said.returncode == 0, said.stdout


def wait_for_merge(cluster: Brokers, pipeline: Pipeline) -> None:
    until = time.monotonic() + WAIT_S
    while "maintenance.merged" not in pipeline.said() or _file_count(cluster, "clicks") >= 5:
        assert time.monotonic() < until, f"clicks has {_file_count(cluster, 'clicks')} files"
        time.sleep(0.3)


def _file_count(cluster: Brokers, topic: str) -> int:
    return len(pyiceberg_of(cluster).load_table(f"default.{topic}").inspect.files())


def wait_for_rows(cluster: Brokers, topic: str, count: int) -> None:
    until = time.monotonic() + WAIT_S
    table = None
    while table is None or table.scan().count() != count:
        assert time.monotonic() < until, f"{topic} has {table.scan().count() if table else 'no'} rows, not {count}"
        time.sleep(0.3)
        if pyiceberg_of(cluster).table_exists(f"default.{topic}"):
            table = pyiceberg_of(cluster).load_table(f"default.{topic}")
