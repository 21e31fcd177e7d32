"""asyncio on virtual time, for deterministic simulation: same seed, same history.

A `SimLoop` runs several `Machine`s, each of which simulates one process. Work belongs to the machine in whose context
it runs. So a machine can be paused (nothing of it runs while time continues for the others, as after SIGSTOP), frozen
(paused with its clocks, as a virtual machine that is moved) or killed (nothing of it ever runs again, not even a
`finally`, as after SIGKILL). Work outside of all machines is the *world*: networks, stores, the scenario.

When all tasks wait, the clock jumps to the next timer; without a timer the run fails as a deadlock.

It depends on private hooks of `asyncio.BaseEventLoop` (`_run_once`, the fields of handles), whose behaviour
`tests/simulation/test_determinism.py` tests. Code under simulation starts no thread, and opens no socket.
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
"""Callbacks of one machine that run before the loop chooses a machine again."""


class Deadlock(AssertionError):
    """All tasks wait and no timer is set."""


class Stuck(AssertionError):
    """The run does not end: it took more steps or virtual time than any correct run."""


class Died(Exception):
    """The called machine died before it returned a result."""


class Trace:
    """Records events in order: as a digest, and as lines if `lines` is a list."""

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
    """One simulated process: its tasks pause and die with it."""

    def __init__(self, loop: "SimLoop", name: str) -> None:
        self.name = name
        self.alive = True
        self.lag = 0.0
        """Seconds by which its clocks lag, from the pauses in which they were stopped."""
        self.stalled_s = 0.0
        """The sum of its pauses."""
        self.on_death: list[Callable[[], object]] = []
        self.on_pause: list[Callable[[], object]] = []
        self.on_resume: list[Callable[[], object]] = []
        self._loop = loop
        self._paused_until = 0.0
        self._frozen = False
        self._parked: list[asyncio.TimerHandle] = []
        # Dicts as ordered sets: the order of a set of objects depends on their addresses in memory.
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
        """Starts a task of this machine."""
        return self._loop.create_task(work, name=name or self.name, context=self._context.copy())

    def soon(self, do: Callable[[*Ts], object], *args: *Ts) -> None:
        """Schedules a callback for when this machine runs next, as at the arrival of a packet; never if it is dead."""
        if self.alive:
            self._loop.call_soon(do, *args, context=self._context)

    async def call(self, work: Coroutine[Any, Any, T], *, cancels: bool = False) -> T:
        """Runs work on this machine and returns its result, as for a client on another machine. Raises Died.

        The work continues when the caller is cancelled, unless `cancels`."""
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
        """Pauses the machine. A pause during a pause extends it."""
        until = self._loop.now + seconds
        if not self.alive or until <= self._paused_until:
            return
        if with_clocks and not self.paused:
            self._frozen = True
        longer = until - max(self._paused_until, self._loop.now)
        self.stalled_s += longer
        if self._frozen:
            self.lag += longer
        for callback in () if self.paused else self.on_pause:
            callback()
        self._paused_until = until
        self._loop.late_until = max(self._loop.late_until, until)
        self._loop.after(seconds, self._resume)

    def _resume(self) -> None:
        if self.paused or not self.alive:
            return  # a longer pause has begun since, or the machine was killed during this one
        self._frozen = False
        parked, self._parked = self._parked, []
        for timer in parked:
            self._loop.schedule(timer, self)
        for callback in self.on_resume:
            callback()

    def kill(self) -> None:
        """Kills the machine: nothing of it ever runs again. Calls that it has sent may still arrive."""
        if not self.alive:
            return
        self.alive = False
        self._loop.living.remove(self)
        for caller in list(self._callers):
            if not caller.done():
                caller.set_exception(Died(self.name))
        for callback in self.on_death:
            callback()

    def fire(self, timer: asyncio.TimerHandle) -> None:
        """Runs one of its timers that is due by the world's time, unless its own clock lags."""
        if self._frozen and self.paused:
            self._parked.append(timer)
        elif timer.when() + self.lag > self._loop.now:
            self._loop.schedule(timer, self)  # its clock was stopped for a while
        else:
            self.ready.append(timer)

    def close(self) -> None:
        """Ends the machine after the run, so that tasks that are cancelled then change nothing."""
        self.alive = False
        self._paused_until = 0.0
        self._frozen = False


def _pass_on(task: "asyncio.Task[T]", answer: "asyncio.Future[T]") -> None:
    if task.cancelled():
        if not answer.done():
            answer.set_exception(Died("the work was cancelled"))
        return
    error = task.exception()  # retrieved in any case: the caller may be cancelled
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())


def _set_result_unless_done(answer: "asyncio.Future[T]", result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail_unless_done(answer: "asyncio.Future[Any]", error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


_MACHINE: contextvars.ContextVar[Machine | None] = contextvars.ContextVar("machine", default=None)


def current_machine() -> Machine | None:
    """Returns the machine that the running code belongs to; None for the world."""
    return _MACHINE.get()


_IDLE: Final = cast(Machine, object())
"""Marker: no machine and not the world can run, because all tasks wait."""


class SimTask(asyncio.Task[Any]):
    """A task whose hash is its number and not its address: a set of tasks has the same order in every process."""

    def __init__(self, number: int, coro: Any, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class SimLoop(asyncio.BaseEventLoop):
    """An event loop on virtual time. The seed decides the order between machines; within one it is asyncio's."""

    def __init__(self, seed: int, *, steps_max: int = STEPS_MAX, seconds_max: float = 60 * 86_400.0) -> None:
        super().__init__()
        self.now = 0.0
        """The world's time in seconds. A machine's own, `time()`, may lag."""
        self.rng = random.Random(seed)
        self.trace = Trace()
        self.failures: list[dict[str, Any]] = []
        """Errors that asyncio passed to the loop's exception handler."""
        self.machines: list[Machine] = []
        self.living: list[Machine] = []
        self.steps = 0
        self.late_until = 0.0
        """When all calls that are late now have arrived, and all pauses have ended."""
        self._steps_max = steps_max
        self._seconds_max = seconds_max
        self._world: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Machine | None]] = []
        self._timers_made = 0
        self._shutting_down = False
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
        """Schedules a callback of the world, independent of the calling machine."""
        timer = asyncio.TimerHandle(self.now + seconds, do, args, self, self._world_context)
        self.schedule(timer, None)
        return timer

    def create_task(self, coro: Any, **options: Any) -> "asyncio.Task[Any]":
        # Referenced until the end: collections of cyclic garbage must not change the run.
        context = options.get("context")
        task = SimTask(len(self._tasks_made), coro, loop=self, **options)
        self._tasks_made.append((task, _MACHINE.get() if context is None else context.get(_MACHINE)))
        return task

    def unretrieved(self) -> list[BaseException]:
        """Returns errors of tasks that no code has retrieved, without those of dead machines."""
        return [
            error
            for task, machine in self._tasks_made
            if task.done() and not task.cancelled() and (machine is None or machine.alive)
            if task._log_traceback and (error := task.exception()) is not None
        ]

    # Methods that asyncio calls

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
        """Runs the work immediately, because there is one thread; its result arrives a step later."""
        answer: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except Exception as error:
            self.call_soon(_fail_unless_done, answer, error)
        else:
            self.call_soon(_set_result_unless_done, answer, result)
        return answer

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self.schedule(timer, _MACHINE.get() if context is None else context.get(_MACHINE))
        return timer

    def schedule(self, timer: asyncio.TimerHandle, machine: Machine | None) -> None:
        due = timer.when() if machine is None else timer.when() + machine.lag
        self._timers_made += 1
        heapq.heappush(self._timers, (due, self._timers_made, timer, machine))

    def _run_once(self) -> None:
        machine = self._choose()
        if machine is _IDLE:
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
            raise Stuck(f"the run did not end in {self.steps} steps, at {self.now:.3f} virtual seconds")

    def _choose(self) -> Machine | None:
        """Chooses which runs next: a machine that is ready and not paused, or the world."""
        now = self.now
        busy: list[Machine | None] = [m for m in self.living if m.ready and m._paused_until <= now]
        if self._world:
            busy.append(None)
        if not busy:
            return _IDLE
        return busy[0] if len(busy) == 1 else busy[int(self.rng.random() * len(busy))]

    def _advance(self) -> None:
        """Advances to the next timer and fires all timers that are due then. Cancelled timers take no time."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise Deadlock(f"every task waits and no timer is set, at {self.now:.3f} virtual seconds")
        self.now = max(self.now, timers[0][0])
        if self.now > self._seconds_max:
            raise Stuck(f"the run did not end in {self.now:.0f} virtual seconds")
        while timers and timers[0][0] <= self.now:
            _, _, timer, machine = heapq.heappop(timers)
            if timer.cancelled():
                continue
            if machine is None or self._shutting_down:
                self._world.append(timer)
            elif machine.alive:
                machine.fire(timer)

    def _asyncgen_firstiter_hook(self, agen: Any) -> None:
        self._generators.append(agen)  # as tasks: its `finally` runs when it is closed, or at the end
        super()._asyncgen_firstiter_hook(agen)  # type: ignore[misc]

    def _process_events(self, events: list[object]) -> None: ...

    def _write_to_self(self) -> None: ...

    def shutdown(self) -> None:
        """Ends all remaining tasks, also those of dead machines, so that the run leaves nothing in this process."""
        self._shutting_down = True
        self.living.clear()
        self._steps_max += self.steps
        self._seconds_max += self.now
        for machine in self.machines:
            machine.close()
            # From here on its callbacks run as the world's, so that its tasks can end.
            self._world.extend(machine.ready)
            machine.ready = self._world
        rest = [task for task, _ in self._tasks_made if not task.done()]
        for task in rest:
            task.cancel()
        if rest:
            self.run_until_complete(asyncio.wait(rest, timeout=3600.0))
        self.run_until_complete(self.shutdown_asyncgens())


class SimClock:
    """A machine's wall clock, with a small skew. It lags by the pauses in which it was stopped, until it is set."""

    def __init__(self, loop: SimLoop, machine: Machine | None = None, skew_ms: int = 0) -> None:
        self._loop = loop
        self._machine = machine
        self._skew_ms = skew_ms
        self._corrected = 0.0

    def now_ms(self) -> int:
        lag = 0.0 if self._machine is None else self._machine.lag - self._corrected
        return EPOCH_MS + int((self._loop.now - lag) * 1000) + self._skew_ms

    def synchronize(self) -> None:
        """Removes the lag, as a time server does; the small skew stays."""
        self._corrected = 0.0 if self._machine is None else self._machine.lag


def simulate(seed: int, scenario: Callable[[SimLoop], Coroutine[Any, Any, T]], *, steps_max: int = STEPS_MAX) -> T:
    """Runs a scenario to its end on its own loop."""
    loop = SimLoop(seed, steps_max=steps_max)
    try:
        return loop.run_until_complete(scenario(loop))
    finally:
        loop.shutdown()
        loop.close()
