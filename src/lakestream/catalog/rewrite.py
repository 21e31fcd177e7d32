"""Some files of a topic's table give way to others: one commit, for merges, key compaction and the retention of rows.

Before: files that are stored and that nobody knows of.  After: expire.py, once nobody reads the old ones any more.

It is valid only while everything it replaces is still there, with no delete of rows that it does not know of. What was
appended meanwhile does not matter: then the same is tried on the new head of `main`. Somebody else's rewrite or delete
of the same files is FilesChanged: plan anew. The rows are where they were for every reader, at every moment.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import msgspec

from lakestream.catalog.append import main_at
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.data_files import FileDescription
from lakestream.catalog.errors import CommitRefused, CommitUnknown, TableAltered, Unsupported
from lakestream.catalog.files import FOLDER
from lakestream.catalog.listing import LiveFile
from lakestream.catalog.manifest_schemas import DATA_FILE, FILE_PATH, STATUS
from lakestream.catalog.manifests import (
    DATA,
    DELETED,
    ManifestFile,
    read_entries,
    read_list,
    write_list,
)
from lakestream.catalog.merging import NAME_END
from lakestream.catalog.new_manifests import body_of, divided, manifest_of
from lakestream.catalog.next_offsets import NEXT_OFFSETS, main_of, next_offsets, text_of
from lakestream.catalog.shapes import MAIN, Json
from lakestream.catalog.summaries import summary_of_rewrite
from lakestream.catalog.taking_out import TakenOut, without
from lakestream.catalog.topic_shape import check_columns
from lakestream.catalog.updates import AddSnapshot, SetProperties, Update
from lakestream.errors import LakestreamError, Missing, Rejected

log = logging.getLogger(__name__)

TRIES_MAX: Final = 20
"""The pipeline appends every few seconds, and a try takes less than one."""
ROW_IDS_SINCE: Final = 3
"""From this format version on rows have ids, which a file written anew would have to carry."""
_SNAPSHOT_BITS: Final = 63


class FilesChanged(CommitRefused):
    """What was to be replaced is not what it was: somebody else rewrote it, or deleted rows. Look again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    operation: Literal["replace", "overwrite", "delete"]
    """In Iceberg's words: the same rows in other files; other rows; fewer rows and no new file."""
    gone: Sequence[LiveFile]
    files: Sequence[FileDescription] = ()
    deletes_known: frozenset[str] = frozenset()
    """All delete files of the table when this was planned: what they say is in the new files already."""
    deletes_gone: frozenset[str] = frozenset()
    """Those of them that are about files which go, and no others."""
    properties_for: Callable[[Json], Mapping[str, str]] = lambda metadata: {}
    """What to set in the same commit, made of the metadata that it is committed to."""


async def rewrite(catalog: Catalog, loaded: LoadedTable, change: Rewrite) -> LoadedTable:
    """The table with the change in it. On any error but CommitUnknown nothing of it is, and the new files are removed
    too. FilesChanged: it does not fit any more. TableAltered: a person has to decide first."""
    attempt = _Attempt(catalog, loaded, change)
    try:
        check_rewrite(change)
        return await attempt.run()
    except CommitUnknown:
        raise
    except LakestreamError:
        await attempt.remove()
        raise


def check_rewrite(change: Rewrite) -> None:
    """Rejected: the new files cannot be what the old ones were. A bug, which shall not reach a table."""
    rows_gone = sum(file.record_count for file in change.gone)
    rows_new = sum(file.record_count for file in change.files)
    is_same = change.operation == "replace" and not change.deletes_known
    if rows_new > rows_gone or (is_same and rows_new != rows_gone):
        raise Rejected(f"{rows_gone} rows cannot become {rows_new} by a {change.operation}")
    for file in change.files:
        own = [one for one in change.gone if one.partition == file.partition and one.offset_first is not None]
        if not own or file.offset_first < min(one.offset_first or 0 for one in own):
            raise Rejected(f"{file.location} begins before what it replaces")
        if file.offset_last > max(one.offset_last or 0 for one in own):
            raise Rejected(f"{file.location} ends behind what it replaces")


class _Attempt:
    def __init__(self, catalog: Catalog, loaded: LoadedTable, change: Rewrite) -> None:
        self._catalog = catalog
        self._loaded = loaded
        self._change = change
        self._id = catalog.ids.new()
        self._snapshot_id = int(self._id, 16) >> (128 - _SNAPSHOT_BITS)
        self._wanted_gone = {file.location for file in change.gone}
        self._made: dict[str, tuple[ManifestFile, TakenOut] | None] = {}
        """By manifest: the same without what goes, and what that was. None: it names none of it."""
        self._stored: list[str] = []
        self._used: set[str] = set()
        """What the newest try names."""

    async def run(self) -> LoadedTable:
        for number in range(TRIES_MAX):
            if number:
                self._loaded = await self._catalog.load_id(self._loaded.table_id)
                if self._is_in(self._loaded.metadata):
                    return self._loaded  # an answer was lost, and others went on from there
            snapshot = await self._prepare(number)
            try:
                done = await self._catalog.change(self._loaded.table_id, partial(self._updates, snapshot))
            except FilesChanged:
                raise
            except CommitRefused:
                continue
            await self._remove([place for place in self._stored if place not in self._used])  # of earlier tries
            return done
        raise CommitRefused(f"table {self._loaded.name} is changed all the time by others: try again later")

    async def remove(self) -> None:
        """What no table names, nor ever will."""
        await self._remove([*self._stored, *(file.location for file in self._change.files)])

    # One try

    async def _prepare(self, number: int) -> Json:
        base = self._loaded.metadata
        check_columns(base)
        offsets = next_offsets(base)
        if base["format-version"] >= ROW_IDS_SINCE:
            raise Unsupported(
                f"table {self._loaded.name} is of format v3: its rows have ids, and are left where they are"
            )
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
        summary = summary_of_rewrite(self._change.operation, self._change.files, taken, parent)
        snapshot["summary"] = {**summary, NEXT_OFFSETS: text_of(offsets)}
        self._used = {snapshot["manifest-list"], *(manifest.manifest_path for manifest in manifests)}
        await self._store(snapshot["manifest-list"], write_list(manifests, snapshot, base["format-version"]))
        return snapshot

    def _updates(self, snapshot: Json, now: Json) -> list[Update]:
        if now["table-uuid"] != self._loaded.metadata["table-uuid"]:
            raise FilesChanged(f"table {self._loaded.name} is another one now")
        if main_of(now) != snapshot["parent-snapshot-id"] or now["last-sequence-number"] >= snapshot["sequence-number"]:
            raise CommitRefused(f"table {self._loaded.name} has a new snapshot")
        if text_of(next_offsets(now)) != snapshot["summary"][NEXT_OFFSETS]:
            raise CommitRefused(f"{NEXT_OFFSETS} of table {self._loaded.name} has changed")
        properties = dict(self._change.properties_for(now))
        updates: list[Update] = [AddSnapshot(snapshot), main_at(self._snapshot_id, now)]
        return [*updates, SetProperties(properties)] if properties else updates

    def _is_in(self, metadata: Json) -> bool:
        return any(snapshot["snapshot-id"] == self._snapshot_id for snapshot in metadata["snapshots"])

    # What is there

    def _parent(self, base: Json) -> Json:
        main = main_of(base)
        for snapshot in base["snapshots"]:
            if snapshot["snapshot-id"] == main and snapshot.get("manifest-list"):
                parent: Json = snapshot
                return parent
        raise FilesChanged(f"table {self._loaded.name} has nothing on {MAIN} that could be replaced")

    async def _listed(self, parent: Json) -> list[ManifestFile]:
        location = parent["manifest-list"]
        try:
            listed = read_list(await self._get(location), location)
        except Missing as error:
            raise TableAltered(
                f"{location}, which names the files of snapshot {parent['snapshot-id']}, is gone"
            ) from error
        return [manifest for manifest in listed if manifest.live_files_count]

    async def _check_deletes(self, listed: Sequence[ManifestFile]) -> None:
        """Of rows that a delete has taken since, some may be in our new files: they would come back."""
        for manifest in listed:
            if manifest.content == DATA:
                continue
            location = manifest.manifest_path
            for entry in read_entries(await self._get(location), location):
                if entry[STATUS] != DELETED and entry[DATA_FILE][FILE_PATH] not in self._change.deletes_known:
                    raise FilesChanged(f"rows of table {self._loaded.name} were deleted meanwhile")

    async def _manifests(
        self, listed: Sequence[ManifestFile], sequence_number: int
    ) -> tuple[list[ManifestFile], list[TakenOut]]:
        manifests: list[ManifestFile] = []
        taken: list[TakenOut] = []
        missing = set(self._wanted_gone)
        for manifest in listed:
            unwanted = self._wanted_gone if manifest.content == DATA else self._change.deletes_gone
            found = await self._without(manifest, unwanted)
            if found is None:
                manifests.append(manifest)
                continue
            made, out = found
            missing.difference_update(out.gone)
            manifests.append(msgspec.structs.replace(made, sequence_number=sequence_number))
            if manifest.content == DATA:
                taken.append(out)
        if missing:
            raise FilesChanged(f"{min(missing)} was rewritten or removed by somebody else")
        return [*await self._new_manifests(sequence_number), *manifests], taken

    async def _without(
        self, manifest: ManifestFile, unwanted: set[str] | frozenset[str]
    ) -> tuple[ManifestFile, TakenOut] | None:
        location = manifest.manifest_path
        if location in self._made or not unwanted:
            return self._made.get(location)
        if manifest.key_metadata is not None:
            raise Unsupported(f"{location} is encrypted: its files are left where they are")
        out = without(manifest, await self._get(location), unwanted, self._snapshot_id)
        self._made[location] = None if out is None else (await self._stored_without(manifest, out), out)
        return self._made[location]

    async def _stored_without(self, manifest: ManifestFile, out: TakenOut) -> ManifestFile:
        end = NAME_END if manifest.manifest_path.endswith(NAME_END) else "-changed.avro"
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
            deleted_files_count=out.files_gone,
            deleted_rows_count=out.rows_gone,
        )

    async def _new_manifests(self, sequence_number: int) -> list[ManifestFile]:
        made = []
        for number, (layout, own) in enumerate(divided(self._change.files, self._loaded.metadata)):
            body = body_of(layout, own, self._snapshot_id)
            place = f"{self._folder(self._loaded.metadata)}/{self._id}-m{number}{NAME_END}"
            if place not in self._stored:
                await self._store(place, body)
            made.append(manifest_of(layout, own, place, len(body), self._snapshot_id, sequence_number))
        return made

    # Storage

    def _folder(self, metadata: Json) -> str:
        asked = metadata["properties"].get(FOLDER, "")
        return self._catalog.locations.check_table_location(asked or f"{metadata['location']}/metadata")

    async def _get(self, location: str) -> bytes:
        return bytes(await self._catalog.objects.get(self._catalog.locations.key_of(location)))

    async def _store(self, location: str, body: bytes) -> str:
        self._stored.append(location)
        await self._catalog.objects.create(self._catalog.locations.key_of(location), [body])
        return location

    async def _remove(self, places: Sequence[str]) -> None:
        if not places:
            return
        try:
            await self._catalog.objects.delete([self._catalog.locations.key_of(place) for place in places])
        except LakestreamError as error:  # they are orphans then, which maintenance removes
            log.warning("catalog.files_left count=%d first=%s error=%s", len(places), places[0], error)
