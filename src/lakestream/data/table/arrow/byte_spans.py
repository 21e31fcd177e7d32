"""Addresses and sizes of the values of a bytes column, for every Arrow type that a Parquet reader may return."""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.data.table.kernels.compile import Longs
from lakestream.data.table.kernels.encode_batch import locate_offsets, locate_views


@dataclass(frozen=True, slots=True, eq=False)
class ByteSpans:
    """An address and a size for each row; size -1 is null. `held` keeps the memory that they point into alive."""

    address: Longs
    size: Longs
    held: tuple[Any, ...]

    @classmethod
    def of(cls, array: Any) -> "ByteSpans":
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        located = cls(np.zeros(len(array), np.int64), np.full(len(array), -1, np.int64), (array,))
        if array.null_count < len(array):
            located._fill(array)
        return located

    @classmethod
    def joined(cls, parts: list["ByteSpans"]) -> "ByteSpans":
        """Concatenates the spans."""
        none = np.empty(0, np.int64)
        address = np.concatenate([none, *(part.address for part in parts)])
        size = np.concatenate([none, *(part.size for part in parts)])
        return cls(address, size, tuple(array for part in parts for array in part.held))

    def first(self, count: int) -> "ByteSpans":
        """Returns the first of these spans."""
        return self if count >= self.size.size else ByteSpans(self.address[:count], self.size[:count], self.held)

    def picked(self, places: Longs) -> "ByteSpans":
        return ByteSpans(self.address[places], self.size[places], self.held)

    def or_else(self, other: "ByteSpans") -> "ByteSpans":
        """Returns these spans with nulls replaced by the rows of `other`."""
        null = self.size < 0
        if not null.any():
            return self
        address, size = np.where(null, other.address, self.address), np.where(null, other.size, self.size)
        return ByteSpans(address, size, self.held + other.held)

    def _fill(self, array: Any) -> None:
        valid, first, *rest = array.buffers()
        bits = valid.address if valid is not None and array.null_count else 0
        if pa.types.is_binary_view(array.type) or pa.types.is_string_view(array.type):
            buffers = np.array([buffer.address for buffer in rest], np.int64)
            locate_views(first.address, bits, array.offset, buffers, self.address, self.size)
        else:
            data = rest[0].address if rest[0] is not None else 0
            locate_offsets(first.address, _width(array.type), data, bits, array.offset, self.address, self.size)


def _width(kind: Any) -> int:
    """Returns the width of the offsets of a column that is one buffer with offsets into it."""
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return 4
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return 8
    raise TypeError(f"{kind} is not a type of bytes or strings")


def numbers(array: Any, null: int) -> Longs:
    """Returns a copy of a column of numbers or times, with `null` in place of nulls."""
    whole = array.cast(pa.int64())
    if whole.null_count:
        whole = whole.fill_null(null)
    return cast(Longs, whole.to_numpy(zero_copy_only=False, writable=True))
