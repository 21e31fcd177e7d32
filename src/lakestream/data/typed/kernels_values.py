"""Kernels over whole values: what stands in front of them, and whether two are the same.

Values come as an address and a size for each row, -1 for null (`table/located.py`).
"""

from typing import Final

import numpy as np

from lakestream.data.table.compiled import Array, byte_at, copy, kernel, memory, word_at

FRAME_SIZE: Final = 5
"""A zero byte, and the id of a schema."""
NO_ID: Final = 0
"""Of a value that begins otherwise."""
NULL_ID: Final = -1


@kernel("void(int64[::1], int64[::1], int64[::1])")
def read_ids(addresses: Array, sizes: Array, ids: Array) -> None:
    """The id of the schema that each value names. Registries give ids from 1 on."""
    for row in range(addresses.size):
        size = sizes[row]
        if size < 0:
            ids[row] = NULL_ID
            continue
        ids[row] = NO_ID
        if size >= FRAME_SIZE:
            head = memory(addresses[row], FRAME_SIZE)
            number = np.int64(0)
            for place in range(1, FRAME_SIZE):
                number = number << 8 | np.int64(head[place])
            if head[0] == 0 and 0 < number < 2**31:
                ids[row] = number


@kernel("void(int64[::1], int64[::1], int64, uint8[::1], uint8[::1])")
def starting_with(addresses: Array, sizes: Array, at: int, prefix: Array, found: Array) -> None:
    """1: these bytes are at that place of the value."""
    size = prefix.size
    for row in range(addresses.size):
        found[row] = 0
        if sizes[row] >= at + size:
            data = memory(addresses[row] + at, size)
            place = 0
            while place < size and data[place] == prefix[place]:
                place += 1
            found[row] = place == size


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1], uint8[::1])")
def differing(addresses: Array, sizes: Array, other_addresses: Array, other_sizes: Array, found: Array) -> None:
    """1: the two are not the same bytes. Null is nothing else."""
    for row in range(addresses.size):
        size = sizes[row]
        if size != other_sizes[row]:
            found[row] = 1
            continue
        found[row] = 0
        one, other, place = addresses[row], other_addresses[row], np.int64(0)
        while size - place >= 8 and word_at(one + place) == word_at(other + place):
            place += 8
        while place < size and byte_at(one + place) == byte_at(other + place):
            place += 1
        found[row] = place < size


@kernel("void(int64[::1], int64[::1], uint8[::1], int64, int64[::1])")
def put_behind(addresses: Array, sizes: Array, prefix: Array, target: int, placed: Array) -> None:
    """Each value behind the same few bytes, one after the other, and where each then is. Null stays what it is."""
    size = np.int64(prefix.size)
    at = target
    for row in range(addresses.size):
        placed[row] = at
        if sizes[row] >= 0:
            head = memory(at, size)
            for place in range(size):
                head[place] = prefix[place]
            copy(at + size, addresses[row], sizes[row])
            at += size + sizes[row]
