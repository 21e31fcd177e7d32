"""Batches calls: while one request is in flight, new calls are collected for the next one.

There is no delay to fill a batch: a single call is sent immediately, and under load batches grow. This is ten times
cheaper than one request per call. Used by writes.py and reads.py.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lakestream.errors import Unavailable

Op = TypeVar("Op")
Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class _PendingCall(Generic[Op, Result]):
    """A call with its operations. It is done when all of them have a result."""

    ops: Sequence[Op]
    results: dict[int, Result] = field(default_factory=dict)
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def set_result(self, index: int, result: Result) -> None:
        self.results[index] = result
        if len(self.results) == len(self.ops) and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Batcher(Generic[Op, Result]):
    """Passes batches of operations, in order of their calls, to `send`, which returns the results in the same order."""

    def __init__(
        self,
        send: Callable[[list[Op]], Awaitable[list[Result]]],
        *,
        size_of: Callable[[Op], int],
        count_max: int,
        bytes_max: int,
        waiting_max: int,
    ) -> None:
        self._send = send
        self._size_of = size_of
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._waiting_max = waiting_max
        self._waiting: deque[tuple[_PendingCall[Op, Result], int]] = deque()
        self._has_space = asyncio.Event()
        self._has_space.set()
        self._task: asyncio.Task[None] | None = None
        self._closed: Unavailable | None = None

    async def execute(self, ops: Sequence[Op]) -> list[Result]:
        """Returns the results of the operations. They are sent in order, maybe in several batches."""
        if not ops:
            return []
        await self._wait_for_space()
        call: _PendingCall[Op, Result] = _PendingCall(ops)
        self._waiting.extend((call, index) for index in range(len(ops)))
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="oxia.batch")
        await call.done
        return [call.results[index] for index in range(len(ops))]

    async def close(self, reason: Unavailable) -> None:
        self._closed = reason
        self._has_space.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        while self._waiting:
            self._waiting.popleft()[0].fail(reason)

    async def _wait_for_space(self) -> None:
        while self._closed is None and len(self._waiting) >= self._waiting_max:
            self._has_space.clear()
            await self._has_space.wait()
        if self._closed is not None:
            raise self._closed

    async def _run(self) -> None:
        """Runs only while operations wait, so an idle client has no tasks."""
        batch: list[tuple[_PendingCall[Op, Result], int]] = []
        try:
            while batch := self._next_batch():
                await self._execute_batch(batch)
        finally:
            self._task = None
            for call, _ in batch:
                call.fail(self._closed or Unavailable("oxia: the request was cancelled"))

    async def _execute_batch(self, batch: list[tuple[_PendingCall[Op, Result], int]]) -> None:
        try:
            results = await self._send([call.ops[index] for call, index in batch])
            assert len(results) == len(batch), "one result per operation"
        except Exception as error:  # any error must be raised to the callers
            for call, _ in batch:
                call.fail(error)
            return
        for (call, index), result in zip(batch, results, strict=True):
            call.set_result(index, result)

    def _next_batch(self) -> list[tuple[_PendingCall[Op, Result], int]]:
        batch: list[tuple[_PendingCall[Op, Result], int]] = []
        bytes_left = self._bytes_max
        while self._waiting and len(batch) < self._count_max:
            call, index = self._waiting[0]
            if not call.done.done():  # skip the operations of cancelled callers
                bytes_left -= self._size_of(call.ops[index])
                if bytes_left < 0 and batch:
                    break
                batch.append((call, index))
            self._waiting.popleft()
        if len(self._waiting) < self._waiting_max:
            self._has_space.set()
        return batch
