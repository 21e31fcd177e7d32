"""In a worker: files of a table become others. Read → leave out what is to go → parquet.py → the table's folder.

Before: tasks.py.  After: maintain.py, in the driver, which commits what is told here.

In memory are the rows of the file that is being written, as far as a window of them, and the keys of a compaction. What
was stored before something failed is removed: nobody will ever ask for it.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.catalog.data_files import FileDescription, data_location
from lakestream.catalog.locations import Locations
from lakestream.catalog.topic_layout import OFFSET_ID, STREAM, VALUE
from lakestream.clock import Ids
from lakestream.data.table.arrow import PLAIN_COLUMNS
from lakestream.data.table.located import numbers
from lakestream.data.table.parquet import ParquetSettings, Stamp, WrittenFile, write_parquet
from lakestream.data.table.picking import picked
from lakestream.errors import Corrupt, LakestreamError
from lakestream.model import MiB
from lakestream.pipeline.maintenance.as_it_is import without_rows
from lakestream.pipeline.maintenance.files import (
    KEY_ID,
    TIMES,
    VALUES,
    TableFile,
    TableFiles,
    laid_out,
    times_of,
)
from lakestream.pipeline.maintenance.newest import Newest
from lakestream.pipeline.maintenance.tasks import (
    Compact,
    Forget,
    Merge,
    NotDone,
    Repair,
    Repaired,
    RepairWants,
    Result,
    Source,
    Task,
    Written,
)
from lakestream.storage.object_store import ObjectStore

log = logging.getLogger(__name__)

WINDOW_BYTES: Final = 512 * MiB
"""Of rows in memory, not compressed."""
SORTED_WINDOW_BYTES: Final = 128 * MiB
"""Where they are not sorted by offset: a consumer reads all of a window for each part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteSettings:
    keys_max: int = 4_000_000  # of the dirty part that is compacted at once
    key_bytes_max: int = 256 * MiB


class Rewriting:
    def __init__(
        self, objects: ObjectStore, locations: Locations, ids: Ids, settings: RewriteSettings | None = None
    ) -> None:
        self._objects = objects
        self._locations = locations
        self._ids = ids
        self._settings = settings or RewriteSettings()

    async def do(self, tasks: Sequence[Task]) -> list[Result]:
        """In the same order; one after the other, since each may need all the memory there is."""
        return [await self._result(task) for task in tasks]

    async def _result(self, task: Task) -> Result:
        one = _One(self._objects, self._locations, self._ids, self._settings, task)
        try:
            match task:
                case Merge():
                    return await one.merge(task)
                case Forget():
                    return await one.forget(task)
                case Compact():
                    return await one.compact(task)
                case Repair():
                    return await one.repair(task)
        except Exception as error:  # also a bug: it holds up one partition, not all of them
            await one.remove()
            return NotDone(str(error) if isinstance(error, LakestreamError) else f"{type(error).__name__}: {error}")


class _One:
    """One task."""

    def __init__(
        self, objects: ObjectStore, locations: Locations, ids: Ids, settings: RewriteSettings, task: Task
    ) -> None:
        self._objects = objects
        self._locations = locations
        self._ids = ids
        self._settings = settings
        self._task = task
        self._columns = task.columns or PLAIN_COLUMNS
        self._files = TableFiles(objects, locations)
        self._stored: list[str] = []

    async def merge(self, task: Merge) -> Written:
        out = _Out(self, task.sources[0])
        for source in task.sources:
            file = await self._files.open(source)
            if not file.has_only(self._columns):
                if len(task.sources) > 1:
                    raise Corrupt(f"{source.location} has columns that are not the stream's own: it is left as it is")
                left = await self._without(file, source, await self._nothing_going(file))
                return Written((source.location,), tuple(left))
            for group in range(len(file.footer.groups)):
                await out.add(await file.whole_rows(group, self._columns))
        return Written(tuple(source.location for source in task.sources), await out.end())

    async def forget(self, task: Forget) -> Written:
        gone, files = [], list[FileDescription]()
        for source in task.sources:
            file = await self._files.open(source)
            going = [await self._forgotten(task, file, number) for number in range(len(file.footer.groups))]
            if any(mask.any() for mask in going):
                gone.append(source.location)
                files += await self._without(file, source, going)
        return Written(tuple(gone), tuple(files))

    async def compact(self, task: Compact) -> Written:
        newest, reached = await self._newest(task)
        gone, files = [], list[FileDescription]()
        for source in task.sources:
            file = await self._files.open(source)
            groups = range(len(file.footer.groups))
            going = [await self._superseded(task, newest, source, file, number) for number in groups]
            if any(mask.any() for mask in going):
                gone.append(source.location)
                files += await self._without(file, source, going)
        return Written(tuple(gone), tuple(files), reached)

    async def repair(self, task: Repair) -> Result:
        # Here and not above: most tables are of bytes, and have no use for the kernels of it.
        from lakestream.pipeline.maintenance.repairing import retyped

        done = Repaired()
        for source in task.sources:
            made = await retyped(await self._files.open(source), task, self._place)
            if isinstance(made, RepairWants):
                await self.remove()
                return made
            files = [await self._store(written) for written in made.written]
            done = Repaired(
                (*done.gone, *((source.location,) if files else ())),
                (*done.files, *files),
                done.rows_before + made.rows_before,
                done.rows_after + made.rows_after,
                (*done.misfits, *made.misfits),
            )
        return done

    async def remove(self) -> None:
        if not self._stored:
            return
        try:
            await self._objects.delete(self._stored)
        except LakestreamError as error:  # they are orphans then
            log.warning("maintenance.files_left count=%d first=%s error=%s", len(self._stored), self._stored[0], error)

    # Steps

    async def _newest(self, task: Compact) -> tuple[Newest, int]:
        """Of the dirty part, as far as there is room; and how far that was.

        In a table with partitions row groups lie beside one another: those that there is no room for may begin where
        the others do, and the next run would begin with the same ones. Then all of them are read, up to an offset."""
        newest, reached = await self._newest_before(task, task.end)
        room = self._settings.keys_max
        while reached < min(task.end, task.dirty_from + room):
            newest, reached = await self._newest_before(task, task.dirty_from + room)
            room //= 2  # if their keys are long
        newest.settle()
        return newest, reached

    async def _newest_before(self, task: Compact, end: int) -> tuple[Newest, int]:
        newest = Newest(self._settings.keys_max, self._settings.key_bytes_max)
        async for file, group in self._dirty_groups(task, end):
            if newest.is_full:
                return newest, max(file.footer.groups[group].offset_lo, task.dirty_from)
            for batch in await file.rows(group, (OFFSET_ID, KEY_ID)):
                stream = batch.column(STREAM)
                offsets = numbers(stream.field("offset"), -1)
                newest.add(stream.field("key"), offsets, (offsets >= task.dirty_from) & (offsets < end))
        return newest, end

    async def _dirty_groups(self, task: Compact, end: int) -> AsyncIterator[tuple[TableFile, int]]:
        """By offset: files of several partitions of the table have the same ones."""
        found: list[tuple[int, TableFile, int]] = []
        for source in task.sources:
            if source.offset_last < task.dirty_from:
                continue
            file = await self._files.open(source)
            for number, group in enumerate(file.footer.groups):
                if group.offset_hi >= task.dirty_from and group.offset_lo < end:
                    found.append((group.offset_lo, file, number))
        for _, file, number in sorted(found, key=lambda one: one[0]):
            yield file, number

    async def _superseded(
        self, task: Compact, newest: Newest, source: Source, file: TableFile, group: int
    ) -> NDArray[np.bool_]:
        """Of the rows of a group that count: which go now."""
        look_for_tombstones = source.has_tombstones and file.footer.groups[group].offset_lo < task.tombstones_before
        ids = (OFFSET_ID, KEY_ID, *VALUES) if look_for_tombstones else (OFFSET_ID, KEY_ID)
        masks = [np.empty(0, np.bool_)]
        for batch in await file.rows(group, ids):
            stream = batch.column(STREAM)
            offsets = numbers(stream.field("offset"), -1)
            going = newest.supersedes(stream.field("key"), offsets)
            if look_for_tombstones:
                going |= _tombstones(batch) & (offsets < task.tombstones_before)
            masks.append(going & (offsets < task.end) & (offsets != task.newest))
        return np.concatenate(masks)

    async def _nothing_going(self, file: TableFile) -> list[NDArray[np.bool_]]:
        """But for rows that were deleted."""
        counts = [
            sum(len(batch) for batch in await file.rows(group, (OFFSET_ID,)))
            for group in range(len(file.footer.groups))
        ]
        return [np.zeros(count, np.bool_) for count in counts]

    async def _forgotten(self, task: Forget, file: TableFile, group: int) -> NDArray[np.bool_]:
        masks = [np.empty(0, np.bool_)]
        for batch in await file.rows(group, TIMES):
            offsets = numbers(batch.column(STREAM).field("offset"), -1)
            masks.append((offsets < task.before_offset) & (times_of(batch) < task.before_ms))
        return np.concatenate(masks)

    async def _without(
        self, file: TableFile, source: Source, going: Sequence[NDArray[np.bool_]]
    ) -> Sequence[FileDescription]:
        """The file written anew; `going`: of each row group, which of the rows that count are left out."""
        if not file.has_only(self._columns):
            body, partition = await file.body(), self._task.partition
            stamp = Stamp(source.spec_id, source.values)
            made = without_rows(body, file.footer, file.deleted, going, partition, self._place, stamp)
            return [] if made is None else [await self._store(made)]
        out = _Out(self, source)
        for group, mask in enumerate(going):
            await out.add(_without_all(await file.whole_rows(group, self._columns), mask))
        return await out.end()

    async def write(self, batches: Sequence[Any], source: Source) -> list[FileDescription]:
        """Files of these rows, stored: sorted as the table is, in the partition that the source is in."""
        layout = self._task.writing.layout
        stamp = Stamp(source.spec_id, source.values, layout.order_id, layout.sort)
        settings = replace(ParquetSettings.of(dict(self._task.writing.properties)), file_bytes_max=self._task.target)
        if stamp.sort:
            # Here and not above: most tables are by offset, and have no use for the kernels of it.
            from lakestream.data.table.splitting import write_sorted

            made = write_sorted(batches, self._place, settings, self._columns, stamp)
        else:
            rows = laid_out(_sorted(batches), self._columns)
            made = write_parquet(rows, self._place, settings, self._columns, stamp)
        return [await self._store(written) for written in made]

    @property
    def window_bytes(self) -> int:
        return SORTED_WINDOW_BYTES if self._task.writing.layout.sort else WINDOW_BYTES

    async def _store(self, written: WrittenFile) -> FileDescription:
        description = written.description
        if description.partition != self._task.partition:
            raise Corrupt(f"rows of partition {description.partition} stand among those of {self._task.partition}")
        key = self._locations.key_of(description.location)
        self._stored.append(key)  # before: an answer that is lost may be that of a file that is there
        await self._objects.create(key, [memoryview(written.body)])
        return description

    def _place(self, offset_first: int) -> str:
        return data_location(self._task.location, self._task.partition, offset_first, self._ids.new())


class _Out:
    """Rows on their way into files, a window of them at a time: a file is as large as wanted, or as its rows are."""

    def __init__(self, one: _One, source: Source) -> None:
        """`source`: of the partition that they are in."""
        self._one = one
        self._source = source
        self._pending: list[Any] = []
        self._size = 0
        self._files: list[FileDescription] = []

    async def add(self, batches: Sequence[Any]) -> None:
        for batch in batches:
            self._pending.append(batch)
            self._size += batch.nbytes
        if self._size >= self._one.window_bytes:
            await self._flush()

    async def end(self) -> tuple[FileDescription, ...]:
        await self._flush()
        return tuple(self._files)

    async def _flush(self) -> None:
        if self._pending:
            self._files += await self._one.write(self._pending, self._source)
        self._pending, self._size = [], 0


def _sorted(batches: Sequence[Any]) -> list[Any]:
    """By ascending offset. No copy where they are."""
    offsets = np.concatenate([numbers(batch.column(STREAM).field("offset"), -1) for batch in batches])
    if len(offsets) < 2 or (np.diff(offsets) > 0).all():
        return list(batches)
    found: list[Any] = picked(pa.Table.from_batches(batches), np.argsort(offsets, kind="stable")).to_batches()
    return found


def _tombstones(batch: Any) -> NDArray[np.bool_]:
    """Rows with a key and without a value, in whatever column."""
    stream = batch.column(STREAM)
    found: NDArray[np.bool_] = np.asarray(stream.field("key").is_valid()) & np.asarray(batch.column(VALUE).is_null())
    for name in ("schema_id", "value"):
        found &= np.asarray(stream.field(name).is_null())
    return found


def _without(batch: Any, going: NDArray[np.bool_]) -> list[Any]:
    if not going.any():
        return [batch]
    left = np.flatnonzero(~going)
    return [picked(batch, left)] if len(left) else []


def _without_all(batches: Sequence[Any], going: NDArray[np.bool_]) -> list[Any]:
    kept: list[Any] = []
    at = 0
    for batch in batches:
        kept += _without(batch, going[at : at + len(batch)])
        at += len(batch)
    return kept
