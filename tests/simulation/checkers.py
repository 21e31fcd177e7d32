"""Checks at the end of a run, when there are no faults, late calls or paused machines any more.

The oracle, the producers and the readers check most rules during the run. Checked here: all acknowledged records are
readable from every broker, the table has exactly the committed records, and storage has no garbage.
"""

import asyncio
from contextlib import suppress

from tests.simulation.pipeline import Pipeline
from tests.simulation.readers import Reader
from tests.simulation.world import Host, World

from lakestream.catalog.errors import NoSuchTable
from lakestream.catalog.operations.live_files import LiveFileReader
from lakestream.catalog.operations.remove_orphan_files import OrphanSettings, remove_orphans
from lakestream.data.verify.log import LogVerifier
from lakestream.errors import LakestreamError
from lakestream.metadata.claims import Medium
from lakestream.model import PartitionId
from lakestream.pipeline.delta.sync_task import DeltaSyncTask
from lakestream.pipeline.plan import PlanSettings
from lakestream.testing.memory_segments import MemorySegments

HOUR = 3600.0
MICRO_BATCHES_MAX = 20
ORPHANS = OrphanSettings(age_ms=60 * 60 * 1000)
QUIET_S = 11 * HOUR
"""Longer than any call can be late or any machine paused."""


async def check_all(world: World) -> None:
    await asyncio.sleep(QUIET_S)
    world.finished = True
    await asyncio.sleep(2 * HOUR)
    live = [partition for partition, log in world.oracle.logs.items() if not log.deleted]
    check_objects(world)
    await check_verified(world, live)
    for broker in world.brokers:
        for partition in live:
            await check_readable(world, broker, partition)
    check_pipelines_finished(world, live)
    await check_final_move(world)
    for partition in live:
        check_table(world, partition)
    for partition in live:
        await check_readable(world, world.any_broker(), partition)
    check_queues_empty(world)


def check_objects(world: World) -> None:
    """Checks that all claims at or above the floor point at existing objects."""
    for partition, log in world.oracle.logs.items():
        for claim in log.claims.values():
            if log.deleted or claim.offset_end <= log.floor:
                continue
            stored = world.objects._objects if claim.medium is Medium.OBJECT else world.disk.files
            if claim.name not in stored:
                world.oracle.report("claims point at existing objects", f"{partition}:{claim.offset_start}")


async def check_verified(world: World, live: list[PartitionId]) -> None:
    """Checks that the verifier reports only damage that was injected, and can read every segment."""
    verifier = LogVerifier(
        world.server.client(), world.objects, MemorySegments(world.disk, world.clock, world.loop.rng)
    )
    for partition in live:
        for problem in (await verifier.verify(partition)).problems:
            if not any(name in problem for name in world.damaged):
                world.oracle.report("claims match the stored bytes", f"{partition}: {problem}")


async def check_readable(world: World, broker: Host, partition: PartitionId) -> None:
    """Reads the whole log, from its first offset to its end."""
    log = world.oracle.log(partition)
    reader = Reader(world)
    offset = 0
    while offset < log.end:
        result = await reader.read(broker, partition, offset)
        if result is None or result.offset_next <= offset:
            world.oracle.report(
                "acknowledged records are readable", f"{broker.name} cannot read {partition}:{offset} ({result})"
            )
            return
        offset = result.offset_next


def check_pipelines_finished(world: World, live: list[PartitionId]) -> None:
    """Checks that pipelines that ran all the time, and lost no watch event for ever, have moved all records."""
    faults = world.scenario.faults
    if (
        world.scenario.pipelines
        and world.scenario.moves == 1.0
        and (faults.events_made_up_s_max or not faults.event_lost)
    ):
        for partition in live:
            check_table(world, partition)


async def check_final_move(world: World) -> None:
    """Checks that a pipeline without faults moves all records, and that garbage collection leaves nothing."""
    world.pipelines.clear()
    hosts: list[Host] = []
    pipelines: list[Pipeline] = []

    async def begin(host: Host) -> None:
        pipelines.append(Pipeline(world, host, PlanSettings()))
        await pipelines[0].start()

    world.start(hosts, 0, "pipeline", begin)
    await asyncio.sleep(1.0)
    (pipeline,), machine = pipelines, hosts[0].machine
    try:
        for pause_s in (120.0, 0.0):  # all objects are old now, and those that are not moved yet must stay
            await machine.call(pipeline.collect())
            await asyncio.sleep(pause_s)
        for _ in range(MICRO_BATCHES_MAX):
            done = await machine.call(pipeline.run_micro_batch())
            if not (done.moves or done.stalled or pipeline.changed.waiting):
                break
            await asyncio.sleep(60.0)
        for pause_s in (8 * HOUR, 120.0, 0.0):
            await machine.call(pipeline.collect())
            await asyncio.sleep(pause_s)
        await machine.call(pipeline.repair_all())
        await machine.call(pipeline.sync_delta())
        check_delta(world)
        await machine.call(_remove_orphans(world, hosts[0], pipeline.delta_sync))
    except LakestreamError as error:
        world.oracle.report("a pipeline works without faults", repr(error))
        return
    check_no_garbage(world)


async def _remove_orphans(world: World, host: Host, delta_sync: DeltaSyncTask) -> None:
    """Removes the files of commits with an unknown result, as maintenance does later."""
    listings = LiveFileReader(host.objects, host.catalog.locations)
    for table_id in world.oracle.tables.table_ids():
        with suppress(NoSuchTable):
            kept = await delta_sync.listed(await host.catalog.load_id(table_id))
            await remove_orphans(host.catalog, table_id, listings, await host.metadata.now_ms(), ORPHANS, kept=kept)


def check_no_garbage(world: World) -> None:
    """Checks that a claim or a table needs each stored object."""
    needed = {
        claim.name
        for log in world.oracle.logs.values()
        if not log.deleted
        for claim in log.claims.values()
        if claim.offset_end > log.table_end
    }
    stored = {*world.objects._objects, *world.disk.files} - needed
    garbage = sorted(name for name in stored if not world.oracle.tables.may_exist(name))
    if garbage:
        world.oracle.report("no garbage remains", f"{len(garbage)} unneeded objects, such as {garbage[0]}")


def check_delta(world: World) -> None:
    """Checks that the Delta tables have the files of the Iceberg tables."""
    tables = world.oracle.tables
    for topic_id, generator in world.generators.items():
        table = tables.of(topic_id)
        if not generator.delta or table.main is None or world.oracle.log(PartitionId(topic_id, 0)).deleted:
            continue
        delta_table = world.oracle.delta.tables.get(f"{table.folder}/data")
        if delta_table is None or delta_table.files != tables.snapshots[table.main]:
            world.oracle.report("Delta has the files of Iceberg", f"the Delta table of {topic_id} is {delta_table}")


def check_table(world: World, partition: PartitionId) -> None:
    """Checks that the table has all records. That it has no other rows was checked at every commit."""
    log, end = world.oracle.log(partition), world.oracle.tables.next_offset(partition)
    if end != log.end or log.table_end != log.end:
        world.oracle.report(
            "the table gets all records", f"{partition} is {end} of {log.end}, its table end {log.table_end}"
        )


def check_queues_empty(world: World) -> None:
    """Checks that no batch waits in a buffer of a broker."""
    for broker in world.brokers:
        for writer in broker.log._writers.values():
            if writer.bytes_in_flight:
                world.oracle.report("queues are empty", f"{broker.name} buffers {writer.bytes_in_flight} bytes")
