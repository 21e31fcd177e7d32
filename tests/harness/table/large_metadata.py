"""Table metadata as engines with many commits leave it: one snapshot after the other, and none is expired."""

from typing import Any

import msgspec

from lakestream.catalog.table_metadata.builder import NewTable, apply_updates, new_table_updates
from lakestream.catalog.table_metadata.json_model import Json, file_json
from lakestream.catalog.topic_table.checks import ORDER, SPEC
from lakestream.catalog.topic_table.columns import iceberg_schema
from lakestream.catalog.topic_table.offsets import NEXT_OFFSETS

FIRST_ID = 10**18
LOCATION = "file:///lake/tables/default/orders"


def metadata(snapshots: int, base: Json | None = None, offsets: str = '{"0":5,"7":9}') -> Json:
    """Returns metadata with these snapshots in front of those of `base`, which is that of a new table by default."""
    base = base or apply_updates(None, new_table_updates(_new(offsets), "0" * 32, LOCATION), 1)
    added = [_snapshot(number) for number in range(snapshots)]
    kept = base["snapshots"]
    if added and not kept:
        added[-1]["summary"][NEXT_OFFSETS] = offsets
        head = added[-1]["snapshot-id"]
        base = {**base, "refs": {"main": {"snapshot-id": head, "type": "branch"}}, "current-snapshot-id": head}
    return {**base, "snapshots": [*added, *kept], "last-sequence-number": base["last-sequence-number"] + snapshots}


def encoded(content: Json) -> bytes:
    return msgspec.json.encode(file_json(content))


def _new(offsets: str) -> NewTable:
    return NewTable(iceberg_schema(), spec=SPEC, order=ORDER, properties={NEXT_OFFSETS: offsets})


def _snapshot(number: int) -> dict[str, Any]:
    return {
        "snapshot-id": FIRST_ID + number,
        "parent-snapshot-id": FIRST_ID + number - 1,
        "sequence-number": number + 1,
        "timestamp-ms": number + 1,
        "manifest-list": f"{LOCATION}/metadata/snap-{FIRST_ID + number}-1-0b7e8f5c-5f0e-4b0c-9d2c-3a1b0c9d8e7f.avro",
        "schema-id": 0,
        "summary": {
            "operation": "append",
            "added-data-files": "1",
            "added-records": "1000",
            "added-files-size": "123456",
            "changed-partition-count": "1",
            "total-records": str(1000 * number),
            "total-files-size": str(123_456 * number),
            "total-data-files": str(number),
            "total-delete-files": "0",
            "total-position-deletes": "0",
            "total-equality-deletes": "0",
            "engine-name": "spark",
            "engine-version": "3.5.0",
            "iceberg-version": "Apache Iceberg 1.6.1 (commit 8e9d59d299be42b0bca9461457cd1e95dbaad086)",
        },
    }
