"""Object store wrapper that counts calls, bytes and latencies per operation and outcome.

Around RetryingStore it counts the calls of callers, inside it every attempt. `Meter.snapshot` returns the counts.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple, TypeVar

from lakestream.errors import LakestreamError
from lakestream.model import Buffer, Span
from lakestream.storage.object_store import Body, ObjectInfo, ObjectStore

T = TypeVar("T")

LATENCY_BOUNDS_MS = tuple(2**power for power in range(17))
"""Upper bounds of the latency buckets: 1 ms, 2, 4 … 65 s. One more bucket counts slower calls."""


class Operation(NamedTuple):
    name: str
    outcome: str
    """`ok`, or the name of the error class."""


@dataclass(frozen=True, slots=True)
class OperationCounts:
    calls: int
    bytes: int
    took_s: float
    latencies: tuple[int, ...]
    """Number of calls in each bucket of LATENCY_BOUNDS_MS."""


class _Counts:
    __slots__ = ("bytes", "calls", "latencies", "took_s")

    def __init__(self) -> None:
        self.calls = 0
        self.bytes = 0
        self.took_s = 0.0
        self.latencies = [0] * (len(LATENCY_BOUNDS_MS) + 1)


class Meter:
    """Counts of operations. A few additions per call; no locks, for one event loop."""

    def __init__(self) -> None:
        self._counts: dict[Operation, _Counts] = {}

    def record(self, operation: Operation, took_s: float, size: int) -> None:
        counts = self._counts.get(operation)
        if counts is None:
            counts = self._counts[operation] = _Counts()
        counts.calls += 1
        counts.bytes += size
        counts.took_s += took_s
        counts.latencies[latency_bucket(took_s)] += 1

    def snapshot(self) -> dict[Operation, OperationCounts]:
        return {
            operation: OperationCounts(counts.calls, counts.bytes, counts.took_s, tuple(counts.latencies))
            for operation, counts in self._counts.items()
        }


def latency_bucket(took_s: float) -> int:
    """Returns the index of the first bound that is not below `took_s`: bounds are powers of two, so it counts bits."""
    return min((max(ceil(took_s * 1000), 1) - 1).bit_length(), len(LATENCY_BOUNDS_MS))


class MeteredStore:
    def __init__(self, store: ObjectStore, meter: Meter) -> None:
        self._store = store
        self._meter = meter

    async def put(self, key: str, body: Body) -> None:
        size = sum(map(len, body))
        await self._metered("put", lambda: self._store.put(key, body), lambda _: size)

    async def create(self, key: str, body: Body) -> None:
        size = sum(map(len, body))
        await self._metered("create", lambda: self._store.create(key, body), lambda _: size)

    async def get(self, key: str) -> Buffer:
        return await self._metered("get", lambda: self._store.get(key), len)

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        size = sum(span.size for span in spans)
        return await self._metered("get_ranges", lambda: self._store.get_ranges(key, spans), lambda _: size)

    async def head(self, key: str) -> ObjectInfo:
        return await self._metered("head", lambda: self._store.head(key))

    async def walk(self, prefix: str, after: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Counts each page as one call."""
        pages = self._store.walk(prefix, after)
        try:
            while (page := await self._metered("walk", lambda: anext(pages, None))) is not None:
                yield page
        finally:
            if isinstance(pages, AsyncGenerator):
                await pages.aclose()

    async def delete(self, keys: Sequence[str]) -> None:
        await self._metered("delete", lambda: self._store.delete(keys))

    async def close(self) -> None:
        await self._store.close()

    async def _metered(
        self, name: str, request: Callable[[], Awaitable[T]], size_of: Callable[[T], int] = lambda _: 0
    ) -> T:
        time = asyncio.get_running_loop().time
        started_s = time()
        try:
            result = await request()
        except (LakestreamError, asyncio.CancelledError) as error:
            self._meter.record(Operation(name, type(error).__name__), time() - started_s, 0)
            raise
        self._meter.record(Operation(name, "ok"), time() - started_s, size_of(result))
        return result
