"""Files that other programs write into the bucket: damaged ones are errors that name the file, never others.

The same damage as in `tests/integration/processes/test_http_fuzz.py`, without a server. FUZZ_SEED=n repeats a run.
"""

import gzip
import os
import random
from collections.abc import Callable
from typing import Final

import pytest
from tests.harness.catalog.iceberg_tables import NOW_MS, SCHEMA, append, new_table, snapshot
from tests.harness.fuzz.mutations import damaged_avro, damaged_bytes, mutated, to_json
from tests.harness.fuzz.table_files import manifest_of

from lakestream.catalog.delta.actions import decoded
from lakestream.catalog.delta.schema import delta_schema, physical_names
from lakestream.catalog.delta.state import DeltaState
from lakestream.catalog.manifests.manifest import ManifestFile, read_entries, read_list, write_list
from lakestream.catalog.metadata_files import _encoded, _parsed
from lakestream.catalog.table_metadata.builder import apply_updates
from lakestream.catalog.table_metadata.json_model import Json, file_json
from lakestream.catalog.table_metadata.schemas import check_schema
from lakestream.errors import Corrupt, Rejected
from lakestream.model import MiB

SEED: Final = int(os.environ.get("FUZZ_SEED") or (random.randrange(2**32) if os.environ.get("SOAK") else 4))
FILES: Final = 20_000 if os.environ.get("SOAK") else 400

TABLE: Final = apply_updates(new_table(properties={"format-version": "2", "a": "b"}), append(1, 1), NOW_MS + 5_000)
MANIFEST: Final = manifest_of(TABLE, 1)
LIST: Final = write_list(
    [
        ManifestFile(
            manifest_path="s3://lake/m.avro",
            manifest_length=len(MANIFEST),
            partition_spec_id=0,
            sequence_number=1,
            min_sequence_number=1,
            added_snapshot_id=1,
            added_files_count=1,
            added_rows_count=10,
        )
    ]
    * 3,
    snapshot(1, 1),
    2,
)
NAMES: Final = {1: "id", 2: "text", 3: "at"}
ACTIONS: Final[list[Json]] = [
    {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["a"], "writerFeatures": ["a"]}},
    {
        "metaData": {
            "id": "i",
            "schemaString": delta_schema(SCHEMA, NAMES).text,
            "format": {"provider": "parquet", "options": {"a": "b"}},
            "partitionColumns": [],
            "configuration": {"delta.columnMapping.mode": "name"},
            "createdTime": 5,
        }
    },
    {"add": {"path": "a", "partitionValues": {"p": "1"}, "size": 5, "modificationTime": 6, "stats": "{}"}},
    {"remove": {"path": "a", "deletionTimestamp": 5, "dataChange": True}},
    {"txn": {"appId": "a", "version": 5, "lastUpdated": 6}},
    {"commitInfo": {"operation": "WRITE", "x": [1]}},
]


def read_metadata(rng: random.Random) -> None:
    body = to_json(mutated(file_json(TABLE), rng, rng.choice((0, 1, 1, 2))))
    body = damaged_bytes(body, rng) if rng.random() < 0.1 else body
    found = _parsed("s3://lake/x", gzip.compress(body, 1) if rng.random() < 0.3 else body, MiB, True)
    for schema in found.content["schemas"]:
        check_schema(schema, found.content["format-version"], is_new=False)
    _encoded(found.content)


def read_manifest(rng: random.Random) -> None:
    list(read_entries(damaged_avro(MANIFEST, rng), "s3://lake/x"))


def read_manifest_list(rng: random.Random) -> None:
    read_list(damaged_avro(LIST, rng), "s3://lake/x")


def read_delta_commit(rng: random.Random) -> None:
    lines = [to_json(mutated(one, rng, rng.choice((0, 1)))) for one in ACTIONS]
    body = b"\n".join(lines)
    state = DeltaState().after(0, decoded(damaged_bytes(body, rng) if rng.random() < 0.1 else body, "s3://lake/x"))
    state.unsupported()
    if state.metadata is not None:
        physical_names(state.metadata.schema_string)


def read_delta_schema(rng: random.Random) -> None:
    text = delta_schema(SCHEMA, NAMES, mapped=True).text
    physical_names(damaged_bytes(text.encode(), rng).decode(errors="replace"))


@pytest.mark.parametrize(
    "read", [read_metadata, read_manifest, read_manifest_list, read_delta_commit, read_delta_schema]
)
def test_error_is_of_the_file_when_it_is_damaged(read: Callable[[random.Random], None]) -> None:
    for number in range(SEED, SEED + FILES):
        try:
            read(random.Random(number))
        except (Corrupt, Rejected):
            continue
        except Exception as error:
            raise AssertionError(f"FUZZ_SEED={number}") from error
