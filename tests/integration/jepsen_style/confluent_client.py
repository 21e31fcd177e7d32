"""confluent-kafka (librdkafka) with the interface of client_api.py."""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from tests.integration.jepsen_style.client_api import (
    CALL_S_MAX,
    DELIVERY_MS,
    HEARTBEAT_MS,
    METADATA_MS,
    POLL_INTERVAL_MS,
    POLLED_MAX,
    REQUEST_MS,
    SESSION_MS,
    TRANSACTION_MS,
    Content,
    OffsetCallback,
    PolledRecords,
    bounded,
    content_of,
    text_of,
)
from tests.integration.jepsen_style.history import Place, Position, Record
from tests.integration.jepsen_style.known_client_bugs import (
    LIBRDKAFKA_ABORTS_NOTHING,
    UNKNOWN,
    HungCall,
    aborts_nothing,
    of_librdkafka,
)


class ClientError(Exception):
    """An error, its cause, and the last lines of the client's log."""


ERRORS: Final = (KafkaException, TimeoutError, ClientError)
HARMLESS: Final = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._PARTITION_EOF,
}
"""Errors after which a consumer continues without intervention."""
LINES_MAX: Final = 2_000
ERROR_LINES: Final = 40


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


class LogLines(logging.Handler):
    """The last lines of a client's log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=LINES_MAX)
        self.logger = logging.Logger("librdkafka", logging.DEBUG)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if not self.lines or self.lines[-1] != line:  # some lines are repeated thousands of times
            self.lines.append(line)


def _produce(
    producer: confluent_kafka.Producer,
    place: Place,
    value: str,
    on_delivery: Callable[[object, confluent_kafka.Message], None],
) -> None:
    key, timestamp_ms, headers = content_of(value)
    producer.produce(
        place.topic,
        value.encode(),
        key,
        place.number,
        on_delivery=on_delivery,
        timestamp=timestamp_ms,
        headers=list(headers) or None,
    )
    producer.poll(0)


def record_of(message: confluent_kafka.Message) -> Record:
    headers: Any = message.headers() or ()
    content = Content(message.key(), message.timestamp()[1], tuple(headers))
    return Record(message.offset() or 0, text_of(message.value(), content))


class IdempotentProducer:
    def __init__(self, bootstrap: str, name: str) -> None:
        settings = {"enable.idempotence": True, "message.timeout.ms": DELIVERY_MS, "linger.ms": 5}
        self._producer = confluent_kafka.Producer(_common(bootstrap, name) | settings)

    def send(self, place: Place, value: str, on_result: OffsetCallback) -> None:
        def on_delivery(error: object, message: confluent_kafka.Message) -> None:
            on_result(message.offset() if error is None else None)

        _produce(self._producer, place, value, on_delivery)

    def wait(self, wait_s: float) -> None:
        """Waits, and runs the callbacks of delivered records."""
        deadline_s = time.monotonic() + wait_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            self._producer.poll(left_s)

    def close(self) -> None:
        self._producer.flush(CALL_S_MAX)


class TransactionalProducer:
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        settings = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_MS,
            "message.timeout.ms": TRANSACTION_MS,
            "linger.ms": 0,
        }
        self._log = LogLines()
        logged = _common(bootstrap, transactional_id) | settings | {"debug": "eos,broker", "log_level": 7}
        self._producer = confluent_kafka.Producer(logged, logger=self._log.logger)
        self._producer.init_transactions(CALL_S_MAX)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, place: Place, value: str, on_result: OffsetCallback) -> None:
        def on_delivery(error: object, message: confluent_kafka.Message) -> None:
            on_result(message.offset() if error is None else None)

        _produce(self._producer, place, value, on_delivery)

    def send_offsets(self, positions: Sequence[Position], reader: "GroupConsumer", group: str) -> None:
        """Sends offsets to the transaction, the only call of librdkafka that ignores its timeout."""
        offsets = [TopicPartition(at.place.topic, at.place.number, at.offset) for at in positions]
        metadata = reader.metadata()

        def inspect(_: float) -> HungCall:
            lines = self._log_lines()
            return HungCall(of_librdkafka(lines), "\n".join(lines))

        bounded(lambda: self._producer.send_offsets_to_transaction(offsets, metadata, CALL_S_MAX), inspect)

    def commit(self) -> None:
        bounded(lambda: self._producer.commit_transaction(CALL_S_MAX), self._inspect)

    def abort(self) -> None:
        try:
            bounded(lambda: self._producer.abort_transaction(CALL_S_MAX), self._inspect)
        except KafkaException as error:
            lines = self._log_lines()
            cause = LIBRDKAFKA_ABORTS_NOTHING if aborts_nothing(lines) else UNKNOWN
            raise ClientError(f"{error}: {cause}", "\n".join(lines[-ERROR_LINES:])) from error

    def _inspect(self, _: float) -> HungCall:
        return HungCall(UNKNOWN, "\n".join(self._log_lines()))

    def _log_lines(self) -> list[str]:
        self._producer.poll(0)  # moves log lines from the queue of the client
        return list(self._log.lines)

    def close(self) -> None:
        """Closes the client like a crash: an open transaction stays open."""
        del self._producer


class GroupConsumer:
    protocol: ClassVar[dict[str, Any]] = {
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "max.poll.interval.ms": POLL_INTERVAL_MS,
        "partition.assignment.strategy": "range,roundrobin",
    }

    def __init__(self, bootstrap: str, name: str, topics: Sequence[str], group: str, *, committed: bool) -> None:
        settings = {
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.wait.max.ms": 100,
        }
        self.session = 0
        self._consumer: Any = confluent_kafka.Consumer(_common(bootstrap, name) | settings | self.protocol)
        self._consumer.subscribe(list(topics), on_assign=self._on_assign)

    def _on_assign(self, *_: object) -> None:
        self.session += 1

    def poll(self, wait_s: float) -> tuple[int, PolledRecords]:
        records: PolledRecords = {}
        for message in self._consumer.consume(POLLED_MAX, wait_s):
            error = message.error()
            if error is None:
                place = Place(message.topic(), message.partition())
                records.setdefault(place, []).append(record_of(message))
            elif error.code() not in HARMLESS:
                raise KafkaException(error)
        return self.session, records

    def commit(self, positions: Sequence[Position]) -> None:
        offsets = [TopicPartition(at.place.topic, at.place.number, at.offset) for at in positions]
        for partition in self._consumer.commit(offsets=offsets, asynchronous=False):
            if partition.error is not None:
                raise KafkaException(partition.error)

    def rewind(self, positions: Mapping[Place, int]) -> None:
        self.session += 1
        for place, offset in positions.items():
            self._consumer.seek(TopicPartition(place.topic, place.number, offset))

    def metadata(self) -> Any:
        return self._consumer.consumer_group_metadata()

    def close(self) -> None:
        self._consumer.close()


class ConsumerProtocolReader(GroupConsumer):
    """Member of the consumer protocol (KIP-848), in which the brokers assign partitions."""

    protocol: ClassVar[dict[str, Any]] = {"group.protocol": "consumer", "max.poll.interval.ms": POLL_INTERVAL_MS}


class ConsumerProtocol:
    """Library whose readers use the consumer protocol."""

    ERRORS = ERRORS
    IdempotentProducer, TransactionalProducer, GroupConsumer = (
        IdempotentProducer,
        TransactionalProducer,
        ConsumerProtocolReader,
    )
