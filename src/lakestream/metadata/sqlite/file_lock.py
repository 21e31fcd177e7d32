"""File lock that one process at a time holds for a transaction.

SQLite has its own lock, but waiting processes sleep in steps of up to 100 ms, and a process that writes all the time
starves the others. This lock also covers checkpoints, which SQLite itself does not separate from other processes'
commits: releases before 3.51.3 can damage the database if both run concurrently (https://sqlite.org/wal.html#walresetbug).
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lakestream.errors import Unavailable

PAUSE_S_MIN = 0.000_1
PAUSE_S_MAX = 0.000_4


class FileLock:
    """Lock for one thread at a time. The kernel releases it when the process dies.

    There are two files: a process first locks the turn, and releases it when it has the lock. So a process that wants
    the lock again immediately must wait for the turn, and the process with the turn waits for one transaction at most.
    """

    def __init__(self, path: Path, wait_ms: int) -> None:
        self._path = path
        self._wait_ms = wait_ms
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._turn = os.open(path.with_name(f"{path.name}-turn"), os.O_RDWR | os.O_CREAT, 0o644)

    @contextmanager
    def acquired(self) -> Iterator[None]:
        # Runs in the writer thread, never on the event loop, so it waits in real time.
        deadline = time.monotonic() + self._wait_ms / 1000
        self._take(self._turn, deadline, PAUSE_S_MAX)
        try:
            # Only one process at a time waits here, so it can poll often.
            self._take(self._lock, deadline, PAUSE_S_MIN)
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _take(self, fd: int, deadline: float, pause_s_max: float) -> None:
        pause_s = PAUSE_S_MIN
        while not try_lock(fd):
            if time.monotonic() >= deadline:
                raise Unavailable(
                    f"{self._path}: other processes have held the lock for {self._wait_ms} ms:"
                    f" find one that is stopped or hangs with `fuser {self._path}`"
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, pause_s_max)

    def close(self) -> None:
        os.close(self._lock)
        os.close(self._turn)


def try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
