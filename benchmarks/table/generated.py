"""Topics that look old: their records are in the table alone, in as many files and commits as asked for.

Files and commits are made as the pipeline makes them, without a WAL and without Spark: only the order in which bytes
came is invented. At the end one claim over all offsets is made and trimmed, so that brokers find the log as it is when
everything in it was moved.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.kafka.load.payload import SIZE, records
from benchmarks.kafka.load.tasks import Values
from benchmarks.table.sides import VALUES
from lakestream.catalog.append import append
from lakestream.catalog.catalog import LoadedTable
from lakestream.catalog.data_files import FileDescription, MovedRange, data_location
from lakestream.catalog.topic_tables import ensure_table
from lakestream.clock import RandomIds, SystemClock
from lakestream.data.table.decode import decode
from lakestream.data.table.heads import Source
from lakestream.data.table.parquet import write_parquet
from lakestream.metadata.claims import BatchInfo, Claim, Claims, Medium
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId
from lakestream.node import Node, open_node
from lakestream.settings import Settings
from lakestream.testing.batches import make_batch

BATCH_RECORDS: Final = 256
_ids = RandomIds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a topic is made of, in each of its partitions."""

    commits: int
    files: int
    """In all."""
    file_records: int
    partitions: int = 1

    @property
    def offset_end(self) -> int:
        return self.files * self.file_records

    @property
    def size(self) -> int:
        """Of the values of all records."""
        return self.partitions * self.offset_end * SIZE


class Making:
    """One topic while it is made."""

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
        """So many more in each partition, stored, and known to nobody yet."""
        found: list[FileDescription] = []
        ranges: list[MovedRange] = []
        for partition, start in enumerate(self._ends):
            for _ in range(count):
                found += await self._file(partition)
            ranges.append(MovedRange(partition, start, self._ends[partition]))
        return found, ranges

    async def commit(self, files: list[FileDescription], ranges: list[MovedRange]) -> None:
        assert self._table is not None, "begun"
        self._table = await append(self._node.catalog, self._table, files, ranges)

    async def all(self) -> None:
        shape = self._shape
        for number in range(shape.commits):
            await self.commit(*await self.files(_share(shape.files, number, shape.commits)))

    async def end(self) -> None:
        """The log, as it is when its records have left it."""
        claims = Claims(self._node.stores.metadata)
        for partition, offset_end in zip(self._topic.partitions(), self._ends, strict=True):
            await claims.create([(partition, _claim(offset_end))])
            await claims.advance_table_end(partition, offset_end)
            await self._node.log.trim(partition, offset_end)

    @property
    def partitions(self) -> list[PartitionId]:
        return self._topic.partitions()

    async def _file(self, partition: int) -> list[FileDescription]:
        assert self._table is not None, "begun"
        location, source = self._table.metadata["location"], self._source
        moved = Source(
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
async def making(folder: Path, name: str, shape: Shape) -> AsyncIterator[Making]:
    """In the data directory of a Lakestream whose broker does not run; the topic is whole when the block is left."""
    async with open_node(Settings(data_dir=folder / "data")) as node:
        made = Making(node, name, shape)
        await made.begin()
        yield made
        await made.end()


async def make(folder: Path, name: str, shape: Shape) -> None:
    async with making(folder, name, shape) as made:
        await made.all()


def _source(count: int) -> Source:
    """Batches of one file."""
    values = records(Values(count=count, chance=VALUES.chance))
    starts = range(0, count, BATCH_RECORDS)
    data = b"".join(make_batch(values[start : start + BATCH_RECORDS]) for start in starts)
    return Source.back_to_back("generated", data, list(starts))


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
