"""Frames as plain values, for tests."""

import ctypes
from typing import Any

from lakestream.data.table.located import Located
from lakestream.data.typed.frame import Frame
from lakestream.schemas.shape import Kind, ListOf, MapOf, Primitive, Struct


def rows_of(frame: Frame) -> list[Any]:
    return [value_of(frame, 0, row) for row in range(len(frame))]


def value_of(frame: Frame, node: int, row: int) -> Any:
    """Numbers as the frame has them, decimals unscaled, bytes as bytes but for text."""
    slot = int(frame.base[node]) + row
    layout, kind = frame.layout, frame.layout.types[node]
    if not frame.valid[slot]:
        assert not any_below(frame, node, row), "what is below a null is null"
        return None
    bits, more = int(frame.bits[slot]), int(frame.more[slot])
    match kind:
        case Struct(fields):
            found, child = {}, node + 1
            for field in fields:
                found[field.name] = value_of(frame, child, row)
                child = int(layout.ends[child])
            return found
        case ListOf():
            return [value_of(frame, node + 1, below) for below in range(bits, bits + more)]
        case MapOf():
            return [
                (value_of(frame, node + 1, below), value_of(frame, node + 2, below))
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


def any_below(frame: Frame, node: int, row: int) -> bool:
    same = [below for below in range(node + 1, int(frame.layout.ends[node])) if _is_same_domain(frame, node, below)]
    return any(frame.valid[int(frame.base[below]) + row] for below in same)


def _is_same_domain(frame: Frame, node: int, below: int) -> bool:
    return bool(frame.layout.domains[node] == frame.layout.domains[below])


def bytes_of(located: Located) -> list[bytes | None]:
    found = zip(located.address.tolist(), located.size.tolist(), strict=True)
    return [None if size < 0 else ctypes.string_at(address, size) for address, size in found]
