"""Reads and checks the manifests that a commit adds, before the commit is accepted.

Manifests in the lists of the new snapshots' parents were checked when they were added. A manifest is identified by its
path alone, because the client also writes the other fields of a list entry.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lakestream.aio.gather import gather_limited
from lakestream.catalog.commit_checks.metadata_paths import manifest_lists
from lakestream.catalog.errors import Unsupported
from lakestream.catalog.locations import TableFolder
from lakestream.catalog.manifests import avro_schemas as f
from lakestream.catalog.manifests.manifest import DELETED, ManifestFile, read_entries, read_list
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.topic_table.live_file import live_file, partition_fields, path_of
from lakestream.catalog.topic_table.offsets import TOPIC_ID
from lakestream.errors import Corrupt, Missing, Rejected, Unavailable
from lakestream.model import MiB
from lakestream.storage.object_store import ObjectStore

FILE_BYTES_MAX: Final = 64 * MiB
"""Of a manifest or a manifest list. Engines write manifests of 8 MiB."""
READS_AT_ONCE: Final = 4
CHECK_S_MAX: Final = 30
"""Less than the timeout of clients for a commit."""


@dataclass(frozen=True, slots=True)
class AddedManifest:
    snapshot: Json
    """The first of the commit's snapshots that lists it."""
    manifest: ManifestFile
    """As that snapshot lists it."""
    body: bytes

    def entries(self) -> Iterator[dict[int, Any]]:
        """Yields all entries by field id, without values inherited from the manifest. Corrupt: it is damaged.

        Call it in a thread: a large manifest takes a second.
        """
        yield from read_entries(self.body, self.manifest.manifest_path)


async def check_added_files(objects: ObjectStore, folder: TableFolder, base: Json | None, changed: Json) -> None:
    """Raises Rejected if a manifest that the commit adds is not in the table's folder, or names a file that is not.

    Unavailable if the manifests could not be read in `CHECK_S_MAX`.
    """
    is_over = threading.Event()
    fields = partition_fields(changed) if changed.get("properties", {}).get(TOPIC_ID) else None
    try:
        async with asyncio.timeout(CHECK_S_MAX):
            async for added in added_manifests(objects, folder, base, changed):
                await asyncio.to_thread(check_files, folder, added, fields, is_over)
    except TimeoutError as error:
        raise Unavailable(
            f"the manifests of the commit could not be checked in {CHECK_S_MAX} s: commit fewer files, or retry"
        ) from error
    except Corrupt as error:
        raise Rejected(f"a manifest of the commit cannot be read: {error}") from error
    finally:
        is_over.set()


def check_files(
    folder: TableFolder, added: AddedManifest, fields: Mapping[int, int] | None, is_over: threading.Event
) -> None:
    """Raises Rejected if a live entry names a file outside of the table's folder, or is not valid for maintenance.

    `fields`: as `partition_fields` returns them; None: not the table of a topic.
    Deleted entries pass: expiration ignores them, and a table from an older version must be able to drop such a file.
    Returns early once `is_over` is set, because a thread cannot be cancelled.
    """
    for entry in added.entries():
        if is_over.is_set():
            return
        path = path_of(added.manifest, entry)
        if entry.get(f.STATUS) == DELETED:
            continue
        folder.key_of(path)
        if fields is not None:  # only tables of topics are maintained, and only they have offsets with these field ids
            live_file(added.manifest, entry, fields.get(added.manifest.partition_spec_id))


async def added_manifests(
    objects: ObjectStore, folder: TableFolder, base: Json | None, changed: Json
) -> AsyncIterator[AddedManifest]:
    """Yields the manifests that are new in `changed`, each once. A few are read at the same time.

    `base`: the metadata that the commit is applied to; None: it creates the table.
    """
    read = _ManifestReader(objects, folder)
    snapshots = _new_snapshots(base, changed)
    known = set() if base is None else await _checked_manifests(read, base, snapshots)
    new: dict[str, tuple[Json, ManifestFile]] = {}
    for snapshot in snapshots:
        if snapshot.get("manifests"):
            raise Unsupported(
                f"snapshot {snapshot['snapshot-id']} has manifests, but no manifest list:"
                " write a manifest list (write.manifest-lists.enabled)"
            )
        if location := snapshot.get("manifest-list"):
            for manifest in await read.listed(location):
                if manifest.manifest_path not in known:
                    new.setdefault(manifest.manifest_path, (snapshot, manifest))
    found = list(new.values())
    for start in range(0, len(found), READS_AT_ONCE):
        some = found[start : start + READS_AT_ONCE]
        bodies = await gather_limited([read.manifest(manifest) for _, manifest in some], READS_AT_ONCE)
        for (snapshot, manifest), body in zip(some, bodies, strict=True):
            yield AddedManifest(snapshot, manifest, body)


def _new_snapshots(base: Json | None, changed: Json) -> list[Json]:
    """Returns the snapshots with new manifest lists: a list is checked once, also if several snapshots name it."""
    known = set() if base is None else set(manifest_lists(base))
    old = {} if base is None else {one["snapshot-id"]: one for one in base["snapshots"]}
    return [
        one
        for one in changed["snapshots"]
        if one.get("manifest-list") not in known and one != old.get(one["snapshot-id"])
    ]


async def _checked_manifests(read: "_ManifestReader", base: Json, snapshots: list[Json]) -> set[str]:
    by_id: Mapping[int, Json] = {one["snapshot-id"]: one for one in base["snapshots"]}
    known: set[str] = set()
    for number in by_id.keys() & {one.get("parent-snapshot-id") for one in snapshots}:
        if location := by_id[number].get("manifest-list"):
            try:
                known.update(manifest.manifest_path for manifest in await read.listed(location))
            except Rejected:
                continue  # then all manifests of the new snapshots are checked
    return known


class _ManifestReader:
    def __init__(self, objects: ObjectStore, folder: TableFolder) -> None:
        self._objects = objects
        self._folder = folder

    async def listed(self, location: str) -> list[ManifestFile]:
        body = await self._get(location)
        try:
            return await asyncio.to_thread(read_list, body, location)
        except Corrupt as error:
            raise Rejected(f"a manifest list of the commit cannot be read: {error}") from error

    async def manifest(self, manifest: ManifestFile) -> bytes:
        self._folder.key_of(manifest.manifest_path)
        if manifest.key_metadata is not None:
            raise Unsupported(f"{manifest.manifest_path} is encrypted: which files it names cannot be checked")
        return await self._get(manifest.manifest_path)

    async def _get(self, location: str) -> bytes:
        """Reads a file after a check of its size in the store: clients write the sizes in manifest lists."""
        key = self._folder.key_of(location)
        try:
            if (size := (await self._objects.head(key)).size) > FILE_BYTES_MAX:
                raise Rejected(f"{location} has {size} bytes: manifests and their lists have at most {FILE_BYTES_MAX}")
            return bytes(await self._objects.get(key))
        except Missing as error:
            raise Rejected(
                f"{location} does not exist: write the files that a commit names before the commit"
            ) from error
