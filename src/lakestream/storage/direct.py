"""Large files, written past the page cache: straight from our memory to the disk.

Used by disk.py for files from `DIRECT_SIZE_MIN` on: nobody reads them in the next moment, and they would push out of
the cache what somebody does. Measured on a virtual machine, with the sync: 0.05 s of CPU per GB instead of 0.3, or 2.5
where the host has taken back the memory that the cache now wants.

Bytes go through a buffer of ours that lies as disks want it. The last piece is filled up with zeros, which are then cut
off. A disk that cannot do it, or not like this, is written to as ever.
"""

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from lakestream.model import MiB

DIRECT_SIZE_MIN: Final = 16 * MiB
"""More than WAL objects usually have, which the pipeline reads soon."""
_PIECE_SIZE: Final = 4 * MiB
_ALIGNMENT: Final = 4_096
_NOT_LIKE_THIS: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP})
_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)  # not on every system

_kept = threading.local()


def write_direct(file: int, body: Sequence[memoryview]) -> None:
    """All of it, from the start of an empty file; the sync is left to the caller."""
    with suppress(OSError):  # not on every file system
        _set_direct(file, True)
    room, position = _room(), 0
    for size in _pieces(body, room):
        end = -(-size // _ALIGNMENT) * _ALIGNMENT
        room[size:end] = bytes(end - size)
        _write_at(file, room[:end], position)
        position += size
    os.ftruncate(file, position)


def _write_at(file: int, piece: memoryview, position: int) -> None:
    while piece:
        try:
            written = os.pwrite(file, piece, position)
        except OSError as error:
            if error.errno not in _NOT_LIKE_THIS or not _is_direct(file):
                raise
            _set_direct(file, False)  # it wants larger blocks, or the rest of a short write is no block
            continue
        if not written:
            raise OSError(errno.EIO, "the disk takes no more bytes")
        piece, position = piece[written:], position + written


def _pieces(body: Sequence[memoryview], room: memoryview) -> Iterator[int]:
    """How much of the room is filled with what comes next: all of it, but for the last time."""
    filled = 0
    for buffer in body:
        start = 0
        while start < len(buffer):
            size = min(len(buffer) - start, len(room) - filled)
            room[filled : filled + size] = buffer[start : start + size]
            start, filled = start + size, filled + size
            if filled == len(room):
                yield filled
                filled = 0
    if filled:
        yield filled


def _room() -> memoryview:
    """One for each thread: fresh memory would cost more than the copy into it."""
    kept: memoryview | None = getattr(_kept, "room", None)
    if kept is None:
        # It begins with a page, as disks want it, and is nobody else's, also not after a fork.
        kept = _kept.room = memoryview(mmap.mmap(-1, _PIECE_SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    return kept


def _is_direct(file: int) -> bool:
    return bool(fcntl.fcntl(file, fcntl.F_GETFL) & _DIRECT)


def _set_direct(file: int, wanted: bool) -> None:
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    fcntl.fcntl(file, fcntl.F_SETFL, flags | _DIRECT if wanted else flags & ~_DIRECT)
