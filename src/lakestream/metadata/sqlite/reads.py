"""Reads in SQL, and the reading threads. Each read sees the newest commit, on its thread's own connection.

A record whose session has expired is not returned, even if it is not deleted yet.
"""

import sqlite3
from pathlib import Path
from typing import NamedTuple

from lakestream.metadata.sqlite.database import CHANGES_KEPT
from lakestream.metadata.sqlite.errors import explain
from lakestream.metadata.sqlite.work_queue import WorkQueue
from lakestream.metadata.store import Record

ALIVE = """(session IS NULL OR EXISTS (
    SELECT 1 FROM sessions WHERE sessions.id = records.session AND sessions.expires_ms > :now))"""
COLUMNS = "folder || '/' || name, value, version, created_ms"

GET = f"SELECT {COLUMNS} FROM records WHERE folder = :folder AND name = :name AND {ALIVE}"
FLOOR = f"""SELECT {COLUMNS} FROM records WHERE folder = :folder AND name <= :name AND {ALIVE}
    ORDER BY name DESC LIMIT 1"""
CEILING = f"""SELECT {COLUMNS} FROM records WHERE folder = :folder AND name >= :name AND {ALIVE}
    ORDER BY name LIMIT 1"""
SCAN = f"""SELECT {COLUMNS} FROM records WHERE folder = :folder AND name >= :start AND {ALIVE}
    ORDER BY name LIMIT :limit"""
SCAN_TO = f"""SELECT {COLUMNS} FROM records WHERE folder = :folder AND name >= :start AND name < :end AND {ALIVE}
    ORDER BY name LIMIT :limit"""


class ChangesSince(NamedTuple):
    version: int
    paths: list[str] | None
    """Changed paths, or None if they are no longer stored."""
    expired: bool
    """Whether a session has expired whose records must be deleted."""


def get(connection: sqlite3.Connection, path: str, now_ms: int) -> Record | None:
    folder, _, name = path.rpartition("/")
    return first_record(connection, GET, folder, name, now_ms)


def first_record(connection: sqlite3.Connection, sql: str, folder: str, name: str, now_ms: int) -> Record | None:
    row = connection.execute(sql, {"folder": folder, "name": name, "now": now_ms}).fetchone()
    return Record._make(row) if row else None


def scan(
    connection: sqlite3.Connection, folder: str, start: str, end: str | None, limit: int | None, now_ms: int
) -> list[Record]:
    names = {"folder": folder, "start": start, "end": end, "limit": -1 if limit is None else limit, "now": now_ms}
    rows = connection.execute(SCAN if end is None else SCAN_TO, names)
    return [Record._make(row) for row in rows]


def version(connection: sqlite3.Connection) -> int:
    newest: int = connection.execute("SELECT version FROM counter").fetchone()[0]
    return newest


def changes_since(connection: sqlite3.Connection, last: int, now_ms: int) -> ChangesSince:
    """Returns the changes after version `last`. Reads the counter first: a concurrent change is repeated, not lost."""
    newest = version(connection)
    expired = connection.execute("SELECT 1 FROM sessions WHERE expires_ms <= ?", (now_ms,)).fetchone() is not None
    if not 0 <= newest - last < CHANGES_KEPT:
        return ChangesSince(newest, None, expired)
    rows = connection.execute(
        """SELECT folder || '/' || name FROM records WHERE version > :last
        UNION ALL SELECT path FROM deleted WHERE version > :last""",
        {"last": last},
    )
    return ChangesSince(newest, [path for (path,) in rows], expired)


READS_MAX = 16
"""Per batch: a result waits for at most this many other reads."""


def run_reader(queue: WorkQueue[sqlite3.Connection], connection: sqlite3.Connection, path: Path) -> None:
    """Executes reads in batches until the queue is closed."""
    while (first := queue.next()) is not None:
        calls = [first]
        queue.add_waiting(calls, READS_MAX)
        for call in calls:
            try:
                call.run(connection)
            except sqlite3.Error as error:
                call.error = explain(error, path)
        queue.complete(calls)
    connection.close()
