"""Rows of the table as plain arrays, one number, or one place in memory, for each: first step of encode.py.

They may have been written by anybody who may write the table, so all kinds of columns that engines make of our layout
are taken, and what is missing is said.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.catalog.topic_layout import STREAM, VALUE
from lakestream.data.table.compiled import Longs
from lakestream.data.table.located import Located, numbers
from lakestream.errors import Corrupt

_NO_TIMESTAMP: Final = -1
"""What Kafka says of a record that has none; here, of a row whose timestamp somebody has removed."""
_TIME: Final = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    offsets: Longs
    timestamps: Longs
    timestamp_types: Longs
    keys: Located
    values: Located
    headers_first: Longs
    headers_count: Longs
    header_keys: Located
    header_values: Located

    def __len__(self) -> int:
        return int(self.offsets.size)

    def picked(self, places: Longs) -> "Rows":
        """Some of them, in the order given. No key, value or header is copied."""
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
    """Of a `pyarrow.Table` or `RecordBatch`. Corrupt: columns are gone, or hold what cannot be."""
    chunks = table.to_batches() if isinstance(table, pa.Table) else [table]
    parts = [rows_of_batch(chunk, name) for chunk in chunks if chunk.num_rows]
    return joined(parts)


def rows_of_batch(chunk: Any, name: str, typed: Located | None = None) -> Rows:
    """`typed`: values that are not in the column of bytes."""
    stream = _column(chunk, STREAM, name)
    if not pa.types.is_struct(stream.type) or stream.null_count:
        raise Corrupt(f"{name}: column {STREAM} is not filled as it should be: rows were written by other hands")
    offsets = _field(stream, "offset", name)
    if offsets.null_count:
        raise Corrupt(f"{name}: {offsets.null_count} rows have no offset: rows were written by other hands")
    first, count, entries = _lists(_field(stream, "headers", name), name)
    values = Located.of(_column(chunk, VALUE, name))
    header_keys = Located.of(_field(entries, "key", name)).or_else(Located.of(_field(entries, "key_raw", name)))
    return Rows(
        numbers(offsets, 0),
        _milliseconds(_field(stream, "timestamp", name), _field(stream, "timestamp_ms", name)),
        numbers(_field(stream, "timestamp_type", name), 0),
        Located.of(_field(stream, "key", name)),
        values if typed is None else typed.or_else(values),
        first,
        count,
        header_keys,
        Located.of(_field(entries, "value", name)),
    )


def _column(chunk: Any, column: str, name: str) -> Any:
    if column not in chunk.schema.names:
        raise Corrupt(f"{name}: column {column} is gone, without which rows are no records any more")
    return chunk.column(column)


def _field(struct: Any, field: str, name: str) -> Any:
    if struct.type.get_field_index(field) < 0:
        raise Corrupt(f"{name}: column {STREAM} has no {field} any more, without which rows are no records")
    return struct.field(field)


def _lists(headers: Any, name: str) -> tuple[Longs, Longs, Any]:
    """Where the headers of each row begin, how many they are, and all of them. Rows may be a part of a larger list."""
    kind = headers.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        raise Corrupt(f"{name}: column {STREAM}.headers is {kind}, no list of headers any more")
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
    """One behind the other."""
    if len(parts) == 1:
        return parts[0]
    header_counts = np.array([part.header_keys.size.size for part in parts], np.int64)
    before = np.cumsum(header_counts) - header_counts
    return Rows(
        _concatenated([part.offsets for part in parts]),
        _concatenated([part.timestamps for part in parts]),
        _concatenated([part.timestamp_types for part in parts]),
        Located.joined([part.keys for part in parts]),
        Located.joined([part.values for part in parts]),
        _concatenated([part.headers_first + shift for part, shift in zip(parts, before, strict=True)]),
        _concatenated([part.headers_count for part in parts]),
        Located.joined([part.header_keys for part in parts]),
        Located.joined([part.header_values for part in parts]),
    )


def _concatenated(arrays: list[Longs]) -> Longs:
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)
