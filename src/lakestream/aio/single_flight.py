"""Shares one load between concurrent callers. For one event loop: no locks."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Final, Generic, TypeAlias, TypeVar

from lakestream.aio.cache import LruCache
from lakestream.errors import Unavailable

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Load: TypeAlias = Callable[[], Coroutine[Any, Any, V]]


class SingleFlightCache(Generic[K, V]):
    """Loads each value once for all concurrent callers, then caches it. `size` returns the bytes of a value."""

    def __init__(self, name: str, bytes_max: int, size: Callable[[V], int], timeout_s: float) -> None:
        self.cache: LruCache[K, V] = LruCache(bytes_max)
        self._name: Final = name
        self._size: Final = size
        self._timeout_s: Final = timeout_s
        self._tasks: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K, load: Load[V]) -> V:
        """Returns the cached value, or loads it. A load continues when all of its callers are cancelled."""
        cached = self.cache.get(key)
        return cached if cached is not None else await shared(self._task(key, load))

    async def close(self) -> None:
        await _cancel(list(self._tasks.values()))

    def _task(self, key: K, load: Load[V]) -> "asyncio.Task[V]":
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.get_running_loop().create_task(self._load(key, load), name=self._name)
            task.add_done_callback(retrieve_exception)
        return task

    async def _load(self, key: K, load: Load[V]) -> V:
        try:
            async with asyncio.timeout(self._timeout_s):
                value = await load()
        except TimeoutError:
            raise Unavailable(f"{self._name}: no response within {self._timeout_s:.0f} s: retry") from None
        finally:
            del self._tasks[key]
        self.cache.put(key, value, self._size(value))
        return value


class Coalescer(Generic[K, V]):
    """Coalesces concurrent reads of one key.

    A caller never joins a read that is already running, because that read may miss a write that the caller must see. It
    joins the next one.
    """

    def __init__(self, name: str) -> None:
        self._name: Final = name
        self._running: dict[K, asyncio.Task[V]] = {}
        self._waiting: dict[K, asyncio.Task[V]] = {}

    async def read(self, key: K, load: Load[V]) -> V:
        task = self._waiting.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._run(key, load), name=self._name)
            task.add_done_callback(retrieve_exception)
            self._waiting[key] = task
        return await shared(task)

    async def close(self) -> None:
        await _cancel(self._tasks())

    def cancel(self) -> None:
        """Cancels all reads, without waiting until they have ended."""
        for task in self._tasks():
            task.cancel()

    def _tasks(self) -> "list[asyncio.Task[V]]":
        return [*self._running.values(), *self._waiting.values()]

    async def _run(self, key: K, load: Load[V]) -> V:
        if (previous := self._running.get(key)) is not None:
            await asyncio.wait([previous])
        task = self._running[key] = self._waiting.pop(key)
        try:
            return await load()
        finally:
            if self._running.get(key) is task:
                del self._running[key]


async def shared(task: "asyncio.Task[V]") -> V:
    """Waits for a task that other callers wait for, too: it continues when this caller is cancelled.

    Unavailable if the task is cancelled, as its owner does when it closes. The caller was not cancelled, and a request
    that ends as if it were would have no response."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if not task.cancelled() or (caller is not None and caller.cancelling()):
            raise
        raise Unavailable(f"{task.get_name()}: cancelled, because this broker stops: retry") from None


async def _cancel(tasks: "list[asyncio.Task[V]]") -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def retrieve_exception(task: "asyncio.Task[Any]") -> None:
    """Marks a task's exception as retrieved, for tasks whose callers may all have been cancelled."""
    if not task.cancelled():
        task.exception()
