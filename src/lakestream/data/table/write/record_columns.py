"""Converts records to Arrow columns: the last step of batch_decoder.py.  Kernels: kernels/decode_batch.py.

Outputs are written into memory from Arrow's pool and become arrays without a copy.
"""

from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.catalog.topic_table.columns import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN
from lakestream.data.table.arrow.types import HEADER_TYPE, HEADERS_TYPE, SCHEMA, STREAM_TYPE
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.table.kernels.decode_batch import PROBLEMS, read_headers, read_records
from lakestream.data.table.write.decoded_batches import DecodeLimits, Records

_Number = TypeVar("_Number", bound=np.generic)

_VIEW_INTS: Final = 4


class _ViewColumn:
    """The buffers of a column of views that kernels fill."""

    def __init__(self, count: int) -> None:
        self.views = _array_of(count * _VIEW_INTS, np.int32)
        self.valid = np.zeros((count + 7) // 8, np.uint8)

    def array(self, kind: Any, count: int, null_count: int, buffers: list[Any]) -> Any:
        if null_count == count:
            return pa.nulls(count, kind)
        valid = pa.py_buffer(self.valid) if null_count else None
        return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(self.views), *buffers], null_count)


class UnreadableRecord(Exception):
    """A record cannot be read."""

    def __init__(self, batch: int, record: int, reason: str) -> None:
        super().__init__(f"record {record} of batch {batch}: {reason}")
        self.batch, self.record, self.reason = batch, record, reason


class _Read(NamedTuple):
    """What `read_records` returns."""

    problem: int
    batch: int
    record: int
    at: int
    row_count: int
    keys_null: int
    values_null: int
    header_count: int
    overflows: int


class _RowBuffers:
    """The buffers that `read_records` writes into."""

    def __init__(self, records: Records, limits: DecodeLimits) -> None:
        self.count = count = min(int(records.count.sum()), limits.rows_max)
        self._headers_max = limits.headers_max
        self.offsets, self.timestamps, self.headers_at = (_array_of(count, np.int64) for _ in range(3))
        self.types, self.headers_end = _array_of(count, np.int32), _array_of(count + 1, np.int32)
        self.keys, self.values = _ViewColumn(count), _ViewColumn(count)

    def read(self, records: Records) -> _Read:
        """Reads as many records as fit."""
        heads, keys, values = records.heads, self.keys, self.values
        return _Read(
            *read_records(
                *(self.count, self._headers_max),
                *(records.address, records.size, records.buffer, records.position),
                *(records.count, records.offset_before),
                *(heads.attributes, heads.delta_max, heads.base_offset, heads.base_timestamp, heads.max_timestamp),
                *(self.offsets, self.timestamps, self.types, keys.views, values.views, keys.valid, values.valid),
                *(self.headers_at, self.headers_end),
            )
        )

    def remaining(self, records: Records, read: _Read) -> Records:
        """Returns the records after those that were read."""
        before = self.offsets[read.row_count - 1] if read.record else 0
        return records.after(read.batch, read.record, read.at, before)


def rows(records: Records, partition: int, limits: DecodeLimits) -> tuple[Any, Records]:
    """Returns a `pyarrow.RecordBatch` of as many rows as the limits allow, and the records that are left.

    Raises UnreadableRecord for the first record that cannot be read.
    """
    buffers = _RowBuffers(records, limits)
    read = buffers.read(records)
    if read.problem > 0:
        number = records.heads.record_count[read.batch] - records.count[read.batch] + read.record
        raise UnreadableRecord(read.batch, number, PROBLEMS[read.problem])
    count = read.row_count
    columns = {
        "partition": np.full(count, partition, np.int32),
        "offset": buffers.offsets,
        **_timestamps(buffers.timestamps[:count], read.overflows),
        "timestamp_type": buffers.types,
        "key": buffers.keys.array(pa.binary_view(), count, read.keys_null, records.buffers),
        "headers": _headers(records, buffers.headers_at, buffers.headers_end[: count + 1], read.header_count),
    }
    stream = pa.StructArray.from_arrays(
        [_array(columns.get(field.name), field.type, count) for field in STREAM_TYPE], fields=list(STREAM_TYPE)
    )
    value = buffers.values.array(pa.binary_view(), count, read.values_null, records.buffers)
    return pa.RecordBatch.from_arrays([value, stream], schema=SCHEMA), buffers.remaining(records, read)


def unreadable_batches(records: Records, limits: DecodeLimits) -> dict[int, str]:
    """Returns the batches with a record that cannot be read, by position, with the reason. Reads all of `records`."""
    reasons: dict[int, str] = {}
    rest, buffers = records.copied(), _RowBuffers(records, limits)
    while len(rest):
        read = buffers.read(rest)
        if read.problem > 0:
            reasons[len(records) - len(rest) + read.batch] = PROBLEMS[read.problem]
            rest = rest.after(read.batch + 1, 0, 0, 0)
        else:
            rest = buffers.remaining(rest, read)
    return reasons


def _timestamps(milliseconds: Longs, overflows: int) -> dict[str, Any]:
    """Returns the columns of timestamps: microseconds, and milliseconds for those that overflow as microseconds."""
    if not overflows:
        return {"timestamp": milliseconds * 1000}
    far = (milliseconds > TIMESTAMP_MS_MAX) | (milliseconds < TIMESTAMP_MS_MIN)
    kind = STREAM_TYPE.field("timestamp").type
    return {
        "timestamp": pa.array(np.where(far, 0, milliseconds) * 1000, mask=far).cast(kind),
        "timestamp_ms": pa.array(milliseconds, mask=~far),
    }


def _headers(records: Records, headers_at: Longs, headers_end: NDArray[np.int32], count: int) -> Any:
    keys, values, raw_keys = _ViewColumn(count), _ViewColumn(count), _ViewColumn(count)
    raw, values_null = 0, 0
    if count:
        raw, values_null = read_headers(
            *(records.address, records.size, records.buffer, records.position, records.count),
            *(headers_at, headers_end, keys.views, values.views, raw_keys.views),
            *(keys.valid, values.valid, raw_keys.valid),
        )
    entries = pa.StructArray.from_arrays(
        [
            keys.array(pa.string_view(), count, raw, records.buffers),
            values.array(pa.binary_view(), count, values_null, records.buffers),
            raw_keys.array(pa.binary_view(), count, count - raw, records.buffers),
        ],
        fields=list(HEADER_TYPE),
    )
    return pa.ListArray.from_arrays(pa.array(headers_end), entries, type=HEADERS_TYPE)


def _array(column: Any, kind: Any, count: int) -> Any:
    """Returns an Arrow array. A column of None is all null."""
    if column is None:
        return pa.nulls(count, kind)
    if isinstance(column, np.ndarray):
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(column)], 0)
    return column


def _array_of(count: int, kind: type[_Number]) -> NDArray[_Number]:
    """Allocates from Arrow's pool, which keeps pages: fresh pages cost as much as filling them."""
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(kind).itemsize), kind)
