"""Copies a file with foreign columns without some of its rows: all columns and the order of rows stay.

Other engines added and filled these columns, and they must not be lost. Used by worker.py, because parquet_writer.py
would leave them out. Blocks; memory holds the whole file.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.catalog.manifests.data_file import FileDescription
from lakestream.catalog.table_metadata.specs import UNSORTED
from lakestream.catalog.topic_table.columns import COLUMNS, OFFSET_ID, PARTITION_ID, TIMESTAMP_ID
from lakestream.data.table.arrow.projection import picked
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.table.read.manifest_index import HIGHEST, LOWEST
from lakestream.data.table.read.parquet_footer import BAD_PARQUET, Footer, read_footer
from lakestream.data.table.write.parquet_writer import PLAIN_STAMP, Stamp, WrittenFile
from lakestream.errors import Corrupt
from lakestream.model import Buffer

_VALUE_ID: Final = COLUMNS[0].field_id


def without_rows(
    body: Buffer,
    footer: Footer,
    deleted: Longs | None,
    removed: Sequence[NDArray[np.bool_]],
    partition: int,
    place: Callable[[int], str],
    stamp: Stamp = PLAIN_STAMP,
) -> WrittenFile | None:
    """Returns the copy, or None if no row is left. `removed`: for each row group, a mask of the live rows to remove."""
    try:
        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(body)), page_checksum_verification=True)
        tables = [
            picked(
                file.read_row_group(group.number, use_threads=False),
                _alive(group.row_start, group.rows, deleted)[~mask],
            )
            for group, mask in zip(footer.groups, removed, strict=True)
        ]
    except BAD_PARQUET as error:
        raise Corrupt(f"{footer.location} is damaged ({error}); restore it from a backup") from error
    left = [table for table in tables if len(table)]
    if not left:
        return None
    sink = pa.BufferOutputStream()
    schema = left[0].schema
    with pq.ParquetWriter(
        sink, schema, compression="zstd", store_schema=False, store_decimal_as_integer=True
    ) as writer:
        for table in left:
            writer.write_table(table)
    written = sink.getvalue()
    return WrittenFile(written, _described(written, partition, place, stamp))


def _alive(row_start: int, rows: int, deleted: Longs | None) -> Longs:
    places = np.arange(rows, dtype=np.int64)
    return places if deleted is None else places[~np.isin(places + row_start, deleted)]


def _described(body: Any, partition: int, place: Callable[[int], str], stamp: Stamp) -> FileDescription:
    footer = read_footer(memoryview(body), len(body), "the new file")
    groups = footer.groups
    offset_first, offset_last = min(one.offset_lo for one in groups), max(one.offset_hi for one in groups)
    if offset_first == LOWEST or offset_last == HIGHEST:
        raise Corrupt("the new file has no bounds of its offsets")
    rows = footer.metadata.num_rows
    lower = {PARTITION_ID: partition.to_bytes(4, "little"), OFFSET_ID: _long(offset_first)}
    upper = {PARTITION_ID: partition.to_bytes(4, "little"), OFFSET_ID: _long(offset_last)}
    nulls = _null_counts(footer)
    if nulls.get(TIMESTAMP_ID) == 0:
        lower[TIMESTAMP_ID] = _long(min(one.time_lo for one in groups))
        upper[TIMESTAMP_ID] = _long(max(one.time_hi for one in groups))
    return FileDescription(
        location=place(offset_first),
        partition=partition,
        offset_first=offset_first,
        offset_last=offset_last,
        record_count=rows,
        size=len(body),
        column_sizes=_sums(footer, lambda chunk: chunk.total_compressed_size),
        value_counts=dict.fromkeys(nulls, rows),
        null_counts=nulls,
        lower_bounds=lower,
        upper_bounds=upper,
        split_offsets=(),
        spec_id=stamp.spec_id,
        values=stamp.values,
        order_id=UNSORTED["order-id"],  # the rows keep their order, which is unknown
    )


def _null_counts(footer: Footer) -> dict[int, int]:
    """Returns null counts of the columns with one value per row: the stream's own columns except the headers."""
    once = {PARTITION_ID, OFFSET_ID, TIMESTAMP_ID, _VALUE_ID}
    counts = _sums(footer, lambda chunk: chunk.statistics.null_count if chunk.statistics is not None else None)
    return {number: count for number, count in counts.items() if number in once}


def _sums(footer: Footer, fact: Callable[[Any], int | None]) -> dict[int, int]:
    """Returns sums by field id over all row groups; leaves out fields for which a group has no value."""
    numbers = {".".join(path): number for number, path in footer.paths.items()}
    sums: dict[int, int | None] = {}
    for number in range(footer.metadata.num_row_groups):
        group = footer.metadata.row_group(number)
        for column in (group.column(place) for place in range(group.num_columns)):
            if (field_id := numbers.get(column.path_in_schema)) is not None:
                total, more = sums.get(field_id, 0), fact(column)
                sums[field_id] = None if total is None or more is None else total + more
    return {field_id: total for field_id, total in sums.items() if total is not None}


def _long(number: int) -> bytes:
    return number.to_bytes(8, "little", signed=True)
