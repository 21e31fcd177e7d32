"""Replaces files of a topic's table in one commit: for small files, key compaction and the retention of rows.

Before: files are stored, but no metadata names them.  After: expire_snapshots.py, when no query reads the old files.

The commit is valid only if all replaced files are live, and no delete file was added since the plan. After a concurrent
append it is retried on the new snapshot of `main`. After a concurrent rewrite or delete of the same files it fails with
FilesChanged: plan again. Readers see the same rows before and after the commit.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import msgspec

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.commit_checks.metadata_paths import metadata_folder
from lakestream.catalog.errors import CommitFailed, CommitStateUnknown, IncompatibleTable, Unsupported
from lakestream.catalog.manifests.avro_schemas import DATA_FILE, FILE_PATH, STATUS
from lakestream.catalog.manifests.data_file import FileDescription
from lakestream.catalog.manifests.manifest import DATA, DELETED, ManifestFile, read_entries, read_list, write_list
from lakestream.catalog.manifests.merge import NAME_SUFFIX
from lakestream.catalog.manifests.remove_files import FilteredManifest, remove_files
from lakestream.catalog.operations.append import set_main
from lakestream.catalog.operations.manifest_writer import files_by_manifest, manifest_body, manifest_file
from lakestream.catalog.operations.snapshot_summary import rewrite_summary
from lakestream.catalog.table_metadata.json_model import MAIN, Json
from lakestream.catalog.table_metadata.updates import AddSnapshot, SetProperties, Update
from lakestream.catalog.topic_table.checks import check_columns
from lakestream.catalog.topic_table.live_file import LiveFile
from lakestream.catalog.topic_table.offsets import NEXT_OFFSETS, main_of, next_offsets, text_of
from lakestream.errors import LakestreamError, Missing, Rejected

log = logging.getLogger(__name__)

TRIES_MAX: Final = 20
"""The pipeline appends every few seconds, and a try takes less than a second."""
ROW_IDS_SINCE: Final = 3
"""The format version from which on rows have ids, which a rewritten file would have to store."""
_SNAPSHOT_BITS: Final = 63


class FilesChanged(CommitFailed):
    """Files to replace were rewritten or got deletes since the plan. Plan again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    operation: Literal["replace", "overwrite", "delete"]
    """As in Iceberg: replace: the same rows in other files; overwrite: other rows; delete: fewer rows, no new file."""
    removed: Sequence[LiveFile]
    files: Sequence[FileDescription] = ()
    deletes_known: frozenset[str] = frozenset()
    """All delete files of the table at the time of the plan. The new files have them applied."""
    deletes_removed: frozenset[str] = frozenset()
    """Those of them that apply only to replaced files."""
    properties_for: Callable[[Json], Mapping[str, str]] = lambda metadata: {}
    """Returns properties to set in the same commit, from the metadata that it is committed to."""


async def rewrite(catalog: Catalog, loaded: LoadedTable, change: Rewrite) -> LoadedTable:
    """Commits the change and returns the table.

    After any error except CommitStateUnknown nothing is committed, and the new files are deleted. FilesChanged: plan
    again. IncompatibleTable: an operator has to decide first.
    """
    attempt = _RewriteAttempt(catalog, loaded, change)
    try:
        check_rewrite(change)
        return await attempt.run()
    except CommitStateUnknown:
        raise
    except LakestreamError:
        await attempt.remove()
        raise


def check_rewrite(change: Rewrite) -> None:
    """Raises Rejected if the new files cannot have the rows of the old ones. That is a bug of the caller."""
    rows_removed = sum(file.record_count for file in change.removed)
    rows_new = sum(file.record_count for file in change.files)
    is_same = change.operation == "replace" and not change.deletes_known
    if rows_new > rows_removed or (is_same and rows_new != rows_removed):
        raise Rejected(f"{change.operation} of {rows_removed} rows cannot give {rows_new} rows")
    for file in change.files:
        own = [one for one in change.removed if one.partition == file.partition and one.offset_first is not None]
        if not own or file.offset_first < min(one.offset_first or 0 for one in own):
            raise Rejected(f"{file.location} begins before the files that it replaces")
        if file.offset_last > max(one.offset_last or 0 for one in own):
            raise Rejected(f"{file.location} ends after the files that it replaces")


class _RewriteAttempt:
    def __init__(self, catalog: Catalog, loaded: LoadedTable, change: Rewrite) -> None:
        self._catalog = catalog
        self._loaded = loaded
        self._table = catalog.locations.table(loaded.metadata["location"])
        self._change = change
        self._id = catalog.ids.new()
        self._snapshot_id = int(self._id, 16) >> (128 - _SNAPSHOT_BITS)
        self._replaced = {file.location for file in change.removed}
        self._made: dict[str, tuple[ManifestFile, FilteredManifest] | None] = {}
        """By manifest: the manifest without replaced files, and these. None: it names none of them."""
        self._stored: list[str] = []
        self._used: set[str] = set()
        """Files that the last try names."""

    async def run(self) -> LoadedTable:
        for number in range(TRIES_MAX):
            if number:
                self._loaded = await self._catalog.load_id(self._loaded.table_id)
                if self._is_in(self._loaded.metadata):
                    return self._loaded  # the response was lost, and other commits followed
            snapshot = await self._prepare(number)
            try:
                done = await self._catalog.change(self._loaded.table_id, partial(self._updates, snapshot))
            except FilesChanged:
                raise
            except CommitFailed:
                continue
            await self._remove([place for place in self._stored if place not in self._used])  # of earlier tries
            return done
        raise CommitFailed(f"table {self._loaded.name}: changed concurrently {TRIES_MAX} times: retry later")

    async def remove(self) -> None:
        """Deletes all files of this attempt. No table names them, nor will."""
        await self._remove([*self._stored, *(file.location for file in self._change.files)])

    # One try

    async def _prepare(self, number: int) -> Json:
        base = self._loaded.metadata
        check_columns(base)
        offsets = next_offsets(base)
        if base["format-version"] >= ROW_IDS_SINCE:
            raise Unsupported(f"table {self._loaded.name} has format version 3: files with row ids are not rewritten")
        parent = self._parent(base)
        listed = await self._listed(parent)
        await self._check_deletes(listed)
        sequence_number = base["last-sequence-number"] + 1
        manifests, taken = await self._manifests(listed, sequence_number)
        snapshot: Json = {
            "snapshot-id": self._snapshot_id,
            "parent-snapshot-id": parent["snapshot-id"],
            "sequence-number": sequence_number,
            "timestamp-ms": max(self._catalog.clock.now_ms(), base["last-updated-ms"]),
            "manifest-list": f"{self._folder(base)}/snap-{self._snapshot_id}-{number}-{self._id}.avro",
            "schema-id": base["current-schema-id"],
        }
        summary = rewrite_summary(self._change.operation, self._change.files, taken, parent)
        snapshot["summary"] = {**summary, NEXT_OFFSETS: text_of(offsets)}
        self._used = {snapshot["manifest-list"], *(manifest.manifest_path for manifest in manifests)}
        await self._store(snapshot["manifest-list"], write_list(manifests, snapshot, base["format-version"]))
        return snapshot

    def _updates(self, snapshot: Json, now: Json) -> list[Update]:
        if now["table-uuid"] != self._loaded.metadata["table-uuid"]:
            raise FilesChanged(f"table {self._loaded.name} was replaced: its UUID has changed")
        if main_of(now) != snapshot["parent-snapshot-id"] or now["last-sequence-number"] >= snapshot["sequence-number"]:
            raise CommitFailed(f"table {self._loaded.name} has a new snapshot")
        if text_of(next_offsets(now)) != snapshot["summary"][NEXT_OFFSETS]:
            raise CommitFailed(f"{NEXT_OFFSETS} of table {self._loaded.name} has changed")
        properties = dict(self._change.properties_for(now))
        updates: list[Update] = [AddSnapshot(snapshot), set_main(self._snapshot_id, now)]
        return [*updates, SetProperties(properties)] if properties else updates

    def _is_in(self, metadata: Json) -> bool:
        return any(snapshot["snapshot-id"] == self._snapshot_id for snapshot in metadata["snapshots"])

    # Reads

    def _parent(self, base: Json) -> Json:
        main = main_of(base)
        for snapshot in base["snapshots"]:
            if snapshot["snapshot-id"] == main and snapshot.get("manifest-list"):
                parent: Json = snapshot
                return parent
        raise FilesChanged(f"table {self._loaded.name} has no snapshot on {MAIN}")

    async def _listed(self, parent: Json) -> list[ManifestFile]:
        location = parent["manifest-list"]
        try:
            listed = read_list(await self._get(location), location)
        except Missing as error:
            raise IncompatibleTable(
                f"{location}, the manifest list of snapshot {parent['snapshot-id']}, is missing"
            ) from error
        return [manifest for manifest in listed if manifest.live_files_count]

    async def _check_deletes(self, listed: Sequence[ManifestFile]) -> None:
        """Raises FilesChanged after a new delete: the new files may have rows that it deletes."""
        for manifest in listed:
            if manifest.content == DATA:
                continue
            location = manifest.manifest_path
            for entry in read_entries(await self._get(location), location):
                if entry[STATUS] != DELETED and entry[DATA_FILE][FILE_PATH] not in self._change.deletes_known:
                    raise FilesChanged(f"rows of table {self._loaded.name} were deleted concurrently")

    async def _manifests(
        self, listed: Sequence[ManifestFile], sequence_number: int
    ) -> tuple[list[ManifestFile], list[FilteredManifest]]:
        manifests: list[ManifestFile] = []
        taken: list[FilteredManifest] = []
        missing = set(self._replaced)
        for manifest in listed:
            unwanted = self._replaced if manifest.content == DATA else self._change.deletes_removed
            found = await self._filtered_manifest(manifest, unwanted)
            if found is None:
                manifests.append(manifest)
                continue
            made, out = found
            missing.difference_update(out.removed)
            manifests.append(msgspec.structs.replace(made, sequence_number=sequence_number))
            if manifest.content == DATA:
                taken.append(out)
        if missing:
            raise FilesChanged(f"{min(missing)} was rewritten or removed concurrently")
        return [*await self._new_manifests(sequence_number), *manifests], taken

    async def _filtered_manifest(
        self, manifest: ManifestFile, unwanted: set[str] | frozenset[str]
    ) -> tuple[ManifestFile, FilteredManifest] | None:
        location = manifest.manifest_path
        if location in self._made or not unwanted:
            return self._made.get(location)
        if manifest.key_metadata is not None:
            raise Unsupported(f"{location} is encrypted: its files cannot be rewritten")
        out = remove_files(manifest, await self._get(location), unwanted, self._snapshot_id)
        self._made[location] = None if out is None else (await self._store_filtered(manifest, out), out)
        return self._made[location]

    async def _store_filtered(self, manifest: ManifestFile, out: FilteredManifest) -> ManifestFile:
        end = NAME_SUFFIX if manifest.manifest_path.endswith(NAME_SUFFIX) else "-changed.avro"
        place = f"{self._folder(self._loaded.metadata)}/{self._id}-w{len(self._made)}{end}"
        return msgspec.structs.replace(
            manifest,
            manifest_path=await self._store(place, out.body),
            manifest_length=len(out.body),
            added_snapshot_id=self._snapshot_id,
            added_files_count=0,
            added_rows_count=0,
            existing_files_count=out.files_left,
            existing_rows_count=out.rows_left,
            deleted_files_count=out.files_removed,
            deleted_rows_count=out.rows_removed,
        )

    async def _new_manifests(self, sequence_number: int) -> list[ManifestFile]:
        made = []
        for number, (layout, own) in enumerate(files_by_manifest(self._change.files, self._loaded.metadata)):
            body = manifest_body(layout, own, self._snapshot_id)
            place = f"{self._folder(self._loaded.metadata)}/{self._id}-m{number}{NAME_SUFFIX}"
            if place not in self._stored:
                await self._store(place, body)
            made.append(manifest_file(layout, own, place, len(body), self._snapshot_id, sequence_number))
        return made

    # Storage

    def _folder(self, metadata: Json) -> str:
        return metadata_folder(self._table, metadata)

    async def _get(self, location: str) -> bytes:
        return bytes(await self._catalog.objects.get(self._table.named_key(location)))

    async def _store(self, location: str, body: bytes) -> str:
        self._stored.append(location)
        await self._catalog.objects.create(self._table.key_of(location), [body])
        return location

    async def _remove(self, places: Sequence[str]) -> None:
        if not places:
            return
        try:
            await self._catalog.objects.delete([self._table.key_of(place) for place in places])
        except LakestreamError as error:  # then they are orphans, which maintenance deletes
            log.warning("catalog.cleanup_failed count=%d first=%s error=%s", len(places), places[0], error)
