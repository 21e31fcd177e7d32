"""What is forgotten: offsets of groups that are long gone and of topics that were deleted, then groups without any.

Every broker looks after the groups that it coordinates, a few at a time. The rules are in offsets.py.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Set
from typing import Final

from lakestream.clock import Clock
from lakestream.coordination.cluster import ClusterView
from lakestream.coordination.groups.coordinator import Groups
from lakestream.coordination.groups.offsets import expired
from lakestream.errors import LakestreamError, Missing
from lakestream.metadata.groups import NamedGroup
from lakestream.model import PartitionId

log = logging.getLogger(__name__)

PAUSE_S: Final = 0.01
"""Between groups: clients come first."""
Pending = Callable[[str], Awaitable[Set[PartitionId]]]
"""Of a group: partitions whose offsets a transaction holds. They are in use, and so is the group."""
LEFTOVER_MS: Final = 60 * 60 * 1000
"""A name stands there for a moment before its group does."""


class Expiry:
    def __init__(self, groups: Groups, view: ClusterView, clock: Clock, pending: Pending) -> None:
        self._groups = groups
        self._pending = pending
        self._view = view
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="groups.expiry")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._groups.settings.expiry_round_ms / 1000)
            try:
                await self.round()
            except LakestreamError as error:
                log.warning("groups.not_expired error=%s", error)
            except Exception:
                log.exception("groups.not_expired")  # a bug must not keep everything for ever

    async def round(self) -> None:
        """Every group once."""
        for named in await self._groups.names():
            try:
                await self.expire(named)
            except LakestreamError as error:  # another broker has it by now, or it is for the next round
                log.info("groups.not_expired group=%s error=%s", named.name, error)
            await asyncio.sleep(PAUSE_S)

    async def expire(self, named: NamedGroup) -> None:
        name, now_ms = named.name, self._clock.now_ms()
        # Reading it here also brings one into memory whose members died with its last coordinator: they expire then.
        record = await self._groups.describe(name)
        if record is None:
            if now_ms - named.created_ms > LEFTOVER_MS:
                await self._groups.remove_leftover(named)
            return
        offsets = await self._groups.offsets(name)
        topics = {partition.topic_id for partition in offsets}
        names = {topic_id: await self._name(topic_id) for topic_id in topics}
        gone = expired(record, offsets, names.__getitem__, now_ms, self._groups.settings.offsets_retention_ms)
        is_over = record.is_empty and len(gone) == len(offsets)
        if (gone or is_over) and (held := await self._pending(name)):
            gone, is_over = [one for one in gone if one not in held], False
        if gone:
            log.info("groups.expired group=%s offsets=%d", name, len(gone))
            await self._groups.remove_offsets(name, gone)
        if is_over:
            await self._groups.delete(name)

    async def _name(self, topic_id: str) -> str | None:
        try:
            return await self._view.name_of_id(topic_id)
        except Missing:
            return None
