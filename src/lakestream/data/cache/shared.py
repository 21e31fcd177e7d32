"""Things that take long to get: each is got once for all who ask at the same time, then kept, bounded in bytes.

For one event loop: no locks.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from lakestream.data.cache.blocks import BlockCache
from lakestream.errors import Unavailable

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Shared(Generic[K, V]):
    """`size` says how many bytes a thing takes in memory."""

    def __init__(self, what: str, bytes_max: int, size: Callable[[V], int], timeout_s: float) -> None:
        self.cache: BlockCache[K, V] = BlockCache(bytes_max)
        self._what = what
        self._size = size
        self._timeout_s = timeout_s
        self._tasks: dict[K, asyncio.Task[V]] = {}

    @property
    def under_way(self) -> int:
        return len(self._tasks)

    async def get(self, key: K, how: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """From memory, or by `how`, which goes on although all who wait for it leave."""
        found = self.cache.get(key)
        return found if found is not None else await asyncio.shield(self._getting(key, how))

    def begin(self, key: K, how: Callable[[], Coroutine[Any, Any, V]]) -> None:
        """The same for somebody who comes later."""
        if key not in self.cache:
            self._getting(key, how)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _getting(self, key: K, how: Callable[[], Coroutine[Any, Any, V]]) -> "asyncio.Task[V]":
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.get_running_loop().create_task(self._got(key, how), name=self._what)
            task.add_done_callback(_heard)
        return task

    async def _got(self, key: K, how: Callable[[], Coroutine[Any, Any, V]]) -> V:
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await how()
        except TimeoutError:
            raise Unavailable(f"{self._what}: no answer within {self._timeout_s:.0f} s; try again") from None
        finally:
            del self._tasks[key]
        self.cache.put(key, found, self._size(found))
        return found


def _heard(task: "asyncio.Task[Any]") -> None:
    """All who waited may have left: its error is nobody's then."""
    if not task.cancelled():
        task.exception()
