"""Parses and compares schemas, in a process of its own.

    parser_client.py  ──  Request  ──▶  parser_main.py  ──  Response  ──▶  parser_client.py

Clients can register any schema, and even a small one may take hours or all memory. The process has limits of CPU and
memory for each request. It also derives the columns of a schema before the schema is registered. Brokers and the
pipeline do the same later without such limits, and never need more than this process did.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

import msgspec

from lakestream.aio.cache import LruCache
from lakestream.aio.worker_loop import serve
from lakestream.coordination.schema_registry.compatibility import OlderVersion, find_incompatibilities
from lakestream.coordination.schema_registry.effective_config import CompatibilityLevel
from lakestream.coordination.schema_registry.output_formats import RESOLVED, formatted, plain
from lakestream.errors import Rejected, Unavailable
from lakestream.model import MiB
from lakestream.schemas.model import Schema, Source
from lakestream.schemas.parse import read

MEMORY_MAX: Final = 512 * MiB
CACHE_SIZE_MAX: Final = MiB
"""Characters of the texts whose parsed schemas are cached. A parsed schema takes about ten times as much."""
RESPONSE_SIZE_MAX: Final = 32 * MiB
_ENTRY_SIZE: Final = 1_000
_TOO_DEEP: Final = "it is nested too deeply"

Read = Callable[[Source], Schema]


class OlderSource(NamedTuple):
    version: int
    source: Source


class PlainText(msgspec.Struct, frozen=True, tag=True):
    """Requests the text to store."""

    source: Source


class CanonicalText(msgspec.Struct, frozen=True, tag=True):
    source: Source


class FormattedText(msgspec.Struct, frozen=True, tag=True):
    """Requests the text in another format (output_formats.py)."""

    source: Source
    word: str


class IsResolved(msgspec.Struct, frozen=True, tag=True):
    """Requests whether `source` is `kept` with its references included in the text."""

    source: Source
    kept: Source


class Incompatibilities(msgspec.Struct, frozen=True, tag=True):
    """Requests the incompatibilities of a new schema with older ones."""

    level: CompatibilityLevel
    new: Source
    older: tuple[OlderSource, ...]


Request: TypeAlias = PlainText | CanonicalText | FormattedText | IsResolved | Incompatibilities
Result: TypeAlias = str | bool | list[str] | None


class ParserResponse(msgspec.Struct, frozen=True, array_like=True):
    result: Result = None
    invalid: str = ""
    """The reason why the schema is invalid."""
    unavailable: str = ""
    """The reason why the request failed without a result."""


class Parser:
    def __init__(self, read: Read = read) -> None:
        self._read = read
        self._cache: LruCache[Source, Schema] = LruCache(CACHE_SIZE_MAX, keep_newest=True)

    def respond(self, request: Request) -> ParserResponse:
        try:
            return ParserResponse(self._result(request))
        except Unavailable as error:
            return ParserResponse(unavailable=str(error))
        except Rejected as error:
            why = str(error)
        except RecursionError:
            why = _TOO_DEEP
        except MemoryError:
            raise
        except Exception as error:  # any other error would recur with the same schema
            why = f"{type(error).__name__}: {error}"
        except BaseException:  # a panic of a Rust library, which is not an Exception: a stack overflow inside it
            why = _TOO_DEEP
        return ParserResponse(invalid=invalid(request, why))

    def _result(self, request: Request) -> Result:
        match request:
            case PlainText(source):
                schema = self._parsed(source)
                text = plain(schema)
                _try_columns(schema)
                return text
            case CanonicalText(source):
                schema = self._parsed(source)
                text = schema.canonical
                _try_columns(schema)
                return text
            case FormattedText(source, word):
                return formatted(self._parsed(source), word)
            case IsResolved(source, kept):
                return formatted(self._parsed(source), RESOLVED) == formatted(self._parsed(kept), RESOLVED)
            case Incompatibilities(level, new, older):
                parsed = self._parsed(new)
                return find_incompatibilities(
                    level, parsed, [OlderVersion(one.version, self._parsed_older(one)) for one in older]
                )

    def _parsed(self, source: Source) -> Schema:
        if (schema := self._cache.get(source)) is None:
            schema = self._read(source)
            self._cache.put(source, schema, source.size + _ENTRY_SIZE)
        return schema

    def _parsed_older(self, one: OlderSource) -> Schema:
        try:
            return self._parsed(one.source)
        except Rejected as error:
            raise Rejected(f"the older version {one.version} cannot be parsed: {error}") from error


def invalid(request: Request, why: str) -> str:
    source = request.new if isinstance(request, Incompatibilities) else request.source
    return f"Invalid schema of type {source.format.value}: {why}"


def request_size(request: Request) -> int:
    """Returns the size in characters, including a constant for the request itself."""
    match request:
        case Incompatibilities(_, new, older):
            return _ENTRY_SIZE + new.size + sum(one.source.size for one in older)
        case IsResolved(source, kept):
            return _ENTRY_SIZE + source.size + kept.size
        case _:
            return _ENTRY_SIZE + request.source.size


def _try_columns(schema: Schema) -> None:
    """Derives the columns. A schema without columns is valid too: its values stay bytes."""
    with suppress(Rejected):
        schema.shape()


class RequestHandler:
    """Decodes requests and encodes responses."""

    def __init__(self) -> None:
        self._parser = Parser()
        self._decoder = msgspec.msgpack.Decoder(Request)

    def respond(self, encoded: bytes) -> bytes:
        request: Request = self._decoder.decode(encoded)
        try:
            response = msgspec.msgpack.encode(self._parser.respond(request))
        except UnicodeEncodeError:
            return msgspec.msgpack.encode(
                ParserResponse(invalid=invalid(request, "a string contains an unpaired surrogate"))
            )
        if len(response) <= RESPONSE_SIZE_MAX:
            return response
        why = f"the requested text has {len(response)} bytes: at most {RESPONSE_SIZE_MAX} are allowed"
        return msgspec.msgpack.encode(ParserResponse(invalid=invalid(request, why)))


if __name__ == "__main__":
    serve(RequestHandler().respond, MEMORY_MAX)
