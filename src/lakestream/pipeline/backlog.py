"""What the logs have that their tables have not.

Before: the metadata store's change feed, which tells which logs grew.  After: plan.py.  Only logs that changed are
looked at, so that a thousand idle topics cost nothing.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from lakestream.catalog.errors import TableAltered
from lakestream.data.log.fold import Aborted, served
from lakestream.data.log.log import Log
from lakestream.errors import LakestreamError, Missing
from lakestream.metadata import keys
from lakestream.metadata.claims import Claim, Kind
from lakestream.metadata.store import Changes, MetadataStore
from lakestream.metadata.topics import Topics
from lakestream.model import PartitionId
from lakestream.pipeline.plan import Backlog, Spot
from lakestream.pipeline.whole import Part, Transaction, Whereabouts, joined
from lakestream.storage.together import together

log = logging.getLogger(__name__)

FEED_RETRY_MS: Final = 200
FULL_LOOK_S: Final = 30 * 60
"""Between looks at all logs. What the feed tells is looked at, but by a read that may be older than what it tells."""
LOGS_AT_ONCE: Final = 32
SPOTS_MAX: Final = 200_000
"""Batches of one log that a round knows of: a log that is far behind is not read to its end before it is moved."""


class ChangedLogs:
    """Which logs may have something to move. All of them at the start, when events were missed, and now and then."""

    def __init__(self, metadata: MetadataStore, topics: Topics) -> None:
        self._metadata = metadata
        self._topics = topics
        self._changed: set[PartitionId] = set()
        self._all = True
        self._looked_s = float("-inf")
        self.news = asyncio.Event()
        """Set when a log grew."""

    @property
    def waiting(self) -> bool:
        """Some may have something to move."""
        return self._all or bool(self._changed)

    async def follow(self) -> None:
        while True:
            try:
                async for changes in self._metadata.watch(keys.LOGS):
                    self._note(changes)
            except LakestreamError as error:
                log.warning("pipeline.feed_broken error=%s", error)
            self._all = True
            await asyncio.sleep(FEED_RETRY_MS / 1000)

    def look_again(self, partitions: Iterable[PartitionId]) -> None:
        """Not all of these was moved."""
        self._changed.update(partitions)

    async def take(self) -> set[PartitionId]:
        """Those that changed since the last time."""
        now_s = asyncio.get_running_loop().time()
        every = self._all or now_s - self._looked_s >= FULL_LOOK_S
        self._all = False
        changed, self._changed = self._changed, set()
        self.news.clear()
        if every:
            try:
                topics = await self._topics.all()
            except LakestreamError:
                self._all, self._changed = True, self._changed | changed
                raise
            self._looked_s = now_s
            for topic in topics.values():
                changed.update(PartitionId(topic.topic_id, number) for number in range(topic.partition_count))
        return changed

    def _note(self, changes: Changes) -> None:
        if changes.everything:
            self._all = True
        for path in changes.paths:
            partition = keys.partition_of(path)
            if partition is not None and keys.offset_of(path) is not None:
                self._changed.add(partition)
        self.news.set()


async def backlog_of(logs: Log, partition: PartitionId, start: int, *, without_deleted: bool) -> Backlog | None:
    """From where its table ends to the last stable offset. None: there is nothing. Missing: the log is gone.
    TableAltered: it never came to where its table ends.

    `without_deleted`: what lies before the log's start makes no rows. So an operator can have a damaged batch passed
    over: he deletes the records up to it. Otherwise the table remembers what the stream forgets.
    """
    log_start, end, stable = await logs.bounds(partition)
    if start > end:
        await _check_reached(logs, partition, start)
    deleted_to = log_start if without_deleted else 0
    spots: list[Spot] = []
    oldest_ms = 0
    offset = start
    while offset < stable and len(spots) < SPOTS_MAX:
        claims = await logs.claims(partition, offset)
        if not claims:
            break
        if claims[0].claim.offset_start > offset:
            raise Missing(f"log {partition} has no records from offset {offset} on, where its table ends")
        aborted = logs.aborted(partition, offset, stable)
        for claim, created_ms in claims:
            if claim.offset_start >= stable:
                break
            oldest_ms = oldest_ms or claim.appended_ms
            found = _spots(claim, created_ms, aborted, deleted_to)
            spots += (spot for spot in found if offset <= spot.offset < stable)
            offset = min(claim.offset_end, stable)
    return Backlog(partition, start, offset, spots, oldest_ms) if offset > start else None


async def _check_reached(logs: Log, partition: PartitionId, offset: int) -> None:
    """Or else what is appended next would count as moved. So it is when the metadata store was restored from a backup,
    and the table was not."""
    end = await logs.end_for_certain(partition)
    if offset <= end:
        return
    raise TableAltered(
        f"it has the records before offset {offset} of partition {partition.number}, whose log ends at {end} only: the"
        " metadata store is older than the table. Restore a newer backup of it, or drop the table and register a"
        " metadata file of it that is no newer than the log, or delete the topic"
    )


def _spots(claim: Claim, created_ms: int, aborted: list[Aborted], deleted_to: int) -> Iterable[Spot]:
    for offset, batch in served(claim, created_ms):
        transaction = None
        if batch.kind is Kind.TRANSACTIONAL and not any(
            one.producer_id == batch.producer_id and one.offset_first <= offset <= one.offset_last for one in aborted
        ):
            transaction = Transaction(batch.producer_id, batch.transaction)
        end = offset + batch.record_count
        is_rows = (batch.kind is Kind.PLAIN or transaction is not None) and end > deleted_to
        yield Spot(offset, end, batch.byte_start, batch.byte_end, claim.medium, claim.name, is_rows, transaction)


async def whereabouts(
    logs: Log, partitions: Iterable[PartitionId], starts: Mapping[int, int], backlogs: Iterable[Backlog]
) -> Whereabouts:
    """Of the committed transactions in these backlogs: what they have in all logs of their topic. A second look: who
    was found to be committed had all its records stored by then. `starts`: where the table ends, by partition."""
    found: defaultdict[Transaction, dict[int, Part]] = defaultdict(dict)
    reached = dict(starts)
    for backlog in backlogs:
        number = backlog.partition.number
        reached[number] = backlog.end
        for spot in backlog.spots:
            if spot.transaction is not None:
                parts = found[spot.transaction]
                parts[number] = joined(parts.get(number), spot.offset, spot.offset_end)
    ends: dict[int, int] = {}
    unread: set[int] = set()

    async def look(partition: PartitionId) -> None:
        number = partition.number
        ends[number] = await logs.end_for_certain(partition)
        offset, count = reached.get(number, 0), 0
        while offset < ends[number] and (claims := await logs.claims(partition, offset)):
            for claim, created_ms in claims:
                if count >= SPOTS_MAX:
                    unread.add(number)
                    return
                count += len(claim.batches)
                for at, batch in served(claim, created_ms):
                    transaction = Transaction(batch.producer_id, batch.transaction)
                    if at >= offset and batch.kind is Kind.TRANSACTIONAL and transaction in found:
                        parts = found[transaction]
                        parts[number] = joined(parts.get(number), at, at + batch.record_count)
            offset = claims[-1].claim.offset_end

    await together([look(partition) for partition in partitions], LOGS_AT_ONCE)
    return Whereabouts(dict(found), ends, frozenset(unread))
