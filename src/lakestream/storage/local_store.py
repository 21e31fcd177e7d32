"""Object store in a folder of a local or shared disk. Objects are durable when a write returns.

Needed because obstore's local store never syncs. Steps of a write: temporary file in the target's folder → all bytes →
fsync → one atomic step that gives it its name (rename, or link if the name must be free) → fsync of the folder. A crash
leaves the whole object or none, and maybe a temporary file, which `walk` skips, and deletes when it is old.
local_disk.py does all of it in blocking calls; this module calls it in threads.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

from lakestream.clock import Clock, Ids
from lakestream.model import Buffer, Span
from lakestream.storage.local_disk import Disk
from lakestream.storage.object_store import Body, ObjectInfo
from lakestream.storage.range_reads import check_spans

_THREADS_MAX = 16
_PAGE_SIZE = 1000

T = TypeVar("T")


class FileStore:
    def __init__(self, root: Path, clock: Clock, ids: Ids) -> None:
        self._disk = Disk(root, clock, ids)
        # The queue holds at most one job per waiting caller: cancelling a caller removes a job that has not started.
        self._threads = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="file-store")

    async def put(self, key: str, body: Body) -> None:
        await self._run(lambda: self._disk.write(key, body, overwrite=True))

    async def create(self, key: str, body: Body) -> None:
        await self._run(lambda: self._disk.write(key, body, overwrite=False))

    async def get(self, key: str) -> Buffer:
        return await self._run(lambda: self._disk.read(key))

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        check_spans(spans)
        return await self._run(lambda: self._disk.read_spans(key, spans))

    async def head(self, key: str) -> ObjectInfo:
        return await self._run(lambda: self._disk.head(key))

    async def walk(self, prefix: str, after: str = "") -> AsyncIterator[list[ObjectInfo]]:
        objects = self._disk.objects(prefix, after)
        while page := await self._run(lambda: _take(objects)):
            yield page

    async def delete(self, keys: Sequence[str]) -> None:
        await self._run(lambda: self._disk.remove(keys))

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)

    async def _run(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, job)


def _take(objects: Iterator[ObjectInfo]) -> list[ObjectInfo]:
    return list(islice(objects, _PAGE_SIZE))
