"""Rows as they lie in Parquet and records as Kafka serves them, in one form, so that they can be compared.

Used by examine.py.  Rows are read with pyarrow alone, not by what brokers read history with (groups.py, encode.py): it
is they that are examined here. Blocks: runs in threads. Memory: a row group at a time, and the rows of one window.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from lakestream.catalog.topic_layout import COLUMNS, OFFSET_ID, PARTITION_ID, STREAM, VALUE
from lakestream.data.table.compiled import Longs
from lakestream.data.table.decode import decode
from lakestream.data.table.examine_files import Content, Difference
from lakestream.data.table.footers import BAD_PARQUET, Footer
from lakestream.data.table.groups import Fetched
from lakestream.data.table.heads import Source
from lakestream.data.table.manifests import HIGHEST, LOWEST
from lakestream.errors import Corrupt
from lakestream.filed import Piece, as_bytes
from lakestream.model import Buffer, Span

_STREAM_COLUMN: Final = COLUMNS[1]
_IDS: Final = {column.name: column.field_id for column in _STREAM_COLUMN.fields}
_HEADER_IDS: Final = {
    part.name: part.field_id for column in _STREAM_COLUMN.fields if column.name == "headers" for part in column.fields
}
RECORD_IDS: Final = (COLUMNS[0].field_id, *_IDS.values())
PLACE_IDS: Final = (PARTITION_ID, OFFSET_ID)
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
"""A record as Kafka knows it. Of a value that is in columns of its own it is only known that there is one."""
BATCH_ROWS: Final = 65_536


class Places(NamedTuple):
    """Where rows of a file belong."""

    partitions: Longs
    offsets: Longs

    def content(self) -> Content:
        """Of some rows at least."""
        bounds = [(int(column.min()), int(column.max())) for column in self]
        return Content(len(self.offsets), *bounds)

    @property
    def is_sorted(self) -> bool:
        """By offset, if they are of one partition; else nobody promises it."""
        return bool((np.diff(self.offsets) > 0).all()) or len(np.unique(self.partitions)) > 1


# Parquet


def footer_content(footer: Footer) -> Content:
    """As its statistics say."""
    lows, highs = ([getattr(group, name) for group in footer.groups] for name in ("offset_lo", "offset_hi"))
    is_known = bool(lows) and LOWEST not in lows and HIGHEST not in highs
    return Content(footer.metadata.num_rows, None, (min(lows), max(highs)) if is_known else None)


def wanted(footer: Footer, field_ids: Iterable[int]) -> dict[int, tuple[str, ...]]:
    """Corrupt: the file lacks what makes rows records."""
    if missing := [field_id for field_id in PLACE_IDS if field_id not in footer.paths]:
        raise Corrupt(f"{footer.location} has no column of field id {missing[0]}: its rows are no records")
    return {field_id: footer.paths[field_id] for field_id in field_ids if field_id in footer.paths}


class GroupBytes(NamedTuple):
    """Columns of a row group, out of the storage."""

    footer: Footer
    group: int
    columns: Mapping[int, tuple[str, ...]]
    spans: Sequence[Span]
    bodies: Sequence[Buffer]

    def batches(self) -> Iterator[Any]:
        footer = self.footer
        try:
            file = pq.ParquetFile(
                pa.PythonFile(Fetched(footer.file_size, self.spans, self.bodies), mode="r"),
                metadata=footer.metadata,
                pre_buffer=False,  # or columns that are neighbours are asked for as one
                page_checksum_verification=True,
            )
            names = [".".join(path) for path in self.columns.values()]
            yield from file.iter_batches(BATCH_ROWS, [self.group], names, use_threads=False)
        except BAD_PARQUET as error:
            raise Corrupt(f"{footer.location} is damaged ({error}); restore it from a backup") from error


def read_places(read: GroupBytes) -> Places:
    parts = [_places(batch, read.footer.paths) for batch in read.batches()]
    none = np.empty(0, np.int64)
    return Places(*(np.concatenate([none, *(part[column] for part in parts)]) for column in (0, 1)))


def _places(batch: Any, paths: Mapping[int, tuple[str, ...]]) -> Places:
    stream = batch.column(paths[_STREAM_COLUMN.field_id][0])
    return Places(*(_numbers(_member(stream, paths.get(field_id)), -1) for field_id in PLACE_IDS))


def read_records(read: GroupBytes, partition: int, window: Span, deleted: Longs) -> Any:
    """The rows that count, as `PLAIN`. `deleted`: places in the file."""
    found = []
    paths, at = read.footer.paths, read.footer.groups[read.group].row_start
    for batch in read.batches():
        places = _places(batch, paths)
        keep = (places.partitions == partition) & (places.offsets >= window.start) & (places.offsets < window.end)
        keep &= ~np.isin(np.arange(at, at + len(batch)), deleted)
        at += len(batch)
        if keep.any():
            found.append(_plain(batch, paths).filter(pa.array(keep)))
    return pa.concat_tables([PLAIN.empty_table(), *found])


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
    """Rows whose value is what their columns make."""
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
    found = times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    milliseconds = np.floor_divide(found.fill_null(0).to_numpy(zero_copy_only=False), 1000)
    if not found.null_count:
        return milliseconds
    others = np.full(count, -1, np.int64) if far is None else _numbers(far, -1)
    return np.where(np.asarray(found.is_null()), others, milliseconds)


def _bytes(column: Any, count: int) -> Any:
    if column is None:
        return pa.nulls(count, _BYTES)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.binary()).cast(_BYTES) if pa.types.is_string_view(column.type) else column.cast(_BYTES)


def _headers(lists: Any, names: Mapping[str, str], count: int) -> Any:
    """A key that is not text stands in a column of its own."""
    if lists is None:
        return pa.array([[]] * count, pa.list_(_HEADER))
    entries, kind = lists.values, lists.type.value_type

    def part(name: str) -> Any:
        known = kind.get_field_index(names[name]) >= 0
        return _bytes(entries.field(names[name]) if known else None, len(entries))

    made = pa.StructArray.from_arrays([pc.coalesce(part("key"), part("key_raw")), part("value")], fields=list(_HEADER))
    return pa.ListArray.from_arrays(lists.offsets.cast(pa.int32()), made, type=pa.list_(_HEADER))


# Kafka


def served_records(batches: Sequence[tuple[int, list[Piece]]], partition: int, window: Span, name: str) -> Any:
    """Batches as they are sent to consumers, as `PLAIN`. Corrupt: one is damaged, or not where it says it is."""
    sources = []
    for offset, pieces in batches:
        body = as_bytes(pieces)
        if int.from_bytes(body[:8], "big", signed=True) != offset:
            raise Corrupt(f"{name}: a record batch of offset {offset} says that it begins elsewhere")
        sources.append(Source.single(name, body, offset))
    paths = _OUR_PATHS
    found = [PLAIN.empty_table(), *(_plain(batch, paths) for batch in decode(sources, partition))]
    rows = pa.concat_tables(found)
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
    """Both sorted by offset, each once."""
    ours, theirs = offsets_of(table), offsets_of(served)
    not_served, not_in_table = np.setdiff1d(ours, theirs), np.setdiff1d(theirs, ours)
    one = table.filter(pa.array(np.isin(ours, theirs))) if not_served.size else table
    other = served.filter(pa.array(np.isin(theirs, ours))) if not_in_table.size else served
    one, other = _without_typed(one.combine_chunks(), other.combine_chunks())
    return Difference(
        int(not_served[0]) if not_served.size else None,
        int(not_in_table[0]) if not_in_table.size else None,
        _first_other(one, other),
    )


def _without_typed(table: Any, served: Any) -> tuple[Any, Any]:
    """With the same value on both sides where the table's is in columns, and one is served."""
    typed = table.column("is_typed")
    if not pc.any(typed).as_py():
        return table, served
    place, mark = PLAIN.get_field_index("value"), pa.scalar(b"", _BYTES)
    there = pc.and_(typed, served.column(place).is_valid())
    one, other = (
        side.set_column(place, PLAIN.field(place), pc.if_else(is_marked, mark, side.column(place)))
        for side, is_marked in ((table, typed), (served, there))
    )
    return one, other.set_column(PLAIN.get_field_index("is_typed"), PLAIN.field("is_typed"), typed)


def _first_other(one: Any, other: Any) -> int | None:
    """Halve until it is found."""
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
    found: Longs = rows.column("offset").to_numpy()
    return found


class Gathered(NamedTuple):
    """The rows of one window."""

    rows: Any
    """Sorted by offset."""
    doubled: tuple[int, str, str] | None
    """An offset that is there twice, and the files that have it."""


def gathered(parts: Sequence[tuple[str, Any]]) -> Gathered:
    """Of the rows that each file has."""
    rows = pa.concat_tables([PLAIN.empty_table(), *(part for _, part in parts)])
    names = [name for name, _ in parts]
    whose = np.repeat(np.arange(len(parts)), [len(part) for _, part in parts])
    offsets = offsets_of(rows)
    order = np.argsort(offsets, kind="stable")
    again = np.flatnonzero(np.diff(offsets[order]) == 0)
    doubled = None
    if again.size:
        one, other = order[again[0]], order[again[0] + 1]
        doubled = int(offsets[one]), names[whose[one]], names[whose[other]]
    is_sorted = len(order) < 2 or bool((np.diff(order) > 0).all())
    return Gathered(rows if is_sorted else rows.take(pa.array(order)), doubled)
