"""Clients for a storm, each on a thread of its own: producers whose values say who wrote them, and consumers that read
from the beginning again and again.

What a record consists of follows from its value, so whoever sees a value knows what else has to be there.
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
"""What a consumer is told while brokers are down. It goes on by itself."""

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
"""By offset."""


def made(producer: int, number: int) -> Record:
    padding = "." * (number % 7 * 10)
    return Record(
        f"{producer}:{number}:{padding}".encode(),
        b"key %d" % (number % 10) if number % 4 else None,
        BASE_MS + number,
        (("number", b"%d" % number), ("number", None)) if number % 3 == 0 else (),
    )


def writer_of(record: Record) -> tuple[int, int]:
    """Who wrote it, and which of his it is."""
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
    wrong: list[str] = field(default_factory=list)

    def run(self, ended: threading.Event) -> None:
        """Until told to end; then until all is answered."""
        luck = random.Random(self.number)
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
            self._send(producer, luck.choice(self.places), made(self.number, number))
            producer.poll(self.pace_s)
            while len(producer) > IN_FLIGHT_MAX and not ended.is_set():
                producer.poll(0.05)
        if left := producer.flush(FLUSH_S_MAX):
            self.wrong.append(f"producer {self.number}: {left} records are not answered although all brokers live")

    def _send(self, producer: confluent_kafka.Producer, place: Place, record: Record) -> None:
        self.sent[place].append(record)
        producer.produce(
            place.topic,
            record.value,
            record.key,
            place.number,
            on_delivery=partial(self._told, place, record),
            timestamp=record.timestamp_ms,
            headers=list(record.headers) or None,
        )

    def _told(self, place: Place, record: Record, error: object, message: confluent_kafka.Message) -> None:
        offset = message.offset()
        if error is not None or offset is None:
            self.wrong.append(f"producer {self.number}: {place} {record.value!r}: {error}")
        elif offset in self.acked[place]:
            self.wrong.append(f"producer {self.number}: {place} offset {offset} was given twice")
        else:
            self.acked[place][offset] = record


class Consumer:
    """Reads a topic by assignment. It keeps what it saw at each offset, and which offsets were passed over."""

    def __init__(self, name: str, bootstrap: str, places: list[Place]) -> None:
        self.name = name
        self.seen: dict[Place, Log] = {place: {} for place in places}
        self.gaps: dict[Place, set[tuple[int, int]]] = {place: set() for place in places}
        """Half-open."""
        self.wrong: list[str] = []
        self.passes = 0
        """That came to the end of every partition."""
        self._bootstrap = bootstrap
        self._never = threading.Event()

    def run(self, ended: threading.Event) -> None:
        while not ended.is_set():
            self.read(ended)
            ended.wait(PAUSE_S)

    def read(self, ended: threading.Event | None = None) -> bool:
        """From the beginning to the end of every partition. False: told to end, or it took too long."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "client.id": self.name,
                "group.id": "none",  # demanded by the client; nothing joins a group
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",  # no offset below the end may be out of range
                "fetch.wait.max.ms": 100,
                **RECONNECT,
            }
        )
        try:
            return self._pass(consumer, ended or self._never)
        finally:
            consumer.close()

    def _pass(self, consumer: confluent_kafka.Consumer, ended: threading.Event) -> bool:
        beginning = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([TopicPartition(place.topic, place.number, beginning) for place in self.seen])
        expected = dict.fromkeys(self.seen, 0)
        open_places = set(self.seen)
        until_s = time.monotonic() + PASS_S_MAX
        while open_places and not ended.is_set() and time.monotonic() < until_s:
            for message in consumer.consume(500, 0.2):
                error = message.error()
                if error is None:
                    self._note(message, expected)
                elif error.code() == KafkaError._PARTITION_EOF:
                    place = _place_of(message)
                    self._note_gap(place, expected[place], message.offset() or 0)
                    open_places.discard(place)
                elif error.code() not in HARMLESS:
                    self.wrong.append(f"{self.name}: {error}")
        self.passes += not open_places
        return not open_places

    def _note(self, message: confluent_kafka.Message, expected: dict[Place, int]) -> None:
        place, offset = _place_of(message), message.offset()
        assert offset is not None
        if offset < expected[place]:
            self.wrong.append(f"{self.name}: {place} offset {offset} came after offset {expected[place] - 1}")
        self._note_gap(place, expected[place], offset)
        expected[place] = offset + 1
        record = _record_of(message)
        before = self.seen[place].setdefault(offset, record)
        if before != record:
            self.wrong.append(f"{self.name}: {place} offset {offset} was {before}, is {record}")

    def _note_gap(self, place: Place, start: int, end: int) -> None:
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
