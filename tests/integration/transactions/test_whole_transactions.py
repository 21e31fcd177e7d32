"""Reads of the tag `transactions-whole` return all records of a transaction or none, at any time.

Transactions over several partitions are moved by pipelines while an external Spark rewrites the table. One producer
keeps a transaction open for longer than the pipelines wait for it, so that they must split other transactions.
"""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from tests.harness.clients.kafka_clients import Confluent
from tests.harness.clients.programs import SOAK
from tests.harness.engines.engines import Spark, duckdb_of, pyiceberg_of, spark_of
from tests.harness.processes.eager_pipeline import COMMAND as EAGER

from lakestream.testing.brokers import OXIA_AND_S3, SQLITE_AND_DISK, BrokerProcesses, running_brokers
from lakestream.testing.processes import Process

RUN_S: Final = float(os.environ.get("WHOLE_S") or (300 if SOAK else 10))
OPEN_S: Final = 15.0
"""Duration of the slow producer's transactions, longer than the pipelines wait for them."""
WAIT_S: Final = 60.0
POLL_S: Final = 0.3
READS_MAX: Final = 100
DRIVERS: Final = 2 if SOAK else 1
PARTITIONS: Final = 4
WRITERS: Final = 3
TAG: Final = "transactions-whole"
TABLE: Final = "lake.default.t"
TAGGED: Final = f"SELECT decode(value, 'utf-8') FROM {TABLE} VERSION AS OF '{TAG}'"


class TransactionalWriter:
    """Producer whose records contain their transaction and its number of records."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        self.committed = 0
        self.number = 0
        self._rng = random.Random(name)
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": 300_000,
                "linger.ms": 0,
            }
        )
        self._producer.init_transactions(WAIT_S)

    def run(self, ended: threading.Event) -> None:
        while not ended.is_set():
            self.write(self._rng.sample(range(PARTITIONS), self._rng.randint(2, PARTITIONS)), self._rng.random() < 0.8)
            time.sleep(self._rng.random() * 0.05)

    def run_slowly(self, ended: threading.Event) -> None:
        while not ended.is_set():
            self.write([0, PARTITIONS - 1], commits=True, pause=lambda: ended.wait(OPEN_S))

    def write(self, partitions: list[int], commits: bool, pause: Callable[[], object] = lambda: None) -> None:
        self.number += 1
        value = f"{self.name}/{self.number}/{2 * len(partitions)}"
        self._producer.begin_transaction()
        for partition in partitions:
            self._producer.produce("t", value.encode(), partition=partition)
        self._producer.flush(WAIT_S)
        pause()
        for partition in partitions:
            self._producer.produce("t", value.encode(), partition=partition)
        if commits:
            self._producer.commit_transaction(WAIT_S)
            self.committed += 1
        else:
            self._producer.abort_transaction(WAIT_S)


def incomplete_transactions(values: list[str]) -> list[str]:
    """Returns transactions of which only some records are present."""
    return [f"{value} has {count}" for value, count in Counter(values).items() if count != int(value.split("/")[2])]


def tagged_values(cluster: BrokerProcesses, *, tag: str = TAG) -> tuple[int, list[str]]:
    table = pyiceberg_of(cluster).load_table("default.t")
    snapshot = table.snapshot_by_name(tag)
    if snapshot is None:
        return 0, []
    rows: Any = table.scan(snapshot_id=snapshot.snapshot_id, selected_fields=("value",)).to_arrow()
    return snapshot.snapshot_id, [value.decode() for value in rows["value"].to_pylist()]


def duckdb_values(cluster: BrokerProcesses) -> list[str]:
    """Reads the snapshot of the tag with DuckDB, which supports snapshot ids but no tags."""
    table = pyiceberg_of(cluster).load_table("default.t")
    snapshot = table.snapshot_by_name(TAG)
    assert snapshot is not None
    with duckdb_of(cluster) as connection:
        rows = connection.execute(f"SELECT value FROM {TABLE} AT (VERSION => {snapshot.snapshot_id})").fetchall()
    return [value.decode() for (value,) in rows]


class Reader:
    """Reads the tag repeatedly, and also `main`, which must contain incomplete transactions at some time."""

    def __init__(self, cluster: BrokerProcesses) -> None:
        self._cluster = cluster
        self.snapshots: set[int] = set()
        self.incomplete: list[str] = []
        self.incomplete_in_main = 0

    def run(self, ended: threading.Event) -> None:
        while not ended.is_set():
            snapshot, values = tagged_values(self._cluster)
            self.snapshots.add(snapshot)
            self.incomplete += [
                f"snapshot {snapshot}: {transaction}" for transaction in incomplete_transactions(values)
            ]
            self.incomplete_in_main += len(incomplete_transactions(tagged_values(self._cluster, tag="main")[1]))


@pytest.fixture(params=[SQLITE_AND_DISK, OXIA_AND_S3] if SOAK else [SQLITE_AND_DISK])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcesses]:
    with running_brokers(tmp_path / "lake", 2, request.param) as started:
        yield started


@pytest.mark.timeout(240 + RUN_S)
def test_tag_has_only_complete_transactions_at_any_time(cluster: BrokerProcesses, tmp_path: Path) -> None:
    Confluent(cluster.bootstrap).create_topic("t", PARTITIONS)
    flags = ["--data-dir", str(tmp_path / "lake" / "data"), "--metadata", cluster.metadata]
    flags += ["--storage", cluster.storage, "--interval", "1s", "--master", "local[1]"]
    drivers = [
        Process(f"pipeline-{number}", flags, tmp_path / f"{number}.log", command=EAGER, environment=cluster.environment)
        for number in range(DRIVERS)
    ]
    writers = [TransactionalWriter(cluster.bootstrap, f"w{number}") for number in range(WRITERS)]
    slow, reader, ended = TransactionalWriter(cluster.bootstrap, "slow"), Reader(cluster), threading.Event()
    try:
        with spark_of(cluster, tmp_path) as spark, ThreadPoolExecutor(WRITERS + 2) as threads:
            try:
                for driver in drivers:
                    driver.start()
                running = [threads.submit(writer.run, ended) for writer in writers]
                running.append(threads.submit(slow.run_slowly, ended))
                wait_until(lambda: table_exists(cluster) and tagged_values(cluster)[0])
                running.append(threads.submit(reader.run, ended))
                reads = read_with_spark(spark, reader)
            finally:
                ended.set()
            for future in running:
                future.result(WAIT_S)
            expected = sum(writer.committed for writer in (*writers, slow))
            wait_until(lambda: len(set(tagged_values(cluster)[1])) == expected)
            values = tagged_values(cluster)[1]
            assert incomplete_transactions(values) == []
            assert sorted(value for (value,) in spark.sql(TAGGED)) == sorted(values)
            assert sorted(duckdb_values(cluster)) == sorted(values)
        assert [driver.stop() for driver in drivers] == [0] * DRIVERS
    finally:
        for driver in drivers:
            driver.kill()
    print(f"{expected} transactions, {len(reader.snapshots)} snapshots, {reader.incomplete_in_main=}, {reads=}")
    assert reader.incomplete == []
    assert reader.incomplete_in_main > 0  # otherwise the tag would have hidden nothing
    assert reader.snapshots
    assert expected > 20
    assert "Traceback" not in cluster.logs() + "".join(
        (tmp_path / f"{number}.log").read_text() for number in range(DRIVERS)
    )


def read_with_spark(spark: Spark, reader: Reader) -> int:
    """Reads the tag, rewrites files and expires snapshots, also while `main` has incomplete transactions.

    Returns the number of reads."""
    deadline_s = time.monotonic() + RUN_S
    reads = 0
    while time.monotonic() < deadline_s or reads < 3 or (not reader.incomplete_in_main and reads < READS_MAX):
        reads += 1
        assert incomplete_transactions([value for (value,) in spark.sql(TAGGED)]) == []
        if reads % 3 == 1:
            spark.sql("CALL lake.system.rewrite_data_files(table => 'default.t')")
        if reads % 3 == 2:
            spark.sql("CALL lake.system.expire_snapshots(table => 'default.t', retain_last => 1)")
    return reads


def table_exists(cluster: BrokerProcesses) -> bool:
    return pyiceberg_of(cluster).table_exists("default.t")


def wait_until(condition: Callable[[], object]) -> None:
    """Waits for a number of checks instead of a time, because a busy machine may pause all processes."""
    for _ in range(int(WAIT_S / POLL_S)):
        if condition():
            return
        time.sleep(POLL_S)
    raise AssertionError("the condition was not met")
