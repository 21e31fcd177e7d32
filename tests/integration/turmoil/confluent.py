"""confluent-kafka (librdkafka) behind the faces of faces.py."""

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from tests.integration.turmoil.faces import (
    CALL_S_MAX,
    DELIVERY_MS,
    HEARTBEAT_MS,
    METADATA_MS,
    POLL_INTERVAL_MS,
    POLLED_MAX,
    REQUEST_MS,
    SESSION_MS,
    TRANSACTION_MS,
    Polled,
    Told,
    bounded,
)
from tests.integration.turmoil.history import Place, Position, Record
from tests.integration.turmoil.known import UNKNOWN, Stuck, of_librdkafka

ERRORS: Final = (KafkaException, TimeoutError)
HARMLESS: Final = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._PARTITION_EOF,
}
"""What a consumer is told on its way. It goes on by itself."""
LINES_MAX: Final = 2_000


def _common(bootstrap: str, name: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "client.id": name,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 300,
        "retry.backoff.ms": 50,
        "socket.timeout.ms": REQUEST_MS,
        "topic.metadata.refresh.interval.ms": METADATA_MS,
        "log_level": 0,
    }


class Lines(logging.Handler):
    """The last lines that a client wrote about itself."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: deque[str] = deque(maxlen=LINES_MAX)
        self.logger = logging.Logger("librdkafka", logging.DEBUG)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if not self.kept or self.kept[-1] != line:  # some are said thousands of times
            self.kept.append(line)


class Sender:
    def __init__(self, bootstrap: str, name: str) -> None:
        own = {"enable.idempotence": True, "message.timeout.ms": DELIVERY_MS, "linger.ms": 5}
        self._producer = confluent_kafka.Producer(_common(bootstrap, name) | own)

    def send(self, place: Place, value: str, told: Told) -> None:
        def delivered(error: object, message: confluent_kafka.Message) -> None:
            told(message.offset() if error is None else None)

        self._producer.produce(place.topic, value.encode(), partition=place.number, on_delivery=delivered)
        self._producer.poll(0)

    def wait(self, wait_s: float) -> None:
        """Answers are told meanwhile."""
        until_s = time.monotonic() + wait_s
        while (left_s := until_s - time.monotonic()) > 0:
            self._producer.poll(left_s)

    def close(self) -> None:
        self._producer.flush(CALL_S_MAX)


class Writer:
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        own = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_MS,
            "message.timeout.ms": TRANSACTION_MS,
            "linger.ms": 0,
        }
        self._lines = Lines()
        settings = _common(bootstrap, transactional_id) | own | {"debug": "eos,broker", "log_level": 7}
        self._producer = confluent_kafka.Producer(settings, logger=self._lines.logger)
        self._producer.init_transactions(CALL_S_MAX)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, place: Place, value: str, told: Told) -> None:
        def delivered(error: object, message: confluent_kafka.Message) -> None:
            told(message.offset() if error is None else None)

        self._producer.produce(place.topic, value.encode(), partition=place.number, on_delivery=delivered)
        self._producer.poll(0)

    def send_offsets(self, positions: Sequence[Position], reader: "Reader", group: str) -> None:
        """The only one of its calls that keeps no time-out."""
        offsets = [TopicPartition(at.place.topic, at.place.number, at.offset) for at in positions]
        metadata = reader.metadata()

        def look(_: float) -> Stuck:
            lines = self._said()
            return Stuck(of_librdkafka(lines), "\n".join(lines))

        bounded(lambda: self._producer.send_offsets_to_transaction(offsets, metadata, CALL_S_MAX), look)

    def commit(self) -> None:
        bounded(lambda: self._producer.commit_transaction(CALL_S_MAX), self._look)

    def abort(self) -> None:
        bounded(lambda: self._producer.abort_transaction(CALL_S_MAX), self._look)

    def _look(self, _: float) -> Stuck:
        return Stuck(UNKNOWN, "\n".join(self._said()))

    def _said(self) -> list[str]:
        self._producer.poll(0)  # what it has to say waits in a queue
        return list(self._lines.kept)

    def close(self) -> None:
        """As a crash: what is open stays so."""
        del self._producer


class Reader:
    protocol: ClassVar[dict[str, Any]] = {
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "max.poll.interval.ms": POLL_INTERVAL_MS,
        "partition.assignment.strategy": "range,roundrobin",
    }

    def __init__(self, bootstrap: str, name: str, topics: Sequence[str], group: str, *, committed: bool) -> None:
        own = {
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.wait.max.ms": 100,
        }
        self.session = 0
        self._consumer: Any = confluent_kafka.Consumer(_common(bootstrap, name) | own | self.protocol)
        self._consumer.subscribe(list(topics), on_assign=self._on_assign)

    def _on_assign(self, *_: object) -> None:
        self.session += 1

    def poll(self, wait_s: float) -> tuple[int, Polled]:
        found: Polled = {}
        for message in self._consumer.consume(POLLED_MAX, wait_s):
            error = message.error()
            if error is None:
                place = Place(message.topic(), message.partition())
                found.setdefault(place, []).append(Record(message.offset(), message.value().decode()))
            elif error.code() not in HARMLESS:
                raise KafkaException(error)
        return self.session, found

    def commit(self, positions: Sequence[Position]) -> None:
        offsets = [TopicPartition(at.place.topic, at.place.number, at.offset) for at in positions]
        for one in self._consumer.commit(offsets=offsets, asynchronous=False):
            if one.error is not None:
                raise KafkaException(one.error)

    def rewind(self, positions: Mapping[Place, int]) -> None:
        self.session += 1
        for place, offset in positions.items():
            self._consumer.seek(TopicPartition(place.topic, place.number, offset))

    def metadata(self) -> Any:
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        self._consumer.close()


class NewReader(Reader):
    """Of the new protocol of groups, in which the brokers assign."""

    protocol: ClassVar[dict[str, Any]] = {"group.protocol": "consumer", "max.poll.interval.ms": POLL_INTERVAL_MS}


class New:
    """As a library."""

    ERRORS = ERRORS
    Sender, Writer, Reader = Sender, Writer, NewReader
