"""Parses frames to requests, and encodes responses to frames. Wraps kio.

Before: network/connection.py, which splits the stream into frames.  After: dispatch.py, which finds the handler of
(key, version).

A frame is the bytes after the four bytes of its size. Requests are parsed by kio's Rust reader, after length_check.py
has checked that all counts and lengths fit into the frame; responses are encoded by message_writer.py. For any bytes
that a client sends, parse() returns a Request or raises Rejected, and nothing else. Bytes after the end of a body are
ignored, as in other brokers: librdkafka 2.16 sends three of them.

Schemas are loaded at first use, 5 to 10 ms each, and kept: warm() loads them before the listener opens.
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
from lakestream.protocol.kafka.wire import produce_request
from lakestream.protocol.kafka.wire.length_check import LengthCheck, compile_length_check
from lakestream.protocol.kafka.wire.message_writer import Writer, compile_writer
from lakestream.protocol.kafka.wire.tagged_fields import skip_tagged, strip_unknown

Reader = Callable[[Buffer, int], tuple[Any, int]]

_HEAD: Final = struct.Struct(">hhih")  # key, version, correlation id, size of the client id
_HEAD_V0: Final = struct.Struct(">hhi")
_RESPONSE_V0: Final = struct.Struct(">ii")  # size, correlation id
_RESPONSE_V1: Final = struct.Struct(">iix")  # then no tagged fields
PRODUCE: Final = 0
_CONTROLLED_SHUTDOWN_V0: Final = (7, 0)
"""The only request whose header has no client id (header v0). Kafka has removed it, but old brokers may send it."""


class UnsupportedVersion(Rejected):
    """A request without a schema. Only ApiVersions gets a response; for any other the connection is closed."""

    def __init__(self, key: int, version: int, correlation_id: int) -> None:
        super().__init__(f"Kafka request {_title(key, version)} has no schema here")
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
    """One request. `body` is kio's dataclass of its version."""

    __slots__ = ("body", "client_id", "correlation_id", "key", "version")

    def __init__(self, key: int, version: int, correlation_id: int, client_id: str | None, body: Any) -> None:
        self.key = key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body = body

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a field of the body, or `default` if this version does not have the field."""
        return getattr(self.body, name, default)

    def __repr__(self) -> str:
        return f"Request({_title(self.key, self.version)}, #{self.correlation_id}, {self.client_id!r}, {self.body!r})"


def parse(frame: Buffer) -> Request:
    """Parses the request in a frame. Raises UnsupportedVersion if it has no schema, Rejected if it is malformed."""
    return read(frame, *head(frame))


def head(frame: Buffer) -> tuple[Header, int]:
    """Parses the header up to its tagged fields, and returns its end. All versions but one are equal up to there."""
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
    """Parses the request after a header that `head` has returned. Raises as parse() does."""
    if frame.__class__ is not bytes:
        frame = memoryview(frame).toreadonly()  # kio accepts only buffers that cannot change
    key, version, correlation_id, client_id = header
    if key == PRODUCE and version in produce_request.VERSIONS:
        return Request(key, version, correlation_id, client_id, produce_request.read(frame, at, version))
    schema = _requests.get((key, version)) or _request_schema(key, version, correlation_id)
    return Request(key, version, correlation_id, client_id, schema.read(frame, at))


def respond(key: int, version: int, correlation_id: int, body: Mapping[str, Any]) -> bytes:
    """Encodes a response, with its size in front. Raises ValueError if `body` does not fit (message_writer.py)."""
    schema = _responses.get((key, version)) or _response_schema(key, version, correlation_id)
    written = schema.write(body)
    if schema.tags_in_header:
        return _RESPONSE_V1.pack(len(written) + 5, correlation_id) + written
    return _RESPONSE_V0.pack(len(written) + 4, correlation_id) + written


def warm(pairs: Iterable[tuple[int, int]]) -> None:
    """Loads and compiles the schemas that parse() and respond() need for these (key, version)."""
    for key, version in pairs:
        schema = _request_schema(key, version, 0)
        _ = schema.check_lengths, schema.reader
        _ = _response_schema(key, version, 0).write


def write_request(key: int, version: int, correlation_id: int, client_id: str | None, body: Mapping[str, Any]) -> bytes:
    """Encodes a request, with its size in front. For tools and tests."""
    schema = _request_schema(key, version, correlation_id)
    name = b"" if client_id is None else client_id.encode()
    head = _HEAD.pack(key, version, correlation_id, -1 if client_id is None else len(name)) + name
    frame = head + (b"\0" if schema.tags_in_header else b"") + schema.write(body)
    return len(frame).to_bytes(4, "big") + frame


def parse_response(key: int, version: int, frame: Buffer) -> Response:
    """Parses the response in a frame. For tools and tests. Raises as parse() does."""
    frame = memoryview(frame).toreadonly()
    if len(frame) < 4:
        raise Rejected(f"Kafka response of {len(frame)} bytes: too short for a header")
    correlation_id = int.from_bytes(frame[:4], "big", signed=True)
    return Response(correlation_id, _response_schema(key, version, correlation_id).read(frame, 4))


class _MessageSchema:
    """Requests or responses of one (key, version). Parser and encoder are compiled at first use."""

    def __init__(self, entity_type: type[RequestPayload] | type[ResponsePayload], title: str) -> None:
        self.title = title
        self.tags_in_header: bool = entity_type.__header_schema__.__flexible__  # never in ApiVersions responses
        self._entity_type = entity_type

    @cached_property
    def reader(self) -> Reader:
        return entity_reader(self._entity_type)

    @cached_property
    def check_lengths(self) -> LengthCheck:
        return compile_length_check(self._entity_type)

    @cached_property
    def write(self) -> Writer:
        return compile_writer(self._entity_type)

    def read(self, frame: Buffer, at: int) -> Any:
        """Parses the body. `at`: the start of the header's tagged fields, if the header can have them."""
        try:
            if self.tags_in_header:
                at = skip_tagged(frame, at)
            if self.check_lengths(frame, at) is None:  # the body has tagged fields, and kio rejects unknown ones
                frame, at = strip_unknown(self._entity_type, memoryview(frame)[at:]), 0
            return self.reader(frame, at)[0]
        except (IndexError, struct.error) as error:
            raise Rejected(f"Kafka {self.title} cannot be parsed: it ends too early") from error
        except Exception as error:  # kio has many exception classes, and all of them mean malformed bytes
            reason = str(error) if isinstance(error, Rejected) else f"{type(error).__name__} {error}"
            raise Rejected(f"Kafka {self.title} cannot be parsed: {reason}") from error


_requests: Final[dict[tuple[int, int], _MessageSchema]] = {}
_responses: Final[dict[tuple[int, int], _MessageSchema]] = {}
"""Both contain only (key, version) with a schema, so clients cannot make them grow."""


def _request_schema(key: int, version: int, correlation_id: int) -> _MessageSchema:
    return _schema(_requests, load_request_schema, "request", key, version, correlation_id)


def _response_schema(key: int, version: int, correlation_id: int) -> _MessageSchema:
    return _schema(_responses, load_response_schema, "response", key, version, correlation_id)


def _schema(
    schemas: dict[tuple[int, int], _MessageSchema],
    load: Callable[[int, int], type[RequestPayload] | type[ResponsePayload]],
    direction: str,
    key: int,
    version: int,
    correlation_id: int,
) -> _MessageSchema:
    if schema := schemas.get((key, version)):
        return schema
    try:
        entity_type = load(key, version)
    except KioIndexError:
        raise UnsupportedVersion(key, version, correlation_id) from None
    schema = schemas[key, version] = _MessageSchema(entity_type, f"{direction} {_title(key, version)}")
    return schema


def _title(key: int, version: int) -> str:
    return f"{api_key_map.get(key, 'unknown')} (key {key}) v{version}"
