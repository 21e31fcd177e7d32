"""A pipeline driver over stores in memory, for tests of micro-batches."""

import asyncio
import io
from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from tests.harness.catalog.iceberg_tables import ROOT
from tests.harness.catalog.topic_tables import entries_of
from tests.harness.log.brokers import World

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.locations import Locations
from lakestream.catalog.manifests import avro_schemas as f
from lakestream.clock import RandomIds
from lakestream.coordination.schema_registry.schema_reader import SchemaReader
from lakestream.data.log.log import Log
from lakestream.metadata.claims import Claims
from lakestream.model import PartitionId
from lakestream.pipeline import micro_batch
from lakestream.pipeline.backlog import ChangedPartitions, read_backlog
from lakestream.pipeline.micro_batch import Job, MicroBatches
from lakestream.pipeline.plan import Backlog, PlanSettings
from lakestream.pipeline.spark.job import LocalJob
from lakestream.pipeline.table_setup import PipelineContext
from lakestream.pipeline.tasks import Move, Outcome, WorkSettings
from lakestream.pipeline.topic_schemas import TopicSchemas
from lakestream.pipeline.worker import Work
from lakestream.schemas.model import Schema, Source
from lakestream.schemas.parse import read_message

LOCAL_WORK = WorkSettings(storage_url=ROOT, segments_dir=None)


async def read_schema(source: Source, message: tuple[int, ...]) -> Schema:
    return read_message(source, message)


class RecordingJob:
    """Runs moves and records them; a test may change the outcomes."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.runs: list[list[Move]] = []
        self.changes: list[Any] = []
        """Functions that replace the outcomes of the next runs."""

    async def run(self, moves: Sequence[Move]) -> list[Outcome]:
        self.runs.append(list(moves))
        outcomes = await self._job.run(moves)
        if self.changes:
            change = self.changes.pop(0)
            outcomes = await change(outcomes)
        return outcomes


class PipelineDriver:
    """One driver. Several of them over one world stand for several processes."""

    def __init__(self, world: World, log: Log, settings: PlanSettings) -> None:
        self.world = world
        metadata = world.server.client()
        self.catalog = Catalog(metadata, world.objects, Locations(ROOT), world.clock, RandomIds())
        work = Work(world.objects, world.segments(), Locations(ROOT), RandomIds(), LOCAL_WORK)
        self.job = RecordingJob(LocalJob(work))
        self.changed = ChangedPartitions(metadata, world.topics)
        self.gc = world.sweeper()
        context = PipelineContext(
            log=log,
            claims=Claims(metadata),
            topics=world.topics,
            gc=self.gc,
            objects=world.objects,
            catalog=self.catalog,
            clock=world.clock,
            changed=self.changed,
        )
        schemas = TopicSchemas(self.catalog, SchemaReader(metadata), world.clock, read_schema)
        self.micro_batches = MicroBatches(context, self.job, settings, schemas)

    @classmethod
    async def start(cls, world: World, settings: PlanSettings | None = None) -> "PipelineDriver":
        pipeline = cls(world, await world.broker(), settings or PlanSettings())
        await pipeline.catalog.start()
        return pipeline

    async def rows(self, partition: PartitionId) -> list[tuple[int, bytes | None]]:
        """Returns offset and value of all rows of a partition in the table."""
        return sorted((row["_stream"]["offset"], row["value"]) for row in await self.plain_rows(partition))

    async def plain_rows(self, partition: PartitionId) -> list[dict[str, Any]]:
        """Returns the rows of a partition as they are in the files, by offset."""
        table = await self.catalog.load_id(partition.topic_id)
        found: list[dict[str, Any]] = []
        for entry in await entries_of(self.catalog, table.metadata):
            key = self.catalog.locations.key_of(entry[f.DATA_FILE][f.FILE_PATH])
            rows = pq.read_table(io.BytesIO(bytes(await self.world.objects.get(key)))).to_pylist()
            found += [row for row in rows if row["_stream"]["partition"] == partition.number]
        return sorted(found, key=lambda row: int(row["_stream"]["offset"]))


def delete_topic_before_read(last: PartitionId, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletes topic t after a micro-batch has read another log of it, and before it reads this one."""
    other_is_read = asyncio.Event()

    async def read(logs: Log, partition: PartitionId, start: int, *, without_deleted: bool) -> Backlog | None:
        if partition == last:
            await other_is_read.wait()
            await world.topics.delete("t")
        backlog = await read_backlog(logs, partition, start, without_deleted=without_deleted)
        other_is_read.set()
        return backlog

    monkeypatch.setattr(micro_batch, "read_backlog", read)
