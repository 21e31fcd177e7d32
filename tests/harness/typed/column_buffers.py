"""Converts column buffers to Python values."""

import ctypes
from typing import Any

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.typed.column_buffers import ColumnBuffers
from lakestream.schemas.types import Kind, ListOf, MapOf, Primitive, Struct


def rows_of(buffers: ColumnBuffers) -> list[Any]:
    return [value_of(buffers, 0, row) for row in range(len(buffers))]


def value_of(buffers: ColumnBuffers, node: int, row: int) -> Any:
    """Returns numbers as in the buffers, decimals unscaled, strings as text and everything else as bytes."""
    slot = int(buffers.base[node]) + row
    layout, kind = buffers.layout, buffers.layout.types[node]
    if not buffers.valid[slot]:
        assert not any_below(buffers, node, row), "children of a null are null"
        return None
    bits, more = int(buffers.bits[slot]), int(buffers.more[slot])
    match kind:
        case Struct(fields):
            found, child = {}, node + 1
            for field in fields:
                found[field.name] = value_of(buffers, child, row)
                child = int(layout.ends[child])
            return found
        case ListOf():
            return [value_of(buffers, node + 1, below) for below in range(bits, bits + more)]
        case MapOf():
            return [
                (value_of(buffers, node + 1, below), value_of(buffers, node + 2, below))
                for below in range(bits, bits + more)
            ]
        case Primitive(Kind.STRING):
            return ctypes.string_at(bits, more).decode()
        case Primitive(Kind.BINARY | Kind.FIXED | Kind.UUID):
            return ctypes.string_at(bits, more)
        case Primitive(Kind.DECIMAL):
            return (more << 64) | (bits & 2**64 - 1)
        case _:
            return bits


def any_below(buffers: ColumnBuffers, node: int, row: int) -> bool:
    same = [below for below in range(node + 1, int(buffers.layout.ends[node])) if _is_same_domain(buffers, node, below)]
    return any(buffers.valid[int(buffers.base[below]) + row] for below in same)


def _is_same_domain(buffers: ColumnBuffers, node: int, below: int) -> bool:
    return bool(buffers.layout.domains[node] == buffers.layout.domains[below])


def bytes_of(located: ByteSpans) -> list[bytes | None]:
    found = zip(located.address.tolist(), located.size.tolist(), strict=True)
    return [None if size < 0 else ctypes.string_at(address, size) for address, size in found]
