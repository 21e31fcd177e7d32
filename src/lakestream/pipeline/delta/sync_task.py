"""Keeps the Delta tables of topics up to date with their Iceberg tables. Micro-batches do not wait for it.

Before: micro_batch.py, maintenance and other engines, which commit to Iceberg.  After: catalog/delta/sync.py.

The driver notes the tables that it committed to; all tables are checked periodically. If the sync of a Delta table
fails, the table lags until a later sync succeeds; the others are not affected.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from lakestream.aio.gather import gather_limited
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.delta.sync import DeltaSyncResult, DeltaTables
from lakestream.catalog.errors import NoSuchTable
from lakestream.catalog.operations.live_files import LiveFileReader
from lakestream.coordination import topic_config
from lakestream.errors import LakestreamError, Misconfigured
from lakestream.metadata.topics import Topic, Topics
from lakestream.pipeline.delta.column_names import FileNames

log = logging.getLogger(__name__)

SCAN_S: Final = 20.0
"""Between checks of all topics: settings change, and other engines commit, too."""
TABLES_AT_ONCE: Final = 2
TABLE_S_MAX: Final = 120.0
"""For one table: the first commit of a large table lists all of its files."""


@dataclass(slots=True)
class DeltaStatus:
    """Status of a topic's Delta table."""

    name: str
    version: int = -1
    lagging: str = ""
    """Why it differs from the Iceberg table; empty if it does not."""
    lagging_since_ms: int = 0
    with_deletes: frozenset[str] = frozenset()
    """Files that must be rewritten without deleted rows first."""
    misnamed: frozenset[str] = frozenset()
    """Files that must be rewritten with other column names first."""


class DeltaSyncTask:
    def __init__(self, catalog: Catalog, topics: Topics, now_ms: Callable[[], Awaitable[int]]) -> None:
        """`now_ms`: the time of the metadata store."""
        self._catalog = catalog
        self._topics = topics
        self._now_ms = now_ms
        names = FileNames(catalog.objects, catalog.locations)
        self._tables = DeltaTables(catalog, LiveFileReader(catalog.objects, catalog.locations), names)
        self._noted: set[str] = set()
        self._news = asyncio.Event()
        self.statuses: dict[str, DeltaStatus] = {}
        """By topic id, for topics with a Delta table."""

    def note(self, topic_ids: Iterable[str]) -> None:
        """Requests a sync of these tables, which were committed to."""
        self._noted |= set(topic_ids) & self.statuses.keys()
        if self._noted:
            self._news.set()

    def blocking_files(self, topic_id: str) -> tuple[frozenset[str], frozenset[str]]:
        """Returns files that maintenance must rewrite first: because of deleted rows; because of column names."""
        status = self.statuses.get(topic_id)
        return (frozenset(), frozenset()) if status is None else (status.with_deletes, status.misnamed)

    async def listed(self, loaded: LoadedTable) -> frozenset[str]:
        """Returns keys of files that must not be deleted, although Iceberg may no longer name them."""
        return await self._tables.listed(loaded)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            try:
                await self.sync_all()
                await self._wait_for_news(asyncio.get_running_loop().time() + SCAN_S)
            except LakestreamError as error:
                log.warning("delta.scan_failed error=%s", error)
                await asyncio.sleep(SCAN_S)

    async def _wait_for_news(self, until_s: float) -> None:
        while True:
            try:
                async with asyncio.timeout_at(until_s):
                    await self._news.wait()
            except TimeoutError:
                return
            self._news.clear()
            await self._sync(self._take())

    async def sync_all(self) -> None:
        """Updates the Delta tables of all topics that have one."""
        topics = {topic.topic_id: name for name, topic in (await self._topics.all()).items() if _has_delta(topic)}
        for topic_id in self.statuses.keys() - topics.keys():
            del self.statuses[topic_id]
        for topic_id, name in topics.items():
            self.statuses.setdefault(topic_id, DeltaStatus(name)).name = name
        self._tables.retain(topics.keys())
        self._noted.clear()
        await self._sync(topics)

    def _take(self) -> set[str]:
        noted, self._noted = self._noted, set()
        return noted

    async def _sync(self, topic_ids: Iterable[str]) -> None:
        now_ms = await self._now_ms()
        await gather_limited([self._guarded(topic_id, now_ms) for topic_id in sorted(topic_ids)], TABLES_AT_ONCE)

    async def _guarded(self, topic_id: str, now_ms: int) -> None:
        status = self.statuses.get(topic_id)
        if status is None:
            return
        try:
            async with asyncio.timeout(TABLE_S_MAX):
                self._note(status, await self._tables.sync(topic_id, now_ms), now_ms)
        except NoSuchTable:
            self._note(status, DeltaSyncResult(status.version), now_ms)  # not created yet, or dropped
        except TimeoutError:
            self._note_lagging(status, f"the sync timed out after {TABLE_S_MAX:.0f} s", now_ms)
        except LakestreamError as error:
            self._note_lagging(status, str(error), now_ms)
        except Exception as error:  # a bug must not stop the other tables
            log.exception("delta.failed topic=%s", status.name)
            self._note_lagging(status, f"{type(error).__name__}: {error}", now_ms)

    def _note(self, status: DeltaStatus, result: DeltaSyncResult, now_ms: int) -> None:
        status.version = result.version
        status.with_deletes, status.misnamed = result.with_deletes, result.misnamed
        if result.commits:
            log.info("delta.committed topic=%s version=%d", status.name, result.version)
        if result.blocked:
            self._note_lagging(status, result.blocked, now_ms)
        elif status.lagging:
            log.info("delta.caught_up topic=%s version=%d", status.name, result.version)
            status.lagging, status.lagging_since_ms = "", 0

    def _note_lagging(self, status: DeltaStatus, reason: str, now_ms: int) -> None:
        if status.lagging != reason:
            log.warning("delta.lagging topic=%s reason=%s", status.name, reason)
        status.lagging, status.lagging_since_ms = reason, status.lagging_since_ms or now_ms


def _has_delta(topic: Topic) -> bool:
    try:
        return topic_config.read(topic.settings).delta
    except Misconfigured:  # a setting of a newer version of Lakestream; the other topics continue
        return False


async def sync_once(task: DeltaSyncTask | None) -> None:
    """Updates the Delta tables before a pipeline ends, so that they have the moved records."""
    if task is not None:
        with contextlib.suppress(LakestreamError):
            await task.sync_all()
