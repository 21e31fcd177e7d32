"""kafka-python with the interface of client_api.py."""

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

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
from tests.integration.jepsen_style.client_logging import warnings_of_thread
from tests.integration.jepsen_style.history import Place, Position, Record
from tests.integration.jepsen_style.known_client_bugs import HungCall, of_kafka_python

with warnings.catch_warnings():  # kafka-python uses functions that Python 3.11 deprecates
    warnings.simplefilter("ignore")
    import kafka  # type: ignore[import-untyped]

ERRORS: Final = (kafka.errors.KafkaError, OSError, AssertionError, RuntimeError, ValueError)
"""Errors of a failing network: kafka-python uses assertions, and closes sockets that it still reads from."""


def _common(bootstrap: str, name: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": bootstrap.split(","),
        "client_id": name,
        "request_timeout_ms": REQUEST_MS,
        "reconnect_backoff_ms": 20,
        "reconnect_backoff_max_ms": 300,
        "metadata_max_age_ms": METADATA_MS,
    }


class IdempotentProducer:
    def __init__(self, bootstrap: str, name: str) -> None:
        self._producer = kafka.KafkaProducer(
            **_common(bootstrap, name), delivery_timeout_ms=DELIVERY_MS, linger_ms=5, max_block_ms=1000 * CALL_S_MAX
        )

    def send(self, place: Place, value: str, on_result: OffsetCallback) -> None:
        _send(self._producer, place, value, on_result)

    def wait(self, wait_s: float) -> None:
        time.sleep(wait_s)

    def close(self) -> None:
        self._producer.close(CALL_S_MAX)


def _record_of(record: Any) -> Record:
    content = Content(record.key, record.timestamp, tuple(record.headers))
    return Record(record.offset, text_of(record.value, content))


def _send(producer: Any, place: Place, value: str, on_result: OffsetCallback) -> Any:
    key, timestamp_ms, headers = content_of(value)
    future = producer.send(
        place.topic, value.encode(), key, headers=list(headers), partition=place.number, timestamp_ms=timestamp_ms
    )
    future.add_callback(lambda stored: on_result(stored.offset if stored.offset >= 0 else None))
    future.add_errback(lambda _: on_result(None))
    return future


class TransactionalProducer:
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._producer = kafka.KafkaProducer(
            **_common(bootstrap, transactional_id),
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_MS,
            delivery_timeout_ms=TRANSACTION_MS,
            max_block_ms=1000 * CALL_S_MAX,
        )
        try:
            bounded(self._producer.init_transactions, self._inspect)
        except BaseException:
            self.close()
            raise

        self._futures: list[Any] = []

    def begin(self) -> None:
        self._futures.clear()
        self._producer.begin_transaction()

    def send(self, place: Place, value: str, on_result: OffsetCallback) -> None:
        self._futures.append(_send(self._producer, place, value, on_result))

    def send_offsets(self, positions: Sequence[Position], reader: "GroupConsumer", group: str) -> None:
        metadata = reader.metadata()
        bounded(lambda: self._producer.send_offsets_to_transaction(_offsets(positions), metadata), self._inspect)

    def commit(self) -> None:
        """Checks all records first: kafka-python commits without records that it failed to send, and returns no
        error."""
        for future in self._futures:
            future.get(CALL_S_MAX)
        bounded(self._producer.commit_transaction, self._inspect)

    def abort(self) -> None:
        bounded(self._producer.abort_transaction, self._inspect)

    def _inspect(self, start_s: float) -> HungCall:
        sender, manager = self._producer._sender, self._producer._transaction_manager
        waiting = [type(handler).__name__ for *_, handler in list(manager._pending_requests)]
        has_request = manager.has_in_flight_transactional_request()
        on_connections = sum(
            len(connection.in_flight_requests) for connection in list(sender._client._manager._conns.values())
        )
        lines = warnings_of_thread(sender.ident, start_s)
        state = (
            f"state {manager._current_state.name}, last error {manager.last_error!r}, pending requests {waiting},"
            f" request in flight {has_request}, {on_connections} on connections,"
            f" incomplete batches {self._producer._accumulator.has_incomplete},"
            f" coordinators {manager._transaction_coordinator} {manager._consumer_group_coordinator}"
        )
        return HungCall(of_kafka_python(lines, has_more=bool(has_request or waiting)), "\n".join([state, *lines]))

    def close(self) -> None:
        self._producer.close(0)


class GroupConsumer:
    def __init__(self, bootstrap: str, name: str, topics: Sequence[str], group: str, *, committed: bool) -> None:
        self.session = 0
        reader = self

        class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Any) -> None: ...

            def on_partitions_assigned(self, assigned: Any) -> None:
                reader.session += 1

        self._consumer = kafka.KafkaConsumer(
            **_common(bootstrap, name),
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed" if committed else "read_uncommitted",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=POLL_INTERVAL_MS,
            fetch_max_wait_ms=100,
            max_poll_records=POLLED_MAX,
        )
        self._consumer.subscribe(list(topics), listener=Listener())

    def poll(self, wait_s: float) -> tuple[int, PolledRecords]:
        batches = self._consumer.poll(int(1000 * wait_s))
        return self.session, {
            Place(where.topic, where.partition): [_record_of(record) for record in records]
            for where, records in batches.items()
        }

    def commit(self, positions: Sequence[Position]) -> None:
        self._consumer.commit(_offsets(positions), timeout_ms=int(1000 * CALL_S_MAX))

    def rewind(self, positions: Mapping[Place, int]) -> None:
        self.session += 1
        for place, offset in positions.items():
            self._consumer.seek(kafka.TopicPartition(*place), offset)

    def metadata(self) -> Any:
        return self._consumer.group_metadata()

    def close(self) -> None:
        self._consumer.close(timeout_ms=int(1000 * CALL_S_MAX))


def _offsets(positions: Sequence[Position]) -> dict[Any, Any]:
    return {kafka.TopicPartition(*at.place): kafka.OffsetAndMetadata(at.offset, "", -1) for at in positions}
