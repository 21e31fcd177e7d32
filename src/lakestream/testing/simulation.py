"""asyncio on virtual time, for deterministic simulation: same seed, same history.

A `SimLoop` runs several `Machine`s, each a stand-in for one process. Work belongs to the machine whose context it runs
in, so a machine can be paused (nothing of it runs while time goes on for everybody else, as after SIGSTOP), frozen
(paused, and its clocks stand still too, as a virtual machine that is moved) or killed (nothing of it ever runs again,
no `finally` either, as after SIGKILL). Work outside of all machines is the *world*: networks, stores, the scenario.

When all wait, the clock jumps to the next timer; when no timer is set either, the run fails as a deadlock.

It leans on private hooks of `asyncio.BaseEventLoop` (`_run_once`, the fields of handles), so
`tests/simulation/test_determinism.py` pins what they must do. Code under simulation starts no thread, opens no socket.
"""

import asyncio
import contextvars
import hashlib
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, TypeVarTuple, cast

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH_MS: Final = 1_800_000_000_000
"""Wall time at the start of every simulation."""

STEPS_MAX: Final = 2_000_000

_BURST: Final = 8
"""Callbacks of one machine that run before another may have its turn."""


class Deadlock(AssertionError):
    """Every task waits and no timer is set."""


class Stuck(AssertionError):
    """The run does not come to an end: more steps or more virtual time than any honest run takes."""


class Died(Exception):
    """The machine that was asked died before it answered."""


class Trace:
    """What happened, in order: a digest of all of it, and the lines themselves where somebody wants to read them."""

    def __init__(self) -> None:
        self.lines: list[str] | None = None
        self._digest = hashlib.blake2b(digest_size=16)

    def note(self, now: float, *what: object) -> None:
        line = f"{now:14.4f}  {'  '.join(map(str, what))}"
        self._digest.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def digest(self) -> str:
        return self._digest.hexdigest()


class Machine:
    """One simulated process: what runs in it stops and dies with it."""

    def __init__(self, loop: "SimLoop", name: str) -> None:
        self.name = name
        self.alive = True
        self.lag = 0.0
        """Seconds by which its clocks are behind, from the pauses in which they stood still."""
        self.stalled_s = 0.0
        """All its pauses together."""
        self.on_death: list[Callable[[], object]] = []
        self.on_pause: list[Callable[[], object]] = []
        self.on_resume: list[Callable[[], object]] = []
        self._loop = loop
        self._paused_until = 0.0
        self._frozen = False
        self._parked: list[asyncio.TimerHandle] = []
        # Dicts as ordered sets: the order of a set of objects depends on where they lie in memory.
        self._callers: dict[asyncio.Future[Any], None] = {}
        self._context = contextvars.Context()
        self._context.run(_MACHINE.set, self)
        self.ready: deque[asyncio.Handle] = deque()

    @property
    def paused(self) -> bool:
        return self._paused_until > self._loop.now

    @property
    def runs(self) -> bool:
        return self.alive and self._paused_until <= self._loop.now

    def spawn(self, work: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Start a task of this machine."""
        return self._loop.create_task(work, name=name or self.name, context=self._context.copy())

    def soon(self, do: Callable[[*Ts], object], *args: *Ts) -> None:
        """Have this machine do something when it next runs, as when a packet arrives. A dead one never does."""
        if self.alive:
            self._loop.call_soon(do, *args, context=self._context)

    async def call(self, work: Coroutine[Any, Any, T], *, cancels: bool = False) -> T:
        """Have this machine do the work and wait for its answer, as a client on another machine does. The work goes on
        when the caller gives up, unless it `cancels`. Raises Died if the machine does."""
        if not self.alive:
            work.close()
            raise Died(self.name)
        answer: asyncio.Future[T] = self._loop.create_future()
        self._callers[answer] = None
        task = self.spawn(work)
        task.add_done_callback(lambda done: _pass_on(done, answer), context=self._context)
        try:
            return await answer
        except asyncio.CancelledError:
            if cancels:
                task.cancel()
            raise
        finally:
            del self._callers[answer]

    def pause(self, seconds: float, *, with_clocks: bool = False) -> None:
        """Nothing of it runs for so long. A pause within a pause makes it longer."""
        until = self._loop.now + seconds
        if not self.alive or until <= self._paused_until:
            return
        if with_clocks and not self.paused:
            self._frozen = True
        longer = until - max(self._paused_until, self._loop.now)
        self.stalled_s += longer
        if self._frozen:
            self.lag += longer
        for tell in () if self.paused else self.on_pause:
            tell()
        self._paused_until = until
        self._loop.late_until = max(self._loop.late_until, until)
        self._loop.after(seconds, self._resume)

    def _resume(self) -> None:
        if self.paused or not self.alive:
            return  # a longer pause has begun since, or it was killed in this one: the dead give no sign of life
        self._frozen = False
        parked, self._parked = self._parked, []
        for timer in parked:
            self._loop.wind(timer, self)
        for tell in self.on_resume:
            tell()

    def kill(self) -> None:
        """Nothing of it ever runs again. What it sent may still arrive."""
        if not self.alive:
            return
        self.alive = False
        self._loop.living.remove(self)
        for caller in list(self._callers):
            if not caller.done():
                caller.set_exception(Died(self.name))
        for tell in self.on_death:
            tell()

    def ring(self, timer: asyncio.TimerHandle) -> None:
        """One of its timers is due by the world's time."""
        if self._frozen and self.paused:
            self._parked.append(timer)
        elif timer.when() + self.lag > self._loop.now:
            self._loop.wind(timer, self)  # its clock stood still for a while
        else:
            self.ready.append(timer)

    def close(self) -> None:
        """After the run: its doors are shut, so that dying tasks change nothing."""
        self.alive = False
        self._paused_until = 0.0
        self._frozen = False


def _pass_on(task: "asyncio.Task[T]", answer: "asyncio.Future[T]") -> None:
    if task.cancelled():
        if not answer.done():
            answer.set_exception(Died("the work was cancelled"))
        return
    error = task.exception()  # fetched in any case: the caller may be gone
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())


def _answer_unless_done(answer: "asyncio.Future[T]", result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail_unless_done(answer: "asyncio.Future[Any]", error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


_MACHINE: contextvars.ContextVar[Machine | None] = contextvars.ContextVar("machine", default=None)


def current_machine() -> Machine | None:
    """The machine that the running code belongs to; None for the world."""
    return _MACHINE.get()


_NOBODY: Final = cast(Machine, object())


class SimTask(asyncio.Task[Any]):
    """Its place in a set is that of its number, not of where it lies in memory: a set of tasks has the same order in
    every process."""

    def __init__(self, number: int, coro: Any, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class SimLoop(asyncio.BaseEventLoop):
    """An event loop on virtual time. Order between machines is drawn from the seed; within one it is asyncio's own."""

    def __init__(self, seed: int, *, steps_max: int = STEPS_MAX, seconds_max: float = 60 * 86_400.0) -> None:
        super().__init__()
        self.now = 0.0
        """The world's time in seconds. A machine's own, `time()`, may lag."""
        self.luck = random.Random(seed)
        self.trace = Trace()
        self.failures: list[dict[str, Any]] = []
        """What went wrong where nobody was listening."""
        self.machines: list[Machine] = []
        self.living: list[Machine] = []
        self.steps = 0
        self.late_until = 0.0
        """All that is late by now, or asleep, has arrived or gone on then."""
        self._steps_max = steps_max
        self._seconds_max = seconds_max
        self._world: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Machine | None]] = []
        self._timers_made = 0
        self._burying = False
        self._tasks_made: list[tuple[asyncio.Task[Any], Machine | None]] = []
        self._generators: list[Any] = []
        self._world_context = contextvars.Context()
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    def machine(self, name: str) -> Machine:
        machine = Machine(self, name)
        self.machines.append(machine)
        self.living.append(machine)
        return machine

    def after(self, seconds: float, do: Callable[[*Ts], object], *args: *Ts) -> asyncio.TimerHandle:
        """Have the world do something later, whatever becomes of the machine that asks."""
        timer = asyncio.TimerHandle(self.now + seconds, do, args, self, self._world_context)
        self.wind(timer, None)
        return timer

    def create_task(self, coro: Any, **options: Any) -> "asyncio.Task[Any]":
        # Held until the end: what the garbage collector finds, and when, must not change what happens.
        context = options.get("context")
        task = SimTask(len(self._tasks_made), coro, loop=self, **options)
        self._tasks_made.append((task, _MACHINE.get() if context is None else context.get(_MACHINE)))
        return task

    def unheard(self) -> list[BaseException]:
        """Errors of tasks that nobody asked for. A dead machine's need not be heard."""
        return [
            error
            for task, machine in self._tasks_made
            if task.done() and not task.cancelled() and (machine is None or machine.alive)
            if task._log_traceback and (error := task.exception()) is not None
        ]

    # What asyncio calls

    def time(self) -> float:
        machine = _MACHINE.get()
        return self.now if machine is None else self.now - machine.lag

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        machine = _MACHINE.get() if context is None else context.get(_MACHINE)
        handle = asyncio.Handle(callback, args, self, context)
        (self._world if machine is None else machine.ready).append(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)  # there is one thread

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> "asyncio.Future[T]":
        """There is one thread: the work is done at once, and its answer comes a step later."""
        answer: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except Exception as error:
            self.call_soon(_fail_unless_done, answer, error)
        else:
            self.call_soon(_answer_unless_done, answer, result)
        return answer

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self.wind(timer, _MACHINE.get() if context is None else context.get(_MACHINE))
        return timer

    def wind(self, timer: asyncio.TimerHandle, machine: Machine | None) -> None:
        due = timer.when() if machine is None else timer.when() + machine.lag
        self._timers_made += 1
        heapq.heappush(self._timers, (due, self._timers_made, timer, machine))

    def _run_once(self) -> None:
        machine = self._choose()
        if machine is _NOBODY:
            self._advance()
            return
        queue = self._world if machine is None else machine.ready
        for _ in range(min(len(queue), _BURST)):
            handle = queue.popleft()
            if not handle.cancelled():
                handle._run()
                self.steps += 1
                if machine is not None and not machine.runs:
                    break
        if self.steps > self._steps_max:
            raise Stuck(f"{self.steps} steps and no end, at {self.now:.3f} virtual seconds")

    def _choose(self) -> Machine | None:
        """Who may run next: one of the machines that have something to do and can, or the world."""
        now = self.now
        busy: list[Machine | None] = [m for m in self.living if m.ready and m._paused_until <= now]
        if self._world:
            busy.append(None)
        if not busy:
            return _NOBODY
        return busy[0] if len(busy) == 1 else busy[int(self.luck.random() * len(busy))]

    def _advance(self) -> None:
        """Jump to the next timer and ring all that are due then. A cancelled one takes no time."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise Deadlock(f"every task waits and no timer is set, at {self.now:.3f} virtual seconds")
        self.now = max(self.now, timers[0][0])
        if self.now > self._seconds_max:
            raise Stuck(f"no end after {self.now:.0f} virtual seconds")
        while timers and timers[0][0] <= self.now:
            _, _, timer, machine = heapq.heappop(timers)
            if timer.cancelled():
                continue
            if machine is None or self._burying:
                self._world.append(timer)
            elif machine.alive:
                machine.ring(timer)

    def _asyncgen_firstiter_hook(self, agen: Any) -> None:
        self._generators.append(agen)  # held as tasks are: its `finally` runs when it is closed, or at the end
        super()._asyncgen_firstiter_hook(agen)  # type: ignore[misc]

    def _process_events(self, events: list[object]) -> None: ...

    def _write_to_self(self) -> None: ...

    def bury(self) -> None:
        """End everything that is left, dead machines included: nothing of the run stays alive in this process."""
        self._burying = True
        self.living.clear()
        self._steps_max += self.steps
        self._seconds_max += self.now
        for machine in self.machines:
            machine.close()
            # From here on its callbacks run as the world's: the dead finish dying.
            self._world.extend(machine.ready)
            machine.ready = self._world
        rest = [task for task, _ in self._tasks_made if not task.done()]
        for task in rest:
            task.cancel()
        if rest:
            self.run_until_complete(asyncio.wait(rest, timeout=3600.0))
        self.run_until_complete(self.shutdown_asyncgens())


class SimClock:
    """A machine's wall clock: skewed by a little, and behind by the pauses in which it stood still, until it is set."""

    def __init__(self, loop: SimLoop, machine: Machine | None = None, skew_ms: int = 0) -> None:
        self._loop = loop
        self._machine = machine
        self._skew_ms = skew_ms
        self._corrected = 0.0

    def now_ms(self) -> int:
        lag = 0.0 if self._machine is None else self._machine.lag - self._corrected
        return EPOCH_MS + int((self._loop.now - lag) * 1000) + self._skew_ms

    def set_right(self) -> None:
        """As a time server does: no lag any more, the small skew stays."""
        self._corrected = 0.0 if self._machine is None else self._machine.lag


def simulate(seed: int, scenario: Callable[[SimLoop], Coroutine[Any, Any, T]], *, steps_max: int = STEPS_MAX) -> T:
    """Run a scenario to its end on a loop of its own."""
    loop = SimLoop(seed, steps_max=steps_max)
    try:
        return loop.run_until_complete(scenario(loop))
    finally:
        loop.bury()
        loop.close()
