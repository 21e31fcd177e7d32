"""The dead letters of a topic: rows of its table whose values, or keys, have no columns, or not all of theirs.

    sheet.py      what is known of the topic's schemas now, and which columns a repair would add: on paper
    looking.py    what would become of the rows of a file then
    letters.py    one letter after the other, of one partition
    here          of all of them, or counted: for `lakestream table rejects`

Reasons are not stored: they are found by trying the values again, the way a repair would, so a row whose schema has
come since is told as one that can be repaired. Nothing is changed.
"""

import heapq
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.listing import Listings
from lakestream.catalog.rewrite import FilesChanged
from lakestream.clock import Clock
from lakestream.metadata.topics import NamedTopic
from lakestream.pipeline.maintenance.dead_letter import Asked, DeadLetter, Reason, Summary
from lakestream.pipeline.maintenance.letters import PartitionLetters, restless
from lakestream.pipeline.maintenance.looking import NO_REASON, Looked
from lakestream.pipeline.maintenance.repair import TRIES_MAX
from lakestream.pipeline.maintenance.sheet import Desk, Sheet
from lakestream.pipeline.typed_topics import Read, Registry, read_beside

REASONS_MAX: Final = 1_000
"""That are told apart: ids that somebody makes up have one each."""
OTHER_REASONS: Final = Reason("other reasons", 0)


class DeadLetters:
    def __init__(self, catalog: Catalog, registry: Registry, clock: Clock, read: Read = read_beside) -> None:
        self._desk = Desk(catalog, registry, clock, read, Listings(catalog.objects, catalog.locations))

    async def summary(
        self, named: NamedTopic, asked: Asked, progress: Callable[[int, int], None] | None = None
    ) -> Summary:
        """Raises as `Sheet.begin`."""
        for _ in range(TRIES_MAX):
            sheet = await Sheet.begin(self._desk, named)
            try:
                return await _summary(sheet, asked, progress)
            except FilesChanged:
                continue
        raise restless()

    async def letters(self, named: NamedTopic, asked: Asked, left: list[str]) -> AsyncIterator[DeadLetter]:
        """By offset within a partition; of several, the one whose next has the lowest timestamp (or the highest) is
        next. `left`: takes what could not be looked at. Raises as `Sheet.begin`."""
        sheet = await Sheet.begin(self._desk, named)
        streams = [PartitionLetters(sheet, number, asked, left) for number in asked.of(sheet.partitions())]
        heads: list[tuple[int, int, DeadLetter]] = []
        sign = -1 if asked.newest_first else 1
        waiting = range(len(streams))
        told = 0
        while told != asked.limit:
            for place in waiting:
                if (letter := await streams[place].next()) is not None:
                    heapq.heappush(heads, (sign * letter.timestamp_ms, place, letter))
            if not heads:
                return
            _, place, letter = heapq.heappop(heads)
            waiting = range(place, place + 1)
            told += 1
            yield letter


async def _summary(sheet: Sheet, asked: Asked, progress: Callable[[int, int], None] | None) -> Summary:
    found = Summary(left=sheet.left)
    asked = replace(asked, bytes_shown=0, limit=None)
    files = [file for number in asked.of(sheet.partitions()) for file in sheet.files(number, asked.window)]
    for seen, file in enumerate(files):
        _add(found, file.partition, await sheet.look(file, asked.window, asked))
        if progress is not None:
            progress(seen + 1, len(files))
    return found


def _add(summary: Summary, partition: int, found: Looked) -> None:
    """The dead letters of one file."""
    letters, count = found.letters, len(found.letters)
    names = ("offset", "reason", "key_reason", "is_repairable")
    offsets, values, keys, gains = (letters.column(name).to_numpy() for name in names)
    for places in (values, keys):
        for place in np.unique(places[places != NO_REASON]).tolist():
            _tell(summary, found.reasons[place], partition, offsets[places == place])
    if found.blocked and (left := offsets[gains & (values == NO_REASON) & (keys == NO_REASON)]).size:
        _tell(summary, Reason(found.blocked, 0), partition, left)
    summary.rows += count
    summary.repairable += 0 if found.blocked else int(np.count_nonzero(gains))
    summary.spelled += found.spelled


def _tell(summary: Summary, reason: Reason, partition: int, offsets: Any) -> None:
    if reason not in summary.reasons and len(summary.reasons) >= REASONS_MAX:
        reason = OTHER_REASONS
    summary.reasons[reason] += len(offsets)
    first = partition, int(offsets[0])
    summary.firsts[reason] = min(summary.firsts.get(reason, first), first)
