"""The HTTP server: uvicorn inside the broker's event loop, without its signal handlers and its logging.

The port is bound before the broker is ready to serve. Connections above the limit are closed immediately, so that a
flood over HTTP does not affect Kafka clients.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

START_S_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    connections_max: int = 1_000
    idle_s_max: int = 30
    stop_s_max: int = 5
    backlog: int = 1024


class HttpServer:
    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._socket: socket.socket | None = None
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def bind(self, host: str, port: int) -> tuple[str, int]:
        """Binds the port and returns the address: with port 0 the system chooses the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        self._socket = socket.socket(family, kind, protocol)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
            # Only listening makes the port exclusive: two sockets can bind one port as long as neither listens.
            self._socket.listen(self._settings.backlog)
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        name = self._socket.getsockname()
        return name[0], name[1]

    async def serve(self, app: ASGIApp) -> None:
        assert self._socket is not None, "bind first"
        config = uvicorn.Config(
            app,
            http=_bounded(self._settings.connections_max),
            ws="none",
            loop="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=self._settings.backlog,
            limit_concurrency=self._settings.connections_max + 1,
            timeout_keep_alive=self._settings.idle_s_max,
            timeout_graceful_shutdown=self._settings.stop_s_max,
        )
        self._server = _Server(config)
        self._serving = asyncio.get_running_loop().create_task(
            self._server.serve(sockets=[self._socket]), name="http.server"
        )
        async with asyncio.timeout(START_S_MAX):
            await self._server.up.wait()

    async def stop(self) -> None:
        """Completes the requests in flight, then closes."""
        if self._serving is not None:
            assert self._server is not None
            self._server.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Does nothing: the process handles signals, and calls `HttpServer.stop`."""
        yield


def _bounded(connections_max: int) -> type[asyncio.Protocol]:
    class Bounded(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > connections_max:
                transport.abort()
            else:
                self._start_timeout()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self._start_timeout()

        def _start_timeout(self) -> None:
            """Limits the wait for the first request and for the rest of one, which uvicorn does not limit."""
            if self.timeout_keep_alive_task is None:
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )

    return Bounded
