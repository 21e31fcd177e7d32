"""Blocks of bytes kept in memory, bounded in bytes; the one unused for longest goes first.

Used by the read path before storage is asked. For one event loop: no locks.
"""

from collections import OrderedDict
from collections.abc import Hashable

from lakestream.model import Buffer


class BlockCache:
    """A block that is larger than the whole bound is not kept.

    A view counts with its own length, though it keeps alive all of the buffer it looks into: put whole buffers in.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._blocks: OrderedDict[Hashable, Buffer] = OrderedDict()
        self.bytes_used = 0
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, key: Hashable) -> Buffer | None:
        block = self._blocks.get(key)
        if block is None:
            self.misses += 1
            return None
        self.hits += 1
        self._blocks.move_to_end(key)
        return block

    def put(self, key: Hashable, block: Buffer) -> None:
        self.evict(key)
        if len(block) > self._bytes_max:
            return
        self._blocks[key] = block
        self.bytes_used += len(block)
        while self.bytes_used > self._bytes_max:
            _, oldest = self._blocks.popitem(last=False)
            self.bytes_used -= len(oldest)

    def evict(self, key: Hashable) -> None:
        """Drop it if it is there."""
        block = self._blocks.pop(key, None)
        if block is not None:
            self.bytes_used -= len(block)
