"""Where the bytes of a column lie, for every kind of column that a reader of Parquet may give: below rows.py."""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.data.table.compiled import Longs
from lakestream.data.table.kernels_write import locate_offsets, locate_views


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """An address and a size for each row; -1: null. `held` keeps alive what they point into."""

    address: Longs
    size: Longs
    held: tuple[Any, ...]

    @classmethod
    def of(cls, array: Any) -> "Located":
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        located = cls(np.zeros(len(array), np.int64), np.full(len(array), -1, np.int64), (array,))
        if array.null_count < len(array):
            located._fill(array)
        return located

    @classmethod
    def joined(cls, parts: list["Located"]) -> "Located":
        """One behind the other."""
        none = np.empty(0, np.int64)
        address = np.concatenate([none, *(part.address for part in parts)])
        size = np.concatenate([none, *(part.size for part in parts)])
        return cls(address, size, tuple(array for part in parts for array in part.held))

    def picked(self, places: Longs) -> "Located":
        return Located(self.address[places], self.size[places], self.held)

    def or_else(self, other: "Located") -> "Located":
        """Where this is null, what the other has."""
        null = self.size < 0
        if not null.any():
            return self
        address, size = np.where(null, other.address, self.address), np.where(null, other.size, self.size)
        return Located(address, size, self.held + other.held)

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
    """Of the offsets in a column that is one buffer with offsets into it."""
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return 4
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return 8
    raise TypeError(f"{kind} is no column of bytes")


def numbers(array: Any, null: int) -> Longs:
    """A column of numbers or times, copied. `null`: what stands for one that is missing."""
    whole = array.cast(pa.int64())
    if whole.null_count:
        whole = whole.fill_null(null)
    return cast(Longs, whole.to_numpy(zero_copy_only=False, writable=True))
