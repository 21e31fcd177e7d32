"""A Parquet file of a topic's history is damaged, then gone, then back: what consumers hear, what the broker says."""

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
from pyiceberg.table.update import SetCurrentSchemaUpdate
from tests.integration.engines import pyiceberg_of, uri_of
from tests.integration.kafka_clients import CLIENTS, Confluent
from tests.integration.programs import cluster_of, need, run
from tests.integration.test_history_clients import at_offsets, made, move

from lakestream.testing.brokers import Brokers

TOPIC = "orders"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    yield from cluster_of("one-sqlite", tmp_path_factory)


@pytest.fixture(scope="module")
def file(cluster: Brokers) -> Path:
    """Of 300 records in the table; ten more are in the log."""
    client = Confluent(cluster.bootstrap)
    client.create_topic(TOPIC)
    client.produce(TOPIC, made(0, 300))
    move(cluster)
    client.produce(TOPIC, made(300, 310))
    (file,) = Path(cluster.storage.removeprefix("file://")).rglob("tables/default/orders-*/data/**/*.parquet")
    return file


@pytest.fixture
def body(file: Path) -> Iterator[bytes]:
    """Good again, for the next test."""
    good = file.read_bytes()
    yield good
    file.write_bytes(good)


def consume(cluster: Brokers) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "lakestream", "consume", TOPIC, "--no-follow", "--bootstrap", cluster.bootstrap]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def counted(cluster: Brokers, pattern: str) -> float:
    with urllib.request.urlopen(f"{uri_of(cluster)}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    return sum(float(found) for found in re.findall(rf"^lakestream_{pattern} (\S+)$", page, re.M))


def damage(file: Path, good: bytes) -> None:
    file.write_bytes(good[:60] + bytes([good[60] ^ 0x55]) + good[61:])


def test_a_damaged_file_is_told_to_all_and_served_again_when_it_is_mended(
    cluster: Brokers, file: Path, body: bytes
) -> None:
    damage(file, body)
    said = consume(cluster)
    assert (said.returncode, said.stdout) == (1, "")
    assert "orders partition 0 cannot be read from offset 0 on: records are damaged or gone" in said.stderr
    assert "lakestream doctor --topic orders" in said.stderr
    with pytest.raises(Exception, match="CorruptRecordError"):
        CLIENTS["kafka-python"](cluster.bootstrap).read(TOPIC, 0, 300)
    assert fetches_of_aiokafka(cluster) < 30
    lines = [line for line in cluster[0].log().splitlines() if "kafka.unreadable" in line]
    assert len(lines) == 1, lines
    assert f"topic=orders partition=0 offset=0 error=file://{file} is damaged" in lines[0]
    assert "restore it from a backup" in lines[0]
    assert counted(cluster, r'kafka_unreadable_total\{topic="orders",worker="0"\}') >= 3
    file.write_bytes(body)
    wait_until(lambda: consume(cluster).returncode == 0)
    for client in CLIENTS.values():
        assert client(cluster.bootstrap).read(TOPIC, "earliest", 310) == at_offsets(made(0, 310))


def fetches_of_aiokafka(cluster: Brokers) -> float:
    """In two seconds: it asks again at once, whatever it is told."""
    pattern = r'kafka_request_seconds_count\{outcome="ok",request="Fetch",worker="0"\}'
    before = counted(cluster, pattern)

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
    return counted(cluster, pattern) - before


def test_a_column_that_was_dropped_comes_back_as_the_docs_say(cluster: Brokers, file: Path) -> None:
    assert file.exists()
    catalog = pyiceberg_of(cluster)
    with catalog.load_table("default.orders").update_schema(allow_incompatible_changes=True) as schema:
        schema.delete_column("value")
    client = Confluent(cluster.bootstrap)
    wait_until(lambda: consume(cluster).returncode == 1)
    move(cluster)
    said = [line for line in cluster[0].log().splitlines() if "kafka.unreadable topic=orders" in line][-1]
    assert "table default.orders: column value was dropped" in said
    assert "set its current schema back to 0, which has it" in said
    back = SetCurrentSchemaUpdate(schema_id=0)  # type: ignore[call-arg]  # it takes both spellings
    catalog.commit_table(catalog.load_table("default.orders"), (), (back,))
    wait_until(lambda: consume(cluster).returncode == 0)
    move(cluster)
    assert client.read(TOPIC, "earliest", 310) == at_offsets(made(0, 310))
    assert catalog.load_table("default.orders").scan().count() == 310


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.3)


def test_the_java_consumer_says_so_too(cluster: Brokers, file: Path, body: bytes) -> None:
    """It must not have been read before: what is in memory is good."""
    command = [need("kafka-class"), "org.apache.kafka.tools.consumer.ConsoleConsumer"]
    where = ["--bootstrap-server", cluster.bootstrap, "--topic", TOPIC, "--partition", "0", "--offset", "0"]
    cluster[0].kill()
    asyncio.run(cluster[0].start())
    file.unlink()
    said = run([*command, *where, "--timeout-ms", "20000"])
    assert "Encountered corrupt message when fetching offset 0 for topic-partition orders-0" in said
    assert "lists a file that is not there" in cluster[0].log()
