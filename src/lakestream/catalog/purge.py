"""Removes the files of tables that were dropped with `purge`, in the background and page by page.

The table's record, marked as purged, is the job: it stays until the last file is gone, so a crash loses nothing and
several processes may work on it at once: every broker does. What another table's folder overlaps with is left alone.
A day later the folder is looked at once more (graves.py).
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.graves import Graves
from lakestream.catalog.locations import overlap
from lakestream.catalog.pointers import Found
from lakestream.errors import Conflict, LakestreamError
from lakestream.metadata.store import MetadataStore
from lakestream.storage.object_store import ObjectStore

log = logging.getLogger(__name__)

LOOK_S: Final = 10 * 60
"""Between looks for what others left; a drop of our own is seen to at once."""
RETRY_S: Final = 15
"""After a store that did not answer."""


class Purging:
    def __init__(self, catalog: Catalog, store: MetadataStore, objects: ObjectStore) -> None:
        self._catalog = catalog
        self._store = store
        self._graves = Graves(store)
        self._objects = objects
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="catalog.purging")

    def ask(self) -> None:
        """There is something to remove."""
        self._asked.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def purge(self) -> int:
        """Everything that is to be removed now; how many tables that was."""
        tables = [found async for found in self._catalog.pointers.all()]
        purged = [found for found in tables if found.table.purged]
        for found in purged:
            name, location = str(found.table.full_name), found.table.location
            await self._remove_files(name, location, [one for one in tables if one.table_id != found.table_id])
            await self._graves.dig(found.table_id, found.table)
            try:
                await self._catalog.pointers.remove(found)
            except Conflict:
                continue  # somebody else was at it too
        await self._look_once_more()
        return len(purged)

    async def _look_once_more(self) -> None:
        if not (graves := await self._graves.old()):
            return
        tables = [found async for found in self._catalog.pointers.all()]
        for grave in graves:
            await self._remove_files("", grave.location, tables)
            await self._graves.fill_in(grave)

    async def _run(self) -> None:
        while True:
            wait_s = LOOK_S
            try:
                await self.purge()
                await self._catalog.pointers.tidy(await self._store.now_ms())
            except LakestreamError as error:
                log.warning("catalog.not_purged error=%s", error)
                wait_s = RETRY_S
            try:
                async with asyncio.timeout(wait_s):
                    await self._asked.wait()
            except TimeoutError:
                continue
            self._asked.clear()

    async def _remove_files(self, name: str, location: str, tables: Sequence[Found]) -> None:
        others = [one for one in tables if overlap(one.table.location, location)]
        if others:
            log.warning("catalog.files_kept location=%s also_of=%s", location, others[0].table.full_name)
            return
        removed = 0
        async for page in self._objects.walk(self._catalog.locations.key_of(location)):
            await self._objects.delete([info.key for info in page])
            removed += len(page)
        if name or removed:
            log.info("catalog.purged table=%s location=%s files=%d", name, location, removed)
