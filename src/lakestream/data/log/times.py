"""Offsets by time: which record is the first that is not older than some moment, and which is the newest.

Claims carry their newest timestamp, so only one claim's bytes are read, and of these only the records of one batch.
"""

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from lakestream.batch import HEADER_SIZE, RecordBatch, read_varint
from lakestream.compression import decompressed
from lakestream.errors import Corrupt, Rejected


class At(NamedTuple):
    timestamp: int
    offset: int


async def first_in(batch: RecordBatch, offset: int, timestamp: int, offset_min: int = 0) -> At | None:
    """The first record of a batch that is not older, and does not lie before `offset_min`."""
    if batch.max_timestamp < timestamp:
        return None
    if batch.timestamp_type or batch.record_count == 1:
        return At(batch.max_timestamp, max(offset, offset_min))
    times = await asyncio.to_thread(timestamps, batch)
    found = (At(time, offset + delta) for delta, time in times if time >= timestamp)
    return next((at for at in found if at.offset >= offset_min), None)


async def newest_in(batch: RecordBatch, offset: int, offset_min: int) -> At | None:
    """The record of a batch with the newest timestamp that does not lie before `offset_min`."""
    if offset >= offset_min or batch.timestamp_type or batch.record_count == 1:
        return await first_in(batch, offset, batch.max_timestamp, offset_min)
    times = await asyncio.to_thread(timestamps, batch)
    left = [At(time, offset + delta) for delta, time in times if offset + delta >= offset_min]
    return max(left, key=lambda at: at.timestamp, default=None)


def timestamps(batch: RecordBatch) -> list[tuple[int, int]]:
    """Offset delta and timestamp of every record."""
    try:
        data = decompressed(memoryview(batch.data)[HEADER_SIZE:], batch.compression)
        return [(delta, batch.base_timestamp + time) for time, delta in _deltas(data, batch.record_count)]
    except (IndexError, Rejected) as error:
        raise Corrupt(f"the records of a batch cannot be read: {error}") from error


def _deltas(data: bytes, count: int) -> Iterator[tuple[int, int]]:
    at = 0
    for _ in range(count):
        size, at = read_varint(data, at)
        time, after_time = read_varint(data, at + 1)  # behind the record's attributes
        delta, _end = read_varint(data, after_time)
        yield time, delta
        at += size
