"""Reads the footer of a Parquet file: row groups with their bounds, and the table's columns by field id.

Before: scan_planner.py, which selects files.  After: row_groups.py, which reads rows.  Blocks: runs in threads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from lakestream.catalog.topic_table.columns import (
    COLUMNS,
    OFFSET_ID,
    RAW_VALUE_ID,
    SCHEMA_ID,
    STREAM,
    TIMESTAMP_ID,
    StreamColumn,
)
from lakestream.data.table.read.manifest_index import HIGHEST, LOWEST, UNKNOWN
from lakestream.data.table.read.thrift_compact import read_struct
from lakestream.errors import Corrupt
from lakestream.model import Buffer, KiB, Span

TAIL_BYTES: Final = 64 * KiB
"""Read first, at the end of a file: usually contains the footer, and small files completely."""
_ID_KEY: Final = b"PARQUET:field_id"
_LENGTH_SIZE: Final = 8
_MAGIC: Final = b"PAR1"
_MEMORY_FACTOR: Final = 6
"""Approximate ratio of a footer's size in memory to its size in the file."""

BAD_PARQUET: Final = (pa.ArrowException, OSError, ValueError, IndexError, KeyError, TypeError, OverflowError)
"""What Arrow raises for bytes that are not a valid Parquet file."""


class RowGroup(NamedTuple):
    """A row group in a footer. Bounds are inclusive, times in microseconds."""

    number: int
    row_start: int
    rows: int
    size: int
    """Uncompressed size of its columns; at least one byte for each of their values, also nulls and those in lists."""
    values: int
    """Number of these values."""
    offset_lo: int
    offset_hi: int
    """Below `offset_lo` if no row has an offset."""
    offsets_null: int
    """Rows without an offset; UNKNOWN if the footer lacks it."""
    time_lo: int
    time_hi: int
    times_null: int
    chunks: tuple[tuple[str, Span], ...]
    """Columns with an id: path, and byte range in the file."""
    writers: tuple[int, int] | None
    """The lowest and the highest number of the writer schemas of its values; None if it has neither converted values
    nor values in `_stream.value`."""


@dataclass(frozen=True, slots=True, eq=False)
class Footer:
    location: str
    file_size: int
    metadata: Any
    paths: Mapping[int, tuple[str, ...]]
    """Paths of the columns by field id. If no column has an id, by the names of this layout."""
    groups: tuple[RowGroup, ...]
    body: Buffer | None
    """The whole file if it is small."""

    @property
    def bounds(self) -> tuple[int, int]:
        """Returns the lowest and the highest offset. The highest is below the lowest if no row has one."""
        lows, highs = [group.offset_lo for group in self.groups], [group.offset_hi for group in self.groups]
        return min(lows, default=HIGHEST), max(highs, default=LOWEST)

    @property
    def offsets_null(self) -> int:
        """Returns the number of rows without an offset, or UNKNOWN if the footer lacks it."""
        counts = [group.offsets_null for group in self.groups]
        return UNKNOWN if UNKNOWN in counts else sum(counts)

    @property
    def memory_size(self) -> int:
        return _MEMORY_FACTOR * int(self.metadata.serialized_size) + (len(self.body) if self.body else 0)

    def leaf_ids(self) -> set[int]:
        """Returns the ids of the leaf columns; 0 for one without an id."""
        by_id = set(_leaf_ids(self.metadata.schema.to_arrow_schema()))
        if by_id != {0}:
            return by_id
        named = {".".join(path): field_id for field_id, path in self.paths.items()}
        schema = self.metadata.schema
        return {named.get(_plain_path(schema.column(place).path), 0) for place in range(len(schema))}

    def spans(self, group: int, columns: Mapping[int, tuple[str, ...]]) -> list[Span]:
        """Returns the byte ranges of these columns in the file."""
        chosen = _Paths(columns)
        return [span for path, span in self.groups[group].chunks if path in chosen]


def footer_size(tail: Buffer, location: str) -> int:
    """Returns the size of the footer at the end of a file."""
    if len(tail) < _LENGTH_SIZE or bytes(tail[-4:]) != _MAGIC:
        raise Corrupt(f"{location} is not a Parquet file, or is truncated; restore it from a backup")
    return int.from_bytes(tail[-8:-4], "little") + _LENGTH_SIZE


def read_footer(tail: Buffer, file_size: int, location: str) -> Footer:
    """Parses a footer. `tail`: the end of the file, with the whole footer."""
    try:
        decoded = read_struct(tail[-footer_size(tail, location) : -_LENGTH_SIZE])
        metadata = pq.read_metadata(pa.BufferReader(pa.py_buffer(tail)))
        schema = metadata.schema.to_arrow_schema()
        paths = _paths(schema)
        _check_types(schema, paths)
        columns = [metadata.schema.column(number) for number in range(metadata.num_columns)]
        groups = tuple(_groups(decoded, [_leaf(column) for column in columns], paths, file_size))
    except (*BAD_PARQUET, Corrupt) as error:
        raise Corrupt(f"{location} has a damaged footer ({error}); restore it from a backup") from error
    return Footer(location, file_size, metadata, paths, groups, tail if len(tail) == file_size else None)


def check_footer(footer: Footer, rows: int, offset_lo: int, offset_hi: int) -> None:
    """Raises Corrupt if the footer contradicts the manifest. Footers have no checksum, and rows are located by them."""
    low, high = footer.bounds
    differs = (offset_lo != LOWEST and low not in (offset_lo, LOWEST)) or (
        offset_hi != HIGHEST and high not in (offset_hi, HIGHEST)
    )
    if differs or footer.metadata.num_rows != rows or sum(group.rows for group in footer.groups) != rows:
        raise Corrupt(
            f"{footer.location} has a damaged footer: its offsets or its row count differ from those in the table's"
            " manifest; restore it from a backup"
        )


_KINDS: Final = {
    "int": pa.types.is_integer,
    "long": pa.types.is_int64,
    "timestamptz": lambda kind: pa.types.is_timestamp(kind) and kind.unit == "us",
    "binary": lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind),
    "string": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind),
    "struct": pa.types.is_struct,
    "list": pa.types.is_list,
}


def _check_types(schema: Any, paths: Mapping[int, tuple[str, ...]]) -> None:
    for column in (*COLUMNS, *COLUMNS[1].fields):
        path = paths.get(column.field_id)
        if path is None:
            continue  # reported when the column is read
        kind = schema.field(path[0]).type
        for name in path[1:]:
            kind = kind.field(name).type
        if not _KINDS[column.type](kind):
            raise ValueError(f"column {'.'.join(path)} has type {kind}, not {column.type}")


# Thrift field numbers in Parquet's footer.
_ROW_GROUPS, _NUM_ROWS = 4, 3
_COLUMNS, _GROUP_SIZE, _GROUP_ROWS = 1, 2, 3
_META_DATA = 3
_TYPE, _PATH, _VALUES, _PACKED_SIZE, _DATA_PAGE, _DICTIONARY_PAGE, _STATISTICS, _SIZES = 1, 3, 5, 7, 9, 11, 12, 16
_NULL_COUNT, _MAX, _MIN = 3, 5, 6
_LEVELS = 3
_TYPES: Final = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")


class _Leaf(NamedTuple):
    """A leaf column of the schema. Its fields are read from Arrow once, not for each row group."""

    path: str
    physical_type: str
    levels: tuple[int, int]
    """The maximum repetition level and the maximum definition level."""


def _leaf(column: Any) -> _Leaf:
    return _Leaf(column.path, column.physical_type, (column.max_repetition_level, column.max_definition_level))


class _Paths:
    """Paths of columns, to find those that are among them or nested in one of them."""

    def __init__(self, columns: Mapping[int, tuple[str, ...]]) -> None:
        self._paths = frozenset(".".join(path) for path in columns.values())
        self._lengths = sorted({len(path) for path in self._paths})

    def __contains__(self, path: str) -> bool:
        return any(path[:length] in self._paths for length in self._lengths if path[length : length + 1] in ("", "."))


def _groups(
    decoded: Any, leaves: list[_Leaf], paths: Mapping[int, tuple[str, ...]], file_size: int
) -> Iterator[RowGroup]:
    table_paths = _Paths(paths)
    in_table = {leaf.path for leaf in leaves if leaf.path in table_paths}
    offsets, times, schemas, raw = (
        ".".join(paths.get(field_id, ())) for field_id in (OFFSET_ID, TIMESTAMP_ID, SCHEMA_ID, RAW_VALUE_ID)
    )
    row_start = 0
    for number, group in enumerate(decoded[_ROW_GROUPS]):
        rows = group[_GROUP_ROWS]
        chunks = {leaf.path: chunk[_META_DATA] for leaf, chunk in zip(leaves, group[_COLUMNS], strict=True)}
        for leaf in leaves:
            _check_chunk(chunks[leaf.path], leaf, rows, file_size)
        offset_lo, offset_hi, _ = _bounds(chunks.get(offsets))
        offsets_null = _nulls(chunks.get(offsets), rows)
        if offsets_null == rows:
            offset_lo, offset_hi = HIGHEST, LOWEST
        time_lo, time_hi, times_null = _bounds(chunks.get(times))
        spans = tuple((path, _span(chunk)) for path, chunk in chunks.items() if path in in_table)
        values = sum(chunk[_VALUES] for chunk in chunks.values())
        size, writers = max(group[_GROUP_SIZE], values), _writers(chunks.get(schemas), chunks.get(raw))
        bounds = (offset_lo, offset_hi, offsets_null, time_lo, time_hi, times_null)
        yield RowGroup(number, row_start, rows, size, values, *bounds, spans, writers)
        row_start += rows


def _check_chunk(chunk: Any, leaf: _Leaf, rows: int, file_size: int) -> None:
    """Raises ValueError for metadata that makes pyarrow abort the process, or read outside of the file."""
    if _TYPES[chunk[_TYPE]] != leaf.physical_type or b".".join(chunk[_PATH]).decode() != leaf.path:
        raise ValueError(f"column {leaf.path} has another type or path in its row group than in the schema")
    span = _span(chunk)
    if not 0 <= span.start <= span.end <= file_size or rows < 0 or chunk[_VALUES] < 0:
        raise ValueError(f"column {leaf.path} is outside of the file")
    for histogram, level in zip((2, _LEVELS), leaf.levels, strict=True):
        counts = chunk.get(_SIZES, {}).get(histogram)
        if counts and len(counts) != level + 1:
            raise ValueError(f"column {leaf.path} has other levels than its schema")


def _nulls(chunk: Any, rows: int) -> int:
    """Returns the number of nulls of a column that is in no list; all rows if the file lacks the column."""
    if chunk is None:
        return rows
    nulls = chunk.get(_STATISTICS, {}).get(_NULL_COUNT)
    levels = chunk.get(_SIZES, {}).get(_LEVELS)
    if nulls is None and levels:
        nulls = rows - levels[-1]
    return UNKNOWN if nulls is None else int(nulls)


def _bounds(chunk: Any) -> tuple[int, int, int]:
    statistics = {} if chunk is None else chunk.get(_STATISTICS, {})
    nulls = statistics.get(_NULL_COUNT, -1)
    low, high = statistics.get(_MIN), statistics.get(_MAX)
    if low is None or high is None or not len(low) == len(high) == _WIDTHS.get(_TYPES[chunk[_TYPE]]):
        return LOWEST, HIGHEST, nulls
    return int.from_bytes(low, "little", signed=True), int.from_bytes(high, "little", signed=True), nulls


_WIDTHS: Final = {"INT32": 4, "INT64": 8}


def _writers(numbers: Any, raw: Any) -> tuple[int, int] | None:
    if not _may_have(numbers):
        return (0, 0) if _may_have(raw) else None
    low, high, _ = _bounds(numbers)
    return low, high


def _may_have(chunk: Any) -> bool:
    """Returns False if the statistics show that all values are null."""
    if chunk is None:
        return False
    nulls = chunk.get(_STATISTICS, {}).get(_NULL_COUNT)
    levels = chunk.get(_SIZES, {}).get(_LEVELS)
    if nulls is not None:
        return bool(nulls < chunk[_VALUES])
    return not levels or bool(levels[-1])


def _span(chunk: Any) -> Span:
    start = chunk[_DATA_PAGE]
    if chunk.get(_DICTIONARY_PAGE):
        start = min(start, chunk[_DICTIONARY_PAGE])
    return Span(start, start + chunk[_PACKED_SIZE])


def _paths(schema: Any) -> dict[int, tuple[str, ...]]:
    """Returns paths by the field ids in the file, for any names and order of its columns; by name if it has no ids."""
    by_id = dict(_numbered(schema, ()))
    if by_id:
        return by_id
    return {field_id: path for field_id, path in _named(COLUMNS, ()) if _has(schema, path)}


def _numbered(fields: Any, above: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    for field in fields:
        path = (*above, field.name)
        if field.metadata and _ID_KEY in field.metadata:
            yield int(field.metadata[_ID_KEY]), path
        if pa.types.is_struct(field.type):
            yield from _numbered(field.type, path)
        elif pa.types.is_list(field.type) and pa.types.is_struct(field.type.value_type):
            yield from _numbered(field.type.value_type, path)


def _leaf_ids(fields: Any) -> Iterator[int]:
    for field in fields:
        kind = field.type
        if pa.types.is_struct(kind):
            yield from _leaf_ids(kind)
        elif pa.types.is_list(kind):
            yield from _leaf_ids([kind.value_field])
        elif pa.types.is_map(kind):
            yield from _leaf_ids([kind.key_field, kind.item_field])
        else:
            yield int((field.metadata or {}).get(_ID_KEY, 0))


def _plain_path(path: str) -> str:
    """Removes the levels of lists, which column names of the table do not have."""
    return path.replace(".list.element", "")


def _named(columns: tuple[StreamColumn, ...], above: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    for column in columns:
        path = (*above, column.name)
        yield column.field_id, path
        yield from _named(column.fields, path)


def _has(schema: Any, path: tuple[str, ...]) -> bool:
    if path[0] not in schema.names:
        return False
    if len(path) == 1 or path[0] != STREAM:
        return True
    stream = schema.field(path[0]).type
    return bool(pa.types.is_struct(stream) and stream.get_field_index(path[1]) >= 0)
