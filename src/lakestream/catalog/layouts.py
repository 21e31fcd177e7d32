"""Partition specs and sort orders as JSON: checked against the schema, told apart, numbered. Pure.

Both are lists of fields with a source column and a transform, so both live here.
"""

import re
from typing import Final

from lakestream.catalog.schemas import FIELD_ID_MAX, columns, field_ids
from lakestream.catalog.shapes import Json
from lakestream.errors import Rejected

PARTITION_ID_FIRST: Final = 1000
UNSORTED: Final[Json] = {"order-id": 0, "fields": []}
UNPARTITIONED: Final[Json] = {"spec-id": 0, "fields": []}

_TRANSFORM: Final = re.compile(r"identity|year|month|day|hour|void|bucket\[\d{1,9}\]|truncate\[\d{1,9}\]")


def check_spec(spec: Json, schema: Json) -> None:
    """Rejected unless every field has a name of its own, a known transform and a source that the schema has."""
    names: set[str] = set()
    numbers: set[int] = set()
    known, there = columns(schema), field_ids(schema)
    for field in _listed(spec, "a partition spec"):
        name = field.get("name")
        if not isinstance(name, str) or not name or name in names:
            raise Rejected(f"a partition field is called {name!r}: give each a name of its own")
        names.add(name)
        transform = _transform(field, f"partition field {name!r}")
        sources = _sources(field, f"partition field {name!r}")
        if transform != "void":
            _check_sources(sources, there, f"partition field {name!r}")
        if name in known and not (transform == "identity" and sources == [known[name]]) and transform != "void":
            raise Rejected(f"partition field {name!r} is called like a column that it is not: choose another name")
        if (number := field.get("field-id")) is not None:
            if not isinstance(number, int) or not PARTITION_ID_FIRST <= number <= FIELD_ID_MAX or number in numbers:
                raise Rejected(f"partition field {name!r} has the id {number!r}: give numbers from 1000 on, each once")
            numbers.add(number)


def check_order(order: Json, schema: Json) -> None:
    there = field_ids(schema)
    for field in _listed(order, "a sort order"):
        what = f"sort field of column {field.get('source-id')!r}"
        _transform(field, what)
        _check_sources(_sources(field, what), there, what)
        if field.get("direction") not in ("asc", "desc") or field.get("null-order") not in (
            "nulls-first",
            "nulls-last",
        ):
            raise Rejected(f"{what}: direction is asc or desc, null-order is nulls-first or nulls-last")


def sources_are_there(layout: Json, schema: Json) -> bool:
    """Whether every column that a spec or an order needs is in the schema."""
    there = field_ids(schema)
    return all(
        source in there
        for field in layout["fields"]
        if field.get("transform") != "void"
        for source in _sources(field, "")
    )


def same_spec(one: Json, other: Json) -> bool:
    """Partitions in the same way under the same names."""
    return _spec_meaning(one) == _spec_meaning(other)


def same_order(one: Json, other: Json) -> bool:
    return _order_meaning(one) == _order_meaning(other)


def numbered_fields(spec: Json, known: list[Json], last_partition_id: int) -> list[Json]:
    """Its fields with ids: the given ones, that of an equal field of a known spec, else the next free one."""
    by_meaning = {_meaning(field): field["field-id"] for other in known for field in other["fields"]}
    taken = {field["field-id"] for field in spec["fields"] if field.get("field-id") is not None}
    numbered = []
    for field in spec["fields"]:
        number = field.get("field-id")
        if number is None and by_meaning.get(_meaning(field)) not in taken:
            number = by_meaning.get(_meaning(field))
        if number is None:
            number = last_partition_id = max([last_partition_id, *taken]) + 1
        taken.add(number)
        numbered.append({**field, "field-id": number})
    return numbered


def next_free_id(taken: list[int], first: int) -> int:
    return max([first, *(number + 1 for number in taken)])


def resourced(layout: Json, given: dict[int, int]) -> Json:
    """The same layout over a schema whose ids were given anew."""
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
        raise Rejected(f"{what} names no source column")
    return sources


def _are_ids(numbers: list[object]) -> bool:
    return all(isinstance(number, int) for number in numbers)


def _check_sources(sources: list[int], there: set[int], what: str) -> None:
    for source in sources:
        if source not in there:
            raise Rejected(f"{what} is made from column id {source}, which the schema does not have")


def _meaning(field: Json) -> tuple[tuple[int, ...], str]:
    return tuple(_sources(field, "a partition field")), field["transform"]


def _spec_meaning(spec: Json) -> list[tuple[object, ...]]:
    return [(*_meaning(field), field["name"]) for field in spec["fields"]]


def _order_meaning(order: Json) -> list[tuple[object, ...]]:
    return [(*_meaning(field), field["direction"], field["null-order"]) for field in order["fields"]]
