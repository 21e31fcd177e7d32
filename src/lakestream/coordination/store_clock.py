"""Estimates the metadata store's time, for times that one broker stores and another one compares.

Brokers' clocks differ, and operators set them. The store's time is measured once a minute and continued by the event
loop's clock, which is never set, so an estimate costs no request. Until the first measurement has succeeded the
broker's own clock is used: callers limit what a wrong time can cause.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from lakestream.clock import Clock
from lakestream.errors import LakestreamError

log = logging.getLogger(__name__)

MEASURE_S: Final = 60.0


class StoreClock:
    def __init__(self, store_now_ms: Callable[[], Awaitable[int]], clock: Clock) -> None:
        self._store_now_ms = store_now_ms
        self._loop = asyncio.get_running_loop()
        self._ahead_ms = clock.now_ms() - self._loop_ms()

    def now_ms(self) -> int:
        return self._loop_ms() + self._ahead_ms

    async def run(self) -> None:
        """Measures the store's time until it is cancelled."""
        while True:
            await self.measure()
            await asyncio.sleep(MEASURE_S)

    async def measure(self) -> None:
        try:
            self._ahead_ms = await self._store_now_ms() - self._loop_ms()
        except LakestreamError as error:
            log.info("store_clock.measurement_failed error=%s", error)

    def _loop_ms(self) -> int:
        return round(self._loop.time() * 1000)
