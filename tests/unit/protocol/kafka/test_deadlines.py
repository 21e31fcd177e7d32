"""Whose time is over is told, once and soon; who was removed is not."""

import asyncio

from lakestream.protocol.kafka.deadlines import STEP_S, Deadlines


class One:
    def __init__(self) -> None:
        self.told_s: list[float] = []
        self.told = asyncio.Event()

    def time_is_over(self) -> None:
        self.told_s.append(asyncio.get_running_loop().time())
        self.told.set()


async def told(one: One) -> None:
    async with asyncio.timeout(30):
        await one.told.wait()


async def test_each_is_told_once_and_never_too_soon() -> None:
    deadlines, begun_s = Deadlines(), asyncio.get_running_loop().time()
    timeouts = [0.0, 0.01, STEP_S, 3.5 * STEP_S, 6 * STEP_S]
    all_of_them = [One() for _ in timeouts]
    for one, timeout_s in zip(all_of_them, timeouts, strict=True):
        deadlines.add(one, timeout_s)
    assert not any(one.told_s for one in all_of_them)
    last = One()
    deadlines.add(last, 9 * STEP_S)
    await told(last)
    for one, timeout_s in zip(all_of_them, timeouts, strict=True):
        (told_s,) = one.told_s
        assert told_s - begun_s >= timeout_s - 1e-6


async def test_who_was_removed_is_not_told_and_the_others_are() -> None:
    deadlines = Deadlines()
    gone, stays = One(), One()
    step = deadlines.add(gone, STEP_S)
    deadlines.add(stays, STEP_S)
    deadlines.remove(gone, step)
    await told(stays)
    assert not gone.told_s
    deadlines.remove(gone, step)  # the step is over: nothing to do


async def test_many_of_one_step_share_a_timer() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    begun_s = loop.time()
    steps = {deadlines.add(One(), 1.0) for _ in range(1_000)}
    assert len(deadlines._steps) == len(steps) <= (loop.time() - begun_s) / STEP_S + 2


async def test_times_that_clients_make_up_are_few_steps() -> None:
    deadlines = Deadlines()
    for number in range(20_000):
        one = One()
        deadlines.remove(one, deadlines.add(one, 1_000.0 * number))
    assert len(deadlines._steps) <= 100
    last = One()
    deadlines.add(last, -7.0)
    await told(last)


async def test_they_are_told_in_the_order_in_which_they_came() -> None:
    deadlines, order = Deadlines(), list[int]()

    class Numbered:
        def __init__(self, number: int) -> None:
            self.number = number

        def time_is_over(self) -> None:
            order.append(self.number)

    all_of_them = [Numbered(number) for number in range(200)]
    for one in all_of_them:
        deadlines._steps.setdefault(7, {})[one] = None
    deadlines._end(7)
    await asyncio.sleep(0)
    assert order == list(range(200))
