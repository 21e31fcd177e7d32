"""Write path, step 3: assigns offsets to stored extents by creating claims.

Before: data/wal/writer.py.  After: metadata/claims.py, then the futures of the batches.

The extents of each partition are claimed one after another, in the order of `claim` calls, with at most one create in
flight. The claims of all partitions that are ready go to the store together. Most succeed, and that is the whole of the
fast path (`_claim_first_extents`). A claim that was refused, lost or in doubt is retried on its own
(claim_retry.py), which delays no other partition.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from lakestream.clock import Clock
from lakestream.config.settings import LogSettings
from lakestream.data.log import rules
from lakestream.data.log.clock_skew import ClockSkewMonitor
from lakestream.data.log.partition_state import Accepted, BatchValidation, Duplicate
from lakestream.data.log.partition_view import PartitionView, PartitionViews
from lakestream.data.log.topic_counts import TopicCounter, TopicCounts
from lakestream.data.log.writer_router import ArrivalSequence
from lakestream.data.wal.buffer import Appended, Extent, PendingBatch
from lakestream.data.wal.reader import Reader
from lakestream.errors import Conflict, LakestreamError, Unavailable, Uncertain
from lakestream.metadata.claims import BatchInfo, Claim, Claimed, Claims, StoredClaim
from lakestream.model import PartitionId
from lakestream.records.batch import RecordBatch

log = logging.getLogger(__name__)

FAILED_PRODUCERS_MAX: Final = 1_000

CreateResult: TypeAlias = Claimed | Conflict | Unavailable


class ClaimDraft(NamedTuple):
    """The claim that an extent can make at the end of a view, and the batches that it cannot contain."""

    claim: Claim | None
    accepted: list[PendingBatch]
    not_accepted: list[tuple[PendingBatch, Duplicate | LakestreamError]]
    validation: BatchValidation

    @property
    def transaction_checks(self) -> list[BatchInfo]:
        """Batches whose transaction the coordinator must confirm."""
        return self.validation.transaction_starts + self.validation.transaction_mismatches

    @property
    def needs_confirming(self) -> bool:
        rejections = sum(isinstance(verdict, LakestreamError) for _, verdict in self.not_accepted)
        return bool(self.validation.transaction_mismatches) or rules.needs_confirming(rejections, len(self.accepted))


class FailedBatch(NamedTuple):
    """A failed batch of a producer. Its batches that arrived between this one and the failure fail too: none of them
    may overtake it. The producer receives the error later, so batches that follow the failed one later still are
    rejected too, unless the partition's state has the producer and can validate them."""

    after_number: int
    upto_number: int
    error: LakestreamError
    epoch: int
    sequence: int
    """Of the failed batch."""

    def is_before(self, batch: RecordBatch) -> bool:
        return batch.producer_epoch == self.epoch and 0 <= self.sequence < batch.base_sequence


class PartitionQueue:
    """The extents of one partition that wait for their claims."""

    __slots__ = ("extents", "failures", "partition")

    def __init__(self, partition: PartitionId) -> None:
        self.partition = partition
        self.extents: deque[Extent] = deque()
        self.failures: dict[int, FailedBatch] = {}

    def fail(self, extent: Extent, error: LakestreamError, upto_number: int) -> None:
        for item in extent.items:
            if item.batch.has_producer and (item.future.cancelled() or not item.future.done()):
                batch = item.batch
                self._remember(
                    item, FailedBatch(item.number, upto_number, error, batch.producer_epoch, batch.base_sequence)
                )
            item.complete(error)
        while len(self.failures) > FAILED_PRODUCERS_MAX:
            del self.failures[next(iter(self.failures))]

    def fail_without_producer(self, extent: Extent, error: LakestreamError) -> None:
        """Fails and removes the batches without a producer id: only a sequence shows whether the log has a batch."""
        for item in extent.items:
            if not item.batch.has_producer:
                item.complete(error)
        extent.items = [item for item in extent.items if item.batch.has_producer]

    def _remember(self, item: PendingBatch, failure: FailedBatch) -> None:
        """Merges a producer's failures into one until the producer starts again: batches behind the first failed one
        can still be in this queue. If it has started again already, these fail once more and are sent once more."""
        earlier = self.failures.get(item.batch.producer_id)
        if earlier is not None and earlier.epoch == failure.epoch:
            first = failure if failure.after_number < earlier.after_number else earlier
            failure = first._replace(
                upto_number=max(failure.upto_number, earlier.upto_number),
                sequence=min(failure.sequence, earlier.sequence),
            )
        self.failures[item.batch.producer_id] = failure

    def failure_of(self, item: PendingBatch, validation: BatchValidation) -> LakestreamError | None:
        failure = self.failures.get(item.batch.producer_id)
        if failure is None or item.number <= failure.after_number:
            return None
        if item.number <= failure.upto_number:
            return failure.error
        if failure.is_before(item.batch) and not validation.has_producer(item.batch.producer_id):
            return failure.error
        del self.failures[item.batch.producer_id]  # the producer has received the error and starts again
        return None


class ClaimCounts:
    """Totals since the start."""

    __slots__ = ("batches", "bytes", "claims", "conflicts", "records", "retries")

    def __init__(self) -> None:
        self.claims = 0
        self.batches = 0
        self.records = 0
        self.bytes = 0
        self.conflicts = 0  # the offset was claimed already
        self.retries = 0  # claims that were not made by the first create, for whatever reason

    def add(self, claim: Claim, topic: TopicCounter) -> None:
        batches = len(claim.batches)
        records = claim.offset_end - claim.offset_start
        size = claim.batches[-1].byte_end - claim.batches[0].byte_start
        self.claims += 1
        self.batches += batches
        self.records += records
        self.bytes += size
        topic.produced_batches += batches
        topic.produced_records += records
        topic.produced_bytes += size


class ClaimRetry(Protocol):
    """Retries claims; implemented in claim_retry.py, which uses `prepare`, `create` and `complete` of the claimer."""

    async def run(
        self, claimer: "Claimer", queue: PartitionQueue, draft: ClaimDraft | None, result: CreateResult | None
    ) -> None:
        """Completes the first extent of a queue, or raises the error of its batches."""
        ...


class Claimer:
    def __init__(
        self,
        claims: Claims,
        views: PartitionViews,
        reader: Reader,
        skew: ClockSkewMonitor,
        clock: Clock,
        numbers: ArrivalSequence,
        retry: ClaimRetry,
        topics: TopicCounts,
        settings: LogSettings,
    ) -> None:
        self._claims = claims
        self._views = views
        self._reader = reader
        self._skew = skew
        self._clock = clock
        self._numbers = numbers
        self._retry = retry
        self._timeout_ms = settings.append_timeout_ms // 2  # the other half is left to read the outcome of the create
        self._save_every_claims = settings.fold_every_claims
        self._queues: dict[PartitionId, PartitionQueue] = {}
        self._saving: set[PartitionId] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts = ClaimCounts()
        self._topics = topics

    def claim(self, extents: list[Extent]) -> None:
        """Queues stored extents, in the order in which they are to be claimed."""
        ready = []
        now_s = asyncio.get_running_loop().time()
        for extent in extents:
            extent.queued_s = now_s
            queue = self._queue(extent.partition)
            queue.extents.append(extent)
            if len(queue.extents) == 1:
                ready.append(queue)
        if ready:
            self._spawn(self._claim_first_extents(ready), "log.claim")

    def fail(self, extents: list[Extent], error: LakestreamError) -> None:
        """Fails extents that could not be stored."""
        for extent in extents:
            self._queue(extent.partition).fail(extent, error, self._numbers.last())
            extent.writer.finish(extent)

    async def drain(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def kill(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _claim_first_extents(self, queues: list[PartitionQueue]) -> None:
        """Claims the first extent of each queue, all in one round trip; repeats with the queues that have more."""
        while queues:
            drafts = []
            for queue in queues:
                view = self._views.cached(queue.partition)
                draft = None if view is None else self.prepare(queue, view)
                if view is None or draft is None or draft.claim is None or draft.transaction_checks:
                    self._start_retry(queue, None, None)
                else:
                    drafts.append((queue, view, draft, draft.claim))
            results = await self.create([(queue.partition, claim) for queue, _, _, claim in drafts])
            queues = []
            for (queue, view, draft, claim), result in zip(drafts, results, strict=True):
                if isinstance(result, Claimed) and is_valid_claim(claim, result):
                    self.complete(view, draft, result.created_ms)
                    if self._next(queue):
                        queues.append(queue)
                else:
                    self._start_retry(queue, draft, result)

    def prepare(self, queue: PartitionQueue, view: PartitionView) -> ClaimDraft:
        """Validates every batch of the queue's first extent against the view."""
        extent = queue.extents[0]
        appended_ms = self._clock.now_ms()
        validation = BatchValidation(view.state, appended_ms)
        accepted: list[PendingBatch] = []
        batches: list[BatchInfo] = []
        not_accepted: list[tuple[PendingBatch, Duplicate | LakestreamError]] = []
        for item, batch in zip(extent.items, extent.batches, strict=True):
            verdict = (
                item.rejection
                or (queue.failure_of(item, validation) if queue.failures else None)
                or validation.validate(batch)
            )
            if isinstance(verdict, Accepted):
                accepted.append(item)
                batches.append(batch)
            else:
                not_accepted.append((item, verdict))
        claim = None
        if accepted:
            claim = _claim_of(extent, view.offset_end, validation.offset, appended_ms, accepted, batches)
        return ClaimDraft(claim, accepted, not_accepted, validation)

    async def create(self, claims: list[tuple[PartitionId, Claim]]) -> Sequence[CreateResult]:
        if not claims:
            return []
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                return await self._claims.create(claims)
        except TimeoutError:
            return [uncertain(f"no response within {self._timeout_ms / 1000:g} s")] * len(claims)
        except LakestreamError as error:
            return [error if isinstance(error, Unavailable) else uncertain(str(error))] * len(claims)

    def complete(self, view: PartitionView, draft: ClaimDraft, created_ms: int | None) -> None:
        """Completes the futures of an extent. Its claim, if there is one, was created at `created_ms`."""
        if draft.claim is not None and created_ms is not None:
            self.counts.add(draft.claim, self._topics.of(view.partition.topic_id))
            self._skew.observe(draft.claim.appended_ms, created_ms)
            self._reader.keep(draft.claim, tuple(item.batch.data for item in draft.accepted))
            self._views.apply_own_claim(view, StoredClaim(draft.claim, created_ms), draft.validation)
            offset = draft.claim.offset_start
            for item in draft.accepted:
                offset_end = offset + item.batch.record_count
                item.complete(Appended(offset, offset_end))
                offset = offset_end
        for item, verdict in draft.not_accepted:
            item.complete(_appended_duplicate(item, verdict) if isinstance(verdict, Duplicate) else verdict)
        if view.claims_since_save >= self._save_every_claims:
            self._start_save(view)

    def _next(self, queue: PartitionQueue) -> bool:
        """Removes the first extent, whose futures are complete; returns whether there is another."""
        if not queue.extents:
            return False  # `_fail_all` emptied the queue meanwhile
        extent = queue.extents.popleft()
        extent.writer.finish(extent)
        if not queue.extents and not queue.failures:
            del self._queues[queue.partition]
        return bool(queue.extents)

    def _start_retry(self, queue: PartitionQueue, draft: ClaimDraft | None, result: CreateResult | None) -> None:
        self.counts.retries += 1
        self.counts.conflicts += isinstance(result, Conflict)
        self._spawn(self._run_retry(queue, draft, result), "log.claim_retry")

    async def _run_retry(self, queue: PartitionQueue, draft: ClaimDraft | None, result: CreateResult | None) -> None:
        """Completes the queue's first extent, then continues with the others on the fast path."""
        try:
            await self._retry.run(self, queue, draft, result)
        except LakestreamError as error:
            self._fail_first(queue, error)
        except Exception as error:
            log.exception("log.claim_failed partition=%s", queue.partition)
            self._fail_first(queue, uncertain(repr(error)))
        if self._next(queue):
            await self._claim_first_extents([queue])

    def _fail_first(self, queue: PartitionQueue, error: LakestreamError) -> None:
        if queue.extents:
            queue.fail(queue.extents[0], error, self._numbers.last())

    def _start_save(self, view: PartitionView) -> None:
        if view.partition not in self._saving:
            self._saving.add(view.partition)
            self._spawn(self._save_state(view), "log.state_save")

    async def _save_state(self, view: PartitionView) -> None:
        try:
            await self._views.save_state(view)
        except LakestreamError as error:
            # The next claim tries again.
            log.warning("log.state_save_failed partition=%s error=%s", view.partition, error)
        finally:
            self._saving.discard(view.partition)

    def _queue(self, partition: PartitionId) -> PartitionQueue:
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = PartitionQueue(partition)
        return queue

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical("log.claimer_failed", exc_info=error)
            self._fail_all(error)

    def _fail_all(self, error: BaseException) -> None:
        """Fails all queued extents and drops their views: a bug in here must not leave requests waiting."""
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            self._views.forget(queue.partition)
            for extent in queue.extents:
                queue.fail(extent, uncertain(repr(error)), self._numbers.last())
                extent.writer.finish(extent)
            queue.extents.clear()


def is_valid_claim(claim: Claim, result: Claimed) -> bool:
    """Returns whether the claim was created, not below the floor, and in time."""
    return (
        result.floor is not None
        and rules.floor_allows(result.floor, claim.offset_start)
        and not rules.is_stale(claim, result.created_ms)
    )


def uncertain(reason: str) -> Uncertain:
    return Uncertain(
        f"the batch may or may not be stored ({reason}); send it again: from an idempotent producer it is stored once"
    )


def _appended_duplicate(item: PendingBatch, duplicate: Duplicate) -> Appended:
    return Appended(duplicate.offset_start, duplicate.offset_start + item.batch.record_count, duplicate=True)


def _claim_of(
    extent: Extent,
    offset_start: int,
    offset_end: int,
    appended_ms: int,
    items: list[PendingBatch],
    batches: list[BatchInfo],
) -> Claim:
    location = extent.location
    assert location is not None, "bytes first, order second"
    return Claim(
        offset_start,
        offset_end,
        extent.next_claim_id(),
        extent.writer.writer_id,
        location.medium,
        location.name,
        location.stored_ms,
        appended_ms,
        max(item.batch.max_timestamp for item in items),
        tuple(batches),
    )
