"""Bytes that stay where they lie on disk: sent from the file to the socket by the system, never through our memory.

Made by data/wal/reader.py for large batches in segments, sent by protocol/kafka/outlet.py.
"""

import os
from typing import TypeAlias

from lakestream.errors import Unavailable
from lakestream.model import Buffer


class OpenFile:
    """A file that stays open for as long as somebody holds this: what was promised from it can be sent, although it is
    deleted meanwhile."""

    __slots__ = ("__weakref__", "descriptor", "name")

    def __init__(self, descriptor: int, name: str) -> None:
        self.descriptor = descriptor
        self.name = name

    def __del__(self) -> None:
        os.close(self.descriptor)


class FileSpan:
    """Some bytes of an open file. They do not change: whoever makes one knows that they are written and checked."""

    __slots__ = ("file", "size", "start")

    def __init__(self, file: OpenFile, start: int, size: int) -> None:
        self.file = file
        self.start = start
        self.size = size

    def __len__(self) -> int:
        return self.size

    def after(self, count: int) -> "FileSpan":
        """What is left of it behind its first bytes."""
        return FileSpan(self.file, self.start + count, self.size - count)

    def read(self) -> bytes:
        """Into memory after all. Blocks."""
        data = os.pread(self.file.descriptor, self.size, self.start)
        while len(data) < self.size:
            more = os.pread(self.file.descriptor, self.size - len(data), self.start + len(data))
            if not more:
                raise Unavailable(f"{self.file.name} was cut off while it was read")
            data += more
        return data


Piece: TypeAlias = Buffer | FileSpan


def as_bytes(pieces: list[Piece]) -> bytes:
    """All of it in memory: for those who look at records, and for tests."""
    return b"".join(piece.read() if isinstance(piece, FileSpan) else piece for piece in pieces)
