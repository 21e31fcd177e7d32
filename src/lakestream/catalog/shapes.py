"""What must be in a table's metadata for us to work on it. The rest, also what later versions of the specification add,
is carried along untouched: metadata stays the JSON that it is on disk.

Why not pyiceberg's models: they drop what they do not know, refuse to write v3, and copy all snapshots for every
update (docs/adr/0010).
"""

from typing import Annotated, Any, Final, TypeAlias

import msgspec

from lakestream.errors import Rejected

Json: TypeAlias = dict[str, Any]

FORMAT_VERSION_MAX: Final = 3
MAIN: Final = "main"
NO_SNAPSHOT: Final = -1
"""How v1 and v2 write that there is no current snapshot; some readers insist on the field."""

Id: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A Java long."""
SmallId: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""A Java int."""


class _Shape(msgspec.Struct, frozen=True, rename="kebab"): ...


class SnapshotShape(_Shape, frozen=True):
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


class RefShape(_Shape, frozen=True):
    snapshot_id: Id
    type: str


class LogEntryShape(_Shape, frozen=True):
    snapshot_id: Id
    timestamp_ms: Id


class MetadataLogEntryShape(_Shape, frozen=True):
    metadata_file: str
    timestamp_ms: Id


class SchemaShape(_Shape, frozen=True):
    fields: list[Json]
    schema_id: SmallId = 0


class SpecShape(_Shape, frozen=True):
    fields: list[Json]
    spec_id: SmallId


class OrderShape(_Shape, frozen=True):
    fields: list[Json]
    order_id: SmallId


class MetadataShape(_Shape, frozen=True):
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


def check_snapshot(snapshot: Json) -> SnapshotShape:
    try:
        return msgspec.convert(snapshot, SnapshotShape)
    except msgspec.ValidationError as error:
        raise Rejected(f"the snapshot is not one: {error}") from error


def normalised(metadata: Json) -> Json:
    """The same metadata with what older writers left out filled in as the specification says. Rejected: it is none."""
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
        msgspec.convert(whole, MetadataShape)
    except msgspec.ValidationError as error:
        raise Rejected(f"this is not the metadata of an Iceberg table: {error}") from error
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
        whole.setdefault("last-partition-id", max((field["field-id"] for field in numbered), default=999))
    whole.setdefault("sort-orders", [{"order-id": 0, "fields": []}])
    whole.setdefault("default-sort-order-id", 0)


def written(metadata: Json) -> Json:
    """As it goes into a file: with what v1's readers look for, and without what is empty only by our own account."""
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
