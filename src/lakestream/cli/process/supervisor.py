"""The parent process of brokers and HTTP: forks a child for each, and supervises them until it is stopped.

The parent has no threads and no event loop, so it may fork at any time; children share its imported modules. All
children are forked at once, and open the stores when the first one is ready, so that an error that all would have is
printed once. A child reports on a pipe of its own that it is ready. No child outlives the parent: the kernel kills them
when it ends, and they read a pipe that becomes readable then.
"""

import logging
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn

from lakestream.aio.backoff import Backoff
from lakestream.cli.exit_status import exit_reason, run_and_exit_status
from lakestream.cli.process.die_with import die_with

log = logging.getLogger(__name__)

BACKOFF_S_MIN: Final = 0.5
BACKOFF_S_MAX: Final = 30.0
STEADY_S: Final = 60.0
"""After a run of this length, the back-off starts again at its minimum."""
STOP_S_MAX: Final = 60.0
READY_BYTES_MAX: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildContext:
    """What a child gets from its parent."""

    parent: int
    """File descriptor that is readable once the parent has ended."""
    first_ready: int
    """File descriptor that is readable once the first child is ready; -1 for the first child."""
    report_ready: Callable[[str], None]
    """Called with the address on which the child listens."""


class Child(NamedTuple):
    name: str
    """In log lines: `worker=0`."""
    run: Callable[[ChildContext], int]
    """Returns the exit code."""


class _Process:
    """A child, and its current process, if it runs."""

    def __init__(self, child: Child) -> None:
        self.child = child
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


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1)


class Supervisor:
    """Starts all children, restarts those that end, and stops all on SIGTERM or Ctrl-C. Passes SIGUSR1 on to them."""

    def __init__(self, children: Sequence[Child], on_ready: Callable[[list[str]], None]) -> None:
        """`on_ready` is called once, with the addresses of all children."""
        self._on_ready = on_ready
        self._processes = [_Process(child) for child in children]
        self._selector = selectors.DefaultSelector()
        self._life = os.pipe()
        self._first_ready = os.pipe()
        self._signals = os.pipe()
        self._stopping = False
        self._is_ready = False
        self._code = 0

    def run(self) -> int:
        """Returns the exit code: 0 if all children ended without an error after a stop signal."""
        os.set_blocking(self._signals[0], False)
        os.set_blocking(self._signals[1], False)
        for number in SIGNALS:
            signal.signal(number, _wake_up)
        signal.set_wakeup_fd(self._signals[1])
        self._selector.register(self._signals[0], selectors.EVENT_READ, None)
        try:
            for process in self._processes:
                self._start(process)
            while not self._stopping:
                self._wait()
        finally:
            self._end()
        return self._code

    def _wait(self) -> None:
        """Waits for the next event, and handles it."""
        due = [process.due_s for process in self._processes if process.due_s is not None]
        timeout_s = max(0.0, min(due) - time.monotonic()) if due else None
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._read_signals()
            else:
                self._read_ready(key.data)
        self._reap()
        now_s = time.monotonic()
        for process in self._processes:
            if not self._stopping and process.due_s is not None and process.due_s <= now_s:
                self._start(process)

    def _read_signals(self) -> None:
        numbers = os.read(self._signals[0], 4_096)
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            self._stopping = True
            with suppress(BrokenPipeError):  # its reader has ended
                print("stopping", flush=True)
        if signal.SIGUSR1 in numbers:
            self._signal(signal.SIGUSR1)

    def _read_ready(self, process: _Process) -> None:
        """Reads the pipe of a child that is ready, or has ended before."""
        assert process.pipe is not None
        process.listens = os.read(process.pipe, READY_BYTES_MAX).decode()
        self._close_pipe(process)
        if not process.listens or self._is_ready:
            return
        if process is self._processes[0]:
            os.write(self._first_ready[1], b"r")  # never read, so it stays readable for restarted children
        if all(other.listens for other in self._processes):
            self._is_ready = True
            self._on_ready([other.listens for other in self._processes])

    def _reap(self) -> None:
        for process in self._processes:
            if process.pid is None:
                continue
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if not pid:
                continue
            self._close_pipe(process)
            code = os.waitstatus_to_exitcode(status)
            if self._stopping:
                process.pid = None
                if code not in (0, -signal.SIGTERM):  # the signal ends a child that has no handler for it yet
                    self._code = self._code or 1
            elif not self._is_ready:  # the child has printed its error
                process.pid = None
                self._stopping, self._code = True, code if code > 0 else 1
            else:
                wait_s = process.ended(time.monotonic())
                log.warning(
                    "process.ended %s pid=%d %s restart_in=%.1fs", process.child.name, pid, exit_reason(code), wait_s
                )

    def _start(self, process: _Process) -> None:
        read_end, write_end = os.pipe()
        with suppress(BrokenPipeError):
            sys.stdout.flush()
            sys.stderr.flush()
        parent = os.getpid()
        # A signal that arrives before the child has its own handlers would go to the parent's handlers, and be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                os.close(read_end)
                self._run_child(process, parent, write_end)
        except OSError as error:
            os.close(read_end)
            if not self._is_ready:
                raise
            wait_s = process.ended(time.monotonic())
            log.warning("process.start_failed %s error=%s retry_in=%.1fs", process.child.name, error, wait_s)
            return
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            os.close(write_end)
        process.pid, process.pipe, process.due_s, process.started_s = pid, read_end, None, time.monotonic()
        self._selector.register(read_end, selectors.EVENT_READ, process)

    def _run_child(self, process: _Process, parent: int, write_end: int) -> NoReturn:
        """Runs in the new process: releases the parent's resources, and does the work."""
        code = 1
        try:
            die_with(parent)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent stops it
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the child has a handler
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            self._selector.close()
            for end in (self._life[1], self._first_ready[1], *self._signals):
                os.close(end)

            def report_ready(listens: str) -> None:
                os.write(write_end, listens.encode())
                os.close(write_end)

            context = ChildContext(
                parent=self._life[0],
                first_ready=-1 if process is self._processes[0] else self._first_ready[0],
                report_ready=report_ready,
            )
            code = run_and_exit_status(lambda: process.child.run(context))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _end(self) -> None:
        """Stops all children, and waits for their end. A second Ctrl-C, or STOP_S_MAX, kills those that still run."""
        self._stopping = True
        self._signal(signal.SIGTERM)
        until_s = time.monotonic() + STOP_S_MAX
        while any(process.pid is not None for process in self._processes):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                names = ", ".join(process.child.name for process in self._processes if process.pid is not None)
                log.warning("process.killed %s after_s=%.0f: it did not stop in time", names, STOP_S_MAX)
                self._signal(signal.SIGKILL)
                until_s += STOP_S_MAX
            for key, _ in self._selector.select(max(0.0, left_s)):
                if key.data is not None:
                    self._close_pipe(key.data)
                elif signal.SIGINT in os.read(self._signals[0], 4_096):
                    self._signal(signal.SIGKILL)
            self._reap()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.pid is not None:
                os.kill(process.pid, number)  # not reaped yet, so no other process has the id

    def _close_pipe(self, process: _Process) -> None:
        if process.pipe is not None:
            self._selector.unregister(process.pipe)
            os.close(process.pipe)
            process.pipe = None


def _wake_up(number: int, frame: object) -> None:
    """Does nothing: Python writes the signal's number to the wake-up pipe."""
