"""Reads the changes of other processes for the watchers of this process.

Woken by a notification (`notify_socket.py`), or by polling if a notification was lost. Then it reads all changes after
the last version from the database. It is started with the first watch.
"""

import asyncio
import socket
import sqlite3
from contextlib import suppress

from lakestream.clock import Clock
from lakestream.errors import LakestreamError
from lakestream.metadata.sqlite import reads
from lakestream.metadata.sqlite.notify_socket import NotifySocket
from lakestream.metadata.sqlite.transaction import WriteTransaction
from lakestream.metadata.sqlite.work_queue import WorkQueue
from lakestream.metadata.sqlite.writer import Commit
from lakestream.metadata.watchers import Watchers


class SqliteChangeFeed:
    def __init__(
        self,
        watchers: Watchers,
        notify_socket: NotifySocket,
        read: WorkQueue[sqlite3.Connection],
        write: WorkQueue[WriteTransaction],
        clock: Clock,
        poll_ms: int,
        watch_pause_ms: int,
    ) -> None:
        self._watchers = watchers
        self._notify_socket = notify_socket
        self._read = read
        self._write = write
        self._clock = clock
        self._poll_ms = poll_ms
        self._watch_pause_ms = watch_pause_ms
        self._version = 0
        self._starting = asyncio.Lock()
        self._notified = asyncio.Event()
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Must be called before a watcher reads all records: changes after that read must be reported."""
        async with self._starting:
            if self._task is not None:
                return
            self._version = await self._read.run(reads.version)
            self._bind()
            self._task = asyncio.create_task(self._run(), name="metadata.sqlite.change_feed")

    def committed(self, commit: Commit) -> None:
        """Notifies the watchers of a commit of this process, without a read of the database."""
        self._watchers.notify(commit.paths)
        if self._version == commit.version_start:
            self._version = commit.version

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._unbind()

    async def _run(self) -> None:
        while True:
            with suppress(LakestreamError):  # calls of this process report it; polling retries
                if await self._read_changes() and self._watch_pause_ms:
                    await self._pause()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_ms / 1000):
                    await self._notified.wait()
            self._notified.clear()
            if not self._notify_socket.is_bound:
                self._unbind()
                self._bind()

    async def _read_changes(self) -> bool:
        """Reads and distributes new changes. Returns whether there were any."""
        last = self._version
        changes = await self._read.run(lambda connection: reads.changes_since(connection, last, self._clock.now_ms()))
        self._version = changes.version
        if changes.paths is None:
            self._watchers.notify_everything()
        elif changes.paths:
            self._watchers.notify(changes.paths)
        if changes.expired:
            await self._write.run(lambda _: None)  # every transaction begins by deleting expired sessions
        return changes.paths is None or bool(changes.paths)

    async def _pause(self) -> None:
        """Waits without reacting to notifications, so that one read finds all changes of the pause."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
        await asyncio.sleep(self._watch_pause_ms / 1000)
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._on_notification)

    def _bind(self) -> None:
        # Without a socket (path too long for this system, folder of another user), polling still finds changes.
        with suppress(OSError):
            self._socket = self._notify_socket.bind()
            asyncio.get_running_loop().add_reader(self._socket, self._on_notification)

    def _unbind(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket = None
        self._notify_socket.unbind()

    def _on_notification(self) -> None:
        self._notify_socket.drain()
        self._notified.set()
