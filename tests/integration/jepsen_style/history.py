"""History of the clients' calls: one event per call, with its start and end.

Written by programs.py and faults.py from many threads, read by checker.py and svg_report.py. Stored as lines of JSON.
"""

import time
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


class Record(NamedTuple):
    offset: int
    value: str


class Position(NamedTuple):
    """The next offset of a group."""

    place: Place
    offset: int


class Outcome(Enum):
    DONE = "done"
    NO_EFFECT = "not"
    """The transaction was aborted, or its commit was never requested."""
    UNKNOWN = "unknown"
    """The response was lost or was an error: the call had its whole effect, or none."""


class Write(msgspec.Struct, frozen=True):
    place: Place
    value: str
    """Unique among all writes."""
    offset: int | None = None
    """Offset in the acknowledgement."""
    source: Position | None = None
    """Source of a record that was read, transformed and written in one transaction."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    client: str
    start_s: float
    end_s: float


class Send(Event, frozen=True, kw_only=True, tag="send"):
    write: Write
    outcome: Outcome


class Transaction(Event, frozen=True, kw_only=True, tag="transaction"):
    writes: tuple[Write, ...]
    ending_s: float | None
    """Time of the commit request, or None if there was none."""
    outcome: Outcome
    group: str = ""
    positions: tuple[Position, ...] = ()


class Poll(Event, frozen=True, kw_only=True, tag="poll"):
    session: int
    """Changes after every assignment and every seek."""
    group: str = ""
    committed: bool
    """Whether the client reads only committed records."""
    place: Place
    records: tuple[Record, ...]


class Commit(Event, frozen=True, kw_only=True, tag="commit"):
    group: str
    positions: tuple[Position, ...]
    outcome: Outcome


class OffsetRead(Event, frozen=True, kw_only=True, tag="look"):
    """Read of the committed offsets of a group by a client that is not a member."""

    group: str
    positions: tuple[Position, ...]


class Fault(Event, frozen=True, kw_only=True, tag="fault"):
    """Injected fault; `client` is its target."""

    what: str


class ClientFailure(Event, frozen=True, kw_only=True, tag="trouble"):
    """A client failed, and was replaced by a new one."""

    what: str


class Log(Event, frozen=True, kw_only=True, tag="log"):
    """Contents of a log at the end."""

    place: Place
    committed: bool
    records: tuple[Record, ...]


class Rows(Event, frozen=True, kw_only=True, tag="rows"):
    """Rows of a topic's table that are of one partition, at the end."""

    place: Place
    records: tuple[Record, ...]


HistoryEvent: TypeAlias = Send | Transaction | Poll | Commit | OffsetRead | Fault | ClientFailure | Log | Rows


class History:
    def __init__(self) -> None:
        self.events: list[HistoryEvent] = []  # append is safe from any thread
        self._start_s = time.monotonic()

    def now_s(self) -> float:
        return time.monotonic() - self._start_s

    def add(self, event: HistoryEvent) -> None:
        self.events.append(event)


def count_done(events: Iterable[HistoryEvent], kind: type[Send | Transaction]) -> int:
    return sum(isinstance(event, kind) and event.outcome is Outcome.DONE for event in events)


def save(events: Iterable[HistoryEvent], path: Path) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))


def load(path: Path) -> list[HistoryEvent]:
    decoder = msgspec.json.Decoder(HistoryEvent)
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]
