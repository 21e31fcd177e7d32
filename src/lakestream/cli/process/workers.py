"""Several brokers on one machine: a parent process forks a worker for each, and supervises them until it is stopped.

The parent has no threads and no event loop, so it may fork at any time; workers share its imported modules. Each worker
writes to its own pipe when it is ready. All workers read one shared pipe, which becomes readable when the parent ends,
even by SIGKILL, so that no worker outlives it.
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

from lakestream.aio.backoff import Backoff
from lakestream.cli.exit_status import exit_reason, run_and_exit_status
from lakestream.server.worker_metrics import SharedMetricsPages

log = logging.getLogger(__name__)

BACKOFF_S_MIN: Final = 0.5
BACKOFF_S_MAX: Final = 30.0
STEADY_S: Final = 60.0
"""After a run of this length, the back-off starts again at its minimum."""
STOP_S_MAX: Final = 60.0
READY_BYTES_MAX: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """What a worker gets from its parent."""

    number: int
    pages: SharedMetricsPages
    parent: int
    """File descriptor that is readable once the parent has ended."""
    report_ready: Callable[[str], None]
    """Called with the addresses on which the worker listens."""


Work = Callable[[WorkerContext], int]


class Worker:
    """A worker's number, and its current process, if it runs."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid: int | None = None
        self.listens = ""
        self.backoff = Backoff(BACKOFF_S_MIN, BACKOFF_S_MAX, STEADY_S)
        self.started_s = 0.0
        self.due_s: float | None = None  # when to start it again
        self.pipe: int | None = None  # on which it reports that it is ready

    def ended(self, now_s: float) -> float:
        """Notes that the process has ended; returns the seconds until its restart."""
        wait_s = self.backoff.failed(now_s - self.started_s)
        self.pid, self.listens, self.due_s = None, "", now_s + wait_s
        return wait_s


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class Supervisor:
    """Starts workers, the first one before the others: an error that all would have is then printed once."""

    def __init__(self, count: int, work: Work, on_ready: Callable[[list[str]], None]) -> None:
        self._work = work
        self._on_ready = on_ready
        self._workers = [Worker(number) for number in range(count)]
        self._pages = SharedMetricsPages(count)
        self._selector = selectors.DefaultSelector()
        self._life = os.pipe()
        self._signals = os.pipe()
        self._stopping = False
        self._is_ready = False
        self._code = 0

    def run(self) -> int:
        """Returns the exit code: 0 if all workers ended without an error after a stop signal."""
        os.set_blocking(self._signals[0], False)
        os.set_blocking(self._signals[1], False)
        for number in SIGNALS:
            signal.signal(number, _wake_up)
        signal.set_wakeup_fd(self._signals[1])
        self._selector.register(self._signals[0], selectors.EVENT_READ, None)
        try:
            self._start(self._workers[0])
            while not self._stopping:
                self._wait()
        finally:
            self._end()
        return self._code

    def _wait(self) -> None:
        """Waits for the next event, and handles it."""
        due = [worker.due_s for worker in self._workers if worker.due_s is not None]
        timeout_s = max(0.0, min(due) - time.monotonic()) if due else None
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._read_signals()
            else:
                self._read_ready(key.data)
        self._reap()
        now_s = time.monotonic()
        for worker in self._workers:
            if not self._stopping and worker.due_s is not None and worker.due_s <= now_s:
                self._start(worker)

    def _read_signals(self) -> None:
        numbers = os.read(self._signals[0], 4_096)
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            self._stopping = True

    def _read_ready(self, worker: Worker) -> None:
        """Reads the pipe of a worker that is ready, or has ended before."""
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

    def _reap(self) -> None:
        for worker in self._workers:
            if worker.pid is None:
                continue
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if not pid:
                continue
            self._close_pipe(worker)
            self._pages.clear(worker.number)
            code = os.waitstatus_to_exitcode(status)
            if not self._is_ready:  # the worker has printed its error
                worker.pid = None
                self._stopping, self._code = True, code if code > 0 else 1
            elif not self._stopping:
                wait_s = worker.ended(time.monotonic())
                log.warning(
                    "worker.ended worker=%d pid=%d %s restart_in=%.1fs", worker.number, pid, exit_reason(code), wait_s
                )
            else:
                worker.pid = None
                self._code = self._code or (code and 1)

    def _start(self, worker: Worker) -> None:
        read_end, write_end = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal that arrives before the child has its own handlers would go to the parent's handlers, and be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            self._run_worker(worker.number, write_end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.close(write_end)
        worker.pid, worker.pipe, worker.due_s, worker.started_s = pid, read_end, None, time.monotonic()
        self._selector.register(read_end, selectors.EVENT_READ, worker)

    def _run_worker(self, number: int, write_end: int) -> NoReturn:
        """Runs in the new process: releases the parent's resources, and does the work."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number_of_signal in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number_of_signal, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent stops it
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            self._selector.close()
            for end in (self._life[1], *self._signals):
                os.close(end)

            def report_ready(listens: str) -> None:
                os.write(write_end, listens.encode())
                os.close(write_end)

            context = WorkerContext(number=number, pages=self._pages, parent=self._life[0], report_ready=report_ready)
            code = run_and_exit_status(lambda: self._work(context))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _end(self) -> None:
        """Stops all workers, and waits for their end. A second Ctrl-C, or STOP_S_MAX, kills those that still run."""
        self._stopping = True
        self._signal(signal.SIGTERM)
        until_s = time.monotonic() + STOP_S_MAX
        while any(worker.pid is not None for worker in self._workers):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                log.warning("workers.killed after_s=%.0f: they did not stop in time", STOP_S_MAX)
                self._signal(signal.SIGKILL)
                until_s += STOP_S_MAX
            for key, _ in self._selector.select(max(0.0, left_s)):
                if key.data is not None:
                    self._close_pipe(key.data)
                elif signal.SIGINT in os.read(self._signals[0], 4_096):
                    self._signal(signal.SIGKILL)
            self._reap()

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.pid is not None:
                os.kill(worker.pid, number)  # not reaped yet, so no other process has the id

    def _close_pipe(self, worker: Worker) -> None:
        if worker.pipe is not None:
            self._selector.unregister(worker.pipe)
            os.close(worker.pipe)
            worker.pipe = None


def _wake_up(number: int, frame: object) -> None:
    """Does nothing: Python writes the signal's number to the wake-up pipe."""
