"""Calls that wait while a request is in flight form the next batch."""

import asyncio

import pytest

from lakestream.errors import Unavailable
from lakestream.metadata.oxia.batching import Batcher


class Server:
    """Receives batches. Each response waits for a permit of the gate."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Semaphore(0)

    async def send(self, ops: list[int]) -> list[int]:
        self.batches.append(ops)
        await self.gate.acquire()
        if any(op < 0 for op in ops):
            raise Unavailable("a bad one")
        return [op * 10 for op in ops]


def batcher(
    server: Server, *, count_max: int = 100, bytes_max: int = 10**9, waiting_max: int = 100
) -> Batcher[int, int]:
    return Batcher(server.send, size_of=abs, count_max=count_max, bytes_max=bytes_max, waiting_max=waiting_max)


async def run_pending_tasks() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_calls_during_a_request_are_batched() -> None:
    server = Server()
    calls_batcher = batcher(server)
    calls = [asyncio.create_task(calls_batcher.execute([number])) for number in (1, 2, 3)]
    first = asyncio.create_task(calls_batcher.execute([4, 5]))
    await run_pending_tasks()
    assert server.batches == [[1, 2, 3, 4, 5]]
    late = [asyncio.create_task(calls_batcher.execute([number])) for number in (6, 7)]
    await run_pending_tasks()
    assert len(server.batches) == 1
    server.gate.release()
    server.gate.release()
    assert [await call for call in calls] == [[10], [20], [30]]
    assert await first == [40, 50]
    assert [await call for call in late] == [[60], [70]]
    assert server.batches[1] == [6, 7]


async def test_batches_are_limited_in_count_and_bytes() -> None:
    server = Server()
    server.gate = asyncio.Semaphore(100)
    assert await batcher(server, count_max=2).execute([1, 2, 3]) == [10, 20, 30]
    assert server.batches == [[1, 2], [3]]
    server.batches.clear()
    assert await batcher(server, bytes_max=10).execute([6, 4, 1, 50, 2]) == [60, 40, 10, 500, 20]
    assert server.batches == [[6, 4], [1], [50], [2]]


async def test_failure_is_raised_only_in_its_batch() -> None:
    server = Server()
    server.gate = asyncio.Semaphore(100)
    calls_batcher = batcher(server, count_max=1)
    bad, good = asyncio.create_task(calls_batcher.execute([-1])), asyncio.create_task(calls_batcher.execute([1]))
    with pytest.raises(Unavailable, match="a bad one"):
        await bad
    assert await good == [10]


async def test_cancelled_call_is_not_sent() -> None:
    server = Server()
    calls_batcher = batcher(server)
    first = asyncio.create_task(calls_batcher.execute([1]))
    await run_pending_tasks()
    cancelled, kept = asyncio.create_task(calls_batcher.execute([2])), asyncio.create_task(calls_batcher.execute([3]))
    await run_pending_tasks()
    cancelled.cancel()
    await run_pending_tasks()
    server.gate.release()
    server.gate.release()
    assert (await first, await kept) == ([10], [30])
    assert server.batches == [[1], [3]]


async def test_queue_is_bounded() -> None:
    server = Server()
    calls_batcher = batcher(server, count_max=1, waiting_max=2)
    calls = [asyncio.create_task(calls_batcher.execute([number])) for number in range(1, 6)]
    await run_pending_tasks()
    assert len(calls_batcher._waiting) == 2
    for _ in calls:
        server.gate.release()
    assert [await call for call in calls] == [[10], [20], [30], [40], [50]]


async def test_close_fails_waiting_calls() -> None:
    server = Server()
    calls_batcher = batcher(server, count_max=1, waiting_max=1)
    calls = [asyncio.create_task(calls_batcher.execute([number])) for number in range(1, 5)]
    await run_pending_tasks()
    await calls_batcher.close(Unavailable("closed"))
    for result in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(result, Unavailable)
    with pytest.raises(Unavailable, match="closed"):
        await calls_batcher.execute([1])
