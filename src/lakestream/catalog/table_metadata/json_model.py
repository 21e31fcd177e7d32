"""Models of the fields of table metadata that the catalog needs. Metadata itself stays JSON.

Unknown fields, also those of later versions of the specification, are kept unchanged. pyiceberg's models drop unknown
fields, do not write format version 3, and copy all snapshots for every update (docs/adr/0010).
"""

from typing import Annotated, Any, Final, TypeAlias

import msgspec

from lakestream.errors import Rejected

Json: TypeAlias = dict[str, Any]

FORMAT_VERSION_MAX: Final = 3
MAIN: Final = "main"
NO_SNAPSHOT: Final = -1
"""The current snapshot id of a table without one in format versions 1 and 2. Some readers require the field."""

LONG_MAX: Final = 2**63 - 1
_DIGITS_END: Final = 20

Id: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=LONG_MAX)]
"""A Java long."""
SmallId: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""A Java int."""


class _KebabStruct(msgspec.Struct, frozen=True, rename="kebab"): ...


class SnapshotShape(_KebabStruct, frozen=True):
    snapshot_id: Id
    timestamp_ms: Id
    parent_snapshot_id: Id | None = None
    sequence_number: Id = 0
    manifest_list: str | None = None
    manifests: list[str] | None = None
    summary: dict[str, str] | None = None
    schema_id: SmallId | None = None
    first_row_id: Id | None = None
    added_rows: Id | None = None


class RefShape(_KebabStruct, frozen=True):
    snapshot_id: Id
    type: str
    min_snapshots_to_keep: SmallId | None = None
    max_snapshot_age_ms: Id | None = None
    max_ref_age_ms: Id | None = None


class LogEntryShape(_KebabStruct, frozen=True):
    snapshot_id: Id
    timestamp_ms: Id


class MetadataLogEntryShape(_KebabStruct, frozen=True):
    metadata_file: str
    timestamp_ms: Id


class SchemaShape(_KebabStruct, frozen=True):
    fields: list[Json]
    schema_id: SmallId = 0


class SpecFieldShape(_KebabStruct, frozen=True):
    name: str
    transform: str
    field_id: SmallId
    source_id: SmallId | None = None


class SpecShape(_KebabStruct, frozen=True):
    fields: list[SpecFieldShape]
    spec_id: SmallId


class OrderFieldShape(_KebabStruct, frozen=True):
    transform: str
    direction: str
    source_id: SmallId | None = None


class OrderShape(_KebabStruct, frozen=True):
    fields: list[OrderFieldShape]
    order_id: SmallId


class StatisticsShape(_KebabStruct, frozen=True):
    snapshot_id: Id


class MetadataShape(_KebabStruct, frozen=True):
    """After `normalised`."""

    format_version: Annotated[int, msgspec.Meta(ge=1, le=FORMAT_VERSION_MAX)]
    table_uuid: str
    location: str
    last_updated_ms: Id
    last_column_id: SmallId
    schemas: Annotated[list[SchemaShape], msgspec.Meta(min_length=1)]
    current_schema_id: SmallId
    partition_specs: Annotated[list[SpecShape], msgspec.Meta(min_length=1)]
    default_spec_id: SmallId
    last_partition_id: SmallId
    sort_orders: Annotated[list[OrderShape], msgspec.Meta(min_length=1)]
    default_sort_order_id: SmallId
    properties: dict[str, str]
    last_sequence_number: Id
    current_snapshot_id: Id
    snapshots: list[SnapshotShape]
    snapshot_log: list[LogEntryShape]
    metadata_log: list[MetadataLogEntryShape]
    refs: dict[str, RefShape]
    next_row_id: Id = 0
    statistics: list[StatisticsShape] | None = None
    partition_statistics: list[StatisticsShape] | None = None
    encryption_keys: list[Json] | None = None


def check_snapshot(snapshot: Json) -> SnapshotShape:
    try:
        return msgspec.convert(snapshot, SnapshotShape)
    except msgspec.ValidationError as error:
        raise Rejected(f"invalid snapshot: {error}") from error


def normalised(metadata: Json) -> Json:
    """Returns the metadata with the specification's defaults for absent fields. Rejected: it is not valid metadata."""
    whole = dict(metadata)
    if whole.get("format-version") == 1:
        _fill_in_v1(whole)
    snapshot_id = whole.get("current-snapshot-id")
    whole["current-snapshot-id"] = NO_SNAPSHOT if snapshot_id is None else snapshot_id
    for name in ("snapshots", "snapshot-log", "metadata-log"):
        whole[name] = whole.get(name) or []
    whole["properties"] = whole.get("properties") or {}
    refs = whole.get("refs") or {}
    if not refs and whole["current-snapshot-id"] != NO_SNAPSHOT:
        refs = {MAIN: {"snapshot-id": whole["current-snapshot-id"], "type": "branch"}}
    whole["refs"] = refs
    try:
        table = msgspec.convert(whole, MetadataShape)
    except msgspec.ValidationError as error:
        raise Rejected(f"not the metadata of an Iceberg table: {error}") from error
    for name, number, numbers in (
        ("current-schema-id", table.current_schema_id, {one.schema_id for one in table.schemas}),
        ("default-spec-id", table.default_spec_id, {one.spec_id for one in table.partition_specs}),
        ("default-sort-order-id", table.default_sort_order_id, {one.order_id for one in table.sort_orders}),
    ):
        if number not in numbers:
            raise Rejected(f"not the metadata of an Iceberg table: {name} is {number}, which does not exist")
    # Entries of missing snapshots are left out: such a snapshot was never checked, and a later one can get its id.
    snapshot_ids = {one.snapshot_id for one in table.snapshots}
    whole["snapshot-log"] = [entry for entry in whole["snapshot-log"] if entry["snapshot-id"] in snapshot_ids]
    return whole


def _fill_in_v1(whole: Json) -> None:
    whole.setdefault("last-sequence-number", 0)
    if "schemas" not in whole and isinstance(schema := whole.get("schema"), dict):
        whole["schemas"] = [{**schema, "schema-id": schema.get("schema-id", 0)}]
        whole["current-schema-id"] = whole["schemas"][0]["schema-id"]
    if "partition-specs" not in whole and isinstance(fields := whole.get("partition-spec"), list):
        numbered = [
            {**field, "field-id": field.get("field-id", 1000 + place)}
            for place, field in enumerate(fields)
            if isinstance(field, dict)
        ]
        whole["partition-specs"] = [{"spec-id": 0, "fields": numbered}]
        whole["default-spec-id"] = 0
        ids = [field["field-id"] for field in numbered if isinstance(field["field-id"], int)]
        whole.setdefault("last-partition-id", max(ids, default=999))
    whole.setdefault("sort-orders", [{"order-id": 0, "fields": []}])
    whole.setdefault("default-sort-order-id", 0)


def decimal(text: str) -> int | None:
    """Parses a number of a property or a summary. Returns None if the text is not a non-negative 64-bit number.

    Clients write any text, and `int` raises ValueError for text of more than some thousand digits.
    """
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < _DIGITS_END else None
    return None if number is None or number > LONG_MAX else number


def file_json(metadata: Json) -> Json:
    """Returns the JSON of a metadata file: with the fields that readers of format version 1 need."""
    whole = dict(metadata)
    if whole["format-version"] == 1:
        whole["schema"] = schema_of(whole)
        whole["partition-spec"] = spec_of(whole)["fields"]
    else:
        whole.pop("schema", None)
        whole.pop("partition-spec", None)
    if whole["format-version"] >= 3 and whole["current-snapshot-id"] == NO_SNAPSHOT:
        whole["current-snapshot-id"] = None
    return whole


def schema_of(metadata: Json) -> Json:
    return next(schema for schema in metadata["schemas"] if schema.get("schema-id", 0) == metadata["current-schema-id"])


def spec_of(metadata: Json) -> Json:
    return next(spec for spec in metadata["partition-specs"] if spec["spec-id"] == metadata["default-spec-id"])
