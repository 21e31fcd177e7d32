"""The manifests of files that come into a table: which files each names, and what lists say of it. Pure.

Used by append.py and rewrite.py. A manifest names files of one partition spec.
"""

from collections.abc import Iterator, Sequence

from lakestream.catalog.data_files import FileDescription
from lakestream.catalog.manifests import EntryWriter, Layout, ManifestFile, partition_summary
from lakestream.catalog.merging import ENTRIES_MAX
from lakestream.catalog.shapes import Json
from lakestream.catalog.topic_shape import layout_of


def divided(files: Sequence[FileDescription], metadata: Json) -> Iterator[tuple[Layout, list[FileDescription]]]:
    """By spec, then by partition, so that one that is cut in two is cut between partitions, mostly."""
    for spec_id in sorted({file.spec_id for file in files}, key=lambda number: -1 if number is None else number):
        layout = layout_of(metadata, spec_id)
        own = sorted(
            (file for file in files if file.spec_id == spec_id), key=lambda file: (file.partition, file.offset_first)
        )
        for start in range(0, len(own), ENTRIES_MAX):
            yield layout, own[start : start + ENTRIES_MAX]


def body_of(layout: Layout, files: Sequence[FileDescription], snapshot_id: int) -> bytes:
    writer = EntryWriter(layout)
    return writer.manifest([writer.added(file, snapshot_id) for file in files])


def manifest_of(
    layout: Layout,
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
