"""A manifest without some of its files, whoever wrote it. Pure; used by rewrite.py.

What was taken out stays in it, marked as deleted, for readers who follow changes; the next commit that names the others
anew leaves it out. The description of a file is copied byte by byte: what engines wrote into it that we do not know of
is not lost. Only what stands before it is written anew.
"""

from collections.abc import Set
from typing import Any, NamedTuple

from lakestream.catalog import manifest_schemas as f
from lakestream.catalog.avro_file import BAD_BYTES, AvroFile, damaged, opened, written
from lakestream.catalog.avro_types import Write, reader, writer
from lakestream.catalog.errors import Unsupported
from lakestream.catalog.manifests import DELETED, EXISTING, ManifestFile

_HEAD = (f.STATUS, f.SNAPSHOT_ID, f.SEQUENCE_NUMBER, f.FILE_SEQUENCE_NUMBER)


class TakenOut(NamedTuple):
    body: bytes
    gone: list[str]
    files_left: int
    rows_left: int
    files_gone: int
    rows_gone: int
    bytes_gone: int


def without(manifest: ManifestFile, body: bytes, unwanted: Set[str], snapshot_id: int) -> TakenOut | None:
    """None: it names none of them. `snapshot_id`: that of the commit that takes them out."""
    location = manifest.manifest_path
    file = opened(body, location)
    if not any(_may_name(file, path) for path in unwanted):
        return None
    try:
        return _without(manifest, file, unwanted, snapshot_id)
    except BAD_BYTES as error:
        raise damaged(location, error) from error


def _may_name(file: AvroFile, path: str) -> bool:
    raw = path.encode()
    return any(raw in data for _, data in file.blocks)


def _without(manifest: ManifestFile, file: AvroFile, unwanted: Set[str], snapshot_id: int) -> TakenOut | None:
    *head, data_file = file.schema["fields"]
    if tuple(field["field-id"] for field in head) != _HEAD or data_file["field-id"] != f.DATA_FILE:
        raise Unsupported(f"{manifest.manifest_path} is written in a way that is not followed: rewrite_manifests helps")
    head_schema = {**file.schema, "fields": head}
    read_head, write_head, read_file = reader(head_schema), writer(head_schema), reader(data_file["type"])
    entries: list[bytes] = []
    left: list[int] = []
    gone: list[dict[int, Any]] = []
    for count, data in file.blocks:
        at = 0
        for _ in range(count):
            known, start = read_head(data, at)
            described, at = read_file(data, start)
            if known[f.STATUS] == DELETED:
                continue
            is_gone = described[f.FILE_PATH] in unwanted
            entries.append(_head(write_head, manifest, known, snapshot_id if is_gone else None) + data[start:at])
            if is_gone:
                gone.append(described)
            else:
                left.append(described[f.RECORD_COUNT])
    if not gone:
        return None
    said = {name: text.decode() for name, text in file.said.items() if not name.startswith("avro.")}
    return TakenOut(
        written(file.schema, said, entries),
        [described[f.FILE_PATH] for described in gone],
        len(left),
        sum(left),
        len(gone),
        sum(described[f.RECORD_COUNT] for described in gone),
        sum(described[f.FILE_SIZE] for described in gone),
    )


def _head(write: Write, manifest: ManifestFile, known: dict[int, Any], deleted_by: int | None) -> bytes:
    """With what was inherited written down: the manifest has another number now."""
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
