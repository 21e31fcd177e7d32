"""In a worker: one move becomes Parquet files. WAL bytes → decode.py → parquet.py → the table's folder `data`.
Of a typed table: WAL bytes → decode.py → typed/typing.py → parquet.py.

Before: job.py, which sends moves through Spark.  After: the driver, which commits the files that it is told of.

Small moves are done several at once, so that their waits for the storage add up to little; a large one is read in
windows, the next one while this one becomes rows. Either way the bytes in memory are bounded. What was stored before
something failed is removed: nobody will ever ask for it.
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

from lakestream.catalog.client_settings import azure_account
from lakestream.catalog.data_files import FileDescription, data_location
from lakestream.catalog.file_layout import PLAIN_LAYOUT
from lakestream.catalog.locations import Locations
from lakestream.clock import Ids, RandomIds, SystemClock
from lakestream.data.table.arrow import PLAIN_COLUMNS
from lakestream.data.table.decode import decode
from lakestream.data.table.heads import Source
from lakestream.data.table.parquet import TARGET_SIZE, ParquetSettings, WrittenFile, write_parquet
from lakestream.data.wal.segments import DiskSegments, SegmentFiles
from lakestream.errors import Conflict, Corrupt, LakestreamError, Misconfigured, Missing, OutOfRange, Unavailable
from lakestream.metadata.claims import Medium
from lakestream.model import Buffer, KiB, Span
from lakestream.pipeline.job import WorkSettings as WorkSettings
from lakestream.pipeline.tasks import Move, Moved, Outcome, Piece, Stuck, Wants
from lakestream.schemas.typing import Wanted
from lakestream.storage.object_store import ObjectStore
from lakestream.storage.opening import open_store
from lakestream.storage.ranges import GAP_BYTES_MAX
from lakestream.storage.retrying import Retrying, RetrySettings

if TYPE_CHECKING:
    from lakestream.data.typed.typing import Tally, Typist

log = logging.getLogger(__name__)

JOIN_BYTES_MAX: Final = 64 * KiB
"""Batches nearer than this are read as one: the bytes between them cost less than another call and another source."""
READ_S_MAX: Final = 120.0


class Batches(NamedTuple):
    """Batches that lie near one another in one object, in order of offset."""

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
        self._room = _Room(settings.room_bytes)

    async def do(self, moves: Sequence[Move]) -> list[Outcome]:
        """In the same order. What is wrong with one says its outcome; the others go on."""
        return await asyncio.gather(*(self._outcome(move) for move in moves))

    async def _outcome(self, move: Move) -> Outcome:
        stored: list[str] = []
        try:
            typist = _typist(move)
            async with self._room.taken(max(min(move.size, 2 * self._settings.window_bytes), self._share)):
                files = await self._files_of(move, typist, stored)
        except Wanted as wanted:
            await self._remove(stored)
            return Wants(move, wanted.schemas, wanted.inferred)
        except Exception as error:  # also a bug: it stops one topic, not all of them
            await self._remove(stored)
            return Stuck(move, _reason(error), isinstance(error, Unavailable | MemoryError))
        moved = Moved(move, tuple(files), sum(file.record_count for file in files))
        return moved if typist is None else _with_tally(moved, typist.tally)

    @property
    def _share(self) -> int:
        return self._settings.room_bytes // self._settings.at_once

    async def _files_of(self, move: Move, typist: "Typist | None", stored: list[str]) -> list[FileDescription]:
        files = []
        async for body, description in self._written(move, typist):
            if not move.start <= description.offset_first <= description.offset_last < move.end:
                raise Corrupt(
                    f"the batches of offsets {move.start} to {move.end} hold records {description.offset_first} to"
                    f" {description.offset_last}: these are not the bytes that the log means"
                )
            key = self._locations.key_of(description.location)
            stored.append(key)  # before: an answer that is lost may be that of a file that is there
            try:
                await self._objects.create(key, [memoryview(body).cast("B")])
            except Conflict:
                stored.remove(key)  # it is somebody else's
                raise
            files.append(description)
        return files

    async def _written(self, move: Move, typist: "Typist | None") -> AsyncIterator[WrittenFile]:
        windows = list(windows_of(move.pieces, self._settings.window_bytes))
        if len(windows) <= 1:
            sources = [source for window in windows for source in await self._read(window)]
            for written in self._converted(move, typist, [sources]):
                yield written
            return
        # Rows are made beside the loop, which reads the next window meanwhile.
        steps = self._converted(move, typist, _Ahead([partial(self._read, window) for window in windows]))
        while (made := await asyncio.to_thread(next, steps, None)) is not None:
            yield made

    def _converted(
        self, move: Move, typist: "Typist | None", windows: Iterable[Sequence[Source]]
    ) -> Iterator[WrittenFile]:
        number = move.partition.number
        rows: Iterable[Any] = (batch for sources in windows for batch in decode(sources, number))
        rows, columns = (rows, PLAIN_COLUMNS) if typist is None else (typist.typed(rows), typist.columns)
        settings = ParquetSettings.of({TARGET_SIZE: str(self._settings.file_bytes_max), **dict(move.properties)})

        def place(offset: int) -> str:
            return data_location(move.location, number, offset, self._ids.new())

        if move.layout == PLAIN_LAYOUT:
            return write_parquet(rows, place, settings, columns)
        # Here and not above: most tables are by partition and offset, and have no use for the kernels of it.
        from lakestream.data.table.splitting import write_files

        return write_files(rows, place, settings, columns, move.layout, number)

    async def _read(self, window: Sequence[Batches]) -> list[Source]:
        """One call per object, all of them at once."""
        wanted: defaultdict[tuple[Medium, str], list[int]] = defaultdict(list)
        for place, batches in enumerate(window):
            wanted[batches.piece.medium, batches.piece.name].append(place)

        async def read(medium: Medium, name: str, places: Sequence[int]) -> None:
            spans = [window[place].span for place in places]
            found.update(zip(places, await self._spans(medium, name, spans), strict=True))

        found: dict[int, Buffer] = {}
        await asyncio.gather(*(read(medium, name, places) for (medium, name), places in wanted.items()))
        return [_source(batches, found[place]) for place, batches in enumerate(window)]

    async def _spans(self, medium: Medium, name: str, spans: Sequence[Span]) -> list[Buffer]:
        try:
            if medium is Medium.OBJECT:
                return await self._objects.get_ranges(name, spans)
            if self._segments is None:
                raise Misconfigured(f"segment {name} is to be moved, but no WAL folder is known: set --wal-dir")
            async with asyncio.timeout(READ_S_MAX):
                return await self._segments.read(name, spans)
        except TimeoutError:
            raise Unavailable(f"{name}: the disk did not answer within {READ_S_MAX:.0f} s") from None
        except Missing as error:
            raise Missing(f"{name}, which holds records that are to be moved, is missing ({error})") from error
        except OutOfRange as error:
            raise Corrupt(f"{name} is shorter than its claims say ({error}); restore it from a backup") from error

    async def _remove(self, stored: Sequence[str]) -> None:
        if not stored:
            return
        try:
            await self._objects.delete(stored)
        except LakestreamError as error:  # they are orphans then, which maintenance removes
            log.warning("pipeline.files_left count=%d first=%s error=%s", len(stored), stored[0], error)

    async def close(self) -> None:
        await self._objects.close()
        if self._segments is not None:
            await self._segments.close()


def open_work(settings: WorkSettings) -> Work:
    """Over the stores that the settings name, with what the environment says about them. Nothing is asked of them."""
    clock, ids = SystemClock(), RandomIds()
    objects = Retrying(open_store(settings.storage_url, clock, ids), RetrySettings(), random.Random())
    segments = DiskSegments(Path(settings.segments_dir), _from_pool) if settings.segments_dir is not None else None
    locations = Locations(settings.storage_url, azure_account(os.environ))
    return Work(objects, segments, locations, ids, settings)


def _from_pool(size: int) -> memoryview:
    """Arrow's pool keeps pages for the next window: fresh ones cost as much as filling them."""
    return memoryview(pa.allocate_buffer(size)).cast("B")


# Typed tables


def _typist(move: Move) -> "Typist | None":
    """None: values stay bytes."""
    if move.typing is None:
        return None
    # Here and not above: most workers have no use for the kernels of it.
    from lakestream.data.typed.typing import Typist

    return Typist(move.columns or PLAIN_COLUMNS, move.typing)


def _with_tally(moved: Moved, tally: "Tally") -> Moved:
    return replace(moved, typed_count=tally.typed, raw_count=tally.raw, misfits=tally.misfits())


# What to read


def windows_of(pieces: Sequence[Piece], bytes_max: int) -> Iterator[list[Batches]]:
    """All batches in order of offset, in runs that lie together, in windows that are read at once. Pure.

    A log's batches may change from object to object and back, when several brokers append to it at a time. A single
    batch may be larger than a window."""
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
    beside = (numbers[1:] == numbers[:-1]) & (gaps >= 0)
    joined = beside & (gaps <= JOIN_BYTES_MAX)
    # The storage joins what is near, too, and then what lies between is in memory as well.
    reads = np.cumsum((ends - starts) + np.concatenate([[0], np.where(beside & (gaps <= GAP_BYTES_MAX), gaps, 0)]))
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


def _source(batches: Batches, data: Buffer) -> Source:
    return Source(batches.piece.name, data, batches.starts, batches.ends, batches.base_offsets, batches.span.start)


# Memory


class _Room:
    """Bytes that may be in memory at once. Who wants more waits; who wants it all waits for all others."""

    def __init__(self, size: int) -> None:
        self._size = self._free = size
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        wanted = min(size, self._size)
        async with self._changed:
            await self._changed.wait_for(lambda: self._free >= wanted)
            self._free -= wanted
        try:
            yield
        finally:
            self._free += wanted
            async with self._changed:
                self._changed.notify_all()


_Read: TypeAlias = Callable[[], Coroutine[Any, Any, list[Source]]]


class _Ahead:
    """Reads for a thread beside the loop: while it works on one, the loop does the next."""

    def __init__(self, reads: Sequence[_Read]) -> None:
        self._reads = reads
        self._loop = asyncio.get_running_loop()

    def __iter__(self) -> Iterator[Sequence[Source]]:
        ahead = self._begun(self._reads[0])
        for read in self._reads[1:]:
            current, ahead = ahead, self._begun(read)
            yield current.result(2 * READ_S_MAX)
        yield ahead.result(2 * READ_S_MAX)

    def _begun(self, read: _Read) -> Future[list[Source]]:
        return asyncio.run_coroutine_threadsafe(read(), self._loop)


def _reason(error: Exception) -> str:
    if isinstance(error, Corrupt):
        said = str(error).removesuffix("; restore it from a backup")
        return f"{said}; restore it from a backup, or give it up: delete the partition's records up to behind it"
    if isinstance(error, LakestreamError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno}): this is a bug, please report it"
    )


# A worker process


class _Workshop:
    """One event loop and its open stores, as long as the process lives."""

    def __init__(self, settings: WorkSettings) -> None:
        self.settings = settings
        self._runner = asyncio.Runner()
        self._work = self._runner.run(self._open())

    async def _open(self) -> Work:
        return open_work(self.settings)

    def do(self, moves: Sequence[Move]) -> list[Outcome]:
        return self._runner.run(self._work.do(moves))

    def close(self) -> None:
        self._runner.run(self._work.close())
        self._runner.close()


_workshop: _Workshop | None = None


def work_through(settings: WorkSettings, moves: Sequence[Move]) -> list[Outcome]:
    """Called by Spark in a worker, once per task."""
    global _workshop
    if _workshop is not None and _workshop.settings != settings:
        _workshop.close()
        _workshop = None
    if _workshop is None:
        _workshop = _Workshop(settings)
    return _workshop.do(moves)
