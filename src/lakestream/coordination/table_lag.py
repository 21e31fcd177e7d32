"""Measures how far each topic's table lags behind, independent of the pipeline, which may be stopped or stalled.

The watch of the store reports which partitions have new records. Each tick reads the lag of a few of these, and of a
few that lagged before, until they no longer lag. Idle partitions cost nothing, busy ones a bounded number of small
reads. Used for metrics only.
"""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Final

from lakestream.aio.background import BackgroundTasks, follow, run_every
from lakestream.aio.gather import gather_limited
from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.errors import LakestreamError
from lakestream.metadata import keys
from lakestream.metadata.claims import Claims, Lag, lag_of
from lakestream.metadata.store import Changes, MetadataStore
from lakestream.model import PartitionId

log = logging.getLogger(__name__)

TICK_S: Final = 2.0
WATCH_PAUSE_S: Final = 1.0
"""Pause between reads of the watch, which collects changes: a busy broker does not handle each append."""
PARTITIONS_PER_TICK: Final = 100
PARTITIONS_AT_ONCE: Final = 8


class TableLagMonitor:
    def __init__(self, store: MetadataStore, metadata_cache: MetadataCache) -> None:
        self._store = store
        self._claims = Claims(store)
        self._metadata_cache = metadata_cache
        self._grown: dict[PartitionId, None] = {}  # in the order of their changes
        self._lagging: dict[PartitionId, Lag] = {}  # least recently read first
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        watch = partial(self._store.watch, keys.LOGS)
        self._tasks.start(follow(watch, self._on_changes, "lag.watch_failed", WATCH_PAUSE_S), "lag.watch")
        self._tasks.start(run_every(TICK_S, self.refresh, "lag.read_failed"), "lag.refresh")

    async def close(self) -> None:
        await self._tasks.close()

    def by_topic(self) -> dict[str, Lag]:
        """Returns the lag by topic name, without topics that do not lag."""
        lags: dict[str, Lag] = {}
        for partition, lag in self._lagging.items():
            name = self._metadata_cache.cached_name(partition.topic_id)
            if name is not None:
                before = lags.get(name, Lag(0, lag.oldest_ms))
                lags[name] = Lag(before.records + lag.records, min(before.oldest_ms, lag.oldest_ms))
        return lags

    async def refresh(self) -> None:
        """Reads the lag of some partitions with new records, and of some that lagged before."""
        grown = list(islice(self._grown, PARTITIONS_PER_TICK))
        for partition in grown:
            del self._grown[partition]
        lagging = [one for one in islice(self._lagging, PARTITIONS_PER_TICK) if one not in grown]
        partitions = [*grown, *lagging]
        try:
            lags = await gather_limited([lag_of(self._claims, one) for one in partitions], PARTITIONS_AT_ONCE)
        except LakestreamError as error:
            self._grown.update(dict.fromkeys(grown))
            log.warning("lag.read_failed error=%s", error)
            return
        for partition, lag in zip(partitions, lags, strict=True):
            self._lagging.pop(partition, None)
            if lag.records and self._metadata_cache.cached_name(partition.topic_id) is not None:
                self._lagging[partition] = lag

    def add_changes(self, changes: Changes) -> None:
        if changes.everything:
            self._grown.update(dict.fromkeys(self._all()))
        for path in changes.paths:
            partition = keys.partition_of(path)
            if partition is not None and keys.offset_of(path) is not None:
                self._grown[partition] = None

    def _all(self) -> Iterable[PartitionId]:
        return (partition for topic in self._metadata_cache.topics.values() for partition in topic.partitions())

    async def _on_changes(self, changes: Changes) -> None:
        self.add_changes(changes)
        await asyncio.sleep(WATCH_PAUSE_S)
