"""The estimated time of the metadata store."""

import asyncio

from tests.harness.log.brokers import HandClock

from lakestream.coordination.store_clock import StoreClock
from lakestream.errors import Unavailable


async def test_estimate_follows_the_store_when_the_clock_of_the_broker_is_wrong() -> None:
    clock = HandClock()
    store_ms = clock.now_ms() + 50_000

    async def store_now_ms() -> int:
        return store_ms

    estimate = StoreClock(store_now_ms, clock)
    assert abs(estimate.now_ms() - clock.now_ms()) < 500, "not measured yet"
    await estimate.measure()
    clock.ms -= 1_000_000
    await asyncio.sleep(0.2)
    assert 150 <= estimate.now_ms() - store_ms < 1_000


async def test_estimate_continues_when_the_store_does_not_respond() -> None:
    clock = HandClock()

    async def store_now_ms() -> int:
        raise Unavailable("no answer")

    estimate = StoreClock(store_now_ms, clock)
    await estimate.measure()
    assert abs(estimate.now_ms() - clock.now_ms()) < 500
