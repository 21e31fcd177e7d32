"""Buffers for the records of compressed batches: a few large ones instead of one for each batch.

records/compression.py writes into them; the views of batch_decoder.py name them.
"""

from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.errors import Rejected
from lakestream.model import Buffer, KiB, MiB
from lakestream.records.compression import decompress_into

_BUFFER_SIZE: Final = 32 * MiB
_RATIO_GUESS: Final = 8
"""Above most compression ratios. Too small costs a second attempt, too large only address space."""
_ROOM_MIN: Final = 64 * KiB
_ROOM_GROWTH: Final = 4


class BufferSlice(NamedTuple):
    """The location of decompressed records: in memory, and in the buffers that views name."""

    address: int
    size: int
    buffer: int
    position: int


class DecompressionBuffers:
    def __init__(self, size_max: int, buffers: list[Any]) -> None:
        """`size_max`: of one batch's decompressed records. `buffers`: new buffers are appended to it."""
        self.used = 0
        self._size_max = size_max
        self._buffers = buffers
        self._free = memoryview(b"")
        self._at = 0
        self._is_empty = False

    def put(self, records: Buffer, codec: str) -> BufferSlice:
        """Decompresses records. Raises Rejected if they are invalid for the codec, or exceed the limit of a batch."""
        before = self._free, self._at
        try:
            return self._put(records, codec)
        except Rejected:
            self._drop_empty()  # rows keep all buffers in memory, so also this one
            self._free, self._at = before
            raise

    def _put(self, records: Buffer, codec: str) -> BufferSlice:
        room = min(max(_ROOM_MIN, _RATIO_GUESS * len(records)), self._size_max)
        while True:
            self._reserve(room)
            size = decompress_into(records, codec, self._free[: self._size_max])
            if size is not None:
                return self._take(size)
            if len(self._free) >= self._size_max:
                raise Rejected(f"it holds more than {self._size_max} bytes of records")
            room = min(max(room, len(self._free)) * _ROOM_GROWTH, self._size_max)

    def _drop_empty(self) -> None:
        """Drops the newest buffer if nothing points into it."""
        if self._is_empty:
            self._free, self._is_empty = memoryview(b""), False
            self._buffers.pop()

    def _reserve(self, room: int) -> None:
        if len(self._free) < room:
            self._drop_empty()  # it was too small for its first batch
            # From Arrow's pool, which keeps pages: fresh pages cost as much as filling them.
            buffer = pa.allocate_buffer(max(room, _BUFFER_SIZE))
            self._buffers.append(buffer)
            self._free, self._at = memoryview(buffer).cast("B"), 0
            self._is_empty = True

    def _take(self, size: int) -> BufferSlice:
        taken = BufferSlice(self._buffers[-1].address + self._at, size, len(self._buffers) - 1, self._at)
        self._free, self._at = self._free[size:], self._at + size
        self.used += size
        self._is_empty = False
        return taken
