"""Accepts connections of Kafka clients, closes overdue ones, and stops after all requests are answered.

Before: a socket.  After: connection.py, which reads requests and writes responses; limits.py, which both use.
"""

import asyncio
import contextlib
import logging

from lakestream.protocol.kafka.network.connection import IDLE, Connection, Handle, refuse
from lakestream.protocol.kafka.network.limits import ConnectionLimits, ServerSettings


class KafkaServer(ConnectionLimits[Connection]):
    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(settings)
        self._handle: Handle = refuse
        self._server: asyncio.Server | None = None
        self._closing_overdue: asyncio.Task[None] | None = None

    async def bind(self, host: str, port: int) -> tuple[str, int]:
        """Binds the port without accepting yet. Returns the address: with port 0 the system chooses the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self, self._handle), host, port, backlog=1024, start_serving=False
        )
        name = self._server.sockets[0].getsockname()
        return name[0], name[1]

    async def serve(self, handle: Handle) -> None:
        assert self._server is not None, "bind first"
        self._handle = handle
        await self._server.start_serving()
        self._closing_overdue = asyncio.get_running_loop().create_task(self._close_overdue(), name="kafka.overdue")

    async def stop(self) -> None:
        """Accepts no more requests, answers those in flight, then closes all connections."""
        if self._server is not None:
            self._server.close()
        if self._closing_overdue is not None:
            self._closing_overdue.cancel()
        for connection in self.connections:
            connection.stop_reading()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.stop_ms_max / 1000):
                for connection in list(self.connections):
                    await connection.wait_answered()
                while self.outliving:
                    await asyncio.wait(self.outliving)
        for connection in list(self.connections):
            connection.close("the broker stops", level=logging.DEBUG)
        for request in self.outliving:
            request.cancel()

    def unanswered(self) -> list[tuple[str, int]]:
        """Returns the clients with requests in flight, and the number of these requests."""
        return [(client.peer, client.unanswered) for client in self.connections if client.unanswered]

    async def _close_overdue(self) -> None:
        """Closes connections that were idle, incomplete or unread for too long."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(1.0, self.settings.idle_ms_max / 4000))
            now = loop.time()
            self.log_limiter.log_suppressed(now)
            for connection in list(self.connections):
                if (reason := connection.overdue(now)) is not None:
                    connection.close(reason, level=logging.DEBUG if reason == IDLE else logging.WARNING)
