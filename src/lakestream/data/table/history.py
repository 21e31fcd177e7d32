"""Reads records below the log's floor from the table of the topic.

This module is light: `read/history_reader.py`, which does the work, loads Arrow and the kernels. It is imported in a
thread at the first read of history. A broker whose consumers are all at the tail never imports it.
"""

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from lakestream.aio.threads import Threads
from lakestream.catalog.catalog import Catalog
from lakestream.data.table.history_types import HistoryFile, HistoryRead
from lakestream.model import PartitionId
from lakestream.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from lakestream.data.table.read.history_reader import HistoryReader

STARTS_MAX: Final = 50_000


class TableHistory:
    def __init__(self, catalog: Catalog, store: ObjectStore, bytes_max: int) -> None:
        self._catalog = catalog
        self._store = store
        self._bytes_max = bytes_max
        self._threads = Threads()
        self._loading = asyncio.Lock()
        self._reader: HistoryReader | None = None
        self._starts: OrderedDict[PartitionId, int] = OrderedDict()

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()
        await self._threads.close()

    async def read(self, partition: PartitionId, offset: int, bytes_max: int) -> HistoryRead:
        """Returns batches from the first row at or after `offset`: at least one if any exists, then as many as fit."""
        return await (await self._loaded()).read(partition, offset, bytes_max)

    async def start(self, partition: PartitionId) -> int | None:
        """Returns the first offset that the table has now, or None if it has no row of this partition."""
        offset = await (await self._loaded()).start(partition)
        if offset is not None:
            self._starts[partition] = offset
            self._starts.move_to_end(partition)
            if len(self._starts) > STARTS_MAX:
                self._starts.popitem(last=False)
        return offset

    def cached_start(self, partition: PartitionId) -> int:
        """Returns the result of the last call of `start`, a lower bound of the first offset; 0 without one."""
        return self._starts.get(partition, 0)

    async def files(self, partition: PartitionId, offset: int) -> list[HistoryFile]:
        """Returns the files with records from `offset` on, by their first offset."""
        return await (await self._loaded()).files(partition, offset)

    async def first_at(self, partition: PartitionId, offset: int, timestamp: int) -> tuple[int, int] | None:
        """Returns timestamp and offset of the first record from `offset` on that is not older than `timestamp`."""
        return await (await self._loaded()).first_at(partition, offset, timestamp)

    async def newest(self, partition: PartitionId, offset: int) -> tuple[int, int] | None:
        """Returns timestamp and offset of the record with the newest timestamp, from `offset` on."""
        return await (await self._loaded()).newest(partition, offset)

    async def warm(self) -> None:
        """Loads the reader if any topic has a table, so that the first read need not wait for it."""
        async for pointer in self._catalog.pointers.all():
            if pointer.table.topic_id:
                await self._loaded()
                return

    async def _loaded(self) -> "HistoryReader":
        if self._reader is None:
            async with self._loading:
                if self._reader is None:
                    make = await self._threads(_reader_class)
                    self._reader = make(self._catalog, self._store, self._threads, self._bytes_max)
        return self._reader


def _reader_class() -> "type[HistoryReader]":
    """Imports the class, which takes a second; several the first time, when kernels are compiled."""
    from lakestream.data.table.read.history_reader import HistoryReader

    return HistoryReader
