"""Where frames go: one object each (profile `cost`), or behind one another into a segment (profile `latency`).

Before: writer.py.  After: storage/object_store.py, segments.py.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from lakestream.clock import Clock
from lakestream.data.wal import format
from lakestream.data.wal.buffer import Extent, Location
from lakestream.data.wal.names import object_key, segment_name
from lakestream.data.wal.segments import SegmentFile, SegmentFiles
from lakestream.errors import LakestreamError, Unavailable
from lakestream.metadata.claims import Medium
from lakestream.settings import WalSettings
from lakestream.storage.object_store import ObjectStore

log = logging.getLogger(__name__)


class FrameStore(Protocol):
    async def store(self, extents: Sequence[Extent], sequence: int) -> None:
        """Write one frame and tell every extent where it lies. Durable when it returns."""
        ...

    async def close(self) -> None: ...


class ObjectFrames:
    """Each frame is an object of its own."""

    def __init__(self, store: ObjectStore, writer_id: str, clock: Clock) -> None:
        self._store = store
        self._writer_id = writer_id
        self._clock = clock

    async def store(self, extents: Sequence[Extent], sequence: int) -> None:
        stored_ms = self._clock.now_ms()  # before the put: a claim may only look older than it is
        frame = format.encode(
            [extent.part() for extent in extents],
            writer_id=self._writer_id,
            sequence=sequence,
            stored_ms=stored_ms,
        )
        name = object_key(stored_ms, self._writer_id, sequence)
        await self._store.put(name, frame.buffers)
        _tell(extents, frame, Location(Medium.OBJECT, name, 0, stored_ms))

    async def close(self) -> None:
        return None


class SegmentFrames:
    """Frames behind one another in a file that this writer alone appends to. It is rolled by size and age; its age is
    that of all its claims, so a writer that slept for hours makes only stale claims."""

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
            # They may come here in another order than they were numbered; in the file they count upwards.
            sequence = max(sequence, segment.sequence + 1)
            frame = format.encode(
                [extent.part() for extent in extents],
                writer_id=self._writer_id,
                sequence=sequence,
                stored_ms=segment.created_ms,
                kind=format.Kind.SEGMENT_FRAME,
                position=segment.size,
            )
            position = segment.size
            await self._append(segment, frame, sequence)
            _tell(extents, frame, Location(Medium.SEGMENT, segment.name, position, segment.created_ms))

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
        async with _InTime(self._settings.disk_timeout_ms, name):
            self._open = _OpenSegment(name, created_ms, await self._files.create(name))
        return self._open

    def _is_due(self, segment: "_OpenSegment") -> bool:
        age_ms = self._clock.now_ms() - segment.created_ms
        return segment.size >= self._settings.segment_bytes_max or age_ms >= self._settings.segment_age_ms_max

    async def _append(self, segment: "_OpenSegment", frame: format.Frame, sequence: int) -> None:
        """After a failed append the next one goes to a new file: this one may be broken, or as large as it may become.
        One that is still empty is kept, or a full disk would leave a litter of them."""
        try:
            async with _InTime(self._settings.disk_timeout_ms, segment.name):
                await segment.file.append(frame.buffers)
        except BaseException:
            if segment.file.broken or segment.file.size:
                self._open = None
                await segment.file.close()
            raise
        segment.size += frame.size
        segment.sequence = sequence

    async def _seal(self) -> None:
        """Say that nothing will follow, so that the sweeper need not wait for the segment to grow old."""
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
            async with _InTime(self._settings.disk_timeout_ms, segment.name):
                await segment.file.append(seal.buffers)
        except LakestreamError as error:
            log.warning("wal.not_sealed segment=%s error=%s", segment.name, error)  # the sweeper waits for its age
        finally:
            await segment.file.close()


class _OpenSegment:
    def __init__(self, name: str, created_ms: int, file: SegmentFile) -> None:
        self.name = name
        self.created_ms = created_ms
        self.file = file
        self.size = 0
        self.sequence = 0


class _InTime:
    """A disk that hangs (a network file system whose server is gone) must not hang its producers."""

    def __init__(self, timeout_ms: int, name: str) -> None:
        self._timeout = asyncio.timeout(timeout_ms / 1000)
        self._late = f"{name}: the disk did not answer within {timeout_ms / 1000:g} s"

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *raised: Any) -> None:
        try:
            await self._timeout.__aexit__(*raised)
        except TimeoutError:
            raise Unavailable(self._late) from None


def _tell(extents: Sequence[Extent], frame: format.Frame, location: Location) -> None:
    for extent, part in zip(extents, frame.ranges, strict=True):
        extent.stored(location, location.position + part.byte_start)
