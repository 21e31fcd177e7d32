"""What lies in stored objects and segments, from their footers alone: no record is read.

For whoever holds claims against bytes (the sweeper, doctor).  Below: format.py, storage/object_store.py, segments.py.
"""

from typing import NamedTuple

from lakestream.data.wal.format import (
    HEADER_SIZE,
    TAIL_SIZE,
    Footer,
    Header,
    Kind,
    MoreNeeded,
    check_follows,
    decode_footer,
    decode_frame_footer,
    decode_header,
    walk_segment,
)
from lakestream.data.wal.segments import SegmentFiles
from lakestream.errors import Corrupt
from lakestream.model import Buffer, Span
from lakestream.storage.object_store import ObjectStore


class SegmentFooters(NamedTuple):
    footers: list[Footer]
    """Of its frames in order, the seal left out."""
    sealed: bool
    torn_size: int


async def object_footer(store: ObjectStore, key: str, size: int) -> Footer:
    """One ranged read, two if the object holds more than some hundred ranges. Missing, Corrupt: as they are."""
    answer: Footer | MoreNeeded = MoreNeeded(min(TAIL_SIZE, size))
    while isinstance(answer, MoreNeeded):  # ends: each turn asks for more than the last, and never more than `size`
        (tail,) = await store.get_ranges(key, [Span(size - answer.size, size)])
        answer = decode_footer(tail, size, key)
    return answer


async def segment_footers(files: SegmentFiles, name: str) -> SegmentFooters:
    """One small read per frame. Only a segment that does not end cleanly is read whole, to tell torn from damaged."""
    size = await files.size(name)
    try:
        return await _clean_footers(files, name, size)
    except Corrupt:
        (body,) = await files.read(name, [Span(0, size)])
        segment = walk_segment(body, name)
        footers = [frame.footer for frame in segment.frames if frame.kind is Kind.SEGMENT_FRAME]
        return SegmentFooters(footers, segment.sealed, segment.torn_size)


async def _clean_footers(files: SegmentFiles, name: str, size: int) -> SegmentFooters:
    footers: list[Footer] = []
    sealed = False
    at = 0
    head = await _read(files, name, 0, min(HEADER_SIZE, size))
    while at < size:
        header = _header(head, at, size, name)
        end = at + header.length
        # The end of this frame and the start of the next in one read.
        both = await _read(files, name, end - header.tail_size, min(end + HEADER_SIZE, size))
        footer = decode_frame_footer(both[: header.tail_size], header, name)
        check_follows(footers[-1] if footers else None, sealed, footer, f"{name} at byte {at}")
        sealed = header.kind is Kind.SEGMENT_SEAL
        if not sealed:
            footers.append(footer)
        head = both[header.tail_size :]
        at = end
    return SegmentFooters(footers, sealed, 0)


def _header(head: Buffer, at: int, size: int, name: str) -> Header:
    header = decode_header(head, name)
    if not header.belongs_at(at) or header.length > size - at:
        raise Corrupt(f"{name} at byte {at}: no whole frame")
    return header


async def _read(files: SegmentFiles, name: str, start: int, end: int) -> memoryview:
    (data,) = await files.read(name, [Span(start, end)])
    return memoryview(data)
