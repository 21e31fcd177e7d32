"""A topic's table for tests, and descriptions of files that need not exist: only manifests name them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.manifests import avro_schemas as f
from lakestream.catalog.manifests.data_file import FileDescription, MovedRange, data_location
from lakestream.catalog.manifests.manifest import DELETED, ManifestFile, read_entries, read_list
from lakestream.catalog.operations.create_topic_table import ensure_table
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.table_metadata.requirements import AssertRefSnapshotId
from lakestream.catalog.table_metadata.updates import AddSnapshot, SetSnapshotRef, Update
from lakestream.catalog.topic_table.columns import OFFSET_ID, PARTITION_ID
from lakestream.catalog.topic_table.offsets import main_of

TOPIC = "orders"
TOPIC_ID = "0123456789abcdef0123456789abcdef"


async def topic_table(catalog: Catalog) -> LoadedTable:
    await catalog.start()
    return await ensure_table(catalog, TOPIC, TOPIC_ID, {})


def file_of(loaded: LoadedTable, partition: int, start: int, end: int, name: str = "a") -> FileDescription:
    """Describes a file with all offsets in `[start, end)`."""
    count = end - start
    return FileDescription(
        location=data_location(loaded.metadata["location"], partition, start, name),
        partition=partition,
        offset_first=start,
        offset_last=end - 1,
        record_count=count,
        size=1000 + count,
        column_sizes={1: 900, 3: 20, 4: 30},
        value_counts={1: count, 3: count, 4: count},
        null_counts={1: 0, 3: 0, 4: 0},
        lower_bounds={PARTITION_ID: _int(partition), OFFSET_ID: _long(start)},
        upper_bounds={PARTITION_ID: _int(partition), OFFSET_ID: _long(end - 1)},
        split_offsets=(4,),
    )


def moved(*ranges: tuple[int, int, int]) -> list[MovedRange]:
    return [MovedRange(*one) for one in ranges]


def files_of(loaded: LoadedTable, ranges: Iterable[MovedRange], name: str = "a") -> list[FileDescription]:
    return [file_of(loaded, *one, name=name) for one in ranges]


async def manifests_of(catalog: Catalog, metadata: Json) -> list[ManifestFile]:
    main = main_of(metadata)
    if main is None:
        return []
    snapshot = next(one for one in metadata["snapshots"] if one["snapshot-id"] == main)
    return read_list(await _get(catalog, snapshot["manifest-list"]), snapshot["manifest-list"])


async def entries_of(catalog: Catalog, metadata: Json) -> list[dict[int, Any]]:
    """Returns the entries of all live files."""
    found = []
    for manifest in await manifests_of(catalog, metadata):
        body = await _get(catalog, manifest.manifest_path)
        assert manifest.manifest_length == len(body)
        entries = list(read_entries(body, manifest.manifest_path))
        live = [entry for entry in entries if entry[f.STATUS] != DELETED]
        assert len(live) == manifest.live_files_count
        assert sum(entry[f.DATA_FILE][f.RECORD_COUNT] for entry in live) == manifest.live_rows_count
        found += live
    return found


async def offsets_in(catalog: Catalog, metadata: Json) -> Counter[tuple[int, int]]:
    """Counts how often each offset of each partition is in the table."""
    found: Counter[tuple[int, int]] = Counter()
    for entry in await entries_of(catalog, metadata):
        file = entry[f.DATA_FILE]
        low, high = (int.from_bytes(file[bounds][OFFSET_ID], "little") for bounds in (f.LOWER_BOUNDS, f.UPPER_BOUNDS))
        (partition,) = file[f.PARTITION].values()
        found.update((partition, offset) for offset in range(low, high + 1))
    return found


async def foreign_commit(catalog: Catalog, loaded: LoadedTable, number: int) -> LoadedTable:
    """Commits another engine's snapshot with the same files, as a rewrite does."""
    metadata = loaded.metadata
    main = main_of(metadata)
    parent = next(one for one in metadata["snapshots"] if one["snapshot-id"] == main)
    snapshot = {
        "snapshot-id": number,
        "parent-snapshot-id": main,
        "sequence-number": metadata["last-sequence-number"] + 1,
        "timestamp-ms": metadata["last-updated-ms"] + 1,
        "manifest-list": parent["manifest-list"],
        "summary": {"operation": "replace"},
    }
    changes: list[Update] = [AddSnapshot(snapshot), SetSnapshotRef("main", "branch", number)]
    return await catalog.commit(loaded.table_id, [AssertRefSnapshotId("main", main)], changes)


def summaries(metadata: Json) -> list[dict[str, str]]:
    return [snapshot["summary"] for snapshot in metadata["snapshots"]]


def totals(metadata: Json) -> Sequence[str]:
    last = metadata["snapshots"][-1]["summary"]
    return [last[name] for name in ("total-records", "total-data-files", "total-files-size")]


async def _get(catalog: Catalog, location: str) -> bytes:
    return bytes(await catalog.objects.get(catalog.locations.key_of(location)))


def _int(number: int) -> bytes:
    return number.to_bytes(4, "little", signed=True)


def _long(number: int) -> bytes:
    return number.to_bytes(8, "little", signed=True)
