"""A topic's table as it is now, read through its metadata: pointer → metadata file → list → manifests → files.

First step of examine.py.  What cannot be read is a trouble, and what is known is examined nevertheless.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from lakestream.catalog import manifest_schemas as f
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.errors import TableAltered
from lakestream.catalog.manifests import DATA, ManifestFile, read_entries, read_list
from lakestream.catalog.next_offsets import ancestors, main_of, next_offsets
from lakestream.catalog.shapes import Json
from lakestream.catalog.topic_shape import check_columns
from lakestream.data.table.examine_files import (
    RESTORE,
    NamedFile,
    Shape,
    Trouble,
    check_manifest,
    live_files,
)
from lakestream.errors import LakestreamError, Missing, Rejected, Unavailable
from lakestream.storage.together import together

READS_AT_ONCE: Final = 4
"""Brokers and the pipeline use the same storage, and come first."""
_STATISTICS: Final = ("statistics", "partition-statistics")


@dataclass(slots=True)
class State:
    loaded: LoadedTable
    next_offsets: dict[int, int] | None = None
    """None: nobody can tell."""
    data: list[NamedFile] = field(default_factory=list)
    deletes: list[NamedFile] = field(default_factory=list)
    lists: dict[str, int | None] = field(default_factory=dict)
    """The list and its manifests, with their sizes where those are known."""
    troubles: list[Trouble] = field(default_factory=list)
    _by_partition: dict[int | None, list[NamedFile]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.loaded.name)

    @property
    def metadata(self) -> Json:
        return self.loaded.metadata

    @property
    def files(self) -> list[NamedFile]:
        return self.data + self.deletes

    @property
    def is_only_appended(self) -> bool:
        """Nobody has ever taken a row out, as far as its snapshots tell."""
        snapshots = list(ancestors(self.metadata))
        first = snapshots[-1] if snapshots else {}
        kinds = {(snapshot.get("summary") or {}).get("operation") for snapshot in snapshots}
        return not self.deletes and kinds <= {"append", "replace"} and first.get("parent-snapshot-id") is None

    def metadata_files(self) -> list[str]:
        """What the metadata itself names, besides snapshots."""
        metadata = self.metadata
        return [
            self.loaded.metadata_location,
            f"{metadata['location']}/metadata/version-hint.text",
            *(entry["metadata-file"] for entry in metadata["metadata-log"]),
            *(one["statistics-path"] for name in _STATISTICS for one in metadata.get(name) or ()),
        ]

    def of_partition(self, partition: int) -> list[NamedFile]:
        """Its data files, and those that may have some rows of it."""
        if not self._by_partition:
            for file in self.data:
                self._by_partition.setdefault(file.partition, []).append(file)
        shared = self._by_partition.get(None, [])
        return self._by_partition.get(partition, []) + [file for file in shared if file.may_hold(partition)]


async def load_state(catalog: Catalog, topic_id: str) -> State:
    """NoSuchTable. Other LakestreamError: its pointer or metadata file cannot be read."""
    state = State(await catalog.load_id(topic_id))
    try:
        check_columns(state.metadata)
        state.next_offsets = next_offsets(state.metadata)
    except TableAltered as error:
        state.troubles.append(Trouble("altered", "", f"table {state.name}: {error}"))
    location = _list_of(state.metadata)
    if location is not None:
        await _load_files(catalog, state, location)
    return state


def _list_of(metadata: Json) -> str | None:
    main = main_of(metadata)
    return next((one.get("manifest-list") for one in metadata["snapshots"] if one["snapshot-id"] == main), None)


async def _load_files(catalog: Catalog, state: State, location: str) -> None:
    state.lists[location] = None
    try:
        manifests = read_list(await get(catalog, location), location)
    except LakestreamError as error:
        state.troubles.append(unreadable("list", location, error))
        return
    shape = Shape.of(state.metadata)

    async def load(manifest: ManifestFile) -> None:
        state.lists[manifest.manifest_path] = manifest.manifest_length
        try:
            body = await get(catalog, manifest.manifest_path)
            entries = await asyncio.to_thread(_entries, body, manifest.manifest_path)
        except LakestreamError as error:
            state.troubles.append(unreadable("manifest", manifest.manifest_path, error))
            return
        state.troubles += check_manifest(manifest, len(body), entries)
        files = live_files(manifest, entries, shape)
        state.data += (file for file in files if file.content == DATA)
        state.deletes += (file for file in files if file.content != DATA)

    await together([load(manifest) for manifest in manifests], READS_AT_ONCE)


def _entries(body: bytes, location: str) -> list[dict[int, Any]]:
    return list(read_entries(body, location))


async def named_by(catalog: Catalog, snapshots: Iterable[Json], known: set[str], reads_max: int) -> set[str] | None:
    """All that these snapshots name, besides what is known. None: that would take more reads than allowed, or cannot be
    told since one of them cannot be read."""
    named = set(known)
    reads = 0
    for snapshot in snapshots:
        lists = [snapshot.get("manifest-list")]
        try:
            while lists:
                location = lists.pop()
                if location is None or location in named:
                    continue
                reads += 1
                if reads > reads_max:
                    return None
                body = await get(catalog, location)
                named.add(location)
                if location == snapshot["manifest-list"]:
                    lists += (manifest.manifest_path for manifest in read_list(body, location))
                else:
                    named |= await asyncio.to_thread(_paths, body, location)
        except LakestreamError:
            return None
    return named


def _paths(body: bytes, location: str) -> set[str]:
    return {entry[f.DATA_FILE][f.FILE_PATH] for entry in read_entries(body, location)}


async def get(catalog: Catalog, location: str) -> bytes:
    return bytes(await catalog.objects.get(catalog.locations.key_of(location)))


def unreadable(kind: str, location: str, error: LakestreamError) -> Trouble:
    if isinstance(error, Missing):
        return Trouble(kind, location, f"{location} is missing, but the table names it; {RESTORE}")
    if isinstance(error, Unavailable):
        return Trouble(kind, location, f"{location} could not be looked at: {error}")
    said = str(error)
    if isinstance(error, Rejected):
        return Trouble(kind, location, f"{location} cannot be read: {said}")
    what = said if location in said else f"{location} cannot be read: {said}"
    return Trouble(kind, location, what if "backup" in what else f"{what}; {RESTORE}")
