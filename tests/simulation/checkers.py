"""What must hold when all is over (section 9 of the design): checked once nothing is broken, late or asleep any more.

Most rules are checked while the run goes on, by the witness, the producers and the readers. Here: everything
acknowledged is readable from every broker, the table is exactly the committed records, and what nobody needs is gone
from storage.
"""

import asyncio
from contextlib import suppress

from tests.simulation.pipeline import Pipeline
from tests.simulation.readers import Reader
from tests.simulation.world import Host, World

from lakestream.catalog.errors import NoSuchTable
from lakestream.catalog.listing import Listings
from lakestream.catalog.orphans import OrphanSettings, remove_orphans
from lakestream.data.log.inspect import Inspector
from lakestream.errors import LakestreamError
from lakestream.metadata.claims import Medium
from lakestream.model import PartitionId
from lakestream.pipeline.delta.mirror import DeltaMirror
from lakestream.pipeline.plan import PlanSettings
from lakestream.testing.memory_segments import MemorySegments

HOUR = 3600.0
ROUNDS_MAX = 20
OLD_SOON = OrphanSettings(age_ms=60 * 60 * 1000)
QUIET_S = 11 * HOUR
"""Longer than anything can be late or asleep."""


async def check_all(world: World) -> None:
    await asyncio.sleep(QUIET_S)
    world.over = True
    await asyncio.sleep(2 * HOUR)
    live = [partition for partition, log in world.witness.logs.items() if not log.gone]
    check_objects(world)
    await check_inspected(world, live)
    for broker in world.brokers:
        for partition in live:
            await check_readable(world, broker, partition)
    check_moved(world, live)
    await check_move(world)
    for partition in live:
        check_table(world, partition)
    for partition in live:
        await check_readable(world, world.any_broker(), partition)
    check_bounded(world)


def check_objects(world: World) -> None:
    """No claim at or above the floor points at a missing object."""
    for partition, log in world.witness.logs.items():
        for claim in log.claims.values():
            if log.gone or claim.offset_end <= log.floor:
                continue
            there = world.objects._objects if claim.medium is Medium.OBJECT else world.disk.files
            if claim.name not in there:
                world.witness.accuse("no claim points at a missing object", f"{partition}:{claim.offset_start}")


async def check_inspected(world: World, live: list[PartitionId]) -> None:
    """The doctor finds nothing but what was damaged on purpose, and every segment can be walked."""
    inspector = Inspector(
        world.server.client(), world.objects, MemorySegments(world.disk, world.clock, world.loop.luck)
    )
    for partition in live:
        for trouble in (await inspector.inspect(partition)).troubles:
            if not any(name in trouble for name in world.damaged):
                world.witness.accuse("claims and bytes agree", f"{partition}: {trouble}")


async def check_readable(world: World, broker: Host, partition: PartitionId) -> None:
    """The whole log, from its first offset to its end."""
    log = world.witness.log(partition)
    reader = Reader(world)
    offset = 0
    while offset < log.end:
        found = await reader.read(broker, partition, offset)
        if found is None or found.offset_next <= offset:
            world.witness.accuse(
                "what is acknowledged is readable", f"{broker.name} cannot read {partition}:{offset} ({found})"
            )
            return
        offset = found.offset_next


def check_moved(world: World, live: list[PartitionId]) -> None:
    """Whoever was at it all the time has moved everything by now, if he heard of it."""
    weather = world.mood.weather
    if world.mood.pipelines and world.mood.moves == 1.0 and (weather.events_made_up_s_max or not weather.event_lost):
        for partition in live:
            check_table(world, partition)


async def check_move(world: World) -> None:
    """A pipeline that nobody disturbs moves all of it, and the sweeper leaves nothing behind."""
    world.pipelines.clear()
    hosts: list[Host] = []
    made: list[Pipeline] = []

    async def begin(host: Host) -> None:
        made.append(Pipeline(world, host, PlanSettings()))
        await made[0].start()

    world.start(hosts, 0, "pipeline", begin)
    await asyncio.sleep(1.0)
    (pipeline,), machine = made, hosts[0].machine
    try:
        for pause_s in (120.0, 0.0):  # all is old by now, and what is not moved yet must stay
            await machine.call(pipeline.sweep())
            await asyncio.sleep(pause_s)
        for _ in range(ROUNDS_MAX):
            done = await machine.call(pipeline.round())
            if not (done.moves or done.stuck or pipeline.changed.waiting):
                break
            await asyncio.sleep(60.0)
        for pause_s in (8 * HOUR, 120.0, 0.0):
            await machine.call(pipeline.sweep())
            await asyncio.sleep(pause_s)
        await machine.call(pipeline.repair_all())
        await machine.call(pipeline.mirror_all())
        check_delta(world)
        await machine.call(_without_orphans(world, hosts[0], pipeline.mirror))
    except LakestreamError as error:
        world.witness.accuse("a calm pipeline works", repr(error))
        return
    check_left(world)


async def _without_orphans(world: World, host: Host, mirror: DeltaMirror) -> None:
    """Of commits of which nobody learned what became, files are left, which maintenance removes some day."""
    listings = Listings(host.objects, host.catalog.locations)
    for table_id in world.witness.tables.known():
        with suppress(NoSuchTable):
            kept = await mirror.listed(await host.catalog.load_id(table_id))
            await remove_orphans(host.catalog, table_id, listings, await host.metadata.now_ms(), OLD_SOON, kept=kept)


def check_left(world: World) -> None:
    """What is stored is needed: by a claim, or by a table."""
    needed = {
        claim.name
        for log in world.witness.logs.values()
        if not log.gone
        for claim in log.claims.values()
        if claim.offset_end > log.table_end
    }
    stored = {*world.objects._objects, *world.disk.files} - needed
    left = sorted(name for name in stored if not world.witness.tables.may_be_there(name))
    if left:
        world.witness.accuse("nothing is left behind", f"{len(left)} objects nobody needs, as {left[0]}")


def check_delta(world: World) -> None:
    """Once it is healed it has the files that Iceberg has."""
    tables = world.witness.tables
    for topic_id, dialect in world.dialects.items():
        table = tables.of(topic_id)
        if not dialect.delta or table.main is None or world.witness.log(PartitionId(topic_id, 0)).gone:
            continue
        found = world.witness.delta.tables.get(f"{table.folder}/data")
        if found is None or found.files != tables.snapshots[table.main]:
            world.witness.accuse("Delta has what Iceberg has", f"the Delta table of {topic_id} is {found}")


def check_table(world: World, partition: PartitionId) -> None:
    """It has everything. That it has nothing else was seen at every commit."""
    log, end = world.witness.log(partition), world.witness.tables.next_offset(partition)
    if end != log.end or log.table_end != log.end:
        world.witness.accuse(
            "the table gets everything", f"{partition} is {end} of {log.end}, its table end {log.table_end}"
        )


def check_bounded(world: World) -> None:
    """Nothing waits any more, and what is kept in memory is bounded."""
    for broker in world.brokers:
        for writer in broker.log._writers.values():
            if writer.bytes_held:
                world.witness.accuse("queues end empty", f"{broker.name} holds {writer.bytes_held} bytes")
