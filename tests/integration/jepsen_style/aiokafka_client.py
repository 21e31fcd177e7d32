"""aiokafka with the interface of client_api.py. One event loop on a thread of its own runs all its clients."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import aiokafka  # type: ignore[import-untyped]
import aiokafka.errors  # type: ignore[import-untyped]
from tests.integration.jepsen_style.client_api import (
    CALL_S_MAX,
    HEARTBEAT_MS,
    METADATA_MS,
    PARTITIONS,
    POLL_INTERVAL_MS,
    POLLED_MAX,
    REQUEST_MS,
    SESSION_MS,
    TRANSACTION_MS,
    Content,
    OffsetCallback,
    PolledRecords,
    content_of,
    report_hung_call,
    text_of,
)
from tests.integration.jepsen_style.client_logging import warnings_of_thread
from tests.integration.jepsen_style.history import Place, Position, Record
from tests.integration.jepsen_style.known_client_bugs import AIOKAFKA_TRIES, HungCall

T = TypeVar("T")

ERRORS: Final = (aiokafka.errors.KafkaError, TimeoutError, OSError, AssertionError, ValueError)


class _Loop:
    """Event loop in a thread, started by the first call."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="aiokafka", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, CALL_S_MAX), self._loop).result()


_run = _Loop().run


def _common(bootstrap: str, name: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": bootstrap.split(","),
        "client_id": name,
        "request_timeout_ms": REQUEST_MS,
        "metadata_max_age_ms": METADATA_MS,
    }


async def _started(client: Any) -> Any:
    try:
        await client.start()
    except BaseException:
        await client.stop()
        raise
    return client


async def _producer(**settings: Any) -> Any:
    return await _started(aiokafka.AIOKafkaProducer(**settings))


async def _send(producer: Any, place: Place, value: str, on_result: OffsetCallback) -> None:
    key, timestamp_ms, headers = content_of(value)
    response: asyncio.Future[Any] = await producer.send(
        place.topic, value.encode(), key, place.number, timestamp_ms, list(headers)
    )

    def completed(response: asyncio.Future[Any]) -> None:
        failed = response.cancelled() or response.exception() is not None
        on_result(None if failed or response.result().offset < 0 else response.result().offset)

    response.add_done_callback(completed)


def _record_of(record: Any) -> Record:
    content = Content(record.key, record.timestamp, tuple(record.headers))
    return Record(record.offset, text_of(record.value, content))


class IdempotentProducer:
    def __init__(self, bootstrap: str, name: str) -> None:
        settings = _common(bootstrap, name) | {"enable_idempotence": True, "linger_ms": 5}
        self._producer = _run(_producer(**settings))

    def send(self, place: Place, value: str, on_result: OffsetCallback) -> None:
        _run(_send(self._producer, place, value, on_result))

    def wait(self, wait_s: float) -> None:
        time.sleep(wait_s)

    def close(self) -> None:
        _run(self._producer.stop())


class TransactionalProducer:
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        settings = {"transactional_id": transactional_id, "transaction_timeout_ms": TRANSACTION_MS}
        self._producer = _run(_producer(**_common(bootstrap, transactional_id), **settings))

    def begin(self) -> None:
        _run(self._producer.begin_transaction())

    def send(self, place: Place, value: str, on_result: OffsetCallback) -> None:
        _run(_send(self._producer, place, value, on_result))

    def send_offsets(self, positions: Sequence[Position], reader: Any, group: str) -> None:
        offsets = {aiokafka.TopicPartition(*at.place): at.offset for at in positions}
        self._end(self._producer.send_offsets_to_transaction(offsets, group))

    def commit(self) -> None:
        self._end(self._producer.commit_transaction())

    def abort(self) -> None:
        self._end(self._producer.abort_transaction())

    def _end(self, work: Coroutine[Any, Any, object]) -> None:
        start_s = time.monotonic()
        try:
            _run(work)
        except TimeoutError:
            report_hung_call(HungCall(AIOKAFKA_TRIES, _run(self._inspect(start_s))))
            raise

    async def _inspect(self, start_s: float) -> str:
        """Returns the state of the producer, its warnings, and the stacks of all tasks of the loop."""
        manager, sender = self._producer._txn_manager, self._producer._sender
        state = (
            f"{manager.transactional_id} in state {manager.state.name},"
            f" partitions to add {manager.partitions_to_add()}, added {manager.txn_partitions},"
            f" {len(manager._pending_txn_offsets)} pending offsets,"
            f" coordinators {sender._coordinators}, nodes with requests {sender._in_flight},"
            f" ended {sender.sender_task.done()}"
        )
        tasks = sorted(" > ".join(_awaits(task)) for task in asyncio.all_tasks())
        return "\n".join([state, *warnings_of_thread(threading.get_ident(), start_s), *tasks])

    def close(self) -> None:
        _run(self._producer.stop())


def _awaits(task: asyncio.Task[Any]) -> Iterator[str]:
    """Returns the frames of a task, from the outermost coroutine to the innermost."""
    coroutine: Any = task.get_coro()
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        yield f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
        coroutine = coroutine.cr_await


class GroupConsumer:
    def __init__(self, bootstrap: str, name: str, topics: Sequence[str], group: str, *, committed: bool) -> None:
        self.session = 0
        settings = _common(bootstrap, name) | {
            "group_id": group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "isolation_level": "read_committed" if committed else "read_uncommitted",
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "max_poll_interval_ms": POLL_INTERVAL_MS,
            "fetch_max_wait_ms": 100,
        }
        self._consumer = _run(self._start(settings, topics))

    async def _start(self, settings: dict[str, Any], topics: Sequence[str]) -> Any:
        reader = self

        class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
            async def on_partitions_revoked(self, revoked: Any) -> None: ...

            async def on_partitions_assigned(self, assigned: Any) -> None:
                reader.session += 1

        consumer = aiokafka.AIOKafkaConsumer(**settings)
        consumer.subscribe(list(topics), listener=Listener())
        return await _started(consumer)

    def poll(self, wait_s: float) -> tuple[int, PolledRecords]:
        return _run(self._poll(wait_s))

    async def _poll(self, wait_s: float) -> tuple[int, PolledRecords]:
        batches = await self._consumer.getmany(timeout_ms=int(1000 * wait_s), max_records=POLLED_MAX)
        return self.session, {
            Place(where.topic, where.partition): [_record_of(record) for record in records]
            for where, records in batches.items()
        }

    def commit(self, positions: Sequence[Position]) -> None:
        _run(self._consumer.commit({aiokafka.TopicPartition(*at.place): at.offset for at in positions}))

    def rewind(self, positions: Mapping[Place, int]) -> None:
        _run(self._rewind(positions))

    async def _rewind(self, positions: Mapping[Place, int]) -> None:
        self.session += 1
        for place, offset in positions.items():
            self._consumer.seek(aiokafka.TopicPartition(*place), offset)

    def close(self) -> None:
        _run(self._consumer.stop())


class AssignedConsumer(GroupConsumer):
    """Reads all partitions by assignment, for a group without members.

    The offset commit of aiokafka in a transaction contains no member, so that a broker cannot reject it after a
    rebalance."""

    async def _start(self, settings: dict[str, Any], topics: Sequence[str]) -> Any:
        consumer = aiokafka.AIOKafkaConsumer(**settings)
        consumer.assign([aiokafka.TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS)])
        return await _started(consumer)
