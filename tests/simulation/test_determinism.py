"""Tests of the simulation: virtual time, machines that pause, freeze and die, and equal histories for equal seeds."""

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
from lakestream.testing.fault_injection import FaultRates, Line
from lakestream.testing.faulty_metadata import FaultyMetadata
from lakestream.testing.simulation import EPOCH_MS, Deadlock, Died, Machine, SimClock, SimLoop, Stuck, simulate

pytestmark = pytest.mark.timeout(600)  # runs whole histories, maybe on busy machines
ROOT = Path(__file__).parents[2]
ROUGH = FaultRates(slow=0.1, refused=0.05, lost_there=0.05, lost_back=0.05, late=0.05, stall=0.02, kill=0.01)


def test_time_is_virtual() -> None:
    async def scenario(loop: SimLoop) -> float:
        await asyncio.sleep(10 * 3600)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await loop.create_future()
        return loop.time()

    assert simulate(1, scenario) == 11 * 3600


def test_time_does_not_advance_for_a_cancelled_timer() -> None:
    async def scenario(loop: SimLoop) -> float:
        async with asyncio.timeout(3600):
            await asyncio.sleep(1)
        await asyncio.sleep(1)
        return loop.time()

    assert simulate(1, scenario) == 2


def test_deadlock_is_raised_when_all_tasks_wait_without_a_timer() -> None:
    async def scenario(loop: SimLoop) -> None:
        await loop.create_future()

    with pytest.raises(Deadlock):
        simulate(1, scenario)


def test_stuck_is_raised_when_a_run_exceeds_its_steps() -> None:
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


def test_no_task_runs_while_its_machine_is_paused() -> None:
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


def test_clock_lags_when_its_machine_was_frozen() -> None:
    async def scenario(loop: SimLoop) -> tuple[int, list[float], int]:
        ticks: list[float] = []
        machine = loop.machine("a")
        clock = SimClock(loop, machine)
        machine.spawn(_tick(ticks))
        await asyncio.sleep(3.5)
        machine.pause(100, with_clocks=True)
        await asyncio.sleep(102)
        lagging = clock.now_ms() - EPOCH_MS
        clock.synchronize()
        return lagging, ticks, clock.now_ms() - EPOCH_MS

    lagging, ticks, right = simulate(1, scenario)
    assert ticks == [1, 2, 3, 4, 5]  # no pause by its own clock
    assert (lagging, right) == (5_500, 105_500)


def test_callers_get_died_and_no_finally_runs_when_a_machine_is_killed() -> None:
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
    assert ran == ["finally"]  # when the loop was closed


def test_session_is_lost_when_its_machine_is_killed_during_a_pause() -> None:
    """A heartbeat after the pause would keep the session alive for ever (seed 544)."""

    async def scenario(loop: SimLoop) -> bool:
        server = MemoryServer(SimClock(loop))
        machine = loop.machine("a")
        store = FaultyMetadata(server, Line(loop, machine, "metadata", FaultRates(), Counter()))
        session = await store.session(3_000)
        machine.pause(2.0)
        await asyncio.sleep(1.0)
        machine.kill()
        await asyncio.sleep(60.0)
        return session.lost

    assert simulate(1, scenario)


# A small example: brokers that add their name to a list by compare-and-set, and read it after an unknown result.

KEY = Key("/counter", "/counter")


async def _increment(store: FaultyMetadata, name: str, read_before_retry: bool) -> None:
    while True:
        record = await store.get(KEY, confirmed=True)
        names = record.value.decode().split() if record else []
        if read_before_retry and name in names:
            return
        try:
            await put_one(store, KEY, " ".join([*names, name]).encode(), record.version if record else ABSENT)
        except Uncertain:
            await asyncio.sleep(1)
            continue
        return


async def _example(loop: SimLoop, read_before_retry: bool = True) -> tuple[str, list[str]]:
    server = MemoryServer(SimClock(loop))
    tally: Counter[str] = Counter()

    def start(number: int) -> Machine:
        machine = loop.machine(f"broker-{number}")
        store = FaultyMetadata(server, Line(loop, machine, "metadata", ROUGH, tally))

        async def run() -> None:
            for turn in range(5):
                while True:
                    try:
                        await _increment(store, f"{number}.{turn}", read_before_retry)
                    except Exception as error:
                        loop.trace.note(loop.now, "failed", type(error).__name__)
                        await asyncio.sleep(loop.rng.random())
                    else:
                        break

        machine.spawn(run())
        return machine

    for number in range(3):
        start(number)
    await asyncio.sleep(30 * 3600)
    record = server.get(KEY.path)
    return loop.trace.digest(), record.value.decode().split() if record else []


def test_histories_are_equal_for_equal_seeds() -> None:
    assert [simulate(seed, _example) for seed in range(20)] == [simulate(seed, _example) for seed in range(20)]


HISTORIES = """
import logging
import os
from tests.simulation.scenarios import SCENARIOS, run
logging.disable()
for seed, scenario in enumerate(SCENARIOS):
    outcome = run(seed, scenarios=(scenario.name,), is_brief=not os.environ.get("SOAK"))
    print(scenario.name, outcome.digest, outcome.steps)
"""


def test_history_of_each_scenario_is_equal_in_another_process() -> None:
    """Nothing may depend on the order of a set or on addresses in memory.

    Both processes start at the same time, so that edits of the source during the test do not matter. Histories are
    short, with every kind of client, unless SOAK=1 is set."""
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
    first, second = (process.communicate()[0].splitlines() for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert first == second


def test_histories_differ_for_different_seeds() -> None:
    assert len({simulate(seed, _example)[0] for seed in range(50)}) == 50


def _has_duplicates(names: list[str]) -> bool:
    return len(set(names)) < len(names)


def test_faults_detect_a_retry_without_a_read() -> None:
    assert not any(_has_duplicates(simulate(seed, _example)[1]) for seed in range(50))
    assert any(
        _has_duplicates(simulate(seed, lambda loop: _example(loop, read_before_retry=False))[1]) for seed in range(50)
    )


def test_late_put_takes_effect_after_its_caller_got_an_error() -> None:
    async def scenario(loop: SimLoop) -> tuple[bool, bool]:
        server = MemoryServer(SimClock(loop))
        machine = loop.machine("a")
        store = FaultyMetadata(server, Line(loop, machine, "metadata", FaultRates(late=1.0), Counter()))
        (answer,) = await store.put([Put(KEY, b"x")])
        assert isinstance(answer, Uncertain)
        before = server.get(KEY.path) is not None
        await asyncio.sleep(11 * 3600)
        return before, server.get(KEY.path) is not None

    assert simulate(7, scenario) == (False, True)


async def _value(store: FaultyMetadata, confirmed: bool = False) -> bytes | None:
    record = await store.get(KEY, confirmed=confirmed)
    return record.value if record else None


def test_deposed_leader_answers_only_unconfirmed_reads() -> None:
    async def scenario(loop: SimLoop) -> None:
        server = MemoryServer(SimClock(loop))
        store = FaultyMetadata(server, Line(loop, loop.machine("a"), "metadata", FaultRates(stale_read=1.0), Counter()))
        (first,) = await store.put([Put(KEY, b"old")])
        store.depose(server.snapshot(), 60.0)
        assert isinstance(first, Stored)
        await put_one(store, KEY, b"new", first.version)
        assert await _value(store) == b"old"
        assert await _value(store, confirmed=True) == b"new"
        await asyncio.sleep(60)
        assert await _value(store) == b"new"

    simulate(1, scenario)
