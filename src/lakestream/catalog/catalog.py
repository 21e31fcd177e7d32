"""The catalog of Iceberg tables. Read this module first.

Lakestream's processes call it directly; engines use the same functions through the REST API (`protocol/rest/iceberg/`).

A commit: find the pointer → read the metadata file → check the requirements → apply the updates → check the files that
the commit names → write the new metadata file → move the pointer, if it has not changed. Only the last step decides.

    pointers.py, namespaces.py            records in the metadata store
    metadata_files.py, locations.py       metadata files in storage
    table_metadata/                       requirements and updates of a commit (pure)
    commit_checks/                        which files a commit may name: those under the table's location
"""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from lakestream.catalog.commit_checks.added_files import check_added_files
from lakestream.catalog.commit_checks.metadata_paths import check_paths
from lakestream.catalog.commit_checks.topic_table import claimed_offsets
from lakestream.catalog.errors import CommitFailed, CommitStateUnknown, NoSuchTable, TableExists
from lakestream.catalog.identifiers import DEFAULT_NAMESPACE, Namespace, TableName
from lakestream.catalog.locations import TABLES_FOLDER, Locations, azure_account, overlap
from lakestream.catalog.metadata_files import METADATA_SUFFIX, MetadataFile, MetadataFiles, dashed
from lakestream.catalog.namespaces import Namespaces
from lakestream.catalog.pointers import NO_ROWS, Pointers, Table, TableEntry, TableSize
from lakestream.catalog.staged_creates import StagedTables
from lakestream.catalog.table_metadata.builder import NewTable, apply_updates, new_table_updates
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.table_metadata.requirements import AssertCreate, Requirement, check_requirements
from lakestream.catalog.table_metadata.schemas import check_schema
from lakestream.catalog.table_metadata.snapshots import with_previous_file
from lakestream.catalog.table_metadata.updates import AssignUuid, SetLocation, Update
from lakestream.catalog.topic_table.offsets import TOPIC_ID, moved_offsets, total_bytes
from lakestream.catalog.topic_table.transactions_tag import carry_tag
from lakestream.catalog.topic_table_names import name_of, rename_previous_table
from lakestream.clock import Clock, Ids
from lakestream.errors import Conflict, Corrupt, LakestreamError, Rejected, Unavailable, Uncertain
from lakestream.metadata.claims import Claims
from lakestream.metadata.store import MetadataStore
from lakestream.metadata.topics import NamedTopic, Topics
from lakestream.metadata.writer_schemas import Writers
from lakestream.model import PartitionId
from lakestream.storage.object_store import ObjectStore

log = logging.getLogger(__name__)

T = TypeVar("T")

COMMIT_TRIES_MAX: Final = 10
"""Of a commit whose requirements still hold after a concurrent commit."""
UUID_LENGTH: Final = 36
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
        """As JSON of the Iceberg specification. Callers must not change it."""
        return self.file.content


class MetadataOwner(NamedTuple):
    uuid: str
    location: str


class CommitCheck(Protocol):
    async def check(self, before: Json | None, after: Json, topic_id: str) -> None:
        """Raises Rejected if a client may not commit `after`.

        `before`: None for a new table. `topic_id`: empty if the table belongs to no topic.
        """
        ...

    async def check_registered(self, metadata: Json) -> None:
        """Raises Rejected if the table of a topic may not be registered with this metadata."""
        ...


class Catalog:
    def __init__(
        self, store: MetadataStore, objects: ObjectStore, locations: Locations, clock: Clock, ids: Ids
    ) -> None:
        self._store = store
        self.namespaces = Namespaces(store)
        self.topics = Topics(store)
        self.writers = Writers(store)
        self.pointers = Pointers(store, self.namespaces)
        self.staged = StagedTables(store)
        self.locations = locations
        self.objects = objects
        self.clock = clock
        self.ids = ids
        self._files = MetadataFiles(objects, locations, ids)

    async def start(self) -> None:
        """Creates the default namespace of topics' tables."""
        await self.namespaces.ensure(DEFAULT_NAMESPACE)

    async def drop_namespace(self, namespace: Namespace) -> None:
        await self.namespaces.drop(namespace, self.pointers.is_empty)

    # Tables

    async def load(self, name: TableName, *, parse: bool = False) -> LoadedTable:
        """Loads a table. `parse`: a large metadata file is parsed now, in a thread, else when its content is used."""
        return _loaded(*await self._base(await self.pointers.find(name), parse=parse))

    async def load_id(self, table_id: str, *, confirmed: bool = False, parse: bool = False) -> LoadedTable:
        """Loads a table by id. The table of a topic has the topic's id, whatever its name is.

        `confirmed`: reads the pointer from a node that is certainly the leader. A caller needs it to conclude that
        something is *not* in the table. `parse`: as in `load`.
        """
        return _loaded(*await self._base(await self.pointers.find_id(table_id, confirmed=confirmed), parse=parse))

    async def owner_of(self, metadata_location: str) -> MetadataOwner | None:
        """Returns the table of a metadata file; None if it cannot be read."""
        try:
            content = (await self._files.read(metadata_location)).without_snapshots()
            return MetadataOwner(content["table-uuid"], self.locations.table(content["location"]).location)
        except (Corrupt, Rejected):
            return None

    async def exists(self, name: TableName) -> bool:
        try:
            await self.pointers.find(name)
        except NoSuchTable:
            return False
        return True

    async def create(self, name: TableName, new: NewTable, *, topic_id: str = "") -> LoadedTable:
        """Creates a table. Raises TableExists, NoSuchNamespace or Rejected.

        With a `topic_id` it is the table of that topic, and the topic's id is the table's.
        """
        return await self._store_new(name, await self._draft_new(name, new), topic_id)

    async def stage(self, name: TableName, new: NewTable) -> Json:
        """Returns the metadata of a table that a later commit creates, which may add the first snapshot too."""
        metadata = await self._draft_new(name, new)
        await self._files.make_folder(metadata["location"])
        await self.staged.add(metadata["table-uuid"], metadata["location"])
        return metadata

    async def register(
        self, name: TableName, metadata_location: str, *, overwrite: bool = False, check: CommitCheck | None = None
    ) -> LoadedTable:
        """Registers a table whose files are under the storage root already.

        If the table's topic has no table, it becomes the topic's table again. The metadata states which offsets it has,
        so an old metadata file stops the topic and does not mislead it.
        `check`: for clients. Without it, for operators, the files are not read, and the table may have rows that have
        not left the log.
        """
        await self.namespaces.properties(name.namespace)
        found = await self._files.read_foreign(metadata_location, of_client=check is not None)
        topic = await self._topic_of(found)
        place = await self._checked_location(found.content["location"], but=name if overwrite else None)
        self.locations.table(place).key_of(found.location)
        check_paths(self.locations.table(place), None, found.content)
        for schema in found.content["schemas"]:
            check_schema(schema, found.content["format-version"], is_new=False)
        if check is not None:
            current = {ref["snapshot-id"] for ref in found.content["refs"].values()}
            # In an older metadata file of the table, files of snapshots without a branch or tag may be expired.
            snapshots = [one for one in found.content["snapshots"] if one["snapshot-id"] in current]
            await self._check_files(None, found.content | {"snapshots": snapshots}, of_client=True)
        if topic is not None:
            if check is not None:
                await self._check_registered_offsets(topic, found)
                await check.check_registered(found.content)
            if name == name_of(topic.name, topic.topic.settings):
                await rename_previous_table(self.pointers, name, topic.topic.topic_id)
            return await self._reattach(name, found, topic)
        if overwrite and await self.exists(name):
            return await self._overwrite(name, found)
        return _loaded(await self.pointers.create(self.ids.new(), _table(name, found)), found)

    async def commit(
        self,
        table: TableName | str,
        requirements: Sequence[Requirement],
        updates: Sequence[Update],
        check: CommitCheck | None = None,
    ) -> LoadedTable:
        """Commits to a table, given by name or by id.

        CommitFailed: nothing was changed, and no file was left. CommitStateUnknown: the commit may have taken effect,
        and no file may be deleted before that is known.
        `check`: for commits by clients, whose manifests are read and checked too. It is repeated after every concurrent
        commit.
        """
        if any(isinstance(one, AssertCreate) for one in requirements) and isinstance(table, TableName):
            return await self._commit_new(table, requirements, updates, check)
        for _ in range(COMMIT_TRIES_MAX):
            found, base = await self._base(await self.pointers.find_either(table), parse=check is not None)
            if (committed := await self._try_commit(found, base, requirements, updates, check)) is not None:
                return committed
        raise CommitFailed(f"table {table}: changed concurrently {COMMIT_TRIES_MAX} times: retry")

    async def change(self, table_id: str, updates_for: Callable[[Json], Sequence[Update]]) -> LoadedTable:
        """Commits the updates that `updates_for` returns for the metadata that they are committed to.

        It is called again after every concurrent commit. If it returns no updates, nothing is committed. Its exceptions
        are passed on. Otherwise as `commit`.
        """
        for _ in range(COMMIT_TRIES_MAX):
            found, base = await self._base(await self.pointers.find_id(table_id))
            updates = updates_for(base.content)
            if not updates:
                return _loaded(found, base)
            if (committed := await self._try_commit(found, base, [], updates)) is not None:
                return committed
        raise CommitFailed(f"table {table_id}: changed concurrently {COMMIT_TRIES_MAX} times: retry")

    async def rename(self, table: TableName | str, new: TableName) -> None:
        """Renames a table, given by name or by id."""
        await self.pointers.rename(table, new)

    async def drop(self, table: TableName | str, *, purge: bool = False) -> None:
        """Drops a table. Its files stay; with `purge` they are deleted in the background."""
        await self.pointers.drop(table, purge=purge)

    # Steps

    async def _topic_of(self, file: MetadataFile) -> NamedTopic | None:
        """Returns the topic of the metadata; None if there is none any more. TableExists: the topic has a table."""
        topic_id = file.content["properties"].get(TOPIC_ID, "")
        if not topic_id:
            return None
        topic = await self.topics.find_id(topic_id)
        if topic is None:
            return None
        try:
            existing = await self.pointers.find_id(topic_id, confirmed=True)
        except NoSuchTable:
            return topic
        raise TableExists(f"topic {topic.name} already has a table: {existing.table.full_name}")

    async def _reattach(self, name: TableName, file: MetadataFile, topic: NamedTopic) -> LoadedTable:
        topic_id = topic.topic.topic_id
        back = _loaded(await self.pointers.create(topic_id, _table(name, file, topic_id)), file)
        if await self.topics.is_deleted(topic_id):
            await self.drop(topic_id)  # the deletion of the topic may have read the table's record before it existed
            raise NoSuchTable(f"topic {topic.name} is being deleted: its table is not registered again")
        log.info("catalog.table_reattached topic=%s table=%s file=%s", topic.name, name, file.location)
        return back

    async def _check_registered_offsets(self, topic: NamedTopic, file: MetadataFile) -> None:
        """Raises Rejected if the metadata claims records that have not left the log: a trim would delete them.

        A table with fewer records than have left the log stops the topic, and nothing is lost.
        """
        claims = Claims(self._store)
        for number, offset in claimed_offsets(file.content).items():
            moved = await claims.table_end(PartitionId(topic.topic.topic_id, number))
            if offset > moved and not await self.topics.is_deleted(topic.topic.topic_id):
                raise Rejected(
                    f"{file.location}: it states that records of partition {number} of topic {topic.name} before offset"
                    f" {offset} are in the table, but only those before {moved} have left the log: register an older"
                    " metadata file of the table (operators, after a restore: lakestream table register)"
                )

    async def _draft_new(self, name: TableName, new: NewTable) -> Json:
        await self.namespaces.properties(name.namespace)
        if await self.exists(name):
            raise TableExists(f"Table already exists: {name}")
        uuid = self.ids.new()
        if new.location:
            location = await self._checked_location(new.location)
            await self._check_empty(location)
            await self._check_not_in_a_table(location)
        else:
            location = await self._new_location(name, uuid)
        metadata = await asyncio.to_thread(_new_metadata, new, dashed(uuid), location, self.clock.now_ms())
        await self._check_files(None, metadata)
        return metadata

    async def _base(self, found: TableEntry, *, parse: bool = False) -> tuple[TableEntry, MetadataFile]:
        """Reads the current metadata file. Reads the pointer again if concurrent commits have deleted the file."""
        for _ in range(COMMIT_TRIES_MAX):
            try:
                return found, await self._files.read(found.table.metadata_location, parse=parse)
            except Corrupt:
                again = await self.pointers.find_id(found.table_id, confirmed=True)
                if again.version == found.version:
                    raise
                found = again
        raise Unavailable(f"table {found.table.full_name}: changed concurrently {COMMIT_TRIES_MAX} times: retry")

    async def _commit_new(
        self,
        name: TableName,
        requirements: Sequence[Requirement],
        updates: Sequence[Update],
        check: CommitCheck | None,
    ) -> LoadedTable:
        if others := [one for one in requirements if not isinstance(one, AssertCreate)]:
            raise Rejected(f"a commit that creates a table cannot require {type(others[0]).__name__}")
        if await self.exists(name):
            raise CommitFailed(f"Requirement failed: table already exists: {name}")
        updates = await self._with_checked_location(updates)
        metadata = await asyncio.to_thread(apply_updates, None, updates, self.clock.now_ms())
        uuid, location = metadata["table-uuid"], metadata["location"]
        is_staged = len(uuid) == UUID_LENGTH and await self.staged.has(uuid, location)
        if is_staged:
            await self._check_no_table_since(location, uuid)
        else:
            await self._check_empty(location)
            await self._check_not_in_a_table(location)
        await self._check_files(None, metadata, of_client=check is not None)
        if check is not None:
            await check.check(None, metadata, "")
        try:
            created = await self._store_new(name, metadata, "")
        except TableExists as error:
            raise CommitFailed(f"Requirement failed: {error}") from error
        if is_staged:
            with suppress(LakestreamError):  # the purge task deletes expired records
                await self.staged.remove(uuid)
        return created

    async def _store_new(self, name: TableName, metadata: Json, topic_id: str) -> LoadedTable:
        if not metadata["table-uuid"]:
            metadata = {**metadata, "table-uuid": dashed(self.ids.new())}
        file = await self._files.write(metadata, None)
        try:
            found = await self.pointers.create(topic_id or self.ids.new(), _table(name, file, topic_id))
        except Uncertain as error:
            raise CommitStateUnknown(f"table {name}: the create may have taken effect: {error}") from error
        except LakestreamError:
            await self._remove([file.location])
            raise
        return _loaded(found, file)

    async def _try_commit(
        self,
        found: TableEntry,
        base: MetadataFile,
        requirements: Sequence[Requirement],
        updates: Sequence[Update],
        check: CommitCheck | None = None,
    ) -> LoadedTable | None:
        """Returns None if a concurrent commit came first: the requirements must be checked again."""
        of_client = check is not None
        await _computed(of_client, check_requirements, requirements, base.content)
        updates = await self._with_checked_location(updates, found.table)
        # Never before the last update: this machine's clock may be behind that of the last writer.
        now_ms = max(self.clock.now_ms(), base.content["last-updated-ms"])
        changed = await _computed(of_client, apply_updates, base.content, updates, now_ms)
        if changed is base.content:
            return _loaded(found, base)
        await self._check_files(base.content, changed, of_client=of_client)
        if check is not None:
            await check.check(base.content, changed, found.table.topic_id)
        if found.table.topic_id and (tag_update := carry_tag(base.content, changed)) is not None:
            updates = [*updates, tag_update]
            changed = await _computed(of_client, apply_updates, base.content, updates, now_ms)
        changed, outdated = with_previous_file(changed, base.location, base.content["last-updated-ms"])
        file = await self._files.write(changed, base, of_client=of_client)
        try:
            size = _size(changed, found.table.topic_id)
            moved = await self.pointers.move(found, file.location, changed["location"], size)
        except (Conflict, Unavailable) as error:
            if (resolved := await self._resolve_commit(found, file, error)) is None:
                await self._remove([file.location])
                return None
            moved = resolved
        if outdated and changed["properties"].get(DELETE_OLD_FILES, "").lower() == "true":
            await self._remove_outdated(changed, outdated)
        return _loaded(moved, file)

    async def _resolve_commit(self, base: TableEntry, file: MetadataFile, error: LakestreamError) -> TableEntry | None:
        """Finds out whether a commit took effect, after an error of the pointer's move. Returns None if it did not.

        A later commit writes our file into its metadata log, so a commit that took effect is found there too. Clients
        choose the length of that log: one that does not reach back to our base proves nothing.
        """
        try:
            now = await self.pointers.find_id(base.table_id, confirmed=True)
            if now.table.metadata_location == file.location:
                return now
            if now.version != base.version:
                newest = await self._files.read(now.table.metadata_location)
                files = {newest.location, *(entry["metadata-file"] for entry in newest.content["metadata-log"])}
                if file.location in files:
                    return now
                if base.table.metadata_location in files:
                    return None
        except NoSuchTable:
            if isinstance(error, Conflict):
                await self._remove([file.location])  # else it would seem to be the newest one to register
                raise NoSuchTable(f"Table does not exist: {base.table.full_name} was dropped concurrently") from error
        except LakestreamError as second:
            raise CommitStateUnknown(f"{error}; reading the table's state failed too: {second}") from second
        if isinstance(error, Conflict | Uncertain):
            raise CommitStateUnknown(f"commit to {base.table.full_name}: {error}") from error
        await self._remove([file.location])
        raise error

    async def _overwrite(self, name: TableName, file: MetadataFile) -> LoadedTable:
        for _ in range(COMMIT_TRIES_MAX):
            found = await self.pointers.find(name)
            if found.table.topic_id:
                raise Rejected(f"{name} is the table of a topic: it cannot be overwritten by another table")
            try:
                moved = await self.pointers.move(found, file.location, file.content["location"])
            except Conflict:
                continue
            return _loaded(moved, file)
        raise CommitFailed(f"table {name}: changed concurrently {COMMIT_TRIES_MAX} times: retry")

    async def _with_checked_location(self, updates: Sequence[Update], table: Table | None = None) -> list[Update]:
        """Returns the updates with the location of a new table normalized.

        Rejected: an existing table would get another location, away from its files.
        """
        checked: list[Update] = []
        for update in updates:
            if not isinstance(update, SetLocation):
                checked.append(update)
            elif table is None:
                uuid = next((one.uuid for one in updates if isinstance(one, AssignUuid)), "")
                checked.append(SetLocation(await self._checked_location(update.location, staged=uuid)))
            elif update.location.rstrip("/") != table.location:
                raise Rejected(
                    f"table {table.full_name}: its location {table.location} cannot become {update.location[:200]}:"
                    " its files would stay behind; create another table and copy the rows"
                )
        return checked

    async def _checked_location(self, location: str, but: TableName | None = None, staged: str = "") -> str:
        """Returns the normalized location. Rejected: it overlaps with another table's or staged create's.

        Two tables in one folder would delete each other's files as orphans. `but`: the table that is overwritten.
        `staged`: the UUID of the staged create that is committed.
        """
        checked = self.locations.check_table_location(location)
        if other := await self._overlapping(checked, but, staged):
            raise Rejected(f"{location} and {other} overlap: choose another location")
        return checked

    async def _new_location(self, name: TableName, uuid: str) -> str:
        """Returns a location that is in no other table's: a client may have created one at `tables/{namespace}`."""
        location = self.locations.new_table(name.namespace, name.name, uuid)
        if not await self._overlapping(location):
            return location
        return self.locations.new_table((), name.name, uuid)  # directly below the tables' root: in no table's folder

    async def _overlapping(self, location: str, but: TableName | None = None, staged: str = "") -> str:
        """Returns the other table's or staged create's location that overlaps, with its owner; empty: none does."""
        async for entry in self.pointers.all():
            table = entry.table
            if not table.pending and table.full_name != but and overlap(location, table.location):
                return f"{table.location} of table {table.full_name}"
        for uuid, other in await self.staged.all():
            if uuid != staged and overlap(location, other):
                return f"{other} of a create that was staged less than a week ago"
        return ""

    async def _check_no_table_since(self, location: str, uuid: str) -> None:
        """Rejected: another table was created in the folder after the create was staged.

        Its files would be deleted with those of the staged table. A metadata file with the same UUID is from an earlier
        attempt of this commit.
        """
        async for page in self.objects.walk(self.locations.key_of(location)):
            for info in page:
                if info.key.endswith(METADATA_SUFFIX):
                    file = await self._files.read(self.locations.url_of(info.key))
                    if file.content["table-uuid"] != uuid:
                        raise Rejected(
                            f"table location {location}: another table was created there since this create was staged,"
                            f" with the metadata file {file.location}: stage the create again in an empty folder"
                        )

    async def _check_empty(self, location: str) -> None:
        """Rejected: there are files in the folder. They would count as the table's."""
        async for page in self.objects.walk(self.locations.key_of(location)):
            for info in page:
                raise Rejected(
                    f"table location {location}: the folder is not empty, it has {self.locations.url_of(info.key)}:"
                    " choose an empty folder"
                )

    async def _check_not_in_a_table(self, location: str) -> None:
        """Rejected: the folder is below that of a table that was dropped, and may be registered again or purged."""
        above = self.locations.key_of(location).split("/")[1:-1]
        folder = TABLES_FOLDER
        for part in above:
            folder = f"{folder}/{part}"
            async for page in self.objects.walk(f"{folder}/metadata"):
                for info in page:
                    if info.key.endswith(METADATA_SUFFIX):
                        raise Rejected(
                            f"table location {location}: it is in the folder of another table, which was dropped, with"
                            f" the metadata file {self.locations.url_of(info.key)}: choose another location"
                        )

    async def _check_files(self, base: Json | None, changed: Json, *, of_client: bool = False) -> None:
        """Rejected: the commit names a file that is not under the table's location."""
        folder = self.locations.table(changed["location"])
        await _computed(of_client, check_paths, folder, base, changed)
        if of_client:
            await check_added_files(self.objects, folder, base, changed)

    async def _remove_outdated(self, metadata: Json, outdated: list[str]) -> None:
        """Deletes the table's own metadata files that are no longer in its metadata log."""
        folder = self.locations.table(metadata["location"])
        keys = folder.own_keys(location for location in outdated if location.endswith(METADATA_SUFFIX))
        if keys and folder.is_removable:
            await self._remove([self.locations.url_of(key) for key in keys])

    async def _remove(self, locations: list[str]) -> None:
        """Deletes files that no metadata names. If it fails, they are orphans, which maintenance deletes."""
        try:
            await self._files.remove(locations)
        except LakestreamError as error:
            log.warning("catalog.cleanup_failed count=%d first=%s error=%s", len(locations), locations[0], error)


async def _computed(of_client: bool, function: Callable[..., T], *args: object) -> T:
    """Calls a function: for a client in a thread, because its updates and its metadata may be large."""
    return await asyncio.to_thread(function, *args) if of_client else function(*args)


def _new_metadata(new: NewTable, uuid: str, location: str, now_ms: int) -> Json:
    return apply_updates(None, new_table_updates(new, uuid, location), now_ms)


def _loaded(found: TableEntry, file: MetadataFile) -> LoadedTable:
    return LoadedTable(found.table_id, found.table.full_name, found.table.topic_id, file)


def _table(name: TableName, file: MetadataFile, topic_id: str = "") -> Table:
    size = _size(file.content, topic_id)
    return Table(
        namespace=name.namespace,
        name=name.name,
        uuid=file.content["table-uuid"],
        metadata_location=file.location,
        location=file.content["location"],
        topic_id=topic_id,
        bytes=size.bytes,
        moved=size.moved,
    )


def _size(metadata: Json, topic_id: str) -> TableSize:
    return TableSize(total_bytes(metadata), moved_offsets(metadata)) if topic_id else NO_ROWS


def open_catalog(store: MetadataStore, objects: ObjectStore, storage_url: str, clock: Clock, ids: Ids) -> Catalog:
    """Opens a catalog over the stores of this process. `storage_url`: of `objects`; table locations start with it."""
    return Catalog(store, objects, Locations(storage_url, azure_account(os.environ)), clock, ids)
