"""CRC-32C of many small batches in one call. Large ones are faster one by one with the package behind `checksum.py`."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lakestream.data.table.compiled import Array, Long, inlined, kernel, memory

_POLYNOMIAL: Final = 0x82F63B78
_FIELD_AT, _COVERED_FROM = 17, 21


def _tables() -> NDArray[np.uint32]:
    """Of what each byte makes of a checksum when 0 to 7 more bytes follow: eight bytes are taken at once."""
    tables = np.zeros((8, 256), np.uint32)
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, crc >> 1 ^ np.uint32(_POLYNOMIAL), crc >> 1).astype(np.uint32)
    tables[0] = crc
    for place in range(1, 8):
        crc = tables[0][crc & 255] ^ crc >> 8
        tables[place] = crc
    return tables


_TABLES: Final = _tables()


@inlined
def _crc32c(data: Array, at: Long, end: Long) -> Long:
    crc = np.uint32(0xFFFFFFFF)
    while end - at >= 8:
        crc = (
            _TABLES[7, (crc & 255) ^ data[at]]
            ^ _TABLES[6, (crc >> 8 & 255) ^ data[at + 1]]
            ^ _TABLES[5, (crc >> 16 & 255) ^ data[at + 2]]
            ^ _TABLES[4, (crc >> 24) ^ data[at + 3]]
            ^ _TABLES[3, data[at + 4]]
            ^ _TABLES[2, data[at + 5]]
            ^ _TABLES[1, data[at + 6]]
            ^ _TABLES[0, data[at + 7]]
        )
        at += 8
    while at < end:
        crc = np.uint32(_TABLES[0, (crc ^ data[at]) & 255] ^ crc >> 8)
        at += 1
    return np.uint32(crc ^ 0xFFFFFFFF)


@kernel("int64(int64[::1], int64[::1], int64)")
def first_damaged(addresses: Array, sizes: Array, size_end: int) -> int:
    """The first batch smaller than `size_end` whose checksum is not that of its bytes; -1: all are right."""
    for batch in range(addresses.size):
        size = sizes[batch]
        if size < size_end:
            data = memory(addresses[batch], size)
            crc = _crc32c(data, _COVERED_FROM, size)
            for place in range(4):
                if data[_FIELD_AT + place] != (crc >> np.uint32(24 - 8 * place)) & 255:
                    return batch
    return -1


@kernel("void(int64[::1], int64[::1], int64)")
def put_checksums(addresses: Array, sizes: Array, size_end: int) -> None:
    """Into every batch smaller than `size_end` the checksum of its bytes."""
    for batch in range(addresses.size):
        size = sizes[batch]
        if size < size_end:
            data = memory(addresses[batch], size)
            crc = _crc32c(data, _COVERED_FROM, size)
            for place in range(4):
                data[_FIELD_AT + place] = (crc >> np.uint32(24 - 8 * place)) & 255
