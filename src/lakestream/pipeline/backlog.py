"""Finds the records of logs that are not in their tables.

Before: a watch of the metadata store, which reports the logs that grew.  After: plan.py.  Only logs that changed are
read, so that a thousand idle topics cost nothing.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from lakestream.aio.gather import gather_limited
from lakestream.catalog.errors import IncompatibleTable
from lakestream.data.log.log import Log
from lakestream.data.log.partition_state import Aborted, readable_batches
from lakestream.errors import LakestreamError, Missing
from lakestream.metadata import keys
from lakestream.metadata.claims import BatchKind, Claim
from lakestream.metadata.store import Changes, MetadataStore
from lakestream.metadata.topics import Topics
from lakestream.model import PartitionId
from lakestream.pipeline.plan import Backlog, LogBatch
from lakestream.pipeline.transaction_cut import TransactionId, TransactionPart, TransactionRanges, joined

log = logging.getLogger(__name__)

WATCH_RETRY_MS: Final = 200
FULL_SCAN_S: Final = 30 * 60
"""Between scans of all logs: the read after a watch event may return a state older than the event."""
LOGS_AT_ONCE: Final = 32
BATCHES_MAX: Final = 200_000
"""Batches of one log in a micro-batch: a log that lags far behind is moved before it is read to its end."""


class ChangedPartitions:
    """The logs that may have records to move: those that grew, and periodically or after missed events all of them."""

    def __init__(self, metadata: MetadataStore, topics: Topics) -> None:
        self._metadata = metadata
        self._topics = topics
        self._changed: set[PartitionId] = set()
        self._all = True
        self._scanned_s = float("-inf")
        self.news = asyncio.Event()
        """Set when a log grew."""

    @property
    def waiting(self) -> bool:
        """Whether a log may have records to move."""
        return self._all or bool(self._changed)

    async def follow(self) -> None:
        while True:
            try:
                async for changes in self._metadata.watch(keys.LOGS):
                    self._note(changes)
            except LakestreamError as error:
                log.warning("pipeline.watch_failed error=%s", error)
            self._all = True
            await asyncio.sleep(WATCH_RETRY_MS / 1000)

    def requeue(self, partitions: Iterable[PartitionId]) -> None:
        """Makes the next `take` return these again, because not all of their records were moved."""
        self._changed.update(partitions)

    async def take(self) -> set[PartitionId]:
        """Returns the logs that changed since the last call."""
        now_s = asyncio.get_running_loop().time()
        every = self._all or now_s - self._scanned_s >= FULL_SCAN_S
        self._all = False
        changed, self._changed = self._changed, set()
        self.news.clear()
        if every:
            try:
                topics = await self._topics.all()
            except LakestreamError:
                self._all, self._changed = True, self._changed | changed
                raise
            self._scanned_s = now_s
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


async def read_backlog(logs: Log, partition: PartitionId, start: int, *, without_deleted: bool) -> Backlog | None:
    """Reads a log from the end of its table to the last stable offset. Returns None if there are no new records.

    Missing: the log is deleted. IncompatibleTable: the log ends before its table.

    `without_deleted`: records before the log's start make no rows. So an operator can skip a damaged batch by deleting
    the records up to its end. Otherwise deleted records that were not moved yet still become rows.
    """
    log_start, end, stable = await logs.bounds(partition)
    if start > end:
        await _check_reached(logs, partition, start)
    deleted_to = log_start if without_deleted else 0
    batches: list[LogBatch] = []
    oldest_ms = 0
    offset = start
    while offset < stable and len(batches) < BATCHES_MAX:
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
            found = _log_batches(claim, created_ms, aborted, deleted_to)
            batches += (batch for batch in found if offset <= batch.offset < stable)
            offset = min(claim.offset_end, stable)
    return Backlog(partition, start, offset, batches, oldest_ms) if offset > start else None


async def _check_reached(logs: Log, partition: PartitionId, offset: int) -> None:
    """Checks that the log reached the end of its table; else the next appended records would count as moved.

    This happens if the metadata store was restored from a backup, and the table was not.
    """
    end = await logs.confirmed_end(partition)
    if offset <= end:
        return
    raise IncompatibleTable(
        f"it has the records before offset {offset} of partition {partition.number}, whose log ends at {end} only: the"
        " metadata store is older than the table. Restore a newer backup of it, or drop the table and register a"
        " metadata file of it that is no newer than the log, or delete the topic"
    )


def _log_batches(claim: Claim, created_ms: int, aborted: list[Aborted], deleted_to: int) -> Iterable[LogBatch]:
    for offset, batch in readable_batches(claim, created_ms):
        transaction = None
        if batch.kind is BatchKind.TRANSACTIONAL and not any(
            one.producer_id == batch.producer_id and one.offset_first <= offset <= one.offset_last for one in aborted
        ):
            transaction = TransactionId(batch.producer_id, batch.transaction)
        end = offset + batch.record_count
        is_rows = (batch.kind is BatchKind.PLAIN or transaction is not None) and end > deleted_to
        yield LogBatch(offset, end, batch.byte_start, batch.byte_end, claim.medium, claim.name, is_rows, transaction)


async def read_transaction_ranges(
    logs: Log, partitions: Iterable[PartitionId], starts: Mapping[int, int], backlogs: Iterable[Backlog]
) -> TransactionRanges:
    """Returns the ranges of the committed transactions of these backlogs in all logs of their topic.

    Reads the logs again: a transaction that was committed at the first read had all its records stored by then.
    `starts`: where the table ends, by partition.
    """
    found: defaultdict[TransactionId, dict[int, TransactionPart]] = defaultdict(dict)
    reached = dict(starts)
    for backlog in backlogs:
        number = backlog.partition.number
        reached[number] = backlog.end
        for batch in backlog.batches:
            if batch.transaction is not None:
                parts = found[batch.transaction]
                parts[number] = joined(parts.get(number), batch.offset, batch.offset_end)
    ends: dict[int, int] = {}
    unread: set[int] = set()

    async def read(partition: PartitionId) -> None:
        number = partition.number
        ends[number] = await logs.confirmed_end(partition)
        offset, count = reached.get(number, 0), 0
        while offset < ends[number] and (claims := await logs.claims(partition, offset)):
            for claim, created_ms in claims:
                if count >= BATCHES_MAX:
                    unread.add(number)
                    return
                count += len(claim.batches)
                for at, batch in readable_batches(claim, created_ms):
                    transaction = TransactionId(batch.producer_id, batch.transaction)
                    if at >= offset and batch.kind is BatchKind.TRANSACTIONAL and transaction in found:
                        parts = found[transaction]
                        parts[number] = joined(parts.get(number), at, at + batch.record_count)
            offset = claims[-1].claim.offset_end

    await gather_limited([read(partition) for partition in partitions], LOGS_AT_ONCE)
    return TransactionRanges(dict(found), ends, frozenset(unread))
