"""A table's metadata while the updates of one commit change it: lists as maps by id. Pure; part of builder.py.

Each list and map is copied once, at its first change, and an update then costs as much as it changes. Their elements
never change, so the base stays as it is.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from lakestream.catalog.table_metadata.json_model import MAIN, NO_SNAPSHOT, Json

SCHEMAS: Final = "schemas"
SPECS: Final = "partition-specs"
ORDERS: Final = "sort-orders"
SNAPSHOTS: Final = "snapshots"
STATISTICS: Final = ("statistics", "partition-statistics")
KEYS: Final = "encryption-keys"

ID_NAMES: Final = {
    SCHEMAS: "schema-id",
    SPECS: "spec-id",
    ORDERS: "order-id",
    SNAPSHOTS: "snapshot-id",
    **dict.fromkeys(STATISTICS, "snapshot-id"),
    KEYS: "key-id",
}
"""The lists with entries by id, and the field of the id."""

EntryId: TypeAlias = int | str


class TableDraft:
    def __init__(self, base: Json, now_ms: int) -> None:
        self.base = base
        self.table: Json = dict(base)
        """Without the changes of lists, until `settle`."""
        self.now_ms = now_ms
        self.snapshots_added: set[int] = set()
        self.snapshots_removed: set[int] = set()
        self.updated_ms: int | None = None
        """Set by updates that have their own timestamp."""
        self._entries: dict[str, dict[EntryId, Json]] = {}
        self._changed: set[str] = set()
        self._copied: dict[str, Any] = {}

    def entries(self, listed: str) -> Mapping[EntryId, Json]:
        """Returns the entries of a list by id. Of several with one id, the first."""
        return self._map(listed)

    def put(self, listed: str, number: EntryId, entry: Json) -> None:
        """Appends an entry, in place of one with the same id."""
        entries = self._map(listed)
        entries.pop(number, None)
        entries[number] = entry
        self._changed.add(listed)

    def drop(self, listed: str, numbers: Iterable[EntryId]) -> None:
        entries = self._map(listed)
        for number in numbers:
            if entries.pop(number, None) is not None:
                self._changed.add(listed)

    def map_of(self, name: str) -> dict[str, Any]:
        """Returns the commit's own copy of a map, to be changed."""
        if name not in self._copied:
            self._copied[name] = self.table[name] = dict(self.table[name])
        copied: dict[str, Any] = self._copied[name]
        return copied

    def log_of(self, name: str) -> list[Json]:
        """Returns the commit's own copy of a log, to be appended to."""
        if name not in self._copied:
            self._copied[name] = self.table[name] = list(self.table[name])
        copied: list[Json] = self._copied[name]
        return copied

    def settle(self) -> None:
        """Completes `table`. References to removed snapshots, and their statistics, are removed together."""
        gone = self.snapshots_removed
        for listed in STATISTICS if gone else ():
            self.drop(listed, gone)
        for listed in self._changed:
            self.table[listed] = list(self._entries[listed].values())
        if gone:
            kept = {name: ref for name, ref in self.table["refs"].items() if ref["snapshot-id"] not in gone}
            if MAIN in self.table["refs"] and MAIN not in kept:
                self.table["current-snapshot-id"] = NO_SNAPSHOT
            self.table["refs"] = kept

    def _map(self, listed: str) -> dict[EntryId, Json]:
        if listed not in self._entries:
            entries: dict[EntryId, Json] = {}
            for entry in self.table.get(listed) or ():
                entries.setdefault(_id_of(listed, entry), entry)
            self._entries[listed] = entries
        return self._entries[listed]


def _id_of(listed: str, entry: Any) -> EntryId:
    number = entry.get(ID_NAMES[listed], 0) if isinstance(entry, dict) else None
    return number if isinstance(number, int | str) else repr(entry)
