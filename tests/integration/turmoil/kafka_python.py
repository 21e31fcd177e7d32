"""kafka-python behind the faces of faces.py."""

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

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
from tests.integration.turmoil.known import Stuck, of_kafka_python
from tests.integration.turmoil.quiet import warnings_of

with warnings.catch_warnings():  # it loads its schemas in a way that Python 3.11 calls old
    warnings.simplefilter("ignore")
    import kafka  # type: ignore[import-untyped]

ERRORS: Final = (kafka.errors.KafkaError, OSError, AssertionError, RuntimeError, ValueError)
"""It asserts what a network may well do, and closes sockets that it still reads from."""


def _common(bootstrap: str, name: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": bootstrap.split(","),
        "client_id": name,
        "request_timeout_ms": REQUEST_MS,
        "reconnect_backoff_ms": 20,
        "reconnect_backoff_max_ms": 300,
        "metadata_max_age_ms": METADATA_MS,
    }


class Sender:
    def __init__(self, bootstrap: str, name: str) -> None:
        self._producer = kafka.KafkaProducer(
            **_common(bootstrap, name), delivery_timeout_ms=DELIVERY_MS, linger_ms=5, max_block_ms=1000 * CALL_S_MAX
        )

    def send(self, place: Place, value: str, told: Told) -> None:
        _send(self._producer, place, value, told)

    def wait(self, wait_s: float) -> None:
        time.sleep(wait_s)

    def close(self) -> None:
        self._producer.close(CALL_S_MAX)


def _send(producer: Any, place: Place, value: str, told: Told) -> Any:
    answer = producer.send(place.topic, value.encode(), partition=place.number)
    answer.add_callback(lambda stored: told(stored.offset if stored.offset >= 0 else None))
    answer.add_errback(lambda _: told(None))
    return answer


class Writer:
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._producer = kafka.KafkaProducer(
            **_common(bootstrap, transactional_id),
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_MS,
            delivery_timeout_ms=TRANSACTION_MS,
            max_block_ms=1000 * CALL_S_MAX,
        )
        try:
            bounded(self._producer.init_transactions, self._look)
        except BaseException:
            self.close()
            raise

        self._answers: list[Any] = []

    def begin(self) -> None:
        self._answers.clear()
        self._producer.begin_transaction()

    def send(self, place: Place, value: str, told: Told) -> None:
        self._answers.append(_send(self._producer, place, value, told))

    def send_offsets(self, positions: Sequence[Position], reader: "Reader", group: str) -> None:
        metadata = reader.metadata()
        bounded(lambda: self._producer.send_offsets_to_transaction(_offsets(positions), metadata), self._look)

    def commit(self) -> None:
        """It would commit without the records that it gave up, and say nothing."""
        for answer in self._answers:
            answer.get(CALL_S_MAX)
        bounded(self._producer.commit_transaction, self._look)

    def abort(self) -> None:
        bounded(self._producer.abort_transaction, self._look)

    def _look(self, start_s: float) -> Stuck:
        sender, manager = self._producer._sender, self._producer._transaction_manager
        waiting = [type(handler).__name__ for *_, handler in list(manager._pending_requests)]
        asked = manager.has_in_flight_transactional_request()
        on_connections = sum(len(one.in_flight_requests) for one in list(sender._client._manager._conns.values()))
        lines = warnings_of(sender.ident, start_s)
        state = (
            f"state {manager._current_state.name}, last error {manager.last_error!r}, requests that wait {waiting},"
            f" one is asked {asked}, {on_connections} on connections,"
            f" batches that wait {self._producer._accumulator.has_incomplete},"
            f" coordinators {manager._transaction_coordinator} {manager._consumer_group_coordinator}"
        )
        return Stuck(of_kafka_python(lines, has_more=bool(asked or waiting)), "\n".join([state, *lines]))

    def close(self) -> None:
        self._producer.close(0)


class Reader:
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

    def poll(self, wait_s: float) -> tuple[int, Polled]:
        found = self._consumer.poll(int(1000 * wait_s))
        return self.session, {
            Place(where.topic, where.partition): [Record(one.offset, one.value.decode()) for one in records]
            for where, records in found.items()
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
