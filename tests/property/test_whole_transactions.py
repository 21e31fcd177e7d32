"""Cuts that split no transaction, held against a plain model: logs as lists, and a look at every record of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.pipeline.whole import Held, Part, Transaction, Whereabouts, held, is_over, split_after, whole_cut

LOGS = 3
Places = dict[Transaction, list[tuple[int, int]]]
"""Of each transaction, partition and offset of all its records."""


def parts_of(places: Places, starts: Mapping[int, int]) -> dict[Transaction, dict[int, Part]]:
    """What the chains show: nothing of what is in the table already."""
    found: dict[Transaction, dict[int, Part]] = {}
    for transaction, records in places.items():
        for number, offset in records:
            if offset >= starts.get(number, 0):
                parts = found.setdefault(transaction, {})
                first, end = parts.get(number, Part(offset, offset + 1))
                parts[number] = Part(min(first, offset), max(end, offset + 1))
    return found


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
                places.setdefault(Transaction(owner, 1), []).append((number, offset))
    return places, limit


@given(laid_out())
def test_it_is_the_furthest_cut_that_splits_nothing(given_: tuple[Places, dict[int, int]]) -> None:
    places, limit = given_
    cut = whole_cut(limit, Whereabouts(parts_of(places, {})))
    assert is_whole(places, cut)
    for other in product(*(range(limit[number] + 1) for number in range(LOGS))):
        if is_whole(places, dict(enumerate(other))):
            assert all(other[number] <= cut[number] for number in range(LOGS))


def test_a_long_chain_of_transactions_that_hold_one_another_back() -> None:
    """Each begins in one log before the one ends that began in the other: a loop per transaction would take minutes."""
    count = 50_000
    parts = {
        Transaction(1, number): {number % 2: Part(number, number + 3), (number + 1) % 2: Part(number + 1, number + 2)}
        for number in range(count)
    }
    assert whole_cut({0: count, 1: count}, Whereabouts(parts)) == {0: 0, 1: 1}


# ── round after round ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Producer:
    producer_id: int
    number: int = 1
    logs: set[int] = field(default_factory=set)
    markers: list[int] = field(default_factory=list)
    """Logs that are still to learn how it ended."""
    commits: bool = False


class Model:
    """Logs of records, each with the transaction that it belongs to; a marker is a record of none."""

    def __init__(self) -> None:
        self.logs: list[list[Transaction | None]] = [[] for _ in range(LOGS)]
        self.producers = [Producer(number) for number in range(3)]
        self.open: list[set[Transaction]] = [set() for _ in range(LOGS)]
        self.committed: set[Transaction] = set()
        self.table = dict.fromkeys(range(LOGS), 0)
        self.split: dict[int, int] | None = {}

    def step(self, what: int, who: int, where: int) -> None:
        producer = self.producers[who]
        now = Transaction(producer.producer_id, producer.number)
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

    def where(self, limit: Mapping[int, int]) -> Whereabouts:
        """The second look, after the limits were seen: all about those that a round might move."""
        known = parts_of(self.places(), self.table)
        moved = {
            transaction: parts
            for transaction, parts in known.items()
            if any(part.first < limit[number] for number, part in parts.items())
        }
        return Whereabouts(moved, {number: len(log) for number, log in enumerate(self.logs)})

    def whole_now(self) -> bool:
        return is_whole(self.places(), self.table)


class Step(NamedTuple):
    what: int
    who: int
    where: int


class Round(NamedTuple):
    before: list[Step]
    between_looks: list[Step]
    how: str
    ends: list[int]
    forgets: bool
    """Somebody removed from the table what it said of split transactions."""


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
        limit = {number: model.stable(number) for number in range(LOGS)}  # the first look
        for step in one.between_looks:
            model.step(*step)
        where = model.where(limit)
        cut = limit
        if one.how == "whole":
            cut = whole_cut(limit, where)
        elif one.how == "some":  # another driver was faster, work failed, a round was full
            cut = {number: min(limit[number], max(model.table[number], one.ends[number])) for number in limit}
        before = None if one.forgets else model.split
        model.table = {number: max(cut[number], model.table[number]) for number in cut}
        model.split = split_after(before, where, model.table)
        yield


@given(ROUNDS)
@settings(max_examples=300)
def test_it_is_always_known_whether_the_table_is_whole(rounds: list[Round]) -> None:
    model = Model()
    for _ in played(model, [one._replace(forgets=False) for one in rounds]):
        assert (model.split == {}) == model.whole_now(), (model.table, model.split)


@given(ROUNDS)
@settings(max_examples=300)
def test_where_it_was_forgotten_nothing_split_is_called_whole(rounds: list[Round]) -> None:
    model = Model()
    for _ in played(model, rounds):
        assert model.split or model.whole_now()
    ends = [Step(what, who, where) for _ in range(LOGS) for who in range(3) for what in (3, 4) for where in range(LOGS)]
    for _ in played(model, [Round(ends, [], "all", [], False)]):  # all is moved: then it is known again
        assert model.split == {}
        assert model.whole_now()


@given(ROUNDS)
def test_rounds_that_only_take_what_is_whole_never_split_anything(rounds: list[Round]) -> None:
    model = Model()
    for _ in played(model, [one._replace(how="whole") for one in rounds]):
        assert model.whole_now()


def test_a_log_that_was_not_read_to_its_end_may_hold_more_of_it() -> None:
    where = Whereabouts({Transaction(1, 1): {0: Part(0, 5)}}, {0: 9, 1: 70}, frozenset({1}))
    assert split_after({}, where, {0: 5, 1: 3}) == {1: 70}
    assert split_after({1: 70}, Whereabouts(), {0: 9, 1: 69}) == {1: 70}
    assert split_after({1: 70}, Whereabouts(), {0: 9, 1: 70}) == {}


def test_only_who_does_not_get_on_waits() -> None:
    limit = {0: 10, 1: 10}
    first = held({}, {0: 4, 1: 10}, limit, 100.0)
    assert first == {0: Held(4, 100.0)}
    stays = held(first, {0: 4, 1: 7}, limit, 104.0)
    assert stays == {0: Held(4, 100.0), 1: Held(7, 104.0)}
    assert held(stays, {0: 5, 1: 10}, limit, 106.0) == {0: Held(5, 106.0)}
    assert not is_over(stays.values(), 109.9, 10_000)
    assert is_over(stays.values(), 110.0, 10_000)
