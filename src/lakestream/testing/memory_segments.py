"""Segment files for the simulation: a disk in memory that several brokers mount, with the faults of disks.

An append takes time. If its task is cancelled or its broker crashes during it, the disk keeps a prefix of it, from
nothing to all, as a real disk does with a write that was not synced. It passes the contract tests of the real stores.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from lakestream.clock import Clock
from lakestream.data.wal.names import parse_segment_name
from lakestream.data.wal.segments import Convert, SegmentInfo
from lakestream.errors import Conflict, Missing, OutOfRange, Rejected, Unavailable
from lakestream.model import Buffer, Span
from lakestream.records.file_region import SharedFile

T = TypeVar("T")


@dataclass(slots=True)
class _File:
    modified_ms: int
    data: bytearray = field(default_factory=bytearray)


class MemoryDisk:
    """The files, which outlive all brokers. `size_max` and `syncs_fail` make the disk fail."""

    def __init__(self) -> None:
        self.files: dict[str, _File] = {}
        self.size_max: int | None = None
        """Larger appends fail: the disk is full."""
        self.syncs_fail = False

    @property
    def size(self) -> int:
        return sum(len(file.data) for file in self.files.values())


class MemorySegments:
    """One broker's mount of the disk."""

    def __init__(
        self, disk: MemoryDisk, clock: Clock, rng: random.Random, append_s: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._rng = rng
        self._append_s = append_s
        self._crashed = False
        self._open: list[MemorySegment] = []

    async def create(self, name: str) -> "MemorySegment":
        self._check(name)
        if name in self._disk.files:
            raise Conflict(f"segment {name} exists already")
        self._disk.files[name] = _File(self._clock.now_ms())
        segment = MemorySegment(name, self._disk, self._clock, self._rng, self._append_s)
        self._open.append(segment)
        return segment

    async def read(self, name: str, spans: Sequence[Span]) -> list[Buffer]:
        data = self._file(name).data
        return [_cut(data, span, name) for span in spans]

    async def read_each(self, name: str, spans: Sequence[Span], convert: Convert[T]) -> list[T]:
        found = await self.read(name, spans)
        return [convert(index, memoryview(data).toreadonly(), None) for index, data in enumerate(found)]

    def open_file(self, name: str) -> SharedFile | None:
        return None

    async def size(self, name: str) -> int:
        return len(self._file(name).data)

    async def walk(self) -> list[SegmentInfo]:
        self._check_alive()
        return sorted(SegmentInfo(name, len(file.data), file.modified_ms) for name, file in self._disk.files.items())

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._check(name)
        for name in names:
            self._disk.files.pop(name, None)

    async def close(self) -> None:
        for segment in self._open:
            await segment.close()

    def crash(self) -> None:
        """Simulates a crash of the broker: appends in flight keep a prefix, and every later call fails."""
        self._crashed = True
        for segment in self._open:
            segment.tear("its broker crashed")

    def _file(self, name: str) -> _File:
        self._check(name)
        file = self._disk.files.get(name)
        if file is None:
            raise Missing(f"segment {name} does not exist")
        return file

    def _check(self, name: str) -> None:
        self._check_alive()
        if parse_segment_name(name) is None:
            raise Rejected(f"invalid segment name {name!r}")

    def _check_alive(self) -> None:
        if self._crashed:
            raise Unavailable("this broker has crashed")


class MemorySegment:
    def __init__(
        self, name: str, disk: MemoryDisk, clock: Clock, rng: random.Random, append_s: tuple[float, float]
    ) -> None:
        self.name = name
        self._disk = disk
        self._clock = clock
        self._rng = rng
        self._append_s = append_s
        self._size = 0
        self._pending: bytes | None = None
        self._unusable: str | None = None
        self._closed = False

    @property
    def size(self) -> int:
        return self._size

    @property
    def broken(self) -> bool:
        return self._unusable is not None

    async def append(self, buffers: Sequence[Buffer]) -> None:
        self._check_usable()
        assert self._pending is None, "one append at a time"
        self._pending = data = b"".join(buffers)
        try:
            await asyncio.sleep(self._rng.uniform(*self._append_s))
            self._check_usable()  # the broker crashed while this append slept
        except BaseException:
            self.tear("an append was cancelled")
            raise
        self._pending = None
        self._store(data)

    async def close(self) -> None:
        self._closed = True

    def tear(self, why: str) -> None:
        """Keeps a random prefix of the append in flight, whose caller gets no result."""
        self._unusable = self._unusable or why
        if self._pending is None:
            return
        kept = self._pending[: self._rng.randint(0, len(self._pending))]
        self._pending = None
        self._write(kept)

    def _store(self, data: bytes) -> None:
        if self._disk.size_max is not None and self._disk.size + len(data) > self._disk.size_max:
            raise Unavailable(f"cannot append to {self.name}: the disk is full")
        if self._disk.syncs_fail:
            self._unusable = "sync failed"
            self._write(data[: self._rng.randint(0, len(data))])
            raise Unavailable(f"cannot sync {self.name}: input/output error")
        self._write(data)
        self._size += len(data)

    def _write(self, data: bytes) -> None:
        file = self._disk.files.get(self.name)
        if file is not None:  # a deleted file can still be written; nothing reads it
            file.data += data
            file.modified_ms = self._clock.now_ms()

    def _check_usable(self) -> None:
        if self._unusable is not None or self._closed:
            why = self._unusable or "closed"
            raise Unavailable(f"segment {self.name} accepts no more appends ({why}): write to a new segment")


def _cut(data: bytearray, span: Span, name: str) -> bytes:
    if not 0 <= span.start <= span.end <= len(data):
        raise OutOfRange(f"bytes {span.start} to {span.end} of segment {name} do not exist: it has {len(data)}")
    return bytes(memoryview(data)[span.start : span.end])
