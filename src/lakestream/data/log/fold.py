"""The fold over a chain of claims: all that is known of a log besides its bytes. Pure.

It runs the same in every broker, in the pipeline and in the simulation, so idempotence and transactions hold across
brokers without coordination. It knows no clock: producers expire by the append times that claims carry.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

import msgspec

from lakestream.data.log import rules
from lakestream.errors import Corrupt, Fenced, OutOfOrder, Rejected, WrongTransaction
from lakestream.metadata.claims import NO_PRODUCER, NO_TRANSACTION, BatchInfo, Claim, Kind

FORMAT: Final = 1
NO_OFFSET: Final = -1


class Recent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One of a producer's last batches: a retry of it is answered with its first offset."""

    sequence_first: int
    sequence_last: int
    offset_start: int


class Producer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    epoch: int
    sequence_last: int
    recent: tuple[Recent, ...]
    appended_ms: int
    transaction: int = NO_TRANSACTION
    transaction_start: int = NO_OFFSET
    """First offset of its open transaction."""
    transaction_ended: int = NO_TRANSACTION
    """The newest transaction that ended: batches of it, or before it, come too late."""

    @property
    def in_transaction(self) -> bool:
        return self.transaction_start != NO_OFFSET


class Aborted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    producer_id: int
    offset_first: int
    offset_last: int
    """Of the abort marker."""


class Accepted(NamedTuple):
    """The batch may be appended."""


class Duplicate(NamedTuple):
    """The batch was appended before, at this offset."""

    offset_start: int


Verdict: TypeAlias = Accepted | Duplicate | OutOfOrder | Fenced | Rejected
ACCEPTED: Final = Accepted()


def judge(producer: Producer | None, batch: BatchInfo) -> Verdict:
    """May this batch follow what is known of its producer?"""
    if producer is None:
        return ACCEPTED  # forgotten or new: any sequence is a fine first one
    if not rules.epoch_is_current(batch.epoch, producer.epoch):
        return Fenced(f"producer {batch.producer_id} has epoch {producer.epoch}; epoch {batch.epoch} is of the past")
    if batch.kind >= Kind.COMMIT:
        return ACCEPTED
    return _judge_sequence(producer, batch) or _judge_transaction(producer, batch) or ACCEPTED


def _goes_on(producer: Producer | None, batch: BatchInfo) -> bool:
    """What nearly every batch does: follow the last one of its producer, outside of transactions. Only a short cut."""
    return (
        producer is not None
        and batch.kind is Kind.PLAIN
        and producer.transaction_start == NO_OFFSET
        and batch.epoch == producer.epoch
        and rules.sequence_follows(batch.sequence_first, producer.sequence_last)
    )


def _judge_sequence(producer: Producer, batch: BatchInfo) -> Duplicate | OutOfOrder | None:
    known = producer.sequence_last if batch.epoch == producer.epoch else -1
    if rules.sequence_follows(batch.sequence_first, known):
        return None
    if batch.epoch == producer.epoch:
        for recent in producer.recent:
            if (recent.sequence_first, recent.sequence_last) == (batch.sequence_first, batch.sequence_last):
                return Duplicate(recent.offset_start)
    return OutOfOrder(
        f"producer {batch.producer_id} epoch {batch.epoch}: sequence {batch.sequence_first} does not follow {known}"
    )


def _judge_transaction(producer: Producer, batch: BatchInfo) -> WrongTransaction | None:
    if batch.kind is Kind.PLAIN and not producer.in_transaction:
        return None
    who = f"producer {batch.producer_id}"
    if batch.kind is Kind.PLAIN:
        return WrongTransaction(f"{who} has an open transaction; this batch is outside of it")
    if batch.transaction != NO_TRANSACTION and batch.transaction <= producer.transaction_ended:
        return WrongTransaction(f"{who}: transaction {batch.transaction} has ended")
    if producer.in_transaction and batch.transaction != producer.transaction:
        return WrongTransaction(f"{who}: transaction {producer.transaction} is still open")
    return None


def advanced(producer: Producer | None, batch: BatchInfo, offset_start: int, appended_ms: int) -> Producer:
    """The producer after an accepted batch."""
    if batch.kind >= Kind.COMMIT:
        return _after_marker(producer, batch, appended_ms)
    recent = Recent(batch.sequence_first, batch.sequence_last, offset_start)
    started = offset_start if batch.kind is Kind.TRANSACTIONAL else NO_OFFSET
    if producer is None:
        return Producer(batch.epoch, batch.sequence_last, (recent,), appended_ms, batch.transaction, started)
    before = producer.recent[1 - rules.RECENT_BATCHES :] if producer.epoch == batch.epoch else ()
    return Producer(
        batch.epoch,
        batch.sequence_last,
        (*before, recent),
        appended_ms,
        batch.transaction,
        producer.transaction_start if producer.in_transaction else started,
        producer.transaction_ended,
    )


def _after_marker(producer: Producer | None, marker: BatchInfo, appended_ms: int) -> Producer:
    if producer is None:
        return Producer(marker.epoch, -1, (), appended_ms, transaction_ended=marker.transaction)
    if not _ends(producer, marker) and not _ends_nothing_here(producer, marker):
        return msgspec.structs.replace(producer, appended_ms=appended_ms)
    bumped = marker.epoch > producer.epoch
    return Producer(
        marker.epoch,
        -1 if bumped else producer.sequence_last,
        () if bumped else producer.recent,
        appended_ms,
        transaction_ended=max(producer.transaction_ended, marker.transaction),
    )


def _ends(producer: Producer, marker: BatchInfo) -> bool:
    """A marker of another transaction than the open one has no effect: a coordinator that wakes up late can never end
    half of the next one."""
    return producer.in_transaction and producer.transaction == marker.transaction


def _ends_nothing_here(producer: Producer, marker: BatchInfo) -> bool:
    """The transaction ended before a batch of it came: one that still comes is too late."""
    return not producer.in_transaction and marker.transaction > producer.transaction_ended


class Fold:
    """The state of one log up to `offset_end`."""

    def __init__(self) -> None:
        self.offset_end = 0
        self.appended_ms = 0
        """Running maximum of the append times in the claims."""
        self.timestamp_max = -1
        self.timestamp_offset = NO_OFFSET
        """Start of the claim that holds the newest timestamp."""
        self.aborted: list[Aborted] = []
        self._producers: dict[int, Producer] = {}  # least recently active first
        self._open: dict[int, int] = {}  # producer → first offset of its open transaction

    @property
    def last_stable_offset(self) -> int:
        return min(self._open.values()) if self._open else self.offset_end

    @property
    def producers(self) -> dict[int, Producer]:
        return self._producers

    def producer(self, producer_id: int, appended_ms: int) -> Producer | None:
        """What is known of a producer at that append time; one that was idle for too long is forgotten."""
        known = self._producers.get(producer_id)
        if known is None or known.in_transaction or appended_ms - known.appended_ms <= rules.PRODUCER_EXPIRY_MS:
            return known
        return None

    def apply(self, claim: Claim, created_ms: int) -> None:
        """Move over the next claim of the chain."""
        assert claim.offset_start == self.offset_end, f"claim at {claim.offset_start} applied at {self.offset_end}"
        if not rules.is_stale(claim, created_ms):
            self._apply_batches(claim)
        self.offset_end = claim.offset_end

    def adopt(self, claim: Claim, trial: "Trial") -> None:
        """The same as `apply`, for a claim of our own in time: its trial knows what became of its producers."""
        assert claim.offset_start == self.offset_end, f"claim at {claim.offset_start} adopted at {self.offset_end}"
        if not trial.holds_for(self) or not trial.is_plain:
            self._apply_batches(claim)
        else:
            self._note_times(claim)
            for producer_id, producer in trial.changed.items():
                self._producers.pop(producer_id, None)
                self._producers[producer_id] = producer
            self._forget_surplus()
        self.offset_end = claim.offset_end

    def _note_times(self, claim: Claim) -> None:
        if claim.appended_ms > self.appended_ms:
            self.appended_ms = claim.appended_ms
        if claim.max_timestamp > self.timestamp_max:
            self.timestamp_max, self.timestamp_offset = claim.max_timestamp, claim.offset_start

    def _apply_batches(self, claim: Claim) -> None:
        self._note_times(claim)
        offset = claim.offset_start
        for batch in claim.batches:
            if batch.producer_id != NO_PRODUCER:
                self._apply_batch(batch, offset)
            offset += batch.record_count
        self._forget_surplus()

    def _apply_batch(self, batch: BatchInfo, offset: int) -> None:
        before = self.producer(batch.producer_id, self.appended_ms)
        after = advanced(before, batch, offset, self.appended_ms)
        self._producers.pop(batch.producer_id, None)
        self._producers[batch.producer_id] = after
        if batch.kind is Kind.TRANSACTIONAL:
            self._open.setdefault(batch.producer_id, after.transaction_start)
        elif batch.kind >= Kind.COMMIT and before is not None and _ends(before, batch):
            first = self._open.pop(batch.producer_id)
            if batch.kind is Kind.ABORT:
                self.aborted.append(Aborted(batch.producer_id, first, offset))

    def _forget_surplus(self) -> None:
        """The least recently active go, as many as there are too many."""
        surplus = len(self._producers) - rules.PRODUCERS_MAX
        if surplus <= 0:
            return
        idle = (producer_id for producer_id, producer in self._producers.items() if not producer.in_transaction)
        for producer_id in [producer_id for producer_id, _ in zip(idle, range(surplus), strict=False)]:
            del self._producers[producer_id]

    def forget_aborted_below(self, offset: int) -> None:
        """Aborted records below the floor are gone: they never became rows."""
        self.aborted = [aborted for aborted in self.aborted if aborted.offset_last >= offset]

    def aborted_in(self, offset_start: int, offset_end: int) -> list[Aborted]:
        return [a for a in self.aborted if a.offset_first < offset_end and a.offset_last >= offset_start]

    def encode(self) -> bytes:
        kept = [(pid, producer) for pid, producer in self._producers.items() if self.producer(pid, self.appended_ms)]
        return _encode(
            _State(
                FORMAT,
                self.offset_end,
                self.appended_ms,
                self.timestamp_max,
                self.timestamp_offset,
                kept,
                self.aborted,
            )
        )

    @classmethod
    def decode(cls, body: bytes, what: str) -> "Fold":
        try:
            state = _decode(body)
        except (msgspec.DecodeError, ValueError) as error:
            raise Corrupt(
                f"fold of {what} cannot be read ({error}); restore the metadata store from a backup"
            ) from error
        if state.format != FORMAT:
            raise Corrupt(f"fold of {what} has format {state.format}; this program knows {FORMAT}: upgrade it")
        fold = cls()
        fold.offset_end, fold.appended_ms = state.offset_end, state.appended_ms
        fold.timestamp_max, fold.timestamp_offset = state.timestamp_max, state.timestamp_offset
        fold.aborted = state.aborted
        fold._producers = dict(state.producers)
        fold._open = {pid: p.transaction_start for pid, p in state.producers if p.in_transaction}
        return fold


class Trial:
    """What the fold would be if these batches were claimed now: judges the batches of one claim, one after another."""

    def __init__(self, fold: Fold, appended_ms: int) -> None:
        self.offset = self._offset_start = fold.offset_end
        self._fold = fold
        self._appended_ms = max(fold.appended_ms, appended_ms)
        self.changed: dict[int, Producer] = {}
        """Producers after the accepted batches, least recently active first."""
        self.is_plain = True
        """No transaction is touched."""
        self.openings: list[BatchInfo] = []
        """Accepted batches with which a transaction begins in this log."""
        self.misplaced: list[BatchInfo] = []
        """Batches that may not follow here in the transaction that they were taken for. It may not be theirs."""

    def holds_for(self, fold: Fold) -> bool:
        """A fold changes only by moving on: at the same offset it is as it was when it was tried."""
        return fold is self._fold and fold.offset_end == self._offset_start

    def judge(self, batch: BatchInfo) -> Verdict:
        """Accepted batches count as appended for those that follow."""
        if batch.producer_id == NO_PRODUCER:
            self.offset += batch.record_count
            return ACCEPTED
        producer = self._producer(batch.producer_id)
        verdict = ACCEPTED if _goes_on(producer, batch) else judge(producer, batch)
        if verdict is ACCEPTED:
            self.changed.pop(batch.producer_id, None)
            self.changed[batch.producer_id] = advanced(producer, batch, self.offset, self._appended_ms)
            if batch.kind is not Kind.PLAIN:
                self.is_plain = False
                if batch.kind is Kind.TRANSACTIONAL and (producer is None or not producer.in_transaction):
                    self.openings.append(batch)
            self.offset += batch.record_count
        elif batch.kind is Kind.TRANSACTIONAL and isinstance(verdict, WrongTransaction):
            self.misplaced.append(batch)
        return verdict

    def knows(self, producer_id: int) -> bool:
        return self._producer(producer_id) is not None

    def _producer(self, producer_id: int) -> Producer | None:
        return self.changed.get(producer_id) or self._fold.producer(producer_id, self._appended_ms)


def served(claim: Claim, created_ms: int) -> Iterator[tuple[int, BatchInfo]]:
    """The batches that a reader gets from a claim, with their offsets: none from one that came too late."""
    if rules.is_stale(claim, created_ms):
        return
    offset = claim.offset_start
    for batch in claim.batches:
        yield offset, batch
        offset += batch.record_count


class _State(msgspec.Struct, frozen=True, array_like=True):
    format: int
    offset_end: int
    appended_ms: int
    timestamp_max: int
    timestamp_offset: int
    producers: list[tuple[int, Producer]]
    aborted: list[Aborted]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode
