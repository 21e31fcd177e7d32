"""Reads row groups of Parquet files as rows of the table's layout. Blocks: runs in threads, mostly without the GIL.

Before: parquet_footer.py.  After: arrow/batch_encoder.py.  Columns are located by field id, so engines may have renamed
or moved them; columns that engines added are skipped.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.catalog.topic_table.columns import (
    COLUMNS,
    FIRST_FREE_ID,
    OFFSET_ID,
    PARTITION_ID,
    RAW_VALUE_ID,
    SCHEMA_ID,
    STREAM,
    VALUE,
)
from lakestream.data.table.arrow.byte_spans import ByteSpans, numbers
from lakestream.data.table.arrow.projection import picked
from lakestream.data.table.arrow.row_arrays import Rows, joined, rows_of_batch
from lakestream.data.table.arrow.types import SCHEMA, STREAM_TYPE
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.table.read.manifest_index import HIGHEST, LOWEST
from lakestream.data.table.read.parquet_footer import BAD_PARQUET, Footer, RowGroup
from lakestream.errors import Corrupt
from lakestream.model import Buffer, MiB, Span
from lakestream.schemas.writer_schema import WriterSchema

VALUE_ID, STREAM_ID = COLUMNS[0].field_id, COLUMNS[1].field_id
_IDS: Final = {field.name: field.field_id for field in COLUMNS[1].fields}
_TIME_IDS: Final = (OFFSET_ID, _IDS["timestamp"], _IDS["timestamp_ms"])
_RECORD_IDS: Final = (VALUE_ID, *_TIME_IDS, _IDS["timestamp_type"], _IDS["key"], _IDS["headers"])
_NEEDED: Final = (STREAM_ID, PARTITION_ID, *_RECORD_IDS)
BATCH_ROWS: Final = 65_536
BATCH_VALUES: Final = 8 * MiB
"""Values of the columns of a batch, on average: rows with long lists, or with very many columns, are read in smaller
batches."""
_NO_WRITERS: Final[Mapping[int, WriterSchema]] = {}


class RowGroupPart(NamedTuple):
    """One row group, and the rows of it that are read."""

    footer: Footer
    group: RowGroup
    partition: int | None
    """The partition to read; None if all rows are of that partition."""
    deleted: Longs | None
    """Positions of deleted rows in the file, ascending."""
    is_typed: bool = False
    """Whether the table has, or had, converted values: a file may then lack the column of bytes."""


def record_columns(part: RowGroupPart, writers: Mapping[int, WriterSchema] = _NO_WRITERS) -> dict[int, tuple[str, ...]]:
    """Returns the columns that make rows records: with the columns of these writer schemas if the group has any."""
    return _columns(part, (*_RECORD_IDS, *_typed_ids(part.group, writers)))


def _typed_ids(group: RowGroup, writers: Mapping[int, WriterSchema]) -> tuple[int, ...]:
    if group.writers is None:
        return ()
    low, high = group.writers
    bounds = (one for number, writer in writers.items() if low <= number <= high for one in writer.columns)
    return (SCHEMA_ID, RAW_VALUE_ID, *sorted({bound.field_id for bound in bounds if bound is not None}))


def time_columns(part: RowGroupPart) -> dict[int, tuple[str, ...]]:
    return _columns(part, _TIME_IDS)


def _columns(part: RowGroupPart, ids: tuple[int, ...]) -> dict[int, tuple[str, ...]]:
    paths = part.footer.paths
    may_lack = (VALUE_ID,) if part.is_typed or part.group.writers is not None else ()
    if missing := [field_id for field_id in _NEEDED if field_id not in paths and field_id not in may_lack]:
        raise Corrupt(f"{part.footer.location} has no column with field id {missing[0]}: its rows are not records")
    ids = ids if part.partition is None else (*ids, PARTITION_ID)
    return {field_id: paths[field_id] for field_id in ids if field_id in paths}


class PartialFile(io.RawIOBase):
    """A file of which some byte ranges are in memory, for Arrow's Parquet reader."""

    def __init__(self, size: int, spans: Sequence[Span], parts: Sequence[Buffer]) -> None:
        self._size = size
        self._parts = [(span, memoryview(part)) for span, part in zip(spans, parts, strict=True)]
        self._at = 0

    def seek(self, to: int, whence: int = io.SEEK_SET) -> int:
        self._at = to + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> Any:
        """Reads without a copy."""
        start = self._at
        for span, part in self._parts:
            if span.start <= start < span.end:
                data = part[start - span.start :][: size if size >= 0 else None]
                self._at += len(data)
                return data
        if not size or start >= self._size:
            return b""
        raise ValueError(f"byte {start} is in none of the column chunks that its footer lists")


def read_rows(
    part: RowGroupPart,
    columns: Mapping[int, tuple[str, ...]],
    spans: Sequence[Span],
    bodies: Sequence[Buffer],
    window: Span,
    writers: Mapping[int, WriterSchema] = _NO_WRITERS,
) -> list[Rows]:
    """Returns the rows with offsets in the window, as records.

    Raises Corrupt with the name of the file; UnknownWriterSchema if `writers` lacks a writer schema of the rows.
    """
    parts = []
    for batch, raw_batch, selected in _read(part, columns, spans, bodies, window):
        typed = (
            None if part.group.writers is None else _typed(batch, raw_batch, selected, columns, writers, part.footer)
        )
        rows = rows_of_batch(batch, part.footer.location, typed)
        parts.append(rows if selected is None else rows.picked(selected))
    return parts


def _typed(
    batch: Any,
    raw_batch: Any,
    selected: Longs | None,
    columns: Mapping[int, tuple[str, ...]],
    writers: Mapping[int, WriterSchema],
    footer: Footer,
) -> ByteSpans:
    """Returns the values of rows of tables with converted values."""
    # Imported late: most tables have bytes only, and do not need its kernels.
    from lakestream.data.typed.columns_to_values import TypedRows, columns_to_values

    stream = batch.column(STREAM)
    own = {
        field_id: raw_batch.column(path[0])
        for field_id, path in columns.items()
        if field_id >= FIRST_FREE_ID and len(path) == 1 and path[0] in raw_batch.schema.names
    }
    counts = None
    if selected is not None:
        counts = np.zeros(len(batch), np.bool_)
        counts[selected] = True
    offsets, numbers_of = numbers(stream.field("offset"), -1), numbers(stream.field("schema_id"), 0)
    raw = ByteSpans.of(stream.field("value"))
    return columns_to_values(TypedRows(own, offsets, numbers_of, raw, counts), writers, footer.location)


def read_batches(
    part: RowGroupPart, columns: Mapping[int, tuple[str, ...]], spans: Sequence[Span], bodies: Sequence[Buffer]
) -> list[tuple[Any, Any, Longs | None]]:
    """Returns record batches in the table's layout, each with the batch as it is in the file, and the selected rows;
    None if all are. For rewrites into another file."""
    return list(_read(part, columns, spans, bodies, Span(0, HIGHEST)))


def read_times(
    part: RowGroupPart, columns: Mapping[int, tuple[str, ...]], spans: Sequence[Span], bodies: Sequence[Buffer]
) -> list[tuple[Longs, Longs]]:
    """Returns offsets and timestamps in milliseconds. A row without a timestamp has LOWEST."""
    parts = []
    for batch, _, selected in _read(part, columns, spans, bodies, Span(0, HIGHEST)):
        stream = batch.column(STREAM)
        times = stream.field("timestamp")
        offsets, millis = numbers(stream.field("offset"), -1), numbers(times, 0) // 1000
        if times.null_count:
            null = np.asarray(times.is_null())
            millis[null] = numbers(stream.field("timestamp_ms"), LOWEST)[null]
        parts.append((offsets, millis) if selected is None else (offsets[selected], millis[selected]))
    return parts


def sorted_rows(parts: list[Rows]) -> Rows:
    """Returns all rows by ascending offset."""
    rows = joined(parts)
    if (np.diff(rows.offsets) <= 0).any():
        rows = rows.picked(np.argsort(rows.offsets, kind="stable"))
    return rows


def distinct_rows(rows: Rows) -> Rows:
    """Returns sorted rows without those that have the offset of the previous row. An engine that updates offsets can
    commit such rows, and consumers of the partition must not fail on them forever."""
    is_repeated = np.diff(rows.offsets) == 0
    return rows.picked(np.flatnonzero(np.append(True, ~is_repeated))) if is_repeated.any() else rows


def _read(
    part: RowGroupPart,
    columns: Mapping[int, tuple[str, ...]],
    spans: Sequence[Span],
    bodies: Sequence[Buffer],
    window: Span,
) -> Iterator[tuple[Any, Any, Longs | None]]:
    """Yields record batches in the table's layout, each with the batch as it is in the file, and the selected rows;
    None if all are."""
    group = part.group
    try:
        file = pq.ParquetFile(
            pa.PythonFile(PartialFile(part.footer.file_size, spans, bodies), mode="r"),
            metadata=part.footer.metadata,
            pre_buffer=False,
            page_checksum_verification=True,
        )
        names = [".".join(path) for path in columns.values()]
        at = group.row_start
        rows_max = max(1, min(BATCH_ROWS, BATCH_VALUES * group.rows // max(1, group.values)))
        for batch in file.iter_batches(rows_max, [group.number], names, use_threads=False):
            rows = _in_table_layout(batch, part.footer)
            selected = _selected(rows, part, _deleted_in(part.deleted, at, at + len(batch)), window)
            at += len(batch)
            lacks_offsets = rows.column(STREAM).field("offset").null_count > 0
            if selected is not None and selected.size and (selected.size * 2 < len(batch) or lacks_offsets):
                # Most rows are not selected: the few that are must not keep the whole batch in memory.
                batch, selected = picked(batch, selected), None
                rows = _in_table_layout(batch, part.footer)
            if selected is None or selected.size:
                yield rows, batch, selected
    except BAD_PARQUET as error:
        raise Corrupt(f"{part.footer.location} is damaged ({error}); restore it from a backup") from error
    if at != group.row_start + group.rows:
        raise Corrupt(f"{part.footer.location} has another row count than its footer; restore it from a backup")


def _deleted_in(deleted: Longs | None, start: int, end: int) -> Longs | None:
    if deleted is None:
        return None
    first, last = np.searchsorted(deleted, (start, end))
    return deleted[first:last] - start if last > first else None


def _selected(rows: Any, part: RowGroupPart, deleted: Longs | None, window: Span) -> Longs | None:
    """Returns the positions of the selected rows, or None if all are."""
    column, group = rows.column(STREAM).field("offset"), part.group
    offsets = numbers(column, group.offset_lo)
    if ((offsets < group.offset_lo) | (offsets > group.offset_hi)).any():
        # Rows are located by these bounds: if they are wrong here, other rows may have been skipped.
        raise Corrupt(f"{part.footer.location} has offsets outside of its footer's bounds; restore it from a backup")
    keep: NDArray[np.bool_] = (offsets >= window.start) & (offsets < window.end)
    if column.null_count:
        keep &= np.asarray(column.is_valid())  # rows that an engine added without an offset are not records
    if part.partition is not None:
        keep &= numbers(rows.column(STREAM).field("partition"), -1) == part.partition
    if deleted is not None:
        keep[deleted] = False
    return None if keep.all() else np.flatnonzero(keep)


def _in_table_layout(batch: Any, footer: Footer) -> Any:
    """Returns the rows with the names and order of the table's layout. Columns that were not read are null."""
    paths = footer.paths
    stream = batch.column(paths[STREAM_ID][0])
    fields = [_child(stream, field, paths.get(_IDS[field.name]), paths) for field in STREAM_TYPE]
    if stream.null_count:
        place = STREAM_TYPE.get_field_index("offset")
        fields[place] = pc.if_else(stream.is_valid(), fields[place], pa.scalar(None, fields[place].type))
    stream_array = pa.StructArray.from_arrays(fields, names=[field.name for field in STREAM_TYPE])
    value = paths.get(VALUE_ID, ("",))[0]
    has_value = value in batch.schema.names  # it may not have been read
    values = batch.column(value) if has_value else pa.nulls(len(batch), SCHEMA.field(VALUE).type)
    return pa.RecordBatch.from_arrays([values, stream_array], names=[VALUE, STREAM])


def _child(stream: Any, field: Any, path: tuple[str, ...] | None, paths: Mapping[int, tuple[str, ...]]) -> Any:
    if path is None or stream.type.get_field_index(path[-1]) < 0:
        return pa.nulls(len(stream), field.type)  # it was not read
    child = stream.field(path[-1])
    return _headers(child, paths) if field.name == "headers" else child


def _headers(lists: Any, paths: Mapping[int, tuple[str, ...]]) -> Any:
    """Returns the headers with the field names of the table's layout."""
    column = next(field for field in COLUMNS[1].fields if field.name == "headers")
    kind = lists.type
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return lists  # row_arrays.py raises for it
    entries = lists.values
    names = {part.name: paths.get(part.field_id, ("",))[-1] for part in column.fields}
    if all(layout_name == file_name for layout_name, file_name in names.items()):
        return lists
    parts = [
        entries.field(file_name)
        if kind.value_type.get_field_index(file_name) >= 0
        else pa.nulls(len(entries), pa.binary())
        for file_name in names.values()
    ]
    renamed = pa.StructArray.from_arrays(parts, names=list(names))
    valid = lists.is_valid() if lists.null_count else None
    mask = pa.array(~np.asarray(valid)) if valid is not None else None
    return pa.ListArray.from_arrays(lists.offsets, renamed, mask=mask)
