"""Object store wrapper that retries, with a timeout per attempt, a deadline per call and a budget of retries.

Wraps a store of open_store.py. All callers share the budget. Only Unavailable is retried. A put, a get and a delete can
simply be repeated. A create cannot: an attempt without a response may have taken effect, and the next attempt would
then conflict with its object. So before a create raises Conflict or gives up, it reads the stored object.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from lakestream.errors import Conflict, Missing, Unavailable, Uncertain
from lakestream.model import Buffer, MiB, Span
from lakestream.storage.object_store import Body, ObjectInfo, ObjectStore


class RetryBudget:
    """Token bucket that limits retries, so that waiting callers do not make an outage worse.

    Every call adds a fraction of a token, and every retry takes a whole one. Tokens are also added over time, so that a
    process with few calls can retry. If the bucket is empty, errors are raised to the caller immediately.
    """

    def __init__(self, *, per_call: float, per_s: float, burst: float) -> None:
        self._per_call = per_call
        self._per_s = per_s
        self._burst = burst
        self._tokens = burst
        self._taken_s: float | None = None

    def record_call(self) -> None:
        self._tokens = min(self._burst, self._tokens + self._per_call)

    def take(self, now_s: float) -> bool:
        """Takes a token. Returns whether a retry is allowed now."""
        waited_s = 0.0 if self._taken_s is None else now_s - self._taken_s
        self._taken_s = now_s
        self._tokens = min(self._burst, self._tokens + waited_s * self._per_s)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    try_timeout_ms: int = 5_000
    bytes_per_s_min: int = MiB  # a large body extends all timeouts by the time for its transfer at this rate
    deadline_ms: int = 30_000  # for a call with all its attempts and pauses; in a walk: for each page
    pause_ms_first: int = 100
    pause_ms_max: int = 2_000
    budget_per_call: float = 0.2  # over time at most one retry per five calls,
    budget_per_s: float = 2.0  # plus two per second, for processes with few calls
    budget_burst: float = 100.0  # enough for eight callers to retry for about ten seconds


PATIENT: Final = RetrySettings(try_timeout_ms=15_000, deadline_ms=60_000)
"""For work for which no client waits: on an overloaded machine, a call that is repeated costs more than a slow one."""


class RetryingStore:
    def __init__(self, store: ObjectStore, settings: RetrySettings, rng: random.Random) -> None:
        self._store = store
        self._settings = settings
        self._rng = rng
        self._budget = RetryBudget(
            per_call=settings.budget_per_call, per_s=settings.budget_per_s, burst=settings.budget_burst
        )

    async def put(self, key: str, body: Body) -> None:
        await self._call(f"put {key}", _size(body), writes=True).run(lambda: self._store.put(key, body))

    async def create(self, key: str, body: Body) -> None:
        call = self._call(f"create {key}", _size(body), writes=True)
        while True:
            try:
                return await call.attempt(lambda: self._store.create(key, body))
            except Conflict:
                # The object may have been created by an earlier attempt of this call.
                if call.uncertain and await self._matches_body_or_raise(call, key, body):
                    return None
                raise
            except Unavailable as error:
                if call.uncertain and await self._was_created(call, key, body):
                    return None
                await call.pause_after(error)

    async def get(self, key: str) -> Buffer:
        return await self._call(f"get {key}").run(lambda: self._store.get(key))

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        size = sum(span.size for span in spans)
        return await self._call(f"get ranges of {key}", size).run(lambda: self._store.get_ranges(key, spans))

    async def head(self, key: str) -> ObjectInfo:
        return await self._call(f"read metadata of {key}").run(lambda: self._store.head(key))

    async def walk(self, prefix: str, after: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Yields pages of objects. After a failure, it continues after the last key that it has yielded."""
        pages = self._store.walk(prefix, after)

        async def next_page() -> list[ObjectInfo] | None:
            nonlocal pages
            try:
                return await anext(pages, None)
            except BaseException:
                pages = self._store.walk(prefix, after)
                raise

        try:
            while (page := await self._call(f"list {prefix}").run(next_page)) is not None:
                after = page[-1].key
                yield page
        finally:
            if isinstance(pages, AsyncGenerator):
                await pages.aclose()

    async def delete(self, keys: Sequence[str]) -> None:
        await self._call(f"delete {len(keys)} objects").run(lambda: self._store.delete(keys))

    async def close(self) -> None:
        await self._store.close()

    async def _was_created(self, call: "_RetriedCall", key: str, body: Body) -> bool:
        """Returns whether a create without a response took effect.

        If the object cannot be read, the create may still take effect; then the next attempt raises Conflict.
        """
        try:
            if await self._matches_body(call, key, body):
                return True
        except (Missing, Unavailable):
            return False
        raise Conflict(f"cannot create {key}: it already exists")

    async def _matches_body_or_raise(self, call: "_RetriedCall", key: str, body: Body) -> bool:
        try:
            return await self._matches_body(call, key, body)
        except (Missing, Unavailable) as error:
            raise Uncertain(f"{key}: created by this writer or by another one: {error}") from error

    async def _matches_body(self, call: "_RetriedCall", key: str, body: Body) -> bool:
        """Returns whether the stored bytes are equal. To be distinguishable, bodies contain an id of their writer."""
        if (await call.check(lambda: self._store.head(key))).size != _size(body):
            return False
        return _equal(await call.check(lambda: self._store.get(key)), body)

    def _call(self, action: str, size: int = 0, *, writes: bool = False) -> "_RetriedCall":
        self._budget.record_call()
        return _RetriedCall(action, size, writes, self._settings, self._budget, self._rng)


class _RetriedCall:
    """One call with all its attempts."""

    def __init__(
        self, action: str, size: int, writes: bool, settings: RetrySettings, budget: RetryBudget, rng: random.Random
    ) -> None:
        self._action = action
        self._writes = writes
        self._settings = settings
        self._budget = budget
        self._rng = rng
        transfer_s = size / settings.bytes_per_s_min
        self._attempt_s = settings.try_timeout_ms / 1000 + transfer_s
        self._time = asyncio.get_running_loop().time
        self._started_s = self._time()
        # A large body also extends the deadline: otherwise a body that needs longer could never be written.
        self._deadline_s = self._started_s + settings.deadline_ms / 1000 + transfer_s
        self._attempts = 0
        self.uncertain = False
        """Whether an earlier attempt may have taken effect."""

    async def run(self, request: Callable[[], Awaitable[T]]) -> T:
        """Retries until the request succeeds, fails permanently, or must not be retried."""
        while True:
            try:
                return await self.attempt(request)
            except Unavailable as error:
                await self.pause_after(error)

    async def attempt(self, request: Callable[[], Awaitable[T]]) -> T:
        self._attempts += 1
        timeout_s = self._timeout_s()
        try:
            async with asyncio.timeout(timeout_s):
                return await request()
        except TimeoutError:
            self.uncertain |= self._writes
            error_class = Uncertain if self._writes else Unavailable
            raise error_class(f"cannot {self._action}: no response within {timeout_s:.1f} s") from None
        except Uncertain:
            self.uncertain = True
            raise

    async def check(self, request: Callable[[], Awaitable[T]]) -> T:
        """Runs a read that decides the outcome of a write. It does not count as an attempt."""
        timeout_s = self._timeout_s()
        try:
            async with asyncio.timeout(timeout_s):
                return await request()
        except TimeoutError:
            raise Unavailable(f"cannot read after {self._action}: no response within {timeout_s:.1f} s") from None

    async def pause_after(self, error: Unavailable) -> None:
        """Waits before the next attempt. Raises if no further attempt is allowed."""
        now_s = self._time()
        pause_s = pause_ms(self._attempts, self._settings, self._rng) / 1000
        if now_s + pause_s >= self._deadline_s:
            took_s = now_s - self._started_s
            raise self._final_error(error, f"gave up after {self._attempts} attempts in {took_s:.1f} s") from error
        if not self._budget.take(now_s):
            raise self._final_error(error, "not retried, because too many calls fail") from error
        await asyncio.sleep(pause_s)

    def _final_error(self, error: Unavailable, reason: str) -> Unavailable:
        error_class = Uncertain if self.uncertain else Unavailable
        return error_class(f"{error} ({reason})")

    def _timeout_s(self) -> float:
        return max(0.0, min(self._attempt_s, self._deadline_s - self._time()))


def pause_ms(attempts: int, settings: RetrySettings, rng: random.Random) -> float:
    """Returns the pause after so many attempts: doubling, with jitter, so that callers do not retry simultaneously."""
    doubled = settings.pause_ms_first << min(attempts - 1, 30)
    return min(settings.pause_ms_max, doubled) * rng.uniform(0.5, 1.0)


def _size(body: Body) -> int:
    return sum(len(buffer) for buffer in body)


def _equal(stored: Buffer, body: Body) -> bool:
    """Returns whether an object of the body's size has the same bytes."""
    view, start = memoryview(stored), 0
    for buffer in body:
        if view[start : start + len(buffer)] != memoryview(buffer):
            return False
        start += len(buffer)
    return True
