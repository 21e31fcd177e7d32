"""Murmur3 of many values in one call, as Iceberg's specification wants it for buckets: x86, 32 bits, seed 0."""

from typing import Final

import numpy as np

from lakestream.data.table.compiled import Array, Long, Longs, byte_at, inlined, kernel

_MASK: Final = np.uint64(0xFFFF_FFFF)
_ONE, _TWO = np.uint64(0xCC9E2D51), np.uint64(0x1B873593)


@inlined
def _rotated(value: Long, by: Long) -> Long:
    return ((value << np.uint64(by)) | (value >> np.uint64(32 - by))) & _MASK


@inlined
def _scrambled(block: Long) -> Long:
    return (_rotated((block * _ONE) & _MASK, 15) * _TWO) & _MASK


@inlined
def _mixed(state: Long, block: Long) -> Long:
    return (_rotated(state ^ _scrambled(block), 13) * np.uint64(5) + np.uint64(0xE6546B64)) & _MASK


@inlined
def _finished(state: Long, size: Long) -> Long:
    state ^= np.uint64(size)
    state = ((state ^ (state >> np.uint64(16))) * np.uint64(0x85EBCA6B)) & _MASK
    state = ((state ^ (state >> np.uint64(13))) * np.uint64(0xC2B2AE35)) & _MASK
    return np.int32(np.uint32(state ^ (state >> np.uint64(16))))


@kernel("void(int64[::1], int32[::1])")
def hash_longs(values: Longs, out: Array) -> None:
    """As eight bytes each, the lowest first."""
    for row in range(values.size):
        value = np.uint64(values[row])
        state = _mixed(_mixed(np.uint64(0), value & _MASK), value >> np.uint64(32))
        out[row] = _finished(state, 8)


@kernel("void(int64[::1], int64[::1], int32[::1])")
def hash_bytes(address: Longs, size: Longs, out: Array) -> None:
    """Of each piece of memory; what has no size (-1) is left as it is."""
    for row in range(address.size):
        at, length = address[row], size[row]
        if length < 0:
            continue
        state, whole = np.uint64(0), at + (length & ~np.int64(3))
        while at < whole:
            block = byte_at(at) | byte_at(at + 1) << 8 | byte_at(at + 2) << 16 | byte_at(at + 3) << 24
            state = _mixed(state, np.uint64(block))
            at += 4
        rest, left = np.int64(0), length & np.int64(3)
        for place in range(left):
            rest |= byte_at(at + place) << (8 * place)
        if left:
            state ^= _scrambled(np.uint64(rest))
        out[row] = _finished(state, length)


@inlined
def _byte_of(low: Long, high: Long, place: Long) -> Long:
    word = low if place < 8 else high
    return (word >> (8 * (place & 7))) & 0xFF


@kernel("void(int64[:, ::1], int32[::1])")
def hash_decimals(words: Longs, out: Array) -> None:
    """Of numbers of 128 bits, the low half first: as few bytes as hold each with its sign, the highest first."""
    for row in range(words.shape[0]):
        low, high = words[row, 0], words[row, 1]
        sign = np.int64(255) if high < 0 else np.int64(0)
        size = np.int64(16)
        while size > 1:
            top = _byte_of(low, high, size - 1)
            below = _byte_of(low, high, size - 2)
            if top != sign or (below ^ sign) & 0x80:
                break
            size -= 1
        state, block = np.uint64(0), np.int64(0)
        for place in range(size):
            block |= _byte_of(low, high, size - 1 - place) << (8 * (place & 3))
            if place & 3 == 3:
                state = _mixed(state, np.uint64(block))
                block = np.int64(0)
        if size & 3:
            state ^= _scrambled(np.uint64(block))
        out[row] = _finished(state, size)
