"""Detects a wrong clock. A broker with a wrong clock must not append: the garbage collector and the rule of stale
claims compare its times with the stores' own.

Every response of the store with a time in it is compared with the times before and after the request. Only a time more
than a minute outside of both is the clock's fault, however long the response took.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from lakestream.clock import CLOCK_SKEW_MS_MAX, Clock
from lakestream.errors import LakestreamError, Unavailable

RECHECK_AFTER_MS: Final = 5_000


class ClockSkewMonitor:
    def __init__(self, clock: Clock, store_now_ms: Callable[[], Awaitable[int]]) -> None:
        self._clock = clock
        self._store_now_ms = store_now_ms
        self._skew_ms = 0
        self._measured_ms = 0
        self._measuring: asyncio.Task[None] | None = None

    def observe(self, before_ms: int, store_ms: int) -> None:
        """Notes the store's time `store_ms` in a response, received now, to a request sent at `before_ms`."""
        after_ms = self._clock.now_ms()
        if before_ms <= store_ms <= after_ms:
            self._skew_ms = 0
        else:
            self._skew_ms = before_ms - store_ms if store_ms < before_ms else after_ms - store_ms
        self._measured_ms = after_ms

    async def measure(self) -> None:
        before_ms = self._clock.now_ms()
        self.observe(before_ms, await self._store_now_ms())

    def check(self) -> None:
        """Raises Unavailable while the clock is wrong. It never waits, or batches of one producer could overtake one
        another here: a background task measures again."""
        if abs(self._skew_ms) <= CLOCK_SKEW_MS_MAX:
            return
        if self._measuring is None and abs(self._clock.now_ms() - self._measured_ms) >= RECHECK_AFTER_MS:
            self._measuring = asyncio.get_running_loop().create_task(self._remeasure(), name="log.skew")
        direction = "ahead of" if self._skew_ms > 0 else "behind"
        raise Unavailable(
            f"this machine's clock is {abs(self._skew_ms) // 1000} s {direction} the metadata store's;"
            f" set it (NTP): a broker may be at most {CLOCK_SKEW_MS_MAX // 1000} s off"
        )

    def kill(self) -> None:
        if self._measuring is not None:
            self._measuring.cancel()

    async def _remeasure(self) -> None:
        try:
            with contextlib.suppress(LakestreamError):  # the next check tries again
                await self.measure()
        finally:
            self._measuring = None
