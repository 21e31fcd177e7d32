"""Validates lz4 frames of records as strictly as the Java client and Kafka's partition leaders.

The lz4 library accepts more: several frames, linked blocks, dictionaries. Pipelines read all of them, for batches that
were stored by older brokers.
"""

import struct
from typing import Final

from lakestream.errors import InvalidRecords
from lakestream.model import Buffer

_START: Final = struct.Struct("<IBB")
_BLOCK_SIZE: Final = struct.Struct("<I")
_MAGIC: Final = 0x184D2204
_FLAGS_MASK, _FLAGS = 0xE3, 0x60
"""Version, independent blocks, a reserved bit, dictionary id."""
_BLOCK_CHECKSUM, _CONTENT_SIZE, _CONTENT_CHECKSUM = 0x10, 0x08, 0x04
_DESCRIPTOR_RESERVED: Final = 0x8F
_STORED: Final = 1 << 31
_BLOCKS_MIN: Final = 1_000
_BLOCK_BYTES_MIN: Final = 50
"""On average. Producers fill blocks of at least 64 KiB, which take 260 bytes or more. Each costs a step in Python."""


def validate_lz4_frame(data: Buffer) -> None:
    """Raises InvalidRecords unless the bytes are exactly one frame of independent blocks that are not empty.

    The decompression validates checksums and the contents of the blocks.
    """
    try:
        problem = _problem(data)
    except struct.error:
        problem = "its lz4 frame is truncated"
    if problem:
        raise InvalidRecords(
            {},
            f"record batch announces lz4, but its records cannot be decompressed by Kafka clients: {problem}: "
            "send one lz4 frame of version 1 with independent blocks and no dictionary",
        )


def _problem(data: Buffer) -> str | None:
    magic, flags, descriptor = _START.unpack_from(data)
    if magic != _MAGIC:
        return f"they begin with {magic:#010x}, an lz4 frame begins with {_MAGIC:#010x}"
    if flags & _FLAGS_MASK != _FLAGS:
        return f"its lz4 frame has flags {flags:#04x}"
    if descriptor & _DESCRIPTOR_RESERVED:
        return f"its lz4 frame has block descriptor {descriptor:#04x}"
    at = _START.size + (8 if flags & _CONTENT_SIZE else 0) + 1
    checksum_size = 4 if flags & _BLOCK_CHECKSUM else 0
    blocks_max = _BLOCKS_MIN + len(data) // _BLOCK_BYTES_MIN
    for _ in range(blocks_max):
        (size,) = _BLOCK_SIZE.unpack_from(data, at)
        at += _BLOCK_SIZE.size
        if size == 0:
            left = len(data) - at - (4 if flags & _CONTENT_CHECKSUM else 0)
            return f"its lz4 frame ends {left} bytes before the batch does" if left else None
        if size in (1, _STORED):
            return "its lz4 frame has a block without data"
        at += (size & ~_STORED) + checksum_size
    return f"its lz4 frame has more than {blocks_max} blocks in {len(data)} bytes"
