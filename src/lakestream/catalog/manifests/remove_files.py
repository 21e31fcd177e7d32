"""Removes files from a manifest of any writer. Pure. Used by rewrite_files.py.

The entries of removed files stay in the manifest with the status DELETED, for readers of changes; the next rewrite of
the manifest leaves them out. The description of a data file is copied byte by byte, so that unknown fields of engines
are kept. Only the fields before it are rewritten.
"""

from collections.abc import Set
from typing import Any, NamedTuple

from lakestream.catalog.errors import Unsupported
from lakestream.catalog.manifests import avro_schemas as f
from lakestream.catalog.manifests.avro_codec import Write, reader, writer
from lakestream.catalog.manifests.avro_file import BAD_BYTES, AvroFile, damaged, read_file, write_file
from lakestream.catalog.manifests.manifest import DELETED, EXISTING, ManifestFile

_HEAD = (f.STATUS, f.SNAPSHOT_ID, f.SEQUENCE_NUMBER, f.FILE_SEQUENCE_NUMBER)


class FilteredManifest(NamedTuple):
    body: bytes
    removed: list[str]
    files_left: int
    rows_left: int
    files_removed: int
    rows_removed: int
    bytes_removed: int


def remove_files(manifest: ManifestFile, body: bytes, unwanted: Set[str], snapshot_id: int) -> FilteredManifest | None:
    """Returns the manifest without the files; None if it names none of them. `snapshot_id`: of the removing commit."""
    location = manifest.manifest_path
    file = read_file(body, location)
    if not any(_may_name(file, path) for path in unwanted):
        return None
    try:
        return _filtered(manifest, file, unwanted, snapshot_id)
    except BAD_BYTES as error:
        raise damaged(location, error) from error


def _may_name(file: AvroFile, path: str) -> bool:
    raw = path.encode()
    return any(raw in data for _, data in file.blocks)


def _filtered(manifest: ManifestFile, file: AvroFile, unwanted: Set[str], snapshot_id: int) -> FilteredManifest | None:
    *head, data_file = file.schema["fields"]
    if tuple(field["field-id"] for field in head) != _HEAD or data_file["field-id"] != f.DATA_FILE:
        raise Unsupported(f"{manifest.manifest_path} has an unknown schema: rewrite it (CALL system.rewrite_manifests)")
    head_schema = {**file.schema, "fields": head}
    read_head, write_head, read_file = reader(head_schema), writer(head_schema), reader(data_file["type"])
    entries: list[bytes] = []
    left: list[int] = []
    removed: list[tuple[str, int, int]] = []
    for count, data in file.blocks:
        at = 0
        for _ in range(count):
            known, start = read_head(data, at)
            described, at = read_file(data, start)
            if known[f.STATUS] == DELETED:
                continue
            is_removed = described[f.FILE_PATH] in unwanted
            entries.append(_head(write_head, manifest, known, snapshot_id if is_removed else None) + data[start:at])
            if is_removed:
                removed.append((described[f.FILE_PATH], described[f.RECORD_COUNT], described[f.FILE_SIZE]))
            else:
                left.append(described[f.RECORD_COUNT])
    if not removed:
        return None
    metadata = {name: text.decode() for name, text in file.metadata.items() if not name.startswith("avro.")}
    return FilteredManifest(
        write_file(file.schema, metadata, entries),
        [path for path, _, _ in removed],
        len(left),
        sum(left),
        len(removed),
        sum(rows for _, rows, _ in removed),
        sum(size for _, _, size in removed),
    )


def _head(write: Write, manifest: ManifestFile, known: dict[int, Any], deleted_by: int | None) -> bytes:
    """Writes inherited values explicitly, because the manifest gets another sequence number."""
    inherited = {
        f.SNAPSHOT_ID: manifest.added_snapshot_id,
        f.SEQUENCE_NUMBER: manifest.sequence_number,
        f.FILE_SEQUENCE_NUMBER: manifest.sequence_number,
    }
    values = {field: default if known[field] is None else known[field] for field, default in inherited.items()}
    values[f.STATUS] = EXISTING if deleted_by is None else DELETED
    if deleted_by is not None:
        values[f.SNAPSHOT_ID] = deleted_by
    out = bytearray()
    write(out, values)
    return bytes(out)
