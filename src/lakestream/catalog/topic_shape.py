"""What a topic's table is made like, and whether it is still one that we can write into and read records from. Pure.

Others may change it: add columns, partition it in another way, sort it. Each of our files says which partition spec and
which sort order it follows, so we go on with those that the table was made with, and readers cope with both.
"""

from collections.abc import Mapping
from typing import Final

from lakestream.catalog.errors import TableAltered
from lakestream.catalog.manifests import Layout
from lakestream.catalog.shapes import Json, schema_of
from lakestream.catalog.topic_layout import COLUMNS, OFFSET_ID, PARTITION_ID, Column

SPEC: Final[Json] = {
    "spec-id": 0,
    "fields": [{"name": "_stream_partition", "transform": "identity", "source-id": PARTITION_ID, "field-id": 1000}],
}
ORDER: Final[Json] = {
    "order-id": 1,
    "fields": [{"transform": "identity", "source-id": OFFSET_ID, "direction": "asc", "null-order": "nulls-first"}],
}


def layout_of(metadata: Json) -> Layout:
    """TableAltered: none of its partition specs is one that we can follow."""
    return Layout(metadata["format-version"], schema_of(metadata), _spec(metadata), _order_id(metadata))


def _spec(metadata: Json) -> Json:
    """The newest that is by the stream's partition alone; else one without partitions."""
    specs: list[Json] = sorted(metadata["partition-specs"], key=_spec_id, reverse=True)
    ours = [spec for spec in specs if _sources(spec) == _sources(SPEC)]
    plain = [spec for spec in specs if not spec["fields"]]
    if not ours and not plain:
        raise TableAltered(
            "no partition spec of the table is by _stream.partition alone any more: drop the others (ALTER TABLE … DROP"
            " PARTITION FIELD …), then add it (ALTER TABLE … ADD PARTITION FIELD _stream.partition)"
        )
    return (ours or plain)[0]


def _order_id(metadata: Json) -> int | None:
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
    """TableAltered: a column is gone or has another type, without which rows are no records. By id: names may change,
    and whatever else there is stays what it is."""
    there = {field["id"]: field for field in schema_of(metadata)["fields"]}
    for column in COLUMNS:
        _check_column(column, there, "")


def _check_column(column: Column, there: Mapping[int, Json], parent: str) -> None:
    name = f"{parent}{column.name}"
    field = there.get(column.field_id)
    if field is None:
        raise TableAltered(
            f"column {name} was dropped, without which rows are no records any more: go back to a schema that has it,"
            f" or delete the topic"
        )
    kind = field["type"]
    is_right = kind == column.type if isinstance(kind, str) else kind.get("type") == column.type
    if not is_right:
        raise TableAltered(f"column {name} is {str(kind)[:60]} now, not {column.type} any more: change it back")
    if column.fields:
        struct = kind["element"] if column.type == "list" else kind
        inner = {field["id"]: field for field in struct["fields"]}
        for one in column.fields:
            _check_column(one, inner, f"{name}.")
