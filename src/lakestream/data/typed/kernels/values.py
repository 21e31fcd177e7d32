"""Kernels for whole values: read and write the wire-format prefix, compare bytes.

Values come as an address and a size for each row, -1 for null (`arrow/byte_spans.py`).
"""

from typing import Final

import numpy as np

from lakestream.data.table.kernels.compile import Array, byte_at, copy, kernel, memory, word_at

PREFIX_SIZE: Final = 5
"""A zero byte and a schema id."""
NO_ID: Final = 0
"""Id of a value without the prefix."""
NULL_ID: Final = -1
"""Id of a null value."""


@kernel("void(int64[::1], int64[::1], int64[::1])")
def read_ids(addresses: Array, sizes: Array, ids: Array) -> None:
    """Reads the schema id of each value. Registries assign ids from 1 on."""
    for row in range(addresses.size):
        size = sizes[row]
        if size < 0:
            ids[row] = NULL_ID
            continue
        ids[row] = NO_ID
        if size >= PREFIX_SIZE:
            head = memory(addresses[row], PREFIX_SIZE)
            number = np.int64(0)
            for place in range(1, PREFIX_SIZE):
                number = number << 8 | np.int64(head[place])
            if head[0] == 0 and 0 < number < 2**31:
                ids[row] = number


@kernel("void(int64[::1], int64[::1], int64, uint8[::1], uint8[::1])")
def find_prefix(addresses: Array, sizes: Array, at: int, prefix: Array, found: Array) -> None:
    """Sets 1 for values that have these bytes at offset `at`."""
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
    """Sets 1 where two values have different bytes. Null equals only null."""
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
def put_with_prefix(addresses: Array, sizes: Array, prefix: Array, target: int, placed: Array) -> None:
    """Copies the values one after the other, each after the prefix, and fills `placed` with their addresses.

    A null value writes nothing.
    """
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
