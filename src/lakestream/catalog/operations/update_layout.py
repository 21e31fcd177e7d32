"""Applies a topic's layout settings to its table in one commit of metadata. No file is changed.

Before: the settings (schemas/layout_terms.py parses them).  After: workers write new files by them (file_layout.py).
Existing files keep their layout, which each of them states.

The applied layout is kept in a property of the table. The settings are applied again when they change, or when a
missing column was added. They are not applied again when an engine changes the table's defaults: the defaults are for
files of engines.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.errors import NoSuchTable
from lakestream.catalog.operations.update_schema import commit_until_applied
from lakestream.catalog.table_metadata.builder import LAST_ADDED
from lakestream.catalog.table_metadata.json_model import Json, schema_of
from lakestream.catalog.table_metadata.specs import next_free_id
from lakestream.catalog.table_metadata.updates import (
    AddSortOrder,
    AddSpec,
    RemoveProperties,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetProperties,
    Update,
)
from lakestream.catalog.topic_table.checks import ORDER, SPEC, order_by_offset, plain_spec
from lakestream.catalog.topic_table.file_layout import PLAIN_LAYOUT, FileLayout, SortKey, TransformedColumn
from lakestream.catalog.topic_table.properties import DEFAULTS
from lakestream.errors import Misconfigured, Rejected
from lakestream.schemas.columns import all_columns, columns_of
from lakestream.schemas.layout_terms import (
    BoundTerm,
    SortTerm,
    Term,
    Transform,
    bind_term,
    partition_terms,
    resolve_term,
)
from lakestream.schemas.types import Primitive

log = logging.getLogger(__name__)

LAYOUT: Final = "lakestream.layout"
BY_PARTITION: Final = partition_terms("_stream.partition")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """The layout settings of a topic."""

    partition: tuple[Term, ...] = BY_PARTITION
    sort: tuple[SortTerm, ...] = ()
    """Empty: by offset."""
    properties: tuple[tuple[str, str], ...] = ()


_DEFAULT: Final = TableLayout()


class AppliedLayout(msgspec.Struct, frozen=True, omit_defaults=True):
    """The layout that was applied last, as stored in the table's property."""

    spec: int | None = None
    order: int | None = None
    specs: tuple[int, ...] = ()
    """All that were ever applied: the pipeline wrote files of these."""
    properties: dict[str, str] = {}


class LayoutChanges(NamedTuple):
    updates: list[Update]
    """Empty: the table has the layout already."""
    notices: tuple[str, ...]
    """Settings that cannot be applied now, and why."""


async def update_layout(
    catalog: Catalog, table: LoadedTable, requested: TableLayout, *, only_whole: bool = False
) -> tuple[LoadedTable, str]:
    """Applies the settings as far as possible. Returns the table and, in one line, what could not be applied.

    If nothing has changed, it makes no request. `only_whole`: applies all settings or none.
    """
    if requested == _DEFAULT and LAYOUT not in table.metadata["properties"]:
        return table, ""
    changes = layout_changes(table.metadata, requested)
    if changes.updates and not (only_whole and changes.notices):
        try:
            table = await commit_until_applied(
                catalog, table.table_id, lambda metadata: layout_changes(metadata, requested).updates
            )
        except Rejected as error:
            return table, f"the layout settings cannot be applied to its table: {error}"
        log.info("catalog.layout_updated table=%s %s", table.name, table.metadata["properties"].get(LAYOUT, ""))
    return table, "; ".join(changes.notices)


async def check_terms(catalog: Catalog, topic_id: str, partition: Sequence[Term], sort: Sequence[Term]) -> None:
    """Raises Misconfigured if a column of the topic's table has a type that a term cannot use.

    Columns that do not exist may be added later. Called when the settings are changed, to reject them immediately.
    """
    try:
        metadata = (await catalog.load_id(topic_id)).file.without_snapshots()
    except NoSuchTable:
        return
    for setting, terms in (("lakestream.table.partition", partition), ("lakestream.table.sort", sort)):
        for term in terms:
            try:
                _bound_term(metadata, term)
            except ValueError as error:
                raise Misconfigured(f"topic setting {setting}: {error}") from error


def layout_changes(metadata: Json, requested: TableLayout) -> LayoutChanges:
    """Returns the updates that apply the settings. Pure."""
    applied, notices = applied_layout(metadata), list[str]()
    spec, spec_updates = _spec(metadata, applied, _resolved(metadata, requested.partition, "partitioned", notices))
    sort = [term.term for term in requested.sort]
    keys = {found.term: found for found in _resolved(metadata, sort, "sorted", notices)}
    order, order_updates = _order(
        metadata, applied, [(keys[one.term], one) for one in requested.sort if one.term in keys]
    )
    updates = [*spec_updates, *order_updates, *_properties(metadata, applied, dict(requested.properties))]
    if updates:
        first = plain_spec(metadata)
        specs = {*applied.specs, *([] if first is None else [first["spec-id"]]), *([] if spec is None else [spec])}
        now = AppliedLayout(spec, order, tuple(sorted(specs)), dict(requested.properties))
        updates.append(SetProperties({LAYOUT: msgspec.json.encode(now).decode()}))
    return LayoutChanges(updates, tuple(notices))


def applied_layout(metadata: Json) -> AppliedLayout:
    """Returns the layout of the property, without specs and orders that were removed; the default if it is invalid."""
    try:
        stored = msgspec.json.decode(metadata["properties"].get(LAYOUT, "{}"), type=AppliedLayout)
    except msgspec.DecodeError:
        return AppliedLayout()
    specs = {one["spec-id"] for one in metadata["partition-specs"]}
    orders = {one["order-id"] for one in metadata["sort-orders"]}
    return AppliedLayout(
        stored.spec if stored.spec in specs else None,
        stored.order if stored.order in orders else None,
        tuple(number for number in stored.specs if number in specs),
        stored.properties,
    )


def own_specs(metadata: Json) -> frozenset[int]:
    """Returns the partition specs with which the pipeline has written files."""
    first, applied = plain_spec(metadata), applied_layout(metadata)
    return frozenset(applied.specs) | ({first["spec-id"]} if first is not None else frozenset())


def file_layout(metadata: Json) -> FileLayout:
    """Returns the layout of new files. A spec or order with a dropped column is not used."""
    applied, has_rest = applied_layout(metadata), plain_spec(metadata) is not None
    cuts, sort = list[TransformedColumn](), list[SortKey]()
    if applied.spec is not None:
        found = [
            _transformed_column(metadata, field)
            for field in _by_id(metadata["partition-specs"], "spec-id", applied.spec)["fields"]
        ]
        cuts = [cut for cut in found if cut is not None]
        if len(cuts) < len(found):
            return PLAIN_LAYOUT
    if applied.order is not None:
        for field in _by_id(metadata["sort-orders"], "order-id", applied.order)["fields"]:
            if (cut := _transformed_column(metadata, field)) is None:
                return FileLayout(applied.spec, tuple(cuts), has_rest=has_rest)
            sort.append(SortKey(cut, field["direction"] == "desc", field["null-order"] == "nulls-first"))
    return FileLayout(applied.spec, tuple(cuts), applied.order if sort else None, tuple(sort), has_rest)


def _transformed_column(metadata: Json, field: Json) -> TransformedColumn | None:
    kinds = {one.field_id: one.type for one in all_columns(columns_of(schema_of(metadata)))}
    kind, transform = kinds.get(field.get("source-id", 0)), Transform.of(field["transform"])
    if not isinstance(kind, Primitive) or transform is None or not transform.accepts(kind):
        return None
    return TransformedColumn(field["source-id"], kind, transform)


# Columns


def _resolved(metadata: Json, terms: Sequence[Term], how: str, notices: list[str]) -> list[BoundTerm]:
    found = []
    for term in terms:
        try:
            one = _bound_term(metadata, term)
        except ValueError as error:
            notices.append(f"its table is not {how} by {error}")
            continue
        if one is None:
            notices.append(f"its table is not {how} by {term}: it has no column {term.column} yet")
        else:
            found.append(one)
    return found


def _bound_term(metadata: Json, term: Term) -> BoundTerm | None:
    """Finds the column of a term by its current or a former name: settings keep working after a rename."""
    now = columns_of(schema_of(metadata))
    if (found := resolve_term(term, now)) is not None:
        return found
    by_id = {column.field_id: column for column in all_columns(now)}
    for schema in reversed(metadata["schemas"]):
        try:
            before = resolve_term(term, columns_of(schema))
        except ValueError:
            continue
        if before is not None and before.source_id in by_id:
            return bind_term(term, by_id[before.source_id])
    return None


# Partition specs and sort orders


def _spec(metadata: Json, applied: AppliedLayout, requested: Sequence[BoundTerm]) -> tuple[int | None, list[Update]]:
    """Returns the spec to use, and the updates that add it. None: the spec by `_stream.partition` alone."""
    meaning = [(str(one.term.transform), one.source_id) for one in requested]
    if applied.spec is None and meaning == _meaning(SPEC):
        return None, []  # if an engine has removed it, the next append raises IncompatibleTable
    if applied.spec is not None and _meaning(_by_id(metadata["partition-specs"], "spec-id", applied.spec)) == meaning:
        return applied.spec, []
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
        for one in requested
    ]
    number = next_free_id([spec["spec-id"] for spec in metadata["partition-specs"]], 0)
    return number, [AddSpec({"spec-id": number, "fields": fields}), SetDefaultSpec(LAST_ADDED)]


class _Names:
    """Chooses names of partition fields that no other column and no other field of any spec has."""

    def __init__(self, metadata: Json) -> None:
        self._columns = {field["name"]: field["id"] for field in schema_of(metadata)["fields"]}
        self._fields = {
            field["name"]: (field["transform"], field.get("source-id"))
            for spec in metadata["partition-specs"]
            for field in spec["fields"]
        }

    def free(self, found: BoundTerm) -> str:
        name, meaning = found.term.field_name, (str(found.term.transform), found.source_id)
        while self._columns.get(name, found.source_id) != found.source_id or (
            self._fields.get(name, meaning) != meaning
        ):
            name += "_"
        self._fields[name] = meaning
        return name


def _order(
    metadata: Json, applied: AppliedLayout, requested: Sequence[tuple[BoundTerm, SortTerm]]
) -> tuple[int | None, list[Update]]:
    fields = [
        {
            "transform": str(found.term.transform),
            "source-id": found.source_id,
            "direction": "desc" if one.is_descending else "asc",
            "null-order": "nulls-first" if one.nulls_first else "nulls-last",
        }
        for found, one in requested
    ]
    now = [] if applied.order is None else _by_id(metadata["sort-orders"], "order-id", applied.order)["fields"]
    if fields == now:
        return applied.order, []
    if not fields:
        number = order_by_offset(metadata)
        back: list[Update] = [AddSortOrder(ORDER)] if number is None else []
        return None, [*back, SetDefaultSortOrder(LAST_ADDED if number is None else number)]
    for order in metadata["sort-orders"]:
        if order["fields"] == fields:
            return order["order-id"], [SetDefaultSortOrder(order["order-id"])]
    number = next_free_id([order["order-id"] for order in metadata["sort-orders"]], 1)
    return number, [AddSortOrder({"order-id": number, "fields": fields}), SetDefaultSortOrder(LAST_ADDED)]


def _properties(metadata: Json, applied: AppliedLayout, requested: dict[str, str]) -> list[Update]:
    """Returns the updates of properties. Those that are no longer set get their defaults again."""
    if requested == applied.properties:
        return []
    unset = applied.properties.keys() - requested.keys()
    back = {name: DEFAULTS[name] for name in unset if name in DEFAULTS}
    removed = sorted(name for name in unset - back.keys() if name in metadata["properties"])
    updates: list[Update] = [RemoveProperties(removed)] if removed else []
    return [*updates, SetProperties({**back, **requested})]


def _meaning(spec: Json) -> list[tuple[str, Any]]:
    return [(field["transform"], field.get("source-id")) for field in spec["fields"]]


def _by_id(listed: Sequence[Json], name: str, number: int) -> Json:
    return next(one for one in listed if one[name] == number)
