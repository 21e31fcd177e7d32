"""Iceberg's partition transforms over columns of Arrow: what rows are split and sorted by. Loads kernels: import late.

No library that we have does it for columns: pyiceberg has it one Python value at a time, and its Rust part for columns
takes no views and no dates before all types that we write (docs/adr/0022). What comes out is as Iceberg keeps it:
numbers for dates and times, bytes for UUIDs.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.data.table.compiled import Longs
from lakestream.data.table.kernels_hash import hash_bytes, hash_decimals, hash_longs
from lakestream.data.table.located import Located, numbers
from lakestream.schemas.shape import Kind, Primitive
from lakestream.schemas.terms import Transform

_UNIT_US: Final = {"day": 86_400_000_000, "hour": 3_600_000_000}
_AS_NUMBERS: Final = {
    Kind.DATE: pa.int32(),
    Kind.TIME: pa.int64(),
    Kind.TIMESTAMP: pa.int64(),
    Kind.TIMESTAMPTZ: pa.int64(),
}
_BYTES: Final = (Kind.STRING, Kind.BINARY, Kind.FIXED, Kind.UUID)


def transformed(array: Any, kind: Primitive, transform: Transform) -> Any:
    """A column (no chunks) of that Iceberg type, transformed; null stays null."""
    plain = as_kept(array, kind)
    match transform.name:
        case "identity":
            return plain
        case "void":
            return pa.nulls(len(plain), plain.type)
        case "bucket":
            return _bucket(plain, kind, transform.width)
        case "truncate":
            return _truncated(plain, kind, transform.width)
        case _:
            return _time(plain, kind, transform.name)


def as_kept(array: Any, kind: Primitive) -> Any:
    """In a type that Arrow computes with."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_binary_view(array.type):
        array = array.cast(pa.binary())
    elif pa.types.is_string_view(array.type):
        array = array.cast(pa.string())
    wanted = _AS_NUMBERS.get(kind.kind)
    return array if wanted is None else array.cast(wanted)


def decimal_words(array: Any) -> Longs:
    """Of a column of decimals: two numbers for each, the low half first. Of nulls: whatever lies there."""
    words: Longs = np.frombuffer(array.buffers()[1], np.int64, 2 * len(array), 16 * array.offset)
    return words.reshape(-1, 2)


def _bucket(plain: Any, kind: Primitive, count: int) -> Any:
    hashes = np.zeros(len(plain), np.int32)
    if kind.kind is Kind.DECIMAL:
        hash_decimals(decimal_words(plain).copy(), hashes)
    elif kind.kind in _BYTES:
        located = Located.of(plain.cast(pa.binary()) if kind.kind in (Kind.FIXED, Kind.UUID) else plain)
        hash_bytes(located.address, located.size, hashes)
    else:
        hash_longs(numbers(plain, 0), hashes)
    return _masked((hashes & np.int32(2**31 - 1)) % np.int32(count), plain)


def _truncated(plain: Any, kind: Primitive, width: int) -> Any:
    match kind.kind:
        case Kind.STRING:
            return pc.utf8_slice_codeunits(plain, 0, width)
        case Kind.BINARY:
            return pc.binary_slice(plain, 0, width)
        case Kind.DECIMAL:
            return _truncated_decimals(plain, width)
        case _:
            values = numbers(plain, 0)
            return _masked((values - np.mod(values, width)).astype(plain.type.to_pandas_dtype()), plain)


def _truncated_decimals(plain: Any, width: int) -> Any:
    """In 128 bits, by hand: the rest of a division, 32 bits at a time, taken off."""
    words = decimal_words(plain)
    low, high = words[:, 0].view(np.uint64), words[:, 1]
    rest = np.mod(high, width).astype(np.uint64)
    for half in (low >> np.uint64(32), low & np.uint64(2**32 - 1)):
        rest = ((rest << np.uint64(32)) | half) % np.uint64(width)
    made = np.empty_like(words)
    made[:, 0] = (low - rest).view(np.int64)
    made[:, 1] = high - (low < rest)
    valid = None if not plain.null_count else pc.is_valid(plain).buffers()[1]
    return pa.Array.from_buffers(plain.type, len(plain), [valid, pa.py_buffer(made)])


def _time(plain: Any, kind: Primitive, name: str) -> Any:
    values = numbers(plain, 0)
    if kind.kind is not Kind.DATE:
        values //= _UNIT_US["hour" if name == "hour" else "day"]
    if name in ("year", "month"):
        values = values.view("datetime64[D]").astype(f"datetime64[{name[0].upper()}]").view(np.int64)
    return _masked(values.astype(np.int32), plain)


def _masked(values: NDArray[Any], plain: Any) -> Any:
    mask = np.asarray(plain.is_null()) if plain.null_count else None
    return pa.array(values, mask=mask)
