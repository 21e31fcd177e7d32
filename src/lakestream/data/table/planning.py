"""From an offset to the row groups that hold it: files by the manifests, row groups by the files' footers.

    snapshot  →  manifest list  →  manifests of the partition  →  files, by offset  →  footers  →  row groups

Nothing of it is ours: any engine may have written all of it. What is read is kept for a while, bounded in bytes, and is
never out of date, since no such file is ever changed. Pure decisions are at the end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from lakestream.catalog.locations import Locations
from lakestream.data.cache.shared import Shared
from lakestream.data.table import deletes
from lakestream.data.table.compiled import Longs
from lakestream.data.table.footers import TAIL_BYTES, Footer, check_footer, footer_size, read_footer
from lakestream.data.table.groups import Part
from lakestream.data.table.manifests import DATA, HIGHEST, LOWEST, Files, Manifest, joined, read_files, read_list
from lakestream.data.table.snapshots import Table
from lakestream.data.table.threads import Run
from lakestream.errors import Corrupt, OutOfRange, Rejected
from lakestream.model import Buffer, MiB, Span
from lakestream.storage.object_store import ObjectStore
from lakestream.storage.together import together

READS_MAX: Final = 32
"""Calls to storage under way at once, for one question."""
TIMEOUT_S: Final = 60
MANIFESTS_BYTES_MAX: Final = 48 * MiB
FOOTERS_BYTES_MAX: Final = 32 * MiB

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class PartitionFiles:
    """Files of one partition, by their first offset."""

    files: Files
    reach: Longs
    """The highest offset in a file and all before it."""


class Planner:
    def __init__(self, store: ObjectStore, locations: Locations, run: Run) -> None:
        self._store = store
        self._locations = locations
        self._run = run
        self._lists: Shared[str, list[Manifest]] = self._shared("table.manifest_list", _list_size)
        self._manifests: Shared[str, Files] = self._shared("table.manifest", lambda files: files.bytes_held)
        self._partitions: Shared[tuple[str, int, bool], PartitionFiles] = self._shared(
            "table.partition", lambda found: found.files.bytes_held
        )
        self._footers: Shared[str, Footer] = Shared(
            "table.footer", FOOTERS_BYTES_MAX, lambda footer: footer.bytes_held, TIMEOUT_S
        )
        self._deletes: Shared[str, dict[str, Longs]] = self._shared("table.deletes", _deletes_size)

    def _shared(self, what: str, size: Callable[[Any], int]) -> Shared[Any, Any]:
        return Shared(what, MANIFESTS_BYTES_MAX // 4, size, TIMEOUT_S)

    async def close(self) -> None:
        for shared in (self._lists, self._manifests, self._partitions, self._footers, self._deletes):
            await shared.close()

    async def files(self, table: Table, partition: int, *, deleting: bool = False) -> PartitionFiles:
        """All data files, or all delete files, of a partition."""
        if table.manifest_list is None:
            return by_offset(joined([]))
        key = (table.manifest_list, partition, deleting)
        return await self._partitions.get(key, lambda: self._load_files(table, partition, deleting))

    async def part(self, table: Table, partition: int, files: Files, place: int, footer: Footer, group: int) -> Part:
        """One row group of a file, and what of it was deleted."""
        deleted = await self._deleted(table, partition, files, place)
        alone = int(files.partition_lo[place]) == int(files.partition_hi[place]) == partition
        return Part(footer, footer.groups[group], None if alone else partition, deleted, table.is_typed)

    async def footer(self, files: Files, place: int) -> Footer:
        location = files.locations[place]
        if not files.is_parquet[place]:
            raise Corrupt(f"{location} is no Parquet file: tables of topics are read from Parquet only")
        return await self._footers.get(location, lambda: self._load_footer(files, place))

    async def signature(self, table: Table, partition: int, files: Files, place: int) -> tuple[str, ...]:
        """Which deletes a file is read with."""
        found = (await self.files(table, partition, deleting=True)).files
        location, sequence = files.locations[place], int(files.sequences[place])
        return tuple(
            f"{found.locations[one]}@{found.blob_start[one]}"
            for one in deletes.about(found, location, sequence, partition)
        )

    async def fetch(self, location: str, spans: Sequence[Span]) -> list[Buffer]:
        try:
            return await self._store.get_ranges(self._key(location), spans)
        except OutOfRange as error:
            raise Corrupt(f"{location} is shorter than it was when it was committed: {error}") from error

    def forget(self, table: Table, partition: int) -> None:
        """Whatever is kept of the files of a partition, and of those that list them."""
        if table.manifest_list is None:
            return
        for manifest in self._lists.cache.get(table.manifest_list) or []:
            self._manifests.cache.evict(manifest.location)
        self._lists.cache.evict(table.manifest_list)
        for deleting in (False, True):
            found = self._partitions.cache.get((table.manifest_list, partition, deleting))
            self._partitions.cache.evict((table.manifest_list, partition, deleting))
            if found is not None:
                self._forget_files(found.files)

    def _forget_files(self, files: Files) -> None:
        for location, start in zip(files.locations, files.blob_start.tolist(), strict=True):
            self._footers.cache.evict(location)
            self._deletes.cache.evict(_deletes_key(location, start))

    # Loading

    async def _load_files(self, table: Table, partition: int, deleting: bool) -> PartitionFiles:
        assert table.manifest_list is not None
        listed = await self._lists.get(table.manifest_list, lambda: self._load_list(table))
        wanted = [
            one
            for one in listed
            if (one.content != DATA) == deleting and one.partition_lo <= partition <= one.partition_hi
        ]
        found = await together([self._manifest(one) for one in wanted], READS_MAX)
        files = await self._run(lambda: joined([_of_partition(files, partition) for files in found]))
        return by_offset(files if deleting else await self._bounded(files))

    async def _bounded(self, files: Files) -> Files:
        """Some writers say nothing of nested columns in the manifest: what their footers say is as good."""
        unknown = np.flatnonzero((files.offset_lo == LOWEST) | (files.offset_hi == HIGHEST)).tolist()
        if not unknown:
            return files
        footers = await together([self.footer(files, place) for place in unknown], READS_MAX)
        return files.with_bounds(unknown, [footer.bounds for footer in footers])

    async def _manifest(self, manifest: Manifest) -> Files:
        return await self._manifests.get(manifest.location, lambda: self._load_manifest(manifest))

    async def _load_list(self, table: Table) -> list[Manifest]:
        location = table.manifest_list
        assert location is not None
        body = await self._get(location)
        return await self._run(lambda: read_list(body, table.places, location))

    async def _load_manifest(self, manifest: Manifest) -> Files:
        body = await self._get(manifest.location)
        return await self._run(lambda: read_files(body, manifest))

    async def _load_footer(self, files: Files, place: int) -> Footer:
        location, file_size = files.locations[place], int(files.sizes[place])
        size = min(file_size, TAIL_BYTES)
        (tail,) = await self.fetch(location, [Span(file_size - size, file_size)])
        needed = footer_size(tail, location)
        if needed > file_size:
            raise Corrupt(f"{location} is damaged: it says that its footer is larger than the file")
        if needed > len(tail):
            (tail,) = await self.fetch(location, [Span(file_size - needed, file_size)])
        footer = await self._run(lambda: read_footer(tail, file_size, location))
        rows, low, high = (int(fact[place]) for fact in (files.rows, files.offset_lo, files.offset_hi))
        check_footer(footer, rows, low, high)
        return footer

    async def _deleted(self, table: Table, partition: int, files: Files, place: int) -> Longs | None:
        found = (await self.files(table, partition, deleting=True)).files
        location = files.locations[place]
        some = [
            (await self._load_deletes(found, one)).get(location)
            for one in deletes.about(found, location, int(files.sequences[place]), partition)
        ]
        return deletes.joined([places for places in some if places is not None])

    async def _load_deletes(self, found: Files, place: int) -> dict[str, Longs]:
        key = _deletes_key(found.locations[place], int(found.blob_start[place]))
        return await self._deletes.get(key, lambda: self._read_deletes(found, place))

    async def _read_deletes(self, found: Files, place: int) -> dict[str, Longs]:
        location, about = found.locations[place], found.about[place]
        if found.is_parquet[place]:
            body = await self._get(location)
            return await self._run(lambda: deletes.read_positions(body, location))
        start, size = int(found.blob_start[place]), int(found.blob_size[place])
        if about is None or not size:
            raise Corrupt(f"{location} is neither a Parquet file of deleted positions nor a deletion vector")
        (blob,) = await self.fetch(location, [Span(start, start + size)])
        return {about: await self._run(lambda: deletes.read_vector(blob, location))}

    async def _get(self, location: str) -> Buffer:
        return await self._store.get(self._key(location))

    def _key(self, location: str) -> str:
        try:
            return self._locations.key_of(location)
        except Rejected as error:
            raise Corrupt(f"a file of the table cannot be read: {error}") from error


# Decisions


def by_offset(files: Files) -> PartitionFiles:
    files = files.picked(np.argsort(files.offset_lo, kind="stable"))
    return PartitionFiles(files, np.maximum.accumulate(files.offset_hi) if len(files) else files.offset_hi)


def _of_partition(files: Files, partition: int) -> Files:
    near = (files.partition_lo <= partition) & (files.partition_hi >= partition)
    return files if near.all() else files.picked(np.flatnonzero(near))


def cluster(lows: Longs, highs: Longs, reach: Longs, offset: int) -> list[int]:
    """Of things sorted by their lower bounds: the first that reaches `offset`, and all that overlap it, or each other.

    Where files were written by offset, that is one. Sorted by something else, each of them may have any offset.
    """
    first = int(np.searchsorted(reach, offset))
    if first == len(lows):
        return []
    end, last = int(highs[first]), first + 1
    while last < len(lows) and lows[last] <= end:
        end = max(end, int(highs[last]))
        last += 1
    return [place for place in range(first, last) if highs[place] >= offset]


class Segment(NamedTuple):
    """What is looked at together: all rows with offsets in the span are in these files."""

    places: list[int]
    span: Span


def segment(lows: Longs, highs: Longs, reach: Longs, offset: int, count: int) -> Segment:
    """Files that have what follows `offset`, and overlap. Where a table is partitioned, files overlap in a chain that
    may be as long as the table: then some of them, from where a file starts to where another does, so that all who read
    thereabouts look at the same."""
    places = cluster(lows, highs, reach, offset)
    if not places:
        return Segment([], Span(offset, offset))
    if len(places) <= count:
        return Segment(places, Span(int(lows[places[0]]), max(int(highs[place]) for place in places) + 1))
    starts = lows[places]
    at = max(0, int(np.searchsorted(starts, offset, side="right")) - 1)
    low = int(starts[at])
    there = [place for place in places[: at + 1] if highs[place] >= low]
    behind = at + 1 + max(1, count - len(there))
    if behind >= len(places):
        return Segment([*there, *places[at + 1 :]], Span(low, max(int(highs[place]) for place in places) + 1))
    return Segment([*there, *places[at + 1 : behind]], Span(low, int(starts[behind])))


def window(low: int, high: int, size: int, offset: int, bytes_max: int) -> Span:
    """Offsets that are read together, so that about `bytes_max` of `size` bytes with offsets from `low` to `high` come
    out: one of several of equal width, the same ones for all who read."""
    if size <= bytes_max:
        return Span(low, high + 1)
    width = max(1, (high + 1 - low) * bytes_max // size)
    start = low + (max(offset, low) - low) // width * width
    return Span(start, min(start + width, high + 1))


def _deletes_key(location: str, start: int) -> str:
    """Several deletion vectors may lie in one file."""
    return f"{location}@{start}"


def _list_size(listed: list[Manifest]) -> int:
    return 400 * (len(listed) + 1)


def _deletes_size(found: dict[str, Longs]) -> int:
    return 400 + sum(400 + places.nbytes for places in found.values())
