"""Shared memory between the processes of one server: the HTTP process reads the metrics and health of the brokers.

The parent creates the pages before it forks, so they outlive every child. A broker writes a page when it is asked: the
HTTP process writes one byte to the page's pipe, and waits until the page changes. A reader skips a page during its
write, because its checksum is wrong then. The pages serve metrics and health only, never a decision.
"""

import asyncio
import logging
import mmap
import os
import struct
from binascii import crc32
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from lakestream.aio.background import BackgroundTasks
from lakestream.model import KiB, MiB

log = logging.getLogger(__name__)

PAGE_BYTES: Final = 4 * MiB
"""More than the largest page has; memory that is not written is not used."""
_HEAD: Final = struct.Struct("<III")
"""Number of writes, size and checksum of the body."""
_POLL_S: Final = 0.002


class SharedPages:
    def __init__(self, count: int) -> None:
        self.count = count
        self._memory = mmap.mmap(-1, max(1, count) * PAGE_BYTES)  # shared with all forked processes
        self._pipes = [os.pipe() for _ in range(count)]
        for pipe in self._pipes:
            for end in pipe:
                os.set_blocking(end, False)

    async def ask(self, page: int, timeout_s: float) -> bytes | None:
        """Returns the body that the page's writer writes now; None if it does not within the timeout."""
        written = self._head(page)[0]
        with suppress(BlockingIOError):  # the pipe is full: its reader is asked already
            os.write(self._pipes[page][1], b"?")
        try:
            async with asyncio.timeout(timeout_s):
                while self._head(page)[0] == written or (body := self.read(page)) is None:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            return None
        return body

    def write(self, page: int, body: bytes) -> None:
        """Writes the page's body. ValueError if it is larger than a page."""
        if len(body) > PAGE_BYTES - _HEAD.size:
            raise ValueError(f"{len(body)} bytes do not fit into page {page}, which has {PAGE_BYTES - _HEAD.size}")
        at = page * PAGE_BYTES
        self._memory[at + _HEAD.size : at + _HEAD.size + len(body)] = body
        self._memory[at : at + _HEAD.size] = _HEAD.pack(self._head(page)[0] + 1 & 0xFFFFFFFF, len(body), crc32(body))

    def read(self, page: int) -> bytes | None:
        """Returns the page's last body; None if there is none yet, or its writer is writing it."""
        at = page * PAGE_BYTES
        _, size, checksum = self._head(page)
        if not 0 < size <= PAGE_BYTES - _HEAD.size:
            return None
        body = self._memory[at + _HEAD.size : at + _HEAD.size + size]
        return body if crc32(body) == checksum else None

    def requests(self, page: int) -> int:
        """Returns the file descriptor that is readable when the page is asked for."""
        return self._pipes[page][0]

    def close(self) -> None:
        self._memory.close()
        for pipe in self._pipes:
            for end in pipe:
                os.close(end)

    def _head(self, page: int) -> tuple[int, int, int]:
        written, size, checksum = _HEAD.unpack_from(self._memory, page * PAGE_BYTES)
        return written, size, checksum


class PageWriter:
    """Writes a page when another process asks for it."""

    def __init__(self, pages: SharedPages, page: int, body: Callable[[], Awaitable[bytes]]) -> None:
        self._pages = pages
        self._page = page
        self._body = body
        self._tasks = BackgroundTasks()
        self._asked = asyncio.Event()

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._pages.requests(self._page), self._read_requests)
        self._tasks.start(self._run(), "shared_pages.write")

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pages.requests(self._page))
        await self._tasks.close()

    def _read_requests(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._pages.requests(self._page), 4 * KiB)
        self._asked.set()

    async def _run(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                self._pages.write(self._page, await self._body())
            except Exception:
                log.exception("shared_pages.write_failed page=%d", self._page)  # the reader does without this page
