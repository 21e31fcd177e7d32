"""Deletes the files of tables that were dropped with `purge`, in the background and page by page.

The table's record, marked as purged, is the job. It stays until the last file is deleted, so a crash loses nothing, and
every broker may work on it at the same time. Files in a folder that overlaps with another table's are not deleted, nor
those of a table below that was dropped without purge: its metadata files have another UUID.

A driver that writes files of a topic does not notice immediately that the topic's table is purged. It deletes the files
when its commit finds no table. If it is killed before that, no record names them. So the locations of purged tables are
kept for 24 hours, and then files that were written late are deleted too.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from lakestream.aio.background import BackgroundTasks
from lakestream.catalog.catalog import Catalog
from lakestream.catalog.locations import overlap
from lakestream.catalog.metadata_files import METADATA_SUFFIX
from lakestream.catalog.pointers import Table, TableEntry
from lakestream.errors import Conflict, Corrupt, LakestreamError, Rejected
from lakestream.metadata import keys
from lakestream.metadata.store import ANY, Key, MetadataStore, put_one
from lakestream.storage.object_store import ObjectStore

log = logging.getLogger(__name__)

LATE_WRITES_MS: Final = 24 * 60 * 60 * 1000
"""After this time no process that knew the table is still writing."""
INTERVAL_S: Final = 10 * 60
"""Between checks for tables that other brokers dropped. A drop on this broker is handled immediately."""
RETRY_S: Final = 15
"""After an error of a store."""


class PurgedTable(NamedTuple):
    key: Key
    location: str


class PurgedTables:
    """Locations of purged tables, kept for 24 hours so that files written late are deleted too."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def add(self, table_id: str, table: Table) -> None:
        """Stores the location. Call it before the table's record is deleted, so that one of both always exists."""
        await put_one(self._store, keys.purged_key(table_id, table.uuid), table.location.encode(), ANY)

    async def old(self) -> list[PurgedTable]:
        """Returns the tables purged more than LATE_WRITES_MS ago, by the store's clock."""
        before_ms = await self._store.now_ms() - LATE_WRITES_MS
        records = (await self._store.scan(keys.PURGED)).records
        try:
            return [
                PurgedTable(keys.PURGED.key(record.name), record.value.decode())
                for record in records
                if record.created_ms < before_ms
            ]
        except UnicodeDecodeError as error:
            raise Corrupt(f"a record under {keys.PURGED.path} is not a location ({error}): delete it") from error

    async def remove(self, purged: PurgedTable) -> None:
        await self._store.delete(purged.key)


class PurgeTask:
    def __init__(self, catalog: Catalog, store: MetadataStore, objects: ObjectStore) -> None:
        self._catalog = catalog
        self._store = store
        self._purged_tables = PurgedTables(store)
        self._objects = objects
        self._requested = asyncio.Event()
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        self._tasks.start(self._run(), "catalog.purge")

    def wake(self) -> None:
        """Starts a purge immediately after a drop."""
        self._requested.set()

    async def close(self) -> None:
        await self._tasks.close()

    async def purge(self) -> int:
        """Deletes all files that can be deleted now. Returns the number of purged tables."""
        tables = [entry async for entry in self._catalog.pointers.all()]
        purged = [entry for entry in tables if entry.table.purged]
        for entry in purged:
            others = [one for one in tables if one.table_id != entry.table_id]
            await self._remove_files(str(entry.table.full_name), entry.table.location, others, entry.table.uuid)
            await self._purged_tables.add(entry.table_id, entry.table)
            try:
                await self._catalog.pointers.remove(entry)
            except Conflict:
                continue  # another broker did the same
        await self._remove_late_files()
        return len(purged)

    async def _remove_late_files(self) -> None:
        if not (purged := await self._purged_tables.old()):
            return
        tables = [entry async for entry in self._catalog.pointers.all()]
        staged = [location for _, location in await self._catalog.staged.all()]
        for one in purged:
            if any(overlap(one.location, location) for location in staged):
                continue  # a client writes the data of a new table there; later it is a table, or its record expires
            if not await self._has_new_table(one.location):
                await self._remove_files("", one.location, tables)
            await self._purged_tables.remove(one)

    async def _has_new_table(self, location: str) -> bool:
        """Returns whether another table was created there since. Also a dropped table keeps its files."""
        async for page in self._objects.walk(self._catalog.locations.key_of(location)):
            if any(info.key.endswith(METADATA_SUFFIX) for info in page):
                return True
        return False

    async def _run(self) -> None:
        while True:
            wait_s = INTERVAL_S
            try:
                await self.purge()
                now_ms = await self._store.now_ms()
                await self._catalog.pointers.remove_abandoned(now_ms)
                await self._catalog.staged.remove_expired(now_ms)
            except LakestreamError as error:
                log.warning("catalog.purge_failed error=%s", error)
                wait_s = RETRY_S
            try:
                async with asyncio.timeout(wait_s):
                    await self._requested.wait()
            except TimeoutError:
                continue
            self._requested.clear()

    async def _remove_files(self, name: str, location: str, tables: Sequence[TableEntry], uuid: str = "") -> None:
        """`uuid`: of the purged table; empty if the folder has no metadata file."""
        others = [one for one in tables if overlap(one.table.location, location)]
        if others:
            log.warning("catalog.files_shared location=%s table=%s", location, others[0].table.full_name)
            return
        try:
            location = self._catalog.locations.check_table_location(location)
        except Rejected as error:  # of a table that an older version created
            log.warning("catalog.files_shared location=%s reason=%s", location, error)
            return
        kept = await self._dropped_tables(location, uuid) if uuid else []
        if kept:
            log.warning("catalog.files_kept table=%s location=%s dropped_tables=%s", name, location, ",".join(kept))
        removed = 0
        async for page in self._objects.walk(self._catalog.locations.key_of(location)):
            urls = {info.key: self._catalog.locations.url_of(info.key) for info in page}
            gone = [key for key, url in urls.items() if not any(overlap(url, folder) for folder in kept)]
            await self._objects.delete(gone)
            removed += len(gone)
        if name or removed:
            log.info("catalog.purged table=%s location=%s files=%d", name, location, removed)

    async def _dropped_tables(self, location: str, uuid: str) -> list[str]:
        """Returns the locations of tables with another UUID that have metadata files below this location.

        All metadata files in one folder are of one table, so one of each folder is read. A folder whose file cannot be
        read is returned itself.
        """
        files: dict[str, str] = {}
        async for page in self._objects.walk(self._catalog.locations.key_of(location)):
            for info in page:
                if info.key.endswith(METADATA_SUFFIX):
                    files[info.key.rpartition("/")[0]] = info.key
        found: set[str] = set()
        for folder, key in files.items():
            owner = await self._catalog.owner_of(self._catalog.locations.url_of(key))
            if owner is None:
                found.add(self._catalog.locations.url_of(folder))
            elif owner.uuid != uuid:
                found.add(owner.location)
        return sorted(found)
