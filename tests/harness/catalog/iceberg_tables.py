"""Small tables and updates for tests of the catalog."""

import random
from typing import Any

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.identifiers import TableName
from lakestream.catalog.locations import Locations
from lakestream.catalog.table_metadata.builder import NewTable, apply_updates, new_table_updates
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.table_metadata.updates import AddSnapshot, SetSnapshotRef, Update
from lakestream.clock import SeededIds, SystemClock
from lakestream.metadata.store import MetadataStore
from lakestream.storage.memory import MemoryObjectStore
from lakestream.storage.object_store import ObjectStore

NOW_MS = 1_700_000_000_000
ROOT = "s3://lake/data"
NAME = TableName(("default",), "orders")
LOCATION = f"{ROOT}/tables/t"
"""Of the table that these snapshots are made for."""

SCHEMA: Json = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": True},
        {"id": 2, "name": "text", "type": "string", "required": False},
        {"id": 3, "name": "at", "type": "timestamptz", "required": False},
    ],
}


def field(number: int, name: str, kind: Any = "string") -> Json:
    return {"id": number, "name": name, "type": kind, "required": False}


def new_table(schema: Json = SCHEMA, **chosen: Any) -> Json:
    updates = new_table_updates(NewTable(schema, **chosen), "11111111-2222-3333-4444-555555555555", LOCATION)
    return apply_updates(None, updates, NOW_MS)


def snapshot(
    number: int, sequence_number: int, parent: int | None = None, at_ms: int = 0, location: str = LOCATION
) -> Json:
    made: Json = {
        "snapshot-id": number,
        "sequence-number": sequence_number,
        "timestamp-ms": at_ms or NOW_MS + sequence_number * 1000,
        "manifest-list": f"{location}/metadata/snap-{number}.avro",
        "summary": {"operation": "append", "added-records": "1"},
        "schema-id": 0,
    }
    return made if parent is None else made | {"parent-snapshot-id": parent}


def append(number: int, sequence_number: int, parent: int | None = None, location: str = LOCATION) -> list[Update]:
    """Returns the updates of a commit to main."""
    made = snapshot(number, sequence_number, parent, location=location)
    return [AddSnapshot(made), SetSnapshotRef("main", "branch", number)]


def catalog_over(store: MetadataStore, objects: ObjectStore | None = None, seed: int = 1) -> Catalog:
    ids = SeededIds(random.Random(seed))
    return Catalog(store, objects or MemoryObjectStore(SystemClock()), Locations(ROOT), SystemClock(), ids)


class AcceptAll:
    """A check for commits of clients that accepts all rows and columns."""

    async def check(self, before: Json | None, after: Json, topic_id: str) -> None:
        pass

    async def check_registered(self, metadata: Json) -> None:
        pass
