"""Manifests, which name data files, and the list of manifests that a snapshot is: bytes ⇄ values. Pure.

Written here are manifests of our own appends only. Lists are read whoever wrote them, since each snapshot's list names
the manifests of the one before, and so are the manifests themselves.
"""

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from lakestream.catalog import manifest_schemas as f
from lakestream.catalog.avro_file import BAD_BYTES, damaged, opened, written
from lakestream.catalog.avro_types import AvroSchema, Write, writer
from lakestream.catalog.data_files import FileDescription
from lakestream.catalog.partition_values import avro_type, avro_value, summed_up
from lakestream.catalog.shapes import Json
from lakestream.errors import Corrupt
from lakestream.model import Buffer
from lakestream.schemas.shape import Primitive

DATA: Final = 0
"""What files of a manifest hold; others hold deletes."""
EXISTING, ADDED, DELETED = 0, 1, 2
"""The status of an entry."""
PARQUET: Final = "PARQUET"

_REQUIRED: Final = [field["name"] for field in f.MANIFEST_FILE_FIELDS if isinstance(field["type"], str)]


class ManifestFile(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest as lists name it; the fields are those of the specification."""

    manifest_path: str
    manifest_length: int
    partition_spec_id: int
    content: int = DATA
    sequence_number: int
    min_sequence_number: int
    added_snapshot_id: int
    added_files_count: int
    existing_files_count: int = 0
    deleted_files_count: int = 0
    added_rows_count: int
    existing_rows_count: int = 0
    deleted_rows_count: int = 0
    partitions: list[dict[int, Any]] | None = None
    key_metadata: bytes | None = None
    first_row_id: int | None = None

    @property
    def live_files_count(self) -> int:
        return self.added_files_count + self.existing_files_count

    @property
    def live_rows_count(self) -> int:
        return self.added_rows_count + self.existing_rows_count


class Layout(NamedTuple):
    """How the files of a manifest are laid out."""

    format_version: int
    schema: Json
    spec: Json
    kinds: tuple[Primitive, ...]
    """What each field of the spec is, once it is transformed."""
    by_offset: int | None
    """The sort order by offset alone, where the table has it."""

    def values_of(self, file: FileDescription) -> tuple[Any, ...]:
        """What its rows have in common, one for each field of the spec."""
        values = (file.partition,) if file.spec_id is None else file.values
        return values[: len(self.kinds)]


# Lists


def read_list(body: Buffer, location: str) -> list[ManifestFile]:
    names = [(field["field-id"], field["name"]) for field in f.MANIFEST_FILE_FIELDS]
    try:
        return [
            ManifestFile(**_filled({name: record.get(number) for number, name in names}))
            for record in opened(bytes(body), location).records()
        ]
    except BAD_BYTES as error:
        raise error if isinstance(error, Corrupt) and location in str(error) else damaged(location, error) from error


def _filled(values: dict[str, Any]) -> dict[str, Any]:
    """Old writers leave out the content, which then is data, but never a count: a wrong one would hide files."""
    values["content"] = values["content"] or DATA
    if missing := [name for name in _REQUIRED if values[name] is None]:
        raise Corrupt(f"a manifest has no {missing[0]}")
    return values


def write_list(manifests: Sequence[ManifestFile], snapshot: Json, format_version: int) -> bytes:
    """As the list of `snapshot`, as it stands in the table's metadata."""
    schema = f.list_schema(format_version)
    numbers = [(field["field-id"], field["name"]) for field in schema["fields"]]
    write = writer(schema)
    said = {
        "snapshot-id": str(snapshot["snapshot-id"]),
        "parent-snapshot-id": str(snapshot.get("parent-snapshot-id", "null")),
        "sequence-number": str(snapshot["sequence-number"]),
        "format-version": str(format_version),
    }
    if format_version >= 3:
        said["first-row-id"] = str(snapshot["first-row-id"])
    records = []
    for manifest in manifests:
        out = bytearray()
        write(out, {number: getattr(manifest, name) for number, name in numbers})
        records.append(bytes(out))
    return written(schema, said, records)


def with_row_ids(manifests: Sequence[ManifestFile], first_row_id: int) -> tuple[list[ManifestFile], int]:
    """Version 3 gives rows an id: those without get the next ones. And how many were given."""
    numbered, following = [], first_row_id
    for manifest in manifests:
        if manifest.content == DATA and manifest.first_row_id is None:
            numbered.append(msgspec.structs.replace(manifest, first_row_id=following))
            following += manifest.live_rows_count
        else:
            numbered.append(manifest)
    return numbered, following - first_row_id


# Manifests


class EntryWriter:
    """Entries of one manifest after another in the same layout."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._field_ids = [field["field-id"] for field in layout.spec["fields"]]
        kinds = [avro_type(kind, number) for kind, number in zip(layout.kinds, self._field_ids, strict=True)]
        self.schema: AvroSchema = f.entry_schema(f.partition_schema(layout.spec["fields"], kinds))
        self._head, self._data_file = _writers(json.dumps(self.schema))

    def added(self, file: FileDescription, snapshot_id: int) -> bytes:
        """Its sequence number is that of the commit, which is not known for certain before it is made."""
        out = bytearray()
        self._head(out, {f.STATUS: ADDED, f.SNAPSHOT_ID: snapshot_id})
        self._data_file(out, self._fields(file))
        return bytes(out)

    def existing(
        self, raw_data_file: bytes, snapshot_id: int, sequence_number: int, file_sequence_number: int
    ) -> bytes:
        """Of a file that another manifest named: with what was inherited there."""
        out = bytearray()
        head = {
            f.STATUS: EXISTING,
            f.SNAPSHOT_ID: snapshot_id,
            f.SEQUENCE_NUMBER: sequence_number,
            f.FILE_SEQUENCE_NUMBER: file_sequence_number,
        }
        self._head(out, head)
        return bytes(out) + raw_data_file

    def manifest(self, entries: list[bytes]) -> bytes:
        layout = self._layout
        said = {
            "schema": json.dumps(layout.schema, separators=(",", ":")),
            "schema-id": str(layout.schema.get("schema-id", 0)),
            "partition-spec": json.dumps(layout.spec["fields"], separators=(",", ":")),
            "partition-spec-id": str(layout.spec["spec-id"]),
            "format-version": str(layout.format_version),
            "content": "data",
        }
        return written(self.schema, said, entries)

    def _fields(self, file: FileDescription) -> dict[int, Any]:
        values = zip(self._field_ids, self._layout.kinds, self._layout.values_of(file), strict=True)
        return {
            f.CONTENT: DATA,
            f.FILE_PATH: file.location,
            f.FILE_FORMAT: PARQUET,
            f.PARTITION: {number: avro_value(kind, value) for number, kind, value in values},
            f.RECORD_COUNT: file.record_count,
            f.FILE_SIZE: file.size,
            f.COLUMN_SIZES: file.column_sizes,
            f.VALUE_COUNTS: file.value_counts,
            f.NULL_COUNTS: file.null_counts,
            f.LOWER_BOUNDS: file.lower_bounds,
            f.UPPER_BOUNDS: file.upper_bounds,
            f.SPLIT_OFFSETS: file.split_offsets,
            f.SORT_ORDER_ID: self._layout.by_offset if file.order_id is None else file.order_id,
        }


@lru_cache(maxsize=64)
def _writers(schema_text: str) -> tuple[Write, Write]:
    """For what stands before the data file, and for it: made once, not for each commit."""
    schema = json.loads(schema_text)
    *head, data_file = schema["fields"]
    return writer({**schema, "fields": head}), writer(data_file["type"])


def partition_summary(layout: Layout, files: Sequence[FileDescription]) -> list[dict[int, Any]]:
    return summed_up(layout.kinds, [layout.values_of(file) for file in files])


def read_entries(body: Buffer, location: str) -> Iterator[dict[int, Any]]:
    """All entries, whoever wrote them, as dicts by field id (`manifest_schemas.py`). What an entry inherits from its
    manifest is not filled in."""
    try:
        yield from opened(bytes(body), location).records()
    except BAD_BYTES as error:
        raise error if isinstance(error, Corrupt) and location in str(error) else damaged(location, error) from error
