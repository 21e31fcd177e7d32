"""A session: a row that says when it expires, moved on by a task of its process at a third of the timeout.

A process that is killed or stopped moves nothing, and from that moment on nobody sees the session's records any more
(`reads.py`); the next transaction of any process deletes them (`transaction.py`).
"""

import asyncio

from lakestream.clock import Clock
from lakestream.errors import LakestreamError
from lakestream.metadata.sqlite.line import Line
from lakestream.metadata.sqlite.transaction import Transaction


class SqliteSession:
    def __init__(self, write: Line[Transaction], clock: Clock, id: int, timeout_ms: int, expires_ms: int) -> None:
        self.id = id
        self._write = write
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._expires_ms = expires_ms
        self._lost = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep(), name="metadata.sqlite.session")

    @property
    def lost(self) -> bool:
        # After a pause of the whole process the keeper may not have run yet: look at the clock as others do.
        if self._clock.now_ms() >= self._expires_ms:
            self._lost.set()
        return self._lost.is_set()

    async def wait_lost(self) -> None:
        await self._lost.wait()

    async def close(self) -> None:
        await self.stop()
        await self._write.do(lambda transaction: transaction.end_session(self.id))

    async def stop(self) -> None:
        """No more signs of life; it expires unless it is closed."""
        self._keeper.cancel()
        await asyncio.wait([self._keeper])
        self._lost.set()

    async def _keep(self) -> None:
        while not self.lost:
            left_ms = self._expires_ms - self._clock.now_ms()
            await asyncio.sleep(min(left_ms, self._timeout_ms / 3) / 1000)
            await self._show_life()

    async def _show_life(self) -> None:
        left_ms = self._expires_ms - self._clock.now_ms()
        try:
            async with asyncio.timeout(left_ms / 1000):
                expires_ms = await self._write.do(
                    lambda transaction: transaction.keep_session(self.id, self._timeout_ms)
                )
        except (LakestreamError, TimeoutError):
            return  # tried again until the time is over
        if expires_ms is None:
            self._lost.set()
        else:
            self._expires_ms = expires_ms
