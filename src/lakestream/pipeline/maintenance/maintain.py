"""Looks after the tables of topics, one after the other, as long as it is given time. Read this first.

    look     which tables have changed, or have waited for long enough
    plan     what each needs now (plan.py, pure)
    job      workers write files anew (work.py), for many tables at once
    commit   catalog/rewrite.py: valid only while what it replaces is still there
    expire   catalog/expire.py, orphans.py: what nobody can need any more is removed

Every step can be repeated, and what a crash left undone the next look finds again. Two of these at once do no harm: one
of them finds its files gone, and drops its own. Nothing here is waited for by producers, consumers or the pipeline.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol, TypeVar

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.errors import NoSuchTable
from lakestream.catalog.expire import ExpirySettings, expire
from lakestream.catalog.listing import Listing, Listings, LiveFile
from lakestream.catalog.next_offsets import next_offsets
from lakestream.catalog.orphans import OrphanSettings, remove_orphans
from lakestream.catalog.pointers import Found
from lakestream.catalog.rewrite import FilesChanged, Rewrite, rewrite
from lakestream.catalog.shapes import Json
from lakestream.catalog.topic_shape import check_columns
from lakestream.catalog.updates import SetProperties
from lakestream.coordination import topic_settings
from lakestream.errors import LakestreamError
from lakestream.metadata.claims import Claims
from lakestream.metadata.topics import Topic, Topics
from lakestream.model import PartitionId
from lakestream.pipeline.maintenance.compacting import Cleaned, CompactionSettings, cleaned_of, properties_with
from lakestream.pipeline.maintenance.merging import MergeSettings
from lakestream.pipeline.maintenance.plan import FOR_EVER, Plan, Policy, plan
from lakestream.pipeline.maintenance.tasks import Compact, Forget, Merge, NotDone, Result, Task, Written

log = logging.getLogger(__name__)

T = TypeVar("T")

GC_ENABLED: Final = "gc.enabled"
"""Iceberg's own property. `false`: none of its files may be removed, since other tables or catalogs name them too."""
TABLES_TOGETHER: Final = 16
"""Whose work is one job."""
NOT_MERGED_MS: Final = 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSettings:
    look_ms: int = 60_000  # between looks at a table that changes
    idle_ms: int = 10 * 60_000  # between looks at one that does not: things become old
    merge: MergeSettings = field(default_factory=MergeSettings)
    expiry: ExpirySettings = field(default_factory=ExpirySettings)
    orphans: OrphanSettings = field(default_factory=OrphanSettings)


class Mirror(Protocol):
    """Who leads the Delta tables on after their Iceberg tables."""

    def in_the_way(self, topic_id: str) -> tuple[frozenset[str], frozenset[str]]:
        """Files that have to be written anew first: without rows that were deleted; for the names of columns."""
        ...

    async def listed(self, loaded: LoadedTable) -> frozenset[str]:
        """Keys of files that a Delta table lists: they stay."""
        ...

    def note(self, topic_ids: Sequence[str]) -> None:
        """These tables were committed to."""
        ...


class RewriteJob(Protocol):
    async def run(self, tasks: Sequence[Task]) -> list[Result]:
        """Do each; the results in the same order. Unavailable: there is nobody to do them."""
        ...


@dataclass(slots=True)
class Done:
    """What a call did."""

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
    """Tables wait that there was no time for."""


@dataclass(slots=True)
class _Looked:
    """What is known of a table from the last look."""

    metadata_location: str = ""
    looked_ms: int = 0
    orphans_ms: int = 0
    orphans_after: str = ""
    said: str = ""
    not_merged: dict[str, int] = field(default_factory=dict)
    """Files with which a merge has failed, and when: they are left alone for a while."""


@dataclass(frozen=True, slots=True)
class _Planned:
    loaded: LoadedTable
    listing: Listing
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
        mirror: Mirror | None = None,
    ) -> None:
        """`now_ms`: the time by the metadata store, never this machine's, which may have been asleep."""
        self._mirror = mirror
        self._catalog = catalog
        self._topics = topics
        self._claims = claims
        self._job = job
        self._now_ms = now_ms
        self._settings = settings or MaintenanceSettings()
        self._listings = Listings(catalog.objects, catalog.locations)
        self._looked: dict[str, _Looked] = {}

    async def maintain(self, budget_s: float = 60.0) -> Done:
        """Look after the tables whose turn it is, the longest unseen first, until the time is up: what has begun is
        brought to its end, so it may be more."""
        deadline_s = asyncio.get_running_loop().time() + budget_s
        done = Done()
        now_ms = await self._now_ms()
        due = await self._due(now_ms)
        topics = {topic.topic_id: topic for topic in (await self._topics.all()).values()} if due else {}
        for start in range(0, len(due), TABLES_TOGETHER):
            if asyncio.get_running_loop().time() >= deadline_s:
                done.left = True
                break
            await self._look_after(due[start : start + TABLES_TOGETHER], topics, now_ms, done)
        return done

    async def _due(self, now_ms: int) -> list[Found]:
        tables = [one async for one in self._catalog.pointers.all() if one.table.is_there and one.table.topic_id]
        self._looked = {one.table_id: self._looked.get(one.table_id, _Looked()) for one in tables}
        due = [one for one in tables if self._is_due(one, now_ms)]
        return sorted(due, key=lambda one: (self._looked[one.table_id].looked_ms, one.table_id))

    def _is_due(self, found: Found, now_ms: int) -> bool:
        looked = self._looked[found.table_id]
        waited_ms = now_ms - looked.looked_ms
        has_changed = found.table.metadata_location != looked.metadata_location
        return waited_ms >= self._settings.idle_ms or (has_changed and waited_ms >= self._settings.look_ms)

    async def _look_after(self, found: Sequence[Found], topics: Mapping[str, Topic], now_ms: int, done: Done) -> None:
        planned: list[_Planned] = []
        for one in found:
            looked = self._looked[one.table_id]
            looked.looked_ms, looked.metadata_location = now_ms, one.table.metadata_location
            made = await self._guarded(
                looked, done, self._planned(one.table_id, topics.get(one.table.topic_id), now_ms)
            )
            if made is not None:
                planned.append(made)
                done.tables += 1
        results = await self._work([task for one in planned for task in one.plan.tasks], done)
        for made in planned:
            looked, count = self._looked[made.loaded.table_id], len(made.plan.tasks)
            own, results = results[:count], results[count:]
            await self._guarded(looked, done, self._commit(made, own, now_ms, done))
            if self._mirror is not None and count:
                self._mirror.note([made.loaded.topic_id])
            await self._guarded(looked, done, self._remove_old(made.loaded, looked, now_ms, done))

    async def _guarded(self, looked: _Looked, done: Done, work: Coroutine[Any, Any, T]) -> T | None:
        """What is wrong with one table is said once, and holds up no other."""
        try:
            return await work
        except NoSuchTable:
            return None  # dropped meanwhile
        except FilesChanged as error:
            log.info("maintenance.overtaken %s", error)  # somebody else was at it: the next look sees what is left
        except LakestreamError as error:
            done.failed += 1
            if looked.said != str(error):
                log.warning("maintenance.failed error=%s", error)
            looked.said = str(error)
        except Exception:
            done.failed += 1
            log.exception("maintenance.failed")  # a bug that one table brings out is no other's
        return None

    # ── plan and job ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _planned(self, table_id: str, topic: Topic | None, now_ms: int) -> _Planned:
        """TableAltered: a person has to decide first, and may need what would be removed."""
        loaded = await self._catalog.load_id(table_id)
        check_columns(loaded.metadata)
        offsets = next_offsets(loaded.metadata)
        listing = await self._listings.of_main(loaded.metadata)
        policy = policy_of(topic)
        if self._mirror is not None and topic is not None:
            anew, misnamed = self._mirror.in_the_way(topic.topic_id)
            policy = policy._replace(anew=anew, misnamed=misnamed)
        starts: dict[int, int] = {}
        if topic is not None and policy.rows_ms != FOR_EVER:
            starts = {number: await self._claims.start(PartitionId(topic.topic_id, number)) for number in offsets}
        looked = self._looked[table_id]
        failed = {place: ms for place, ms in looked.not_merged.items() if now_ms - ms < NOT_MERGED_MS}
        looked.not_merged = failed
        made = plan(loaded.metadata, listing, policy, starts, now_ms, self._settings.merge, failed)
        if made.not_possible and looked.said != made.not_possible:
            log.warning("maintenance.not_possible table=%s: %s", loaded.name, made.not_possible)
            looked.said = made.not_possible
        return _Planned(loaded, listing, made)

    async def _work(self, tasks: Sequence[Task], done: Done) -> list[Result]:
        if not tasks:
            return []
        try:
            return await self._job.run(tasks)
        except LakestreamError as error:
            done.failed += 1
            log.warning("maintenance.no_work tasks=%d error=%s", len(tasks), error)
            return [NotDone(str(error)) for _ in tasks]

    # ── commit ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _commit(self, planned: _Planned, results: Sequence[Result], now_ms: int, done: Done) -> None:
        """What can be committed together is: a commit costs the same for one file as for a hundred."""
        plain: list[Written] = []
        fewer: list[Written] = []
        table = _Table(self._catalog, planned.loaded, planned.listing, done)
        try:
            if planned.plan.dropped:
                await table.drop(planned.plan.dropped)
            for task, result in zip(planned.plan.tasks, results, strict=True):
                if not isinstance(result, Written):
                    done.failed += 1
                    if isinstance(task, Merge):
                        looked = self._looked[planned.loaded.table_id]
                        looked.not_merged.update((source.location, now_ms) for source in task.sources)
                    reason = result.reason if isinstance(result, NotDone) else "a worker took it for a repair"
                    log.warning("maintenance.not_done table=%s: %s", planned.loaded.name, reason)
                elif isinstance(task, Compact):
                    before = planned.plan.cleaned.get(task.partition, Cleaned())
                    await self._guarded(_Looked(), done, table.compact(task, result, before, now_ms))
                else:
                    (fewer if isinstance(task, Forget) else plain).append(result)
        finally:
            await self._guarded(_Looked(), done, table.replace("overwrite", fewer))
            await self._guarded(_Looked(), done, table.replace("replace", plain))

    # ── remove ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _remove_old(self, loaded: LoadedTable, looked: _Looked, now_ms: int, done: Done) -> None:
        table_id = loaded.table_id
        loaded = await self._catalog.load_id(table_id)
        next_offsets(loaded.metadata)
        if loaded.metadata["properties"].get(GC_ENABLED, "").lower() == "false":
            return  # others name its files too
        kept = frozenset[str]() if self._mirror is None else await self._mirror.listed(loaded)
        gone = await expire(self._catalog, loaded, self._listings, now_ms, self._settings.expiry, kept)
        if gone.snapshots:
            log.info("maintenance.expired table=%s snapshots=%d files=%d", loaded.name, gone.snapshots, gone.files)
        done.snapshots_expired += gone.snapshots
        done.files_removed += gone.files
        if now_ms - looked.orphans_ms < self._settings.orphans.every_ms and not looked.orphans_after:
            return
        step = await remove_orphans(
            self._catalog, table_id, self._listings, now_ms, self._settings.orphans, looked.orphans_after, kept
        )
        looked.orphans_ms, looked.orphans_after = now_ms, step.following
        done.orphans_removed += step.removed
        if step.removed:
            log.info("maintenance.orphans table=%s files=%d", loaded.name, step.removed)


class _Table:
    """The commits of one look at a table."""

    def __init__(self, catalog: Catalog, loaded: LoadedTable, listing: Listing, done: Done) -> None:
        self._catalog = catalog
        self._loaded = loaded
        self._files = {file.location: file for file in listing.data}
        self._deletes = listing.deletes
        self._done = done

    async def drop(self, files: Sequence[LiveFile]) -> None:
        rows = sum(file.record_count for file in files)
        await self._rewrite(Rewrite(operation="delete", gone=files))
        self._done.files_dropped += len(files)
        self._done.rows_removed += rows
        log.info("maintenance.dropped table=%s files=%d rows=%d", self._loaded.name, len(files), rows)

    async def replace(self, operation: Literal["replace", "overwrite"], results: Sequence[Written]) -> None:
        results = [one for one in results if one.gone]
        if not results:
            return
        gone = [self._files[location] for one in results for location in one.gone]
        files = [file for one in results for file in one.files]
        rows = sum(file.record_count for file in gone) - sum(file.record_count for file in files)
        await self._rewrite(Rewrite(operation=operation, gone=gone, files=files))
        self._done.files_merged += len(gone)
        self._done.files_written += len(files)
        self._done.rows_removed += rows if operation == "overwrite" else 0
        log.info(
            "maintenance.%s table=%s files=%d into=%d bytes=%d",
            "merged" if operation == "replace" else "forgot",
            self._loaded.name,
            len(gone),
            len(files),
            sum(file.size for file in files),
        )

    async def compact(self, task: Compact, result: Written, before: Cleaned, now_ms: int) -> None:
        """With what is clean then, in the same commit; that alone, if no row goes."""

        def properties_for(metadata: Json) -> dict[str, str]:
            known = cleaned_of(metadata).get(task.partition, Cleaned())
            if known != before:
                raise FilesChanged(f"partition {task.partition} of {self._loaded.name} was compacted by somebody else")
            return properties_with(
                metadata, task.partition, known.after(result.reached, task.tombstones_before, now_ms)
            )

        gone = [self._files[location] for location in result.gone]
        rows = sum(file.record_count for file in gone) - sum(file.record_count for file in result.files)
        if gone:
            operation: Literal["overwrite", "delete"] = "overwrite" if result.files else "delete"
            change = Rewrite(operation=operation, gone=gone, files=result.files, properties_for=properties_for)
            await self._rewrite(change)
        else:
            await self._catalog.change(
                self._loaded.table_id, lambda metadata: [SetProperties(properties_for(metadata))]
            )
        self._done.files_compacted += len(gone)
        self._done.files_written += len(result.files)
        self._done.rows_removed += rows
        log.info(
            "maintenance.compacted table=%s partition=%d to=%d files=%d into=%d rows_removed=%d",
            self._loaded.name,
            task.partition,
            result.reached,
            len(gone),
            len(result.files),
            rows,
        )

    async def _rewrite(self, change: Rewrite) -> None:
        gone = {file.location for file in change.gone}
        change = replace(
            change,
            deletes_known=frozenset(file.location for file in self._deletes),
            deletes_gone=frozenset(file.location for file in self._deletes if file.about in gone),
        )
        self._loaded = await rewrite(self._catalog, self._loaded, change)


def policy_of(topic: Topic | None) -> Policy:
    """None: the topic is gone, and its table stays as it is."""
    if topic is None:
        return Policy()
    settings = topic_settings.read(topic.settings)
    compaction = CompactionSettings(
        settings.delete_retention_ms,
        settings.compaction_lag_ms_min,
        settings.compaction_lag_ms_max,
        settings.dirty_ratio_min,
    )
    return Policy(compaction if settings.compacted else None, settings.table_retention_ms)
