"""Write path, step 1: batches of all partitions join one open buffer, which is sealed into one frame.

Before: data/log/writer_router.py.  After: writer.py, which stores the frame and passes its extents on to be claimed.
"""

import asyncio
from typing import NamedTuple, Protocol

import msgspec

from lakestream.data.wal.format import ExtentData
from lakestream.errors import LakestreamError
from lakestream.metadata.claims import BatchInfo, BatchKind, Medium
from lakestream.model import PartitionId
from lakestream.records.batch import CONTROL, TRANSACTIONAL, RecordBatch, is_commit


class Appended(NamedTuple):
    """Offsets of an appended batch."""

    offset_start: int
    offset_end: int
    duplicate: bool = False
    """The batch had been appended before; this was a retry."""


class PendingBatch:
    """A batch that has no offsets yet."""

    __slots__ = ("batch", "future", "kind", "number", "rejection", "transaction")

    def __init__(self, batch: RecordBatch, transaction: int, number: int, future: "asyncio.Future[Appended]") -> None:
        self.batch = batch
        self.kind = kind_of(batch)
        self.transaction = transaction
        self.number = number
        """Order of arrival in this broker."""
        self.future = future
        self.rejection: LakestreamError | None = None
        """Why it may not be appended, for reasons outside of the partition's state."""

    def batch_info(self, byte_start: int) -> BatchInfo:
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

    def complete(self, result: Appended | LakestreamError) -> None:
        if self.future.done():
            return  # the request was cancelled
        if isinstance(result, Appended):
            self.future.set_result(result)
        else:
            self.future.set_exception(result)


def kind_of(batch: RecordBatch) -> BatchKind:
    if not batch.attributes & (TRANSACTIONAL | CONTROL):
        return BatchKind.PLAIN
    if batch.is_control:
        return BatchKind.COMMIT if is_commit(batch) else BatchKind.ABORT
    return BatchKind.TRANSACTIONAL


class Location(NamedTuple):
    """Where a frame is stored."""

    medium: Medium
    name: str
    position: int
    stored_ms: int


class ExtentWriter(Protocol):
    """The WAL writer of an extent, as the claimer uses it."""

    @property
    def writer_id(self) -> str: ...

    async def rewrite_extent(self, extent: "Extent") -> None:
        """Stores an extent again, alone: its claim was stale, or is void."""
        ...

    def finish(self, extent: "Extent") -> None:
        """Releases the memory of an extent whose futures are complete. Called once for each extent."""
        ...


class Extent:
    """Batches of one partition that are stored side by side in one frame: the content of one claim."""

    __slots__ = (
        "_tries",
        "batch_count",
        "batches",
        "extent_id",
        "items",
        "location",
        "partition",
        "queued_s",
        "size",
        "writer",
    )

    def __init__(self, partition: PartitionId, items: list[PendingBatch], extent_id: str, writer: ExtentWriter) -> None:
        self.partition = partition
        self.items = items
        self.extent_id = extent_id
        self.writer = writer
        self.size = sum(item.batch.size for item in items)
        self.batch_count = len(items)
        """As submitted, like the size: items can complete and leave before the extent is finished."""
        self.queued_s = 0.0
        """When it was stored and queued for its claim, by the loop's time."""
        self.location: Location | None = None
        self.batches: list[BatchInfo] = []
        self._tries = 0

    def data(self) -> ExtentData:
        return ExtentData(
            self.partition.topic_id,
            self.partition.number,
            self.extent_id,
            [item.batch.data for item in self.items],
            sum(item.batch.record_count for item in self.items),
            [item.batch.crc for item in self.items],
        )

    def set_location(self, location: Location, byte_start: int) -> None:
        """Notes that its frame is stored; the extent's bytes begin at `byte_start` of the object or segment."""
        self.location = location
        self.batches = []
        for item in self.items:
            self.batches.append(item.batch_info(byte_start))
            byte_start += item.batch.size

    def set_transaction(self, index: int, transaction: int) -> None:
        """Moves a batch to another transaction than it was submitted with."""
        self.items[index].transaction = transaction
        self.batches[index] = msgspec.structs.replace(self.batches[index], transaction=transaction)

    def next_claim_id(self) -> str:
        """Returns a new claim id. One claim id always means the same content, so each attempt with other content gets
        another id. All of them begin with the id in the frame's footer."""
        self._tries += 1
        return f"{self.extent_id}.{self._tries}"

    def renew(self, extent_id: str) -> None:
        """Prepares the extent to be stored again, with another id."""
        self.extent_id = extent_id
        self._tries = 0
        self.location = None


class OpenBuffer:
    """A buffer that accepts batches."""

    def __init__(self) -> None:
        self.bytes = 0
        self.count = 0
        self._items: dict[PartitionId, list[PendingBatch]] = {}

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, partition: PartitionId, item: PendingBatch) -> None:
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
    """A buffer that accepts no more batches and can be written."""

    def __init__(self, items: dict[PartitionId, list[PendingBatch]]) -> None:
        self._items = items

    def extents(self, frame_id: str, writer: ExtentWriter, batches_max: int) -> list[Extent]:
        """Returns one extent per partition, or several if it has more batches than one claim may hold."""
        pieces = (
            (partition, items[start : start + batches_max])
            for partition, items in self._items.items()
            for start in range(0, len(items), batches_max)
        )
        return [
            Extent(partition, items, f"{frame_id}.{index}", writer) for index, (partition, items) in enumerate(pieces)
        ]
