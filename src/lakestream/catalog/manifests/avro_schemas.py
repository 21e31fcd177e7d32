"""Avro schemas of manifests and manifest lists, with the names and field ids of the Iceberg specification."""

import re
from collections.abc import Sequence
from typing import Any, Final

from lakestream.catalog.manifests.avro_codec import AvroSchema
from lakestream.catalog.table_metadata.json_model import Json

# Fields of an entry of a manifest
STATUS: Final = 0
SNAPSHOT_ID: Final = 1
SEQUENCE_NUMBER: Final = 3
FILE_SEQUENCE_NUMBER: Final = 4
DATA_FILE: Final = 2

# Fields of its data file
CONTENT: Final = 134
FILE_PATH: Final = 100
FILE_FORMAT: Final = 101
PARTITION: Final = 102
RECORD_COUNT: Final = 103
FILE_SIZE: Final = 104
COLUMN_SIZES: Final = 108
VALUE_COUNTS: Final = 109
NULL_COUNTS: Final = 110
LOWER_BOUNDS: Final = 125
UPPER_BOUNDS: Final = 128
SPLIT_OFFSETS: Final = 132
SORT_ORDER_ID: Final = 140

# Fields of a partition's summary in a list
CONTAINS_NULL: Final = 509
CONTAINS_NAN: Final = 518
LOWER_BOUND: Final = 510
UPPER_BOUND: Final = 511


def _field(number: int, name: str, kind: Any, *, optional: bool = False) -> Json:
    if optional:
        return {"name": name, "type": ["null", kind], "default": None, "field-id": number}
    return {"name": name, "type": kind, "field-id": number}


def _record(name: str, *fields: Json) -> Json:
    return {"type": "record", "name": name, "fields": list(fields)}


def _by_column(key_id: int, value_id: int, value: str) -> Json:
    """Returns the schema of a map by column id: Iceberg writes maps with integer keys as arrays."""
    pair = _record(f"k{key_id}_v{value_id}", _field(key_id, "key", "int"), _field(value_id, "value", value))
    return {"type": "array", "logicalType": "map", "items": pair}


def _list(element_id: int, items: Any) -> Json:
    return {"type": "array", "element-id": element_id, "items": items}


_SUMMARY: Final = _record(
    "r508",
    _field(CONTAINS_NULL, "contains_null", "boolean"),
    _field(CONTAINS_NAN, "contains_nan", "boolean", optional=True),
    _field(LOWER_BOUND, "lower_bound", "bytes", optional=True),
    _field(UPPER_BOUND, "upper_bound", "bytes", optional=True),
)

MANIFEST_FILE_FIELDS: Final = (
    _field(500, "manifest_path", "string"),
    _field(501, "manifest_length", "long"),
    _field(502, "partition_spec_id", "int"),
    _field(517, "content", "int"),
    _field(515, "sequence_number", "long"),
    _field(516, "min_sequence_number", "long"),
    _field(503, "added_snapshot_id", "long"),
    _field(504, "added_files_count", "int"),
    _field(505, "existing_files_count", "int"),
    _field(506, "deleted_files_count", "int"),
    _field(512, "added_rows_count", "long"),
    _field(513, "existing_rows_count", "long"),
    _field(514, "deleted_rows_count", "long"),
    _field(507, "partitions", _list(508, _SUMMARY), optional=True),
    _field(519, "key_metadata", "bytes", optional=True),
    _field(520, "first_row_id", "long", optional=True),
)
_V3_FIELDS: Final = 1
"""The number of last fields that format version 2 does not have."""


def list_schema(format_version: int) -> AvroSchema:
    fields = MANIFEST_FILE_FIELDS if format_version >= 3 else MANIFEST_FILE_FIELDS[:-_V3_FIELDS]
    return _record("manifest_file", *fields)


def entry_schema(partition: Json) -> AvroSchema:
    """Returns the schema of manifest entries. `partition`: from `partition_schema`."""
    data_file = _record(
        "r2",
        _field(CONTENT, "content", "int"),
        _field(FILE_PATH, "file_path", "string"),
        _field(FILE_FORMAT, "file_format", "string"),
        _field(PARTITION, "partition", partition),
        _field(RECORD_COUNT, "record_count", "long"),
        _field(FILE_SIZE, "file_size_in_bytes", "long"),
        _field(COLUMN_SIZES, "column_sizes", _by_column(117, 118, "long"), optional=True),
        _field(VALUE_COUNTS, "value_counts", _by_column(119, 120, "long"), optional=True),
        _field(NULL_COUNTS, "null_value_counts", _by_column(121, 122, "long"), optional=True),
        _field(137, "nan_value_counts", _by_column(138, 139, "long"), optional=True),
        _field(LOWER_BOUNDS, "lower_bounds", _by_column(126, 127, "bytes"), optional=True),
        _field(UPPER_BOUNDS, "upper_bounds", _by_column(129, 130, "bytes"), optional=True),
        _field(131, "key_metadata", "bytes", optional=True),
        _field(SPLIT_OFFSETS, "split_offsets", _list(133, "long"), optional=True),
        _field(135, "equality_ids", _list(136, "int"), optional=True),
        _field(SORT_ORDER_ID, "sort_order_id", "int", optional=True),
    )
    return _record(
        "manifest_entry",
        _field(STATUS, "status", "int"),
        _field(SNAPSHOT_ID, "snapshot_id", "long", optional=True),
        _field(SEQUENCE_NUMBER, "sequence_number", "long", optional=True),
        _field(FILE_SEQUENCE_NUMBER, "file_sequence_number", "long", optional=True),
        _field(DATA_FILE, "data_file", data_file),
    )


def partition_schema(spec_fields: Sequence[Json], kinds: Sequence[Any] = ()) -> Json:
    """Returns the schema of partition tuples. `kinds`: the Avro type of each field; by default int."""
    return _record(
        "r102",
        *(
            _field(field["field-id"], _avro_name(field["name"]), kind, optional=True)
            for field, kind in zip(spec_fields, kinds or ["int"] * len(spec_fields), strict=True)
        ),
    )


def _avro_name(name: str) -> str:
    """Escapes a name: Avro allows few characters. Readers use the field id."""
    safe = re.sub(r"\W", lambda found: f"_x{ord(found.group()):X}", name, flags=re.ASCII)
    return f"_{safe}" if safe[0].isdecimal() else safe
