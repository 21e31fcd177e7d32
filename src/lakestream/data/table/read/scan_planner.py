"""Plans reads: from an offset to the row groups with it, by manifests and file footers.

    snapshot  →  manifest list  →  manifests of the partition  →  files, by offset  →  footers  →  row groups

Any engine may have written these files. They are immutable, so caches, which are bounded in bytes, are never stale.
Pure decisions are at the end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from lakestream.aio.gather import gather_limited
from lakestream.aio.single_flight import SingleFlightCache
from lakestream.aio.threads import Run
from lakestream.catalog.locations import TableFolder
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.table.read import position_deletes
from lakestream.data.table.read.manifest_index import (
    DATA,
    HIGHEST,
    LOWEST,
    ListedFiles,
    Manifest,
    joined,
    read_files,
    read_list,
)
from lakestream.data.table.read.parquet_footer import TAIL_BYTES, Footer, check_footer, footer_size, read_footer
from lakestream.data.table.read.row_groups import RowGroupPart
from lakestream.data.table.read.snapshots import TableSnapshot
from lakestream.errors import Corrupt, OutOfRange
from lakestream.model import Buffer, MiB, Span
from lakestream.storage.object_store import ObjectStore

READS_MAX: Final = 32
"""Concurrent storage calls of one plan."""
TIMEOUT_S: Final = 60
MANIFESTS_BYTES_MAX: Final = 48 * MiB
FOOTERS_BYTES_MAX: Final = 32 * MiB
FOOTER_BYTES_MAX: Final = 64 * MiB
"""Maximum size of a footer: the file declares it, and any client may have written the file."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class PartitionFiles:
    """Files of one partition, by their first offset."""

    files: ListedFiles
    reach: Longs
    """The highest offset in each file and all files before it."""


class Planner:
    def __init__(self, store: ObjectStore, run: Run) -> None:
        self._store = store
        self._run = run
        self._lists: SingleFlightCache[str, list[Manifest]] = self._shared("table.manifest_list", _list_size)
        self._manifests: SingleFlightCache[str, ListedFiles] = self._shared(
            "table.manifest", lambda files: files.memory_size
        )
        self._partitions: SingleFlightCache[tuple[str, int, bool], PartitionFiles] = self._shared(
            "table.partition", lambda cached: cached.files.memory_size
        )
        self._footers: SingleFlightCache[str, Footer] = SingleFlightCache(
            "table.footer", FOOTERS_BYTES_MAX, lambda footer: footer.memory_size, TIMEOUT_S
        )
        self._deletes: SingleFlightCache[str, dict[str, Longs]] = self._shared("table.deletes", _deletes_size)

    def _shared(self, what: str, size: Callable[[Any], int]) -> SingleFlightCache[Any, Any]:
        return SingleFlightCache(what, MANIFESTS_BYTES_MAX // 4, size, TIMEOUT_S)

    async def close(self) -> None:
        for shared in (self._lists, self._manifests, self._partitions, self._footers, self._deletes):
            await shared.close()

    async def files(self, table: TableSnapshot, partition: int, *, deleting: bool = False) -> PartitionFiles:
        """Returns all data files, or all delete files, of a partition."""
        if table.manifest_list is None:
            return by_offset(joined([]))
        table.folder.named_key(table.manifest_list)  # checked before the cache, which all tables share
        key = (table.manifest_list, partition, deleting)
        return await self._partitions.get(key, lambda: self._load_files(table, partition, deleting))

    async def part(
        self, table: TableSnapshot, partition: int, files: ListedFiles, place: int, footer: Footer, group: int
    ) -> RowGroupPart:
        """Returns one row group of a file, with its deleted rows."""
        deleted = await self._deleted(table, partition, files, place)
        alone = int(files.partition_lo[place]) == int(files.partition_hi[place]) == partition
        return RowGroupPart(footer, footer.groups[group], None if alone else partition, deleted, table.is_typed)

    async def footer(self, folder: TableFolder, files: ListedFiles, place: int) -> Footer:
        location = files.locations[place]
        folder.named_key(location)
        if not files.is_parquet[place]:
            raise Corrupt(f"{location} is not a Parquet file: tables of topics are read from Parquet only")
        return await self._footers.get(location, lambda: self._load_footer(folder, files, place))

    async def signature(self, table: TableSnapshot, partition: int, files: ListedFiles, place: int) -> tuple[str, ...]:
        """Returns the delete files that a file is read with."""
        deletes = (await self.files(table, partition, deleting=True)).files
        location, sequence = files.locations[place], int(files.sequences[place])
        return tuple(
            f"{deletes.locations[one]}@{deletes.blob_start[one]}"
            for one in position_deletes.deletes_of(deletes, location, sequence, partition)
        )

    async def fetch(self, folder: TableFolder, location: str, spans: Sequence[Span]) -> list[Buffer]:
        try:
            return await self._store.get_ranges(folder.named_key(location), spans)
        except OutOfRange as error:
            raise Corrupt(f"{location} is shorter than when it was committed: {error}") from error

    def evict(self, table: TableSnapshot, partition: int) -> None:
        """Evicts the files of a partition, and their manifests and manifest list, from all caches."""
        if table.manifest_list is None:
            return
        for manifest in self._lists.cache.get(table.manifest_list) or []:
            self._manifests.cache.evict(manifest.location)
        self._lists.cache.evict(table.manifest_list)
        for deleting in (False, True):
            cached = self._partitions.cache.get((table.manifest_list, partition, deleting))
            self._partitions.cache.evict((table.manifest_list, partition, deleting))
            if cached is not None:
                self._evict_files(cached.files)

    def _evict_files(self, files: ListedFiles) -> None:
        for location, start in zip(files.locations, files.blob_start.tolist(), strict=True):
            self._footers.cache.evict(location)
            self._deletes.cache.evict(_deletes_key(location, start))

    # Loading

    async def _load_files(self, table: TableSnapshot, partition: int, deleting: bool) -> PartitionFiles:
        assert table.manifest_list is not None
        listed = await self._lists.get(table.manifest_list, lambda: self._load_list(table))
        manifests = [
            one
            for one in listed
            if (one.content != DATA) == deleting and one.partition_lo <= partition <= one.partition_hi
        ]
        loaded = await gather_limited([self._manifest(table, one) for one in manifests], READS_MAX)
        if deleting:
            return await self._run(lambda: by_offset(joined([_of_partition(one, partition) for one in loaded])))
        files = await self._run(lambda: joined([_of_partition(one, partition) for one in loaded]).with_offsets())
        bounded = await self._bounded(table, files)
        return await self._run(lambda: by_offset(bounded.with_offsets()))

    async def _bounded(self, table: TableSnapshot, files: ListedFiles) -> ListedFiles:
        """Adds bounds from footers: some writers write no metrics of nested columns to manifests."""
        unknown = np.flatnonzero((files.offset_lo == LOWEST) | (files.offset_hi == HIGHEST)).tolist()
        if not unknown:
            return files
        footers = await gather_limited([self.footer(table.folder, files, place) for place in unknown], READS_MAX)
        return files.with_bounds(unknown, [footer.bounds for footer in footers])

    async def _manifest(self, table: TableSnapshot, manifest: Manifest) -> ListedFiles:
        table.folder.named_key(manifest.location)
        return await self._manifests.get(manifest.location, lambda: self._load_manifest(table, manifest))

    async def _load_list(self, table: TableSnapshot) -> list[Manifest]:
        location = table.manifest_list
        assert location is not None
        body = await self._get(table, location)
        return await self._run(lambda: read_list(body, table.places, location))

    async def _load_manifest(self, table: TableSnapshot, manifest: Manifest) -> ListedFiles:
        body = await self._get(table, manifest.location)
        return await self._run(lambda: read_files(body, manifest))

    async def _load_footer(self, folder: TableFolder, files: ListedFiles, place: int) -> Footer:
        location, file_size = files.locations[place], int(files.sizes[place])
        size = min(file_size, TAIL_BYTES)
        (tail,) = await self.fetch(folder, location, [Span(file_size - size, file_size)])
        needed = footer_size(tail, location)
        if needed > file_size:
            raise Corrupt(f"{location} is damaged: it declares a footer larger than the file")
        if needed > FOOTER_BYTES_MAX:
            raise Corrupt(
                f"{location}: its footer has {needed} bytes, more than {FOOTER_BYTES_MAX}: write smaller files"
            )
        if needed > len(tail):
            (tail,) = await self.fetch(folder, location, [Span(file_size - needed, file_size)])
        footer = await self._run(lambda: read_footer(tail, file_size, location))
        rows, low, high = (int(fact[place]) for fact in (files.rows, files.offset_lo, files.offset_hi))
        check_footer(footer, rows, low, high)
        return footer

    async def _deleted(self, table: TableSnapshot, partition: int, files: ListedFiles, place: int) -> Longs | None:
        deletes = (await self.files(table, partition, deleting=True)).files
        location = files.locations[place]
        some = [
            (await self._load_deletes(table, deletes, one)).get(location)
            for one in position_deletes.deletes_of(deletes, location, int(files.sequences[place]), partition)
        ]
        return position_deletes.joined([positions for positions in some if positions is not None])

    async def _load_deletes(self, table: TableSnapshot, deletes: ListedFiles, place: int) -> dict[str, Longs]:
        table.folder.named_key(deletes.locations[place])
        key = _deletes_key(deletes.locations[place], int(deletes.blob_start[place]))
        return await self._deletes.get(key, lambda: self._read_deletes(table, deletes, place))

    async def _read_deletes(self, table: TableSnapshot, deletes: ListedFiles, place: int) -> dict[str, Longs]:
        location, data_file = deletes.locations[place], deletes.referenced[place]
        if deletes.is_parquet[place]:
            body = await self._get(table, location)
            return await self._run(lambda: position_deletes.read_positions(body, location))
        start, size = int(deletes.blob_start[place]), int(deletes.blob_size[place])
        if data_file is None or not size:
            raise Corrupt(f"{location} is neither a Parquet file of deleted positions nor a deletion vector")
        (blob,) = await self.fetch(table.folder, location, [Span(start, start + size)])
        return {data_file: await self._run(lambda: position_deletes.read_vector(blob, location))}

    async def _get(self, table: TableSnapshot, location: str) -> Buffer:
        return await self._store.get(table.folder.named_key(location))


# Decisions


def by_offset(files: ListedFiles) -> PartitionFiles:
    files = files.picked(np.argsort(files.offset_lo, kind="stable"))
    return PartitionFiles(files, np.maximum.accumulate(files.offset_hi) if len(files) else files.offset_hi)


def _of_partition(files: ListedFiles, partition: int) -> ListedFiles:
    near = (files.partition_lo <= partition) & (files.partition_hi >= partition)
    return files if near.all() else files.picked(np.flatnonzero(near))


def overlapping_files(lows: Longs, highs: Longs, reach: Longs, offset: int) -> Longs:
    """Returns, of ranges sorted by lower bound, the first that reaches `offset` and all that overlap it or each other.

    If files are sorted by offset, that is one. With any other sort order, each file may have any offset.
    """
    first = int(np.searchsorted(reach, offset))
    gaps = np.flatnonzero(lows[first + 1 :] > reach[first:-1])
    last = first + 1 + int(gaps[0]) if gaps.size else len(lows)
    return first + np.flatnonzero(highs[first:last] >= offset)


class FileWindow(NamedTuple):
    """Files that are planned together: all rows with offsets in the span are in these files."""

    places: list[int]
    span: Span


def file_window(lows: Longs, highs: Longs, reach: Longs, offset: int, count: int) -> FileWindow:
    """Returns the files with the rows from `offset` on, and those that overlap them.

    In a partitioned table, files overlap in a chain that may be as long as the table. Then the window begins where one
    file begins and ends where another does, so that all reads near `offset` have the same window.
    """
    places = overlapping_files(lows, highs, reach, offset)
    if not len(places):
        return FileWindow([], Span(offset, offset))
    starts, end = lows[places], int(highs[places].max()) + 1
    if len(places) <= count:
        return FileWindow(places.tolist(), Span(int(starts[0]), end))
    at = max(0, int(np.searchsorted(starts, offset, side="right")) - 1)
    low, before = int(starts[at]), places[: at + 1]
    reaching = before[highs[before] >= low]
    behind = at + 1 + max(1, count - len(reaching))
    chosen = np.concatenate((reaching, places[at + 1 : behind]))
    return FileWindow(chosen.tolist(), Span(low, int(starts[behind]) if behind < len(places) else end))


def window(low: int, high: int, size: int, offset: int, bytes_max: int) -> Span:
    """Returns the offsets that are read together: about `bytes_max` of `size` bytes with offsets from `low` to `high`.

    They are one of several windows of equal width, which are the same for all reads.
    """
    if size <= bytes_max:
        return Span(low, high + 1)
    width = max(1, (high + 1 - low) * bytes_max // size)
    start = low + (max(offset, low) - low) // width * width
    return Span(start, min(start + width, high + 1))


def _deletes_key(location: str, start: int) -> str:
    """Returns a cache key: several deletion vectors may be in one file."""
    return f"{location}@{start}"


def _list_size(listed: list[Manifest]) -> int:
    return 400 * (len(listed) + 1)


def _deletes_size(deletes: dict[str, Longs]) -> int:
    return 400 + sum(400 + positions.nbytes for positions in deletes.values())
