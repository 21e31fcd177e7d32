"""Writes the responses of one connection directly to its socket, in order, from memory or from a file.

Used by connection.py. The transport only reads: it cannot send from a file, and copies bytes that the socket does not
accept immediately. The connection bounds the unsent bytes: above its limit it reads no more requests.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from lakestream.model import Buffer
from lakestream.records.file_region import BufferOrFile, FileRegion

BUFFERS_MAX: Final = 512
"""Buffers per system call."""


class SocketWriter:
    def __init__(
        self,
        descriptor: int,
        loop: asyncio.AbstractEventLoop,
        on_sent: Callable[[], None],
        on_error: Callable[[str], None],
    ) -> None:
        self._descriptor = descriptor
        self._loop = loop
        self._on_sent = on_sent
        self._on_error = on_error
        self._pieces: deque[BufferOrFile] = deque()
        self._scheduled: asyncio.Handle | None = None
        self._duplicate = -1
        self._watching = False
        self._closed = False
        self.size = 0
        """Unsent bytes."""

    def send(self, pieces: Sequence[BufferOrFile]) -> None:
        """Sends pieces at the end of this iteration of the event loop, together with all others of it."""
        if self._closed:
            return
        self._pieces.extend(pieces)
        self.size += sum(map(len, pieces))
        if self._scheduled is None and not self._watching:
            self._scheduled = self._loop.call_soon(self._write_scheduled)

    def close(self) -> None:
        self._closed = True
        self._pieces.clear()
        self.size = 0
        if self._scheduled is not None:
            self._scheduled.cancel()
        self._watch(False)
        if self._duplicate >= 0:
            os.close(self._duplicate)
            self._duplicate = -1

    def _write_scheduled(self) -> None:
        self._scheduled = None
        self._write_all()

    def _write_all(self) -> None:
        try:
            while self._pieces:
                self._write_some()
            blocked = False
        except (BlockingIOError, InterruptedError):
            blocked = True
        except OSError as error:
            self._on_error(error.strerror or str(error))
            return
        self._watch(blocked)
        self._on_sent()

    def _write_some(self) -> None:
        first = self._pieces[0]
        if not isinstance(first, FileRegion):
            self._remove(os.writev(self._descriptor, self._buffers()))
            return
        count = os.sendfile(self._descriptor, first.file.descriptor, first.start, first.size)
        if not count:
            raise OSError(5, f"{first.file.name} ends before byte {first.start + first.size}")
        self._remove(count)

    def _buffers(self) -> list[Buffer]:
        """Returns the first buffers, up to the next piece of a file."""
        buffers: list[Buffer] = []
        for piece in self._pieces:
            if isinstance(piece, FileRegion) or len(buffers) == BUFFERS_MAX:
                break
            buffers.append(piece)
        return buffers

    def _remove(self, count: int) -> None:
        """Removes the bytes that were sent."""
        self.size -= count
        pieces = self._pieces
        while count or (pieces and not len(pieces[0])):
            piece = pieces.popleft()
            if count < len(piece):
                pieces.appendleft(piece.after(count) if isinstance(piece, FileRegion) else memoryview(piece)[count:])
                return
            count -= len(piece)

    def _watch(self, watch: bool) -> None:
        """Waits until the socket is writable, or stops waiting.

        Event loops reject a writer for the descriptor of a transport, but accept one for its duplicate.
        """
        if watch == self._watching:
            return
        self._watching = watch
        if watch:
            if self._duplicate < 0:
                self._duplicate = os.dup(self._descriptor)
            self._loop.add_writer(self._duplicate, self._write_all)
        else:
            self._loop.remove_writer(self._duplicate)
