"""The partition log: appends, reads and waits. Start reading here.

    write path   submit → writer_router → wal/buffer → wal/writer (stored) → claimer (offsets) → future
    read path    read → partition_view (which claims) → wal/reader (their bytes) → rebased batches
                 below the floor: the table (data/table/history.py), rows as batches
    trim         trim.py removes claims whose records are in the table; garbage_collector.py deletes the bytes

Any number of brokers run a `Log` over the same stores. Its memory is a cache that can be dropped at any time.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from lakestream.aio.cache import LruCache
from lakestream.aio.log_limiter import LogRateLimiter
from lakestream.clock import Clock, Ids
from lakestream.config.settings import LogSettings, Profile
from lakestream.data.log.claim_retry import ClaimRetrier, TransactionCheck
from lakestream.data.log.claimer import Claimer
from lakestream.data.log.clock_skew import ClockSkewMonitor
from lakestream.data.log.fetch_wait import FetchWaiters, LogChangeFeed
from lakestream.data.log.offset_lookup import OffsetLookup, TimestampOffset
from lakestream.data.log.partition_state import Aborted, Producer
from lakestream.data.log.partition_view import (
    BatchRef,
    PartitionView,
    PartitionViews,
    partition_deleted,
    select_batches,
)
from lakestream.data.log.topic_counts import TopicCounts
from lakestream.data.log.trim import Trimmer
from lakestream.data.log.writer_router import ArrivalSequence, WriterRouter, open_frames
from lakestream.data.table.history_types import HistoryFile, HistoryRead
from lakestream.data.wal.buffer import Appended
from lakestream.data.wal.reader import BLOCK_OVERHEAD, Batches, Reader
from lakestream.data.wal.segments import SegmentFiles
from lakestream.errors import Corrupt, Missing, OutOfRange, Unavailable
from lakestream.metadata.claims import NO_TRANSACTION, BatchInfo, Claim, Claims, StoredClaim
from lakestream.metadata.store import MetadataStore
from lakestream.model import PartitionId
from lakestream.records.batch import RecordBatch, gap, rebased
from lakestream.records.file_region import BufferOrFile
from lakestream.storage.object_store import ObjectStore

log = logging.getLogger(__name__)

READ_TRIES: Final = 8
FLOOR_FRESH_MS: Final = 1_000
END_FRESH_MS: Final = 20
"""How long a fetch at the end uses the end that was last read. Before the broker reports that there are no more
records, it reads the end again."""


class Offsets(NamedTuple):
    start: int
    end: int
    stable: int
    """Last stable offset: below it no transaction is open."""


class LogSize(NamedTuple):
    bytes: int
    floor: int
    """Offsets below it have left the chain: their records are in the table."""


class ReadResult(NamedTuple):
    batches: list[tuple[int, list[BufferOrFile]]]
    """Offset and bytes of each batch, its base offset already in them."""
    offset_next: int
    """Where to continue; beyond the last batch where offsets are missing."""
    bounds: Offsets
    is_committed: bool = False
    """From the table, or a gap: no record of it was aborted."""


class LogStats(NamedTuple):
    """Totals of one broker's log since its start, and its current sizes."""

    claims: int
    batches: int
    records: int
    bytes: int
    """Appended, in batches as producers sent them."""
    conflicts: int
    claim_retries: int
    cached_partitions: int
    partitions_with_waiting_fetches: int
    bytes_in_flight: int
    """Submitted, response not sent."""
    cache_hits: int
    cache_misses: int
    cache_bytes: int


class History(Protocol):
    """Records that have left the chain, read from the table. Raises Corrupt or Unavailable if that fails."""

    async def start(self, partition: PartitionId) -> int | None:
        """Returns the first offset in the table, or None if it has no records of the partition."""
        ...

    def cached_start(self, partition: PartitionId) -> int:
        """Returns a lower bound of `start` without reading the table."""
        ...

    async def read(self, partition: PartitionId, offset: int, bytes_max: int) -> HistoryRead: ...

    async def files(self, partition: PartitionId, offset: int) -> list[HistoryFile]:
        """Returns the files with records from `offset` on, ordered by their first offset."""
        ...

    async def first_at(self, partition: PartitionId, offset: int, timestamp: int) -> tuple[int, int] | None:
        """Returns time and offset of the first record from `offset` on that is not older."""
        ...

    async def newest(self, partition: PartitionId, offset: int) -> tuple[int, int] | None:
        """Returns time and offset of the record with the newest time, from `offset` on."""
        ...


class Log:
    def __init__(
        self,
        metadata: MetadataStore,
        store: ObjectStore,
        segments: SegmentFiles | None,
        settings: LogSettings,
        clock: Clock,
        ids: Ids,
        *,
        profile_of: Callable[[PartitionId], Profile],
        history: History | None = None,
        check_transaction: TransactionCheck | None = None,
        on_partition_deleted: Callable[[PartitionId], None] | None = None,
    ) -> None:
        """`on_partition_deleted` is called when a partition is found to be deleted: cached metadata of its topic is
        outdated."""
        self.topic_counts = TopicCounts()
        self._claims = Claims(metadata)
        self._history = history
        self._waiters = FetchWaiters()
        self._views = PartitionViews(
            self._claims,
            settings.tail_claims_max,
            settings.tails_claims_max,
            self._waiters.wake,
            on_partition_deleted or (lambda partition: None),
        )
        self._reader = Reader(store, segments, LruCache(settings.cache_bytes_max, BLOCK_OVERHEAD))
        self._lookup = OffsetLookup(self._views, self._reader)
        self._trimmer = Trimmer(self._claims, self._views)
        self._skew = ClockSkewMonitor(clock, metadata.now_ms)
        self._limiter = LogRateLimiter(clock)
        self._changes = LogChangeFeed(metadata, self._views, self._waiters)
        numbers = ArrivalSequence()
        self._retrier = ClaimRetrier(self._claims, self._views, check_transaction or _as_submitted, settings)
        self._claimer = Claimer(
            self._claims,
            self._views,
            self._reader,
            self._skew,
            clock,
            numbers,
            self._retrier,
            self.topic_counts,
            settings,
        )
        frames = open_frames(store, segments, settings.wal, clock, ids)
        self._router = WriterRouter(frames, settings.wal, self._claimer, numbers, profile_of)
        self._writers = self._router.writers
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._skew.measure()
        self._skew.check()
        self._following = asyncio.get_running_loop().create_task(self._changes.run(), name="log.changes")

    async def close(self) -> None:
        """Accepts no more batches and completes the submitted ones."""
        for writer in self._writers.values():
            await writer.drain()
        await self._claimer.drain()
        for writer in self._writers.values():
            await writer.close()
        self.kill()
        await self._views.close()
        if self._following is not None:
            await asyncio.wait([self._following])

    def kill(self) -> None:
        """Stops immediately, as a crash does."""
        for writer in self._writers.values():
            writer.kill()
        self._claimer.kill()
        self._views.kill()
        self._reader.kill()
        self._skew.kill()
        if self._following is not None:
            self._following.cancel()

    def set_transaction_check(self, check_transaction: TransactionCheck) -> None:
        """Sets the check that runs before a transaction starts in a partition. A setter, because the transaction
        coordinator appends its markers to this log and can only be built on it."""
        self._retrier.check_transaction = check_transaction

    def stats(self) -> LogStats:
        counts, cache = self._claimer.counts, self._reader.cache
        return LogStats(
            claims=counts.claims,
            batches=counts.batches,
            records=counts.records,
            bytes=counts.bytes,
            conflicts=counts.conflicts,
            claim_retries=counts.retries,
            cached_partitions=len(self._views),
            partitions_with_waiting_fetches=len(self._waiters),
            bytes_in_flight=sum(writer.bytes_in_flight for writer in self._writers.values()),
            cache_hits=cache.hits,
            cache_misses=cache.misses,
            cache_bytes=cache.weight,
        )

    # ── write path ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def append(self, partition: PartitionId, batch: RecordBatch, transaction: int = NO_TRANSACTION) -> Appended:
        """Stores a batch and gives it offsets. Waits while the bytes in flight in this broker are at their bound.

        OutOfOrder, Fenced, Rejected: the batch may not follow its producer's earlier batches. Missing: the partition
        was deleted. Unavailable: the batch is not stored. Uncertain: it may be stored; an idempotent producer may send
        it again without harm.
        """
        return await self.submit(partition, batch, transaction)

    def submit(
        self, partition: PartitionId, batch: RecordBatch, transaction: int = NO_TRANSACTION
    ) -> "asyncio.Future[Appended]":
        """Appends without waiting: batches are appended in the order in which they are submitted."""
        self._skew.check()
        return self._router.submit(partition, batch, transaction)

    def check_clock(self) -> None:
        """Raises Unavailable if this machine's clock is wrong."""
        self._skew.check()

    # ── read path ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def read(self, partition: PartitionId, offset: int, bytes_max: int, *, committed: bool = False) -> ReadResult:
        """Reads batches from the one with `offset` on: at least one if there is any, then as many as fit. With
        `committed` the last stable offset is the end of the log."""
        view = await self._views.get(partition)
        if view.start_generation != self._views.start_generation:
            await self._views.refresh_start(view)
        if offset >= _end(view, committed):
            await self._refresh_end(view, offset)
        elif not self._is_floor_fresh(view):
            await self._views.refresh(view)
        at = offset
        for _ in range(READ_TRIES):
            if offset < view.start:
                raise _before_start(partition, offset, view.start)
            if at < view.floor:
                rows = await self._read_history(view, at, bytes_max)
                if rows.offset_next >= view.offset_end:  # this view may be older than the table
                    await self._views.refresh(view)
                if rows.batches:
                    return ReadResult(rows.batches, rows.offset_next, self._offsets(view), is_committed=True)
                at = rows.offset_next  # there are no rows up to there
            elif at >= view.offset_end:
                return self._empty_or_gap(view, offset, at)
            else:
                claims = await self._views.claims_from(view, at)
                batches = select_batches(claims, at, bytes_max)
                if batches and (result := await self._read_batches(view, batches)) is not None:
                    return result
                if claims and not batches:  # only stale claims: a gap
                    return await self.read(partition, claims[-1].claim.offset_end, bytes_max, committed=committed)
        raise Unavailable(
            f"partition {partition}: offset {offset} was trimmed during {READ_TRIES} read attempts: retry"
        )

    def read_cached(
        self, partition: PartitionId, offset: int, bytes_max: int, *, committed: bool = False
    ) -> ReadResult | None:
        """Returns the result of `read` if it is in memory, else None. An empty result at the end means that there were
        no more records at most `END_FRESH_MS` ago."""
        view = self._views.cached(partition)
        if (
            view is None
            or view.start_generation != self._views.start_generation
            or not self._is_floor_fresh(view)
            or not max(view.start, view.floor) <= offset <= view.offset_end
        ):
            return None
        offsets = self._offsets(view)
        if offset >= _end(view, committed):
            fresh = asyncio.get_running_loop().time() - view.end_read_s <= END_FRESH_MS / 1000
            return ReadResult([], offset, offsets) if fresh else None
        batches = select_batches(view.claims_from(offset) or [], offset, bytes_max)
        claims = {ref.claim.claim_id: ref.claim for ref in batches}
        data = {claim_id: cached for claim_id in claims if (cached := self._reader.cache.get(claim_id)) is not None}
        return _read_result(batches, data, offsets) if batches and len(data) == len(claims) else None

    def _is_floor_fresh(self, view: PartitionView) -> bool:
        """Returns whether the floor was read recently. What has left the chain is read from the table, although it may
        still be in memory here: an engine may have deleted it in the table."""
        return self._history is None or asyncio.get_running_loop().time() - view.floor_read_s <= FLOOR_FRESH_MS / 1000

    async def wait(self, partition: PartitionId, offset: int, timeout_ms: int) -> bool:
        """Waits until the log's end is beyond `offset`; returns False after the timeout."""
        return await self.wait_any([(partition, offset)], timeout_ms)

    async def wait_any(self, ends: Sequence[tuple[PartitionId, int]], timeout_ms: int) -> bool:
        """Waits until the end of one of these partitions is beyond its offset; returns False after the timeout."""
        first_ms = min(timeout_ms, END_FRESH_MS)
        with self._waiters.joined([partition for partition, _ in ends]) as event:
            if await self._grows(ends, event, first_ms):
                return True
            await asyncio.gather(*(self._refresh(partition) for partition, _ in ends))  # an event may get lost
            return await self._grows(ends, event, timeout_ms - first_ms)

    async def _grows(self, ends: Sequence[tuple[PartitionId, int]], event: asyncio.Event, timeout_ms: int) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                while not await self._has_grown(ends):
                    event.clear()
                    await event.wait()
                return True
        return await self._has_grown(ends)

    async def _refresh(self, partition: PartitionId) -> None:
        await self._views.refresh(await self._views.get(partition))

    async def _has_grown(self, ends: Sequence[tuple[PartitionId, int]]) -> bool:
        for partition, offset in ends:
            if (await self._views.get(partition)).offset_end > offset:
                return True
        return False

    def cached_start(self, partition: PartitionId) -> int:
        """Returns a lower bound of the log start offset without reading the store."""
        view = self._views.cached(partition)
        return 0 if view is None else self._offsets(view).start

    async def bounds(self, partition: PartitionId) -> Offsets:
        """Returns start and end of the log, as the store has them now."""
        view = await self._refreshed(partition)
        return self._offsets(view)._replace(start=await self._start(view))

    async def _refreshed(self, partition: PartitionId) -> PartitionView:
        """Returns the view with start and end as the store has them now."""
        view = await self._views.get(partition)
        await self._views.refresh_start(view)
        await self._views.refresh(view)
        if view.start > view.offset_end:  # the end was read from a node that is no longer the leader
            await self._views.refresh(view, confirmed=True)
        return view

    def aborted(self, partition: PartitionId, offset_start: int, offset_end: int) -> list[Aborted]:
        """Returns the aborted transactions with records in `[offset_start, offset_end)`, for consumers that read
        committed records, as of when these records were read."""
        view = self._views.cached(partition)
        if view is None:
            raise partition_deleted(partition)
        return view.state.aborted_in(offset_start, offset_end)

    async def first_at(self, partition: PartitionId, timestamp: int) -> TimestampOffset | None:
        """Returns the first record that is not older than `timestamp`."""
        bounds = await self.bounds(partition)
        view = await self._views.get(partition)
        for _ in range(READ_TRIES):
            floor = view.floor
            if self._history is not None and bounds.start < floor:
                row = await self._history.first_at(partition, bounds.start, timestamp)
                if row is not None:
                    return TimestampOffset(*row)
            record = await self._lookup.first_at(view, max(bounds.start, floor), timestamp)
            if view.floor == floor:  # else records between the two floors may have been skipped
                return record
        raise _trimmed_during_lookup(partition)

    async def newest_time(self, partition: PartitionId) -> TimestampOffset | None:
        """Returns the record with the newest timestamp."""
        bounds = await self.bounds(partition)
        view = await self._views.get(partition)
        for _ in range(READ_TRIES):
            floor = view.floor
            row = None
            if self._history is not None and bounds.start < floor:
                row = await self._history.newest(partition, bounds.start)
            record = await self._lookup.newest(view, max(bounds.start, floor))
            if view.floor == floor:
                if row is None or (record is not None and record.timestamp > row[0]):
                    return record
                return TimestampOffset(*row)
        raise _trimmed_during_lookup(partition)

    async def size(self, partition: PartitionId) -> LogSize:
        """Returns the size of the chain, from the log start offset on, without a read of the table."""
        view = await self._refreshed(partition)
        return LogSize(await self._lookup.size(view, view.start), view.floor)

    async def history_files(self, partition: PartitionId, offset: int) -> list[HistoryFile]:
        """Returns the table's files with records from `offset` on that have left the chain, by their first offset."""
        view = await self._views.get(partition)
        if self._history is None or offset >= view.floor:
            return []
        return [file for file in await self._history.files(partition, offset) if file.offset_first < view.floor]

    async def claims(self, partition: PartitionId, offset: int) -> list[StoredClaim]:
        """Returns some claims from the one with `offset` on, or from the first that is left; none at the end."""
        return await self._lookup.claims(await self._views.get(partition), offset)

    async def confirmed_end(self, partition: PartitionId) -> int:
        """Returns the end. No record was stored behind it at the time of the call."""
        view = await self._views.get(partition)
        await self._views.refresh(view, confirmed=True)
        return view.offset_end

    async def producers(self, partition: PartitionId, *, confirmed: bool = False) -> dict[int, Producer]:
        """Returns the producers that wrote to the partition and have not expired."""
        view = await self._views.get(partition)
        await self._views.refresh(view, confirmed=confirmed)
        state = view.state
        return {pid: producer for pid, producer in state.producers.items() if state.producer(pid, state.appended_ms)}

    async def _refresh_end(self, view: PartitionView, offset: int) -> None:
        """Refreshes the end before the broker reports that there are no more records; with a confirmed read before it
        reports that the offset does not exist."""
        await self._views.refresh(view)
        if offset > view.offset_end:
            await self._views.refresh(view, confirmed=True)
        if offset > view.offset_end:
            raise OutOfRange(
                f"partition {view.partition}: offset {offset} is beyond the log end offset {view.offset_end}"
            )

    async def _read_batches(self, view: PartitionView, batches: list[BatchRef]) -> ReadResult | None:
        try:
            data = await self._read_claims(view, batches)
        except Corrupt:
            first = [ref for ref in batches if ref.claim is batches[0].claim]
            if len(first) == len(batches):
                raise
            return await self._read_batches(view, first)  # records before the damage are still served
        if data is None or batches[0].claim.offset_start < view.floor:
            return None  # the claims were trimmed meanwhile, and with them the aborted transactions among them
        return _read_result(batches, data, self._offsets(view))

    async def _read_claims(self, view: PartitionView, batches: list[BatchRef]) -> dict[str, Batches] | None:
        """Returns the batches of each claim, by claim id, or None if they were moved to the table meanwhile; the view
        then has the new floor."""
        claims = {ref.claim.claim_id: ref.claim for ref in batches}
        try:
            return dict(zip(claims, await self._reader.read(list(claims.values())), strict=True))
        except Missing as error:
            await self._views.refresh(view, confirmed=True)
            if batches[0].claim.offset_start >= view.floor:
                raise Corrupt(f"partition {view.partition}: {error}: restore it from a backup") from error
            return None

    async def _read_history(self, view: PartitionView, offset: int, bytes_max: int) -> HistoryRead:
        if self._history is None or offset < 0:
            raise _before_start(view.partition, offset, view.floor)
        return await self._history.read(view.partition, offset, bytes_max)

    def _empty_or_gap(self, view: PartitionView, offset: int, at: int) -> ReadResult:
        """Returns no batches at the end. If only offsets without records lie before the end, returns a batch without
        records, or a consumer would wait before them forever."""
        if at == offset:
            return ReadResult([], offset, self._offsets(view))
        pieces = rebased(gap(at - offset), offset)
        return ReadResult([(offset, pieces)], at, self._offsets(view), is_committed=True)

    def _offsets(self, view: PartitionView) -> Offsets:
        """Returns the cached offsets; the start is a lower bound."""
        start = view.floor if self._history is None else min(view.floor, self._history.cached_start(view.partition))
        return Offsets(max(start, view.start), view.offset_end, view.state.last_stable_offset)

    async def _start(self, view: PartitionView) -> int:
        """Returns the log start offset: records before it were deleted, or are not in the table."""
        if self._history is None or view.start >= view.floor:
            return max(view.start, view.floor)
        try:
            first = await self._history.start(view.partition)
        except Corrupt as error:  # a read there fails with this error; the log's end is certain nevertheless
            if self._limiter.should_log((view.partition.topic_id, str(error))):
                log.warning("log.history_unavailable partition=%s error=%s", view.partition, error)
            return self._offsets(view).start
        return max(view.start, view.floor if first is None else min(first, view.floor))

    # ── delete and trim ──────────────────────────────────────────────────────────────────────────────────────────────

    async def delete_before(self, partition: PartitionId, offset: int) -> int:
        """Deletes the records before `offset` for all brokers; returns the new log start offset.

        Only a pointer moves: the bytes stay until they are in the table. Raises OutOfRange beyond the log end.
        """
        view = await self._views.get(partition)
        if offset > view.offset_end:
            await self._refresh_end(view, offset)
        await self._claims.raise_start(partition, offset)
        view.start = max(view.start, offset)
        return (await self.bounds(partition)).start

    async def trim(self, partition: PartitionId, upto: int) -> list[Claim]:
        """Drops the claims that lie wholly below `upto` and in the table; returns them, for the garbage collector."""
        return await self._trimmer.trim(partition, upto)


async def _as_submitted(partition: PartitionId, batch: BatchInfo) -> int:
    """Accepts the transaction that a batch was submitted with, where there is no transaction coordinator."""
    return batch.transaction


def _end(view: PartitionView, committed: bool) -> int:
    return view.state.last_stable_offset if committed else view.offset_end


def _before_start(partition: PartitionId, offset: int, start: int) -> OutOfRange:
    return OutOfRange(f"partition {partition}: offset {offset} is before the log start offset {start}")


def _trimmed_during_lookup(partition: PartitionId) -> Unavailable:
    return Unavailable(f"partition {partition}: trimmed during {READ_TRIES} searches by time: retry")


def _read_result(batches: list[BatchRef], data: dict[str, Batches], offsets: Offsets) -> ReadResult:
    return ReadResult(
        [(ref.offset, rebased(data[ref.claim.claim_id][ref.number], ref.offset)) for ref in batches],
        batches[-1].offset_end,
        offsets,
    )
