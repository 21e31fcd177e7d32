"""A table's metadata while the updates of one commit are applied to it: base in, new metadata out. Pure.

Lists and maps are copied before they change, and nothing inside them ever changes: the base stays what it was, and a
table with ten thousand snapshots is not copied for each of them. Rejected: the update is wrong for any table of this
kind. CommitRefused: it was right for the table as it was when the client looked.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from lakestream.catalog import history
from lakestream.catalog import updates as u
from lakestream.catalog.layouts import (
    PARTITION_ID_FIRST,
    check_order,
    check_spec,
    next_free_id,
    numbered_fields,
    same_order,
    same_spec,
    sources_are_there,
)
from lakestream.catalog.schemas import check_schema, highest_field_id, same_schema
from lakestream.catalog.shapes import FORMAT_VERSION_MAX, NO_SNAPSHOT, Json, normalised, schema_of, spec_of
from lakestream.errors import Rejected

LAST_ADDED: Final = -1
FORMAT_VERSION_DEFAULT: Final = 2
UPDATES_MAX: Final = 2_000
LAYOUTS_MAX: Final = 100
"""Schemas, specs and orders that one commit may add: each is held against all that are there."""


def applied(base: Json | None, updates: Sequence[u.Update], now_ms: int) -> Json:
    """The metadata after all updates, in order. The base itself where they change nothing; None: a new table."""
    draft = Draft(_empty(_first_version(updates)) if base is None else base, now_ms)
    for update in _joined(updates):
        draft.apply(update)
    return draft.finished(is_new=base is None)


class Draft:
    def __init__(self, base: Json, now_ms: int) -> None:
        self._base = base
        self.table: Json = dict(base)
        self.now_ms = now_ms
        self.snapshots_added: set[int] = set()
        self.snapshots_removed = False
        self.updated_ms: int | None = None
        """Set by updates that bring a time of their own."""
        self._added: dict[str, int] = {}

    def apply(self, update: u.Update) -> None:
        _APPLY[type(update)](self, update)

    def finished(self, *, is_new: bool) -> Json:
        """Whole, and such that every reader can load it."""
        if self.table == self._base and not is_new:
            return self._base
        self._check_layouts()
        self.table["snapshot-log"] = history.settled_log(self.table, self.snapshots_added, self.snapshots_removed)
        self.table["last-updated-ms"] = self.now_ms if self.updated_ms is None else self.updated_ms
        history.check_times(self.table)
        normalised(self.table)  # what cannot be read again must not be written
        return self.table

    def _check_layouts(self) -> None:
        table = self.table
        if not table["schemas"] or not table["partition-specs"] or not table["sort-orders"] or not table["location"]:
            raise Rejected("a new table needs a location, a schema, a partition spec and a sort order")
        schema = schema_of(table)
        orders = [one for one in table["sort-orders"] if one["order-id"] == table["default-sort-order-id"]]
        if not orders:
            raise Rejected("a new table needs a default sort order: set one of those that it has")
        if not sources_are_there(spec_of(table), schema):
            raise Rejected("the table is partitioned by a column that the schema would no longer have")
        if not sources_are_there(orders[0], schema):
            raise Rejected("the table is sorted by a column that the schema would no longer have")

    # What the table is

    def assign_uuid(self, update: u.AssignUuid) -> None:
        if self.table["table-uuid"] not in ("", update.uuid):
            raise Rejected(
                f"the table has the UUID {self.table['table-uuid']} for good: it cannot become {update.uuid}"
            )
        self.table["table-uuid"] = update.uuid

    def upgrade(self, update: u.UpgradeFormatVersion) -> None:
        there, wanted = self.table["format-version"], update.format_version
        if not there <= wanted <= FORMAT_VERSION_MAX:
            raise Rejected(f"a table of format version {there} cannot become {wanted}: {there} to {FORMAT_VERSION_MAX}")
        if wanted == there:
            return
        self.table["format-version"] = wanted
        if wanted >= 3:
            self.table.setdefault("next-row-id", 0)

    def set_location(self, update: u.SetLocation) -> None:
        self.table["location"] = update.location.rstrip("/")

    def set_properties(self, update: u.SetProperties) -> None:
        self.table["properties"] = {**self.table["properties"], **update.updates}

    def remove_properties(self, update: u.RemoveProperties) -> None:
        gone = set(update.removals)
        self.table["properties"] = {name: text for name, text in self.table["properties"].items() if name not in gone}

    # Its schemas

    def add_schema(self, update: u.AddSchema) -> None:
        table = self.table
        check_schema(update.schema, table["format-version"])
        last = max(table["last-column-id"], highest_field_id(update.schema))
        table["last-column-id"] = max(last, update.last_column_id or 0)
        for known in table["schemas"]:
            if same_schema(known, update.schema):
                self._added["schema"] = known.get("schema-id", 0)
                return
        number = next_free_id([known.get("schema-id", 0) for known in table["schemas"]], 0)
        table["schemas"] = [*table["schemas"], {"type": "struct", **update.schema, "schema-id": number}]
        self._added["schema"] = number

    def set_current_schema(self, update: u.SetCurrentSchema) -> None:
        number = self._last_added("schema", update.schema_id)
        self._find("schemas", "schema-id", number)
        self.table["current-schema-id"] = number

    def remove_schemas(self, update: u.RemoveSchemas) -> None:
        if self.table["current-schema-id"] in update.schema_ids:
            raise Rejected("the current schema cannot be removed")
        self._drop("schemas", "schema-id", update.schema_ids)

    # How it is laid out

    def add_spec(self, update: u.AddSpec) -> None:
        table = self.table
        check_spec(update.spec, self._schema())
        for known in table["partition-specs"]:
            if same_spec(known, update.spec):
                self._added["spec"] = known["spec-id"]
                return
        number = next_free_id([known["spec-id"] for known in table["partition-specs"]], 0)
        fields = numbered_fields(update.spec, table["partition-specs"], table["last-partition-id"])
        if table["format-version"] == 1 and [field["field-id"] for field in fields] != list(
            range(PARTITION_ID_FIRST, PARTITION_ID_FIRST + len(fields))
        ):
            raise Rejected("format version 1 wants partition field ids 1000, 1001, … in order")
        table["last-partition-id"] = max([table["last-partition-id"], *(field["field-id"] for field in fields)])
        table["partition-specs"] = [*table["partition-specs"], {"spec-id": number, "fields": fields}]
        self._added["spec"] = number

    def set_default_spec(self, update: u.SetDefaultSpec) -> None:
        number = self._last_added("spec", update.spec_id)
        self._find("partition-specs", "spec-id", number)
        self.table["default-spec-id"] = number

    def remove_specs(self, update: u.RemovePartitionSpecs) -> None:
        if self.table["default-spec-id"] in update.spec_ids:
            raise Rejected("the default partition spec cannot be removed")
        self._drop("partition-specs", "spec-id", update.spec_ids)

    def add_order(self, update: u.AddSortOrder) -> None:
        table = self.table
        check_order(update.sort_order, self._schema())
        for known in table["sort-orders"]:
            if same_order(known, update.sort_order):
                self._added["sort order"] = known["order-id"]
                return
        number = 0  # reserved for the order of no fields
        if update.sort_order["fields"]:
            number = next_free_id([known["order-id"] for known in table["sort-orders"]], 1)
        table["sort-orders"] = [*table["sort-orders"], {**update.sort_order, "order-id": number}]
        self._added["sort order"] = number

    def set_default_order(self, update: u.SetDefaultSortOrder) -> None:
        number = self._last_added("sort order", update.sort_order_id)
        self._find("sort-orders", "order-id", number)
        self.table["default-sort-order-id"] = number

    # What else is known of it

    def set_statistics(self, update: u.SetStatistics) -> None:
        self._replace("statistics", "snapshot-id", update.statistics)

    def remove_statistics(self, update: u.RemoveStatistics) -> None:
        self._drop("statistics", "snapshot-id", [update.snapshot_id])

    def set_partition_statistics(self, update: u.SetPartitionStatistics) -> None:
        self._replace("partition-statistics", "snapshot-id", update.partition_statistics)

    def remove_partition_statistics(self, update: u.RemovePartitionStatistics) -> None:
        self._drop("partition-statistics", "snapshot-id", [update.snapshot_id])

    def add_key(self, update: u.AddEncryptionKey) -> None:
        if self.table["format-version"] < 3:
            raise Rejected("encryption keys need format version 3")
        self._replace("encryption-keys", "key-id", update.encryption_key)

    def remove_key(self, update: u.RemoveEncryptionKey) -> None:
        self._drop("encryption-keys", "key-id", [update.key_id])

    def nothing(self, update: u.EnableRowLineage) -> None:
        """On in v3 and not to be had before."""

    # Small helpers

    def _schema(self) -> Json:
        if not self.table["schemas"]:
            raise Rejected("add a schema first")
        return schema_of(self.table)

    def _last_added(self, what: str, number: int) -> int:
        if number != LAST_ADDED:
            return number
        if what not in self._added:
            raise Rejected(f"no {what} was added in this commit that could be the last added one")
        return self._added[what]

    def _find(self, listed: str, name: str, number: int) -> None:
        if not any(one.get(name, 0) == number for one in self.table[listed]):
            raise Rejected(f"there is no {name} {number} in this table")

    def _replace(self, listed: str, name: str, entry: Json) -> None:
        if not isinstance(entry.get(name), int | str):
            raise Rejected(f"an entry of {listed} lacks its {name}")
        others = [one for one in self.table.get(listed) or [] if one[name] != entry[name]]
        self.table[listed] = [*others, entry]

    def _drop(self, listed: str, name: str, gone: Sequence[object]) -> None:
        if kept := self.table.get(listed):
            self.table[listed] = [one for one in kept if one.get(name, 0) not in gone]


def _joined(updates: Sequence[u.Update]) -> list[u.Update]:
    """The same updates, with neighbours that remove snapshots made one: some clients send one for each of thousands.
    Bounded, since a change may have to look at the whole table for every update."""
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
    """A table that is created with an upgrade is born with that version."""
    wanted = [update.format_version for update in updates if isinstance(update, u.UpgradeFormatVersion)]
    version = wanted[0] if wanted else FORMAT_VERSION_DEFAULT
    if not 1 <= version <= FORMAT_VERSION_MAX:
        raise Rejected(f"there is no format version {version} here: 1 to {FORMAT_VERSION_MAX}")
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


_APPLY: Final[dict[type, Callable[[Draft, Any], None]]] = {
    u.AssignUuid: Draft.assign_uuid,
    u.UpgradeFormatVersion: Draft.upgrade,
    u.AddSchema: Draft.add_schema,
    u.SetCurrentSchema: Draft.set_current_schema,
    u.AddSpec: Draft.add_spec,
    u.SetDefaultSpec: Draft.set_default_spec,
    u.AddSortOrder: Draft.add_order,
    u.SetDefaultSortOrder: Draft.set_default_order,
    u.AddSnapshot: history.add_snapshot,
    u.SetSnapshotRef: history.set_ref,
    u.RemoveSnapshots: history.remove_snapshots,
    u.RemoveSnapshotRef: history.remove_ref,
    u.SetLocation: Draft.set_location,
    u.SetProperties: Draft.set_properties,
    u.RemoveProperties: Draft.remove_properties,
    u.SetStatistics: Draft.set_statistics,
    u.RemoveStatistics: Draft.remove_statistics,
    u.SetPartitionStatistics: Draft.set_partition_statistics,
    u.RemovePartitionStatistics: Draft.remove_partition_statistics,
    u.RemovePartitionSpecs: Draft.remove_specs,
    u.RemoveSchemas: Draft.remove_schemas,
    u.AddEncryptionKey: Draft.add_key,
    u.RemoveEncryptionKey: Draft.remove_key,
    u.EnableRowLineage: Draft.nothing,
}
