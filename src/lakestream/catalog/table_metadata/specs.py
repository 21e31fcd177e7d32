"""Validates, compares and numbers partition specs and sort orders in JSON. Pure.

Both are lists of fields with a source column and a transform.
"""

import re
from collections.abc import Set
from typing import Final, TypeAlias

from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.table_metadata.schemas import FIELD_ID_MAX, Fields
from lakestream.errors import Rejected

PARTITION_ID_FIRST: Final = 1000
UNSORTED: Final[Json] = {"order-id": 0, "fields": []}
UNPARTITIONED: Final[Json] = {"spec-id": 0, "fields": []}

FieldMeaning: TypeAlias = tuple[tuple[int, ...], str]
"""The sources and the transform of a field."""

_TRANSFORM: Final = re.compile(r"identity|year|month|day|hour|void|bucket\[\d{1,9}\]|truncate\[\d{1,9}\]")


def check_spec(spec: Json, fields: Fields) -> None:
    """Raises Rejected unless every field has a unique name, a known transform and a source column of the schema."""
    names: set[str] = set()
    numbers: set[int] = set()
    known, existing_ids = fields
    for field in _listed(spec, "a partition spec"):
        name = field.get("name")
        if not isinstance(name, str) or not name or name in names:
            raise Rejected(f"invalid partition field name {name!r}: give each field a unique name")
        names.add(name)
        transform = _transform(field, f"partition field {name!r}")
        sources = _sources(field, f"partition field {name!r}")
        if transform != "void":
            _check_sources(sources, existing_ids, f"partition field {name!r}")
        if name in known and not (transform == "identity" and sources == [known[name]]) and transform != "void":
            raise Rejected(f"partition field {name!r} has the name of another column: choose another name")
        if (number := field.get("field-id")) is not None:
            if not isinstance(number, int) or not PARTITION_ID_FIRST <= number <= FIELD_ID_MAX or number in numbers:
                raise Rejected(f"partition field {name!r} has the id {number!r}: use unique ids from 1000 on")
            numbers.add(number)


def check_order(order: Json, existing_ids: Set[int]) -> None:
    """Raises Rejected unless every field is valid. `existing_ids`: the field ids of the schema."""
    for field in _listed(order, "a sort order"):
        what = f"sort field of column {field.get('source-id')!r}"
        _transform(field, what)
        _check_sources(_sources(field, what), existing_ids, what)
        if field.get("direction") not in ("asc", "desc") or field.get("null-order") not in (
            "nulls-first",
            "nulls-last",
        ):
            raise Rejected(f"{what}: use direction asc or desc, null-order nulls-first or nulls-last")


def has_sources(layout: Json, existing_ids: Set[int]) -> bool:
    """Returns whether a schema with these field ids has every source column of a spec or an order."""
    return all(
        source in existing_ids
        for field in layout["fields"]
        if field.get("transform") != "void"
        for source in _sources(field, "")
    )


def numbered_fields(spec: Json, known: dict[FieldMeaning, int], last_partition_id: int) -> list[Json]:
    """Returns the fields with ids: the given id, that of an equal field of another spec, or else the next free one.

    `known`: ids of the fields of other specs.
    """
    taken = {field["field-id"] for field in spec["fields"] if field.get("field-id") is not None}
    last = max([last_partition_id, *taken])
    numbered = []
    for field in spec["fields"]:
        number = field.get("field-id")
        if number is None and known.get(field_meaning(field)) not in taken:
            number = known.get(field_meaning(field))
        if number is None:
            number = last + 1
        last = max(last, number)
        taken.add(number)
        numbered.append({**field, "field-id": number})
    return numbered


def next_free_id(taken: list[int], first: int) -> int:
    return max([first, *(number + 1 for number in taken)])


def with_sources(layout: Json, given: dict[int, int]) -> Json:
    """Returns a spec or an order for a schema whose field ids were reassigned. `given`: new ids by old id."""
    fields = []
    for field in layout["fields"]:
        renewed = dict(field)
        if "source-id" in field:
            renewed["source-id"] = given.get(field["source-id"], field["source-id"])
        if "source-ids" in field:
            renewed["source-ids"] = [given.get(source, source) for source in field["source-ids"]]
        fields.append(renewed)
    return {**layout, "fields": fields}


def _listed(layout: Json, what: str) -> list[Json]:
    fields = layout.get("fields")
    if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
        raise Rejected(f"{what} has no list of fields")
    return fields


def _transform(field: Json, what: str) -> str:
    transform = field.get("transform")
    if not isinstance(transform, str) or not _TRANSFORM.fullmatch(transform):
        raise Rejected(f"{what} has the unknown transform {str(transform)[:60]!r}")
    return transform


def _sources(field: Json, what: str) -> list[int]:
    sources = field.get("source-ids", [field.get("source-id")])
    if not isinstance(sources, list) or not sources or not _are_ids([*sources, field.get("source-id", 0)]):
        raise Rejected(f"{what} has no source column")
    return sources


def _are_ids(numbers: list[object]) -> bool:
    return all(isinstance(number, int) for number in numbers)


def _check_sources(sources: list[int], existing_ids: Set[int], what: str) -> None:
    for source in sources:
        if source not in existing_ids:
            raise Rejected(f"{what}: the schema has no column with the id {source}")


def field_meaning(field: Json) -> FieldMeaning:
    return tuple(_sources(field, "a partition field")), field["transform"]


def spec_meaning(spec: Json) -> tuple[object, ...]:
    """Returns equal values for specs with the same sources, transforms and names."""
    return tuple((*field_meaning(field), field["name"]) for field in spec["fields"])


def order_meaning(order: Json) -> tuple[object, ...]:
    # Registered metadata may have a field without a null order.
    return tuple((*field_meaning(field), field["direction"], str(field.get("null-order"))) for field in order["fields"])
