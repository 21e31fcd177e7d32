"""The life of a transactional id. Pure: its record and what is asked of it in, its next record out, or a refusal.

    EMPTY ── add ──► ONGOING ── end ──► COMMITTING │ ABORTING ── all logs have markers ──► COMMITTED │ ABORTED ── add …

A record that is returned as it came needs no storing. Every request may be repeated: who asks again for what was done
gets the same answer. What is refused leaves the record as it is.

Fenced: a newer producer has taken over, or its transaction was ended for it. Busy: a transaction is just ending.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from lakestream.errors import Fenced, Rejected, Unavailable, WrongTransaction
from lakestream.metadata.transactions import NOBODY, Identity, PendingOffset, State, Transaction
from lakestream.model import PartitionId

EPOCH_LAST: Final = 2**15 - 2
"""The last one that a producer gets. One more is left to fence it with; then it needs another producer id."""
PARTITIONS_MAX: Final = 10_000
OFFSETS_MAX: Final = 10_000
"""Of one transaction. The record is written as a whole with every change of it."""
METADATA_CHARACTERS_MAX: Final = 100_000
EXPIRY_MS: Final = 7 * 24 * 60 * 60 * 1000
"""An id that nobody uses for so long is forgotten."""

CLASSIC: Final = 1
IMPLICIT: Final = 2
"""Protocols of clients. The second: a log is added by the first batch for it, and each transaction has a new epoch."""


class Busy(Unavailable):
    """Ask again in a moment."""


class UnknownProducer(Rejected):
    """The transactional id has another producer id, or is not known."""


class TooLarge(Rejected):
    """More than a transaction may hold."""


# ── who ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def init(
    record: Transaction | None, expected: Identity | None, timeout_ms: int, fresh_id: int, now_ms: int
) -> Transaction:
    """A producer begins. Everybody who wrote under this id before is fenced; what is open is aborted first, and whoever
    asks comes again when it is. `expected`: it goes on with that identity, unless somebody else has begun meanwhile.
    `fresh_id`: a producer id that nobody has, if one is needed."""
    if record is None:
        return Transaction(producer=Identity(fresh_id, 0), timeout_ms=timeout_ms, changed_ms=now_ms)
    if expected is not None and expected != record.producer and (expected != record.last or record.is_open):
        raise _fenced(record, expected)
    if record.is_ending:
        raise _busy(record)
    if record.is_open:
        return fenced(record, now_ms, last=NOBODY if expected is None else expected)
    if expected is not None and expected == record.last:
        return record  # asked before, and the answer was lost
    identity = _next(record.producer, fresh_id)
    last = NOBODY if expected is None else expected
    return replace(record, producer=identity, last=last, timeout_ms=timeout_ms, changed_ms=now_ms)


def _next(producer: Identity, fresh_id: int) -> Identity:
    return Identity(fresh_id, 0) if is_used_up(producer) else Identity(producer.producer_id, producer.epoch + 1)


def is_used_up(producer: Identity) -> bool:
    return producer.epoch >= EPOCH_LAST


def _owned(record: Transaction | None, who: Identity) -> Transaction:
    if record is None:
        raise UnknownProducer(f"{who}: there is no such transactional id; call init_transactions first")
    if who.producer_id != record.producer.producer_id:
        raise UnknownProducer(f"{who}: the transactional id belongs to {record.producer}")
    if who.epoch != record.producer.epoch:
        raise _fenced(record, who)
    return record


# ── what belongs to it ───────────────────────────────────────────────────────────────────────────────────────────────


def add(
    record: Transaction | None, who: Identity, partitions: Iterable[PartitionId], protocol: int, now_ms: int
) -> Transaction:
    """Logs become part of the open transaction; the first ones begin it."""
    record = _opened(record, who, protocol, now_ms)
    merged = tuple(sorted({*record.partitions, *partitions}))
    if len(merged) > PARTITIONS_MAX:
        raise TooLarge(f"{who}: a transaction takes {PARTITIONS_MAX} partitions, not {len(merged)}")
    return record if merged == record.partitions else replace(record, partitions=merged, changed_ms=now_ms)


def add_group(record: Transaction | None, who: Identity, group: str, protocol: int, now_ms: int) -> Transaction:
    """Offsets of the group may become part of it."""
    record = _opened(record, who, protocol, now_ms)
    if group in record.groups:
        return record
    if len(record.groups) >= PARTITIONS_MAX:
        raise TooLarge(f"{who}: a transaction takes offsets of {PARTITIONS_MAX} groups")
    return replace(record, groups=tuple(sorted((*record.groups, group))), changed_ms=now_ms)


def with_group(record: Transaction | None, who: Identity, group: str, protocol: int, now_ms: int) -> Transaction:
    """Open, with this group in it: added now if the client leaves that to us."""
    if protocol == IMPLICIT:
        return add_group(record, who, group, protocol, now_ms)
    record = _owned(record, who)
    if record.is_ending:
        raise _busy(record)
    if not record.is_open or group not in record.groups:
        raise WrongTransaction(f"{who}: group {group} was not added to an open transaction")
    return record


def put_offsets(
    record: Transaction | None,
    who: Identity,
    group: str,
    offsets: Sequence[PendingOffset],
    protocol: int,
    now_ms: int,
) -> Transaction:
    """Offsets of a group are committed with the transaction, or not at all."""
    record = with_group(record, who, group, protocol, now_ms)
    merged = {one.partition: one for one in (*record.offsets.get(group, ()), *offsets)}
    pending = {**record.offsets, group: tuple(merged[partition] for partition in sorted(merged))}
    _check_size(who, pending)
    return record if pending == record.offsets else replace(record, offsets=pending, changed_ms=now_ms)


def _check_size(who: Identity, pending: dict[str, tuple[PendingOffset, ...]]) -> None:
    count = sum(map(len, pending.values()))
    characters = sum(len(one.committed.metadata) for offsets in pending.values() for one in offsets)
    if count > OFFSETS_MAX or characters > METADATA_CHARACTERS_MAX:
        raise TooLarge(
            f"{who}: {count} offsets with {characters} characters of metadata; a transaction takes {OFFSETS_MAX} with"
            f" {METADATA_CHARACTERS_MAX}"
        )


def _opened(record: Transaction | None, who: Identity, protocol: int, now_ms: int) -> Transaction:
    record = _owned(record, who)
    if record.is_ending:
        raise _busy(record)
    if record.is_open:
        return record
    return replace(
        record,
        state=State.ONGOING,
        number=record.number + 1,
        protocol=protocol,
        started_ms=now_ms,
        changed_ms=now_ms,
        partitions=(),
        groups=(),
        offsets={},
    )


def number_for(record: Transaction | None, who: Identity, partitions: Iterable[PartitionId]) -> int:
    """The transaction that batches for these logs belong to, now."""
    record = _owned(record, who)
    if not record.is_open:
        raise WrongTransaction(f"{who} has no open transaction")
    for partition in partitions:
        if partition not in record.partitions:
            raise WrongTransaction(f"{who}: partition {partition} was not added to the transaction")
    return record.number


# ── how it ends ──────────────────────────────────────────────────────────────────────────────────────────────────────


def end(
    record: Transaction | None, who: Identity, *, commit: bool, protocol: int, fresh_id: int, now_ms: int
) -> Transaction:
    """It is decided. The producer goes on as the record says then."""
    if record is None or protocol == CLASSIC or who != record.last or who == NOBODY:
        record = _owned(record, who)
        if record.is_open:
            return _ending(record, commit, protocol, fresh_id, now_ms)
        if protocol == IMPLICIT:
            return _end_of_nothing(record, who, commit, fresh_id, now_ms)
    elif record.is_open:  # it was the one before that ended
        raise _fenced(record, who)
    if record.state is State.EMPTY or record.commits != commit:
        raise WrongTransaction(f"{who}: there is nothing to {_word(commit)}; its state is {record.state.name.lower()}")
    return record  # asked before


def _ending(record: Transaction, commit: bool, protocol: int, fresh_id: int, now_ms: int) -> Transaction:
    ending = replace(record, state=State.COMMITTING if commit else State.ABORTING, protocol=protocol, changed_ms=now_ms)
    if protocol == CLASSIC:
        return replace(ending, marking=record.producer)
    marking = Identity(record.producer.producer_id, record.producer.epoch + 1)
    return replace(ending, producer=_next(record.producer, fresh_id), last=record.producer, marking=marking)


def _end_of_nothing(record: Transaction, who: Identity, commit: bool, fresh_id: int, now_ms: int) -> Transaction:
    """The client believes that it has begun, and nothing came here: it aborts, and goes on with a new epoch."""
    if record.is_ending:
        raise _busy(record)
    if commit:
        raise WrongTransaction(f"{who} has no open transaction to commit")
    return replace(record, state=State.ABORTED, producer=_next(record.producer, fresh_id), last=who, changed_ms=now_ms)


def fenced(record: Transaction, now_ms: int, last: Identity = NOBODY) -> Transaction:
    """Abort an open transaction over its producer's head: what it still sends is of the past."""
    assert record.is_open, "only an open transaction is aborted"
    above = Identity(record.producer.producer_id, record.producer.epoch + 1)
    return replace(record, state=State.ABORTING, producer=above, last=last, marking=above, changed_ms=now_ms)


def is_overdue(record: Transaction, now_ms: int) -> bool:
    return record.is_open and now_ms - record.started_ms > record.timeout_ms


def ended(record: Transaction, now_ms: int) -> Transaction:
    """All logs have its marker, and the groups its offsets."""
    assert record.is_ending, "only what is ending has ended"
    return replace(
        record,
        state=State.COMMITTED if record.commits else State.ABORTED,
        started_ms=-1,
        changed_ms=now_ms,
        partitions=(),
        groups=(),
        offsets={},
        marking=NOBODY,
    )


def is_forgotten(record: Transaction, now_ms: int) -> bool:
    return not record.is_open and not record.is_ending and now_ms - record.changed_ms > EXPIRY_MS


def _fenced(record: Transaction, who: Identity) -> Fenced:
    return Fenced(f"{who} is of the past; {record.producer} is in its place")


def _busy(record: Transaction) -> Busy:
    return Busy(f"transaction {record.number} of {record.producer} is just ending; try again")


def _word(commit: bool) -> str:
    return "commit" if commit else "abort"
