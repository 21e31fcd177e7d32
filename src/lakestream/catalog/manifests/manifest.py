"""Reads and writes manifests and manifest lists. Pure.

Manifests and lists of any engine are read, because a snapshot's list names the manifests of earlier snapshots. Only
manifests of our own files are written.
"""

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from lakestream.catalog.manifests import avro_schemas as f
from lakestream.catalog.manifests.avro_codec import ITEMS_MAX, AvroSchema, Write, writer
from lakestream.catalog.manifests.avro_file import BAD_BYTES, damaged, read_file, write_file
from lakestream.catalog.manifests.data_file import FileDescription
from lakestream.catalog.manifests.partition_values import avro_type, avro_value, partition_summaries
from lakestream.catalog.table_metadata.json_model import Id, Json, SmallId
from lakestream.errors import Corrupt
from lakestream.model import Buffer
from lakestream.schemas.types import Primitive

DATA: Final = 0
"""The content of a manifest or a file; others are deletes."""
EXISTING, ADDED, DELETED = 0, 1, 2
"""The status of an entry."""
PARQUET: Final = "PARQUET"

_SINCE_V2: Final = ("content", "sequence_number", "min_sequence_number")
_BOUND_TYPES: Final = {f.CONTAINS_NULL: bool, f.CONTAINS_NAN: bool, f.LOWER_BOUND: bytes, f.UPPER_BOUND: bytes}


class ManifestFile(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a manifest list, with the fields of the specification."""

    manifest_path: str
    manifest_length: Id
    partition_spec_id: SmallId
    content: SmallId = DATA
    sequence_number: Id
    min_sequence_number: Id
    added_snapshot_id: Id
    added_files_count: SmallId
    existing_files_count: SmallId = 0
    deleted_files_count: SmallId = 0
    added_rows_count: Id
    existing_rows_count: Id = 0
    deleted_rows_count: Id = 0
    partitions: list[dict[int, Any]] | None = None
    key_metadata: bytes | None = None
    first_row_id: Id | None = None

    @property
    def live_files_count(self) -> int:
        return self.added_files_count + self.existing_files_count

    @property
    def live_rows_count(self) -> int:
        return self.added_rows_count + self.existing_rows_count


class ManifestLayout(NamedTuple):
    """The schema, partition spec and sort order of a manifest's files."""

    format_version: int
    schema: Json
    spec: Json
    kinds: tuple[Primitive, ...]
    """The result types of the spec's fields."""
    by_offset: int | None
    """The id of the sort order by offset alone, if the table has it."""

    def values_of(self, file: FileDescription) -> tuple[Any, ...]:
        """Returns the partition tuple of a file."""
        values = (file.partition,) if file.spec_id is None else file.values
        return values[: len(self.kinds)]


# Lists


def read_list(body: Buffer, location: str) -> list[ManifestFile]:
    names = [(field["field-id"], field["name"]) for field in f.MANIFEST_FILE_FIELDS]
    try:
        listed: list[ManifestFile] = []
        bounds = 0
        for record in read_file(bytes(body), location).records():
            if not isinstance(record, dict):
                raise Corrupt("an entry is not a record")
            listed.append(_manifest_file({name: record.get(number) for number, name in names}))
            if (bounds := bounds + len(listed[-1].partitions or ())) > ITEMS_MAX:
                raise Corrupt(f"it has more than {ITEMS_MAX} partition field summaries")
        return listed
    except BAD_BYTES as error:
        raise error if isinstance(error, Corrupt) and location in str(error) else damaged(location, error) from error


def _manifest_file(values: dict[str, Any]) -> ManifestFile:
    """Converts an entry of a list. Corrupt: a value has another type, or is missing.

    Format version 1 has no content, which is data then, and no sequence numbers, which are 0 then. Counts are required:
    a wrong count would hide files.
    """
    for name in _SINCE_V2:
        values[name] = values[name] or 0
    found = msgspec.convert(values, ManifestFile)
    for bounds in found.partitions or ():
        for number, value in bounds.items():
            if value is not None and not isinstance(value, _BOUND_TYPES.get(number, object)):
                raise Corrupt(f"field {number} in partitions of {found.manifest_path} has the value {value!r:.60}")
    return found


def write_list(manifests: Sequence[ManifestFile], snapshot: Json, format_version: int) -> bytes:
    """Returns the manifest list of a snapshot, given as in the table's metadata."""
    schema = f.list_schema(format_version)
    numbers = [(field["field-id"], field["name"]) for field in schema["fields"]]
    write = writer(schema)
    file_metadata = {
        "snapshot-id": str(snapshot["snapshot-id"]),
        "parent-snapshot-id": str(snapshot.get("parent-snapshot-id", "null")),
        "sequence-number": str(snapshot["sequence-number"]),
        "format-version": str(format_version),
    }
    if format_version >= 3:
        file_metadata["first-row-id"] = str(snapshot["first-row-id"])
    records = []
    for manifest in manifests:
        out = bytearray()
        write(out, {number: getattr(manifest, name) for number, name in numbers})
        records.append(bytes(out))
    return write_file(schema, file_metadata, records)


def with_row_ids(manifests: Sequence[ManifestFile], first_row_id: int) -> tuple[list[ManifestFile], int]:
    """Assigns first row ids (format version 3) to manifests without one. Returns also the number of ids assigned."""
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
    """Writes entries and manifests of one layout."""

    def __init__(self, layout: ManifestLayout) -> None:
        self._layout = layout
        self._field_ids = [field["field-id"] for field in layout.spec["fields"]]
        kinds = [avro_type(kind, number) for kind, number in zip(layout.kinds, self._field_ids, strict=True)]
        self.schema: AvroSchema = f.entry_schema(f.partition_schema(layout.spec["fields"], kinds))
        self._head, self._data_file = _writers(json.dumps(self.schema))

    def added(self, file: FileDescription, snapshot_id: int) -> bytes:
        """Returns an entry of a new file. It inherits its sequence number, which is certain only after the commit."""
        out = bytearray()
        self._head(out, {f.STATUS: ADDED, f.SNAPSHOT_ID: snapshot_id})
        self._data_file(out, self._fields(file))
        return bytes(out)

    def existing(
        self, raw_data_file: bytes, snapshot_id: int, sequence_number: int, file_sequence_number: int
    ) -> bytes:
        """Returns an entry of a file from another manifest, with the values that it inherited there."""
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
        file_metadata = {
            "schema": json.dumps(layout.schema, separators=(",", ":")),
            "schema-id": str(layout.schema.get("schema-id", 0)),
            "partition-spec": json.dumps(layout.spec["fields"], separators=(",", ":")),
            "partition-spec-id": str(layout.spec["spec-id"]),
            "format-version": str(layout.format_version),
            "content": "data",
        }
        return write_file(self.schema, file_metadata, entries)

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
    """Returns the writers of an entry's fields before the data file, and of the data file. Cached across commits."""
    schema = json.loads(schema_text)
    *head, data_file = schema["fields"]
    return writer({**schema, "fields": head}), writer(data_file["type"])


def partition_summary(layout: ManifestLayout, files: Sequence[FileDescription]) -> list[dict[int, Any]]:
    return partition_summaries(layout.kinds, [layout.values_of(file) for file in files])


def read_entries(body: Buffer, location: str) -> Iterator[dict[int, Any]]:
    """Yields all entries, of any writer, as dicts by field id (`avro_schemas.py`).

    Values that an entry inherits from its manifest are not set.
    """
    try:
        for entry in read_file(bytes(body), location).records():
            if not isinstance(entry, dict) or not isinstance(entry.get(f.DATA_FILE), dict):
                raise Corrupt("an entry has no data file")
            yield entry
    except BAD_BYTES as error:
        raise error if isinstance(error, Corrupt) and location in str(error) else damaged(location, error) from error
