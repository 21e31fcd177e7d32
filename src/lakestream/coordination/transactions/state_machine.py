"""State machine of a transactional id: from its record and a request to the next record, or an error. Pure.

    EMPTY ── add ──► ONGOING ── end ──► COMMITTING │ ABORTING ── all logs have markers ──► COMMITTED │ ABORTED ── add …

If a function returns the same record object, nothing needs to be stored. Every request is idempotent: a repeated one
gets the same response. A rejected request leaves the record unchanged.

Fenced: a newer producer uses the id, or the transaction was aborted by the coordinator. Busy: the previous transaction
is being completed.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from lakestream.errors import Fenced, Rejected, Unavailable, WrongTransaction
from lakestream.metadata.transactions import NO_IDENTITY, Identity, PendingOffset, Transaction, TransactionState
from lakestream.model import PartitionId

EPOCH_LAST: Final = 2**15 - 2
"""The last epoch that a producer gets. One more is left to fence it; after that it needs another producer id."""
PARTITIONS_MAX: Final = 10_000
OFFSETS_MAX: Final = 10_000
"""Per transaction. The whole record is written with every change."""
METADATA_CHARACTERS_MAX: Final = 100_000
EXPIRY_MS: Final = 7 * 24 * 60 * 60 * 1000
"""An id that is unused for so long expires."""

CLASSIC: Final = 1
IMPLICIT: Final = 2
"""Protocols of clients. IMPLICIT (KIP-890): the first batch for a partition adds it, and each transaction has a new
epoch."""


class Busy(Unavailable):
    """The previous transaction is being completed: retry."""


class UnknownProducer(Rejected):
    """The transactional id has another producer id, or does not exist."""


class TransactionTooLarge(Rejected):
    """The transaction exceeds a size limit."""


# ── producers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def init(
    record: Transaction | None,
    expected: Identity | None,
    timeout_ms: int,
    fresh_id: int,
    now_ms: int,
    client: str = "",
) -> Transaction:
    """Initializes a producer, which fences all earlier producers of this id. An open transaction is aborted first, and
    the client retries after that.

    `expected`: the identity to continue with, unless another producer was initialized since. `fresh_id`: an unused
    producer id, if one is needed."""
    if record is None:
        return Transaction(producer=Identity(fresh_id, 0), timeout_ms=timeout_ms, changed_ms=now_ms, client=client)
    if expected is not None and expected != record.producer and (expected != record.last or record.is_open):
        raise _fenced(record, expected)
    if record.is_ending:
        raise _busy(record)
    if record.is_open:
        return fenced(record, now_ms, last=NO_IDENTITY if expected is None else expected)
    if expected is not None and expected == record.last:
        return record  # a repeated request: the response was lost
    identity = _next_identity(record.producer, fresh_id)
    last = NO_IDENTITY if expected is None else expected
    return replace(record, producer=identity, last=last, timeout_ms=timeout_ms, changed_ms=now_ms)


def _next_identity(producer: Identity, fresh_id: int) -> Identity:
    return Identity(fresh_id, 0) if is_epoch_exhausted(producer) else Identity(producer.producer_id, producer.epoch + 1)


def is_epoch_exhausted(producer: Identity) -> bool:
    return producer.epoch >= EPOCH_LAST


def _validated(record: Transaction | None, producer: Identity) -> Transaction:
    if record is None:
        raise UnknownProducer(f"{producer}: the transactional id does not exist: call init_transactions first")
    if producer.producer_id != record.producer.producer_id:
        raise UnknownProducer(f"{producer}: the transactional id belongs to {record.producer}")
    if producer.epoch != record.producer.epoch:
        raise _fenced(record, producer)
    return record


# ── partitions, groups and offsets ───────────────────────────────────────────────────────────────────────────────────


def add(
    record: Transaction | None, producer: Identity, partitions: Iterable[PartitionId], protocol: int, now_ms: int
) -> Transaction:
    """Adds partitions to the open transaction, or begins one with them."""
    record = _opened(record, producer, protocol, now_ms)
    merged = tuple(sorted({*record.partitions, *partitions}))
    if len(merged) > PARTITIONS_MAX:
        raise TransactionTooLarge(
            f"{producer}: {len(merged)} partitions in a transaction: the limit is {PARTITIONS_MAX}"
        )
    return record if merged == record.partitions else replace(record, partitions=merged, changed_ms=now_ms)


def add_group(record: Transaction | None, producer: Identity, group: str, protocol: int, now_ms: int) -> Transaction:
    """Adds a group, whose offsets may then be added to the transaction."""
    record = _opened(record, producer, protocol, now_ms)
    if group in record.groups:
        return record
    if len(record.groups) >= PARTITIONS_MAX:
        raise TransactionTooLarge(f"{producer}: {PARTITIONS_MAX} groups in the transaction already: this is the limit")
    return replace(record, groups=tuple(sorted((*record.groups, group))), changed_ms=now_ms)


def with_group(record: Transaction | None, producer: Identity, group: str, protocol: int, now_ms: int) -> Transaction:
    """Returns the open transaction with this group. With the implicit protocol the group is added now."""
    if protocol == IMPLICIT:
        return add_group(record, producer, group, protocol, now_ms)
    record = _validated(record, producer)
    if record.is_ending:
        raise _busy(record)
    if not record.is_open or group not in record.groups:
        raise WrongTransaction(f"{producer}: group {group} was not added to an open transaction")
    return record


def put_offsets(
    record: Transaction | None,
    producer: Identity,
    group: str,
    offsets: Sequence[PendingOffset],
    protocol: int,
    now_ms: int,
) -> Transaction:
    """Adds offsets of a group, which are committed only if the transaction is."""
    record = with_group(record, producer, group, protocol, now_ms)
    merged = {one.partition: one for one in (*record.offsets.get(group, ()), *offsets)}
    pending = {**record.offsets, group: tuple(merged[partition] for partition in sorted(merged))}
    _check_size(producer, pending)
    return record if pending == record.offsets else replace(record, offsets=pending, changed_ms=now_ms)


def _check_size(producer: Identity, pending: dict[str, tuple[PendingOffset, ...]]) -> None:
    count = sum(map(len, pending.values()))
    characters = sum(len(one.committed.metadata) for offsets in pending.values() for one in offsets)
    if count > OFFSETS_MAX or characters > METADATA_CHARACTERS_MAX:
        raise TransactionTooLarge(
            f"{producer}: {count} offsets with {characters} characters of metadata in a transaction: the limits are"
            f" {OFFSETS_MAX} and {METADATA_CHARACTERS_MAX}"
        )


def _opened(record: Transaction | None, producer: Identity, protocol: int, now_ms: int) -> Transaction:
    record = _validated(record, producer)
    if record.is_ending:
        raise _busy(record)
    if record.is_open:
        return record
    return replace(
        record,
        state=TransactionState.ONGOING,
        number=record.number + 1,
        protocol=protocol,
        started_ms=now_ms,
        changed_ms=now_ms,
        partitions=(),
        groups=(),
        offsets={},
    )


def number_for(record: Transaction | None, producer: Identity, partitions: Iterable[PartitionId]) -> int:
    """Returns the number of the open transaction. Raises unless it contains all these partitions."""
    record = _validated(record, producer)
    if not record.is_open:
        raise WrongTransaction(f"{producer} has no open transaction")
    for partition in partitions:
        if partition not in record.partitions:
            raise WrongTransaction(f"{producer}: partition {partition} was not added to the transaction")
    return record.number


# ── end ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def end(
    record: Transaction | None, producer: Identity, *, commit: bool, protocol: int, fresh_id: int, now_ms: int
) -> Transaction:
    """Decides the transaction. The returned record contains the identity that the producer continues with."""
    if record is None or protocol == CLASSIC or producer != record.last or producer == NO_IDENTITY:
        record = _validated(record, producer)
        if record.is_open:
            return _ending(record, commit, protocol, fresh_id, now_ms)
        if protocol == IMPLICIT:
            return _end_without_transaction(record, producer, commit, fresh_id, now_ms)
    elif record.is_open:  # the repeated request is for the previous transaction
        raise _fenced(record, producer)
    if record.state is TransactionState.EMPTY or record.commits != commit:
        verb, state = "commit" if commit else "abort", record.state.name.lower()
        raise WrongTransaction(f"{producer}: no transaction to {verb}: the state is {state}")
    return record  # a repeated request


def _ending(record: Transaction, commit: bool, protocol: int, fresh_id: int, now_ms: int) -> Transaction:
    ending = replace(
        record,
        state=TransactionState.COMMITTING if commit else TransactionState.ABORTING,
        protocol=protocol,
        changed_ms=now_ms,
    )
    if protocol == CLASSIC:
        return replace(ending, marking=record.producer)
    marking = Identity(record.producer.producer_id, record.producer.epoch + 1)
    return replace(ending, producer=_next_identity(record.producer, fresh_id), last=record.producer, marking=marking)


def _end_without_transaction(
    record: Transaction, producer: Identity, commit: bool, fresh_id: int, now_ms: int
) -> Transaction:
    """Aborts a transaction that exists only in the client, which continues with a new epoch: none of it was stored."""
    if record.is_ending:
        raise _busy(record)
    if commit:
        raise WrongTransaction(f"{producer} has no open transaction to commit")
    return replace(
        record,
        state=TransactionState.ABORTED,
        producer=_next_identity(record.producer, fresh_id),
        last=producer,
        changed_ms=now_ms,
    )


def fenced(record: Transaction, now_ms: int, last: Identity = NO_IDENTITY) -> Transaction:
    """Aborts an open transaction without its producer, which is fenced by the new epoch."""
    assert record.is_open, "only an open transaction is aborted"
    above = Identity(record.producer.producer_id, record.producer.epoch + 1)
    return replace(record, state=TransactionState.ABORTING, producer=above, last=last, marking=above, changed_ms=now_ms)


def is_overdue(record: Transaction, now_ms: int) -> bool:
    return record.is_open and now_ms - record.started_ms > record.timeout_ms


def completed(record: Transaction, now_ms: int) -> Transaction:
    """Returns the record after all markers are written and all offsets committed."""
    assert record.is_ending, "only a decided transaction is completed"
    return replace(
        record,
        state=TransactionState.COMMITTED if record.commits else TransactionState.ABORTED,
        started_ms=-1,
        changed_ms=now_ms,
        partitions=(),
        groups=(),
        offsets={},
        marking=NO_IDENTITY,
    )


def is_expired(record: Transaction, now_ms: int) -> bool:
    return not record.is_open and not record.is_ending and now_ms - record.changed_ms > EXPIRY_MS


def _fenced(record: Transaction, producer: Identity) -> Fenced:
    return Fenced(f"{producer} is fenced by {record.producer}")


def _busy(record: Transaction) -> Busy:
    return Busy(f"transaction {record.number} of {record.producer} is being completed: retry")
