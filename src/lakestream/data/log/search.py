"""Questions that walk along a chain: which offset belongs to a time, how many bytes there are.

Asked by: log.py, with the log's bounds as the store has them now. Claims carry their newest timestamp and their sizes,
so walking reads no bytes; only the one claim that holds the answer is opened.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from lakestream.batch import RecordBatch, loaded
from lakestream.data.log import rules
from lakestream.data.log.fold import served
from lakestream.data.log.times import At, first_in, newest_in
from lakestream.data.log.view import Measured, View, Views
from lakestream.data.wal.reader import Reader
from lakestream.errors import Unavailable
from lakestream.metadata.claims import Dated

TRIES: Final = 8


class Search:
    def __init__(self, views: Views, reader: Reader) -> None:
        self._views = views
        self._reader = reader

    async def claims(self, view: View, offset: int) -> list[Dated]:
        """Some claims from the one that holds `offset` on, or from the first that is left; none at the end."""
        for _ in range(TRIES):
            at = max(offset, view.floor)
            if at >= view.offset_end:
                return []
            if found := await self._views.claims_from(view, at):
                return found
        raise Unavailable(f"log {view.partition} moved under {TRIES} readings at offset {offset}; try again")

    async def first_at(self, view: View, start: int, timestamp: int) -> At | None:
        async for dated in self._walk(view, start, view.offset_end):
            if dated.claim.max_timestamp >= timestamp and (found := await self._first_in(dated, start, timestamp)):
                return found
        return None

    async def newest(self, view: View, start: int) -> At | None:
        offset = view.fold.timestamp_offset
        if view.fold.timestamp_max < 0 or (offset < view.floor and start < view.floor):
            return None  # no record has a time, or the newest is in the table
        if offset >= start:
            claim = (await self.claims(view, offset))[0]
            return await self._first_in(claim, start, claim.claim.max_timestamp)
        return await self._newest_left(view, start)

    async def size(self, view: View, start: int) -> int:
        """Counted once, then kept up: what came is added, what was deleted taken off."""
        start, end = max(start, view.floor), view.offset_end
        before = view.measured
        if view.floor <= before.offset_start <= start <= before.offset_end:
            size = before.size - await self._bytes_between(view, before.offset_start, start)
            size += await self._bytes_between(view, before.offset_end, end)
        else:
            size = await self._bytes_between(view, start, end)
        view.measured = Measured(start, end, size)
        return size

    async def _walk(self, view: View, offset_start: int, offset_end: int) -> AsyncIterator[Dated]:
        """The claims with offsets in a range."""
        offset = offset_start
        while offset < offset_end and (claims := await self.claims(view, offset)):
            for dated in claims:
                if dated.claim.offset_start >= offset_end:
                    return
                yield dated
            offset = claims[-1].claim.offset_end

    async def _newest_left(self, view: View, start: int) -> At | None:
        """The newest record of all was deleted: of those left, it is in the claim that promises most, or in the first,
        which may promise a record that was deleted."""
        newest: At | None = None
        best: Dated | None = None
        async for dated in self._walk(view, start, view.offset_end):
            if dated.claim.offset_start < start:
                newest = await self._newest_in(dated, start)
            elif best is None or dated.claim.max_timestamp > best.claim.max_timestamp:
                best = dated
        if best is None or (newest is not None and newest.timestamp >= best.claim.max_timestamp):
            return newest
        return await self._first_in(best, start, best.claim.max_timestamp) or newest

    async def _first_in(self, dated: Dated, start: int, timestamp: int) -> At | None:
        for offset, batch in await self._batches(dated):
            if offset + batch.record_count > start and (found := await first_in(batch, offset, timestamp, start)):
                return found
        return None

    async def _newest_in(self, dated: Dated, start: int) -> At | None:
        newest: At | None = None
        for offset, batch in await self._batches(dated):
            found = await newest_in(batch, offset, start) if offset + batch.record_count > start else None
            if found is not None and (newest is None or found.timestamp > newest.timestamp):
                newest = found
        return newest

    async def _batches(self, dated: Dated) -> list[tuple[int, RecordBatch]]:
        if rules.is_stale(*dated):
            return []  # a gap, and its bytes may be gone
        (batches,) = await self._reader.read([dated.claim])
        found = await asyncio.to_thread(lambda: [RecordBatch.parse(loaded(batch)) for batch in batches])
        return [(offset, batch) for (offset, _), batch in zip(served(*dated), found, strict=False)]

    async def _bytes_between(self, view: View, offset_start: int, offset_end: int) -> int:
        """Of the batches whose first record lies in the range."""
        size = 0
        async for dated in self._walk(view, offset_start, offset_end):
            for offset, batch in served(*dated):
                if offset_start <= offset < offset_end:
                    size += batch.byte_end - batch.byte_start
        return size
