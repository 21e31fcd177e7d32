"""Write transaction: put, create and delete in SQL.

Called by the writer thread (`writer.py`), which begins and commits it. Many callers share one transaction, so a failed
operation returns its error as a value and does not affect the others.
"""

import sqlite3
from collections.abc import Sequence
from functools import cache

from lakestream.errors import Conflict, Missing
from lakestream.metadata.sqlite.database import CHANGES_KEPT
from lakestream.metadata.store import ABSENT, ANY, Create, Created, Put, Record, Stored

FIND = "SELECT version, created_ms FROM records WHERE folder = ? AND name = ?"
BEGIN = "SELECT version, (SELECT min(expires_ms) FROM sessions) FROM counter"
ROW = "(?, ?, ?, ?, ?, ?)"
UNLESS_TAKEN = "ON CONFLICT (folder, name) DO NOTHING"
INSERT = f"INSERT INTO records VALUES {ROW} {UNLESS_TAKEN}"
CREATES_MAX = 16
"""Creates per statement."""
UPDATE = "UPDATE records SET version = ?, value = ?, session = ? WHERE version = ?"

NAMES = "SELECT name FROM records WHERE folder = ? AND name >= ? AND name < ? ORDER BY name LIMIT ?"
NOTE_DELETED = """
INSERT INTO deleted SELECT ?1 + row_number() OVER (ORDER BY name), folder || '/' || name
FROM records WHERE folder = ?2 AND name BETWEEN ?3 AND ?4
"""
DELETE = "DELETE FROM records WHERE folder = ? AND name BETWEEN ? AND ?"


class WriteTransaction:
    """A transaction with the versions `[version_start + 1, version]`. `changed` has the written and deleted paths."""

    def __init__(self, connection: sqlite3.Connection, now_ms: int) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._now_ms = now_ms
        self.version: int
        self.version, expires_ms = self._cursor.execute(BEGIN).fetchone()
        self.version_start = self.version
        self.changed: list[str] = []
        self._deleted = False
        # Expired sessions are deleted first, so later operations need not check the expiry.
        if expires_ms is not None and expires_ms <= now_ms:
            self._expire_sessions()

    def put(self, put: Put, session: int | None) -> Stored | Conflict | Missing:
        path = put.key.path
        if session is not None and not self._is_alive(session):
            return Missing(f"{path}: its session has ended: open another")
        if put.expected == ABSENT:
            return self._insert(path, put.value, session)
        folder, name = _split(path)
        row = self._cursor.execute(FIND, (folder, name)).fetchone()
        if row is None:
            return (
                self._insert(path, put.value, session) if put.expected is ANY else Conflict(f"{path}: does not exist")
            )
        version, created_ms = row
        if put.expected is not ANY and put.expected != version:
            return Conflict(f"{path}: is at version {version}, not {put.expected}")
        self.version += 1
        self._cursor.execute(UPDATE, (self.version, put.value, session, version))
        self.changed.append(path)
        return Stored(self.version, created_ms)

    def create(self, creates: Sequence[Create]) -> list[Created | Conflict]:
        results: list[Created | Conflict] = []
        for start in range(0, len(creates), CREATES_MAX):
            results += self._create_chunk(creates[start : start + CREATES_MAX])
        return results

    def _create_chunk(self, creates: Sequence[Create]) -> list[Created | Conflict]:
        """Creates records in one statement. Conflicts leave gaps in the versions, which have no effect."""
        keys: list[object] = []
        for version, create in enumerate(creates, self.version + 1):
            keys += (version, *_split(create.key.path), create.value, self._now_ms, None)
        created = {version for (version,) in self._cursor.execute(_create(len(creates)), keys)}
        guards = self._records([create.guard.path for create in creates])
        results: list[Created | Conflict] = []
        for version, create in enumerate(creates, self.version + 1):
            path = create.key.path
            if version in created:
                self.changed.append(path)
                results.append(Created(version, self._now_ms, guards.get(create.guard.path)))
            else:
                results.append(Conflict(f"{path}: already exists"))
        self.version = max(created, default=self.version)
        return results

    def _records(self, paths: Sequence[str]) -> dict[str, Record]:
        values = [part for path in paths for part in (path, *_split(path))]
        return {row[0]: Record._make(row) for row in self._cursor.execute(_find(len(paths)), values)}

    def delete(self, path: str, expected: int | None) -> bool:
        folder, name = _split(path)
        row = self._cursor.execute(FIND, (folder, name)).fetchone()
        if row is None:
            return False
        if expected is not ANY and row[0] != expected:
            raise Conflict(f"{path}: is at version {row[0]}, not {expected}")
        self._remove([(row[0], path)])
        return True

    def delete_range(self, folder: str, start: str, end: str, limit: int) -> int:
        """Returns the number of deleted records: less than `limit` if there are no more."""
        names = self._cursor.execute(NAMES, (folder, start, end, limit)).fetchall()
        if names:
            (last,) = names[-1]
            self._cursor.execute(NOTE_DELETED, (self.version, folder, start, last))
            self._cursor.execute(DELETE, (folder, start, last))
            self.version += len(names)
            self.changed += [f"{folder}/{name}" for (name,) in names]
            self._deleted = True
        return len(names)

    def open_session(self, timeout_ms: int) -> tuple[int, int]:
        """Returns the session's id and expiry time."""
        self.version += 1
        expires_ms = self._now_ms + timeout_ms
        self._cursor.execute("INSERT INTO sessions VALUES (?, ?)", (self.version, expires_ms))
        return self.version, expires_ms

    def extend_session(self, session: int, timeout_ms: int) -> int | None:
        """Returns the new expiry time, or None if the session has ended."""
        expires_ms = self._now_ms + timeout_ms
        self._cursor.execute("UPDATE sessions SET expires_ms = ? WHERE id = ?", (expires_ms, session))
        return expires_ms if self._cursor.rowcount else None

    def end_session(self, session: int) -> None:
        self._remove(
            self._cursor.execute(
                "SELECT version, folder || '/' || name FROM records WHERE session = ?", (session,)
            ).fetchall()
        )
        self._cursor.execute("DELETE FROM sessions WHERE id = ?", (session,))

    def finish(self) -> None:
        """Must be called before the commit."""
        if self.version == self.version_start:
            return
        self._cursor.execute("UPDATE counter SET version = ?", (self.version,))
        if self._deleted:
            self._cursor.execute("DELETE FROM deleted WHERE version <= ?", (self.version - CHANGES_KEPT,))

    def _insert(self, path: str, value: bytes, session: int | None) -> Stored | Conflict:
        folder, name = _split(path)
        version = self.version + 1
        self._cursor.execute(INSERT, (version, folder, name, value, self._now_ms, session))
        if not self._cursor.rowcount:
            return Conflict(f"{path}: already exists")
        self.version = version
        self.changed.append(path)
        return Stored(version, self._now_ms)

    def _remove(self, records: list[tuple[int, str]]) -> None:
        for version, path in records:
            self.version += 1
            self._cursor.execute("DELETE FROM records WHERE version = ?", (version,))
            self._cursor.execute("INSERT INTO deleted VALUES (?, ?)", (self.version, path))
            self.changed.append(path)
            self._deleted = True

    def _is_alive(self, session: int) -> bool:
        return self._cursor.execute("SELECT 1 FROM sessions WHERE id = ?", (session,)).fetchone() is not None

    def _expire_sessions(self) -> None:
        expired = self._cursor.execute("SELECT id FROM sessions WHERE expires_ms <= ?", (self._now_ms,)).fetchall()
        for (session,) in expired:
            self.end_session(session)


# Every statement releases and reacquires the GIL, which takes longer than the statement itself, so one statement has
# many keys.


@cache
def _create(count: int) -> str:
    return f"INSERT INTO records VALUES {', '.join([ROW] * count)} {UNLESS_TAKEN} RETURNING version"


@cache
def _find(count: int) -> str:
    rows = ", ".join(["(?, ?, ?)"] * count)
    return f"""SELECT column1, value, version, created_ms FROM (VALUES {rows})
    CROSS JOIN records ON folder = column2 AND name = column3"""


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name
