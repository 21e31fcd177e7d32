"""Clients for tests with faults, each on a thread of its own.

Values of records contain the number of their producer. Consumers read from the beginning repeatedly. The key, timestamp
and headers of a record follow from its value, so that readers can check them.
"""

import itertools
import random
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import confluent_kafka
from confluent_kafka import KafkaError, TopicPartition

BASE_MS: Final = 1_700_000_000_000
IN_FLIGHT_MAX: Final = 200
FLUSH_S_MAX: Final = 60.0
PASS_S_MAX: Final = 20.0
PAUSE_S: Final = 0.5
RECONNECT: Final = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "log_level": 0}
HARMLESS: Final = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT}
"""Errors of a consumer while brokers are down; the consumer continues without intervention."""

Headers = tuple[tuple[str, bytes | None], ...]


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


class Record(NamedTuple):
    value: bytes | None
    key: bytes | None
    timestamp_ms: int
    headers: Headers


Log = dict[int, Record]
"""Records by offset."""


def record_of_number(producer: int, number: int) -> Record:
    padding = "." * (number % 7 * 10)
    return Record(
        f"{producer}:{number}:{padding}".encode(),
        b"key %d" % (number % 10) if number % 4 else None,
        BASE_MS + number,
        (("number", b"%d" % number), ("number", None)) if number % 3 == 0 else (),
    )


def producer_of(record: Record) -> tuple[int, int]:
    """Returns the producer of a record, and its number among the producer's records."""
    producer, number, _ = (record.value or b"").decode().split(":")
    return int(producer), int(number)


@dataclass
class Producer:
    number: int
    bootstrap: str
    places: list[Place]
    pace_s: float
    sent: dict[Place, list[Record]] = field(default_factory=lambda: defaultdict(list))
    acked: dict[Place, Log] = field(default_factory=lambda: defaultdict(dict))
    errors: list[str] = field(default_factory=list)

    def run(self, ended: threading.Event) -> None:
        """Sends records until `ended` is set, and then waits for all acknowledgements."""
        rng = random.Random(self.number)
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "client.id": f"producer-{self.number}",
                "enable.idempotence": True,
                "message.timeout.ms": int(FLUSH_S_MAX * 1000),
                "compression.type": ("none", "lz4", "zstd")[self.number % 3],
                "linger.ms": 5,
                "batch.num.messages": 20,
                "retry.backoff.ms": 20,
                "topic.metadata.refresh.interval.ms": 1_000,
                **RECONNECT,
            }
        )
        for number in itertools.count():
            if ended.is_set():
                break
            self._send(producer, rng.choice(self.places), record_of_number(self.number, number))
            producer.poll(self.pace_s)
            while len(producer) > IN_FLIGHT_MAX and not ended.is_set():
                producer.poll(0.05)
        if left := producer.flush(FLUSH_S_MAX):
            self.errors.append(
                f"producer {self.number}: {left} records are not acknowledged although all brokers are running"
            )

    def _send(self, producer: confluent_kafka.Producer, place: Place, record: Record) -> None:
        self.sent[place].append(record)
        producer.produce(
            place.topic,
            record.value,
            record.key,
            place.number,
            on_delivery=partial(self._on_delivery, place, record),
            timestamp=record.timestamp_ms,
            headers=list(record.headers) or None,
        )

    def _on_delivery(self, place: Place, record: Record, error: object, message: confluent_kafka.Message) -> None:
        offset = message.offset()
        if error is not None or offset is None:
            self.errors.append(f"producer {self.number}: {place} {record.value!r}: {error}")
        elif offset in self.acked[place]:
            self.errors.append(f"producer {self.number}: {place} offset {offset} was assigned twice")
        else:
            self.acked[place][offset] = record


class Consumer:
    """Reads a topic by assignment, and records the record of each offset and the skipped offsets."""

    def __init__(self, name: str, bootstrap: str, places: list[Place]) -> None:
        self.name = name
        self.seen: dict[Place, Log] = {place: {} for place in places}
        self.gaps: dict[Place, set[tuple[int, int]]] = {place: set() for place in places}
        """Skipped offsets, as half-open ranges."""
        self.errors: list[str] = []
        self.passes = 0
        """Number of passes that read every partition to its end."""
        self._bootstrap = bootstrap
        self._not_ended = threading.Event()

    def run(self, ended: threading.Event) -> None:
        while not ended.is_set():
            self.read(ended)
            ended.wait(PAUSE_S)

    def read(self, ended: threading.Event | None = None) -> bool:
        """Reads every partition from the beginning to its end. Returns False if `ended` was set or it took too long."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "client.id": self.name,
                "group.id": "none",  # required by the client; no group is joined
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",  # no offset below the end may be out of range
                "fetch.wait.max.ms": 100,
                **RECONNECT,
            }
        )
        try:
            return self._pass(consumer, ended or self._not_ended)
        finally:
            consumer.close()

    def _pass(self, consumer: confluent_kafka.Consumer, ended: threading.Event) -> bool:
        beginning = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([TopicPartition(place.topic, place.number, beginning) for place in self.seen])
        expected = dict.fromkeys(self.seen, 0)
        open_places = set(self.seen)
        deadline_s = time.monotonic() + PASS_S_MAX
        while open_places and not ended.is_set() and time.monotonic() < deadline_s:
            for message in consumer.consume(500, 0.2):
                error = message.error()
                if error is None:
                    self._record(message, expected)
                elif error.code() == KafkaError._PARTITION_EOF:
                    place = _place_of(message)
                    self._record_gap(place, expected[place], message.offset() or 0)
                    open_places.discard(place)
                elif error.code() not in HARMLESS:
                    self.errors.append(f"{self.name}: {error}")
        self.passes += not open_places
        return not open_places

    def _record(self, message: confluent_kafka.Message, expected: dict[Place, int]) -> None:
        place, offset = _place_of(message), message.offset()
        assert offset is not None
        if offset < expected[place]:
            self.errors.append(f"{self.name}: {place} offset {offset} was read after offset {expected[place] - 1}")
        self._record_gap(place, expected[place], offset)
        expected[place] = offset + 1
        record = _record_of(message)
        earlier = self.seen[place].setdefault(offset, record)
        if earlier != record:
            self.errors.append(f"{self.name}: {place} offset {offset} was {earlier}, is {record}")

    def _record_gap(self, place: Place, start: int, end: int) -> None:
        if start < end:
            self.gaps[place].add((start, end))


def _place_of(message: confluent_kafka.Message) -> Place:
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    return Place(topic, partition)


def _record_of(message: confluent_kafka.Message) -> Record:
    headers: Any = message.headers() or ()
    return Record(message.value(), message.key(), message.timestamp()[1], tuple(headers))
