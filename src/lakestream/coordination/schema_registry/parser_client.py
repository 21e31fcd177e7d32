"""Client of the process that parses and compares schemas within limits (parser_main.py).

Results are cached, so registering or looking up a schema again needs no request to the process.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from lakestream.aio.cache import LruCache
from lakestream.aio.worker_process import RequestFailed, WorkerProcess
from lakestream.coordination.schema_registry.compatibility import AND_MORE, INCOMPATIBILITIES_MAX
from lakestream.coordination.schema_registry.effective_config import CompatibilityLevel
from lakestream.coordination.schema_registry.errors import InvalidSchema
from lakestream.coordination.schema_registry.output_formats import check_format
from lakestream.coordination.schema_registry.parser_main import (
    CanonicalText,
    FormattedText,
    Incompatibilities,
    IsResolved,
    OlderSource,
    ParserResponse,
    PlainText,
    Request,
    Result,
    invalid,
    request_size,
)
from lakestream.errors import Unavailable
from lakestream.model import KiB, MiB
from lakestream.schemas.model import Format, Source

CPU_S_MAX: Final = 2.0
"""CPU time of one request. The largest real schemas take some tenths of a second."""
RESPONSE_S_MAX: Final = 20.0
"""Including the wait for other requests."""
CACHE_SIZE_MAX: Final = 8 * MiB
"""Characters of requests and their results."""
REJECTED_SIZE_MAX: Final = MiB
REJECTED_S: Final = 60.0
"""How long a schema that ended the process is rejected without another attempt: clients retry immediately."""
COMPARED_SIZE_MAX: Final = 128 * KiB
"""Characters of older schemas in one request. The CPU limit is for all of them together."""
COMPARED_MAX: Final = 50
PROTOBUF_COMPARED_MAX: Final = 5
"""Protobuf: each version is compiled by protoc in 0.1 to 0.2 s, while other requests wait."""


class LimitExceeded(InvalidSchema):
    """The request ended the parser process at one of its limits. A retry would do so again."""


class SchemaParserClient:
    def __init__(self) -> None:
        self.worker = WorkerProcess(
            "the schema parser", "lakestream.coordination.schema_registry.parser_main", CPU_S_MAX
        )
        self._cache: LruCache[Request, Result] = LruCache(CACHE_SIZE_MAX, keep_newest=True)
        self._rejected: LruCache[Request, tuple[float, str]] = LruCache(REJECTED_SIZE_MAX, keep_newest=True)
        """The loop time until which a request is rejected, and the reason."""
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        await self.worker.close()

    async def plain(self, source: Source) -> str:
        """Returns the text to store. InvalidSchema, with the reason, if the schema is invalid."""
        return _text(await self._result(PlainText(source)))

    async def canonical(self, source: Source) -> str:
        return _text(await self._result(CanonicalText(source)))

    async def formatted(self, source: Source, word: str) -> str:
        return _text(await self._result(FormattedText(source, check_format(source.format, word))))

    async def is_resolved(self, source: Source, kept: Source) -> bool:
        """Returns whether `source` is `kept` with its references included in the text."""
        return bool(await self._result(IsResolved(source, kept)))

    async def incompatibilities(
        self, level: CompatibilityLevel, new: Source, older: Sequence[OlderSource]
    ) -> list[str]:
        found: list[str] = []
        if level is CompatibilityLevel.NONE:
            return found
        parts = list(_parts(older))[::-1]
        while parts:
            some = parts.pop()
            try:
                response = await self._fresh_result(Incompatibilities(level, new, some))
            except LimitExceeded:
                if len(some) == 1:
                    raise
                half = len(some) // 2
                parts += [some[half:], some[:half]]
                continue
            assert isinstance(response, list)
            found += response
            if len(found) > INCOMPATIBILITIES_MAX:
                return [*found[:INCOMPATIBILITIES_MAX], AND_MORE]
        return found

    async def _result(self, request: PlainText | CanonicalText | FormattedText | IsResolved) -> Result:
        """Returns a cached result: the result of a text never changes."""
        if (cached := self._cache.get(request)) is not None:
            return cached
        result = await self._fresh_result(request)
        self._cache.put(request, result, request_size(request) + (len(result) if isinstance(result, str) else 0))
        return result

    async def _fresh_result(self, request: Request) -> Result:
        response = await self._send(request)
        if response.unavailable:
            raise Unavailable(response.unavailable)
        if response.invalid:
            raise InvalidSchema(response.invalid)
        return response.result

    async def _send(self, request: Request) -> ParserResponse:
        try:
            async with asyncio.timeout(RESPONSE_S_MAX), self._lock:
                return await self._exchange(request)
        except TimeoutError:
            raise Unavailable(
                f"schema was not parsed within {RESPONSE_S_MAX:g} s: the parser is busy with other schemas: retry"
            ) from None

    async def _exchange(self, request: Request) -> ParserResponse:
        now_s = asyncio.get_running_loop().time()
        until_s, why = self._rejected.get(request) or (0.0, "")
        if now_s >= until_s:
            encoded = msgspec.msgpack.encode(request)
            try:
                response = await self.worker.call(lambda _: encoded)
            except RequestFailed as error:
                why = invalid(request, f"{_work(request)} {error}: make it smaller or simpler")
                self._rejected.put(request, (now_s + REJECTED_S, why), request_size(request))
            else:
                return msgspec.msgpack.decode(response, type=ParserResponse)
        raise LimitExceeded(why)


def _work(request: Request) -> str:
    if not isinstance(request, Incompatibilities):
        return "parsing it"
    older = request.older
    return f"comparing it with version {older[0].version}" if len(older) == 1 else "comparing it with earlier versions"


def _text(result: Result) -> str:
    assert isinstance(result, str)
    return result


def _parts(older: Sequence[OlderSource]) -> Iterator[tuple[OlderSource, ...]]:
    """Splits older schemas into groups of a size that one request can compare."""
    part: list[OlderSource] = []
    size = 0
    for one in older:
        count_max = PROTOBUF_COMPARED_MAX if one.source.format is Format.PROTOBUF else COMPARED_MAX
        if part and (len(part) >= count_max or size + one.source.size > COMPARED_SIZE_MAX):
            yield tuple(part)
            part, size = [], 0
        part.append(one)
        size += one.source.size
    if part:
        yield tuple(part)
