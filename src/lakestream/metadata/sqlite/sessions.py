"""Session: a row with its expiry time, which a task of its process extends at a third of the timeout.

If the process is killed or stopped, the session expires. From then on, reads do not return its records (`reads.py`),
and the next transaction of any process deletes them (`transaction.py`).
"""

import asyncio

from lakestream.clock import Clock
from lakestream.errors import LakestreamError
from lakestream.metadata.sqlite.transaction import WriteTransaction
from lakestream.metadata.sqlite.work_queue import WorkQueue


class SqliteSession:
    def __init__(
        self, write: WorkQueue[WriteTransaction], clock: Clock, id: int, timeout_ms: int, expires_ms: int
    ) -> None:
        self.id = id
        self._write = write
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._expires_ms = expires_ms
        self._lost = asyncio.Event()
        self._heartbeat_task = asyncio.create_task(self._heartbeats(), name="metadata.sqlite.session")

    @property
    def lost(self) -> bool:
        # After a pause of the whole process the task may not have run yet, so check the clock, as other processes do.
        if self._clock.now_ms() >= self._expires_ms:
            self._lost.set()
        return self._lost.is_set()

    async def wait_lost(self) -> None:
        await self._lost.wait()

    async def close(self) -> None:
        await self.stop()
        await self._write.run(lambda transaction: transaction.end_session(self.id))

    async def stop(self) -> None:
        """Stops the heartbeats: the session expires unless it is closed."""
        self._heartbeat_task.cancel()
        await asyncio.wait([self._heartbeat_task])
        self._lost.set()

    async def _heartbeats(self) -> None:
        while not self.lost:
            left_ms = self._expires_ms - self._clock.now_ms()
            await asyncio.sleep(min(left_ms, self._timeout_ms / 3) / 1000)
            await self._heartbeat()

    async def _heartbeat(self) -> None:
        left_ms = self._expires_ms - self._clock.now_ms()
        try:
            async with asyncio.timeout(left_ms / 1000):
                expires_ms = await self._write.run(
                    lambda transaction: transaction.extend_session(self.id, self._timeout_ms)
                )
        except (LakestreamError, TimeoutError):
            return  # retried until the session expires
        if expires_ms is None:
            self._lost.set()
        else:
            self._expires_ms = expires_ms
