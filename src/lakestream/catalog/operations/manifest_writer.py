"""Builds the manifests of new files and their entries in manifest lists. Pure.

Used by append.py and rewrite_files.py. A manifest names files of one partition spec.
"""

from collections.abc import Iterator, Sequence

from lakestream.catalog.manifests.data_file import FileDescription
from lakestream.catalog.manifests.manifest import EntryWriter, ManifestFile, ManifestLayout, partition_summary
from lakestream.catalog.manifests.merge import ENTRIES_MAX
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.topic_table.checks import layout_of


def files_by_manifest(
    files: Sequence[FileDescription], metadata: Json
) -> Iterator[tuple[ManifestLayout, list[FileDescription]]]:
    """Groups files by spec and sorts them by partition, so that manifests are mostly split between partitions."""
    for spec_id in sorted({file.spec_id for file in files}, key=lambda number: -1 if number is None else number):
        layout = layout_of(metadata, spec_id)
        own = sorted(
            (file for file in files if file.spec_id == spec_id), key=lambda file: (file.partition, file.offset_first)
        )
        for start in range(0, len(own), ENTRIES_MAX):
            yield layout, own[start : start + ENTRIES_MAX]


def manifest_body(layout: ManifestLayout, files: Sequence[FileDescription], snapshot_id: int) -> bytes:
    writer = EntryWriter(layout)
    return writer.manifest([writer.added(file, snapshot_id) for file in files])


def manifest_file(
    layout: ManifestLayout,
    files: Sequence[FileDescription],
    location: str,
    length: int,
    snapshot_id: int,
    sequence_number: int,
) -> ManifestFile:
    return ManifestFile(
        manifest_path=location,
        manifest_length=length,
        partition_spec_id=layout.spec["spec-id"],
        sequence_number=sequence_number,
        min_sequence_number=sequence_number,
        added_snapshot_id=snapshot_id,
        added_files_count=len(files),
        added_rows_count=sum(file.record_count for file in files),
        partitions=partition_summary(layout, files),
    )
