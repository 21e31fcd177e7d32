"""A topic's table on disk for tests of history, with changes by engines, made with pyiceberg's writers."""

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record as IcebergRecord
from tests.harness.table.reference_codec import Record, batch_of, read_batch

from lakestream.catalog.catalog import Catalog, CommitCheck, LoadedTable
from lakestream.catalog.locations import Locations
from lakestream.catalog.manifests.data_file import FileDescription, MovedRange, data_location
from lakestream.catalog.operations.append import append
from lakestream.catalog.operations.create_topic_table import ensure_table
from lakestream.catalog.table_metadata.json_model import Json, schema_of, spec_of
from lakestream.catalog.table_metadata.updates import AddSnapshot, SetSnapshotRef, Update
from lakestream.catalog.topic_table.offsets import main_of
from lakestream.clock import SeededIds, SystemClock
from lakestream.data.table.arrow.types import SCHEMA
from lakestream.data.table.history import TableHistory
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.data.table.write.parquet_writer import ParquetSettings, write_parquet
from lakestream.metadata.memory import MemoryServer
from lakestream.model import MiB, PartitionId
from lakestream.records.file_region import as_bytes
from lakestream.storage.local_store import FileStore

TOPIC_ID = "0123456789abcdef0123456789abcdef"
LOG = PartitionId(TOPIC_ID, 0)
NOW_MS = 1_700_000_000_000


def many(start: int, end: int, size: int = 20) -> list[Record]:
    return [Record(at, NOW_MS + at, 0, b"k%d" % (at % 5), b"%d " % at * (size // 4)) for at in range(start, end)]


def rows_of(records: Sequence[Record], partition: int = 0) -> pa.Table:
    """Returns rows of the records, whose offsets may have gaps."""
    batches = [
        batch
        for record in records
        for batch in decode([BatchSource.single("x", batch_of([record]), record.offset)], partition)
    ]
    out = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches(batches), out, store_schema=False)
    return pq.read_table(pa.BufferReader(out.getvalue())).combine_chunks()


class Lake:
    def __init__(self, root: Path, clock: SystemClock | None = None) -> None:
        self.root = root
        ids = SeededIds(random.Random(1))
        self.store = FileStore(root, SystemClock(), ids)
        self.server = MemoryServer(SystemClock())
        self.catalog = Catalog(self.server.client(), self.store, Locations(f"file://{root}"), SystemClock(), ids)
        self.history = TableHistory(self.catalog, self.store, 64 * MiB)
        self.numbers = iter(range(1, 1_000_000))
        self.check: CommitCheck | None = None
        """The check of commits by engines."""

    async def open(self, settings: Mapping[str, str] | None = None) -> "Lake":
        await self.catalog.start()
        await ensure_table(self.catalog, "orders", TOPIC_ID, settings or {})
        return self

    async def close(self) -> None:
        await self.history.close()
        await self.store.close()

    async def table(self) -> LoadedTable:
        return await self.catalog.load_id(TOPIC_ID)

    async def move(
        self, records: Sequence[Record], end: int | None = None, partition: int = 0, **parquet: Any
    ) -> list[FileDescription]:
        """Writes and commits records as the pipeline does, up to `end`."""
        table = await self.table()
        starts = {one: at for one, at in _next(table.metadata).items()}
        start, end = starts.get(partition, 0), end or records[-1].offset + 1
        files = []
        if records:
            for file in write_parquet(
                rows_of(records, partition).cast(SCHEMA).to_batches(),
                lambda offset: data_location(table.metadata["location"], partition, offset, str(next(self.numbers))),
                ParquetSettings(**parquet),
            ):
                await self.store.create(self.key(file.description.location), [memoryview(file.body)])
                files.append(file.description)
        await append(self.catalog, table, files, [MovedRange(partition, start, end)])
        return files

    def key(self, location: str) -> str:
        return self.catalog.locations.key_of(location)

    async def read_all(self, partition: PartitionId = LOG, offset: int = 0, bytes_max: int = 1 << 20) -> list[Record]:
        """Returns all records of the table from `offset` on."""
        end = _next((await self.table()).metadata).get(partition.number, 0)
        found: list[Record] = []
        while offset < end:
            past = await self.history.read(partition, offset, bytes_max)
            assert past.offset_next > offset
            records = [record for _, pieces in past.batches for record in read_batch(as_bytes(pieces))]
            assert [base for base, _ in past.batches] == [
                read_batch(as_bytes(one))[0].offset for _, one in past.batches
            ]
            assert all(one.offset < next.offset for one, next in pairwise(records)), "no record is twice in a response"
            found += [record for record in records if record.offset >= offset]
            offset = past.offset_next
        return found

    # Changes by engines

    async def replace(
        self,
        files: Sequence[DataFile],
        deletes: Sequence[DataFile] = (),
        *,
        keep: bool = False,
        branch: str = "main",
        **summary: str,
    ) -> None:
        """Commits a snapshot with these files; with `keep`, also those of the previous one."""
        table = await self.table()
        metadata, main = table.metadata, main_of(table.metadata)
        number, sequence = next(self.numbers), metadata["last-sequence-number"] + 1
        io, schema = PyArrowFileIO(), Schema.model_validate(schema_of(metadata))
        spec = PartitionSpec.model_validate(spec_of(metadata))
        manifests: list[ManifestFile] = []
        folder = f"{metadata['location']}/metadata"
        for content, some in ((ManifestContent.DATA, files), (ManifestContent.DELETES, deletes)):
            if some:
                out = io.new_output(f"{folder}/foreign-{number}-{content.value}.avro")
                writer = write_manifest(2, spec, schema, out, number, "deflate")
                writer.content = lambda content=content: content  # type: ignore[method-assign,misc]
                with writer as manifest:
                    for file in some:
                        manifest.add(
                            ManifestEntry.from_args(
                                status=ManifestEntryStatus.ADDED,
                                snapshot_id=number,
                                sequence_number=None,
                                file_sequence_number=None,
                                data_file=file,
                            )
                        )
                manifests.append(writer.to_manifest_file())
        location = f"{folder}/snap-foreign-{number}.avro"
        with write_manifest_list(2, io.new_output(location), number, main, sequence, "deflate") as listed:
            listed.add_manifests([*manifests, *(self._manifests(metadata) if keep else [])])
        snapshot = {
            "snapshot-id": number,
            "parent-snapshot-id": main,
            "sequence-number": sequence,
            "timestamp-ms": metadata["last-updated-ms"] + 1,
            "manifest-list": location,
            "summary": {"operation": "overwrite", **summary},
        }
        changes: list[Update] = [AddSnapshot(snapshot), SetSnapshotRef(branch, "branch", number)]
        await self.catalog.commit(TOPIC_ID, [], changes, self.check)

    def _manifests(self, metadata: Json) -> list[ManifestFile]:
        from pyiceberg.manifest import read_manifest_list

        main = main_of(metadata)
        snapshot = next(one for one in metadata["snapshots"] if one["snapshot-id"] == main)
        return list(read_manifest_list(PyArrowFileIO().new_input(snapshot["manifest-list"])))

    async def foreign_file(
        self,
        table: pa.Table,
        *,
        bounds: bool = True,
        content: DataFileContent = DataFileContent.DATA,
        partition: int | None = 0,
        folder: str = "",
        **parquet: Any,
    ) -> DataFile:
        """Writes a Parquet file as an engine does, into `folder` or the table's data folder."""
        folder = folder or f"{(await self.table()).metadata['location']}/data"
        location = f"{folder}/foreign-{next(self.numbers)}.parquet"
        path = self.root / self.key(location)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, **parquet)
        lower, upper = {}, {}
        if bounds and content is DataFileContent.DATA:
            offsets = [row["_stream"]["offset"] for row in table.select(["_stream"]).to_pylist()]
            lower, upper = {4: _bytes(min(offsets), 8)}, {4: _bytes(max(offsets), 8)}
            if partition is not None:
                lower[3] = upper[3] = _bytes(partition, 4)
        return DataFile.from_args(
            content=content,
            file_path=location,
            file_format=FileFormat.PARQUET,
            partition=IcebergRecord() if partition is None else IcebergRecord(partition),
            record_count=len(table),
            file_size_in_bytes=path.stat().st_size,
            lower_bounds=lower,
            upper_bounds=upper,
        )


def _next(metadata: Json) -> dict[int, int]:
    from lakestream.catalog.topic_table.offsets import next_offsets

    return next_offsets(metadata)


def _bytes(number: int, size: int) -> bytes:
    return number.to_bytes(size, "little", signed=True)
