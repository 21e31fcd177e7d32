"""All connections share the threads that validate batches. A cancelled request stops its validation."""

import asyncio
import gc
import threading
import time
import weakref
from typing import Any, NamedTuple, cast

import pytest
from tests.harness.table.reference_codec import Record, batch_of

from lakestream.aio import threads
from lakestream.coordination.validation.record_validator import AT_ONCE, RecordValidator
from lakestream.model import Buffer, MiB
from lakestream.records import compression
from lakestream.records.batch import RecordBatch, Timestamps

VALID_TIMESTAMPS = Timestamps(1, 1)


class Compressed(NamedTuple):
    name: str
    data: Buffer = bytes(22) + b"\x04"


class Frame(bytearray):
    """Bytes that can be weakly referenced."""


class BatchCandidate(NamedTuple):
    batch: Any
    keys_needed: bool = False


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the candidates in the order of their validation, in one thread, 10 ms each."""
    names: list[str] = []

    def validate(self: RecordValidator, batch: RecordBatch, *, keys_needed: bool) -> Timestamps:
        names.append(cast(Compressed, batch).name)
        time.sleep(0.01)
        return VALID_TIMESTAMPS

    monkeypatch.setattr(RecordValidator, "validate", validate)
    monkeypatch.setattr(threads, "THREADS", 1)
    return names


def candidates(name: str, count: int) -> list[BatchCandidate]:
    return [BatchCandidate(Compressed(name)) for _ in range(count)]


async def test_small_request_is_validated_between_the_batches_of_a_large_request(validated: list[str]) -> None:
    validator = RecordValidator()
    many = asyncio.ensure_future(validator.validate_all(candidates("many", 5 * AT_ONCE)))
    await asyncio.sleep(0)
    assert await validator.validate_all(candidates("one", 1)) == [VALID_TIMESTAMPS]
    assert validated.index("one") <= 2 * AT_ONCE
    assert await many == [VALID_TIMESTAMPS] * (5 * AT_ONCE)
    await validator.close()


async def test_batches_are_not_validated_when_their_request_was_cancelled(validated: list[str]) -> None:
    validator = RecordValidator()
    cancelled = [asyncio.ensure_future(validator.validate_all(candidates("cancelled", AT_ONCE))) for _ in range(20)]
    await asyncio.sleep(0.015)
    for request in cancelled:
        request.cancel()
    assert await validator.validate_all(candidates("one", 1)) == [VALID_TIMESTAMPS]
    assert validated.count("cancelled") < AT_ONCE
    await validator.close()


async def test_queued_batch_is_freed_when_its_request_is_cancelled_while_all_threads_are_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started, released = threading.Event(), threading.Event()

    def validate(self: RecordValidator, batch: RecordBatch, *, keys_needed: bool) -> Timestamps:
        started.set()
        released.wait(10)
        return VALID_TIMESTAMPS

    monkeypatch.setattr(RecordValidator, "validate", validate)
    monkeypatch.setattr(threads, "THREADS", 1)
    validator = RecordValidator()
    running = asyncio.ensure_future(validator.validate_all(candidates("running", 1)))
    await asyncio.to_thread(started.wait, 10)
    frame = Frame(bytes(22) + b"\x04")
    reference = weakref.ref(frame)
    queued = asyncio.ensure_future(validator.validate_all([BatchCandidate(Compressed("queued", memoryview(frame)))]))
    del frame
    await asyncio.sleep(0.01)
    assert reference() is not None
    queued.cancel()
    await asyncio.wait([queued])
    del queued
    gc.collect()
    assert reference() is None
    released.set()
    assert await running == [VALID_TIMESTAMPS]
    await validator.close()


async def test_small_batches_are_validated_while_others_wait_for_the_large_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compression, "_BUFFER_SIZE", 1 * MiB)
    validator = RecordValidator()
    small = batch_of([Record(0, 1, 0, b"k", b"v")], "lz4")
    large = batch_of([Record(0, 1, 0, b"k", bytes(2 * MiB))], "lz4")
    batches = [BatchCandidate(RecordBatch.parse(data)) for data in (small, large, small)]
    with compression._thread.shared:
        waiting = [asyncio.ensure_future(validator.validate_all(batches)) for _ in range(2 * threads.THREADS)]
        await asyncio.sleep(0.05)
        assert await asyncio.wait_for(validator.validate_all(batches[:1]), 10) == [VALID_TIMESTAMPS]
        assert not any(one.done() for one in waiting)
    assert await asyncio.gather(*waiting) == [[VALID_TIMESTAMPS] * 3] * len(waiting)
    await validator.close()
