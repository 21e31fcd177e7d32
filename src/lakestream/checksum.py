"""CRC-32C, as every batch and every frame carries it.

The checksum of bytes behind one another follows from those of the pieces, so what was read once need not be read again:
a batch is held against its own checksum when it arrives, and the frame around it, which covers all batches, takes that
checksum over instead of fetching megabytes from memory a second time.
"""

from array import array
from functools import cache, partial
from typing import Final, TypeAlias

from crc32c import crc32c as _crc32c

crc32c = partial(_crc32c, gil_release_mode=0)
"""Holds Python's lock: to give it up and get it back costs more than the 3 µs that 64 KiB take."""

JOIN_SIZE_MIN: Final = 16 * 1024
"""From here on joining is cheaper than reading."""

_Table: TypeAlias = "array[int]"


def joined(crc: int, crc_next: int, size_next: int) -> int:
    """The checksum of A + B, from that of A, that of B, and the length of B.

    Checksums are linear: behind A's go as many zero bytes as B has, then B's own is added. Moving over zeros is done
    one byte of the length at a time, each with a table made when it is first needed.
    """
    place = 0
    while size_next:
        if count := size_next & 255:
            crc = _moved(_over_zeros(count, place), crc)
        size_next >>= 8
        place += 1
    return crc ^ crc_next


@cache
def _over_zeros(count: int, place: int) -> _Table:
    """What `count * 256**place` zero bytes make of a checksum, by each of its four bytes."""
    if count > 1:
        half = count // 2
        return _one_after_another(_over_zeros(half, place), _over_zeros(count - half, place))
    if place:
        return _one_after_another(_over_zeros(128, place - 1), _over_zeros(128, place - 1))
    return _tabled([crc32c(b"\0", 1 << bit) ^ crc32c(b"\0", 0) for bit in range(32)])


def _one_after_another(first: _Table, second: _Table) -> _Table:
    return _tabled([_moved(second, _moved(first, 1 << bit)) for bit in range(32)])


def _moved(table: _Table, crc: int) -> int:
    return table[crc & 255] ^ table[256 + (crc >> 8 & 255)] ^ table[512 + (crc >> 16 & 255)] ^ table[768 + (crc >> 24)]


def _tabled(bits: list[int]) -> _Table:
    """From what becomes of each of the 32 bits to what becomes of each value of each byte."""
    table = array("I")
    for byte in range(4):
        values = [0]
        for bit in bits[8 * byte : 8 * byte + 8]:
            values += [value ^ bit for value in values]
        table.extend(values)
    return table
