"""One write transaction: what put, create and delete mean, in SQL.

Called by the writer's thread (`writer.py`), which begins and commits it. Many callers share one transaction, so every
operation answers with a value and leaves the others alone.
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
"""In one statement."""
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

    def create(self, creates: Sequence[Create]) -> list[Created | Conflict]:
        answers: list[Created | Conflict] = []
        for start in range(0, len(creates), CREATES_MAX):
            answers += self._create_some(creates[start : start + CREATES_MAX])
        return answers

    def _create_some(self, creates: Sequence[Create]) -> list[Created | Conflict]:
        """Whoever finds its key taken leaves a gap in the versions, which nobody minds."""
        keys: list[object] = []
        for version, create in enumerate(creates, self.version + 1):
            keys += (version, *_split(create.key.path), create.value, self._now_ms, None)
        made = {version for (version,) in self._cursor.execute(_create(len(creates)), keys)}
        guards = self._records([create.guard.path for create in creates])
        answers: list[Created | Conflict] = []
        for version, create in enumerate(creates, self.version + 1):
            path = create.key.path
            if version in made:
                self.changed.append(path)
                answers.append(Created(version, self._now_ms, guards.get(create.guard.path)))
            else:
                answers.append(Conflict(f"{path}: is there already"))
        self.version = max(made, default=self.version)
        return answers

    def _records(self, paths: Sequence[str]) -> dict[str, Record]:
        values = [part for path in paths for part in (path, *_split(path))]
        return {row[0]: Record._make(row) for row in self._cursor.execute(_find(len(paths)), values)}

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


# Every statement lets go of the interpreter and has to get hold of it again, which takes longer than the statement: so
# there is one for many keys.


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
