"""CRC-32C of many small batches in one call. For large ones, a call of the `crc32c` package for each is faster."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lakestream.data.table.kernels.compile import Array, Long, inlined, kernel, memory

_POLYNOMIAL: Final = 0x82F63B78
_FIELD_AT, _COVERED_FROM = 17, 21


def _tables() -> NDArray[np.uint32]:
    """Returns the tables of slicing-by-8: the effect of each byte on the checksum when 0 to 7 more bytes follow."""
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
    """Returns the first batch smaller than `size_end` whose checksum does not match its bytes, or -1."""
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
    """Writes the checksum into every batch smaller than `size_end`."""
    for batch in range(addresses.size):
        size = sizes[batch]
        if size < size_end:
            data = memory(addresses[batch], size)
            crc = _crc32c(data, _COVERED_FROM, size)
            for place in range(4):
                data[_FIELD_AT + place] = (crc >> np.uint32(24 - 8 * place)) & 255
