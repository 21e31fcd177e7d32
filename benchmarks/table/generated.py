"""Topics with a long history: their records are only in the table, in a given number of files and commits.

Files and commits are written by the code of the pipeline, without a WAL and without Spark; only the order of records is
generated. At the end one claim over all offsets is created and trimmed, so that brokers open a log whose records were
all moved.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.kafka.load.payload import SIZE, records
from benchmarks.kafka.load.tasks import Values
from benchmarks.table.servers import VALUES
from lakestream.catalog.catalog import LoadedTable
from lakestream.catalog.manifests.data_file import FileDescription, MovedRange, data_location
from lakestream.catalog.operations.append import append
from lakestream.catalog.operations.create_topic_table import ensure_table
from lakestream.clock import RandomIds, SystemClock
from lakestream.config.settings import Settings
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.data.table.write.parquet_writer import write_parquet
from lakestream.metadata.claims import BatchInfo, Claim, Claims, Medium
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId
from lakestream.server.node import Node, open_node
from lakestream.testing.batches import make_batch

BATCH_RECORDS: Final = 256
_ids = RandomIds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of a topic, for each of its partitions."""

    commits: int
    files: int
    """Number of files of all partitions together."""
    file_records: int
    partitions: int = 1

    @property
    def offset_end(self) -> int:
        return self.files * self.file_records

    @property
    def size(self) -> int:
        """Size of the values of all records."""
        return self.partitions * self.offset_end * SIZE


class TopicBuilder:
    """Creates a topic and the files of its table."""

    def __init__(self, node: Node, name: str, shape: Shape) -> None:
        self._node = node
        self._name = name
        self._shape = shape
        self._topic = Topic(_ids.new(), shape.partitions)
        self._source = _source(shape.file_records)
        self._ends = [0] * shape.partitions
        self._table: LoadedTable | None = None

    async def begin(self) -> None:
        await self._node.topics.create(self._name, self._topic)
        self._table = await ensure_table(self._node.catalog, self._name, self._topic.topic_id, {})

    async def files(self, count: int) -> tuple[list[FileDescription], list[MovedRange]]:
        """Stores more records of each partition in `count` files, which are not committed yet."""
        files: list[FileDescription] = []
        ranges: list[MovedRange] = []
        for partition, start in enumerate(self._ends):
            for _ in range(count):
                files += await self._file(partition)
            ranges.append(MovedRange(partition, start, self._ends[partition]))
        return files, ranges

    async def commit(self, files: list[FileDescription], ranges: list[MovedRange]) -> None:
        assert self._table is not None, "call begin first"
        self._table = await append(self._node.catalog, self._table, files, ranges)

    async def write_all(self) -> None:
        shape = self._shape
        for number in range(shape.commits):
            await self.commit(*await self.files(_share(shape.files, number, shape.commits)))

    async def end(self) -> None:
        """Creates the log as it is after its records were moved to the table."""
        claims = Claims(self._node.stores.metadata)
        for partition, offset_end in zip(self._topic.partitions(), self._ends, strict=True):
            await claims.create([(partition, _claim(offset_end))])
            await claims.advance_table_end(partition, offset_end)
            await self._node.log.trim(partition, offset_end)

    @property
    def partitions(self) -> list[PartitionId]:
        return self._topic.partitions()

    async def _file(self, partition: int) -> list[FileDescription]:
        assert self._table is not None, "call begin first"
        location, source = self._table.metadata["location"], self._source
        moved = BatchSource(
            source.name, source.data, source.starts, source.ends, source.base_offsets + self._ends[partition]
        )
        descriptions: list[FileDescription] = []
        for file in write_parquet(
            decode([moved], partition), lambda offset: data_location(location, partition, offset, _ids.new())
        ):
            key = self._node.catalog.locations.key_of(file.description.location)
            await self._node.stores.objects.create(key, [memoryview(file.body)])
            descriptions.append(file.description)
        self._ends[partition] += self._shape.file_records
        return descriptions


@asynccontextmanager
async def topic_builder(folder: Path, name: str, shape: Shape) -> AsyncIterator[TopicBuilder]:
    """Creates a topic in a data directory without a running broker. The topic is complete at the end of the block."""
    async with open_node(Settings(data_dir=folder / "data")) as node:
        builder = TopicBuilder(node, name, shape)
        await builder.begin()
        yield builder
        await builder.end()


async def build_topic(folder: Path, name: str, shape: Shape) -> None:
    async with topic_builder(folder, name, shape) as builder:
        await builder.write_all()


def _source(count: int) -> BatchSource:
    """Returns the batches of one file."""
    values = records(Values(count=count, random_bytes=VALUES.random_bytes))
    starts = range(0, count, BATCH_RECORDS)
    data = b"".join(make_batch(values[start : start + BATCH_RECORDS]) for start in starts)
    return BatchSource.back_to_back("generated", data, list(starts))


def _claim(offset_end: int) -> Claim:
    now_ms = SystemClock().now_ms()
    return Claim(
        offset_start=0,
        offset_end=offset_end,
        claim_id=f"{_ids.new()}.0",
        writer="generated",
        medium=Medium.OBJECT,
        name="generated",
        stored_ms=now_ms,
        appended_ms=now_ms,
        max_timestamp=now_ms,
        batches=(BatchInfo(0, offset_end * SIZE, offset_end),),
    )


def _share(total: int, number: int, of: int) -> int:
    return total * (number + 1) // of - total * number // of
