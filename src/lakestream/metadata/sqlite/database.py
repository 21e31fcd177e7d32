"""The file: its tables, and how it is opened, made and checked.

`records.version` is the row's own id, taken from one counter for all keys: it is never given twice, and "what changed
since version v" is the end of the table. `deleted` says the same of keys that are gone, for a while.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from lakestream.errors import Misconfigured
from lakestream.metadata.sqlite.filelock import FileLock
from lakestream.metadata.sqlite.settings import SqliteSettings
from lakestream.metadata.sqlite.trouble import explain_open

SCHEMA_VERSION = 1
APPLICATION_ID = 0x4C616B65
"""`Lake` in ASCII, in the file's header: another program's database is not taken for ours."""

CHANGES_KEPT = 10_000
"""Deletions are remembered for this many versions; a watcher further behind is told to look at everything."""

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


class Opened(NamedTuple):
    lock: FileLock
    writer: sqlite3.Connection
    readers: list[sqlite3.Connection]


class Database:
    """Where the database lies, and how to connect to it."""

    def __init__(self, path: Path, settings: SqliteSettings) -> None:
        # The real path: all processes must agree on the names of the lock and the sockets beside it.
        self.path = path.resolve()
        self.settings = settings
        self.wal_path = self._beside("-wal")
        self.wake_path = self._beside("-wake")

    def open(self) -> Opened:
        """All that one process needs. Raises Misconfigured, Corrupt or Unavailable."""
        with self._explained(), ExitStack() as undo:
            lock = FileLock(self._beside("-lock"), self.settings.lock_wait_ms)
            undo.callback(lock.close)
            with lock.held():
                writer = self._connect(undo)
                self._prepare(writer)
                readers = [self._connect(undo) for _ in range(self.settings.readers)]
            self.wake_path.mkdir(exist_ok=True)
            for reader in readers:
                reader.execute("PRAGMA query_only = ON")
            undo.pop_all()
            return Opened(lock, writer, readers)

    def identity(self) -> tuple[int, int] | None:
        """Which file lies at the path now. Only ever a stat: closing another handle of it drops SQLite's locks."""
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

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _connect(self, undo: ExitStack) -> sqlite3.Connection:
        # isolation_level None: a transaction begins and ends only where the code says so.
        # Made in one thread, then used by one other: never by two at a time.
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
                f"{self.path}: was made by a newer Lakestream (schema {version}, this one knows {SCHEMA_VERSION}):"
                " upgrade this one"
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        if not self.path.parent.is_dir():
            raise Misconfigured(f"{self.path}: there is no folder {self.path.parent}: make it or give another path")
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise explain_open(error, self.path) from error


def schema_version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def sync_folder(path: Path) -> None:
    """A new file is only safe once its folder is."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
