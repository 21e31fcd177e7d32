"""Selects the files and offsets of a table that are checked: a random sample, or all. Pure; used by table.py."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from lakestream.data.verify.file_checks import NamedFile, Problem, overlapping, windows
from lakestream.data.verify.table_state import TableState
from lakestream.model import Span

T = TypeVar("T")


class Depth(NamedTuple):
    """Limits of the checks of one topic. Partition offsets, manifests and the presence of files are always checked."""

    footers: int
    row_files: int
    """Files whose offsets are all read."""
    windows: int
    """Parts of the table that are compared with the records that Kafka serves."""
    borders: int
    """Partitions that are read across the border of table and log."""
    old_reads: int
    """Reads of manifests that only older snapshots name, to find orphans."""


UNCOUNTED_MAX: Final = 1_000
"""Files whose footers are read because their manifests have no count of rows without an offset."""
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
class Sample:
    files: frozenset[str] = frozenset()
    row_files: frozenset[str] = frozenset()
    windows: list[Window] = field(default_factory=list)
    borders: list[int] = field(default_factory=list)

    def narrowed(self, problems: Sequence[Problem], windows: Sequence[Window]) -> "Sample":
        """Narrows the sample to the subjects of problems."""
        subjects = {problem.subject for problem in problems}
        return Sample(
            self.files & subjects,
            self.row_files & subjects,
            [one for one in windows if not one.is_border],
            [one.partition for one in windows if one.is_border],
        )


def choose_sample(state: TableState, partitions: Iterable[int], depth: Depth, rng: random.Random) -> Sample:
    """Selects the newest of each kind, where bugs of the pipeline would show, and a random sample of the rest."""
    newest = sorted(state.data, key=lambda file: -file.sequence)
    files = _some([file.location for file in newest], depth.footers, rng)
    uncounted = [file.location for file in newest if file.offsets_null is None][:UNCOUNTED_MAX]
    deletes = _some([file.location for file in state.deletes], depth.footers, rng)
    return Sample(
        frozenset([*files, *deletes, *uncounted]),
        frozenset(files[: depth.row_files]),
        _windows(state, depth.windows, rng),
        _some(sorted(partitions), depth.borders, rng),
    )


def _windows(state: TableState, count: int, rng: random.Random) -> list[Window]:
    """Selects windows, half of them where files overlap, if any do: an offset may be duplicated there."""
    offsets = state.next_offsets or {}
    candidates = [
        Window(number, span)
        for number, end in sorted(offsets.items())
        for span in reversed(windows(state.of_partition(number), end))
    ]
    if len(candidates) <= count:
        return candidates
    shared = {
        number: [file for some in overlapping(state.of_partition(number), end) if len(some) > 1 for file in some]
        for number, end in offsets.items()
    }
    overlaps = [one for one in candidates if _is_shared(one, shared[one.partition])]
    chosen = [*_some(overlaps, count // 2, rng), *_some(candidates, count, rng)]
    return list(dict.fromkeys(chosen))[:count]


def _is_shared(window: Window, shared: Sequence[NamedFile]) -> bool:
    return any(file.may_reach(window.span) for file in shared)


def _some(things: Sequence[T], count: int, rng: random.Random) -> list[T]:
    """Returns the first item and a random sample of the others."""
    if len(things) <= count:
        return list(things)
    return [things[0], *rng.sample(things[1:], count - 1)] if count else []
