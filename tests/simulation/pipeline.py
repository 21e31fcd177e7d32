"""A pipeline driver on its own machine: the production micro-batches, with the job in the same process.

Each step may fail, stall or end with the machine. The next micro-batch, of this driver or another one, continues from
there. Several drivers may run at the same time.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from tests.simulation.tables import LOCATIONS, ROOT
from tests.simulation.value_generators import SCHEMA
from tests.simulation.world import Host, World

from lakestream.catalog.errors import NoSuchTable
from lakestream.catalog.operations.remove_orphan_files import OrphanSettings
from lakestream.clock import SeededIds
from lakestream.coordination.schema_registry.schema_reader import SchemaReader
from lakestream.errors import Conflict, Corrupt, LakestreamError, Missing, Unavailable
from lakestream.metadata.topics import NamedTopic, Topics
from lakestream.pipeline.backlog import ChangedPartitions
from lakestream.pipeline.delta.sync_task import DeltaSyncTask
from lakestream.pipeline.maintenance.job import LocalRewrites
from lakestream.pipeline.maintenance.service import Maintenance, MaintenanceSettings
from lakestream.pipeline.maintenance.small_files import MergeSettings
from lakestream.pipeline.maintenance.worker import FileRewriter
from lakestream.pipeline.micro_batch import MicroBatches
from lakestream.pipeline.plan import PlanSettings
from lakestream.pipeline.repair.repair import Repairs
from lakestream.pipeline.spark.job import LocalJob
from lakestream.pipeline.table_setup import PipelineContext
from lakestream.pipeline.tasks import WorkSettings
from lakestream.pipeline.topic_schemas import TopicSchemas
from lakestream.pipeline.topic_status import MicroBatchResult
from lakestream.pipeline.worker import Work
from lakestream.schemas.model import Schema, Source
from lakestream.schemas.parse import read_message
from lakestream.testing.fault_injection import log_uniform

UNTIL_THE_END = 2**62

TRANSIENT = ("cannot answer", "no answer to", "retry", "retried", "retries", "timed out", "took longer than")
"""Texts of transient errors, such as those of unavailable stores."""

MAINTENANCE = MaintenanceSettings(
    visit_ms=1_000,
    idle_ms=60_000,
    merge=MergeSettings(files_min=2, many=4, young_ms=1_000),
    # Longer than any call can be late: a file that is not referenced after this time never will be.
    orphans=OrphanSettings(age_ms=24 * 60 * 60 * 1000, every_ms=60 * 60 * 1000),
)


async def _read(source: Source, message: tuple[int, ...]) -> Schema:
    """Parses a schema without a thread, for determinism."""
    return read_message(source, message)


class Pipeline:
    def __init__(self, world: World, host: Host, settings: PlanSettings | None = None) -> None:
        self.world = world
        self.host = host
        rng = world.rng
        self.topics = topics = Topics(host.metadata)
        self.changed = ChangedPartitions(host.metadata, topics)
        self._reported: set[str] = set()
        """Errors of stalled topics that were checked: each is compared with the truth when it first occurs."""
        self._idle = world.scenario.moves < 1.0
        """The last micro-batch had nothing to move, or this driver runs none."""
        work = WorkSettings(storage_url=ROOT, segments_dir=None, file_bytes_max=rng.choice((1_500, 100_000)))
        job = LocalJob(Work(host.objects, host.segments, LOCATIONS, SeededIds(rng), work))
        context = PipelineContext(
            log=host.log,
            claims=host.claims,
            topics=topics,
            gc=host.gc,
            objects=host.objects,
            catalog=host.catalog,
            clock=host.clock,
            changed=self.changed,
        )
        self.micro_batches = MicroBatches(context, job, settings or _draw_settings(world), self._topic_schemas())
        self._rewrites = LocalRewrites(FileRewriter(host.objects, LOCATIONS, SeededIds(rng)))
        self.delta_sync = DeltaSyncTask(host.catalog, topics, host.metadata.now_ms)
        self.maintenance = Maintenance(
            host.catalog, topics, host.claims, self._rewrites, host.metadata.now_ms, MAINTENANCE, self.delta_sync
        )

    def _topic_schemas(self) -> TopicSchemas:
        return TopicSchemas(self.host.catalog, SchemaReader(self.host.metadata), self.host.clock, _read)

    async def run(self) -> None:
        """On its machine."""
        await self.start()
        rng = self.world.rng
        while not (self.world.finished and self._idle):
            await self._wait(self._pause_s())
            if rng.random() >= self.world.scenario.moves:
                await self._try(self.collect())
                continue
            await self._try(self.run_micro_batches())
            if rng.random() < 0.2 and not self.world.healed:
                await self._try(self.trim_all())
            if rng.random() < 0.3:
                await self._try(self.maintenance.maintain())
            if self.world.generators and rng.random() < 0.4:
                await self._try(self.sync_delta())
            if self.world.generators and rng.random() < 0.15:
                await self._try(self.repair_all())

    async def start(self) -> None:
        await self.host.start()
        while True:
            try:
                await self.host.catalog.start()
                break
            except Unavailable:
                await asyncio.sleep(1.0)
        asyncio.get_running_loop().create_task(self.changed.follow(), name=f"{self.host.name} follows")

    def _pause_s(self) -> float:
        """Returns a long pause when the clients are done; a paused broker may still resume and create a claim."""
        if self.world.finished:
            return 60.0
        if self.world.clients_done:
            return 3600.0
        return log_uniform(self.world.rng, 0.5, self.world.scenario.move_s_max) * (5 if self.world.healed else 1)

    async def _wait(self, seconds: float) -> None:
        """Mostly waits for new records, as a driver does, so that several drivers start at the same time."""
        if self.world.rng.random() < 0.3 or self.world.clients_done:
            await asyncio.sleep(seconds)
            return
        await asyncio.sleep(self.world.rng.random())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.changed.news.wait()

    async def _try(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except (Unavailable, Conflict, Missing):
            self.world.tally["pipeline steps failed"] += 1
        except Corrupt as error:
            if not any(name in str(error) for name in self.world.damaged):
                self.world.oracle.report("no false errors", f"pipeline: {error}")
        except LakestreamError as error:
            self.world.oracle.report("only documented errors", f"pipeline: {error!r}")

    async def run_micro_batches(self) -> None:
        """Runs micro-batches while the backlog is larger than the limit of one."""
        while (await self.run_micro_batch()).left:
            pass

    async def run_micro_batch(self) -> MicroBatchResult:
        done = await self.micro_batches.run()
        self._idle = not (done.moves or done.stalled or self.changed.waiting)
        self.world.tally["ranges moved"] += done.moves
        self.world.tally["records moved"] += done.records
        for error in done.stalled:
            self.world.tally["topics stalled"] += 1
            if any(text in error for text in (*TRANSIENT, *self.world.damaged)) or error in self._reported:
                continue
            self._reported.add(error)
            if self.world.oracle.types.is_expected_stop(error):
                self.world.tally["topics stopped"] += 1
            else:
                self.world.oracle.report("no false errors", f"pipeline: {error}")
        return done

    async def trim_all(self) -> None:
        """Trims all logs as far as possible, which is up to the end of the table."""
        for partition in self.world.live_partitions():
            self.host.gc.note_dropped(await self.host.log.trim(partition, UNTIL_THE_END))

    async def sync_delta(self) -> None:
        """Syncs the Delta tables."""
        await self.delta_sync.sync_all()
        for status in self.delta_sync.statuses.values():
            if status.lagging and not any(text in status.lagging for text in TRANSIENT):
                self.world.oracle.report("no false errors", f"Delta table of {status.name}: {status.lagging}")

    async def repair_all(self) -> None:
        """Repairs tables as `lakestream table repair` does, concurrently with micro-batches."""
        for name, topic in (await self.topics.all()).items():
            if SCHEMA in topic.settings:
                with suppress(NoSuchTable):  # the topic has no rows yet
                    await self._repair(NamedTopic(name, topic))

    async def _repair(self, named: NamedTopic) -> None:
        done = await Repairs(self.host.catalog, self._topic_schemas(), self._rewrites).run(named)
        self.world.tally["rows repaired"] += done.rows_before - done.rows_after
        for reason in done.left:
            if not any(text in reason for text in (*TRANSIENT, "has no bounds of its offsets")):
                self.world.oracle.report("no false errors", f"repair: {reason}")

    async def collect(self) -> None:
        await self.host.gc.collect()


def _draw_settings(world: World) -> PlanSettings:
    """Draws mostly small limits, so that a micro-batch ends within a claim and a log needs several files."""
    move_bytes_max = world.rng.choice((100, 300, 100_000))
    return PlanSettings(
        move_bytes_max=move_bytes_max,
        move_bytes_min=100,
        round_bytes_max=world.rng.choice((100, 1_000, 100_000)),
        whole_wait_ms=0 if move_bytes_max == 300 else 2_000,  # so that transactions are split
    )
