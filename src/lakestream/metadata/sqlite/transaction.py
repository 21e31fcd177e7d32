"""One write transaction: what put, create and delete mean, in SQL.

Called by the writer's thread (`threads.py`), which begins and commits it. Many callers share one transaction, so every
operation answers with a value and leaves the others alone.
"""

import sqlite3

from lakestream.errors import Conflict, Missing
from lakestream.metadata.sqlite.database import CHANGES_KEPT
from lakestream.metadata.store import ABSENT, ANY, Create, Created, Put, Record, Stored

FIND = "SELECT version, created_ms FROM records WHERE folder = ? AND name = ?"
BEGIN = "SELECT version, (SELECT min(expires_ms) FROM sessions) FROM counter"
INSERT = "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (folder, name) DO NOTHING"
CREATE = f"""
{INSERT} RETURNING
    (SELECT value FROM records WHERE folder = ?7 AND name = ?8),
    (SELECT version FROM records WHERE folder = ?7 AND name = ?8),
    (SELECT created_ms FROM records WHERE folder = ?7 AND name = ?8)
"""
"""Every statement lets go of the interpreter and has to get hold of it again, which takes longer than the statement."""
UPDATE = "UPDATE records SET version = ?, value = ?, session = ? WHERE version = ?"

NAMES = "SELECT name FROM records WHERE folder = ? AND name >= ? AND name < ? ORDER BY name LIMIT ?"
NOTE_DELETED = """
INSERT INTO deleted SELECT ?1 + row_number() OVER (ORDER BY name), folder || '/' || name
FROM records WHERE folder = ?2 AND name BETWEEN ?3 AND ?4
"""
DELETE = "DELETE FROM records WHERE folder = ? AND name BETWEEN ? AND ?"


class Transaction:
    """`changed` are the paths it wrote or deleted; versions `[version_start + 1, version]` are its own."""

    def __init__(self, connection: sqlite3.Connection, now_ms: int) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._now_ms = now_ms
        self.version: int
        self.version, expires_ms = self._cursor.execute(BEGIN).fetchone()
        self.version_start = self.version
        self.changed: list[str] = []
        self._deleted = False
        # Sessions that ran out are gone before anything else happens: what follows need not ask.
        if expires_ms is not None and expires_ms <= now_ms:
            self._expire_sessions()

    def put(self, put: Put, session: int | None) -> Stored | Conflict | Missing:
        path = put.key.path
        if session is not None and not self._is_alive(session):
            return Missing(f"{path}: its session is gone; open another")
        if put.expected == ABSENT:
            return self._insert(path, put.value, session)
        folder, name = _split(path)
        there = self._cursor.execute(FIND, (folder, name)).fetchone()
        if there is None:
            return self._insert(path, put.value, session) if put.expected is ANY else Conflict(f"{path}: is not there")
        version, created_ms = there
        if put.expected is not ANY and put.expected != version:
            return Conflict(f"{path}: is at version {version}, not {put.expected}")
        self.version += 1
        self._cursor.execute(UPDATE, (self.version, put.value, session, version))
        self.changed.append(path)
        return Stored(self.version, created_ms)

    def create(self, create: Create) -> Created | Conflict:
        path, guard = create.key.path, create.guard.path
        version = self.version + 1
        key, guard_key = _split(path), _split(guard)
        made = self._cursor.execute(CREATE, (version, *key, create.value, self._now_ms, None, *guard_key)).fetchone()
        if made is None:
            return Conflict(f"{path}: is there already")
        self.version = version
        self.changed.append(path)
        return Created(version, self._now_ms, None if made[0] is None else Record(guard, *made))

    def delete(self, path: str, expected: int | None) -> bool:
        folder, name = _split(path)
        there = self._cursor.execute(FIND, (folder, name)).fetchone()
        if there is None:
            return False
        if expected is not ANY and there[0] != expected:
            raise Conflict(f"{path}: is at version {there[0]}, not {expected}")
        self._remove([(there[0], path)])
        return True

    def delete_range(self, folder: str, start: str, end: str, limit: int) -> int:
        """How many it deleted: less than `limit` once there are no more."""
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
        """Its id and when it expires."""
        self.version += 1
        expires_ms = self._now_ms + timeout_ms
        self._cursor.execute("INSERT INTO sessions VALUES (?, ?)", (self.version, expires_ms))
        return self.version, expires_ms

    def keep_session(self, session: int, timeout_ms: int) -> int | None:
        """When it expires now; None if it is gone."""
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
        """The last step before the commit."""
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
            return Conflict(f"{path}: is there already")
        self.version = version
        self.changed.append(path)
        return Stored(version, self._now_ms)

    def _remove(self, found: list[tuple[int, str]]) -> None:
        for version, path in found:
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


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name
