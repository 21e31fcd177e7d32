"""The tables as they really are: every move of a table's pointer is held against the log at the instant it happens.

Whoever commits, the pipeline, maintenance or a foreign engine: what then is the table must be, partition by partition,
the committed records below its next offset, none missing, none twice, but for those that somebody deleted on purpose.
What is wrong is called by the names of anomalies.py.
And no file that a table names is ever removed. The tag `transactions-whole` is on the newest snapshot in which no
transaction is split, and on no other.
"""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from tests.simulation.anomalies import Origin, TableRow, anomalies
from tests.simulation.true_layouts import Place
from tests.simulation.true_types import cells_in

from lakestream.catalog import manifest_schemas as f
from lakestream.catalog.locations import TABLES_FOLDER, Locations
from lakestream.catalog.manifests import DELETED, read_entries, read_list
from lakestream.catalog.pointers import Table
from lakestream.metadata.claims import Kind
from lakestream.model import PartitionId

if TYPE_CHECKING:
    from tests.simulation.witness import TrueLog, TrueRecord, Witness

ROOT = "s3://bucket/lake"
LOCATIONS = Locations(ROOT)

NEXT_OFFSETS = "lakestream.next-offsets"
"""Spelled again, as the rules of the log are."""
WHOLE = "transactions-whole"

_decode_pointer = msgspec.json.Decoder(Table).decode


@dataclass(slots=True)
class TrueTable:
    metadata_location: str = ""
    folder: str = ""
    next_offsets: dict[int, int] = field(default_factory=dict)
    named: frozenset[str] = frozenset()
    """Keys of all files that its metadata names, of whichever snapshot."""
    deleted: set[tuple[int, int]] = field(default_factory=set)
    """Rows that somebody took out: partition and offset."""
    main: int | None = None
    whole: int | None = None
    """The newest snapshot in which no transaction is split."""


class TrueTables:
    def __init__(self, witness: "Witness") -> None:
        self._witness = witness
        self._tables: dict[str, TrueTable] = {}
        self.deletes: dict[int, set[tuple[int, int]]] = {}
        """By snapshot that somebody means to commit: the rows that it takes out."""
        self.outcomes: dict[int, dict[int, bool]] = {}
        """Producer → transaction → whether it was committed, as its coordinator decided."""
        self.snapshots: dict[int, frozenset[str]] = {}
        """The keys of their files, of every snapshot that there ever was."""
        self._rows: dict[str, list[TableRow]] = {}
        self._lists: dict[str, list[tuple[str, int]]] = {}
        self._manifests: dict[str, list[tuple[str, bool]]] = {}
        self._places: dict[str, Place] = {}
        """Of files, as the manifest says that was read last."""

    def of(self, topic_id: str) -> TrueTable:
        return self._tables.setdefault(topic_id, TrueTable())

    def next_offset(self, partition: PartitionId) -> int:
        return self.of(partition.topic_id).next_offsets.get(partition.number, 0)

    def is_deleted(self, partition: PartitionId, offset: int) -> bool:
        return (partition.number, offset) in self.of(partition.topic_id).deleted

    def is_committed(self, record: "TrueRecord") -> bool:
        return record.kind is Kind.PLAIN or self.outcomes.get(record.producer_id, {}).get(record.transaction, False)

    def known(self) -> list[str]:
        return sorted(self._tables)

    def may_be_there(self, key: str) -> bool:
        """Whether a table names it; or it lies where no table is: of one that was begun and not made."""
        if self._witness.delta.lists(key):
            return True
        folders = [folder for table in self._tables.values() if (folder := table.folder)]
        return any(key in table.named for table in self._tables.values()) or (
            key.startswith(TABLES_FOLDER) and not any(key.startswith(folder) for folder in folders)
        )

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────────────────────

    def pointed(self, table_id: str, value: bytes) -> None:
        """A pointer was written."""
        pointer = _decode_pointer(value)
        if not pointer.is_there or pointer.metadata_location == self.of(table_id).metadata_location:
            return
        table = self.of(table_id)
        table.metadata_location = pointer.metadata_location
        table.folder = LOCATIONS.key_of(pointer.location)
        body = self._body(pointer.metadata_location, f"table {pointer.name}")
        if body is not None:
            self._committed(table_id, pointer.name, table, json.loads(body))

    def removed(self, key: str) -> None:
        """A file is deleted."""
        for table in self._tables.values():
            if key in table.named:
                self._witness.accuse("what a table names stays", f"{key} was deleted")
        self._witness.tally["table files removed"] += 1

    def end_moved(self, partition: PartitionId, offset: int) -> None:
        if offset > self.next_offset(partition):
            self._witness.accuse(
                "lost write",
                f"table end of {partition} was moved to {offset}, its table has {self.next_offset(partition)}",
            )

    def _committed(self, table_id: str, name: str, table: TrueTable, metadata: dict[str, Any]) -> None:
        self._witness.tally["table commits"] += 1
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
        self._witness.types.committed(table_id, name, metadata)
        stated = metadata["properties"].get(NEXT_OFFSETS)
        before = table.next_offsets
        if stated is not None:
            self._moved_on(table_id, name, table, {int(number): end for number, end in json.loads(stated).items()})
        self._check_rows(table_id, name, table, live)
        places = {location: self._places[location] for location in live}
        self._witness.layouts.committed(name, metadata, places, lambda location: self._body(location, f"table {name}"))
        if main != table.main:
            # What brings nothing in is as whole as what it follows.
            if self._is_whole(table_id, table) if table.next_offsets != before else table.whole == table.main:
                table.whole = main
            table.main = main
        self._check_tag(name, table, metadata["refs"].get(WHOLE, {}).get("snapshot-id"))

    def _files_of(self, list_location: str, where: str, named: set[str]) -> Iterator[tuple[str, bool]]:
        """Each with whether it is alive. What lies between is added to what is named."""
        named.add(list_location)
        if list_location not in self._lists:
            body = self._body(list_location, where)
            found = [] if body is None else read_list(body, list_location)
            self._lists[list_location] = [(manifest.manifest_path, manifest.partition_spec_id) for manifest in found]
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
                    self._places[file[f.FILE_PATH]] = Place(spec_id, values, file.get(f.SORT_ORDER_ID))
            yield from self._manifests[manifest]

    def _moved_on(self, table_id: str, name: str, table: TrueTable, next_offsets: dict[int, int]) -> None:
        for number, end in next_offsets.items():
            before, log = table.next_offsets.get(number, 0), self._witness.log(PartitionId(table_id, number))
            if end < before:
                self._witness.accuse("nonmonotonic poll", f"table {name}-{number} went from {before} to {end}")
            if end > (stable := stable_of(log)):
                self._witness.accuse(
                    "precommitted read", f"table {name}-{number} was moved to {end}, {stable} is stable"
                )
        if lost := table.next_offsets.keys() - next_offsets.keys():
            self._witness.accuse("nonmonotonic poll", f"partition {min(lost)} of table {name} is not known any more")
        table.next_offsets = next_offsets

    def _is_whole(self, table_id: str, table: TrueTable) -> bool:
        """Of each transaction, all records of all logs lie below where the table ends, or none."""
        found: dict[tuple[int, int], set[bool]] = {}
        for partition, log in self._witness.logs.items():
            if partition.topic_id == table_id:
                end = table.next_offsets.get(partition.number, 0)
                for offset, record in log.records.items():
                    if record.kind is Kind.TRANSACTIONAL and self.is_committed(record):
                        found.setdefault((record.producer_id, record.transaction), set()).add(offset < end)
        split = sum(len(sides) > 1 for sides in found.values())
        self._witness.tally["commits that split transactions" if split else "whole commits"] += 1
        return not split

    def _check_tag(self, name: str, table: TrueTable, tagged: int | None) -> None:
        if tagged != table.whole:
            self._witness.accuse(
                "torn transaction" if tagged == table.main else "the tag is on the newest whole snapshot",
                f"{name} at {table.next_offsets}: the tag is on {tagged}, the newest whole one is {table.whole}",
            )

    def _check_rows(self, table_id: str, name: str, table: TrueTable, live: list[str]) -> None:
        rows = [row for location in live for row in self._rows_of(location, table_id, name)]
        expected = [one for number in table.next_offsets for one in self._expected(table_id, number, table)]

        def origin_of(number: int, offset: int) -> Origin | None:
            return self._origin(PartitionId(table_id, number), offset, table)

        for anomaly in anomalies(rows, origin_of, expected, table.next_offsets):
            story = f"the table is not the log: {name} at {table.next_offsets}, {len(rows)} rows: {anomaly.row}"
            self._witness.accuse(anomaly.name, story)

    def _expected(self, table_id: str, number: int, table: TrueTable) -> Iterator[Origin]:
        partition = PartitionId(table_id, number)
        for offset, record in self._witness.log(partition).records.items():
            if offset >= table.next_offsets[number] or record.kind >= Kind.COMMIT or not self.is_committed(record):
                continue
            origin = self._origin(partition, offset, table)
            if origin is not None and not origin.is_deleted:
                yield origin

    def _origin(self, partition: PartitionId, offset: int, table: TrueTable) -> Origin | None:
        record = self._witness.log(partition).records.get(offset)
        if record is None:
            return None
        decided = self.outcomes.get(record.producer_id, {}).get(record.transaction)
        return Origin(
            TableRow(partition.number, offset, record.value, record.timestamp),
            record.kind,
            (record.producer_id, record.transaction),
            True if record.kind is Kind.PLAIN else decided,
            (partition.number, offset) in table.deleted,
        )

    # ── what is stored ───────────────────────────────────────────────────────────────────────────────────────────────

    def _rows_of(self, location: str, table_id: str, name: str) -> list[TableRow]:
        """Looked at once: neither a file nor what it is of ever changes."""
        if location not in self._rows:
            body = self._body(location, f"table {name}")
            self._rows[location] = [] if body is None else self._read(table_id, body)
        return self._rows[location]

    def _read(self, table_id: str, body: bytes) -> list[TableRow]:
        found = pq.read_table(io.BytesIO(body), use_threads=False)
        times = found.column("_stream").combine_chunks().field("timestamp").to_pylist()
        return [
            TableRow(
                cells.partition,
                cells.offset,
                self._witness.types.value_of(table_id, cells),
                int(time.timestamp() * 1000),
            )
            for cells, time in zip(cells_in(found), times, strict=True)
        ]

    def _body(self, location: str, where: str) -> bytes | None:
        assert self._witness.objects is not None
        found = self._witness.objects._objects.get(LOCATIONS.key_of(location))
        if found is None:
            self._witness.accuse("a table names what is there", f"{where} names {location}, which is not there")
            return None
        return found[0]


def stable_of(log: "TrueLog") -> int:
    """Below it no transaction is open."""
    opened = [
        offset
        for offset, record in log.records.items()
        if record.kind is Kind.TRANSACTIONAL and log.ended.get(record.producer_id, -1) < record.transaction
    ]
    return min(opened, default=log.end)
