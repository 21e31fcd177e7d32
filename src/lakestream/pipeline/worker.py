"""Writes the Parquet files of moves, in a worker. WAL bytes → batch_decoder.py → parquet_writer.py → the table's folder
`data`. With schemas: WAL bytes → batch_decoder.py → typed/values_to_columns.py → parquet_writer.py.

Before: spark/job.py, which sends moves through Spark.  After: the driver, which commits the files of the outcomes.

Small moves run concurrently, so that their waits for the storage overlap; a large move is read in windows, the next
window while this one becomes rows. Either way the bytes in memory are limited. If a move fails, the files that it has
stored are removed, because no table will name them.
"""

import asyncio
import logging
import os
import random
import traceback
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.catalog.locations import Locations, azure_account
from lakestream.catalog.manifests.data_file import FileDescription, data_location
from lakestream.catalog.topic_table.file_layout import PLAIN_LAYOUT
from lakestream.clock import Ids, RandomIds, SystemClock
from lakestream.data.table.arrow.types import PLAIN_COLUMNS
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.data.table.write.parquet_writer import TARGET_SIZE, ParquetSettings, WrittenFile, write_parquet
from lakestream.data.wal.segments import DiskSegments, SegmentFiles
from lakestream.errors import Conflict, Corrupt, LakestreamError, Misconfigured, Missing, OutOfRange, Unavailable
from lakestream.metadata.claims import Medium
from lakestream.model import Buffer, KiB, Span
from lakestream.pipeline.tasks import Move, MoveFailed, MoveResult, Outcome, Piece, SchemasMissing, WorkSettings
from lakestream.schemas.value_format import ConversionErrorCounts, SchemasMissingError
from lakestream.storage.object_store import ObjectStore
from lakestream.storage.open_store import open_store
from lakestream.storage.range_reads import GAP_BYTES_MAX
from lakestream.storage.retrying import PATIENT, RetryingStore

if TYPE_CHECKING:
    from lakestream.data.typed.values_to_columns import ConversionStats, ValueConverter

log = logging.getLogger(__name__)

JOIN_BYTES_MAX: Final = 64 * KiB
"""Batches nearer than this are read together: the bytes between them cost less than another call and source."""
READ_S_MAX: Final = 120.0


class Batches(NamedTuple):
    """Batches that are near one another in one object, by offset."""

    piece: Piece
    span: Span
    starts: Any
    ends: Any
    base_offsets: Any


class Work:
    def __init__(
        self,
        objects: ObjectStore,
        segments: SegmentFiles | None,
        locations: Locations,
        ids: Ids,
        settings: WorkSettings,
    ) -> None:
        self._objects = objects
        self._segments = segments
        self._locations = locations
        self._ids = ids
        self._settings = settings
        self._memory = _MemoryLimit(settings.memory_bytes)

    async def run(self, moves: Sequence[Move]) -> list[Outcome]:
        """Returns the outcomes in the same order. The failure of a move is its outcome, and stops no other move."""
        return await asyncio.gather(*(self._outcome(move) for move in moves))

    async def _outcome(self, move: Move) -> Outcome:
        stored: list[str] = []
        try:
            converter, unreadable = _value_converter(move), ConversionErrorCounts()
            async with self._memory.acquired(max(min(move.size, 2 * self._settings.window_bytes), self._share)):
                files = await self._files_of(move, converter, unreadable, stored)
        except SchemasMissingError as missing:
            await self._remove(stored)
            return SchemasMissing(move, missing.schemas, missing.inferred)
        except Exception as error:  # also a bug: it stops one topic, not all of them
            await self._remove(stored)
            return MoveFailed(move, _reason(error), isinstance(error, Unavailable | MemoryError))
        result = MoveResult(move, tuple(files), sum(file.record_count for file in files))
        if converter is None:
            return replace(result, unconverted_count=unreadable.count, errors=unreadable.most_frequent())
        return _with_statistics(result, converter.stats)  # which counts unreadable batches, too

    @property
    def _share(self) -> int:
        return self._settings.memory_bytes // self._settings.at_once

    async def _files_of(
        self, move: Move, converter: "ValueConverter | None", unreadable: ConversionErrorCounts, stored: list[str]
    ) -> list[FileDescription]:
        files = []
        async for body, description in self._written(move, converter, unreadable):
            if not move.start <= description.offset_first <= description.offset_last < move.end:
                raise Corrupt(
                    f"the batches of offsets {move.start} to {move.end} contain records {description.offset_first} to"
                    f" {description.offset_last}: these are not the bytes of the log's claims"
                )
            key = self._locations.key_of(description.location)
            stored.append(key)  # before the call: if its response is lost, the file may exist
            try:
                await self._objects.create(key, [memoryview(body).cast("B")])
            except Conflict:
                stored.remove(key)  # the file is another writer's
                raise
            files.append(description)
        return files

    async def _written(
        self, move: Move, converter: "ValueConverter | None", unreadable: ConversionErrorCounts
    ) -> AsyncIterator[WrittenFile]:
        windows = list(windows_of(move.pieces, self._settings.window_bytes))
        if len(windows) <= 1:
            sources = [source for window in windows for source in await self._read(window)]
            for written in self._converted(move, converter, unreadable, [sources]):
                yield written
            return
        # A thread makes rows while the event loop reads the next window.
        ahead = _ReadAhead([partial(self._read, window) for window in windows])
        steps = self._converted(move, converter, unreadable, ahead)
        while (written_file := await asyncio.to_thread(next, steps, None)) is not None:
            yield written_file

    def _converted(
        self,
        move: Move,
        converter: "ValueConverter | None",
        unreadable: ConversionErrorCounts,
        windows: Iterable[Sequence[BatchSource]],
    ) -> Iterator[WrittenFile]:
        number = move.partition.number
        rows: Iterable[Any] = (batch for sources in windows for batch in decode(sources, number, unreadable=unreadable))
        rows, columns = (rows, PLAIN_COLUMNS) if converter is None else (converter.convert(rows), converter.columns)
        settings = ParquetSettings.of({TARGET_SIZE: str(self._settings.file_bytes_max), **dict(move.properties)})

        def location(offset: int) -> str:
            return data_location(move.location, number, offset, self._ids.new())

        if move.layout == PLAIN_LAYOUT:
            return write_parquet(rows, location, settings, columns)
        # Imported here: most tables have the plain layout, and do not need its kernels.
        from lakestream.data.table.write.partitioned_writer import write_files

        return write_files(rows, location, settings, columns, move.layout, number)

    async def _read(self, window: Sequence[Batches]) -> list[BatchSource]:
        """Reads a window with one call per object, all of them concurrently."""
        objects: defaultdict[tuple[Medium, str], list[int]] = defaultdict(list)
        for index, batches in enumerate(window):
            objects[batches.piece.medium, batches.piece.name].append(index)

        async def read(medium: Medium, name: str, indexes: Sequence[int]) -> None:
            spans = [window[index].span for index in indexes]
            found.update(zip(indexes, await self._spans(medium, name, spans), strict=True))

        found: dict[int, Buffer] = {}
        await asyncio.gather(*(read(medium, name, indexes) for (medium, name), indexes in objects.items()))
        return [_source(batches, found[index]) for index, batches in enumerate(window)]

    async def _spans(self, medium: Medium, name: str, spans: Sequence[Span]) -> list[Buffer]:
        try:
            if medium is Medium.OBJECT:
                return await self._objects.get_ranges(name, spans)
            if self._segments is None:
                raise Misconfigured(f"segment {name} is to be moved, but there is no WAL folder: set --wal-dir")
            async with asyncio.timeout(READ_S_MAX):
                return await self._segments.read(name, spans)
        except TimeoutError:
            raise Unavailable(f"{name}: the read timed out after {READ_S_MAX:.0f} s") from None
        except Missing as error:
            raise Missing(f"{name} is missing, and has records that are to be moved ({error})") from error
        except OutOfRange as error:
            raise Corrupt(f"{name} is shorter than its claims require ({error}); restore it from a backup") from error

    async def _remove(self, stored: Sequence[str]) -> None:
        if not stored:
            return
        try:
            await self._objects.delete(stored)
        except LakestreamError as error:  # they are orphan files then, which maintenance removes
            log.warning("pipeline.cleanup_failed count=%d first=%s error=%s", len(stored), stored[0], error)

    async def close(self) -> None:
        await self._objects.close()
        if self._segments is not None:
            await self._segments.close()


def open_work(settings: WorkSettings) -> Work:
    """Opens the stores of the settings, with credentials of the environment. Makes no request to them."""
    clock, ids = SystemClock(), RandomIds()
    objects = RetryingStore(open_store(settings.storage_url, clock, ids), PATIENT, random.Random())
    segments = DiskSegments(Path(settings.segments_dir), _from_pool) if settings.segments_dir is not None else None
    locations = Locations(settings.storage_url, azure_account(os.environ))
    return Work(objects, segments, locations, ids, settings)


def _from_pool(size: int) -> memoryview:
    """Allocates in Arrow's pool, which keeps pages for the next window: new pages cost as much as filling them."""
    return memoryview(pa.allocate_buffer(size)).cast("B")


# Tables with schemas


def _value_converter(move: Move) -> "ValueConverter | None":
    """Returns None if values stay bytes."""
    if move.conversion is None:
        return None
    # Imported here: most workers do not need its kernels.
    from lakestream.data.typed.values_to_columns import ValueConverter

    return ValueConverter(move.columns or PLAIN_COLUMNS, move.conversion)


def _with_statistics(result: MoveResult, statistics: "ConversionStats") -> MoveResult:
    return replace(
        result,
        converted_count=statistics.converted,
        unconverted_count=statistics.unconverted,
        errors=statistics.errors(),
    )


# What to read


def windows_of(pieces: Sequence[Piece], bytes_max: int) -> Iterator[list[Batches]]:
    """Yields all batches by offset, in windows that fit in memory; each has runs of adjacent batches. Pure.

    Consecutive batches of a log may alternate between objects, if several brokers append to it at a time. A single
    batch may be larger than a window.
    """
    if not pieces:
        return
    numbers = np.concatenate([np.full(len(piece.base_offsets), place) for place, piece in enumerate(pieces)])
    starts, ends, offsets = (
        np.concatenate([np.array(getattr(piece, name), np.int64) for piece in pieces])
        for name in ("byte_starts", "byte_ends", "base_offsets")
    )
    order = np.argsort(offsets, kind="stable")
    numbers, starts, ends, offsets = numbers[order], starts[order], ends[order], offsets[order]
    gaps = starts[1:] - ends[:-1]
    in_order = (numbers[1:] == numbers[:-1]) & (gaps >= 0)
    joined = in_order & (gaps <= JOIN_BYTES_MAX)
    # The store joins near ranges, too, and then the bytes between them are in memory as well.
    reads = np.cumsum((ends - starts) + np.concatenate([[0], np.where(in_order & (gaps <= GAP_BYTES_MAX), gaps, 0)]))
    first = 0
    while first < len(offsets):
        before = reads[first - 1] if first else 0
        end = max(int(np.searchsorted(reads, before + bytes_max, side="right")), first + 1)
        borders = [first, *(np.flatnonzero(~joined[first : end - 1]) + first + 1).tolist(), end]
        yield [
            Batches(
                pieces[numbers[start]],
                Span(int(starts[start]), int(ends[stop - 1])),
                starts[start:stop] - starts[start],
                ends[start:stop] - starts[start],
                offsets[start:stop],
            )
            for start, stop in pairwise(borders)
        ]
        first = end


def _source(batches: Batches, data: Buffer) -> BatchSource:
    return BatchSource(batches.piece.name, data, batches.starts, batches.ends, batches.base_offsets, batches.span.start)


# Memory


class _MemoryLimit:
    """Limits the bytes in memory. A move that needs more than is free waits; the largest ones run alone."""

    def __init__(self, size: int) -> None:
        self._size = self._free = size
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def acquired(self, size: int) -> AsyncIterator[None]:
        needed = min(size, self._size)
        async with self._changed:
            await self._changed.wait_for(lambda: self._free >= needed)
            self._free -= needed
        try:
            yield
        finally:
            self._free += needed
            async with self._changed:
                self._changed.notify_all()


_Read: TypeAlias = Callable[[], Coroutine[Any, Any, list[BatchSource]]]


class _ReadAhead:
    """Reads windows for a thread: while the thread works on one, the event loop reads the next."""

    def __init__(self, reads: Sequence[_Read]) -> None:
        self._reads = reads
        self._loop = asyncio.get_running_loop()

    def __iter__(self) -> Iterator[Sequence[BatchSource]]:
        following = self._start(self._reads[0])
        for read in self._reads[1:]:
            current, following = following, self._start(read)
            yield current.result(2 * READ_S_MAX)
        yield following.result(2 * READ_S_MAX)

    def _start(self, read: _Read) -> Future[list[BatchSource]]:
        return asyncio.run_coroutine_threadsafe(read(), self._loop)


def _reason(error: Exception) -> str:
    if isinstance(error, Corrupt):
        problem = str(error).removesuffix("; restore it from a backup")
        return f"{problem}; restore it from a backup, or skip it: delete the partition's records up to and including it"
    if isinstance(error, LakestreamError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno}): this is a bug, please report it"
    )


# A worker process


class _WorkerProcess:
    """One event loop and its open stores, for the lifetime of the process."""

    def __init__(self, settings: WorkSettings) -> None:
        self.settings = settings
        self._runner = asyncio.Runner()
        self._work = self._runner.run(self._open())

    async def _open(self) -> Work:
        return open_work(self.settings)

    def run(self, moves: Sequence[Move]) -> list[Outcome]:
        return self._runner.run(self._work.run(moves))

    def close(self) -> None:
        self._runner.run(self._work.close())
        self._runner.close()


_process: _WorkerProcess | None = None


def run_task(settings: WorkSettings, moves: Sequence[Move]) -> list[Outcome]:
    """Runs the moves of a task. Called by Spark in a worker, once per task."""
    global _process
    if _process is not None and _process.settings != settings:
        _process.close()
        _process = None
    if _process is None:
        _process = _WorkerProcess(settings)
    return _process.run(moves)
