"""Tests that the checker finds each anomaly with its name, and none in a correct history."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.integration.jepsen_style.checker import check, report
from tests.integration.jepsen_style.history import (
    Commit,
    Fault,
    HistoryEvent,
    Log,
    OffsetRead,
    Outcome,
    Place,
    Poll,
    Position,
    Record,
    Rows,
    Send,
    Transaction,
    Write,
    load,
    save,
)
from tests.integration.jepsen_style.svg_report import draw

A, B = Place("a", 0), Place("b", 0)
DONE, NO_EFFECT, UNKNOWN = Outcome.DONE, Outcome.NO_EFFECT, Outcome.UNKNOWN


def send(value: str, offset: int | None = None, outcome: Outcome = DONE) -> Send:
    return Send(client="sender", start_s=1, end_s=2, write=Write(A, value, offset), outcome=outcome)


def later(event: Send) -> Send:
    return msgspec.structs.replace(event, start_s=event.start_s + 1)


def transaction(outcome: Outcome, *writes: Write, ending_s: float | None = 5, at: int | None = None) -> Transaction:
    positions = () if at is None else (Position(A, at),)
    group = "" if at is None else "copiers"
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


def poll(
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


def log(place: Place, *records: tuple[int, str], committed: bool = True) -> Log:
    log_records = tuple(Record(*record) for record in records)
    return Log(client="final reader", start_s=98, end_s=99, place=place, committed=committed, records=log_records)


def rows(place: Place, *records: tuple[int, str]) -> Rows:
    return Rows(client="table", start_s=98, end_s=99, place=place, records=tuple(Record(*record) for record in records))


def offset_read(offset: int, at_s: float = 97, group: str = "readers") -> OffsetRead:
    return OffsetRead(
        client="offset-reader", start_s=at_s - 1, end_s=at_s, group=group, positions=(Position(A, offset),)
    )


def commit(offset: int, at_s: float, outcome: Outcome = DONE) -> Commit:
    positions = (Position(A, offset),)
    return Commit(client="reader", start_s=at_s - 1, end_s=at_s, group="readers", positions=positions, outcome=outcome)


def names(events: Sequence[HistoryEvent]) -> set[str]:
    return {anomaly.name for anomaly in check(events)}


def copied(value: str, of: int) -> Write:
    return Write(B, value, source=Position(A, of))


GOOD: list[HistoryEvent] = [
    send("s0", 0),
    send("s1", 1),
    send("s2", 3),
    send("perhaps", outcome=UNKNOWN),
    send("perhaps not", outcome=UNKNOWN),
    transaction(DONE, Write(A, "t0", 4), Write(B, "t1", 0)),
    transaction(UNKNOWN, Write(A, "u0"), Write(B, "u1")),
    transaction(UNKNOWN, Write(A, "v0"), Write(B, "v1")),
    transaction(NO_EFFECT, Write(A, "n0", 2), ending_s=None),
    poll((0, "s0"), (1, "s1"), group="readers"),
    poll((3, "s2"), (4, "t0"), at_s=12, group="readers"),
    poll((1, "s1"), session=1, at_s=13),
    commit(2, 11),
    commit(5, 13),
    offset_read(2, 12),
    offset_read(5),
    log(A, (0, "s0"), (1, "s1"), (3, "s2"), (4, "t0"), (6, "u0"), (8, "perhaps")),
    log(A, (0, "s0"), (1, "s1"), (2, "n0"), (3, "s2"), (4, "t0"), (6, "u0"), (8, "perhaps"), committed=False),
    log(B, (0, "t1"), (2, "u1")),
    rows(B, (0, "t1"), (2, "u1")),
]

COPIED: list[HistoryEvent] = [
    log(A, (0, "s0"), (1, "s1"), (2, "s2")),
    log(B, (0, "m0"), (1, "m1")),
    transaction(DONE, copied("m0", 0), copied("m1", 1), at=2),
    offset_read(2, group="copiers"),
    poll((0, "s0"), (1, "s1"), group="copiers"),
]

BAD: dict[str, tuple[str, list[HistoryEvent]]] = {
    "acknowledged send is missing": ("lost write", [send("s0", 0), log(A)]),
    "acknowledged transaction is missing": ("lost write", [transaction(DONE, Write(A, "t0")), log(A)]),
    "group skipped a record": (
        "lost write",
        [poll((0, "s0"), group="readers"), offset_read(2), log(A, (0, "s0"), (1, "s1"))],
    ),
    "record is in the log twice": ("duplicate", [send("s0", 0), log(A, (0, "s0"), (1, "s0"))]),
    "record was copied twice": (
        "duplicate",
        [*COPIED, transaction(DONE, copied("again", 1), at=2), log(B, (0, "m0"), (1, "m1"), (2, "again"))],
    ),
    "aborted record is in the log": (
        "aborted read",
        [transaction(NO_EFFECT, Write(A, "t0"), ending_s=None), log(A, (0, "t0"))],
    ),
    "aborted record was polled": (
        "aborted read",
        [transaction(NO_EFFECT, Write(A, "t0"), ending_s=None), poll((0, "t0")), log(A)],
    ),
    "record was polled before its commit": (
        "precommitted read",
        [transaction(DONE, Write(A, "t0")), poll((0, "t0"), at_s=4.5), log(A, (0, "t0"))],
    ),
    "half of a transaction with unknown outcome is visible": (
        "torn transaction",
        [transaction(UNKNOWN, Write(A, "t0"), Write(B, "t1")), log(A, (0, "t0")), log(B)],
    ),
    "offsets without records": ("torn transaction", [*COPIED, offset_read(3, group="copiers")]),
    "records without offsets": ("torn transaction", [*COPIED, offset_read(1, group="copiers")]),
    "later write is at an earlier offset": (
        "reordered write",
        [send("s0", 1), later(send("s1", 0)), log(A, (0, "s1"), (1, "s0"))],
    ),
    "write is before an earlier one of its transaction": (
        "reordered write",
        [transaction(DONE, Write(A, "t0", 1), Write(A, "t1", 0)), log(A, (0, "t1"), (1, "t0"))],
    ),
    "row is missing": ("inconsistent log", [log(A, (0, "s0"), (1, "s1")), rows(A, (1, "s1"))]),
    "row has another value": ("inconsistent log", [log(A, (0, "s0")), rows(A, (0, "s1"))]),
    "row is in the table twice": ("inconsistent log", [log(A, (0, "s0")), rows(A, (0, "s0"), (0, "s0"))]),
    "row of an aborted record": (
        "inconsistent log",
        [log(A, (0, "s0")), log(A, (0, "s0"), (1, "n0"), committed=False), rows(A, (0, "s0"), (1, "n0"))],
    ),
    "two readers of the log read different records": (
        "inconsistent log",
        [log(A, (0, "s0"), (1, "s1")), log(A, (0, "s0"))],
    ),
    "committed record is missing among all": (
        "inconsistent log",
        [log(A, (0, "s0"), (1, "s1")), log(A, (0, "s0"), committed=False)],
    ),
    "two values at one offset": ("inconsistent offset", [send("s0", 0), poll((0, "other")), log(A, (0, "s0"))]),
    "record is not at its acknowledged offset": ("inconsistent offset", [send("s0", 7), log(A, (0, "s0"))]),
    "offset was polled twice in a session": (
        "nonmonotonic poll",
        [poll((0, "s0"), (1, "s1")), poll((1, "s1"), at_s=11), log(A, (0, "s0"), (1, "s1"))],
    ),
    "offsets decrease within a poll": (
        "nonmonotonic poll",
        [poll((1, "s1"), (0, "s0")), log(A, (0, "s0"), (1, "s1"))],
    ),
    "poll skipped a record": (
        "nonmonotonic poll",
        [poll((0, "s0"), (2, "s2")), log(A, (0, "s0"), (1, "s1"), (2, "s2"))],
    ),
    "offset read returned less than the one before": (
        "committed offset going back",
        [offset_read(5, 10), offset_read(4, 20)],
    ),
    "offset read returned less than was committed": (
        "committed offset going back",
        [commit(5, 10), offset_read(4, 20)],
    ),
    "lower commit was acknowledged later": ("committed offset going back", [commit(5, 10), commit(4, 20)]),
}


def test_correct_history_has_no_anomaly() -> None:
    assert check(GOOD) == []
    assert check(COPIED) == []
    assert report(check(GOOD)) == "no anomaly"


@pytest.mark.parametrize("case", BAD)
def test_anomaly_is_reported_with_its_name(case: str) -> None:
    name, events = BAD[case]
    assert name in names(events)
    assert f"\n  {name}: " in report(check(events))


def test_all_anomalies_of_a_history_are_reported() -> None:
    name, events = BAD["half of a transaction with unknown outcome is visible"]
    assert names(events) == {name}
    assert names([*events, send("s0", 3)]) == {name, "lost write"}


def test_aborted_record_is_no_anomaly_when_the_reader_reads_uncommitted() -> None:
    aborted = transaction(NO_EFFECT, Write(A, "t0"), ending_s=None)
    assert check([aborted, poll((0, "t0"), committed=False), log(A), log(A, (0, "t0"), committed=False)]) == []


def test_concurrent_offset_reads_may_return_different_offsets() -> None:
    assert check([offset_read(5, 10), offset_read(4, 10.5)]) == []


def test_offset_may_go_back_only_to_an_earlier_commit_with_unknown_outcome() -> None:
    late = commit(4, 5, UNKNOWN)
    assert check([late, commit(5, 10), offset_read(4, 20)]) == []
    assert names([late, commit(5, 10), offset_read(3, 20)]) == {"committed offset going back"}
    assert names([commit(4, 40, UNKNOWN), commit(5, 10), offset_read(4, 20)]) == {"committed offset going back"}


def test_history_is_saved_loaded_and_drawn(tmp_path: Path) -> None:
    events = [*GOOD, *COPIED, Fault(client="oxia", what="killed", start_s=3, end_s=4)]
    save(events, tmp_path / "history.jsonl")
    assert load(tmp_path / "history.jsonl") == events
    svg = draw(events)
    assert svg.startswith("<svg ")
    assert ">oxia<" in svg
    assert draw([]).startswith("<svg "), "a run that failed at its start has no events"
