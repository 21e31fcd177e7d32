"""What a topic's table is made like, and whether it is still one that we can write into and read records from. Pure.

Others may change it: add columns, partition it in another way, sort it. Each of our files says which partition spec and
which sort order it follows, so we go on with those that the topic wants (arranging.py), and readers cope with both.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from lakestream.catalog.bound_columns import bound_ids
from lakestream.catalog.errors import CommitRefused, TableAltered
from lakestream.catalog.manifests import Layout
from lakestream.catalog.schemas import columns, field_ids
from lakestream.catalog.shapes import Json, schema_of
from lakestream.catalog.topic_layout import COLUMNS, OFFSET_ID, PARTITION_ID, VALUE_ID, Column
from lakestream.schemas.columns import all_columns, columns_of
from lakestream.schemas.shape import Primitive
from lakestream.schemas.terms import Transform

SPEC: Final[Json] = {
    "spec-id": 0,
    "fields": [{"name": "_stream_partition", "transform": "identity", "source-id": PARTITION_ID, "field-id": 1000}],
}
ORDER: Final[Json] = {
    "order-id": 1,
    "fields": [{"transform": "identity", "source-id": OFFSET_ID, "direction": "asc", "null-order": "nulls-first"}],
}


def layout_of(metadata: Json, spec_id: int | None = None) -> Layout:
    """Of files that follow this spec; None: the one by the stream's partition alone. TableAltered: it is not there, or
    not one that we can follow."""
    spec = _plain_spec(metadata) if spec_id is None else _spec(metadata, spec_id)
    kinds = kinds_of(metadata, spec)
    if kinds is None:
        raise TableAltered(f"partition spec {spec['spec-id']} of the table is by something that is not known here")
    return Layout(metadata["format-version"], schema_of(metadata), spec, kinds, order_by_offset(metadata))


def _spec(metadata: Json, spec_id: int) -> Json:
    for spec in metadata["partition-specs"]:
        if spec["spec-id"] == spec_id:
            found: Json = spec
            return found
    raise CommitRefused(f"partition spec {spec_id} was removed from the table by somebody else")


def _plain_spec(metadata: Json) -> Json:
    """The newest that is by the stream's partition alone; else one without partitions."""
    found = plain_spec(metadata)
    if found is None:
        raise TableAltered(
            "no partition spec of the table is by _stream.partition alone any more: drop the others (ALTER TABLE … DROP"
            " PARTITION FIELD …), then add it (ALTER TABLE … ADD PARTITION FIELD _stream.partition)"
        )
    return found


def plain_spec(metadata: Json) -> Json | None:
    specs: list[Json] = sorted(metadata["partition-specs"], key=_spec_id, reverse=True)
    ours = [spec for spec in specs if _sources(spec) == _sources(SPEC)]
    return next(iter([*ours, *(spec for spec in specs if not spec["fields"])]), None)


def kinds_of(metadata: Json, spec: Json) -> tuple[Primitive, ...] | None:
    """What the fields of a spec are. None: something is in it that is not known here, as a column that is gone."""
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
    """TableAltered: a column is gone or has another type, without which rows are no records. By id: names may change,
    and whatever else there is stays what it is."""
    wrong = next(_wrong_columns(schema_of(metadata), metadata), None)
    if wrong is None:
        return
    good = [schema["schema-id"] for schema in metadata["schemas"] if not any(_wrong_columns(schema, metadata))]
    back = f"set its current schema back to {max(good)}, which has it" if good else "restore its metadata from a backup"
    # In SQL a column can only be added, with another id: the files do not know that one.
    raise TableAltered(f"{wrong}, without which rows are no records any more: {back}, or delete the topic")


def _wrong_columns(schema: Json, metadata: Json) -> Iterator[str]:
    there = {field["id"]: field for field in schema["fields"]}
    for column in COLUMNS:
        if column.field_id != VALUE_ID or column.field_id in there or _had_value(metadata):
            yield from _wrong_in(column, there, "")
    if gone := bound_ids(metadata) - field_ids(schema):
        yield f"column {_name_of(min(gone), metadata)}, which values are made of again, was dropped"


def _had_value(metadata: Json) -> bool:
    """A table that was typed from the start has no column for bytes without a schema."""
    return any(field["id"] == VALUE_ID for schema in metadata["schemas"] for field in schema["fields"])


def _name_of(field_id: int, metadata: Json) -> str:
    for schema in reversed(metadata["schemas"]):
        for name, number in columns(schema).items():
            if number == field_id:
                return name
    return f"with the id {field_id}"


def _wrong_in(column: Column, there: Mapping[int, Json], parent: str) -> Iterator[str]:
    name = f"{parent}{column.name}"
    field = there.get(column.field_id)
    if field is None:
        yield f"column {name} was dropped"
        return
    kind = field["type"]
    is_right = kind == column.type if isinstance(kind, str) else kind.get("type") == column.type
    if not is_right:
        yield f"column {name} is {str(kind)[:60]} now, not {column.type} any more"
    elif column.fields:
        struct = kind["element"] if column.type == "list" else kind
        inner = {field["id"]: field for field in struct["fields"]}
        for one in column.fields:
            yield from _wrong_in(one, inner, f"{name}.")
