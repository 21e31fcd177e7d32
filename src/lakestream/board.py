"""A board that the worker processes of one machine share: each writes its own page, whoever is asked reads them all.

Made by the parent before it forks, so it outlives any worker. A page that is being written while somebody reads it is
passed over: its checksum does not hold yet. What is on it is a report for people, never a decision.
"""

import mmap
import struct
from binascii import crc32
from typing import Final

from lakestream.model import KiB

PAGE_BYTES: Final = 256 * KiB
_HEAD: Final = struct.Struct("<II")
"""Size and checksum of what follows."""


class Board:
    def __init__(self, pages: int) -> None:
        self._memory = mmap.mmap(-1, pages * PAGE_BYTES)  # shared with all who are forked from here
        self.pages = pages

    def write(self, page: int, body: bytes) -> None:
        """What does not fit is left out whole."""
        if len(body) > PAGE_BYTES - _HEAD.size:
            body = b""
        at = page * PAGE_BYTES
        self._memory[at + _HEAD.size : at + _HEAD.size + len(body)] = body
        self._memory[at : at + _HEAD.size] = _HEAD.pack(len(body), crc32(body))

    def read(self, page: int) -> bytes | None:
        """What its worker wrote last; None: nothing yet, or it is writing just now."""
        at = page * PAGE_BYTES
        size, checksum = _HEAD.unpack_from(self._memory, at)
        if not 0 < size <= PAGE_BYTES - _HEAD.size:
            return None
        body = self._memory[at + _HEAD.size : at + _HEAD.size + size]
        return body if crc32(body) == checksum else None

    def wipe(self, page: int) -> None:
        self._memory[page * PAGE_BYTES : page * PAGE_BYTES + _HEAD.size] = bytes(_HEAD.size)

    def close(self) -> None:
        self._memory.close()
