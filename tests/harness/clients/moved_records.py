"""Records for tests of history, and a pipeline without Spark that moves them to tables: `move`."""

import asyncio
import os
from collections.abc import Callable, Sequence

from tests.harness.clients.kafka_clients import Record

from lakestream.config.settings import Settings
from lakestream.pipeline.driver import PipelineOptions
from lakestream.pipeline.micro_batch import Job
from lakestream.pipeline.spark.job import LocalJob
from lakestream.pipeline.tasks import Move, Outcome, WorkSettings
from lakestream.pipeline.worker import open_work
from lakestream.server.pipeline import open_driver
from lakestream.testing.brokers import BrokerProcesses

NOW_MS = 1_700_000_000_000
SNAPSHOT_REFRESH_S = 1.5
"""Time after which every broker has refreshed its snapshots."""


class _InterruptedJob:
    """Runs a callback when the files of a micro-batch are written and not yet committed."""

    def __init__(self, job: Job, before_commit: Callable[[], None]) -> None:
        self._job = job
        self._before_commit = before_commit

    async def run(self, moves: Sequence[Move]) -> list[Outcome]:
        outcomes = await self._job.run(moves)
        await asyncio.to_thread(self._before_commit)
        return outcomes


def move(cluster: BrokerProcesses, before_commit: Callable[[], None] | None = None) -> None:
    """Moves all records to tables, with a pipeline in this process."""
    settings = Settings(data_dir=cluster[0]._log.parent / "data", metadata=cluster.metadata, storage=cluster.storage)

    async def run_pipeline() -> None:
        folder = str(settings.segments_dir) if settings.segments_dir else None
        job = LocalJob(open_work(WorkSettings(storage_url=settings.storage_url, segments_dir=folder)))
        work = job if before_commit is None else _InterruptedJob(job, before_commit)
        async with open_driver(settings, PipelineOptions(once=True), work) as driver:
            await driver.run_once()
        await job.close()

    before = dict(os.environ)
    os.environ.update({name: text for name, text in cluster.environment.items() if name.startswith("AWS_")})
    try:
        asyncio.run(run_pipeline())
    finally:
        os.environ.clear()
        os.environ.update(before)


def sample_records(start: int, end: int) -> list[Record]:
    return [
        Record(b"value %d" % at, b"k%d" % (at % 3) if at % 5 else None, (("h", b"%d" % at),), NOW_MS + at)
        for at in range(start, end)
    ]


def at_offsets(records: list[Record], start: int = 0) -> list[Record]:
    """Returns the records with consecutive offsets, as a consumer should read them."""
    return [record.at(offset, 0) for offset, record in enumerate(records, start)]
