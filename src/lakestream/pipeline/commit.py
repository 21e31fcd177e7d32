"""Commits the files of a micro-batch to their tables, and cleans up: files that are not committed, WAL that is.

Before: micro_batch.py, with the outcomes of the moves.  After: catalog/operations/append.py, one commit per table;
Log.trim and WalGarbageCollector.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from lakestream.aio.gather import gather_limited
from lakestream.catalog.errors import CommitFailed, CommitStateUnknown, IncompatibleTable
from lakestream.catalog.manifests.data_file import MovedRange, ends_of
from lakestream.catalog.operations.append import append
from lakestream.catalog.topic_table.offsets import next_offsets
from lakestream.catalog.topic_table.transactions_tag import incomplete_offsets
from lakestream.errors import LakestreamError, Missing, Unavailable
from lakestream.model import PartitionId
from lakestream.pipeline.table_setup import PipelineContext, TopicTables
from lakestream.pipeline.tasks import FinishedMove, Move, MoveFailed, MoveResult
from lakestream.pipeline.topic_status import TopicStatuses
from lakestream.pipeline.transaction_cut import TransactionRanges, incomplete_after
from lakestream.pipeline.unfinished_moves import UnfinishedMoves

log = logging.getLogger(__name__)

COMMIT_TRIES: Final = 5
PARTITIONS_AT_ONCE: Final = 32
GC_EVERY_MS: Final = 20_000


class SortedOutcomes(NamedTuple):
    """The outcomes of one topic."""

    moved: list[MoveResult]
    """Of each partition, the moves up to the first one that failed: these can be committed."""
    failed: list[MoveFailed]
    """Of each partition, the first move that failed."""
    surplus: list[MoveResult]
    """Moves behind a failed one."""


class TableCommits:
    def __init__(
        self,
        context: PipelineContext,
        tables: TopicTables,
        statuses: TopicStatuses,
        cleanup: "WalCleanup",
        unfinished: UnfinishedMoves,
    ) -> None:
        self._objects = context.objects
        self._catalog = context.catalog
        self._changed = context.changed
        self._tables = tables
        self._statuses = statuses
        self._cleanup = cleanup
        self._unfinished = unfinished
        self.unreadable: set[PartitionId] = set()
        """Partitions whose next batches are damaged."""

    async def commit(
        self, topic_id: str, outcomes: Sequence[FinishedMove], ranges: TransactionRanges | None
    ) -> list[MoveResult]:
        """Commits what can be committed of a topic; returns the committed moves. `ranges`: of its transactions."""
        moved, failed, surplus = sort_outcomes(outcomes)
        self._changed.requeue(one.move.partition for one in failed)
        committed = moved if moved and await self._try_commit(topic_id, moved, ranges) else []
        self._unfinished.note_committed(one.move.partition for one in committed)
        behind = by_partition(surplus)
        for one in failed:  # after the commit: a topic that stalls loses its table, and other partitions have files
            stored = behind.get(one.move.partition, [])
            if await self._note_failed(one):
                stored = self._unfinished.note_failed(one.move.partition, one.move.size, stored)
            await self._remove(stored)
        return committed

    async def take_stored(self, moves: Sequence[Move]) -> list[MoveResult]:
        """Returns the results of those planned moves that an earlier micro-batch ran, and whose files still exist."""
        usable, stale = self._unfinished.take(moves)
        exist = await gather_limited([self._exists(one) for one in usable], PARTITIONS_AT_ONCE)
        await self._remove([*stale, *(one for one, found in zip(usable, exist, strict=True) if not found)])
        return [one for one, found in zip(usable, exist, strict=True) if found]

    async def _exists(self, result: MoveResult) -> bool:
        try:
            for file in result.files:
                await self._objects.head(self._catalog.locations.key_of(file.location))
        except LakestreamError:  # they are written again
            return False
        return True

    async def _try_commit(self, topic_id: str, moved: Sequence[MoveResult], ranges: TransactionRanges | None) -> bool:
        try:
            if not await self._commit(topic_id, moved, ranges):
                return False
        except IncompatibleTable as error:
            await self._remove(moved)
            self._tables.stall(topic_id, str(error))
            return False
        except LakestreamError as error:
            if isinstance(error, CommitStateUnknown):
                pass  # the files may be in the table
            elif isinstance(error, Unavailable):
                await self._keep(moved)
            else:
                await self._remove(moved)
            self._tables.drop(topic_id)
            self._changed.requeue(one.move.partition for one in moved)
            log.warning("pipeline.commit_failed topic=%s error=%s", self._statuses.name(topic_id), error)
            self._statuses.note_error(topic_id, f"the commit to its table failed: {error}")
            return False
        except Exception as error:  # the commit may have succeeded, so its files stay
            self._tables.stall_for_bug(topic_id, error)
            return False
        self._statuses.note_committed(topic_id, moved)
        for one in moved:
            self.unreadable.discard(one.move.partition)
            self._cleanup.add(one.move.partition)
        return True

    async def _commit(self, topic_id: str, moved: Sequence[MoveResult], ranges: TransactionRanges | None) -> bool:
        """Returns False if another driver moved some of these records; the next micro-batch moves what is left.

        CommitStateUnknown: the files may be in the table. Any other error: they are not.
        """
        files = [file for one in moved for file in one.files]
        offsets = [MovedRange(one.move.partition.number, one.move.start, one.move.end) for one in moved]
        for _ in range(COMMIT_TRIES):
            table = self._tables.by_id[topic_id]
            try:
                incomplete = self._incomplete_after(topic_id, offsets, ranges)
                self._tables.by_id[topic_id] = await append(self._catalog, table, files, offsets, incomplete)
                return True
            except CommitFailed:
                # Another engine rewrote files, or another driver committed. Do the offsets still follow the table's?
                table = self._tables.by_id[topic_id] = await self._catalog.load_id(topic_id)
                if ends_of(offsets, next_offsets(table.metadata)) is None:
                    await self._remove(moved)
                    self._changed.requeue(one.move.partition for one in moved)
                    return False
            except CommitStateUnknown:
                # The files may be in the table, so they stay. The offsets of the table decide what is moved next.
                self._tables.drop(topic_id)
                self._changed.requeue(one.move.partition for one in moved)
                raise
        raise Unavailable(
            f"its table was changed by other writers during {COMMIT_TRIES} attempts: the commit is retried"
        )

    def _incomplete_after(
        self, topic_id: str, offsets: Sequence[MovedRange], ranges: TransactionRanges | None
    ) -> dict[int, int] | None:
        """Returns how far the table must go after this commit until no transaction is split; None if unknown."""
        before = incomplete_offsets(self._tables.by_id[topic_id].metadata)
        if before is None and ranges is None:
            return None
        starts = self._tables.next_offsets(topic_id)
        return incomplete_after(before, ranges or TransactionRanges(), {**starts, **(ends_of(offsets, starts) or {})})

    async def _note_failed(self, failed: MoveFailed) -> bool:
        """Returns whether the next micro-batch retries the move. It does not if the topic stalls, or is ahead of it."""
        partition, start, end = failed.move.partition, failed.move.start, failed.move.end
        where = f"partition {partition.number}, offsets {start} to {end}"
        is_temporary = failed.temporary
        try:
            if await self._tables.reload_if_ahead(partition, start):
                return False
        except Unavailable:  # the next micro-batch checks again
            is_temporary = True
        if is_temporary:
            name = self._statuses.name(partition.topic_id)
            log.warning("pipeline.move_failed topic=%s %s: %s", name, where, failed.reason)
            self._statuses.note_error(partition.topic_id, f"{where}: {failed.reason}")
        else:
            self.unreadable.add(partition)
            self._tables.stall(partition.topic_id, f"{where}: {failed.reason}")
        return is_temporary

    async def _keep(self, moved: Iterable[MoveResult]) -> None:
        """Keeps the files of a failed commit for the next micro-batch, or removes them if this was their second one."""
        for partition, own in by_partition(moved).items():
            size = max(one.move.size for one in own)
            await self._remove(self._unfinished.note_failed(partition, size, own))

    async def _remove(self, moved: Iterable[MoveResult]) -> None:
        """Removes files that are not in a table. If it fails they are orphan files, which maintenance removes."""
        locations = [file.location for one in moved for file in one.files]
        if not locations:
            return
        try:
            await self._objects.delete([self._catalog.locations.key_of(location) for location in locations])
        except LakestreamError as error:
            log.warning("pipeline.cleanup_failed count=%d first=%s error=%s", len(locations), locations[0], error)


def sort_outcomes(outcomes: Sequence[FinishedMove]) -> SortedOutcomes:
    moved: list[MoveResult] = []
    failed: dict[PartitionId, MoveFailed] = {}
    surplus: list[MoveResult] = []
    for outcome in sorted(outcomes, key=lambda outcome: (outcome.move.partition, outcome.move.start)):
        if isinstance(outcome, MoveFailed):
            failed.setdefault(outcome.move.partition, outcome)
        elif outcome.move.partition in failed:
            surplus.append(outcome)
        else:
            moved.append(outcome)
    return SortedOutcomes(moved, list(failed.values()), surplus)


def by_partition(results: Iterable[MoveResult]) -> dict[PartitionId, list[MoveResult]]:
    found: dict[PartitionId, list[MoveResult]] = {}
    for one in results:
        found.setdefault(one.move.partition, []).append(one)
    return found


class WalCleanup:
    """Trims committed records from their logs, and has the WAL objects deleted that no log needs."""

    def __init__(self, context: PipelineContext, tables: TopicTables, statuses: TopicStatuses) -> None:
        self._log = context.log
        self._claims = context.claims
        self._gc = context.gc
        self._clock = context.clock
        self._tables = tables
        self._statuses = statuses
        self._trimmed: dict[PartitionId, int] = {}
        self._to_trim: set[PartitionId] = set()
        self._collected_ms = 0
        self._to_collect = True

    @property
    def is_busy(self) -> bool:
        return self._to_collect or bool(self._to_trim)

    def add(self, partition: PartitionId) -> None:
        """The next trim includes this partition."""
        self._to_trim.add(partition)

    async def is_trimmed(self, partition: PartitionId, end: int) -> bool:
        """Returns whether the log is trimmed to the table's end. It is not after a crash between commit and trim."""
        if end and partition not in self._trimmed:
            self._trimmed[partition] = await self._claims.floor(partition) or 0
        return end <= self._trimmed.get(partition, 0)

    async def trim(self) -> None:
        topics, tables = self._statuses.topics, self._tables.by_id
        pending, self._to_trim = self._to_trim, set()
        self._to_trim = {one for one in pending if one.topic_id in topics and one.topic_id not in tables}
        ready = [one for one in sorted(pending) if one.topic_id in tables]
        await gather_limited([self._trim(one) for one in ready], PARTITIONS_AT_ONCE)

    async def _trim(self, partition: PartitionId) -> None:
        try:
            end = self._tables.next_offset(partition)
            await self._claims.advance_table_end(partition, end)
            self._gc.note_dropped(await self._log.trim(partition, end))
        except IncompatibleTable as error:
            self._tables.stall(partition.topic_id, str(error))
        except Missing:
            self._trimmed.pop(partition, None)  # the topic was deleted
        except LakestreamError as error:
            self._to_trim.add(partition)
            name = self._statuses.name(partition.topic_id)
            log.warning("pipeline.trim_failed topic=%s partition=%d error=%s", name, partition.number, error)
        except Exception as error:
            self._tables.stall_for_bug(partition.topic_id, error)
        else:
            self._trimmed[partition] = end
            self._to_collect = True

    async def collect(self) -> None:
        now_ms = self._clock.now_ms()
        if not self._to_collect or now_ms - self._collected_ms < GC_EVERY_MS:
            return
        self._collected_ms, self._to_collect = now_ms, False
        try:
            if await self._gc.collect() or self._gc.has_pending:
                self._to_collect = True
        except LakestreamError as error:
            self._to_collect = True
            log.warning("pipeline.gc_failed error=%s", error)

    def forget_deleted(self) -> None:
        for partition in [one for one in self._trimmed if one.topic_id not in self._statuses.topics]:
            del self._trimmed[partition]
