"""A Parquet file of a topic's history is damaged, missing, then restored: consumers' errors and the broker's log."""

import asyncio
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition  # type: ignore[import-untyped]
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import BadRequestError
from pyiceberg.table.update import SetCurrentSchemaUpdate
from tests.harness.clients.kafka_clients import CLIENTS, Confluent
from tests.harness.clients.moved_records import at_offsets, move, sample_records
from tests.harness.clients.programs import require_program, run, running_cluster
from tests.harness.engines.engines import pyiceberg_of, uri_of
from tests.integration.catalog.test_commit_checks import catalog_without_checks, settings_of

from lakestream.testing.brokers import BrokerProcesses

TOPIC = "orders"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster("one-sqlite", tmp_path_factory)


@pytest.fixture(scope="module")
def file(cluster: BrokerProcesses) -> Path:
    """The file of 300 records in the table; ten more are in the log."""
    client = Confluent(cluster.bootstrap)
    client.create_topic(TOPIC)
    client.produce(TOPIC, sample_records(0, 300))
    move(cluster)
    client.produce(TOPIC, sample_records(300, 310))
    (file,) = Path(cluster.storage.removeprefix("file://")).rglob("tables/default/orders-*/data/**/*.parquet")
    return file


@pytest.fixture
def body(file: Path) -> Iterator[bytes]:
    """Restores the file for the next test."""
    good = file.read_bytes()
    yield good
    file.write_bytes(good)


def consume(cluster: BrokerProcesses) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "lakestream", "consume", TOPIC, "--no-follow", "--bootstrap", cluster.bootstrap]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def metric_sum(cluster: BrokerProcesses, pattern: str) -> float:
    with urllib.request.urlopen(f"{uri_of(cluster)}/metrics", timeout=10) as response:
        page = response.read().decode()
    return sum(float(value) for value in re.findall(rf"^lakestream_{pattern} (\S+)$", page, re.M))


def damage(file: Path, good: bytes) -> None:
    file.write_bytes(good[:60] + bytes([good[60] ^ 0x55]) + good[61:])


def test_all_clients_get_an_error_until_a_damaged_file_is_repaired(
    cluster: BrokerProcesses, file: Path, body: bytes
) -> None:
    damage(file, body)
    output = consume(cluster)
    assert (output.returncode, output.stdout) == (1, "")
    assert "orders partition 0 cannot be read from offset 0 on: records are damaged or missing" in output.stderr
    assert "lakestream doctor --topic orders" in output.stderr
    with pytest.raises(Exception, match="CorruptRecordError"):
        CLIENTS["kafka-python"](cluster.bootstrap).read(TOPIC, 0, 300)
    assert fetches_of_aiokafka(cluster) < 30
    lines = [line for line in cluster[0].log().splitlines() if "kafka.read_failed" in line]
    assert len(lines) == 1, lines
    assert f"topic=orders partition=0 offset=0 error=file://{file} is damaged" in lines[0]
    assert "restore it from a backup" in lines[0]
    assert metric_sum(cluster, r'kafka_read_errors_total\{topic="orders",worker="0"\}') >= 3
    file.write_bytes(body)
    wait_until(lambda: consume(cluster).returncode == 0)
    for client in CLIENTS.values():
        assert client(cluster.bootstrap).read(TOPIC, "earliest", 310) == at_offsets(sample_records(0, 310))


def fetches_of_aiokafka(cluster: BrokerProcesses) -> float:
    """Returns the number of fetches in two seconds: the client retries immediately after any error."""
    pattern = r'kafka_request_seconds_count\{outcome="ok",request="Fetch",worker="0"\}'
    before = metric_sum(cluster, pattern)

    async def read() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap)
        await consumer.start()
        try:
            consumer.assign([TopicPartition(TOPIC, 0)])
            consumer.seek(TopicPartition(TOPIC, 0), 0)
            assert await consumer.getmany(timeout_ms=2000) == {}
        finally:
            await consumer.stop()

    asyncio.run(read())
    return metric_sum(cluster, pattern) - before


def test_dropped_column_is_restored_as_documented(cluster: BrokerProcesses, file: Path) -> None:
    assert file.exists()
    catalog = pyiceberg_of(cluster)
    change = catalog.load_table("default.orders").update_schema(allow_incompatible_changes=True).delete_column("value")
    with pytest.raises(BadRequestError, match="column value was dropped"):
        change.commit()
    with catalog_without_checks(settings_of(cluster)) as uri:  # as accepted by versions without the check
        unchecked = load_catalog("unchecked", type="rest", uri=uri).load_table("default.orders")
        with unchecked.update_schema(allow_incompatible_changes=True) as schema:
            schema.delete_column("value")
    client = Confluent(cluster.bootstrap)
    wait_until(lambda: consume(cluster).returncode == 1)
    move(cluster)
    output = [line for line in cluster[0].log().splitlines() if "kafka.read_failed topic=orders" in line][-1]
    assert "table default.orders: column value was dropped" in output
    assert "set its current schema back to 0, which has it" in output
    back = SetCurrentSchemaUpdate(schema_id=0)  # type: ignore[call-arg]  # both spellings are accepted
    catalog.commit_table(catalog.load_table("default.orders"), (), (back,))
    wait_until(lambda: consume(cluster).returncode == 0)
    move(cluster)
    assert client.read(TOPIC, "earliest", 310) == at_offsets(sample_records(0, 310))
    assert catalog.load_table("default.orders").scan().count() == 310


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.3)


def test_java_consumer_reports_the_damaged_file(cluster: BrokerProcesses, file: Path, body: bytes) -> None:
    """The file must not have been read before: the cached content is valid."""
    command = [require_program("kafka-class"), "org.apache.kafka.tools.consumer.ConsoleConsumer"]
    options = ["--bootstrap-server", cluster.bootstrap, "--topic", TOPIC, "--partition", "0", "--offset", "0"]
    cluster[0].kill()
    asyncio.run(cluster[0].start())
    file.unlink()
    output = run([*command, *options, "--timeout-ms", "20000"])
    assert "Encountered corrupt message when fetching offset 0 for topic-partition orders-0" in output
    assert "lists a file that does not exist" in cluster[0].log()
