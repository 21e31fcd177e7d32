"""Transitions of a transactional id."""

from typing import Any

import pytest

from lakestream.coordination.transactions import state_machine
from lakestream.coordination.transactions.state_machine import (
    CLASSIC,
    EPOCH_LAST,
    IMPLICIT,
    Busy,
    TransactionTooLarge,
    UnknownProducer,
)
from lakestream.errors import Fenced, WrongTransaction
from lakestream.metadata.groups import Committed
from lakestream.metadata.transactions import NO_IDENTITY, Identity, PendingOffset, Transaction, TransactionState
from lakestream.model import PartitionId

A, B, C = (PartitionId("t", number) for number in range(3))
NOW = 1_000_000
FRESH = 77


def init(record: Transaction | None = None, expected: Identity | None = None, fresh_id: int = 7) -> Transaction:
    return state_machine.init(record, expected, 60_000, fresh_id, NOW)


def add(record: Transaction | None, *partitions: PartitionId, **other: Any) -> Transaction:
    producer = other.pop("producer", None) or (record.producer if record else Identity(7, 0))
    return state_machine.add(record, producer, partitions, other.pop("protocol", CLASSIC), other.pop("now_ms", NOW))


def end(
    record: Transaction | None, producer: Identity | None = None, *, commit: bool = True, protocol: int = 1
) -> Transaction:
    producer = producer or (record.producer if record else Identity(7, 0))
    return state_machine.end(record, producer, commit=commit, protocol=protocol, fresh_id=FRESH, now_ms=NOW + 5)


def ended(record: Transaction) -> Transaction:
    return state_machine.completed(record, NOW + 6)


def ready() -> Transaction:
    return init()


def pending(partition: PartitionId, offset: int = 1, metadata: str = "") -> PendingOffset:
    return PendingOffset(partition, Committed(offset, 0, metadata, NOW, 1), 5)


# ── init ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_new_id_gets_a_producer_id_and_epoch_zero() -> None:
    assert init().producer == Identity(7, 0)
    assert init().state is TransactionState.EMPTY


def test_every_init_fences_the_previous_producer() -> None:
    third = init(init(ready()))
    assert third.producer == Identity(7, 2)
    for late in (Identity(7, 0), Identity(7, 1)):
        with pytest.raises(Fenced):
            add(third, A, producer=late)
        with pytest.raises(Fenced):
            end(third, late)


def test_init_aborts_an_open_transaction_first() -> None:
    aborting = init(add(ready(), A))
    assert (aborting.state, aborting.producer, aborting.marking) == (
        TransactionState.ABORTING,
        Identity(7, 1),
        Identity(7, 1),
    )
    assert aborting.partitions == (A,)
    with pytest.raises(Busy):
        init(aborting)
    assert init(ended(aborting)).producer == Identity(7, 2)


def test_init_continues_with_the_expected_identity() -> None:
    second = init(ready(), Identity(7, 0))
    assert second.producer == Identity(7, 1)
    assert init(second, Identity(7, 0)) is second, "the response was lost: the request is repeated"
    assert init(second, Identity(7, 1)).producer == Identity(7, 2)


def test_init_with_a_fenced_identity_is_rejected() -> None:
    fenced = init(ready())
    with pytest.raises(Fenced):
        init(fenced, Identity(7, 0))
    with pytest.raises(Fenced):
        init(fenced, Identity(8, 1))


def test_late_init_does_not_abort_a_later_transaction() -> None:
    busy = add(init(ready(), Identity(7, 0)), A)
    with pytest.raises(Fenced):
        init(busy, Identity(7, 0))


def test_producer_continues_after_it_aborted_by_init() -> None:
    own = Identity(7, 0)
    aborting = init(add(ready(), A), own)
    assert aborting.state is TransactionState.ABORTING
    assert init(ended(aborting), own).producer == Identity(7, 1)


def test_init_assigns_a_new_producer_id_after_the_last_epoch() -> None:
    last = Transaction(producer=Identity(7, EPOCH_LAST), timeout_ms=1, changed_ms=NOW)
    assert init(last, fresh_id=FRESH).producer == Identity(FRESH, 0)
    rotated = init(last, last.producer, fresh_id=FRESH)
    assert rotated.producer == Identity(FRESH, 0)
    assert init(rotated, last.producer) is rotated
    aborting = init(add(last, A))
    assert aborting.marking == Identity(7, 2**15 - 1)
    assert init(ended(aborting), fresh_id=FRESH).producer == Identity(FRESH, 0)


# ── add ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_first_partition_begins_a_transaction() -> None:
    open_ = add(ready(), B, A, now_ms=NOW + 1)
    assert (open_.state, open_.number, open_.partitions, open_.started_ms) == (
        TransactionState.ONGOING,
        1,
        (A, B),
        NOW + 1,
    )
    more = add(open_, C, A, now_ms=NOW + 2)
    assert (more.number, more.partitions, more.started_ms) == (1, (A, B, C), NOW + 1)
    assert add(more, B) is more


def test_unknown_producer_is_rejected() -> None:
    with pytest.raises(UnknownProducer):
        add(None, A)
    with pytest.raises(UnknownProducer):
        add(ready(), A, producer=Identity(8, 0))
    with pytest.raises(Fenced):
        add(ready(), A, producer=Identity(7, 1))


def test_add_is_busy_while_the_transaction_completes() -> None:
    ending = end(add(ready(), A))
    with pytest.raises(Busy):
        add(ending, B)
    with pytest.raises(Busy):
        state_machine.add_group(ending, ending.producer, "g", CLASSIC, NOW)
    assert add(ended(ending), B).partitions == (B,)
    assert add(ended(ending), B).number == 2


def test_transaction_above_a_limit_is_rejected() -> None:
    many = [PartitionId("t", number) for number in range(state_machine.PARTITIONS_MAX + 1)]
    with pytest.raises(TransactionTooLarge):
        add(ready(), *many)
    with pytest.raises(TransactionTooLarge):
        state_machine.put_offsets(ready(), Identity(7, 0), "g", [pending(one) for one in many], IMPLICIT, NOW)
    with pytest.raises(TransactionTooLarge):
        state_machine.put_offsets(ready(), Identity(7, 0), "g", [pending(A, metadata="x" * 100_001)], IMPLICIT, NOW)


def test_number_for_needs_an_open_transaction_with_the_partition() -> None:
    open_ = add(ready(), A)
    assert state_machine.number_for(open_, open_.producer, [A]) == 1
    with pytest.raises(WrongTransaction):
        state_machine.number_for(open_, open_.producer, [B])
    with pytest.raises(Fenced):
        state_machine.number_for(open_, Identity(7, 3), [A])
    for other in (ready(), end(open_), ended(end(open_))):
        with pytest.raises(WrongTransaction):
            state_machine.number_for(other, other.producer, [A])


# ── offsets of groups ────────────────────────────────────────────────────────────────────────────────────────────────


def test_offsets_are_pending_until_the_end() -> None:
    open_ = state_machine.add_group(ready(), Identity(7, 0), "g", CLASSIC, NOW)
    assert (open_.state, open_.groups) == (TransactionState.ONGOING, ("g",))
    assert state_machine.add_group(open_, open_.producer, "g", CLASSIC, NOW) is open_
    with_offsets = state_machine.put_offsets(open_, open_.producer, "g", [pending(B), pending(A)], CLASSIC, NOW)
    with_offsets = state_machine.put_offsets(with_offsets, open_.producer, "g", [pending(A, 9)], CLASSIC, NOW)
    assert with_offsets.offsets == {"g": (pending(A, 9), pending(B))}
    ending = end(with_offsets)
    assert ending.offsets == with_offsets.offsets
    assert ended(ending).offsets == {}


def test_group_must_be_added_first_with_the_classic_protocol() -> None:
    with pytest.raises(WrongTransaction):
        state_machine.put_offsets(add(ready(), A), Identity(7, 0), "g", [pending(A)], CLASSIC, NOW)
    with pytest.raises(WrongTransaction):
        state_machine.put_offsets(ready(), Identity(7, 0), "g", [pending(A)], CLASSIC, NOW)
    with_offsets = state_machine.put_offsets(ready(), Identity(7, 0), "g", [pending(A)], IMPLICIT, NOW)
    assert (with_offsets.state, with_offsets.groups, with_offsets.protocol) == (
        TransactionState.ONGOING,
        ("g",),
        IMPLICIT,
    )


# ── end, by clients of the classic protocol ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("commit", [True, False])
def test_end_is_idempotent(commit: bool) -> None:
    ending = end(add(ready(), A), commit=commit)
    assert ending.state is (TransactionState.COMMITTING if commit else TransactionState.ABORTING)
    assert ending.producer == ending.marking == Identity(7, 0)
    assert end(ending, commit=commit) is ending
    completed = ended(ending)
    assert completed.state is (TransactionState.COMMITTED if commit else TransactionState.ABORTED)
    assert end(completed, commit=commit) is completed
    for state in (ending, completed):
        with pytest.raises(WrongTransaction):
            end(state, commit=not commit)


def test_end_without_a_transaction_is_rejected() -> None:
    for commit in (True, False):
        with pytest.raises(WrongTransaction):
            end(ready(), commit=commit)
        with pytest.raises(UnknownProducer):
            end(None, commit=commit)


# ── end, by clients of the implicit protocol ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("commit", [True, False])
def test_every_transaction_has_its_own_epoch(commit: bool) -> None:
    old = Identity(7, 0)
    ending = end(add(ready(), A, protocol=IMPLICIT), commit=commit, protocol=IMPLICIT)
    assert (ending.producer, ending.marking, ending.last) == (Identity(7, 1), Identity(7, 1), old)
    for state in (ending, ended(ending)):
        assert end(state, old, commit=commit, protocol=IMPLICIT) is state
        with pytest.raises(WrongTransaction):
            end(state, old, commit=not commit, protocol=IMPLICIT)
        with pytest.raises(Fenced):
            add(state, A, producer=old)
    following = add(ended(ending), A, protocol=IMPLICIT)
    with pytest.raises(Fenced):
        end(following, old, commit=commit, protocol=IMPLICIT)


def test_abort_without_a_transaction_gets_a_new_epoch() -> None:
    for before in (ready(), ended(end(add(ready(), A)))):
        aborted = end(before, commit=False, protocol=IMPLICIT)
        assert (aborted.state, aborted.producer, aborted.last) == (
            TransactionState.ABORTED,
            Identity(7, 1),
            Identity(7, 0),
        )
        assert aborted.number == before.number
        assert end(aborted, Identity(7, 0), commit=False, protocol=IMPLICIT) is aborted
        with pytest.raises(WrongTransaction):
            end(before, commit=True, protocol=IMPLICIT)
    with pytest.raises(Busy):
        end(end(add(ready(), A), protocol=IMPLICIT), commit=False, protocol=IMPLICIT)


def test_end_assigns_a_new_producer_id_after_the_last_epoch() -> None:
    last = Identity(7, EPOCH_LAST)
    open_ = add(Transaction(producer=last, timeout_ms=1, changed_ms=NOW), A, protocol=IMPLICIT)
    ending = end(open_, protocol=IMPLICIT)
    assert (ending.producer, ending.marking) == (Identity(FRESH, 0), Identity(7, 2**15 - 1))
    assert end(ended(ending), last, protocol=IMPLICIT).producer == Identity(FRESH, 0)
    with pytest.raises(UnknownProducer):
        add(ended(ending), A, producer=last)


def test_missing_identity_never_matches() -> None:
    for record in (ready(), ended(end(add(ready(), A)))):
        with pytest.raises(UnknownProducer):
            end(record, NO_IDENTITY, protocol=IMPLICIT)


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_overdue_transaction_is_aborted_and_its_producer_fenced() -> None:
    open_ = add(ready(), A)
    assert not state_machine.is_overdue(open_, NOW + 60_000)
    assert state_machine.is_overdue(open_, NOW + 60_001)
    assert not state_machine.is_overdue(ready(), NOW + 10**9)
    aborting = state_machine.fenced(open_, NOW + 60_001)
    assert (aborting.state, aborting.producer, aborting.marking) == (
        TransactionState.ABORTING,
        Identity(7, 1),
        Identity(7, 1),
    )
    for late in (aborting, ended(aborting)):
        with pytest.raises(Fenced):
            end(late, Identity(7, 0))
        with pytest.raises(Fenced):
            end(late, Identity(7, 0), protocol=IMPLICIT)
        with pytest.raises(Fenced):
            init(late, Identity(7, 0))


def test_unused_id_expires_but_never_an_open_transaction() -> None:
    later = NOW + state_machine.EXPIRY_MS + 10_000
    open_ = add(ready(), A)
    assert not state_machine.is_expired(ready(), NOW + state_machine.EXPIRY_MS)
    assert state_machine.is_expired(ready(), later)
    assert state_machine.is_expired(ended(end(open_)), later)
    assert not state_machine.is_expired(open_, later)
    assert not state_machine.is_expired(end(open_), later)
