"""What the footer of a Parquet file says: row groups with their bounds, and which columns are ours, by field id.

Before: planning.py, which file.  After: groups.py, the rows.  Blocks: runs in threads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from lakestream.catalog.topic_layout import COLUMNS, OFFSET_ID, STREAM, TIMESTAMP_ID, Column
from lakestream.data.table.manifests import HIGHEST, LOWEST
from lakestream.errors import Corrupt
from lakestream.model import Buffer, KiB, Span

TAIL_BYTES: Final = 64 * KiB
"""Read at the end of a file, in the hope that its footer is in it; a small file is in it altogether."""
_ID_KEY: Final = b"PARQUET:field_id"
_LENGTH_SIZE: Final = 8
_MAGIC: Final = b"PAR1"
_MEMORY_FACTOR: Final = 6
"""How much larger a footer is in memory than in its file, about."""

BAD_PARQUET: Final = (pa.ArrowException, OSError, ValueError, IndexError, KeyError, OverflowError)
"""What reading bytes that are no whole Parquet file comes to."""


class RowGroup(NamedTuple):
    """Bounds are inclusive, times in microseconds."""

    number: int
    row_start: int
    rows: int
    size: int
    """Of its columns, unpacked."""
    offset_lo: int
    offset_hi: int
    time_lo: int
    time_hi: int
    times_null: int


@dataclass(frozen=True, slots=True, eq=False)
class Footer:
    location: str
    file_size: int
    metadata: Any
    paths: Mapping[int, tuple[str, ...]]
    """Of the columns of our layout that the file has, by field id: names from the root."""
    groups: tuple[RowGroup, ...]
    body: Buffer | None
    """The whole file, where it is small."""

    @property
    def bytes_held(self) -> int:
        return _MEMORY_FACTOR * int(self.metadata.serialized_size) + (len(self.body) if self.body else 0)

    def spans(self, group: int, columns: Mapping[int, tuple[str, ...]]) -> list[Span]:
        """Where in the file the bytes of these columns lie."""
        chosen = tuple(".".join(path) for path in columns.values())
        found = self.metadata.row_group(group)
        chunks = (found.column(number) for number in range(found.num_columns))
        return [_span(chunk) for chunk in chunks if _is_in(chunk.path_in_schema, chosen)]


def footer_size(tail: Buffer, location: str) -> int:
    """How many bytes at the end of a file are its footer."""
    if len(tail) < _LENGTH_SIZE or bytes(tail[-4:]) != _MAGIC:
        raise Corrupt(f"{location} is no Parquet file, or was cut off; restore it from a backup")
    return int.from_bytes(tail[-8:-4], "little") + _LENGTH_SIZE


def read_footer(tail: Buffer, file_size: int, location: str) -> Footer:
    """`tail`: the end of the file, with all of its footer."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(pa.py_buffer(tail)))
        paths = _paths(metadata.schema.to_arrow_schema())
        groups = tuple(_groups(metadata, paths))
    except BAD_PARQUET as error:
        raise Corrupt(f"{location} has a damaged footer ({error}); restore it from a backup") from error
    return Footer(location, file_size, metadata, paths, groups, tail if len(tail) == file_size else None)


def _groups(metadata: Any, paths: Mapping[int, tuple[str, ...]]) -> Iterator[RowGroup]:
    numbers = {metadata.schema.column(number).path: number for number in range(metadata.num_columns)}
    offsets, times = (numbers.get(".".join(paths.get(field_id, ()))) for field_id in (OFFSET_ID, TIMESTAMP_ID))
    row_start = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        offset_lo, offset_hi, _ = _bounds(group, offsets)
        time_lo, time_hi, times_null = _bounds(group, times)
        size = group.total_byte_size
        yield RowGroup(number, row_start, group.num_rows, size, offset_lo, offset_hi, time_lo, time_hi, times_null)
        row_start += group.num_rows


def _bounds(group: Any, column: int | None) -> tuple[int, int, int]:
    statistics = None if column is None else group.column(column).statistics
    if statistics is None:
        return LOWEST, HIGHEST, -1
    nulls = statistics.null_count if statistics.has_null_count else -1
    if not statistics.has_min_max or not isinstance(statistics.min_raw, int):
        return LOWEST, HIGHEST, nulls
    return statistics.min_raw, statistics.max_raw, nulls


def _span(chunk: Any) -> Span:
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        start = min(start, chunk.dictionary_page_offset)
    return Span(start, start + chunk.total_compressed_size)


def _is_in(path: str, chosen: tuple[str, ...]) -> bool:
    return any(path == one or path.startswith(f"{one}.") for one in chosen)


def _paths(schema: Any) -> dict[int, tuple[str, ...]]:
    """By the ids in the file, whatever its columns are called and in whatever order; by name where it has no ids."""
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


def _named(columns: tuple[Column, ...], above: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
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
