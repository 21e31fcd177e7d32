"""A transaction begins in a log only while it is going on elsewhere: whoever comes too late can never hang in it."""

import asyncio
from dataclasses import dataclass, field

import pytest
from tests.unit.data.brokers import NOW, World

from lakestream.batch import RecordBatch, control_batch
from lakestream.data.log.log import Log
from lakestream.data.wal.buffer import Appended
from lakestream.errors import LakestreamError, Rejected, Unavailable
from lakestream.metadata.claims import BatchInfo
from lakestream.model import PartitionId
from lakestream.testing.batches import make_batch

ENDED = Rejected("the transaction has ended")


@dataclass
class Coordinator:
    """Says which transactions go on; may take its time, and may be away for a while."""

    ongoing: set[int] = field(default_factory=set)
    asked: list[tuple[int, int]] = field(default_factory=list)
    away: int = 0
    hold: asyncio.Event | None = None

    async def may_open(self, partition: PartitionId, batch: BatchInfo) -> LakestreamError | None:
        self.asked.append((batch.producer_id, batch.transaction))
        answer = None if batch.transaction in self.ongoing else ENDED
        if self.away:
            self.away -= 1
            raise Unavailable("the metadata store is away")
        if self.hold is not None:
            await self.hold.wait()
        return answer


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator({1})


def batch(sequence: int, producer: int = 7) -> RecordBatch:
    return RecordBatch.parse(make_batch([b"v"], producer_id=producer, epoch=0, sequence=sequence, transactional=True))


def marker() -> RecordBatch:
    return RecordBatch.parse(control_batch(7, 0, True, NOW, 1))


async def opened(world: World, coordinator: Coordinator) -> tuple[PartitionId, Log]:
    return await world.log(), await world.broker(may_open=coordinator.may_open)


async def test_it_is_asked_for_the_first_batch_only(world: World, coordinator: Coordinator) -> None:
    partition, log = await opened(world, coordinator)
    await asyncio.gather(*(log.append(partition, batch(number), 1) for number in range(3)))
    await log.append(partition, batch(3), 1)
    assert coordinator.asked == [(7, 1)]
    coordinator.ongoing = {2}
    await log.append(partition, marker(), 1)
    assert await log.append(partition, batch(4), 2) == Appended(5, 6)
    assert coordinator.asked == [(7, 1), (7, 2)]


async def test_only_the_one_that_has_ended_is_refused(world: World, coordinator: Coordinator) -> None:
    partition, log = await opened(world, coordinator)
    late, good = await asyncio.gather(
        log.append(partition, batch(0), 9), log.append(partition, batch(0, producer=8), 1), return_exceptions=True
    )
    assert late is ENDED
    assert good == Appended(0, 1)
    assert (await log.bounds(partition)).stable == 0


async def test_nothing_is_lost_while_nobody_can_tell(world: World, coordinator: Coordinator) -> None:
    partition, log = await opened(world, coordinator)
    coordinator.away = 3
    assert await log.append(partition, batch(0), 1) == Appended(0, 1)
    assert len(coordinator.asked) == 4


async def test_a_marker_that_slips_in_between_is_seen(world: World, coordinator: Coordinator) -> None:
    """The transaction went on when it was asked for, and ended before the claim was made."""
    partition, log = await opened(world, coordinator)
    other = await world.broker()
    coordinator.hold = asyncio.Event()
    late = asyncio.create_task(log.append(partition, batch(0), 1))
    async with asyncio.timeout(5):
        while not coordinator.asked:  # noqa: ASYNC110
            await asyncio.sleep(0)
    coordinator.ongoing.clear()
    await other.append(partition, marker(), 1)
    coordinator.hold.set()
    with pytest.raises(Rejected):
        await late
    assert await log.bounds(partition) == (0, 1, 1)
