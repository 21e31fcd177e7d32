"""The writer's thread: everyone who waits when a transaction starts shares it, and its one fsync (group commit).

Before: `line.py`.  After: `transaction.py` decides each item, `wake.py` tells other processes.
"""

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from lakestream.clock import Clock
from lakestream.errors import Unavailable
from lakestream.metadata.sqlite.database import Database, Opened
from lakestream.metadata.sqlite.line import Job, Line
from lakestream.metadata.sqlite.transaction import Transaction
from lakestream.metadata.sqlite.trouble import explain, explain_commit
from lakestream.metadata.sqlite.wake import Mailbox

CHECKPOINT_WAIT_MS = 100


class Commit(NamedTuple):
    """What a transaction changed: versions `(version_start, version]`."""

    version_start: int
    version: int
    paths: list[str]


class Writer:
    def __init__(
        self,
        line: Line[Transaction],
        database: Database,
        opened: Opened,
        clock: Clock,
        mailbox: Mailbox,
        committed: Callable[[Commit], None],
    ) -> None:
        self._line = line
        self._database = database
        self._lock = opened.lock
        self._connection = opened.writer
        self._clock = clock
        self._mailbox = mailbox
        self._committed = committed
        self._identity = database.identity()
        self._wal_bytes_max = database.settings.wal_bytes_max

    def rounds(self) -> None:
        while (first := self._line.wait()) is not None:
            self._round([first])
        self._close()

    def _round(self, jobs: list[Job[Transaction]]) -> None:
        try:
            with self._lock.held():
                self._line.join_waiting(jobs, self._database.settings.group_max)
                commit = self._commit(jobs)
        except Exception as error:
            for job in jobs:
                job.error = error
            self._line.answer(jobs)
            return
        if commit.paths:
            self._line.answer(jobs, partial(self._committed, commit))
            self._mailbox.poke()
        else:
            self._line.answer(jobs)
        self._cut_wal()

    def _commit(self, jobs: list[Job[Transaction]]) -> Commit:
        self._check_file()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            transaction = Transaction(self._connection, self._clock.now_ms())
            for job in jobs:
                job.run(transaction)
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
        """A write to a file that was deleted or replaced would be acknowledged and seen by nobody else."""
        if self._database.identity() != self._identity:
            raise Unavailable(
                f"{self._database.path}: was moved or deleted while in use: put it back, then start again"
            )

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):  # SQLite may have done so by itself
            self._connection.execute("ROLLBACK")

    def _cut_wal(self) -> None:
        """SQLite's own checkpoints start the file anew only when no reader is on it, which may be never."""
        wal_bytes = self._database.wal_bytes()
        if wal_bytes <= self._wal_bytes_max:
            return
        # If it fails (readers, a full disk), commits go on: try again when the file has grown by half.
        self._wal_bytes_max = wal_bytes * 3 // 2
        with suppress(sqlite3.Error, Unavailable), self._lock.held():
            self._connection.execute(f"PRAGMA busy_timeout = {CHECKPOINT_WAIT_MS}")
            (busy, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if not busy:
                self._wal_bytes_max = self._database.settings.wal_bytes_max
            self._connection.execute(f"PRAGMA busy_timeout = {self._database.settings.lock_wait_ms}")

    def _close(self) -> None:
        """Under the lock, as whoever closes the database last makes a checkpoint.

        Without it, somebody else has the database open: there is nothing to do at the end.
        """
        try:
            with self._lock.held():
                self._connection.close()
        except Unavailable:
            self._connection.close()
        self._lock.close()
        self._mailbox.close()
