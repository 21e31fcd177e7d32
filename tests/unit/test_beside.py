"""A thread beside the loop: in order, errors come back, nobody waits for what was given up."""

import asyncio
import threading
from functools import partial

import pytest

from lakestream.beside import Beside


async def test_one_thing_after_another() -> None:
    beside, done = Beside("test"), list[int]()

    def note(number: int) -> int:
        done.append(number)
        return number

    outcomes = [beside.do(partial(note, number)) for number in range(100)]
    assert await asyncio.gather(*outcomes) == list(range(100)) == done
    beside.close()


async def test_errors_come_back() -> None:
    beside = Beside("test")
    with pytest.raises(ZeroDivisionError):
        await beside.do(lambda: 1 // 0)
    assert await beside.do(lambda: threading.current_thread().name) == "test"
    beside.close()


async def test_what_was_given_up_is_done_all_the_same() -> None:
    beside, gate, done = Beside("test"), threading.Event(), threading.Event()
    waiting = beside.do(gate.wait)
    given_up = beside.do(done.set)
    given_up.cancel()
    gate.set()
    await waiting
    await beside.do(lambda: None)
    assert done.is_set()
    beside.close()
