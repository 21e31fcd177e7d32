"""The catalog of Iceberg tables: read this first. Whoever works with tables in a process of ours calls it directly;
everybody else reaches the same functions through the REST protocol (`protocol/rest/iceberg/`).

A commit: find the pointer → read the metadata file → check what the commit requires → apply its updates → write the new
metadata file → move the pointer, if it is still where it was. Only the last step decides.

    pointers.py, namespaces.py   records in the metadata store
    files.py, locations.py       metadata files in storage
    requirements.py, draft.py    what may change, and what then is (pure)
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lakestream.catalog.draft import applied
from lakestream.catalog.errors import CommitRefused, CommitUnknown, NoSuchTable, TableExists
from lakestream.catalog.files import MetadataFile, MetadataFiles, dashed
from lakestream.catalog.history import with_previous_file
from lakestream.catalog.locations import Locations, overlap
from lakestream.catalog.names import DEFAULT_NAMESPACE, Namespace, TableName
from lakestream.catalog.namespaces import Namespaces
from lakestream.catalog.new_table import creation
from lakestream.catalog.next_offsets import TOPIC_ID
from lakestream.catalog.pointers import Found, Pointers, Table
from lakestream.catalog.requirements import AssertCreate, Requirement, check_requirements
from lakestream.catalog.shapes import Json
from lakestream.catalog.topic_names import make_room, name_of
from lakestream.catalog.updates import SetLocation, Update
from lakestream.catalog.whole_tag import following
from lakestream.clock import Clock, Ids
from lakestream.errors import Conflict, Corrupt, LakestreamError, Rejected, Unavailable, Uncertain
from lakestream.metadata.store import MetadataStore
from lakestream.metadata.topics import NamedTopic, Topics
from lakestream.metadata.typed import Writers
from lakestream.storage.object_store import ObjectStore

log = logging.getLogger(__name__)

COMMIT_TRIES_MAX: Final = 10
"""Of a commit whose requirements still hold after another one went by."""
DELETE_OLD_FILES: Final = "write.metadata.delete-after-commit.enabled"


@dataclass(frozen=True, slots=True)
class LoadedTable:
    table_id: str
    name: TableName
    topic_id: str
    file: MetadataFile

    @property
    def metadata_location(self) -> str:
        return self.file.location

    @property
    def metadata(self) -> Json:
        """As JSON of the Iceberg specification; not to be changed."""
        return self.file.content


class Catalog:
    def __init__(
        self, store: MetadataStore, objects: ObjectStore, locations: Locations, clock: Clock, ids: Ids
    ) -> None:
        self.namespaces = Namespaces(store)
        self.topics = Topics(store)
        self.writers = Writers(store)
        self.pointers = Pointers(store, self.namespaces)
        self.locations = locations
        self.objects = objects
        self.clock = clock
        self.ids = ids
        self._files = MetadataFiles(objects, locations, ids)

    async def start(self) -> None:
        """Have the namespace that topics' tables are in unless they choose another."""
        await self.namespaces.ensure(DEFAULT_NAMESPACE)

    async def drop_namespace(self, namespace: Namespace) -> None:
        await self.namespaces.drop(namespace, self.pointers.is_empty)

    # Tables

    async def load(self, name: TableName) -> LoadedTable:
        return await self._read(await self.pointers.find(name))

    async def load_id(self, table_id: str, *, confirmed: bool = False) -> LoadedTable:
        """By identity: a topic's table is found by the topic's id, whatever it is called now. `confirmed`: as a node
        has it that leads for certain; who takes its word that something is *not* in the table needs that."""
        return await self._read(await self.pointers.find_id(table_id, confirmed=confirmed))

    async def exists(self, name: TableName) -> bool:
        try:
            await self.pointers.find(name)
        except NoSuchTable:
            return False
        return True

    async def create(
        self,
        name: TableName,
        schema: Json,
        *,
        spec: Json | None = None,
        order: Json | None = None,
        location: str = "",
        properties: Mapping[str, str] | None = None,
        topic_id: str = "",
        fresh_ids: bool = False,
    ) -> LoadedTable:
        """TableExists, NoSuchNamespace, Rejected. With a `topic_id` the table is that topic's, and has its id."""
        metadata = await self._draft_new(
            name, schema, spec=spec, order=order, location=location, properties=properties, fresh_ids=fresh_ids
        )
        return await self._place_new(name, metadata, topic_id)

    async def stage(
        self,
        name: TableName,
        schema: Json,
        *,
        spec: Json | None = None,
        order: Json | None = None,
        location: str = "",
        properties: Mapping[str, str] | None = None,
        fresh_ids: bool = False,
    ) -> Json:
        """The metadata of a table that is yet to be created: by a commit that says so, with data in it already."""
        metadata = await self._draft_new(
            name, schema, spec=spec, order=order, location=location, properties=properties, fresh_ids=fresh_ids
        )
        await self._files.make_folder(metadata["location"])
        return metadata

    async def register(self, name: TableName, metadata_location: str, *, overwrite: bool = False) -> LoadedTable:
        """Take in a table whose files are under our storage root already. That of a topic which lost it is the topic's
        again: it says itself which rows it has, so an old file of it stops the topic instead of misleading it."""
        await self.namespaces.properties(name.namespace)
        found = await self._files.read_foreign(metadata_location)
        topic = await self._topic_of(found)
        await self._checked_location(found.content["location"], but=name if overwrite else None)
        if topic is not None:
            if name == name_of(topic.name, topic.topic.settings):
                await make_room(self.pointers, name, topic.topic.topic_id)
            return await self._bring_back(name, found, topic)
        if overwrite and await self.exists(name):
            return await self._point_at(name, found)
        return _loaded(await self.pointers.create(self.ids.new(), _table(name, found)), found)

    async def commit(
        self, table: TableName | str, requirements: Sequence[Requirement], updates: Sequence[Update]
    ) -> LoadedTable:
        """By name, or by table id. CommitRefused: nothing was changed, nothing was left behind.
        CommitUnknown: it may have been; no file may be removed before somebody has looked."""
        if any(isinstance(one, AssertCreate) for one in requirements) and isinstance(table, TableName):
            return await self._commit_new(table, requirements, updates)
        for _ in range(COMMIT_TRIES_MAX):
            found, base = await self._base(await self.pointers.find_either(table))
            if (committed := await self._try_commit(found, base, requirements, updates)) is not None:
                return committed
        raise CommitRefused(f"table {table} changes all the time: try again")

    async def change(self, table_id: str, updates_for: Callable[[Json], Sequence[Update]]) -> LoadedTable:
        """Commit what `updates_for` makes of the very metadata that it is committed to, asked again after every commit
        of others. None: there is nothing to change. Whatever it raises ends this. Else as `commit`."""
        for _ in range(COMMIT_TRIES_MAX):
            found, base = await self._base(await self.pointers.find_id(table_id))
            updates = updates_for(base.content)
            if not updates:
                return _loaded(found, base)
            if (committed := await self._try_commit(found, base, [], updates)) is not None:
                return committed
        raise CommitRefused(f"table {table_id} changes all the time: try again")

    async def rename(self, table: TableName | str, new: TableName) -> None:
        """By name, or by table id: then it is that table, whatever others call it meanwhile."""
        await self.pointers.rename(table, new)

    async def drop(self, table: TableName | str, *, purge: bool = False) -> None:
        """The table is gone at once. Its files stay, unless `purge`: then they are removed in the background."""
        await self.pointers.drop(table, purge=purge)

    # Steps

    async def _topic_of(self, file: MetadataFile) -> NamedTopic | None:
        """Whose table it was, if that topic is still there. TableExists: it has one."""
        topic_id = file.content["properties"].get(TOPIC_ID, "")
        if not topic_id:
            return None
        topic = await self.topics.find_id(topic_id)
        if topic is None:
            return None
        try:
            there = await self.pointers.find_id(topic_id, confirmed=True)
        except NoSuchTable:
            return topic
        raise TableExists(f"topic {topic.name} has its table already: {there.table.full_name}")

    async def _bring_back(self, name: TableName, file: MetadataFile, topic: NamedTopic) -> LoadedTable:
        topic_id = topic.topic.topic_id
        back = _loaded(await self.pointers.create(topic_id, _table(name, file, topic_id)), file)
        if await self.topics.is_going(topic_id):
            await self.drop(topic_id)  # who deletes the topic may have looked for its table before it was there
            raise NoSuchTable(f"topic {topic.name} is being deleted: its table is not brought back")
        log.info("catalog.registered_again topic=%s table=%s file=%s", topic.name, name, file.location)
        return back

    async def _draft_new(
        self,
        name: TableName,
        schema: Json,
        *,
        spec: Json | None,
        order: Json | None,
        location: str,
        properties: Mapping[str, str] | None,
        fresh_ids: bool,
    ) -> Json:
        await self.namespaces.properties(name.namespace)
        if await self.exists(name):
            raise TableExists(f"table {name} exists already")
        uuid = self.ids.new()
        place = location or self.locations.new_table(name.namespace, name.name, uuid)
        made = creation(
            uuid=dashed(uuid),
            location=await self._checked_location(place) if location else place,
            schema=schema,
            spec=spec,
            order=order,
            properties=properties,
            fresh_ids=fresh_ids,
        )
        return applied(None, made, self.clock.now_ms())

    async def _read(self, found: Found) -> LoadedTable:
        return _loaded(*await self._base(found))

    async def _base(self, found: Found) -> tuple[Found, MetadataFile]:
        """The metadata file that it points at; or a newer one, where others went on and removed that meanwhile."""
        for _ in range(COMMIT_TRIES_MAX):
            try:
                return found, await self._files.read(found.table.metadata_location)
            except Corrupt:
                again = await self.pointers.find_id(found.table_id, confirmed=True)
                if again.version == found.version:
                    raise
                found = again
        raise Unavailable(f"table {found.table.full_name} changes all the time: try again")

    async def _commit_new(
        self, name: TableName, requirements: Sequence[Requirement], updates: Sequence[Update]
    ) -> LoadedTable:
        if others := [one for one in requirements if not isinstance(one, AssertCreate)]:
            raise Rejected(f"a table that is to be created cannot meet {type(others[0]).__name__}")
        if await self.exists(name):
            raise CommitRefused(f"requirement failed: table {name} exists already")
        updates = await self._with_checked_location(updates)
        try:
            return await self._place_new(name, applied(None, updates, self.clock.now_ms()), "")
        except TableExists as error:
            raise CommitRefused(f"requirement failed: {error}") from error

    async def _place_new(self, name: TableName, metadata: Json, topic_id: str) -> LoadedTable:
        if not metadata["table-uuid"]:
            metadata = {**metadata, "table-uuid": dashed(self.ids.new())}
        file = await self._files.write(metadata, None)
        try:
            found = await self.pointers.create(topic_id or self.ids.new(), _table(name, file, topic_id))
        except Uncertain as error:
            raise CommitUnknown(f"table {name} may or may not have been created: {error}") from error
        except LakestreamError:
            await self._remove([file.location])
            raise
        return _loaded(found, file)

    async def _try_commit(
        self, found: Found, base: MetadataFile, requirements: Sequence[Requirement], updates: Sequence[Update]
    ) -> LoadedTable | None:
        """None: another commit went by; look again whether this one still fits."""
        check_requirements(requirements, base.content)
        updates = await self._with_checked_location(updates, found.table)
        # Never dated before what is there: this machine's clock may be behind that of the one who made it.
        now_ms = max(self.clock.now_ms(), base.content["last-updated-ms"])
        changed = applied(base.content, updates, now_ms)
        if changed is base.content:
            return _loaded(found, base)
        if found.table.topic_id and (besides := following(base.content, changed)) is not None:
            changed = applied(base.content, [*updates, besides], now_ms)
        changed, outdated = with_previous_file(changed, base.location, base.content["last-updated-ms"])
        file = await self._files.write(changed, base.location)
        try:
            moved = await self.pointers.move(found, file.location, changed["location"])
        except (Conflict, Unavailable) as error:
            if (moved_after_all := await self._look_again(found, file, error)) is None:
                await self._remove([file.location])
                return None
            moved = moved_after_all
        if outdated and changed["properties"].get(DELETE_OLD_FILES, "").lower() == "true":
            await self._remove(outdated)
        return _loaded(moved, file)

    async def _look_again(self, base: Found, file: MetadataFile, error: LakestreamError) -> Found | None:
        """After a pointer that would not move, or did not say: where is it now? None: surely not at our file.

        Whoever moves it after us writes our file into its metadata's log, so we find ourselves there too. The log is
        as short as somebody wants it: one that does not reach back to where we began proves nothing.
        """
        try:
            now = await self.pointers.find_id(base.table_id, confirmed=True)
            if now.table.metadata_location == file.location:
                return now
            if now.version != base.version:
                newest = await self._files.read(now.table.metadata_location)
                known = {newest.location, *(entry["metadata-file"] for entry in newest.content["metadata-log"])}
                if file.location in known:
                    return now
                if base.table.metadata_location in known:
                    return None
        except NoSuchTable:
            if isinstance(error, Conflict):
                await self._remove([file.location])  # or it would look like the newest, to who registers it again
                raise NoSuchTable(f"table {base.table.full_name} was dropped meanwhile") from error
        except LakestreamError as second:
            raise CommitUnknown(f"{error}; and to look after it: {second}") from second
        if isinstance(error, Conflict | Uncertain):
            raise CommitUnknown(f"commit to {base.table.full_name}: {error}") from error
        await self._remove([file.location])
        raise error

    async def _point_at(self, name: TableName, file: MetadataFile) -> LoadedTable:
        for _ in range(COMMIT_TRIES_MAX):
            found = await self.pointers.find(name)
            if found.table.topic_id:
                raise Rejected(f"{name} is the history of a topic: it cannot be made another table")
            try:
                moved = await self.pointers.move(found, file.location, file.content["location"])
            except Conflict:
                continue
            return _loaded(moved, file)
        raise CommitRefused(f"table {name} changes all the time: try again")

    async def _with_checked_location(self, updates: Sequence[Update], table: Table | None = None) -> list[Update]:
        """The same updates, with every new location in our spelling."""
        checked: list[Update] = []
        for update in updates:
            if isinstance(update, SetLocation) and (table is None or update.location.rstrip("/") != table.location):
                place = await self._checked_location(update.location, but=table.full_name if table else None)
                checked.append(SetLocation(place))
            else:
                checked.append(update)
        return checked

    async def _checked_location(self, location: str, but: TableName | None = None) -> str:
        """Two tables in one folder would remove each other's files as orphans."""
        place = self.locations.check_table_location(location)
        async for found in self.pointers.all():
            name = found.table.full_name
            if not found.table.pending and name != but and overlap(place, found.table.location):
                raise Rejected(
                    f"{location} and {found.table.location} of table {name} overlap: choose another location"
                )
        return place

    async def _remove(self, locations: list[str]) -> None:
        """Of files that nobody needs: if it fails they are orphans, which maintenance removes."""
        try:
            await self._files.remove(locations)
        except LakestreamError as error:
            log.warning("catalog.files_left count=%d first=%s error=%s", len(locations), locations[0], error)


def _loaded(found: Found, file: MetadataFile) -> LoadedTable:
    return LoadedTable(found.table_id, found.table.full_name, found.table.topic_id, file)


def _table(name: TableName, file: MetadataFile, topic_id: str = "") -> Table:
    return Table(
        namespace=name.namespace,
        name=name.name,
        uuid=file.content["table-uuid"],
        metadata_location=file.location,
        location=file.content["location"],
        topic_id=topic_id,
    )
