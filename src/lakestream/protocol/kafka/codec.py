"""Frames in, requests out; answers in, frames out. kio behind one small face.

Before: server.py, which cuts the stream into frames.  After: dispatch.py, which finds the handler of (key, version).

A frame is what follows the four bytes of its size. Requests are read by kio's Rust reader, after guard.py has seen that
every count and length is honest; answers are written by writer.py. Whatever bytes a client sends, parse() returns a
Request or raises Rejected: nothing else. Bytes after the end of a body are ignored, as other brokers do: librdkafka
2.16 sends three of them.

Schemas load when first used, 5 to 10 ms each, and stay: warm() does it before the listener opens.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.schema.index import api_key_map
from kio.serial import entity_reader
from kio.static.protocol import RequestPayload, ResponsePayload

from lakestream.errors import Rejected
from lakestream.model import Buffer
from lakestream.protocol.kafka import produce_request
from lakestream.protocol.kafka.guard import Guard, compile_guard
from lakestream.protocol.kafka.tags import skip_tagged, strip_unknown
from lakestream.protocol.kafka.writer import Writer, compile_writer

Reader = Callable[[Buffer, int], tuple[Any, int]]

_HEAD: Final = struct.Struct(">hhih")  # key, version, correlation id, size of the client id
_HEAD_V0: Final = struct.Struct(">hhi")
_RESPONSE_V0: Final = struct.Struct(">ii")  # size, correlation id
_RESPONSE_V1: Final = struct.Struct(">iix")  # and no tagged fields
PRODUCE: Final = 0
_CONTROLLED_SHUTDOWN_V0: Final = (7, 0)
"""The one request whose header has no client id (header v0). Gone from Kafka, but old brokers may still send it."""


class UnsupportedVersion(Rejected):
    """A request we have no schema for. ApiVersions gets an answer, anything else loses its connection."""

    def __init__(self, key: int, version: int, correlation_id: int) -> None:
        super().__init__(f"Kafka request {_title(key, version)} is not known here")
        self.key = key
        self.version = version
        self.correlation_id = correlation_id


class Header(NamedTuple):
    key: int
    version: int
    correlation_id: int
    client_id: str | None


class Response(NamedTuple):
    correlation_id: int
    body: Any  # kio's dataclass of the message


class Request:
    """One request. `body` is kio's dataclass of exactly this version."""

    __slots__ = ("body", "client_id", "correlation_id", "key", "version")

    def __init__(self, key: int, version: int, correlation_id: int, client_id: str | None, body: Any) -> None:
        self.key = key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body = body

    def get(self, name: str, default: Any = None) -> Any:
        """A field of the body, or `default` where this version does not have it."""
        return getattr(self.body, name, default)

    def __repr__(self) -> str:
        return f"Request({_title(self.key, self.version)}, #{self.correlation_id}, {self.client_id!r}, {self.body!r})"


def parse(frame: Buffer) -> Request:
    """The request in a frame. Raises UnsupportedVersion for one without a schema, Rejected for bytes that are wrong."""
    return read(frame, *head(frame))


def head(frame: Buffer) -> tuple[Header, int]:
    """The header without its tagged fields, and where it ends. All versions of it agree up to there, but one."""
    try:
        key, version, correlation_id, size = _HEAD.unpack_from(frame)
    except struct.error:
        size = -1
        if len(frame) < _HEAD_V0.size:
            raise Rejected(f"Kafka request of {len(frame)} bytes: too short for a header") from None
        key, version, correlation_id = _HEAD_V0.unpack_from(frame)
        if (key, version) != _CONTROLLED_SHUTDOWN_V0:
            raise Rejected(f"Kafka request {_title(key, version)} is cut off in its header") from None
    if size < 0 or (key, version) == _CONTROLLED_SHUTDOWN_V0:
        return Header(key, version, correlation_id, None), _HEAD.size
    end = _HEAD.size + size
    if end > len(frame):
        raise Rejected(f"Kafka request {_title(key, version)} is cut off in its client id")
    try:
        return Header(key, version, correlation_id, str(frame[_HEAD.size : end], "utf-8")), end
    except UnicodeDecodeError:
        raise Rejected(f"Kafka request {_title(key, version)} has a client id that is not UTF-8") from None


def read(frame: Buffer, header: Header, at: int) -> Request:
    """The request behind a header, as `head` gave it. Raises as parse() does."""
    if frame.__class__ is not bytes:
        frame = memoryview(frame).toreadonly()  # kio takes nothing that may change under it
    key, version, correlation_id, client_id = header
    if key == PRODUCE and version in produce_request.VERSIONS:
        return Request(key, version, correlation_id, client_id, produce_request.read(frame, at, version))
    side = _requests.get((key, version)) or _request_side(key, version, correlation_id)
    return Request(key, version, correlation_id, client_id, side.read(frame, at))


def respond(key: int, version: int, correlation_id: int, body: Mapping[str, Any]) -> bytes:
    """An answer ready to send, size first. `body` is what writer.py takes; one that does not fit raises ValueError."""
    side = _responses.get((key, version)) or _response_side(key, version, correlation_id)
    written = side.write(body)
    if side.tags_in_header:
        return _RESPONSE_V1.pack(len(written) + 5, correlation_id) + written
    return _RESPONSE_V0.pack(len(written) + 4, correlation_id) + written


def warm(pairs: Iterable[tuple[int, int]]) -> None:
    """Loads and compiles what parse() and respond() need for these (key, version)."""
    for key, version in pairs:
        side = _request_side(key, version, 0)
        _ = side.guard, side.reader
        _ = _response_side(key, version, 0).write


def write_request(key: int, version: int, correlation_id: int, client_id: str | None, body: Mapping[str, Any]) -> bytes:
    """A request ready to send, size first: the other direction, for tools and tests."""
    side = _request_side(key, version, correlation_id)
    name = b"" if client_id is None else client_id.encode()
    head = _HEAD.pack(key, version, correlation_id, -1 if client_id is None else len(name)) + name
    frame = head + (b"\0" if side.tags_in_header else b"") + side.write(body)
    return len(frame).to_bytes(4, "big") + frame


def parse_response(key: int, version: int, frame: Buffer) -> Response:
    """The answer in a frame, for tools and tests. Raises as parse() does."""
    frame = memoryview(frame).toreadonly()
    if len(frame) < 4:
        raise Rejected(f"Kafka response of {len(frame)} bytes: too short for a header")
    correlation_id = int.from_bytes(frame[:4], "big", signed=True)
    return Response(correlation_id, _response_side(key, version, correlation_id).read(frame, 4))


class _Side:
    """One direction of one (key, version). What it needs is built at its first use."""

    def __init__(self, entity_type: type[RequestPayload] | type[ResponsePayload], title: str) -> None:
        self.title = title
        self.tags_in_header: bool = entity_type.__header_schema__.__flexible__  # never in ApiVersions' answers
        self._entity_type = entity_type

    @cached_property
    def reader(self) -> Reader:
        return entity_reader(self._entity_type)

    @cached_property
    def guard(self) -> Guard:
        return compile_guard(self._entity_type)

    @cached_property
    def write(self) -> Writer:
        return compile_writer(self._entity_type)

    def read(self, frame: Buffer, at: int) -> Any:
        """The body, from where the header's tagged fields may stand."""
        try:
            if self.tags_in_header:
                at = skip_tagged(frame, at)
            if self.guard(frame, at) is None:  # there are tagged fields, and kio takes only those that it knows
                frame, at = strip_unknown(self._entity_type, memoryview(frame)[at:]), 0
            return self.reader(frame, at)[0]
        except (IndexError, struct.error) as error:
            raise Rejected(f"Kafka {self.title} cannot be read: it ends too early") from error
        except Exception as error:  # kio has many kinds, and all of them mean bad bytes
            reason = str(error) if isinstance(error, Rejected) else f"{type(error).__name__} {error}"
            raise Rejected(f"Kafka {self.title} cannot be read: {reason}") from error


_requests: Final[dict[tuple[int, int], _Side]] = {}
_responses: Final[dict[tuple[int, int], _Side]] = {}
"""Only what kio has a schema for comes in here, so no client can make them grow."""


def _request_side(key: int, version: int, correlation_id: int) -> _Side:
    return _side(_requests, load_request_schema, "request", key, version, correlation_id)


def _response_side(key: int, version: int, correlation_id: int) -> _Side:
    return _side(_responses, load_response_schema, "response", key, version, correlation_id)


def _side(
    sides: dict[tuple[int, int], _Side],
    load: Callable[[int, int], type[RequestPayload] | type[ResponsePayload]],
    direction: str,
    key: int,
    version: int,
    correlation_id: int,
) -> _Side:
    if side := sides.get((key, version)):
        return side
    try:
        entity_type = load(key, version)
    except KioIndexError:
        raise UnsupportedVersion(key, version, correlation_id) from None
    side = sides[key, version] = _Side(entity_type, f"{direction} {_title(key, version)}")
    return side


def _title(key: int, version: int) -> str:
    return f"{api_key_map.get(key, 'unknown')} (key {key}) v{version}"
