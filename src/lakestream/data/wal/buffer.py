"""First step of the write path: batches of all partitions join one open buffer, which is sealed into one frame.

Before: data/log/log.py (append).  After: writer.py, which stores it and hands its extents on to be claimed.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from lakestream.batch import CONTROL, TRANSACTIONAL, RecordBatch, is_commit
from lakestream.data.wal.format import Part
from lakestream.errors import LakestreamError
from lakestream.metadata.claims import BatchInfo, Kind, Medium
from lakestream.model import PartitionId


class Appended(NamedTuple):
    """A producer's answer: its records have these offsets."""

    offset_start: int
    offset_end: int
    duplicate: bool = False
    """It was appended before; this was a retry."""


class Placed:
    """A batch that waits for its offsets."""

    __slots__ = ("answer", "batch", "kind", "number", "refusal", "transaction")

    def __init__(self, batch: RecordBatch, transaction: int, number: int, answer: "asyncio.Future[Appended]") -> None:
        self.batch = batch
        self.kind = kind_of(batch)
        self.transaction = transaction
        self.number = number
        """Order of arrival in this broker."""
        self.answer = answer
        self.refusal: LakestreamError | None = None
        """Why it may not be appended, for reasons that the log does not know of."""

    def described(self, byte_start: int) -> BatchInfo:
        batch = self.batch
        return BatchInfo(
            byte_start,
            byte_start + batch.size,
            batch.record_count,
            self.kind,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            batch.last_sequence,
            self.transaction,
        )


def kind_of(batch: RecordBatch) -> Kind:
    if not batch.attributes & (TRANSACTIONAL | CONTROL):
        return Kind.PLAIN
    if batch.is_control:
        return Kind.COMMIT if is_commit(batch) else Kind.ABORT
    return Kind.TRANSACTIONAL


class Location(NamedTuple):
    """Where a frame was stored."""

    medium: Medium
    name: str
    position: int
    stored_ms: int


class Extent:
    """Batches of one partition that lie together in one stored frame: what one claim is made of."""

    __slots__ = (
        "_tries",
        "batch_count",
        "batches",
        "extent_id",
        "handed_on_s",
        "items",
        "location",
        "on_settled",
        "partition",
        "size",
        "writer_id",
    )

    def __init__(self, partition: PartitionId, items: list[Placed], extent_id: str, writer_id: str) -> None:
        self.partition = partition
        self.items = items
        self.extent_id = extent_id
        self.writer_id = writer_id
        self.size = sum(item.batch.size for item in items)
        self.batch_count = len(items)
        """As placed, like the size: some items may be answered and leave before the extent is settled."""
        self.handed_on_s = 0.0
        """When it was stored and stood in line for its offsets, by the loop's time."""
        self.location: Location | None = None
        self.batches: list[BatchInfo] = []
        self.on_settled: Callable[[Extent], None] = _nothing
        self._tries = 0

    def part(self) -> Part:
        return Part(
            self.partition.topic_id,
            self.partition.number,
            self.extent_id,
            [item.batch.data for item in self.items],
            sum(item.batch.record_count for item in self.items),
            [item.batch.crc for item in self.items],
        )

    def stored(self, location: Location, byte_start: int) -> None:
        """Its frame is stored; the extent's bytes begin at `byte_start` of the object or segment."""
        self.location = location
        self.batches = []
        for item in self.items:
            self.batches.append(item.described(byte_start))
            byte_start += item.batch.size

    def relabel(self, index: int, transaction: int) -> None:
        """A batch belongs to another transaction than was believed when it was placed."""
        self.items[index].transaction = transaction
        self.batches[index] = msgspec.structs.replace(self.batches[index], transaction=transaction)

    def next_claim_id(self) -> str:
        """The same claim id always means the same content, so every try with another content has another one. All of
        them begin with the id in the frame's footer."""
        self._tries += 1
        return f"{self.extent_id}.{self._tries}"

    def renew(self, extent_id: str) -> None:
        """It is about to be stored again, under another id."""
        self.extent_id = extent_id
        self._tries = 0
        self.location = None


class OpenBuffer:
    """Can be added to."""

    def __init__(self) -> None:
        self.bytes = 0
        self.count = 0
        self._items: dict[PartitionId, list[Placed]] = {}

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, partition: PartitionId, item: Placed) -> None:
        self.bytes += item.batch.size
        self.count += 1
        items = self._items.get(partition)
        if items is None:
            self._items[partition] = [item]
        else:
            items.append(item)

    def seal(self) -> "SealedBuffer":
        return SealedBuffer(self._items)


class SealedBuffer:
    """Can only be written."""

    def __init__(self, items: dict[PartitionId, list[Placed]]) -> None:
        self._items = items

    def extents(self, frame_id: str, writer_id: str, batches_max: int) -> list[Extent]:
        """One extent per partition, or several where it has more batches than one claim may hold."""
        pieces = (
            (partition, items[start : start + batches_max])
            for partition, items in self._items.items()
            for start in range(0, len(items), batches_max)
        )
        return [
            Extent(partition, items, f"{frame_id}.{index}", writer_id)
            for index, (partition, items) in enumerate(pieces)
        ]


def _nothing(extent: Extent) -> None:
    return None
