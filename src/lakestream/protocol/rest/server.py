"""The HTTP server: uvicorn inside the event loop of the process, without its signal handlers and its logging.

What a client costs is bounded before its request is parsed: the connections, of all clients and of one address; the
size of a request without its body, and the time in which it must arrive; requests that are sent ahead; responses that
are not read. Bodies are bounded where they are read (request_body.py).
"""

import asyncio
import contextlib
import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from lakestream.config.parsing import cannot_listen, format_address, parse_address
from lakestream.model import KiB, MiB

START_S_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    connections_max: int = 1_000
    connections_per_address_max: int = 500
    head_bytes_max: int = 64 * KiB  # request line and headers; also all bytes around the chunks of a body
    head_s_max: int = 10
    idle_s_max: int = 30  # without a request, or with a response that the client does not read
    pipelined_max: int = 16  # requests of a connection that wait for the response to an earlier one
    unread_bytes_max: int = 256 * MiB  # of all responses that clients read slowly; beyond it requests are rejected
    discarded_bytes_max: int = 4 * MiB  # of a body whose request has its response already
    stop_s_max: int = 5
    backlog: int = 1024


class HttpServer:
    def __init__(self, settings: HttpSettings) -> None:
        self.refused = 0
        """Connections closed because there were too many."""
        self._settings = settings
        self._socket: socket.socket | None = None
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        return 0 if self._server is None else len(self._server.server_state.connections)

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Binds the port and returns the address: with port 0 the system chooses the port. Raises OSError."""
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
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
            http=_limited(self._settings, self._count_refused),
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

    def _count_refused(self) -> None:
        self.refused += 1


def bound(server: HttpServer, address: str, flag: str, advice: str = "") -> str:
    """Binds the server's port and returns the address. Misconfigured: it is invalid, or in use."""
    host, port = parse_address(address, flag)
    try:
        return format_address(*server.bind(host, port))
    except OSError as error:
        raise cannot_listen(address, error, advice or f"choose another with {flag}") from error


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


class _BadRequest(Exception):
    """Ends the parsing of a connection; httptools reports it as a parser error."""


_UNREAD_PROGRESS_BYTES: Final = 256 * KiB
"""Of a response that its client must read in `idle_s_max`, if there are as many."""
PATIENT: Final = "lakestream.patient"
"""Key in the scope of a request whose client may stop reading the response for any time."""
_NOT_READ: Final = "clients do not read their responses: retry"


def _limited(settings: HttpSettings, on_refused: Callable[[], None]) -> type[asyncio.Protocol]:
    """Returns the protocol class of one server, which enforces the settings."""
    by_address: Counter[str] = Counter()
    unread: set[HttpToolsProtocol] = set()
    """Connections whose responses are not read as fast as they are written."""

    def has_too_much_unread() -> bool:
        return sum(one.transport.get_write_buffer_size() for one in unread) > settings.unread_bytes_max

    class Limited(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._is_in_head = True  # also before its first byte
            self._head_bytes = 0  # of the URL and the headers that have been parsed
            self._other_bytes = 0  # of the request, but for its body
            self._body_bytes = 0
            self._discarded_bytes = 0
            self._body_parts: list[bytes] = []
            self._error = (400, "the request is not valid HTTP")
            self._deadline: asyncio.TimerHandle | None = None  # of the head, or of a body that no handler reads
            self._unread_timer: asyncio.TimerHandle | None = None
            self._running: RequestResponseCycle | None = None  # of the request whose response is next
            self._address = self.client[0] if self.client else ""
            by_address[self._address] += 1
            is_above = by_address[self._address] > settings.connections_per_address_max
            if is_above or len(self.connections) > settings.connections_max:
                on_refused()
                transport.abort()
            else:
                self.timeout_keep_alive_task = self.loop.call_later(
                    settings.idle_s_max, self.timeout_keep_alive_handler
                )

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._disconnect_running()
            self._unset_keepalive_if_required()
            self._stop_deadline()
            self._stop_unread_timer()
            by_address[self._address] -= 1
            if not by_address[self._address]:
                del by_address[self._address]

        # Requests

        def data_received(self, data: bytes) -> None:
            if self._is_in_head and self._deadline is None:
                self._start_deadline(
                    settings.head_s_max, self._reject, 408, "the request's head did not arrive in time"
                )
            self._other_bytes += len(data)
            super().data_received(data)
            self._flush_body()
            if self._discarded_bytes > settings.discarded_bytes_max:
                self.transport.close()
            if self._other_bytes > settings.head_bytes_max + self._body_bytes and not self.transport.is_closing():
                self._reject(431, f"the request has more than {settings.head_bytes_max} bytes without its body")

        def on_message_begin(self) -> None:
            if len(self.pipeline) >= settings.pipelined_max:
                self._error = (400, f"more than {settings.pipelined_max} requests were sent ahead")
                raise _BadRequest
            super().on_message_begin()
            self._head_bytes = self._other_bytes = self._body_bytes = self._discarded_bytes = 0

        def on_url(self, url: bytes) -> None:
            self._count_head(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count_head(len(name) + len(value))
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._is_in_head = False
            self._stop_deadline()
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._body_bytes += len(body)
            self._other_bytes -= len(body)
            if self.cycle.response_complete:
                self._discarded_bytes += len(body)
            else:
                self._body_parts.append(body)  # joined once: a client may send very small chunks

        def on_message_complete(self) -> None:
            self._flush_body()
            self._is_in_head = True
            self._stop_deadline()
            super().on_message_complete()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self._is_in_head:  # the rest of the body is received, so that the client reads the response
                self._start_deadline(settings.idle_s_max, self.transport.close)

        def send_400_response(self, msg: str) -> None:
            self._reject(*self._error)

        # Responses

        def pause_writing(self) -> None:
            super().pause_writing()
            unread.add(self)
            self._start_unread_timer()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop_unread_timer()

        def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
            if unread and has_too_much_unread():
                app = JSONResponse({"error": _NOT_READ}, 503)
            self._running = cycle
            super()._start_asgi_task(cycle, app)

        def _start_unread_timer(self) -> None:
            unread_bytes = self.transport.get_write_buffer_size()
            self._unread_timer = self.loop.call_later(settings.idle_s_max, self._check_progress, unread_bytes)

        def _stop_unread_timer(self) -> None:
            unread.discard(self)
            if self._unread_timer is not None:
                self._unread_timer.cancel()
                self._unread_timer = None

        def _check_progress(self, unread_bytes: int) -> None:
            is_patient = self._running is not None and PATIENT in self._running.scope
            if not is_patient and unread_bytes - self.transport.get_write_buffer_size() < _UNREAD_PROGRESS_BYTES:
                self.transport.abort()
            else:
                self._start_unread_timer()

        # Steps

        def _count_head(self, size: int) -> None:
            self._head_bytes += size
            if self._head_bytes > settings.head_bytes_max:
                self._error = (431, f"the request's head has more than {settings.head_bytes_max} bytes")
                raise _BadRequest

        def _flush_body(self) -> None:
            if self._body_parts:
                parts, self._body_parts = self._body_parts, []
                super().on_body(b"".join(parts))

        def _start_deadline(self, after_s: float, call: Callable[..., object], *args: Any) -> None:
            self._stop_deadline()
            self._deadline = self.loop.call_later(after_s, call, *args)

        def _stop_deadline(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _disconnect_running(self) -> None:
            """Ends the request whose response is next. uvicorn ends the last one that was sent ahead."""
            if self._running is not None:
                self._running.disconnected = True
                self._running.message_event.set()

        def _reject(self, status: int, message: str) -> None:
            """Writes a response to a request that is not parsed to its end, and closes the connection."""
            self._disconnect_running()
            body = json.dumps({"error": message}).encode()
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + body)
            self.transport.close()

    return Limited
