"""One micro-batch of the pipeline: plan, move, commit, trim, garbage collection. Start reading here.

    backlog.py, plan.py    what to move; transaction_cut.py: where to stop so that no transaction is split
    table_setup.py         tables with the columns and the layout of their topics
    job                    Spark writes Parquet files (worker.py, in the workers)
    commit.py              one commit per table, valid only if it follows the offsets that the table has
    unfinished_moves.py    what failures leave: smaller moves, and stored files for the next micro-batch
    commit.WalCleanup      what is in the table leaves the chain, and then the WAL

Every step can be repeated. What a crash left undone is finished by the next micro-batch, here or in another process.
An error of one topic stops only that topic; the reason is logged and reported, and the topic is retried.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Coroutine, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from lakestream.aio.gather import gather_limited
from lakestream.catalog.errors import IncompatibleTable
from lakestream.catalog.topic_table.transactions_tag import incomplete_offsets
from lakestream.errors import LakestreamError, Missing
from lakestream.metadata.claims import Lag
from lakestream.model import PartitionId
from lakestream.pipeline import plan
from lakestream.pipeline.backlog import read_backlog, read_transaction_ranges
from lakestream.pipeline.commit import TableCommits, WalCleanup
from lakestream.pipeline.plan import Backlog, PlanSettings
from lakestream.pipeline.table_setup import TABLES_AT_ONCE, PipelineContext, TopicTables
from lakestream.pipeline.tasks import FinishedMove, Move, MoveFailed, MoveResult, Outcome, SchemasMissing
from lakestream.pipeline.topic_schemas import TopicSchemas
from lakestream.pipeline.topic_status import PARTITIONS_AT_ONCE, MicroBatchResult, TopicStatuses
from lakestream.pipeline.transaction_cut import NONE_DEFERRED, DeferredLog, TransactionRanges
from lakestream.pipeline.unfinished_moves import UnfinishedMoves

log = logging.getLogger(__name__)

SCHEMA_ROUNDS_MAX: Final = 30
"""Times that workers may request schemas in one micro-batch; then values without a writer schema keep their bytes."""

T = TypeVar("T")


class Job(Protocol):
    async def run(self, moves: Sequence[Move]) -> list[Outcome]:
        """Writes files for each move; returns the outcomes in the same order."""
        ...


class _ReadBacklogs(NamedTuple):
    backlogs: list[Backlog]
    checked: set[str]
    """Ids of the topics that were read."""


class _AlignedBacklogs(NamedTuple):
    """Backlogs that stop where no transaction is split, where possible."""

    backlogs: list[Backlog]
    ranges: dict[str, TransactionRanges]
    """By topic id."""
    whole: dict[str, TransactionRanges]
    """Of the topics where no transaction is split."""


class MicroBatches:
    def __init__(
        self, context: PipelineContext, job: Job, settings: PlanSettings, schemas: TopicSchemas | None = None
    ) -> None:
        """Without `schemas`, values stay bytes, whatever the settings of their topics are."""
        self._log = context.log
        self._claims = context.claims
        self._topics = context.topics
        self._clock = context.clock
        self._job = job
        self._settings = settings
        self._deferred: dict[str, Mapping[int, DeferredLog]] = {}  # by topic id
        self.changed = context.changed
        self.statuses = TopicStatuses(context.claims, context.clock)
        self._tables = TopicTables(context, self.statuses, schemas)
        self._cleanup = WalCleanup(context, self._tables, self.statuses)
        self._unfinished = UnfinishedMoves(settings, context.clock)
        self._commits = TableCommits(context, self._tables, self.statuses, self._cleanup, self._unfinished)

    @property
    def is_busy(self) -> bool:
        """Whether something is left to do although no log grows."""
        return self._cleanup.is_busy or self.changed.waiting

    async def run(self, requested: frozenset[str] = frozenset()) -> MicroBatchResult:
        """Runs one micro-batch. `requested`: ids of topics with refresh requests, which come first."""
        self.statuses.start_micro_batch()
        loop, seconds = asyncio.get_running_loop(), dict[str, float]()

        async def timed(step: str, work: Coroutine[Any, Any, T]) -> T:
            started_s = loop.time()
            result = await work
            seconds[step] = loop.time() - started_s
            return result

        backlogs, checked = await timed("backlogs", self._read_backlogs())
        selected = plan.select_backlogs(backlogs, self._settings, self._clock.now_ms(), requested)
        await timed("tables", self._tables.prepare(one.partition.topic_id for one in selected))
        ready = self._tables.by_id.keys() & self.statuses.topics.keys()
        selected = [backlog for backlog in selected if backlog.partition.topic_id in ready]
        aligned = await timed("transactions", self._align(selected, requested))
        retries = self._unfinished.retries()
        moves = plan.moves(aligned.backlogs, self._settings, self._tables.target, aligned.whole, retries)
        ends = plan.reached(moves)
        self.changed.requeue(one.partition for one in backlogs if ends.get(one.partition, one.start) < one.end)
        result = MicroBatchResult(seconds=seconds)
        stored = await self._commits.take_stored(moves)
        if moves:
            outcomes = await timed("job", self._move(moves, stored))
            committed = await timed("commit", self._commit(outcomes, aligned.ranges))
            result.add_committed(committed)
            # Deferred records and failed moves are left to the next micro-batch, which does not start immediately.
            advanced = {one.move.partition for own in committed.values() for one in own}
            result.left = any(ends[one.partition] < one.end for one in aligned.backlogs if one.partition in advanced)
        await timed("trim", self._cleanup.trim())
        await timed("gc", self._cleanup.collect())
        await self.statuses.update_lags({one.partition: self._lag(one) for one in backlogs}, checked)
        self.statuses.add_totals(result)
        return result

    # ── backlogs ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _read_backlogs(self) -> _ReadBacklogs:
        changed = sorted(await self.changed.take())
        try:
            return await self._backlogs_of(changed)
        except Exception:
            self.changed.requeue(changed)  # no event names them again unless they grow
            raise

    async def _backlogs_of(self, changed: list[PartitionId]) -> _ReadBacklogs:
        topics, statuses = self.statuses.topics, self.statuses
        if any(partition.topic_id not in topics for partition in changed):
            await self._refresh_topics()
            topics = statuses.topics
        changed = [partition for partition in changed if partition.topic_id in topics]
        topic_ids = sorted({partition.topic_id for partition in changed})
        await gather_limited([self._tables.load(topic_id) for topic_id in topic_ids], TABLES_AT_ONCE)
        checked = {topic_id for topic_id in topic_ids if not statuses.is_waiting(topic_id)}
        failed: set[str] = set()

        async def read(partition: PartitionId) -> Backlog | None:
            try:
                return await self._read_backlog(partition)
            except IncompatibleTable as error:
                failed.add(partition.topic_id)
                self._tables.stall(partition.topic_id, str(error))
            except LakestreamError as error:
                log.warning("pipeline.backlog_failed topic=%s error=%s", statuses.name(partition.topic_id), error)
                statuses.note_error(partition.topic_id, f"its log cannot be read: {error}")
                self.changed.requeue([partition])
            except Exception as error:
                failed.add(partition.topic_id)
                self._tables.stall_for_bug(partition.topic_id, error)
            return None

        ready = [one for one in changed if not statuses.is_waiting(one.topic_id)]
        found = await gather_limited([read(one) for one in ready], PARTITIONS_AT_ONCE)
        for topic_id in failed:  # none of its logs is moved or trimmed
            self._tables.drop(topic_id)  # the read of another of its logs may have loaded it again
        self.changed.requeue(one for one in changed if statuses.is_waiting(one.topic_id))
        return _ReadBacklogs([one for one in found if one and one.partition.topic_id not in failed], checked)

    async def _read_backlog(self, partition: PartitionId) -> Backlog | None:
        start = self._tables.next_offset(partition)
        is_trimmed = await self._cleanup.is_trimmed(partition, start)
        is_unreadable = partition in self._commits.unreadable
        try:
            backlog = await read_backlog(self._log, partition, start, without_deleted=is_unreadable)
        except Missing as error:
            if await self._claims.floor(partition) is None:
                self.statuses.topics.pop(partition.topic_id, None)  # the topic was deleted
            elif await self._tables.reload_if_ahead(partition, start):
                return await self._read_backlog(partition)
            else:
                self._tables.stall(partition.topic_id, str(error))
            return None
        if not is_trimmed:
            self._cleanup.add(partition)  # a driver ended between commit and trim
        return backlog

    async def _refresh_topics(self) -> None:
        await self._tables.refresh_topics()
        self._cleanup.forget_deleted()
        topics = self.statuses.topics
        self._deferred = {topic_id: logs for topic_id, logs in self._deferred.items() if topic_id in topics}
        self._commits.unreadable = {one for one in self._commits.unreadable if one.topic_id in topics}
        self._unfinished.forget_deleted(topics)

    def _lag(self, backlog: Backlog) -> Lag:
        try:
            table_end = self._tables.next_offset(backlog.partition)
        except IncompatibleTable:
            table_end = 0
        return Lag(backlog.end - max(backlog.start, table_end), backlog.oldest_ms)

    # ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _align(self, selected: Sequence[Backlog], requested: Set[str]) -> _AlignedBacklogs:
        """Shortens backlogs so that no transaction is split. Topics with refresh requests defer nothing."""
        topics: dict[str, list[Backlog]] = {}
        for backlog in selected:
            topics.setdefault(backlog.partition.topic_id, []).append(backlog)
        found = await gather_limited([self._read_ranges(*one) for one in topics.items()], TABLES_AT_ONCE)
        now_s = asyncio.get_running_loop().time()
        aligned = _AlignedBacklogs([], {}, {})
        for (topic_id, own), ranges in zip(topics.items(), found, strict=True):
            if topic_id not in self._tables.by_id:  # it failed
                continue
            before = self._deferred.pop(topic_id, NONE_DEFERRED)  # topics that are not selected keep theirs
            if ranges is not None:
                aligned.ranges[topic_id] = ranges
                wait_ms = 0 if topic_id in requested else self._settings.whole_wait_ms
                own, deferred, keeps_whole = plan.align(own, ranges, before, now_s, wait_ms)
                if keeps_whole:
                    aligned.whole[topic_id] = ranges
                if deferred:  # the rest of the transaction may be in logs that have nothing else to move
                    self._deferred[topic_id] = deferred
                    self.changed.requeue(PartitionId(topic_id, number) for number in ranges.ends)
            aligned.backlogs.extend(own)
        return aligned

    async def _read_ranges(self, topic_id: str, backlogs: Sequence[Backlog]) -> TransactionRanges | None:
        """Reads where the transactions of these backlogs are, or all if it is unknown which ones the table splits.

        None: there are no transactions, or the topic failed."""
        table, named = self._tables.by_id[topic_id], self.statuses.topics.get(topic_id)
        if named is None:
            return None
        try:
            has_some = any(batch.transaction is not None for one in backlogs for batch in one.batches)
            if not (has_some or incomplete_offsets(table.metadata) is None):
                return None
            topic = await self._topics.get(named.name, confirmed=True)  # it may have more partitions now
            if topic.topic_id != topic_id:
                raise Missing(f"topic {named.name} was deleted")
            starts = self._tables.next_offsets(topic_id)
            return await read_transaction_ranges(self._log, topic.partitions(), starts, backlogs)
        except LakestreamError as error:
            self.statuses.note_error(topic_id, f"its transactions cannot be read: {error}")
            log.warning("pipeline.backlog_failed topic=%s error=%s", named.name, error)
            self._tables.drop(topic_id)
        except Exception as error:
            self._tables.stall_for_bug(topic_id, error)
        return None

    # ── job and commit ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _move(self, moves: Sequence[Move], stored: Sequence[MoveResult]) -> list[FinishedMove]:
        """Writes the files that are not stored. When workers lack schemas, these are looked up, and the moves rerun.

        `stored`: results of moves that an earlier micro-batch ran."""
        finished: list[FinishedMove] = list(stored)
        done = {(one.move.partition, one.move.start) for one in stored}
        moves = [move for move in moves if (move.partition, move.start) not in done]
        if not moves:
            return finished
        for number in range(SCHEMA_ROUNDS_MAX + 1):
            outcomes = await self._job.run(moves)
            finished += [one for one in outcomes if not isinstance(one, SchemasMissing)]
            missing = [one for one in outcomes if isinstance(one, SchemasMissing)]
            if not missing:
                return finished
            moves, failed = await self._tables.resolve_schemas(missing, may_request=number + 1 < SCHEMA_ROUNDS_MAX)
            finished += failed
        reason = "the worker still lacks schemas after the last attempt (bug)"
        return [*finished, *(MoveFailed(one.move, reason, True) for one in missing)]

    async def _commit(
        self, outcomes: Sequence[FinishedMove], ranges: Mapping[str, TransactionRanges]
    ) -> dict[str, list[MoveResult]]:
        """Commits to all tables; returns the committed moves by topic id."""
        topics: defaultdict[str, list[FinishedMove]] = defaultdict(list)
        for outcome in outcomes:
            topics[outcome.move.partition.topic_id].append(outcome)
        commits = [self._commits.commit(topic_id, own, ranges.get(topic_id)) for topic_id, own in topics.items()]
        committed = zip(topics, await gather_limited(commits, TABLES_AT_ONCE), strict=True)
        return {topic_id: moved for topic_id, moved in committed if moved}
