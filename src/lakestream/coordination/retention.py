"""Applies `retention.ms` and `retention.bytes`: moves the start offset of partitions forward. The table keeps the rows.

Pure decisions first, then the task that applies them: one broker does it for each partition, chosen like its leader,
and only a pointer moves. Two brokers that both consider themselves chosen do no harm: the start only moves forward.

Both parts of a log count: the table's files first, with the timestamps and sizes from the manifests, then the claims.
The start moves over whole files and whole claims, so all records within the limits stay, and some more may.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from lakestream.aio.background import BackgroundTasks
from lakestream.clock import Clock
from lakestream.coordination import placement, topic_config
from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.coordination.topic_config import TopicSettings
from lakestream.data.log.log import Log
from lakestream.data.table.history_types import HistoryFile
from lakestream.errors import LakestreamError, Missing
from lakestream.metadata.claims import Claim, StoredClaim
from lakestream.model import PartitionId

log = logging.getLogger(__name__)

TICK_MS: Final = 1_000
PARTITIONS_PER_TICK: Final = 200
"""Partitions of other brokers cost nothing, each of this broker costs three small reads of the metadata store."""
UNLIMITED: Final = -1


def skip_old_files(files: Sequence[HistoryFile], offset: int, before_ms: int) -> int:
    """Returns the start offset after the table's old files: the first file, in offset order, that is not too old.

    If all files are too old, it is the end of the last one."""
    for file in files:
        if file.newest_ms >= before_ms:
            return max(offset, file.offset_first)
    return max([offset, *(file.offset_end for file in files)])


def skip_surplus_files(files: Sequence[HistoryFile], offset: int, surplus: int) -> tuple[int, int]:
    """Returns the start offset after the files that fit into the surplus bytes, and the surplus left for the claims."""
    for file in files:
        if file.size > surplus:
            return max(offset, file.offset_first), 0
        surplus -= file.size
    return max([offset, *(file.offset_end for file in files)]), surplus


def skip_old_claims(claims: Iterable[StoredClaim], offset: int, before_ms: int) -> int:
    """Returns the start offset after old claims: the first claim whose newest record is not too old.

    For records without a timestamp the append time counts."""
    for claim, _ in claims:
        newest_ms = claim.max_timestamp if claim.max_timestamp >= 0 else claim.appended_ms
        if newest_ms >= before_ms:
            break
        offset = claim.offset_end
    return offset


def skip_surplus_claims(claims: Iterable[StoredClaim], offset: int, surplus: int) -> tuple[int, int]:
    """Returns the start offset after the claims that fit into the surplus bytes, and the surplus that is left."""
    for claim, _ in claims:
        size = size_of(claim)
        if size > surplus:
            return offset, 0
        offset, surplus = claim.offset_end, surplus - size
    return offset, surplus


def size_of(claim: Claim) -> int:
    return sum(batch.byte_end - batch.byte_start for batch in claim.batches)


class Retention:
    """Checks a few partitions per tick, and each partition once per interval."""

    def __init__(
        self, logs: Log, metadata_cache: MetadataCache, node_id: Callable[[], int], clock: Clock, interval_ms: int
    ) -> None:
        self._log = logs
        self._metadata_cache = metadata_cache
        self._node_id = node_id
        self._clock = clock
        self._interval_ms = interval_ms
        self._tick_ms = min(TICK_MS, interval_ms)
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        self._tasks.start(self._run(), "broker.retention")

    async def close(self) -> None:
        await self._tasks.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            topics = [
                topic
                for topic in self._metadata_cache.topics.values()
                if _is_limited(topic_config.read(topic.settings))
            ]
            due = (partition for topic in topics for partition in topic.partitions())
            while partitions := list(islice(due, PARTITIONS_PER_TICK)):
                for partition in partitions:
                    if self.is_assigned(partition):
                        await self._expire(partition)
                await asyncio.sleep(self._tick_ms / 1000)

    def is_assigned(self, partition: PartitionId) -> bool:
        brokers = self._metadata_cache.brokers
        return not brokers or placement.chosen(str(partition), brokers).node_id == self._node_id()

    async def _expire(self, partition: PartitionId) -> None:
        try:
            await self.expire(partition)
        except Missing:
            return  # the topic was deleted
        except LakestreamError as error:
            name = self._metadata_cache.cached_name(partition.topic_id) or partition.topic_id
            log.warning("retention.failed topic=%s partition=%d error=%s", name, partition.number, error)

    async def expire(self, partition: PartitionId) -> int:
        """Moves the start as the topic's settings require, and returns it."""
        name = self._metadata_cache.cached_name(partition.topic_id)
        topic = None if name is None else self._metadata_cache.cached_topic(name)
        bounds = await self._log.bounds(partition)
        if topic is None:
            return bounds.start
        settings = topic_config.read(topic.settings)
        start = bounds.start
        if settings.expires and settings.retention_ms != UNLIMITED:
            start = await self._skip_old(partition, start, self._clock.now_ms() - settings.retention_ms)
        if settings.expires and settings.retention_bytes != UNLIMITED:
            start = max(start, await self._skip_surplus(partition, bounds.start, settings.retention_bytes))
        if start > bounds.start:
            log.info("retention.moved topic=%s partition=%d start=%d", name, partition.number, start)
            return await self._log.delete_before(partition, start)
        return bounds.start

    async def _skip_old(self, partition: PartitionId, start: int, before_ms: int) -> int:
        files = await self._log.history_files(partition, start)
        start = skip_old_files(files, start, before_ms)
        if any(file.newest_ms >= before_ms for file in files):
            return start
        while claims := await self._log.claims(partition, start):
            moved = skip_old_claims(claims, start, before_ms)
            if moved < claims[-1].claim.offset_end:
                return moved
            start = moved
        return start

    async def _skip_surplus(self, partition: PartitionId, start: int, bytes_max: int) -> int:
        files = await self._log.history_files(partition, start)
        surplus = (await self._log.size(partition)).bytes + sum(file.size for file in files) - bytes_max
        if surplus <= 0:
            return start
        start, surplus = skip_surplus_files(files, start, surplus)
        while surplus > 0 and (claims := await self._log.claims(partition, start)):
            start, surplus = skip_surplus_claims(claims, start, surplus)
        return start


def _is_limited(settings: TopicSettings) -> bool:
    return settings.expires and (settings.retention_ms, settings.retention_bytes) != (UNLIMITED, UNLIMITED)
