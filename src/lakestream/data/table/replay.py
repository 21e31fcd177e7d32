"""Offsets and times to record batches out of a topic's table: the working part of history.py.

    snapshots.py  which snapshot  →  planning.py  which row groups  →  groups.py  rows  →  encode.py  batches

A **chunk** is what is read, encoded and kept at a time: usually one row group. Who reads on gets the next chunk read
while the last one is sent; many who read the same wait for one read. Loads numpy, Arrow and the kernels: import late.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import numpy as np

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import TableAltered
from lakestream.data.cache.shared import Shared
from lakestream.data.table.encode import Encoded, encode_rows
from lakestream.data.table.footers import Footer
from lakestream.data.table.groups import Part, read_rows, record_columns, sorted_rows
from lakestream.data.table.manifests import Files
from lakestream.data.table.past import Past, PastFile
from lakestream.data.table.planning import READS_MAX, Planner, cluster, segment, window
from lakestream.data.table.rows import Rows
from lakestream.data.table.snapshots import Snapshots, Table
from lakestream.data.table.threads import Run
from lakestream.data.table.times import Times, newest_ms
from lakestream.data.table.writers import KnownWriters
from lakestream.errors import Corrupt, Missing
from lakestream.filed import Piece
from lakestream.model import KiB, MiB, PartitionId, Span
from lakestream.schemas.writers import Writer
from lakestream.storage.object_store import ObjectStore
from lakestream.storage.together import together

BATCH_BYTES: Final = 256 * KiB
CHUNK_BYTES: Final = 32 * MiB
"""Of rows that are read together, where there is a choice."""
WHOLE_BYTES_MAX: Final = 160 * MiB
"""A row group that is not larger is read as a whole: half of one takes as long to read."""
CHUNKS_PER_READ: Final = 16
FILES_TOGETHER: Final = 64
"""Files with offsets in common that are looked into at once, unless more of them have the very same ones."""
PARTS_AT_ONCE: Final = 8
"""Row groups of one chunk that are being read."""
LOADS_MAX: Final = 4
AHEAD_MAX: Final = 8
ENDS_MAX: Final = 10_000
DOUBT_S: Final = 2
"""Damaged files are read anew so often: who has mended one need not start brokers again."""
DOUBTED_MAX: Final = 1_000
TIMEOUT_S: Final = 60
PREFIX: Final = 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    encoded: Encoded | None
    """None: all its rows were deleted."""
    offset_end: int
    """Behind it rows go on, if there are any."""

    @property
    def size(self) -> int:
        return KiB + (len(self.encoded.data) if self.encoded is not None else 0)


class _Group(NamedTuple):
    """A row group, and the part of its offsets that counts."""

    low: int
    high: int
    place: int
    """Of its file."""
    number: int
    footer: Footer
    size: int


class Plan(NamedTuple):
    """What one chunk is made of."""

    key: tuple[object, ...]
    parts: list[tuple[int, Footer, int]]
    """Places in the partition's files, each with its footer and a row group."""
    window: Span

    def behind(self, offset: int) -> "Plan":
        """Without what was given already. As files drop out on the way, the widths of windows change, and the next one
        may begin before the end of the last: an answer with a record twice is not what every client expects."""
        if offset <= self.window.start:
            return self
        window = Span(offset, self.window.end)
        return self._replace(key=(self.key[0], window, *self.key[2:]), window=window)


class Replay:
    def __init__(self, catalog: Catalog, store: ObjectStore, run: Run, bytes_max: int) -> None:
        self._snapshots = Snapshots(catalog, run)
        self._planner = Planner(store, catalog.locations, run)
        self._times = Times(self._planner, run)
        self._writers = KnownWriters(catalog.writers)
        self._run = run
        self._chunks: Shared[tuple[object, ...], Chunk] = Shared(
            "table.chunk", bytes_max, lambda chunk: chunk.size, TIMEOUT_S
        )
        self._loads = asyncio.Semaphore(LOADS_MAX)
        self._ends: OrderedDict[tuple[PartitionId, int], None] = OrderedDict()
        self._ahead: set[asyncio.Task[None]] = set()
        self._doubted: OrderedDict[PartitionId, float] = OrderedDict()

    async def close(self) -> None:
        for task in self._ahead:
            task.cancel()
        await asyncio.gather(*self._ahead, return_exceptions=True)
        await self._chunks.close()
        await self._planner.close()

    async def read(self, partition: PartitionId, offset: int, bytes_max: int) -> Past:
        async def read(table: Table) -> Past:
            return await self._read(table, partition, offset, bytes_max)

        return await self._again(partition, offset, read)

    async def start(self, partition: PartitionId) -> int | None:
        """The first offset that the table has; None: it has none of this partition."""

        async def start(table: Table) -> int | None:
            files = (await self._planner.files(table, partition.number)).files
            return max(0, int(files.offset_lo[0])) if len(files) else None

        return await self._again(partition, None, start)

    async def files(self, partition: PartitionId, offset: int) -> list[PastFile]:
        """Those with records from `offset` on, by their first one."""

        async def files(table: Table) -> list[PastFile]:
            found = (await self._planner.files(table, partition.number)).files
            facts = (found.offset_lo, found.offset_hi, found.sizes, newest_ms(found))
            rows = zip(*(fact.tolist() for fact in facts), strict=True)
            return [PastFile(first, last + 1, size, newest) for first, last, size, newest in rows if last >= offset]

        return await self._again(partition, None, files)

    async def first_at(self, partition: PartitionId, offset: int, timestamp: int) -> tuple[int, int] | None:
        """Time and offset of the first record from `offset` on that is not older."""
        return await self._again(
            partition, None, lambda table: self._times.first_at(table, partition.number, offset, timestamp)
        )

    async def newest(self, partition: PartitionId, offset: int) -> tuple[int, int] | None:
        """Time and offset of the record with the newest time."""
        return await self._again(partition, None, lambda table: self._times.newest(table, partition.number, offset))

    async def _again(self, partition: PartitionId, offset: int | None, ask: Callable[[Table], Awaitable[T]]) -> T:
        """A file that is missing was removed by an expiry, if a newer snapshot does without it. What is damaged may be
        what is kept in memory of a file that somebody has mended since: it is read anew, once in a while."""
        try:
            return await self._asked(partition, offset, ask)
        except TableAltered:
            raise
        except Corrupt:
            if not self._is_doubtful(partition):
                raise
        return await self._asked(partition, offset, ask)

    def _is_doubtful(self, partition: PartitionId) -> bool:
        """Whether it is time to forget what is known of a table's files; then it is forgotten."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._doubted.get(partition, float("-inf")) < DOUBT_S:
            return False
        self._doubted.pop(partition, None)
        self._doubted[partition] = now_s
        if len(self._doubted) > DOUBTED_MAX:
            self._doubted.popitem(last=False)
        known = self._snapshots.known(partition.topic_id)
        if known is not None:
            self._planner.forget(known, partition.number)
        return True

    async def _asked(self, partition: PartitionId, offset: int | None, ask: Callable[[Table], Awaitable[T]]) -> T:
        table = await (
            self._snapshots.newest(partition.topic_id)
            if offset is None
            else self._snapshots.reaching(partition, offset)
        )
        try:
            return await ask(table)
        except Missing as error:
            newer = await self._snapshots.newest(partition.topic_id, confirmed=True)
            if newer.manifest_list == table.manifest_list:
                raise _missing(table, error) from error
        try:
            return await ask(newer)
        except Missing as error:
            raise _missing(newer, error) from error

    # Chunks

    async def _read(self, table: Table, partition: PartitionId, offset: int, bytes_max: int) -> Past:
        end = table.next_offsets.get(partition.number, 0)
        batches: list[tuple[int, list[Piece]]] = []
        at, size = offset, 0
        while at < end:
            plan = await self._plan(table, partition.number, at, end)
            if plan is None:
                at = end  # nothing but a gap up to there
                break
            if batches:
                plan = plan.behind(at)
            chunk = await self._chunk(table, partition.number, plan)
            at, taken = _take(chunk, at, bytes_max - size, batches)
            size += taken
            is_through = at >= chunk.offset_end
            if is_through:
                self._chunks.cache.demote(plan.key)
            if batches and (not is_through or 2 * size >= bytes_max or len(batches) >= CHUNKS_PER_READ):
                break
        self._look_ahead(table, partition, offset, at, end)
        return Past(batches, at)

    async def _chunk(self, table: Table, partition: int, plan: Plan) -> Chunk:
        return await self._chunks.get(plan.key, lambda: self._load(table, partition, plan))

    async def _plan(self, table: Table, partition: int, offset: int, end: int) -> Plan | None:
        """The row groups with the first rows from `offset` on."""
        found = await self._planner.files(table, partition)
        files = found.files
        while offset < end:
            near = segment(files.offset_lo, files.offset_hi, found.reach, offset, FILES_TOGETHER)
            if not near.places:
                return None
            footers = await together([self._planner.footer(files, place) for place in near.places], READS_MAX)
            groups = _groups(zip(near.places, footers, strict=True), near.span)
            lows, highs = (np.array([group[bound] for group in groups], np.int64) for bound in (0, 1))
            chosen = [groups[one] for one in cluster(lows, highs, np.maximum.accumulate(highs), offset)]
            if chosen and chosen[0].low >= end:
                return None  # of another partition, whose statistics do not say so
            if chosen:
                return await self._planned(table, partition, files, chosen, offset, end)
            offset = near.span.end  # bounds in the manifest reach further than those in the file
        return None

    async def _planned(
        self, table: Table, partition: int, files: Files, chosen: Sequence[_Group], offset: int, end: int
    ) -> Plan:
        low, high = max(0, chosen[0].low), min(end - 1, max(group.high for group in chosen))
        size = sum(group.size for group in chosen)
        span = window(low, high, size, offset, WHOLE_BYTES_MAX if len(chosen) == 1 else CHUNK_BYTES)
        chosen = [group for group in chosen if group.low < span.end and group.high >= span.start]
        signatures = {
            place: await self._planner.signature(table, partition, files, place)
            for place in {group.place for group in chosen}
        }
        parts = [(group.place, group.footer, group.number) for group in chosen]
        key = (partition, span, *((footer.location, group, signatures[place]) for place, footer, group in parts))
        return Plan(key, parts, span)

    async def _load(self, table: Table, partition: int, plan: Plan) -> Chunk:
        files = (await self._planner.files(table, partition)).files
        rows: list[Rows] = []
        async with self._loads:
            parts = [self._part(table, partition, files, part, plan.window) for part in plan.parts]
            for some in await together(parts, PARTS_AT_ONCE):
                rows += some
            name = plan.parts[0][1].location
            if not rows:
                return Chunk(None, plan.window.end)
            encoded = await self._run(lambda: encode_rows(sorted_rows(rows), bytes_max=BATCH_BYTES, name=name))
        return Chunk(encoded, plan.window.end)

    async def _part(
        self, table: Table, partition: int, files: Files, part: tuple[int, Footer, int], window: Span
    ) -> list[Rows]:
        place, footer, group = part
        return await self._rows(table, await self._planner.part(table, partition, files, place, footer, group), window)

    async def _rows(self, table: Table, part: Part, window: Span) -> list[Rows]:
        if part.group.writers is None:
            return await self._read_rows(part, window, {})
        return await self._writers.trying(table, lambda writers: self._read_rows(part, window, writers))

    async def _read_rows(self, part: Part, window: Span, writers: Mapping[int, Writer]) -> list[Rows]:
        columns = record_columns(part, writers)
        footer = part.footer
        if footer.body is not None:
            spans, bodies = [Span(0, footer.file_size)], [footer.body]
        else:
            spans = footer.spans(part.group.number, columns)
            bodies = await self._planner.fetch(footer.location, spans)
        return await self._run(lambda: read_rows(part, columns, spans, bodies, window, writers))

    # Read-ahead

    def _look_ahead(self, table: Table, partition: PartitionId, offset: int, at: int, end: int) -> None:
        """Who goes on where somebody stopped is replaying: have the next chunk ready."""
        goes_on = self._ends.pop((partition, offset), 0) is None
        self._ends[partition, at] = None
        if len(self._ends) > ENDS_MAX:
            self._ends.popitem(last=False)
        if goes_on and at < end and len(self._ahead) < AHEAD_MAX:
            task = asyncio.get_running_loop().create_task(
                self._prepare(table, partition.number, at, end), name="table.ahead"
            )
            self._ahead.add(task)
            task.add_done_callback(self._prepared)

    def _prepared(self, task: "asyncio.Task[None]") -> None:
        self._ahead.discard(task)
        if not task.cancelled():
            task.exception()  # who wants it is told when he asks for it

    async def _prepare(self, table: Table, partition: int, at: int, end: int) -> None:
        plan = await self._plan(table, partition, at, end)
        if plan is not None and plan.window.start < at:
            plan = await self._plan(table, partition, plan.window.end, end)  # the one at hand is in memory
        if plan is not None:
            await self._chunk(table, partition, plan)


def _groups(files: Iterable[tuple[int, Footer]], span: Span) -> list[_Group]:
    """By their first offsets, as far as they lie in the span."""
    found = [
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
    return sorted(found, key=lambda group: group[:4])


def _take(chunk: Chunk, at: int, room: int, batches: list[tuple[int, list[Piece]]]) -> tuple[int, int]:
    """Batches from `at` on, as many as fit, but one at least in all. Returns where to read on, and their size."""
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


def _missing(table: Table, error: Missing) -> Corrupt:
    return Corrupt(f"table {table.name} lists a file that is not there ({error}); restore it from a backup")
