"""A driver of the pipeline on a machine of its own: the real rounds, whose job is done right there.

Every step may fail, stall or be the last of its machine; the next round goes on where this one stopped, here or at
another driver. Several at once are safe.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from tests.simulation.dialects import SCHEMA
from tests.simulation.tables import LOCATIONS, ROOT
from tests.simulation.world import Host, World

from lakestream.catalog.errors import NoSuchTable
from lakestream.catalog.orphans import OrphanSettings
from lakestream.clock import SeededIds
from lakestream.coordination.schemas.shelf import SchemaShelf
from lakestream.errors import Conflict, Corrupt, LakestreamError, Missing, Unavailable
from lakestream.metadata.topics import NamedTopic, Topics
from lakestream.pipeline.backlog import ChangedLogs
from lakestream.pipeline.delta.mirror import DeltaMirror
from lakestream.pipeline.job import LocalJob
from lakestream.pipeline.maintenance.job import LocalRewrites
from lakestream.pipeline.maintenance.maintain import Maintenance, MaintenanceSettings
from lakestream.pipeline.maintenance.merging import MergeSettings
from lakestream.pipeline.maintenance.repair import Repairs
from lakestream.pipeline.maintenance.work import Rewriting
from lakestream.pipeline.plan import PlanSettings
from lakestream.pipeline.rounds import Round, Rounds
from lakestream.pipeline.typed_topics import TypedTopics
from lakestream.pipeline.work import Work, WorkSettings
from lakestream.schemas.model import Schema, Source
from lakestream.schemas.sources import read_message
from lakestream.testing.faults import spread

UNTIL_THE_END = 2**62

PASSING = ("cannot answer", "no answer to", "try again", "tried again", "did not answer", "it took more than")
"""What errors say that pass: of stores that cannot be reached."""

MAINTENANCE = MaintenanceSettings(
    look_ms=1_000,
    idle_ms=60_000,
    merge=MergeSettings(files_min=2, many=4, young_ms=1_000),
    # Behind all that can be late or asleep: what nobody names by then nobody ever will.
    orphans=OrphanSettings(age_ms=24 * 60 * 60 * 1000, every_ms=60 * 60 * 1000),
)


async def _read(source: Source, message: tuple[int, ...]) -> Schema:
    """Without a thread."""
    return read_message(source, message)


class Pipeline:
    def __init__(self, world: World, host: Host, settings: PlanSettings | None = None) -> None:
        self.world = world
        self.host = host
        luck = world.luck
        self.topics = topics = Topics(host.metadata)
        self.changed = ChangedLogs(host.metadata, topics)
        self._told: set[str] = set()
        """Why topics are stuck: held against what is true when it is first said."""
        self._idle = world.mood.moves < 1.0
        """There was nothing to move when it last looked; or it does not look."""
        work = WorkSettings(storage_url=ROOT, segments_dir=None, file_bytes_max=luck.choice((1_500, 100_000)))
        job = LocalJob(Work(host.objects, host.segments, LOCATIONS, SeededIds(luck), work))
        self.rounds = Rounds(
            host.log,
            host.claims,
            topics,
            host.sweeper,
            host.objects,
            host.catalog,
            job,
            host.clock,
            self.changed,
            settings or _drawn(world),
            self._typed_topics(),
        )
        self._rewrites = LocalRewrites(Rewriting(host.objects, LOCATIONS, SeededIds(luck)))
        self.mirror = DeltaMirror(host.catalog, topics, host.metadata.now_ms)
        self.maintenance = Maintenance(
            host.catalog, topics, host.claims, self._rewrites, host.metadata.now_ms, MAINTENANCE, self.mirror
        )

    def _typed_topics(self) -> TypedTopics:
        return TypedTopics(self.host.catalog, SchemaShelf(self.host.metadata), self.host.clock, _read)

    async def run(self) -> None:
        """On its machine."""
        await self.start()
        luck = self.world.luck
        while not (self.world.over and self._idle):
            await self._wait(self._pause_s())
            if luck.random() >= self.world.mood.moves:
                await self._try(self.sweep())
                continue
            await self._try(self.rounds_on())
            if luck.random() < 0.2 and not self.world.healed:
                await self._try(self.trim_all())
            if luck.random() < 0.3:
                await self._try(self.maintenance.maintain())
            if self.world.dialects and luck.random() < 0.4:
                await self._try(self.mirror_all())
            if self.world.dialects and luck.random() < 0.15:
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
        """When the clients are done there is little to move, but who sleeps may still wake up and claim."""
        if self.world.over:
            return 60.0
        if self.world.quiet:
            return 3600.0
        return spread(self.world.luck, 0.5, self.world.mood.move_s_max) * (5 if self.world.healed else 1)

    async def _wait(self, seconds: float) -> None:
        """Mostly until there is something to do, as a driver does: so several begin at once, and meet."""
        if self.world.luck.random() < 0.3 or self.world.quiet:
            await asyncio.sleep(seconds)
            return
        await asyncio.sleep(self.world.luck.random())
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
                self.world.witness.accuse("no false alarm", f"pipeline: {error}")
        except LakestreamError as error:
            self.world.witness.accuse("known errors", f"pipeline: {error!r}")

    async def rounds_on(self) -> None:
        """As long as there is more than a round may take."""
        while (await self.round()).left:
            pass

    async def round(self) -> Round:
        done = await self.rounds.run()
        self._idle = not (done.moves or done.stuck or self.changed.waiting)
        self.world.tally["ranges moved"] += done.moves
        self.world.tally["records moved"] += done.records
        for stuck in done.stuck:
            self.world.tally["topics stuck"] += 1
            if any(said in stuck for said in (*PASSING, *self.world.damaged)) or stuck in self._told:
                continue
            self._told.add(stuck)
            if self.world.witness.types.is_stopped(stuck):
                self.world.tally["topics stopped"] += 1
            else:
                self.world.witness.accuse("no false alarm", f"pipeline: {stuck}")
        return done

    async def trim_all(self) -> None:
        """As far as it goes: no further than the table has it."""
        for partition in self.world.living():
            self.host.sweeper.note_dropped(await self.host.log.trim(partition, UNTIL_THE_END))

    async def mirror_all(self) -> None:
        """Lead the Delta tables on."""
        await self.mirror.look()
        for standing in self.mirror.standings.values():
            if standing.behind and not any(said in standing.behind for said in PASSING):
                self.world.witness.accuse("no false alarm", f"Delta table of {standing.name}: {standing.behind}")

    async def repair_all(self) -> None:
        """As `lakestream topic repair` does, which knows nothing of the rounds beside it."""
        for name, topic in (await self.topics.all()).items():
            if SCHEMA in topic.settings:
                with suppress(NoSuchTable):  # it has no rows yet
                    await self._repair(NamedTopic(name, topic))

    async def _repair(self, named: NamedTopic) -> None:
        done = await Repairs(self.host.catalog, self._typed_topics(), self._rewrites).run(named)
        self.world.tally["rows repaired"] += done.rows_before - done.rows_after
        for reason in done.left:
            if not any(said in reason for said in (*PASSING, "does not say which offsets it has")):
                self.world.witness.accuse("no false alarm", f"repair: {reason}")

    async def sweep(self) -> None:
        await self.host.sweeper.sweep()


def _drawn(world: World) -> PlanSettings:
    """Mostly small: so that a round ends in the middle of a claim, and a log takes several files."""
    move_bytes_max = world.luck.choice((100, 300, 100_000))
    return PlanSettings(
        move_bytes_max=move_bytes_max,
        round_bytes_max=world.luck.choice((100, 1_000, 100_000)),
        whole_wait_ms=0 if move_bytes_max == 300 else 2_000,  # so that transactions are split
    )
