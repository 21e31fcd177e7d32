"""The log of record batches of every partition: start reading here.

    write path   append → wal/buffer → wal/writer (stored) → claimer (ordered) → answer
    read path    read → view (which claims) → wal/reader (their bytes) → rebased batches
                 below the floor: the table (data/table/history.py), rows as batches
    trim         what is in the table leaves the chain; the sweeper takes the bytes

Any number of brokers run one of these over the same stores. It keeps nothing that cannot be thrown away.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from lakestream.batch import RecordBatch, gap, rebased
from lakestream.clock import Clock, Ids
from lakestream.data.cache.blocks import BlockCache
from lakestream.data.log import rules
from lakestream.data.log.claimer import Claimer
from lakestream.data.log.fold import Aborted, Producer, served
from lakestream.data.log.routes import Numbers, Routes
from lakestream.data.log.search import Search
from lakestream.data.log.skew import SkewGuard
from lakestream.data.log.struggle import Struggles, TransactionOf
from lakestream.data.log.times import At
from lakestream.data.log.view import View, Views
from lakestream.data.log.wait import Feed, Waiters
from lakestream.data.table.past import Past, PastFile
from lakestream.data.wal.buffer import Appended, Extent, Placed
from lakestream.data.wal.media import ObjectFrames, SegmentFrames
from lakestream.data.wal.reader import BLOCK_OVERHEAD, Batches, Reader
from lakestream.data.wal.segments import SegmentFiles
from lakestream.data.wal.writer import Writer, WriterSettings
from lakestream.errors import Corrupt, Missing, OutOfRange, Unavailable
from lakestream.filed import Piece
from lakestream.metadata.claims import NO_TRANSACTION, BatchInfo, Claim, Claims, Dated
from lakestream.metadata.store import MetadataStore
from lakestream.model import PartitionId
from lakestream.seldom import Seldom
from lakestream.settings import LogSettings, Profile
from lakestream.storage.object_store import ObjectStore

log = logging.getLogger(__name__)

READ_TRIES: Final = 8
OBJECTS_MAX: Final = 64
"""Read for one answer at most: a long tail of small objects is read step by step, each in a bounded time."""
TRIM_CLAIMS: Final = 1_000
FLOOR_MS: Final = 1_000
CLAIM_WAIT_MS: Final = 3
GATHER_MS: Final = 12
"""Measured with 1,200 requests a second of a producer that does not wait (`make bench-kafka`, 5,000 records/s): with 4
it is answered 5 ms sooner, and the broker takes three quarters more CPU for it. Producers that wait are not kept."""
GLANCE_MS: Final = 20
"""Who reads at the end relies so long on the last look at the store. Before anybody is told that there is no more, it
is looked at again."""


class Bounds(NamedTuple):
    start: int
    end: int
    stable: int
    """Last stable offset: below it no transaction is open."""


class Slice(NamedTuple):
    """What a read found."""

    batches: list[tuple[int, list[Piece]]]
    """Offset and bytes of each batch, its base offset already in them."""
    offset_next: int
    """Where to read on; beyond the last batch where offsets are missing."""
    bounds: Bounds
    is_decided: bool = False
    """Out of the table, or a gap: no record of it was aborted."""


class Pick(NamedTuple):
    """A batch that a read returns."""

    claim: Claim
    batch: int
    """Its place in the claim."""
    offset: int


class Figures(NamedTuple):
    """How much a log of one broker has done so far, and what it holds now."""

    claims: int
    batches: int
    records: int
    bytes: int
    """Appended, in batches as producers sent them."""
    conflicts: int
    struggles: int
    views: int
    waited_for: int
    """Logs at whose end somebody waits."""
    bytes_held: int
    """Placed, and not yet answered."""
    cache_hits: int
    cache_misses: int
    cache_bytes: int


class History(Protocol):
    """The records that have left the chain, as the table has them. Corrupt, Unavailable: it cannot be read (now)."""

    async def start(self, partition: PartitionId) -> int | None:
        """The first offset of the table; None: it has none of this log."""
        ...

    def start_known(self, partition: PartitionId) -> int:
        """The same at the least, without a look."""
        ...

    async def read(self, partition: PartitionId, offset: int, bytes_max: int) -> Past: ...

    async def files(self, partition: PartitionId, offset: int) -> list[PastFile]:
        """Those with records from `offset` on, by their first one."""
        ...

    async def first_at(self, partition: PartitionId, offset: int, timestamp: int) -> tuple[int, int] | None:
        """Time and offset of the first record from `offset` on that is not older."""
        ...

    async def newest(self, partition: PartitionId, offset: int) -> tuple[int, int] | None:
        """Time and offset of the record with the newest time, from `offset` on."""
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
        transaction_of: TransactionOf | None = None,
    ) -> None:
        self._claims = Claims(metadata)
        self._history = history
        self._waiters = Waiters()
        self._views = Views(self._claims, settings.tail_claims_max, settings.tails_claims_max, self._waiters.wake)
        self._reader = Reader(store, segments, BlockCache(settings.cache_bytes_max, BLOCK_OVERHEAD))
        self._search = Search(self._views, self._reader)
        self._skew = SkewGuard(clock, metadata.now_ms)
        self._seldom = Seldom(clock)
        self._feed = Feed(metadata, self._views, self._waiters)
        numbers = Numbers()
        self._struggles = Struggles(
            self._claims,
            self._views,
            self._store_again,
            transaction_of or _as_placed,
            timeout_ms=settings.append_timeout_ms,
            retry_interval_ms=settings.retry_interval_ms,
        )
        self._claimer = Claimer(
            self._claims,
            self._views,
            self._skew,
            clock,
            struggle=self._struggles.run,
            timeout_ms=settings.append_timeout_ms // 2,  # and as long again to look what became of it
            fold_every_claims=settings.fold_every_claims,
            numbers_given=numbers.given,
            on_claimed=self._keep,
        )
        self._writers = _writers(store, segments, settings, clock, ids, self._claimer, numbers)
        self._routes = Routes(self._writers, profile_of)
        self._by_id = {writer.writer_id: writer for writer in self._writers.values()}
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._skew.measure()
        self._skew.check()
        self._following = asyncio.get_running_loop().create_task(self._feed.run(), name="log.feed")

    async def close(self) -> None:
        """Take nothing more, answer what was taken."""
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
        """Stop at once, as a crash would."""
        for writer in self._writers.values():
            writer.kill()
        self._claimer.kill()
        self._views.kill()
        self._reader.kill()
        self._skew.kill()
        if self._following is not None:
            self._following.cancel()

    def when_gone(self, tell: Callable[[PartitionId], None]) -> None:
        """Have somebody told of every log that turns out to be deleted: what he knows of its topic is old."""
        self._views.on_gone = tell

    def when_transactional(self, transaction_of: TransactionOf) -> None:
        """Have somebody asked which transaction a batch belongs to, before one begins in a log."""
        self._struggles.transaction_of = transaction_of

    def figures(self) -> Figures:
        counts, cache = self._claimer.counts, self._reader.cache
        return Figures(
            claims=counts.claims,
            batches=counts.batches,
            records=counts.records,
            bytes=counts.bytes,
            conflicts=counts.conflicts,
            struggles=counts.struggles,
            views=len(self._views),
            waited_for=len(self._waiters),
            bytes_held=sum(writer.bytes_held for writer in self._writers.values()),
            cache_hits=cache.hits,
            cache_misses=cache.misses,
            cache_bytes=cache.bytes_used,
        )

    # ── write path ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def append(self, partition: PartitionId, batch: RecordBatch, transaction: int = NO_TRANSACTION) -> Appended:
        """Store a batch and give it offsets. Waits while this broker holds as many bytes as it may.

        OutOfOrder, Fenced, Rejected: the batch may not follow what its producer wrote before. Missing: the log is gone.
        Unavailable: it is not stored. Uncertain: it may be; an idempotent producer may send it again without harm.
        """
        return await self.place(partition, batch, transaction)

    def place(
        self, partition: PartitionId, batch: RecordBatch, transaction: int = NO_TRANSACTION
    ) -> "asyncio.Future[Appended]":
        """The same without waiting: batches are appended in the order in which they are placed."""
        self.check_clock()
        return self._routes.place(partition, batch, transaction)

    def check_clock(self) -> None:
        """Unavailable: this machine's clock is wrong."""
        self._skew.check()

    async def _store_again(self, extent: Extent) -> None:
        await self._by_id[extent.writer_id].store_again(extent)

    def _keep(self, claim: Claim, items: Sequence[Placed]) -> None:
        self._reader.keep(claim, tuple(item.batch.data for item in items))

    # ── read path ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def read(self, partition: PartitionId, offset: int, bytes_max: int, *, committed: bool = False) -> Slice:
        """Batches from the one that holds `offset` on: at least one if there is any, then as many as fit. `committed`:
        the reader takes nothing from the last stable offset on, so that is its end of the log."""
        view = await self._views.get(partition)
        if view.start_seen != self._views.doubts:
            await self._views.look_at_start(view)
        if offset >= _end(view, committed):
            await self._look_at_end(view, offset)
        elif not self._knows_floor(view):
            await self._views.refresh(view)
        at = offset
        for _ in range(READ_TRIES):
            if offset < view.start:
                raise OutOfRange(f"offset {offset} of log {partition} lies before its start {view.start}")
            if at < view.floor:
                past = await self._read_history(view, at, bytes_max)
                if past.offset_next >= view.offset_end:  # this view may be older than the table
                    await self._views.refresh(view)
                if past.batches:
                    return Slice(past.batches, past.offset_next, self._seen(view), is_decided=True)
                at = past.offset_next  # there are no rows up to there
            elif at >= view.offset_end:
                return await self._nothing(view, offset, at)
            else:
                claims = await self._views.claims_from(view, at)
                picks = _picks(claims, at, bytes_max)
                if picks and (found := await self._slice_of(view, picks)) is not None:
                    return found
                if claims and not picks:  # only claims that came too late: a gap
                    return await self.read(partition, claims[-1].claim.offset_end, bytes_max, committed=committed)
        raise Unavailable(f"log {partition} moved under {READ_TRIES} readings at offset {offset}; try again")

    def glance(self, partition: PartitionId, offset: int, bytes_max: int, *, committed: bool = False) -> Slice | None:
        """What `read` would find, if that is in memory; None: only `read` can tell. Nothing at the end means that there
        was nothing a moment ago."""
        view = self._views.known(partition)
        if view is None or view.start_seen != self._views.doubts or not self._knows_floor(view):
            return None
        if not max(view.start, view.floor) <= offset <= view.offset_end:
            return None
        bounds = self._seen(view)
        if offset >= _end(view, committed):
            recent = asyncio.get_running_loop().time() - view.looked_s <= GLANCE_MS / 1000
            return Slice([], offset, bounds) if recent else None
        picks = _picks(view.claims_from(offset) or [], offset, bytes_max)
        claims = {pick.claim.claim_id: pick.claim for pick in picks}
        found = {claim_id: batches for claim_id in claims if (batches := self._reader.cache.get(claim_id)) is not None}
        return _slice(picks, found, bounds) if picks and len(found) == len(claims) else None

    def _knows_floor(self, view: View) -> bool:
        """Whether it is not long ago that it was looked at. What has left the chain is read from the table, although
        it may still be at hand here: somebody may have deleted it there."""
        return self._history is None or asyncio.get_running_loop().time() - view.floor_seen_s <= FLOOR_MS / 1000

    async def wait(self, partition: PartitionId, offset: int, timeout_ms: int) -> bool:
        """Wait until the log's end is beyond `offset`; False if it did not come to that in time."""
        return await self.wait_any([(partition, offset)], timeout_ms)

    async def wait_any(self, ends: Sequence[tuple[PartitionId, int]], timeout_ms: int) -> bool:
        """Wait until the end of one of these logs is beyond its offset."""
        first_ms = min(timeout_ms, GLANCE_MS)
        with self._waiters.joined([partition for partition, _ in ends]) as event:
            if await self._grows(ends, event, first_ms):
                return True
            await asyncio.gather(*(self._look_at(partition) for partition, _ in ends))  # an event may get lost
            return await self._grows(ends, event, timeout_ms - first_ms)

    async def _grows(self, ends: Sequence[tuple[PartitionId, int]], event: asyncio.Event, timeout_ms: int) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                while not await self._has_grown(ends):
                    event.clear()
                    await event.wait()
                return True
        return await self._has_grown(ends)

    async def _look_at(self, partition: PartitionId) -> None:
        await self._views.refresh(await self._views.get(partition))

    async def _has_grown(self, ends: Sequence[tuple[PartitionId, int]]) -> bool:
        for partition, offset in ends:
            if (await self._views.get(partition)).offset_end > offset:
                return True
        return False

    def start_known(self, partition: PartitionId) -> int:
        """Where the log starts at the least: what this broker knows without a look at the store."""
        view = self._views.known(partition)
        return 0 if view is None else self._seen(view).start

    async def bounds(self, partition: PartitionId) -> Bounds:
        """Where the log starts and ends, as the store has it now."""
        view = await self._views.get(partition)
        await self._views.look_at_start(view)
        await self._views.refresh(view)
        if view.start > view.offset_end:  # the end was told by a node that no longer leads
            await self._views.refresh(view, confirmed=True)
        return self._seen(view)._replace(start=await self._start(view))

    def aborted(self, partition: PartitionId, offset_start: int, offset_end: int) -> list[Aborted]:
        """Aborted transactions with records in `[offset_start, offset_end)`, for readers of committed records, as they
        were when these were read."""
        view = self._views.known(partition)
        if view is None:
            raise Missing(f"log {partition} is gone: its topic was deleted")
        return view.fold.aborted_in(offset_start, offset_end)

    async def first_at(self, partition: PartitionId, timestamp: int) -> At | None:
        """The first record that is not older than `timestamp`."""
        bounds = await self.bounds(partition)
        view = await self._views.get(partition)
        for _ in range(READ_TRIES):
            floor = view.floor
            if self._history is not None and bounds.start < floor:
                found = await self._history.first_at(partition, bounds.start, timestamp)
                if found is not None:
                    return At(*found)
            at = await self._search.first_at(view, max(bounds.start, floor), timestamp)
            if view.floor == floor:  # or what was between the two may have been passed over
                return at
        raise Unavailable(f"log {partition} moved under {READ_TRIES} searches by time; try again")

    async def newest_time(self, partition: PartitionId) -> At | None:
        """The record with the newest timestamp of all."""
        bounds = await self.bounds(partition)
        view = await self._views.get(partition)
        for _ in range(READ_TRIES):
            floor = view.floor
            past = None
            if self._history is not None and bounds.start < floor:
                past = await self._history.newest(partition, bounds.start)
            at = await self._search.newest(view, max(bounds.start, floor))
            if view.floor == floor:
                return at if past is None or (at is not None and at.timestamp > past[0]) else At(*past)
        raise Unavailable(f"log {partition} moved under {READ_TRIES} searches by time; try again")

    async def size(self, partition: PartitionId) -> int:
        """How many bytes the log has, from its start on, that are not in the table yet."""
        bounds = await self.bounds(partition)
        return await self._search.size(await self._views.get(partition), bounds.start)

    async def past_files(self, partition: PartitionId, offset: int) -> list[PastFile]:
        """The table's files with records from `offset` on that have left the chain, by their first one."""
        view = await self._views.get(partition)
        if self._history is None or offset >= view.floor:
            return []
        return [file for file in await self._history.files(partition, offset) if file.offset_first < view.floor]

    async def claims(self, partition: PartitionId, offset: int) -> list[Dated]:
        """Some claims from the one that holds `offset` on, or from the first that is left; none at the end."""
        return await self._search.claims(await self._views.get(partition), offset)

    async def end_for_certain(self, partition: PartitionId) -> int:
        """No record was stored behind it when this was asked."""
        view = await self._views.get(partition)
        await self._views.refresh(view, confirmed=True)
        return view.offset_end

    async def producers(self, partition: PartitionId, *, confirmed: bool = False) -> dict[int, Producer]:
        """What is known of each producer that wrote here and is remembered."""
        view = await self._views.get(partition)
        await self._views.refresh(view, confirmed=confirmed)
        fold = view.fold
        return {pid: producer for pid, producer in fold.producers.items() if fold.producer(pid, fold.appended_ms)}

    async def _look_at_end(self, view: View, offset: int) -> None:
        """ "There is no more" is said only after a look at the store, "there is no such offset" only for certain."""
        await self._views.refresh(view)
        if offset > view.offset_end:
            await self._views.refresh(view, confirmed=True)
        if offset > view.offset_end:
            raise OutOfRange(f"offset {offset} of log {view.partition} lies beyond its end {view.offset_end}")

    async def _slice_of(self, view: View, picks: list[Pick]) -> Slice | None:
        try:
            found = await self._bytes_of(view, picks)
        except Corrupt:
            first = [pick for pick in picks if pick.claim is picks[0].claim]
            if len(first) == len(picks):
                raise
            return await self._slice_of(view, first)  # what lies before the damage is still served
        if found is None or picks[0].claim.offset_start < view.floor:
            return None  # they have left meanwhile, and with them what is known of aborted ones among them
        return _slice(picks, found, self._seen(view))

    async def _bytes_of(self, view: View, picks: list[Pick]) -> dict[str, Batches] | None:
        """The batches of each claim, by its id. None: they have left for the table meanwhile, and the view knows."""
        claims = {pick.claim.claim_id: pick.claim for pick in picks}
        try:
            return dict(zip(claims, await self._reader.read(list(claims.values())), strict=True))
        except Missing as error:
            await self._views.refresh(view, confirmed=True)
            if picks[0].claim.offset_start >= view.floor:
                raise Corrupt(f"log {view.partition}: {error}; restore it from a backup") from error
            return None

    async def _read_history(self, view: View, offset: int, bytes_max: int) -> Past:
        if self._history is None or offset < 0:
            raise OutOfRange(f"offset {offset} of log {view.partition} lies before its start {view.floor}")
        return await self._history.read(view.partition, offset, bytes_max)

    async def _nothing(self, view: View, offset: int, at: int) -> Slice:
        """At the end there is nothing. Where only offsets without records lie before it, a batch without records says
        so, or a consumer would wait before them for ever."""
        if at == offset:
            return Slice([], offset, self._seen(view))
        pieces = rebased(gap(at - offset), offset)
        return Slice([(offset, pieces)], at, self._seen(view), is_decided=True)

    def _seen(self, view: View) -> Bounds:
        """As far as it is known without a look: it starts there at the least."""
        start = view.floor if self._history is None else min(view.floor, self._history.start_known(view.partition))
        return Bounds(max(start, view.start), view.offset_end, view.fold.last_stable_offset)

    async def _start(self, view: View) -> int:
        """Where the log starts: what was deleted, and what the table does not have, lies before it."""
        if self._history is None or view.start >= view.floor:
            return max(view.start, view.floor)
        try:
            first = await self._history.start(view.partition)
        except Corrupt as error:  # who reads there is told; the log's end is known nevertheless
            if self._seldom.is_news((view.partition.topic_id, str(error))):
                log.warning("log.history_unknown partition=%s error=%s", view.partition, error)
            return self._seen(view).start
        return max(view.start, view.floor if first is None else min(first, view.floor))

    # ── delete ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def delete_before(self, partition: PartitionId, offset: int) -> int:
        """Records before `offset` are no longer served, by any broker; returns where the log starts then.

        Only a pointer moves: the bytes stay until they are in the table. OutOfRange: there is no such offset yet.
        """
        view = await self._views.get(partition)
        if offset > view.offset_end:
            await self._look_at_end(view, offset)
        await self._claims.raise_start(partition, offset)
        view.start = max(view.start, offset)
        return (await self.bounds(partition)).start

    # ── trim ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def trim(self, partition: PartitionId, upto: int) -> list[Claim]:
        """Drop the claims that lie wholly below `upto` and in the table; returns them, for the sweeper.

        First the fold, then the floor, then the claims: whoever stops in between has lost nothing, and whoever slept
        through it finds a floor above what he believes.
        """
        view = await self._views.get(partition)
        await self._views.refresh(view)
        table_end = await self._claims.table_end(partition)
        if view.fold_offset < min(upto, table_end):
            await self._save_fold_before_trim(view)
        bound = rules.trim_bound(upto, table_end, view.fold_offset)
        dropped: list[Claim] = []
        while claims := await self._trim_some(view, bound):
            dropped += claims
        return dropped

    async def _save_fold_before_trim(self, view: View) -> None:
        await self._views.save_fold(view)

    async def _trim_some(self, view: View, bound: int) -> list[Claim]:
        chain = await self._claims.scan(view.partition, view.floor, bound, limit=TRIM_CLAIMS)
        if chain.floor is None:
            raise Missing(f"log {view.partition} is gone: its topic was deleted")
        if chain.floor > view.floor:  # somebody else trims too: go on from there
            view.floor = chain.floor
            return await self._trim_some(view, bound)
        point = rules.trim_point(chain.claims, view.floor, bound)
        dropped = [dated.claim for dated in chain.claims if dated.claim.offset_end <= point]
        if dropped:
            await self._claims.raise_floor(view.partition, point)
            # The newest claim stays though it is below the floor: who sleeps at its start is refused, not let through.
            last = dropped[-1].offset_start if point >= view.offset_end else point
            await self._claims.drop_below(view.partition, last)
            view.floor = max(view.floor, point)
        return dropped


def _writers(
    store: ObjectStore,
    segments: SegmentFiles | None,
    settings: LogSettings,
    clock: Clock,
    ids: Ids,
    claimer: Claimer,
    numbers: Numbers,
) -> dict[Profile, Writer]:
    wal = settings.wal
    cost = WriterSettings(
        wal.flush_interval_ms, wal.flush_bytes_max, wal.buffer_bytes_max, rules.CLAIM_BATCHES_MAX, wal.uploads_max
    )
    writer_id = _short(ids)
    writers = {
        Profile.COST: Writer(writer_id, ObjectFrames(store, writer_id, clock), claimer, cost, numbers.next),
    }
    if segments is not None:
        writer_id = _short(ids)
        # Group commit: what waits when the last flush ends is the next one, however much it is.
        latency = cost._replace(
            flush_interval_ms=0,
            flush_bytes_max=wal.buffer_bytes_max // 2,
            writes_max=1,
            claim_wait_ms=CLAIM_WAIT_MS,
            gather_ms=GATHER_MS,
        )
        frames = SegmentFrames(segments, writer_id, wal, clock)
        writers[Profile.LATENCY] = Writer(writer_id, frames, claimer, latency, numbers.next)
    return writers


async def _as_placed(partition: PartitionId, batch: BatchInfo) -> int:
    """Where nobody knows of transactions, whoever writes in one knows what he does."""
    return batch.transaction


def _end(view: View, committed: bool) -> int:
    """Where a reader finds nothing more."""
    return view.fold.last_stable_offset if committed else view.offset_end


def _short(ids: Ids) -> str:
    return ids.new()[:16]


def _picks(claims: list[Dated], offset: int, bytes_max: int) -> list[Pick]:
    """The batches from the one that holds `offset` on that fit; the first always does."""
    picks: list[Pick] = []
    room = bytes_max
    names: set[str] = set()
    for claim, created_ms in claims:
        names.add(claim.name)
        if len(names) > OBJECTS_MAX and picks:
            return picks
        for index, (offset_start, batch) in enumerate(served(claim, created_ms)):
            if offset_start + batch.record_count <= offset:
                continue
            room -= batch.byte_end - batch.byte_start
            if room < 0 and picks:
                return picks
            picks.append(Pick(claim, index, offset_start))
    return picks


def _slice(picks: list[Pick], found: dict[str, Batches], bounds: Bounds) -> Slice:
    last = picks[-1]
    return Slice(
        [(pick.offset, rebased(found[pick.claim.claim_id][pick.batch], pick.offset)) for pick in picks],
        last.offset + last.claim.batches[last.batch].record_count,
        bounds,
    )
