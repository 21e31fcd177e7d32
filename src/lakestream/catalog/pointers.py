"""Which table has which name, and which metadata file is its newest: two kinds of records in the metadata store.

    /catalog/tables/{id}         the table itself. What must change together is in this one record
    /catalog/names/{ns}/{name}   which table *may* have the name

A table is there, under a name, only if its own record says so: it says that name, it is not `pending`, it is not being
purged. So every change of what people see is one conditional write of one record, the table's, and a crash anywhere
before or after it leaves at most a name that points at a table which denies it. Such a name is free for the next taker.

Whoever takes a name away from a table puts that table's record anew first, with nothing changed but its version: a
create or rename of it that is still under way then fails at its last step, instead of ending without a name. Likewise
whoever puts a table into a namespace puts the namespace anew, which a drop of it then notices; and the drop takes all
names away that point at tables which are not there yet.

A name record is marked `unsettled` before a change and settled by whoever brought one to its end, so that a listing has
to ask the table itself only for names that were left in the middle of something. A change that failed settles nothing:
another one may be under way.
"""

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import msgspec

from lakestream.catalog.errors import NoSuchTable, TableExists
from lakestream.catalog.names import Namespace, TableName
from lakestream.catalog.namespaces import Namespaces
from lakestream.errors import Conflict, Corrupt, LakestreamError, Unavailable
from lakestream.metadata import keys
from lakestream.metadata.store import ABSENT, MetadataStore, Record, put_one

TRIES_MAX: Final = 50
"""Of a change that meets others of the same record again and again."""
LOST_AFTER_MS: Final = 60 * 60 * 1000
"""A table that was begun and not finished for so long never will be."""
SCAN_SIZE: Final = 1_000


class Table(msgspec.Struct, frozen=True, omit_defaults=True):
    namespace: Namespace
    name: str
    uuid: str
    """Iceberg's. Not our key: the same metadata may be registered again."""
    metadata_location: str
    location: str
    topic_id: str = ""
    """The topic whose history this is. Such a table has the topic's id for its own, and is found by it."""
    pending: bool = False
    """Being created: there for nobody yet."""
    purged: bool = False
    """Dropped, and its files with it: they are being removed."""

    @property
    def full_name(self) -> TableName:
        return TableName(self.namespace, self.name)

    @property
    def is_there(self) -> bool:
        return not self.pending and not self.purged


class Found(NamedTuple):
    table_id: str
    table: Table
    version: int
    created_ms: int


class Listed(NamedTuple):
    names: list[str]
    following: str
    """Where the next page starts; empty: there is none."""


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

    # Finding

    async def find(self, name: TableName) -> Found:
        found = await self._look(name, confirmed=False)
        if found is None:  # a refusal: ask a node that leads for certain
            found = await self._look(name, confirmed=True)
        if found is None:
            raise NoSuchTable(f"there is no table {name}")
        return found

    async def find_id(self, table_id: str, *, confirmed: bool = False) -> Found:
        found = None if confirmed else await self._table(table_id)
        if found is None or not found.table.is_there:
            found = await self._table(table_id, confirmed=True)
        if found is None or not found.table.is_there:
            raise NoSuchTable(f"there is no table with the id {table_id}")
        return found

    async def find_either(self, which: TableName | str) -> Found:
        """By name, or by table id."""
        return await (self.find(which) if isinstance(which, TableName) else self.find_id(which))

    async def page(self, namespace: Namespace, start: str = "", limit: int = SCAN_SIZE) -> Listed:
        """Names in the order of their keys."""
        folder = keys.table_names_folder(namespace)
        records = (await self._store.scan(folder, start, limit=limit + 1)).records
        following = records[limit].name if len(records) > limit else ""
        names = []
        for record in records[:limit]:
            text = keys.catalog_text(record.name)
            if not _name(record).unsettled or await self._look(TableName(namespace, text), confirmed=False):
                names.append(text)
        return Listed(names, following)

    async def is_empty(self, namespace: Namespace) -> bool:
        """Whether no table is in it; and none that is under way will come in."""
        start = ""
        while True:
            folder = keys.table_names_folder(namespace)
            records = (await self._store.scan(folder, start, limit=SCAN_SIZE, confirmed=True)).records
            for record in records:
                try:
                    await self._evict(_name(record).table_id, TableName(namespace, keys.catalog_text(record.name)))
                except TableExists:
                    return False
            if len(records) < SCAN_SIZE:
                return True
            start = records[-1].name + keys.NEXT_NAME

    async def all(self) -> AsyncIterator[Found]:
        """Every record, also of tables that are not there yet or no more."""
        start = ""
        while records := (await self._store.scan(keys.TABLES, start, limit=SCAN_SIZE)).records:
            for record in records:
                yield _found(record)
            start = records[-1].name + keys.NEXT_NAME

    # Changing

    async def create(self, table_id: str, table: Table) -> Found:
        """TableExists, NoSuchNamespace. The id is new, or that of an attempt which was not finished."""
        name = table.full_name
        await self._namespaces.properties(name.namespace)
        pending = await self._begin(table_id, msgspec.structs.replace(table, pending=True))
        try:
            name_version = await self._take(name, table_id)
            await self._namespaces.hold(name.namespace)
            created = await self._put(pending, msgspec.structs.replace(table, pending=False))
        except Conflict as error:
            await self._undo(pending)
            await self._namespaces.properties(name.namespace)  # was it dropped, or somebody else quicker?
            raise error if isinstance(error, TableExists) else _taken(name) from error
        except LakestreamError:
            await self._undo(pending)
            raise
        await self._settle(name, table_id, name_version)
        return created

    async def move(self, found: Found, metadata_location: str, location: str) -> Found:
        """Point at a newer metadata file; Conflict if the table changed since it was found."""
        moved = msgspec.structs.replace(found.table, metadata_location=metadata_location, location=location)
        return await self._put(found, moved)

    async def rename(self, which: TableName | str, new: TableName) -> None:
        """By name, or by table id."""
        await self._namespaces.properties(new.namespace)
        for _ in range(TRIES_MAX):
            found = await self.find_either(which)
            if (name := found.table.full_name) == new:
                return
            # Both names after the table was read: whoever takes one of them changes the table's version first.
            old_version = await self._unsettle(name, found.table_id)
            new_version = await self._take(new, found.table_id)
            await self._namespaces.hold(new.namespace)
            try:
                await self._put(found, msgspec.structs.replace(found.table, namespace=new.namespace, name=new.name))
            except Conflict:
                continue  # it was committed to, or somebody else renamed or dropped it
            await self._settle(new, found.table_id, new_version)
            await self._forget(name, old_version)
            return
        raise _busy(which)

    async def drop(self, which: TableName | str, *, purge: bool) -> Found:
        """By name, or by table id. `purge`: the record stays, for the purge to find, but the table is gone."""
        for _ in range(TRIES_MAX):
            found = await self.find_either(which)
            name = found.table.full_name
            name_version = await self._unsettle(name, found.table_id)
            try:
                if purge:
                    await self._put(found, msgspec.structs.replace(found.table, purged=True))
                else:
                    await self._store.delete(keys.table_key(found.table_id), found.version)
            except Conflict:
                continue  # it was committed to, or renamed, or somebody else dropped it
            await self._forget(name, name_version)
            return found
        raise _busy(which)

    async def remove(self, found: Found) -> None:
        """Of a purged table, once its files are gone."""
        await self._store.delete(keys.table_key(found.table_id), found.version)

    async def tidy(self, now_ms: int) -> int:
        """Remove the records of creates that a crash ended; how many there were."""
        removed = 0
        async for found in self.all():
            if found.table.pending and found.created_ms < now_ms - LOST_AFTER_MS:
                await self._undo(found)
                removed += 1
        return removed

    # Steps

    async def _begin(self, table_id: str, pending: Table) -> Found:
        for _ in range(TRIES_MAX):
            there = await self._table(table_id, confirmed=True)
            if there is not None and not there.table.pending:
                raise TableExists(f"table id {table_id} is that of {there.table.full_name} already")
            try:
                if there is None:
                    stored = await put_one(self._store, keys.table_key(table_id), _encode(pending), ABSENT)
                    return Found(table_id, pending, stored.version, stored.created_ms)
                return await self._put(there, pending)
            except Conflict:
                continue
        raise _busy(pending.full_name)

    async def _take(self, name: TableName, table_id: str) -> int:
        """Point the name at the table; TableExists if another one has it."""
        key = keys.table_name_key(*name)
        value = _encode(_Name(table_id, unsettled=True))
        for _ in range(TRIES_MAX):
            record = await self._store.get(key)
            if record is not None and (owner := _name(record).table_id) != table_id:
                await self._evict(owner, name)
            try:
                return (await put_one(self._store, key, value, ABSENT if record is None else record.version)).version
            except Conflict:
                continue
        raise _busy(name)

    async def _evict(self, table_id: str, name: TableName) -> None:
        """Make sure that the table does not have the name, and that nothing under way will give it to it."""
        for _ in range(TRIES_MAX):
            owner = await self._table(table_id, confirmed=True)
            if owner is None or owner.table.purged:
                return
            if _has_name(owner, name):
                raise _taken(name)
            try:
                await self._put(owner, owner.table)
            except Conflict:
                continue
            return
        raise _busy(name)

    async def _undo(self, pending: Found) -> None:
        """What was begun and came to nothing. Whatever stays after a second failure is tidied up later."""
        try:
            await self._store.delete(keys.table_key(pending.table_id), pending.version)
            record = await self._store.get(keys.table_name_key(*pending.table.full_name))
            if record is not None and _name(record).table_id == pending.table_id:
                await self._store.delete(keys.table_name_key(*pending.table.full_name), record.version)
        except (Conflict, Unavailable):
            return

    async def _unsettle(self, name: TableName, table_id: str) -> int | None:
        """None: the table has let go of the name. Then its record has changed, which the next step meets."""
        for _ in range(TRIES_MAX):
            record = await self._store.get(keys.table_name_key(*name))
            if record is None or _name(record).table_id != table_id:
                record = await self._store.get(keys.table_name_key(*name), confirmed=True)
            if record is None or _name(record).table_id != table_id:
                return None
            # Put anew even where it is unsettled already: whoever made it so may be about to settle it.
            value = _encode(_Name(table_id, unsettled=True))
            try:
                return (await put_one(self._store, keys.table_name_key(*name), value, record.version)).version
            except Conflict:
                continue
        raise _busy(name)

    async def _settle(self, name: TableName, table_id: str, version: int) -> None:
        """Only makes listings cheaper, so it may fail."""
        try:
            await put_one(self._store, keys.table_name_key(*name), _encode(_Name(table_id)), version)
        except (Conflict, Unavailable):
            return

    async def _forget(self, name: TableName, version: int | None) -> None:
        """The table has let go of it already, so this may fail."""
        if version is None:
            return
        try:
            await self._store.delete(keys.table_name_key(*name), version)
        except (Conflict, Unavailable):
            return

    async def _look(self, name: TableName, *, confirmed: bool) -> Found | None:
        record = await self._store.get(keys.table_name_key(*name), confirmed=confirmed)
        if record is None:
            return None
        found = await self._table(_name(record).table_id, confirmed=confirmed)
        return found if found is not None and _has_name(found, name) else None

    async def _table(self, table_id: str, *, confirmed: bool = False) -> Found | None:
        record = await self._store.get(keys.table_key(table_id), confirmed=confirmed)
        return None if record is None else _found(record)

    async def _put(self, found: Found, table: Table) -> Found:
        stored = await put_one(self._store, keys.table_key(found.table_id), _encode(table), found.version)
        return Found(found.table_id, table, stored.version, stored.created_ms)


def _has_name(found: Found, name: TableName) -> bool:
    return found.table.is_there and found.table.full_name == name


def _found(record: Record) -> Found:
    try:
        return Found(record.name, _decode_table(record.value), record.version, record.created_ms)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(f"metadata record {record.path} is not a table ({error}); restore it from a backup") from error


def _name(record: Record) -> _Name:
    try:
        return _decode_name(record.value)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(f"metadata record {record.path} is no table's name ({error}); remove it") from error


def _taken(name: TableName) -> TableExists:
    return TableExists(f"table {name} exists already")


def _busy(which: TableName | str) -> Unavailable:
    return Unavailable(f"table {which} changes all the time: try again")
