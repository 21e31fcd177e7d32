"""Finds offsets by timestamp, and the size of a log, by a walk along the chain.

Claims carry their newest timestamp and their sizes, so the walk reads no records: only one claim's bytes are read, and
only one batch of these is decoded.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Final, NamedTuple

from lakestream.data.log import rules
from lakestream.data.log.partition_state import readable_batches
from lakestream.data.log.partition_view import MeasuredSize, PartitionView, PartitionViews
from lakestream.data.wal.reader import Reader
from lakestream.errors import Rejected, Unavailable
from lakestream.metadata.claims import StoredClaim
from lakestream.records.batch import HEADER_SIZE, RecordBatch, loaded, read_varint
from lakestream.records.compression import decompressed


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int


async def first_in(batch: RecordBatch, offset: int, timestamp: int, offset_min: int = 0) -> TimestampOffset | None:
    """Returns the first record of a batch that is not older, from `offset_min` on."""
    if batch.max_timestamp < timestamp:
        return None
    if batch.timestamp_type or batch.record_count == 1:
        return TimestampOffset(batch.max_timestamp, max(offset, offset_min))
    times = await asyncio.to_thread(timestamps, batch)
    records = (TimestampOffset(time, offset + delta) for delta, time in times if time >= timestamp)
    return next((record for record in records if record.offset >= offset_min), None)


async def newest_in(batch: RecordBatch, offset: int, offset_min: int) -> TimestampOffset | None:
    """Returns the record of a batch with the newest timestamp, from `offset_min` on."""
    if offset >= offset_min or batch.timestamp_type or batch.record_count == 1:
        return await first_in(batch, offset, batch.max_timestamp, offset_min)
    times = await asyncio.to_thread(timestamps, batch)
    records = [TimestampOffset(time, offset + delta) for delta, time in times if offset + delta >= offset_min]
    return max(records, key=lambda record: record.timestamp, default=None)


def timestamps(batch: RecordBatch) -> list[tuple[int, int]]:
    """Returns offset delta and timestamp of every record.

    A batch whose records cannot be decoded counts as one record with the newest timestamp of the header: it becomes
    that row in the table."""
    try:
        data = decompressed(memoryview(batch.data)[HEADER_SIZE:], batch.compression)
        return [(delta, batch.base_timestamp + time) for time, delta in _deltas(data, batch.record_count)]
    except (IndexError, Rejected):
        return [(0, batch.max_timestamp)]


def _deltas(data: bytes, count: int) -> Iterator[tuple[int, int]]:
    if count > len(data):
        raise Rejected(f"record batch has {len(data)} bytes, too few for {count} records")
    at = 0
    for _ in range(count):
        size, at = read_varint(data, at)
        if size < 0:
            raise Rejected(f"record has an invalid size: {size} bytes")
        time, after_time = read_varint(data, at + 1)  # after the record's attributes
        delta, _end = read_varint(data, after_time)
        yield time, delta
        at += size


TRIES: Final = 8


class OffsetLookup:
    def __init__(self, views: PartitionViews, reader: Reader) -> None:
        self._views = views
        self._reader = reader

    async def claims(self, view: PartitionView, offset: int) -> list[StoredClaim]:
        """Returns some claims from the one with `offset` on, or from the first that is left; none at the end."""
        for _ in range(TRIES):
            at = max(offset, view.floor)
            if at >= view.offset_end:
                return []
            if claims := await self._views.claims_from(view, at):
                return claims
        raise Unavailable(f"partition {view.partition}: trimmed during {TRIES} reads at offset {offset}: retry")

    async def first_at(self, view: PartitionView, start: int, timestamp: int) -> TimestampOffset | None:
        async for stored in self._walk(view, start, view.offset_end):
            if stored.claim.max_timestamp >= timestamp and (found := await self._first_in(stored, start, timestamp)):
                return found
        return None

    async def newest(self, view: PartitionView, start: int) -> TimestampOffset | None:
        offset = view.state.timestamp_offset
        if view.state.timestamp_max < 0 or (offset < view.floor and start < view.floor):
            return None  # no record has a timestamp, or the newest is in the table
        if offset >= start:
            claim = (await self.claims(view, offset))[0]
            return await self._first_in(claim, start, claim.claim.max_timestamp)
        return await self._newest_from(view, start)

    async def size(self, view: PartitionView, start: int) -> int:
        """Counts the bytes once, then adds what was appended and subtracts what was deleted."""
        start, end = max(start, view.floor), view.offset_end
        before = view.measured
        if view.floor <= before.offset_start <= start <= before.offset_end:
            size = before.size - await self._bytes_between(view, before.offset_start, start)
            size += await self._bytes_between(view, before.offset_end, end)
        else:
            size = await self._bytes_between(view, start, end)
        view.measured = MeasuredSize(start, end, size)
        return size

    async def _walk(self, view: PartitionView, offset_start: int, offset_end: int) -> AsyncIterator[StoredClaim]:
        """Yields the claims with offsets in a range."""
        offset = offset_start
        while offset < offset_end and (claims := await self.claims(view, offset)):
            for stored in claims:
                if stored.claim.offset_start >= offset_end:
                    return
                yield stored
            offset = claims[-1].claim.offset_end

    async def _newest_from(self, view: PartitionView, start: int) -> TimestampOffset | None:
        """Finds the newest record from `start` on, after the newest of all was deleted: it is in the claim with the
        newest timestamp, or in the first claim, whose own timestamp may be that of a deleted record."""
        newest: TimestampOffset | None = None
        best: StoredClaim | None = None
        async for stored in self._walk(view, start, view.offset_end):
            if stored.claim.offset_start < start:
                newest = await self._newest_in(stored, start)
            elif best is None or stored.claim.max_timestamp > best.claim.max_timestamp:
                best = stored
        if best is None or (newest is not None and newest.timestamp >= best.claim.max_timestamp):
            return newest
        return await self._first_in(best, start, best.claim.max_timestamp) or newest

    async def _first_in(self, stored: StoredClaim, start: int, timestamp: int) -> TimestampOffset | None:
        for offset, batch in await self._batches(stored):
            if offset + batch.record_count > start and (found := await first_in(batch, offset, timestamp, start)):
                return found
        return None

    async def _newest_in(self, stored: StoredClaim, start: int) -> TimestampOffset | None:
        newest: TimestampOffset | None = None
        for offset, batch in await self._batches(stored):
            found = await newest_in(batch, offset, start) if offset + batch.record_count > start else None
            if found is not None and (newest is None or found.timestamp > newest.timestamp):
                newest = found
        return newest

    async def _batches(self, stored: StoredClaim) -> list[tuple[int, RecordBatch]]:
        if rules.is_stale(*stored):
            return []  # void, and its bytes may be gone
        (batches,) = await self._reader.read([stored.claim])
        parsed = await asyncio.to_thread(lambda: [RecordBatch.parse(loaded(batch)) for batch in batches])
        return [(offset, batch) for (offset, _), batch in zip(readable_batches(*stored), parsed, strict=False)]

    async def _bytes_between(self, view: PartitionView, offset_start: int, offset_end: int) -> int:
        """Returns the bytes of the batches whose first record lies in the range."""
        size = 0
        async for stored in self._walk(view, offset_start, offset_end):
            for offset, batch in readable_batches(*stored):
                if offset_start <= offset < offset_end:
                    size += batch.byte_end - batch.byte_start
        return size
