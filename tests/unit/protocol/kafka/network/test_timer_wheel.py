"""Tests of TimerWheel: targets time out once and soon after their time; removed targets do not."""

import asyncio

from lakestream.protocol.kafka.network.timer_wheel import STEP_S, TimerWheel


class Target:
    def __init__(self) -> None:
        self.expired_s: list[float] = []
        self.expired = asyncio.Event()

    def on_timeout(self) -> None:
        self.expired_s.append(asyncio.get_running_loop().time())
        self.expired.set()


async def wait_expired(target: Target) -> None:
    async with asyncio.timeout(30):
        await target.expired.wait()


async def test_each_target_times_out_once_and_not_too_early() -> None:
    wheel, started_s = TimerWheel(), asyncio.get_running_loop().time()
    timeouts = [0.0, 0.01, STEP_S, 3.5 * STEP_S, 6 * STEP_S]
    targets = [Target() for _ in timeouts]
    for one, timeout_s in zip(targets, timeouts, strict=True):
        wheel.add(one, timeout_s)
    assert not any(one.expired_s for one in targets)
    last = Target()
    wheel.add(last, 9 * STEP_S)
    await wait_expired(last)
    for one, timeout_s in zip(targets, timeouts, strict=True):
        (expired_s,) = one.expired_s
        assert expired_s - started_s >= timeout_s - 1e-6


async def test_removed_target_does_not_time_out() -> None:
    wheel = TimerWheel()
    removed, kept = Target(), Target()
    step = wheel.add(removed, STEP_S)
    wheel.add(kept, STEP_S)
    wheel.remove(removed, step)
    await wait_expired(kept)
    assert not removed.expired_s
    wheel.remove(removed, step)  # has no effect, because the step has expired


async def test_targets_of_one_step_share_a_timer() -> None:
    wheel, loop = TimerWheel(), asyncio.get_running_loop()
    started_s = loop.time()
    steps = {wheel.add(Target(), 1.0) for _ in range(1_000)}
    assert len(wheel._steps) == len(steps) <= (loop.time() - started_s) / STEP_S + 2


async def test_number_of_steps_is_bounded_when_timeouts_are_long() -> None:
    wheel = TimerWheel()
    for number in range(20_000):
        one = Target()
        wheel.remove(one, wheel.add(one, 1_000.0 * number))
    assert len(wheel._steps) <= 100
    last = Target()
    wheel.add(last, -7.0)
    await wait_expired(last)


async def test_targets_of_one_step_time_out_in_order_of_arrival() -> None:
    wheel, order = TimerWheel(), list[int]()

    class Numbered:
        def __init__(self, number: int) -> None:
            self.number = number

        def on_timeout(self) -> None:
            order.append(self.number)

    targets = [Numbered(number) for number in range(200)]
    for one in targets:
        wheel._steps.setdefault(7, {})[one] = None
    wheel._expire(7)
    await asyncio.sleep(0)
    assert order == list(range(200))
