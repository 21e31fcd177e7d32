"""The records that have left the log, as the table has them: what brokers read below the log's floor.

The light half: `replay.py`, which does the work, loads Arrow and the kernels, and is loaded when somebody first reads
history, beside the event loop. A broker whose consumers are all at the tail never needs it.
"""

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from lakestream.catalog.catalog import Catalog
from lakestream.data.table.past import Past, PastFile
from lakestream.data.table.threads import Threads
from lakestream.model import PartitionId
from lakestream.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from lakestream.data.table.replay import Replay

STARTS_MAX: Final = 50_000


class TableHistory:
    def __init__(self, catalog: Catalog, store: ObjectStore, bytes_max: int) -> None:
        self._catalog = catalog
        self._store = store
        self._bytes_max = bytes_max
        self._threads = Threads()
        self._loading = asyncio.Lock()
        self._replay: Replay | None = None
        self._starts: OrderedDict[PartitionId, int] = OrderedDict()

    async def close(self) -> None:
        if self._replay is not None:
            await self._replay.close()
        await self._threads.close()

    async def read(self, partition: PartitionId, offset: int, bytes_max: int) -> Past:
        """Batches from the first row at or behind `offset`: at least one if there is any, then as many as fit."""
        return await (await self._loaded()).read(partition, offset, bytes_max)

    async def start(self, partition: PartitionId) -> int | None:
        """The first offset that the table has now. None: it has no row of this partition."""
        found = await (await self._loaded()).start(partition)
        if found is not None:
            self._starts[partition] = found
            self._starts.move_to_end(partition)
            if len(self._starts) > STARTS_MAX:
                self._starts.popitem(last=False)
        return found

    def start_known(self, partition: PartitionId) -> int:
        """The same at the least, as it was when somebody last asked."""
        return self._starts.get(partition, 0)

    async def files(self, partition: PartitionId, offset: int) -> list[PastFile]:
        """Those with records from `offset` on, by their first one."""
        return await (await self._loaded()).files(partition, offset)

    async def first_at(self, partition: PartitionId, offset: int, timestamp: int) -> tuple[int, int] | None:
        """Time and offset of the first record from `offset` on that is not older."""
        return await (await self._loaded()).first_at(partition, offset, timestamp)

    async def newest(self, partition: PartitionId, offset: int) -> tuple[int, int] | None:
        """Time and offset of the record with the newest time, from `offset` on."""
        return await (await self._loaded()).newest(partition, offset)

    async def warm(self) -> None:
        """Load it now, if there is any history: the first reader need not wait for it."""
        async for found in self._catalog.pointers.all():
            if found.table.topic_id:
                await self._loaded()
                return

    async def _loaded(self) -> "Replay":
        if self._replay is None:
            async with self._loading:
                if self._replay is None:
                    make = await self._threads(_replay)
                    self._replay = make(self._catalog, self._store, self._threads, self._bytes_max)
        return self._replay


def _replay() -> "type[Replay]":
    """Takes a second, or several the first time, when kernels are compiled."""
    from lakestream.data.table.replay import Replay

    return Replay
