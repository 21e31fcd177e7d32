"""Reads the live files of a table from its manifests, for maintenance and retention.

    snapshot → manifest list → manifest entries → files with partition, offsets, timestamps and sizes

Manifests and manifest lists are never changed after they are written, so a cached one stays valid. The cache is
bounded. Manifests may be written by any engine.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from lakestream.aio.gather import gather_limited
from lakestream.catalog.locations import Locations, TableFolder
from lakestream.catalog.manifests import avro_schemas as f
from lakestream.catalog.manifests.manifest import DATA, DELETED, ManifestFile, read_entries, read_list
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.topic_table.live_file import LiveFile, live_file, partition_fields, path_of
from lakestream.catalog.topic_table.offsets import main_of
from lakestream.errors import Corrupt
from lakestream.storage.object_store import ObjectStore

READS_AT_ONCE: Final = 8
CACHED_FILES_MAX: Final = 200_000
"""Files in cached manifests: about 100 MB."""
_MANIFEST_COST: Final = 4


class CachedManifest(NamedTuple):
    live: tuple[LiveFile, ...]
    all_paths: tuple[str, ...]
    """Of all entries, also of files that the manifest's commit removed."""
    foreign: str = ""
    """Why a live file is not one that the table may name; empty: the table may name all of them."""


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """All files of a table at one snapshot."""

    data: tuple[LiveFile, ...] = ()
    deletes: tuple[LiveFile, ...] = ()

    @classmethod
    def of(cls, manifests: Iterable[CachedManifest]) -> "LiveFiles":
        files = [file for manifest in manifests for file in manifest.live]
        return cls(
            tuple(file for file in files if file.content == DATA), tuple(file for file in files if file.content != DATA)
        )


class LiveFileReader:
    """Reads and caches manifests of all tables. A table gets only those under its own location, cached or not."""

    def __init__(self, objects: ObjectStore, locations: Locations) -> None:
        self._objects = objects
        self._locations = locations
        self._lists: OrderedDict[str, list[ManifestFile]] = OrderedDict()
        self._manifests: OrderedDict[str, CachedManifest] = OrderedDict()
        self._weight = 0

    def of(self, metadata: Json) -> "TableManifests":
        """Returns the reader for one table. Rejected: its location cannot be that of a table."""
        return TableManifests(self, self._locations.table(metadata["location"]), metadata)

    async def of_main(self, metadata: Json) -> LiveFiles:
        """Returns the files of `main`.

        Corrupt: a manifest cannot be read, or names a file that is not under the table's location.
        """
        main = main_of(metadata)
        location = next((one.get("manifest-list") for one in metadata["snapshots"] if one["snapshot-id"] == main), None)
        if location is None:
            return LiveFiles()
        own = self.of(metadata)
        listed = [manifest for manifest in await own.listed(location) if manifest.live_files_count]
        manifests = await gather_limited([own.manifest(manifest) for manifest in listed], READS_AT_ONCE)
        if foreign := next((manifest.foreign for manifest in manifests if manifest.foreign), ""):
            raise Corrupt(foreign)
        return LiveFiles.of(manifests)

    async def listed(self, folder: TableFolder, list_location: str) -> list[ManifestFile]:
        key = folder.named_key(list_location)
        if (cached := self._lists.get(list_location)) is not None:
            self._lists.move_to_end(list_location)
            return cached
        manifests = read_list(await self._get(key), list_location)
        self._lists[list_location] = manifests
        self._weight += _MANIFEST_COST * len(manifests)
        self._evict()
        return manifests

    async def manifest(
        self, folder: TableFolder, manifest: ManifestFile, partition_field: int | None
    ) -> CachedManifest:
        """`partition_field`: as `partition_fields` returns it for the spec of the manifest."""
        location = manifest.manifest_path
        key = folder.named_key(location)
        if (cached := self._manifests.get(location)) is not None:
            self._manifests.move_to_end(location)
            return cached
        loaded = _manifest(folder, manifest, read_entries(await self._get(key), location), partition_field)
        self._manifests[location] = loaded
        self._weight += len(loaded.all_paths)
        self._evict()
        return loaded

    def _evict(self) -> None:
        while self._weight > CACHED_FILES_MAX and (self._manifests or self._lists):
            if len(self._lists) > 1:
                self._weight -= _MANIFEST_COST * len(self._lists.popitem(last=False)[1])
            elif self._manifests:
                self._weight -= len(self._manifests.popitem(last=False)[1].all_paths)
            else:
                return

    async def _get(self, key: str) -> bytes:
        return bytes(await self._objects.get(key))


class TableManifests:
    """Reads the manifests of one table through the cache for all tables."""

    def __init__(self, reader: LiveFileReader, folder: TableFolder, metadata: Json) -> None:
        self._reader = reader
        self.folder = folder
        self._partition_fields = partition_fields(metadata)

    async def listed(self, list_location: str) -> list[ManifestFile]:
        """Reads a manifest list. Corrupt: it is damaged, or not under the table's location."""
        return await self._reader.listed(self.folder, list_location)

    async def manifest(self, manifest: ManifestFile) -> CachedManifest:
        """Reads a manifest. Corrupt: it is damaged, or not under the table's location."""
        field = self._partition_fields.get(manifest.partition_spec_id)
        return await self._reader.manifest(self.folder, manifest, field)


def _manifest(
    folder: TableFolder, manifest: ManifestFile, entries: Iterable[dict[int, Any]], partition_field: int | None
) -> CachedManifest:
    """Keeps no entry: one of an engine has statistics of all columns."""
    live: list[LiveFile] = []
    paths: list[str] = []
    for entry in entries:
        paths.append(path_of(manifest, entry))
        if entry.get(f.STATUS) != DELETED:
            live.append(live_file(manifest, entry, partition_field))
    return CachedManifest(tuple(live), tuple(paths), _foreign(folder, live))


def _foreign(folder: TableFolder, files: Iterable[LiveFile]) -> str:
    try:
        for file in files:
            folder.named_key(file.location)
    except Corrupt as error:
        return str(error)
    return ""
