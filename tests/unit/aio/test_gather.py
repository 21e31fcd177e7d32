"""Concurrent coroutines: order of results, the limit, errors and cancellation."""

import asyncio
import inspect
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from lakestream.aio.gather import gather_limited
from lakestream.errors import Unavailable


async def value(number: int) -> int:
    await asyncio.sleep(0)
    return number


async def test_results_are_in_order_and_coroutines_are_created_when_they_can_run() -> None:
    running = most = ended = 0

    async def one(number: int) -> int:
        nonlocal running, most, ended
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (number % 3))
        running -= 1
        ended += 1
        return number

    def coroutines() -> Iterator[Coroutine[Any, Any, int]]:
        for number in range(20):
            assert number - ended <= 4
            yield one(number)

    assert await gather_limited(coroutines(), 4) == list(range(20))
    assert most == 4


async def test_first_error_is_raised_unchanged_and_cancels_the_others() -> None:
    cancelled = asyncio.Event()

    async def waits() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return 0

    async def fails() -> int:
        await asyncio.sleep(0)
        raise Unavailable("no store")

    with pytest.raises(Unavailable, match="no store"):
        await gather_limited([waits(), fails(), value(1)], 2)
    assert cancelled.is_set()


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_no_result_is_lost_when_a_coroutine_is_cancelled_by_itself(place: int) -> None:
    async def cancelled() -> int:
        raise asyncio.CancelledError

    coroutines = [value(number) for number in range(2)]
    coroutines.insert(place, cancelled())
    with pytest.raises(asyncio.CancelledError):
        await gather_limited(coroutines)


async def test_gather_of_no_coroutines_is_empty() -> None:
    assert await gather_limited([]) == []


async def test_gather_limited_keeps_order_and_limit() -> None:
    running = most = 0

    async def call(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return number

    assert await gather_limited([call(number) for number in range(20)], 4) == list(range(20))
    assert most == 4


async def test_gather_limited_raises_the_first_error_and_cancels_the_others() -> None:
    started, ended = [], []

    async def slow() -> None:
        started.append(True)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def fails() -> None:
        await asyncio.sleep(0.001)
        raise Unavailable("down")

    with pytest.raises(Unavailable, match="down"):
        await gather_limited([slow(), fails(), slow(), slow()], 2)
    assert 1 <= len(started) == len(ended) < 3


async def test_gather_limited_closes_coroutines_that_did_not_start_when_it_is_cancelled() -> None:
    """Otherwise Python warns about them later, at another place."""
    calls = [asyncio.sleep(1) for _ in range(3)]
    task = asyncio.get_running_loop().create_task(gather_limited(calls, 1))
    await asyncio.sleep(0)
    task.cancel()  # before the tasks of the group ran for the first time
    with pytest.raises(asyncio.CancelledError):
        await task
    assert {inspect.getcoroutinestate(call) for call in calls} == {inspect.CORO_CLOSED}
