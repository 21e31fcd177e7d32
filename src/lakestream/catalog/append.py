"""Ranges of a topic enter its table here, exactly once: one commit, whoever makes it and however often it is tried.

Before: files that are stored and that nobody knows of.  After: trim, which may forget what the log had.

    the table's next-offset is the start of every range      else CommitRefused: somebody else has moved them
    → a manifest that names the files, the list of all manifests, both stored
    → one commit: the snapshot, `main` at it, the new next-offsets; valid only if `main` is still where we saw it;
      and the tag `transactions-whole`, where no transaction is split

Two who move the same range both see its start as next-offset, and only one of them finds `main` where it was. The other
loads the table anew and finds the range taken. Where it was somebody else's rewrite or delete that moved `main`, the
range is still free, and the same files can be tried again.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.data_files import FileDescription, MovedRange, check_files, ends_of
from lakestream.catalog.errors import CommitRefused, CommitUnknown, NoSuchTable, TableAltered
from lakestream.catalog.files import FOLDER
from lakestream.catalog.manifests import EntryWriter, ManifestFile, read_list, with_row_ids, write_list
from lakestream.catalog.merging import NAME_END, merged, to_merge
from lakestream.catalog.new_manifests import body_of, divided, manifest_of
from lakestream.catalog.next_offsets import LAST_COMMIT, NEXT_OFFSETS, LastCommit, main_of, next_offsets, text_of
from lakestream.catalog.requirements import AssertCurrentSchemaId, AssertRefSnapshotId, AssertTableUuid, Requirement
from lakestream.catalog.shapes import MAIN, Json
from lakestream.catalog.summaries import summary_of
from lakestream.catalog.topic_shape import check_columns, layout_of
from lakestream.catalog.updates import AddSnapshot, SetProperties, SetSnapshotRef, Update
from lakestream.catalog.whole_tag import stating
from lakestream.errors import LakestreamError
from lakestream.storage.together import together

log = logging.getLogger(__name__)

_SNAPSHOT_BITS: Final = 63
READS_AT_ONCE: Final = 8


async def append(
    catalog: Catalog,
    loaded: LoadedTable,
    files: Sequence[FileDescription],
    ranges: Sequence[MovedRange],
    split: Mapping[int, int] | None = None,
) -> LoadedTable:
    """The table with the ranges in it; always with a new snapshot, also where no record of them counts. `split`: how
    far it has to go from there until no transaction is split; empty: none is, so it gets the tag (whole_tag.py).

    CommitRefused: nothing of it is in the table, nor will be; load the table and see whether the ranges are still free.
    Then the same files may be tried again; else they may be removed. CommitUnknown: it may be in the table, so nothing
    may be removed; what the table says next decides. TableAltered: a person has to decide. Manifests are seen to here.
    """
    if not ranges:
        raise ValueError("a commit moves at least one range")
    check_files(files, ranges)
    metadata = loaded.metadata
    check_columns(metadata)
    before = next_offsets(metadata)
    ends = ends_of(ranges, before)
    if ends is None:
        raise CommitRefused(
            f"table {loaded.name} is at offsets {text_of(before)[:200]}: {_shown(ranges)} do not follow"
        )
    attempt = _Attempt(catalog, loaded)
    try:
        snapshot = await attempt.prepare(files)
        return await attempt.commit(snapshot, {**before, **ends}, split)
    except CommitUnknown:
        raise
    except LakestreamError:
        await attempt.remove()
        raise


class _Attempt:
    """One try: what it stores is its own, under names that nobody else has."""

    def __init__(self, catalog: Catalog, loaded: LoadedTable) -> None:
        self._catalog = catalog
        self._loaded = loaded
        self._base = loaded.metadata
        self._id = catalog.ids.new()
        self._snapshot_id = int(self._id, 16) >> (128 - _SNAPSHOT_BITS)
        self._sequence_number = self._base["last-sequence-number"] + 1
        asked = self._base["properties"].get(FOLDER, "")
        self._folder = catalog.locations.check_table_location(asked or f"{self._base['location']}/metadata")
        self._stored: list[str] = []

    async def prepare(self, files: Sequence[FileDescription]) -> Json:
        """Store what the snapshot consists of."""
        parent = self._parent()
        manifests = [] if parent is None else await self._manifests_of(parent)
        manifests = [*await self._new_manifests(files), *await self._with_merge(manifests)]
        snapshot: Json = {
            "snapshot-id": self._snapshot_id,
            "sequence-number": self._sequence_number,
            "timestamp-ms": max(self._catalog.clock.now_ms(), self._base["last-updated-ms"]),
            "manifest-list": f"{self._folder}/snap-{self._snapshot_id}-0-{self._id}.avro",
            "schema-id": self._base["current-schema-id"],
        }
        if parent is not None:
            snapshot["parent-snapshot-id"] = parent["snapshot-id"]
        if self._base["format-version"] >= 3:
            snapshot["first-row-id"] = self._base.get("next-row-id", 0)
            manifests, snapshot["added-rows"] = with_row_ids(manifests, snapshot["first-row-id"])
        snapshot["summary"] = summary_of(files, parent)
        body = write_list(manifests, snapshot, self._base["format-version"])
        await self._store(snapshot["manifest-list"], body)
        return snapshot

    async def commit(self, snapshot: Json, offsets: Mapping[int, int], split: Mapping[int, int] | None) -> LoadedTable:
        said = text_of(offsets)
        snapshot["summary"][NEXT_OFFSETS] = said
        last = LastCommit(self._sequence_number, self._snapshot_id)
        requirements: list[Requirement] = [
            AssertTableUuid(self._base["table-uuid"]),
            AssertRefSnapshotId(MAIN, main_of(self._base)),
            AssertCurrentSchemaId(self._base["current-schema-id"]),
        ]
        updates: list[Update] = [
            AddSnapshot(snapshot),
            main_at(self._snapshot_id, self._base),
            SetProperties({NEXT_OFFSETS: said, LAST_COMMIT: last.text()}),
            *stating(split, self._snapshot_id),
        ]
        try:
            return await self._catalog.commit(self._loaded.table_id, requirements, updates)
        except CommitRefused as refused:
            return await self._look_after(refused)

    async def _look_after(self, refused: CommitRefused) -> LoadedTable:
        """Whoever hears that a commit was refused removes its files. So make sure that it was not an echo of our own,
        whose answer was lost and which others have followed already."""
        try:
            now = await self._catalog.load_id(self._loaded.table_id, confirmed=True)
        except NoSuchTable:
            raise
        except LakestreamError as error:
            raise CommitUnknown(f"{refused}; and to look after it: {error}") from error
        if any(snapshot["snapshot-id"] == self._snapshot_id for snapshot in now.metadata["snapshots"]):
            return now
        raise refused

    async def remove(self) -> None:
        """What this attempt stored, and no table names."""
        if not self._stored:
            return
        try:
            await self._catalog.objects.delete([self._catalog.locations.key_of(place) for place in self._stored])
        except LakestreamError as error:
            log.warning("catalog.manifests_left count=%d first=%s error=%s", len(self._stored), self._stored[0], error)

    # Manifests

    def _parent(self) -> Json | None:
        main = main_of(self._base)
        if main is None:
            return None
        found = [snapshot for snapshot in self._base["snapshots"] if snapshot["snapshot-id"] == main]
        if not found or not found[0].get("manifest-list"):
            raise TableAltered(f"snapshot {main} has no manifest list: nobody can read this table")
        parent: Json = found[0]
        return parent

    async def _manifests_of(self, parent: Json) -> list[ManifestFile]:
        location = parent["manifest-list"]
        manifests = read_list(await self._get(location), location)
        return [manifest for manifest in manifests if manifest.live_files_count]

    async def _new_manifests(self, files: Sequence[FileDescription]) -> list[ManifestFile]:
        made = []
        for number, (layout, own) in enumerate(divided(files, self._base)):
            body = body_of(layout, own, self._snapshot_id)
            place = await self._store(f"{self._folder}/{self._id}-m{number}{NAME_END}", body)
            made.append(manifest_of(layout, own, place, len(body), self._snapshot_id, self._sequence_number))
        return made

    async def _with_merge(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """The same files in fewer manifests, if it is time for it. It may wait: the commit may not."""
        chosen = to_merge(manifests, self._base["format-version"])
        if not chosen:
            return manifests
        try:
            layout = layout_of(self._base, chosen[0].partition_spec_id)
            bodies = await together([self._get(manifest.manifest_path) for manifest in chosen], READS_AT_ONCE)
            writer = EntryWriter(layout)
            made = merged(list(zip(chosen, bodies, strict=True)), layout, writer)
        except LakestreamError as error:
            log.warning("catalog.not_merged table=%s error=%s", self._loaded.name, error)
            return manifests
        if made is None:
            return manifests
        body = writer.manifest(made.entries)
        location = await self._store(f"{self._folder}/{self._id}-merged{NAME_END}", body)
        one = ManifestFile(
            manifest_path=location,
            manifest_length=len(body),
            partition_spec_id=layout.spec["spec-id"],
            sequence_number=self._sequence_number,
            min_sequence_number=made.sequence_number_min,
            added_snapshot_id=self._snapshot_id,
            added_files_count=0,
            added_rows_count=0,
            existing_files_count=len(made.entries),
            existing_rows_count=made.row_count,
            partitions=made.partitions,
        )
        return [one, *(manifest for manifest in manifests if manifest not in chosen)]

    # Storage

    async def _get(self, location: str) -> bytes:
        return bytes(await self._catalog.objects.get(self._catalog.locations.key_of(location)))

    async def _store(self, location: str, body: bytes) -> str:
        self._stored.append(location)
        await self._catalog.objects.create(self._catalog.locations.key_of(location), [body])
        return location


def main_at(snapshot_id: int, metadata: Json) -> SetSnapshotRef:
    """With whatever rules of expiry it has."""
    ref = metadata["refs"].get(MAIN, {})
    names = ("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")
    return SetSnapshotRef(MAIN, "branch", snapshot_id, *(ref.get(name) for name in names))


def _shown(ranges: Sequence[MovedRange]) -> str:
    return ", ".join(f"{moved.partition}: {moved.start} to {moved.end}" for moved in ranges[:5])
