"""An object store that tries again: bounded in time per try, in time over all tries, and by a budget over all callers.

Wraps a bare store of opening.py. Only Unavailable is tried again; what is wrong stays wrong. A put, a get and a delete
can simply be repeated. A create cannot: one that got no answer may have taken effect, and a second try would then be
refused by our own object. So before it says Conflict, or gives up, it looks at what is there.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lakestream.errors import Conflict, Missing, Unavailable, Uncertain
from lakestream.model import Buffer, MiB, Span
from lakestream.storage.budget import RetryBudget
from lakestream.storage.object_store import Body, ObjectInfo, ObjectStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    try_timeout_ms: int = 5_000
    bytes_per_s_min: int = MiB  # a large body gets more time for all: what a line this slow would need for it
    deadline_ms: int = 30_000  # from the call to its answer, with all tries and pauses; of a walk: for each page
    pause_ms_first: int = 100
    pause_ms_max: int = 2_000
    budget_per_call: float = 0.2  # over time at most one retry per five calls,
    budget_per_s: float = 2.0  # and two per second for those who call rarely
    budget_burst: float = 100.0  # lets eight callers sit out some ten seconds


class Retrying:
    def __init__(self, store: ObjectStore, settings: RetrySettings, luck: random.Random) -> None:
        self._store = store
        self._settings = settings
        self._luck = luck
        self._budget = RetryBudget(
            per_call=settings.budget_per_call, per_s=settings.budget_per_s, burst=settings.budget_burst
        )

    async def put(self, key: str, body: Body) -> None:
        await self._call(f"put {key}", _size(body), writes=True).run(lambda: self._store.put(key, body))

    async def create(self, key: str, body: Body) -> None:
        call = self._call(f"create {key}", _size(body), writes=True)
        while True:
            try:
                return await call.once(lambda: self._store.create(key, body))
            except Conflict:
                # An earlier try of ours may be what has the key now.
                if call.uncertain and await self._is_ours_after_all(call, key, body):
                    return None
                raise
            except Unavailable as error:
                if call.uncertain and await self._arrived(call, key, body):
                    return None
                await call.pause_after(error)

    async def get(self, key: str) -> Buffer:
        return await self._call(f"get {key}").run(lambda: self._store.get(key))

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        size = sum(span.size for span in spans)
        return await self._call(f"get ranges of {key}", size).run(lambda: self._store.get_ranges(key, spans))

    async def head(self, key: str) -> ObjectInfo:
        return await self._call(f"look at {key}").run(lambda: self._store.head(key))

    async def walk(self, prefix: str, after: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """A walk that breaks goes on after the last key it gave."""
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

    async def _arrived(self, call: "_Call", key: str, body: Body) -> bool:
        """Whether a create without an answer took effect. Where nothing can be seen it may still: then the next try
        meets it."""
        try:
            if await self._is_ours(call, key, body):
                return True
        except (Missing, Unavailable):
            return False
        raise Conflict(f"cannot create {key}: it exists already")

    async def _is_ours_after_all(self, call: "_Call", key: str, body: Body) -> bool:
        try:
            return await self._is_ours(call, key, body)
        except (Missing, Unavailable) as error:
            raise Uncertain(f"cannot tell whether we created {key} or somebody else: {error}") from error

    async def _is_ours(self, call: "_Call", key: str, body: Body) -> bool:
        """Equal bytes count as ours. Bodies that must be told apart carry an id of their writer, as all of ours do."""
        if (await call.look(lambda: self._store.head(key))).size != _size(body):
            return False
        return _equal(await call.look(lambda: self._store.get(key)), body)

    def _call(self, what: str, size: int = 0, *, writes: bool = False) -> "_Call":
        self._budget.note_call()
        return _Call(what, size, writes, self._settings, self._budget, self._luck)


class _Call:
    """One call with all its tries: how long it may still take, and what is known of it so far."""

    def __init__(
        self, what: str, size: int, writes: bool, settings: RetrySettings, budget: RetryBudget, luck: random.Random
    ) -> None:
        self._what = what
        self._writes = writes
        self._settings = settings
        self._budget = budget
        self._luck = luck
        transfer_s = size / settings.bytes_per_s_min
        self._try_s = settings.try_timeout_ms / 1000 + transfer_s
        self._time = asyncio.get_running_loop().time
        self._begun_s = self._time()
        # Later for a large body too, else one that needs longer than the deadline could never be written at all.
        self._deadline_s = self._begun_s + settings.deadline_ms / 1000 + transfer_s
        self._tries = 0
        self.uncertain = False
        """Whether an earlier try may have taken effect."""

    async def run(self, request: Callable[[], Awaitable[T]]) -> T:
        """Try until it works, cannot work, or must not go on."""
        while True:
            try:
                return await self.once(request)
            except Unavailable as error:
                await self.pause_after(error)

    async def once(self, request: Callable[[], Awaitable[T]]) -> T:
        self._tries += 1
        bound_s = self._bound_s()
        try:
            async with asyncio.timeout(bound_s):
                return await request()
        except TimeoutError:
            self.uncertain |= self._writes
            kind = Uncertain if self._writes else Unavailable
            raise kind(f"cannot {self._what}: no answer within {bound_s:.1f} s") from None
        except Uncertain:
            self.uncertain = True
            raise

    async def look(self, request: Callable[[], Awaitable[T]]) -> T:
        """A read that helps to decide a write; it is no try of its own."""
        bound_s = self._bound_s()
        try:
            async with asyncio.timeout(bound_s):
                return await request()
        except TimeoutError:
            raise Unavailable(f"cannot look after {self._what}: no answer within {bound_s:.1f} s") from None

    async def pause_after(self, error: Unavailable) -> None:
        """Wait before the next try, or raise where there must not be one."""
        now_s = self._time()
        pause_s = pause_ms(self._tries, self._settings, self._luck) / 1000
        if now_s + pause_s >= self._deadline_s:
            took_s = now_s - self._begun_s
            raise self._given_up(error, f"gave up after {self._tries} tries in {took_s:.1f} s") from error
        if not self._budget.take(now_s):
            raise self._given_up(error, "not tried again, too many calls are failing") from error
        await asyncio.sleep(pause_s)

    def _given_up(self, error: Unavailable, why: str) -> Unavailable:
        kind = Uncertain if self.uncertain else Unavailable
        return kind(f"{error} ({why})")

    def _bound_s(self) -> float:
        return max(0.0, min(self._try_s, self._deadline_s - self._time()))


def pause_ms(tries: int, settings: RetrySettings, luck: random.Random) -> float:
    """After so many tries: doubling, and spread out, so that those who failed together do not come back together."""
    doubled = settings.pause_ms_first << min(tries - 1, 30)
    return min(settings.pause_ms_max, doubled) * luck.uniform(0.5, 1.0)


def _size(body: Body) -> int:
    return sum(len(buffer) for buffer in body)


def _equal(found: Buffer, body: Body) -> bool:
    """Whether the object is these buffers one after the other; they are the same length."""
    view, start = memoryview(found), 0
    for buffer in body:
        if view[start : start + len(buffer)] != memoryview(buffer):
            return False
        start += len(buffer)
    return True
