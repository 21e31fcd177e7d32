"""Restores the produced values from the columns of a table, for reads of history; reverses values_to_columns.py.

Before: `read/row_groups.py`, which reads the columns.  After: `arrow/row_arrays.py`.  The value of a row is

    `_stream.value`, if it is not null
    else, if the row has a writer schema: its columns, encoded, after the prefix of the writer schema
    else the bytes column, if the table has one; else null, a tombstone

Runs in threads of brokers. Python code runs per writer schema, never per row. Rows are encoded in parts, to bound the
memory: by their columns, and by the slots of their lists.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.aio.cache import weighted_cache
from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.typed import column_buffers
from lakestream.data.typed.arrow import from_arrow, slots_of
from lakestream.data.typed.codec import Codec
from lakestream.data.typed.column_buffers import Layout
from lakestream.data.typed.format_codecs import codec_of
from lakestream.data.typed.kernels.values import put_with_prefix
from lakestream.data.typed.projection import struct_of
from lakestream.data.typed.wire_format import chunk_bounds, group_by_number, prefix_of
from lakestream.errors import Corrupt, LakestreamError
from lakestream.schemas.writer_schema import CODECS_WEIGHT_MAX, UnknownWriterSchema, WriterSchema, weight_of

PICKED_SHARE_MAX: Final = 0.6
"""If a writer schema has a smaller share of the rows, its rows are copied out before they are encoded."""
ROWS_MIN: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class TypedRows:
    """Rows of a file, their columns by field id."""

    columns: Mapping[int, Any]
    offsets: Longs
    numbers: Longs
    """Numbers of their writer schemas; 0: none."""
    raw: ByteSpans
    counts: NDArray[np.bool_] | None
    """Rows whose values are needed; None: all."""


def columns_to_values(rows: TypedRows, writers: Mapping[int, WriterSchema], name: str) -> ByteSpans:
    """Returns the produced values of rows that have raw bytes or a writer schema; null for other rows.

    UnknownWriterSchema: the caller has to load a writer schema. Corrupt: the columns do not restore a value.
    """
    selected = (rows.raw.size < 0) & (rows.numbers != 0)
    if rows.counts is not None:
        selected &= rows.counts
    if not selected.any():
        return rows.raw
    numbers = np.where(selected, rows.numbers, 0)
    address, size, held = rows.raw.address.copy(), rows.raw.size.copy(), [*rows.raw.held]
    for number, places in group_by_number(numbers):
        if not number:
            continue
        spans = _encoded(rows, number, places, writers, name)
        address[places], size[places] = spans.address, spans.size
        held += spans.held
    return ByteSpans(address, size, tuple(held))


def _encoded(rows: TypedRows, number: int, places: Longs, writers: Mapping[int, WriterSchema], name: str) -> ByteSpans:
    if number not in writers:
        raise UnknownWriterSchema(number)
    reader = _reader(writers[number])
    if isinstance(reader, str):
        raise Corrupt(f"{name}: rows of schema {number} cannot be encoded: {reader}")
    try:
        bounds = pairwise(reader.bounds(rows, places))
        parts = [reader.values(rows, places[start:end]) for start, end in bounds]
        values = parts[0] if len(parts) == 1 else ByteSpans.joined(parts)
    except Corrupt as error:
        raise Corrupt(f"{name}: rows of schema {number} cannot be encoded: {error}") from error
    if (values.size < 0).any():
        offset = int(rows.offsets[places[values.size < 0]].min())
        raise Corrupt(f"{name}: the row of offset {offset} was changed and cannot be encoded with schema {number}")
    return values


@dataclass(frozen=True, slots=True, eq=False)
class _Reader:
    writer: WriterSchema
    codec: Codec
    layout: Layout
    head: NDArray[np.uint8]

    def bounds(self, rows: TypedRows, places: Longs) -> list[int]:
        """Returns the bounds of the parts in which these rows are encoded."""
        slots = np.zeros(rows.numbers.size, np.int64)
        for bound in self.writer.columns:
            if bound is not None and (array := rows.columns.get(bound.field_id)) is not None:
                slots += slots_of(array)
        step = max(ROWS_MIN, column_buffers.SLOTS_MAX // len(self.layout))
        return chunk_bounds(slots[places], step, column_buffers.SLOTS_MAX)

    def values(self, rows: TypedRows, places: Longs) -> ByteSpans:
        """Returns the values of the rows at these places."""
        count, shape, bounds = rows.numbers.size, self.codec.shape, self.writer.columns
        if places.size > PICKED_SHARE_MAX * count:
            absent = np.ones(count, np.bool_)
            absent[places] = False
            mask = pa.array(absent) if places.size < count else None
            return self._written(struct_of(shape, bounds, rows.columns, count, mask)).picked(places)
        chosen = pa.array(places)
        needed = {bound.field_id for bound in bounds if bound is not None}
        picked = {number: array.take(chosen) for number, array in rows.columns.items() if number in needed}
        return self._written(struct_of(shape, bounds, picked, places.size))

    def _written(self, struct: Any) -> ByteSpans:
        read = from_arrow(struct, self.layout)
        encoded = self.codec.encode(read.buffers)
        if not self.head.size:
            return encoded
        size = np.where(encoded.size >= 0, encoded.size + self.head.size, -1)
        buffer = pa.allocate_buffer(int(size[size > 0].sum()))
        address = np.empty(size.size, np.int64)
        put_with_prefix(encoded.address, encoded.size, self.head, buffer.address, address)
        return ByteSpans(address, size, (buffer,))


@weighted_cache(CODECS_WEIGHT_MAX, weight_of)
def _reader(writer: WriterSchema) -> _Reader | str:
    """Returns the reader of a writer schema, or the reason why it has none."""
    if not writer.format:
        return writer.text
    try:
        codec = codec_of(writer)
    except LakestreamError as error:
        return str(error)
    return _Reader(writer, codec, Layout.of(codec.shape), np.frombuffer(prefix_of(writer), np.uint8).copy())
