"""A broker's copy of the state of each partition, and of its newest claims.

A view may be stale but is never wrong. A claim at its end detects staleness. Before it reports the end of the log, the
broker refreshes the view; before it rejects a batch, it refreshes with a *confirmed* read.
"""

import asyncio
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from lakestream.aio.single_flight import Coalescer
from lakestream.data.log import rules
from lakestream.data.log.partition_state import BatchValidation, PartitionState, readable_batches
from lakestream.errors import Conflict, Missing, Unavailable
from lakestream.metadata.claims import Chain, Claim, Claims, StoredClaim
from lakestream.model import PartitionId

log = logging.getLogger(__name__)

LOAD_TRIES: Final = 8
VIEWS_MAX: Final = 50_000
PAGE_CLAIMS: Final = 128
OBJECTS_MAX: Final = 64
"""Objects that one read opens at most: a long tail of small objects is read step by step, each in a bounded time."""
PAGES_MAX: Final = 256
"""Partitions whose older claims are cached at a time, for consumers that are far behind."""


class MeasuredSize(NamedTuple):
    """Bytes of the claims that start in `[offset_start, offset_end)`."""

    offset_start: int
    offset_end: int
    size: int


class PartitionView:
    def __init__(self, partition: PartitionId, state: PartitionState, saved_version: int | None, floor: int) -> None:
        self.partition = partition
        self.state = state
        self.floor = floor
        self.start = 0
        """Log start offset: records before it were deleted, or have expired. It only moves forward."""
        self.start_generation = 0
        """Value of `PartitionViews.start_generation` when the start was last read."""
        self.saved_offset = state.offset_end
        """End offset of the stored state."""
        self.saved_version = saved_version
        self.claims_since_save = 0
        self.tail: list[StoredClaim] = []
        """The newest claims, gapless up to the end."""
        self.page: list[StoredClaim] = []
        """Older claims for a consumer that reads them, gapless."""
        self.measured = MeasuredSize(0, 0, 0)
        self.end_read_s = 0.0
        """When its end was last certain, by the loop's time."""
        self.floor_read_s = 0.0
        """When its floor was last read: what was moved since is in the table, and may have been deleted there."""

    @property
    def offset_end(self) -> int:
        return self.state.offset_end

    def apply_claims(self, claims: Sequence[StoredClaim]) -> int:
        """Applies the new ones of these consecutive claims; returns how many. The others are skipped: a scan can return
        a claim of this broker before the response to its create arrives."""
        new = [stored for stored in claims if stored.claim.offset_start >= self.state.offset_end]
        for stored in new:
            self.state.apply(stored.claim, stored.created_ms)
        self.tail += new
        self.claims_since_save += len(new)
        return len(new)

    def apply_own_claim(self, stored: StoredClaim, validation: BatchValidation) -> bool:
        """Applies a valid claim that this broker created. Returns False if it was applied before."""
        if stored.claim.offset_start < self.state.offset_end:
            return False
        self.state.apply_own(stored.claim, validation)
        self.tail.append(stored)
        self.claims_since_save += 1
        return True

    def replace_with(self, newer: "PartitionView") -> None:
        """Takes over the content of a newly loaded view: callers keep references to this one."""
        self.state, self.saved_offset, self.saved_version = newer.state, newer.saved_offset, newer.saved_version
        self.floor, self.claims_since_save = newer.floor, newer.claims_since_save
        self.start = max(self.start, newer.start)
        self.tail, self.page = newer.tail, []
        self.floor_read_s = newer.floor_read_s

    def claims_from(self, offset: int) -> list[StoredClaim] | None:
        """Returns the cached claims from the one with `offset` on, or None if that one is not cached."""
        for claims in (self.tail, self.page):
            if claims and claims[0].claim.offset_start <= offset < claims[-1].claim.offset_end:
                return claims[bisect_right(claims, offset, key=_offset_start) - 1 :]
        return None


class PartitionViews:
    """All views of a broker. Concurrent calls for one partition share one load.

    `on_advance` is called when the end of a partition moved, `on_deleted` when a partition was found to be deleted.
    """

    def __init__(
        self,
        claims: Claims,
        tail_claims_max: int,
        tails_claims_max: int,
        on_advance: Callable[[PartitionId], None],
        on_deleted: Callable[[PartitionId], None],
    ) -> None:
        self._claims = claims
        self._tail_claims_max = tail_claims_max
        self._tails_claims_max = tails_claims_max
        self._on_advance = on_advance
        self._on_deleted = on_deleted
        self._views: dict[PartitionId, PartitionView] = {}
        self._paged: OrderedDict[PartitionId, PartitionView] = OrderedDict()  # with a page, the latest last
        self.start_generation = 0
        """Incremented when events were missed: a start that was read in an earlier generation may have moved."""
        self._reads: Coalescer[_Read, None] = Coalescer("log.read")

    def __len__(self) -> int:
        return len(self._views)

    @property
    def _tail_max(self) -> int:
        """Claims that each view may keep (for a while twice as many): the more views there are, the fewer."""
        return max(1, min(self._tail_claims_max, self._tails_claims_max // (len(self._views) or 1)))

    def cached(self, partition: PartitionId) -> PartitionView | None:
        return self._views.get(partition)

    def forget(self, partition: PartitionId) -> None:
        self._views.pop(partition, None)
        self._on_deleted(partition)

    async def get(self, partition: PartitionId) -> PartitionView:
        view = self._views.get(partition)
        if view is None:
            await self._reads.read(("open", partition), lambda: self._open(partition))
            view = self._views.get(partition)
            if view is None:
                raise partition_deleted(partition)
        return view

    async def refresh(self, view: PartitionView, *, confirmed: bool = False) -> None:
        """Makes the view at least as new as the store was at the time of the call (`confirmed`: for certain)."""
        if confirmed:
            await self._catch_up(view, confirmed=True)
        else:
            await self._reads.read(("refresh", view.partition), lambda: self._catch_up(view, confirmed=False))

    async def refresh_start(self, view: PartitionView) -> None:
        """Makes the view's start at least as new as the store's was at the time of the call."""
        generation = self.start_generation
        start = await self._claims.start(view.partition)
        view.start = max(view.start, start)  # both read after the wait: the start may have moved meanwhile
        view.start_generation = max(view.start_generation, generation)

    def apply_own_claim(self, view: PartitionView, stored: StoredClaim, validation: BatchValidation) -> None:
        if view.apply_own_claim(stored, validation):
            view.end_read_s = asyncio.get_running_loop().time()  # no other claim had that offset
            self._advanced(view)

    def _advanced(self, view: PartitionView) -> None:
        if len(view.tail) > 2 * self._tail_max:
            del view.tail[: -self._tail_max]
        self._on_advance(view.partition)

    async def apply_scan(self, view: PartitionView, chain: Chain, offset_start: int, *, confirmed: bool) -> bool:
        """Applies claims that were scanned from `offset_start` on. Returns False if a trim passed the scan, so that it
        is void and the view was loaded again. Raises Missing if the partition was deleted."""
        if chain.floor is None:
            if confirmed:
                self.forget(view.partition)
                raise partition_deleted(view.partition)
            await self._catch_up(view, confirmed=True)
            return False
        if not rules.floor_allows(chain.floor, offset_start) or not rules.is_gapless(chain.claims, offset_start):
            await self._reload(view)
            return False
        view.floor = max(view.floor, chain.floor)
        if view.apply_claims(chain.claims):
            self._advanced(view)
        return True

    async def claims_from(self, view: PartitionView, offset: int) -> list[StoredClaim]:
        """Returns claims from the one with `offset` on, which must be between the floor and the end. Returns none if
        they were trimmed meanwhile; the view then has the new floor."""
        cached = view.claims_from(offset)
        if cached is not None:
            return cached
        first = await self._claims.claim_at(view.partition, offset)
        if first is None:
            await self._reload(view)
            return []
        offset_start = first.claim.offset_start
        chain = await self._claims.scan(view.partition, offset_start, limit=PAGE_CLAIMS)
        valid = chain.floor is not None and rules.floor_allows(chain.floor, offset_start)
        if not valid or not rules.is_gapless(chain.claims, offset_start):
            await self._reload(view)
            return []
        self._set_page(view, chain.claims)
        await self.refresh_start(view)  # a consumer that is far behind may be before it
        return view.claims_from(offset) or []

    def _set_page(self, view: PartitionView, claims: list[StoredClaim]) -> None:
        view.page = claims
        self._paged[view.partition] = view
        self._paged.move_to_end(view.partition)
        if len(self._paged) > PAGES_MAX:
            _, oldest = self._paged.popitem(last=False)
            oldest.page = []

    async def save_state(self, view: PartitionView) -> None:
        """Stores the state as of now, or a little later, unless a newer one is stored. It only moves forward."""
        target = view.offset_end  # not the end as it moves: claims may come faster than states are stored
        while rules.saves_state(target, view.saved_offset):
            view.state.forget_aborted_below(view.floor)
            offset, body, first = view.offset_end, view.state.encode(), view.saved_version is None
            try:
                view.saved_version = await self._claims.save_state(view.partition, body, view.saved_version)
                view.saved_offset = offset
                if first and await self._claims.floor(view.partition) is None:
                    await self._claims.delete_state(view.partition)  # the topic was deleted just before
            except Conflict:
                if not await self._read_saved_version(view):
                    return
        view.claims_since_save = 0

    async def close(self) -> None:
        await self._reads.close()

    def kill(self) -> None:
        self._reads.cancel()

    async def _read_saved_version(self, view: PartitionView) -> bool:
        """Reads version and offset of the state that another broker stored. Returns False if the partition was
        deleted."""
        stored = await self._claims.load_state(view.partition, confirmed=True)
        if stored is None:
            return False
        view.saved_version = stored.version
        view.saved_offset = PartitionState.decode(stored.body, str(view.partition)).offset_end
        return True

    async def _catch_up(self, view: PartitionView, *, confirmed: bool) -> None:
        begun_s = asyncio.get_running_loop().time()
        offset_start = view.offset_end
        chain = await self._claims.scan(view.partition, offset_start, confirmed=confirmed)
        await self.apply_scan(view, chain, offset_start, confirmed=confirmed)
        view.end_read_s = max(view.end_read_s, begun_s)
        view.floor_read_s = max(view.floor_read_s, begun_s)

    async def _reload(self, view: PartitionView) -> None:
        newer = await self._load(view.partition, confirmed=True)
        if newer.offset_end < view.offset_end:  # a claim of this broker was applied meanwhile: this view is newer
            view.floor = max(view.floor, newer.floor)
        else:
            view.replace_with(newer)
        self._on_advance(view.partition)

    async def _open(self, partition: PartitionId) -> None:
        if partition not in self._views:
            view = await self._load(partition, confirmed=False)
            self._views.setdefault(partition, view)
            if len(self._views) > VIEWS_MAX:
                del self._views[next(iter(self._views))]  # any view can be dropped and loaded again

    async def _load(self, partition: PartitionId, *, confirmed: bool) -> PartitionView:
        """Loads the stored state, then the claims behind it. If a trim passes between the two reads, the claims do not
        follow the state, and both are read again."""
        for _ in range(LOAD_TRIES):
            begun_s = asyncio.get_running_loop().time()
            stored = await self._claims.load_state(partition, confirmed=confirmed)
            state = PartitionState() if stored is None else PartitionState.decode(stored.body, str(partition))
            view = PartitionView(partition, state, None if stored is None else stored.version, 0)
            await self.refresh_start(view)  # before the end is read: a log starts before it ends
            chain = await self._claims.scan(partition, view.offset_end, confirmed=confirmed)
            if chain.floor is None and confirmed:
                self.forget(partition)
                raise partition_deleted(partition)
            confirmed = True
            if chain.floor is None or not rules.floor_allows(chain.floor, view.offset_end):
                continue
            if rules.is_gapless(chain.claims, view.offset_end):
                view.floor = chain.floor
                view.floor_read_s = begun_s
                view.apply_claims(chain.claims)
                del view.tail[: -self._tail_max]
                return view
        raise Unavailable(
            f"partition {partition}: its chain was trimmed during {LOAD_TRIES} attempts to load it: retry"
        )


_Read: TypeAlias = tuple[str, PartitionId]


def partition_deleted(partition: PartitionId) -> Missing:
    return Missing(f"partition {partition} does not exist: its topic was deleted")


def _offset_start(stored: StoredClaim) -> int:
    return stored.claim.offset_start


class BatchRef(NamedTuple):
    """A batch of a claim, and its offset."""

    claim: Claim
    number: int
    """Index of the batch in the claim."""
    offset: int

    @property
    def offset_end(self) -> int:
        return self.offset + self.claim.batches[self.number].record_count


def select_batches(claims: list[StoredClaim], offset: int, bytes_max: int) -> list[BatchRef]:
    """Selects batches to read, from the one with `offset` on: always the first, then as many as fit."""
    selected: list[BatchRef] = []
    room = bytes_max
    names: set[str] = set()
    for claim, created_ms in claims:
        names.add(claim.name)
        if len(names) > OBJECTS_MAX and selected:
            return selected
        for index, (offset_start, batch) in enumerate(readable_batches(claim, created_ms)):
            if offset_start + batch.record_count <= offset:
                continue
            room -= batch.byte_end - batch.byte_start
            if room < 0 and selected:
                return selected
            selected.append(BatchRef(claim, index, offset_start))
    return selected
