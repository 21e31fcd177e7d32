"""aiokafka behind the faces of faces.py: one loop on a thread of its own runs all of them."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import aiokafka  # type: ignore[import-untyped]
import aiokafka.errors  # type: ignore[import-untyped]
from tests.integration.turmoil.faces import (
    CALL_S_MAX,
    HEARTBEAT_MS,
    METADATA_MS,
    PARTITIONS,
    POLL_INTERVAL_MS,
    POLLED_MAX,
    REQUEST_MS,
    SESSION_MS,
    TRANSACTION_MS,
    Polled,
    Told,
    tell_all,
)
from tests.integration.turmoil.history import Place, Position, Record
from tests.integration.turmoil.known import AIOKAFKA_TRIES, Stuck
from tests.integration.turmoil.quiet import warnings_of

T = TypeVar("T")

ERRORS: Final = (aiokafka.errors.KafkaError, TimeoutError, OSError, AssertionError, ValueError)


class _Loop:
    """Begins with the first call."""

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


async def _send(producer: Any, place: Place, value: str, told: Told) -> None:
    answer: asyncio.Future[Any] = await producer.send(place.topic, value.encode(), partition=place.number)

    def done(answer: asyncio.Future[Any]) -> None:
        failed = answer.cancelled() or answer.exception() is not None
        told(None if failed or answer.result().offset < 0 else answer.result().offset)

    answer.add_done_callback(done)


class Sender:
    def __init__(self, bootstrap: str, name: str) -> None:
        settings = _common(bootstrap, name) | {"enable_idempotence": True, "linger_ms": 5}
        self._producer = _run(_producer(**settings))

    def send(self, place: Place, value: str, told: Told) -> None:
        _run(_send(self._producer, place, value, told))

    def wait(self, wait_s: float) -> None:
        time.sleep(wait_s)

    def close(self) -> None:
        _run(self._producer.stop())


class Writer:
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        own = {"transactional_id": transactional_id, "transaction_timeout_ms": TRANSACTION_MS}
        self._producer = _run(_producer(**_common(bootstrap, transactional_id), **own))

    def begin(self) -> None:
        _run(self._producer.begin_transaction())

    def send(self, place: Place, value: str, told: Told) -> None:
        _run(_send(self._producer, place, value, told))

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
            tell_all(Stuck(AIOKAFKA_TRIES, _run(self._look(start_s))))
            raise

    async def _look(self, start_s: float) -> str:
        """At the producer, and where all that runs on its loop is."""
        manager, sender = self._producer._txn_manager, self._producer._sender
        state = (
            f"{manager.transactional_id} in state {manager.state.name},"
            f" partitions to add {manager.partitions_to_add()}, added {manager.txn_partitions},"
            f" {len(manager._pending_txn_offsets)} offsets wait,"
            f" coordinators {sender._coordinators}, asked nodes {sender._in_flight}, ended {sender.sender_task.done()}"
        )
        tasks = sorted(" > ".join(_awaits(task)) for task in asyncio.all_tasks())
        return "\n".join([state, *warnings_of(threading.get_ident(), start_s), *tasks])

    def close(self) -> None:
        _run(self._producer.stop())


def _awaits(task: asyncio.Task[Any]) -> Iterator[str]:
    """Each waits for the next one."""
    at: Any = task.get_coro()
    while (frame := getattr(at, "cr_frame", None)) is not None:
        yield f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
        at = at.cr_await


class Reader:
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

    def poll(self, wait_s: float) -> tuple[int, Polled]:
        return _run(self._poll(wait_s))

    async def _poll(self, wait_s: float) -> tuple[int, Polled]:
        found = await self._consumer.getmany(timeout_ms=int(1000 * wait_s), max_records=POLLED_MAX)
        return self.session, {
            Place(where.topic, where.partition): [Record(one.offset, one.value.decode()) for one in records]
            for where, records in found.items()
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


class Alone(Reader):
    """Reads all partitions for a group without members. What this library commits in a transaction names no member, so
    nobody could refuse it after a rebalance."""

    async def _start(self, settings: dict[str, Any], topics: Sequence[str]) -> Any:
        consumer = aiokafka.AIOKafkaConsumer(**settings)
        consumer.assign([aiokafka.TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS)])
        return await _started(consumer)
