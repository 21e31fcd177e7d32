"""How a caller on the event loop is served by a thread that speaks SQL.

    caller → do() → queue → thread: one round for all that wait → one call back to the loop → each caller's answer

Nothing is held while a caller awaits. The threads' own work is in `writer.py` and `reader.py`.
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
"""What work is done on: a connection, or a transaction."""
T = TypeVar("T")


class Job(Generic[C]):
    """One caller's work, and its answer: `error` if there is one, else `result`."""

    __slots__ = ("begun", "error", "future", "result", "work")

    def __init__(self, work: Callable[[C], Any], future: asyncio.Future[Any]) -> None:
        self.work = work
        self.future = future
        self.result: Any = None
        self.error: Exception | None = None
        self.begun = False
        """It may have been done, whoever waits for it."""

    def run(self, context: C) -> None:
        """A caller's own mistake is its own answer. What SQLite says of the database is raised: it concerns all."""
        try:
            self.result = self.work(context)
        except (sqlite3.DataError, sqlite3.ProgrammingError, sqlite3.InterfaceError) as error:
            self.error = error
        except sqlite3.Error:
            raise
        except Exception as error:
            self.error = error


class Line(Generic[C]):
    """The callers that wait for some threads. No more than `jobs_max` are let in at a time."""

    def __init__(self, what: str, jobs_max: int, wait_ms: int) -> None:
        self._what = what
        self._wait_ms = wait_ms
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Job[C] | None] = SimpleQueue()
        self._room = asyncio.Semaphore(jobs_max)
        self._threads: list[threading.Thread] = []
        self._ended = asyncio.Semaphore(0)
        self._closed = False

    def serve(self, name: str, rounds: Callable[[], None]) -> None:
        """Start a thread that runs `rounds`, which serves this line until `wait` says None."""
        thread = threading.Thread(target=self._run, args=(rounds,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    async def do(self, work: Callable[[C], T]) -> T:
        job: Job[C] = Job(work, self._loop.create_future())
        late = self._loop.call_later(self._wait_ms / 1000, self._give_up, job)
        try:
            if self._room.locked():
                await self._wait_for_room(job)
            else:
                await self._room.acquire()  # at once
            if self._closed:
                self._room.release()
                raise Unavailable(f"{self._what}: the store is closed")
            job.begun = True
            self._queue.put(job)
            result: T = await job.future
            return result
        finally:
            late.cancel()

    async def _wait_for_room(self, job: Job[C]) -> None:
        try:
            async with asyncio.timeout(self._wait_ms / 1000):
                await self._room.acquire()
        except TimeoutError as error:
            raise Unavailable(self._late) from error

    def _give_up(self, job: Job[C]) -> None:
        if job.begun and not job.future.done():
            job.future.set_exception(Uncertain(self._late))

    @property
    def _late(self) -> str:
        return f"{self._what}: no answer for {self._wait_ms} ms: check the disk"

    async def close(self) -> None:
        """Serve those who wait, then end the threads."""
        self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        # A thread that hangs in the operating system is left behind: it is a daemon and ends with the process.
        with suppress(TimeoutError):
            async with asyncio.timeout(self._wait_ms / 1000):
                for _ in self._threads:
                    await self._ended.acquire()
                for thread in self._threads:
                    thread.join()

    # What follows is called by the threads.

    def wait(self) -> Job[C] | None:
        """The next job; None to end."""
        return self._queue.get()

    def join_waiting(self, jobs: list[Job[C]], jobs_max: int) -> None:
        """Add those who wait by now."""
        with suppress(Empty):
            while len(jobs) < jobs_max:
                job = self._queue.get_nowait()
                if job is None:
                    self._queue.put(None)
                    return
                jobs.append(job)

    def answer(self, jobs: list[Job[C]], then: Callable[[], None] | None = None) -> None:
        """One call to the loop for the whole round, as each costs a wake-up."""
        self._call(lambda: self._deliver(jobs, then))

    def _deliver(self, jobs: list[Job[C]], then: Callable[[], None] | None) -> None:
        for job in jobs:
            self._room.release()
            if job.future.done():
                continue  # its caller was cancelled, or waited too long
            if job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.result)
        if then is not None:
            then()

    def _run(self, rounds: Callable[[], None]) -> None:
        try:
            rounds()
        finally:
            self._call(self._ended.release)

    def _call(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop was closed before the store: nobody is left to hear it
            self._loop.call_soon_threadsafe(callback)
