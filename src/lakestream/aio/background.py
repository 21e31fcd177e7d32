"""Background tasks of a process: periodic work, and work that follows a watch."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from lakestream.errors import LakestreamError

T = TypeVar("T")

log = logging.getLogger(__name__)

RETRY_S: Final = 0.2


class BackgroundTasks:
    """Runs tasks until they are closed. May be closed more than once, and without a task."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work, name=name))

    async def close(self) -> None:
        """Cancels all tasks and waits until they have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def run_every(interval_s: Callable[[], float] | float, work: Callable[[], Awaitable[object]], event: str) -> None:
    """Runs `work` after each interval until it is cancelled. Failures, also unexpected ones, are logged as `event`."""
    while True:
        await asyncio.sleep(interval_s() if callable(interval_s) else interval_s)
        try:
            await work()
        except LakestreamError as error:
            log.warning("%s error=%s", event, error)
        except Exception:
            log.exception(event)


async def follow(
    watch: Callable[[], AsyncIterator[T]],
    handle: Callable[[T], Awaitable[None]],
    event: str,
    retry_s: float = RETRY_S,
) -> None:
    """Passes each change of a watch to `handle` until it is cancelled.

    Failures, also unexpected ones, are logged as `event`. Then the watch is opened again: a new watch first reports
    that everything may have changed.
    """
    while True:
        try:
            async for change in watch():
                await handle(change)
        except LakestreamError as error:
            log.warning("%s error=%s", event, error)
        except Exception:
            log.exception(event)
        await asyncio.sleep(retry_s)
