"""Reads, in SQL. Each is one look at the newest commit, on a reading thread's own connection.

A record whose session has run out is not there, although nobody may have deleted it yet.
"""

import sqlite3
from typing import NamedTuple

from lakestream.metadata.sqlite.database import CHANGES_KEPT
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


class News(NamedTuple):
    version: int
    paths: list[str] | None
    """What changed; None where it is not known any more."""
    expired: bool
    """A session has run out and its records wait to be deleted."""


def get(connection: sqlite3.Connection, path: str, now_ms: int) -> Record | None:
    folder, _, name = path.rpartition("/")
    return one(connection, GET, folder, name, now_ms)


def one(connection: sqlite3.Connection, sql: str, folder: str, name: str, now_ms: int) -> Record | None:
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


def news(connection: sqlite3.Connection, seen: int, now_ms: int) -> News:
    """What happened after version `seen`. The counter is read first: what comes in between is told twice, not lost."""
    newest = version(connection)
    expired = connection.execute("SELECT 1 FROM sessions WHERE expires_ms <= ?", (now_ms,)).fetchone() is not None
    if not 0 <= newest - seen < CHANGES_KEPT:
        return News(newest, None, expired)
    rows = connection.execute(
        """SELECT folder || '/' || name FROM records WHERE version > :seen
        UNION ALL SELECT path FROM deleted WHERE version > :seen""",
        {"seen": seen},
    )
    return News(newest, [path for (path,) in rows], expired)
