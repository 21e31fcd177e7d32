"""Notifications of changes: one stream per shard for all watches of this client, resumed after a failure.

Above: store.py.  Below: shards.py, connection.py; watchers.py merges changes for slow consumers.

Oxia numbers the notifications of a shard without gaps. A stream begins with the current offset, so after a failure the
missed notifications are known: none, a range that can be requested again, or (if the current offset is before the last
one, or the stream continues after it) an unknown range. Then all watches get `everything`.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from lakestream.metadata.oxia.connection import OxiaNode, OxiaNodes
from lakestream.metadata.oxia.errors import CallFailed, Effect
from lakestream.metadata.oxia.key_ranges import PROBE_PATH
from lakestream.metadata.oxia.proto import oxia_pb2 as pb
from lakestream.metadata.oxia.settings import OxiaSettings
from lakestream.metadata.oxia.shards import Shards
from lakestream.metadata.store import Changes
from lakestream.metadata.watchers import Watchers


class ChangeFeed:
    def __init__(self, nodes: OxiaNodes, shards: Shards, settings: OxiaSettings) -> None:
        self._nodes = nodes
        self._shards = shards
        self._timeout_s = settings.request_timeout_ms / 1000
        self._watchers = Watchers()
        self._offsets: dict[int, int] = {}
        self._positioned: dict[int, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def watch(self, prefix: str) -> AsyncGenerator[Changes, None]:
        self._start()
        await self._wait_for_offsets()
        async with aclosing(self._watchers.watch(prefix)) as changes:
            async for change in changes:
                yield change

    async def close(self, reason: str) -> None:
        self._watchers.close(reason)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self) -> None:
        """Starts the streams with the first watch. A client without watches has no streams."""
        for shard in self._shards.all():
            if shard not in self._positioned:
                self._positioned[shard] = asyncio.Event()
                self._tasks.append(asyncio.create_task(self._follow(shard), name=f"oxia.changes.{shard}"))

    async def _wait_for_offsets(self) -> None:
        """Waits until all streams have an offset, so that no later change is missed. Late shards send `everything`."""
        try:
            async with asyncio.timeout(self._timeout_s):
                for positioned in list(self._positioned.values()):
                    await positioned.wait()
        except TimeoutError:
            return

    async def _follow(self, shard: int) -> None:
        while True:
            try:
                address = await self._shards.leader_of(shard, self._timeout_s)
                async with self._shards.while_leads(shard, address):
                    await self._receive(shard, self._nodes[address])
            except CallFailed as failure:
                if failure.effect is Effect.REFUSED:
                    self._watchers.close(f"oxia: no notifications of shard {shard} ({failure})")
                    return
            await self._shards.refresh()

    async def _receive(self, shard: int, node: OxiaNode) -> None:
        offset = self._offsets.get(shard)
        async with aclosing(node.notifications(shard, None, self._timeout_s)) as latest:
            current = (await anext(latest)).offset
            if offset is None or current < offset:
                self._set_offset(shard, current)
            if current == self._offsets[shard]:
                return await self._receive_batches(shard, latest)
        async with aclosing(node.notifications(shard, offset, None)) as resumed:
            await self._receive_batches(shard, resumed)

    def _set_offset(self, shard: int, offset: int) -> None:
        self._offsets[shard] = offset
        self._positioned[shard].set()
        self._watchers.notify_everything()

    async def _receive_batches(self, shard: int, batches: AsyncGenerator[pb.NotificationBatch, None]) -> None:
        async for batch in batches:
            self._distribute(shard, batch)

    def _distribute(self, shard: int, batch: pb.NotificationBatch) -> None:
        expected = self._offsets[shard] + 1
        if batch.offset < expected:
            return
        self._offsets[shard] = batch.offset
        # A range delete (of another program: this client deletes single records) has no paths of the deleted records.
        ranges = any(event.type == pb.KEY_RANGE_DELETED for event in batch.notifications.values())
        if batch.offset > expected or ranges:
            self._watchers.notify_everything()
        else:
            self._watchers.notify([path for path in batch.notifications if path != PROBE_PATH])
