"""Rows of typed tables to the values that were produced: the way back of typing.py, for who reads history.

Before: `table/groups.py`, which read the columns.  After: `table/rows.py`.  What a consumer gets for a row:

    `_stream.value`, if it is there
    else, if the row has a number of a writer: its columns, encoded, behind the frame that the writer's values have
    else the column of bytes, where the table has one; else null, a tombstone

Runs in threads of brokers. Python runs per writer, never per row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.data.table.compiled import Longs
from lakestream.data.table.located import Located
from lakestream.data.typed.arrow import from_arrow
from lakestream.data.typed.codec import Codec
from lakestream.data.typed.codecs import codec_of
from lakestream.data.typed.frame import Layout
from lakestream.data.typed.framing import by_number, framed
from lakestream.data.typed.kernels_values import put_behind
from lakestream.data.typed.project import struct_of
from lakestream.errors import Corrupt, LakestreamError
from lakestream.schemas.writers import NoWriter, Writer

PICKED_SHARE_MAX: Final = 0.6
"""Of the rows that a writer has: where it is less, they are picked out first."""
CODECS_MAX: Final = 256
ROWS_MIN: Final = 256
SLOTS_MAX: Final = 8_000_000
"""Rows times columns that are encoded at a time: of wide tables there are fewer rows."""


@dataclass(frozen=True, slots=True, eq=False)
class TypedRows:
    """Of a file, by field id, as they were read."""

    columns: Mapping[int, Any]
    offsets: Longs
    numbers: Longs
    """Of their writers; 0: none."""
    raw: Located
    counts: NDArray[np.bool_] | None
    """The others are not asked for; None: all are."""


def restored(rows: TypedRows, writers: Mapping[int, Writer], name: str) -> Located:
    """What was produced, as far as it is in typed columns or raw; else null. NoWriter. Corrupt: it cannot be said."""
    wanted = (rows.raw.size < 0) & (rows.numbers != 0)
    if rows.counts is not None:
        wanted &= rows.counts
    if not wanted.any():
        return rows.raw
    numbers = np.where(wanted, rows.numbers, 0)
    address, size, held = rows.raw.address.copy(), rows.raw.size.copy(), [*rows.raw.held]
    for number, places in by_number(numbers):
        if not number:
            continue
        made = _encoded(rows, number, places, writers, name)
        address[places], size[places] = made.address, made.size
        held += made.held
    return Located(address, size, tuple(held))


def _encoded(rows: TypedRows, number: int, places: Longs, writers: Mapping[int, Writer], name: str) -> Located:
    if number not in writers:
        raise NoWriter(number)
    reader = _reader(writers[number])
    if isinstance(reader, str):
        raise Corrupt(f"{name}: rows of schema {number} cannot become values again: {reader}")
    try:
        step = max(ROWS_MIN, SLOTS_MAX // len(reader.layout))
        parts = [reader.values(rows, places[start : start + step]) for start in range(0, places.size, step)]
        values = parts[0] if len(parts) == 1 else Located.joined(parts)
    except Corrupt as error:
        raise Corrupt(f"{name}: rows of schema {number} are no values any more: {error}") from error
    if (values.size < 0).any():
        offset = int(rows.offsets[places[values.size < 0]].min())
        raise Corrupt(f"{name}: the row of offset {offset} was changed so that schema {number} cannot say it any more")
    return values


@dataclass(frozen=True, slots=True, eq=False)
class _Reader:
    writer: Writer
    codec: Codec
    layout: Layout
    head: NDArray[np.uint8]

    def values(self, rows: TypedRows, places: Longs) -> Located:
        """Of the rows at these places."""
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

    def _written(self, struct: Any) -> Located:
        framed = from_arrow(struct, self.layout)
        encoded = self.codec.encode(framed.frame)
        if not self.head.size:
            return encoded
        size = np.where(encoded.size >= 0, encoded.size + self.head.size, -1)
        buffer = pa.allocate_buffer(int(size[size > 0].sum()))
        address = np.empty(size.size, np.int64)
        put_behind(encoded.address, encoded.size, self.head, buffer.address, address)
        return Located(address, size, (buffer,))


@lru_cache(maxsize=CODECS_MAX)
def _reader(writer: Writer) -> _Reader | str:
    """Or why there is none."""
    if not writer.format:
        return writer.text
    try:
        codec = codec_of(writer)
    except LakestreamError as error:
        return str(error)
    return _Reader(writer, codec, Layout.of(codec.shape), np.frombuffer(framed(writer), np.uint8).copy())
