"""Encoders of single values, for the hand-written encoders and for the generated writers."""

import struct
from typing import Final

I32: Final = struct.Struct(">i")

ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return ONE_BYTE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def count(items: int, flexible: bool) -> bytes:
    return uvarint(items + 1) if flexible else I32.pack(items)


def string(text: str, flexible: bool) -> bytes:
    data = text.encode()
    return (uvarint(len(data) + 1) if flexible else len(data).to_bytes(2, "big")) + data


def nullable_string(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    return string(text, flexible)
