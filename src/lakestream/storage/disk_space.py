"""Checks whether the disks of folders on this machine have space for more writes."""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from lakestream.aio.threads import WorkerThread
from lakestream.errors import Unavailable
from lakestream.model import MiB

FREE_BYTES_MIN: Final = 8 * MiB
"""One flush of the log."""


def free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


class DiskSpace:
    """Its calls run in a thread of its own, one at a time: a network disk may not respond."""

    def __init__(self, folders: Sequence[Path], free_of: Callable[[Path], int] = free_bytes) -> None:
        self._folders = folders
        self._free_of = free_of
        self._thread = WorkerThread("disk-space")
        self._running: asyncio.Future[str] | None = None

    async def check(self) -> None:
        """Raises Unavailable if a disk is full, with its folder."""
        if self._running is None or self._running.done():
            self._running = self._thread.submit(self._full)
        if full := await asyncio.shield(self._running):
            raise Unavailable(f"disk full: {full}: free space on that disk; no stored data is lost")

    def close(self) -> None:
        self._thread.close()

    def _full(self) -> str:
        for folder in self._folders:
            try:
                free = self._free_of(folder)
            except OSError:
                continue  # the checks of the stores report it
            if free < FREE_BYTES_MIN:
                return f"{folder} has {free // 1024:,} KiB free"
        return ""
