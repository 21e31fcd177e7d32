"""Retries a claim that did not succeed at the first attempt: conflict, lost answer, stale, or partition not loaded.

Works on the first extent of one partition queue of claimer.py. Nothing is guessed: after every result that leaves a
doubt the chain is read, and only what is read there counts.
"""

import asyncio
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from lakestream.config.settings import LogSettings
from lakestream.data.log import rules
from lakestream.data.log.claimer import ClaimDraft, Claimer, CreateResult, PartitionQueue, uncertain
from lakestream.data.log.partition_view import PartitionView, PartitionViews
from lakestream.errors import Conflict, LakestreamError, Missing, Unavailable
from lakestream.metadata.claims import BatchInfo, Claim, Claimed, Claims
from lakestream.model import PartitionId


class CreateOutcome(Enum):
    """Outcome of a create."""

    CREATED = auto()  # it took effect
    TAKEN = auto()  # another claim has the offset
    ABSENT = auto()  # no claim has the offset yet: the same claim may be tried again
    TRIMMED = auto()  # a trim passed it: its outcome cannot be read, and the view was loaded again


class _Outcome(NamedTuple):
    kind: CreateOutcome
    created_ms: int = 0


TransactionCheck: TypeAlias = Callable[[PartitionId, BatchInfo], Coroutine[None, None, int | LakestreamError]]
"""Returns the ongoing transaction of a batch's producer that has this partition, or an error if there is none. Raises
Unavailable if the coordinator cannot decide now."""


class ClaimRetrier:
    def __init__(
        self, claims: Claims, views: PartitionViews, check_transaction: TransactionCheck, settings: LogSettings
    ) -> None:
        self.claims = claims
        self.views = views
        self.check_transaction = check_transaction
        self._timeout_ms = settings.append_timeout_ms
        self._interval_ms = settings.retry_interval_ms

    async def run(
        self, claimer: Claimer, queue: PartitionQueue, draft: ClaimDraft | None, result: CreateResult | None
    ) -> None:
        """Completes the queue's first extent, or raises the error of its batches. Time counts from when it was queued:
        it may have spent most of it behind other retries."""
        deadline_s = queue.extents[0].queued_s + self._timeout_ms / 1000
        if draft is None and asyncio.get_running_loop().time() >= deadline_s:
            raise Unavailable(
                f"the batch is not stored: earlier batches of {queue.partition} got no clear response for"
                f" {self._timeout_ms / 1000:g} s"
            )
        loop = _RetryLoop(self, claimer, queue, draft, result)
        try:
            async with asyncio.timeout_at(deadline_s):
                while not await loop.step():
                    await loop.pause(self._interval_ms)
        except TimeoutError:
            raise loop.timed_out(self._timeout_ms) from None


class _RetryLoop:
    def __init__(
        self,
        retrier: ClaimRetrier,
        claimer: Claimer,
        queue: PartitionQueue,
        draft: ClaimDraft | None,
        result: CreateResult | None,
    ) -> None:
        self._claims = retrier.claims
        self._views = retrier.views
        self._check_transaction = retrier.check_transaction
        self._claimer = claimer
        self._queue = queue
        self._extent = queue.extents[0]
        self._draft = draft
        """The claim whose outcome is still open."""
        self._result = result
        self._in_doubt = _is_unclear(result)
        """A create of that claim had no clear result: it may have taken effect at any time since."""
        self._error: Unavailable | None = None
        """The store's error in the last whole step, if any: the message has it also if the next step hangs."""

    async def step(self) -> bool:
        """Tries once. Returns True when the extent is complete."""
        try:
            return await self._try()
        except Unavailable as error:
            self._error = error
            return False

    async def pause(self, interval_ms: int) -> None:
        await asyncio.sleep(0 if self._error is None else interval_ms / 1000)

    async def _try(self) -> bool:
        view = await self._views.get(self._queue.partition)
        if self._draft is not None and await self._resolve(view, self._draft):
            return True
        if self._extent.location is None:
            await self._extent.writer.rewrite_extent(self._extent)
        draft = self._draft or await self._prepare(view)
        if draft.claim is None:
            self._claimer.complete(view, draft, None)
            return True
        self._draft, self._result = draft, None
        in_doubt, self._in_doubt = self._in_doubt, True  # if this is cut short, it may take effect all the same
        (self._result,) = await self._claimer.create([(self._queue.partition, draft.claim)])
        self._claimer.counts.conflicts += isinstance(self._result, Conflict)
        self._in_doubt = in_doubt or _is_unclear(self._result)
        self._error = self._result if isinstance(self._result, Unavailable) else None
        return False

    async def _resolve(self, view: PartitionView, draft: ClaimDraft) -> bool:
        """Finds the outcome of the last create. Returns True if the extent is complete; else `_draft` is None, or is
        the claim to repeat."""
        assert draft.claim is not None
        outcome, created_ms = await self._outcome_of(view, draft.claim)
        if outcome is CreateOutcome.ABSENT:
            return False
        in_doubt, self._in_doubt, self._draft = self._in_doubt, False, None
        if outcome is CreateOutcome.CREATED and not rules.is_stale(draft.claim, created_ms):
            self._claimer.complete(view, draft, created_ms)
            return True
        if outcome is not CreateOutcome.TAKEN:
            # Stale, or below the floor. The bytes may have been claimed, moved to the table and deleted meanwhile, or
            # may soon be deleted as an orphan, so they are stored again: an extent is never claimed twice.
            self._extent.location = None
            if outcome is CreateOutcome.TRIMMED and in_doubt:
                self._queue.fail_without_producer(
                    self._extent, uncertain("the response to its claim was lost, and the log trimmed since")
                )
            if not self._extent.items:
                return True
            await self._views.refresh(view, confirmed=True)
        return False

    async def _outcome_of(self, view: PartitionView, claim: Claim) -> _Outcome:
        result = self._result
        if not isinstance(result, Claimed):
            return await self._read_outcome(view, claim, confirmed=not isinstance(result, Conflict))
        if result.floor is None:
            await self._delete_claim_of_deleted_topic(claim)
        elif not rules.floor_allows(result.floor, claim.offset_start):
            return _Outcome(CreateOutcome.TRIMMED)
        return _Outcome(CreateOutcome.CREATED, result.created_ms)

    async def _read_outcome(self, view: PartitionView, claim: Claim, *, confirmed: bool) -> _Outcome:
        """Reads the chain at the claim's offset. A create whose response was lost may have taken effect, and a
        rejected one may conflict with its own earlier attempt: a blind retry would give the same records two
        offsets."""
        offset = claim.offset_start
        chain = await self._claims.scan(view.partition, offset, confirmed=confirmed)
        if not await self._views.apply_scan(view, chain, offset, confirmed=confirmed):
            return _Outcome(CreateOutcome.TRIMMED)
        if chain.claims:
            first = chain.claims[0]
            return (
                _Outcome(CreateOutcome.CREATED, first.created_ms)
                if rules.is_own_claim(first.claim, claim)
                else _Outcome(CreateOutcome.TAKEN)
            )
        if confirmed:
            return _Outcome(CreateOutcome.ABSENT)
        return await self._read_outcome(view, claim, confirmed=True)  # refused, yet absent: a former leader answered

    async def _prepare(self, view: PartitionView) -> ClaimDraft:
        """Prepares a claim. A batch is rejected only by a view that the store's leader confirmed after it arrived."""
        while True:
            draft = self._claimer.prepare(self._queue, view)
            if draft.needs_confirming:
                await self._views.refresh(view, confirmed=True)
                draft = self._claimer.prepare(self._queue, view)
            offset = view.offset_end
            if await self._transactions_match(draft) and rules.opens_at(offset, view.offset_end):
                return draft

    async def _transactions_match(self, draft: ClaimDraft) -> bool:
        """Returns whether all transactions that start with this draft are ongoing. Checked after the view reached its
        end: the marker that ends a transaction is appended later, so it comes after the batch, or takes its offset and
        rejects it.

        The transaction of a batch was read from memory when the batch arrived. It may have been the one before."""
        ids = {id(batch) for batch in draft.transaction_checks}
        checks = [(index, batch) for index, batch in enumerate(self._extent.batches) if id(batch) in ids]
        results = await asyncio.gather(*(self._check_transaction(self._queue.partition, batch) for _, batch in checks))
        match = True
        for (index, batch), transaction in zip(checks, results, strict=True):
            if isinstance(transaction, LakestreamError):
                self._extent.items[index].rejection = transaction
            elif transaction != batch.transaction:
                self._extent.set_transaction(index, transaction)
            else:
                continue
            match = False
        return match

    async def _delete_claim_of_deleted_topic(self, claim: Claim) -> None:
        """Deletes the claim, which nothing will read: the id of a deleted topic is never used again."""
        partition = self._queue.partition
        self._draft = None
        self._views.forget(partition)
        await self._claims.delete(partition, claim.offset_start)
        raise Missing(f"partition {partition} does not exist: its topic was deleted")

    def timed_out(self, timeout_ms: int) -> Unavailable:
        reason = (
            f"no clear response within {timeout_ms / 1000:g} s:"
            f" {self._error or 'too many other brokers append to this partition'}"
        )
        if self._draft is not None:
            return uncertain(reason)
        return Unavailable(f"the batch is not stored: {reason}")


def _is_unclear(result: CreateResult | None) -> bool:
    """Returns True if there is no clear result, or a clear one to a create that the store's client had tried before
    without a clear result."""
    return isinstance(result, Unavailable) or (isinstance(result, Claimed) and result.repeated)
