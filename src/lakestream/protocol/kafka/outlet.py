"""A connection's answers on their way out: written straight to the socket, in order, from memory or from a file.

Beside server.py. The transport only reads: it cannot send from a file, and copies what the socket does not take at
once. What has to wait is bounded by the connection, which takes no more requests meanwhile.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from lakestream.filed import FileSpan, Piece
from lakestream.model import Buffer

BUFFERS_MAX: Final = 512
"""That one system call takes."""


class Outlet:
    def __init__(
        self, descriptor: int, loop: asyncio.AbstractEventLoop, moved: Callable[[], None], broken: Callable[[str], None]
    ) -> None:
        self._descriptor = descriptor
        self._loop = loop
        self._moved = moved
        self._broken = broken
        self._waiting: deque[Piece] = deque()
        self._scheduled: asyncio.Handle | None = None
        self._twin = -1
        self._watching = False
        self._closed = False
        self.size = 0
        """Bytes that wait."""

    def send(self, pieces: Sequence[Piece]) -> None:
        """They go out at the end of this turn of the loop, together with what else is answered in it."""
        if self._closed:
            return
        self._waiting.extend(pieces)
        self.size += sum(map(len, pieces))
        if self._scheduled is None and not self._watching:
            self._scheduled = self._loop.call_soon(self._begin)

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        self.size = 0
        if self._scheduled is not None:
            self._scheduled.cancel()
        self._watch(False)
        if self._twin >= 0:
            os.close(self._twin)
            self._twin = -1

    def _begin(self) -> None:
        self._scheduled = None
        self._write_on()

    def _write_on(self) -> None:
        try:
            while self._waiting:
                self._write_some()
            blocked = False
        except (BlockingIOError, InterruptedError):
            blocked = True
        except OSError as error:
            self._broken(error.strerror or str(error))
            return
        self._watch(blocked)
        self._moved()

    def _write_some(self) -> None:
        first = self._waiting[0]
        if not isinstance(first, FileSpan):
            self._written(os.writev(self._descriptor, self._buffers()))
            return
        count = os.sendfile(self._descriptor, first.file.descriptor, first.start, first.size)
        if not count:
            raise OSError(5, f"{first.file.name} ends before byte {first.start + first.size}")
        self._written(count)

    def _buffers(self) -> list[Buffer]:
        """Those in front, up to the next that is in a file."""
        buffers: list[Buffer] = []
        for piece in self._waiting:
            if isinstance(piece, FileSpan) or len(buffers) == BUFFERS_MAX:
                break
            buffers.append(piece)
        return buffers

    def _written(self, count: int) -> None:
        self.size -= count
        waiting = self._waiting
        while count or (waiting and not len(waiting[0])):
            piece = waiting.popleft()
            if count < len(piece):
                waiting.appendleft(piece.after(count) if isinstance(piece, FileSpan) else memoryview(piece)[count:])
                return
            count -= len(piece)

    def _watch(self, watch: bool) -> None:
        """Wait until the socket takes more. Loops let nobody watch a socket that a transport reads, but do its twin."""
        if watch == self._watching:
            return
        self._watching = watch
        if watch:
            if self._twin < 0:
                self._twin = os.dup(self._descriptor)
            self._loop.add_writer(self._twin, self._write_on)
        else:
            self._loop.remove_writer(self._twin)
