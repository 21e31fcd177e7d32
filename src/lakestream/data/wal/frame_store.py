"""Stores frames: one object each (profile `cost`), or appended to a segment (profile `latency`).

Before: writer.py.  After: storage/object_store.py, segments.py.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from lakestream.clock import Clock
from lakestream.config.settings import WalSettings
from lakestream.data.wal import format
from lakestream.data.wal.buffer import Extent, Location
from lakestream.data.wal.names import object_key, segment_name
from lakestream.data.wal.segments import SegmentFile, SegmentFiles
from lakestream.errors import LakestreamError, Unavailable
from lakestream.metadata.claims import Medium
from lakestream.storage.object_store import ObjectStore

log = logging.getLogger(__name__)


class FrameStore(Protocol):
    async def store(self, extents: Sequence[Extent], sequence: int) -> None:
        """Writes one frame and sets the location of every extent. Durable when it returns."""
        ...

    async def close(self) -> None: ...


class ObjectFrames:
    """Stores each frame as an object."""

    def __init__(self, store: ObjectStore, writer_id: str, clock: Clock) -> None:
        self._store = store
        self._writer_id = writer_id
        self._clock = clock

    async def store(self, extents: Sequence[Extent], sequence: int) -> None:
        stored_ms = self._clock.now_ms()  # before the put: a claim may only look older than it is
        frame = format.encode(
            [extent.data() for extent in extents],
            writer_id=self._writer_id,
            sequence=sequence,
            stored_ms=stored_ms,
        )
        name = object_key(stored_ms, self._writer_id, sequence)
        await self._store.put(name, frame.buffers)
        _set_locations(extents, frame, Location(Medium.OBJECT, name, 0, stored_ms))

    async def close(self) -> None:
        return None


class SegmentFrames:
    """Appends frames to a segment file that only this writer appends to.

    A segment is rolled by size and age. Its creation time counts for all its claims, so a writer that was paused for
    hours creates only stale claims."""

    def __init__(self, files: SegmentFiles, writer_id: str, settings: WalSettings, clock: Clock) -> None:
        self._files = files
        self._writer_id = writer_id
        self._settings = settings
        self._clock = clock
        self._turn = asyncio.Lock()
        self._open: _OpenSegment | None = None
        self._count = 0

    async def store(self, extents: Sequence[Extent], sequence: int) -> None:
        async with self._turn:
            segment = await self._segment()
            # Calls may arrive in another order than their sequence numbers; in the file these must increase.
            sequence = max(sequence, segment.sequence + 1)
            frame = format.encode(
                [extent.data() for extent in extents],
                writer_id=self._writer_id,
                sequence=sequence,
                stored_ms=segment.created_ms,
                kind=format.FrameKind.SEGMENT_FRAME,
                position=segment.size,
            )
            position = segment.size
            await self._append(segment, frame, sequence)
            _set_locations(extents, frame, Location(Medium.SEGMENT, segment.name, position, segment.created_ms))

    async def close(self) -> None:
        async with self._turn:
            await self._seal()

    async def _segment(self) -> "_OpenSegment":
        segment = self._open
        if segment is not None and not self._is_due(segment):
            return segment
        await self._seal()
        created_ms = self._clock.now_ms()
        self._count += 1
        name = segment_name(created_ms, self._writer_id, self._count)
        async with _DiskTimeout(self._settings.disk_timeout_ms, name):
            self._open = _OpenSegment(name, created_ms, await self._files.create(name))
        return self._open

    def _is_due(self, segment: "_OpenSegment") -> bool:
        age_ms = self._clock.now_ms() - segment.created_ms
        return segment.size >= self._settings.segment_bytes_max or age_ms >= self._settings.segment_age_ms_max

    async def _append(self, segment: "_OpenSegment", frame: format.Frame, sequence: int) -> None:
        """Appends a frame. If that fails the next one goes to a new file: this one may be broken, or at the size limit
        of the file system. A file that is still empty is kept, or a full disk would leave many empty files."""
        try:
            async with _DiskTimeout(self._settings.disk_timeout_ms, segment.name):
                await segment.file.append(frame.buffers)
        except BaseException:
            if segment.file.broken or segment.file.size:
                self._open = None
                await segment.file.close()
            raise
        segment.size += frame.size
        segment.sequence = sequence

    async def _seal(self) -> None:
        """Appends the seal: nothing will follow, so the garbage collector need not wait for the segment's age."""
        segment, self._open = self._open, None
        if segment is None:
            return
        seal = format.encode_seal(
            writer_id=self._writer_id,
            sequence=segment.sequence + 1,
            stored_ms=segment.created_ms,
            position=segment.size,
        )
        try:
            async with _DiskTimeout(self._settings.disk_timeout_ms, segment.name):
                await segment.file.append(seal.buffers)
        except LakestreamError as error:
            log.warning("wal.seal_failed segment=%s error=%s", segment.name, error)  # deleted later, by its age
        finally:
            await segment.file.close()


class _OpenSegment:
    def __init__(self, name: str, created_ms: int, file: SegmentFile) -> None:
        self.name = name
        self.created_ms = created_ms
        self.file = file
        self.size = 0
        self.sequence = 0


class _DiskTimeout:
    """Raises Unavailable if a disk hangs (such as a network file system without its server), so that producers get a
    response."""

    def __init__(self, timeout_ms: int, name: str) -> None:
        self._timeout = asyncio.timeout(timeout_ms / 1000)
        self._message = f"{name}: the disk did not respond within {timeout_ms / 1000:g} s"

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *raised: Any) -> None:
        try:
            await self._timeout.__aexit__(*raised)
        except TimeoutError:
            raise Unavailable(self._message) from None


def _set_locations(extents: Sequence[Extent], frame: format.Frame, location: Location) -> None:
    for extent, stored in zip(extents, frame.ranges, strict=True):
        extent.set_location(location, location.position + stored.byte_start)
