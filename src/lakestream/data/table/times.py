"""Times to offsets in a table: files and row groups whose bounds promise such a record are looked into, no others."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import numpy as np

from lakestream.data.table.groups import read_times, time_columns
from lakestream.data.table.manifests import HIGHEST, Files
from lakestream.data.table.planning import Planner
from lakestream.data.table.snapshots import Table
from lakestream.data.table.threads import Run


class Times:
    def __init__(self, planner: Planner, run: Run) -> None:
        self._planner = planner
        self._run = run

    async def first_at(self, table: Table, partition: int, offset: int, timestamp: int) -> tuple[int, int] | None:
        """Time and offset of the first record from `offset` on that is not older than `timestamp`."""
        files = (await self._planner.files(table, partition)).files
        promising = (files.offset_hi >= offset) & (newest_ms(files) >= timestamp)
        best: tuple[int, int] | None = None
        for place in np.flatnonzero(promising).tolist():
            if best is not None and files.offset_lo[place] > best[1]:
                break
            async for offsets, times in self._times(table, partition, files, place, timestamp):
                fits = np.flatnonzero((times >= timestamp) & (offsets >= offset))
                if fits.size:
                    row = fits[np.argmin(offsets[fits])]
                    if best is None or offsets[row] < best[1]:
                        best = int(times[row]), int(offsets[row])
        return best

    async def newest(self, table: Table, partition: int, offset: int) -> tuple[int, int] | None:
        """Time and offset of the record with the newest time, from `offset` on."""
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
        self, table: Table, partition: int, files: Files, place: int, timestamp: int
    ) -> AsyncIterator[tuple[Any, Any]]:
        """Offsets and times of the rows of a file, row group by row group, where some may not be older."""
        footer = await self._planner.footer(files, place)
        for group in footer.groups:
            if group.time_hi // 1000 < timestamp and group.times_null == 0:
                continue
            part = await self._planner.part(table, partition, files, place, footer, group.number)
            columns = time_columns(part)
            spans = footer.spans(group.number, columns)
            bodies = await self._planner.fetch(footer.location, spans)
            for found in await self._run(partial(read_times, part, columns, spans, bodies)):
                yield found


def newest_ms(files: Files) -> Any:
    """What the newest record of each file may be. Where some have no time in the column, it may be any."""
    return np.where(files.times_null == 0, files.time_hi // 1000, HIGHEST)
