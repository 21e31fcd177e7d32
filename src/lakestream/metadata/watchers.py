"""Distributes changes to the watches of one client. Used by every backend, on the event loop.

A backend passes changed paths to `Watchers`. Changes are merged for each consumer until its next read.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection

from lakestream.errors import Unavailable
from lakestream.metadata.store import Changes

PATHS_MAX = 10_000
"""Above this number of unread paths, a consumer gets `everything`, which is cheaper than the list."""


class Watcher:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._paths: set[str] = set()
        self._everything = True
        self._closed: str | None = None
        self._changed = asyncio.Event()
        self._changed.set()

    def notify(self, paths: Collection[str]) -> None:
        watched = [path for path in paths if path.startswith(self._prefix)]
        if not watched:
            return
        self._paths.update(watched)
        if len(self._paths) > PATHS_MAX:
            self.notify_everything()
        self._changed.set()

    def notify_everything(self) -> None:
        self._paths.clear()
        self._everything = True
        self._changed.set()

    def close(self, reason: str) -> None:
        self._closed = reason
        self._changed.set()

    async def take(self) -> Changes:
        await self._changed.wait()
        if self._closed is not None:
            raise Unavailable(self._closed)
        changes = Changes(frozenset(self._paths), self._everything)
        self._paths.clear()
        self._everything = False
        self._changed.clear()
        return changes


class Watchers:
    def __init__(self) -> None:
        # A dict is an ordered set: consumers are notified in the order of their watches, the same in every run.
        self._watchers: dict[Watcher, None] = {}

    def __len__(self) -> int:
        return len(self._watchers)

    def notify(self, paths: Collection[str]) -> None:
        for watcher in self._watchers:
            watcher.notify(paths)

    def notify_everything(self) -> None:
        for watcher in self._watchers:
            watcher.notify_everything()

    def close(self, reason: str) -> None:
        """Ends all watches: their current and later reads raise Unavailable."""
        for watcher in self._watchers:
            watcher.close(reason)

    async def watch(self, prefix: str) -> AsyncGenerator[Changes, None]:
        watcher = Watcher(prefix)
        self._watchers[watcher] = None
        try:
            while True:
                yield await watcher.take()
        finally:
            del self._watchers[watcher]
