"""Threads for work that would block the event loop."""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeAlias, TypeVar

T = TypeVar("T")
_Future: TypeAlias = "asyncio.Future[Any]"

THREADS: Final = max(2, min(4, os.cpu_count() or 2))


class WorkerThread:
    """A thread that runs submitted functions in order, for thousands of calls a second: cheaper than an executor.

    The thread is a daemon, so one that hangs in a system call ends with the process.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        """Returns the future of the result. The function runs also if the future is cancelled."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((function, future))
        return future

    def close(self) -> None:
        """Ends the thread after all functions that were submitted before."""
        self._queue.put(None)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            function, future = job
            try:
                self._complete(_set_result, future, function())
            except BaseException as error:  # a panic in Rust is no Exception; the thread must continue
                self._complete(_set_exception, future, error)

    def _complete(self, how: Callable[[_Future, Any], None], future: _Future, outcome: Any) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(how, future, outcome)


def _set_result(future: _Future, result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: _Future, error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


class Run(Protocol):
    """Runs a function in a thread and returns its result."""

    async def __call__(self, work: Callable[[], T]) -> T: ...


class Threads:
    """Thread pool for work that holds the GIL only briefly: Parquet, Arrow, compiled kernels.

    The threads are started when they are first needed.
    """

    def __init__(self, name: str = "history", count: int | None = None) -> None:
        self._pool = ThreadPoolExecutor(count or THREADS, thread_name_prefix=name)

    async def __call__(self, work: Callable[[], T]) -> T:
        queued = [work]
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, _run, queued)
        finally:
            queued.clear()  # the executor's queue keeps a cancelled item until a thread reaches it

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)


def _run(queued: list[Callable[[], T]]) -> T:
    """Runs the queued function.

    Converts StopIteration to RuntimeError: a future cannot hold a StopIteration, so its awaiter would wait forever.
    """
    try:
        return queued.pop()()
    except StopIteration as error:
        raise RuntimeError("an iterator ended too early") from error
