"""A value as Iceberg keeps it in bounds: its single-value serialisation. Pure."""

import struct
from typing import Any

from lakestream.schemas.shape import Kind, Primitive


def single_value(kind: Primitive, value: Any) -> bytes:
    """Of a value as Parquet's statistics give it: numbers and times in the units of the column."""
    match kind.kind:
        case Kind.BOOLEAN:
            return b"\x01" if value else b"\x00"
        case Kind.INT | Kind.DATE:
            return int(value).to_bytes(4, "little", signed=True)
        case Kind.LONG | Kind.TIME | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return int(value).to_bytes(8, "little", signed=True)
        case Kind.FLOAT:
            return struct.pack("<f", value)
        case Kind.DOUBLE:
            return struct.pack("<d", value)
        case Kind.DECIMAL:
            unscaled = int(value)
            # As few bytes as hold it with its sign: those of its complement where it is negative.
            size = ((unscaled if unscaled >= 0 else ~unscaled).bit_length() + 8) // 8
            return unscaled.to_bytes(size, "big", signed=True)
        case Kind.STRING | Kind.BINARY | Kind.FIXED | Kind.UUID:
            return bytes(value)
