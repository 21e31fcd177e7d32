"""One round of the pipeline: plan → job → commit → trim → sweep. Read this to see how records become rows.

    backlog.py, plan.py    what to move; whole.py: and where to stop, so that no transaction is split
    job                    Spark makes Parquet files of it (work.py, in the workers)
    catalog/append.py      one commit per table, valid only where it follows what is there
    Log.trim, Sweeper      what is in the table leaves the chain, and then the WAL

Every step can be repeated, and whatever a crash left undone is finished by the next round, here or in another process.
What is wrong with one topic stops that topic alone, says why, and is tried again.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Final, Protocol

from lakestream.catalog.append import append
from lakestream.catalog.arranging import Arrangement, arrange, file_layout
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.data_files import MovedRange, ends_of
from lakestream.catalog.errors import CommitRefused, CommitUnknown, NoSuchTable, TableAltered
from lakestream.catalog.next_offsets import next_offsets
from lakestream.catalog.parquet_names import file_columns
from lakestream.catalog.topic_shape import check_columns
from lakestream.catalog.topic_tables import ensure_table
from lakestream.catalog.whole_tag import split_of
from lakestream.clock import Clock
from lakestream.coordination.topic_settings import read as read_settings
from lakestream.data.log.log import Log
from lakestream.data.log.sweeper import Sweeper
from lakestream.errors import LakestreamError, Missing, Unavailable
from lakestream.metadata.claims import Claims
from lakestream.metadata.lag import Lag, lag_of
from lakestream.metadata.topics import NamedTopic, Topics
from lakestream.model import PartitionId
from lakestream.pipeline import plan
from lakestream.pipeline.backlog import ChangedLogs, backlog_of, whereabouts
from lakestream.pipeline.plan import Backlog, PlanSettings, Target
from lakestream.pipeline.standing import Round as Round
from lakestream.pipeline.standing import Standing as Standing
from lakestream.pipeline.tasks import Move, Moved, Outcome, Settled, Stuck, Wants
from lakestream.pipeline.typed_topics import TypedTopics
from lakestream.pipeline.whole import HELD_NONE, Held, Whereabouts, split_after
from lakestream.schemas.typing import Typing
from lakestream.storage.object_store import ObjectStore
from lakestream.storage.together import together

log = logging.getLogger(__name__)

COMMIT_TRIES: Final = 5
ASKS_MAX: Final = 30
"""Times that workers may want to know more in one round; then what has no writer stays bytes."""
TABLES_AT_ONCE: Final = 4
LOGS_AT_ONCE: Final = 32
STUCK_RETRY_MS: Final = 30_000
STUCK_LOGS_MAX: Final = 200
"""Whose lag is looked at in each round."""
SWEEP_EVERY_MS: Final = 20_000


class Job(Protocol):
    async def run(self, moves: Sequence[Move]) -> list[Outcome]:
        """Make files of each; the outcomes in the same order."""
        ...


class Rounds:
    def __init__(
        self,
        logs: Log,
        claims: Claims,
        topics: Topics,
        sweeper: Sweeper,
        objects: ObjectStore,
        catalog: Catalog,
        job: Job,
        clock: Clock,
        changed: ChangedLogs,
        settings: PlanSettings,
        typed: TypedTopics | None = None,
    ) -> None:
        """`typed`: who knows of schemas; without it values are bytes, whatever their topics say."""
        self._logs = logs
        self._claims = claims
        self._topics = topics
        self._sweeper = sweeper
        self._objects = objects
        self._catalog = catalog
        self._job = job
        self._clock = clock
        self._changed = changed
        self._settings = settings
        self._typed = typed
        self._typings: dict[str, Typing | None] = {}  # of this round, by topic id
        self._tables: dict[str, LoadedTable] = {}  # by topic id
        self._offsets: dict[str, tuple[LoadedTable, dict[int, int]]] = {}  # what that table says, by topic id
        self._named: dict[str, NamedTopic] = {}  # by topic id
        self._trimmed: dict[PartitionId, int] = {}
        self._to_trim: set[PartitionId] = set()
        self._unreadable: set[PartitionId] = set()  # what is next in these logs is damaged
        self._where: dict[str, Whereabouts] = {}  # of this round, by topic id
        self._held: dict[str, Mapping[int, Held]] = {}  # since which round, by topic id
        self._swept_ms = 0
        self._to_sweep = True
        self._round = 0
        self._looked: set[str] = set()  # topics, in this round
        self._altered: set[str] = set()  # topics, in this round: none of their logs is moved or trimmed
        self.under_way: Sequence[Move] = ()
        """What is being moved just now."""
        self.waiting = 0
        """Offsets that the round under way found; 0 between rounds."""
        self.standings: dict[str, Standing] = {}
        """By topic id."""

    @property
    def is_busy(self) -> bool:
        """Something is left to do, although no log grows."""
        return self._to_sweep or bool(self._to_trim) or self._changed.waiting

    def named_standings(self) -> dict[str, Standing]:
        return {standing.name: standing for standing in self.standings.values()}

    async def run(self, asked: frozenset[str] = frozenset()) -> Round:
        done = Round()
        self._round += 1
        loop = asyncio.get_running_loop()

        async def timed(step: str, work: Coroutine[Any, Any, None]) -> None:
            begun_s = loop.time()
            await work
            done.seconds[step] = loop.time() - begun_s

        backlogs: list[Backlog] = []
        outcomes: list[Settled] = []
        await timed("look", self._look(backlogs))
        wanted = plan.chosen(backlogs, self._settings, self._clock.now_ms(), asked)
        await timed("tables", self._have_tables(wanted))
        there = self._tables.keys() & self._named.keys()
        wanted = [backlog for backlog in wanted if backlog.partition.topic_id in there]
        whole: dict[str, Whereabouts] = {}
        await timed("whole", self._keep_whole(wanted, whole, asked))
        moves = plan.moves(wanted, self._settings, self._target, whole)
        self._keep_in_mind(backlogs, wanted, moves, done)
        self.waiting = sum(backlog.end - backlog.start for backlog in backlogs)
        if moves:
            await timed("job", self._work(moves, outcomes))
            await timed("commit", self._commit(outcomes, done))
        if not done.moves:
            done.left = False  # what could not be moved now is not tried again at once
        await timed("trim", self._trim())
        await timed("sweep", self._sweep())
        await self._note_lags(backlogs)
        self.waiting = 0
        done.lag_records = sum(one.lag_records for one in self.standings.values())
        if oldest := [one.oldest_ms for one in self.standings.values() if one.oldest_ms]:
            done.lag_ms = max(0, self._clock.now_ms() - min(oldest))
        done.stuck = [f"{one.name}: {one.stuck}" for one in self.standings.values() if one.stuck]
        return done

    # ── look ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _look(self, found: list[Backlog]) -> None:
        changed = sorted(await self._changed.take())
        try:
            await self._look_at(changed, found)
        except LakestreamError:
            self._changed.look_again(changed)  # nobody will name them again, unless they grow
            raise

    async def _look_at(self, changed: list[PartitionId], found: list[Backlog]) -> None:
        if any(partition.topic_id not in self._named for partition in changed):
            self._named = {
                topic.topic_id: NamedTopic(name, topic) for name, topic in (await self._topics.all()).items()
            }
            self._forget_gone()
        changed = [partition for partition in changed if partition.topic_id in self._named]
        topic_ids = sorted({partition.topic_id for partition in changed})
        await together([self._load(topic_id) for topic_id in topic_ids], TABLES_AT_ONCE)

        async def look(partition: PartitionId) -> None:
            backlog = await self._backlog(partition)
            if backlog is not None:
                found.append(backlog)

        self._looked = {topic_id for topic_id in topic_ids if not self._is_resting(topic_id)}
        self._altered = set()
        await together([look(one) for one in changed if not self._is_resting(one.topic_id)], LOGS_AT_ONCE)
        for topic_id in self._altered:
            self._tables.pop(topic_id, None)  # the look at another of its logs may have brought it back
        found[:] = [one for one in found if one.partition.topic_id not in self._altered]
        found.sort(key=lambda backlog: backlog.partition)
        self._changed.look_again(one for one in changed if self._is_resting(one.topic_id))

    async def _load(self, topic_id: str) -> None:
        """The table as it is, if there is one. A topic whose table is gone is not begun anew: the records that were in
        it are nowhere else."""
        if topic_id in self._tables or self._is_resting(topic_id):
            return
        try:
            try:
                self._tables[topic_id] = await self._catalog.load_id(topic_id)
            except NoSuchTable:
                await self._check_never_was(topic_id)
        except LakestreamError as error:
            self._stop(topic_id, f"its table cannot be read: {error}")

    async def _check_never_was(self, topic_id: str) -> None:
        for partition in self._named[topic_id].topic.partitions():
            if end := await self._claims.table_end(partition):
                try:  # another driver may have made it since we looked, and moved this far
                    self._tables[topic_id] = await self._catalog.load_id(topic_id)
                except NoSuchTable:
                    self._stop(
                        topic_id,
                        f"its table was dropped, with the records before offset {end} of partition"
                        f" {partition.number} in it: register the table again, or delete the topic",
                    )
                return

    async def _backlog(self, partition: PartitionId) -> Backlog | None:
        try:
            return await self._backlog_now(partition)
        except TableAltered as error:
            self._altered.add(partition.topic_id)
            self._stop(partition.topic_id, str(error))
        except LakestreamError as error:
            log.warning("pipeline.not_looked_at topic=%s error=%s", self._name(partition.topic_id), error)
            self._have_trouble(partition.topic_id, f"its log cannot be read: {error}")
            self._changed.look_again([partition])
        return None

    async def _backlog_now(self, partition: PartitionId) -> Backlog | None:
        start = self._next_offset(partition)
        if start and partition not in self._trimmed:
            self._trimmed[partition] = await self._claims.floor(partition) or 0
        try:
            backlog = await backlog_of(self._logs, partition, start, without_deleted=partition in self._unreadable)
            if start > self._trimmed.get(partition, 0):
                self._to_trim.add(partition)  # it was committed, and then somebody's end came
            return backlog
        except Missing as error:
            if await self._is_gone(partition):
                self._named.pop(partition.topic_id, None)
            elif await self._was_overtaken(partition, start):
                return await self._backlog_now(partition)
            else:
                self._stop(partition.topic_id, str(error))
        return None

    async def _is_gone(self, partition: PartitionId) -> bool:
        return await self._claims.floor(partition) is None

    def _next_offset(self, partition: PartitionId) -> int:
        table = self._tables.get(partition.topic_id)
        return 0 if table is None else self._next_offsets(partition.topic_id, table).get(partition.number, 0)

    def _next_offsets(self, topic_id: str, table: LoadedTable) -> dict[int, int]:
        """Read once per state of the table: it may have thousands of partitions."""
        known = self._offsets.get(topic_id)
        if known is None or known[0] is not table:
            known = self._offsets[topic_id] = (table, next_offsets(table.metadata))
        return known[1]

    def _keep_in_mind(
        self, backlogs: Sequence[Backlog], wanted: Sequence[Backlog], moves: Sequence[Move], done: Round
    ) -> None:
        """What this round leaves is looked at by the next one. What is held back is left to that one, not at once."""
        ends = plan.reached(moves)
        self._changed.look_again(one.partition for one in backlogs if ends.get(one.partition, one.start) < one.end)
        done.left = any(ends.get(one.partition, one.end) < one.end for one in wanted)

    # ── whole transactions ───────────────────────────────────────────────────────────────────────────────────────────

    async def _keep_whole(self, wanted: list[Backlog], whole: dict[str, Whereabouts], asked: Set[str]) -> None:
        """Shorten what is wanted so that no transaction is split. `whole`: of topics where that was possible. A topic
        that somebody waits for holds nothing back."""
        topics: dict[str, list[Backlog]] = {}
        for backlog in wanted:
            topics.setdefault(backlog.partition.topic_id, []).append(backlog)
        self._where = {}
        await together([self._find_parts(topic_id, own) for topic_id, own in topics.items()], TABLES_AT_ONCE)
        now_s = asyncio.get_running_loop().time()
        wanted.clear()
        for topic_id, own in topics.items():
            if topic_id not in self._tables:  # it stopped
                continue
            before = self._held.pop(topic_id, HELD_NONE)  # others keep waiting, although it is not their turn
            if (where := self._where.get(topic_id)) is not None:
                wait_ms = 0 if topic_id in asked else self._settings.whole_wait_ms
                own, waiting, keeps = plan.preferred(own, where, before, now_s, wait_ms)
                if keeps:
                    whole[topic_id] = where
                if waiting:  # what they wait for comes in logs that may have nothing else to move
                    self._held[topic_id] = waiting
                    self._changed.look_again(PartitionId(topic_id, number) for number in where.ends)
            wanted += own

    async def _find_parts(self, topic_id: str, backlogs: Sequence[Backlog]) -> None:
        """Where the transactions lie that might be moved; also where it has to be found out how whole the table is."""
        table, named = self._tables[topic_id], self._named.get(topic_id)
        has_some = any(spot.transaction is not None for one in backlogs for spot in one.spots)
        if named is None or not (has_some or split_of(table.metadata) is None):
            return
        try:
            topic = await self._topics.get(named.name, confirmed=True)  # it may have grown
            if topic.topic_id != topic_id:
                raise Missing(f"topic {named.name} was deleted")
            starts = self._next_offsets(topic_id, table)
            self._where[topic_id] = await whereabouts(self._logs, topic.partitions(), starts, backlogs)
        except LakestreamError as error:
            self._have_trouble(topic_id, f"its transactions cannot be looked for: {error}")
            log.warning("pipeline.not_looked_at topic=%s error=%s", named.name, error)
            self._tables.pop(topic_id, None)

    def _split_after(self, topic_id: str, ranges: Sequence[MovedRange]) -> dict[int, int] | None:
        """How far the table has to go, once it has these, until no transaction is split. None: nobody can tell."""
        table, where = self._tables[topic_id], self._where.get(topic_id)
        before = split_of(table.metadata)
        if before is None and where is None:
            return None
        starts = self._next_offsets(topic_id, table)
        return split_after(before, where or Whereabouts(), {**starts, **(ends_of(ranges, starts) or {})})

    # ── job and commit ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _have_tables(self, backlogs: Sequence[Backlog]) -> None:
        async def have(topic_id: str) -> None:
            named = await self._named_now(topic_id)
            if named is None:
                self._tables.pop(topic_id, None)  # the next look will find that it is gone
                return
            is_new = topic_id not in self._tables
            if is_new:
                self._tables[topic_id] = await ensure_table(self._catalog, named.name, topic_id, named.topic.settings)
            check_columns(self._tables[topic_id].metadata)  # before files are made that could not be committed
            if self._typed is not None:
                prepared = await self._typed.prepare(named, self._tables[topic_id])
                self._tables[topic_id], self._typings[topic_id] = prepared
            # The columns of one that is new come with its first values, and with them what it is partitioned by.
            await self._arrange(topic_id, only_whole=is_new)

        async def try_to_have(topic_id: str) -> None:
            had = topic_id in self._tables
            try:
                await have(topic_id)
            except TableAltered as error:
                self._stop(topic_id, str(error))
            except LakestreamError as error:
                if had and isinstance(error, Unavailable):
                    self._tables.pop(topic_id, None)
                    self._have_trouble(topic_id, f"its schemas cannot be had: {error}")
                else:
                    self._stop(topic_id, f"its table cannot be made: {error}")

        # A look at another partition may just have found that the topic is gone.
        topic_ids = sorted({one.partition.topic_id for one in backlogs} & self._named.keys())
        await together([try_to_have(topic_id) for topic_id in topic_ids], TABLES_AT_ONCE)

    async def _named_now(self, topic_id: str) -> NamedTopic | None:
        """With its settings as they are now: what values are may have been decided since. None: it was deleted."""
        named = self._named[topic_id]
        if self._typed is None:
            return named
        try:
            topic = await self._topics.get(named.name)
        except Missing:
            return None
        if topic.topic_id != topic_id:
            return None
        self._named[topic_id] = NamedTopic(named.name, topic)
        return self._named[topic_id]

    async def _arrange(self, topic_id: str, *, only_whole: bool = False) -> None:
        """Its table is laid out as the topic's settings say, as far as it has the columns."""
        settings = read_settings(self._named[topic_id].topic.settings)
        wanted = Arrangement(
            partition=settings.table_partition, sort=settings.table_sort, properties=settings.table_properties
        )
        table, unmet = await arrange(self._catalog, self._tables[topic_id], wanted, only_whole=only_whole)
        self._tables[topic_id], self._standing(topic_id).unmet = table, unmet

    def _target(self, topic_id: str) -> Target:
        metadata = self._tables[topic_id].metadata
        asked = tuple((name, text) for name, text in metadata["properties"].items() if name.startswith("write."))
        typing, layout = self._typings.get(topic_id), file_layout(metadata)
        columns = file_columns(metadata) if typing is not None else ()
        return Target(metadata["location"], asked, columns, typing, layout)

    async def _work(self, moves: Sequence[Move], outcomes: list[Settled]) -> None:
        """Where workers want to know more, they are told, and the same is moved again at once."""
        self.under_way = moves
        try:
            for number in range(ASKS_MAX + 1):
                found = await self._job.run(moves)
                outcomes += [one for one in found if not isinstance(one, Wants)]
                wants = [one for one in found if isinstance(one, Wants)]
                if not wants:
                    return
                moves = await self._learn(wants, outcomes, may_ask=number + 1 < ASKS_MAX)
            outcomes += [Stuck(one.move, "a worker asks although nobody answers", True) for one in wants]
        finally:
            self.under_way = ()

    async def _learn(self, wants: Sequence[Wants], outcomes: list[Settled], *, may_ask: bool) -> list[Move]:
        """The moves again, with what was wanted; those of topics where that cannot be had are outcomes now."""
        topics: defaultdict[str, list[Wants]] = defaultdict(list)
        for one in wants:
            topics[one.move.partition.topic_id].append(one)
        again: list[Move] = []

        async def learn(topic_id: str) -> None:
            own = topics[topic_id]
            try:
                await self._learn_one(topic_id, own)
            except LakestreamError as error:
                reason, is_temporary = f"its schemas cannot be had: {error}", not isinstance(error, TableAltered)
                outcomes.extend(Stuck(one.move, reason, is_temporary) for one in own)
                return
            target = self._target(topic_id)
            typing = target.typing if may_ask or target.typing is None else replace(target.typing, asks=False)
            again.extend(replace(one.move, columns=target.columns, typing=typing, layout=target.layout) for one in own)

        await together([learn(topic_id) for topic_id in topics], TABLES_AT_ONCE)
        return again

    async def _learn_one(self, topic_id: str, wants: Sequence[Wants]) -> None:
        typing = self._typings.get(topic_id)
        if self._typed is None or typing is None:
            raise Unavailable("values are typed although nobody said so")
        self._tables[topic_id], self._typings[topic_id] = await self._typed.learn(
            self._named[topic_id],
            self._tables[topic_id],
            typing,
            [wanted for one in wants for wanted in one.schemas],
            [shape for one in wants for shape in one.inferred],
        )
        await self._arrange(topic_id)  # a column may be one that it is to be partitioned by

    async def _commit(self, outcomes: Sequence[Settled], done: Round) -> None:
        topics: defaultdict[str, list[Settled]] = defaultdict(list)
        for outcome in outcomes:
            topics[outcome.move.partition.topic_id].append(outcome)

        async def commit(topic_id: str) -> None:
            good, failed = await self._sort_out(topics[topic_id])
            try:
                if good and await self._commit_one(topic_id, good):
                    self._count(topic_id, good, done)
            except TableAltered as error:
                await self._remove(good)
                self._stop(topic_id, str(error))
            except LakestreamError as error:
                if not isinstance(error, CommitUnknown):
                    await self._remove(good)  # the next round makes them anew
                self._tables.pop(topic_id, None)
                self._changed.look_again(one.move.partition for one in good)
                log.warning("pipeline.not_committed topic=%s error=%s", self._name(topic_id), error)
                self._have_trouble(topic_id, f"its table cannot be committed to: {error}")
            for stuck in failed:  # only now: a topic that stops forgets its table, and the other logs have good files
                await self._tell_of(stuck)

        await together([commit(topic_id) for topic_id in topics], TABLES_AT_ONCE)

    async def _sort_out(self, outcomes: Sequence[Settled]) -> tuple[list[Moved], list[Stuck]]:
        """Of each log, what can be committed: up to the first move that failed."""
        good: list[Moved] = []
        failed: dict[PartitionId, Stuck] = {}
        surplus: list[Moved] = []
        for outcome in sorted(outcomes, key=lambda outcome: (outcome.move.partition, outcome.move.start)):
            if isinstance(outcome, Stuck):
                failed.setdefault(outcome.move.partition, outcome)
            elif outcome.move.partition in failed:
                surplus.append(outcome)
            else:
                good.append(outcome)
        self._changed.look_again(failed)
        await self._remove(surplus)
        return good, list(failed.values())

    async def _tell_of(self, stuck: Stuck) -> None:
        partition, start, end = stuck.move.partition, stuck.move.start, stuck.move.end
        where = f"partition {partition.number}, offsets {start} to {end}"
        is_temporary = stuck.temporary
        try:
            if await self._was_overtaken(partition, start):
                return
        except Unavailable:  # nobody knows, then: the next round asks again
            is_temporary = True
        if is_temporary:
            log.warning("pipeline.not_moved topic=%s %s: %s", self._name(partition.topic_id), where, stuck.reason)
            self._have_trouble(partition.topic_id, f"{where}: {stuck.reason}")
        else:
            self._unreadable.add(partition)
            self._stop(partition.topic_id, f"{where}: {stuck.reason}")

    async def _was_overtaken(self, partition: PartitionId, start: int) -> bool:
        """Another driver has moved what starts there, and what we wanted to read is gone: nothing is wrong.
        Unavailable: nobody can tell now."""
        try:
            table = await self._catalog.load_id(partition.topic_id, confirmed=True)
            if next_offsets(table.metadata).get(partition.number, 0) <= start:
                return False
        except Unavailable:
            raise
        except LakestreamError:
            return False
        self._tables[partition.topic_id] = table
        return True

    async def _commit_one(self, topic_id: str, moved: Sequence[Moved]) -> bool:
        """False: somebody else moved these ranges, or some of them; the next round sees what is left. CommitUnknown:
        it may be in the table. Any other error: it is not."""
        files = [file for one in moved for file in one.files]
        ranges = [MovedRange(one.move.partition.number, one.move.start, one.move.end) for one in moved]
        for _ in range(COMMIT_TRIES):
            try:
                split = self._split_after(topic_id, ranges)
                self._tables[topic_id] = await append(self._catalog, self._tables[topic_id], files, ranges, split)
                return True
            except CommitRefused:
                # A foreign rewrite went by, or another driver. Does what we have still follow what is there?
                self._tables[topic_id] = await self._catalog.load_id(topic_id)
                if ends_of(ranges, next_offsets(self._tables[topic_id].metadata)) is None:
                    await self._remove(moved)
                    self._changed.look_again(one.move.partition for one in moved)
                    return False
            except CommitUnknown:
                # Nothing may be removed: it may be in the table. What the table says decides what is moved next.
                self._tables.pop(topic_id, None)
                self._changed.look_again(one.move.partition for one in moved)
                raise
        raise Unavailable("its table is changed all the time by others")

    async def _remove(self, moved: Iterable[Moved]) -> None:
        """Files that no table will ever name. What is not removed now is an orphan, which maintenance removes."""
        locations = [file.location for one in moved for file in one.files]
        if not locations:
            return
        try:
            await self._objects.delete([self._catalog.locations.key_of(location) for location in locations])
        except LakestreamError as error:
            log.warning("pipeline.files_left count=%d first=%s error=%s", len(locations), locations[0], error)

    def _count(self, topic_id: str, moved: Sequence[Moved], done: Round) -> None:
        standing = self._standing(topic_id)
        standing.moved_ms = self._clock.now_ms()
        if standing.bad_round != self._round:  # or another partition of it is
            standing.stuck = standing.trouble = ""
        done.tables += 1
        done.committed.add(topic_id)
        for one in moved:
            self._to_trim.add(one.move.partition)
            self._unreadable.discard(one.move.partition)
            done.moves += 1
            done.records += one.record_count
            done.bytes += one.move.size
            done.files += len(one.files)
            standing.records += one.record_count
            standing.bytes += one.move.size
            standing.files += len(one.files)
            standing.typed += one.typed_count
            standing.raw += one.raw_count
            if one.misfits:
                first = one.misfits[0]
                standing.misfit = (
                    f"{first.reason}; first at offset {first.offset} of partition {one.move.partition.number}"
                )

    # ── trim and sweep ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _trim(self) -> None:
        """What the table has leaves the chain."""

        async def trim(partition: PartitionId) -> None:
            try:
                end = self._next_offset(partition)
                await self._claims.advance_table_end(partition, end)
                self._sweeper.note_dropped(await self._logs.trim(partition, end))
            except TableAltered as error:
                self._stop(partition.topic_id, str(error))
            except Missing:
                self._trimmed.pop(partition, None)  # the topic was deleted
            except LakestreamError as error:
                self._to_trim.add(partition)
                name = self._name(partition.topic_id)
                log.warning("pipeline.not_trimmed topic=%s partition=%d error=%s", name, partition.number, error)
            else:
                self._trimmed[partition] = end
                self._to_sweep = True

        waiting, self._to_trim = self._to_trim, set()
        self._to_trim = {one for one in waiting if one.topic_id in self._named and one.topic_id not in self._tables}
        await together([trim(one) for one in sorted(waiting) if one.topic_id in self._tables], LOGS_AT_ONCE)

    async def _sweep(self) -> None:
        now_ms = self._clock.now_ms()
        if not self._to_sweep or now_ms - self._swept_ms < SWEEP_EVERY_MS:
            return
        self._swept_ms, self._to_sweep = now_ms, False
        try:
            if await self._sweeper.sweep() or self._sweeper.waits:
                self._to_sweep = True
        except LakestreamError as error:
            self._to_sweep = True
            log.warning("pipeline.not_swept error=%s", error)

    # ── standing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _stop(self, topic_id: str, reason: str) -> None:
        """This topic waits; it is tried again after a while, and its table is looked at anew then."""
        standing = self._standing(topic_id)
        if standing.stuck != reason:
            log.error("pipeline.stuck topic=%s reason=%s", standing.name, reason)
        standing.stuck, standing.tried_ms = reason, self._clock.now_ms()
        standing.trouble, standing.bad_round = "", self._round
        self._tables.pop(topic_id, None)
        named = self._named.get(topic_id)
        if named is not None:
            self._changed.look_again(named.topic.partitions())

    def _have_trouble(self, topic_id: str, reason: str) -> None:
        """It is tried again at once; who asks is told."""
        standing = self._standing(topic_id)
        if not standing.trouble:
            standing.trouble_ms = self._clock.now_ms()
        standing.trouble, standing.bad_round = reason, self._round

    def _is_resting(self, topic_id: str) -> bool:
        standing = self.standings.get(topic_id)
        return bool(
            standing is not None and standing.stuck and self._clock.now_ms() - standing.tried_ms < STUCK_RETRY_MS
        )

    def _standing(self, topic_id: str) -> Standing:
        return self.standings.setdefault(topic_id, Standing(self._name(topic_id)))

    def _name(self, topic_id: str) -> str:
        named = self._named.get(topic_id)
        return topic_id if named is None else named.name

    async def _note_lags(self, backlogs: Sequence[Backlog]) -> None:
        lags = [(one.partition.topic_id, self._left_of(one)) for one in backlogs]
        lags += await self._lags_of_stuck({one.partition for one in backlogs})
        for standing in self.standings.values():
            standing.lag_records = standing.oldest_ms = 0
        for topic_id, lag in lags:
            if lag.records > 0:
                standing = self._standing(topic_id)
                standing.lag_records += lag.records
                standing.oldest_ms = min(standing.oldest_ms or lag.oldest_ms, lag.oldest_ms)
        for topic_id in self._looked & self.standings.keys():  # nothing was wrong, and nothing waits: it was mended
            standing = self.standings[topic_id]
            if standing.bad_round != self._round and not standing.lag_records:
                standing.stuck = standing.trouble = ""

    def _left_of(self, backlog: Backlog) -> Lag:
        return Lag(backlog.end - max(backlog.start, self._known_next(backlog.partition)), backlog.oldest_ms)

    async def _lags_of_stuck(self, known: Set[PartitionId]) -> list[tuple[str, Lag]]:
        """Nobody looks into their logs while they rest."""
        named = [
            self._named[topic_id] for topic_id, one in self.standings.items() if one.stuck and topic_id in self._named
        ]
        partitions = [one for topic in named for one in topic.topic.partitions() if one not in known][:STUCK_LOGS_MAX]
        try:
            lags = await together([lag_of(self._claims, one) for one in partitions], LOGS_AT_ONCE)
        except LakestreamError as error:
            log.warning("pipeline.lag_unknown error=%s", error)
            return []
        return [(partition.topic_id, lag) for partition, lag in zip(partitions, lags, strict=True)]

    def _known_next(self, partition: PartitionId) -> int:
        try:
            return self._next_offset(partition)
        except TableAltered:
            return 0

    def _forget_gone(self) -> None:
        for topic_id in {*self._tables, *self._offsets, *self._held, *self.standings} - self._named.keys():
            self._tables.pop(topic_id, None)
            self._held.pop(topic_id, None)
            self._offsets.pop(topic_id, None)
            self._typings.pop(topic_id, None)
            if self._typed is not None:
                self._typed.forget(topic_id)
            self.standings.pop(topic_id, None)
        for partition in [one for one in self._trimmed if one.topic_id not in self._named]:
            del self._trimmed[partition]
        self._unreadable = {one for one in self._unreadable if one.topic_id in self._named}
