"""Several brokers on one machine: a parent that forks one process for each, and looks after them until it is stopped.

The parent has no threads and no event loop, so it may fork at any time; what was imported is in every worker at once.
Two pipes tie them together: a worker says on its own that it is ready, and reads on a shared one that the parent is
gone, however it went. So nothing is left behind.
"""

import logging
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from lakestream.board import Board
from lakestream.cli.outcome import outcome_of

log = logging.getLogger(__name__)

BACKOFF_S_MIN: Final = 0.5
BACKOFF_S_MAX: Final = 30.0
STEADY_S: Final = 60.0
"""A worker that lived so long was well; the next restart comes quickly again."""
STOP_S_MAX: Final = 60.0
READY_BYTES_MAX: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a worker knows of its place."""

    number: int
    board: Board
    parent: int
    """Readable once the parent is gone."""
    say_ready: Callable[[str], None]
    """Where it listens, once it does."""


Work = Callable[[Seat], int]


class Worker:
    """One place for a process, and who sits there now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid: int | None = None
        self.listens = ""
        self.backoff_s = BACKOFF_S_MIN
        self.started_s = 0.0
        self.due_s: float | None = None  # when to start it again
        self.pipe: int | None = None  # where it says that it is ready

    def ended(self, now_s: float) -> float:
        """It died: when is it started again? Returns the seconds until then."""
        if now_s - self.started_s >= STEADY_S:
            self.backoff_s = BACKOFF_S_MIN
        wait_s, self.backoff_s = self.backoff_s, min(self.backoff_s * 2, BACKOFF_S_MAX)
        self.pid, self.listens, self.due_s = None, "", now_s + wait_s
        return wait_s


HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class Supervisor:
    """`run` starts the workers, the first before the others: what is wrong for all of them is then said once."""

    def __init__(self, count: int, work: Work, on_ready: Callable[[list[str]], None]) -> None:
        self._work = work
        self._on_ready = on_ready
        self._workers = [Worker(number) for number in range(count)]
        self._board = Board(count)
        self._selector = selectors.DefaultSelector()
        self._life = os.pipe()
        self._signals = os.pipe()
        self._stopping = False
        self._is_ready = False
        self._code = 0

    def run(self) -> int:
        """The exit code: 0 if all ended well after they were told to."""
        os.set_blocking(self._signals[0], False)
        os.set_blocking(self._signals[1], False)
        for number in HEARD:
            signal.signal(number, _wake)
        signal.set_wakeup_fd(self._signals[1])
        self._selector.register(self._signals[0], selectors.EVENT_READ, None)
        try:
            self._start(self._workers[0])
            while not self._stopping:
                self._turn()
        finally:
            self._end()
        return self._code

    def _turn(self) -> None:
        """Wait for something to happen, and act on it."""
        due = [worker.due_s for worker in self._workers if worker.due_s is not None]
        timeout_s = max(0.0, min(due) - time.monotonic()) if due else None
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._hear_signals()
            else:
                self._hear(key.data)
        self._bury()
        now_s = time.monotonic()
        for worker in self._workers:
            if not self._stopping and worker.due_s is not None and worker.due_s <= now_s:
                self._start(worker)

    def _hear_signals(self) -> None:
        told = os.read(self._signals[0], 4_096)
        if signal.SIGTERM in told or signal.SIGINT in told:
            self._stopping = True

    def _hear(self, worker: Worker) -> None:
        """A worker is ready, or has gone without being so."""
        assert worker.pipe is not None
        worker.listens = os.read(worker.pipe, READY_BYTES_MAX).decode()
        self._close_pipe(worker)
        if not worker.listens or self._is_ready:
            return
        for other in self._workers:
            if other.pid is None:
                self._start(other)
        if all(other.listens for other in self._workers):
            self._is_ready = True
            self._on_ready([other.listens for other in self._workers])

    def _bury(self) -> None:
        for worker in self._workers:
            if worker.pid is None:
                continue
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if not pid:
                continue
            self._close_pipe(worker)
            self._board.wipe(worker.number)
            code = os.waitstatus_to_exitcode(status)
            if not self._is_ready:  # it has said why
                worker.pid = None
                self._stopping, self._code = True, code if code > 0 else 1
            elif not self._stopping:
                wait_s = worker.ended(time.monotonic())
                log.warning("worker.ended worker=%d pid=%d %s restart_in=%.1fs", worker.number, pid, _how(code), wait_s)
            else:
                worker.pid = None
                self._code = self._code or (code and 1)

    def _start(self, worker: Worker) -> None:
        ready, say = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal that came before the child has its own handlers would be taken by the parent's, and be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
        pid = os.fork()
        if pid == 0:
            os.close(ready)
            self._become(worker.number, say)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
        os.close(say)
        worker.pid, worker.pipe, worker.due_s, worker.started_s = pid, ready, None, time.monotonic()
        self._selector.register(ready, selectors.EVENT_READ, worker)

    def _become(self, number: int, say: int) -> NoReturn:
        """In the new process: let go of what is the parent's, and work."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number_of_signal in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number_of_signal, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent passes it on
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
            self._selector.close()
            for mine in (self._life[1], *self._signals):
                os.close(mine)

            def say_ready(listens: str) -> None:
                os.write(say, listens.encode())
                os.close(say)

            seat = Seat(number=number, board=self._board, parent=self._life[0], say_ready=say_ready)
            code = outcome_of(lambda: self._work(seat))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _end(self) -> None:
        """Tell all to stop, and wait until they have; who takes too long, or is told twice by Ctrl-C, is killed."""
        self._stopping = True
        self._signal(signal.SIGTERM)
        until_s = time.monotonic() + STOP_S_MAX
        while any(worker.pid is not None for worker in self._workers):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                log.warning("workers.killed reason=they did not stop within %.0f s", STOP_S_MAX)
                self._signal(signal.SIGKILL)
                until_s += STOP_S_MAX
            for key, _ in self._selector.select(max(0.0, left_s)):
                if key.data is not None:
                    self._close_pipe(key.data)
                elif signal.SIGINT in os.read(self._signals[0], 4_096):
                    self._signal(signal.SIGKILL)
            self._bury()

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.pid is not None:
                os.kill(worker.pid, number)  # not yet waited for, so the id is still its own

    def _close_pipe(self, worker: Worker) -> None:
        if worker.pipe is not None:
            self._selector.unregister(worker.pipe)
            os.close(worker.pipe)
            worker.pipe = None


def _wake(number: int, frame: object) -> None:
    """The signal's number goes through the pipe; nothing else is done here."""


def _how(code: int) -> str:
    return f"killed_by={signal.Signals(-code).name}" if code < 0 else f"exit_code={code}"
