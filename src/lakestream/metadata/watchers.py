"""Who watches what inside one client, and what each has not taken yet. Used by every backend.

A backend tells `Watchers` which paths changed; each consumer takes what was merged for it since its last look.
Everything here runs on the event loop.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection

from lakestream.errors import Unavailable
from lakestream.metadata.store import Changes

PATHS_MAX = 10_000
"""A consumer that is further behind than this is told to look at everything: cheaper than the list."""


class Watcher:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._paths: set[str] = set()
        self._everything = True
        self._closed: str | None = None
        self._news = asyncio.Event()
        self._news.set()

    def tell(self, paths: Collection[str]) -> None:
        mine = [path for path in paths if path.startswith(self._prefix)]
        if not mine:
            return
        self._paths.update(mine)
        if len(self._paths) > PATHS_MAX:
            self.tell_everything()
        self._news.set()

    def tell_everything(self) -> None:
        self._paths.clear()
        self._everything = True
        self._news.set()

    def close(self, reason: str) -> None:
        self._closed = reason
        self._news.set()

    async def take(self) -> Changes:
        await self._news.wait()
        if self._closed is not None:
            raise Unavailable(self._closed)
        changes = Changes(frozenset(self._paths), self._everything)
        self._paths.clear()
        self._everything = False
        self._news.clear()
        return changes


class Watchers:
    def __init__(self) -> None:
        # A dict is an ordered set: consumers are told in the order in which they came, the same in every run.
        self._watchers: dict[Watcher, None] = {}

    def __len__(self) -> int:
        return len(self._watchers)

    def tell(self, paths: Collection[str]) -> None:
        for watcher in self._watchers:
            watcher.tell(paths)

    def tell_everything(self) -> None:
        for watcher in self._watchers:
            watcher.tell_everything()

    def close(self, reason: str) -> None:
        """Everyone who waits, or comes to take, hears `Unavailable`."""
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
