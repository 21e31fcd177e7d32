"""Rows divided by what the table is partitioned by, and sorted as it is sorted: between decode.py and parquet.py.

    rows of one log, by offset  →  windows of some MiB  →  groups of equal partition values, sorted  →  files of each

Where rows are by offset, a file goes on from window to window until it is large enough, or until there are too many at
once. Where they are sorted by something else, a file ends with its window: it is sorted as a whole, and a consumer who
wants the rows by offset has to read no more than a window of them. A log whose rows are of very many partitions gets
only so many files in one move: the rest goes into one that is partitioned by the stream's partition alone.

No Python object per row. Runs in a Spark worker.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.catalog.file_layout import Cut, FileLayout, SortKey
from lakestream.catalog.partition_values import decimal_size
from lakestream.catalog.topic_layout import OFFSET_ID, PARTITION_ID, STREAM
from lakestream.data.table.arrow import PLAIN_COLUMNS
from lakestream.data.table.compiled import Longs
from lakestream.data.table.leaves import leaves_of
from lakestream.data.table.located import numbers
from lakestream.data.table.parquet import (
    OpenFile,
    ParquetSettings,
    Stamp,
    WrittenFile,
    row_groups,
    row_sizes,
    write_parquet,
)
from lakestream.data.table.picking import picked
from lakestream.data.table.transforms import decimal_words, transformed
from lakestream.errors import Corrupt
from lakestream.model import MiB
from lakestream.schemas.columns import Column, Fields
from lakestream.schemas.shape import Kind, Primitive
from lakestream.schemas.terms import IDENTITY

WINDOW_BYTES: Final = 64 * MiB
"""Of rows that are divided, or sorted, at once; not compressed."""
FILES_MAX: Final = 100
"""That are being written at a time: the largest is closed when there is one more."""
PARTITIONS_MAX: Final = 1_000
"""Of one move."""

Values: TypeAlias = tuple[Any, ...]


def write_files(
    batches: Iterable[Any],
    location_of: Callable[[int], str],
    settings: ParquetSettings,
    columns: Sequence[Column],
    layout: FileLayout,
    partition: int,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[WrittenFile]:
    """Files of the rows (of these columns, of one partition of the stream, by ascending offset), laid out like that."""
    cuts = [cut for cut in layout.cuts if not _is_partition(cut)]
    if not cuts and not layout.sort:
        stamp = Stamp(layout.spec_id, tuple(partition for _ in layout.cuts), layout.order_id)
        yield from write_parquet(batches, location_of, settings, columns, stamp)
        return
    yield from _Splitting(location_of, settings, tuple(columns), layout, partition).files(batches, window_bytes)


def write_sorted(
    batches: Sequence[Any],
    location_of: Callable[[int], str],
    settings: ParquetSettings,
    columns: Sequence[Column],
    stamp: Stamp,
) -> Iterator[WrittenFile]:
    """Files of rows that are of one partition of the table already, however they are sorted now."""
    table = pa.Table.from_batches(batches)
    offsets = _offsets(table)
    places = np.lexsort((offsets, *sort_keys(table, tuple(columns), stamp.sort)))
    if len(places) > 1 and (np.diff(places) != 1).any():
        table = picked(table, places)
    rows = table.cast(leaves_of(tuple(columns)).schema).to_batches()
    yield from write_parquet([batch for batch in rows if batch.num_rows], location_of, settings, columns, stamp)


class _Splitting:
    def __init__(
        self,
        location_of: Callable[[int], str],
        settings: ParquetSettings,
        columns: tuple[Column, ...],
        layout: FileLayout,
        partition: int,
    ) -> None:
        self._location_of = location_of
        self._settings = settings
        self._columns = columns
        self._leaves = leaves_of(columns)
        self._layout = layout
        self._partition = partition
        self._open: dict[Stamp, OpenFile] = {}
        self._seen: set[Values] = set()
        self._offset_before = -1

    def files(self, batches: Iterable[Any], window_bytes: int) -> Iterator[WrittenFile]:
        for window in self._windows(batches, window_bytes):
            for stamp, rows in self._divided(window):
                yield from self._written(stamp, rows)
            if self._layout.sort:
                yield from self._closed(0, 0)
        yield from self._closed(0, 0)

    def _windows(self, batches: Iterable[Any], bytes_max: int) -> Iterator[Any]:
        pending: list[Any] = []
        size = 0
        for batch in batches:
            pending.append(batch)
            size += int(row_sizes(batch, self._leaves).sum())
            if size >= bytes_max:
                yield pa.Table.from_batches(pending)
                pending, size = [], 0
        if pending:
            yield pa.Table.from_batches(pending)

    def _divided(self, window: Any) -> Iterator[tuple[Stamp, Any]]:
        """The rows of each partition, in the order that its file has."""
        offsets = _offsets(window)
        self._check(offsets)
        codes, groups = grouped(window, self._columns, self._layout.cuts, self._partition)
        stamps: dict[Stamp, int] = {}
        # Several groups may have one stamp: what is too many shares a file, and is in order there, too.
        codes = np.array([stamps.setdefault(self._stamp(values), len(stamps)) for values in groups], np.int64)[codes]
        keys = sort_keys(window, self._columns, self._layout.sort)
        places = np.lexsort((offsets, *keys, codes)) if keys else np.argsort(codes, kind="stable")
        in_order = bool((np.diff(places) == 1).all())
        rows = (window if in_order else picked(window, places)).cast(self._leaves.schema)
        borders = np.searchsorted(codes[places], np.arange(len(stamps) + 1))
        for code, stamp in enumerate(stamps):
            yield stamp, rows.slice(borders[code], borders[code + 1] - borders[code])

    def _check(self, offsets: Longs) -> None:
        """What comes in ascends, and the commit believes it: what comes out no longer shows it."""
        if len(offsets) and (offsets[0] <= self._offset_before or (np.diff(offsets) <= 0).any()):
            raise Corrupt(f"rows of partition {self._partition} do not ascend behind offset {self._offset_before}")
        self._offset_before = int(offsets[-1]) if len(offsets) else self._offset_before

    def _stamp(self, values: Values) -> Stamp:
        layout = self._layout
        if values not in self._seen and len(self._seen) >= PARTITIONS_MAX and layout.has_rest:
            return Stamp(None, (), layout.order_id, layout.sort)
        self._seen.add(values)
        return Stamp(layout.spec_id, values, layout.order_id, layout.sort)

    def _written(self, stamp: Stamp, rows: Any) -> Iterator[WrittenFile]:
        for group in row_groups(rows.to_batches(), self._settings.group_bytes_max, self._leaves):
            file = self._open.get(stamp)
            if file is None:
                yield from self._closed(FILES_MAX - 1, self._settings.file_bytes_max)
                file = self._open[stamp] = OpenFile(group, self._settings, self._leaves, stamp)
            file.write(group)
            if file.size >= self._settings.file_bytes_max:
                yield self._open.pop(stamp).close(self._location_of)

    def _closed(self, files_max: int, bytes_max: int) -> Iterator[WrittenFile]:
        """The largest, until no more are open than that."""
        size = sum(file.size for file in self._open.values())
        while self._open and (len(self._open) > files_max or size > bytes_max):
            stamp = max(self._open, key=lambda one: self._open[one].size)
            size -= self._open[stamp].size
            yield self._open.pop(stamp).close(self._location_of)


# Groups


def grouped(
    rows: Any, columns: tuple[Column, ...], cuts: Sequence[Cut], partition: int
) -> tuple[NDArray[np.int64], list[Values]]:
    """Of each row, which group it is of; of each group, what its rows have in common."""
    codes = np.zeros(len(rows), np.int64)
    groups: list[Values] = [()]
    for cut in cuts:
        if _is_partition(cut):
            groups = [(*values, partition) for values in groups]
            continue
        own, values_of = _coded(rows, columns, cut)
        codes, groups = _joined(codes * len(values_of) + own, groups, values_of)
    return codes, groups


def _coded(rows: Any, columns: tuple[Column, ...], cut: Cut) -> tuple[NDArray[np.int64], list[Any]]:
    coded = _cut(rows, columns, cut).dictionary_encode(null_encoding="encode")
    return coded.indices.to_numpy(zero_copy_only=False).astype(np.int64), _values(coded.dictionary, cut.result)


def _joined(
    joined: NDArray[np.int64], groups: Sequence[Values], values_of: Sequence[Any]
) -> tuple[NDArray[np.int64], list[Values]]:
    """Groups of groups, numbered anew: few of all that could be are there."""
    coded = pa.array(joined).dictionary_encode()
    found: dict[Values, int] = {}
    numbers_of = [
        found.setdefault((*groups[one // len(values_of)], values_of[one % len(values_of)]), len(found))
        for one in coded.dictionary.to_pylist()
    ]
    return np.array(numbers_of, np.int64)[coded.indices.to_numpy(zero_copy_only=False)], list(found)


def _values(distinct: Any, kind: Primitive) -> list[Any]:
    """As manifests keep them."""
    if kind.kind is not Kind.DECIMAL:
        # One NaN is as good as another, and the same.
        return [math.nan if value != value else value for value in distinct.to_pylist()]
    size, valid = decimal_size(kind.precision), distinct.is_valid().to_pylist()
    raw = decimal_words(distinct).tobytes()
    unscaled = [int.from_bytes(raw[at : at + 16], "little", signed=True) for at in range(0, len(raw), 16)]
    return [
        number.to_bytes(size, "big", signed=True) if there else None
        for number, there in zip(unscaled, valid, strict=True)
    ]


def _is_partition(cut: Cut) -> bool:
    """The same for all rows of a log."""
    return cut.source_id == PARTITION_ID and cut.transform == IDENTITY


# Orders


def sort_keys(rows: Any, columns: tuple[Column, ...], sort: Sequence[SortKey]) -> list[NDArray[np.int64]]:
    """For `np.lexsort`: numbers that ascend as the rows are to, the last key first."""
    keys: list[NDArray[np.int64]] = []
    for one in reversed(sort):
        values = _cut(rows, columns, one.cut)
        ranks = _ranks(values, one.cut.result)
        keys.append(~ranks if one.is_descending else ranks)
        if values.null_count:
            nulls = np.asarray(values.is_null()).astype(np.int64)
            keys[-1] = np.where(nulls, 0, keys[-1])
            keys.append(-nulls if one.nulls_first else nulls)
    return keys


def _ranks(values: Any, kind: Primitive) -> NDArray[np.int64]:
    """Numbers that are ordered as Iceberg orders the values; of nulls anything."""
    match kind.kind:
        case Kind.FLOAT | Kind.DOUBLE:
            return _float_ranks(values)
        case Kind.STRING | Kind.BINARY | Kind.FIXED | Kind.UUID | Kind.DECIMAL:
            ranks: NDArray[np.int64] = (
                pc.rank(values, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
            )
            return ranks
        case _:
            return numbers(values, 0)


def _float_ranks(values: Any) -> NDArray[np.int64]:
    """By their bits: -NaN, -Infinity, …, -0, 0, …, Infinity, NaN."""
    bits = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False).view(np.int64)
    ranks: NDArray[np.int64] = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
    return ranks


# Columns


def _cut(rows: Any, columns: tuple[Column, ...], cut: Cut) -> Any:
    """One column of a table, transformed, without chunks. What rows of these columns do not have is null."""
    path = _path(columns, cut.source_id)
    if path is None:
        return pa.nulls(len(rows), pa.int64())
    parts = []
    for chunk in rows.column(path[0]).chunks:
        found = pc.struct_field(chunk, path[1:]) if len(path) > 1 else chunk
        parts.append(transformed(found, cut.kind, cut.transform))
    return pa.chunked_array(parts).combine_chunks()


def _path(columns: Sequence[Column], field_id: int) -> list[int] | None:
    for place, column in enumerate(columns):
        if column.field_id == field_id:
            return [place]
        if isinstance(column.type, Fields) and (inner := _path(column.type.fields, field_id)) is not None:
            return [place, *inner]
    return None


def _offsets(rows: Any) -> Longs:
    chunks = rows.column(STREAM).chunks
    none = np.empty(0, np.int64)
    return np.concatenate([none, *(numbers(chunk.field("offset"), -1) for chunk in chunks)])


assert _path(PLAIN_COLUMNS, OFFSET_ID) is not None, "whatever a table has, it has the stream's own"
