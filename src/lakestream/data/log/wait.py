"""Long poll: who waits at the end of a log is woken by our own appends at once, and by others' through the change feed.

The feed is a hint, never the truth: it tells which log to look at, and a lost event costs only the wait's time-out.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Final

from lakestream.data.log.view import Views
from lakestream.errors import LakestreamError
from lakestream.metadata import keys
from lakestream.metadata.store import Changes, MetadataStore
from lakestream.model import PartitionId

log = logging.getLogger(__name__)

FEED_RETRY_MS: Final = 200
LOOKS_MAX: Final = 64
"""Logs looked at together after a change."""


class Waiters:
    """Who waits for which log to grow beyond which offset."""

    def __init__(self) -> None:
        self._waiting: dict[PartitionId, dict[asyncio.Event, None]] = {}  # dicts, not sets: woken in order of arrival

    def __contains__(self, partition: PartitionId) -> bool:
        return partition in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[PartitionId]:
        return iter(list(self._waiting))

    def wake(self, partition: PartitionId) -> None:
        for event in self._waiting.get(partition, ()):
            event.set()

    @contextlib.contextmanager
    def joined(self, partitions: Sequence[PartitionId]) -> Iterator[asyncio.Event]:
        """An event that is set when any of these logs grows."""
        event = asyncio.Event()
        for partition in partitions:
            self._waiting.setdefault(partition, {})[event] = None
        try:
            yield event
        finally:
            for partition in partitions:
                self._leave(partition, event)

    def _leave(self, partition: PartitionId, event: asyncio.Event) -> None:
        waiting = self._waiting.get(partition, {})
        waiting.pop(event, None)
        if not waiting:
            self._waiting.pop(partition, None)


class Feed:
    """Follows the metadata store's change feed and looks at the logs that somebody waits for."""

    def __init__(self, store: MetadataStore, views: Views, waiters: Waiters) -> None:
        self._store = store
        self._views = views
        self._waiters = waiters

    async def run(self) -> None:
        while True:
            try:
                async for changes in self._store.watch(keys.LOGS):
                    await self._look_at_starts(changes)
                    await self._look(self._changed(changes))
            except LakestreamError as error:
                log.warning("log.feed_broken error=%s", error)
            except Exception:
                log.exception("log.feed_broken")  # a bug must not end all wake-ups
            await asyncio.sleep(FEED_RETRY_MS / 1000)

    def _changed(self, changes: Changes) -> list[PartitionId]:
        """Logs that changed beyond what we know of them. Our own claims come back here too, and are known."""
        if changes.everything or not self._waiters:
            return list(self._waiters)
        news = (self._news(path) for path in sorted(changes.paths))
        return list(dict.fromkeys(partition for partition in news if partition is not None))

    def _news(self, path: str) -> PartitionId | None:
        partition = keys.partition_of(path)
        if partition is None or partition not in self._waiters:
            return None
        view = self._views.known(partition)
        offset = keys.offset_of(path)
        return partition if view is None or offset is None or offset >= view.offset_end else None

    async def _look_at_starts(self, changes: Changes) -> None:
        """Also of logs that nobody waits for: what was deleted is not read from here any more."""
        if changes.everything:
            self._views.doubts += 1  # which of them moved is not known: each is looked at when it is next read
        for path in sorted(path for path in changes.paths if keys.moves_start(path)):
            partition = keys.partition_of(path)
            view = None if partition is None else self._views.known(partition)
            if view is not None:
                await self._views.look_at_start(view)

    async def _look(self, partitions: list[PartitionId]) -> None:
        for start in range(0, len(partitions), LOOKS_MAX):
            await asyncio.gather(*(self._refresh(partition) for partition in partitions[start : start + LOOKS_MAX]))

    async def _refresh(self, partition: PartitionId) -> None:
        try:
            await self._views.refresh(await self._views.get(partition))
        except LakestreamError as error:
            log.info("log.look_failed partition=%s error=%s", partition, error)
            self._waiters.wake(partition)  # let them hear it themselves
