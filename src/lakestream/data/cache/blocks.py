"""Blocks kept in memory, bounded in bytes; the one unused for longest goes first.

Used by the read path before storage is asked. For one event loop: no locks.
"""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BlockCache(Generic[K, V]):
    """Each block counts with the size that its owner names, and `overhead` for what Python keeps around it. One larger
    than the whole bound is not kept."""

    def __init__(self, bytes_max: int, overhead: int = 0) -> None:
        self._bytes_max = bytes_max
        self._overhead = overhead
        self._blocks: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.bytes_used = 0
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: K) -> bool:
        return key in self._blocks

    def get(self, key: K) -> V | None:
        block = self._blocks.get(key)
        if block is None:
            self.misses += 1
            return None
        self.hits += 1
        self._blocks.move_to_end(key)
        return block[0]

    def put(self, key: K, block: V, size: int) -> None:
        self.evict(key)
        size += self._overhead
        if size > self._bytes_max:
            return
        self._blocks[key] = (block, size)
        self.bytes_used += size
        while self.bytes_used > self._bytes_max:
            _, (_, oldest_size) = self._blocks.popitem(last=False)
            self.bytes_used -= oldest_size

    def demote(self, key: K) -> None:
        """It has been used up: it goes before all others."""
        if key in self._blocks:
            self._blocks.move_to_end(key, last=False)

    def evict(self, key: K) -> None:
        """Drop it if it is there."""
        block = self._blocks.pop(key, None)
        if block is not None:
            self.bytes_used -= block[1]
