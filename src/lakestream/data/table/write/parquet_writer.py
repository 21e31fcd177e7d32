"""Writes rows to Parquet files, and describes each for Iceberg's manifests: the third step of ingestion.

Before: batch_decoder.py.  After: the worker stores the files, then `catalog/operations/append.py` commits them to the
table. Runs in a Spark worker, without event loop and storage: a file is written to memory and returned whole.

Measurements (2 cores, 1 KiB records, half of each compressible): docs/formats.md.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from lakestream.catalog.manifests.data_file import FileDescription
from lakestream.catalog.topic_table.columns import STREAM, VALUE_ID
from lakestream.catalog.topic_table.file_layout import SortKey
from lakestream.catalog.topic_table.properties import DEFAULTS
from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.table.arrow.types import PLAIN_COLUMNS
from lakestream.data.table.write.column_bounds import bounds_of
from lakestream.data.table.write.parquet_columns import Leaf, ParquetColumns, leaves_of, sample
from lakestream.errors import Corrupt
from lakestream.model import Buffer, MiB
from lakestream.schemas.columns import Column
from lakestream.schemas.layout_terms import IDENTITY
from lakestream.schemas.types import Kind

TARGET_SIZE: Final = "write.target-file-size-bytes"
LEVEL: Final = "write.parquet.compression-level"
CODEC: Final = "write.parquet.compression-codec"
GROUP_SIZE: Final = "write.parquet.row-group-size-bytes"
PAGE_SIZE: Final = "write.parquet.page-size-bytes"
_CODECS: Final = {
    "zstd": ("zstd", 22),
    "gzip": ("gzip", 9),
    "brotli": ("brotli", 11),
    "snappy": ("snappy", 0),
    "lz4": ("lz4", 0),
    "uncompressed": ("none", 0),
}
"""By Iceberg's name: Arrow's name, and the highest level; 0: the codec has no levels."""
_ROW_BYTES: Final = 32
"""Size of a row without key, value and headers, before it is encoded."""
_SAMPLE_ROWS: Final = 2_048
_DISTINCT_SHARE_MAX: Final = 0.5
"""A dictionary makes the file smaller only if values repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSettings:
    file_bytes_max: int = 128 * MiB  # compressed; a file ends with the row group that reaches it
    group_bytes_max: int = 16 * MiB  # not compressed; a consumer reads a whole row group to get one record
    page_bytes_max: int = 1 * MiB
    codec: str = "zstd"
    level: int = 1  # 0: the codec has no levels, or its default is used

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> "ParquetSettings":
        """Returns the settings that the table's properties select."""
        sizes: dict[str, int] = {}
        for name, setting, low, high in (
            (TARGET_SIZE, "file_bytes_max", 1, 2**62),
            (GROUP_SIZE, "group_bytes_max", 1, 256 * MiB),
            (PAGE_SIZE, "page_bytes_max", 1, 64 * MiB),
        ):
            # The defaults that every table is created with are for engines that fill row groups differently.
            if properties.get(name) != DEFAULTS.get(name) and _is_within(size := properties.get(name, ""), low, high):
                sizes[setting] = int(size)
        codec, level_max = _CODECS.get(properties.get(CODEC, "").lower(), _CODECS["zstd"])
        level = int(codec == "zstd")
        if _is_within(text := properties.get(LEVEL, ""), 1, level_max):
            level = int(text)
        return cls(codec=codec, level=level, **sizes)


class Stamp(NamedTuple):
    """The partition that all rows of a file belong to, and the sort order of the file."""

    spec_id: int | None = None
    values: tuple[Any, ...] = ()
    order_id: int | None = None
    sort: tuple[SortKey, ...] = ()
    """If empty, rows are sorted by ascending offset."""


PLAIN_STAMP: Final = Stamp()


class WrittenFile(NamedTuple):
    body: Buffer
    """The whole file."""
    description: FileDescription


def write_parquet(
    batches: Iterable[Any],
    location_of: Callable[[int], str],
    settings: ParquetSettings | None = None,
    columns: Sequence[Column] = PLAIN_COLUMNS,
    stamp: Stamp = PLAIN_STAMP,
) -> Iterator[WrittenFile]:
    """Yields files of the rows, in the order given.

    The rows have these columns, belong to one partition of the topic and of the table, and are sorted as in `stamp`.
    `location_of` returns the location of a new file for its first offset.
    """
    chosen, leaves = settings or ParquetSettings(), leaves_of(tuple(columns))
    file: OpenFile | None = None
    for group in row_groups(batches, chosen.group_bytes_max, leaves):
        if file is None:
            file = OpenFile(group, chosen, leaves, stamp)
        file.write(group)
        if file.size >= chosen.file_bytes_max:
            yield file.close(location_of)
            file = None
    if file is not None:
        yield file.close(location_of)


class OpenFile:
    def __init__(
        self, first: Any, settings: ParquetSettings, leaves: ParquetColumns, stamp: Stamp = PLAIN_STAMP
    ) -> None:
        self._sink = pa.BufferOutputStream()
        self._footers: list[Any] = []
        self._leaves = leaves
        self._null_counts = {leaf.field_id: 0 for leaf in leaves.all if _needs_null_count(leaf)}
        self._stamp = stamp
        self._partition, self._offset_first = _first_row(first)
        self._offset_last = self._offset_first - 1
        self._writer = pq.ParquetWriter(
            self._sink,
            leaves.schema,
            compression=settings.codec,
            compression_level=settings.level or None,
            use_dictionary=[leaf.path for leaf in leaves.all if _has_dictionary(leaf, first)],
            column_encoding=dict.fromkeys(_RISING, "DELTA_BINARY_PACKED"),
            write_statistics=[leaf.path for leaf in leaves.all if leaf.is_bounded],
            write_page_index=True,
            write_page_checksum=True,
            data_page_size=settings.page_bytes_max,
            sorting_columns=_sorting_columns(leaves, stamp.sort),
            metadata_collector=self._footers,
            store_decimal_as_integer=True,  # where they fit, which is what Iceberg demands
            store_schema=False,  # readers need no Arrow types
        )

    @property
    def size(self) -> int:
        written: int = self._sink.tell()
        return written

    def write(self, group: Any) -> None:
        """Writes one row group."""
        self._check(group)
        for leaf in self._leaves.all:
            if _needs_null_count(leaf):
                self._null_counts[leaf.field_id] += sum(chunk.null_count for chunk in leaf.of(group))
        self._writer.write_table(group, row_group_size=len(group))

    def close(self, location_of: Callable[[int], str]) -> WrittenFile:
        self._writer.close()
        # As unsigned bytes, which object stores require.
        body, (footer,) = memoryview(self._sink.getvalue()).cast("B"), self._footers
        groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
        chunks = {
            leaf.field_id: [group.column(place) for group in groups] for place, leaf in enumerate(self._leaves.all)
        }
        null_counts = self._null_counts | {
            leaf.field_id: sum(chunk.statistics.null_count for chunk in chunks[leaf.field_id])
            for leaf in self._leaves.all
            if leaf.is_bounded and not _needs_null_count(leaf)
        }
        bounds = {
            leaf.field_id: bounds_of(leaf.kind, chunks[leaf.field_id]) for leaf in self._leaves.all if leaf.is_bounded
        }
        description = FileDescription(
            location=location_of(self._offset_first),
            partition=self._partition,
            offset_first=self._offset_first,
            offset_last=self._offset_last,
            record_count=footer.num_rows,
            size=len(body),
            column_sizes={
                number: sum(chunk.total_compressed_size for chunk in found) for number, found in chunks.items()
            },
            value_counts=dict.fromkeys(null_counts, footer.num_rows),
            null_counts=null_counts,
            lower_bounds={number: low for number, (low, _) in bounds.items() if low is not None},
            upper_bounds={number: high for number, (_, high) in bounds.items() if high is not None},
            split_offsets=tuple(_start(group.column(0)) for group in groups),
            spec_id=self._stamp.spec_id,
            values=self._stamp.values,
            order_id=self._stamp.order_id,
        )
        return WrittenFile(body, description)

    def _check(self, group: Any) -> None:
        """Raises Corrupt unless all rows are of the partition, and sorted by offset if the file has no other order.

        Readers rely on ascending offsets, and the commit relies on the offsets in the description.
        """
        for chunk in group.column(STREAM).chunks:
            offsets = chunk.field("offset").to_numpy(zero_copy_only=False)
            partitions = chunk.field("partition").to_numpy(zero_copy_only=False)
            if not len(offsets):
                continue
            if not self._stamp.sort and (offsets[0] <= self._offset_last or (np.diff(offsets) <= 0).any()):
                raise Corrupt(f"rows of partition {self._partition} do not ascend after offset {self._offset_last}")
            if (partitions != self._partition).any():
                raise Corrupt(f"rows of other partitions are among those of partition {self._partition}")
            self._offset_first = min(self._offset_first, int(offsets.min()))
            self._offset_last = max(self._offset_last, int(offsets.max()))


def _is_within(text: str, low: int, high: int) -> bool:
    """Returns whether a property is a number in this range. Properties may have any text; invalid ones are ignored."""
    return text.isascii() and text.isdecimal() and len(text) < 20 and low <= int(text) <= high


# Row groups


def row_groups(batches: Iterable[Any], bytes_max: int, leaves: ParquetColumns) -> Iterator[Any]:
    """Yields the rows in tables of about that many bytes."""
    pending: list[Any] = []
    left = bytes_max
    for batch in batches:
        ends = np.cumsum(row_sizes(batch, leaves))
        start, done = 0, 0
        while start < batch.num_rows:
            end = int(np.searchsorted(ends, done + left, side="right"))
            end = max(end, start + (0 if pending else 1))  # a row larger than a group is a group by itself
            if end > start:
                pending.append(batch.slice(start, end - start))
                left -= int(ends[end - 1]) - done
                start, done = end, int(ends[end - 1])
            if start < batch.num_rows:
                yield pa.Table.from_batches(pending)
                pending, left = [], bytes_max
    if pending:
        yield pa.Table.from_batches(pending)


def row_sizes(batch: Any, leaves: ParquetColumns) -> Any:
    """Returns the size of each row: exact for bytes columns, the average of the batch for all others."""
    stream, rows = batch.column(STREAM), batch.num_rows
    sizes = np.full(rows, _ROW_BYTES, np.int64)
    own = [stream.field("key"), *([batch.column(leaves.value)] if leaves.value else [])]
    if leaves.typed or not leaves.value:
        own.append(stream.field("value"))
        sizes += (sum(batch.column(name).nbytes for name in leaves.typed) + rows - 1) // max(1, rows)
    for column in own:
        sizes += np.maximum(ByteSpans.of(column).size, 0)
    headers = stream.field("headers")
    if len(entries := headers.flatten()):
        sizes += (entries.nbytes + rows - 1) // rows
    return sizes


def _first_row(group: Any) -> tuple[int, int]:
    stream = group.column(STREAM).chunk(0)
    return stream.field("partition")[0].as_py(), stream.field("offset")[0].as_py()


# Columns


def _needs_null_count(leaf: Leaf) -> bool:
    """Returns whether nulls are counted before writing: for the stream's own columns, whose bytes have no statistics
    (they would be long, and useless for filters). Leaves in lists have no count per row."""
    return leaf.is_once and not leaf.is_typed


def _has_dictionary(leaf: Leaf, first: Any) -> bool:
    """Returns whether to use a dictionary: if values repeat in the first rows."""
    if leaf.path in _ALWAYS_DICTIONARY:
        return True
    if (
        not (leaf.is_typed or leaf.field_id == VALUE_ID or leaf.path in _MAYBE_DICTIONARY)
        or leaf.kind.kind is Kind.BOOLEAN
    ):
        return False
    values = sample(leaf, first, _SAMPLE_ROWS)
    return len(values) > 0 and len(values.unique()) <= len(values) * _DISTINCT_SHARE_MAX


def _sorting_columns(leaves: ParquetColumns, sort: Sequence[SortKey]) -> list[Any]:
    """Returns the sort order for the Parquet footer, which has columns only: the keys before the first transform."""
    if not sort:
        return [pq.SortingColumn(leaves.offset_place)]
    places = {leaf.field_id: place for place, leaf in enumerate(leaves.all)}
    plain = takewhile(lambda key: key.cut.transform == IDENTITY and key.cut.source_id in places, sort)
    return [pq.SortingColumn(places[key.cut.source_id], key.is_descending, key.nulls_first) for key in plain]


_RISING: Final = (f"{STREAM}.offset", f"{STREAM}.timestamp")
_HEADER: Final = f"{STREAM}.headers.list.element"
_ALWAYS_DICTIONARY: Final = (f"{STREAM}.partition", f"{STREAM}.timestamp_type", f"{_HEADER}.key")
_MAYBE_DICTIONARY: Final = (
    *(f"{STREAM}.{name}" for name in ("key", "schema_id", "value")),
    f"{_HEADER}.value",
)


def _start(chunk: Any) -> int:
    """Returns the position of a row group: that of the first page of its first column."""
    start: int = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    return start
