"""Iceberg's single-value serialization, used for the bounds of columns. Pure."""

import struct
from typing import Any

from lakestream.schemas.types import Kind, Primitive


def single_value(kind: Primitive, value: Any) -> bytes:
    """Serializes a value from Parquet's statistics: numbers and times are in the units of the column."""
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
            # The smallest number of bytes for the value and its sign; of a negative value, its complement counts.
            size = ((unscaled if unscaled >= 0 else ~unscaled).bit_length() + 8) // 8
            return unscaled.to_bytes(size, "big", signed=True)
        case Kind.STRING | Kind.BINARY | Kind.FIXED | Kind.UUID:
            return bytes(value)
