"""Maintenance in a pipeline process, on Spark, with concurrent producers: what Kafka clients read afterwards."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.clients.kafka_clients import CLIENTS, Confluent, Record
from tests.harness.clients.moved_records import NOW_MS, SNAPSHOT_REFRESH_S, at_offsets, sample_records
from tests.harness.clients.programs import running_cluster
from tests.harness.engines.engines import pyiceberg_of
from tests.harness.processes.eager_pipeline import COMMAND

from lakestream.testing.brokers import BrokerProcesses
from lakestream.testing.processes import Process

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "3600000"}
KEYS = 10
WAIT_S = 60.0


class Pipeline:
    def __init__(self, cluster: BrokerProcesses, folder: Path) -> None:
        self.flags = ["--metadata", cluster.metadata, "--storage", cluster.storage]
        self.flags += ["--data-dir", str(cluster[0]._log.parent / "data")]
        self._log = folder / "pipeline.log"
        options = ["--interval", "300ms", "--master", "local[1]"]
        self._process = Process(
            "pipeline", [*self.flags, *options], self._log, command=COMMAND, environment=cluster.environment
        )

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def run(self) -> Iterator["Pipeline"]:
        self._process.start()
        try:
            yield self
            assert self._process.stop() == 0
            assert "Traceback" not in self.output()
        finally:
            self._process.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster("one-sqlite", tmp_path_factory)


@pytest.fixture(scope="module")
def pipeline(cluster: BrokerProcesses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    yield from Pipeline(cluster, tmp_path_factory.mktemp("pipeline")).run()


def keyed_record(at: int) -> Record:
    return Record(b"value %d" % at, b"key %d" % (at % KEYS), (), NOW_MS + at)


def test_compacted_topic_and_topic_with_small_files_are_maintained(
    cluster: BrokerProcesses, pipeline: Pipeline
) -> None:
    client = Confluent(cluster.bootstrap)
    client.create_topic("accounts", configs=COMPACTED)
    client.create_topic("clicks")
    sent: list[Record] = []
    for burst in range(0, 300, 30):
        records = [keyed_record(at) for at in range(burst, burst + 30)]
        client.produce("accounts", records)
        client.produce("clicks", sample_records(burst, burst + 30))
        sent += at_offsets(records, burst)
        if burst < 150:
            wait_for_rows(cluster, "clicks", burst + 30)  # in a separate file
    deletion = Record(None, b"key 3", (), NOW_MS + 300)
    client.produce("accounts", [deletion])
    sent += at_offsets([deletion], 300)
    last = {record.key: record for record in sent}
    expected = sorted(last.values(), key=lambda record: record.offset or 0)
    wait_for_rows(cluster, "accounts", len(expected))
    wait_for_rows(cluster, "clicks", 300)
    assert "maintenance.compacted" in pipeline.output()
    wait_for_merge(cluster, pipeline)
    time.sleep(SNAPSHOT_REFRESH_S)  # the snapshot of a broker may be one second old
    for name in CLIENTS:
        reader = CLIENTS[name](cluster.bootstrap)
        assert reader.bounds("accounts")[1] == 301, name
        assert reader.read("accounts", "earliest", len(expected)) == expected, name
        assert reader.read("accounts", 0, len(expected)) == expected, name
        assert reader.read("clicks", "earliest", 300) == at_offsets(sample_records(0, 300)), name
    client.produce("accounts", [keyed_record(301)])
    assert client.read("accounts", 0, len(expected) + 1)[-1].offset == 301
    command = [sys.executable, "-m", "lakestream", "doctor", "--full", *pipeline.flags]
    output = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert output.returncode == 0, output.stdout


def wait_for_merge(cluster: BrokerProcesses, pipeline: Pipeline) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while "maintenance.merged" not in pipeline.output() or _file_count(cluster, "clicks") >= 5:
        assert time.monotonic() < deadline_s, f"clicks has {_file_count(cluster, 'clicks')} files"
        time.sleep(0.3)


def _file_count(cluster: BrokerProcesses, topic: str) -> int:
    return len(pyiceberg_of(cluster).load_table(f"default.{topic}").inspect.files())


def wait_for_rows(cluster: BrokerProcesses, topic: str, count: int) -> None:
    deadline_s = time.monotonic() + WAIT_S
    table = None
    while table is None or table.scan().count() != count:
        assert time.monotonic() < deadline_s, f"{topic} has {table.scan().count() if table else 'no'} rows, not {count}"
        time.sleep(0.3)
        if pyiceberg_of(cluster).table_exists(f"default.{topic}"):
            table = pyiceberg_of(cluster).load_table(f"default.{topic}")
