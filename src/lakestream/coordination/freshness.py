"""Fresh reads: waits until a table contains all records that were acknowledged before the request.

The ends of the topic's partitions → a refresh request in the metadata store → the pipeline wakes, moves records and
commits → the table's pointer changes, which wakes the waiting request → the table's metadata contains the offsets it
has reached. Every wait ends: after its timeout, or when the topic is stalled, the result contains
the missing partitions and the reason.

Before: protocol/rest/iceberg/tables.py.  The reader of the requests: pipeline/refresh_requests.py.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple

from lakestream.aio.gather import gather_limited
from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import NoSuchTable
from lakestream.catalog.identifiers import TableName
from lakestream.catalog.topic_table.offsets import next_offsets
from lakestream.catalog.topic_table_names import name_of
from lakestream.clock import Clock, Ids
from lakestream.config.parsing import format_seconds
from lakestream.data.log.log import Log
from lakestream.errors import LakestreamError, Missing
from lakestream.metadata import keys
from lakestream.metadata.pipeline_status import PipelineStatusStore
from lakestream.metadata.refresh_requests import RefreshRequests
from lakestream.metadata.store import MetadataStore
from lakestream.metadata.topics import NamedTopic, Topic, Topics

log = logging.getLogger(__name__)

WAITING_MAX: Final = 100
"""Requests that wait, per broker. Further requests do not wait."""
CHECK_MS: Final = 1_000
"""How often the table is checked without a change notification, which may be lost."""
PARTITIONS_AT_ONCE: Final = 32
REMOVE_S_MAX: Final = 5
STATUS_AGE_MS_MAX: Final = 3 * 60 * 1000
"""A running pipeline writes its status every minute. An older status is stale."""
MISSING_SHOWN: Final = 3


class FreshReadResult(NamedTuple):
    is_fresh: bool
    reason: str
    """The missing records and the reason; or why no records can be missing."""


class FreshReads:
    def __init__(self, store: MetadataStore, logs: Log, catalog: Catalog, clock: Clock, ids: Ids) -> None:
        self._store = store
        self._logs = logs
        self._catalog = catalog
        self._clock = clock
        self._ids = ids
        self._topics = Topics(store)
        self._requests = RefreshRequests(store)
        self._statuses = PipelineStatusStore(store)
        self._changed: set[asyncio.Event] = set()  # one per waiting request
        self._closed = False

    def close(self) -> None:
        """Ends all waits."""
        self._closed = True
        for changed in self._changed:
            changed.set()

    async def wait(self, name: TableName, wait_ms: int) -> FreshReadResult:
        """Waits until the table has all records that its topic has now, for `wait_ms` at most."""
        missing: dict[int, str] = {}
        try:
            async with asyncio.timeout(wait_ms / 1000):
                return await self._wait(name, missing)
        except TimeoutError:
            reason = f"not within {format_seconds(wait_ms)}{await self._pipeline_silence()}"
        except LakestreamError as error:
            reason = f"{error}"
        return FreshReadResult(False, "; ".join([reason, *_shown(missing)]))

    async def _wait(self, name: TableName, missing: dict[int, str]) -> FreshReadResult:
        named = await self._topic_of(name)
        if named is None:
            return FreshReadResult(True, "the table has no topic")
        if len(self._changed) >= WAITING_MAX:
            return FreshReadResult(False, f"{len(self._changed)} requests wait already: retry")
        topic_id = named.topic.topic_id
        ends = await self._ends(named.topic)
        missing.update(await self._missing(topic_id, ends))
        if not missing:
            return FreshReadResult(True, "")
        requested = {number: ends[number] for number in missing}
        async with self._watched(topic_id) as changed, self._requested(topic_id, requested):
            while not self._closed:
                changed.clear()
                now = await self._missing(topic_id, ends)
                missing.clear()
                missing.update(now)
                if not missing:
                    return FreshReadResult(True, "")
                if reason := await self._stalled(named.name):
                    return FreshReadResult(False, "; ".join([reason, *_shown(missing)]))
                with suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_MS / 1000):
                        await changed.wait()
        return FreshReadResult(False, "; ".join(["this server stops", *_shown(missing)]))

    async def _topic_of(self, name: TableName) -> NamedTopic | None:
        """Returns the topic with the table's name, else the topic whose table was renamed to it."""
        with suppress(Missing):
            topic = await self._topics.get(name.name)
            if name_of(name.name, topic.settings) == name:
                return NamedTopic(name.name, topic)
        with suppress(Missing, NoSuchTable):
            table = (await self._catalog.pointers.find(name)).table
            if table.topic_id:
                return await self._topics.find_id(table.topic_id)
        return None

    async def _ends(self, topic: Topic) -> dict[int, int]:
        """Returns the last stable offset of each partition: no open transaction is before it."""
        partitions = topic.partitions()
        bounds = await gather_limited([self._logs.bounds(partition) for partition in partitions], PARTITIONS_AT_ONCE)
        return {partition.number: bound.stable for partition, bound in zip(partitions, bounds, strict=True)}

    async def _missing(self, topic_id: str, ends: Mapping[int, int]) -> dict[int, str]:
        """Returns the progress of each partition that has not reached its end."""
        try:
            reached = next_offsets((await self._catalog.load_id(topic_id, parse=True)).metadata)
        except NoSuchTable:
            reached = {}
        return {
            number: f"partition {number} is at {reached.get(number, 0)} of {end}"
            for number, end in ends.items()
            if reached.get(number, 0) < end
        }

    async def _stalled(self, name: str) -> str:
        status = await self._statuses.get()
        if status is None or self._clock.now_ms() - status.at_ms > STATUS_AGE_MS_MAX:
            return ""
        topic = status.topics.get(name)
        return f"the topic is stalled: {topic.stalled}" if topic is not None and topic.stalled else ""

    async def _pipeline_silence(self) -> str:
        """Returns whether and since when no pipeline runs, or nothing if one runs."""
        try:
            status = await self._statuses.get()
        except LakestreamError:
            return ""
        if status is None:
            return ": no pipeline has run yet, start one"
        age_ms = self._clock.now_ms() - status.at_ms
        return f": the pipeline wrote its last status {age_ms // 1000} s ago" if age_ms > STATUS_AGE_MS_MAX else ""

    @asynccontextmanager
    async def _requested(self, topic_id: str, ends: Mapping[int, int]) -> AsyncIterator[None]:
        name = self._ids.new()
        await self._requests.put(name, topic_id, ends)
        try:
            yield
        finally:
            try:
                async with asyncio.timeout(REMOVE_S_MAX):
                    await self._requests.remove(name)
            except (LakestreamError, TimeoutError) as error:
                log.warning("freshness.cleanup_failed name=%s error=%s", name, error)  # the pipeline removes it

    @asynccontextmanager
    async def _watched(self, topic_id: str) -> AsyncIterator[asyncio.Event]:
        """Yields an event that is set whenever the table may have changed."""
        changed = asyncio.Event()

        async def watch() -> None:
            with suppress(LakestreamError):  # then the periodic checks see the change
                async for _ in self._store.watch(keys.table_key(topic_id).path):
                    changed.set()

        watching = asyncio.get_running_loop().create_task(watch(), name="freshness.watch")
        self._changed.add(changed)
        try:
            yield changed
        finally:
            self._changed.discard(changed)
            watching.cancel()
            await asyncio.wait([watching])


def _shown(missing: Mapping[int, str]) -> list[str]:
    shown = list(missing.values())[:MISSING_SHOWN]
    return [*shown, f"{len(missing) - len(shown)} more"] if len(missing) > len(shown) else shown
