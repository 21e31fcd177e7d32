"""The change feed: one stream per shard for all watches of this client, resumed where it broke off.

Above: store.py.  Below: shards.py, node.py; watchers.py merges what a slow consumer has not taken.

Oxia numbers the feed of a shard without gaps. A stream begins by saying where the feed stands, so after a break we know
what we missed: nothing, a stretch that can be asked for again, or (it stands before our place, or continues behind it)
something that nobody can tell any more, and then everyone is told to look at everything.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from lakestream.metadata.oxia.errors import CallFailed, Effect
from lakestream.metadata.oxia.node import Node, Nodes
from lakestream.metadata.oxia.paths import PROBE_PATH
from lakestream.metadata.oxia.proto import oxia_pb2 as pb
from lakestream.metadata.oxia.settings import OxiaSettings
from lakestream.metadata.oxia.shards import Shards
from lakestream.metadata.store import Changes
from lakestream.metadata.watchers import Watchers


class ChangeFeed:
    def __init__(self, nodes: Nodes, shards: Shards, settings: OxiaSettings) -> None:
        self._nodes = nodes
        self._shards = shards
        self._timeout_s = settings.request_timeout_ms / 1000
        self._watchers = Watchers()
        self._offsets: dict[int, int] = {}
        self._placed: dict[int, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def watch(self, prefix: str) -> AsyncGenerator[Changes, None]:
        self._start()
        await self._wait_placed()
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
        """With the first watch; a client that watches nothing has no streams."""
        for shard in self._shards.all():
            if shard not in self._placed:
                self._placed[shard] = asyncio.Event()
                self._tasks.append(asyncio.create_task(self._follow(shard), name=f"oxia.changes.{shard}"))

    async def _wait_placed(self) -> None:
        """So that a healthy feed misses nothing from the first item on. A late shard makes up by `everything`."""
        try:
            async with asyncio.timeout(self._timeout_s):
                for placed in list(self._placed.values()):
                    await placed.wait()
        except TimeoutError:
            return

    async def _follow(self, shard: int) -> None:
        while True:
            try:
                address = await self._shards.leader_of(shard, self._timeout_s)
                async with self._shards.while_leads(shard, address):
                    await self._listen(shard, self._nodes[address])
            except CallFailed as failure:
                if failure.effect is Effect.REFUSED:
                    self._watchers.close(f"oxia: no change feed of shard {shard} ({failure})")
                    return
            await self._shards.settle()

    async def _listen(self, shard: int, node: Node) -> None:
        offset = self._offsets.get(shard)
        async with aclosing(node.notifications(shard, None, self._timeout_s)) as fresh:
            stands_at = (await anext(fresh)).offset
            if offset is None or stands_at < offset:
                self._place(shard, stands_at)
            if stands_at == self._offsets[shard]:
                return await self._take_all(shard, fresh)
        async with aclosing(node.notifications(shard, offset, None)) as resumed:
            await self._take_all(shard, resumed)

    def _place(self, shard: int, offset: int) -> None:
        self._offsets[shard] = offset
        self._placed[shard].set()
        self._watchers.tell_everything()

    async def _take_all(self, shard: int, batches: AsyncGenerator[pb.NotificationBatch, None]) -> None:
        async for batch in batches:
            self._take(shard, batch)

    def _take(self, shard: int, batch: pb.NotificationBatch) -> None:
        expected = self._offsets[shard] + 1
        if batch.offset < expected:
            return
        self._offsets[shard] = batch.offset
        # A deleted range (not by us: we delete record by record) does not say what was in it.
        ranges = any(event.type == pb.KEY_RANGE_DELETED for event in batch.notifications.values())
        if batch.offset > expected or ranges:
            self._watchers.tell_everything()
        else:
            self._watchers.tell([path for path in batch.notifications if path != PROBE_PATH])
