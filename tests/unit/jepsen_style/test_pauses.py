"""Longest pauses of clients in a history."""

from tests.integration.jepsen_style.history import (
    ClientFailure,
    Fault,
    HistoryEvent,
    Outcome,
    Place,
    Poll,
    Record,
    Send,
    Transaction,
    Write,
)
from tests.integration.jepsen_style.pauses import Pause, clients_since, longer, longest_pauses, names_of, outage

A = Place("a", 0)


def send(start_s: float, end_s: float, outcome: Outcome = Outcome.DONE) -> Send:
    return Send(client="sends", start_s=start_s, end_s=end_s, write=Write(A, f"{start_s}"), outcome=outcome)


def poll(end_s: float) -> Poll:
    records = (Record(1, "a"),)
    return Poll(
        client="reads", start_s=end_s, end_s=end_s, session=0, group="g", committed=True, place=A, records=records
    )


def fault(start_s: float, end_s: float) -> Fault:
    return Fault(client="s3", what="killed", start_s=start_s, end_s=end_s)


EVENTS: list[HistoryEvent] = [send(0, 1), poll(1), send(1, 2), send(2, 6, Outcome.UNKNOWN), send(6, 7), poll(8)]


def test_longest_pause_is_between_successes_of_a_client_or_of_the_readers_of_a_partition() -> None:
    pauses = longest_pauses(EVENTS, 0, 8)
    assert pauses == {
        "sends": Pause(2, 7),
        "sends to a/0": Pause(2, 7),
        "reads": Pause(1, 8),
        "group g of a/0": Pause(1, 8),
    }


def test_pause_may_reach_from_before_the_start_to_the_end() -> None:
    assert longest_pauses(EVENTS, 7.5, 20)["sends"] == Pause(7, 20)
    assert longest_pauses(EVENTS, 3, 4)["reads"] == Pause(1, 8)


def test_long_call_is_a_pause_when_other_calls_succeed() -> None:
    concurrent: list[HistoryEvent] = [*(send(at, at + 1) for at in range(5)), send(0, 6)]
    assert longest_pauses(concurrent, 0, 6)["sends"] == Pause(0, 6)


def test_time_of_faults_is_not_counted() -> None:
    pauses = {"sends": Pause(0, 10)}
    assert longer(pauses, 9) == ["sends: 10.0 s at 0.0 s"]
    assert longer(pauses, 7, [fault(-5, 1), fault(4, 6), fault(5, 6)]) == []
    assert longer(pauses, 6.5, [fault(4, 6), fault(-5, 1), fault(5, 6)]) == ["sends: 10.0 s at 0.0 s"]


def test_only_successful_calls_that_began_later_count() -> None:
    assert clients_since(EVENTS, 2) == {"sends", "reads"}
    assert clients_since(EVENTS, 7) == {"reads"}
    assert clients_since([send(2, 6, Outcome.UNKNOWN)], 0) == set()


def test_outage_of_a_client_is_from_its_failed_transaction_to_its_next_success() -> None:
    def transaction(start_s: float, end_s: float, outcome: Outcome) -> Transaction:
        return Transaction(client="reads", start_s=start_s, end_s=end_s, writes=(), ending_s=None, outcome=outcome)

    failure = ClientFailure(client="reads", start_s=0, end_s=5, what="hung")
    events = [*EVENTS, transaction(1, 2, Outcome.DONE), transaction(3, 5, Outcome.NO_EFFECT), failure]
    found = outage(events, failure)
    assert (found.start_s, found.end_s) == (3, 8)
    assert names_of(events, "reads") == {"reads", "group g of a/0"}
