"""Stock clients with real brokers, by assignment: each client reads the records of each other client on any broker.

`make test` runs every client and every setting once, in pairs; SOAK=1 runs all pairs.
"""

import asyncio
import gc
import itertools
import os
import statistics
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest
from tests.harness.clients.kafka_clients import CLIENTS, Client, Confluent, Record
from tests.harness.clients.programs import SETTINGS, SOAK, pairs, running_cluster

from lakestream.testing.brokers import BrokerProcesses, brokers
from lakestream.testing.servers import toxiproxy

WAKE_UP_MS_MAX: Final = 20.0

pytestmark = pytest.mark.filterwarnings("default")  # warnings come from the clients


@pytest.fixture(autouse=True)
def _clients_leave_nothing() -> Iterator[None]:
    """Collects garbage, because kafka-python leaves sockets to the garbage collector, which then warns."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@dataclass(frozen=True)
class Pair:
    kind: type[Client]
    cluster: BrokerProcesses

    def client(self, broker: int | None = None) -> Client:
        """Returns a client of all brokers, or of one."""
        if broker is None:
            return self.kind(self.cluster.bootstrap)
        member = self.cluster[broker % len(self.cluster)]
        return self.kind(member.address, f"tests,zone_id={member.zone}")


@pytest.fixture(scope="module", params=pairs(["aiokafka", "kafka-python", "confluent-kafka"]), ids="-".join)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    client, setting = request.param
    for cluster in running_cluster(setting, tmp_path_factory):
        yield Pair(CLIENTS[client], cluster)


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


VARIOUS: Final = [
    Record(b"plain"),
    Record(b"with key", b"key"),
    Record(b"", b""),
    Record(None, b"tombstone"),
    Record(b"headers", b"k", (("one", b"1"), ("one", b"2"), ("null", None), ("empty", b""), ("one", b"1"))),
    Record(bytes(range(256)) * 300, b"\0\xff" * 100),
]


def test_keys_headers_timestamps_and_nulls_are_read_back_with_every_codec(pair: Pair, topic: str) -> None:
    client, confluent = pair.client(), Confluent(pair.cluster[len(pair.cluster) - 1].address)
    client.create_topic(topic, partitions=2)
    time_ms = now_ms() - 3_600_000
    sent: list[Record] = []
    for sender, codec in [(client, codec) for codec in client.codecs] + [(confluent, "zstd")]:
        records = [
            Record(record.value, record.key, headers_for(sender, record), time_ms + len(sent) + number, partition=1)
            for number, record in enumerate(VARIOUS)
        ]
        offsets = sender.produce(topic, records, codec if codec in client.codecs else "gzip")
        assert offsets == list(range(len(sent), len(sent) + len(records)))
        sent += records
    read = client.read(topic, "earliest", len(sent), partition=1)
    assert read == [record.at(offset, 0) for offset, record in enumerate(sent)]
    assert confluent.read(topic, 0, len(sent), partition=1) == read
    assert client.bounds(topic, 0) == (0, 0)
    assert client.bounds(topic, 1) == (0, len(sent))


def test_batches_are_sent_compressed(pair: Pair, topic: str) -> None:
    """Some clients silently do not compress if the broker lacks a request that they treat as a feature flag."""
    client = pair.client()
    client.create_topic(topic, configs={"max.message.bytes": "10000"})
    large = Record(b"again and " * 10_000)
    for number, codec in enumerate(codec for codec in client.codecs if codec != "none"):
        assert client.produce(topic, [large], codec) == [number], codec


def headers_for(client: Client, record: Record) -> tuple[tuple[str, bytes | None], ...]:
    return tuple(header for header in record.headers if header[1] is not None or client.sends_null_headers)


def test_timestamp_is_the_send_time_when_the_record_has_none(pair: Pair, topic: str) -> None:
    client = pair.client()
    client.create_topic(topic)
    before = now_ms()
    client.produce(topic, [Record(b"now")])
    (read,) = client.read(topic, 0, 1)
    assert read.timestamp_ms is not None
    assert before <= read.timestamp_ms <= now_ms()


def test_record_of_ten_megabytes_is_read_back(pair: Pair, topic: str) -> None:
    client = pair.client()
    client.create_topic(topic, configs={"max.message.bytes": str(12 << 20)})
    big = Record(os.urandom(10_000_000), b"big", timestamp_ms=now_ms())
    small = Record(b"small", timestamp_ms=now_ms())
    assert client.produce(topic, [small, big, small]) == [0, 1, 2]
    read = client.read(topic, 0, 3)
    assert [len(record.value or b"") for record in read] == [5, 10_000_000, 5]
    assert read[1] == big.at(1, 0)


def test_consumers_seek_by_time_and_to_both_ends(pair: Pair, topic: str) -> None:
    client = pair.client()
    client.create_topic(topic)
    start = now_ms() - 100_000
    for batch in range(4):
        client.produce(topic, [Record(b"r", timestamp_ms=start + 10 * (10 * batch + number)) for number in range(10)])
    assert client.offset_at(topic, start - 5) == 0
    assert client.offset_at(topic, start) == 0
    assert client.offset_at(topic, start + 125) == 13
    assert client.offset_at(topic, start + 390) == 39
    assert client.offset_at(topic, start + 391) is None
    assert client.bounds(topic) == (0, 40)
    assert [record.offset for record in client.read(topic, 27, 3)] == [27, 28, 29]
    assert [record.offset for record in client.read(topic, "earliest", 2)] == [0, 1]
    with ThreadPoolExecutor() as threads:
        reading = threads.submit(client.read, topic, "latest", 1)
        while not reading.done():  # the reader determines the end at some time after its start
            client.produce(topic, [Record(b"newer")])
            time.sleep(0.2)
    (newest,) = reading.result()
    assert newest.value == b"newer"
    assert newest.offset is not None
    assert newest.offset >= 40


def test_topic_is_created_when_a_producer_writes_to_it(pair: Pair, topic: str) -> None:
    client = pair.client()
    assert client.produce(topic, [Record(b"first", partition=3)]) == [0]  # four partitions by default
    assert [record.value for record in client.read(topic, 0, 1, partition=3)] == [b"first"]


def test_record_is_visible_on_all_brokers_immediately_after_its_acknowledgement(pair: Pair, topic: str) -> None:
    pair.client().create_topic(topic)
    for number in range(6):
        writer, reader = pair.client(number), pair.client(number + 1)
        (offset,) = writer.produce(topic, [Record(f"record {number}".encode())])
        assert offset == number
        assert reader.bounds(topic) == (0, number + 1)
        assert [record.value for record in reader.read(topic, number, 1)] == [f"record {number}".encode()]


@pytest.mark.alone
def test_waiting_fetch_returns_soon_after_an_append_on_another_broker(pair: Pair, topic: str) -> None:
    pair.client().create_topic(topic)
    count = 30
    acked: dict[int, float] = {}
    received: dict[int, float] = {}
    writer, reader = pair.client(0), pair.client(1)
    ready = threading.Event()

    def on_record(record: Record) -> None:
        assert record.offset is not None
        received[record.offset] = time.monotonic()
        ready.set()

    def on_ack(record: Record) -> None:
        assert record.offset is not None
        acked[record.offset] = time.monotonic()

    with ThreadPoolExecutor() as threads:
        reading = threads.submit(reader.read, topic, 0, count + 1, on_record=on_record)
        writer.produce(topic, [Record(b"warm up")])
        assert ready.wait(30)
        writer.produce(topic, [Record(b"x") for _ in range(count)], pause_s=0.05, on_ack=on_ack)
        reading.result()
    delays_ms = [1000 * (received[offset] - acked[offset]) for offset in sorted(acked)]
    print(f"\nfetched after {statistics.median(delays_ms):.1f} ms, at most {max(delays_ms):.1f} ms")
    assert statistics.median(delays_ms) < WAKE_UP_MS_MAX


def test_recreated_topic_has_no_records_of_the_deleted_one_under_load(pair: Pair, topic: str) -> None:
    """The new topic has all records sent after its creation, and none acknowledged before the deletion."""
    pair.client().create_topic(topic)
    loads = [Load(pair.cluster, number, topic) for number in range(3)]
    deleted_at = created_at = time.monotonic()
    with ThreadPoolExecutor() as threads:
        running = [threads.submit(load.run) for load in loads]
        try:
            for attempt in range(4):
                wait_for_more(loads, created_at)
                reader = pair.client(attempt)
                _, end = reader.bounds(topic)
                offsets = {record.value: record.offset for record in reader.read(topic, 0, end)}
                for load in loads:
                    load.check(offsets, end, deleted_at, created_at)
                deleted_at = time.monotonic()
                pair.client(attempt).delete_topic(topic)
                pair.client(attempt + 1).create_topic(topic)
                created_at = time.monotonic()
        finally:
            for load in loads:
                load.ended.set()
        for future in running:
            future.result()


class Load:
    """Sends continuously through one broker, also while the topic is deleted."""

    def __init__(self, cluster: BrokerProcesses, number: int, topic: str) -> None:
        broker = cluster[number % len(cluster)]
        self._settings = {
            "bootstrap.servers": broker.address,
            "client.id": f"load,zone_id={broker.zone}",
            "enable.idempotence": True,
            "allow.auto.create.topics": False,
            "topic.metadata.refresh.interval.ms": 500,
            "topic.metadata.propagation.max.ms": 0,
            "linger.ms": 1,
        }
        self._number = number
        self._topic = topic
        self.acked: list[tuple[bytes, int, float, float]] = []
        """Value, offset, and the times of send and acknowledgement."""
        self.ended = threading.Event()

    def run(self) -> None:
        producer = confluent_kafka.Producer(self._settings)
        for count in itertools.count():
            if self.ended.is_set():
                break
            value = f"{self._number}:{count}".encode()
            on_delivery = partial(self._on_delivery, value, time.monotonic())
            with suppress(confluent_kafka.KafkaException):  # the metadata of the client lack the topic at the moment
                producer.produce(self._topic, value, partition=0, on_delivery=on_delivery)
            producer.poll(0.005)
        producer.purge()
        producer.flush(10)

    def _on_delivery(self, value: bytes, sent_at: float, error: object, message: confluent_kafka.Message) -> None:
        offset = message.offset()
        if error is None and offset is not None:
            self.acked.append((value, offset, sent_at, time.monotonic()))

    def check(self, offsets: dict[bytes | None, int | None], end: int, deleted_at: float, created_at: float) -> None:
        for value, offset, sent_at, acked_at in list(self.acked):
            if acked_at < deleted_at:
                assert value not in offsets, f"{value!r} was acknowledged in the deleted topic"
            if sent_at > created_at and offset < end:
                assert offsets.get(value) == offset


def wait_for_more(loads: list[Load], since: float) -> None:
    """Waits until each load has an acknowledgement of a record sent after `since`."""
    deadline = time.monotonic() + 30
    while not all(load.acked and load.acked[-1][2] > since for load in loads):
        assert time.monotonic() < deadline, f"no progress: {[len(load.acked) for load in loads]}"
        time.sleep(0.02)
    time.sleep(0.3)


@pytest.mark.parametrize(("client", "setting"), list(itertools.product(CLIENTS, SETTINGS if SOAK else ["one-sqlite"])))
async def test_records_are_neither_lost_nor_duplicated_when_connections_are_cut(
    client: str, setting: str, tmp_path: Path, topic: str
) -> None:
    count = 300
    size, stores = SETTINGS[setting]
    async with toxiproxy() as network, brokers(tmp_path, size, stores, network=network) as cluster:
        proxies = [broker.proxy for broker in cluster if broker.proxy is not None]
        assert len(proxies) == size
        stock_client = CLIENTS[client](cluster.bootstrap)
        await asyncio.to_thread(stock_client.create_topic, topic)
        records = [Record(f"{number}".encode()) for number in range(count)]
        producing = asyncio.create_task(asyncio.to_thread(stock_client.produce, topic, records, pause_s=0.01))
        for _ in range(4):
            await asyncio.sleep(0.6)
            for proxy in proxies:
                await proxy.cut()
            await asyncio.sleep(0.1)
            for proxy in proxies:
                await proxy.restore()
        offsets = await producing
        assert offsets == list(range(count))
        read = await asyncio.to_thread(stock_client.read, topic, 0, count)
        assert [record.value for record in read] == [record.value for record in records]
        assert await asyncio.to_thread(stock_client.bounds, topic) == (0, count)
