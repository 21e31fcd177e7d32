"""Splits rows by the table's partition spec, and sorts them by its sort order: between batch_decoder.py and
parquet_writer.py.

    rows of one log, by offset  →  windows of some MiB  →  groups of equal partition values, sorted  →  files of each

If rows are sorted by offset, a file spans windows until it is large enough, or until too many files are open. With any
other sort order, a file ends with its window: it is sorted as a whole, and a consumer that reads rows by offset has to
read only one window of them. The number of partitions per move is limited: the rows of all others are written to one
file that is partitioned by the stream's partition only.

No Python object per row. Runs in a Spark worker.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.catalog.manifests.partition_values import decimal_size
from lakestream.catalog.topic_table.columns import OFFSET_ID, PARTITION_ID, STREAM
from lakestream.catalog.topic_table.file_layout import FileLayout, SortKey, TransformedColumn
from lakestream.data.table.arrow.byte_spans import numbers
from lakestream.data.table.arrow.projection import picked
from lakestream.data.table.arrow.types import PLAIN_COLUMNS
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.table.write.parquet_columns import leaves_of
from lakestream.data.table.write.parquet_writer import (
    OpenFile,
    ParquetSettings,
    Stamp,
    WrittenFile,
    row_groups,
    row_sizes,
    write_parquet,
)
from lakestream.data.table.write.partition_transforms import transformed
from lakestream.errors import Corrupt
from lakestream.model import MiB
from lakestream.schemas.columns import Column, Fields
from lakestream.schemas.layout_terms import IDENTITY
from lakestream.schemas.types import Kind, Primitive

WINDOW_BYTES: Final = 64 * MiB
"""Bytes of rows that are split or sorted at once; not compressed."""
FILES_MAX: Final = 100
"""Open files: the largest is closed before another is opened."""
PARTITIONS_MAX: Final = 1_000
"""Partitions of one move."""

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
    """Yields files of the rows, partitioned and sorted by `layout`. The rows have these columns, belong to one
    partition of the stream, and are sorted by offset."""
    cuts = [cut for cut in layout.cuts if not _is_stream_partition(cut)]
    if not cuts and not layout.sort:
        stamp = Stamp(layout.spec_id, tuple(partition for _ in layout.cuts), layout.order_id)
        yield from write_parquet(batches, location_of, settings, columns, stamp)
        return
    yield from _PartitionedWriter(location_of, settings, tuple(columns), layout, partition).files(batches, window_bytes)


def write_sorted(
    batches: Sequence[Any],
    location_of: Callable[[int], str],
    settings: ParquetSettings,
    columns: Sequence[Column],
    stamp: Stamp,
) -> Iterator[WrittenFile]:
    """Yields files, in the sort order of `stamp`, of rows that belong to one partition of the table, in any order."""
    table = pa.Table.from_batches(batches)
    offsets = _offsets(table)
    places = np.lexsort((offsets, *sort_keys(table, tuple(columns), stamp.sort)))
    if len(places) > 1 and (np.diff(places) != 1).any():
        table = picked(table, places)
    rows = table.cast(leaves_of(tuple(columns)).schema).to_batches()
    yield from write_parquet([batch for batch in rows if batch.num_rows], location_of, settings, columns, stamp)


class _PartitionedWriter:
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
            for stamp, rows in self._partitioned(window):
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

    def _partitioned(self, window: Any) -> Iterator[tuple[Stamp, Any]]:
        """Yields the rows of each partition, in the sort order of its file."""
        offsets = _offsets(window)
        self._check(offsets)
        codes, groups = grouped(window, self._columns, self._layout.cuts, self._partition)
        stamps: dict[Stamp, int] = {}
        # Several groups may have one stamp: those above the limit share a file, which is sorted, too.
        codes = np.array([stamps.setdefault(self._stamp(values), len(stamps)) for values in groups], np.int64)[codes]
        keys = sort_keys(window, self._columns, self._layout.sort)
        places = np.lexsort((offsets, *keys, codes)) if keys else np.argsort(codes, kind="stable")
        in_order = bool((np.diff(places) == 1).all())
        rows = (window if in_order else picked(window, places)).cast(self._leaves.schema)
        borders = np.searchsorted(codes[places], np.arange(len(stamps) + 1))
        for code, stamp in enumerate(stamps):
            yield stamp, rows.slice(borders[code], borders[code + 1] - borders[code])

    def _check(self, offsets: Longs) -> None:
        """Raises Corrupt unless offsets ascend. The commit relies on it, and sorted files no longer show it."""
        if len(offsets) and (offsets[0] <= self._offset_before or (np.diff(offsets) <= 0).any()):
            raise Corrupt(f"rows of partition {self._partition} do not ascend after offset {self._offset_before}")
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
        """Closes the largest files until no more than these files and bytes are open."""
        size = sum(file.size for file in self._open.values())
        while self._open and (len(self._open) > files_max or size > bytes_max):
            stamp = max(self._open, key=lambda one: self._open[one].size)
            size -= self._open[stamp].size
            yield self._open.pop(stamp).close(self._location_of)


# Groups


def grouped(
    rows: Any, columns: tuple[Column, ...], cuts: Sequence[TransformedColumn], partition: int
) -> tuple[NDArray[np.int64], list[Values]]:
    """Returns the group of each row, and the partition values of each group."""
    codes = np.zeros(len(rows), np.int64)
    groups: list[Values] = [()]
    for cut in cuts:
        if _is_stream_partition(cut):
            groups = [(*values, partition) for values in groups]
            continue
        own, values_of = _coded(rows, columns, cut)
        codes, groups = _joined(codes * len(values_of) + own, groups, values_of)
    return codes, groups


def _coded(rows: Any, columns: tuple[Column, ...], cut: TransformedColumn) -> tuple[NDArray[np.int64], list[Any]]:
    coded = _cut(rows, columns, cut).dictionary_encode(null_encoding="encode")
    return coded.indices.to_numpy(zero_copy_only=False).astype(np.int64), _values(coded.dictionary)


def _joined(
    joined: NDArray[np.int64], groups: Sequence[Values], values_of: Sequence[Any]
) -> tuple[NDArray[np.int64], list[Values]]:
    """Combines two groupings, and numbers only the combinations that occur."""
    coded = pa.array(joined).dictionary_encode()
    combined: dict[Values, int] = {}
    numbers_of = [
        combined.setdefault((*groups[one // len(values_of)], values_of[one % len(values_of)]), len(combined))
        for one in coded.dictionary.to_pylist()
    ]
    return np.array(numbers_of, np.int64)[coded.indices.to_numpy(zero_copy_only=False)], list(combined)


def _values(distinct: Any) -> list[Any]:
    """Returns values as manifests store them."""
    if not pa.types.is_decimal(distinct.type):
        # All NaNs are one value.
        return [math.nan if value != value else value for value in distinct.to_pylist()]
    size, raw = decimal_size(distinct.type.precision), memoryview(distinct.buffers()[1])[16 * distinct.offset :]
    return [
        int.from_bytes(raw[16 * place :][:16], "little", signed=True).to_bytes(size, "big", signed=True)
        if valid
        else None
        for place, valid in enumerate(distinct.is_valid().to_pylist())
    ]


def _is_stream_partition(cut: TransformedColumn) -> bool:
    """Returns whether it is the stream's partition, which is the same for all rows of a log."""
    return cut.source_id == PARTITION_ID and cut.transform == IDENTITY


# Orders


def sort_keys(rows: Any, columns: tuple[Column, ...], sort: Sequence[SortKey]) -> list[NDArray[np.int64]]:
    """Returns keys for `np.lexsort`: numbers in the sort order of the rows, the last key first."""
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
    """Returns numbers in Iceberg's order of the values. Those of nulls are arbitrary."""
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
    """Orders floats by their bits: -NaN, -Infinity, …, -0, 0, …, Infinity, NaN."""
    bits = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False).view(np.int64)
    ranks: NDArray[np.int64] = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
    return ranks


# Columns


def _cut(rows: Any, columns: tuple[Column, ...], cut: TransformedColumn) -> Any:
    """Returns one column of a table, transformed, without chunks. A column that the rows lack is null."""
    path = _path(columns, cut.source_id)
    if path is None:
        return pa.nulls(len(rows), pa.int64())
    parts = []
    for chunk in rows.column(path[0]).chunks:
        values = pc.struct_field(chunk, path[1:]) if len(path) > 1 else chunk
        parts.append(transformed(values, cut.kind, cut.transform))
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


assert _path(PLAIN_COLUMNS, OFFSET_ID) is not None, "every table has the stream's own columns"
