"""Looks at the store that many ask for at once: at most one at a thing is under way, and those who come meanwhile share
the next one. The one under way would not do: it may have read before what they must see was written."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Looks(Generic[T]):
    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[T]] = {}
        self._waiting: dict[str, asyncio.Task[T]] = {}

    async def look(self, what: str, how: Callable[[], Coroutine[Any, Any, T]]) -> T:
        task = self._waiting.get(what)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._run(what, how), name="groups.look")
            task.add_done_callback(_heard)
            self._waiting[what] = task
        return await asyncio.shield(task)

    async def close(self) -> None:
        tasks = [*self._running.values(), *self._waiting.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, what: str, how: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if (before := self._running.get(what)) is not None:
            await asyncio.wait([before])
        task = self._running[what] = self._waiting.pop(what)
        try:
            return await how()
        finally:
            if self._running.get(what) is task:
                del self._running[what]


def _heard(task: "asyncio.Task[Any]") -> None:
    """All who waited may have left: its error is nobody's then."""
    if not task.cancelled():
        task.exception()
