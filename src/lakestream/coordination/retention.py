"""The stream forgets: `retention.ms` and `retention.bytes` move the start of a log forward. The table remembers.

Pure decisions first, then the task that applies them: each partition is looked after by one broker, chosen as its
leader is, and only a pointer moves. Two brokers that both believe to be chosen do no harm: it only goes forward.

Both parts of a log count: the table's files first, by what the manifests say of their times and sizes, then the claims.
The start moves over whole files and whole claims, so what is to stay always does; a bit more may.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from lakestream.clock import Clock
from lakestream.coordination import placement, topic_settings
from lakestream.coordination.cluster import ClusterView
from lakestream.coordination.topic_settings import TopicSettings
from lakestream.data.log.log import Log
from lakestream.data.table.past import PastFile
from lakestream.errors import LakestreamError, Missing
from lakestream.metadata.claims import Claim, Dated
from lakestream.model import PartitionId

log = logging.getLogger(__name__)

TICK_MS: Final = 1_000
PARTITIONS_PER_TICK: Final = 200
"""Those of other brokers cost nothing, one of our own three small reads of the metadata store."""
FOR_EVER: Final = -1


def past_too_old(files: Sequence[PastFile], offset: int, before_ms: int) -> int:
    """How far the start may move over the table's files, in order of their first offsets: up to the first that is not
    too old. All of them: behind the last."""
    for file in files:
        if file.newest_ms >= before_ms:
            return max(offset, file.offset_first)
    return max([offset, *(file.offset_end for file in files)])


def past_too_much(files: Sequence[PastFile], offset: int, surplus: int) -> tuple[int, int]:
    """The same by size, and how much surplus is left for what comes behind them."""
    for file in files:
        if file.size > surplus:
            return max(offset, file.offset_first), 0
        surplus -= file.size
    return max([offset, *(file.offset_end for file in files)]), surplus


def too_old(claims: Iterable[Dated], offset: int, before_ms: int) -> int:
    """How far the start may move from `offset`: over claims whose newest record is older, up to the first that is not.

    Records without a time count from when they were appended."""
    for claim, _ in claims:
        newest_ms = claim.max_timestamp if claim.max_timestamp >= 0 else claim.appended_ms
        if newest_ms >= before_ms:
            break
        offset = claim.offset_end
    return offset


def too_much(claims: Iterable[Dated], offset: int, surplus: int) -> tuple[int, int]:
    """How far the start may move from `offset` so that at least what is to stay stays, and how much surplus is left."""
    for claim, _ in claims:
        size = size_of(claim)
        if size > surplus:
            return offset, 0
        offset, surplus = claim.offset_end, surplus - size
    return offset, surplus


def size_of(claim: Claim) -> int:
    return sum(batch.byte_end - batch.byte_start for batch in claim.batches)


class Retention:
    """Looks at a few partitions per tick, and at each of them once per round."""

    def __init__(self, logs: Log, view: ClusterView, node_id: Callable[[], int], clock: Clock, round_ms: int) -> None:
        self._log = logs
        self._view = view
        self._node_id = node_id
        self._clock = clock
        self._round_ms = round_ms
        self._tick_ms = min(TICK_MS, round_ms)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="broker.retention")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._round_ms / 1000)
            topics = [topic for topic in self._view.topics.values() if _limits(topic_settings.read(topic.settings))]
            due = (partition for topic in topics for partition in topic.partitions())
            while some := list(islice(due, PARTITIONS_PER_TICK)):
                for partition in some:
                    if self.is_mine(partition):
                        await self._expire(partition)
                await asyncio.sleep(self._tick_ms / 1000)

    def is_mine(self, partition: PartitionId) -> bool:
        brokers = self._view.brokers
        return not brokers or placement.chosen(str(partition), brokers).node_id == self._node_id()

    async def _expire(self, partition: PartitionId) -> None:
        try:
            await self.expire(partition)
        except Missing:
            return  # deleted meanwhile
        except LakestreamError as error:
            name = self._view.name_of(partition.topic_id) or partition.topic_id
            log.warning("retention.failed topic=%s partition=%d error=%s", name, partition.number, error)

    async def expire(self, partition: PartitionId) -> int:
        """Move the start as far as the topic's settings want it; returns where it is then."""
        name = self._view.name_of(partition.topic_id)
        topic = None if name is None else self._view.known(name)
        bounds = await self._log.bounds(partition)
        if topic is None:
            return bounds.start
        settings = topic_settings.read(topic.settings)
        start = bounds.start
        if settings.expires and settings.retention_ms != FOR_EVER:
            start = await self._without_old(partition, start, self._clock.now_ms() - settings.retention_ms)
        if settings.expires and settings.retention_bytes != FOR_EVER:
            start = max(start, await self._within(partition, bounds.start, settings.retention_bytes))
        if start > bounds.start:
            log.info("retention.moved partition=%s start=%d", partition, start)
            return await self._log.delete_before(partition, start)
        return bounds.start

    async def _without_old(self, partition: PartitionId, start: int, before_ms: int) -> int:
        files = await self._log.past_files(partition, start)
        start = past_too_old(files, start, before_ms)
        if any(file.newest_ms >= before_ms for file in files):
            return start
        while claims := await self._log.claims(partition, start):
            moved = too_old(claims, start, before_ms)
            if moved < claims[-1].claim.offset_end:
                return moved
            start = moved
        return start

    async def _within(self, partition: PartitionId, start: int, bytes_max: int) -> int:
        files = await self._log.past_files(partition, start)
        surplus = await self._log.size(partition) + sum(file.size for file in files) - bytes_max
        if surplus <= 0:
            return start
        start, surplus = past_too_much(files, start, surplus)
        while surplus > 0 and (claims := await self._log.claims(partition, start)):
            start, surplus = too_much(claims, start, surplus)
        return start


def _limits(settings: TopicSettings) -> bool:
    return settings.expires and (settings.retention_ms, settings.retention_bytes) != (FOR_EVER, FOR_EVER)
