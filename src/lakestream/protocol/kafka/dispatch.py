"""Dispatches requests to their handlers: (key, version) → handler.

Before: network/connection.py.  After: handlers/*/*.py, one file per request.

The responses to ApiVersions and docs/coverage.md are made from the same table.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import perf_counter  # for metrics only: no decision depends on it
from typing import Any, Final, NamedTuple, TypeAlias

from lakestream.errors import LakestreamError, Rejected
from lakestream.model import Buffer, MiB
from lakestream.protocol.kafka.network.connection import CloseConnection, Connection, PendingResponse, ResponseBytes
from lakestream.protocol.kafka.network.request_metrics import CANCELLED, FAILED, OK, REFUSED, RequestCounts
from lakestream.protocol.kafka.services import HandlerContext
from lakestream.protocol.kafka.wire import codec
from lakestream.protocol.kafka.wire.codec import Request, UnsupportedVersion
from lakestream.records.file_region import BufferOrFile

Body: TypeAlias = Mapping[str, Any]
"""A response as a plain mapping, the same for all versions."""


class Call(NamedTuple):
    """A request and its connection."""

    request: Request
    connection: Connection

    @property
    def body(self) -> Any:
        return self.request.body

    @property
    def version(self) -> int:
        return self.request.version

    def get(self, name: str, default: Any = None) -> Any:
        return self.request.get(name, default)


Serve: TypeAlias = Callable[[Call, HandlerContext], Awaitable[Body | list[BufferOrFile] | None]]
"""Serves a request in a task. The response is a body, or ready bytes, or None."""

Done: TypeAlias = Callable[[ResponseBytes | CloseConnection], None]
Begin: TypeAlias = Callable[[Call, HandlerContext, Done], bool]
"""Begins a request without a task, and calls its third argument with the response. Returns False if the request needs a
task; then nothing has been done."""


class Handler(NamedTuple):
    key: int
    versions: range
    reports_from: int
    """The lowest version in ApiVersions responses: some clients require one that is no longer served."""
    serve: Serve
    begin: Begin | None = None


HANDLERS: Final[dict[int, Handler]] = {}

PRODUCE: Final = 0
API_VERSIONS: Final = 18
UNPARSED: Final = -1
"""Counted as the key of requests that could not be parsed."""

SMALL_BYTES_MAX: Final = 4 * MiB
"""Only Produce carries records. Parsing a larger request of another kind would block the event loop for seconds; real
clients do not send one."""
MESSAGE_CHARACTERS_MAX: Final = 1_000
PARTITION_ID: Final = re.compile(r"\b([0-9a-f]{32})/([0-9]+)\b")
"""The text form of `PartitionId`."""


def handles(
    key: int, versions: range, *, reports_from: int | None = None, begin: Begin | None = None
) -> Callable[[Serve], Serve]:
    """Registers the decorated function as the handler of a request."""

    def register(serve: Serve) -> Serve:
        assert key not in HANDLERS, f"two handlers for key {key}"
        HANDLERS[key] = Handler(key, versions, versions.start if reports_from is None else reports_from, serve, begin)
        return serve

    return register


_Future: TypeAlias = "asyncio.Future[ResponseBytes]"


class Dispatcher:
    def __init__(self, context: HandlerContext) -> None:
        self._context = context
        self.counts = RequestCounts()

    def handle(self, connection: Connection, frame: bytes | memoryview) -> PendingResponse:
        """Starts to serve one request. Raises CloseConnection if the request cannot be parsed."""
        begun_s = perf_counter()
        try:
            call = Call(self._parse(frame), connection)
        except CloseConnection:
            self.counts.note(UNPARSED, REFUSED, perf_counter() - begun_s, len(frame), 0)
            raise
        handler = HANDLERS[call.request.key]
        if handler.begin is not None:
            response: _Future = asyncio.get_running_loop().create_future()
            done = partial(self._complete, response, handler.key, begun_s, len(frame))
            if handler.begin(call, self._context, done):
                return response
        return self._serve(handler, call, begun_s, len(frame))

    def _complete(
        self, future: "_Future", key: int, begun_s: float, bytes_in: int, response: ResponseBytes | CloseConnection
    ) -> None:
        """Counts a request that was begun without a task, and completes its future."""
        refused = isinstance(response, CloseConnection)
        outcome = CANCELLED if future.cancelled() else REFUSED if refused else OK
        self.counts.note(key, outcome, perf_counter() - begun_s, bytes_in, _size(response))
        complete(future, response)

    async def _serve(self, handler: Handler, call: Call, begun_s: float, bytes_in: int) -> ResponseBytes:
        """Serves a request in a task, and counts it."""
        outcome, size = REFUSED, 0
        try:
            body = await handler.serve(call, self._context)
            response: ResponseBytes = body if body is None or isinstance(body, list) else [_encode(call.request, body)]
            outcome, size = OK, _size(response)
            return response
        except CloseConnection:
            raise
        except asyncio.CancelledError:
            outcome = CANCELLED
            raise
        except Exception:
            outcome = FAILED
            raise
        finally:
            self.counts.note(handler.key, outcome, perf_counter() - begun_s, bytes_in, size)

    def _parse(self, frame: bytes | memoryview) -> Request:
        try:
            header, at = codec.head(frame)
            handler = HANDLERS.get(header.key)
            if len(frame) > SMALL_BYTES_MAX and header.key != PRODUCE:
                raise CloseConnection(
                    f"sent request {header.key} with {len(frame)} bytes: {SMALL_BYTES_MAX} is the maximum"
                )
            if handler is not None and header.version in handler.versions:
                return codec.read(frame, header, at)
        except UnsupportedVersion as error:
            raise CloseConnection(str(error)) from error
        except Rejected as error:
            raise CloseConnection(f"sent a request that cannot be parsed: {error}") from error
        if header.key == API_VERSIONS:
            # The client is newer than this broker: the response has version 0 and lists the versions that are served.
            return Request(API_VERSIONS, 0, header.correlation_id, header.client_id, UNKNOWN_VERSION)
        raise CloseConnection(f"sent request {header.key} version {header.version}, which is not supported")


def _encode(request: Request, body: Body) -> Buffer:
    return codec.respond(request.key, request.version, request.correlation_id, body)


def complete(future: "_Future", response: ResponseBytes | CloseConnection) -> None:
    if future.done():
        return  # the client has disconnected
    if isinstance(response, CloseConnection):
        future.set_exception(response)
    else:
        future.set_result(response)


def _size(response: ResponseBytes | CloseConnection) -> int:
    return sum(map(len, response)) if isinstance(response, list) else 0


class _UnknownVersion:
    """Type of the body of an ApiVersions request whose version is too new to be parsed."""


UNKNOWN_VERSION: Final = _UnknownVersion()


def error_message(error: LakestreamError, name_of: Callable[[str], str | None] | None = None) -> str:
    """Returns one line, short enough for the strings of old versions, whatever text of the client the error quotes.

    `name_of`: returns the name of a topic id, or None. With it, partitions are shown with the names of their topics.
    """
    text = str(error)
    if name_of is not None:
        text = PARTITION_ID.sub(lambda match: _with_name(match, name_of), text)
    return single_line(text)


def single_line(text: str) -> str:
    return " ".join(text.split())[:MESSAGE_CHARACTERS_MAX]


def _with_name(match: re.Match[str], name_of: Callable[[str], str | None]) -> str:
    name = name_of(match[1])
    return match[0] if name is None else f"{name}-{match[2]} (topic id {match[1]})"
