"""Regions of open files, which the kernel sends from the file to the socket without a copy in user space.

Created by data/wal/reader.py for large batches in segments, sent by protocol/kafka/network/socket_writer.py.
"""

import os
from typing import TypeAlias

from lakestream.errors import Unavailable
from lakestream.model import Buffer


class SharedFile:
    """A file that stays open while this object is referenced, so that its regions can be sent after it was deleted."""

    __slots__ = ("__weakref__", "descriptor", "name")

    def __init__(self, descriptor: int, name: str) -> None:
        self.descriptor = descriptor
        self.name = name

    def __del__(self) -> None:
        os.close(self.descriptor)


class FileRegion:
    """Range of bytes of an open file. The bytes must be written and verified before, and must not change."""

    __slots__ = ("file", "size", "start")

    def __init__(self, file: SharedFile, start: int, size: int) -> None:
        self.file = file
        self.start = start
        self.size = size

    def __len__(self) -> int:
        return self.size

    def after(self, count: int) -> "FileRegion":
        """Returns the region without its first `count` bytes."""
        return FileRegion(self.file, self.start + count, self.size - count)

    def read(self) -> bytes:
        """Reads the bytes into memory. Blocks."""
        data = os.pread(self.file.descriptor, self.size, self.start)
        while len(data) < self.size:
            more = os.pread(self.file.descriptor, self.size - len(data), self.start + len(data))
            if not more:
                raise Unavailable(f"{self.file.name}: was truncated during a read")
            data += more
        return data


BufferOrFile: TypeAlias = Buffer | FileRegion


def as_bytes(pieces: list[BufferOrFile]) -> bytes:
    """Reads all pieces into memory, to decode records and for tests."""
    return b"".join(piece.read() if isinstance(piece, FileRegion) else piece for piece in pieces)
