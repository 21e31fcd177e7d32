"""WorkerThread: functions run in order, their errors reach the caller, and a cancelled call delays no other."""

import asyncio
import threading
from functools import partial

import pytest

from lakestream.aio.threads import WorkerThread


async def test_functions_run_in_order() -> None:
    beside, done = WorkerThread("test"), list[int]()

    def note(number: int) -> int:
        done.append(number)
        return number

    outcomes = [beside.submit(partial(note, number)) for number in range(100)]
    assert await asyncio.gather(*outcomes) == list(range(100)) == done
    beside.close()


async def test_error_of_a_function_is_raised_in_its_future() -> None:
    beside = WorkerThread("test")
    with pytest.raises(ZeroDivisionError):
        await beside.submit(lambda: 1 // 0)
    assert await beside.submit(lambda: threading.current_thread().name) == "test"
    beside.close()


async def test_function_runs_after_its_future_is_cancelled() -> None:
    beside, gate, done = WorkerThread("test"), threading.Event(), threading.Event()
    waiting = beside.submit(gate.wait)
    given_up = beside.submit(done.set)
    given_up.cancel()
    gate.set()
    await waiting
    await beside.submit(lambda: None)
    assert done.is_set()
    beside.close()


async def test_a_thread_survives_a_panic() -> None:
    """Rust code raises it as a BaseException."""

    class Panic(BaseException): ...

    def panic() -> None:
        raise Panic

    beside = WorkerThread("test")
    with pytest.raises(Panic):
        await beside.submit(panic)
    assert await asyncio.wait_for(beside.submit(lambda: 1), 5) == 1
    beside.close()
