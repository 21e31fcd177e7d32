"""Merges small manifests into larger ones, a few with each commit. Pure.

So neither the manifest list of a snapshot nor the number of manifests that a reader opens grows with the number of
commits. Each commit adds a manifest of a few files. Sixteen of about the same size are merged into one of the next
size, up to a thousand files. So an entry is rewritten two or three times, and a commit rewrites at most two thousand:
40 ms.
Only Lakestream's own data manifests are merged, whose name and schema are known; engines or `rewrite_manifests` merge
the others. Deleted entries are left out.

The description of a data file is copied byte by byte. Only the fields before it are rewritten.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from lakestream.catalog.manifests import avro_schemas as f
from lakestream.catalog.manifests.avro_codec import AvroSchema, Read, Skip, reader, skipper
from lakestream.catalog.manifests.avro_file import BAD_BYTES, damaged, read_file
from lakestream.catalog.manifests.manifest import DATA, DELETED, EntryWriter, ManifestFile, ManifestLayout
from lakestream.catalog.manifests.partition_values import merged_summaries
from lakestream.model import Buffer

NAME_SUFFIX: Final = "-stream.avro"
"""Of the names of our manifests."""
FAN_IN: Final = 16
FULL: Final = 1_000
ENTRIES_MAX: Final = 2_000


class MergedEntries(NamedTuple):
    entries: list[bytes]
    sequence_number_min: int
    row_count: int
    partitions: list[dict[int, Any]]


def manifests_to_merge(manifests: Sequence[ManifestFile], format_version: int) -> list[ManifestFile]:
    """Returns the manifests to merge with this commit, all of one partition spec; mostly none."""
    if format_version >= 3:
        return []  # row ids are counted from the manifest's first
    sizes: dict[tuple[int, int], list[ManifestFile]] = {}
    for manifest in manifests:
        if _is_own_manifest(manifest) and manifest.live_files_count < FULL:
            size = _size_class(manifest.live_files_count)
            sizes.setdefault((size, manifest.partition_spec_id), []).append(manifest)
    full = [size for size in sorted(sizes) if len(sizes[size]) >= FAN_IN]
    return _oldest(sizes[full[0]]) if full else []


def _is_own_manifest(manifest: ManifestFile) -> bool:
    return manifest.manifest_path.endswith(NAME_SUFFIX) and manifest.content == DATA and manifest.key_metadata is None


def _size_class(count: int) -> int:
    size = 0
    while count >= FAN_IN:
        count, size = count // FAN_IN, size + 1
    return size


def _oldest(manifests: list[ManifestFile]) -> list[ManifestFile]:
    """Returns the oldest manifests, up to the maximum of entries of one manifest."""
    chosen: list[ManifestFile] = []
    room = ENTRIES_MAX
    for manifest in sorted(manifests, key=lambda manifest: manifest.min_sequence_number):
        room -= manifest.live_files_count
        if room < 0:
            break
        chosen.append(manifest)
    return chosen


def merge_manifests(
    parts: Sequence[tuple[ManifestFile, Buffer]], layout: ManifestLayout, writer: EntryWriter
) -> MergedEntries | None:
    """Returns the entries of all manifests; None if one has another schema. Corrupt: a manifest is damaged."""
    entries: list[bytes] = []
    if any(len(manifest.partitions or []) != len(layout.kinds) for manifest, _ in parts):
        return None
    for manifest, body in parts:
        found = _entries(manifest, bytes(body), writer)
        if found is None:
            return None
        entries += found
    return MergedEntries(
        entries,
        min(manifest.min_sequence_number for manifest, _ in parts),
        sum(manifest.live_rows_count for manifest, _ in parts),
        merged_summaries(layout.kinds, [manifest.partitions or [] for manifest, _ in parts]),
    )


def _entries(manifest: ManifestFile, body: bytes, writer: EntryWriter) -> list[bytes] | None:
    location = manifest.manifest_path
    file = read_file(body, location)
    if _encoding(file.schema) != _encoding(writer.schema):
        return None
    *head, data_file = file.schema["fields"]
    read_head, skip_file = reader({**file.schema, "fields": head}), skipper(data_file["type"])
    entries = []
    try:
        for count, data in file.blocks:
            at = 0
            for _ in range(count):
                entry, at = _entry(manifest, data, at, read_head, skip_file, writer)
                if entry is not None:
                    entries.append(entry)
    except BAD_BYTES as error:
        raise damaged(location, error) from error
    return entries if len(entries) == manifest.live_files_count else None


def _encoding(schema: AvroSchema) -> AvroSchema:
    """Returns the schema with int as long: they are encoded alike, and the column may have been widened."""
    if isinstance(schema, dict):
        return {name: _encoding(part) for name, part in schema.items()}
    if isinstance(schema, list):
        return [_encoding(part) for part in schema]
    return "long" if schema == "int" else schema


def _entry(
    manifest: ManifestFile, data: bytes, at: int, read_head: Read, skip_file: Skip, writer: EntryWriter
) -> tuple[bytes | None, int]:
    """Returns an entry, and the position of the next one. None: the file was removed by the manifest's commit."""
    head, start = read_head(data, at)
    end = skip_file(data, start)
    if head[f.STATUS] == DELETED:
        return None, end
    inherited = {
        f.SNAPSHOT_ID: manifest.added_snapshot_id,
        f.SEQUENCE_NUMBER: manifest.sequence_number,
        f.FILE_SEQUENCE_NUMBER: manifest.sequence_number,
    }
    known = [default if head[field] is None else head[field] for field, default in inherited.items()]
    return writer.existing(data[start:end], *known), end
