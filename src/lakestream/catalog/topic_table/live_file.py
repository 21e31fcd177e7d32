"""A file of a topic's table, as an entry of a manifest describes it. Pure.

Manifests may be written by any engine, so every value of an entry is checked.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from lakestream.catalog.manifests import avro_schemas as f
from lakestream.catalog.manifests.avro_file import BAD_BYTES, damaged
from lakestream.catalog.manifests.manifest import DATA, PARQUET, ManifestFile
from lakestream.catalog.table_metadata.json_model import Id, Json
from lakestream.catalog.topic_table.columns import (
    FIRST_FREE_ID,
    OFFSET_ID,
    PARTITION_ID,
    RAW_VALUE_ID,
    SCHEMA_ID,
    TIMESTAMP_ID,
    VALUE_ID,
)
from lakestream.errors import Corrupt

POSITION_DELETES: Final = 1
UNKNOWN_PARTITION: Final = -1
"""Of a file whose rows are of several partitions, or whose manifest does not state the partition."""
_VALUES: Final = (VALUE_ID, SCHEMA_ID, RAW_VALUE_ID)
"""A row has a value if one of these columns is not null."""
_PATH_ID: Final = 2147483546
"""The column of a position delete file with the path of the data file that the delete applies to."""
_REFERENCED_FILE: Final = 143


class LiveFile(NamedTuple):
    """A file that a snapshot names. Bounds are inclusive; None: the manifest does not state it."""

    location: str
    content: int
    is_parquet: bool
    spec_id: int
    partition: int
    """Of the stream; UNKNOWN_PARTITION: not all rows are of one."""
    offset_first: int | None
    offset_last: int | None
    newest_ms: int | None
    """The newest timestamp of a row; None also if some row's timestamp does not fit."""
    oldest_ms: int | None
    record_count: Id
    size: Id
    sequence_number: Id
    tombstones: int | None
    """Rows without a value; for typed values an upper bound."""
    referenced_file: str | None
    """Of a delete file: the one data file that it applies to, if the manifest states it."""
    more_columns: frozenset[int] = frozenset()
    """Columns beyond the stream's own, by its statistics: typed ones, or ones that an engine added."""
    values: tuple[tuple[int, Any], ...] = ()
    """The partition tuple: values by field id of the partition spec, as manifests store them."""
    offsets_null: int | None = None
    """Rows without an offset; None: the manifest does not state it."""
    rows_with_bytes: int | None = None
    """Rows that keep the produced bytes of their value; None: the manifest does not state it."""

    @property
    def has_records(self) -> bool:
        """Returns False if no row has an offset: an engine inserted the rows, and the stream does not have them."""
        return self.offsets_null is None or self.offsets_null < self.record_count or not self.record_count


def partition_fields(metadata: Json) -> dict[int, int]:
    """Returns the id of the identity field of `_stream.partition`, for each partition spec that has one."""
    return {
        spec["spec-id"]: field["field-id"]
        for spec in metadata["partition-specs"]
        for field in spec["fields"]
        if field.get("source-id") == PARTITION_ID and field.get("transform") == "identity"
    }


def by_partition(files: Iterable[LiveFile]) -> dict[int, list[LiveFile]]:
    """Returns the files whose partition and offsets are stated, sorted by offset.

    Files with rows without an offset are left out: a rewrite would lose those rows.
    """
    found: dict[int, list[LiveFile]] = {}
    for file in files:
        is_known = file.offset_first is not None and file.offset_last is not None and not file.offsets_null
        if file.partition != UNKNOWN_PARTITION and is_known:
            found.setdefault(file.partition, []).append(file)
    for own in found.values():
        own.sort(key=lambda file: (file.offset_first or 0, file.offset_last or 0))
    return found


def path_of(manifest: ManifestFile, entry: dict[int, Any]) -> str:
    """Returns the path of the file. Corrupt: the entry has none."""
    path = entry[f.DATA_FILE].get(f.FILE_PATH)
    if not isinstance(path, str):
        raise Corrupt(f"{manifest.manifest_path} is damaged: an entry has no file path")
    return path


def live_file(manifest: ManifestFile, entry: dict[int, Any], partition_field: int | None) -> LiveFile:
    """Converts an entry. Corrupt: a value is missing, or has another type.

    `partition_field`: as `partition_fields` returns it for the spec of the manifest.
    """
    try:
        file = _file(manifest, entry, partition_field)
        msgspec.convert(tuple(file), LiveFile)
        hash(file.values)  # files are grouped by them
    except BAD_BYTES as error:
        path = path_of(manifest, entry)
        raise damaged(manifest.manifest_path, Corrupt(f"the entry of {path[:500]}: {error!r:.200}")) from error
    return file


def _file(manifest: ManifestFile, entry: dict[int, Any], partition_field: int | None) -> LiveFile:
    data = entry[f.DATA_FILE]
    lower, upper = data.get(f.LOWER_BOUNDS) or {}, data.get(f.UPPER_BOUNDS) or {}
    nulls = data.get(f.NULL_COUNTS) or {}
    sequence_number = entry.get(f.SEQUENCE_NUMBER)
    timed = nulls.get(TIMESTAMP_ID) == 0
    return LiveFile(
        location=data[f.FILE_PATH],
        content=data.get(f.CONTENT) or DATA,
        is_parquet=str(data.get(f.FILE_FORMAT, PARQUET)).upper() == PARQUET,
        spec_id=manifest.partition_spec_id,
        partition=_partition(data, lower, upper, partition_field),
        offset_first=_number(lower.get(OFFSET_ID)),
        offset_last=_number(upper.get(OFFSET_ID)),
        newest_ms=_milliseconds(upper.get(TIMESTAMP_ID)) if timed else None,
        oldest_ms=_milliseconds(lower.get(TIMESTAMP_ID)) if timed else None,
        record_count=data[f.RECORD_COUNT],
        size=data[f.FILE_SIZE],
        sequence_number=manifest.sequence_number if sequence_number is None else sequence_number,
        tombstones=min((nulls[number] for number in _VALUES if number in nulls), default=None),
        referenced_file=_referenced_file(data, lower, upper),
        more_columns=_more_columns(tuple(data.get(f.COLUMN_SIZES) or data.get(f.VALUE_COUNTS) or ())),
        values=tuple(sorted(data[f.PARTITION].items(), key=lambda item: item[0])),
        offsets_null=nulls.get(OFFSET_ID),
        rows_with_bytes=_rows_with_bytes(data[f.RECORD_COUNT], nulls),
    )


def _rows_with_bytes(count: int, nulls: dict[int, int]) -> int | None:
    if RAW_VALUE_ID not in nulls:
        return None
    return sum(count - nulls[number] for number in (RAW_VALUE_ID, VALUE_ID) if number in nulls)


@lru_cache(maxsize=1_000)
def _more_columns(numbers: tuple[int, ...]) -> frozenset[int]:
    """Cached, because most files of a table have the same columns."""
    return frozenset(number for number in numbers if number >= FIRST_FREE_ID)


def _partition(
    data: dict[int, Any], lower: dict[int, bytes], upper: dict[int, bytes], partition_field: int | None
) -> int:
    if partition_field is not None and data[f.PARTITION].get(partition_field) is not None:
        number: int = data[f.PARTITION][partition_field]
        return number
    low, high = _number(lower.get(PARTITION_ID)), _number(upper.get(PARTITION_ID))
    return UNKNOWN_PARTITION if low is None or low != high else low


def _referenced_file(data: dict[int, Any], lower: dict[int, bytes], upper: dict[int, bytes]) -> str | None:
    if data.get(_REFERENCED_FILE):
        return str(data[_REFERENCED_FILE])
    path = lower.get(_PATH_ID)
    return path.decode(errors="replace") if path is not None and path == upper.get(_PATH_ID) else None


def _number(bound: bytes | None) -> int | None:
    if bound is None:
        return None
    if len(bound) not in (4, 8):
        raise Corrupt(f"the bound of a number has {len(bound)} bytes")
    return int.from_bytes(bound, "little", signed=True)


def _milliseconds(bound: bytes | None) -> int | None:
    microseconds = _number(bound)
    return None if microseconds is None else microseconds // 1000
