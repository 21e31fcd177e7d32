"""What must hold when all is over (section 9 of the design): checked once nothing is broken, late or asleep any more.

Most rules are checked while the run goes on, by the witness, the producers and the readers. Here: everything
acknowledged is readable from every broker, the table is exactly the committed records, and what nobody needs is gone
from storage.
"""

import asyncio

from tests.simulation.pipeline import UNTIL_THE_END, Pipeline
from tests.simulation.readers import Reader
from tests.simulation.world import Host, World

from lakestream.data.log.inspect import Inspector
from lakestream.errors import LakestreamError
from lakestream.metadata.claims import Kind, Medium
from lakestream.model import PartitionId
from lakestream.testing.memory_segments import MemorySegments

HOUR = 3600.0
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
    await check_move(world, live)
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


async def check_move(world: World, partitions: list[PartitionId]) -> None:
    """A pipeline that nobody disturbs moves all of it, and the sweeper leaves nothing behind."""
    world.pipelines.clear()
    hosts: list[Host] = []

    async def nothing(host: Host) -> None:
        await host.start()

    world.start(hosts, 0, "pipeline", nothing)
    await asyncio.sleep(1.0)
    pipeline = Pipeline(world, hosts[0])
    try:
        for pause_s in (120.0, 0.0):  # all is old by now, and what is not moved yet must stay
            await hosts[0].machine.call(pipeline.sweep())
            await asyncio.sleep(pause_s)
        for partition in partitions:
            await hosts[0].machine.call(pipeline.move(partition, UNTIL_THE_END))
        for pause_s in (8 * HOUR, 120.0, 0.0):
            await hosts[0].machine.call(pipeline.sweep())
            await asyncio.sleep(pause_s)
    except LakestreamError as error:
        world.witness.accuse("a calm pipeline works", repr(error))
        return
    needed = {
        claim.name
        for log in world.witness.logs.values()
        if not log.gone
        for claim in log.claims.values()
        if claim.offset_end > log.table_end
    }
    left = sorted({*world.objects._objects, *world.disk.files} - needed)
    if left:
        world.witness.accuse("nothing is left behind", f"{len(left)} objects nobody needs, as {left[0]}")


def check_table(world: World, partition: PartitionId) -> None:
    """Exactly the committed records below the table's end."""
    log, part = world.witness.log(partition), world.table.part(partition)
    if part.next_offset != log.end:
        world.witness.accuse("the table gets everything", f"{partition} is {part.next_offset} of {log.end}")
    expected = [
        (offset, record.value)
        for offset, record in sorted(log.records.items())
        if record.kind < Kind.COMMIT and offset < part.next_offset and world.is_committed(record)
    ]
    rows = [(row.offset, row.value) for row in part.rows]
    if rows != expected:
        differing = sorted(set(rows) ^ set(expected))[:3]
        world.witness.accuse(
            "the table is the log", f"{partition}: {len(rows)} rows, {len(expected)} true: {differing}"
        )


def check_bounded(world: World) -> None:
    """Nothing waits any more, and what is kept in memory is bounded."""
    for broker in world.brokers:
        for writer in broker.log._writers.values():
            if writer.bytes_held:
                world.witness.accuse("queues end empty", f"{broker.name} holds {writer.bytes_held} bytes")
