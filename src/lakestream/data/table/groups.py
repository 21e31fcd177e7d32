"""Row groups of Parquet files as rows in our layout: what encode.py takes.

Before: footers.py.  After: encode.py.  Only our own columns are read; what engines have renamed, moved or added is
found, or passed over, by field id. Blocks: runs in threads, mostly without Python's lock.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.catalog.topic_layout import (
    COLUMNS,
    FIRST_FREE_ID,
    OFFSET_ID,
    PARTITION_ID,
    RAW_VALUE_ID,
    SCHEMA_ID,
    STREAM,
    VALUE,
)
from lakestream.data.table.arrow import SCHEMA, STREAM_TYPE
from lakestream.data.table.compiled import Longs
from lakestream.data.table.footers import BAD_PARQUET, Footer, RowGroup
from lakestream.data.table.located import Located, numbers
from lakestream.data.table.manifests import HIGHEST, LOWEST
from lakestream.data.table.picking import picked
from lakestream.data.table.rows import Rows, joined, rows_of_batch
from lakestream.errors import Corrupt
from lakestream.model import Buffer, Span
from lakestream.schemas.writers import Writer

VALUE_ID, STREAM_ID = COLUMNS[0].field_id, COLUMNS[1].field_id
_IDS: Final = {field.name: field.field_id for field in COLUMNS[1].fields}
_TIME_IDS: Final = (OFFSET_ID, _IDS["timestamp"], _IDS["timestamp_ms"])
_RECORD_IDS: Final = (VALUE_ID, *_TIME_IDS, _IDS["timestamp_type"], _IDS["key"], _IDS["headers"])
_NEEDED: Final = (STREAM_ID, PARTITION_ID, *_RECORD_IDS)
BATCH_ROWS: Final = 65_536
_NO_WRITERS: Final[Mapping[int, Writer]] = {}


class Part(NamedTuple):
    """One row group, and which of its rows count."""

    footer: Footer
    group: RowGroup
    partition: int | None
    """None: all its rows are of the one that is asked for."""
    deleted: Longs | None
    """Rows of the file, by their place in it, ascending."""
    is_typed: bool = False
    """The table is, or was: a file need not have the column of bytes."""


def record_columns(part: Part, writers: Mapping[int, Writer] = _NO_WRITERS) -> dict[int, tuple[str, ...]]:
    """What makes rows records: also the columns that values of these writers are in, as far as the group has some."""
    return _columns(part, (*_RECORD_IDS, *_typed_ids(part.group, writers)))


def _typed_ids(group: RowGroup, writers: Mapping[int, Writer]) -> tuple[int, ...]:
    if group.writers is None:
        return ()
    low, high = group.writers
    bounds = (one for number, writer in writers.items() if low <= number <= high for one in writer.columns)
    return (SCHEMA_ID, RAW_VALUE_ID, *sorted({bound.field_id for bound in bounds if bound is not None}))


def time_columns(part: Part) -> dict[int, tuple[str, ...]]:
    return _columns(part, _TIME_IDS)


def _columns(part: Part, ids: tuple[int, ...]) -> dict[int, tuple[str, ...]]:
    paths = part.footer.paths
    may_lack = (VALUE_ID,) if part.is_typed or part.group.writers is not None else ()
    if missing := [field_id for field_id in _NEEDED if field_id not in paths and field_id not in may_lack]:
        raise Corrupt(f"{part.footer.location} has no column of field id {missing[0]}: its rows are no records")
    wanted = ids if part.partition is None else (*ids, PARTITION_ID)
    return {field_id: paths[field_id] for field_id in wanted if field_id in paths}


class Fetched(io.RawIOBase):
    """A file of which some parts are there: what Parquet is read from."""

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
        """Without a copy."""
        start = self._at
        for span, part in self._parts:
            if span.start <= start < span.end:
                found = part[start - span.start :][: size if size >= 0 else None]
                self._at += len(found)
                return found
        if not size or start >= self._size:
            return b""
        raise ValueError(f"its column chunks are not where its footer says: byte {start} is none of theirs")


def read_rows(
    part: Part,
    columns: Mapping[int, tuple[str, ...]],
    spans: Sequence[Span],
    bodies: Sequence[Buffer],
    window: Span,
    writers: Mapping[int, Writer] = _NO_WRITERS,
) -> list[Rows]:
    """The rows with offsets in the window, as records. Corrupt: it names the file. NoWriter (`typed/restoring.py`)."""
    found = []
    for batch, there, kept in _read(part, columns, spans, bodies, window):
        typed = None if part.group.writers is None else _typed(batch, there, kept, columns, writers, part.footer)
        rows = rows_of_batch(batch, part.footer.location, typed)
        found.append(rows if kept is None else rows.picked(kept))
    return found


def _typed(
    batch: Any,
    there: Any,
    kept: Longs | None,
    columns: Mapping[int, tuple[str, ...]],
    writers: Mapping[int, Writer],
    footer: Footer,
) -> Located:
    """The values of rows of typed tables."""
    # Here and not above: most tables are of bytes, and have no use for the kernels of it.
    from lakestream.data.typed.restoring import TypedRows, restored

    stream = batch.column(STREAM)
    own = {
        field_id: there.column(path[0])
        for field_id, path in columns.items()
        if field_id >= FIRST_FREE_ID and len(path) == 1 and path[0] in there.schema.names
    }
    counts = None
    if kept is not None:
        counts = np.zeros(len(batch), np.bool_)
        counts[kept] = True
    offsets, numbers_of = numbers(stream.field("offset"), -1), numbers(stream.field("schema_id"), 0)
    raw = Located.of(stream.field("value"))
    return restored(TypedRows(own, offsets, numbers_of, raw, counts), writers, footer.location)


def read_batches(
    part: Part, columns: Mapping[int, tuple[str, ...]], spans: Sequence[Span], bodies: Sequence[Buffer]
) -> list[tuple[Any, Any, Longs | None]]:
    """Record batches in our layout, the same with all that was read, as the file has it, and which of their rows count;
    None: all. For who writes them into another file."""
    return list(_read(part, columns, spans, bodies, Span(0, HIGHEST)))


def read_times(
    part: Part, columns: Mapping[int, tuple[str, ...]], spans: Sequence[Span], bodies: Sequence[Buffer]
) -> list[tuple[Longs, Longs]]:
    """Offsets and milliseconds. Of a row without a time: below all others."""
    found = []
    for batch, _, kept in _read(part, columns, spans, bodies, Span(0, HIGHEST)):
        stream = batch.column(STREAM)
        times = stream.field("timestamp")
        offsets, millis = numbers(stream.field("offset"), -1), numbers(times, 0) // 1000
        if times.null_count:
            null = np.asarray(times.is_null())
            millis[null] = numbers(stream.field("timestamp_ms"), LOWEST)[null]
        found.append((offsets, millis) if kept is None else (offsets[kept], millis[kept]))
    return found


def sorted_rows(parts: list[Rows]) -> Rows:
    """All of them by ascending offset."""
    rows = joined(parts)
    if (np.diff(rows.offsets) <= 0).any():
        rows = rows.picked(np.argsort(rows.offsets, kind="stable"))
    return rows


def _read(
    part: Part, columns: Mapping[int, tuple[str, ...]], spans: Sequence[Span], bodies: Sequence[Buffer], window: Span
) -> Iterator[tuple[Any, Any, Longs | None]]:
    """Record batches in our layout, the same as they are in the file, and which of their rows count; None: all do."""
    group = part.group
    try:
        file = pq.ParquetFile(
            pa.PythonFile(Fetched(part.footer.file_size, spans, bodies), mode="r"),
            metadata=part.footer.metadata,
            pre_buffer=False,
            page_checksum_verification=True,
        )
        names = [".".join(path) for path in columns.values()]
        at = group.row_start
        for batch in file.iter_batches(BATCH_ROWS, [group.number], names, use_threads=False):
            rows = _laid_out(batch, part.footer)
            kept = _kept(rows, part, _deleted_in(part.deleted, at, at + len(batch)), window)
            at += len(batch)
            if kept is not None and 0 < kept.size * 2 < len(batch):
                # Most of it is not wanted: then what is wanted shall not keep all of it in memory.
                batch, kept = picked(batch, kept), None
                rows = _laid_out(batch, part.footer)
            if kept is None or kept.size:
                yield rows, batch, kept
    except BAD_PARQUET as error:
        raise Corrupt(f"{part.footer.location} is damaged ({error}); restore it from a backup") from error
    if at != group.row_start + group.rows:
        raise Corrupt(f"{part.footer.location} has other rows than its footer says; restore it from a backup")


def _deleted_in(deleted: Longs | None, start: int, end: int) -> Longs | None:
    if deleted is None:
        return None
    first, last = np.searchsorted(deleted, (start, end))
    return deleted[first:last] - start if last > first else None


def _kept(rows: Any, part: Part, deleted: Longs | None, window: Span) -> Longs | None:
    """The places of the rows that count; None: all do."""
    offsets, group = numbers(rows.column(STREAM).field("offset"), -1), part.group
    if ((offsets < group.offset_lo) | (offsets > group.offset_hi)).any():
        # Rows are found by these bounds: if they are wrong here, others may have been passed over.
        raise Corrupt(f"{part.footer.location} has offsets that its footer denies; restore it from a backup")
    keep: NDArray[np.bool_] = (offsets >= window.start) & (offsets < window.end)
    if part.partition is not None:
        keep &= numbers(rows.column(STREAM).field("partition"), -1) == part.partition
    if deleted is not None:
        keep[deleted] = False
    return None if keep.all() else np.flatnonzero(keep)


def _laid_out(batch: Any, footer: Footer) -> Any:
    """The same rows with our names for things, in our order; what was not asked for is null."""
    paths = footer.paths
    stream = batch.column(paths[STREAM_ID][0])
    if stream.null_count:
        raise Corrupt(f"{footer.location} has rows without {STREAM}: they were written by other hands")
    fields = [_child(stream, field, paths.get(_IDS[field.name]), paths) for field in STREAM_TYPE]
    made = pa.StructArray.from_arrays(fields, names=[field.name for field in STREAM_TYPE])
    value = paths.get(VALUE_ID, ("",))[0]
    has_value = value in batch.schema.names  # it may not have been asked for
    values = batch.column(value) if has_value else pa.nulls(len(batch), SCHEMA.field(VALUE).type)
    return pa.RecordBatch.from_arrays([values, made], names=[VALUE, STREAM])


def _child(stream: Any, field: Any, path: tuple[str, ...] | None, paths: Mapping[int, tuple[str, ...]]) -> Any:
    if path is None or stream.type.get_field_index(path[-1]) < 0:
        return pa.nulls(len(stream), field.type)  # it was not asked for
    found = stream.field(path[-1])
    return _headers(found, paths) if field.name == "headers" else found


def _headers(lists: Any, paths: Mapping[int, tuple[str, ...]]) -> Any:
    """With our names for the parts of a header."""
    column = next(field for field in COLUMNS[1].fields if field.name == "headers")
    kind = lists.type
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return lists  # said to be wrong by rows.py
    entries = lists.values
    names = {part.name: paths.get(part.field_id, ("",))[-1] for part in column.fields}
    if all(ours == theirs for ours, theirs in names.items()):
        return lists
    parts = [
        entries.field(theirs) if kind.value_type.get_field_index(theirs) >= 0 else pa.nulls(len(entries), pa.binary())
        for theirs in names.values()
    ]
    renamed = pa.StructArray.from_arrays(parts, names=list(names))
    valid = lists.is_valid() if lists.null_count else None
    mask = pa.array(~np.asarray(valid)) if valid is not None else None
    return pa.ListArray.from_arrays(lists.offsets, renamed, mask=mask)
