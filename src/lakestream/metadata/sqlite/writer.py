"""Writer thread with group commit: all calls that wait when a transaction starts share it and its fsync.

Before: `work_queue.py`.  After: `transaction.py` executes each call, `notify_socket.py` notifies other processes.
"""

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from lakestream.clock import Clock
from lakestream.errors import Unavailable
from lakestream.metadata.sqlite.database import Connections, Database
from lakestream.metadata.sqlite.errors import explain, explain_commit
from lakestream.metadata.sqlite.notify_socket import NotifySocket
from lakestream.metadata.sqlite.transaction import WriteTransaction
from lakestream.metadata.sqlite.work_queue import QueuedCall, WorkQueue

CHECKPOINT_WAIT_MS = 100


class Commit(NamedTuple):
    """Changes of a transaction, with the versions `(version_start, version]`."""

    version_start: int
    version: int
    paths: list[str]


class SqliteWriter:
    def __init__(
        self,
        queue: WorkQueue[WriteTransaction],
        database: Database,
        connections: Connections,
        clock: Clock,
        notify_socket: NotifySocket,
        on_commit: Callable[[Commit], None],
    ) -> None:
        self._queue = queue
        self._database = database
        self._lock = connections.lock
        self._connection = connections.writer
        self._clock = clock
        self._notify_socket = notify_socket
        self._on_commit = on_commit
        self._identity = database.identity()
        self._wal_bytes_max = database.settings.wal_bytes_max

    def run(self) -> None:
        """Executes calls in groups until the queue is closed."""
        while (first := self._queue.next()) is not None:
            self._write([first])
        self._close()

    def _write(self, calls: list[QueuedCall[WriteTransaction]]) -> None:
        try:
            with self._lock.acquired():
                self._queue.add_waiting(calls, self._database.settings.group_max)
                commit = self._commit(calls)
        except Exception as error:
            for call in calls:
                call.error = error
            self._queue.complete(calls)
            return
        if commit.paths:
            self._queue.complete(calls, partial(self._on_commit, commit))
            self._notify_socket.notify()
        else:
            self._queue.complete(calls)
        self._truncate_wal()

    def _commit(self, calls: list[QueuedCall[WriteTransaction]]) -> Commit:
        self._check_file()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            transaction = WriteTransaction(self._connection, self._clock.now_ms())
            for call in calls:
                call.run(transaction)
            transaction.finish()
        except sqlite3.Error as error:
            self._roll_back()
            raise explain(error, self._database.path) from error
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            raise explain_commit(error, self._database.path) from error
        return Commit(transaction.version_start, transaction.version, transaction.changed)

    def _check_file(self) -> None:
        """Raises Unavailable if the file was deleted or replaced: other processes would not see a write to it."""
        if self._database.identity() != self._identity:
            raise Unavailable(f"{self._database.path}: was moved or deleted while in use: restore it, then restart")

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):  # SQLite may have rolled back already
            self._connection.execute("ROLLBACK")

    def _truncate_wal(self) -> None:
        """Truncates a large write-ahead file. SQLite's own checkpoints do that only without readers, so maybe never."""
        wal_bytes = self._database.wal_bytes()
        if wal_bytes <= self._wal_bytes_max:
            return
        # If it fails (readers, a full disk), commits continue, and it is retried when the file has grown by half.
        self._wal_bytes_max = wal_bytes * 3 // 2
        with suppress(sqlite3.Error, Unavailable), self._lock.acquired():
            self._connection.execute(f"PRAGMA busy_timeout = {CHECKPOINT_WAIT_MS}")
            (busy, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if not busy:
                self._wal_bytes_max = self._database.settings.wal_bytes_max
            self._connection.execute(f"PRAGMA busy_timeout = {self._database.settings.lock_wait_ms}")

    def _close(self) -> None:
        """Closes the connection under the lock, because the last close of the database makes a checkpoint.

        If the lock is not available, another process has the database open, and there will be no checkpoint.
        """
        try:
            with self._lock.acquired():
                self._connection.close()
        except Unavailable:
            self._connection.close()
        self._lock.close()
        self._notify_socket.close()
