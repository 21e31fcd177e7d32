"""A topic's table over stores in memory, filled row by row, for tests of maintenance."""

import io
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from tests.harness.catalog.iceberg_tables import ROOT
from tests.harness.log.brokers import HandClock

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.locations import Locations
from lakestream.catalog.manifests.data_file import MovedRange, data_location
from lakestream.catalog.operations.append import append
from lakestream.catalog.operations.create_topic_table import ensure_table
from lakestream.catalog.operations.live_files import LiveFileReader
from lakestream.catalog.topic_table.live_file import LiveFile, by_partition
from lakestream.catalog.topic_table.offsets import next_offsets
from lakestream.clock import Clock, Ids, SeededIds
from lakestream.data.table.arrow.types import SCHEMA
from lakestream.data.table.write.parquet_writer import WrittenFile, write_parquet
from lakestream.metadata.claims import Claims
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.store import MetadataStore
from lakestream.metadata.topics import Topic, Topics
from lakestream.model import PartitionId
from lakestream.pipeline.maintenance.service import Maintenance, MaintenanceSettings
from lakestream.pipeline.maintenance.tasks import Result, Task
from lakestream.pipeline.maintenance.worker import FileRewriter, RewriteSettings
from lakestream.storage.memory import MemoryObjectStore
from lakestream.storage.object_store import ObjectStore

TOPIC = "orders"
TOPIC_ID = "a" * 32
MINUTE = 60_000
HOUR = 60 * MINUTE


class Row(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    time_ms: int = 0


class LocalTasks:
    """Runs tasks of workers in this process."""

    def __init__(self, rewriting: FileRewriter) -> None:
        self._rewriting = rewriting
        self.tasks: list[Task] = []

    async def run(self, tasks: Sequence[Task]) -> list[Result]:
        self.tasks += tasks
        return await self._rewriting.run(tasks)


class World:
    def __init__(
        self,
        store: MetadataStore | None = None,
        seed: int = 1,
        objects: ObjectStore | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.clock = HandClock()
        self.metadata: MetadataStore = store or MemoryServer(self.clock).client()
        self.objects: ObjectStore = objects or MemoryObjectStore(self.clock)
        self.ids = SeededIds(random.Random(seed))
        self.catalog = Catalog(self.metadata, self.objects, Locations(ROOT), clock or self.clock, self.ids)
        self.topics = Topics(self.metadata)
        self.claims = Claims(self.metadata)

    async def start(self, settings: Mapping[str, str] | None = None, partitions: int = 1) -> LoadedTable:
        chosen = dict(settings or {})
        await self.catalog.start()
        await self.topics.create(TOPIC, Topic(TOPIC_ID, partitions, chosen))
        return await ensure_table(self.catalog, TOPIC, TOPIC_ID, chosen)

    def maintenance(
        self, settings: MaintenanceSettings | None = None, work: RewriteSettings | None = None
    ) -> Maintenance:
        rewriting = FileRewriter(self.objects, self.catalog.locations, self.ids, work)
        self.job = LocalTasks(rewriting)
        return Maintenance(self.catalog, self.topics, self.claims, self.job, self._now_ms, settings)

    async def _now_ms(self) -> int:
        return self.clock.now_ms()

    async def table(self) -> LoadedTable:
        return await self.catalog.load_id(TOPIC_ID)

    async def append(self, rows: Iterable[Row], partition: int = 0, end: int | None = None) -> LoadedTable:
        """Appends rows in one commit, as the pipeline does."""
        listed = list(rows)
        loaded = await self.table()
        start = next_offsets(loaded.metadata).get(partition, 0)
        made = []
        for body, description in filed(listed, partition, loaded.metadata["location"], self.ids):
            await self.objects.create(self.catalog.locations.key_of(description.location), [bytes(body)])
            made.append(description)
        behind = end if end is not None else max(row.offset for row in listed) + 1
        return await append(self.catalog, loaded, made, [MovedRange(partition, start, behind)])

    async def files(self, partition: int = 0) -> list[LiveFile]:
        listing = await LiveFileReader(self.objects, self.catalog.locations).of_main((await self.table()).metadata)
        return by_partition(listing.data).get(partition, [])

    async def rows(self, partition: int = 0) -> list[Row]:
        """Returns the rows in the order of files and of rows in files."""
        found: list[Row] = []
        for file in await self.files(partition):
            body = await self.objects.get(self.catalog.locations.key_of(file.location))
            for row in pq.read_table(io.BytesIO(bytes(body))).to_pylist():
                stream = row["_stream"]
                time_ms = int(stream["timestamp"].timestamp() * 1000)
                found.append(Row(stream["offset"], stream["key"], row["value"], time_ms))
        return found

    async def keys(self) -> set[str]:
        return {info.key async for page in self.objects.walk("tables") for info in page}

    async def properties(self) -> Mapping[str, str]:
        found: Mapping[str, str] = (await self.table()).metadata["properties"]
        return found

    async def log_start(self, offset: int, partition: int = 0) -> None:
        await self.claims.raise_start(PartitionId(TOPIC_ID, partition), offset)


_STREAM = pa.struct(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ms", pa.int64()),
        ("timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary()), ("key_raw", pa.binary())]))),
        ("schema_id", pa.int32()),
        ("value", pa.binary()),
    ]
)
_PLAIN = pa.schema([("value", pa.binary()), ("_stream", _STREAM)])


def filed(rows: Sequence[Row], partition: int, location: str, ids: Ids) -> list[WrittenFile]:
    batches = pa.Table.from_pylist([_as_dict(row, partition) for row in rows], schema=_PLAIN).cast(SCHEMA)
    return list(
        write_parquet(batches.to_batches(), lambda offset: data_location(location, partition, offset, ids.new()))
    )


def _as_dict(row: Row, partition: int) -> dict[str, Any]:
    stream = {
        "partition": partition,
        "offset": row.offset,
        "timestamp": row.time_ms * 1000,
        "timestamp_ms": None,
        "timestamp_type": 0,
        "key": row.key,
        "headers": [{"key": "a", "value": None, "key_raw": None}],
        "schema_id": None,
        "value": None,
    }
    return {"value": row.value, "_stream": stream}


def some_rows(start: int, count: int, time_ms: int = 0) -> list[Row]:
    return [Row(offset, b"k%d" % offset, b"v%d" % offset, time_ms) for offset in range(start, start + count)]
