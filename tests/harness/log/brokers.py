"""Brokers over stores in memory, with faults that a test injects one by one. For the tests of the log and the WAL."""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from typing import Any

from lakestream.clock import Clock, SeededIds
from lakestream.config.settings import LogSettings, Profile, WalSettings
from lakestream.data.log.claim_retry import TransactionCheck
from lakestream.data.log.garbage_collector import WalGarbageCollector
from lakestream.data.log.log import History, Log, ReadResult
from lakestream.data.wal.buffer import Extent
from lakestream.data.wal.segments import SegmentFiles
from lakestream.errors import Conflict, LakestreamError, Unavailable, Uncertain
from lakestream.metadata import keys
from lakestream.metadata.claims import Claims
from lakestream.metadata.memory import MemoryMetadataStore as MemoryMetadata
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.store import Create, Created, Folder, MetadataStore, Scanned
from lakestream.metadata.topics import Topic, Topics
from lakestream.model import Buffer, PartitionId, Span
from lakestream.records.batch import RecordBatch
from lakestream.records.file_region import BufferOrFile, as_bytes
from lakestream.storage.memory import MemoryObjectStore
from lakestream.storage.object_store import Body, ObjectStore
from lakestream.testing.batches import make_batch, records_of
from lakestream.testing.memory_segments import MemoryDisk, MemorySegments

NOW = 1_800_000_000_000
HOUR = 60 * 60 * 1000
QUICK = LogSettings(append_timeout_ms=2_000, retry_interval_ms=5, wal=WalSettings(flush_interval_ms=1))


class HandClock:
    """A clock that a test sets; shared by all brokers, unless a test gives one another clock."""

    def __init__(self, now_ms: int = NOW) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms


class Trouble(Enum):
    """Outcome of one create of claims."""

    NONE = auto()
    REFUSED = auto()  # no effect, with an error response
    LOST_THERE = auto()  # no effect, the request was lost
    LOST_BACK = auto()  # it took effect, the response was lost
    SILENT = auto()  # it took effect, there is never a response


class ShakyMetadata(MemoryMetadata):
    """A client whose creates have injected outcomes. It gets no events unless `server.client` made it."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.troubles: deque[Trouble] = deque()
        self.always = Trouble.NONE
        self.cut_off: set[PartitionId] = set()
        """Creates in these partitions never arrive."""
        self.after_create: Callable[[], Awaitable[None]] | None = None
        self.creates = 0
        self.scans_until: int | None = None
        """After that many creates, scans never get a response."""

    async def create(self, creates: Sequence[Create]) -> list[Created | Conflict | Unavailable]:
        self.creates += 1
        trouble = self.troubles.popleft() if self.troubles else self.always
        if trouble is Trouble.REFUSED:
            return [Unavailable("the store cannot answer now") for _ in creates]
        if trouble is Trouble.LOST_THERE:
            return [Uncertain("no answer") for _ in creates]
        answers = [await self._create_one(create) for create in creates]
        if self.after_create is not None:
            await self.after_create()
        if trouble is Trouble.LOST_BACK:
            return [Uncertain("no answer") for _ in creates]
        if trouble is Trouble.SILENT:
            await asyncio.get_running_loop().create_future()
        return answers

    async def scan(self, folder: Folder, start: str = "", end: str | None = None, **how: Any) -> Scanned:
        if self.scans_until is not None and self.creates >= self.scans_until:
            await asyncio.get_running_loop().create_future()
        return await super().scan(folder, start, end, **how)

    async def _create_one(self, create: Create) -> Created | Conflict | Unavailable:
        if keys.partition_of(create.key.path) in self.cut_off:
            return Uncertain("no answer")
        return (await super().create([create]))[0]


class ShakyObjects(MemoryObjectStore):
    """An object store whose puts and deletes fail while `fails` is set, and whose puts wait while `gate` is closed.
    Counts reads."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.fails: LakestreamError | None = None
        self.failures: deque[LakestreamError | None] = deque()
        self.gate = asyncio.Event()
        self.gate.set()
        self.puts = 0
        self.reads: list[tuple[str, list[Span]]] = []
        self.read = asyncio.Event()

    async def put(self, key: str, body: Body) -> None:
        self.puts += 1
        fails = self.failures.popleft() if self.failures else self.fails
        await self.gate.wait()
        if fails is not None:
            raise fails
        await super().put(key, body)

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        self.reads.append((key, list(spans)))
        self.read.set()
        await asyncio.sleep(0)
        return await super().get_ranges(key, spans)

    async def delete(self, keys: Sequence[str]) -> None:
        if self.fails is not None:
            raise self.fails
        await super().delete(keys)


class StubWriter:
    """A WAL writer of extents that are not claimed."""

    writer_id = "w"

    async def rewrite_extent(self, extent: Extent) -> None:
        raise AssertionError("not claimed")

    def finish(self, extent: Extent) -> None: ...


class World:
    """Stores, clock and ids that brokers share, and the brokers."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.server = MemoryServer(self.clock)
        self.metadata = self.server.client()
        self.claims = Claims(self.metadata)
        self.topics = Topics(self.metadata)
        self.objects = ShakyObjects(self.clock)
        self.disk = MemoryDisk()
        self.profile = Profile.COST
        self.ids = SeededIds(random.Random(1))
        self.brokers: list[Log] = []

    async def topic(self, partitions: int = 1, name: str = "t") -> list[PartitionId]:
        return (await self.topics.create(name, Topic(self.ids.new()[:8], partitions))).partitions()

    async def log(self) -> PartitionId:
        (partition,) = await self.topic(name=self.ids.new())
        return partition

    def segments(self) -> MemorySegments:
        return MemorySegments(self.disk, self.clock, random.Random(1))

    async def broker(
        self,
        *,
        metadata: MetadataStore | None = None,
        store: ObjectStore | None = None,
        segments: SegmentFiles | None = None,
        clock: Clock | None = None,
        settings: LogSettings = QUICK,
        history: History | None = None,
        check_transaction: TransactionCheck | None = None,
        on_partition_deleted: Callable[[PartitionId], None] | None = None,
        without_disk: bool = False,
    ) -> Log:
        log = Log(
            metadata or self.server.client(),
            store or self.objects,
            None if without_disk else segments or self.segments(),
            settings,
            clock or self.clock,
            self.ids,
            profile_of=lambda _: self.profile,
            history=history,
            check_transaction=check_transaction,
            on_partition_deleted=on_partition_deleted,
        )
        await log.start()
        self.brokers.append(log)
        return log

    def sweeper(self, read_grace_ms: int = 0) -> WalGarbageCollector:
        return WalGarbageCollector(self.metadata, self.objects, self.segments(), read_grace_ms=read_grace_ms)

    async def move(
        self, log: Log, partition: PartitionId, upto: int, sweeper: WalGarbageCollector | None = None
    ) -> None:
        """Moves everything below `upto` into the table and trims, as the pipeline does."""
        await self.claims.advance_table_end(partition, upto)
        dropped = await log.trim(partition, upto)
        if sweeper is not None:
            sweeper.note_dropped(dropped)

    async def names(self) -> list[str]:
        """Of all that is stored."""
        objects = [info.key async for page in self.objects.walk("wal/") for info in page]
        return objects + sorted(self.disk.files)

    async def close(self) -> None:
        for broker in self.brokers:
            await asyncio.wait_for(broker.close(), 10)


def plain(*values: str) -> RecordBatch:
    return RecordBatch.parse(make_batch([value.encode() for value in values]))


def sent(sequence: int, *values: str, producer: int = 7, epoch: int = 0) -> RecordBatch:
    """A batch of an idempotent producer."""
    body = make_batch([value.encode() for value in values], producer_id=producer, epoch=epoch, sequence=sequence)
    return RecordBatch.parse(body)


def records(found: ReadResult) -> list[tuple[int, str]]:
    """Offset and value of every record that a read found; offsets as the batches themselves have them."""
    return [record for batch in found.batches for record in batch_records(*batch)]


def batch_records(offset: int, pieces: list[BufferOrFile]) -> list[tuple[int, str]]:
    batch = RecordBatch.parse(as_bytes(pieces))
    assert batch.base_offset == offset
    return [(offset + record.offset_delta, (record.value or b"").decode()) for record in records_of(batch)]


async def read_all(log: Log, partition: PartitionId, offset: int = 0) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    while True:
        part = await log.read(partition, offset, 1 << 20)
        if part.offset_next == offset:
            return found
        found += records(part)
        offset = part.offset_next
