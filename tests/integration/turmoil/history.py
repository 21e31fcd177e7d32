"""What happened, as the clients saw it: one event per call, with the time before and after it.

Written by: programs.py and faults.py, from many threads.  Read by: checker.py, picture.py.  Kept as lines of JSON.
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
    NOT = "not"
    """Certainly not: it was aborted, or its end was never asked for."""
    UNKNOWN = "unknown"
    """The answer was lost, or was no answer: either way is right, as a whole."""


class Write(msgspec.Struct, frozen=True):
    place: Place
    value: str
    """No two writes have the same one."""
    offset: int | None = None
    """As the client was told."""
    source: Position | None = None
    """What it was made of, by whoever reads, writes and commits in one transaction."""


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
    """When its commit was asked for. None: never."""
    outcome: Outcome
    group: str = ""
    positions: tuple[Position, ...] = ()


class Poll(Event, frozen=True, kw_only=True, tag="poll"):
    session: int
    """Another one after every assignment and every seek."""
    group: str = ""
    committed: bool
    """The client asked for committed records only."""
    place: Place
    records: tuple[Record, ...]


class Commit(Event, frozen=True, kw_only=True, tag="commit"):
    group: str
    positions: tuple[Position, ...]
    outcome: Outcome


class Look(Event, frozen=True, kw_only=True, tag="look"):
    """Somebody who is no member asked for a group's offsets."""

    group: str
    positions: tuple[Position, ...]


class Fault(Event, frozen=True, kw_only=True, tag="fault"):
    """`client` is who suffered it."""

    what: str


class Trouble(Event, frozen=True, kw_only=True, tag="trouble"):
    """A client gave up, and was made anew."""

    what: str


class Log(Event, frozen=True, kw_only=True, tag="log"):
    """All that there was in the end."""

    place: Place
    committed: bool
    records: tuple[Record, ...]


Happened: TypeAlias = Send | Transaction | Poll | Commit | Look | Fault | Trouble | Log


class History:
    def __init__(self) -> None:
        self.events: list[Happened] = []  # append is safe from any thread
        self._start_s = time.monotonic()

    def now_s(self) -> float:
        return time.monotonic() - self._start_s

    def add(self, event: Happened) -> None:
        self.events.append(event)


def save(events: Iterable[Happened], path: Path) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))


def load(path: Path) -> list[Happened]:
    decoder = msgspec.json.Decoder(Happened)
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]
