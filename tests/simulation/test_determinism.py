"""The simulation itself: virtual time, machines that pause, freeze and die, and the same history for the same seed."""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lakestream.errors import Uncertain
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.store import ABSENT, Key, Put, Stored, put_one
from lakestream.testing.faults import FaultyMetadata, Line, Weather
from lakestream.testing.simulation import EPOCH_MS, Deadlock, Died, Machine, SimClock, SimLoop, Stuck, simulate

pytestmark = pytest.mark.timeout(600)  # whole histories run in here, on machines that have other things to do
ROOT = Path(__file__).parents[2]
ROUGH = Weather(slow=0.1, refused=0.05, lost_there=0.05, lost_back=0.05, late=0.05, stall=0.02, kill=0.01)


def test_time_is_virtual() -> None:
    async def scenario(loop: SimLoop) -> float:
        await asyncio.sleep(10 * 3600)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await loop.create_future()
        return loop.time()

    assert simulate(1, scenario) == 11 * 3600


def test_a_cancelled_timer_takes_no_time() -> None:
    async def scenario(loop: SimLoop) -> float:
        async with asyncio.timeout(3600):
            await asyncio.sleep(1)
        await asyncio.sleep(1)
        return loop.time()

    assert simulate(1, scenario) == 2


def test_a_run_that_waits_for_nothing_fails_as_a_deadlock() -> None:
    async def scenario(loop: SimLoop) -> None:
        await loop.create_future()

    with pytest.raises(Deadlock):
        simulate(1, scenario)


def test_a_run_that_spins_is_ended() -> None:
    async def scenario(loop: SimLoop) -> None:
        def again() -> None:
            loop.call_soon(again)

        again()
        await loop.create_future()

    with pytest.raises(Stuck):
        simulate(1, scenario, steps_max=1000)


async def _tick(machine_time: list[float]) -> None:
    while True:
        await asyncio.sleep(1)
        machine_time.append(asyncio.get_running_loop().time())


def test_a_paused_machine_does_nothing_while_time_goes_on() -> None:
    async def scenario(loop: SimLoop) -> tuple[int, int, float]:
        ticks: list[float] = []
        machine = loop.machine("a")
        machine.spawn(_tick(ticks))
        await asyncio.sleep(3.5)
        before = len(ticks)
        machine.pause(100)
        await asyncio.sleep(99)
        during = len(ticks)
        await asyncio.sleep(2)
        return before, during, ticks[before]

    before, during, first_after = simulate(1, scenario)
    assert before == during == 3
    assert first_after == 103.5


def test_a_frozen_machine_has_clocks_that_lag() -> None:
    async def scenario(loop: SimLoop) -> tuple[int, list[float], int]:
        ticks: list[float] = []
        machine = loop.machine("a")
        clock = SimClock(loop, machine)
        machine.spawn(_tick(ticks))
        await asyncio.sleep(3.5)
        machine.pause(100, with_clocks=True)
        await asyncio.sleep(102)
        lagging = clock.now_ms() - EPOCH_MS
        clock.set_right()
        return lagging, ticks, clock.now_ms() - EPOCH_MS

    lagging, ticks, right = simulate(1, scenario)
    assert ticks == [1, 2, 3, 4, 5]  # by its own clock nothing happened
    assert (lagging, right) == (5_500, 105_500)


def test_a_killed_machine_runs_no_finally_and_its_callers_hear_of_it() -> None:
    ran: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ran.append("finally")

    async def scenario(loop: SimLoop) -> list[str]:
        machine = loop.machine("a")
        loop.after(1.0, machine.kill)
        with pytest.raises(Died):
            await machine.call(work())
        assert loop.now == 1.0
        await asyncio.sleep(100)
        return list(ran)

    assert simulate(1, scenario) == []
    assert ran == ["finally"]  # when all was over


def test_a_machine_that_is_killed_in_a_pause_gives_no_sign_of_life_after_it() -> None:
    """Or its session would live for ever (seed 544)."""

    async def scenario(loop: SimLoop) -> bool:
        server = MemoryServer(SimClock(loop))
        machine = loop.machine("a")
        store = FaultyMetadata(server, Line(loop, machine, "metadata", Weather(), Counter()))
        session = await store.session(3_000)
        machine.pause(2.0)
        await asyncio.sleep(1.0)
        machine.kill()
        await asyncio.sleep(60.0)
        return session.lost

    assert simulate(1, scenario)


# A toy: brokers that add one to a counter under compare-and-set, and look after an uncertain answer.

KEY = Key("/counter", "/counter")


async def _increment(store: FaultyMetadata, name: str, look_before_retry: bool) -> None:
    while True:
        record = await store.get(KEY, confirmed=True)
        names = record.value.decode().split() if record else []
        if look_before_retry and name in names:
            return
        try:
            await put_one(store, KEY, " ".join([*names, name]).encode(), record.version if record else ABSENT)
        except Uncertain:
            await asyncio.sleep(1)
            continue
        return


async def _toy(loop: SimLoop, look_before_retry: bool = True) -> tuple[str, list[str]]:
    server = MemoryServer(SimClock(loop))
    tally: Counter[str] = Counter()

    def start(number: int) -> Machine:
        machine = loop.machine(f"broker-{number}")
        store = FaultyMetadata(server, Line(loop, machine, "metadata", ROUGH, tally))

        async def run() -> None:
            for turn in range(5):
                while True:
                    try:
                        await _increment(store, f"{number}.{turn}", look_before_retry)
                    except Exception as error:
                        loop.trace.note(loop.now, "failed", type(error).__name__)
                        await asyncio.sleep(loop.luck.random())
                    else:
                        break

        machine.spawn(run())
        return machine

    for number in range(3):
        start(number)
    await asyncio.sleep(30 * 3600)
    record = server.get(KEY.path)
    return loop.trace.digest(), record.value.decode().split() if record else []


def test_the_same_seed_gives_the_same_history() -> None:
    assert [simulate(seed, _toy) for seed in range(20)] == [simulate(seed, _toy) for seed in range(20)]


HISTORIES = """
import logging
import os
from tests.simulation.scenarios import MOODS, run
logging.disable()
for seed, mood in enumerate(MOODS):
    outcome = run(seed, moods=(mood.name,), is_brief=not os.environ.get("SOAK"))
    print(mood.name, outcome.digest, outcome.steps)
"""


def test_every_mood_has_the_same_history_in_another_process() -> None:
    """Nothing may depend on the order of a set, or on where objects lie in memory. (Nor on a file that somebody changes
    meanwhile: both begin at once.) Short histories, unless there is time (SOAK=1): every actor is in them."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HISTORIES],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    one, other = (process.communicate()[0].splitlines() for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert one == other


def test_seeds_differ() -> None:
    assert len({simulate(seed, _toy)[0] for seed in range(50)}) == 50


def _doubled(names: list[str]) -> bool:
    return len(set(names)) < len(names)


def test_faults_find_a_missing_look_before_a_retry() -> None:
    assert not any(_doubled(simulate(seed, _toy)[1]) for seed in range(50))
    assert any(_doubled(simulate(seed, lambda loop: _toy(loop, look_before_retry=False))[1]) for seed in range(50))


def test_a_late_put_takes_effect_when_nobody_thinks_of_it_any_more() -> None:
    async def scenario(loop: SimLoop) -> tuple[bool, bool]:
        server = MemoryServer(SimClock(loop))
        machine = loop.machine("a")
        store = FaultyMetadata(server, Line(loop, machine, "metadata", Weather(late=1.0), Counter()))
        (answer,) = await store.put([Put(KEY, b"x")])
        assert isinstance(answer, Uncertain)
        before = server.get(KEY.path) is not None
        await asyncio.sleep(11 * 3600)
        return before, server.get(KEY.path) is not None

    assert simulate(7, scenario) == (False, True)


async def _value(store: FaultyMetadata, confirmed: bool = False) -> bytes | None:
    record = await store.get(KEY, confirmed=confirmed)
    return record.value if record else None


def test_a_deposed_leader_answers_only_reads_that_need_no_proof() -> None:
    async def scenario(loop: SimLoop) -> None:
        server = MemoryServer(SimClock(loop))
        store = FaultyMetadata(server, Line(loop, loop.machine("a"), "metadata", Weather(stale_read=1.0), Counter()))
        (first,) = await store.put([Put(KEY, b"old")])
        store.depose(server.snapshot(), 60.0)
        assert isinstance(first, Stored)
        await put_one(store, KEY, b"new", first.version)
        assert await _value(store) == b"old"
        assert await _value(store, confirmed=True) == b"new"
        await asyncio.sleep(60)
        assert await _value(store) == b"new"

    simulate(1, scenario)
