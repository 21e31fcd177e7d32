"""Records to columns: the last step of decode.py.  Kernels: kernels_read.py.

Outputs are written into memory from Arrow's pool and become arrays as they are.
"""

from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.catalog.topic_layout import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN
from lakestream.data.table.arrow import HEADER_TYPE, HEADERS_TYPE, SCHEMA, STREAM_TYPE
from lakestream.data.table.compiled import Longs
from lakestream.data.table.heads import Sources
from lakestream.data.table.kernels_read import PROBLEMS, read_headers, read_records
from lakestream.data.table.limits import Limits
from lakestream.data.table.records import Records

_Number = TypeVar("_Number", bound=np.generic)

_VIEW_INTS: Final = 4


class _Views:
    """A column of bytes under way."""

    def __init__(self, count: int) -> None:
        self.views = _room(count * _VIEW_INTS, np.int32)
        self.valid = np.zeros((count + 7) // 8, np.uint8)

    def array(self, kind: Any, count: int, null_count: int, buffers: list[Any]) -> Any:
        if null_count == count:
            return pa.nulls(count, kind)
        valid = pa.py_buffer(self.valid) if null_count else None
        return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(self.views), *buffers], null_count)


def rows(held: Sources, records: Records, partition: int, limits: Limits) -> tuple[Any, Records]:
    """A `pyarrow.RecordBatch` of as many rows as come out together, and what is left. Corrupt: a record is wrong."""
    heads, room = records.heads, min(int(records.count.sum()), limits.rows_max)
    offsets, timestamps, headers_at = (_room(room, np.int64) for _ in range(3))
    types, headers_end = _room(room, np.int32), _room(room + 1, np.int32)
    keys, values = _Views(room), _Views(room)
    problem, batch, record, at, count, keys_null, values_null, header_count, unfit = read_records(
        *(room, limits.headers_max),
        *(records.address, records.size, records.buffer, records.position, records.count, records.offset_before),
        *(heads.attributes, heads.delta_max, heads.base_offset, heads.base_timestamp, heads.max_timestamp),
        *(offsets, timestamps, types, keys.views, values.views, keys.valid, values.valid, headers_at, headers_end),
    )
    if problem > 0:
        number = heads.record_count[batch] - records.count[batch] + record
        raise held.corrupt(heads, batch, f"record {number}: {PROBLEMS[problem]}")
    columns = {
        "partition": np.full(count, partition, np.int32),
        "offset": offsets,
        **_timestamps(timestamps[:count], unfit),
        "timestamp_type": types,
        "key": keys.array(pa.binary_view(), count, keys_null, records.buffers),
        "headers": _headers(records, headers_at, headers_end[: count + 1], header_count),
    }
    stream = pa.StructArray.from_arrays(
        [_array(columns.get(field.name), field.type, count) for field in STREAM_TYPE], fields=list(STREAM_TYPE)
    )
    value = values.array(pa.binary_view(), count, values_null, records.buffers)
    made = pa.RecordBatch.from_arrays([value, stream], schema=SCHEMA)
    return made, records.behind(batch, record, at, offsets[count - 1] if record else 0)


def _timestamps(milliseconds: Longs, unfit: int) -> dict[str, Any]:
    """As microseconds; as milliseconds where they do not fit."""
    if not unfit:
        return {"timestamp": milliseconds * 1000}
    far = (milliseconds > TIMESTAMP_MS_MAX) | (milliseconds < TIMESTAMP_MS_MIN)
    kind = STREAM_TYPE.field("timestamp").type
    return {
        "timestamp": pa.array(np.where(far, 0, milliseconds) * 1000, mask=far).cast(kind),
        "timestamp_ms": pa.array(milliseconds, mask=~far),
    }


def _headers(records: Records, headers_at: Longs, headers_end: NDArray[np.int32], count: int) -> Any:
    keys, values, raw_keys = _Views(count), _Views(count), _Views(count)
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
    """A column that nothing was made for is all null."""
    if column is None:
        return pa.nulls(count, kind)
    if isinstance(column, np.ndarray):
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(column)], 0)
    return column


def _room(count: int, kind: type[_Number]) -> NDArray[_Number]:
    """From Arrow's pool, which keeps pages: fresh ones cost as much as filling them."""
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(kind).itemsize), kind)
