"""What a broker believes of each log: the fold of its chain, and the newest claims.

A view may be behind, never wrong. Who claims at its end finds out; who says "there is no more" refreshes it first; who
refuses something refreshes it *confirmed*.
"""

import asyncio
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, NamedTuple, TypeAlias

from lakestream.data.log import rules
from lakestream.data.log.fold import Fold, Trial
from lakestream.errors import Conflict, Missing, Unavailable
from lakestream.metadata.claims import Chain, Claims, Dated
from lakestream.model import PartitionId

log = logging.getLogger(__name__)

OPEN_TRIES: Final = 8
VIEWS_MAX: Final = 50_000
PAGE_CLAIMS: Final = 128
PAGES_MAX: Final = 256
"""Logs whose older claims are kept in memory at a time, for readers that are far behind."""


class Measured(NamedTuple):
    """The bytes of the claims that start in `[offset_start, offset_end)`."""

    offset_start: int
    offset_end: int
    size: int


class View:
    def __init__(self, partition: PartitionId, fold: Fold, fold_version: int | None, floor: int) -> None:
        self.partition = partition
        self.fold = fold
        self.floor = floor
        self.start = 0
        """Readers begin here: what lies before was deleted, or has had its time. It only moves forward."""
        self.start_seen = 0
        """The last doubt of `Views.doubts` after which the start was looked at."""
        self.fold_offset = fold.offset_end
        """How far the stored fold reaches."""
        self.fold_version = fold_version
        self.claims_since_fold = 0
        self.tail: list[Dated] = []
        """The newest claims, gapless up to the end."""
        self.page: list[Dated] = []
        """Older claims that somebody is reading, gapless."""
        self.measured = Measured(0, 0, 0)
        self.looked_s = 0.0
        """When its end was last certain, by the loop's time."""
        self.floor_seen_s = 0.0
        """When its floor was last read: what was moved since is in the table, and may have been deleted there."""

    @property
    def offset_end(self) -> int:
        return self.fold.offset_end

    def learn(self, claims: Sequence[Dated]) -> int:
        """Move over the claims that are new, which follow one another; returns how many. Those known already are passed
        over: a claim of ours may be seen by a scan before its own answer arrives."""
        fresh = [dated for dated in claims if dated.claim.offset_start >= self.fold.offset_end]
        for dated in fresh:
            self.fold.apply(dated.claim, dated.created_ms)
        self.tail += fresh
        self.claims_since_fold += len(fresh)
        return len(fresh)

    def learn_own(self, dated: Dated, trial: Trial) -> bool:
        """The same for a claim that we made, and that counts. False: it was known already."""
        if dated.claim.offset_start < self.fold.offset_end:
            return False
        self.fold.adopt(dated.claim, trial)
        self.tail.append(dated)
        self.claims_since_fold += 1
        return True

    def become(self, newer: "View") -> None:
        """Take over what was read anew, keeping this view's identity for those who hold it."""
        self.fold, self.fold_offset, self.fold_version = newer.fold, newer.fold_offset, newer.fold_version
        self.floor, self.claims_since_fold = newer.floor, newer.claims_since_fold
        self.start = max(self.start, newer.start)
        self.tail, self.page = newer.tail, []
        self.floor_seen_s = newer.floor_seen_s

    def claims_from(self, offset: int) -> list[Dated] | None:
        """The claims in memory from the one that holds `offset` on; None if that one is not in memory."""
        for claims in (self.tail, self.page):
            if claims and claims[0].claim.offset_start <= offset < claims[-1].claim.offset_end:
                return claims[bisect_right(claims, offset, key=_offset_start) - 1 :]
        return None


class Views:
    """All views of a broker. A log is opened once for all who ask at the same time."""

    def __init__(
        self,
        claims: Claims,
        tail_claims_max: int,
        tails_claims_max: int,
        on_advance: Callable[[PartitionId], None],
    ) -> None:
        self._claims = claims
        self._tail_claims_max = tail_claims_max
        self._tails_claims_max = tails_claims_max
        self._on_advance = on_advance
        self._views: dict[PartitionId, View] = {}
        self._paged: OrderedDict[PartitionId, View] = OrderedDict()  # with a page, the latest last
        self.doubts = 0
        """How often events were missed: a start that was seen before the last time may have moved."""
        self._looks = _Looks()
        self.on_gone: Callable[[PartitionId], None] = _nobody
        """Told when a log turns out to be deleted."""

    def __len__(self) -> int:
        return len(self._views)

    @property
    def _tail_room(self) -> int:
        """Claims that each view may keep (for a while twice as many): the more views there are, the fewer."""
        return max(1, min(self._tail_claims_max, self._tails_claims_max // (len(self._views) or 1)))

    def known(self, partition: PartitionId) -> View | None:
        return self._views.get(partition)

    def forget(self, partition: PartitionId) -> None:
        self._views.pop(partition, None)
        self.on_gone(partition)

    async def get(self, partition: PartitionId) -> View:
        view = self._views.get(partition)
        if view is None:
            await self._looks.look(("open", partition), lambda: self._open(partition))
            view = self._views.get(partition)
            if view is None:
                raise Missing(f"log {partition} is gone: its topic was deleted")
        return view

    async def refresh(self, view: View, *, confirmed: bool = False) -> None:
        """Afterwards the view is at least as new as the store was when this was called (`confirmed`: for certain)."""
        if confirmed:
            await self._catch_up(view, confirmed=True)
        else:
            await self._looks.look(("refresh", view.partition), lambda: self._catch_up(view, confirmed=False))

    async def look_at_start(self, view: View) -> None:
        """Afterwards the view's start is at least as new as the store's was when this was called."""
        doubts = self.doubts
        start = await self._claims.start(view.partition)
        view.start = max(view.start, start)  # as it is after the wait: it may have moved meanwhile
        view.start_seen = max(view.start_seen, doubts)

    def learn(self, view: View, claims: Sequence[Dated]) -> None:
        if view.learn(claims):
            self._has_moved(view)

    def learn_own(self, view: View, dated: Dated, trial: Trial) -> None:
        if view.learn_own(dated, trial):
            view.looked_s = asyncio.get_running_loop().time()  # nobody else had claimed that place
            self._has_moved(view)

    def _has_moved(self, view: View) -> None:
        if len(view.tail) > 2 * self._tail_room:
            del view.tail[: -self._tail_room]
        self._on_advance(view.partition)

    async def take_in(self, view: View, chain: Chain, offset_start: int, *, confirmed: bool) -> bool:
        """Move the view forward by claims that were scanned from `offset_start` on. False: the scan did not count,
        because a trim went by, and the view was read anew. Raises Missing if the log is gone."""
        if chain.floor is None:
            if confirmed:
                self.forget(view.partition)
                raise Missing(f"log {view.partition} is gone: its topic was deleted")
            await self._catch_up(view, confirmed=True)
            return False
        if not rules.floor_allows(chain.floor, offset_start) or not rules.is_gapless(chain.claims, offset_start):
            await self._reopen(view)
            return False
        view.floor = max(view.floor, chain.floor)
        self.learn(view, chain.claims)
        return True

    async def claims_from(self, view: View, offset: int) -> list[Dated]:
        """Claims from the one that holds `offset` on, which lies between the floor and the end. None are returned if
        they were trimmed meanwhile; the view then knows its new floor."""
        found = view.claims_from(offset)
        if found is not None:
            return found
        holder = await self._claims.holding(view.partition, offset)
        if holder is None:
            await self._reopen(view)
            return []
        offset_start = holder.claim.offset_start
        chain = await self._claims.scan(view.partition, offset_start, limit=PAGE_CLAIMS)
        counts = chain.floor is not None and rules.floor_allows(chain.floor, offset_start)
        if not counts or not rules.is_gapless(chain.claims, offset_start):
            await self._reopen(view)
            return []
        self._turn_page(view, chain.claims)
        await self.look_at_start(view)  # a reader that is far behind may be before it
        return view.claims_from(offset) or []

    def _turn_page(self, view: View, claims: list[Dated]) -> None:
        view.page = claims
        self._paged[view.partition] = view
        self._paged.move_to_end(view.partition)
        if len(self._paged) > PAGES_MAX:
            _, longest_ago = self._paged.popitem(last=False)
            longest_ago.page = []

    async def save_fold(self, view: View) -> None:
        """Store the fold as it is now, or a little later, unless a newer one is stored. It only moves forward."""
        target = view.offset_end  # not the end as it moves: claims may come faster than folds are stored
        while rules.saves_fold(target, view.fold_offset):
            view.fold.forget_aborted_below(view.floor)
            offset, body, first = view.offset_end, view.fold.encode(), view.fold_version is None
            try:
                view.fold_version = await self._claims.save_fold(view.partition, body, view.fold_version)
                view.fold_offset = offset
                if first and await self._claims.floor(view.partition) is None:
                    await self._claims.delete_fold(view.partition)  # the topic was deleted just before
            except Conflict:
                if not await self._adopt_fold(view):
                    return
        view.claims_since_fold = 0

    async def close(self) -> None:
        await self._looks.close()

    def kill(self) -> None:
        self._looks.kill()

    async def _adopt_fold(self, view: View) -> bool:
        """Somebody else stored a fold: compare with that one from now on. False: the log is gone."""
        stored = await self._claims.load_fold(view.partition, confirmed=True)
        if stored is None:
            return False
        view.fold_version = stored.version
        view.fold_offset = Fold.decode(stored.body, str(view.partition)).offset_end
        return True

    async def _catch_up(self, view: View, *, confirmed: bool) -> None:
        begun_s = asyncio.get_running_loop().time()
        offset_start = view.offset_end
        chain = await self._claims.scan(view.partition, offset_start, confirmed=confirmed)
        await self.take_in(view, chain, offset_start, confirmed=confirmed)
        view.looked_s = max(view.looked_s, begun_s)
        view.floor_seen_s = max(view.floor_seen_s, begun_s)

    async def _reopen(self, view: View) -> None:
        newer = await self._load(view.partition, confirmed=True)
        if newer.offset_end < view.offset_end:  # a claim of ours was answered meanwhile: what we have is newer
            view.floor = max(view.floor, newer.floor)
        else:
            view.become(newer)
        self._on_advance(view.partition)

    async def _open(self, partition: PartitionId) -> None:
        if partition not in self._views:
            view = await self._load(partition, confirmed=False)
            self._views.setdefault(partition, view)
            if len(self._views) > VIEWS_MAX:
                del self._views[next(iter(self._views))]  # any view can be thrown away and opened again

    async def _load(self, partition: PartitionId, *, confirmed: bool) -> View:
        """The fold, then the claims behind it. If a trim goes by between the two, the claims do not follow: again."""
        for _ in range(OPEN_TRIES):
            begun_s = asyncio.get_running_loop().time()
            stored = await self._claims.load_fold(partition, confirmed=confirmed)
            fold = Fold() if stored is None else Fold.decode(stored.body, str(partition))
            view = View(partition, fold, None if stored is None else stored.version, 0)
            await self.look_at_start(view)  # before the end is read: a log starts before it ends
            chain = await self._claims.scan(partition, view.offset_end, confirmed=confirmed)
            if chain.floor is None and confirmed:
                self.forget(partition)
                raise Missing(f"log {partition} is gone: its topic was deleted")
            confirmed = True
            if chain.floor is None or not rules.floor_allows(chain.floor, view.offset_end):
                continue
            if rules.is_gapless(chain.claims, view.offset_end):
                view.floor = chain.floor
                view.floor_seen_s = begun_s
                view.learn(chain.claims)
                del view.tail[: -self._tail_room]
                return view
        raise Unavailable(
            f"log {partition} could not be opened: its chain changed under {OPEN_TRIES} readings; try again"
        )


_Look: TypeAlias = tuple[str, PartitionId]


class _Looks:
    """At most one look of a kind at a log is under way; those who come meanwhile share the next one. Joining the one
    under way would not do: it may have read before what they must see was written."""

    def __init__(self) -> None:
        self._running: dict[_Look, asyncio.Task[None]] = {}
        self._waiting: dict[_Look, asyncio.Task[None]] = {}

    async def look(self, what: _Look, how: Callable[[], Coroutine[None, None, None]]) -> None:
        task = self._waiting.get(what)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._run(what, how), name="log.look")
            task.add_done_callback(_retrieved)
            self._waiting[what] = task
        await asyncio.shield(task)

    async def _run(self, what: _Look, how: Callable[[], Coroutine[None, None, None]]) -> None:
        before = self._running.get(what)
        if before is not None:
            await asyncio.wait([before])
        task = self._running[what] = self._waiting.pop(what)
        try:
            await how()
        finally:
            if self._running.get(what) is task:
                del self._running[what]

    async def close(self) -> None:
        self.kill()
        tasks = [*self._running.values(), *self._waiting.values()]
        if tasks:
            await asyncio.wait(tasks)

    def kill(self) -> None:
        for task in (*self._running.values(), *self._waiting.values()):
            task.cancel()


def _nobody(partition: PartitionId) -> None:
    return None


def _retrieved(task: asyncio.Task[None]) -> None:
    """All who waited may have left: its error is nobody's then."""
    if not task.cancelled():
        task.exception()


def _offset_start(dated: Dated) -> int:
    return dated.claim.offset_start
