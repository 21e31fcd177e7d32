"""Rows to Parquet files, with everything that Iceberg wants to know of them: the third step of the way into the table.

Before: decode.py.  After: whoever stores the files, then `catalog/append.py`, which makes them part of the table.
Runs in a Spark worker: no event loop, no storage; a file is made in memory, handed over whole, and forgotten.

What was measured (2 cores, 1 KiB records, half of each compressible): docs/formats.md.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from lakestream.catalog.data_files import FileDescription
from lakestream.catalog.topic_layout import COLUMNS, OFFSET_ID, STREAM, VALUE, Column
from lakestream.data.table.arrow import SCHEMA
from lakestream.data.table.located import Located
from lakestream.errors import Corrupt
from lakestream.model import Buffer, MiB

TARGET_SIZE: Final = "write.target-file-size-bytes"
LEVEL: Final = "write.parquet.compression-level"
_ROW_BYTES: Final = 32
"""Of a row besides key, value and headers, before it is encoded."""
_SAMPLE_ROWS: Final = 2_048
_DISTINCT_SHARE_MAX: Final = 0.5
"""A dictionary pays where values come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSettings:
    file_bytes_max: int = 128 * MiB  # compressed; a file ends with the row group that reaches it
    group_bytes_max: int = 16 * MiB  # not compressed; what a consumer that wants one record has to read
    page_bytes_max: int = 1 * MiB
    zstd_level: int = 1

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> "ParquetSettings":
        """As the table's properties ask for."""
        asked: dict[str, int] = {}
        if _is_within(size := properties.get(TARGET_SIZE, ""), 1, 2**62):
            asked["file_bytes_max"] = int(size)
        if _is_within(level := properties.get(LEVEL, ""), 1, 22):
            asked["zstd_level"] = int(level)
        return cls(**asked)


class WrittenFile(NamedTuple):
    body: Buffer
    """The whole file."""
    description: FileDescription


def write_parquet(
    batches: Iterable[Any], location_of: Callable[[int], str], settings: ParquetSettings | None = None
) -> Iterator[WrittenFile]:
    """Files of the rows (`arrow.SCHEMA`, of one partition, by ascending offset), one after the other: each holds the
    offsets behind those of the one before. `location_of` gives a new one its place, from its first offset."""
    chosen = settings or ParquetSettings()
    file: _OpenFile | None = None
    for group in _groups(batches, chosen.group_bytes_max):
        if file is None:
            file = _OpenFile(group, chosen)
        file.write(group)
        if file.size >= chosen.file_bytes_max:
            yield file.close(location_of)
            file = None
    if file is not None:
        yield file.close(location_of)


class _OpenFile:
    def __init__(self, first: Any, settings: ParquetSettings) -> None:
        self._sink = pa.BufferOutputStream()
        self._footers: list[Any] = []
        self._null_counts = dict.fromkeys(_COUNTED, 0)
        self._partition, self._offset_before = _first_row(first)
        self._offset_first = self._offset_before
        self._offset_before -= 1
        dictionary = [*_ALWAYS_DICTIONARY, *(path for path, column in _MAYBE.items() if _comes_again(column(first)))]
        self._writer = pq.ParquetWriter(
            self._sink,
            SCHEMA,
            compression="zstd",
            compression_level=settings.zstd_level,
            use_dictionary=dictionary,
            column_encoding=dict.fromkeys(_RISING, "DELTA_BINARY_PACKED"),
            write_statistics=_WITH_STATISTICS,
            write_page_index=True,
            write_page_checksum=True,
            data_page_size=settings.page_bytes_max,
            sorting_columns=[pq.SortingColumn(_LEAVES.index(OFFSET_ID))],
            metadata_collector=self._footers,
            store_schema=False,  # how we happened to hold them in memory is nobody's business
        )

    @property
    def size(self) -> int:
        written: int = self._sink.tell()
        return written

    def write(self, group: Any) -> None:
        """One row group."""
        self._check(group)
        for number, column in _COUNTED.items():
            self._null_counts[number] += column(group).null_count
        self._writer.write_table(group, row_group_size=len(group))

    def close(self, location_of: Callable[[int], str]) -> WrittenFile:
        self._writer.close()
        # As bytes without a sign, which is what object stores take.
        body, (footer,) = memoryview(self._sink.getvalue()).cast("B"), self._footers
        columns = [
            [footer.row_group(group).column(leaf) for group in range(footer.num_row_groups)]
            for leaf in range(len(_LEAVES))
        ]
        bounds = {number: _bounds(columns[_LEAVES.index(number)]) for number in _BOUNDED}
        description = FileDescription(
            location=location_of(self._offset_first),
            partition=self._partition,
            offset_first=self._offset_first,
            offset_last=self._offset_before,
            record_count=footer.num_rows,
            size=len(body),
            column_sizes={
                number: sum(chunk.total_compressed_size for chunk in columns[leaf])
                for leaf, number in enumerate(_LEAVES)
            },
            value_counts=dict.fromkeys(_COUNTED, footer.num_rows),
            null_counts=self._null_counts,
            lower_bounds={number: _single(found[0], number) for number, found in bounds.items() if found},
            upper_bounds={number: _single(found[1], number) for number, found in bounds.items() if found},
            split_offsets=tuple(_start(chunk) for chunk in columns[0]),
        )
        return WrittenFile(body, description)

    def _check(self, group: Any) -> None:
        """Readers believe that offsets ascend, and the commit believes what we say of them."""
        for chunk in group.column(STREAM).chunks:
            offsets = chunk.field("offset").to_numpy(zero_copy_only=False)
            partitions = chunk.field("partition").to_numpy(zero_copy_only=False)
            if not len(offsets):
                continue
            if offsets[0] <= self._offset_before or (np.diff(offsets) <= 0).any():
                raise Corrupt(f"rows of partition {self._partition} do not ascend behind offset {self._offset_before}")
            if (partitions != self._partition).any():
                raise Corrupt(f"rows of other partitions stand among those of partition {self._partition}")
            self._offset_before = int(offsets[-1])


def _is_within(text: str, low: int, high: int) -> bool:
    """Anybody may write anything into a property; what makes no sense is not obeyed."""
    return text.isascii() and text.isdecimal() and len(text) < 20 and low <= int(text) <= high


# Row groups


def _groups(batches: Iterable[Any], bytes_max: int) -> Iterator[Any]:
    """The rows in tables of about that many bytes."""
    pending: list[Any] = []
    room = bytes_max
    for batch in batches:
        ends = np.cumsum(_row_sizes(batch))
        start, done = 0, 0
        while start < batch.num_rows:
            end = int(np.searchsorted(ends, done + room, side="right"))
            end = max(end, start + (0 if pending else 1))  # a row that is larger than a group is one
            if end > start:
                pending.append(batch.slice(start, end - start))
                room -= int(ends[end - 1]) - done
                start, done = end, int(ends[end - 1])
            if start < batch.num_rows:
                yield pa.Table.from_batches(pending)
                pending, room = [], bytes_max
    if pending:
        yield pa.Table.from_batches(pending)


def _row_sizes(batch: Any) -> Any:
    stream = batch.column(STREAM)
    sizes = np.full(batch.num_rows, _ROW_BYTES, np.int64)
    for column in (batch.column(VALUE), stream.field("key")):
        sizes += np.maximum(Located.of(column).size, 0)
    headers = stream.field("headers")
    if len(entries := headers.flatten()):
        sizes += (entries.nbytes + batch.num_rows - 1) // batch.num_rows
    return sizes


def _first_row(group: Any) -> tuple[int, int]:
    stream = group.column(STREAM).chunk(0)
    return stream.field("partition")[0].as_py(), stream.field("offset")[0].as_py()


def _comes_again(column: Any) -> bool:
    """Whether a dictionary pays, by the looks of the first rows."""
    sample = column.slice(0, _SAMPLE_ROWS).cast(pa.binary()).drop_null()
    return len(sample) > 0 and len(sample.unique()) <= len(sample) * _DISTINCT_SHARE_MAX


# Columns


def _field_of(name: str) -> Callable[[Any], Any]:
    def column(group: Any) -> Any:
        return pa.chunked_array([chunk.field(name) for chunk in group.column(STREAM).chunks])

    return column


def _value(group: Any) -> Any:
    return group.column(VALUE)


def _header_values(group: Any) -> Any:
    chunks = [chunk.field("headers").flatten().field("value") for chunk in group.column(STREAM).chunks]
    return pa.chunked_array(chunks)


def _leaves(columns: tuple[Column, ...]) -> list[int]:
    """The numbers of the columns that Parquet knows, in its order."""
    leaves: list[int] = []
    for column in columns:
        leaves += _leaves(column.fields) if column.fields else [column.field_id]
    return leaves


_LEAVES: Final = _leaves(COLUMNS)
_NUMBERS: Final = [column for column in COLUMNS[-1].fields if column.type in ("int", "long", "timestamptz")]
_BOUNDED: Final = {column.field_id: 4 if column.type == "int" else 8 for column in _NUMBERS}
"""And how many bytes a bound takes. Of keys and values there are none: they would say little, and be long."""
_COUNTED: Final[dict[int, Callable[[Any], Any]]] = {COLUMNS[0].field_id: _value} | {
    column.field_id: _field_of(column.name) for column in COLUMNS[-1].fields if not column.fields
}
"""Columns that a row has once: what is in lists is not counted in rows."""
_WITH_STATISTICS: Final = [f"{STREAM}.{column.name}" for column in _NUMBERS]
_RISING: Final = (f"{STREAM}.offset", f"{STREAM}.timestamp")
_HEADER: Final = f"{STREAM}.headers.list.element"
_ALWAYS_DICTIONARY: Final = (f"{STREAM}.partition", f"{STREAM}.timestamp_type", f"{_HEADER}.key")
_MAYBE: Final[dict[str, Callable[[Any], Any]]] = {
    VALUE: _value,
    f"{STREAM}.key": _field_of("key"),
    f"{_HEADER}.value": _header_values,
}


def _bounds(chunks: list[Any]) -> tuple[int, int] | None:
    found = [chunk.statistics for chunk in chunks if chunk.statistics is not None and chunk.statistics.has_min_max]
    if not found:
        return None
    return min(one.min_raw for one in found), max(one.max_raw for one in found)


def _single(number: int, field_id: int) -> bytes:
    """Iceberg's single-value serialisation of a number or a time."""
    return int(number).to_bytes(_BOUNDED[field_id], "little", signed=True)


def _start(chunk: Any) -> int:
    """Where a row group begins: its first column's first page."""
    start: int = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    return start
