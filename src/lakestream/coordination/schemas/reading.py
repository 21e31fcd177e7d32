"""Reads the text of schemas and compares them, in a thread: a large schema does not keep Kafka clients waiting."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from lakestream.beside import Beside
from lakestream.coordination.schemas.compatibility import Older, troubles
from lakestream.coordination.schemas.formats import RESOLVED, check_format, formatted, plain
from lakestream.coordination.schemas.recent import Recent
from lakestream.coordination.schemas.refusals import InvalidSchema
from lakestream.coordination.schemas.scopes import Level
from lakestream.errors import Rejected, Unavailable
from lakestream.model import MiB
from lakestream.schemas.model import Schema, Source
from lakestream.schemas.read import read

READ_S_MAX: Final = 20.0
STUCK_MAX: Final = 4
SOURCE_BYTES_MAX: Final = 8 * MiB

T = TypeVar("T")
Read = Callable[[Source], Schema]


class OlderSource(NamedTuple):
    version: int
    source: Source


class Reading:
    def __init__(self, how: Read = read) -> None:
        self._how = how
        self._beside: Beside | None = None
        self._stuck = 0
        self._kept: Recent[Source, Schema] = Recent(SOURCE_BYTES_MAX)

    def close(self) -> None:
        if self._beside is not None:
            self._beside.close()

    async def plain(self, source: Source) -> str:
        """The text to keep. InvalidSchema: it is none, and why."""
        return await self._do(lambda: plain(self._read(source)))

    async def is_resolved(self, source: Source, kept: Source) -> bool:
        """Whether the first says in one text what the second says with references."""
        return await self._do(lambda: formatted(self._read(source), RESOLVED) == formatted(self._read(kept), RESOLVED))

    async def canonical(self, source: Source) -> str:
        return await self._do(lambda: self._read(source).canonical)

    async def troubles(self, level: Level, new: Source, older: Sequence[OlderSource]) -> list[str]:
        if level is Level.NONE or not older:
            return []
        return await self._do(
            lambda: troubles(level, self._read(new), [Older(one.version, self._read(one.source)) for one in older])
        )

    async def formatted(self, source: Source, word: str) -> str:
        word = check_format(source.format, word)
        return await self._do(lambda: formatted(self._read(source), word))

    def _read(self, source: Source) -> Schema:
        """In the thread, one at a time."""
        if (known := self._kept.get(source)) is not None:
            return known
        try:
            schema = self._how(source)
        except InvalidSchema:
            raise
        except Rejected as error:
            raise InvalidSchema(f"Invalid schema of type {source.format.value}: {error}") from error
        except RecursionError as error:
            raise InvalidSchema(f"Invalid schema of type {source.format.value}: it is nested too deeply") from error
        self._kept.put(source, schema, len(source.text) + 1_000)
        return schema

    async def _do(self, work: Callable[[], T]) -> T:
        if self._beside is None:
            self._beside = Beside("schemas.reading")
        beside = self._beside
        try:
            async with asyncio.timeout(READ_S_MAX):
                return await asyncio.shield(beside.do(work))
        except TimeoutError:
            if beside is self._beside and self._stuck < STUCK_MAX:  # the others get another thread
                self._stuck += 1
                self._beside = None
                beside.close()
            raise Unavailable(f"reading the schema took longer than {READ_S_MAX:g} s") from None
