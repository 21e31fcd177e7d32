"""Reads the footers of stored objects and segments, without their records.

Used by the garbage collector and by `lakestream doctor`.  Below: format.py, storage/object_store.py, segments.py.
"""

from typing import Final, NamedTuple

from lakestream.data.wal.format import (
    HEADER_SIZE,
    TAIL_SIZE,
    TRAILER_SIZE,
    FrameFooter,
    FrameHeader,
    FrameKind,
    MoreNeeded,
    check_follows,
    decode_footer,
    decode_frame_footer,
    decode_header,
    has_seal_trailer,
    walk_segment,
)
from lakestream.data.wal.segments import SegmentFiles
from lakestream.errors import Corrupt
from lakestream.model import Buffer, KiB, Span
from lakestream.storage.object_store import ObjectStore

_READ_AHEAD: Final = 256 * KiB
_SMALL_FRAME: Final = _READ_AHEAD // 8
"""Footers of frames up to this size are read together with the batches between them: a read costs more than its
bytes."""


class SegmentFooters(NamedTuple):
    footers: list[FrameFooter]
    """Of the frames in order, without the seal."""
    sealed: bool
    torn_size: int


async def object_footer(store: ObjectStore, key: str, size: int) -> FrameFooter:
    """Reads the footer with one ranged read, two if the object has more than some hundred ranges. Raises Missing or
    Corrupt."""
    footer: FrameFooter | MoreNeeded = MoreNeeded(min(TAIL_SIZE, size))
    while isinstance(footer, MoreNeeded):  # ends: each turn needs more than the last, and never more than `size`
        (tail,) = await store.get_ranges(key, [Span(size - footer.size, size)])
        footer = decode_footer(tail, size, key)
    return footer


async def may_be_sealed(files: SegmentFiles, name: str) -> bool:
    """Checks only the last bytes of a segment. Returns False if it is not sealed; if True, read it to be sure."""
    size = await files.size(name)
    if size < TRAILER_SIZE:
        return False
    (end,) = await files.read(name, [Span(size - TRAILER_SIZE, size)])
    return has_seal_trailer(end)


async def segment_footers(files: SegmentFiles, name: str) -> SegmentFooters:
    """Reads the footers of a segment: a small read per frame, or one for many small frames. Only a segment that does
    not end cleanly is read whole, to distinguish a torn tail from damage."""
    size = await files.size(name)
    try:
        return await _clean_footers(files, name, size)
    except Corrupt:
        (body,) = await files.read(name, [Span(0, size)])
        segment = walk_segment(body, name)
        footers = [frame.footer for frame in segment.frames if frame.kind is FrameKind.SEGMENT_FRAME]
        return SegmentFooters(footers, segment.sealed, segment.torn_size)


async def _clean_footers(files: SegmentFiles, name: str, size: int) -> SegmentFooters:
    footers: list[FrameFooter] = []
    sealed = False
    at = 0
    window = _Window(files, name, size)
    head = await window.read(0, min(HEADER_SIZE, size))
    while at < size:
        header = _header(head, at, size, name)
        end = at + header.length
        # One read has the end of this frame and the start of the next.
        both = await window.read(end - header.tail_size, min(end + HEADER_SIZE, size), header.length <= _SMALL_FRAME)
        footer = decode_frame_footer(both[: header.tail_size], header, name)
        check_follows(footers[-1] if footers else None, sealed, footer, f"{name} at byte {at}")
        sealed = header.kind is FrameKind.SEGMENT_SEAL
        if not sealed:
            footers.append(footer)
        head = both[header.tail_size :]
        at = end
    return SegmentFooters(footers, sealed, 0)


class _Window:
    """A part of the segment in memory."""

    def __init__(self, files: SegmentFiles, name: str, size: int) -> None:
        self._files = files
        self._name = name
        self._size = size
        self._span = Span(0, 0)
        self._data = memoryview(b"")

    async def read(self, start: int, end: int, ahead: bool = False) -> memoryview:
        """With `ahead`, reads more than requested: the next read will follow this one."""
        if not self._span.start <= start <= end <= self._span.end:
            self._span = Span(start, min(max(end, start + _READ_AHEAD), self._size) if ahead else end)
            (data,) = await self._files.read(self._name, [self._span])
            self._data = memoryview(data)
        return self._data[start - self._span.start : end - self._span.start]


def _header(head: Buffer, at: int, size: int, name: str) -> FrameHeader:
    header = decode_header(head, name)
    if not header.belongs_at(at) or header.length > size - at:
        raise Corrupt(f"{name} at byte {at}: incomplete frame")
    return header
