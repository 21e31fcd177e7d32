"""Long poll: wakes fetches that wait at the end of a partition.

Appends of this broker wake them immediately, those of other brokers through a watch of the metadata store. An event of
the watch only names the partition to refresh; a lost event costs no more than the fetch's timeout.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Final

from lakestream.data.log.partition_view import PartitionViews
from lakestream.errors import LakestreamError
from lakestream.metadata import keys
from lakestream.metadata.store import Changes, MetadataStore
from lakestream.model import PartitionId

log = logging.getLogger(__name__)

WATCH_RETRY_MS: Final = 200
REFRESHES_MAX: Final = 64
"""Partitions refreshed together after a change."""


class FetchWaiters:
    """Fetches that wait for more records, by partition."""

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
        """Yields an event that is set when any of these partitions advances."""
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


class LogChangeFeed:
    """Watches the metadata store and refreshes the partitions with waiting fetches."""

    def __init__(self, store: MetadataStore, views: PartitionViews, waiters: FetchWaiters) -> None:
        self._store = store
        self._views = views
        self._waiters = waiters

    async def run(self) -> None:
        while True:
            try:
                async for changes in self._store.watch(keys.LOGS):
                    await self._refresh_starts(changes)
                    await self._refresh_all(self._changed(changes))
            except LakestreamError as error:
                log.warning("log.watch_failed error=%s", error)
            except Exception:
                log.exception("log.watch_failed")  # a bug must not end all wake-ups
            await asyncio.sleep(WATCH_RETRY_MS / 1000)

    def _changed(self, changes: Changes) -> list[PartitionId]:
        """Returns the partitions that advanced beyond their views. Events of this broker's own claims are skipped."""
        if changes.everything or not self._waiters:
            return list(self._waiters)
        advanced = (self._advanced(path) for path in sorted(changes.paths))
        return list(dict.fromkeys(partition for partition in advanced if partition is not None))

    def _advanced(self, path: str) -> PartitionId | None:
        partition = keys.partition_of(path)
        if partition is None or partition not in self._waiters:
            return None
        view = self._views.cached(partition)
        offset = keys.offset_of(path)
        return partition if view is None or offset is None or offset >= view.offset_end else None

    async def _refresh_starts(self, changes: Changes) -> None:
        """Refreshes changed start offsets, also without waiting fetches: deleted records must not be served."""
        if changes.everything:
            self._views.start_generation += 1  # events were missed: each start is refreshed at the next read
        for path in sorted(path for path in changes.paths if keys.is_start(path)):
            partition = keys.partition_of(path)
            view = None if partition is None else self._views.cached(partition)
            if view is not None:
                await self._views.refresh_start(view)

    async def _refresh_all(self, partitions: list[PartitionId]) -> None:
        for start in range(0, len(partitions), REFRESHES_MAX):
            await asyncio.gather(*(self._refresh(partition) for partition in partitions[start : start + REFRESHES_MAX]))

    async def _refresh(self, partition: PartitionId) -> None:
        try:
            await self._views.refresh(await self._views.get(partition))
        except LakestreamError as error:
            log.info("log.refresh_failed partition=%s error=%s", partition, error)
            self._waiters.wake(partition)  # their own read reports the error
