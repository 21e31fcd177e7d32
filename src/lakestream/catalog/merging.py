"""Small manifests become large ones, a few with each commit, so that neither a snapshot's list nor what a reader has to
open grows with the number of commits. Pure.

Each commit adds a manifest of a few files. Sixteen of about the same size become one of the next size, up to a
thousand files; those stay. So a file is named anew two or three times in its life, and no commit names more than two
thousand anew: 40 ms. Only manifests of our own are taken, which have a name and a schema that we know, and no deletes;
what others write, they or `rewrite_manifests` merge. What an earlier commit took out of one is not named again.

The description of a file is copied as it is, byte by byte: only what stands before it is written anew.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from lakestream.catalog import manifest_schemas as f
from lakestream.catalog.avro_file import BAD_BYTES, damaged, opened
from lakestream.catalog.avro_types import AvroSchema, Read, Skip, reader, skipper
from lakestream.catalog.manifests import DATA, DELETED, EntryWriter, Layout, ManifestFile
from lakestream.catalog.partition_values import widened
from lakestream.model import Buffer

NAME_END: Final = "-stream.avro"
"""How the names of our manifests end."""
FAN_IN: Final = 16
FULL: Final = 1_000
ENTRIES_MAX: Final = 2_000


class Merged(NamedTuple):
    entries: list[bytes]
    sequence_number_min: int
    row_count: int
    partitions: list[dict[int, Any]]


def to_merge(manifests: Sequence[ManifestFile], format_version: int) -> list[ManifestFile]:
    """Which to make one of now, all of one partition spec; none, in most commits."""
    if format_version >= 3:
        return []  # its rows have ids, which are counted from the manifest's first
    sizes: dict[tuple[int, int], list[ManifestFile]] = {}
    for manifest in manifests:
        if _is_ours(manifest) and manifest.live_files_count < FULL:
            size = _size_class(manifest.live_files_count)
            sizes.setdefault((size, manifest.partition_spec_id), []).append(manifest)
    full = [size for size in sorted(sizes) if len(sizes[size]) >= FAN_IN]
    return _fitting(sizes[full[0]]) if full else []


def _is_ours(manifest: ManifestFile) -> bool:
    return manifest.manifest_path.endswith(NAME_END) and manifest.content == DATA and manifest.key_metadata is None


def _size_class(count: int) -> int:
    size = 0
    while count >= FAN_IN:
        count, size = count // FAN_IN, size + 1
    return size


def _fitting(manifests: list[ManifestFile]) -> list[ManifestFile]:
    """The oldest first, as many as one manifest may have entries."""
    chosen: list[ManifestFile] = []
    room = ENTRIES_MAX
    for manifest in sorted(manifests, key=lambda manifest: manifest.min_sequence_number):
        room -= manifest.live_files_count
        if room < 0:
            break
        chosen.append(manifest)
    return chosen


def merged(parts: Sequence[tuple[ManifestFile, Buffer]], layout: Layout, writer: EntryWriter) -> Merged | None:
    """The entries of all of them. None: one is not what its name says, so leave them as they are. Corrupt: damaged."""
    entries: list[bytes] = []
    if any(len(manifest.partitions or []) != len(layout.kinds) for manifest, _ in parts):
        return None
    for manifest, body in parts:
        found = _entries(manifest, bytes(body), writer)
        if found is None:
            return None
        entries += found
    return Merged(
        entries,
        min(manifest.min_sequence_number for manifest, _ in parts),
        sum(manifest.live_rows_count for manifest, _ in parts),
        widened(layout.kinds, [manifest.partitions or [] for manifest, _ in parts]),
    )


def _entries(manifest: ManifestFile, body: bytes, writer: EntryWriter) -> list[bytes] | None:
    location = manifest.manifest_path
    file = opened(body, location)
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
    """How its bytes are to be read: a number of 32 bits is written as one of 64, which its column may be by now."""
    if isinstance(schema, dict):
        return {name: _encoding(part) for name, part in schema.items()}
    if isinstance(schema, list):
        return [_encoding(part) for part in schema]
    return "long" if schema == "int" else schema


def _entry(
    manifest: ManifestFile, data: bytes, at: int, read_head: Read, skip_file: Skip, writer: EntryWriter
) -> tuple[bytes | None, int]:
    """And where the next one starts. None: the file was taken out, by the commit that wrote this manifest."""
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
