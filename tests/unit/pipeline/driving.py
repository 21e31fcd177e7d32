"""A pipeline over stores in memory, beside brokers: what tests of rounds work with."""

import asyncio
import io
from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from tests.unit.catalog.tables import ROOT
from tests.unit.catalog.topic import entries_of
from tests.unit.data.brokers import World

from lakestream.catalog import manifest_schemas as f
from lakestream.catalog.catalog import Catalog
from lakestream.catalog.locations import Locations
from lakestream.clock import RandomIds
from lakestream.coordination.schemas.shelf import SchemaShelf
from lakestream.data.log.log import Log
from lakestream.metadata.claims import Claims
from lakestream.model import PartitionId
from lakestream.pipeline import rounds
from lakestream.pipeline.backlog import ChangedLogs, backlog_of
from lakestream.pipeline.job import LocalJob
from lakestream.pipeline.plan import Backlog, PlanSettings
from lakestream.pipeline.rounds import Job, Rounds
from lakestream.pipeline.tasks import Move, Outcome
from lakestream.pipeline.typed_topics import TypedTopics
from lakestream.pipeline.work import Work, WorkSettings
from lakestream.schemas.model import Schema, Source
from lakestream.schemas.sources import read_message

HERE = WorkSettings(storage_url=ROOT, segments_dir=None)


async def read_here(source: Source, message: tuple[int, ...]) -> Schema:
    return read_message(source, message)


class WatchedJob:
    """Does its work, after `before` had a look at it; or what a test says instead."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.runs: list[list[Move]] = []
        self.instead: list[Any] = []
        """What to make of the outcomes of the next runs."""

    async def run(self, moves: Sequence[Move]) -> list[Outcome]:
        self.runs.append(list(moves))
        outcomes = await self._job.run(moves)
        if self.instead:
            change = self.instead.pop(0)
            outcomes = await change(outcomes)
        return outcomes


class Driving:
    """One driver. Several over one world are several processes."""

    def __init__(self, world: World, log: Log, settings: PlanSettings) -> None:
        self.world = world
        metadata = world.server.client()
        self.catalog = Catalog(metadata, world.objects, Locations(ROOT), world.clock, RandomIds())
        work = Work(world.objects, world.segments(), Locations(ROOT), RandomIds(), HERE)
        self.job = WatchedJob(LocalJob(work))
        self.changed = ChangedLogs(metadata, world.topics)
        self.sweeper = world.sweeper()
        self.rounds = Rounds(
            log,
            Claims(metadata),
            world.topics,
            self.sweeper,
            world.objects,
            self.catalog,
            self.job,
            world.clock,
            self.changed,
            settings,
            TypedTopics(self.catalog, SchemaShelf(metadata), world.clock, read_here),
        )

    @classmethod
    async def start(cls, world: World, settings: PlanSettings | None = None) -> "Driving":
        driving = cls(world, await world.broker(), settings or PlanSettings())
        await driving.catalog.start()
        return driving

    async def rows(self, partition: PartitionId) -> list[tuple[int, bytes | None]]:
        """Offset and value of all rows of a log, as the table has them now."""
        return sorted((row["_stream"]["offset"], row["value"]) for row in await self.plain_rows(partition))

    async def plain_rows(self, partition: PartitionId) -> list[dict[str, Any]]:
        """By offset, as they stand in the files."""
        table = await self.catalog.load_id(partition.topic_id)
        found: list[dict[str, Any]] = []
        for entry in await entries_of(self.catalog, table.metadata):
            key = self.catalog.locations.key_of(entry[f.DATA_FILE][f.FILE_PATH])
            rows = pq.read_table(io.BytesIO(bytes(await self.world.objects.get(key)))).to_pylist()
            found += [row for row in rows if row["_stream"]["partition"] == partition.number]
        return sorted(found, key=lambda row: int(row["_stream"]["offset"]))


def deleted_before_it_is_looked_at(last: PartitionId, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topic t goes when a round has looked at another log of it, and not yet at this one."""
    found = asyncio.Event()

    async def gone(logs: Log, partition: PartitionId, start: int, *, without_deleted: bool) -> Backlog | None:
        if partition == last:
            await found.wait()
            await world.topics.delete("t")
        backlog = await backlog_of(logs, partition, start, without_deleted=without_deleted)
        found.set()
        return backlog

    monkeypatch.setattr(rounds, "backlog_of", gone)
