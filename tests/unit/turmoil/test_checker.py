"""The checker finds every anomaly in a history that has it, by its name, and nothing in one that has none."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.integration.turmoil.checker import check, report
from tests.integration.turmoil.history import (
    Commit,
    Fault,
    Happened,
    Log,
    Look,
    Outcome,
    Place,
    Poll,
    Position,
    Record,
    Send,
    Transaction,
    Write,
    load,
    save,
)
from tests.integration.turmoil.picture import draw

A, B = Place("a", 0), Place("b", 0)
DONE, NOT, UNKNOWN = Outcome.DONE, Outcome.NOT, Outcome.UNKNOWN


def sent(value: str, offset: int | None = None, outcome: Outcome = DONE) -> Send:
    return Send(client="sender", start_s=1, end_s=2, write=Write(A, value, offset), outcome=outcome)


def transaction(outcome: Outcome, *writes: Write, ending_s: float | None = 5, at: int | None = None) -> Transaction:
    positions = () if at is None else (Position(A, at),)
    group = "" if at is None else "movers"
    return Transaction(
        client="pays",
        start_s=4,
        end_s=6,
        writes=writes,
        ending_s=ending_s,
        outcome=outcome,
        group=group,
        positions=positions,
    )


def polled(
    *records: tuple[int, str], at_s: float = 10, session: int = 0, group: str = "", committed: bool = True
) -> Poll:
    return Poll(
        client="reader",
        start_s=at_s - 1,
        end_s=at_s,
        session=session,
        group=group,
        committed=committed,
        place=A,
        records=tuple(Record(*record) for record in records),
    )


def logged(place: Place, *records: tuple[int, str], committed: bool = True) -> Log:
    found = tuple(Record(*record) for record in records)
    return Log(client="the end", start_s=98, end_s=99, place=place, committed=committed, records=found)


def looked(offset: int, at_s: float = 97, group: str = "readers") -> Look:
    return Look(client="looks", start_s=at_s - 1, end_s=at_s, group=group, positions=(Position(A, offset),))


def committed(offset: int, at_s: float, outcome: Outcome = DONE) -> Commit:
    positions = (Position(A, offset),)
    return Commit(client="reader", start_s=at_s - 1, end_s=at_s, group="readers", positions=positions, outcome=outcome)


def names(events: Sequence[Happened]) -> set[str]:
    return {anomaly.name for anomaly in check(events)}


def made(value: str, of: int) -> Write:
    return Write(B, value, source=Position(A, of))


GOOD: list[Happened] = [
    sent("s0", 0),
    sent("s1", 1),
    sent("s2", 3),
    sent("perhaps", outcome=UNKNOWN),
    sent("perhaps not", outcome=UNKNOWN),
    transaction(DONE, Write(A, "t0", 4), Write(B, "t1", 0)),
    transaction(UNKNOWN, Write(A, "u0"), Write(B, "u1")),
    transaction(UNKNOWN, Write(A, "v0"), Write(B, "v1")),
    transaction(NOT, Write(A, "n0", 2), ending_s=None),
    polled((0, "s0"), (1, "s1"), group="readers"),
    polled((3, "s2"), (4, "t0"), at_s=12, group="readers"),
    polled((1, "s1"), session=1, at_s=13),
    committed(2, 11),
    committed(5, 13),
    looked(2, 12),
    looked(5),
    logged(A, (0, "s0"), (1, "s1"), (3, "s2"), (4, "t0"), (6, "u0"), (8, "perhaps")),
    logged(A, (0, "s0"), (1, "s1"), (2, "n0"), (3, "s2"), (4, "t0"), (6, "u0"), (8, "perhaps"), committed=False),
    logged(B, (0, "t1"), (2, "u1")),
]

MOVED: list[Happened] = [
    logged(A, (0, "s0"), (1, "s1"), (2, "s2")),
    logged(B, (0, "m0"), (1, "m1")),
    transaction(DONE, made("m0", 0), made("m1", 1), at=2),
    looked(2, group="movers"),
    polled((0, "s0"), (1, "s1"), group="movers"),
]

BAD: dict[str, tuple[str, list[Happened]]] = {
    "an acknowledged send is nowhere": ("lost write", [sent("s0", 0), logged(A)]),
    "an acknowledged transaction is nowhere": ("lost write", [transaction(DONE, Write(A, "t0")), logged(A)]),
    "a group went past a record": (
        "lost write",
        [polled((0, "s0"), group="readers"), looked(2), logged(A, (0, "s0"), (1, "s1"))],
    ),
    "a record is there twice": ("duplicate", [sent("s0", 0), logged(A, (0, "s0"), (1, "s0"))]),
    "a record was worked on twice": (
        "duplicate",
        [*MOVED, transaction(DONE, made("again", 1), at=2), logged(B, (0, "m0"), (1, "m1"), (2, "again"))],
    ),
    "an aborted record is in the log": (
        "aborted read",
        [transaction(NOT, Write(A, "t0"), ending_s=None), logged(A, (0, "t0"))],
    ),
    "an aborted record was polled": (
        "aborted read",
        [transaction(NOT, Write(A, "t0"), ending_s=None), polled((0, "t0")), logged(A)],
    ),
    "a record was polled before its commit": (
        "precommitted read",
        [transaction(DONE, Write(A, "t0")), polled((0, "t0"), at_s=4.5), logged(A, (0, "t0"))],
    ),
    "half of a transaction that may be there": (
        "torn transaction",
        [transaction(UNKNOWN, Write(A, "t0"), Write(B, "t1")), logged(A, (0, "t0")), logged(B)],
    ),
    "offsets without records": ("torn transaction", [*MOVED, looked(3, group="movers")]),
    "records without offsets": ("torn transaction", [*MOVED, looked(1, group="movers")]),
    "two values at one offset": ("inconsistent offset", [sent("s0", 0), polled((0, "other")), logged(A, (0, "s0"))]),
    "it is not where its sender was told": ("inconsistent offset", [sent("s0", 7), logged(A, (0, "s0"))]),
    "an offset came again in a session": (
        "nonmonotonic poll",
        [polled((0, "s0"), (1, "s1")), polled((1, "s1"), at_s=11), logged(A, (0, "s0"), (1, "s1"))],
    ),
    "a poll went back in itself": (
        "nonmonotonic poll",
        [polled((1, "s1"), (0, "s0")), logged(A, (0, "s0"), (1, "s1"))],
    ),
    "a poll passed something over": (
        "nonmonotonic poll",
        [polled((0, "s0"), (2, "s2")), logged(A, (0, "s0"), (1, "s1"), (2, "s2"))],
    ),
    "a look saw less than the look before": (
        "committed offset going back",
        [looked(5, 10), looked(4, 20)],
    ),
    "a look saw less than was committed": ("committed offset going back", [committed(5, 10), looked(4, 20)]),
    "a late commit was acknowledged": ("committed offset going back", [committed(5, 10), committed(4, 20)]),
}


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert check(GOOD) == []
    assert check(MOVED) == []
    assert report(check(GOOD)) == "no anomaly"


@pytest.mark.parametrize("what", BAD)
def test_each_anomaly_is_found_by_its_name(what: str) -> None:
    name, events = BAD[what]
    assert name in names(events)
    assert f"\n  {name}: " in report(check(events))


def test_what_belongs_together_is_found_as_one() -> None:
    """Two anomalies at once are not one that hides the other."""
    name, events = BAD["half of a transaction that may be there"]
    assert names(events) == {name}
    assert names([*events, sent("s0", 3)]) == {name, "lost write"}


def test_readers_of_everything_may_see_what_was_aborted() -> None:
    aborted = transaction(NOT, Write(A, "t0"), ending_s=None)
    assert check([aborted, polled((0, "t0"), committed=False), logged(A), logged(A, (0, "t0"), committed=False)]) == []


def test_looks_at_the_same_time_may_see_different_offsets() -> None:
    assert check([looked(5, 10), looked(4, 10.5)]) == []


def test_a_commit_whose_answer_was_lost_may_come_late_and_nothing_else() -> None:
    late = committed(4, 5, UNKNOWN)
    assert check([late, committed(5, 10), looked(4, 20)]) == []
    assert names([late, committed(5, 10), looked(3, 20)]) == {"committed offset going back"}
    assert names([committed(4, 40, UNKNOWN), committed(5, 10), looked(4, 20)]) == {"committed offset going back"}


def test_a_history_is_kept_and_drawn(tmp_path: Path) -> None:
    events = [*GOOD, *MOVED, Fault(client="oxia", what="killed", start_s=3, end_s=4)]
    save(events, tmp_path / "history.jsonl")
    assert load(tmp_path / "history.jsonl") == events
    picture = draw(events)
    assert picture.startswith("<svg ")
    assert ">oxia<" in picture
    assert draw([]).startswith("<svg "), "also of a run that failed at its start"
