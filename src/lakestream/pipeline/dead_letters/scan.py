"""The dead letters of a topic: rows of its table whose value or key lacks some or all columns.

    dry_run.py             the topic's current schemas, and the columns that a repair would add
    file_scan.py           the dead letters of one file
    partition_cursor.py    those of one partition, by offset
    here                   those of all partitions, or their counts, for `lakestream table dead-letters`

Reasons are not stored. The scan converts the values again, as a repair would, so a row whose schema was registered
after the move counts as repairable. It changes nothing. Rows of record batches that cannot be read are the exception:
their reason is stored (data/table/arrow/unreadable_batches.py).
"""

import heapq
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.operations.live_files import LiveFileReader
from lakestream.catalog.operations.rewrite_files import FilesChanged
from lakestream.catalog.topic_table.live_file import LiveFile
from lakestream.clock import Clock
from lakestream.metadata.topics import NamedTopic
from lakestream.pipeline.dead_letters.dry_run import DryRunDependencies, TableDryRun
from lakestream.pipeline.dead_letters.file_scan import NO_REASON, FileDeadLetters
from lakestream.pipeline.dead_letters.model import DeadLetter, DeadLetterQuery, Summary
from lakestream.pipeline.dead_letters.partition_cursor import PartitionDeadLetters, too_many_changes
from lakestream.pipeline.repair.repair import TRIES_MAX
from lakestream.pipeline.tasks import Reason
from lakestream.pipeline.topic_schemas import Read, Registry, read_in_thread
from lakestream.schemas.value_format import OTHER_REASONS, REASONS_MAX, SchemaMode

OTHERS: Final = Reason(OTHER_REASONS, 0)


class DeadLetters:
    def __init__(self, catalog: Catalog, registry: Registry, clock: Clock, read: Read = read_in_thread) -> None:
        self._dependencies = DryRunDependencies(
            catalog, registry, clock, read, LiveFileReader(catalog.objects, catalog.locations)
        )

    async def summary(
        self, named: NamedTopic, query: DeadLetterQuery, progress: Callable[[int, int], None] | None = None
    ) -> Summary:
        """Counts the dead letters by reason. Raises as `TableDryRun.begin`, or Unavailable."""
        for _ in range(TRIES_MAX):
            dry_run = await TableDryRun.begin(self._dependencies, named)
            try:
                return await _summary(dry_run, query, progress)
            except FilesChanged:
                continue
        raise too_many_changes()

    async def letters(self, named: NamedTopic, query: DeadLetterQuery, left: list[str]) -> AsyncIterator[DeadLetter]:
        """Yields dead letters, by offset within a partition and by timestamp across partitions.

        `left`: receives the reasons for files that are left out. Raises as `TableDryRun.begin`, or Unavailable.
        """
        dry_run = await TableDryRun.begin(self._dependencies, named)
        streams = [PartitionDeadLetters(dry_run, number, query, left) for number in query.of(dry_run.partitions())]
        heads: list[tuple[int, int, DeadLetter]] = []
        sign = -1 if query.newest_first else 1
        waiting = range(len(streams))
        count = 0
        while count != query.limit:
            for place in waiting:
                if (letter := await streams[place].next()) is not None:
                    heapq.heappush(heads, (sign * letter.timestamp_ms, place, letter))
            if not heads:
                return
            _, place, letter = heapq.heappop(heads)
            waiting = range(place, place + 1)
            count += 1
            yield letter


async def _summary(
    dry_run: TableDryRun, query: DeadLetterQuery, progress: Callable[[int, int], None] | None
) -> Summary:
    found = Summary(left=dry_run.left)
    query = replace(query, bytes_shown=0, limit=None)
    files = [file for number in query.of(dry_run.partitions()) for file in dry_run.files(number, query.window)]
    if query.files_max is not None:
        files = _newest(files, query.files_max, found, with_keys=dry_run.conversion.key.mode is not SchemaMode.NONE)
    for seen, file in enumerate(files):
        _add(found, file.partition, await dry_run.scan(file, query.window, query))
        if progress is not None:
            progress(seen + 1, len(files))
    return found


def _newest(files: list[LiveFile], count: int, found: Summary, *, with_keys: bool) -> list[LiveFile]:
    """Returns the newest of the files that may have dead letters, and counts the others.

    Manifests state which files keep bytes of values, but not which lack columns of keys."""
    candidates = [file for file in files if with_keys or file.rows_with_bytes is None or file.rows_with_bytes]
    candidates.sort(key=lambda file: file.sequence_number, reverse=True)
    found.files_skipped = len(candidates[count:])
    return candidates[:count]


def _add(summary: Summary, partition: int, found: FileDeadLetters) -> None:
    """Adds the dead letters of one file."""
    letters, count = found.letters, len(found.letters)
    names = ("offset", "reason", "key_reason", "is_repairable")
    offsets, values, keys, gains = (letters.column(name).to_numpy() for name in names)
    for places in (values, keys):
        for place in np.unique(places[places != NO_REASON]).tolist():
            _count_reason(summary, found.reasons[place], partition, offsets[places == place])
    if found.blocked and (left := offsets[gains & (values == NO_REASON) & (keys == NO_REASON)]).size:
        _count_reason(summary, Reason(found.blocked, 0), partition, left)
    summary.rows += count
    summary.repairable += 0 if found.blocked else int(np.count_nonzero(gains))
    summary.spelled += found.spelled


def _count_reason(summary: Summary, reason: Reason, partition: int, offsets: Any) -> None:
    if reason not in summary.reasons and len(summary.reasons) >= REASONS_MAX:
        reason = OTHERS
    summary.reasons[reason] += len(offsets)
    first = partition, int(offsets[0])
    summary.firsts[reason] = min(summary.firsts.get(reason, first), first)
