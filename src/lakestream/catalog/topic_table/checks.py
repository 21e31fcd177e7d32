"""Partition spec and sort order of a topic's table, and checks that it can still be written and read. Pure.

Engines may change the table: add columns, change its partition spec or its sort order. Each file that the pipeline
writes states its partition spec and sort order, so the pipeline keeps to those of the topic's settings
(update_layout.py), and readers handle both.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from lakestream.catalog.errors import CommitFailed, IncompatibleTable
from lakestream.catalog.manifests.manifest import ManifestLayout
from lakestream.catalog.table_metadata.json_model import Json, schema_of
from lakestream.catalog.table_metadata.schemas import columns, field_ids
from lakestream.catalog.topic_table.columns import COLUMNS, OFFSET_ID, PARTITION_ID, VALUE_ID, StreamColumn
from lakestream.catalog.topic_table.properties import bound_ids
from lakestream.schemas.columns import all_columns, columns_of
from lakestream.schemas.layout_terms import Transform
from lakestream.schemas.types import Primitive

SPEC: Final[Json] = {
    "spec-id": 0,
    "fields": [{"name": "_stream_partition", "transform": "identity", "source-id": PARTITION_ID, "field-id": 1000}],
}
ORDER: Final[Json] = {
    "order-id": 1,
    "fields": [{"transform": "identity", "source-id": OFFSET_ID, "direction": "asc", "null-order": "nulls-first"}],
}


def layout_of(metadata: Json, spec_id: int | None = None) -> ManifestLayout:
    """Returns the layout of files of a partition spec; None: the spec by `_stream.partition` alone.

    Raises CommitFailed if the spec was removed, IncompatibleTable if a transform is unknown or no such spec exists.
    """
    spec = _plain_spec(metadata) if spec_id is None else _spec(metadata, spec_id)
    kinds = partition_types(metadata, spec)
    if kinds is None:
        raise IncompatibleTable(f"partition spec {spec['spec-id']} of the table has an unknown transform or column")
    return ManifestLayout(metadata["format-version"], schema_of(metadata), spec, kinds, order_by_offset(metadata))


def _spec(metadata: Json, spec_id: int) -> Json:
    for spec in metadata["partition-specs"]:
        if spec["spec-id"] == spec_id:
            found: Json = spec
            return found
    raise CommitFailed(f"partition spec {spec_id} was removed from the table concurrently")


def _plain_spec(metadata: Json) -> Json:
    """Returns the newest spec by `_stream.partition` alone, or else the unpartitioned one."""
    found = plain_spec(metadata)
    if found is None:
        raise IncompatibleTable(
            "no partition spec of the table is by _stream.partition alone any more: drop the others (ALTER TABLE … DROP"
            " PARTITION FIELD …), then add it (ALTER TABLE … ADD PARTITION FIELD _stream.partition)"
        )
    return found


def plain_spec(metadata: Json) -> Json | None:
    specs: list[Json] = sorted(metadata["partition-specs"], key=_spec_id, reverse=True)
    by_partition = [spec for spec in specs if _sources(spec) == _sources(SPEC)]
    return next(iter([*by_partition, *(spec for spec in specs if not spec["fields"])]), None)


def partition_types(metadata: Json, spec: Json) -> tuple[Primitive, ...] | None:
    """Returns the result types of a spec's fields. None: a transform or a source column is unknown, or was dropped."""
    columns = {one.field_id: one.type for one in all_columns(columns_of(schema_of(metadata)))}
    kinds = []
    for field in spec["fields"]:
        kind, transform = columns.get(field.get("source-id", 0)), Transform.of(field["transform"])
        if not isinstance(kind, Primitive) or transform is None:
            return None
        kinds.append(transform.result(kind))
    return tuple(kinds)


def order_by_offset(metadata: Json) -> int | None:
    for order in metadata["sort-orders"]:
        if _sources(order) == _sources(ORDER) and order["fields"][0].get("direction") == "asc":
            number: int = order["order-id"]
            return number
    return None


def _spec_id(spec: Json) -> int:
    number: int = spec["spec-id"]
    return number


def _sources(layout: Json) -> list[tuple[object, object]]:
    return [(field["transform"], field.get("source-id")) for field in layout["fields"]]


def check_columns(metadata: Json) -> None:
    """Raises IncompatibleTable if a column that records need was dropped or has another type.

    Columns are compared by id: their names may change, and engines may add columns.
    """
    wrong = next(wrong_columns(schema_of(metadata), metadata), None)
    if wrong is None:
        return
    good = [schema["schema-id"] for schema in metadata["schemas"] if not any(wrong_columns(schema, metadata))]
    back = f"set its current schema back to {max(good)}, which has it" if good else "restore its metadata from a backup"
    # SQL can only add a column with another id, which the existing files do not have.
    raise IncompatibleTable(f"{wrong}, without which rows are not records: {back}, or delete the topic")


def wrong_columns(schema: Json, metadata: Json) -> Iterator[str]:
    """Yields the errors of the columns that records need."""
    fields_by_id = {field["id"]: field for field in schema["fields"]}
    for column in COLUMNS:
        if column.field_id != VALUE_ID or column.field_id in fields_by_id or _expects_value_column(metadata):
            yield from _column_errors(column, fields_by_id, "")
    if dropped := bound_ids(metadata) - field_ids(schema):
        yield f"column {_name_of(min(dropped), metadata)}, from which record values are restored, was dropped"


def _expects_value_column(metadata: Json) -> bool:
    """Returns False if the topic had schemas from the start: then no column for values without a schema exists."""
    return any(field["id"] == VALUE_ID for schema in metadata["schemas"] for field in schema["fields"])


def _name_of(field_id: int, metadata: Json) -> str:
    for schema in reversed(metadata["schemas"]):
        for name, number in columns(schema).items():
            if number == field_id:
                return name
    return f"with the id {field_id}"


def _column_errors(column: StreamColumn, fields_by_id: Mapping[int, Json], parent: str) -> Iterator[str]:
    name = f"{parent}{column.name}"
    field = fields_by_id.get(column.field_id)
    if field is None:
        yield f"column {name} was dropped"
        return
    kind = field["type"]
    is_right = kind == column.type if isinstance(kind, str) else kind.get("type") == column.type
    if not is_right:
        yield f"column {name} was changed from {column.type} to {str(kind)[:60]}"
    elif column.fields:
        struct = kind["element"] if column.type == "list" else kind
        if not isinstance(struct, dict) or struct.get("type") != "struct":
            yield f"elements of column {name} were changed from struct to {str(struct)[:60]}"
            return
        inner = {field["id"]: field for field in struct["fields"]}
        for one in column.fields:
            yield from _column_errors(one, inner, f"{name}.")
