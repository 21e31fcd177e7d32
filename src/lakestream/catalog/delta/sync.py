"""Brings a topic's Delta table to the state of its Iceberg table.

    read the Delta log  →  then load the Iceberg table  →  compare  →  commit with the next version, if it is free

The order matters. The writer of the last Delta version had read the Iceberg table before, so metadata that is loaded
after that version was read is not older than it. If no other writer commits in between, the new version is not older
either. So two concurrent drivers never revert a Delta table, and after a crash it is only stale.

Before: catalog/operations/append.py, rewrite_files.py and commits of engines.  After: readers of Delta.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Collection, Mapping, Set
from typing import Any, Final, NamedTuple, Protocol

from lakestream.aio.gather import gather_limited
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.delta.actions import Add
from lakestream.catalog.delta.diff import (
    IcebergTable,
    SyncPoint,
    commit_actions,
    file_diff,
    files_with_deletes,
    sync_points,
)
from lakestream.catalog.delta.log import CHECKPOINT_EVERY, DeltaLog
from lakestream.catalog.delta.paths import key_of, path_of, root_key
from lakestream.catalog.delta.schema import unsupported_columns
from lakestream.catalog.delta.state import DeltaState
from lakestream.catalog.delta.stats import stats_of
from lakestream.catalog.locations import LOG_FOLDER
from lakestream.catalog.manifests import avro_schemas as f
from lakestream.catalog.manifests.manifest import DELETED, ManifestFile, read_entries
from lakestream.catalog.operations.live_files import READS_AT_ONCE, LiveFileReader, LiveFiles
from lakestream.catalog.table_metadata.json_model import Json, schema_of
from lakestream.catalog.table_metadata.updates import SetProperties
from lakestream.catalog.topic_table.field_names import fields_of
from lakestream.catalog.topic_table.live_file import LiveFile
from lakestream.catalog.topic_table.properties import HAS_DELTA
from lakestream.errors import Conflict, LakestreamError, Rejected

log = logging.getLogger(__name__)

TRIES_MAX: Final = 5
CACHED_FILES_MAX: Final = 200_000
"""In cached states."""
CLEANUP_EVERY_MS: Final = 60 * 60 * 1000
"""Between deletions of old files of a log."""
_OURS: Final = re.compile(r".*/partition=\d{1,10}/\d{20}-[0-9a-f]{32}\.parquet")
"""Locations of files that the pipeline writes (data_file.py). Their columns have the right names."""


class DeltaSyncResult(NamedTuple):
    version: int
    commits: int = 0
    blocked: str = ""
    """Why the Delta table cannot be updated now; empty: it has the state of the Iceberg table."""
    with_deletes: frozenset[str] = frozenset()
    """Files that must be rewritten without their deleted rows first."""
    misnamed: frozenset[str] = frozenset()
    """Files that must be rewritten with other column names first."""


class Footers(Protocol):
    async def misnamed(self, file: LiveFile, schema: Json, names: Mapping[int, str]) -> str:
        """Returns the first column with a wrong name in the file; empty if all names are right."""
        ...


class _SyncBlocked(Exception):
    def __init__(
        self, reason: str, with_deletes: frozenset[str] = frozenset(), misnamed: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(reason)
        self.with_deletes = with_deletes
        self.misnamed = misnamed


class _CachedState(NamedTuple):
    root: str
    state: DeltaState


class DeltaTables:
    def __init__(self, catalog: Catalog, listings: LiveFileReader, footers: Footers) -> None:
        self._catalog = catalog
        self._listings = listings
        self._footers = footers
        self._cached: OrderedDict[str, _CachedState] = OrderedDict()
        self._cleaned_ms: dict[str, int] = {}

    async def sync(self, table_id: str, now_ms: int) -> DeltaSyncResult:
        """Updates the Delta table. Raises Conflict after TRIES_MAX conflicts with other writers.

        A table that Delta does not support is not an error: the result has the reason.
        """
        commits = 0
        for _ in range(TRIES_MAX):
            before = self._cached.get(table_id) or await self._read(await self._catalog.load_id(table_id))
            loaded = await self._catalog.load_id(table_id, confirmed=True)
            if before.root != self._root(loaded):
                self._cached.pop(table_id, None)
                continue  # the table's location has changed
            one = _TableSync(self._catalog, self._listings, self._footers, loaded, before)
            try:
                await one.sync(now_ms)
                await one.write_checkpoint()
                await self._clean_log(table_id, one.log, now_ms)
            except _SyncBlocked as blocked:
                self._cache(table_id, one.current)
                return DeltaSyncResult(
                    one.current.state.version,
                    commits + one.commits,
                    str(blocked),
                    blocked.with_deletes,
                    blocked.misnamed,
                )
            except Conflict:  # the cached state may be wrong
                self._cached.pop(table_id, None)
                commits += one.commits
                continue
            except BaseException:
                self._cached.pop(table_id, None)
                raise
            self._cache(table_id, one.current)
            return DeltaSyncResult(one.current.state.version, commits + one.commits)
        raise Conflict(f"the Delta table was changed concurrently {TRIES_MAX} times: the next sync retries")

    async def listed(self, loaded: LoadedTable) -> frozenset[str]:
        """Returns the keys of the files that the Delta table lists; none if there is no Delta table."""
        if HAS_DELTA not in loaded.metadata["properties"]:
            return frozenset()
        known = self._cached.get(loaded.table_id)
        if known is None or known.root != self._root(loaded):
            known = await self._read(loaded)
        else:
            known = _CachedState(known.root, await self._log(known.root).catch_up(known.state))
        self._cache(loaded.table_id, known)
        return frozenset(key_of(path, known.root) for path in known.state.files)

    def retain(self, kept: Set[str]) -> None:
        """Evicts the cached states of all tables except `kept`."""
        for table_id in [one for one in self._cached if one not in kept]:
            del self._cached[table_id]
            self._cleaned_ms.pop(table_id, None)

    async def _read(self, loaded: LoadedTable) -> _CachedState:
        root = self._root(loaded)
        return _CachedState(root, await self._log(root).read())

    async def _clean_log(self, table_id: str, log_of_it: DeltaLog, now_ms: int) -> None:
        if now_ms - self._cleaned_ms.setdefault(table_id, now_ms) >= CLEANUP_EVERY_MS:
            self._cleaned_ms[table_id] = now_ms
            await log_of_it.remove_old(now_ms)

    def _cache(self, table_id: str, known: _CachedState) -> None:
        self._cached[table_id] = known
        self._cached.move_to_end(table_id)
        while len(self._cached) > 1 and sum(len(one.state.files) for one in self._cached.values()) > CACHED_FILES_MAX:
            self._cached.popitem(last=False)

    def _root(self, loaded: LoadedTable) -> str:
        locations = (
            self._catalog.locations
        )  # only below the tables' root: elsewhere there may be logs of other programs
        return root_key(locations.key_of(locations.check_table_location(loaded.metadata["location"])))

    def _log(self, root: str) -> DeltaLog:
        return DeltaLog(self._catalog.objects, f"{root}/{LOG_FOLDER}")


class _TableSync:
    """Commits the difference between the known state of a Delta table and the loaded Iceberg table."""

    def __init__(
        self, catalog: Catalog, listings: LiveFileReader, footers: Footers, loaded: LoadedTable, known: _CachedState
    ) -> None:
        self._catalog = catalog
        self._own = listings.of(loaded.metadata)
        self._footers = footers
        self._loaded = loaded
        self._metadata = loaded.metadata
        self._table = IcebergTable.of(loaded.metadata, known.state)
        self.current = known
        self.log = DeltaLog(catalog.objects, f"{known.root}/{LOG_FOLDER}")
        self.commits = 0

    async def sync(self, now_ms: int) -> None:
        self._check_table()
        committed = self.current.state.transactions.get(self._table.app_id)
        *between, last = [None, *sync_points(self._metadata, committed)]
        for point in between:
            if point is not None:
                await self._try_sync_to(point, now_ms)
        if last is not None:
            await self._sync_to(last, now_ms)

    async def write_checkpoint(self) -> None:
        state = self.current.state
        if state.version - state.checkpoint < CHECKPOINT_EVERY:
            return
        try:
            self.current = _CachedState(self.current.root, await self.log.write_checkpoint(state))
        except LakestreamError as error:  # readers read more commits until the next sync retries
            log.warning("delta.checkpoint_failed table=%s error=%s", self._loaded.name, error)

    async def _try_sync_to(self, point: SyncPoint, now_ms: int) -> None:
        try:
            await self._sync_to(point, now_ms)
        except (_SyncBlocked, LakestreamError) as error:
            if isinstance(error, Conflict):
                raise
            log.info("delta.skipped table=%s error=%s", self._loaded.name, error)  # the next commit includes it

    async def _sync_to(self, point: SyncPoint, now_ms: int) -> None:
        manifests = await self._manifests(point)
        listing = await self._listing(manifests)
        paths = self._checked(listing)
        difference = file_diff(self.current.state, frozenset(paths))
        new = sorted(difference.added)
        added = {paths[path].location: path for path in new}
        await self._check_names([paths[path] for path in new])
        adds = await self._adds(manifests, added, point)
        actions = commit_actions(self.current.state, self._table, point, adds, difference.removed, now_ms)
        if not actions:
            return
        await self._mark()
        self.current = _CachedState(self.current.root, await self.log.commit(self.current.state, actions))
        self.commits += 1

    async def _mark(self) -> None:
        """Sets the property with which maintenance keeps the files that the Delta table lists."""
        if HAS_DELTA not in self._metadata["properties"]:
            await self._catalog.change(
                self._loaded.table_id,
                lambda metadata: [] if HAS_DELTA in metadata["properties"] else [SetProperties({HAS_DELTA: "true"})],
            )

    # Checks

    def _check_table(self) -> None:
        if reasons := unsupported_columns(schema_of(self._metadata)):
            raise _SyncBlocked("; ".join(reasons[:3]))
        if reason := self.current.state.unsupported():
            raise _SyncBlocked(f"{reason}: to recreate it, delete the folder {LOG_FOLDER} in {self.current.root}")

    def _checked(self, listing: LiveFiles) -> dict[str, LiveFile]:
        """Returns the files by path. Files whose rows all have no offset are left out: the stream has no such rows."""
        found: dict[str, LiveFile] = {}
        data = [file for file in listing.data if file.has_records]
        for file in data:
            if not file.is_parquet:
                raise _SyncBlocked(f"{file.location} is not a Parquet file")
            path = self._path(file)
            if path is None:
                raise _SyncBlocked(f"{file.location} is outside of the folder of the Delta table")
            found[path] = file
        if deleted := frozenset(file.location for file in files_with_deletes(data, listing.deletes)):
            raise _SyncBlocked(
                f"{len(deleted)} files have delete files, for example {min(deleted)}: maintenance rewrites them, or"
                " CALL system.rewrite_data_files",
                deleted,
            )
        return found

    def _path(self, file: LiveFile) -> str | None:
        try:
            return path_of(self._own.folder.key_of(file.location), self.current.root)
        except Rejected:
            return None

    async def _check_names(self, files: Collection[LiveFile]) -> None:
        """Readers of Delta find columns by their names in the files."""
        schema, names = schema_of(self._metadata), self._table.names
        renamed = any(
            names.get(field["id"]) != field["name"] for one in self._metadata["schemas"] for _, field in fields_of(one)
        )
        unsure = [file for file in files if renamed or not _OURS.fullmatch(file.location)]
        columns = await gather_limited([self._footers.misnamed(file, schema, names) for file in unsure], READS_AT_ONCE)
        wrong = {file.location: column for file, column in zip(unsure, columns, strict=True) if column}
        if wrong:
            first = min(wrong)
            raise _SyncBlocked(f"{first} has {wrong[first]}: maintenance rewrites it", misnamed=frozenset(wrong))

    # The Iceberg table

    async def _manifests(self, point: SyncPoint) -> list[ManifestFile]:
        location = point.snapshot.get("manifest-list")
        if not location:
            raise _SyncBlocked(f"snapshot {point.snapshot['snapshot-id']} has no manifest list")
        return [one for one in await self._own.listed(location) if one.live_files_count]

    async def _listing(self, manifests: Collection[ManifestFile]) -> LiveFiles:
        return LiveFiles.of(await gather_limited([self._own.manifest(one) for one in manifests], READS_AT_ONCE))

    async def _adds(self, manifests: Collection[ManifestFile], added: Mapping[str, str], point: SyncPoint) -> list[Add]:
        """Reads the column statistics of new files from their manifests. `added`: paths by location."""
        if not added:
            return []
        manifests = [
            one for one in manifests if any(file.location in added for file in (await self._own.manifest(one)).live)
        ]
        bodies = await gather_limited([self._get(one.manifest_path) for one in manifests], READS_AT_ONCE)
        adds_by_path: dict[str, Add] = {}
        for one, body in zip(manifests, bodies, strict=True):
            for entry in read_entries(body, one.manifest_path):
                data_file = entry[f.DATA_FILE]
                if entry[f.STATUS] != DELETED and data_file[f.FILE_PATH] in added:
                    path = added[data_file[f.FILE_PATH]]
                    adds_by_path[path] = self._add(path, data_file, point)
        return [adds_by_path[path] for path in sorted(adds_by_path)]

    def _add(self, path: str, data_file: Mapping[int, Any], point: SyncPoint) -> Add:
        stats = stats_of(data_file, schema_of(self._metadata), self._table.names)
        return Add(path, {}, data_file[f.FILE_SIZE], point.snapshot["timestamp-ms"], stats=stats)

    async def _get(self, location: str) -> bytes:
        return bytes(await self._catalog.objects.get(self._own.folder.named_key(location)))
