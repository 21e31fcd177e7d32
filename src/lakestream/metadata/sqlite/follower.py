"""What other processes changed, for the watchers of this one.

Woken by a poke (`wake.py`), or by its own patrol where a poke was lost. What changed is then read from the database:
everything after the last version that was seen. Runs only once somebody watches.
"""

import asyncio
import socket
import sqlite3
from contextlib import suppress

from lakestream.clock import Clock
from lakestream.errors import LakestreamError
from lakestream.metadata.sqlite import reads
from lakestream.metadata.sqlite.line import Line
from lakestream.metadata.sqlite.transaction import Transaction
from lakestream.metadata.sqlite.wake import Mailbox
from lakestream.metadata.sqlite.writer import Commit
from lakestream.metadata.watchers import Watchers


class Follower:
    def __init__(
        self,
        watchers: Watchers,
        mailbox: Mailbox,
        read: Line[sqlite3.Connection],
        write: Line[Transaction],
        clock: Clock,
        patrol_ms: int,
        rest_ms: int,
    ) -> None:
        self._watchers = watchers
        self._mailbox = mailbox
        self._read = read
        self._write = write
        self._clock = clock
        self._patrol_ms = patrol_ms
        self._rest_ms = rest_ms
        self._seen = 0
        self._starting = asyncio.Lock()
        self._poked = asyncio.Event()
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Before anybody's first look at everything: what happens after that look must not count as seen."""
        async with self._starting:
            if self._task is not None:
                return
            self._seen = await self._read.do(reads.version)
            self._bind()
            self._task = asyncio.create_task(self._run(), name="metadata.sqlite.follower")

    def committed(self, commit: Commit) -> None:
        """This process changed something: its watchers hear it without a look at the database."""
        self._watchers.tell(commit.paths)
        if self._seen == commit.version_start:
            self._seen = commit.version

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._unbind()

    async def _run(self) -> None:
        while True:
            with suppress(LakestreamError):  # who reads or writes hears of it; the patrol comes again
                if await self._look() and self._rest_ms:
                    await self._rest()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patrol_ms / 1000):
                    await self._poked.wait()
            self._poked.clear()
            if not self._mailbox.is_bound:
                self._unbind()
                self._bind()

    async def _look(self) -> bool:
        """Whether there was anything new."""
        seen = self._seen
        news = await self._read.do(lambda connection: reads.news(connection, seen, self._clock.now_ms()))
        self._seen = news.version
        if news.paths is None:
            self._watchers.tell_everything()
        elif news.paths:
            self._watchers.tell(news.paths)
        if news.expired:
            await self._write.do(lambda _: None)  # every transaction begins by deleting what has expired
        return news.paths is None or bool(news.paths)

    async def _rest(self) -> None:
        """What others change meanwhile is one look, however often they poke."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
        await asyncio.sleep(self._rest_ms / 1000)
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._hear)

    def _bind(self) -> None:
        # Without a socket (a path too long for this system, a folder that is not ours) the patrol still comes.
        with suppress(OSError):
            self._socket = self._mailbox.bind()
            asyncio.get_running_loop().add_reader(self._socket, self._hear)

    def _unbind(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket = None
        self._mailbox.unbind()

    def _hear(self) -> None:
        self._mailbox.empty()
        self._poked.set()
