"""Stores that record requests, so that a peer can repeat them."""

from collections import defaultdict
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TypeVar

from lakestream.data.wal.segments import Convert, DiskSegments, SegmentFile, SegmentInfo
from lakestream.model import Buffer, Span
from lakestream.records.file_region import SharedFile
from lakestream.storage.object_store import Body
from lakestream.storage.obstore_store import RemoteStore

ReadId = tuple[int, int]
"""Reader, and the number of its read."""

read_id: ContextVar[ReadId] = ContextVar("read_id", default=(0, 0))

T = TypeVar("T")


class Gets:
    """Requested ranges by reader and read; those of one read were requested together."""

    def __init__(self) -> None:
        self.by_read: defaultdict[ReadId, list[tuple[str, list[Span]]]] = defaultdict(list)

    def record(self, name: str, spans: Sequence[Span]) -> None:
        self.by_read[read_id.get()].append((name, list(spans)))

    def of_reader(self, reader: int) -> list[list[tuple[str, list[Span]]]]:
        return [requests for (of_reader, _), requests in sorted(self.by_read.items()) if of_reader == reader]


class RecordingBucket(RemoteStore):
    """A bucket that records the size of every put and the ranges of every get."""

    sizes: list[int]
    gets: Gets

    async def put(self, key: str, body: Body) -> None:
        self.sizes.append(sum(map(len, body)))
        await super().put(key, body)

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        self.gets.record(key, spans)
        return await super().get_ranges(key, spans)


class RecordingSegments:
    """Segment files that record the size of every append and the ranges of every read."""

    def __init__(self, files: DiskSegments) -> None:
        self._files = files
        self.sizes: list[int] = []
        self.gets = Gets()

    async def create(self, name: str) -> SegmentFile:
        return _RecordingFile(await self._files.create(name), self.sizes)

    async def read(self, name: str, spans: Sequence[Span]) -> list[Buffer]:
        self.gets.record(name, spans)
        return await self._files.read(name, spans)

    async def read_each(self, name: str, spans: Sequence[Span], convert: Convert[T]) -> list[T]:
        self.gets.record(name, spans)
        return await self._files.read_each(name, spans, convert)

    def open_file(self, name: str) -> SharedFile | None:
        return self._files.open_file(name)

    async def size(self, name: str) -> int:
        return await self._files.size(name)

    async def walk(self) -> list[SegmentInfo]:
        return await self._files.walk()

    async def delete(self, names: Sequence[str]) -> None:
        await self._files.delete(names)

    async def close(self) -> None:
        await self._files.close()


class _RecordingFile:
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
