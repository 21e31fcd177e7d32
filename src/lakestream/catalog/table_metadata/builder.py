"""Applies the updates of one commit to a table's metadata: base in, new metadata out. Pure.

The time is linear in the sizes of the metadata and the updates (draft.py). Rejected: the update is invalid for the
table. CommitFailed: it was valid for the table that the client loaded.

A new table is a list of updates too, so that all metadata is validated in the same way.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lakestream.catalog.table_metadata import snapshots
from lakestream.catalog.table_metadata import updates as u
from lakestream.catalog.table_metadata.draft import ID_NAMES, KEYS, ORDERS, SCHEMAS, SPECS, STATISTICS, TableDraft
from lakestream.catalog.table_metadata.json_model import (
    FORMAT_VERSION_MAX,
    NO_SNAPSHOT,
    Json,
    normalised,
    schema_of,
    spec_of,
)
from lakestream.catalog.table_metadata.schemas import (
    Fields,
    check_schema,
    field_ids,
    fields_of,
    highest_field_id,
    schema_meaning,
    with_fresh_ids,
)
from lakestream.catalog.table_metadata.specs import (
    PARTITION_ID_FIRST,
    UNPARTITIONED,
    UNSORTED,
    FieldMeaning,
    check_order,
    check_spec,
    field_meaning,
    has_sources,
    next_free_id,
    numbered_fields,
    order_meaning,
    spec_meaning,
    with_sources,
)
from lakestream.errors import Rejected

LAST_ADDED: Final = -1
FORMAT_VERSION_DEFAULT: Final = 2
UPDATES_MAX: Final = 2_000
ID_STEP_MAX: Final = 1_000_000
"""By how much a commit may raise the highest field id. At the maximum no column could be added any more."""
LAYOUTS_MAX: Final = 100
"""Schemas, specs and orders that one commit may add."""
ENTRIES_MAX: Final = 10_000
"""Schemas, specs or orders of a table."""
PROPERTIES_MAX: Final = 10_000


def apply_updates(base: Json | None, updates: Sequence[u.Update], now_ms: int) -> Json:
    """Returns the metadata after all updates; the base itself if they change nothing. `base`: None for a new table."""
    draft = MetadataBuilder(_empty(_first_version(updates)) if base is None else base, now_ms)
    for update in _combined(updates):
        draft.apply(update)
    return draft.finished(is_new=base is None)


class MetadataBuilder(TableDraft):
    def __init__(self, base: Json, now_ms: int) -> None:
        super().__init__(base, now_ms)
        self._added: dict[str, int] = {}
        self._known: dict[str, dict[object, tuple[int, Json]]] = {}
        """Schemas, specs and orders by what they mean, with their ids."""
        self._fields: dict[int, tuple[Json, Fields]] = {}
        """By schema id, with the schema: an id may be removed and given again."""
        self._partition_ids: dict[FieldMeaning, int] | None = None

    def apply(self, update: u.Update) -> None:
        _APPLY[type(update)](self, update)

    def finished(self, *, is_new: bool) -> Json:
        """Returns the complete metadata, which every reader can load."""
        self.settle()
        if self.table == self.base and not is_new:
            return self.base
        self._check_layouts()
        self._check_properties()
        self.table["snapshot-log"] = snapshots.trimmed_snapshot_log(
            self.table, len(self.base["snapshot-log"]), bool(self.snapshots_removed)
        )
        self.table["last-updated-ms"] = self.now_ms if self.updated_ms is None else self.updated_ms
        snapshots.check_times(self.table)
        normalised(self.table)  # metadata that cannot be read must not be written
        return self.table

    def _check_layouts(self) -> None:
        table = self.table
        if not table["schemas"] or not table["partition-specs"] or not table["sort-orders"] or not table["location"]:
            raise Rejected("a new table needs a location, a schema, a partition spec and a sort order")
        schema = schema_of(table)
        orders = [one for one in table["sort-orders"] if one["order-id"] == table["default-sort-order-id"]]
        if not orders:
            raise Rejected("a new table needs a default sort order: set one of its sort orders as the default")
        there = field_ids(schema)
        if not has_sources(spec_of(table), there):
            raise Rejected("the table is partitioned by a column that the schema would no longer have")
        if not has_sources(orders[0], there):
            raise Rejected("the table is sorted by a column that the schema would no longer have")

    def _check_properties(self) -> None:
        count = len(self.table["properties"])
        if count > PROPERTIES_MAX and count > len(self.base["properties"]):
            raise Rejected(f"the table would have {count} properties, more than {PROPERTIES_MAX}: remove some")

    # The table

    def assign_uuid(self, update: u.AssignUuid) -> None:
        if self.table["table-uuid"] not in ("", update.uuid):
            raise Rejected(
                f"the table's UUID {self.table['table-uuid']} is final: it cannot be changed to {update.uuid}"
            )
        self.table["table-uuid"] = update.uuid

    def upgrade(self, update: u.UpgradeFormatVersion) -> None:
        current, requested = self.table["format-version"], update.format_version
        if not current <= requested <= FORMAT_VERSION_MAX:
            raise Rejected(
                f"format version {current} cannot be changed to {requested}: choose {current} to {FORMAT_VERSION_MAX}"
            )
        if requested == current:
            return
        self.table["format-version"] = requested
        if requested >= 3:
            self.table.setdefault("next-row-id", 0)

    def set_location(self, update: u.SetLocation) -> None:
        self.table["location"] = update.location.rstrip("/")

    def set_properties(self, update: u.SetProperties) -> None:
        self.map_of("properties").update(update.updates)

    def remove_properties(self, update: u.RemoveProperties) -> None:
        properties = self.map_of("properties")
        for name in update.removals:
            properties.pop(name, None)

    # Schemas

    def add_schema(self, update: u.AddSchema) -> None:
        table = self.table
        check_schema(update.schema, table["format-version"])
        last = max(table["last-column-id"], highest_field_id(update.schema), update.last_column_id or 0)
        _check_step("field id", table["last-column-id"], last)
        table["last-column-id"] = last
        meaning = schema_meaning(update.schema)
        if (number := self._same(SCHEMAS, meaning, schema_meaning)) is None:
            number = self._free_id(SCHEMAS, 0)
            self._add(SCHEMAS, number, {"type": "struct", **update.schema, "schema-id": number}, meaning)
        self._added["schema"] = number

    def set_current_schema(self, update: u.SetCurrentSchema) -> None:
        number = self._last_added("schema", update.schema_id)
        self._find(SCHEMAS, number)
        self.table["current-schema-id"] = number

    def remove_schemas(self, update: u.RemoveSchemas) -> None:
        if self.table["current-schema-id"] in update.schema_ids:
            raise Rejected("the current schema cannot be removed")
        self.drop(SCHEMAS, update.schema_ids)

    # Partition specs and sort orders

    def add_spec(self, update: u.AddSpec) -> None:
        check_spec(update.spec, self._current_fields())
        meaning = spec_meaning(update.spec)
        if (number := self._same(SPECS, meaning, spec_meaning)) is None:
            number = self._free_id(SPECS, 0)
            self._add(SPECS, number, {"spec-id": number, "fields": self._numbered_fields(update.spec)}, meaning)
        self._added["spec"] = number

    def _numbered_fields(self, spec: Json) -> list[Json]:
        table = self.table
        if self._partition_ids is None:
            known = (field for one in self.entries(SPECS).values() for field in one["fields"])
            self._partition_ids = {field_meaning(field): field["field-id"] for field in known}
        fields = numbered_fields(spec, self._partition_ids, table["last-partition-id"])
        if table["format-version"] == 1 and [field["field-id"] for field in fields] != list(
            range(PARTITION_ID_FIRST, PARTITION_ID_FIRST + len(fields))
        ):
            raise Rejected("format version 1 needs the partition field ids 1000, 1001, … in order")
        last = max([table["last-partition-id"], *(field["field-id"] for field in fields)])
        _check_step("partition field id", table["last-partition-id"], last)
        table["last-partition-id"] = last
        self._partition_ids.update((field_meaning(field), field["field-id"]) for field in fields)
        return fields

    def set_default_spec(self, update: u.SetDefaultSpec) -> None:
        number = self._last_added("spec", update.spec_id)
        self._find(SPECS, number)
        self.table["default-spec-id"] = number

    def remove_specs(self, update: u.RemovePartitionSpecs) -> None:
        if self.table["default-spec-id"] in update.spec_ids:
            raise Rejected("the default partition spec cannot be removed")
        self.drop(SPECS, update.spec_ids)

    def add_order(self, update: u.AddSortOrder) -> None:
        check_order(update.sort_order, self._current_fields().ids)
        meaning = order_meaning(update.sort_order)
        if (number := self._same(ORDERS, meaning, order_meaning)) is None:
            number = self._free_id(ORDERS, 1) if update.sort_order["fields"] else 0  # of the order of no fields
            self._add(ORDERS, number, {**update.sort_order, "order-id": number}, meaning)
        self._added["sort order"] = number

    def set_default_order(self, update: u.SetDefaultSortOrder) -> None:
        number = self._last_added("sort order", update.sort_order_id)
        self._find(ORDERS, number)
        self.table["default-sort-order-id"] = number

    # Statistics and keys

    def set_statistics(self, update: u.SetStatistics) -> None:
        self._replace(STATISTICS[0], update.statistics)

    def remove_statistics(self, update: u.RemoveStatistics) -> None:
        self.drop(STATISTICS[0], [update.snapshot_id])

    def set_partition_statistics(self, update: u.SetPartitionStatistics) -> None:
        self._replace(STATISTICS[1], update.partition_statistics)

    def remove_partition_statistics(self, update: u.RemovePartitionStatistics) -> None:
        self.drop(STATISTICS[1], [update.snapshot_id])

    def add_key(self, update: u.AddEncryptionKey) -> None:
        if self.table["format-version"] < 3:
            raise Rejected("encryption keys need format version 3")
        self._replace(KEYS, update.encryption_key)

    def remove_key(self, update: u.RemoveEncryptionKey) -> None:
        self.drop(KEYS, [update.key_id])

    def nothing(self, update: u.EnableRowLineage) -> None:
        """Ignored: always enabled in format version 3, not available before."""

    # Helpers

    def _current_fields(self) -> Fields:
        number = self.table["current-schema-id"]
        schema = self.entries(SCHEMAS).get(number)
        if schema is None:
            raise Rejected("the table has no schema: add a schema first")
        if number not in self._fields or self._fields[number][0] is not schema:
            self._fields[number] = schema, fields_of(schema)
        return self._fields[number][1]

    def _same(self, listed: str, meaning: object, meaning_of: Callable[[Json], object]) -> int | None:
        """Returns the id of a known schema, spec or order that means the same."""
        if listed not in self._known:
            known: dict[object, tuple[int, Json]] = {}
            for one in self.entries(listed).values():
                known.setdefault(meaning_of(one), (one.get(ID_NAMES[listed], 0), one))
            self._known[listed] = known
        number, entry = self._known[listed].get(meaning, (0, None))
        return number if entry is not None and self.entries(listed).get(number) is entry else None

    def _add(self, listed: str, number: int, entry: Json, meaning: object) -> None:
        if len(self.entries(listed)) >= ENTRIES_MAX:
            raise Rejected(f"the table has {ENTRIES_MAX} {listed}, the maximum: remove those that no snapshot needs")
        self.put(listed, number, entry)
        self._known[listed][meaning] = number, entry

    def _free_id(self, listed: str, first: int) -> int:
        return next_free_id(_numbers(self.entries(listed)), first)

    def _last_added(self, what: str, number: int) -> int:
        if number != LAST_ADDED:
            return number
        if what not in self._added:
            raise Rejected(f"the commit refers to the last added {what}, but adds none")
        return self._added[what]

    def _find(self, listed: str, number: int) -> None:
        if number not in self.entries(listed):
            raise Rejected(f"the table has no {ID_NAMES[listed]} {number}")

    def _replace(self, listed: str, entry: Json) -> None:
        number = entry.get(ID_NAMES[listed])
        if not isinstance(number, int | str):
            raise Rejected(f"an entry of {listed} has no {ID_NAMES[listed]}")
        self.put(listed, number, entry)


def _numbers(ids: Iterable[int | str]) -> list[int]:
    return [number for number in ids if isinstance(number, int)]


def _check_step(what: str, last: int, number: int) -> None:
    if number > last + ID_STEP_MAX:
        raise Rejected(f"{what} {number} is far above the table's last, {last}: use the next ids")


def _combined(updates: Sequence[u.Update]) -> list[u.Update]:
    """Combines adjacent updates that remove snapshots, because some clients send one for each of thousands.

    Rejected: there are too many updates.
    """
    joined: list[u.Update] = []
    for update in updates:
        last = joined[-1] if joined else None
        if isinstance(update, u.RemoveSnapshots) and isinstance(last, u.RemoveSnapshots):
            last.snapshot_ids.extend(update.snapshot_ids)
        else:
            joined.append(
                u.RemoveSnapshots(list(update.snapshot_ids)) if isinstance(update, u.RemoveSnapshots) else update
            )
    layouts = sum(isinstance(update, u.AddSchema | u.AddSpec | u.AddSortOrder) for update in joined)
    if len(joined) > UPDATES_MAX or layouts > LAYOUTS_MAX:
        raise Rejected(
            f"a commit has at most {UPDATES_MAX} updates, {LAYOUTS_MAX} of them new schemas, specs or orders"
        )
    return joined


def _first_version(updates: Sequence[u.Update]) -> int:
    """Returns the format version of a new table: that of its upgrade, if it has one."""
    versions = [update.format_version for update in updates if isinstance(update, u.UpgradeFormatVersion)]
    version = versions[0] if versions else FORMAT_VERSION_DEFAULT
    if not 1 <= version <= FORMAT_VERSION_MAX:
        raise Rejected(f"format version {version} is not supported: choose 1 to {FORMAT_VERSION_MAX}")
    return version


def _empty(format_version: int) -> Json:
    table: Json = {
        "format-version": format_version,
        "table-uuid": "",
        "location": "",
        "last-sequence-number": 0,
        "last-updated-ms": 0,
        "last-column-id": 0,
        "current-schema-id": 0,
        "schemas": [],
        "default-spec-id": 0,
        "partition-specs": [],
        "last-partition-id": PARTITION_ID_FIRST - 1,
        "default-sort-order-id": 0,
        "sort-orders": [],
        "properties": {},
        "current-snapshot-id": NO_SNAPSHOT,
        "refs": {},
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
    }
    return table | {"next-row-id": 0} if format_version >= 3 else table


_APPLY: Final[dict[type, Callable[[MetadataBuilder, Any], None]]] = {
    u.AssignUuid: MetadataBuilder.assign_uuid,
    u.UpgradeFormatVersion: MetadataBuilder.upgrade,
    u.AddSchema: MetadataBuilder.add_schema,
    u.SetCurrentSchema: MetadataBuilder.set_current_schema,
    u.AddSpec: MetadataBuilder.add_spec,
    u.SetDefaultSpec: MetadataBuilder.set_default_spec,
    u.AddSortOrder: MetadataBuilder.add_order,
    u.SetDefaultSortOrder: MetadataBuilder.set_default_order,
    u.AddSnapshot: snapshots.add_snapshot,
    u.SetSnapshotRef: snapshots.set_ref,
    u.RemoveSnapshots: snapshots.remove_snapshots,
    u.RemoveSnapshotRef: snapshots.remove_ref,
    u.SetLocation: MetadataBuilder.set_location,
    u.SetProperties: MetadataBuilder.set_properties,
    u.RemoveProperties: MetadataBuilder.remove_properties,
    u.SetStatistics: MetadataBuilder.set_statistics,
    u.RemoveStatistics: MetadataBuilder.remove_statistics,
    u.SetPartitionStatistics: MetadataBuilder.set_partition_statistics,
    u.RemovePartitionStatistics: MetadataBuilder.remove_partition_statistics,
    u.RemovePartitionSpecs: MetadataBuilder.remove_specs,
    u.RemoveSchemas: MetadataBuilder.remove_schemas,
    u.AddEncryptionKey: MetadataBuilder.add_key,
    u.RemoveEncryptionKey: MetadataBuilder.remove_key,
    u.EnableRowLineage: MetadataBuilder.nothing,
}


FORMAT_VERSION: str = "format-version"
"""A property of create requests, stored as a field."""


@dataclass(frozen=True, slots=True)
class NewTable:
    """What a create request chooses."""

    schema: Json
    spec: Json | None = None
    order: Json | None = None
    location: str = ""
    """Empty: the catalog chooses one."""
    properties: Mapping[str, str] | None = None
    fresh_ids: bool = False
    """Columns are numbered from 1 on, as catalogs do with schemas of clients. Otherwise the given ids are kept."""


def new_table_updates(new: NewTable, uuid: str, location: str) -> list[u.Update]:
    """Returns the updates that create the table at `location`."""
    properties = dict(new.properties or {})
    version = _version(properties.pop(FORMAT_VERSION, ""))
    schema, spec, order = new.schema, new.spec or UNPARTITIONED, new.order or UNSORTED
    check_schema(schema, version)
    if new.fresh_ids:
        fields = fields_of(schema)
        check_spec(spec, fields)
        check_order(order, fields.ids)
        schema, given = with_fresh_ids(schema)
        spec, order = _unnumbered(with_sources(spec, given)), with_sources(order, given)
    creation: list[u.Update] = [
        u.AssignUuid(uuid),
        u.UpgradeFormatVersion(version),
        u.AddSchema(schema),
        u.SetCurrentSchema(LAST_ADDED),
        u.AddSpec(spec),
        u.SetDefaultSpec(LAST_ADDED),
        # Also for sorted tables: Spark's rewrite of files into another order needs it, and fails without.
        u.AddSortOrder(UNSORTED),
        u.AddSortOrder(order),
        u.SetDefaultSortOrder(LAST_ADDED),
        u.SetLocation(location),
    ]
    return [*creation, u.SetProperties(properties)] if properties else creation


def _version(text: str) -> int:
    if not text:
        return FORMAT_VERSION_DEFAULT
    if not text.isdecimal() or len(text) > 2 or not 1 <= int(text) <= FORMAT_VERSION_MAX:
        raise Rejected(f"format-version is {text[:20]!r}: choose 1 to {FORMAT_VERSION_MAX}")
    return int(text)


def _unnumbered(spec: Json) -> Json:
    return {
        **spec,
        "fields": [{name: part for name, part in field.items() if name != "field-id"} for field in spec["fields"]],
    }
