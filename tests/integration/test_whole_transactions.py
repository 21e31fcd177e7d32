"""Transactions over several partitions, while pipelines move them and a foreign Spark rewrites the table: whoever
reads the tag `transactions-whole` finds all of a transaction or nothing of it, at any moment.

One producer keeps a transaction open for longer than the pipelines wait for it, so that they have to split others.
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
from tests.integration.eager_pipeline import COMMAND as EAGER
from tests.integration.engines import Spark, duckdb_of, pyiceberg_of, spark_of
from tests.integration.kafka_clients import Confluent
from tests.integration.programs import SOAK

from lakestream.testing.brokers import OXIA_AND_S3, SQLITE_AND_DISK, Brokers, running_brokers
from lakestream.testing.processes import Process

RUN_S: Final = float(os.environ.get("WHOLE_S") or (300 if SOAK else 10))
OPEN_S: Final = 15.0
"""How long the slow producer's transactions take: longer than anybody waits for them."""
WAIT_S: Final = 60.0
LOOK_S: Final = 0.3
LOOKS_MAX: Final = 100
DRIVERS: Final = 2 if SOAK else 1
PARTITIONS: Final = 4
WRITERS: Final = 3
TAG: Final = "transactions-whole"
TABLE: Final = "lake.default.t"
TAGGED: Final = f"SELECT decode(value, 'utf-8') FROM {TABLE} VERSION AS OF '{TAG}'"


class Writer:
    """Each record says which transaction it is part of, and how many records that has."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        self.committed = 0
        self.number = 0
        self._luck = random.Random(name)
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
            self.write(
                self._luck.sample(range(PARTITIONS), self._luck.randint(2, PARTITIONS)), self._luck.random() < 0.8
            )
            time.sleep(self._luck.random() * 0.05)

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


def torn(values: list[str]) -> list[str]:
    """Transactions of which some records are there, and others are not."""
    return [f"{value} has {count}" for value, count in Counter(values).items() if count != int(value.split("/")[2])]


def tagged_values(cluster: Brokers, *, tag: str = TAG) -> tuple[int, list[str]]:
    table = pyiceberg_of(cluster).load_table("default.t")
    snapshot = table.snapshot_by_name(tag)
    if snapshot is None:
        return 0, []
    rows: Any = table.scan(snapshot_id=snapshot.snapshot_id, selected_fields=("value",)).to_arrow()
    return snapshot.snapshot_id, [value.decode() for value in rows["value"].to_pylist()]


def duckdb_values(cluster: Brokers) -> list[str]:
    """It takes the number of a snapshot, which the table's metadata has."""
    table = pyiceberg_of(cluster).load_table("default.t")
    snapshot = table.snapshot_by_name(TAG)
    assert snapshot is not None
    with duckdb_of(cluster) as connection:
        found = connection.execute(f"SELECT value FROM {TABLE} AT (VERSION => {snapshot.snapshot_id})").fetchall()
    return [value.decode() for (value,) in found]


class Reader:
    """Looks again and again; and at `main` too, to see that there was something to hide."""

    def __init__(self, cluster: Brokers) -> None:
        self._cluster = cluster
        self.snapshots: set[int] = set()
        self.torn: list[str] = []
        self.torn_in_main = 0

    def run(self, ended: threading.Event) -> None:
        while not ended.is_set():
            snapshot, values = tagged_values(self._cluster)
            self.snapshots.add(snapshot)
            self.torn += [f"snapshot {snapshot}: {one}" for one in torn(values)]
            self.torn_in_main += len(torn(tagged_values(self._cluster, tag="main")[1]))


@pytest.fixture(params=[SQLITE_AND_DISK, OXIA_AND_S3] if SOAK else [SQLITE_AND_DISK])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Brokers]:
    with running_brokers(tmp_path / "lake", 2, request.param) as started:
        yield started


@pytest.mark.timeout(240 + RUN_S)
def test_whoever_reads_the_tag_finds_whole_transactions(cluster: Brokers, tmp_path: Path) -> None:
    Confluent(cluster.bootstrap).create_topic("t", PARTITIONS)
    flags = ["--data-dir", str(tmp_path / "lake" / "data"), "--metadata", cluster.metadata]
    flags += ["--storage", cluster.storage, "--interval", "1s", "--master", "local[1]"]
    drivers = [
        Process(f"pipeline-{number}", flags, tmp_path / f"{number}.log", command=EAGER, environment=cluster.environment)
        for number in range(DRIVERS)
    ]
    writers = [Writer(cluster.bootstrap, f"w{number}") for number in range(WRITERS)]
    slow, reader, ended = Writer(cluster.bootstrap, "slow"), Reader(cluster), threading.Event()
    try:
        with spark_of(cluster, tmp_path) as spark, ThreadPoolExecutor(WRITERS + 2) as threads:
            try:
                for driver in drivers:
                    driver.start()
                running = [threads.submit(writer.run, ended) for writer in writers]
                running.append(threads.submit(slow.run_slowly, ended))
                wait_until(lambda: is_there(cluster) and tagged_values(cluster)[0])
                running.append(threads.submit(reader.run, ended))
                looks = look_on(spark, reader)
            finally:
                ended.set()
            for one in running:
                one.result(WAIT_S)
            expected = sum(writer.committed for writer in (*writers, slow))
            wait_until(lambda: len(set(tagged_values(cluster)[1])) == expected)
            values = tagged_values(cluster)[1]
            assert torn(values) == []
            assert sorted(value for (value,) in spark.sql(TAGGED)) == sorted(values)
            assert sorted(duckdb_values(cluster)) == sorted(values)
        assert [driver.stop() for driver in drivers] == [0] * DRIVERS
    finally:
        for driver in drivers:
            driver.kill()
    print(f"{expected} transactions, {len(reader.snapshots)} snapshots, torn in main: {reader.torn_in_main}, {looks=}")
    assert reader.torn == []
    assert reader.torn_in_main > 0  # or the tag would have had nothing to do
    assert reader.snapshots
    assert expected > 20
    assert "Traceback" not in cluster.logs() + "".join(
        (tmp_path / f"{number}.log").read_text() for number in range(DRIVERS)
    )


def look_on(spark: Spark, reader: Reader) -> int:
    """Reads the tag, and rewrites and expires what it can, also while `main` has split transactions; how often it has
    looked."""
    until = time.monotonic() + RUN_S
    looks = 0
    while time.monotonic() < until or looks < 3 or (not reader.torn_in_main and looks < LOOKS_MAX):
        looks += 1
        assert torn([value for (value,) in spark.sql(TAGGED)]) == []
        if looks % 3 == 1:
            spark.sql("CALL lake.system.rewrite_data_files(table => 'default.t')")
        if looks % 3 == 2:
            spark.sql("CALL lake.system.expire_snapshots(table => 'default.t', retain_last => 1)")
    return looks


def is_there(cluster: Brokers) -> bool:
    return pyiceberg_of(cluster).table_exists("default.t")


def wait_until(holds: Callable[[], object]) -> None:
    """Counted, not timed: on a machine that stands still for a while nobody has had the time."""
    for _ in range(int(WAIT_S / LOOK_S)):
        if holds():
            return
        time.sleep(LOOK_S)
    raise AssertionError("it did not come to that")
