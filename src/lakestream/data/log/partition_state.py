"""State of a partition, computed from its chain of claims: end offset, producers, transactions. Pure.

The same code runs in every broker, in the pipeline and in the simulation, so idempotence and transactions hold across
brokers without coordination. It reads no clock: producers expire by the append times in the claims.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

import msgspec

from lakestream.data.log import rules
from lakestream.errors import Corrupt, Fenced, OutOfOrder, Rejected, WrongTransaction
from lakestream.metadata.claims import NO_PRODUCER, NO_TRANSACTION, BatchInfo, BatchKind, Claim

FORMAT: Final = 1
NO_OFFSET: Final = -1


class RecentBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One of a producer's last batches. A retry of it gets the same offset."""

    sequence_first: int
    sequence_last: int
    offset_start: int


class Producer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    epoch: int
    sequence_last: int
    recent: tuple[RecentBatch, ...]
    appended_ms: int
    transaction: int = NO_TRANSACTION
    transaction_start: int = NO_OFFSET
    """First offset of its open transaction."""
    transaction_ended: int = NO_TRANSACTION
    """The newest transaction that ended: batches of it, or of an earlier one, are rejected."""

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


def validate_batch(producer: Producer | None, batch: BatchInfo) -> Verdict:
    """Validates a batch against the state of its producer."""
    if producer is None:
        return ACCEPTED  # expired or new: any sequence may be the first one
    if not rules.epoch_is_current(batch.epoch, producer.epoch):
        return Fenced(f"producer {batch.producer_id} has epoch {producer.epoch}; epoch {batch.epoch} is fenced")
    if batch.kind >= BatchKind.COMMIT:
        return ACCEPTED
    return _check_sequence(producer, batch) or _check_transaction(producer, batch) or ACCEPTED


def _is_next_in_sequence(producer: Producer | None, batch: BatchInfo) -> bool:
    """Returns True for nearly every batch: it follows its producer's last one, outside of transactions. Only a short
    cut."""
    return (
        producer is not None
        and batch.kind is BatchKind.PLAIN
        and producer.transaction_start == NO_OFFSET
        and batch.epoch == producer.epoch
        and rules.sequence_follows(batch.sequence_first, producer.sequence_last)
    )


def _check_sequence(producer: Producer, batch: BatchInfo) -> Duplicate | OutOfOrder | None:
    last = producer.sequence_last if batch.epoch == producer.epoch else -1
    if rules.sequence_follows(batch.sequence_first, last):
        return None
    if batch.epoch == producer.epoch:
        for recent in producer.recent:
            if (recent.sequence_first, recent.sequence_last) == (batch.sequence_first, batch.sequence_last):
                return Duplicate(recent.offset_start)
    return OutOfOrder(
        f"producer {batch.producer_id} epoch {batch.epoch}: sequence {batch.sequence_first} does not follow {last}"
    )


def _check_transaction(producer: Producer, batch: BatchInfo) -> WrongTransaction | None:
    if batch.kind is BatchKind.PLAIN and not producer.in_transaction:
        return None
    name = f"producer {batch.producer_id}"
    if batch.kind is BatchKind.PLAIN:
        return WrongTransaction(f"{name} has an open transaction; this batch is outside of it")
    if batch.transaction != NO_TRANSACTION and batch.transaction <= producer.transaction_ended:
        return WrongTransaction(f"{name}: transaction {batch.transaction} has ended")
    if producer.in_transaction and batch.transaction != producer.transaction:
        return WrongTransaction(f"{name}: transaction {producer.transaction} is still open")
    return None


def after_batch(producer: Producer | None, batch: BatchInfo, offset_start: int, appended_ms: int) -> Producer:
    """Returns the producer after an accepted batch."""
    if batch.kind >= BatchKind.COMMIT:
        return _after_marker(producer, batch, appended_ms)
    recent = RecentBatch(batch.sequence_first, batch.sequence_last, offset_start)
    started = offset_start if batch.kind is BatchKind.TRANSACTIONAL else NO_OFFSET
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
    if not _ends(producer, marker) and not _ends_without_batches(producer, marker):
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
    """Returns whether the marker ends the open transaction. One of another transaction has no effect: a coordinator
    that was paused can never end half of the next one."""
    return producer.in_transaction and producer.transaction == marker.transaction


def _ends_without_batches(producer: Producer, marker: BatchInfo) -> bool:
    """Returns whether the marker ends a transaction without batches here. Batches of it that arrive later are
    rejected."""
    return not producer.in_transaction and marker.transaction > producer.transaction_ended


class PartitionState:
    """State of one partition up to `offset_end`."""

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
        """Returns a producer, or None if it is unknown or expired at that append time."""
        producer = self._producers.get(producer_id)
        if (
            producer is None
            or producer.in_transaction
            or appended_ms - producer.appended_ms <= rules.PRODUCER_EXPIRY_MS
        ):
            return producer
        return None

    def apply(self, claim: Claim, created_ms: int) -> None:
        """Applies the next claim of the chain."""
        assert claim.offset_start == self.offset_end, f"claim at {claim.offset_start} applied at {self.offset_end}"
        if not rules.is_stale(claim, created_ms):
            self._apply_batches(claim)
        self.offset_end = claim.offset_end

    def apply_own(self, claim: Claim, validation: "BatchValidation") -> None:
        """Does the same as `apply`, for a valid claim of this broker: its validation has the producers after it."""
        assert claim.offset_start == self.offset_end, f"claim at {claim.offset_start} applied at {self.offset_end}"
        if not validation.is_current(self) or not validation.is_plain:
            self._apply_batches(claim)
        else:
            self._note_times(claim)
            for producer_id, producer in validation.changed.items():
                self._producers.pop(producer_id, None)
                self._producers[producer_id] = producer
            self._evict_surplus()
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
        self._evict_surplus()

    def _apply_batch(self, batch: BatchInfo, offset: int) -> None:
        before = self.producer(batch.producer_id, self.appended_ms)
        after = after_batch(before, batch, offset, self.appended_ms)
        self._producers.pop(batch.producer_id, None)
        self._producers[batch.producer_id] = after
        if batch.kind is BatchKind.TRANSACTIONAL:
            self._open.setdefault(batch.producer_id, after.transaction_start)
        elif batch.kind >= BatchKind.COMMIT and before is not None and _ends(before, batch):
            first = self._open.pop(batch.producer_id)
            if batch.kind is BatchKind.ABORT:
                self.aborted.append(Aborted(batch.producer_id, first, offset))

    def _evict_surplus(self) -> None:
        """Evicts the least recently active producers without an open transaction beyond `PRODUCERS_MAX`."""
        surplus = len(self._producers) - rules.PRODUCERS_MAX
        if surplus <= 0:
            return
        idle = (producer_id for producer_id, producer in self._producers.items() if not producer.in_transaction)
        for producer_id in [producer_id for producer_id, _ in zip(idle, range(surplus), strict=False)]:
            del self._producers[producer_id]

    def forget_aborted_below(self, offset: int) -> None:
        """Drops aborted transactions below the floor: their records are gone and never became rows."""
        self.aborted = [aborted for aborted in self.aborted if aborted.offset_last >= offset]

    def aborted_in(self, offset_start: int, offset_end: int) -> list[Aborted]:
        return [a for a in self.aborted if a.offset_first < offset_end and a.offset_last >= offset_start]

    def encode(self) -> bytes:
        kept = [(pid, producer) for pid, producer in self._producers.items() if self.producer(pid, self.appended_ms)]
        return _encode(
            _StoredState(
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
    def decode(cls, body: bytes, what: str) -> "PartitionState":
        try:
            state = _decode(body)
        except (msgspec.DecodeError, ValueError) as error:
            raise Corrupt(
                f"state of partition {what} cannot be decoded ({error}): restore the metadata store from a backup"
            ) from error
        if state.format != FORMAT:
            raise Corrupt(
                f"state of partition {what} has format {state.format}, this broker reads {FORMAT}: upgrade it"
            )
        restored = cls()
        restored.offset_end, restored.appended_ms = state.offset_end, state.appended_ms
        restored.timestamp_max, restored.timestamp_offset = state.timestamp_max, state.timestamp_offset
        restored.aborted = state.aborted
        restored._producers = dict(state.producers)
        restored._open = {pid: p.transaction_start for pid, p in state.producers if p.in_transaction}
        return restored


class BatchValidation:
    """Validates the batches of one claim, one after another, against the state and the accepted batches before."""

    def __init__(self, state: PartitionState, appended_ms: int) -> None:
        self.offset = self._offset_start = state.offset_end
        self._state = state
        self._appended_ms = max(state.appended_ms, appended_ms)
        self.changed: dict[int, Producer] = {}
        """Producers after the accepted batches, least recently active first."""
        self.is_plain = True
        """Whether no batch belongs to a transaction."""
        self.transaction_starts: list[BatchInfo] = []
        """Accepted batches that start a transaction in this partition."""
        self.transaction_mismatches: list[BatchInfo] = []
        """Batches that cannot follow in the transaction they were submitted with. They may belong to another one."""

    def is_current(self, state: PartitionState) -> bool:
        """Returns whether the state is unchanged since. It changes only with its end offset."""
        return state is self._state and state.offset_end == self._offset_start

    def validate(self, batch: BatchInfo) -> Verdict:
        """Validates a batch. An accepted one counts as appended for those that follow."""
        if batch.producer_id == NO_PRODUCER:
            self.offset += batch.record_count
            return ACCEPTED
        producer = self._producer(batch.producer_id)
        verdict = ACCEPTED if _is_next_in_sequence(producer, batch) else validate_batch(producer, batch)
        if verdict is ACCEPTED:
            self.changed.pop(batch.producer_id, None)
            self.changed[batch.producer_id] = after_batch(producer, batch, self.offset, self._appended_ms)
            if batch.kind is not BatchKind.PLAIN:
                self.is_plain = False
                if batch.kind is BatchKind.TRANSACTIONAL and (producer is None or not producer.in_transaction):
                    self.transaction_starts.append(batch)
            self.offset += batch.record_count
        elif batch.kind is BatchKind.TRANSACTIONAL and isinstance(verdict, WrongTransaction):
            self.transaction_mismatches.append(batch)
        return verdict

    def has_producer(self, producer_id: int) -> bool:
        return self._producer(producer_id) is not None

    def _producer(self, producer_id: int) -> Producer | None:
        return self.changed.get(producer_id) or self._state.producer(producer_id, self._appended_ms)


def readable_batches(claim: Claim, created_ms: int) -> Iterator[tuple[int, BatchInfo]]:
    """Yields the batches of a claim with their offsets. A stale claim has none."""
    if rules.is_stale(claim, created_ms):
        return
    offset = claim.offset_start
    for batch in claim.batches:
        yield offset, batch
        offset += batch.record_count


class _StoredState(msgspec.Struct, frozen=True, array_like=True):
    format: int
    offset_end: int
    appended_ms: int
    timestamp_max: int
    timestamp_offset: int
    producers: list[tuple[int, Producer]]
    aborted: list[Aborted]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_StoredState).decode
