"""Encodes rows as record batches: the last step of reading history.

Before: read/history_reader.py, which reads the rows of a range of offsets from Parquet.  After: Fetch, which sends the
bytes unchanged.

    row_arrays.py  →  plan: which rows share a batch, and its size  →  bytes  →  compression, if requested  →  checksums

Key, value, headers, offset, timestamp and timestamp type are exactly those that were produced. What Kafka does not
promise to preserve is not: the grouping of records into batches, producer ids and compression. Where rows are missing,
offsets have gaps, as in a compacted Kafka log.
"""

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.data.table.arrow.row_arrays import Rows, rows_of
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.table.kernels.crc32c import put_checksums
from lakestream.data.table.kernels.encode_batch import NAMELESS, TOO_LARGE, UNSORTED, plan_batches, write_batches
from lakestream.errors import Corrupt
from lakestream.model import Buffer, MiB
from lakestream.records.batch import CODECS, HEADER_SIZE, LENGTH_END
from lakestream.records.compression import compressed
from lakestream.records.crc32c import crc32c

_PROBLEMS: Final = {
    UNSORTED: "its offset is not above that of the previous row",
    NAMELESS: "one of its headers has no key",
    TOO_LARGE: "it is larger than the largest record batch",
}
_DELTA_MAX: Final = 2**31 - 1
_SMALL_END: Final = 768
_CRC_AT, _CRC_FROM = 17, 21
_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Batches back to back; for each its first and last offset, and where it starts and ends in `data`."""

    data: Buffer
    base_offsets: Longs
    last_offsets: Longs
    starts: Longs
    ends: Longs

    def __len__(self) -> int:
        return int(self.starts.size)


@dataclass(frozen=True, slots=True, eq=False)
class _BatchPlan:
    """Which rows form which batch. `firsts` has one element more than there are batches: the end of the last."""

    record_sizes: Longs
    firsts: Longs
    sizes: Longs


def encode(
    table: Any, *, bytes_max: int = 1 * MiB, codec: str = "none", covers_to: int | None = None, name: str = "table"
) -> Encoded:
    """Returns the batches of a `pyarrow.Table` or `RecordBatch` in the table's layout, whose offsets ascend.

    `bytes_max` is the maximum size of a batch before compression; a single record may be larger. `covers_to`: the last
    batch reaches up to this offset although rows end before, so that a consumer continues after the gap; up to 2^31
    offsets, see `Encoded.last_offsets`. Raises Corrupt if the rows are not valid records.
    """
    return encode_rows(rows_of(table, name), bytes_max=bytes_max, codec=codec, covers_to=covers_to, name=name)


def encode_rows(
    rows: Rows, *, bytes_max: int = 1 * MiB, codec: str = "none", covers_to: int | None = None, name: str = "table"
) -> Encoded:
    """Does the same as `encode` for rows that are arrays already."""
    planned = _planned(rows, bytes_max, name)
    bases, lasts = rows.offsets[planned.firsts[:-1]], rows.offsets[planned.firsts[1:] - 1]
    if covers_to is not None and lasts.size:
        assert covers_to > lasts[-1], f"rows reach to offset {lasts[-1]}, which is not below {covers_to}"
        lasts[-1] = min(covers_to - 1, bases[-1] + _DELTA_MAX)
    ends = np.cumsum(planned.sizes)
    data = _written(rows, planned, lasts, int(planned.sizes.sum()))
    encoded = Encoded(data, bases, lasts, ends - planned.sizes, ends)
    if codec != "none":
        encoded = _compressed(encoded, codec)
    _put_checksums(encoded)
    return encoded


def _planned(rows: Rows, bytes_max: int, name: str) -> _BatchPlan:
    record_sizes, firsts, sizes = (np.empty(len(rows) + 1, np.int64) for _ in range(3))
    problem, row, count = plan_batches(
        bytes_max,
        *(rows.offsets, rows.timestamps, rows.timestamp_types, rows.keys.size, rows.values.size),
        *(rows.headers_first, rows.headers_count, rows.header_keys.size, rows.header_values.size),
        *(record_sizes, firsts, sizes),
    )
    if problem:
        raise Corrupt(f"{name}: the row at offset {rows.offsets[row]} is not a valid record: {_PROBLEMS[problem]}")
    firsts[count] = len(rows)
    return _BatchPlan(record_sizes, firsts[: count + 1], sizes[:count])


def _written(rows: Rows, planned: _BatchPlan, lasts: Longs, size: int) -> memoryview:
    buffer = pa.allocate_buffer(size)
    write_batches(
        buffer.address,
        *(rows.offsets, rows.timestamps, rows.timestamp_types),
        *(rows.keys.address, rows.keys.size, rows.values.address, rows.values.size),
        *(rows.headers_first, rows.headers_count),
        *(rows.header_keys.address, rows.header_keys.size, rows.header_values.address, rows.header_values.size),
        *(planned.record_sizes, planned.firsts, planned.sizes, lasts),
    )
    return memoryview(buffer).cast("B")


def _compressed(plain: Encoded, codec: str) -> Encoded:
    """Returns the batches with the records of each compressed."""
    data, attribute = memoryview(plain.data), CODECS.index(codec)
    parts: list[Buffer] = []
    sizes = np.empty(len(plain), np.int64)
    for batch, (start, end) in enumerate(zip(plain.starts.tolist(), plain.ends.tolist(), strict=True)):
        head = bytearray(data[start : start + HEADER_SIZE])
        records = compressed(bytes(data[start + HEADER_SIZE : end]), codec)
        sizes[batch] = size = HEADER_SIZE + len(records)
        _LENGTH.pack_into(head, 8, size - LENGTH_END)
        head[_ATTRIBUTES_LOW] |= attribute
        parts += (head, records)
    ends = np.cumsum(sizes)
    return Encoded(bytearray(b"".join(parts)), plain.base_offsets, plain.last_offsets, ends - sizes, ends)


_ATTRIBUTES_LOW: Final = 22


def _put_checksums(encoded: Encoded) -> None:
    data = memoryview(encoded.data)
    sizes = encoded.ends - encoded.starts
    put_checksums(encoded.starts + pa.py_buffer(data).address, sizes, _SMALL_END)
    for batch in np.flatnonzero(sizes >= _SMALL_END).tolist():
        start, end = encoded.starts[batch], encoded.ends[batch]
        _CRC.pack_into(data, start + _CRC_AT, crc32c(data[start + _CRC_FROM : end]))
