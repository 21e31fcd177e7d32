"""Queue between callers on the event loop and threads that execute SQL.

    caller → run() → queue → thread: one batch of all waiting calls → one callback on the loop → each caller's result

No lock is held while a caller waits. The threads' loops are in `writer.py` and `reads.py`.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from lakestream.errors import Unavailable, Uncertain

C = TypeVar("C")
"""Argument of the calls: a connection, or a transaction."""
T = TypeVar("T")


class QueuedCall(Generic[C]):
    """A call and its outcome: `error` if set, else `result`."""

    __slots__ = ("error", "future", "queued", "result", "work")

    def __init__(self, work: Callable[[C], Any], future: asyncio.Future[Any]) -> None:
        self.work = work
        self.future = future
        self.result: Any = None
        self.error: Exception | None = None
        self.queued = False
        """The call may have been executed."""

    def run(self, context: C) -> None:
        """Executes the call. Raises errors of the database, which concern all calls; others are the call's outcome."""
        try:
            self.result = self.work(context)
        except (sqlite3.DataError, sqlite3.ProgrammingError, sqlite3.InterfaceError) as error:
            self.error = error
        except sqlite3.Error:
            raise
        except Exception as error:
            self.error = error


class WorkQueue(Generic[C]):
    """Calls that wait for one or more threads, at most `calls_max` at a time."""

    def __init__(self, name: str, calls_max: int, wait_ms: int) -> None:
        self._name = name
        self._wait_ms = wait_ms
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[QueuedCall[C] | None] = SimpleQueue()
        self._slots = asyncio.Semaphore(calls_max)
        self._threads: list[threading.Thread] = []
        self._ended = asyncio.Semaphore(0)
        self._closed = False

    def start_thread(self, name: str, loop: Callable[[], None]) -> None:
        """Starts a thread with `loop`, which must execute calls until `next` returns None."""
        thread = threading.Thread(target=self._run, args=(loop,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    async def run(self, work: Callable[[C], T]) -> T:
        """Runs `work` in a thread and returns its result. Raises Uncertain if it does not finish in time."""
        call: QueuedCall[C] = QueuedCall(work, self._loop.create_future())
        timeout = self._loop.call_later(self._wait_ms / 1000, self._time_out, call)
        try:
            if self._slots.locked():
                await self._wait_for_slot()
            else:
                await self._slots.acquire()  # does not wait
            if self._closed:
                self._slots.release()
                raise Unavailable(f"{self._name}: the store is closed")
            call.queued = True
            self._queue.put(call)
            result: T = await call.future
            return result
        finally:
            timeout.cancel()

    async def _wait_for_slot(self) -> None:
        try:
            async with asyncio.timeout(self._wait_ms / 1000):
                await self._slots.acquire()
        except TimeoutError as error:
            raise Unavailable(self._timeout_message) from error

    def _time_out(self, call: QueuedCall[C]) -> None:
        if call.queued and not call.future.done():
            call.future.set_exception(Uncertain(self._timeout_message))

    @property
    def _timeout_message(self) -> str:
        return f"{self._name}: no response for {self._wait_ms} ms: check the disk"

    async def close(self) -> None:
        """Waits until all queued calls are executed, then ends the threads."""
        self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        # A thread that hangs in a system call is a daemon and ends with the process.
        with suppress(TimeoutError):
            async with asyncio.timeout(self._wait_ms / 1000):
                for _ in self._threads:
                    await self._ended.acquire()
                for thread in self._threads:
                    thread.join()

    # The following methods are called by the threads.

    def next(self) -> QueuedCall[C] | None:
        """Waits for the next call. Returns None when the queue is closed."""
        return self._queue.get()

    def add_waiting(self, calls: list[QueuedCall[C]], calls_max: int) -> None:
        """Adds the calls that wait now."""
        with suppress(Empty):
            while len(calls) < calls_max:
                call = self._queue.get_nowait()
                if call is None:
                    self._queue.put(None)
                    return
                calls.append(call)

    def complete(self, calls: list[QueuedCall[C]], then: Callable[[], None] | None = None) -> None:
        """Returns the outcomes, with one callback on the loop for the whole batch, because each costs a wake-up."""
        self._call_soon(lambda: self._set_results(calls, then))

    def _set_results(self, calls: list[QueuedCall[C]], then: Callable[[], None] | None) -> None:
        for call in calls:
            self._slots.release()
            if call.future.done():
                continue  # cancelled, or timed out
            if call.error is not None:
                call.future.set_exception(call.error)
            else:
                call.future.set_result(call.result)
        if then is not None:
            then()

    def _run(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        finally:
            self._call_soon(self._ended.release)

    def _call_soon(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop was closed before the store
            self._loop.call_soon_threadsafe(callback)
