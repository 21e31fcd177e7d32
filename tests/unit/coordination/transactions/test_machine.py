"""What becomes of a transactional id, step by step."""

from typing import Any

import pytest

from lakestream.coordination.transactions import machine
from lakestream.coordination.transactions.machine import CLASSIC, EPOCH_LAST, IMPLICIT, Busy, TooLarge, UnknownProducer
from lakestream.errors import Fenced, WrongTransaction
from lakestream.metadata.groups import Committed
from lakestream.metadata.transactions import NOBODY, Identity, PendingOffset, State, Transaction
from lakestream.model import PartitionId

A, B, C = (PartitionId("t", number) for number in range(3))
NOW = 1_000_000
FRESH = 77


def init(record: Transaction | None = None, expected: Identity | None = None, fresh_id: int = 7) -> Transaction:
    return machine.init(record, expected, 60_000, fresh_id, NOW)


def add(record: Transaction | None, *partitions: PartitionId, **other: Any) -> Transaction:
    who = other.pop("who", None) or (record.producer if record else Identity(7, 0))
    return machine.add(record, who, partitions, other.pop("protocol", CLASSIC), other.pop("now_ms", NOW))


def end(
    record: Transaction | None, who: Identity | None = None, *, commit: bool = True, protocol: int = 1
) -> Transaction:
    who = who or (record.producer if record else Identity(7, 0))
    return machine.end(record, who, commit=commit, protocol=protocol, fresh_id=FRESH, now_ms=NOW + 5)


def ended(record: Transaction) -> Transaction:
    return machine.ended(record, NOW + 6)


def ready() -> Transaction:
    return init()


def pending(partition: PartitionId, offset: int = 1, metadata: str = "") -> PendingOffset:
    return PendingOffset(partition, Committed(offset, 0, metadata, NOW, 1), 5)


# ── init ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_id_gets_a_producer_id_and_epoch_zero() -> None:
    assert init().producer == Identity(7, 0)
    assert init().state is State.EMPTY


def test_every_init_fences_the_one_before() -> None:
    again = init(init(ready()))
    assert again.producer == Identity(7, 2)
    for late in (Identity(7, 0), Identity(7, 1)):
        with pytest.raises(Fenced):
            add(again, A, who=late)
        with pytest.raises(Fenced):
            end(again, late)


def test_init_aborts_what_is_open_and_then_goes_on() -> None:
    aborting = init(add(ready(), A))
    assert (aborting.state, aborting.producer, aborting.marking) == (State.ABORTING, Identity(7, 1), Identity(7, 1))
    assert aborting.partitions == (A,)
    with pytest.raises(Busy):
        init(aborting)
    assert init(ended(aborting)).producer == Identity(7, 2)


def test_init_goes_on_with_an_identity() -> None:
    second = init(ready(), Identity(7, 0))
    assert second.producer == Identity(7, 1)
    assert init(second, Identity(7, 0)) is second, "the answer was lost, and it asks again"
    assert init(second, Identity(7, 1)).producer == Identity(7, 2)


def test_init_by_one_that_was_overtaken_is_refused() -> None:
    overtaken = init(ready())
    with pytest.raises(Fenced):
        init(overtaken, Identity(7, 0))
    with pytest.raises(Fenced):
        init(overtaken, Identity(8, 1))


def test_a_late_init_does_not_abort_what_came_after_it() -> None:
    busy = add(init(ready(), Identity(7, 0)), A)
    with pytest.raises(Fenced):
        init(busy, Identity(7, 0))


def test_a_producer_that_aborts_by_init_goes_on() -> None:
    mine = Identity(7, 0)
    aborting = init(add(ready(), A), mine)
    assert aborting.state is State.ABORTING
    assert init(ended(aborting), mine).producer == Identity(7, 1)


def test_the_last_epoch_leads_to_a_new_producer_id() -> None:
    last = Transaction(producer=Identity(7, EPOCH_LAST), timeout_ms=1, changed_ms=NOW)
    assert init(last, fresh_id=FRESH).producer == Identity(FRESH, 0)
    rotated = init(last, last.producer, fresh_id=FRESH)
    assert rotated.producer == Identity(FRESH, 0)
    assert init(rotated, last.producer) is rotated
    aborting = init(add(last, A))
    assert aborting.marking == Identity(7, 2**15 - 1)
    assert init(ended(aborting), fresh_id=FRESH).producer == Identity(FRESH, 0)


# ── add ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_partition_begins_a_transaction() -> None:
    open_ = add(ready(), B, A, now_ms=NOW + 1)
    assert (open_.state, open_.number, open_.partitions, open_.started_ms) == (State.ONGOING, 1, (A, B), NOW + 1)
    more = add(open_, C, A, now_ms=NOW + 2)
    assert (more.number, more.partitions, more.started_ms) == (1, (A, B, C), NOW + 1)
    assert add(more, B) is more


def test_who_is_not_known_is_told_so() -> None:
    with pytest.raises(UnknownProducer):
        add(None, A)
    with pytest.raises(UnknownProducer):
        add(ready(), A, who=Identity(8, 0))
    with pytest.raises(Fenced):
        add(ready(), A, who=Identity(7, 1))


def test_nothing_is_added_while_it_ends() -> None:
    ending = end(add(ready(), A))
    with pytest.raises(Busy):
        add(ending, B)
    with pytest.raises(Busy):
        machine.add_group(ending, ending.producer, "g", CLASSIC, NOW)
    assert add(ended(ending), B).partitions == (B,)
    assert add(ended(ending), B).number == 2


def test_a_transaction_has_its_limits() -> None:
    many = [PartitionId("t", number) for number in range(machine.PARTITIONS_MAX + 1)]
    with pytest.raises(TooLarge):
        add(ready(), *many)
    with pytest.raises(TooLarge):
        machine.put_offsets(ready(), Identity(7, 0), "g", [pending(one) for one in many], IMPLICIT, NOW)
    with pytest.raises(TooLarge):
        machine.put_offsets(ready(), Identity(7, 0), "g", [pending(A, metadata="x" * 100_001)], IMPLICIT, NOW)


def test_a_batch_belongs_to_what_is_open() -> None:
    open_ = add(ready(), A)
    assert machine.number_for(open_, open_.producer, [A]) == 1
    with pytest.raises(WrongTransaction):
        machine.number_for(open_, open_.producer, [B])
    with pytest.raises(Fenced):
        machine.number_for(open_, Identity(7, 3), [A])
    for other in (ready(), end(open_), ended(end(open_))):
        with pytest.raises(WrongTransaction):
            machine.number_for(other, other.producer, [A])


# ── offsets of groups ────────────────────────────────────────────────────────────────────────────────────────────────


def test_offsets_wait_for_the_end() -> None:
    open_ = machine.add_group(ready(), Identity(7, 0), "g", CLASSIC, NOW)
    assert (open_.state, open_.groups) == (State.ONGOING, ("g",))
    assert machine.add_group(open_, open_.producer, "g", CLASSIC, NOW) is open_
    held = machine.put_offsets(open_, open_.producer, "g", [pending(B), pending(A)], CLASSIC, NOW)
    held = machine.put_offsets(held, open_.producer, "g", [pending(A, 9)], CLASSIC, NOW)
    assert held.offsets == {"g": (pending(A, 9), pending(B))}
    ending = end(held)
    assert ending.offsets == held.offsets
    assert ended(ending).offsets == {}


def test_a_group_has_to_be_added_first_unless_the_client_leaves_that_to_us() -> None:
    with pytest.raises(WrongTransaction):
        machine.put_offsets(add(ready(), A), Identity(7, 0), "g", [pending(A)], CLASSIC, NOW)
    with pytest.raises(WrongTransaction):
        machine.put_offsets(ready(), Identity(7, 0), "g", [pending(A)], CLASSIC, NOW)
    held = machine.put_offsets(ready(), Identity(7, 0), "g", [pending(A)], IMPLICIT, NOW)
    assert (held.state, held.groups, held.protocol) == (State.ONGOING, ("g",), IMPLICIT)


# ── end, by clients of the older protocol ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("commit", [True, False])
def test_it_ends_once_however_often_it_is_asked(commit: bool) -> None:
    ending = end(add(ready(), A), commit=commit)
    assert ending.state is (State.COMMITTING if commit else State.ABORTING)
    assert ending.producer == ending.marking == Identity(7, 0)
    assert end(ending, commit=commit) is ending
    done = ended(ending)
    assert done.state is (State.COMMITTED if commit else State.ABORTED)
    assert end(done, commit=commit) is done
    for state in (ending, done):
        with pytest.raises(WrongTransaction):
            end(state, commit=not commit)


def test_there_must_be_something_to_end() -> None:
    for commit in (True, False):
        with pytest.raises(WrongTransaction):
            end(ready(), commit=commit)
        with pytest.raises(UnknownProducer):
            end(None, commit=commit)


# ── end, by clients of the newer protocol ────────────────────────────────────────────────────────────────────────────


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
            add(state, A, who=old)
    following = add(ended(ending), A, protocol=IMPLICIT)
    with pytest.raises(Fenced):
        end(following, old, commit=commit, protocol=IMPLICIT)


def test_an_abort_of_nothing_has_a_new_epoch_too() -> None:
    for before in (ready(), ended(end(add(ready(), A)))):
        aborted = end(before, commit=False, protocol=IMPLICIT)
        assert (aborted.state, aborted.producer, aborted.last) == (State.ABORTED, Identity(7, 1), Identity(7, 0))
        assert aborted.number == before.number
        assert end(aborted, Identity(7, 0), commit=False, protocol=IMPLICIT) is aborted
        with pytest.raises(WrongTransaction):
            end(before, commit=True, protocol=IMPLICIT)
    with pytest.raises(Busy):
        end(end(add(ready(), A), protocol=IMPLICIT), commit=False, protocol=IMPLICIT)


def test_the_last_epoch_ends_with_a_new_producer_id() -> None:
    last = Identity(7, EPOCH_LAST)
    open_ = add(Transaction(producer=last, timeout_ms=1, changed_ms=NOW), A, protocol=IMPLICIT)
    ending = end(open_, protocol=IMPLICIT)
    assert (ending.producer, ending.marking) == (Identity(FRESH, 0), Identity(7, 2**15 - 1))
    assert end(ended(ending), last, protocol=IMPLICIT).producer == Identity(FRESH, 0)
    with pytest.raises(UnknownProducer):
        add(ended(ending), A, who=last)


def test_nobody_is_never_somebody() -> None:
    for record in (ready(), ended(end(add(ready(), A)))):
        with pytest.raises(UnknownProducer):
            end(record, NOBODY, protocol=IMPLICIT)


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_that_takes_too_long_is_aborted_and_its_producer_fenced() -> None:
    open_ = add(ready(), A)
    assert not machine.is_overdue(open_, NOW + 60_000)
    assert machine.is_overdue(open_, NOW + 60_001)
    assert not machine.is_overdue(ready(), NOW + 10**9)
    aborting = machine.fenced(open_, NOW + 60_001)
    assert (aborting.state, aborting.producer, aborting.marking) == (State.ABORTING, Identity(7, 1), Identity(7, 1))
    for late in (aborting, ended(aborting)):
        with pytest.raises(Fenced):
            end(late, Identity(7, 0))
        with pytest.raises(Fenced):
            end(late, Identity(7, 0), protocol=IMPLICIT)
        with pytest.raises(Fenced):
            init(late, Identity(7, 0))


def test_an_id_that_nobody_uses_is_forgotten_but_never_an_open_transaction() -> None:
    later = NOW + machine.EXPIRY_MS + 10_000
    open_ = add(ready(), A)
    assert not machine.is_forgotten(ready(), NOW + machine.EXPIRY_MS)
    assert machine.is_forgotten(ready(), later)
    assert machine.is_forgotten(ended(end(open_)), later)
    assert not machine.is_forgotten(open_, later)
    assert not machine.is_forgotten(end(open_), later)
