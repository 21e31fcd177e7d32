"""Maintains the tables of topics in turn, within a time budget. Start reading here.

    due      which tables have changed, or were last visited long ago
    plan     what each needs now (plan.py, pure)
    job      workers rewrite files (worker.py), for many tables at once
    commit   catalog/operations/rewrite_files.py: valid only while the replaced files are still in the table
    expire   catalog/operations/expire_snapshots.py, remove_orphan_files.py: unneeded files are deleted

Every step can be repeated; what a crash left undone is planned again. Concurrent maintenance by several processes is
safe: one of them finds that its files were replaced, and drops its own. Producers, consumers and micro-batches wait for
none of this.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol, TypeVar

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.errors import NoSuchTable
from lakestream.catalog.operations.expire_snapshots import ExpirySettings, expire
from lakestream.catalog.operations.live_files import LiveFileReader, LiveFiles
from lakestream.catalog.operations.remove_orphan_files import OrphanSettings, remove_orphans
from lakestream.catalog.operations.rewrite_files import FilesChanged, Rewrite, rewrite
from lakestream.catalog.pointers import TableEntry
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.table_metadata.updates import SetProperties
from lakestream.catalog.topic_table.checks import check_columns
from lakestream.catalog.topic_table.live_file import LiveFile
from lakestream.catalog.topic_table.offsets import next_offsets
from lakestream.coordination import topic_config
from lakestream.errors import LakestreamError
from lakestream.metadata.claims import Claims
from lakestream.metadata.topics import Topic, Topics
from lakestream.model import PartitionId
from lakestream.pipeline.maintenance.key_compaction import Cleaned, CompactionSettings, cleaned_of, properties_with
from lakestream.pipeline.maintenance.plan import FOR_EVER, Plan, Policy, plan
from lakestream.pipeline.maintenance.small_files import MergeSettings
from lakestream.pipeline.maintenance.tasks import Compact, Merge, RemoveRows, Result, RewrittenFiles, Task, TaskFailed

log = logging.getLogger(__name__)

T = TypeVar("T")

GC_ENABLED: Final = "gc.enabled"
"""Iceberg's own property. `false`: no file may be deleted, because other tables or catalogs may name it too."""
TABLES_TOGETHER: Final = 16
"""Tables whose tasks are one job."""
MERGE_RETRY_MS: Final = 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSettings:
    visit_ms: int = 60_000  # between visits of a table that changes
    idle_ms: int = 10 * 60_000  # between visits of a table that does not change: rows and snapshots expire
    merge: MergeSettings = field(default_factory=MergeSettings)
    expiry: ExpirySettings = field(default_factory=ExpirySettings)
    orphans: OrphanSettings = field(default_factory=OrphanSettings)


class DeltaSync(Protocol):
    """Keeps the Delta tables up to date with their Iceberg tables."""

    def blocking_files(self, topic_id: str) -> tuple[frozenset[str], frozenset[str]]:
        """Returns files that must be rewritten first: because of deleted rows; because of column names."""
        ...

    async def listed(self, loaded: LoadedTable) -> frozenset[str]:
        """Returns keys of files that a Delta table lists, which must not be deleted."""
        ...

    def note(self, topic_ids: Sequence[str]) -> None:
        """These tables were committed to."""
        ...


class RewriteJob(Protocol):
    async def run(self, tasks: Sequence[Task]) -> list[Result]:
        """Returns the results in the same order. Unavailable: the job cannot run."""
        ...


@dataclass(slots=True)
class MaintenanceStats:
    """Counts of one call."""

    tables: int = 0
    files_merged: int = 0
    files_compacted: int = 0
    files_dropped: int = 0
    files_written: int = 0
    rows_removed: int = 0
    snapshots_expired: int = 0
    files_removed: int = 0
    orphans_removed: int = 0
    failed: int = 0
    left: bool = False
    """Whether due tables are left because the time was up."""


@dataclass(slots=True)
class _TableState:
    """State of a table at the last visit."""

    metadata_location: str = ""
    visited_ms: int = 0
    orphans_ms: int = 0
    orphans_after: str = ""
    logged: str = ""
    failed_merges: dict[str, int] = field(default_factory=dict)
    """When merges of files failed, by location: these files are skipped for a while."""


@dataclass(frozen=True, slots=True)
class _Planned:
    loaded: LoadedTable
    listing: LiveFiles
    plan: Plan


class Maintenance:
    def __init__(
        self,
        catalog: Catalog,
        topics: Topics,
        claims: Claims,
        job: RewriteJob,
        now_ms: Callable[[], Awaitable[int]],
        settings: MaintenanceSettings | None = None,
        delta_sync: DeltaSync | None = None,
    ) -> None:
        """`now_ms`: the time of the metadata store; the clock of this machine may be wrong after a suspend."""
        self._delta_sync = delta_sync
        self._catalog = catalog
        self._topics = topics
        self._claims = claims
        self._job = job
        self._now_ms = now_ms
        self._settings = settings or MaintenanceSettings()
        self._listings = LiveFileReader(catalog.objects, catalog.locations)
        self._states: dict[str, _TableState] = {}

    async def maintain(self, budget_s: float = 60.0) -> MaintenanceStats:
        """Maintains the due tables, the least recently visited first, until the time is up.

        Started work is finished, so the call may take longer.
        """
        deadline_s = asyncio.get_running_loop().time() + budget_s
        done = MaintenanceStats()
        now_ms = await self._now_ms()
        due = await self._due(now_ms)
        topics = {topic.topic_id: topic for topic in (await self._topics.all()).values()} if due else {}
        for start in range(0, len(due), TABLES_TOGETHER):
            if asyncio.get_running_loop().time() >= deadline_s:
                done.left = True
                break
            await self._maintain_tables(due[start : start + TABLES_TOGETHER], topics, now_ms, done)
        return done

    async def _due(self, now_ms: int) -> list[TableEntry]:
        tables = [one async for one in self._catalog.pointers.all() if one.table.is_visible and one.table.topic_id]
        self._states = {one.table_id: self._states.get(one.table_id, _TableState()) for one in tables}
        due = [one for one in tables if self._is_due(one, now_ms)]
        return sorted(due, key=lambda one: (self._states[one.table_id].visited_ms, one.table_id))

    def _is_due(self, found: TableEntry, now_ms: int) -> bool:
        state = self._states[found.table_id]
        waited_ms = now_ms - state.visited_ms
        has_changed = found.table.metadata_location != state.metadata_location
        return waited_ms >= self._settings.idle_ms or (has_changed and waited_ms >= self._settings.visit_ms)

    async def _maintain_tables(
        self, found: Sequence[TableEntry], topics: Mapping[str, Topic], now_ms: int, done: MaintenanceStats
    ) -> None:
        planned: list[_Planned] = []
        for one in found:
            state = self._states[one.table_id]
            state.visited_ms, state.metadata_location = now_ms, one.table.metadata_location
            made = await self._guarded(state, done, self._planned(one.table_id, topics.get(one.table.topic_id), now_ms))
            if made is not None:
                planned.append(made)
                done.tables += 1
        results = await self._work([task for one in planned for task in one.plan.tasks], done)
        for made in planned:
            state, count = self._states[made.loaded.table_id], len(made.plan.tasks)
            own, results = results[:count], results[count:]
            await self._guarded(state, done, self._commit(made, own, now_ms, done))
            if self._delta_sync is not None and count:
                self._delta_sync.note([made.loaded.topic_id])
            await self._guarded(state, done, self._remove_old(made.loaded, state, now_ms, done))

    async def _guarded(self, state: _TableState, done: MaintenanceStats, work: Coroutine[Any, Any, T]) -> T | None:
        """Logs an error of one table once, so that the other tables continue."""
        try:
            return await work
        except NoSuchTable:
            return None  # dropped meanwhile
        except FilesChanged as error:
            log.info("maintenance.conflict %s", error)  # another writer was first; the next visit plans what is left
        except LakestreamError as error:
            done.failed += 1
            if state.logged != str(error):
                log.warning("maintenance.failed error=%s", error)
            state.logged = str(error)
        except Exception:
            done.failed += 1
            log.exception("maintenance.failed")  # a bug must not stop the other tables
        return None

    # ── plan and job ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _planned(self, table_id: str, topic: Topic | None, now_ms: int) -> _Planned:
        """IncompatibleTable: an operator must decide first, and may need files that would be deleted."""
        loaded = await self._catalog.load_id(table_id)
        check_columns(loaded.metadata)
        offsets = next_offsets(loaded.metadata)
        listing = await self._listings.of_main(loaded.metadata)
        policy = policy_of(topic)
        if self._delta_sync is not None and topic is not None:
            with_deletes, misnamed = self._delta_sync.blocking_files(topic.topic_id)
            policy = policy._replace(with_deletes=with_deletes, misnamed=misnamed)
        starts: dict[int, int] = {}
        if topic is not None and policy.rows_ms != FOR_EVER:
            starts = {number: await self._claims.start(PartitionId(topic.topic_id, number)) for number in offsets}
        state = self._states[table_id]
        failed = {place: ms for place, ms in state.failed_merges.items() if now_ms - ms < MERGE_RETRY_MS}
        state.failed_merges = failed
        made = plan(loaded.metadata, listing, policy, starts, now_ms, self._settings.merge, failed)
        if made.skipped and state.logged != made.skipped:
            log.warning("maintenance.skipped table=%s: %s", loaded.name, made.skipped)
            state.logged = made.skipped
        return _Planned(loaded, listing, made)

    async def _work(self, tasks: Sequence[Task], done: MaintenanceStats) -> list[Result]:
        if not tasks:
            return []
        try:
            return await self._job.run(tasks)
        except LakestreamError as error:
            done.failed += 1
            log.warning("maintenance.job_failed tasks=%d error=%s", len(tasks), error)
            return [TaskFailed(str(error)) for _ in tasks]

    # ── commit ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _commit(self, planned: _Planned, results: Sequence[Result], now_ms: int, done: MaintenanceStats) -> None:
        """Commits results together where possible: a commit costs the same for one file as for a hundred."""
        plain: list[RewrittenFiles] = []
        fewer: list[RewrittenFiles] = []
        table = _TableCommits(self._catalog, planned.loaded, planned.listing, done)
        try:
            if planned.plan.dropped:
                await table.drop(planned.plan.dropped)
            for task, result in zip(planned.plan.tasks, results, strict=True):
                if not isinstance(result, RewrittenFiles):
                    done.failed += 1
                    if isinstance(task, Merge):
                        state = self._states[planned.loaded.table_id]
                        state.failed_merges.update((source.location, now_ms) for source in task.sources)
                    reason = (
                        result.reason
                        if isinstance(result, TaskFailed)
                        else "the worker returned the result of a repair"
                    )
                    log.warning("maintenance.task_failed table=%s: %s", planned.loaded.name, reason)
                elif isinstance(task, Compact):
                    before = planned.plan.cleaned.get(task.partition, Cleaned())
                    await self._guarded(_TableState(), done, table.compact(task, result, before, now_ms))
                else:
                    (fewer if isinstance(task, RemoveRows) else plain).append(result)
        finally:
            await self._guarded(_TableState(), done, table.replace("overwrite", fewer))
            await self._guarded(_TableState(), done, table.replace("replace", plain))

    # ── remove ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _remove_old(self, loaded: LoadedTable, state: _TableState, now_ms: int, done: MaintenanceStats) -> None:
        table_id = loaded.table_id
        loaded = await self._catalog.load_id(table_id)
        next_offsets(loaded.metadata)
        if loaded.metadata["properties"].get(GC_ENABLED, "").lower() == "false":
            return
        kept = frozenset[str]() if self._delta_sync is None else await self._delta_sync.listed(loaded)
        removed = await expire(self._catalog, loaded, self._listings, now_ms, self._settings.expiry, kept)
        if removed.snapshots:
            log.info(
                "maintenance.expired table=%s snapshots=%d files=%d", loaded.name, removed.snapshots, removed.files
            )
        done.snapshots_expired += removed.snapshots
        done.files_removed += removed.files
        if now_ms - state.orphans_ms < self._settings.orphans.every_ms and not state.orphans_after:
            return
        step = await remove_orphans(
            self._catalog, table_id, self._listings, now_ms, self._settings.orphans, state.orphans_after, kept
        )
        state.orphans_ms, state.orphans_after = now_ms, step.following
        done.orphans_removed += step.removed
        if step.removed:
            log.info("maintenance.orphans_removed table=%s files=%d", loaded.name, step.removed)


class _TableCommits:
    """The commits of one visit of a table."""

    def __init__(self, catalog: Catalog, loaded: LoadedTable, listing: LiveFiles, done: MaintenanceStats) -> None:
        self._catalog = catalog
        self._loaded = loaded
        self._files = {file.location: file for file in listing.data}
        self._deletes = listing.deletes
        self._done = done

    async def drop(self, files: Sequence[LiveFile]) -> None:
        rows = sum(file.record_count for file in files)
        await self._rewrite(Rewrite(operation="delete", removed=files))
        self._done.files_dropped += len(files)
        self._done.rows_removed += rows
        log.info("maintenance.rows_removed table=%s files=%d rows=%d", self._loaded.name, len(files), rows)

    async def replace(self, operation: Literal["replace", "overwrite"], results: Sequence[RewrittenFiles]) -> None:
        results = [one for one in results if one.removed]
        if not results:
            return
        removed = [self._files[location] for one in results for location in one.removed]
        files = [file for one in results for file in one.files]
        rows = sum(file.record_count for file in removed) - sum(file.record_count for file in files)
        await self._rewrite(Rewrite(operation=operation, removed=removed, files=files))
        self._done.files_merged += len(removed)
        self._done.files_written += len(files)
        self._done.rows_removed += rows if operation == "overwrite" else 0
        log.info(
            "maintenance.%s table=%s files=%d into=%d bytes=%d",
            "merged" if operation == "replace" else "rows_expired",
            self._loaded.name,
            len(removed),
            len(files),
            sum(file.size for file in files),
        )

    async def compact(self, task: Compact, result: RewrittenFiles, before: Cleaned, now_ms: int) -> None:
        """Commits a compaction together with its new clean offset; only the offset if no row is removed."""

        def properties_for(metadata: Json) -> dict[str, str]:
            known = cleaned_of(metadata).get(task.partition, Cleaned())
            if known != before:
                raise FilesChanged(
                    f"partition {task.partition} of {self._loaded.name} was compacted by another process"
                )
            return properties_with(
                metadata, task.partition, known.after(result.reached, task.tombstones_before, now_ms)
            )

        removed = [self._files[location] for location in result.removed]
        rows = sum(file.record_count for file in removed) - sum(file.record_count for file in result.files)
        if removed:
            operation: Literal["overwrite", "delete"] = "overwrite" if result.files else "delete"
            change = Rewrite(operation=operation, removed=removed, files=result.files, properties_for=properties_for)
            await self._rewrite(change)
        else:
            await self._catalog.change(
                self._loaded.table_id, lambda metadata: [SetProperties(properties_for(metadata))]
            )
        self._done.files_compacted += len(removed)
        self._done.files_written += len(result.files)
        self._done.rows_removed += rows
        log.info(
            "maintenance.compacted table=%s partition=%d to=%d files=%d into=%d rows_removed=%d",
            self._loaded.name,
            task.partition,
            result.reached,
            len(removed),
            len(result.files),
            rows,
        )

    async def _rewrite(self, change: Rewrite) -> None:
        removed = {file.location for file in change.removed}
        change = replace(
            change,
            deletes_known=frozenset(file.location for file in self._deletes),
            deletes_removed=frozenset(file.location for file in self._deletes if file.referenced_file in removed),
        )
        self._loaded = await rewrite(self._catalog, self._loaded, change)


def policy_of(topic: Topic | None) -> Policy:
    """Returns the policy of a topic. The table of a deleted topic (None) stays as it is."""
    if topic is None:
        return Policy()
    settings = topic_config.read(topic.settings)
    compaction = CompactionSettings(
        settings.delete_retention_ms,
        settings.compaction_lag_ms_min,
        settings.compaction_lag_ms_max,
        settings.dirty_ratio_min,
    )
    return Policy(compaction if settings.compacted else None, settings.table_retention_ms)
