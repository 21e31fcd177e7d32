"""Calls that wait while a request is on its way make up the next one."""

import asyncio

import pytest

from lakestream.errors import Unavailable
from lakestream.metadata.oxia.grouping import Grouper


class Line:
    """Where groups arrive; each goes on when it is let go."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.gate = asyncio.Semaphore(0)

    async def send(self, ops: list[int]) -> list[int]:
        self.groups.append(ops)
        await self.gate.acquire()
        if any(op < 0 for op in ops):
            raise Unavailable("a bad one")
        return [op * 10 for op in ops]


def grouper(line: Line, *, count_max: int = 100, bytes_max: int = 10**9, waiting_max: int = 100) -> Grouper[int, int]:
    return Grouper(line.send, size_of=abs, count_max=count_max, bytes_max=bytes_max, waiting_max=waiting_max)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_alone_a_call_leaves_at_once_and_the_others_leave_together() -> None:
    line = Line()
    group = grouper(line)
    calls = [asyncio.create_task(group.ask([number])) for number in (1, 2, 3)]
    first = asyncio.create_task(group.ask([4, 5]))
    await settle()
    assert line.groups == [[1, 2, 3, 4, 5]]
    late = [asyncio.create_task(group.ask([number])) for number in (6, 7)]
    await settle()
    assert len(line.groups) == 1
    line.gate.release()
    line.gate.release()
    assert [await call for call in calls] == [[10], [20], [30]]
    assert await first == [40, 50]
    assert [await call for call in late] == [[60], [70]]
    assert line.groups[1] == [6, 7]


async def test_a_group_is_bounded_in_count_and_bytes_and_a_call_may_be_spread() -> None:
    line = Line()
    line.gate = asyncio.Semaphore(100)
    assert await grouper(line, count_max=2).ask([1, 2, 3]) == [10, 20, 30]
    assert line.groups == [[1, 2], [3]]
    line.groups.clear()
    assert await grouper(line, bytes_max=10).ask([6, 4, 1, 50, 2]) == [60, 40, 10, 500, 20]
    assert line.groups == [[6, 4], [1], [50], [2]]


async def test_a_failure_is_heard_by_its_group_and_by_no_other() -> None:
    line = Line()
    line.gate = asyncio.Semaphore(100)
    group = grouper(line, count_max=1)
    bad, good = asyncio.create_task(group.ask([-1])), asyncio.create_task(group.ask([1]))
    with pytest.raises(Unavailable, match="a bad one"):
        await bad
    assert await good == [10]


async def test_a_caller_that_went_away_is_not_sent() -> None:
    line = Line()
    group = grouper(line)
    first = asyncio.create_task(group.ask([1]))
    await settle()
    gone, stays = asyncio.create_task(group.ask([2])), asyncio.create_task(group.ask([3]))
    await settle()
    gone.cancel()
    await settle()
    line.gate.release()
    line.gate.release()
    assert (await first, await stays) == ([10], [30])
    assert line.groups == [[1], [3]]


async def test_the_queue_is_bounded() -> None:
    line = Line()
    group = grouper(line, count_max=1, waiting_max=2)
    calls = [asyncio.create_task(group.ask([number])) for number in range(1, 6)]
    await settle()
    assert len(group._waiting) == 2
    for _ in calls:
        line.gate.release()
    assert [await call for call in calls] == [[10], [20], [30], [40], [50]]


async def test_closing_ends_all_who_wait() -> None:
    line = Line()
    group = grouper(line, count_max=1, waiting_max=1)
    calls = [asyncio.create_task(group.ask([number])) for number in range(1, 5)]
    await settle()
    await group.close(Unavailable("closed"))
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(answer, Unavailable)
    with pytest.raises(Unavailable, match="closed"):
        await group.ask([1])
