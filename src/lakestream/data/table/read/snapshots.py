"""Cached current snapshots of topics' tables, refreshed from the catalog.

A snapshot is at most AGE_MS_MAX old, so a committed delete is visible within that time. An older snapshot is never read
in place of a newer one: rows that the log no longer has would be missing.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

from lakestream.aio.threads import Run
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.errors import IncompatibleTable, NoSuchTable
from lakestream.catalog.locations import TableFolder
from lakestream.data.table.read.metadata_parser_client import MetadataParserClient, is_large
from lakestream.errors import Corrupt, Rejected
from lakestream.model import PartitionId

AGE_MS_MAX: Final = 1_000
"""Maximum age of a cached snapshot."""
TABLES_MAX: Final = 2_000


class TableSnapshot(NamedTuple):
    """A topic's table at one snapshot."""

    name: str
    location: str
    """The location of its metadata file, which differs for every state of the table."""
    manifest_list: str | None
    """None if nothing was ever committed."""
    next_offsets: Mapping[int, int]
    places: Mapping[int, int]
    """By partition spec: which of its fields is the topic's partition with transform identity."""
    folder: TableFolder
    """The folder that all its files must be in."""
    topic_id: str = ""
    is_typed: bool = False
    """Whether it has, or had, rows with converted values, in columns of their own instead of the column of bytes."""


class _CachedTable:
    def __init__(self) -> None:
        self.table: TableSnapshot | None = None
        self.refreshed_s = float("-inf")
        self.is_large = False
        self.lock = asyncio.Lock()


class Snapshots:
    def __init__(self, catalog: Catalog, run: Run) -> None:
        self._catalog = catalog
        self._parser = MetadataParserClient(run)
        self._tables: OrderedDict[str, _CachedTable] = OrderedDict()

    async def close(self) -> None:
        await self._parser.close()

    async def newest(self, topic_id: str, age_ms: int = 0, *, confirmed: bool = False) -> TableSnapshot:
        """Returns the table, refreshed at most `age_ms` ago. Raises Corrupt if it was dropped, or changed incompatibly.
        `confirmed`: with a confirmed read of the metadata store, as needed before an error reports missing data."""
        entry = self._tables.setdefault(topic_id, _CachedTable())
        self._tables.move_to_end(topic_id)
        if len(self._tables) > TABLES_MAX:
            self._tables.popitem(last=False)
        since_s = asyncio.get_running_loop().time() - age_ms / 1000
        if entry.table is not None and entry.refreshed_s >= since_s and not confirmed:
            return entry.table
        async with entry.lock:
            if entry.table is None or entry.refreshed_s < since_s or confirmed:  # not refreshed during the wait
                await self._refresh(topic_id, entry, confirmed)
            assert entry.table is not None
            return entry.table

    def cached(self, topic_id: str) -> TableSnapshot | None:
        """Returns the table as of its last refresh, or None."""
        entry = self._tables.get(topic_id)
        return None if entry is None else entry.table

    async def covering(self, partition: PartitionId, offset: int) -> TableSnapshot:
        """Returns a table whose next offset is above `offset`."""
        for age_ms, confirmed in ((AGE_MS_MAX, False), (0, False), (0, True)):
            table = await self.newest(partition.topic_id, age_ms, confirmed=confirmed)
            if table.next_offsets.get(partition.number, 0) > offset:
                return table
        raise IncompatibleTable(
            f"table {table.name} has partition {partition.number} up to offset"
            f" {table.next_offsets.get(partition.number, 0)} only, but offset {offset} was moved from the log to it:"
            f" lakestream.next-offsets was set back"
        )

    async def _refresh(self, topic_id: str, entry: _CachedTable, confirmed: bool) -> None:
        begun_s = asyncio.get_running_loop().time()
        try:
            loaded = await self._changed(topic_id, entry, confirmed)
        except NoSuchTable as error:
            topic = await self._catalog.topics.find_id(topic_id)
            raise Corrupt(
                f"the table of topic {topic.name if topic else topic_id} was dropped, and with it the records that had"
                " left the log: register its newest metadata file again, or delete the topic"
            ) from error
        if loaded is not None:
            entry.is_large = is_large(loaded.file)
            entry.table = await self._parsed(loaded)
        entry.refreshed_s = begun_s

    async def _changed(self, topic_id: str, entry: _CachedTable, confirmed: bool) -> LoadedTable | None:
        """Returns the table, or None if it has not changed since the last refresh."""
        location = None if entry.table is None else entry.table.location
        if entry.is_large:  # the catalog may not have cached the file
            table = (await self._catalog.pointers.find_id(topic_id, confirmed=confirmed)).table
            if table.metadata_location == location:
                return None
            self._parser.check_location(str(table.full_name), table.metadata_location)
        loaded = await self._catalog.load_id(topic_id, confirmed=confirmed)
        return None if loaded.metadata_location == location else loaded

    async def _parsed(self, loaded: LoadedTable) -> TableSnapshot:
        name = str(loaded.name)
        state = await self._parser.parse(name, loaded.file)
        try:
            folder = self._catalog.locations.table(state.location)
        except Rejected as error:
            raise IncompatibleTable(f"table {name}: {error}") from error
        return TableSnapshot(
            name,
            loaded.metadata_location,
            state.manifest_list,
            state.next_offsets,
            state.places,
            folder,
            loaded.topic_id,
            state.is_typed,
        )
