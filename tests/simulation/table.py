"""A model of the table that the pipeline writes: rows by offset, and commits that chain on the next offset."""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple

from lakestream.batch import rebased
from lakestream.data.table.past import Past, PastFile
from lakestream.errors import Conflict, Unavailable
from lakestream.model import PartitionId
from lakestream.testing.batches import make_batch
from lakestream.testing.faults import Line


class Row(NamedTuple):
    offset: int
    value: bytes


@dataclass(slots=True)
class TablePart:
    """The rows of one partition, in order of offset."""

    next_offset: int = 0
    rows: list[Row] = field(default_factory=list)


class ModelTable:
    def __init__(self) -> None:
        self._parts: dict[PartitionId, TablePart] = {}

    def part(self, partition: PartitionId) -> TablePart:
        return self._parts.setdefault(partition, TablePart())

    def commit(self, partition: PartitionId, start: int, end: int, rows: list[Row]) -> None:
        """A range enters the table exactly once: only where it follows what is there."""
        part = self.part(partition)
        if part.next_offset != start:
            raise Conflict(f"the table of {partition} goes on at {part.next_offset}, not at {start}")
        part.rows += rows
        part.next_offset = end


class TableOverLine:
    """The table as one machine sees it: the log's history, and where the pipeline commits."""

    def __init__(self, table: ModelTable, line: Line) -> None:
        self._table = table
        self._line = line

    async def start(self, partition: PartitionId) -> int | None:
        return 0

    def start_known(self, partition: PartitionId) -> int:
        return 0

    async def files(self, partition: PartitionId, offset: int) -> list[PastFile]:
        return []

    async def first_at(self, partition: PartitionId, offset: int, timestamp: int) -> tuple[int, int] | None:
        return None

    async def newest(self, partition: PartitionId, offset: int) -> tuple[int, int] | None:
        return None

    async def read(self, partition: PartitionId, offset: int, bytes_max: int) -> Past:
        return await self._line.cross(
            f"read {partition} {offset}", lambda: self._rows_from(partition, offset), writes=False
        )

    def _rows_from(self, partition: PartitionId, offset: int) -> Past:
        part = self._table.part(partition)
        if offset >= part.next_offset:
            raise Unavailable(f"the table of {partition} ends at {part.next_offset}")
        rows = part.rows[bisect_left(part.rows, (offset, b"")) :][:10]
        batches = [(row.offset, rebased(make_batch([row.value]), row.offset)) for row in rows]
        offset_next = rows[-1].offset + 1 if len(rows) == 10 else part.next_offset
        return Past(batches, offset_next)

    async def next_offset(self, partition: PartitionId) -> int:
        return await self._line.cross(
            f"next offset {partition}", lambda: self._table.part(partition).next_offset, writes=False
        )

    async def commit(self, partition: PartitionId, start: int, end: int, rows: list[Row]) -> None:
        await self._line.cross(
            f"commit {partition} {start}..{end}",
            lambda: self._table.commit(partition, start, end, rows),
            writes=True,
        )
