"""A topic's table is laid out as the topic's settings say: one commit of metadata, no file is touched.

Before: the settings (schemas/terms.py reads them).  After: workers, who write new files so (file_layout.py); old files
stay as they are, and say themselves how that is.

What was applied last is kept in a property of the table. It is applied again when the settings say something else, or
when a column comes that was waited for; not when somebody has changed the table's defaults with an engine: those are
for what others write.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.draft import LAST_ADDED
from lakestream.catalog.errors import NoSuchTable
from lakestream.catalog.evolve import made_so
from lakestream.catalog.file_layout import PLAIN_LAYOUT, Cut, FileLayout, SortKey
from lakestream.catalog.layouts import next_free_id
from lakestream.catalog.shapes import Json, schema_of
from lakestream.catalog.table_properties import DEFAULTS
from lakestream.catalog.topic_shape import ORDER, SPEC, order_by_offset, plain_spec
from lakestream.catalog.updates import (
    AddSortOrder,
    AddSpec,
    RemoveProperties,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetProperties,
    Update,
)
from lakestream.errors import Misconfigured, Rejected
from lakestream.schemas.columns import all_columns, columns_of
from lakestream.schemas.shape import Primitive
from lakestream.schemas.terms import Found, SortTerm, Term, Transform, bound, found_in, partition_terms

log = logging.getLogger(__name__)

LAYOUT: Final = "lakestream.layout"
BY_PARTITION: Final = partition_terms("_stream.partition")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """What a topic wants of its table."""

    partition: tuple[Term, ...] = BY_PARTITION
    sort: tuple[SortTerm, ...] = ()
    """Empty: by offset."""
    properties: tuple[tuple[str, str], ...] = ()


_AS_MADE: Final = Arrangement()


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was applied, as the table's property has it."""

    spec: int | None = None
    order: int | None = None
    specs: tuple[int, ...] = ()
    """All that were ever applied: files of these are ours."""
    properties: dict[str, str] = {}


class Changes(NamedTuple):
    updates: list[Update]
    """None: the table is so already."""
    notices: tuple[str, ...]
    """What cannot be had now, and why."""


async def arrange(
    catalog: Catalog, table: LoadedTable, wanted: Arrangement, *, only_whole: bool = False
) -> tuple[LoadedTable, str]:
    """The table as it is wanted, as far as it can be; and what is lacking, in one line, or nothing. Where it is so
    already, nothing is asked of anybody. `only_whole`: if something is lacking, it stays as it is."""
    if wanted == _AS_MADE and LAYOUT not in table.metadata["properties"]:
        return table, ""
    made = changes(table.metadata, wanted)
    if made.updates and not (only_whole and made.notices):
        try:
            table = await made_so(catalog, table.table_id, lambda metadata: changes(metadata, wanted).updates)
        except Rejected as error:
            return table, f"its table cannot be laid out as its settings say: {error}"
        log.info("catalog.arranged table=%s %s", table.name, table.metadata["properties"].get(LAYOUT, ""))
    return table, "; ".join(made.notices)


async def check_terms(catalog: Catalog, topic_id: str, partition: Sequence[Term], sort: Sequence[Term]) -> None:
    """Misconfigured: the topic's table has such columns, of types that cannot be taken so. What is not there may come.
    Asked when somebody chooses it, not when it is too late."""
    try:
        metadata = (await catalog.load_id(topic_id)).metadata
    except NoSuchTable:
        return
    for setting, terms in (("lakestream.table.partition", partition), ("lakestream.table.sort", sort)):
        for term in terms:
            try:
                _found(metadata, term)
            except ValueError as error:
                raise Misconfigured(f"topic setting {setting}: {error}") from error


def changes(metadata: Json, wanted: Arrangement) -> Changes:
    """Pure."""
    said, notices = said_of(metadata), list[str]()
    spec, spec_updates = _spec(metadata, said, _resolved(metadata, wanted.partition, "partitioned", notices))
    sort = [term.term for term in wanted.sort]
    keys = {found.term: found for found in _resolved(metadata, sort, "sorted", notices)}
    order, order_updates = _order(metadata, said, [(keys[one.term], one) for one in wanted.sort if one.term in keys])
    updates = [*spec_updates, *order_updates, *_properties(metadata, said, dict(wanted.properties))]
    if updates:
        first = plain_spec(metadata)
        specs = {*said.specs, *([] if first is None else [first["spec-id"]]), *([] if spec is None else [spec])}
        now = Said(spec, order, tuple(sorted(specs)), dict(wanted.properties))
        updates.append(SetProperties({LAYOUT: msgspec.json.encode(now).decode()}))
    return Changes(updates, tuple(notices))


def said_of(metadata: Json) -> Said:
    """What nobody can read, or what is about specs and orders that are gone, was not said."""
    try:
        said = msgspec.json.decode(metadata["properties"].get(LAYOUT, "{}"), type=Said)
    except msgspec.DecodeError:
        return Said()
    specs = {one["spec-id"] for one in metadata["partition-specs"]}
    orders = {one["order-id"] for one in metadata["sort-orders"]}
    return Said(
        said.spec if said.spec in specs else None,
        said.order if said.order in orders else None,
        tuple(number for number in said.specs if number in specs),
        said.properties,
    )


def own_specs(metadata: Json) -> frozenset[int]:
    """Files of these were laid out by us."""
    first, said = plain_spec(metadata), said_of(metadata)
    return frozenset(said.specs) | ({first["spec-id"]} if first is not None else frozenset())


def file_layout(metadata: Json) -> FileLayout:
    """How new files are to be. What cannot be followed any more, since a column was dropped, is as if it was not
    said."""
    said, has_rest = said_of(metadata), plain_spec(metadata) is not None
    cuts, sort = list[Cut](), list[SortKey]()
    if said.spec is not None:
        found = [_cut(metadata, field) for field in _one(metadata["partition-specs"], "spec-id", said.spec)["fields"]]
        cuts = [cut for cut in found if cut is not None]
        if len(cuts) < len(found):
            return PLAIN_LAYOUT
    if said.order is not None:
        for field in _one(metadata["sort-orders"], "order-id", said.order)["fields"]:
            if (cut := _cut(metadata, field)) is None:
                return FileLayout(said.spec, tuple(cuts), has_rest=has_rest)
            sort.append(SortKey(cut, field["direction"] == "desc", field["null-order"] == "nulls-first"))
    return FileLayout(said.spec, tuple(cuts), said.order if sort else None, tuple(sort), has_rest)


def _cut(metadata: Json, field: Json) -> Cut | None:
    kinds = {one.field_id: one.type for one in all_columns(columns_of(schema_of(metadata)))}
    kind, transform = kinds.get(field.get("source-id", 0)), Transform.of(field["transform"])
    if not isinstance(kind, Primitive) or transform is None or not transform.takes(kind):
        return None
    return Cut(field["source-id"], kind, transform)


# Columns


def _resolved(metadata: Json, terms: Sequence[Term], how: str, notices: list[str]) -> list[Found]:
    found = []
    for term in terms:
        try:
            one = _found(metadata, term)
        except ValueError as error:
            notices.append(f"its table is not {how} by {error}")
            continue
        if one is None:
            notices.append(f"its table is not {how} by {term}: it has no column {term.column} yet")
        else:
            found.append(one)
    return found


def _found(metadata: Json, term: Term) -> Found | None:
    """By the name that a column has, or had: one that was renamed is still the one that was meant."""
    now = columns_of(schema_of(metadata))
    if (found := found_in(term, now)) is not None:
        return found
    by_id = {column.field_id: column for column in all_columns(now)}
    for schema in reversed(metadata["schemas"]):
        try:
            before = found_in(term, columns_of(schema))
        except ValueError:
            continue
        if before is not None and before.source_id in by_id:
            return bound(term, by_id[before.source_id])
    return None


# Partition specs and sort orders


def _spec(metadata: Json, said: Said, wanted: Sequence[Found]) -> tuple[int | None, list[Update]]:
    """Which one to follow, and how it comes to be the table's. None: the one by the stream's partition alone."""
    meaning = [(str(one.term.transform), one.source_id) for one in wanted]
    if said.spec is None and meaning == _meaning(SPEC):
        return None, []  # whoever has removed that is told so when something is to be appended
    if said.spec is not None and _meaning(_one(metadata["partition-specs"], "spec-id", said.spec)) == meaning:
        return said.spec, []
    for spec in metadata["partition-specs"]:
        if _meaning(spec) == meaning:
            number: int = spec["spec-id"]
            return number, [SetDefaultSpec(number)]
    names = _Names(metadata)
    fields = [
        {
            "name": names.free(one),
            "transform": str(one.term.transform),
            "source-id": one.source_id,
        }
        for one in wanted
    ]
    number = next_free_id([spec["spec-id"] for spec in metadata["partition-specs"]], 0)
    return number, [AddSpec({"spec-id": number, "fields": fields}), SetDefaultSpec(LAST_ADDED)]


class _Names:
    """Of partition fields: no other column has them, and no other field of any spec."""

    def __init__(self, metadata: Json) -> None:
        self._columns = {field["name"]: field["id"] for field in schema_of(metadata)["fields"]}
        self._fields = {
            field["name"]: (field["transform"], field.get("source-id"))
            for spec in metadata["partition-specs"]
            for field in spec["fields"]
        }

    def free(self, found: Found) -> str:
        name, meaning = found.term.field_name, (str(found.term.transform), found.source_id)
        while self._columns.get(name, found.source_id) != found.source_id or (
            self._fields.get(name, meaning) != meaning
        ):
            name += "_"
        self._fields[name] = meaning
        return name


def _order(metadata: Json, said: Said, wanted: Sequence[tuple[Found, SortTerm]]) -> tuple[int | None, list[Update]]:
    fields = [
        {
            "transform": str(found.term.transform),
            "source-id": found.source_id,
            "direction": "desc" if one.is_descending else "asc",
            "null-order": "nulls-first" if one.nulls_first else "nulls-last",
        }
        for found, one in wanted
    ]
    now = [] if said.order is None else _one(metadata["sort-orders"], "order-id", said.order)["fields"]
    if fields == now:
        return said.order, []
    if not fields:
        number = order_by_offset(metadata)
        back: list[Update] = [AddSortOrder(ORDER)] if number is None else []
        return None, [*back, SetDefaultSortOrder(LAST_ADDED if number is None else number)]
    for order in metadata["sort-orders"]:
        if order["fields"] == fields:
            return order["order-id"], [SetDefaultSortOrder(order["order-id"])]
    number = next_free_id([order["order-id"] for order in metadata["sort-orders"]], 1)
    return number, [AddSortOrder({"order-id": number, "fields": fields}), SetDefaultSortOrder(LAST_ADDED)]


def _properties(metadata: Json, said: Said, wanted: dict[str, str]) -> list[Update]:
    """What is not wanted any more is as it was when the table was made."""
    if wanted == said.properties:
        return []
    gone = said.properties.keys() - wanted.keys()
    back = {name: DEFAULTS[name] for name in gone if name in DEFAULTS}
    removed = sorted(name for name in gone - back.keys() if name in metadata["properties"])
    updates: list[Update] = [RemoveProperties(removed)] if removed else []
    return [*updates, SetProperties({**back, **wanted})]


def _meaning(spec: Json) -> list[tuple[str, Any]]:
    return [(field["transform"], field.get("source-id")) for field in spec["fields"]]


def _one(listed: Sequence[Json], name: str, number: int) -> Json:
    return next(one for one in listed if one[name] == number)
