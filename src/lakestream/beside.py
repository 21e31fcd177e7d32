"""One thread beside the event loop that does what it is given, one thing after another.

Made for work that comes thousands of times a second: an executor spends more on handing it over than it takes.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
_Outcome: TypeAlias = "asyncio.Future[Any]"


class Beside:
    """Used on one event loop. A thread that hangs in the operating system ends with the process: it is a daemon."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Its outcome. Work that was begun goes on, although nobody may wait for it any longer."""
        outcome: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((work, outcome))
        return outcome

    def close(self) -> None:
        """The thread ends when everything is done."""
        self._queue.put(None)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            work, outcome = job
            try:
                self._tell(_succeed, outcome, work())
            except Exception as error:
                self._tell(_fail, outcome, error)

    def _tell(self, how: Callable[[_Outcome, Any], None], outcome: _Outcome, said: Any) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody is left to hear it
            self._loop.call_soon_threadsafe(how, outcome, said)


def _succeed(outcome: _Outcome, result: Any) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _fail(outcome: _Outcome, error: Exception) -> None:
    if not outcome.done():
        outcome.set_exception(error)
