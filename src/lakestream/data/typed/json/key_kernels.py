"""Finds duplicate keys and unpaired surrogates in JSON without a schema, whose keys are not known in advance.

For validation.py, applied to values that `read_kernels.py` has found to be valid JSON.
"""

from typing import Final

import numpy as np

from lakestream.data.table.kernels.compile import Array, Long, byte_at, inlined, kernel

FINE, SUSPECT, UNPAIRED_SURROGATE = range(3)
"""SUSPECT: possibly a duplicate key; the caller has to check the value exactly."""
DEPTH_MAX: Final = 513
"""One more than the decoder allows."""
PROBES_MAX: Final = 64
"""Probes of the hash table per key; a value with keys that collide more often is SUSPECT, which bounds the time."""

_QUOTE, _BACKSLASH, _COLON = 34, 92, 58
_FNV_START: Final = np.uint64(0xCBF29CE484222325)
_FNV_PRIME: Final = np.uint64(0x100000001B3)
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


def table_size(size_max: int) -> int:
    """Returns the size of the hash table for a value of this size: twice the keys that it may have."""
    return 1 << max(4, (size_max // 2).bit_length())


@inlined
def _half_of(at: Long, end: Long) -> Long:
    """Returns 1 or 2 if an escape is the first or second half of a surrogate pair, else 0."""
    if end - at < 6 or byte_at(at) != _BACKSLASH or byte_at(at + 1) != 117 or byte_at(at + 2) | 32 != 100:
        return np.int64(0)
    third = byte_at(at + 3) | 32
    if third == 56 or third == 57 or third == 97 or third == 98:  # 8 9 a b
        return np.int64(1)
    return np.int64(2) if 99 <= third <= 102 else np.int64(0)  # c to f


@kernel("void(int64[::1], int64[::1], int64[::1], uint64[::1], uint8[::1])")
def check_keys(addresses: Array, sizes: Array, owners: Array, hashes: Array, found: Array) -> None:
    """Checks the keys of each value. `owners`, `hashes`: hash table; an owner is the number of an object, -1: free."""
    mask = np.int64(owners.size - 1)
    serials = np.empty(DEPTH_MAX, np.int64)
    serial = np.int64(0)
    for value in range(addresses.size):
        found[value] = FINE
        at, end, depth, first = addresses[value], addresses[value] + sizes[value], np.int64(0), serial
        while at < end and found[value] == FINE:
            char = byte_at(at)
            at += 1
            if char == 123 or char == 91:  # { [
                if depth == DEPTH_MAX:
                    break
                serials[depth] = serial
                serial += 1
                depth += 1
            elif char == 125 or char == 93:
                depth -= 1
            elif char == _QUOTE:
                hashed, is_escaped = _FNV_START, False
                while at < end:
                    char = byte_at(at)
                    if char == _QUOTE:
                        break
                    if char == _BACKSLASH:
                        is_escaped = True
                        half = _half_of(at, end)
                        if half == 2 or (half == 1 and _half_of(at + 6, end) != 2):
                            found[value] = UNPAIRED_SURROGATE
                        at += 12 if half == 1 else 2
                        continue
                    hashed = (hashed ^ np.uint64(char)) * _FNV_PRIME
                    at += 1
                at += 1
                while at < end and byte_at(at) <= 32:
                    at += 1
                if at < end and byte_at(at) == _COLON and found[value] == FINE:
                    owner = serials[depth - 1]
                    place = np.int64(((hashed ^ np.uint64(owner)) * _MIX) >> np.uint64(20)) & mask
                    probes = np.int64(0)
                    while owners[place] >= first and probes < PROBES_MAX:
                        if owners[place] == owner and hashes[place] == hashed:
                            probes = np.int64(PROBES_MAX)
                            break
                        place = (place + 1) & mask
                        probes += 1
                    if probes == PROBES_MAX or is_escaped:
                        found[value] = SUSPECT
                    owners[place], hashes[place] = owner, hashed
