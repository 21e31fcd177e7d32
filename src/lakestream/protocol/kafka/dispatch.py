"""(key, version) → handler. What ApiVersions tells clients comes from this table, and so does docs/coverage.md.

Before: server.py.  After: handlers/*.py, one file per request.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from time import perf_counter  # for the metrics only: nothing is decided by it
from typing import Any, Final, NamedTuple, TypeAlias

from lakestream.errors import LakestreamError, Rejected
from lakestream.filed import Piece
from lakestream.model import Buffer, MiB
from lakestream.protocol.kafka import codec
from lakestream.protocol.kafka.codec import Request, UnsupportedVersion
from lakestream.protocol.kafka.counts import CANCELLED, FAILED, OK, REFUSED, RequestCounts
from lakestream.protocol.kafka.server import Answer, CloseConnection, Connection
from lakestream.protocol.kafka.services import Services

Body: TypeAlias = Mapping[str, Any]
"""A response as a plain mapping, the same for all versions; or ready bytes, or nothing."""


class Call(NamedTuple):
    """A request, and who made it."""

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


Work: TypeAlias = Callable[[Call, Services], Awaitable[Body | list[Piece] | None]]

Done: TypeAlias = Callable[[Answer | CloseConnection], None]
Begin: TypeAlias = Callable[[Call, Services, Done], bool]
"""The short way of a request that can be begun without a task: calls the third when it is answered. False: it needs the
long way, and nothing was done yet."""


class Handler(NamedTuple):
    key: int
    versions: range
    reports_from: int
    """The lowest version that ApiVersions names; some clients look for one that is no longer served."""
    work: Work
    begin: Begin | None = None


HANDLERS: Final[dict[int, Handler]] = {}

PRODUCE: Final = 0
API_VERSIONS: Final = 18
UNREAD: Final = -1
"""Stands for the key of a request that could not be read."""

SMALL_BYTES_MAX: Final = 4 * MiB
"""Only Produce carries records. Anything else that is larger takes seconds to read, and nobody means it."""
MESSAGE_CHARACTERS_MAX: Final = 1_000
LOG: Final = re.compile(r"\b([0-9a-f]{32})/([0-9]+)\b")
"""As `PartitionId` is written."""


def handles(
    key: int, versions: range, *, reports_from: int | None = None, begin: Begin | None = None
) -> Callable[[Work], Work]:
    def register(work: Work) -> Work:
        assert key not in HANDLERS, f"two handlers for key {key}"
        HANDLERS[key] = Handler(key, versions, versions.start if reports_from is None else reports_from, work, begin)
        return work

    return register


_Future: TypeAlias = "asyncio.Future[Answer]"


class Dispatcher:
    def __init__(self, services: Services) -> None:
        self._services = services
        self.counts = RequestCounts()

    def handle(self, connection: Connection, frame: bytes | memoryview) -> "Coroutine[Any, Any, Answer] | _Future":
        """Begin to work on one request: awaited, it gives the answer. CloseConnection: it cannot be read."""
        begun_s = perf_counter()
        try:
            call = Call(self._parse(frame), connection)
        except CloseConnection:
            self.counts.note(UNREAD, REFUSED, perf_counter() - begun_s, len(frame), 0)
            raise
        handler = HANDLERS[call.request.key]
        if handler.begin is not None:
            answer: _Future = asyncio.get_running_loop().create_future()
            note = partial(self._end, answer, handler.key, begun_s, len(frame))
            if handler.begin(call, self._services, note):
                return answer
        return self._work(handler, call, begun_s, len(frame))

    def _end(self, answer: "_Future", key: int, begun_s: float, bytes_in: int, said: Answer | CloseConnection) -> None:
        """Of the short way."""
        refused = isinstance(said, CloseConnection)
        outcome = CANCELLED if answer.cancelled() else REFUSED if refused else OK
        self.counts.note(key, outcome, perf_counter() - begun_s, bytes_in, _size(said))
        tell(answer, said)

    async def _work(self, handler: Handler, call: Call, begun_s: float, bytes_in: int) -> Answer:
        """The long way, and count it."""
        outcome, size = REFUSED, 0
        try:
            said = await handler.work(call, self._services)
            answer: Answer = said if said is None or isinstance(said, list) else [_written(call.request, said)]
            outcome, size = OK, _size(answer)
            return answer
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
                    f"sent request {header.key} with {len(frame)} bytes; {SMALL_BYTES_MAX} is the most that is read"
                )
            if handler is not None and header.version in handler.versions:
                return codec.read(frame, header, at)
        except UnsupportedVersion as error:
            raise CloseConnection(str(error)) from error
        except Rejected as error:
            raise CloseConnection(f"sent a request that cannot be read: {error}") from error
        if header.key == API_VERSIONS:
            # A client newer than we are: the handler answers in the oldest words, with what we know.
            return Request(API_VERSIONS, 0, header.correlation_id, header.client_id, UNKNOWN_VERSION)
        raise CloseConnection(f"asked for request {header.key} version {header.version}, which is not offered")


def _written(request: Request, body: Body) -> Buffer:
    return codec.respond(request.key, request.version, request.correlation_id, body)


def tell(answer: "_Future", said: Answer | CloseConnection) -> None:
    if answer.done():
        return  # the client has left
    if isinstance(said, CloseConnection):
        answer.set_exception(said)
    else:
        answer.set_result(said)


def _size(answer: Answer | CloseConnection) -> int:
    return sum(map(len, answer)) if isinstance(answer, list) else 0


class _UnknownVersion:
    """Stands for the body of an ApiVersions request that is too new to be read."""


UNKNOWN_VERSION: Final = _UnknownVersion()


def describe(error: LakestreamError, services: Services | None = None) -> str:
    """One line, short enough for the strings of old versions, whatever the client had us quote. With `services`, logs
    are called by the names of their topics too: whoever wrote it knew only the ids."""
    text = str(error)
    if services is not None:
        text = LOG.sub(lambda found: _with_name(found, services), text)
    return one_line(text)


def one_line(text: str) -> str:
    return " ".join(text.split())[:MESSAGE_CHARACTERS_MAX]


def _with_name(found: re.Match[str], services: Services) -> str:
    name = services.view.name_of(found[1])
    return found[0] if name is None else f"{name}-{found[2]} (topic id {found[1]})"
