"""Reads Thrift's compact protocol without a schema: structs become dictionaries by field number. Pure.

Parquet's footers are written in it. Arrow reads them too, but pyarrow aborts the process on a footer that contradicts
itself. So footers are read and checked here first, and Arrow only gets consistent ones.
"""

import struct
from typing import Any, Final

from lakestream.errors import Corrupt
from lakestream.model import Buffer

_DEPTH_MAX: Final = 16
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_FLOAT: Final = struct.Struct("<d")


def read_struct(data: Buffer) -> dict[int, Any]:
    """Reads a struct. Raises Corrupt if it is invalid or truncated."""
    try:
        return _struct(bytes(data), 0, 0)[0]
    except (IndexError, struct.error) as error:
        raise Corrupt("it is truncated") from error


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    if depth > _DEPTH_MAX:
        raise Corrupt("it is nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while (head := data[at]) != 0:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _signed(data, at)
        kind = head & 0x0F
        if kind <= _FALSE:
            fields[number] = kind == _TRUE
        else:
            fields[number], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (_I16, _I32, _I64):
        return _signed(data, at)
    if kind == _BINARY:
        size, at = _unsigned(data, at)
        if size > len(data) - at:
            raise Corrupt("it is truncated")
        return data[at : at + size], at + size
    if kind == _STRUCT:
        return _struct(data, at, depth + 1)
    if kind in (_LIST, _SET):
        return _list(data, at, depth + 1)
    if kind in (_TRUE, _FALSE, _BYTE):
        return data[at], at + 1
    if kind == _DOUBLE:
        return _FLOAT.unpack_from(data, at)[0], at + 8
    raise Corrupt(f"it has a field of the unknown type {kind}")


def _list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    head, at = data[at], at + 1
    count, kind = head >> 4, head & 0x0F
    if count == 15:
        count, at = _unsigned(data, at)
    if count > len(data) - at:  # each item has at least one byte
        raise Corrupt("it is truncated")
    items = []
    for _ in range(count):
        item, at = _value(data, at, kind, depth)
        items.append(item)
    return items, at


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    raw, shift = byte & 0x7F, 7
    while shift < 70:
        at += 1
        byte = data[at]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw, at + 1
        shift += 7
    raise Corrupt("it has a number that does not end")


def _signed(data: bytes, at: int) -> tuple[int, int]:
    raw, at = _unsigned(data, at)
    return (raw >> 1) ^ -(raw & 1), at
