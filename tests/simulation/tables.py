"""The true tables: compares each commit of a table with the log, at the instant its pointer moves.

After a commit of the pipeline, of maintenance or of an external engine, the table must contain, for each partition,
exactly the committed records below its next offset, without those that an engine deleted. anomalies.py names the
differences. Files that a table names must not be deleted. The tag `transactions-whole` must be on the newest snapshot
in which no transaction is split, and on no other.
"""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from tests.simulation.anomalies import Origin, TableRow, anomalies
from tests.simulation.oracle_layouts import FilePartition
from tests.simulation.oracle_types import cells_in

from lakestream.catalog.locations import TABLES_FOLDER, Locations
from lakestream.catalog.manifests import avro_schemas as f
from lakestream.catalog.manifests.manifest import DELETED, read_entries, read_list
from lakestream.catalog.pointers import Table
from lakestream.metadata.claims import BatchKind
from lakestream.model import PartitionId

if TYPE_CHECKING:
    from tests.simulation.oracle import Oracle, TrueLog, TrueRecord

ROOT = "s3://bucket/lake"
LOCATIONS = Locations(ROOT)

NEXT_OFFSETS = "lakestream.next-offsets"
"""A copy on purpose, as the rules of the log in oracle.py."""
WHOLE = "transactions-whole"

_decode_pointer = msgspec.json.Decoder(Table).decode


@dataclass(slots=True)
class TrueTable:
    metadata_location: str = ""
    folder: str = ""
    next_offsets: dict[int, int] = field(default_factory=dict)
    named: frozenset[str] = frozenset()
    """Keys of all files that its metadata names, in any snapshot."""
    deleted: set[tuple[int, int]] = field(default_factory=set)
    """Partition and offset of rows that engines deleted."""
    main: int | None = None
    whole: int | None = None
    """The newest snapshot in which no transaction is split."""


class TrueTables:
    def __init__(self, oracle: "Oracle") -> None:
        self._oracle = oracle
        self._tables: dict[str, TrueTable] = {}
        self.deletes: dict[int, set[tuple[int, int]]] = {}
        """Id of a snapshot that an engine is about to commit → the rows that it deletes."""
        self.outcomes: dict[int, dict[int, bool]] = {}
        """Producer → transaction → whether it was committed, as its coordinator decided."""
        self.snapshots: dict[int, frozenset[str]] = {}
        """Snapshot id → keys of its files, of all snapshots of the run."""
        self._rows: dict[str, list[TableRow]] = {}
        self._lists: dict[str, list[tuple[str, int]]] = {}
        self._manifests: dict[str, list[tuple[str, bool]]] = {}
        self._file_partitions: dict[str, FilePartition] = {}
        """Location of a file → its manifest entry in the manifest read last."""

    def of(self, topic_id: str) -> TrueTable:
        return self._tables.setdefault(topic_id, TrueTable())

    def next_offset(self, partition: PartitionId) -> int:
        return self.of(partition.topic_id).next_offsets.get(partition.number, 0)

    def is_deleted(self, partition: PartitionId, offset: int) -> bool:
        return (partition.number, offset) in self.of(partition.topic_id).deleted

    def is_committed(self, record: "TrueRecord") -> bool:
        return record.kind is BatchKind.PLAIN or self.outcomes.get(record.producer_id, {}).get(
            record.transaction, False
        )

    def table_ids(self) -> list[str]:
        return sorted(self._tables)

    def may_exist(self, key: str) -> bool:
        """Returns whether a table names the file, or its folder has no table because a creation was not completed."""
        if self._oracle.delta.lists(key):
            return True
        folders = [folder for table in self._tables.values() if (folder := table.folder)]
        return any(key in table.named for table in self._tables.values()) or (
            key.startswith(TABLES_FOLDER) and not any(key.startswith(folder) for folder in folders)
        )

    # ── changes ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def pointer_put(self, table_id: str, value: bytes) -> None:
        """Checks a write of a table's pointer."""
        pointer = _decode_pointer(value)
        if not pointer.is_visible or pointer.metadata_location == self.of(table_id).metadata_location:
            return
        table = self.of(table_id)
        table.metadata_location = pointer.metadata_location
        table.folder = LOCATIONS.key_of(pointer.location)
        body = self._body(pointer.metadata_location, f"table {pointer.name}")
        if body is not None:
            self._committed(table_id, pointer.name, table, json.loads(body))

    def file_deleted(self, key: str) -> None:
        """Checks the deletion of a file."""
        for table in self._tables.values():
            if key in table.named:
                self._oracle.report("files of a table are not deleted", f"{key} was deleted")
        self._oracle.tally["table files removed"] += 1

    def end_moved(self, partition: PartitionId, offset: int) -> None:
        if offset > self.next_offset(partition):
            self._oracle.report(
                "lost write",
                f"table end of {partition} was moved to {offset}, its table has {self.next_offset(partition)}",
            )

    def _committed(self, table_id: str, name: str, table: TrueTable, metadata: dict[str, Any]) -> None:
        self._oracle.tally["table commits"] += 1
        main = metadata["refs"]["main"]["snapshot-id"] if "main" in metadata.get("refs", {}) else None
        table.deleted |= self.deletes.pop(main, set()) if main is not None else set()
        live: list[str] = []
        named = {table.metadata_location, *(entry["metadata-file"] for entry in metadata.get("metadata-log", ()))}
        for snapshot in metadata.get("snapshots", ()):
            files = list(self._files_of(snapshot["manifest-list"], f"table {name}", named))
            if snapshot["snapshot-id"] == main:
                live = [location for location, is_live in files if is_live]
            named.update(location for location, is_live in files if is_live)
            own = frozenset(LOCATIONS.key_of(location) for location, is_live in files if is_live)
            self.snapshots.setdefault(snapshot["snapshot-id"], own)
        table.named = frozenset(map(LOCATIONS.key_of, named))
        self._oracle.types.committed(table_id, name, metadata)
        stated = metadata["properties"].get(NEXT_OFFSETS)
        before = table.next_offsets
        if stated is not None:
            self._next_offsets_moved(
                table_id, name, table, {int(number): end for number, end in json.loads(stated).items()}
            )
        self._check_rows(table_id, name, table, live)
        partitions = {location: self._file_partitions[location] for location in live}
        self._oracle.layouts.committed(
            name, metadata, partitions, lambda location: self._body(location, f"table {name}")
        )
        if main != table.main:
            # A snapshot without new records is as whole as its parent.
            if self._is_whole(table_id, table) if table.next_offsets != before else table.whole == table.main:
                table.whole = main
            table.main = main
        self._check_tag(name, table, metadata["refs"].get(WHOLE, {}).get("snapshot-id"))

    def _files_of(self, list_location: str, where: str, named: set[str]) -> Iterator[tuple[str, bool]]:
        """Yields each file of a snapshot and whether it is live. Adds manifest list and manifests to `named`."""
        named.add(list_location)
        if list_location not in self._lists:
            body = self._body(list_location, where)
            manifests = [] if body is None else read_list(body, list_location)
            self._lists[list_location] = [
                (manifest.manifest_path, manifest.partition_spec_id) for manifest in manifests
            ]
        for manifest, spec_id in self._lists[list_location]:
            named.add(manifest)
            if manifest not in self._manifests:
                body = self._body(manifest, where)
                entries = [] if body is None else list(read_entries(body, manifest))
                self._manifests[manifest] = [
                    (entry[f.DATA_FILE][f.FILE_PATH], entry[f.STATUS] != DELETED) for entry in entries
                ]
                for file in (entry[f.DATA_FILE] for entry in entries):
                    values = tuple(sorted(file[f.PARTITION].items()))
                    self._file_partitions[file[f.FILE_PATH]] = FilePartition(spec_id, values, file.get(f.SORT_ORDER_ID))
            yield from self._manifests[manifest]

    def _next_offsets_moved(self, table_id: str, name: str, table: TrueTable, next_offsets: dict[int, int]) -> None:
        for number, end in next_offsets.items():
            before, log = table.next_offsets.get(number, 0), self._oracle.log(PartitionId(table_id, number))
            if end < before:
                self._oracle.report("nonmonotonic poll", f"table {name}-{number} went from {before} to {end}")
            if end > (stable := stable_of(log)):
                self._oracle.report(
                    "precommitted read", f"table {name}-{number} was moved to {end}, {stable} is stable"
                )
        if lost := table.next_offsets.keys() - next_offsets.keys():
            self._oracle.report(
                "nonmonotonic poll", f"partition {min(lost)} of table {name} has no next offset any more"
            )
        table.next_offsets = next_offsets

    def _is_whole(self, table_id: str, table: TrueTable) -> bool:
        """Returns whether the table has all records or no record of each transaction, over all partitions."""
        sides: dict[tuple[int, int], set[bool]] = {}
        for partition, log in self._oracle.logs.items():
            if partition.topic_id == table_id:
                end = table.next_offsets.get(partition.number, 0)
                for offset, record in log.records.items():
                    if record.kind is BatchKind.TRANSACTIONAL and self.is_committed(record):
                        sides.setdefault((record.producer_id, record.transaction), set()).add(offset < end)
        split = sum(len(side) > 1 for side in sides.values())
        self._oracle.tally["commits that split transactions" if split else "whole commits"] += 1
        return not split

    def _check_tag(self, name: str, table: TrueTable, tagged: int | None) -> None:
        if tagged != table.whole:
            self._oracle.report(
                "torn transaction" if tagged == table.main else "the tag is on the newest whole snapshot",
                f"{name} at {table.next_offsets}: the tag is on {tagged}, the newest whole one is {table.whole}",
            )

    def _check_rows(self, table_id: str, name: str, table: TrueTable, live: list[str]) -> None:
        rows = [row for location in live for row in self._rows_of(location, table_id, name)]
        expected = [origin for number in table.next_offsets for origin in self._expected(table_id, number, table)]

        def origin_of(number: int, offset: int) -> Origin | None:
            return self._origin(PartitionId(table_id, number), offset, table)

        for anomaly in anomalies(rows, origin_of, expected, table.next_offsets):
            details = f"table {name} differs from the log at {table.next_offsets}, {len(rows)} rows: {anomaly.row}"
            self._oracle.report(anomaly.name, details)

    def _expected(self, table_id: str, number: int, table: TrueTable) -> Iterator[Origin]:
        partition = PartitionId(table_id, number)
        for offset, record in self._oracle.log(partition).records.items():
            if offset >= table.next_offsets[number] or record.kind >= BatchKind.COMMIT or not self.is_committed(record):
                continue
            origin = self._origin(partition, offset, table)
            if origin is not None and not origin.is_deleted:
                yield origin

    def _origin(self, partition: PartitionId, offset: int, table: TrueTable) -> Origin | None:
        record = self._oracle.log(partition).records.get(offset)
        if record is None:
            return None
        decided = self.outcomes.get(record.producer_id, {}).get(record.transaction)
        return Origin(
            TableRow(partition.number, offset, record.value, record.timestamp),
            record.kind,
            (record.producer_id, record.transaction),
            True if record.kind is BatchKind.PLAIN else decided,
            (partition.number, offset) in table.deleted,
        )

    # ── stored files ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _rows_of(self, location: str, table_id: str, name: str) -> list[TableRow]:
        """Returns the rows of a file, cached: neither a file nor its records change."""
        if location not in self._rows:
            body = self._body(location, f"table {name}")
            self._rows[location] = [] if body is None else self._read(table_id, body)
        return self._rows[location]

    def _read(self, table_id: str, body: bytes) -> list[TableRow]:
        rows = pq.read_table(io.BytesIO(body), use_threads=False)
        times = rows.column("_stream").combine_chunks().field("timestamp").to_pylist()
        return [
            TableRow(
                cells.partition,
                cells.offset,
                self._oracle.types.value_of(table_id, cells),
                int(time.timestamp() * 1000),
            )
            for cells, time in zip(cells_in(rows), times, strict=True)
        ]

    def _body(self, location: str, where: str) -> bytes | None:
        assert self._oracle.objects is not None
        stored = self._oracle.objects._objects.get(LOCATIONS.key_of(location))
        if stored is None:
            self._oracle.report("files of a table exist", f"{where} names {location}, which does not exist")
            return None
        return stored[0]


def stable_of(log: "TrueLog") -> int:
    """Returns the last stable offset: no transaction below it is open."""
    opened = [
        offset
        for offset, record in log.records.items()
        if record.kind is BatchKind.TRANSACTIONAL and log.ended.get(record.producer_id, -1) < record.transaction
    ]
    return min(opened, default=log.end)
