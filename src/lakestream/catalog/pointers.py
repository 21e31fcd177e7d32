"""Pointers from table names to tables, and from tables to metadata files: two kinds of records in the metadata store.

    /catalog/tables/{id}         the table. All fields that must change together are in this record
    /catalog/names/{ns}/{name}   the id of the table that *may* have the name

A table exists under a name only if its own record has that name, is not `pending` and is not `purged`. So each visible
change is one conditional write of one record, the table's. A crash before or after it leaves at most a name record
whose table does not have the name. Such a name is free for the next create or rename.

Before a create or rename claims a name whose record names another table, it writes that table's record again, with only
its version changed. A create or rename of that table that has not finished then fails at its last step, and does not
end without a name. A create or rename also writes the namespace's record again, which makes a concurrent drop of the
namespace fail; and such a drop does the same with all tables of the namespace that are not visible yet.

A name record is marked `unsettled` before a change, and settled after a successful one. So a listing has to read the
tables only of unsettled names. A failed change does not settle the record, because another change may be in progress.
"""

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import msgspec

from lakestream.catalog.errors import NoSuchTable, TableExists
from lakestream.catalog.identifiers import Namespace, TableName
from lakestream.catalog.namespaces import Namespaces
from lakestream.errors import Conflict, Corrupt, LakestreamError, Unavailable
from lakestream.metadata import keys
from lakestream.metadata.store import ABSENT, MetadataStore, Record, put_one

TRIES_MAX: Final = 50
"""Of a change that conflicts with other changes of the same record."""
ABANDONED_AFTER_MS: Final = 60 * 60 * 1000
"""A create that has been pending for so long was ended by a crash."""
SCAN_SIZE: Final = 1_000


class Table(msgspec.Struct, frozen=True, omit_defaults=True):
    namespace: Namespace
    name: str
    uuid: str
    """Iceberg's table UUID. Not the key, because the same metadata may be registered again."""
    metadata_location: str
    location: str
    topic_id: str = ""
    """The topic whose records the table has. Then the topic's id is also the table's id."""
    pending: bool = False
    """Being created, not visible yet."""
    purged: bool = False
    """Dropped with `purge`: its files are being deleted."""
    bytes: int = 0
    """Size of all files of the current snapshot, as its summary has it; for sizes that clients see, without a read of
    the metadata file. 0: not known, or the table of no topic."""
    moved: int = 0
    """Sum of the table's next offsets: how many offsets of all partitions have been moved into it."""

    @property
    def full_name(self) -> TableName:
        return TableName(self.namespace, self.name)

    @property
    def is_visible(self) -> bool:
        return not self.pending and not self.purged


class TableSize(NamedTuple):
    bytes: int
    moved: int
    """How many offsets of all partitions have been moved into the table."""


NO_ROWS: Final = TableSize(0, 0)


class TableEntry(NamedTuple):
    table_id: str
    table: Table
    version: int
    created_ms: int


class TablePage(NamedTuple):
    names: list[str]
    following: str
    """Where the next page starts; empty: this is the last page."""


class _Name(msgspec.Struct, frozen=True, omit_defaults=True):
    table_id: str
    unsettled: bool = False


_encode = msgspec.json.Encoder().encode
_decode_table = msgspec.json.Decoder(Table).decode
_decode_name = msgspec.json.Decoder(_Name).decode


class Pointers:
    def __init__(self, store: MetadataStore, namespaces: Namespaces) -> None:
        self._store = store
        self._namespaces = namespaces

    # Reads

    async def find(self, name: TableName) -> TableEntry:
        found = await self._lookup(name, confirmed=False)
        if found is None:  # before the error: only a confirmed read is not stale
            found = await self._lookup(name, confirmed=True)
        if found is None:
            raise NoSuchTable(f"Table does not exist: {name}")
        return found

    async def find_id(self, table_id: str, *, confirmed: bool = False) -> TableEntry:
        found = None if confirmed else await self._table(table_id)
        if found is None or not found.table.is_visible:
            found = await self._table(table_id, confirmed=True)
        if found is None or not found.table.is_visible:
            raise NoSuchTable(f"Table with id {table_id} does not exist.")
        return found

    async def size_of(self, table_id: str) -> TableSize:
        """Returns the size of a table by one read, which may be stale. An absent table is empty."""
        found = await self._table(table_id)
        if found is None or not found.table.is_visible:
            return NO_ROWS
        return TableSize(found.table.bytes, found.table.moved)

    async def find_either(self, which: TableName | str) -> TableEntry:
        """Finds a table by name or by id."""
        return await (self.find(which) if isinstance(which, TableName) else self.find_id(which))

    async def page(self, namespace: Namespace, start: str = "", limit: int = SCAN_SIZE) -> TablePage:
        """Returns table names in the order of their keys."""
        folder = keys.table_names_folder(namespace)
        records = (await self._store.scan(folder, start, limit=limit + 1)).records
        following = records[limit].name if len(records) > limit else ""
        names = []
        for record in records[:limit]:
            text = keys.catalog_text(record.name)
            if not _name(record).unsettled or await self._lookup(TableName(namespace, text), confirmed=False):
                names.append(text)
        return TablePage(names, following)

    async def is_empty(self, namespace: Namespace) -> bool:
        """Returns whether the namespace has no table. Creates and renames into it that have not finished then fail."""
        start = ""
        while True:
            folder = keys.table_names_folder(namespace)
            records = (await self._store.scan(folder, start, limit=SCAN_SIZE, confirmed=True)).records
            for record in records:
                try:
                    await self._invalidate_owner(
                        _name(record).table_id, TableName(namespace, keys.catalog_text(record.name))
                    )
                except TableExists:
                    return False
            if len(records) < SCAN_SIZE:
                return True
            start = records[-1].name + keys.NEXT_NAME

    async def all(self) -> AsyncIterator[TableEntry]:
        """Yields every record, also of tables that are pending or purged."""
        start = ""
        while records := (await self._store.scan(keys.TABLES, start, limit=SCAN_SIZE)).records:
            for record in records:
                yield _entry(record)
            start = records[-1].name + keys.NEXT_NAME

    # Changes

    async def create(self, table_id: str, table: Table) -> TableEntry:
        """Creates a table. Raises TableExists or NoSuchNamespace. The id is new, or of an unfinished create."""
        name = table.full_name
        await self._namespaces.properties(name.namespace)
        pending = await self._begin(table_id, msgspec.structs.replace(table, pending=True))
        try:
            name_version = await self._claim_name(name, table_id)
            await self._namespaces.touch(name.namespace)
            created = await self._put(pending, msgspec.structs.replace(table, pending=False))
        except Conflict as error:
            await self._undo(pending)
            await self._namespaces.properties(name.namespace)  # raises NoSuchNamespace if it was dropped
            raise error if isinstance(error, TableExists) else _name_taken(name) from error
        except LakestreamError:
            await self._undo(pending)
            raise
        await self._mark_settled(name, table_id, name_version)
        return created

    async def move(
        self, found: TableEntry, metadata_location: str, location: str, size: TableSize = NO_ROWS
    ) -> TableEntry:
        """Points the table at a newer metadata file. Conflict: the table has changed since it was read."""
        moved = msgspec.structs.replace(
            found.table, metadata_location=metadata_location, location=location, bytes=size.bytes, moved=size.moved
        )
        return await self._put(found, moved)

    async def rename(self, which: TableName | str, new: TableName) -> None:
        """Renames a table, given by name or by id."""
        await self._namespaces.properties(new.namespace)
        for _ in range(TRIES_MAX):
            found = await self.find_either(which)
            if (name := found.table.full_name) == new:
                return
            # Both names after the table was read: a change that claims one of them changes the table's version first.
            old_version = await self._mark_unsettled(name, found.table_id)
            new_version = await self._claim_name(new, found.table_id)
            await self._namespaces.touch(new.namespace)
            try:
                await self._put(found, msgspec.structs.replace(found.table, namespace=new.namespace, name=new.name))
            except Conflict:
                continue  # a concurrent commit, rename or drop
            await self._mark_settled(new, found.table_id, new_version)
            await self._remove_name(name, old_version)
            return
        raise _busy(which)

    async def drop(self, which: TableName | str, *, purge: bool) -> TableEntry:
        """Drops a table, given by name or by id. `purge`: the record stays as the job of the purge task."""
        for _ in range(TRIES_MAX):
            found = await self.find_either(which)
            name = found.table.full_name
            name_version = await self._mark_unsettled(name, found.table_id)
            try:
                if purge:
                    await self._put(found, msgspec.structs.replace(found.table, purged=True))
                else:
                    await self._store.delete(keys.table_key(found.table_id), found.version)
            except Conflict:
                continue  # a concurrent commit, rename or drop
            await self._remove_name(name, name_version)
            return found
        raise _busy(which)

    async def remove(self, found: TableEntry) -> None:
        """Deletes the record of a purged table, after its files are deleted."""
        await self._store.delete(keys.table_key(found.table_id), found.version)

    async def remove_abandoned(self, now_ms: int) -> int:
        """Deletes the records of creates that a crash ended. Returns their number."""
        removed = 0
        async for found in self.all():
            if found.table.pending and found.created_ms < now_ms - ABANDONED_AFTER_MS:
                await self._undo(found)
                removed += 1
        return removed

    # Steps

    async def _begin(self, table_id: str, pending: Table) -> TableEntry:
        for _ in range(TRIES_MAX):
            existing = await self._table(table_id, confirmed=True)
            if existing is not None and not existing.table.pending:
                raise TableExists(f"Table with id {table_id} already exists: {existing.table.full_name}")
            try:
                if existing is None:
                    stored = await put_one(self._store, keys.table_key(table_id), _encode(pending), ABSENT)
                    return TableEntry(table_id, pending, stored.version, stored.created_ms)
                return await self._put(existing, pending)
            except Conflict:
                continue
        raise _busy(pending.full_name)

    async def _claim_name(self, name: TableName, table_id: str) -> int:
        """Points the name at the table. TableExists: another table has the name."""
        key = keys.table_name_key(*name)
        value = _encode(_Name(table_id, unsettled=True))
        for _ in range(TRIES_MAX):
            record = await self._store.get(key)
            if record is not None and (owner := _name(record).table_id) != table_id:
                await self._invalidate_owner(owner, name)
            try:
                return (await put_one(self._store, key, value, ABSENT if record is None else record.version)).version
            except Conflict:
                continue
        raise _busy(name)

    async def _invalidate_owner(self, table_id: str, name: TableName) -> None:
        """Makes unfinished creates and renames of a table to this name fail. TableExists: the table has the name."""
        for _ in range(TRIES_MAX):
            owner = await self._table(table_id, confirmed=True)
            if owner is None or owner.table.purged:
                return
            if _has_name(owner, name):
                raise _name_taken(name)
            try:
                await self._put(owner, owner.table)
            except Conflict:
                continue
            return
        raise _busy(name)

    async def _undo(self, pending: TableEntry) -> None:
        """Deletes the records of a failed create. If that fails too, `remove_abandoned` deletes them later."""
        try:
            await self._store.delete(keys.table_key(pending.table_id), pending.version)
            record = await self._store.get(keys.table_name_key(*pending.table.full_name))
            if record is not None and _name(record).table_id == pending.table_id:
                await self._store.delete(keys.table_name_key(*pending.table.full_name), record.version)
        except (Conflict, Unavailable):
            return

    async def _mark_unsettled(self, name: TableName, table_id: str) -> int | None:
        """Marks the name record. None: the table no longer has the name, so the next write of the table conflicts."""
        for _ in range(TRIES_MAX):
            record = await self._store.get(keys.table_name_key(*name))
            if record is None or _name(record).table_id != table_id:
                record = await self._store.get(keys.table_name_key(*name), confirmed=True)
            if record is None or _name(record).table_id != table_id:
                return None
            # Written even if it is unsettled already: the change that marked it may be about to settle it.
            value = _encode(_Name(table_id, unsettled=True))
            try:
                return (await put_one(self._store, keys.table_name_key(*name), value, record.version)).version
            except Conflict:
                continue
        raise _busy(name)

    async def _mark_settled(self, name: TableName, table_id: str, version: int) -> None:
        """Marks the name as settled. It may fail, because it only makes listings cheaper."""
        try:
            await put_one(self._store, keys.table_name_key(*name), _encode(_Name(table_id)), version)
        except (Conflict, Unavailable):
            return

    async def _remove_name(self, name: TableName, version: int | None) -> None:
        """Deletes the name record. It may fail, because the table no longer has the name."""
        if version is None:
            return
        try:
            await self._store.delete(keys.table_name_key(*name), version)
        except (Conflict, Unavailable):
            return

    async def _lookup(self, name: TableName, *, confirmed: bool) -> TableEntry | None:
        record = await self._store.get(keys.table_name_key(*name), confirmed=confirmed)
        if record is None:
            return None
        found = await self._table(_name(record).table_id, confirmed=confirmed)
        return found if found is not None and _has_name(found, name) else None

    async def _table(self, table_id: str, *, confirmed: bool = False) -> TableEntry | None:
        record = await self._store.get(keys.table_key(table_id), confirmed=confirmed)
        return None if record is None else _entry(record)

    async def _put(self, found: TableEntry, table: Table) -> TableEntry:
        stored = await put_one(self._store, keys.table_key(found.table_id), _encode(table), found.version)
        return TableEntry(found.table_id, table, stored.version, stored.created_ms)


def _has_name(found: TableEntry, name: TableName) -> bool:
    return found.table.is_visible and found.table.full_name == name


def _entry(record: Record) -> TableEntry:
    try:
        return TableEntry(record.name, _decode_table(record.value), record.version, record.created_ms)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(f"metadata record {record.path} is not a table ({error}): restore it from a backup") from error


def _name(record: Record) -> _Name:
    try:
        return _decode_name(record.value)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(f"metadata record {record.path} is not a table name ({error}): delete it") from error


def _name_taken(name: TableName) -> TableExists:
    return TableExists(f"Table already exists: {name}")


def _busy(which: TableName | str) -> Unavailable:
    return Unavailable(f"table {which}: changed concurrently {TRIES_MAX} times: retry")
