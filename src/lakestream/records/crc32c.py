"""CRC-32C, the checksum of batches and frames.

The checksum of concatenated bytes can be computed from the checksums of the pieces. So a batch is read only once, when
it is validated against its own checksum. The checksum of the frame around all batches is combined from theirs, instead
of reading megabytes of memory a second time.
"""

from array import array
from functools import cache, partial
from typing import Final, TypeAlias

from crc32c import crc32c as _crc32c

crc32c = partial(_crc32c, gil_release_mode=0)
"""Holds the GIL: to release and reacquire it costs more than the 3 µs for 64 KiB."""

JOIN_SIZE_MIN: Final = 16 * 1024
"""From this size on, combining checksums is cheaper than reading the bytes."""

_Table: TypeAlias = "array[int]"


def combine_crcs(crc: int, crc_next: int, size_next: int) -> int:
    """Returns the checksum of A + B from the checksums of A and B and the length of B.

    Checksums are linear: A's checksum is advanced over as many zero bytes as B has, then B's checksum is added. The
    length is processed one byte at a time, each with a table that is computed when it is first needed.
    """
    power = 0
    while size_next:
        if count := size_next & 255:
            crc = _apply(_zeros_table(count, power), crc)
        size_next >>= 8
        power += 1
    return crc ^ crc_next


@cache
def _zeros_table(count: int, power: int) -> _Table:
    """Returns the table that advances a checksum over `count * 256**power` zero bytes, for each of its four bytes."""
    if count > 1:
        half = count // 2
        return _compose(_zeros_table(half, power), _zeros_table(count - half, power))
    if power:
        return _compose(_zeros_table(128, power - 1), _zeros_table(128, power - 1))
    return _table_of([crc32c(b"\0", 1 << bit) ^ crc32c(b"\0", 0) for bit in range(32)])


def _compose(first: _Table, second: _Table) -> _Table:
    return _table_of([_apply(second, _apply(first, 1 << bit)) for bit in range(32)])


def _apply(table: _Table, crc: int) -> int:
    return table[crc & 255] ^ table[256 + (crc >> 8 & 255)] ^ table[512 + (crc >> 16 & 255)] ^ table[768 + (crc >> 24)]


def _table_of(bits: list[int]) -> _Table:
    """Returns the results for all values of each of the four bytes, from the results for the 32 single bits."""
    table = array("I")
    for byte in range(4):
        values = [0]
        for bit in bits[8 * byte : 8 * byte + 8]:
            values += [value ^ bit for value in values]
        table.extend(values)
    return table
