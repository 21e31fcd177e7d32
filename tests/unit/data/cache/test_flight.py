"""Flights: one fetch for many waiters, owned by those who wait."""

import asyncio

import pytest

from lakestream.data.cache.flight import Flights
from lakestream.errors import Missing


class Fetch:
    """A fetch that ends when told, and knows how often it was begun and given up."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> str:
        self.begun += 1
        number = self.begun
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error:
            raise self.error
        return f"answer {number}"


async def waiting(flights: Flights[str], fetch: Fetch, count: int) -> list["asyncio.Task[str]"]:
    tasks = [asyncio.create_task(flights.run("k", fetch)) for _ in range(count)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_many_waiters_share_one_fetch() -> None:
    flights, fetch = Flights[str](), Fetch()
    tasks = await waiting(flights, fetch, 5)
    fetch.gate.set()
    assert await asyncio.gather(*tasks) == ["answer 1"] * 5
    assert (fetch.begun, len(flights)) == (1, 0)


async def test_nothing_is_remembered() -> None:
    flights, fetch = Flights[str](), Fetch()
    fetch.gate.set()
    assert [await flights.run("k", fetch) for _ in range(2)] == ["answer 1", "answer 2"]


async def test_other_keys_fly_alone() -> None:
    flights, fetch = Flights[str](), Fetch()
    fetch.gate.set()
    answers = await asyncio.gather(flights.run("a", fetch), flights.run("b", fetch))
    assert list(answers) == ["answer 1", "answer 2"]


async def test_an_error_reaches_all_waiters_and_is_forgotten() -> None:
    flights, fetch = Flights[str](), Fetch()
    fetch.error = Missing("no object k")
    tasks = await waiting(flights, fetch, 3)
    fetch.gate.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Missing] * 3
    fetch.error = None
    assert await flights.run("k", fetch) == "answer 2"


async def test_one_who_leaves_does_not_take_the_fetch_along() -> None:
    flights, fetch = Flights[str](), Fetch()
    first, *others = await waiting(flights, fetch, 3)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    fetch.gate.set()
    assert await asyncio.gather(*others) == ["answer 1"] * 2
    assert fetch.cancelled == 0


async def test_the_last_one_who_leaves_ends_it() -> None:
    flights, fetch = Flights[str](), Fetch()
    tasks = await waiting(flights, fetch, 3)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
    assert (fetch.cancelled, len(flights)) == (1, 0)


async def test_one_who_comes_after_the_last_left_starts_anew() -> None:
    flights, fetch = Flights[str](), Fetch()
    [task] = await waiting(flights, fetch, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    fetch.gate.set()
    assert await flights.run("k", fetch) == "answer 2"


async def test_a_fetch_that_fails_while_its_last_waiter_leaves_is_not_reported_as_lost() -> None:
    flights, fetch = Flights[str](), Fetch()
    fetch.error = Missing("no object k")
    [task] = await waiting(flights, fetch, 1)
    fetch.gate.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
