"""Stores that note what they were asked, so that a bare peer can be asked the same."""

from collections import defaultdict
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TypeVar

from lakestream.data.wal.segments import DiskSegments, See, SegmentFile, SegmentInfo
from lakestream.filed import OpenFile
from lakestream.model import Buffer, Span
from lakestream.storage.object_store import Body
from lakestream.storage.remote import RemoteStore

Turn = tuple[int, int]
"""Which reader asked, and in which of its reads."""

turn: ContextVar[Turn] = ContextVar("turn", default=(0, 0))


T = TypeVar("T")


class Gets:
    """Ranges by who asked for them and when: those of one turn were asked for together."""

    def __init__(self) -> None:
        self.by_turn: defaultdict[Turn, list[tuple[str, list[Span]]]] = defaultdict(list)

    def note(self, name: str, spans: Sequence[Span]) -> None:
        self.by_turn[turn.get()].append((name, list(spans)))

    def of_reader(self, reader: int) -> list[list[tuple[str, list[Span]]]]:
        return [asked for (who, _), asked in sorted(self.by_turn.items()) if who == reader]


class NotedBucket(RemoteStore):
    """A bucket that notes the size of every put and the ranges of every get."""

    sizes: list[int]
    gets: Gets

    async def put(self, key: str, body: Body) -> None:
        self.sizes.append(sum(map(len, body)))
        await super().put(key, body)

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        self.gets.note(key, spans)
        return await super().get_ranges(key, spans)


class NotedSegments:
    """Segment files that note the size of every append and the ranges of every read."""

    def __init__(self, files: DiskSegments) -> None:
        self._files = files
        self.sizes: list[int] = []
        self.gets = Gets()

    async def create(self, name: str) -> SegmentFile:
        return _NotedFile(await self._files.create(name), self.sizes)

    async def read(self, name: str, spans: Sequence[Span]) -> list[Buffer]:
        self.gets.note(name, spans)
        return await self._files.read(name, spans)

    async def look(self, name: str, spans: Sequence[Span], see: See[T]) -> list[T]:
        self.gets.note(name, spans)
        return await self._files.look(name, spans, see)

    def opened(self, name: str) -> OpenFile | None:
        return self._files.opened(name)

    async def size(self, name: str) -> int:
        return await self._files.size(name)

    async def walk(self) -> list[SegmentInfo]:
        return await self._files.walk()

    async def delete(self, names: Sequence[str]) -> None:
        await self._files.delete(names)

    async def close(self) -> None:
        await self._files.close()


class _NotedFile:
    def __init__(self, file: SegmentFile, sizes: list[int]) -> None:
        self._file = file
        self._sizes = sizes

    @property
    def name(self) -> str:
        return self._file.name

    @property
    def size(self) -> int:
        return self._file.size

    @property
    def broken(self) -> bool:
        return self._file.broken

    async def append(self, buffers: Sequence[Buffer]) -> None:
        self._sizes.append(sum(map(len, buffers)))
        await self._file.append(buffers)

    async def close(self) -> None:
        await self._file.close()
