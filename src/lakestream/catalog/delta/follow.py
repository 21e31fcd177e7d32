"""A topic's Delta table follows its Iceberg table: what Iceberg lists and Delta does not is Delta's next commit.

    state of Delta's log  →  then Iceberg's metadata  →  what differs  →  a commit with the next number, if it is free

In this order. Whoever made the version of Delta that we know had read Iceberg before, so what we read after it is not
older; and if nobody has made another one meanwhile, the one that we make is not older than that. Two drivers at once
therefore never turn a Delta table back, and a crash anywhere leaves one that is only behind.

Before: catalog/append.py, rewrite.py and commits of others.  After: readers of Delta.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Collection, Mapping, Set
from typing import Any, Final, NamedTuple, Protocol

from lakestream.catalog import manifest_schemas as f
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.delta.actions import Add
from lakestream.catalog.delta.log import CHECKPOINT_EVERY, DeltaLog
from lakestream.catalog.delta.paths import HAS_DELTA, LOG_FOLDER, key_of, path_of, root_key
from lakestream.catalog.delta.schema import unsayable
from lakestream.catalog.delta.shadows import shadowed
from lakestream.catalog.delta.state import State
from lakestream.catalog.delta.stats import stats_of
from lakestream.catalog.delta.steps import Stop, Table, changed, commit_of, stops
from lakestream.catalog.listing import READS_AT_ONCE, Listing, Listings, LiveFile, partition_fields
from lakestream.catalog.manifests import DATA, DELETED, ManifestFile, read_entries
from lakestream.catalog.parquet_names import fields_of
from lakestream.catalog.shapes import Json, schema_of
from lakestream.catalog.updates import SetProperties
from lakestream.errors import Conflict, LakestreamError, Rejected
from lakestream.storage.together import together

log = logging.getLogger(__name__)

TRIES_MAX: Final = 5
KEPT_FILES_MAX: Final = 200_000
"""Of states that are remembered."""
LOG_EVERY_MS: Final = 60 * 60 * 1000
"""Between looks for old files of a log."""
_OURS: Final = re.compile(r".*/partition=\d{1,10}/\d{20}-[0-9a-f]{32}\.parquet")
"""What files are called that we write (data_files.py): their columns are named as they must be."""


class Followed(NamedTuple):
    """How a Delta table stands after it was led on."""

    version: int
    commits: int = 0
    waits: str = ""
    """Why it cannot be led on now; empty: it is where Iceberg is."""
    in_the_way: frozenset[str] = frozenset()
    """Files that have to be written anew first, without rows that were deleted."""
    misnamed: frozenset[str] = frozenset()
    """And those that have to be for the names of their columns."""


class Footers(Protocol):
    async def misnamed(self, file: LiveFile, schema: Json, names: Mapping[int, str]) -> str:
        """Which column a file has under another name than the one it must have in files; empty: none."""
        ...


class _Waits(Exception):
    def __init__(
        self, reason: str, in_the_way: frozenset[str] = frozenset(), misnamed: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(reason)
        self.in_the_way = in_the_way
        self.misnamed = misnamed


class _Known(NamedTuple):
    root: str
    state: State


class DeltaTables:
    def __init__(self, catalog: Catalog, listings: Listings, footers: Footers) -> None:
        self._catalog = catalog
        self._listings = listings
        self._footers = footers
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._tidied_ms: dict[str, int] = {}

    async def follow(self, table_id: str, now_ms: int) -> Followed:
        """Conflict: others commit all the time. What Delta cannot say is no error: it waits, and says why."""
        commits = 0
        for _ in range(TRIES_MAX):
            before = self._known.get(table_id) or await self._read(await self._catalog.load_id(table_id))
            loaded = await self._catalog.load_id(table_id, confirmed=True)
            if before.root != self._root(loaded):
                self._known.pop(table_id, None)
                continue  # somebody moved the table
            one = _One(self._catalog, self._listings, self._footers, loaded, before)
            try:
                await one.lead_on(now_ms)
                await one.write_checkpoint()
                await self._tidy(table_id, one.log, now_ms)
            except _Waits as why:
                self._keep(table_id, one.known)
                return Followed(one.known.state.version, commits + one.commits, str(why), why.in_the_way, why.misnamed)
            except Conflict:  # also what we remember may be wrong then
                self._known.pop(table_id, None)
                commits += one.commits
                continue
            except BaseException:
                self._known.pop(table_id, None)
                raise
            self._keep(table_id, one.known)
            return Followed(one.known.state.version, commits + one.commits)
        raise Conflict("the Delta table is changed all the time by others: it is tried again")

    async def listed(self, loaded: LoadedTable) -> frozenset[str]:
        """Keys of the files that the Delta table of a table lists now. Empty: it has none."""
        if HAS_DELTA not in loaded.metadata["properties"]:
            return frozenset()
        known = self._known.get(loaded.table_id)
        if known is None or known.root != self._root(loaded):
            known = await self._read(loaded)
        else:
            known = _Known(known.root, await self._log(known.root).catch_up(known.state))
        self._keep(loaded.table_id, known)
        return frozenset(key_of(path, known.root) for path in known.state.files)

    def forget(self, kept: Set[str]) -> None:
        """What is known of all tables but these."""
        for table_id in [one for one in self._known if one not in kept]:
            del self._known[table_id]
            self._tidied_ms.pop(table_id, None)

    async def _read(self, loaded: LoadedTable) -> _Known:
        root = self._root(loaded)
        return _Known(root, await self._log(root).read())

    async def _tidy(self, table_id: str, log_of_it: DeltaLog, now_ms: int) -> None:
        if now_ms - self._tidied_ms.setdefault(table_id, now_ms) >= LOG_EVERY_MS:
            self._tidied_ms[table_id] = now_ms
            await log_of_it.forget_old(now_ms)

    def _keep(self, table_id: str, known: _Known) -> None:
        self._known[table_id] = known
        self._known.move_to_end(table_id)
        while len(self._known) > 1 and sum(len(one.state.files) for one in self._known.values()) > KEPT_FILES_MAX:
            self._known.popitem(last=False)

    def _root(self, loaded: LoadedTable) -> str:
        return root_key(self._catalog.locations.key_of(loaded.metadata["location"]))

    def _log(self, root: str) -> DeltaLog:
        return DeltaLog(self._catalog.objects, f"{root}/{LOG_FOLDER}")


class _One:
    """One table, from what is known of its Delta table to what its metadata says."""

    def __init__(
        self, catalog: Catalog, listings: Listings, footers: Footers, loaded: LoadedTable, known: _Known
    ) -> None:
        self._catalog = catalog
        self._listings = listings
        self._footers = footers
        self._loaded = loaded
        self._metadata = loaded.metadata
        self._table = Table.of(loaded.metadata, known.state)
        self._places = partition_fields(loaded.metadata)
        self.known = known
        self.log = DeltaLog(catalog.objects, f"{known.root}/{LOG_FOLDER}")
        self.commits = 0

    async def lead_on(self, now_ms: int) -> None:
        self._check_table()
        followed = self.known.state.transactions.get(self._table.app_id)
        *between, last = [None, *stops(self._metadata, followed)]
        for stop in between:
            if stop is not None:
                await self._try_stop(stop, now_ms)
        if last is not None:
            await self._stop(last, now_ms)

    async def write_checkpoint(self) -> None:
        state = self.known.state
        if state.version - state.checkpoint < CHECKPOINT_EVERY:
            return
        try:
            self.known = _Known(self.known.root, await self.log.write_checkpoint(state))
        except LakestreamError as error:  # readers read more commits then; the next one tries again
            log.warning("delta.no_checkpoint table=%s error=%s", self._loaded.name, error)

    async def _try_stop(self, stop: Stop, now_ms: int) -> None:
        try:
            await self._stop(stop, now_ms)
        except (_Waits, LakestreamError) as error:
            if isinstance(error, Conflict):
                raise
            log.info("delta.passed_over table=%s: %s", self._loaded.name, error)  # the next one has all of it

    async def _stop(self, stop: Stop, now_ms: int) -> None:
        manifests = await self._manifests(stop)
        listing = await self._listing(manifests)
        paths = self._checked(listing)
        difference = changed(self.known.state, frozenset(paths))
        new = sorted(difference.added)
        added = {paths[path].location: path for path in new}
        await self._check_names([paths[path] for path in new])
        adds = await self._adds(manifests, added, stop)
        actions = commit_of(self.known.state, self._table, stop, adds, difference.gone, now_ms)
        if not actions:
            return
        await self._mark()
        self.known = _Known(self.known.root, await self.log.commit(self.known.state, actions))
        self.commits += 1

    async def _mark(self) -> None:
        """From now on nobody may remove what the Delta table lists."""
        if HAS_DELTA not in self._metadata["properties"]:
            await self._catalog.change(
                self._loaded.table_id,
                lambda metadata: [] if HAS_DELTA in metadata["properties"] else [SetProperties({HAS_DELTA: "true"})],
            )

    # What can be followed

    def _check_table(self) -> None:
        if reasons := unsayable(schema_of(self._metadata)):
            raise _Waits("; ".join(reasons[:3]))
        if strange := self.known.state.strange():
            raise _Waits(f"{strange}: to have it begun anew, remove the folder {LOG_FOLDER} in {self.known.root}")

    def _checked(self, listing: Listing) -> dict[str, LiveFile]:
        """By path."""
        found: dict[str, LiveFile] = {}
        for file in listing.data:
            if not file.is_parquet:
                raise _Waits(f"{file.location} is no Parquet file")
            path = self._path(file)
            if path is None:
                raise _Waits(f"{file.location} lies outside of the folder that the Delta table is in")
            found[path] = file
        if deleted := frozenset(file.location for file in shadowed(listing.data, listing.deletes)):
            raise _Waits(
                f"rows of {len(deleted)} files were deleted without the files being written anew, as {min(deleted)}:"
                " maintenance does that, or CALL system.rewrite_data_files",
                deleted,
            )
        return found

    def _path(self, file: LiveFile) -> str | None:
        try:
            return path_of(self._catalog.locations.key_of(file.location), self.known.root)
        except Rejected:
            return None

    async def _check_names(self, files: Collection[LiveFile]) -> None:
        """Readers of Delta find columns by their names in the files."""
        schema, names = schema_of(self._metadata), self._table.names
        renamed = any(
            names.get(field["id"]) != field["name"] for one in self._metadata["schemas"] for _, field in fields_of(one)
        )
        looked_at = [file for file in files if renamed or not _OURS.fullmatch(file.location)]
        found = await together([self._footers.misnamed(file, schema, names) for file in looked_at], READS_AT_ONCE)
        wrong = {file.location: said for file, said in zip(looked_at, found, strict=True) if said}
        if wrong:
            first = min(wrong)
            raise _Waits(f"{first} has {wrong[first]}: it has to be written anew", misnamed=frozenset(wrong))

    # What Iceberg lists

    async def _manifests(self, stop: Stop) -> list[ManifestFile]:
        location = stop.snapshot.get("manifest-list")
        if not location:
            raise _Waits(f"snapshot {stop.snapshot['snapshot-id']} has no list of manifests")
        return [one for one in await self._listings.manifests(location) if one.live_files_count]

    async def _listing(self, manifests: Collection[ManifestFile]) -> Listing:
        found = await together([self._listings.manifest(one, self._places) for one in manifests], READS_AT_ONCE)
        files = [file for manifest in found for file in manifest.files]
        return Listing(
            tuple(file for file in files if file.content == DATA), tuple(file for file in files if file.content != DATA)
        )

    async def _adds(self, manifests: Collection[ManifestFile], added: Mapping[str, str], stop: Stop) -> list[Add]:
        """`added`: paths by location. Only manifests that name some of them are read, for what they say of columns."""
        if not added:
            return []
        wanted = [
            one
            for one in manifests
            if any(file.location in added for file in (await self._listings.manifest(one, self._places)).files)
        ]
        bodies = await together([self._get(one.manifest_path) for one in wanted], READS_AT_ONCE)
        made: dict[str, Add] = {}
        for one, body in zip(wanted, bodies, strict=True):
            for entry in read_entries(body, one.manifest_path):
                data_file = entry[f.DATA_FILE]
                if entry[f.STATUS] != DELETED and data_file[f.FILE_PATH] in added:
                    path = added[data_file[f.FILE_PATH]]
                    made[path] = self._add(path, data_file, stop)
        return [made[path] for path in sorted(made)]

    def _add(self, path: str, data_file: Mapping[int, Any], stop: Stop) -> Add:
        stats = stats_of(data_file, schema_of(self._metadata), self._table.names)
        return Add(path, {}, data_file[f.FILE_SIZE], stop.snapshot["timestamp-ms"], stats=stats)

    async def _get(self, location: str) -> bytes:
        return bytes(await self._catalog.objects.get(self._catalog.locations.key_of(location)))
