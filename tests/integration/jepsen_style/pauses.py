"""Finds the longest time in which a client, or the readers of a partition, had no success. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.integration.jepsen_style.history import (
    ClientFailure,
    Commit,
    Fault,
    HistoryEvent,
    Outcome,
    Poll,
    Send,
    Transaction,
)


class Pause(NamedTuple):
    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s

    def __str__(self) -> str:
        return f"{self.length_s:.1f} s at {self.start_s:.1f} s"


def clients_since(events: Sequence[HistoryEvent], start_s: float) -> set[str]:
    """Returns the clients with a successful call that began later."""
    clients = set()
    for event in reversed(events):  # in the order of their ends
        if event.end_s < start_s:
            break
        if _names(event) and event.start_s >= start_s:
            clients.add(event.client)
    return clients


def longest_pauses(events: Sequence[HistoryEvent], start_s: float, end_s: float) -> dict[str, Pause]:
    """Returns the longest pause of each client, and of each partition of a producer or group, that is partly between
    the times: a call, or the time between the ends of two successful calls."""
    pauses: defaultdict[str, list[Pause]] = defaultdict(list)
    ends: defaultdict[str, list[float]] = defaultdict(list)
    for event in events:
        for name in _names(event):
            ends[name].append(event.end_s)
            pauses[name].append(Pause(event.start_s, event.end_s))
    for name, times in ends.items():
        pauses[name] += [Pause(*pair) for pair in pairwise([*sorted(times), max(end_s, *times)])]
    return {
        name: max(inside, key=lambda pause: pause.length_s)
        for name, found in pauses.items()
        if (inside := [pause for pause in found if pause.end_s > start_s and pause.start_s < end_s])
    }


def longer(pauses: Mapping[str, Pause], than_s: float, faults: Sequence[Fault] = ()) -> list[str]:
    """Returns the pauses that are longer, without the time during which there was a fault."""
    return [f"{name}: {pause}" for name, pause in sorted(pauses.items()) if _without(pause, faults) > than_s]


def names_of(events: Sequence[HistoryEvent], client: str) -> set[str]:
    """Returns the names under which calls of a client count."""
    return {name for event in events if event.client == client for name in _names(event)}


def outage(events: Sequence[HistoryEvent], failure: ClientFailure) -> Fault:
    """Returns the time from the start of the client's failed transaction to the next success of its program."""
    own = [event for event in events if event.client == failure.client]
    starts_s = [event.start_s for event in own if isinstance(event, Transaction) and event.end_s <= failure.end_s]
    ends_s = [event.end_s for event in own if _names(event) and event.end_s > failure.end_s]
    end_s = min(ends_s, default=failure.end_s)
    return Fault(client=failure.client, what="failed", start_s=max(starts_s, default=failure.end_s), end_s=end_s)


def _without(pause: Pause, faults: Sequence[Fault]) -> float:
    length_s, end_s = pause.length_s, pause.start_s
    for fault in sorted(faults, key=lambda fault: fault.start_s):
        start_s, end_before_s = max(fault.start_s, end_s), end_s
        end_s = max(end_before_s, min(fault.end_s, pause.end_s))
        length_s -= max(0.0, end_s - start_s)
    return length_s


def _names(event: HistoryEvent) -> tuple[str, ...]:
    """Returns the names under which a call counts, or nothing if it was not successful."""
    match event:
        case Send(outcome=Outcome.DONE):
            return event.client, f"{event.client} to {event.write.place}"
        case Transaction(outcome=Outcome.DONE) | Commit(outcome=Outcome.DONE):
            return (event.client,)
        case Poll():
            return event.client, f"group {event.group} of {event.place}"
    return ()
