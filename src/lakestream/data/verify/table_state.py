"""Loads the state of a topic's table through its metadata: pointer → metadata file → list → manifests → files.

First step of table.py. What cannot be read becomes a problem; everything else is checked nevertheless.
"""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from lakestream.aio.gather import gather_limited
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.errors import IncompatibleTable
from lakestream.catalog.locations import TableFolder
from lakestream.catalog.manifests import avro_schemas as f
from lakestream.catalog.manifests.manifest import DATA, ManifestFile, read_entries, read_list
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.topic_table.checks import check_columns
from lakestream.catalog.topic_table.offsets import ancestors, main_of, next_offsets
from lakestream.data.verify.file_checks import RESTORE, NamedFile, Problem, TableShape, check_manifest, live_files
from lakestream.errors import LakestreamError, Missing, Rejected, Unavailable

READS_AT_ONCE: Final = 4
"""Few: brokers and the pipeline use the same storage, and have priority."""
_STATISTICS: Final = ("statistics", "partition-statistics")


@dataclass(slots=True)
class TableState:
    loaded: LoadedTable
    next_offsets: dict[int, int] | None = None
    """None if the table's metadata does not allow to read them."""
    data: list[NamedFile] = field(default_factory=list)
    deletes: list[NamedFile] = field(default_factory=list)
    lists: dict[str, int | None] = field(default_factory=dict)
    """The manifest list and its manifests, with their sizes if known."""
    problems: list[Problem] = field(default_factory=list)
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
        """Whether no row was ever deleted, as far as its snapshots show."""
        snapshots = list(ancestors(self.metadata))
        first = snapshots[-1] if snapshots else {}
        kinds = {(snapshot.get("summary") or {}).get("operation") for snapshot in snapshots}
        return not self.deletes and kinds <= {"append", "replace"} and first.get("parent-snapshot-id") is None

    def metadata_files(self) -> list[str]:
        """Returns the files that the metadata itself names, besides snapshots."""
        metadata = self.metadata
        return [
            self.loaded.metadata_location,
            f"{metadata['location']}/metadata/version-hint.text",
            *(entry["metadata-file"] for entry in metadata["metadata-log"]),
            *(one["statistics-path"] for name in _STATISTICS for one in metadata.get(name) or ()),
        ]

    def of_partition(self, partition: int) -> list[NamedFile]:
        """Returns the data files that have, or may have, rows of a partition."""
        if not self._by_partition:
            for file in (file for file in self.data if file.has_records):
                self._by_partition.setdefault(file.partition, []).append(file)
        shared = self._by_partition.get(None, [])
        return self._by_partition.get(partition, []) + [file for file in shared if file.may_contain(partition)]


async def load_state(catalog: Catalog, topic_id: str) -> TableState:
    """Loads the state. Raises NoSuchTable, or another LakestreamError if pointer or metadata file cannot be read."""
    state = TableState(await catalog.load_id(topic_id))
    try:
        check_columns(state.metadata)
        state.next_offsets = next_offsets(state.metadata)
    except IncompatibleTable as error:
        state.problems.append(Problem("altered", "", f"table {state.name}: {error}"))
    location = _list_of(state.metadata)
    if location is not None:
        await _load_files(catalog, state, catalog.locations.table(state.metadata["location"]), location)
    return state


def _list_of(metadata: Json) -> str | None:
    main = main_of(metadata)
    return next((one.get("manifest-list") for one in metadata["snapshots"] if one["snapshot-id"] == main), None)


async def _load_files(catalog: Catalog, state: TableState, folder: TableFolder, location: str) -> None:
    state.lists[location] = None
    try:
        manifests = read_list(await get(catalog, folder, location), location)
    except LakestreamError as error:
        state.problems.append(unreadable("list", location, error))
        return
    shape = TableShape.of(state.metadata)

    async def load(manifest: ManifestFile) -> None:
        state.lists[manifest.manifest_path] = manifest.manifest_length
        try:
            body = await get(catalog, folder, manifest.manifest_path)
            entries = await asyncio.to_thread(_entries, body, manifest.manifest_path)
        except LakestreamError as error:
            state.problems.append(unreadable("manifest", manifest.manifest_path, error))
            return
        state.problems += check_manifest(manifest, len(body), entries)
        files = live_files(manifest, entries, shape)
        state.problems += _foreign(folder, files)
        state.data += (file for file in files if file.content == DATA)
        state.deletes += (file for file in files if file.content != DATA)

    await gather_limited([load(manifest) for manifest in manifests], READS_AT_ONCE)


def _foreign(folder: TableFolder, files: Iterable[NamedFile]) -> Iterator[Problem]:
    """Finds files outside of the table's location, which brokers do not read."""
    for file in files:
        try:
            folder.key_of(file.location)
        except Rejected as error:
            yield unreadable("file", file.location, error)


def _entries(body: bytes, location: str) -> list[dict[int, Any]]:
    return list(read_entries(body, location))


async def named_by(
    catalog: Catalog, folder: TableFolder, snapshots: Iterable[Json], known: set[str], reads_max: int
) -> set[str] | None:
    """Returns all files that these snapshots name, and the known ones. Returns None if that takes more reads than
    allowed, or a file cannot be read."""
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
                body = await get(catalog, folder, location)
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


async def get(catalog: Catalog, folder: TableFolder, location: str) -> bytes:
    return bytes(await catalog.objects.get(folder.key_of(location)))


def unreadable(kind: str, location: str, error: LakestreamError) -> Problem:
    if isinstance(error, Missing):
        return Problem(kind, location, f"{location} is missing, but the table names it; {RESTORE}")
    if isinstance(error, Unavailable):
        return Problem(kind, location, f"{location} could not be read now: {error}")
    text = str(error)
    if isinstance(error, Rejected):
        return Problem(kind, location, f"{location} cannot be read: {text}")
    text = text if location in text else f"{location} cannot be read: {text}"
    return Problem(kind, location, text if "backup" in text else f"{text}; {RESTORE}")
