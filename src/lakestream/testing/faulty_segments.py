"""Segment files of a simulated machine: a disk in memory with faults."""

from collections.abc import Sequence
from typing import TypeVar

from lakestream.clock import Clock
from lakestream.data.wal.segments import Convert, SegmentInfo
from lakestream.model import Buffer, Span
from lakestream.records.file_region import SharedFile
from lakestream.testing.fault_injection import Line
from lakestream.testing.memory_segments import MemoryDisk, MemorySegment, MemorySegments

T = TypeVar("T")


class FaultySegments:
    """The disk as one simulated machine mounts it.

    A disk loses no call, but a call may be slow or refused, and the machine may stall or die before and after each. A
    machine that dies during an append leaves a torn append behind."""

    def __init__(self, disk: MemoryDisk, clock: Clock, line: Line) -> None:
        # The disk sets modification times, with its own clock and not the machine's.
        self._files = MemorySegments(disk, clock, line.loop.rng, (0.0002, 0.01))
        self._line = line
        line.machine.on_death.append(self._files.crash)

    async def create(self, name: str) -> "FaultySegment":
        await self._line.local_step(f"create {name}")
        file = await self._files.create(name)
        await self._line.local_step(f"created {name}")
        return FaultySegment(file, self._line)

    async def read(self, name: str, spans: Sequence[Span]) -> list[Buffer]:
        await self._line.local_step(f"read {name}")
        return await self._files.read(name, spans)

    async def read_each(self, name: str, spans: Sequence[Span], convert: Convert[T]) -> list[T]:
        await self._line.local_step(f"read each {name}")
        return await self._files.read_each(name, spans, convert)

    def open_file(self, name: str) -> SharedFile | None:
        return self._files.open_file(name)

    async def size(self, name: str) -> int:
        await self._line.local_step(f"size {name}")
        return await self._files.size(name)

    async def walk(self) -> list[SegmentInfo]:
        await self._line.local_step("walk")
        return await self._files.walk()

    async def delete(self, names: Sequence[str]) -> None:
        await self._line.local_step(f"delete {' '.join(names)}")
        await self._files.delete(names)

    async def close(self) -> None:
        await self._files.close()


class FaultySegment:
    def __init__(self, file: MemorySegment, line: Line) -> None:
        self._file = file
        self._line = line

    @property
    def name(self) -> str:
        return self._file.name

    @property
    def size(self) -> int:
        return self._file.size

    @property
    def broken(self) -> bool:
        return self._file.broken

    async def append(self, buffers: Sequence[Buffer]) -> None:
        await self._line.local_step(f"append {self.name}")
        await self._file.append(buffers)
        await self._line.local_step(f"appended {self.name}", refuses=False)

    async def close(self) -> None:
        await self._file.close()
