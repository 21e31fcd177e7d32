"""One fetch for many waiters: whoever asks for what is already on its way waits for that fetch.

Used by the read path between the cache of blocks and storage.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Flight(Generic[T]):
    def __init__(self, task: "asyncio.Task[T]") -> None:
        self.task = task
        self.waiters = 0


class Flights(Generic[T]):
    """Remembers only what is under way. The owner of a flight is the crowd that waits for it: the last one who leaves
    ends it, so no task outlives its callers."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight[T]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    async def run(self, key: Hashable, fetch: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `fetch` returns or raises, ours or that of the caller who asked first."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(fetch(), name=f"fetch {key}"))
            flight.task.add_done_callback(lambda _: self._forget(key, flight))
        flight.waiters += 1
        try:
            # Shielded: one waiter that is cancelled must not take the fetch from the others.
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if flight.waiters == 0 and not flight.task.done():
                # Forgotten at once, so that a caller who comes now starts anew instead of sharing the cancellation.
                self._forget(key, flight)
                flight.task.cancel()

    def _forget(self, key: Hashable, flight: _Flight[T]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
