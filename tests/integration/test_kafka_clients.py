"""Stock clients against real brokers, by assignment: what each of them sends, each of them reads back, on any broker.

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
from tests.integration.kafka_clients import CLIENTS, Client, Confluent, Record
from tests.integration.programs import SETTINGS, SOAK, cluster_of, pairs

from lakestream.testing.brokers import Brokers, brokers
from lakestream.testing.servers import toxiproxy

WOKEN_MS_MAX: Final = 20.0

pytestmark = pytest.mark.filterwarnings("default")  # what the clients are warned of is their own affair


@pytest.fixture(autouse=True)
def _clients_leave_nothing() -> Iterator[None]:
    """kafka-python leaves sockets to the collector when its connection was cut: let it complain here, not later."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@dataclass(frozen=True)
class Pair:
    kind: type[Client]
    cluster: Brokers

    def client(self, broker: int | None = None) -> Client:
        """One that goes to any broker, or to a certain one."""
        if broker is None:
            return self.kind(self.cluster.bootstrap)
        member = self.cluster[broker % len(self.cluster)]
        return self.kind(member.address, f"tests,zone_id={member.zone}")


@pytest.fixture(scope="module", params=pairs(["aiokafka", "kafka-python", "confluent-kafka"]), ids="-".join)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    client, setting = request.param
    for cluster in cluster_of(setting, tmp_path_factory):
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


def test_every_codec_carries_keys_headers_times_and_nothing(pair: Pair, topic: str) -> None:
    client, other = pair.client(), Confluent(pair.cluster[len(pair.cluster) - 1].address)
    client.create_topic(topic, partitions=2)
    time_ms = now_ms() - 3_600_000
    sent: list[Record] = []
    for sender, codec in [(client, codec) for codec in client.codecs] + [(other, "zstd")]:
        records = [
            Record(record.value, record.key, headers_for(sender, record), time_ms + len(sent) + number, partition=1)
            for number, record in enumerate(VARIOUS)
        ]
        offsets = sender.produce(topic, records, codec if codec in client.codecs else "gzip")
        assert offsets == list(range(len(sent), len(sent) + len(records)))
        sent += records
    read = client.read(topic, "earliest", len(sent), partition=1)
    assert read == [record.at(offset, 0) for offset, record in enumerate(sent)]
    assert other.read(topic, 0, len(sent), partition=1) == read
    assert client.bounds(topic, 0) == (0, 0)
    assert client.bounds(topic, 1) == (0, len(sent))


def test_a_batch_arrives_compressed(pair: Pair, topic: str) -> None:
    """Some clients leave it out, without a word, for a broker that lacks a request which they take for a sign."""
    client = pair.client()
    client.create_topic(topic, configs={"max.message.bytes": "10000"})
    large = Record(b"again and " * 10_000)
    for number, codec in enumerate(codec for codec in client.codecs if codec != "none"):
        assert client.produce(topic, [large], codec) == [number], codec


def headers_for(client: Client, record: Record) -> tuple[tuple[str, bytes | None], ...]:
    return tuple(header for header in record.headers if header[1] is not None or client.sends_null_headers)


def test_a_record_without_a_time_gets_the_clients_own(pair: Pair, topic: str) -> None:
    client = pair.client()
    client.create_topic(topic)
    before = now_ms()
    client.produce(topic, [Record(b"now")])
    (read,) = client.read(topic, 0, 1)
    assert read.timestamp_ms is not None
    assert before <= read.timestamp_ms <= now_ms()


def test_a_record_of_ten_megabytes(pair: Pair, topic: str) -> None:
    client = pair.client()
    client.create_topic(topic, configs={"max.message.bytes": str(12 << 20)})
    big = Record(os.urandom(10_000_000), b"big", timestamp_ms=now_ms())
    small = Record(b"small", timestamp_ms=now_ms())
    assert client.produce(topic, [small, big, small]) == [0, 1, 2]
    read = client.read(topic, 0, 3)
    assert [len(record.value or b"") for record in read] == [5, 10_000_000, 5]
    assert read[1] == big.at(1, 0)


def test_seek_by_time_and_to_both_ends(pair: Pair, topic: str) -> None:
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
        while not reading.done():  # when exactly the reader has found the end is its own affair
            client.produce(topic, [Record(b"newer")])
            time.sleep(0.2)
    (newest,) = reading.result()
    assert newest.value == b"newer"
    assert newest.offset is not None
    assert newest.offset >= 40


def test_a_topic_appears_when_it_is_written_to(pair: Pair, topic: str) -> None:
    client = pair.client()
    assert client.produce(topic, [Record(b"first", partition=3)]) == [0]  # four partitions by default
    assert [record.value for record in client.read(topic, 0, 1, partition=3)] == [b"first"]


def test_what_one_broker_acknowledged_every_other_shows_at_once(pair: Pair, topic: str) -> None:
    pair.client().create_topic(topic)
    for turn in range(6):
        writer, reader = pair.client(turn), pair.client(turn + 1)
        (offset,) = writer.produce(topic, [Record(f"turn {turn}".encode())])
        assert offset == turn
        assert reader.bounds(topic) == (0, turn + 1)
        assert [record.value for record in reader.read(topic, turn, 1)] == [f"turn {turn}".encode()]


@pytest.mark.alone
def test_a_waiting_fetch_is_woken_by_an_append_on_another_broker(pair: Pair, topic: str) -> None:
    pair.client().create_topic(topic)
    count = 30
    acked: dict[int, float] = {}
    received: dict[int, float] = {}
    writer, reader = pair.client(0), pair.client(1)
    ready = threading.Event()

    def got(record: Record) -> None:
        assert record.offset is not None
        received[record.offset] = time.monotonic()
        ready.set()

    def told(record: Record) -> None:
        assert record.offset is not None
        acked[record.offset] = time.monotonic()

    with ThreadPoolExecutor() as threads:
        reading = threads.submit(reader.read, topic, 0, count + 1, on_record=got)
        writer.produce(topic, [Record(b"warm up")])
        assert ready.wait(30)
        writer.produce(topic, [Record(b"x") for _ in range(count)], pause_s=0.05, on_ack=told)
        reading.result()
    delays_ms = [1000 * (received[offset] - acked[offset]) for offset in sorted(acked)]
    print(f"\nwoken after {statistics.median(delays_ms):.1f} ms, at most {max(delays_ms):.1f} ms")
    assert statistics.median(delays_ms) < WOKEN_MS_MAX


def test_a_topic_that_is_deleted_and_made_again_under_load_is_new(pair: Pair, topic: str) -> None:
    """What was acknowledged before a deletion is never in the new topic; what was sent after its making always is."""
    pair.client().create_topic(topic)
    loads = [Load(pair.cluster, number, topic) for number in range(3)]
    deleted_at = created_at = time.monotonic()
    with ThreadPoolExecutor() as threads:
        running = [threads.submit(load.run) for load in loads]
        try:
            for turn in range(4):
                wait_for_more(loads, created_at)
                reader = pair.client(turn)
                _, end = reader.bounds(topic)
                there = {record.value: record.offset for record in reader.read(topic, 0, end)}
                for load in loads:
                    load.check(there, end, deleted_at, created_at)
                deleted_at = time.monotonic()
                pair.client(turn).delete_topic(topic)
                pair.client(turn + 1).create_topic(topic)
                created_at = time.monotonic()
        finally:
            for load in loads:
                load.ended.set()
        for one in running:
            one.result()


class Load:
    """Sends without pause through one broker, whatever becomes of the topic."""

    def __init__(self, cluster: Brokers, number: int, topic: str) -> None:
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
        """Value, offset, when it was sent and when it was acknowledged."""
        self.ended = threading.Event()

    def run(self) -> None:
        producer = confluent_kafka.Producer(self._settings)
        for count in itertools.count():
            if self.ended.is_set():
                break
            value = f"{self._number}:{count}".encode()
            told = partial(self._told, value, time.monotonic())
            with suppress(confluent_kafka.KafkaException):  # it has heard that there is no such topic just now
                producer.produce(self._topic, value, partition=0, on_delivery=told)
            producer.poll(0.005)
        producer.purge()
        producer.flush(10)

    def _told(self, value: bytes, sent_at: float, error: object, message: confluent_kafka.Message) -> None:
        offset = message.offset()
        if error is None and offset is not None:
            self.acked.append((value, offset, sent_at, time.monotonic()))

    def check(self, there: dict[bytes | None, int | None], end: int, deleted_at: float, created_at: float) -> None:
        for value, offset, sent_at, acked_at in list(self.acked):
            if acked_at < deleted_at:
                assert value not in there, f"{value!r} is of the deleted topic"
            if sent_at > created_at and offset < end:
                assert there.get(value) == offset


def wait_for_more(loads: list[Load], since: float) -> None:
    """Until each has an answer to something that was sent since then."""
    deadline = time.monotonic() + 30
    while not all(load.acked and load.acked[-1][2] > since for load in loads):
        assert time.monotonic() < deadline, f"no progress: {[len(load.acked) for load in loads]}"
        time.sleep(0.02)
    time.sleep(0.3)


@pytest.mark.parametrize(("client", "setting"), list(itertools.product(CLIENTS, SETTINGS if SOAK else ["one-sqlite"])))
async def test_a_connection_that_is_cut_neither_loses_nor_doubles(
    client: str, setting: str, tmp_path: Path, topic: str
) -> None:
    count = 300
    size, stores = SETTINGS[setting]
    async with toxiproxy() as network, brokers(tmp_path, size, stores, network=network) as cluster:
        proxies = [broker.proxy for broker in cluster if broker.proxy is not None]
        assert len(proxies) == size
        talking = CLIENTS[client](cluster.bootstrap)
        await asyncio.to_thread(talking.create_topic, topic)
        records = [Record(f"{number}".encode()) for number in range(count)]
        producing = asyncio.create_task(asyncio.to_thread(talking.produce, topic, records, pause_s=0.01))
        for _ in range(4):
            await asyncio.sleep(0.6)
            for proxy in proxies:
                await proxy.cut()
            await asyncio.sleep(0.1)
            for proxy in proxies:
                await proxy.mend()
        offsets = await producing
        assert offsets == list(range(count))
        read = await asyncio.to_thread(talking.read, topic, 0, count)
        assert [record.value for record in read] == [record.value for record in records]
        assert await asyncio.to_thread(talking.bounds, topic) == (0, count)
