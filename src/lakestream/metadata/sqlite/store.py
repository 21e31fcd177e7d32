"""`MetadataStore` in an SQLite file. Each method is one call to a thread.

Writes go to one thread that commits them in groups, reads to a few other threads. Every read starts after its call
began and sees all commits before it, so `confirmed` costs nothing here.
"""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path

from lakestream.clock import Clock, Ids, RandomIds
from lakestream.errors import Conflict, LakestreamError, Missing, Rejected, Unavailable
from lakestream.metadata.sqlite import reads
from lakestream.metadata.sqlite.change_feed import SqliteChangeFeed
from lakestream.metadata.sqlite.database import Connections, Database, SqliteSettings
from lakestream.metadata.sqlite.notify_socket import NotifySocket
from lakestream.metadata.sqlite.reads import run_reader
from lakestream.metadata.sqlite.sessions import SqliteSession
from lakestream.metadata.sqlite.transaction import WriteTransaction
from lakestream.metadata.sqlite.work_queue import WorkQueue
from lakestream.metadata.sqlite.writer import SqliteWriter
from lakestream.metadata.store import ANY, Changes, Create, Created, Folder, Key, Put, Record, Scanned, Session, Stored
from lakestream.metadata.watchers import Watchers

DELETES_MAX = 1_000
"""Per transaction of a range delete, so that other writes can run in between."""


class SqliteStore:
    """Created by `open`, for the event loop on which it was opened."""

    def __init__(self, database: Database, connections: Connections, notify_socket: NotifySocket, clock: Clock) -> None:
        settings = database.settings
        self._path = database.path
        self._clock = clock
        self._sessions: list[SqliteSession] = []
        self._closed = False
        self._closed_message = f"{self._path}: the store is closed"
        self._watchers = Watchers()
        self._read: WorkQueue[sqlite3.Connection] = WorkQueue(
            str(self._path), settings.jobs_max, settings.answer_wait_ms
        )
        self._write: WorkQueue[WriteTransaction] = WorkQueue(
            str(self._path), settings.jobs_max, settings.answer_wait_ms
        )
        self._change_feed = SqliteChangeFeed(
            self._watchers, notify_socket, self._read, self._write, clock, settings.poll_ms, settings.watch_pause_ms
        )
        for connection in connections.readers:
            self._read.start_thread("metadata.sqlite.reader", partial(run_reader, self._read, connection, self._path))
        writer = SqliteWriter(self._write, database, connections, clock, notify_socket, self._change_feed.committed)
        self._write.start_thread("metadata.sqlite.writer", writer.run)

    @classmethod
    async def open(
        cls, path: Path, clock: Clock, settings: SqliteSettings | None = None, ids: Ids | None = None
    ) -> "SqliteStore":
        """Opens the database, and creates it if necessary. Raises Misconfigured, Corrupt or Unavailable."""
        database = Database(path, settings or SqliteSettings())
        connections = await asyncio.to_thread(database.open)
        return cls(database, connections, NotifySocket(database.wake_path, (ids or RandomIds()).new()), clock)

    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        return await self._read.run(lambda connection: reads.get(connection, key.path, self._clock.now_ms()))

    async def floor(self, folder: Folder, name: str) -> Record | None:
        return await self._read.run(
            lambda connection: reads.first_record(connection, reads.FLOOR, folder.path, name, self._clock.now_ms())
        )

    async def ceiling(self, folder: Folder, name: str) -> Record | None:
        return await self._read.run(
            lambda connection: reads.first_record(connection, reads.CEILING, folder.path, name, self._clock.now_ms())
        )

    async def scan(
        self,
        folder: Folder,
        start: str = "",
        end: str | None = None,
        *,
        limit: int | None = None,
        guard: Key | None = None,
        confirmed: bool = False,
    ) -> Scanned:
        def work(connection: sqlite3.Connection) -> Scanned:
            now_ms = self._clock.now_ms()
            records = reads.scan(connection, folder.path, start, end, limit, now_ms)
            # Read after the records, as the interface requires: a guard read before them would miss a concurrent trim.
            return Scanned(records, reads.get(connection, guard.path, now_ms) if guard else None)

        return await self._read.run(work)

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        items = [(put, self._session_id(put)) for put in puts]
        try:
            return await self._write.run(lambda transaction: [transaction.put(*item) for item in items])
        except Unavailable as error:
            return [error for _ in puts]

    async def create(self, creates: Sequence[Create]) -> list[Created | Conflict | Unavailable]:
        try:
            return list(await self._write.run(lambda transaction: transaction.create(creates)))
        except Unavailable as error:
            return [error for _ in creates]

    async def delete(self, key: Key, expected: int | None = ANY) -> bool:
        return await self._write.run(lambda transaction: transaction.delete(key.path, expected))

    async def delete_range(self, folder: Folder, start: str, end: str) -> None:
        deleted = DELETES_MAX
        while deleted == DELETES_MAX:
            deleted = await self._write.run(
                lambda transaction: transaction.delete_range(folder.path, start, end, DELETES_MAX)
            )

    async def session(self, timeout_ms: int) -> Session:
        if timeout_ms <= 0:
            raise Rejected(f"session timeout is {timeout_ms} ms: give a positive one")
        id, expires_ms = await self._write.run(lambda transaction: transaction.open_session(timeout_ms))
        session = SqliteSession(self._write, self._clock, id, timeout_ms, expires_ms)
        self._sessions = [old for old in self._sessions if not old.lost] + [session]
        return session

    async def watch(self, prefix: str) -> AsyncGenerator[Changes, None]:
        self._check_open()
        await self._change_feed.start()
        self._check_open()
        async with aclosing(self._watchers.watch(prefix)) as changes:
            async for change in changes:
                yield change

    async def now_ms(self) -> int:
        self._check_open()
        return self._clock.now_ms()

    async def close(self) -> None:
        """Ends sessions, tasks and threads. Pending calls are executed first."""
        if self._closed:
            return
        self._closed = True
        self._watchers.close(self._closed_message)
        for session in self._sessions:
            with suppress(LakestreamError):  # then it expires
                await session.close()
        await self._change_feed.close()
        await self._read.close()
        await self._write.close()  # last: the last close of the database makes a checkpoint, under the writer's lock

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(self._closed_message)

    def _session_id(self, put: Put) -> int | None:
        if put.session is None:
            return None
        if not isinstance(put.session, SqliteSession):
            raise Rejected(f"{put.key.path}: its session belongs to another store")
        return put.session.id
