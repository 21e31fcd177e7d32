"""Searches a table by timestamp. Reads only files and row groups whose bounds allow a matching record."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import numpy as np

from lakestream.aio.threads import Run
from lakestream.data.table.read.manifest_index import HIGHEST, ListedFiles
from lakestream.data.table.read.row_groups import read_times, time_columns
from lakestream.data.table.read.scan_planner import Planner
from lakestream.data.table.read.snapshots import TableSnapshot


class TimestampSearch:
    def __init__(self, planner: Planner, run: Run) -> None:
        self._planner = planner
        self._run = run

    async def first_at(
        self, table: TableSnapshot, partition: int, offset: int, timestamp: int
    ) -> tuple[int, int] | None:
        """Returns timestamp and offset of the first record from `offset` on that is not older than `timestamp`."""
        files = (await self._planner.files(table, partition)).files
        candidates = (files.offset_hi >= offset) & (newest_ms(files) >= timestamp)
        best: tuple[int, int] | None = None
        for place in np.flatnonzero(candidates).tolist():
            if best is not None and files.offset_lo[place] > best[1]:
                break
            async for offsets, times in self._times(table, partition, files, place, timestamp):
                fits = np.flatnonzero((times >= timestamp) & (offsets >= offset))
                if fits.size:
                    row = fits[np.argmin(offsets[fits])]
                    if best is None or offsets[row] < best[1]:
                        best = int(times[row]), int(offsets[row])
        return best

    async def newest(self, table: TableSnapshot, partition: int, offset: int) -> tuple[int, int] | None:
        """Returns timestamp and offset of the record with the newest timestamp, from `offset` on."""
        files = (await self._planner.files(table, partition)).files
        times_ms = newest_ms(files)
        best: tuple[int, int] | None = None
        for place in np.lexsort((files.offset_lo, -times_ms)).tolist():
            if files.offset_hi[place] < offset:
                continue
            if best is not None and times_ms[place] <= best[0]:
                break
            async for offsets, times in self._times(table, partition, files, place, best[0] + 1 if best else 0):
                fits = np.flatnonzero(offsets >= offset)
                if fits.size:
                    row = fits[np.argmax(times[fits])]
                    if times[row] >= 0 and (best is None or times[row] > best[0]):
                        best = int(times[row]), int(offsets[row])
        return best

    async def _times(
        self, table: TableSnapshot, partition: int, files: ListedFiles, place: int, timestamp: int
    ) -> AsyncIterator[tuple[Any, Any]]:
        """Yields offsets and timestamps of a file, by row group, except row groups whose rows are all older."""
        footer = await self._planner.footer(table.folder, files, place)
        for group in footer.groups:
            if (group.time_hi // 1000 < timestamp and group.times_null == 0) or group.offset_lo > group.offset_hi:
                continue
            part = await self._planner.part(table, partition, files, place, footer, group.number)
            columns = time_columns(part)
            spans = footer.spans(group.number, columns)
            bodies = await self._planner.fetch(table.folder, footer.location, spans)
            for rows in await self._run(partial(read_times, part, columns, spans, bodies)):
                yield rows


def newest_ms(files: ListedFiles) -> Any:
    """Returns an upper bound of each file's timestamps: the maximum if some rows have no timestamp in the column."""
    return np.where(files.times_null == 0, files.time_hi // 1000, HIGHEST)
