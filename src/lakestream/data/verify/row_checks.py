"""Reads rows from Parquet and records as Kafka serves them into one form, and compares them.

Used by snapshot_checks.py. Rows are read with pyarrow alone, not with the code with which brokers read history
(row_groups.py, batch_encoder.py): that code is checked here. Blocks: runs in threads. Memory: a row group at a time,
and the rows of one window.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from lakestream.catalog.topic_table.columns import COLUMNS, OFFSET_ID, PARTITION_ID, STREAM, VALUE
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.table.read.manifest_index import HIGHEST, LOWEST
from lakestream.data.table.read.parquet_footer import BAD_PARQUET, Footer
from lakestream.data.table.read.row_groups import PartialFile
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.data.verify.file_checks import Difference, FileContent
from lakestream.errors import Corrupt
from lakestream.model import Buffer, Span
from lakestream.records.file_region import BufferOrFile, as_bytes
from lakestream.schemas.value_format import ConversionErrorCounts

_STREAM_COLUMN: Final = COLUMNS[1]
_IDS: Final = {column.name: column.field_id for column in _STREAM_COLUMN.fields}
_HEADER_IDS: Final = {
    part.name: part.field_id for column in _STREAM_COLUMN.fields if column.name == "headers" for part in column.fields
}
RECORD_IDS: Final = (COLUMNS[0].field_id, *_IDS.values())
ROW_OFFSET_IDS: Final = (PARTITION_ID, OFFSET_ID)
_HEADER: Final = pa.struct([("key", pa.large_binary()), ("value", pa.large_binary())])
_BYTES: Final = pa.large_binary()
PLAIN: Final = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("timestamp_type", pa.int32()),
        ("key", _BYTES),
        ("value", _BYTES),
        ("headers", pa.list_(_HEADER)),
        ("is_typed", pa.bool_()),
    ]
)
"""A record as Kafka has it. A value that is stored in typed columns is only marked as present."""
BATCH_ROWS: Final = 65_536


class RowOffsets(NamedTuple):
    """Partition and offset of each row."""

    partitions: Longs
    offsets: Longs

    def content(self) -> FileContent:
        """Returns count and bounds of at least one row."""
        rows = self._with_offset()
        if not len(rows.offsets):
            return FileContent(len(self.offsets), None, None)
        bounds = [(int(column.min()), int(column.max())) for column in rows]
        return FileContent(len(self.offsets), *bounds)

    def _with_offset(self) -> "RowOffsets":
        """Returns the rows that have an offset."""
        has_offset = self.offsets >= 0
        return self if has_offset.all() else RowOffsets(self.partitions[has_offset], self.offsets[has_offset])

    @property
    def is_sorted(self) -> bool:
        """Whether rows of one partition are sorted by offset; True for several partitions."""
        rows = self._with_offset()
        return bool((np.diff(rows.offsets) > 0).all()) or len(np.unique(rows.partitions)) > 1


# Parquet


def footer_content(footer: Footer) -> FileContent:
    """Returns row count and bounds from the footer's statistics."""
    groups = [group for group in footer.groups if group.offset_lo <= group.offset_hi]
    lows, highs = ([getattr(group, name) for group in groups] for name in ("offset_lo", "offset_hi"))
    is_known = bool(lows) and LOWEST not in lows and HIGHEST not in highs
    return FileContent(footer.metadata.num_rows, None, (min(lows), max(highs)) if is_known else None)


def columns_to_read(footer: Footer, field_ids: Iterable[int]) -> dict[int, tuple[str, ...]]:
    """Returns the paths of columns by field id. Raises Corrupt if the file lacks partition or offset."""
    if missing := [field_id for field_id in ROW_OFFSET_IDS if field_id not in footer.paths]:
        raise Corrupt(f"{footer.location} has no column of field id {missing[0]}: its rows are not records")
    return {field_id: footer.paths[field_id] for field_id in field_ids if field_id in footer.paths}


class GroupBytes(NamedTuple):
    """Bytes of columns of a row group, as read from storage."""

    footer: Footer
    group: int
    columns: Mapping[int, tuple[str, ...]]
    spans: Sequence[Span]
    bodies: Sequence[Buffer]

    def batches(self) -> Iterator[Any]:
        footer = self.footer
        try:
            file = pq.ParquetFile(
                pa.PythonFile(PartialFile(footer.file_size, self.spans, self.bodies), mode="r"),
                metadata=footer.metadata,
                pre_buffer=False,  # or adjacent columns are requested as one range
                page_checksum_verification=True,
            )
            names = [".".join(path) for path in self.columns.values()]
            yield from file.iter_batches(BATCH_ROWS, [self.group], names, use_threads=False)
        except BAD_PARQUET as error:
            raise Corrupt(f"{footer.location} is damaged ({error}); restore it from a backup") from error


def read_row_offsets(read: GroupBytes) -> RowOffsets:
    parts = [_row_offsets(batch, read.footer.paths) for batch in read.batches()]
    none = np.empty(0, np.int64)
    return RowOffsets(*(np.concatenate([none, *(part[column] for part in parts)]) for column in (0, 1)))


def _row_offsets(batch: Any, paths: Mapping[int, tuple[str, ...]]) -> RowOffsets:
    stream = batch.column(paths[_STREAM_COLUMN.field_id][0])
    return RowOffsets(*(_numbers(_member(stream, paths.get(field_id)), -1) for field_id in ROW_OFFSET_IDS))


def read_records(read: GroupBytes, partition: int, window: Span, deleted: Longs) -> Any:
    """Reads the rows of a window that are not deleted, as `PLAIN`. `deleted` has positions in the file."""
    tables = []
    paths, at = read.footer.paths, read.footer.groups[read.group].row_start
    for batch in read.batches():
        rows = _row_offsets(batch, paths)
        keep = (rows.partitions == partition) & (rows.offsets >= window.start) & (rows.offsets < window.end)
        keep &= ~np.isin(np.arange(at, at + len(batch)), deleted)
        at += len(batch)
        if keep.any():
            tables.append(_plain(batch, paths).filter(pa.array(keep)))
    return pa.concat_tables([PLAIN.empty_table(), *tables])


def _plain(batch: Any, paths: Mapping[int, tuple[str, ...]]) -> Any:
    stream = batch.column(paths[_STREAM_COLUMN.field_id][0])
    value = paths.get(COLUMNS[0].field_id, ("",))[0]

    def member(name: str) -> Any:
        return _member(stream, paths.get(_IDS[name]))

    names = {name: paths.get(field_id, ("",))[-1] for name, field_id in _HEADER_IDS.items()}
    values = batch.column(value) if value in batch.schema.names else None
    key, plain, raw = (_bytes(column, len(batch)) for column in (member("key"), values, member("value")))
    return _table(
        _numbers(member("offset"), -1),
        _times(member("timestamp"), member("timestamp_ms"), len(batch)),
        _numbers(member("timestamp_type"), 0),
        key,
        pc.coalesce(raw, plain) if raw.null_count < len(raw) else plain,
        _headers(member("headers"), names, len(batch)),
        _typed(member("schema_id"), raw),
    )


def _typed(writers: Any, raw: Any) -> Any:
    """Returns which rows have their value in typed columns only."""
    if writers is None or writers.null_count == len(raw):
        return np.zeros(len(raw), np.bool_)
    return pc.and_(writers.is_valid(), raw.is_null())


def _member(stream: Any, path: tuple[str, ...] | None) -> Any:
    if path is None or stream.type.get_field_index(path[1]) < 0:
        return None
    return pc.struct_field(stream, path[1])


def _table(*columns: Any) -> Any:
    return pa.table([pa.array(column) if isinstance(column, np.ndarray) else column for column in columns], PLAIN)


def _numbers(column: Any, null: int) -> Any:
    return column.cast(pa.int64()).fill_null(null).to_numpy(zero_copy_only=False)


def _times(times: Any, far: Any, count: int) -> Any:
    if times is None:
        return _numbers(far, -1)
    micros = times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    milliseconds = np.floor_divide(micros.fill_null(0).to_numpy(zero_copy_only=False), 1000)
    if not micros.null_count:
        return milliseconds
    others = np.full(count, -1, np.int64) if far is None else _numbers(far, -1)
    return np.where(np.asarray(micros.is_null()), others, milliseconds)


def _bytes(column: Any, count: int) -> Any:
    if column is None:
        return pa.nulls(count, _BYTES)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.binary()).cast(_BYTES) if pa.types.is_string_view(column.type) else column.cast(_BYTES)


def _headers(lists: Any, names: Mapping[str, str], count: int) -> Any:
    """Returns the headers as binary keys and values. A key that is not UTF-8 is in a column of its own."""
    if lists is None:
        return pa.array([[]] * count, pa.list_(_HEADER))
    entries, kind = lists.values, lists.type.value_type

    def member(name: str) -> Any:
        exists = kind.get_field_index(names[name]) >= 0
        return _bytes(entries.field(names[name]) if exists else None, len(entries))

    columns = [pc.coalesce(member("key"), member("key_raw")), member("value")]
    headers = pa.StructArray.from_arrays(columns, fields=list(_HEADER))
    return pa.ListArray.from_arrays(lists.offsets.cast(pa.int32()), headers, type=pa.list_(_HEADER))


# Kafka


def served_records(batches: Sequence[tuple[int, list[BufferOrFile]]], partition: int, window: Span, name: str) -> Any:
    """Decodes batches as they are sent to consumers into `PLAIN`. Raises Corrupt if one is damaged or has another base
    offset.

    Unreadable batches in a log are compared as the rows that they become (unreadable_batches.py)."""
    sources = []
    for offset, pieces in batches:
        body = as_bytes(pieces)
        if int.from_bytes(body[:8], "big", signed=True) != offset:
            raise Corrupt(f"{name}: the record batch of offset {offset} has another base offset")
        sources.append(BatchSource.single(name, body, offset))
    paths = _OUR_PATHS
    rows_of_batches = decode(sources, partition, unreadable=ConversionErrorCounts())
    rows = pa.concat_tables([PLAIN.empty_table(), *(_plain(batch, paths) for batch in rows_of_batches)])
    offsets = offsets_of(rows)
    return rows.filter(pa.array((offsets >= window.start) & (offsets < window.end)))


_OUR_PATHS: Final = {
    COLUMNS[0].field_id: (VALUE,),
    _STREAM_COLUMN.field_id: (STREAM,),
    **{field_id: (STREAM, name) for name, field_id in _IDS.items()},
    **{field_id: (STREAM, "headers", name) for name, field_id in _HEADER_IDS.items()},
}


# Comparing


def compared(table: Any, served: Any) -> Difference:
    """Compares rows of the table and served records, both sorted by offset without duplicates."""
    table_offsets, served_offsets = offsets_of(table), offsets_of(served)
    not_served, not_in_table = np.setdiff1d(table_offsets, served_offsets), np.setdiff1d(served_offsets, table_offsets)
    one = table.filter(pa.array(np.isin(table_offsets, served_offsets))) if not_served.size else table
    other = served.filter(pa.array(np.isin(served_offsets, table_offsets))) if not_in_table.size else served
    one, other = _without_typed(one.combine_chunks(), other.combine_chunks())
    return Difference(
        int(not_served[0]) if not_served.size else None,
        int(not_in_table[0]) if not_in_table.size else None,
        _first_other(one, other),
    )


def _without_typed(table: Any, served: Any) -> tuple[Any, Any]:
    """Sets the same value on both sides where the table's is in typed columns and a value is served."""
    typed = table.column("is_typed")
    if not pc.any(typed).as_py():
        return table, served
    index, mark = PLAIN.get_field_index("value"), pa.scalar(b"", _BYTES)
    is_served = pc.and_(typed, served.column(index).is_valid())
    one, other = (
        side.set_column(index, PLAIN.field(index), pc.if_else(is_marked, mark, side.column(index)))
        for side, is_marked in ((table, typed), (served, is_served))
    )
    return one, other.set_column(PLAIN.get_field_index("is_typed"), PLAIN.field("is_typed"), typed)


def _first_other(one: Any, other: Any) -> int | None:
    """Finds the first offset with different rows, by bisection."""
    if one.equals(other):
        return None
    start, count = 0, len(one)
    while count > 1:
        half = count // 2
        if one.slice(start, half).equals(other.slice(start, half)):
            start, count = start + half, count - half
        else:
            count = half
    return int(offsets_of(one.slice(start, 1))[0])


def offsets_of(rows: Any) -> Longs:
    offsets: Longs = rows.column("offset").to_numpy()
    return offsets


class WindowRows(NamedTuple):
    """The rows of one window."""

    rows: Any
    """Sorted by offset."""
    duplicate: tuple[int, str, str] | None
    """A duplicated offset, and the files that have it."""


def window_rows(parts: Sequence[tuple[str, Any]]) -> WindowRows:
    """Joins the rows of each file and sorts them by offset."""
    rows = pa.concat_tables([PLAIN.empty_table(), *(part for _, part in parts)])
    names = [name for name, _ in parts]
    file_of = np.repeat(np.arange(len(parts)), [len(part) for _, part in parts])
    offsets = offsets_of(rows)
    order = np.argsort(offsets, kind="stable")
    again = np.flatnonzero(np.diff(offsets[order]) == 0)
    duplicate = None
    if again.size:
        one, other = order[again[0]], order[again[0] + 1]
        duplicate = int(offsets[one]), names[file_of[one]], names[file_of[other]]
    is_sorted = len(order) < 2 or bool((np.diff(order) > 0).all())
    return WindowRows(rows if is_sorted else rows.take(pa.array(order)), duplicate)
