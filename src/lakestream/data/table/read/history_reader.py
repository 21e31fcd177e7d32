"""Reads record batches, by offset or timestamp, from the table of a topic. Loads Arrow and the kernels: import late.

    snapshots.py  snapshot  →  scan_planner.py  row groups  →  row_groups.py  rows  →  batch_encoder.py  batches

A **chunk** is the unit that is read, encoded and cached: usually one row group. For a consumer that reads on, the next
chunk is read while the last one is sent. Concurrent reads of one chunk share one load.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import numpy as np

from lakestream.aio.gather import gather_limited
from lakestream.aio.single_flight import SingleFlightCache
from lakestream.aio.threads import Run
from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import IncompatibleTable
from lakestream.data.table.arrow.batch_encoder import Encoded, encode_rows
from lakestream.data.table.arrow.row_arrays import Rows
from lakestream.data.table.history_types import HistoryFile, HistoryRead
from lakestream.data.table.read.manifest_index import ListedFiles
from lakestream.data.table.read.parquet_footer import Footer
from lakestream.data.table.read.row_groups import RowGroupPart, distinct_rows, read_rows, record_columns, sorted_rows
from lakestream.data.table.read.scan_planner import READS_MAX, Planner, file_window, overlapping_files, window
from lakestream.data.table.read.snapshots import Snapshots, TableSnapshot
from lakestream.data.table.read.timestamps import TimestampSearch, newest_ms
from lakestream.data.table.read.writer_schemas import WriterSchemaCache
from lakestream.errors import Corrupt, Missing
from lakestream.model import KiB, MiB, PartitionId, Span
from lakestream.records.file_region import BufferOrFile
from lakestream.schemas.writer_schema import WriterSchema
from lakestream.storage.object_store import ObjectStore

BATCH_BYTES: Final = 256 * KiB
CHUNK_BYTES: Final = 32 * MiB
"""Size of a chunk of several row groups."""
WHOLE_BYTES_MAX: Final = 160 * MiB
"""Row groups up to this size are read as a whole: reading half of one takes as long."""
CHUNKS_PER_READ: Final = 16
FILES_TOGETHER: Final = 64
"""Overlapping files that are planned at once, unless more of them have the very same offsets."""
PARTS_AT_ONCE: Final = 8
"""Concurrent reads of row groups of one chunk."""
LOADS_MAX: Final = 4
AHEAD_MAX: Final = 8
ENDS_MAX: Final = 10_000
RELOAD_S: Final = 2
"""Interval at which damaged files are read again, so that brokers need no restart after one is repaired."""
RELOADS_MAX: Final = 1_000
TIMEOUT_S: Final = 60
PREFIX: Final = 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    encoded: Encoded | None
    """None if all its rows were deleted."""
    offset_end: int
    """The offset after it."""

    @property
    def size(self) -> int:
        return KiB + (len(self.encoded.data) if self.encoded is not None else 0)


class _Group(NamedTuple):
    """A row group, and the offsets of it that are read."""

    low: int
    high: int
    place: int
    """The position of its file in the partition's files."""
    number: int
    footer: Footer
    size: int


class ChunkPlan(NamedTuple):
    """The row groups of one chunk."""

    key: tuple[object, ...]
    parts: list[tuple[int, Footer, int]]
    """Positions in the partition's files, each with its footer and a row group."""
    window: Span

    def after(self, offset: int) -> "ChunkPlan":
        """Returns the plan without the offsets below this. The width of windows depends on the files that overlap, so
        the next one may begin before the end of the last; not every client accepts a record twice in a response."""
        if offset <= self.window.start:
            return self
        window = Span(offset, self.window.end)
        return self._replace(key=(self.key[0], window, *self.key[2:]), window=window)


class HistoryReader:
    def __init__(self, catalog: Catalog, store: ObjectStore, run: Run, bytes_max: int) -> None:
        self._snapshots = Snapshots(catalog, run)
        self._planner = Planner(store, run)
        self._timestamps = TimestampSearch(self._planner, run)
        self._writers = WriterSchemaCache(catalog.writers)
        self._run = run
        self._chunks: SingleFlightCache[tuple[object, ...], Chunk] = SingleFlightCache(
            "table.chunk", bytes_max, lambda chunk: chunk.size, TIMEOUT_S
        )
        self._loads = asyncio.Semaphore(LOADS_MAX)
        self._ends: OrderedDict[tuple[PartitionId, int], None] = OrderedDict()
        self._ahead: set[asyncio.Task[None]] = set()
        self._reloaded: OrderedDict[PartitionId, float] = OrderedDict()

    async def close(self) -> None:
        for task in self._ahead:
            task.cancel()
        await asyncio.gather(*self._ahead, return_exceptions=True)
        await self._chunks.close()
        await self._planner.close()
        await self._snapshots.close()

    async def read(self, partition: PartitionId, offset: int, bytes_max: int) -> HistoryRead:
        async def read(table: TableSnapshot) -> HistoryRead:
            return await self._read(table, partition, offset, bytes_max)

        return await self._retried(partition, offset, read)

    async def start(self, partition: PartitionId) -> int | None:
        """Returns the first offset that the table has, or None if it has no row of this partition."""

        async def start(table: TableSnapshot) -> int | None:
            files = (await self._planner.files(table, partition.number)).files
            return max(0, int(files.offset_lo[0])) if len(files) else None

        return await self._retried(partition, None, start)

    async def files(self, partition: PartitionId, offset: int) -> list[HistoryFile]:
        """Returns the files with records from `offset` on, by their first offset."""

        async def files(table: TableSnapshot) -> list[HistoryFile]:
            listed = (await self._planner.files(table, partition.number)).files
            return await self._run(lambda: _history_files(listed, offset))

        return await self._retried(partition, None, files)

    async def first_at(self, partition: PartitionId, offset: int, timestamp: int) -> tuple[int, int] | None:
        """Returns timestamp and offset of the first record from `offset` on that is not older than `timestamp`."""
        return await self._retried(
            partition, None, lambda table: self._timestamps.first_at(table, partition.number, offset, timestamp)
        )

    async def newest(self, partition: PartitionId, offset: int) -> tuple[int, int] | None:
        """Returns timestamp and offset of the record with the newest timestamp, from `offset` on."""
        return await self._retried(
            partition, None, lambda table: self._timestamps.newest(table, partition.number, offset)
        )

    async def _retried(
        self, partition: PartitionId, offset: int | None, query: Callable[[TableSnapshot], Awaitable[T]]
    ) -> T:
        """Runs a query, and retries it if a file is damaged: the cached state of a file that was repaired since is
        loaded again, at most every RELOAD_S."""
        try:
            return await self._queried(partition, offset, query)
        except IncompatibleTable:
            raise
        except Corrupt:
            if not self._drop_caches(partition):
                raise
        return await self._queried(partition, offset, query)

    def _drop_caches(self, partition: PartitionId) -> bool:
        """Evicts the cached files of a partition, unless that was done in the last RELOAD_S. Returns whether it did."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._reloaded.get(partition, float("-inf")) < RELOAD_S:
            return False
        self._reloaded.pop(partition, None)
        self._reloaded[partition] = now_s
        if len(self._reloaded) > RELOADS_MAX:
            self._reloaded.popitem(last=False)
        table = self._snapshots.cached(partition.topic_id)
        if table is not None:
            self._planner.evict(table, partition.number)
        return True

    async def _queried(
        self, partition: PartitionId, offset: int | None, query: Callable[[TableSnapshot], Awaitable[T]]
    ) -> T:
        """Runs a query, and once more with the newest snapshot if that no longer has a file that is missing: the
        snapshot that was read has expired."""
        table = await (
            self._snapshots.newest(partition.topic_id)
            if offset is None
            else self._snapshots.covering(partition, offset)
        )
        try:
            return await query(table)
        except Missing as error:
            newer = await self._snapshots.newest(partition.topic_id, confirmed=True)
            if newer.manifest_list == table.manifest_list:
                raise _missing(table, error) from error
        try:
            return await query(newer)
        except Missing as error:
            raise _missing(newer, error) from error

    # Chunks

    async def _read(self, table: TableSnapshot, partition: PartitionId, offset: int, bytes_max: int) -> HistoryRead:
        end = table.next_offsets.get(partition.number, 0)
        batches: list[tuple[int, list[BufferOrFile]]] = []
        at, size = offset, 0
        while at < end:
            plan = await self._plan(table, partition.number, at, end)
            if plan is None:
                at = end  # no rows up to there, only a gap
                break
            if batches:
                plan = plan.after(at)
            chunk = await self._chunk(table, partition.number, plan)
            at, taken = _take(chunk, at, bytes_max - size, batches)
            size += taken
            is_through = at >= chunk.offset_end
            if is_through:
                self._chunks.cache.evict_next(plan.key)
            if batches and (not is_through or 2 * size >= bytes_max or len(batches) >= CHUNKS_PER_READ):
                break
        self._read_ahead(table, partition, offset, at, end)
        return HistoryRead(batches, at)

    async def _chunk(self, table: TableSnapshot, partition: int, plan: ChunkPlan) -> Chunk:
        return await self._chunks.get(plan.key, lambda: self._load(table, partition, plan))

    async def _plan(self, table: TableSnapshot, partition: int, offset: int, end: int) -> ChunkPlan | None:
        """Returns the row groups with the first rows from `offset` on, or None if there are none below `end`."""
        of_partition = await self._planner.files(table, partition)
        files = of_partition.files
        while offset < end:
            near = file_window(files.offset_lo, files.offset_hi, of_partition.reach, offset, FILES_TOGETHER)
            if not near.places:
                return None
            footers = await gather_limited(
                [self._planner.footer(table.folder, files, place) for place in near.places], READS_MAX
            )
            groups = _groups(zip(near.places, footers, strict=True), near.span)
            lows, highs = (np.array([group[bound] for group in groups], np.int64) for bound in (0, 1))
            overlapping = overlapping_files(lows, highs, np.maximum.accumulate(highs), offset)
            chosen = [groups[one] for one in overlapping.tolist()]
            if chosen and chosen[0].low >= end:
                return None  # of another partition, but without statistics of the partition column
            if chosen:
                return await self._planned(table, partition, files, chosen, offset, end)
            offset = near.span.end  # bounds in the manifest are wider than those in the file
        return None

    async def _planned(
        self, table: TableSnapshot, partition: int, files: ListedFiles, chosen: Sequence[_Group], offset: int, end: int
    ) -> ChunkPlan:
        low, high = max(0, chosen[0].low), min(end - 1, max(group.high for group in chosen))
        size = sum(group.size for group in chosen)
        span = window(low, high, size, offset, WHOLE_BYTES_MAX if len(chosen) == 1 else CHUNK_BYTES)
        chosen = [group for group in chosen if group.low < span.end and group.high >= span.start]
        signatures = {
            place: await self._planner.signature(table, partition, files, place)
            for place in {group.place for group in chosen}
        }
        # In an order that does not depend on the window: of rows with the same offset, the first is returned.
        chosen.sort(key=lambda group: (group.place, group.number))
        parts = [(group.place, group.footer, group.number) for group in chosen]
        key = (partition, span, *((footer.location, group, signatures[place]) for place, footer, group in parts))
        return ChunkPlan(key, parts, span)

    async def _load(self, table: TableSnapshot, partition: int, plan: ChunkPlan) -> Chunk:
        files = (await self._planner.files(table, partition)).files
        rows: list[Rows] = []
        async with self._loads:
            parts = [self._part(table, partition, files, part, plan.window) for part in plan.parts]
            for some in await gather_limited(parts, PARTS_AT_ONCE):
                rows += some
            name = plan.parts[0][1].location
            if not rows:
                return Chunk(None, plan.window.end)
            encoded = await self._run(
                lambda: encode_rows(distinct_rows(sorted_rows(rows)), bytes_max=BATCH_BYTES, name=name)
            )
        return Chunk(encoded, plan.window.end)

    async def _part(
        self, table: TableSnapshot, partition: int, files: ListedFiles, part: tuple[int, Footer, int], window: Span
    ) -> list[Rows]:
        place, footer, group = part
        return await self._rows(table, await self._planner.part(table, partition, files, place, footer, group), window)

    async def _rows(self, table: TableSnapshot, part: RowGroupPart, window: Span) -> list[Rows]:
        if part.group.writers is None:
            return await self._read_rows(table, part, window, {})
        return await self._writers.read_with(table, lambda writers: self._read_rows(table, part, window, writers))

    async def _read_rows(
        self, table: TableSnapshot, part: RowGroupPart, window: Span, writers: Mapping[int, WriterSchema]
    ) -> list[Rows]:
        columns = record_columns(part, writers)
        footer = part.footer
        if footer.body is not None:
            spans, bodies = [Span(0, footer.file_size)], [footer.body]
        else:
            spans = footer.spans(part.group.number, columns)
            bodies = await self._planner.fetch(table.folder, footer.location, spans)
        return await self._run(lambda: read_rows(part, columns, spans, bodies, window, writers))

    # Read-ahead

    def _read_ahead(self, table: TableSnapshot, partition: PartitionId, offset: int, at: int, end: int) -> None:
        """Loads the next chunk if this read began where an earlier one ended, as in a replay."""
        is_sequential = self._ends.pop((partition, offset), 0) is None
        self._ends[partition, at] = None
        if len(self._ends) > ENDS_MAX:
            self._ends.popitem(last=False)
        if is_sequential and at < end and len(self._ahead) < AHEAD_MAX:
            task = asyncio.get_running_loop().create_task(
                self._prepare(table, partition.number, at, end), name="table.ahead"
            )
            self._ahead.add(task)
            task.add_done_callback(self._on_prepared)

    def _on_prepared(self, task: "asyncio.Task[None]") -> None:
        self._ahead.discard(task)
        if not task.cancelled():
            task.exception()  # a read of the chunk raises it again

    async def _prepare(self, table: TableSnapshot, partition: int, at: int, end: int) -> None:
        plan = await self._plan(table, partition, at, end)
        if plan is not None and plan.window.start < at:
            plan = await self._plan(table, partition, plan.window.end, end)  # the chunk at `at` is cached already
        if plan is not None:
            await self._chunk(table, partition, plan)


def _history_files(listed: ListedFiles, offset: int) -> list[HistoryFile]:
    facts = (listed.offset_lo, listed.offset_hi, listed.sizes, newest_ms(listed))
    rows = zip(*(fact.tolist() for fact in facts), strict=True)
    return [HistoryFile(first, last + 1, size, newest) for first, last, size, newest in rows if last >= offset]


def _groups(files: Iterable[tuple[int, Footer]], span: Span) -> list[_Group]:
    """Returns the row groups with offsets in the span, by their first offset."""
    groups = [
        _Group(
            max(group.offset_lo, span.start),
            min(group.offset_hi, span.end - 1),
            place,
            group.number,
            footer,
            group.size,
        )
        for place, footer in files
        for group in footer.groups
        if group.offset_lo < span.end and group.offset_hi >= span.start
    ]
    return sorted(groups, key=lambda group: group[:4])


def _take(chunk: Chunk, at: int, room: int, batches: list[tuple[int, list[BufferOrFile]]]) -> tuple[int, int]:
    """Adds batches from `at` on, as many as fit, but at least one in all. Returns the next offset, and their size."""
    encoded = chunk.encoded
    if encoded is None or at > encoded.last_offsets[-1]:
        return chunk.offset_end, 0
    first = int(np.searchsorted(encoded.last_offsets, at))
    start = int(encoded.starts[first])
    last = int(np.searchsorted(encoded.ends, start + room, side="right"))
    if last <= first:
        if batches:
            return at, 0
        last = first + 1
    data = memoryview(encoded.data)
    for base, begin, end in zip(
        encoded.base_offsets[first:last].tolist(),
        encoded.starts[first:last].tolist(),
        encoded.ends[first:last].tolist(),
        strict=True,
    ):
        batches.append((base, [data[begin : begin + PREFIX], data[begin + PREFIX : end]]))
    is_all = last == len(encoded)
    return (chunk.offset_end if is_all else int(encoded.last_offsets[last - 1]) + 1), int(
        encoded.ends[last - 1]
    ) - start


def _missing(table: TableSnapshot, error: Missing) -> Corrupt:
    return Corrupt(f"table {table.name} lists a file that does not exist ({error}); restore it from a backup")
