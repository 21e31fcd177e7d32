"""Cuts that split no transaction, compared with a model: logs as lists, of which every record is checked."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.pipeline.transaction_cut import (
    DeferredLog,
    TransactionId,
    TransactionPart,
    TransactionRanges,
    deferred_logs,
    has_waited,
    incomplete_after,
    transaction_aligned_cut,
)

LOGS = 3
Places = dict[TransactionId, list[tuple[int, int]]]
"""Partition and offset of all records of each transaction."""


def parts_of(places: Places, starts: Mapping[int, int]) -> dict[TransactionId, dict[int, TransactionPart]]:
    """Returns what the claims contain: nothing of the records that are in the table already."""
    by_transaction: dict[TransactionId, dict[int, TransactionPart]] = {}
    for transaction, records in places.items():
        for number, offset in records:
            if offset >= starts.get(number, 0):
                parts = by_transaction.setdefault(transaction, {})
                first, end = parts.get(number, TransactionPart(offset, offset + 1))
                parts[number] = TransactionPart(min(first, offset), max(end, offset + 1))
    return by_transaction


def is_whole(places: Places, cut: Mapping[int, int]) -> bool:
    return all(
        len({offset < cut.get(number, 0) for number, offset in records}) <= 1
        for records in places.values()  # all of it below the cut, or none
    )


# ── one cut ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def laid_out(draw: st.DrawFn) -> tuple[Places, dict[int, int]]:
    places: Places = {}
    limit = {}
    for number in range(LOGS):
        owners = draw(st.lists(st.integers(-1, 3), max_size=6))  # -1: a record outside of transactions
        limit[number] = draw(st.integers(0, len(owners)))
        for offset, owner in enumerate(owners):
            if owner >= 0:
                places.setdefault(TransactionId(owner, 1), []).append((number, offset))
    return places, limit


@given(laid_out())
def test_cut_is_the_furthest_that_splits_no_transaction(given_: tuple[Places, dict[int, int]]) -> None:
    places, limit = given_
    cut = transaction_aligned_cut(limit, TransactionRanges(parts_of(places, {})))
    assert is_whole(places, cut)
    for other in product(*(range(limit[number] + 1) for number in range(LOGS))):
        if is_whole(places, dict(enumerate(other))):
            assert all(other[number] <= cut[number] for number in range(LOGS))


def test_cut_is_fast_when_many_transactions_overlap_in_a_chain() -> None:
    """Each begins in one log before the one ends that began in the other: a loop per transaction would take minutes."""
    count = 50_000
    parts = {
        TransactionId(1, number): {
            number % 2: TransactionPart(number, number + 3),
            (number + 1) % 2: TransactionPart(number + 1, number + 2),
        }
        for number in range(count)
    }
    assert transaction_aligned_cut({0: count, 1: count}, TransactionRanges(parts)) == {0: 0, 1: 1}


# ── several micro-batches ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Producer:
    producer_id: int
    number: int = 1
    logs: set[int] = field(default_factory=set)
    markers: list[int] = field(default_factory=list)
    """Logs without a marker yet."""
    commits: bool = False


class Model:
    """Logs of records, each with its transaction; a marker is a record without one."""

    def __init__(self) -> None:
        self.logs: list[list[TransactionId | None]] = [[] for _ in range(LOGS)]
        self.producers = [Producer(number) for number in range(3)]
        self.open: list[set[TransactionId]] = [set() for _ in range(LOGS)]
        self.committed: set[TransactionId] = set()
        self.table = dict.fromkeys(range(LOGS), 0)
        self.split: dict[int, int] | None = {}

    def step(self, what: int, who: int, where: int) -> None:
        producer = self.producers[who]
        now = TransactionId(producer.producer_id, producer.number)
        if what == 0:
            self.logs[where].append(None)
        elif what in (1, 2) and not producer.markers:
            self.logs[where].append(now)
            self.open[where].add(now)
            producer.logs.add(where)
        elif what == 3 and producer.logs and not producer.markers:
            producer.markers, producer.commits = sorted(producer.logs), who != 2
            if producer.commits:
                self.committed.add(now)
        elif what == 4 and producer.markers:
            log = producer.markers.pop(where % len(producer.markers))
            self.logs[log].append(None)
            self.open[log].discard(now)
            if not producer.markers:
                producer.number, producer.logs = producer.number + 1, set()

    def stable(self, number: int) -> int:
        log = self.logs[number]
        return next((offset for offset, owner in enumerate(log) if owner in self.open[number]), len(log))

    def places(self) -> Places:
        found: Places = {}
        for number, log in enumerate(self.logs):
            for offset, owner in enumerate(log):
                if owner is not None and owner in self.committed:
                    found.setdefault(owner, []).append((number, offset))
        return found

    def where(self, limit: Mapping[int, int]) -> TransactionRanges:
        """Returns the second read, after the limits were read: the transactions that a micro-batch might move."""
        moved = {
            transaction: parts
            for transaction, parts in parts_of(self.places(), self.table).items()
            if any(part.first < limit[number] for number, part in parts.items())
        }
        return TransactionRanges(moved, {number: len(log) for number, log in enumerate(self.logs)})

    def whole_now(self) -> bool:
        return is_whole(self.places(), self.table)


class Step(NamedTuple):
    what: int
    who: int
    where: int


class Round(NamedTuple):
    before: list[Step]
    between_reads: list[Step]
    how: str
    ends: list[int]
    forgets: bool
    """Whether the table's tag of split transactions was removed."""


STEPS = st.lists(st.builds(Step, st.integers(0, 4), st.integers(0, 2), st.integers(0, LOGS - 1)), max_size=25)
ROUNDS = st.lists(
    st.builds(
        Round,
        STEPS,
        STEPS,
        st.sampled_from(["whole", "all", "some"]),
        st.lists(st.integers(0, 40), min_size=LOGS, max_size=LOGS),
        st.booleans(),
    ),
    max_size=6,
)


def played(model: Model, rounds: list[Round]) -> Iterator[None]:
    for one in rounds:
        for step in one.before:
            model.step(*step)
        limit = {number: model.stable(number) for number in range(LOGS)}  # the first read
        for step in one.between_reads:
            model.step(*step)
        where = model.where(limit)
        cut = limit
        if one.how == "whole":
            cut = transaction_aligned_cut(limit, where)
        elif one.how == "some":  # another driver was faster, work failed, the micro-batch was full
            cut = {number: min(limit[number], max(model.table[number], one.ends[number])) for number in limit}
        before = None if one.forgets else model.split
        model.table = {number: max(cut[number], model.table[number]) for number in cut}
        model.split = incomplete_after(before, where, model.table)
        yield


@given(ROUNDS)
@settings(max_examples=300)
def test_tag_is_set_exactly_if_the_table_has_split_transactions(rounds: list[Round]) -> None:
    model = Model()
    for _ in played(model, [one._replace(forgets=False) for one in rounds]):
        assert (model.split == {}) == model.whole_now(), (model.table, model.split)


@given(ROUNDS)
@settings(max_examples=300)
def test_split_transactions_are_never_reported_as_whole_after_the_tag_was_removed(rounds: list[Round]) -> None:
    model = Model()
    for _ in played(model, rounds):
        assert model.split or model.whole_now()
    ends = [Step(what, who, where) for _ in range(LOGS) for who in range(3) for what in (3, 4) for where in range(LOGS)]
    for _ in played(model, [Round(ends, [], "all", [], False)]):  # all records are moved, so the tag is right again
        assert model.split == {}
        assert model.whole_now()


@given(ROUNDS)
def test_micro_batches_of_whole_transactions_never_split_one(rounds: list[Round]) -> None:
    model = Model()
    for _ in played(model, [one._replace(how="whole") for one in rounds]):
        assert model.whole_now()


def test_transaction_may_be_incomplete_in_a_log_that_was_not_read_to_its_end() -> None:
    where = TransactionRanges({TransactionId(1, 1): {0: TransactionPart(0, 5)}}, {0: 9, 1: 70}, frozenset({1}))
    assert incomplete_after({}, where, {0: 5, 1: 3}) == {1: 70}
    assert incomplete_after({1: 70}, TransactionRanges(), {0: 9, 1: 69}) == {1: 70}
    assert incomplete_after({1: 70}, TransactionRanges(), {0: 9, 1: 70}) == {}


def test_only_logs_without_progress_are_deferred() -> None:
    limit = {0: 10, 1: 10}
    first = deferred_logs({}, {0: 4, 1: 10}, limit, 100.0)
    assert first == {0: DeferredLog(4, 100.0)}
    stays = deferred_logs(first, {0: 4, 1: 7}, limit, 104.0)
    assert stays == {0: DeferredLog(4, 100.0), 1: DeferredLog(7, 104.0)}
    assert deferred_logs(stays, {0: 5, 1: 10}, limit, 106.0) == {0: DeferredLog(5, 106.0)}
    assert not has_waited(stays.values(), 109.9, 10_000)
    assert has_waited(stays.values(), 110.0, 10_000)
