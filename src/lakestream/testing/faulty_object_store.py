"""Object stores behind a faulty network: on any event loop, or behind the line of a simulated machine.

`FaultyObjectStore` wraps any store; with a memory store on a virtual-time loop the same seed gives the same faults.
Every call may be slow before and after it takes effect, may fail before (no effect) or after it (it took effect, its
result is lost), and a write may arrive late: the caller gets an error, and the bytes appear some time afterwards.
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
from lakestream.testing.fault_injection import Line, run_now

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Probabilities of faults per call, from 0 to 1. The default is a network without faults."""

    error_before: float = 0.0
    error_after: float = 0.0
    late: float = 0.0
    late_ms: tuple[int, int] = (0, 60_000)
    delay_ms: tuple[int, int] = (0, 0)
    """Delay of every call; a random part of it is before the effect, the rest after."""
    stall: float = 0.0
    """Of calls that take much longer than any timeout, and then continue."""
    stall_ms: tuple[int, int] = (30_000, 120_000)


class FaultyObjectStore:
    """Wraps a store. `faults` may be replaced at any time."""

    def __init__(self, store: ObjectStore, rng: random.Random, faults: Faults) -> None:
        self.faults = faults
        self._store = store
        self._rng = rng
        # Late writes are on the network: they run in the context of this store's creator, and outlive their caller.
        self._network = copy_context()
        self._late: set[asyncio.Task[None]] = set()

    async def put(self, key: str, body: Body) -> None:
        sent = [b"".join(body)]  # a copy: the caller may reuse its buffers
        await self._write(f"put {key}", lambda: self._store.put(key, sent))

    async def create(self, key: str, body: Body) -> None:
        sent = [b"".join(body)]
        await self._write(f"create {key}", lambda: self._store.create(key, sent))

    async def get(self, key: str) -> Buffer:
        return await self._read(f"get {key}", lambda: self._store.get(key))

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        return await self._read(f"get ranges of {key}", lambda: self._store.get_ranges(key, spans))

    async def head(self, key: str) -> ObjectInfo:
        return await self._read(f"head {key}", lambda: self._store.head(key))

    async def walk(self, prefix: str, after: str = "") -> AsyncIterator[list[ObjectInfo]]:
        async for page in self._store.walk(prefix, after):
            yield await self._read(f"list {prefix}", partial(_resolved, page))

    async def delete(self, keys: Sequence[str]) -> None:
        await self._write(f"delete {', '.join(keys)}", lambda: self._store.delete(keys))

    async def close(self) -> None:
        """Drops late writes that have not arrived, and closes the store."""
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)
        await self._store.close()

    async def _write(self, what: str, effect: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._happens(self.faults.late):
            self._start_late(effect)
            raise Uncertain(f"injected: {what} timed out")
        # One text for both: a caller cannot distinguish a fault before from one after the effect.
        await self._with_faults(Uncertain(f"injected: {what} timed out"), effect)

    async def _read(self, what: str, effect: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._with_faults(Unavailable(f"injected: {what} timed out"), effect)

    async def _with_faults(self, error: LakestreamError, effect: Callable[[], Coroutine[Any, Any, T]]) -> T:
        before_ms, after_ms = self._delays()
        await _sleep_ms(before_ms)
        if self._happens(self.faults.error_before):
            raise error
        result = await effect()
        await _sleep_ms(after_ms)
        if self._happens(self.faults.error_after):
            raise error
        return result

    def _start_late(self, effect: Callable[[], Coroutine[Any, Any, None]]) -> None:
        wait_ms = self._rng.uniform(*self.faults.late_ms)

        async def arrive() -> None:
            await _sleep_ms(wait_ms)
            with suppress(LakestreamError):  # no caller waits for it
                await effect()

        task = asyncio.create_task(arrive(), name="late write", context=self._network)
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    def _delays(self) -> tuple[float, float]:
        whole_ms = self._rng.uniform(*self.faults.delay_ms)
        if self._happens(self.faults.stall):
            whole_ms += self._rng.uniform(*self.faults.stall_ms)
        before_ms = whole_ms * self._rng.random()
        return before_ms, whole_ms - before_ms

    def _happens(self, chance: float) -> bool:
        return self._rng.random() < chance


async def _sleep_ms(wait_ms: float) -> None:
    if wait_ms > 0:
        await asyncio.sleep(wait_ms / 1000)


async def _resolved(value: T) -> T:
    return value


class FaultyObjects:
    """An object store behind the line of one simulated machine."""

    def __init__(self, store: ObjectStore, line: Line) -> None:
        self._store = store
        self._line = line

    async def put(self, key: str, body: Body) -> None:
        # A copy: the caller may reuse its buffers before a late put arrives.
        kept = [bytes(buffer) for buffer in body]
        await self._call(f"put {key}", lambda: self._store.put(key, kept), writes=True)

    async def create(self, key: str, body: Body) -> None:
        kept = [bytes(buffer) for buffer in body]
        await self._call(f"create {key}", lambda: self._store.create(key, kept), writes=True)

    async def get(self, key: str) -> Buffer:
        return await self._call(f"get {key}", lambda: self._store.get(key), writes=False)

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        return await self._call(f"get {key}", lambda: self._store.get_ranges(key, spans), writes=False)

    async def head(self, key: str) -> ObjectInfo:
        return await self._call(f"head {key}", lambda: self._store.head(key), writes=False)

    async def walk(self, prefix: str, after: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Every page is one call."""
        pages = self._store.walk(prefix, after)
        while True:
            page = await self._call(f"walk {prefix}", lambda: _next_page(pages), writes=False)
            if page is None:
                return
            yield page

    async def delete(self, keys: Sequence[str]) -> None:
        await self._call(f"delete {' '.join(keys)}", lambda: self._store.delete(keys), writes=True)

    async def close(self) -> None:
        """Does nothing: other machines use the store."""

    async def _call(self, what: str, work: Callable[[], Coroutine[Any, Any, T]], *, writes: bool) -> T:
        return await self._line.cross(what, lambda: run_now(work()), writes=writes)


async def _next_page(pages: AsyncIterator[list[ObjectInfo]]) -> list[ObjectInfo] | None:
    return await anext(pages, None)
