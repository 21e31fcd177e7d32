"""Converts the types of Kafka Connect that JSON does not have: decimals, float32 and bytes.

Kernels read and write these as types of JSON. This module converts whole columns between these and the column types.

| column    | JSON                            | in kernels                  | converted by           |
|-----------|---------------------------------|-----------------------------|------------------------|
| `decimal` | a number with all decimal places | its text (`RAW`)           | Arrow                  |
| `float`   | the shortest number             | a double of the same digits | Arrow                  |
| `binary`  | base64 in a string              | the string                  | numpy                  |

A field that cannot be converted becomes null; its value is reported in `lacks` and keeps its bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.typed.column_buffers import ColumnBuffers, Layout
from lakestream.data.typed.kernels.arrow import OVERFLOW, ends_of, put_bytes
from lakestream.schemas.types import Kind, Primitive

_KINDS: Final = (Kind.DECIMAL, Kind.FLOAT, Kind.BINARY)
_LETTERS: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_PAD: Final = ord("=")
_NO_LETTER: Final = 255


def _base64_values() -> NDArray[np.uint8]:
    values = np.full(256, _NO_LETTER, np.uint8)
    values[_LETTERS] = np.arange(64, dtype=np.uint8)
    values[_PAD] = 0
    return values


_VALUES: Final = _base64_values()

Bytes = NDArray[np.uint8]


def connect_nodes(layout: Layout) -> tuple[int, ...]:
    """Returns the nodes with types that JSON does not have."""
    return tuple(node for node, kind in enumerate(layout.types) if isinstance(kind, Primitive) and kind.kind in _KINDS)


def from_json_types(buffers: ColumnBuffers, nodes: Sequence[int], lacks: NDArray[np.bool_]) -> tuple[Any, ...]:
    """Converts decoded columns in place, and marks values with a field that cannot be converted in `lacks`.

    Returns the owners of the memory at the addresses.
    """
    held: list[Any] = []
    for node in nodes:
        slots = _Slots.of(buffers, node)
        before = slots.valid != 0
        held += _in(slots)
        lost = np.flatnonzero(before & (slots.valid == 0))
        if lost.size:
            lacks[buffers.values_at(buffers.base[node] + lost)] = True
    return tuple(held)


def to_json_types(buffers: ColumnBuffers, nodes: Sequence[int]) -> tuple[ColumnBuffers, tuple[Any, ...]]:
    """Returns buffers that kernels can encode, and the owners of the memory at their addresses."""
    if not nodes:
        return buffers, ()
    copied = replace(buffers, valid=buffers.valid.copy(), bits=buffers.bits.copy(), more=buffers.more.copy())
    return copied, tuple(held for node in nodes for held in _out(_Slots.of(copied, node)))


@dataclass(frozen=True, slots=True, eq=False)
class _Slots:
    """Slots of one node, as views: changes write to the buffers."""

    kind: Primitive
    valid: Bytes
    bits: Longs
    more: Longs

    @classmethod
    def of(cls, buffers: ColumnBuffers, node: int) -> "_Slots":
        kind, start = buffers.layout.types[node], int(buffers.base[node])
        assert isinstance(kind, Primitive)
        slots = slice(start, start + int(buffers.counts[buffers.layout.domains[node]]))
        return cls(kind, buffers.valid[slots], buffers.bits[slots], buffers.more[slots])

    def put(self, located: ByteSpans) -> tuple[Any, ...]:
        self.valid[:] = located.size >= 0
        self.bits[:], self.more[:] = located.address, located.size
        return located.held


def _in(slots: _Slots) -> tuple[Any, ...]:
    match slots.kind.kind:
        case Kind.DECIMAL:
            _read_decimals(slots)
            return ()
        case Kind.FLOAT:
            with np.errstate(over="ignore"):
                numbers = slots.bits.view(np.float64).astype(np.float32)
            slots.valid[~np.isfinite(numbers)] = 0
            slots.bits[:] = numbers.view(np.int32)
            return ()
        case _:
            return slots.put(_decode_base64(*_gathered(slots), slots.valid))


def _out(slots: _Slots) -> tuple[Any, ...]:
    is_null = slots.valid == 0
    match slots.kind.kind:
        case Kind.DECIMAL:
            words = np.stack((slots.bits, slots.more), axis=1)
            kind = pa.decimal128(slots.kind.precision, slots.kind.scale)
            bitmap = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
            numbers = pa.Array.from_buffers(kind, len(words), [bitmap, pa.py_buffer(words)])
            return slots.put(ByteSpans.of(numbers.cast(pa.string())))
        case Kind.FLOAT:
            # The shortest digits of a float, parsed as a double, are the digits that the kernel writes.
            numbers = pa.array(slots.bits.astype(np.int32).view(np.float32), mask=is_null)
            doubles = numbers.cast(pa.string()).cast(pa.float64()).fill_null(0.0)
            slots.bits[:] = doubles.to_numpy(zero_copy_only=False).view(np.int64)
            return ()
        case _:
            return slots.put(_encode_base64(*_gathered(slots), slots.valid))


def _read_decimals(slots: _Slots) -> None:
    """Parses numbers without exponent whose digits fit the column; other texts become null."""
    precision, scale = slots.kind.precision, slots.kind.scale
    data, ends = _gathered(slots)
    texts = pa.Array.from_buffers(pa.string(), len(slots.valid), [None, pa.py_buffer(ends), pa.py_buffer(data)])
    whole = "0" if precision == scale else f"(0|[1-9][0-9]{{0,{precision - scale - 1}}})"
    places = rf"(\.[0-9]{{1,{scale}}})?" if scale else ""
    fits = pc.match_substring_regex(texts, f"^-?{whole}{places}$")
    numbers = pc.if_else(fits, texts, pa.scalar(None, pa.string())).cast(pa.decimal128(precision, scale))
    words = np.frombuffer(numbers.buffers()[1], np.int64, 2 * len(numbers)).reshape(-1, 2)
    slots.valid[:] &= fits.to_numpy(zero_copy_only=False)
    slots.bits[:], slots.more[:] = words[:, 0], words[:, 1]


def _gathered(slots: _Slots) -> tuple[Bytes, NDArray[np.int32]]:
    """Returns the concatenated bytes of all slots and Arrow's offsets."""
    ends = np.zeros(len(slots.valid) + 1, np.int32)
    valid, sizes = np.ascontiguousarray(slots.valid), np.ascontiguousarray(slots.more)
    total = ends_of(valid, sizes, ends)
    if total == OVERFLOW:
        raise ValueError("more than 2 GiB of text or bytes in one column: convert fewer rows per call")
    data = np.empty(total, np.uint8)
    put_bytes(valid, np.ascontiguousarray(slots.bits), ends, data.ctypes.data)
    return data, ends


# Base64 of all values in one numpy operation, in whole groups of three bytes and four letters


def _decode_base64(data: Bytes, ends: NDArray[np.int32], valid: Bytes) -> ByteSpans:
    """Decodes base64 with complete padding; null if a value is not base64."""
    sizes = np.diff(ends).astype(np.int64)
    pads = _pads(data, ends, sizes)
    wrong = _counted(_VALUES[data] == _NO_LETTER, ends) + np.abs(_counted(data == _PAD, ends) - pads)
    good = (valid != 0) & (sizes % 4 == 0) & (wrong == 0)
    # Without the invalid ones, so that each value starts at a group of four letters.
    taken = data[np.repeat(good, sizes)]
    six = _VALUES[taken].astype(np.uint32).reshape(-1, 4)
    groups = six[:, 0] << 18 | six[:, 1] << 12 | six[:, 2] << 6 | six[:, 3]
    output = np.stack((groups >> 16, groups >> 8, groups), axis=1).astype(np.uint8).reshape(-1)
    lengths = np.where(good, sizes // 4 * 3, 0)
    first = np.cumsum(lengths) - lengths
    return ByteSpans(output.ctypes.data + first, np.where(good, lengths - pads, -1), (output,))


def _pads(data: Bytes, ends: NDArray[np.int32], sizes: Longs) -> Longs:
    """Returns how many of the last two letters of each value are padding: 0, 1 or 2."""
    if not data.size:
        return np.zeros(len(sizes), np.int64)
    last, second = (data[np.maximum(ends[1:] - back, 0)] == _PAD for back in (1, 2))
    return np.where(sizes >= 2, last.astype(np.int64) + (last & second), 0)


def _counted(flags: NDArray[np.bool_], ends: NDArray[np.int32]) -> Longs:
    """Returns how many flags each value has."""
    before = np.concatenate(([0], np.cumsum(flags, dtype=np.int64)))
    return before[ends[1:]] - before[ends[:-1]]


def _encode_base64(data: Bytes, ends: NDArray[np.int32], valid: Bytes) -> ByteSpans:
    sizes = np.diff(ends).astype(np.int64)
    groups = -(-sizes // 3)
    first = np.cumsum(groups) - groups
    spread = np.zeros(3 * int(groups.sum()), np.uint8)
    spread[np.arange(data.size) + np.repeat(3 * first - ends[:-1], sizes)] = data
    three = spread.astype(np.uint32).reshape(-1, 3)
    whole = three[:, 0] << 16 | three[:, 1] << 8 | three[:, 2]
    output = _LETTERS[np.stack((whole >> 18, whole >> 12, whole >> 6, whole), axis=1) & 63].reshape(-1)
    text_ends = 4 * (first + groups)
    for place, lacking in ((1, (1, 2)), (2, (1,))):
        output[text_ends[np.isin(sizes % 3, lacking)] - place] = _PAD
    return ByteSpans(output.ctypes.data + 4 * first, np.where(valid != 0, 4 * groups, -1), (output,))
