"""How far each topic's table is behind, seen from a broker: also while the pipeline is stopped, stuck or not there.

The change feed tells which logs grew; a few of them are looked at per tick, and those that are behind again until they
are not. Idle logs cost nothing, busy ones a bounded number of small reads. For metrics only.
"""

import asyncio
import logging
from collections.abc import Iterable
from itertools import islice
from typing import Final

from lakestream.coordination.cluster import ClusterView
from lakestream.errors import LakestreamError
from lakestream.metadata import keys
from lakestream.metadata.claims import Claims
from lakestream.metadata.lag import Lag, lag_of
from lakestream.metadata.store import Changes, MetadataStore
from lakestream.model import PartitionId
from lakestream.storage.together import together

log = logging.getLogger(__name__)

TICK_S: Final = 2.0
FEED_S: Final = 1.0
"""Between looks at the feed, which keeps what happened: a busy broker does not hear of every append."""
LOGS_PER_TICK: Final = 100
LOGS_AT_ONCE: Final = 8


class Lags:
    def __init__(self, store: MetadataStore, view: ClusterView) -> None:
        self._store = store
        self._claims = Claims(store)
        self._view = view
        self._grown: dict[PartitionId, None] = {}  # in the order in which they were heard of
        self._behind: dict[PartitionId, Lag] = {}  # the one that was looked at last, last
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._follow(), name="lags.feed"), loop.create_task(self._run(), name="lags")]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def by_topic(self) -> dict[str, Lag]:
        """By name; topics that are not behind are not in it."""
        found: dict[str, Lag] = {}
        for partition, lag in self._behind.items():
            name = self._view.name_of(partition.topic_id)
            if name is not None:
                sofar = found.get(name, Lag(0, lag.oldest_ms))
                found[name] = Lag(sofar.records + lag.records, min(sofar.oldest_ms, lag.oldest_ms))
        return found

    async def look(self) -> None:
        """At some of those that grew, and at some of those that were behind."""
        grown = list(islice(self._grown, LOGS_PER_TICK))
        for partition in grown:
            del self._grown[partition]
        behind = [one for one in islice(self._behind, LOGS_PER_TICK) if one not in grown]
        partitions = [*grown, *behind]
        try:
            lags = await together([lag_of(self._claims, one) for one in partitions], LOGS_AT_ONCE)
        except LakestreamError as error:
            self._grown.update(dict.fromkeys(grown))
            log.warning("lags.unknown error=%s", error)
            return
        for partition, lag in zip(partitions, lags, strict=True):
            self._behind.pop(partition, None)
            if lag.records and self._view.name_of(partition.topic_id) is not None:
                self._behind[partition] = lag

    def note(self, changes: Changes) -> None:
        if changes.everything:
            self._grown.update(dict.fromkeys(self._all()))
        for path in changes.paths:
            partition = keys.partition_of(path)
            if partition is not None and keys.offset_of(path) is not None:
                self._grown[partition] = None

    def _all(self) -> Iterable[PartitionId]:
        return (partition for topic in self._view.topics.values() for partition in topic.partitions())

    async def _follow(self) -> None:
        while True:
            try:
                async for changes in self._store.watch(keys.LOGS):
                    self.note(changes)
                    await asyncio.sleep(FEED_S)
            except LakestreamError as error:
                log.warning("lags.feed_broken error=%s", error)
            await asyncio.sleep(FEED_S)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self.look()
            except Exception:
                log.exception("lags.unknown")  # a bug must not end all that is measured
