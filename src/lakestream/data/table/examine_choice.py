"""Which files and which offsets of a table are looked into: some by chance, or all. Pure; below examine.py."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from lakestream.data.table.examine_files import NamedFile, Trouble, overlapping, windows
from lakestream.data.table.examine_state import State
from lakestream.model import Span

T = TypeVar("T")


class Depth(NamedTuple):
    """How much is looked at, of one topic. Marks, manifests and the presence of files are looked at always."""

    footers: int
    row_files: int
    """Files all of whose offsets are read."""
    windows: int
    """Parts of the table that are compared with what Kafka serves."""
    borders: int
    """Partitions that are read from the table into the log."""
    old_reads: int
    """Of manifests that only older snapshots name, to tell orphans."""


_ALL: Final = 2**62
SAMPLED: Final = Depth(footers=32, row_files=4, windows=8, borders=8, old_reads=100)
FULL: Final = Depth(_ALL, _ALL, _ALL, _ALL, _ALL)


class Window(NamedTuple):
    """Offsets of a partition that are compared together."""

    partition: int
    span: Span
    is_border: bool = False

    @property
    def subject(self) -> str:
        return f"{self.partition}@{'border' if self.is_border else self.span.start}"


@dataclass(frozen=True, slots=True)
class Choice:
    files: frozenset[str] = frozenset()
    row_files: frozenset[str] = frozenset()
    windows: list[Window] = field(default_factory=list)
    borders: list[int] = field(default_factory=list)

    def narrowed(self, troubles: Sequence[Trouble], windows: Sequence[Window]) -> "Choice":
        """To what something was wrong with."""
        subjects = {trouble.subject for trouble in troubles}
        return Choice(
            self.files & subjects,
            self.row_files & subjects,
            [one for one in windows if not one.is_border],
            [one.partition for one in windows if one.is_border],
        )


def choose(state: State, partitions: Iterable[int], depth: Depth, luck: random.Random) -> Choice:
    """The newest of each kind, where faults of the pipeline would be, and others by chance."""
    newest = sorted(state.data, key=lambda file: -file.sequence)
    files = _some([file.location for file in newest], depth.footers, luck)
    deletes = _some([file.location for file in state.deletes], depth.footers, luck)
    return Choice(
        frozenset([*files, *deletes]),
        frozenset(files[: depth.row_files]),
        _windows(state, depth.windows, luck),
        _some(sorted(partitions), depth.borders, luck),
    )


def _windows(state: State, count: int, luck: random.Random) -> list[Window]:
    """Half of them where files overlap, if any do: there an offset may be twice."""
    offsets = state.next_offsets or {}
    found = [
        Window(number, span)
        for number, end in sorted(offsets.items())
        for span in reversed(windows(state.of_partition(number), end))
    ]
    if len(found) <= count:
        return found
    shared = {
        number: [file for some in overlapping(state.of_partition(number), end) if len(some) > 1 for file in some]
        for number, end in offsets.items()
    }
    overlaps = [one for one in found if _is_shared(one, shared[one.partition])]
    chosen = [*_some(overlaps, count // 2, luck), *_some(found, count, luck)]
    return list(dict.fromkeys(chosen))[:count]


def _is_shared(window: Window, shared: Sequence[NamedFile]) -> bool:
    return any(file.may_reach(window.span) for file in shared)


def _some(things: Sequence[T], count: int, luck: random.Random) -> list[T]:
    """The first one, and others by chance."""
    if len(things) <= count:
        return list(things)
    return [things[0], *luck.sample(things[1:], count - 1)] if count else []
