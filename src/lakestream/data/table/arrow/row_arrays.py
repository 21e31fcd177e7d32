"""Rows of the table as plain arrays, the input of batch_encoder.py: one number, or one address, for each row.

Any engine with access may have written the rows, so every column type that engines write for this layout is accepted,
and a missing column is reported by name.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.catalog.topic_table.columns import STREAM, VALUE
from lakestream.data.table.arrow.byte_spans import ByteSpans, numbers
from lakestream.data.table.kernels.compile import Longs
from lakestream.errors import Corrupt

_NO_TIMESTAMP: Final = -1
"""Kafka's timestamp of a record without one; here, of a row whose timestamp was set to null."""
_TIME: Final = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    offsets: Longs
    timestamps: Longs
    timestamp_types: Longs
    keys: ByteSpans
    values: ByteSpans
    headers_first: Longs
    headers_count: Longs
    header_keys: ByteSpans
    header_values: ByteSpans

    def __len__(self) -> int:
        return int(self.offsets.size)

    def picked(self, places: Longs) -> "Rows":
        """Returns these rows in this order. No key, value or header is copied."""
        return Rows(
            self.offsets[places],
            self.timestamps[places],
            self.timestamp_types[places],
            self.keys.picked(places),
            self.values.picked(places),
            self.headers_first[places],
            self.headers_count[places],
            self.header_keys,
            self.header_values,
        )


def rows_of(table: Any, name: str) -> Rows:
    """Returns the rows of a `pyarrow.Table` or `RecordBatch`.

    Raises Corrupt if columns are missing or hold values that no record can have.
    """
    chunks = table.to_batches() if isinstance(table, pa.Table) else [table]
    parts = [rows_of_batch(chunk, name) for chunk in chunks if chunk.num_rows]
    return joined(parts)


def rows_of_batch(chunk: Any, name: str, typed: ByteSpans | None = None) -> Rows:
    """Returns the rows of a record batch. `typed`: values that are not in the column of bytes."""
    stream = _column(chunk, STREAM, name)
    if not pa.types.is_struct(stream.type) or stream.null_count:
        raise Corrupt(f"{name}: column {STREAM} has nulls or is not a struct: another writer changed these rows")
    offsets = _field(stream, "offset", name)
    if offsets.null_count:
        raise Corrupt(f"{name}: {offsets.null_count} rows have no offset: another writer added these rows")
    first, count, entries = header_lists(_field(stream, "headers", name), name)
    values = ByteSpans.of(_column(chunk, VALUE, name))
    header_keys = ByteSpans.of(_field(entries, "key", name)).or_else(ByteSpans.of(_field(entries, "key_raw", name)))
    return Rows(
        numbers(offsets, 0),
        _milliseconds(_field(stream, "timestamp", name), _field(stream, "timestamp_ms", name)),
        numbers(_field(stream, "timestamp_type", name), 0),
        ByteSpans.of(_field(stream, "key", name)),
        values if typed is None else typed.or_else(values),
        first,
        count,
        header_keys,
        ByteSpans.of(_field(entries, "value", name)),
    )


def _column(chunk: Any, column: str, name: str) -> Any:
    if column not in chunk.schema.names:
        raise Corrupt(f"{name}: column {column} is missing, without which rows cannot be read as records")
    return chunk.column(column)


def _field(struct: Any, field: str, name: str) -> Any:
    if struct.type.get_field_index(field) < 0:
        raise Corrupt(f"{name}: column {STREAM}.{field} is missing, without which rows cannot be read as records")
    return struct.field(field)


def header_lists(headers: Any, name: str) -> tuple[Longs, Longs, Any]:
    """Returns the first header of each row, the number of its headers, and all headers. `headers` may be a slice."""
    kind = headers.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        raise Corrupt(f"{name}: column {STREAM}.headers has type {kind}, not a list of structs")
    bounds = np.asarray(headers.offsets).astype(np.int64)
    count = np.diff(bounds)
    if headers.null_count:
        count[np.asarray(headers.is_null())] = 0
    start, end = int(bounds[0]), int(bounds[-1])
    return bounds[:-1] - start, count, headers.values.slice(start, end - start)


def _milliseconds(timestamps: Any, far: Any) -> Longs:
    milliseconds = numbers(timestamps.cast(_TIME), 0) // 1000
    if timestamps.null_count:
        null = np.asarray(timestamps.is_null())
        milliseconds[null] = numbers(far, _NO_TIMESTAMP)[null]
    return milliseconds


def joined(parts: list[Rows]) -> Rows:
    """Concatenates the rows."""
    if len(parts) == 1:
        return parts[0]
    header_counts = np.array([part.header_keys.size.size for part in parts], np.int64)
    before = np.cumsum(header_counts) - header_counts
    return Rows(
        _concatenated([part.offsets for part in parts]),
        _concatenated([part.timestamps for part in parts]),
        _concatenated([part.timestamp_types for part in parts]),
        ByteSpans.joined([part.keys for part in parts]),
        ByteSpans.joined([part.values for part in parts]),
        _concatenated([part.headers_first + shift for part, shift in zip(parts, before, strict=True)]),
        _concatenated([part.headers_count for part in parts]),
        ByteSpans.joined([part.header_keys for part in parts]),
        ByteSpans.joined([part.header_values for part in parts]),
    )


def _concatenated(arrays: list[Longs]) -> Longs:
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)
