"""Shared memory for metrics: each worker process writes its page, and the first worker reads all pages.

The parent creates it before it forks, so it outlives every worker. A reader skips a page during its write, because its
checksum is wrong then. The pages serve metrics only, never a decision.
"""

import mmap
import struct
from binascii import crc32
from typing import Final

from lakestream.model import MiB

PAGE_BYTES: Final = 4 * MiB
"""More than the largest page has; memory that is not written is not used."""
_HEAD: Final = struct.Struct("<II")
"""Size and checksum of the body."""


class SharedMetricsPages:
    def __init__(self, pages: int) -> None:
        self._memory = mmap.mmap(-1, pages * PAGE_BYTES)  # shared with all forked processes
        self.pages = pages

    def write(self, page: int, body: bytes) -> None:
        """Writes the page's body; a body that does not fit is replaced by an empty one."""
        if len(body) > PAGE_BYTES - _HEAD.size:
            body = b""
        at = page * PAGE_BYTES
        self._memory[at + _HEAD.size : at + _HEAD.size + len(body)] = body
        self._memory[at : at + _HEAD.size] = _HEAD.pack(len(body), crc32(body))

    def read(self, page: int) -> bytes | None:
        """Returns the page's last body; None if there is none yet, or the worker is writing it."""
        at = page * PAGE_BYTES
        size, checksum = _HEAD.unpack_from(self._memory, at)
        if not 0 < size <= PAGE_BYTES - _HEAD.size:
            return None
        body = self._memory[at + _HEAD.size : at + _HEAD.size + size]
        return body if crc32(body) == checksum else None

    def clear(self, page: int) -> None:
        self._memory[page * PAGE_BYTES : page * PAGE_BYTES + _HEAD.size] = bytes(_HEAD.size)

    def close(self) -> None:
        self._memory.close()
