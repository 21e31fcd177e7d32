"""Appends ranges of a topic's offsets to its table, exactly once, also with concurrent drivers and retries.

Before: files are stored, but no metadata names them.  After: trim, which may delete the records from the log.

    the table's next offset is the start of every range      else CommitFailed: another driver has moved them
    → store a manifest that names the files, and the list of all manifests
    → one commit: the snapshot, `main` at it, the new next offsets; valid only if `main` has not changed since it was
      loaded; and the tag `transactions-whole`, if no transaction is split

If two drivers move the same range, both read its start as the next offset, and `main` has changed for one of them. That
one loads the table again and finds the range moved. If an engine's rewrite or delete has moved `main`, the range is
still free, and the driver can commit the same files again.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from lakestream.aio.gather import gather_limited
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.commit_checks.metadata_paths import metadata_folder
from lakestream.catalog.errors import CommitFailed, CommitStateUnknown, IncompatibleTable, NoSuchTable
from lakestream.catalog.manifests.data_file import FileDescription, MovedRange, check_new_files, ends_of
from lakestream.catalog.manifests.manifest import EntryWriter, ManifestFile, read_list, with_row_ids, write_list
from lakestream.catalog.manifests.merge import NAME_SUFFIX, manifests_to_merge, merge_manifests
from lakestream.catalog.operations.manifest_writer import files_by_manifest, manifest_body, manifest_file
from lakestream.catalog.operations.snapshot_summary import append_summary
from lakestream.catalog.table_metadata.json_model import MAIN, Json
from lakestream.catalog.table_metadata.requirements import (
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUuid,
    Requirement,
)
from lakestream.catalog.table_metadata.updates import AddSnapshot, SetProperties, SetSnapshotRef, Update
from lakestream.catalog.topic_table.checks import check_columns, layout_of
from lakestream.catalog.topic_table.offsets import LAST_COMMIT, NEXT_OFFSETS, LastCommit, main_of, next_offsets, text_of
from lakestream.catalog.topic_table.transactions_tag import tag_updates
from lakestream.errors import LakestreamError

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
    """Commits the ranges and returns the table. There is always a new snapshot, also if the ranges have no records.

    `split`: the next offsets at which no transaction will be split; empty: none is split now, so the snapshot gets the
    tag (transactions_tag.py).

    CommitFailed: nothing is in the table, nor will be. Load the table: if the ranges are still free, the same files may
    be committed again; else they may be deleted. CommitStateUnknown: the files may be in the table and must not be
    deleted; the table's metadata decides. IncompatibleTable: an operator has to decide. The manifests of a failed
    commit are deleted here.
    """
    if not ranges:
        raise ValueError("a commit moves at least one range")
    check_new_files(files, ranges)
    metadata = loaded.metadata
    check_columns(metadata)
    before = next_offsets(metadata)
    ends = ends_of(ranges, before)
    if ends is None:
        raise CommitFailed(
            f"table {loaded.name} is at offsets {text_of(before)[:200]}: {_range_text(ranges)} do not follow"
        )
    attempt = _AppendAttempt(catalog, loaded)
    try:
        snapshot = await attempt.prepare(files)
        return await attempt.commit(snapshot, {**before, **ends}, split)
    except CommitStateUnknown:
        raise
    except LakestreamError:
        await attempt.remove()
        raise


class _AppendAttempt:
    """One attempt. The files that it stores have unique names."""

    def __init__(self, catalog: Catalog, loaded: LoadedTable) -> None:
        self._catalog = catalog
        self._loaded = loaded
        self._base = loaded.metadata
        self._id = catalog.ids.new()
        self._snapshot_id = int(self._id, 16) >> (128 - _SNAPSHOT_BITS)
        self._sequence_number = self._base["last-sequence-number"] + 1
        self._table = catalog.locations.table(self._base["location"])
        self._folder = metadata_folder(self._table, self._base)
        self._stored: list[str] = []

    async def prepare(self, files: Sequence[FileDescription]) -> Json:
        """Stores the manifests and the manifest list, and returns the snapshot."""
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
        snapshot["summary"] = append_summary(files, parent)
        body = write_list(manifests, snapshot, self._base["format-version"])
        await self._store(snapshot["manifest-list"], body)
        return snapshot

    async def commit(self, snapshot: Json, offsets: Mapping[int, int], split: Mapping[int, int] | None) -> LoadedTable:
        next_offsets_text = text_of(offsets)
        snapshot["summary"][NEXT_OFFSETS] = next_offsets_text
        last = LastCommit(self._sequence_number, self._snapshot_id)
        requirements: list[Requirement] = [
            AssertTableUuid(self._base["table-uuid"]),
            AssertRefSnapshotId(MAIN, main_of(self._base)),
            AssertCurrentSchemaId(self._base["current-schema-id"]),
        ]
        updates: list[Update] = [
            AddSnapshot(snapshot),
            set_main(self._snapshot_id, self._base),
            SetProperties({NEXT_OFFSETS: next_offsets_text, LAST_COMMIT: last.text()}),
            *tag_updates(split, self._snapshot_id),
        ]
        try:
            return await self._catalog.commit(self._loaded.table_id, requirements, updates)
        except CommitFailed as refused:
            return await self._resolve_refusal(refused)

    async def _resolve_refusal(self, refused: CommitFailed) -> LoadedTable:
        """Returns the table if the failed commit is in it after all; else raises its error.

        The caller deletes the files of a failed commit. But an earlier try of it may have taken effect, with a lost
        response and followed by other commits.
        """
        try:
            now = await self._catalog.load_id(self._loaded.table_id, confirmed=True)
        except NoSuchTable:
            raise
        except LakestreamError as error:
            raise CommitStateUnknown(f"{refused}; reading the table's state failed too: {error}") from error
        if any(snapshot["snapshot-id"] == self._snapshot_id for snapshot in now.metadata["snapshots"]):
            return now
        raise refused

    async def remove(self) -> None:
        """Deletes the files that this attempt stored. No table names them."""
        if not self._stored:
            return
        try:
            await self._catalog.objects.delete([self._table.key_of(place) for place in self._stored])
        except LakestreamError as error:
            log.warning("catalog.cleanup_failed count=%d first=%s error=%s", len(self._stored), self._stored[0], error)

    # Manifests

    def _parent(self) -> Json | None:
        main = main_of(self._base)
        if main is None:
            return None
        found = [snapshot for snapshot in self._base["snapshots"] if snapshot["snapshot-id"] == main]
        if not found or not found[0].get("manifest-list"):
            raise IncompatibleTable(f"snapshot {main} has no manifest list: restore the table's metadata from a backup")
        parent: Json = found[0]
        return parent

    async def _manifests_of(self, parent: Json) -> list[ManifestFile]:
        location = parent["manifest-list"]
        manifests = read_list(await self._get(location), location)
        return [manifest for manifest in manifests if manifest.live_files_count]

    async def _new_manifests(self, files: Sequence[FileDescription]) -> list[ManifestFile]:
        made = []
        for number, (layout, own) in enumerate(files_by_manifest(files, self._base)):
            body = manifest_body(layout, own, self._snapshot_id)
            place = await self._store(f"{self._folder}/{self._id}-m{number}{NAME_SUFFIX}", body)
            made.append(manifest_file(layout, own, place, len(body), self._snapshot_id, self._sequence_number))
        return made

    async def _with_merge(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Merges small manifests if enough have accumulated. If that fails, the commit continues without a merge."""
        chosen = manifests_to_merge(manifests, self._base["format-version"])
        if not chosen:
            return manifests
        try:
            layout = layout_of(self._base, chosen[0].partition_spec_id)
            bodies = await gather_limited([self._get(manifest.manifest_path) for manifest in chosen], READS_AT_ONCE)
            writer = EntryWriter(layout)
            made = merge_manifests(list(zip(chosen, bodies, strict=True)), layout, writer)
        except LakestreamError as error:
            log.warning("catalog.merge_failed table=%s error=%s", self._loaded.name, error)
            return manifests
        if made is None:
            return manifests
        body = writer.manifest(made.entries)
        location = await self._store(f"{self._folder}/{self._id}-merged{NAME_SUFFIX}", body)
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
        return bytes(await self._catalog.objects.get(self._table.named_key(location)))

    async def _store(self, location: str, body: bytes) -> str:
        self._stored.append(location)
        await self._catalog.objects.create(self._table.key_of(location), [body])
        return location


def set_main(snapshot_id: int, metadata: Json) -> SetSnapshotRef:
    """Returns the update that sets `main`, and keeps its retention settings."""
    ref = metadata["refs"].get(MAIN, {})
    names = ("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")
    return SetSnapshotRef(MAIN, "branch", snapshot_id, *(ref.get(name) for name in names))


def _range_text(ranges: Sequence[MovedRange]) -> str:
    return ", ".join(f"{moved.partition}: {moved.start} to {moved.end}" for moved in ranges[:5])
