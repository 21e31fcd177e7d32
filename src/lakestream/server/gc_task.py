"""Periodic garbage collection of WAL objects and segments by one broker at a time."""

from collections.abc import Callable

from lakestream.aio.background import BackgroundTasks, run_every
from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.data.log.garbage_collector import WalGarbageCollector


class GcTask:
    """Deletes bytes without claims, which a broker leaves when it fails between the write and the claim.

    The live broker with the lowest node id runs it. Two brokers may run it at the same time without harm.
    """

    def __init__(
        self, collector: WalGarbageCollector, cache: MetadataCache, node_id: Callable[[], int], interval_ms: int
    ) -> None:
        self._collector = collector
        self._cache = cache
        self._node_id = node_id
        self._interval_ms = interval_ms
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        self._tasks.start(run_every(self._interval_ms / 1000, self._collect, "gc.failed"), name="broker.gc")

    async def close(self) -> None:
        await self._tasks.close()

    async def _collect(self) -> None:
        node_id = self._node_id()
        if node_id == min((broker.node_id for broker in self._cache.brokers), default=node_id):
            await self._collector.collect()
