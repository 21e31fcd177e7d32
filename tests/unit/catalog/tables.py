"""Small tables and changes for the tests of the catalog."""

import random
from typing import Any

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.draft import applied
from lakestream.catalog.locations import Locations
from lakestream.catalog.names import TableName
from lakestream.catalog.new_table import creation
from lakestream.catalog.shapes import Json
from lakestream.catalog.updates import AddSnapshot, SetSnapshotRef, Update
from lakestream.clock import SeededIds, SystemClock
from lakestream.metadata.store import MetadataStore
from lakestream.storage.memory import MemoryStore
from lakestream.storage.object_store import ObjectStore

NOW_MS = 1_700_000_000_000
ROOT = "s3://lake/data"
NAME = TableName(("default",), "orders")

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


def new_table(**more: Any) -> Json:
    made = {"uuid": "11111111-2222-3333-4444-555555555555", "location": f"{ROOT}/tables/t", "schema": SCHEMA} | more
    return applied(None, creation(**made), NOW_MS)


def snapshot(number: int, sequence_number: int, parent: int | None = None, at_ms: int = 0) -> Json:
    made: Json = {
        "snapshot-id": number,
        "sequence-number": sequence_number,
        "timestamp-ms": at_ms or NOW_MS + sequence_number * 1000,
        "manifest-list": f"{ROOT}/tables/t/metadata/snap-{number}.avro",
        "summary": {"operation": "append", "added-records": "1"},
        "schema-id": 0,
    }
    return made if parent is None else made | {"parent-snapshot-id": parent}


def append(number: int, sequence_number: int, parent: int | None = None) -> list[Update]:
    """A commit to main."""
    return [AddSnapshot(snapshot(number, sequence_number, parent)), SetSnapshotRef("main", "branch", number)]


def catalog_over(store: MetadataStore, objects: ObjectStore | None = None, seed: int = 1) -> Catalog:
    ids = SeededIds(random.Random(seed))
    return Catalog(store, objects or MemoryStore(SystemClock()), Locations(ROOT), SystemClock(), ids)
