"""Stock clients read records that were moved from the log to the table unchanged. Deleted rows are gaps.

The pipeline runs in this process, without Spark: the same steps, one process less.
"""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.harness.clients.kafka_clients import CLIENTS, Client, Confluent, Record
from tests.harness.clients.moved_records import NOW_MS, SNAPSHOT_REFRESH_S, at_offsets, move, sample_records
from tests.harness.clients.programs import running_cluster
from tests.harness.engines.engines import pyiceberg_of

from lakestream.testing.brokers import BrokerProcesses, running_brokers


@pytest.fixture(scope="module", params=["one-sqlite", "three-oxia-s3"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster(request.param, tmp_path_factory)


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest, cluster: BrokerProcesses) -> Client:
    return CLIENTS[request.param](cluster.bootstrap)


def test_clients_read_across_table_and_log(cluster: BrokerProcesses, client: Client) -> None:
    topic = f"border-{client.name}"
    client.create_topic(topic)
    client.produce(topic, sample_records(0, 500))
    move(cluster)
    client.produce(topic, sample_records(500, 600))
    everything = at_offsets(sample_records(0, 600))
    assert client.read(topic, "earliest", 600) == everything
    assert client.read(topic, 250, 350) == everything[250:]
    assert client.bounds(topic) == (0, 600)
    for number in (0, 123, 499, 500, 550):
        assert client.offset_at(topic, NOW_MS + number) == number
    assert client.offset_at(topic, NOW_MS + 1000) is None
    move(cluster)
    client.produce(topic, sample_records(600, 610))
    assert client.read(topic, 490, 120) == at_offsets(sample_records(490, 610), 490)


def test_deleted_rows_are_gaps(cluster: BrokerProcesses, client: Client) -> None:
    """In the middle, at the beginning, and at the end, where no record follows."""
    topic = f"gaps-{client.name}"
    client.create_topic(topic)
    client.produce(topic, sample_records(0, 300))
    move(cluster)
    table = pyiceberg_of(cluster).load_table(f"default.{topic}")
    rows = table.scan().to_arrow()
    offsets = rows["_stream"].combine_chunks().field("offset").to_pylist()
    table.overwrite(rows.filter([50 <= offset < 100 or 200 <= offset < 250 for offset in offsets]))
    asyncio.run(asyncio.sleep(SNAPSHOT_REFRESH_S))
    left = [*at_offsets(sample_records(50, 100), 50), *at_offsets(sample_records(200, 250), 200)]
    assert client.bounds(topic) == (50, 300)
    assert client.read(topic, "earliest", 100) == left
    assert client.read(topic, 0, 100) == left  # as in a compacted log: no error
    assert client.read(topic, 150, 50) == left[50:]
    follower = follow_after_gap(client, topic)
    client.produce(topic, sample_records(300, 305))
    assert follower.result(60) == at_offsets(sample_records(300, 305), 300)


@pytest.mark.parametrize("http", ["127.0.0.1:0", "off"])
def test_files_are_deleted_when_the_table_is_dropped_with_its_topic(http: str, tmp_path: Path) -> None:
    """Soon after the drop, also if no broker serves HTTP."""
    with running_brokers(tmp_path, options=["--http", http]) as cluster:
        client = Confluent(cluster.bootstrap)
        client.create_topic("orders", configs={"lakestream.table.on.delete": "drop"})
        client.produce("orders", sample_records(0, 10))
        move(cluster)
        tables = tmp_path / "bucket" / "tables"
        assert list(tables.rglob("*.parquet"))
        client.delete_topic("orders")
        deadline_s = time.monotonic() + 20
        while [path for path in tables.rglob("*") if path.is_file()] and time.monotonic() < deadline_s:
            time.sleep(0.1)
        assert [path for path in tables.rglob("*") if path.is_file()] == []


def follow_after_gap(client: Client, topic: str) -> "Future[list[Record]]":
    """Starts a consumer whose position is before a gap at the end of the log."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(client.read, topic, 260, 5)
    finally:
        pool.shutdown(wait=False)
