"""Object store in a dictionary, for unit tests and the simulation: no threads, no waiting."""

from collections.abc import AsyncIterator, Sequence

from lakestream.clock import Clock
from lakestream.errors import Conflict, Missing
from lakestream.model import Buffer, Span
from lakestream.storage.object_keys import check_key, folder
from lakestream.storage.object_store import Body, ObjectInfo
from lakestream.storage.range_reads import beyond, check_spans

_PAGE_SIZE = 1000


class MemoryObjectStore:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._objects: dict[str, tuple[bytes, int]] = {}

    async def put(self, key: str, body: Body) -> None:
        # Joined here, because the caller may reuse its buffers as soon as this returns.
        self._objects[check_key(key)] = (b"".join(body), self._clock.now_ms())

    async def create(self, key: str, body: Body) -> None:
        if check_key(key) in self._objects:
            raise Conflict(f"object {key} already exists")
        await self.put(key, body)

    async def get(self, key: str) -> Buffer:
        return self._find(key)[0]

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        check_spans(spans)
        body, _ = self._find(key)
        for span in spans:
            if span.end > len(body):
                raise beyond(key, span, len(body))
        view = memoryview(body)
        return [view[span.start : span.end] for span in spans]

    async def head(self, key: str) -> ObjectInfo:
        body, modified_ms = self._find(key)
        return ObjectInfo(key, len(body), modified_ms)

    async def walk(self, prefix: str, after: str = "") -> AsyncIterator[list[ObjectInfo]]:
        start = folder(prefix)
        # The keys are listed now, but each page is read when it is requested, as in a real store.
        keys = sorted(key for key in self._objects if key.startswith(start) and key > after)
        for first in range(0, len(keys), _PAGE_SIZE):
            page = [
                ObjectInfo(key, len(stored[0]), stored[1])
                for key in keys[first : first + _PAGE_SIZE]
                if (stored := self._objects.get(key))
            ]
            if page:
                yield page

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._objects.pop(check_key(key), None)

    async def close(self) -> None:
        """Does nothing. The objects stay, as in a bucket."""

    def _find(self, key: str) -> tuple[bytes, int]:
        stored = self._objects.get(check_key(key))
        if stored is None:
            raise Missing(f"no object {key}")
        return stored
