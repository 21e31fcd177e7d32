"""An object store with a bad network in front of it, on seeded luck and the event loop's time.

Wraps any store; with MemoryStore under a virtual-time loop the same seed gives the same faults. Every call may be slow
before and after it takes effect, may fail before (nothing happened) or after (it happened, the answer is lost), and a
write may arrive late: the caller hears an error, and the bytes appear some time afterwards.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from lakestream.errors import LakestreamError, Unavailable, Uncertain
from lakestream.model import Buffer, Span
from lakestream.storage.object_store import Body, ObjectInfo, ObjectStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Chances per call, from 0 to 1. The default is a perfect network."""

    error_before: float = 0.0
    error_after: float = 0.0
    late: float = 0.0
    late_ms: tuple[int, int] = (0, 60_000)
    delay_ms: tuple[int, int] = (0, 0)
    """Of every call; a random part of it lies before the effect, the rest after."""
    stall: float = 0.0
    """A call that takes much longer than any time-out, and then goes on."""
    stall_ms: tuple[int, int] = (30_000, 120_000)


class FaultyObjectStore:
    """`faults` may be replaced at any time: the weather changes."""

    def __init__(self, store: ObjectStore, luck: random.Random, faults: Faults) -> None:
        self.faults = faults
        self._store = store
        self._luck = luck
        # Late writes are on the network: they belong to whoever made this store, not to the caller, and outlive it.
        self._network = copy_context()
        self._late: set[asyncio.Task[None]] = set()

    async def put(self, key: str, body: Body) -> None:
        sent = [b"".join(body)]  # what was sent is sent, whatever the caller does with its buffers afterwards
        await self._write(f"put {key}", lambda: self._store.put(key, sent))

    async def create(self, key: str, body: Body) -> None:
        sent = [b"".join(body)]
        await self._write(f"create {key}", lambda: self._store.create(key, sent))

    async def get(self, key: str) -> Buffer:
        return await self._read(f"get {key}", lambda: self._store.get(key))

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        return await self._read(f"get ranges of {key}", lambda: self._store.get_ranges(key, spans))

    async def head(self, key: str) -> ObjectInfo:
        return await self._read(f"look at {key}", lambda: self._store.head(key))

    async def walk(self, prefix: str, after: str = "") -> AsyncIterator[list[ObjectInfo]]:
        async for page in self._store.walk(prefix, after):
            yield await self._read(f"list {prefix}", partial(_itself, page))

    async def delete(self, keys: Sequence[str]) -> None:
        await self._write(f"delete {', '.join(keys)}", lambda: self._store.delete(keys))

    async def close(self) -> None:
        """What is still on its way never arrives."""
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)
        await self._store.close()

    async def _write(self, what: str, effect: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._happens(self.faults.late):
            self._start_late(effect)
            raise Uncertain(f"injected: {what} got no answer")
        # One who reads the error cannot tell before from after, so both sound the same.
        await self._with_faults(Uncertain(f"injected: {what} got no answer"), effect)

    async def _read(self, what: str, effect: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._with_faults(Unavailable(f"injected: {what} got no answer"), effect)

    async def _with_faults(self, error: LakestreamError, effect: Callable[[], Coroutine[Any, Any, T]]) -> T:
        before_ms, after_ms = self._delays()
        await _sleep_ms(before_ms)
        if self._happens(self.faults.error_before):
            raise error
        answer = await effect()
        await _sleep_ms(after_ms)
        if self._happens(self.faults.error_after):
            raise error
        return answer

    def _start_late(self, effect: Callable[[], Coroutine[Any, Any, None]]) -> None:
        wait_ms = self._luck.uniform(*self.faults.late_ms)

        async def arrive() -> None:
            await _sleep_ms(wait_ms)
            with suppress(LakestreamError):  # nobody is left to hear of it
                await effect()

        task = asyncio.create_task(arrive(), name="late write", context=self._network)
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    def _delays(self) -> tuple[float, float]:
        whole_ms = self._luck.uniform(*self.faults.delay_ms)
        if self._happens(self.faults.stall):
            whole_ms += self._luck.uniform(*self.faults.stall_ms)
        before_ms = whole_ms * self._luck.random()
        return before_ms, whole_ms - before_ms

    def _happens(self, chance: float) -> bool:
        return self._luck.random() < chance


async def _sleep_ms(wait_ms: float) -> None:
    if wait_ms > 0:
        await asyncio.sleep(wait_ms / 1000)


async def _itself(value: T) -> T:
    return value
