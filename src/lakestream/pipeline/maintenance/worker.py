"""Rewrites files of a table, in a worker. Read → leave out rows → parquet_writer.py → the table's folder.

Before: tasks.py.  After: service.py, in the driver, which commits the results.

Memory holds a window of the rows of the file that is being written, and the keys of a compaction. If a task fails, the
files that it has stored are removed, because no table will name them.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.catalog.locations import Locations
from lakestream.catalog.manifests.data_file import FileDescription, data_location
from lakestream.catalog.topic_table.columns import OFFSET_ID, STREAM, VALUE
from lakestream.clock import Ids
from lakestream.data.table.arrow.byte_spans import numbers
from lakestream.data.table.arrow.projection import picked
from lakestream.data.table.arrow.types import PLAIN_COLUMNS
from lakestream.data.table.write.parquet_writer import ParquetSettings, Stamp, WrittenFile, write_parquet
from lakestream.errors import Corrupt, LakestreamError
from lakestream.model import MiB
from lakestream.pipeline.maintenance.copy_file import without_rows
from lakestream.pipeline.maintenance.offset_map import Newest
from lakestream.pipeline.maintenance.table_file import KEY_ID, TIMES, VALUES, TableFile, TableFiles, cast_rows, times_of
from lakestream.pipeline.maintenance.tasks import (
    Compact,
    Merge,
    RemoveRows,
    Repair,
    Repaired,
    RepairSchemasMissing,
    Result,
    RewrittenFiles,
    SourceFile,
    Task,
    TaskFailed,
)
from lakestream.storage.object_store import ObjectStore

log = logging.getLogger(__name__)

WINDOW_BYTES: Final = 512 * MiB
"""Size of rows in memory, uncompressed."""
SORTED_WINDOW_BYTES: Final = 128 * MiB
"""For rows that are not sorted by offset: a consumer reads a whole window for any part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteSettings:
    keys_max: int = 4_000_000  # of the dirty range that one task compacts
    key_bytes_max: int = 256 * MiB


class FileRewriter:
    def __init__(
        self, objects: ObjectStore, locations: Locations, ids: Ids, settings: RewriteSettings | None = None
    ) -> None:
        self._objects = objects
        self._locations = locations
        self._ids = ids
        self._settings = settings or RewriteSettings()

    async def run(self, tasks: Sequence[Task]) -> list[Result]:
        """Returns the results in the same order. Runs one task at a time, because each may need all memory."""
        return [await self._result(task) for task in tasks]

    async def _result(self, task: Task) -> Result:
        run = _TaskRun(self._objects, self._locations, self._ids, self._settings, task)
        try:
            match task:
                case Merge():
                    return await run.merge(task)
                case RemoveRows():
                    return await run.remove_rows(task)
                case Compact():
                    return await run.compact(task)
                case Repair():
                    return await run.repair(task)
        except Exception as error:  # also a bug: it stops one partition, not all of them
            await run.clean_up()
            return TaskFailed(str(error) if isinstance(error, LakestreamError) else f"{type(error).__name__}: {error}")


class _TaskRun:
    def __init__(
        self, objects: ObjectStore, locations: Locations, ids: Ids, settings: RewriteSettings, task: Task
    ) -> None:
        self._objects = objects
        self._locations = locations
        self._ids = ids
        self._settings = settings
        self._task = task
        self._columns = task.columns or PLAIN_COLUMNS
        self._files = TableFiles(objects, locations.table(task.location))
        self._stored: list[str] = []

    async def merge(self, task: Merge) -> RewrittenFiles:
        out = _RowBuffer(self, task.sources[0])
        for source in task.sources:
            file = await self._files.open(source)
            if not file.has_only(self._columns):
                if len(task.sources) > 1:
                    raise Corrupt(f"{source.location} has columns that are not the stream's own: it is not merged")
                left = await self._without(file, source, await self._empty_masks(file))
                return RewrittenFiles((source.location,), tuple(left))
            for group in range(len(file.footer.groups)):
                await out.add(await file.whole_rows(group, self._columns))
        return RewrittenFiles(tuple(source.location for source in task.sources), await out.end())

    async def remove_rows(self, task: RemoveRows) -> RewrittenFiles:
        rewritten, files = [], list[FileDescription]()
        for source in task.sources:
            file = await self._files.open(source)
            removed = [await self._expired(task, file, number) for number in range(len(file.footer.groups))]
            if any(mask.any() for mask in removed):
                rewritten.append(source.location)
                files += await self._without(file, source, removed)
        return RewrittenFiles(tuple(rewritten), tuple(files))

    async def compact(self, task: Compact) -> RewrittenFiles:
        newest, reached = await self._newest(task)
        rewritten, files = [], list[FileDescription]()
        for source in task.sources:
            file = await self._files.open(source)
            groups = range(len(file.footer.groups))
            removed = [await self._superseded(task, newest, source, file, number) for number in groups]
            if any(mask.any() for mask in removed):
                rewritten.append(source.location)
                files += await self._without(file, source, removed)
        return RewrittenFiles(tuple(rewritten), tuple(files), reached)

    async def repair(self, task: Repair) -> Result:
        # Imported here: most tables have no schemas, and do not need its kernels.
        from lakestream.pipeline.repair.worker import reconvert

        done = Repaired()
        for source in task.sources:
            output = await reconvert(await self._files.open(source), task, self._place)
            if isinstance(output, RepairSchemasMissing):
                await self.clean_up()
                return output
            files = [await self._store(written) for written in output.written]
            done = Repaired(
                (*done.removed, *((source.location,) if files else ())),
                (*done.files, *files),
                done.rows_before + output.rows_before,
                done.rows_after + output.rows_after,
                (*done.errors, *output.errors),
            )
        return done

    async def clean_up(self) -> None:
        """Removes the stored files of a failed task."""
        if not self._stored:
            return
        try:
            await self._objects.delete(self._stored)
        except LakestreamError as error:  # they are orphan files then
            first = self._stored[0]
            log.warning("maintenance.cleanup_failed count=%d first=%s error=%s", len(self._stored), first, error)

    # Steps

    async def _newest(self, task: Compact) -> tuple[Newest, int]:
        """Returns the newest offsets of keys in the dirty range, as far as memory allows, and the offset reached.

        In a partitioned table the offsets of row groups overlap: those that do not fit may begin at the same offset as
        the others, and the next run would begin with the same ones. Then all row groups are read, up to an offset.
        """
        newest, reached = await self._newest_before(task, task.end)
        room = self._settings.keys_max
        while reached < min(task.end, task.dirty_from + room):
            newest, reached = await self._newest_before(task, task.dirty_from + room)
            room //= 2  # if their keys are long
        newest.finish()
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
        """Yields row groups by offset: the offsets of files in different table partitions overlap."""
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
        self, task: Compact, newest: Newest, source: SourceFile, file: TableFile, group: int
    ) -> NDArray[np.bool_]:
        """Returns which live rows of a row group are removed now."""
        checks_tombstones = source.has_tombstones and file.footer.groups[group].offset_lo < task.tombstones_before
        ids = (OFFSET_ID, KEY_ID, *VALUES) if checks_tombstones else (OFFSET_ID, KEY_ID)
        masks = [np.empty(0, np.bool_)]
        for batch in await file.rows(group, ids):
            stream = batch.column(STREAM)
            offsets = numbers(stream.field("offset"), -1)
            removed = newest.supersedes(stream.field("key"), offsets)
            if checks_tombstones:
                removed |= _tombstones(batch) & (offsets < task.tombstones_before)
            masks.append(removed & (offsets < task.end) & (offsets != task.newest))
        return np.concatenate(masks)

    async def _empty_masks(self, file: TableFile) -> list[NDArray[np.bool_]]:
        """Returns masks that remove no live row."""
        counts = [
            sum(len(batch) for batch in await file.rows(group, (OFFSET_ID,)))
            for group in range(len(file.footer.groups))
        ]
        return [np.zeros(count, np.bool_) for count in counts]

    async def _expired(self, task: RemoveRows, file: TableFile, group: int) -> NDArray[np.bool_]:
        masks = [np.empty(0, np.bool_)]
        for batch in await file.rows(group, TIMES):
            offsets = numbers(batch.column(STREAM).field("offset"), -1)
            masks.append((offsets < task.before_offset) & (times_of(batch) < task.before_ms))
        return np.concatenate(masks)

    async def _without(
        self, file: TableFile, source: SourceFile, removed: Sequence[NDArray[np.bool_]]
    ) -> Sequence[FileDescription]:
        """Rewrites a file. `removed`: for each row group, which of its live rows are left out."""
        if not file.has_only(self._columns):
            body, partition = await file.body(), self._task.partition
            stamp = Stamp(source.spec_id, source.values)
            output = without_rows(body, file.footer, file.deleted, removed, partition, self._place, stamp)
            return [] if output is None else [await self._store(output)]
        out = _RowBuffer(self, source)
        for group, mask in enumerate(removed):
            await out.add(_without_all(await file.whole_rows(group, self._columns), mask))
        return await out.end()

    async def write(self, batches: Sequence[Any], source: SourceFile) -> list[FileDescription]:
        """Stores files of these rows, in the sort order of the table and the partition of the source."""
        layout = self._task.writing.layout
        stamp = Stamp(source.spec_id, source.values, layout.order_id, layout.sort)
        settings = replace(ParquetSettings.of(dict(self._task.writing.properties)), file_bytes_max=self._task.target)
        if stamp.sort:
            # Imported here: most tables are sorted by offset, and do not need its kernels.
            from lakestream.data.table.write.partitioned_writer import write_sorted

            output = write_sorted(batches, self._place, settings, self._columns, stamp)
        else:
            rows = cast_rows(_sorted(batches), self._columns)
            output = write_parquet(rows, self._place, settings, self._columns, stamp)
        return [await self._store(written) for written in output]

    @property
    def window_bytes(self) -> int:
        return SORTED_WINDOW_BYTES if self._task.writing.layout.sort else WINDOW_BYTES

    async def _store(self, written: WrittenFile) -> FileDescription:
        description = written.description
        if description.partition != self._task.partition:
            raise Corrupt(f"a file of partition {self._task.partition} has rows of partition {description.partition}")
        key = self._locations.key_of(description.location)
        self._stored.append(key)  # before the call: if its response is lost, the file may exist
        await self._objects.create(key, [memoryview(written.body)])
        return description

    def _place(self, offset_first: int) -> str:
        return data_location(self._task.location, self._task.partition, offset_first, self._ids.new())


class _RowBuffer:
    """Collects rows, and writes them to files of the target size, one window at a time."""

    def __init__(self, run: _TaskRun, source: SourceFile) -> None:
        """`source`: a file of the table partition of the rows."""
        self._run = run
        self._source = source
        self._pending: list[Any] = []
        self._size = 0
        self._files: list[FileDescription] = []

    async def add(self, batches: Sequence[Any]) -> None:
        for batch in batches:
            self._pending.append(batch)
            self._size += batch.nbytes
        if self._size >= self._run.window_bytes:
            await self._flush()

    async def end(self) -> tuple[FileDescription, ...]:
        await self._flush()
        return tuple(self._files)

    async def _flush(self) -> None:
        if self._pending:
            self._files += await self._run.write(self._pending, self._source)
        self._pending, self._size = [], 0


def _sorted(batches: Sequence[Any]) -> list[Any]:
    """Sorts rows by offset. Makes no copy if they are sorted."""
    offsets = np.concatenate([numbers(batch.column(STREAM).field("offset"), -1) for batch in batches])
    if len(offsets) < 2 or (np.diff(offsets) > 0).all():
        return list(batches)
    found: list[Any] = picked(pa.Table.from_batches(batches), np.argsort(offsets, kind="stable")).to_batches()
    return found


def _tombstones(batch: Any) -> NDArray[np.bool_]:
    """Returns which rows have a key, and no value in any column."""
    stream = batch.column(STREAM)
    found: NDArray[np.bool_] = np.asarray(stream.field("key").is_valid()) & np.asarray(batch.column(VALUE).is_null())
    for name in ("schema_id", "value"):
        found &= np.asarray(stream.field(name).is_null())
    return found


def _without(batch: Any, removed: NDArray[np.bool_]) -> list[Any]:
    if not removed.any():
        return [batch]
    left = np.flatnonzero(~removed)
    return [picked(batch, left)] if len(left) else []


def _without_all(batches: Sequence[Any], removed: NDArray[np.bool_]) -> list[Any]:
    kept: list[Any] = []
    at = 0
    for batch in batches:
        kept += _without(batch, removed[at : at + len(batch)])
        at += len(batch)
    return kept
