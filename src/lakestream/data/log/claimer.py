"""Third step of the write path: stored extents get their offsets. The offsets are born here.

Before: data/wal/writer.py.  After: metadata/claims.py, and the producers' answers.

Each partition is a lane: its extents are claimed one after another, in the order handed over, with at most one create
in flight. The claims of all lanes that are ready go to the store together. Most succeed, and that is the whole of the
fast path (`_round`); a lane whose claim was refused, lost or in doubt goes on alone (struggle.py), holding up no other.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, NamedTuple, TypeAlias

from lakestream.batch import RecordBatch
from lakestream.clock import Clock
from lakestream.data.log import rules
from lakestream.data.log.fold import Accepted, Duplicate, Trial
from lakestream.data.log.skew import SkewGuard
from lakestream.data.log.view import View, Views
from lakestream.data.wal.buffer import Appended, Extent, Placed
from lakestream.errors import Conflict, LakestreamError, Unavailable, Uncertain
from lakestream.metadata.claims import BatchInfo, Claim, Claimed, Claims, Dated
from lakestream.model import PartitionId

log = logging.getLogger(__name__)

FAILED_PRODUCERS_MAX: Final = 1_000

Answer: TypeAlias = Claimed | Conflict | Unavailable


class Draft(NamedTuple):
    """What may be claimed of an extent at the end of a view, and what may not."""

    claim: Claim | None
    accepted: list[Placed]
    others: list[tuple[Placed, Duplicate | LakestreamError]]
    trial: Trial

    @property
    def asks(self) -> list[BatchInfo]:
        """Batches of transactions of which others know whether they go on."""
        return self.trial.openings + self.trial.misplaced

    @property
    def needs_confirming(self) -> bool:
        refusals = sum(isinstance(verdict, LakestreamError) for _, verdict in self.others)
        return bool(self.trial.misplaced) or rules.needs_confirming(refusals, len(self.accepted))


class Failure(NamedTuple):
    """A producer's batches that were sent between the one that failed and the moment it was told fail too: none of them
    may overtake the failed one. Who is told hears it a while later, so those that arrive behind the failed one later
    still are refused too, unless the log knows their producer and can judge by itself."""

    after_number: int
    upto_number: int
    error: LakestreamError
    epoch: int
    sequence: int
    """Of the failed batch."""

    def is_before(self, batch: RecordBatch) -> bool:
        return batch.producer_epoch == self.epoch and 0 <= self.sequence < batch.base_sequence


class Lane:
    """The extents of one partition that wait for their offsets."""

    __slots__ = ("failures", "partition", "queue")

    def __init__(self, partition: PartitionId) -> None:
        self.partition = partition
        self.queue: deque[Extent] = deque()
        self.failures: dict[int, Failure] = {}

    def fail(self, extent: Extent, error: LakestreamError, upto_number: int) -> None:
        for item in extent.items:
            if item.batch.has_producer and (item.answer.cancelled() or not item.answer.done()):
                batch = item.batch
                self._remember(
                    item, Failure(item.number, upto_number, error, batch.producer_epoch, batch.base_sequence)
                )
            answer(item, error)
        while len(self.failures) > FAILED_PRODUCERS_MAX:
            del self.failures[next(iter(self.failures))]

    def fail_plain(self, extent: Extent, error: LakestreamError) -> None:
        """Tell those of whom it cannot be known whether they are in the log: only a sequence would show it."""
        for item in extent.items:
            if not item.batch.has_producer:
                answer(item, error)
        extent.items = [item for item in extent.items if item.batch.has_producer]

    def _remember(self, item: Placed, failure: Failure) -> None:
        """Until its producer begins again, all that fails of it is one failure: what came behind the first may still
        wait in this lane. If it has begun again already, what waits fails once more, and comes once more."""
        known = self.failures.get(item.batch.producer_id)
        if known is not None and known.epoch == failure.epoch:
            first = failure if failure.after_number < known.after_number else known
            failure = first._replace(
                upto_number=max(failure.upto_number, known.upto_number), sequence=min(failure.sequence, known.sequence)
            )
        self.failures[item.batch.producer_id] = failure

    def failure_of(self, item: Placed, trial: Trial) -> LakestreamError | None:
        failure = self.failures.get(item.batch.producer_id)
        if failure is None or item.number <= failure.after_number:
            return None
        if item.number <= failure.upto_number:
            return failure.error
        if failure.is_before(item.batch) and not trial.knows(item.batch.producer_id):
            return failure.error
        del self.failures[item.batch.producer_id]  # it has heard, and begins again
        return None


class Counts:
    """What was claimed so far: plain additions, read when somebody asks."""

    __slots__ = ("batches", "bytes", "claims", "conflicts", "records", "struggles")

    def __init__(self) -> None:
        self.claims = 0
        self.batches = 0
        self.records = 0
        self.bytes = 0
        self.conflicts = 0  # somebody else's claim was there first
        self.struggles = 0  # claims that went the long way, for whatever reason

    def made(self, claim: Claim) -> None:
        self.claims += 1
        self.batches += len(claim.batches)
        self.records += claim.offset_end - claim.offset_start
        self.bytes += claim.batches[-1].byte_end - claim.batches[0].byte_start


class Claimer:
    def __init__(
        self,
        claims: Claims,
        views: Views,
        skew: SkewGuard,
        clock: Clock,
        *,
        struggle: Callable[["Claimer", Lane, Draft | None, Answer | None], Coroutine[None, None, None]],
        timeout_ms: int,
        fold_every_claims: int,
        numbers_given: Callable[[], int],
        on_claimed: Callable[[Claim, Sequence[Placed]], None],
    ) -> None:
        self._claims = claims
        self._views = views
        self._skew = skew
        self._clock = clock
        self._struggle = struggle
        self._timeout_ms = timeout_ms
        self._fold_every_claims = fold_every_claims
        self._numbers_given = numbers_given
        self._on_claimed = on_claimed
        self._lanes: dict[PartitionId, Lane] = {}
        self._folding: set[PartitionId] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts = Counts()

    def claim(self, extents: list[Extent]) -> None:
        """Take stored extents over, in the order in which they shall be claimed."""
        ready = []
        now_s = asyncio.get_running_loop().time()
        for extent in extents:
            extent.handed_on_s = now_s
            lane = self._lane(extent.partition)
            lane.queue.append(extent)
            if len(lane.queue) == 1:
                ready.append(lane)
        if ready:
            self._spawn(self._round(ready), "log.claim")

    def fail(self, extents: list[Extent], error: LakestreamError) -> None:
        """These could not be stored."""
        for extent in extents:
            self._lane(extent.partition).fail(extent, error, self._numbers_given())
            extent.on_settled(extent)

    async def drain(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def kill(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _round(self, lanes: list[Lane]) -> None:
        """Claim the first extent of each lane, all in one round trip; go on with the lanes that have more."""
        while lanes:
            drafts = []
            for lane in lanes:
                view = self._views.known(lane.partition)
                draft = None if view is None else self.draft(lane, view)
                if view is None or draft is None or draft.claim is None or draft.asks:
                    self._go_alone(lane, None, None)
                else:
                    drafts.append((lane, view, draft, draft.claim))
            answers = await self.create([(lane.partition, claim) for lane, _, _, claim in drafts])
            lanes = []
            for (lane, view, draft, claim), answer in zip(drafts, answers, strict=True):
                if isinstance(answer, Claimed) and counts(claim, answer):
                    self.settle(view, draft, answer.created_ms)
                    if self._next(lane):
                        lanes.append(lane)
                else:
                    self._go_alone(lane, draft, answer)

    def draft(self, lane: Lane, view: View) -> Draft:
        """Check every batch of the lane's first extent against the view."""
        extent = lane.queue[0]
        appended_ms = self._clock.now_ms()
        trial = Trial(view.fold, appended_ms)
        accepted: list[Placed] = []
        batches: list[BatchInfo] = []
        others: list[tuple[Placed, Duplicate | LakestreamError]] = []
        for item, batch in zip(extent.items, extent.batches, strict=True):
            verdict = item.refusal or (lane.failure_of(item, trial) if lane.failures else None) or trial.judge(batch)
            if isinstance(verdict, Accepted):
                accepted.append(item)
                batches.append(batch)
            else:
                others.append((item, verdict))
        claim = None
        if accepted:
            claim = _drawn_up(extent, view.offset_end, trial.offset, appended_ms, accepted, batches)
        return Draft(claim, accepted, others, trial)

    async def create(self, claims: list[tuple[PartitionId, Claim]]) -> Sequence[Answer]:
        if not claims:
            return []
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                return await self._claims.create(claims)
        except TimeoutError:
            return [uncertain(f"no answer within {self._timeout_ms / 1000:g} s")] * len(claims)
        except LakestreamError as error:
            return [error if isinstance(error, Unavailable) else uncertain(str(error))] * len(claims)

    def settle(self, view: View, draft: Draft, created_ms: int | None) -> None:
        """Answer the producers of an extent: its claim, if there is one, was made at `created_ms`."""
        if draft.claim is not None and created_ms is not None:
            self.counts.made(draft.claim)
            self._skew.observe(draft.claim.appended_ms, created_ms)
            self._on_claimed(draft.claim, draft.accepted)
            self._views.learn_own(view, Dated(draft.claim, created_ms), draft.trial)
            offset = draft.claim.offset_start
            for item in draft.accepted:
                offset_end = offset + item.batch.record_count
                answer(item, Appended(offset, offset_end))
                offset = offset_end
        for item, verdict in draft.others:
            answer(item, _appended_before(item, verdict) if isinstance(verdict, Duplicate) else verdict)
        if view.claims_since_fold >= self._fold_every_claims:
            self._save_fold(view)

    def _next(self, lane: Lane) -> bool:
        """The lane's first extent is settled; is there another?"""
        if not lane.queue:
            return False  # all was let go meanwhile
        extent = lane.queue.popleft()
        extent.on_settled(extent)
        if not lane.queue and not lane.failures:
            del self._lanes[lane.partition]
        return bool(lane.queue)

    def _go_alone(self, lane: Lane, draft: Draft | None, answer: Answer | None) -> None:
        self.counts.struggles += 1
        self.counts.conflicts += isinstance(answer, Conflict)
        self._spawn(self._alone(lane, draft, answer), "log.struggle")

    async def _alone(self, lane: Lane, draft: Draft | None, answer: Answer | None) -> None:
        """Settle the lane's first extent the long way; then it may ride along again."""
        try:
            await self._struggle(self, lane, draft, answer)
        except LakestreamError as error:
            self._fail_first(lane, error)
        except Exception as error:
            log.exception("log.claim_failed partition=%s", lane.partition)
            self._fail_first(lane, uncertain(repr(error)))
        if self._next(lane):
            await self._round([lane])

    def _fail_first(self, lane: Lane, error: LakestreamError) -> None:
        if lane.queue:
            lane.fail(lane.queue[0], error, self._numbers_given())

    def _save_fold(self, view: View) -> None:
        if view.partition not in self._folding:
            self._folding.add(view.partition)
            self._spawn(self._save_fold_of(view), "log.fold")

    async def _save_fold_of(self, view: View) -> None:
        try:
            await self._views.save_fold(view)
        except LakestreamError as error:
            log.warning("log.fold_not_saved partition=%s error=%s", view.partition, error)  # the next claim tries again
        finally:
            self._folding.discard(view.partition)

    def _lane(self, partition: PartitionId) -> Lane:
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = Lane(partition)
        return lane

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical("log.claimer_broken", exc_info=error)
            self._let_go(error)

    def _let_go(self, error: BaseException) -> None:
        """A bug in here must not leave producers waiting: tell all of them, and begin anew from the store."""
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            self._views.forget(lane.partition)
            for extent in lane.queue:
                lane.fail(extent, uncertain(repr(error)), self._numbers_given())
                extent.on_settled(extent)
            lane.queue.clear()


def counts(claim: Claim, answer: Claimed) -> bool:
    """It was created, not below the floor, and in time."""
    return (
        answer.floor is not None
        and rules.floor_allows(answer.floor, claim.offset_start)
        and not rules.is_stale(claim, answer.created_ms)
    )


def answer(item: Placed, said: Appended | LakestreamError) -> None:
    if item.answer.done():
        return  # its producer has left
    if isinstance(said, Appended):
        item.answer.set_result(said)
    else:
        item.answer.set_exception(said)


def uncertain(why: str) -> Uncertain:
    return Uncertain(
        f"the batch may or may not be stored ({why}); send it again: from an idempotent producer it is stored once"
    )


def _appended_before(item: Placed, duplicate: Duplicate) -> Appended:
    return Appended(duplicate.offset_start, duplicate.offset_start + item.batch.record_count, duplicate=True)


def _drawn_up(
    extent: Extent, offset_start: int, offset_end: int, appended_ms: int, items: list[Placed], batches: list[BatchInfo]
) -> Claim:
    location = extent.location
    assert location is not None, "bytes first, order second"
    return Claim(
        offset_start,
        offset_end,
        extent.next_claim_id(),
        extent.writer_id,
        location.medium,
        location.name,
        location.stored_ms,
        appended_ms,
        max(item.batch.max_timestamp for item in items),
        tuple(batches),
    )
