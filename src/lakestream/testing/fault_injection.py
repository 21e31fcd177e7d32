"""Seeded faults for every call that leaves a simulated machine.

A call passes a `Line` from its machine to a store. The seed decides its outcome: it is slow, refused, lost before the
store (no effect) or after it (it took effect, its result is lost), or *late*: the caller gets an `Uncertain` error, and
the call takes effect seconds or hours later. A line may also stall or kill its machine between any two steps. A call in
flight belongs to the world: it arrives although its sender stalls or dies.

Stores behind a line never wait, so every call takes effect at one instant of virtual time.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

from lakestream.errors import LakestreamError, Unavailable, Uncertain
from lakestream.testing.simulation import Machine, SimLoop

T = TypeVar("T")

HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """Probabilities of faults per call, and their durations."""

    slow: float = 0.0
    refused: float = 0.0
    lost_there: float = 0.0
    lost_back: float = 0.0
    late: float = 0.0
    stall: float = 0.0
    kill: float = 0.0
    repeats: float = 0.5
    """Of creates with an uncertain outcome: the client of the store sends them again, as the one for Oxia does."""
    stale_read: float = 0.9
    """Of reads while this machine is connected to a deposed leader."""
    event_lost: float = 0.0
    event_doubled: float = 0.0
    events_made_up_s_max: float | None = None
    """After a lost event, the watch reports within this time that everything may have changed, as the watches of real
    stores do; None: never."""
    watch_broken: float = 0.0
    latency_s: float = 0.004
    slow_s_max: float = 20.0
    deadline_s: float = 5.0
    late_s_max: float = 10 * HOUR
    stall_s_min: float = 0.05
    stall_s_max: float = 10 * HOUR


CALM: Final = FaultRates()


class CallOutcome(IntEnum):
    """The outcome of a call, with faults of the caller's machine."""

    ARRIVES = 0
    SLOW = 1
    REFUSED = 2
    LOST_THERE = 3
    LOST_BACK = 4
    LATE = 5
    STALL_BEFORE = 6
    STALL_AFTER = 7
    KILL_BEFORE = 8
    KILL_MEANWHILE = 9
    KILL_AFTER = 10


def log_uniform(rng: random.Random, low: float, high: float) -> float:
    """Returns a random duration; its logarithm is uniformly distributed."""
    return float(low * (high / low) ** rng.random())


class Line:
    """The connection from one machine to one store."""

    def __init__(self, loop: SimLoop, machine: Machine, name: str, rates: FaultRates, tally: Counter[str]) -> None:
        self.machine = machine
        self.rates = rates
        self.loop = loop
        self.tally = tally
        self._name = name
        self._rng = loop.rng

    async def cross(self, what: str, effect: Callable[[], T], *, writes: bool) -> T:
        """Sends a call and waits for its result. `effect` runs at the store, without waiting."""
        if not self.machine.alive:
            raise Unavailable(f"{self._name}: this machine is dead")
        outcome = self._draw()
        self._note(what, outcome)
        there_s, back_s = self._delays(outcome)
        answer: asyncio.Future[T] = self.loop.create_future()
        if outcome is CallOutcome.STALL_BEFORE:
            there_s += self._stall()
        elif outcome is CallOutcome.KILL_MEANWHILE:
            self.loop.after(0.0, self.machine.kill)
        elif outcome is CallOutcome.KILL_BEFORE:
            self.loop.after(0.0, self.machine.kill)
            return await answer  # never completed
        self.loop.after(there_s, self._arrive, _Call(what, effect, writes, outcome, back_s), answer)
        return await answer

    async def local_step(self, what: str, *, refuses: bool = True) -> None:
        """Runs a step on the machine itself: it may be slow or refused, and the machine may stall or die at it."""
        if not self.machine.alive:
            raise Unavailable(f"{self._name}: this machine is dead")
        outcome = self._draw()
        if CallOutcome.LOST_THERE <= outcome <= CallOutcome.LATE or (outcome is CallOutcome.REFUSED and not refuses):
            outcome = CallOutcome.ARRIVES
        if outcome is CallOutcome.ARRIVES:
            return
        self._note(what, outcome)
        if outcome is CallOutcome.SLOW:
            await asyncio.sleep(sum(self._delays(outcome)))
        elif outcome is CallOutcome.REFUSED:
            raise self.unavailable(what)
        elif outcome in (CallOutcome.STALL_BEFORE, CallOutcome.STALL_AFTER):
            self._stall()
            await asyncio.sleep(0)
        else:
            self.loop.after(self.delay() if outcome is CallOutcome.KILL_MEANWHILE else 0.0, self.machine.kill)
            await asyncio.sleep(0 if outcome is CallOutcome.KILL_MEANWHILE else 1.0)

    def draw_items(self, count: int) -> list[CallOutcome]:
        """Returns the outcome of each item of a call with several items, independent of the outcome of the call."""
        outcomes = [self._draw() for _ in range(count)]
        return [
            outcome if CallOutcome.REFUSED <= outcome <= CallOutcome.LATE else CallOutcome.ARRIVES
            for outcome in outcomes
        ]

    def late(self, effect: Callable[[], object]) -> None:
        """Runs the effect after the call of its caller has timed out."""
        seconds = log_uniform(self._rng, self.rates.deadline_s, self.rates.late_s_max)
        self.loop.late_until = max(self.loop.late_until, self.loop.now + seconds)
        self.loop.after(seconds, _ignoring_errors, effect)

    def uncertain(self, what: str) -> Uncertain:
        return Uncertain(f"{self._name}: no answer to {what} in {self.rates.deadline_s} s; it may have taken effect")

    def unavailable(self, what: str) -> Unavailable:
        return Unavailable(f"{self._name}: cannot answer {what} now")

    def chance(self, probability: float) -> bool:
        return probability > 0 and self._rng.random() < probability

    def delay(self) -> float:
        return self.rates.latency_s * (0.2 + 1.6 * self._rng.random())

    def _draw(self) -> CallOutcome:
        rates = self.rates
        if rates is CALM:
            return CallOutcome.ARRIVES
        point = self._rng.random()
        for outcome, chance in (
            (CallOutcome.SLOW, rates.slow),
            (CallOutcome.REFUSED, rates.refused),
            (CallOutcome.LOST_THERE, rates.lost_there),
            (CallOutcome.LOST_BACK, rates.lost_back),
            (CallOutcome.LATE, rates.late),
            (CallOutcome.STALL_BEFORE, rates.stall / 2),
            (CallOutcome.STALL_AFTER, rates.stall / 2),
            (CallOutcome.KILL_BEFORE, rates.kill / 3),
            (CallOutcome.KILL_MEANWHILE, rates.kill / 3),
            (CallOutcome.KILL_AFTER, rates.kill / 3),
        ):
            if point < chance:
                return outcome
            point -= chance
        return CallOutcome.ARRIVES

    def _note(self, what: str, outcome: CallOutcome) -> None:
        if outcome is not CallOutcome.ARRIVES:
            self.tally[f"{self._name} {outcome.name.lower().replace('_', ' ')}"] += 1
        self.loop.trace.note(self.loop.now, self.machine.name, what, outcome.name)

    def _delays(self, outcome: CallOutcome) -> tuple[float, float]:
        if outcome is not CallOutcome.SLOW:
            return self.delay(), self.delay()
        # Slow, but within the deadline: a call that takes longer is LOST or LATE.
        seconds = log_uniform(self._rng, self.rates.latency_s, min(self.rates.slow_s_max, self.rates.deadline_s))
        return (seconds, self.delay()) if self._rng.random() < 0.5 else (self.delay(), seconds)

    def _stall(self) -> float:
        seconds = log_uniform(self._rng, self.rates.stall_s_min, self.rates.stall_s_max)
        self.machine.pause(seconds, with_clocks=self._rng.random() < 0.3)
        return seconds

    def _arrive(self, call: "_Call", answer: Any) -> None:
        outcome, deadline_s = call.outcome, self.rates.deadline_s
        timeout = self.uncertain(call.what) if call.writes else self.unavailable(call.what)
        if outcome is CallOutcome.REFUSED:
            self.loop.after(call.back_s, _fail, answer, self.unavailable(call.what))
        elif outcome is CallOutcome.LOST_THERE or (outcome is CallOutcome.LATE and not call.writes):
            self.loop.after(deadline_s, _fail, answer, timeout)
        elif outcome is CallOutcome.LATE:
            self.late(call.effect)
            self.loop.after(deadline_s, _fail, answer, timeout)
        elif outcome is CallOutcome.LOST_BACK:
            _ignoring_errors(call.effect)
            self.loop.after(deadline_s, _fail, answer, timeout)
        else:
            self._answer(call, answer)

    def _answer(self, call: "_Call", answer: Any) -> None:
        try:
            result = call.effect()
        except LakestreamError as error:
            self.loop.after(call.back_s, _fail, answer, error)
        else:
            self.loop.after(call.back_s, _succeed, answer, result)
        if call.outcome is CallOutcome.KILL_AFTER:
            self.machine.kill()
        elif call.outcome is CallOutcome.STALL_AFTER:
            self._stall()


class _Call(NamedTuple):
    what: str
    effect: Callable[[], Any]
    writes: bool
    outcome: CallOutcome
    back_s: float


def _fail(answer: Any, error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _succeed(answer: Any, result: object) -> None:
    if not answer.done():
        answer.set_result(result)


def _ignoring_errors(effect: Callable[[], object]) -> None:
    try:
        effect()
    except LakestreamError:
        return  # no caller waits for it


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits, and returns its result."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise AssertionError("a store behind a line must not wait")
