"""One process writes at a time: a lock on a file beside the database, held for one transaction.

SQLite has a lock of its own, but who waits for that one sleeps in steps of up to 100 ms, while this one is tried again
within two. It also covers checkpoints, which SQLite alone does not keep apart from other processes' commits: releases
before 3.51.3 can damage the database when the two meet (https://sqlite.org/wal.html#walresetbug).
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lakestream.errors import Unavailable

PAUSE_S_MIN = 0.0002
PAUSE_S_MAX = 0.002


class FileLock:
    """Used by one thread at a time. A process that dies lets go of it."""

    def __init__(self, path: Path, wait_ms: int) -> None:
        self._path = path
        self._wait_ms = wait_ms
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    @contextmanager
    def held(self) -> Iterator[None]:
        self._take()
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _take(self) -> None:
        if self._try():
            return
        # This runs in the writer's thread, never on the event loop, so it sleeps in real time.
        deadline = time.monotonic() + self._wait_ms / 1000
        pause = PAUSE_S_MIN
        while time.monotonic() < deadline:
            time.sleep(pause)
            if self._try():
                return
            pause = min(pause * 2, PAUSE_S_MAX)
        raise Unavailable(
            f"{self._path}: another process has held the lock for {self._wait_ms} ms:"
            f" look for one that is stopped or stuck with `fuser {self._path}`"
        )

    def _try(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        os.close(self._fd)
