"""The long way of a claim that did not simply succeed: refused, lost, in doubt, too late, or its log not yet open.

Beside claimer.py, for one extent of one lane. Nothing is guessed here: after every answer that leaves a doubt the chain
is looked at, and only what is seen there is believed.
"""

import asyncio
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from lakestream.data.log import rules
from lakestream.data.log.claimer import Answer, Claimer, Draft, Lane, uncertain
from lakestream.data.log.view import View, Views
from lakestream.data.wal.buffer import Extent
from lakestream.errors import Conflict, LakestreamError, Missing, Unavailable
from lakestream.metadata.claims import BatchInfo, Claim, Claimed, Claims
from lakestream.model import PartitionId


class Fate(Enum):
    """What became of a create."""

    MADE = auto()  # it took effect
    TAKEN = auto()  # somebody else's claim is there
    ABSENT = auto()  # nothing is there yet: the same claim may be tried again
    PASSED = auto()  # a trim went by: nothing is known of it, and the view was read anew


class Outcome(NamedTuple):
    fate: Fate
    created_ms: int = 0


TransactionOf: TypeAlias = Callable[[PartitionId, BatchInfo], Coroutine[None, None, int | LakestreamError]]
"""Asks those who know of transactions which one of this producer is going on now, with this log in it; else why none.
Unavailable is raised: they cannot tell now."""


class Struggles:
    def __init__(
        self,
        claims: Claims,
        views: Views,
        store_again: Callable[[Extent], Coroutine[None, None, None]],
        transaction_of: TransactionOf,
        *,
        timeout_ms: int,
        retry_interval_ms: int,
    ) -> None:
        self._claims = claims
        self._views = views
        self._store_again = store_again
        self.transaction_of = transaction_of
        self._timeout_ms = timeout_ms
        self._retry_interval_ms = retry_interval_ms

    async def run(self, claimer: Claimer, lane: Lane, tried: Draft | None, answer: Answer | None) -> None:
        """Settle the lane's first extent, or raise what its producers shall hear. Time counts from when it was stored:
        it may have spent most of it behind others that struggled."""
        deadline_s = lane.queue[0].handed_on_s + self._timeout_ms / 1000
        if tried is None and asyncio.get_running_loop().time() >= deadline_s:
            raise Unavailable(
                f"the batch is not stored; those before it in its log had no clear answer for"
                f" {self._timeout_ms / 1000:g} s"
            )
        struggle = _Struggle(
            self._claims, self._views, self._store_again, self.transaction_of, claimer, lane, tried, answer
        )
        try:
            async with asyncio.timeout_at(deadline_s):
                while not await struggle.step():
                    await struggle.pause(self._retry_interval_ms)
        except TimeoutError:
            raise struggle.timed_out(self._timeout_ms) from None


class _Struggle:
    def __init__(
        self,
        claims: Claims,
        views: Views,
        store_again: Callable[[Extent], Coroutine[None, None, None]],
        transaction_of: TransactionOf,
        claimer: Claimer,
        lane: Lane,
        tried: Draft | None,
        answer: Answer | None,
    ) -> None:
        self._claims = claims
        self._views = views
        self._store_again = store_again
        self._transaction_of = transaction_of
        self._claimer = claimer
        self._lane = lane
        self._extent = lane.queue[0]
        self._tried = tried
        """The claim whose fate is not known yet."""
        self._answer = answer
        self._in_doubt = _leaves_doubt(answer)
        """A create of that claim got no clear answer: it may have taken effect at any time since."""
        self._error: Unavailable | None = None
        """The trouble with a store that the last whole step met, if any: it is told also if the next one hangs."""

    async def step(self) -> bool:
        """One try. True: the extent is settled."""
        try:
            return await self._try()
        except Unavailable as error:
            self._error = error
            return False

    async def pause(self, interval_ms: int) -> None:
        await asyncio.sleep(0 if self._error is None else interval_ms / 1000)

    async def _try(self) -> bool:
        view = await self._views.get(self._lane.partition)
        if self._tried is not None and await self._settled(view, self._tried):
            return True
        if self._extent.location is None:
            await self._store_again(self._extent)
        draft = self._tried or await self._draft(view)
        if draft.claim is None:
            self._claimer.settle(view, draft, None)
            return True
        self._tried, self._answer = draft, None
        in_doubt, self._in_doubt = self._in_doubt, True  # if this is cut short, it may take effect all the same
        (self._answer,) = await self._claimer.create([(self._lane.partition, draft.claim)])
        self._claimer.counts.conflicts += isinstance(self._answer, Conflict)
        self._in_doubt = in_doubt or _leaves_doubt(self._answer)
        self._error = self._answer if isinstance(self._answer, Unavailable) else None
        return False

    async def _settled(self, view: View, tried: Draft) -> bool:
        """Find out what became of the last create. True: it is the answer. Else `_tried` says whether to repeat it."""
        assert tried.claim is not None
        fate, created_ms = await self._fate(view, tried.claim)
        if fate is Fate.ABSENT:
            return False
        in_doubt, self._in_doubt, self._tried = self._in_doubt, False, None
        if fate is Fate.MADE and not rules.is_stale(tried.claim, created_ms):
            self._claimer.settle(view, tried, created_ms)
            return True
        if fate is not Fate.TAKEN:
            # Too late, or below the floor. The bytes may have been claimed, moved and swept by now, or be taken for an
            # orphan soon, so they are stored again: an extent is never claimed twice.
            self._extent.location = None
            if fate is Fate.PASSED and in_doubt:
                self._lane.fail_plain(self._extent, uncertain("its claim was lost, and the log trimmed since"))
            if not self._extent.items:
                return True
            await self._views.refresh(view, confirmed=True)
        return False

    async def _fate(self, view: View, claim: Claim) -> Outcome:
        answer = self._answer
        if not isinstance(answer, Claimed):
            return await self._look(view, claim, confirmed=not isinstance(answer, Conflict))
        if answer.floor is None:
            await self._log_is_gone(claim)
        elif not rules.floor_allows(answer.floor, claim.offset_start):
            return Outcome(Fate.PASSED)
        return Outcome(Fate.MADE, answer.created_ms)

    async def _look(self, view: View, claim: Claim, *, confirmed: bool) -> Outcome:
        """A create whose answer was lost may have taken effect, and one that was refused may have met itself: trying
        again blindly would give the same records two offsets."""
        offset = claim.offset_start
        chain = await self._claims.scan(view.partition, offset, confirmed=confirmed)
        if not await self._views.take_in(view, chain, offset, confirmed=confirmed):
            return Outcome(Fate.PASSED)
        if chain.claims:
            first = chain.claims[0]
            return Outcome(Fate.MADE, first.created_ms) if rules.is_mine(first.claim, claim) else Outcome(Fate.TAKEN)
        if confirmed:
            return Outcome(Fate.ABSENT)
        return await self._look(view, claim, confirmed=True)  # refused, yet not there: an old leader answered

    async def _draft(self, view: View) -> Draft:
        """A refusal comes only from a view that was read after the batch arrived, on a node that leads."""
        while True:
            draft = self._claimer.draft(self._lane, view)
            if draft.needs_confirming:
                await self._views.refresh(view, confirmed=True)
                draft = self._claimer.draft(self._lane, view)
            offset = view.offset_end
            if await self._is_right(draft) and rules.opens_at(offset, view.offset_end):
                return draft

    async def _is_right(self, draft: Draft) -> bool:
        """Whether all transactions that begin with this draft are going on. Asked after the view reached its end: the
        marker that ends one is appended later, so it comes behind the batch, or takes its place and refuses it.

        Which transaction a batch belongs to was known from memory when it came. That may have been the one before."""
        asked = {id(batch) for batch in draft.asks}
        asks = [(index, batch) for index, batch in enumerate(self._extent.batches) if id(batch) in asked]
        answers = await asyncio.gather(*(self._transaction_of(self._lane.partition, batch) for _, batch in asks))
        right = True
        for (index, batch), found in zip(asks, answers, strict=True):
            if isinstance(found, LakestreamError):
                self._extent.items[index].refusal = found
            elif found != batch.transaction:
                self._extent.relabel(index, found)
            else:
                continue
            right = False
        return right

    async def _log_is_gone(self, claim: Claim) -> None:
        """The topic was deleted. Its id never comes back, so the claim that nobody will ever look at can go."""
        partition = self._lane.partition
        self._tried = None
        self._views.forget(partition)
        await self._claims.delete(partition, claim.offset_start)
        raise Missing(f"log {partition} is gone: its topic was deleted")

    def timed_out(self, timeout_ms: int) -> Unavailable:
        why = f"no clear answer within {timeout_ms / 1000:g} s: {self._error or 'too many others append here'}"
        if self._tried is not None:
            return uncertain(why)
        return Unavailable(f"the batch is not stored; {why}")


def _leaves_doubt(answer: Answer | None) -> bool:
    """No clear answer; or a clear one to a create that the store's client had tried before without getting one."""
    return isinstance(answer, Unavailable) or (isinstance(answer, Claimed) and answer.repeated)
