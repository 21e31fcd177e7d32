"""Room for what comes out of compressed batches: a few large buffers instead of one for each.

Before: compression.py, which writes into it.  After: decode.py, whose views name its buffers.
"""

from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.compression import decompress_into
from lakestream.errors import Rejected
from lakestream.model import Buffer, KiB, MiB

_BUFFER_SIZE: Final = 32 * MiB
_RATIO_GUESS: Final = 8
"""More than most records shrink. What is too little costs a second try, what is too much only addresses."""
_ROOM_MIN: Final = 64 * KiB
_ROOM_GROWTH: Final = 4


class Placed(NamedTuple):
    """Where records lie: in memory, and in the buffers that views name."""

    address: int
    size: int
    buffer: int
    position: int


class Arena:
    def __init__(self, size_max: int, buffers: list[Any]) -> None:
        """`size_max`: of one batch's records, decompressed. `buffers`: new ones are put behind those already there."""
        self.used = 0
        self._size_max = size_max
        self._buffers = buffers
        self._free = memoryview(b"")
        self._at = 0
        self._is_empty = False

    def put(self, records: Buffer, codec: str) -> Placed:
        """Rejected: they are not what the codec says, or more than one batch may hold."""
        room = min(max(_ROOM_MIN, _RATIO_GUESS * len(records)), self._size_max)
        while True:
            self._make(room)
            size = decompress_into(records, codec, self._free[: self._size_max])
            if size is not None:
                return self._take(size)
            if len(self._free) >= self._size_max:
                raise Rejected(f"it holds more than {self._size_max} bytes of records")
            room = min(max(room, len(self._free)) * _ROOM_GROWTH, self._size_max)

    def _make(self, room: int) -> None:
        if len(self._free) < room:
            if self._is_empty:
                self._buffers.pop()  # it was too small for its first batch: nothing points into it
            # From Arrow's pool, which keeps pages: fresh ones cost as much as filling them.
            buffer = pa.allocate_buffer(max(room, _BUFFER_SIZE))
            self._buffers.append(buffer)
            self._free, self._at = memoryview(buffer).cast("B"), 0
            self._is_empty = True

    def _take(self, size: int) -> Placed:
        placed = Placed(self._buffers[-1].address + self._at, size, len(self._buffers) - 1, self._at)
        self._free, self._at = self._free[size:], self._at + size
        self.used += size
        self._is_empty = False
        return placed
