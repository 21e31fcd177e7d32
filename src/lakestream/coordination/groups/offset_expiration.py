"""Expires offsets of groups without members and of deleted topics, then groups without offsets.

Every broker checks the groups that it coordinates, one after another. The rules are in offset_rules.py.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Set
from typing import Final

from lakestream.aio.background import BackgroundTasks, run_every
from lakestream.clock import Clock
from lakestream.coordination.groups.coordinator import GroupCoordinator
from lakestream.coordination.groups.offset_rules import expired
from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.errors import LakestreamError, Missing
from lakestream.metadata.groups import NamedGroup
from lakestream.model import PartitionId

log = logging.getLogger(__name__)

PAUSE_S: Final = 0.01
"""Pause between groups, so that requests of clients are not delayed."""
PendingOffsets = Callable[[str], Awaitable[Set[PartitionId]]]
"""Returns the partitions of a group with offsets in a transaction: these are in use, and so is the group."""
LEFTOVER_MS: Final = 60 * 60 * 1000
"""A group's name is stored a moment before the group. A name without a group for longer than this is a leftover."""


class OffsetExpiration:
    def __init__(
        self, groups: GroupCoordinator, metadata_cache: MetadataCache, clock: Clock, pending: PendingOffsets
    ) -> None:
        self._groups = groups
        self._pending = pending
        self._metadata_cache = metadata_cache
        self._clock = clock
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        interval_s = self._groups.settings.expiry_interval_ms / 1000
        self._tasks.start(run_every(interval_s, self.expire_all, "groups.expiration_failed"), "groups.expiry")

    async def close(self) -> None:
        await self._tasks.close()

    async def expire_all(self) -> None:
        for named in await self._groups.names():
            try:
                await self.expire(named)
            except LakestreamError as error:  # another broker coordinates it now, or the next scan retries
                log.info("groups.expiration_failed group=%s error=%s", named.name, error)
            await asyncio.sleep(PAUSE_S)

    async def expire(self, named: NamedGroup) -> None:
        name, now_ms = named.name, self._clock.now_ms()
        # This also loads groups whose members died with the last coordinator: their sessions expire then.
        record = await self._groups.describe(name)
        if record is None:
            if now_ms - named.created_ms > LEFTOVER_MS:
                await self._groups.remove_leftover(named)
            return
        offsets = await self._groups.offsets(name)
        topics = {partition.topic_id for partition in offsets}
        names = {topic_id: await self._name(topic_id) for topic_id in topics}
        expired_offsets = expired(
            record, offsets, names.__getitem__, now_ms, self._groups.settings.offsets_retention_ms
        )
        is_unused = record.is_empty and len(expired_offsets) == len(offsets)
        if (expired_offsets or is_unused) and (pending := await self._pending(name)):
            expired_offsets, is_unused = [one for one in expired_offsets if one not in pending], False
        if expired_offsets:
            log.info("groups.expired group=%s offsets=%d", name, len(expired_offsets))
            await self._groups.remove_offsets(name, expired_offsets)
        if is_unused:
            await self._groups.delete(name)

    async def _name(self, topic_id: str) -> str | None:
        try:
            return await self._metadata_cache.name_of_id(topic_id)
        except Missing:
            return None
