"""Background tasks go on after any failure, and end when they are closed."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from lakestream.aio.background import BackgroundTasks, follow, run_every
from lakestream.errors import Unavailable


async def test_periodic_work_continues_after_errors_and_bugs(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[Exception] = [Unavailable("no store"), ZeroDivisionError()]
    done = asyncio.Event()

    async def work() -> None:
        if failures:
            raise failures.pop(0)
        done.set()

    tasks = BackgroundTasks()
    tasks.start(run_every(0, work, "test.work_failed"), "test")
    await asyncio.wait_for(done.wait(), 5)
    await tasks.close()
    assert [record.getMessage() for record in caplog.records] == ["test.work_failed error=no store", "test.work_failed"]
    assert caplog.records[1].exc_info is not None


async def test_periodic_work_reads_its_interval_each_time() -> None:
    intervals = [0.0, 0.0]
    runs: asyncio.Queue[None] = asyncio.Queue()

    async def work() -> None:
        runs.put_nowait(None)

    tasks = BackgroundTasks()
    tasks.start(run_every(lambda: intervals.pop() if intervals else 60, work, "test.work_failed"), "test")
    for _ in range(2):
        await asyncio.wait_for(runs.get(), 5)
    await asyncio.sleep(0.01)
    await tasks.close()
    assert runs.empty()


async def test_watch_is_opened_again_when_watch_or_handler_fails() -> None:
    opened, seen = 0, asyncio.Queue[int]()

    async def watch() -> AsyncIterator[int]:
        nonlocal opened
        opened += 1
        yield opened
        if opened == 1:
            raise Unavailable("connection lost")
        yield -opened

    async def handle(change: int) -> None:
        seen.put_nowait(change)
        if change == 2:
            raise ZeroDivisionError

    tasks = BackgroundTasks()
    tasks.start(follow(watch, handle, "test.watch_failed", retry_s=0), "test")
    assert [await asyncio.wait_for(seen.get(), 5) for _ in range(4)] == [1, 2, 3, -3]
    await tasks.close()


async def test_close_waits_until_tasks_have_ended_and_may_be_repeated() -> None:
    ended = False

    async def work() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended = True

    tasks = BackgroundTasks()
    await tasks.close()
    tasks.start(work(), "test")
    await asyncio.sleep(0)
    await tasks.close()
    assert ended
    await tasks.close()
