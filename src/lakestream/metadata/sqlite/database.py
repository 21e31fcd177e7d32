"""Schema and settings of the database, and the functions that open, create and check it.

`records.version` is the row id, from one counter for all keys: it is never reused, and the changes since a version are
the end of the table. `deleted` has the same for deleted keys, for a while.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lakestream.errors import Misconfigured
from lakestream.metadata.sqlite.errors import explain_open
from lakestream.metadata.sqlite.file_lock import FileLock
from lakestream.model import MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteSettings:
    lock_wait_ms: int = 5_000
    """How long a write waits for other processes before it raises Unavailable."""
    answer_wait_ms: int = 30_000
    """How long a caller waits for a disk that does not respond before it gets Uncertain."""
    jobs_max: int = 4_096
    """Calls in the queue of the threads. More calls wait before they are queued."""
    group_max: int = 1_000
    """Calls that share one transaction and one fsync."""
    readers: int = 2
    """Reading threads. With more than one, a long scan does not delay every get."""
    poll_ms: int = 250
    """How often a process with watches polls for changes without a notification, and for expired sessions."""
    watch_pause_ms: int = 0
    """Pause after changes, for processes that need not react immediately: every commit of a busy broker notifies."""
    checkpoint_pages: int = 4_096
    """Pages in SQLite's write-ahead file (16 MiB) after which it makes a checkpoint."""
    wal_bytes_max: int = 64 * MiB
    """A larger write-ahead file, which grew because there were always readers, is truncated by a checkpoint."""


SCHEMA_VERSION = 1
APPLICATION_ID = 0x4C616B65
"""`Lake` in ASCII, in the file's header, to recognize the database of another program."""

CHANGES_KEPT = 10_000
"""Deletions are kept for this many versions. A watcher that is further behind gets `everything`."""

SCHEMA = f"""
CREATE TABLE records (
    version    INTEGER PRIMARY KEY,
    folder     TEXT NOT NULL,
    name       TEXT NOT NULL,
    value      BLOB NOT NULL,
    created_ms INTEGER NOT NULL,
    session    INTEGER,
    UNIQUE (folder, name)
);
CREATE INDEX records_of_session ON records (session) WHERE session IS NOT NULL;
CREATE TABLE sessions (id INTEGER PRIMARY KEY, expires_ms INTEGER NOT NULL);
CREATE TABLE deleted (version INTEGER PRIMARY KEY, path TEXT NOT NULL);
CREATE TABLE counter (version INTEGER NOT NULL);
INSERT INTO counter VALUES (0);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""


class Connections(NamedTuple):
    lock: FileLock
    writer: sqlite3.Connection
    readers: list[sqlite3.Connection]


class Database:
    """Path of the database, and functions to connect to it."""

    def __init__(self, path: Path, settings: SqliteSettings) -> None:
        # The real path: all processes must use the same names for the lock and the sockets in its folder.
        self.path = path.resolve()
        self.settings = settings
        self.wal_path = self._sibling("-wal")
        self.wake_path = self._sibling("-wake")

    def open(self) -> Connections:
        """Opens the lock and the connections of a process. Raises Misconfigured, Corrupt or Unavailable."""
        with self._translated_errors(), ExitStack() as undo:
            lock = FileLock(self._sibling("-lock"), self.settings.lock_wait_ms)
            undo.callback(lock.close)
            with lock.acquired():
                writer = self._connect(undo)
                self._prepare(writer)
                readers = [self._connect(undo) for _ in range(self.settings.readers)]
            self.wake_path.mkdir(exist_ok=True)
            for reader in readers:
                reader.execute("PRAGMA query_only = ON")
            undo.pop_all()
            return Connections(lock, writer, readers)

    def identity(self) -> tuple[int, int] | None:
        """Returns device and inode of the path. Uses only stat: closing another handle would drop SQLite's locks."""
        try:
            stat = os.stat(self.path)
        except FileNotFoundError:
            return None
        return stat.st_dev, stat.st_ino

    def wal_bytes(self) -> int:
        try:
            return os.stat(self.wal_path).st_size
        except FileNotFoundError:
            return 0

    def _sibling(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _connect(self, undo: ExitStack) -> sqlite3.Connection:
        # isolation_level None: transactions begin and end only by explicit statements.
        # Created in one thread, then used by one other thread: never by two at a time.
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, cached_statements=64)
        undo.callback(connection.close)
        connection.execute(f"PRAGMA busy_timeout = {self.settings.lock_wait_ms}")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        self._check(connection)
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise Misconfigured(f"{self.path}: this file system cannot be shared by processes: put it on a local disk")
        if schema_version(connection) == 0:
            connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} COMMIT;")
            sync_folder(self.path.parent)
        connection.execute(f"PRAGMA wal_autocheckpoint = {self.settings.checkpoint_pages}")

    def _check(self, connection: sqlite3.Connection) -> None:
        version = schema_version(connection)
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and application != APPLICATION_ID:
            raise Misconfigured(f"{self.path}: is another program's database: give another path for the metadata")
        if version > SCHEMA_VERSION:
            raise Misconfigured(
                f"{self.path}: was created by a newer Lakestream (schema {version}, this one supports"
                f" {SCHEMA_VERSION}): upgrade this one"
            )

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        if not self.path.parent.is_dir():
            raise Misconfigured(f"{self.path}: there is no folder {self.path.parent}: create it or give another path")
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise explain_open(error, self.path) from error


def schema_version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def sync_folder(path: Path) -> None:
    """A new file is durable only after a sync of its folder."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
