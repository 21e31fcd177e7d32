"""A transaction begins in a log only while it is going on elsewhere: whoever comes too late can never hang in it."""

import asyncio
from dataclasses import dataclass, field

import pytest
from tests.unit.data.brokers import NOW, World

from lakestream.batch import RecordBatch, control_batch
from lakestream.data.log.log import Log
from lakestream.data.wal.buffer import Appended
from lakestream.errors import LakestreamError, Rejected, Unavailable, WrongTransaction
from lakestream.metadata.claims import BatchInfo
from lakestream.model import PartitionId
from lakestream.testing.batches import make_batch

ENDED = Rejected("the transaction has ended")


@dataclass
class Coordinator:
    """Says which transaction goes on; may take its time, and may be away for a while."""

    ongoing: int | None = None
    asked: list[tuple[int, int]] = field(default_factory=list)
    fenced: set[int] = field(default_factory=set)
    away: int = 0
    hold: asyncio.Event | None = None

    async def transaction_of(self, partition: PartitionId, batch: BatchInfo) -> int | LakestreamError:
        self.asked.append((batch.producer_id, batch.transaction))
        answer = ENDED if self.ongoing is None or batch.producer_id in self.fenced else self.ongoing
        if self.away:
            self.away -= 1
            raise Unavailable("the metadata store is away")
        if self.hold is not None:
            await self.hold.wait()
        return answer


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator(1)


def batch(sequence: int, producer: int = 7) -> RecordBatch:
    return RecordBatch.parse(make_batch([b"v"], producer_id=producer, epoch=0, sequence=sequence, transactional=True))


def marker() -> RecordBatch:
    return RecordBatch.parse(control_batch(7, 0, True, NOW, 1))


async def opened(world: World, coordinator: Coordinator) -> tuple[PartitionId, Log]:
    return await world.log(), await world.broker(transaction_of=coordinator.transaction_of)


async def test_it_is_asked_for_the_first_batch_only(world: World, coordinator: Coordinator) -> None:
    partition, log = await opened(world, coordinator)
    await asyncio.gather(*(log.append(partition, batch(number), 1) for number in range(3)))
    await log.append(partition, batch(3), 1)
    assert coordinator.asked == [(7, 1)]
    coordinator.ongoing = 2
    await log.append(partition, marker(), 1)
    assert await log.append(partition, batch(4), 2) == Appended(5, 6)
    assert coordinator.asked == [(7, 1), (7, 2)]


async def test_only_the_one_that_has_ended_is_refused(world: World, coordinator: Coordinator) -> None:
    partition, log = await opened(world, coordinator)
    coordinator.fenced = {7}
    late, good = await asyncio.gather(
        log.append(partition, batch(0), 1), log.append(partition, batch(0, producer=8), 1), return_exceptions=True
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
    coordinator.ongoing = None
    await other.append(partition, marker(), 1)
    coordinator.hold.set()
    with pytest.raises(Rejected):
        await late
    assert await log.bounds(partition) == (0, 1, 1)


async def test_a_batch_joins_the_transaction_that_goes_on(world: World, coordinator: Coordinator) -> None:
    """Who placed it believed that the one before was still open, or did not know of it at all."""
    partition, log = await opened(world, coordinator)
    await log.append(partition, batch(0), 1)
    coordinator.ongoing = 2
    await log.append(partition, marker(), 1)
    first, second, third = await asyncio.gather(
        log.append(partition, batch(1), 1), log.append(partition, batch(2), 1), log.append(partition, batch(3), 2)
    )
    assert [first, second, third] == [Appended(2, 3), Appended(3, 4), Appended(4, 5)]
    assert (await log.producers(partition))[7].transaction == 2
    assert (await log.bounds(partition)).stable == 2


async def test_who_places_it_on_an_old_view_is_not_refused(world: World, coordinator: Coordinator) -> None:
    """The marker of the transaction before lies behind what this broker has seen."""
    partition, log = await opened(world, coordinator)
    other = await world.broker(transaction_of=coordinator.transaction_of)
    await log.append(partition, batch(0), 1)
    coordinator.ongoing = 2
    await other.append(partition, marker(), 1)
    assert await log.append(partition, batch(1), 2) == Appended(2, 3)


async def test_one_that_has_ended_with_nothing_after_it_is_refused(world: World, coordinator: Coordinator) -> None:
    partition, log = await opened(world, coordinator)
    await log.append(partition, batch(0), 1)
    coordinator.ongoing = None
    await log.append(partition, marker(), 1)
    with pytest.raises(Rejected):
        await log.append(partition, batch(1), 1)
    coordinator.ongoing = 1  # told by somebody who should know better
    with pytest.raises(WrongTransaction):
        await log.append(partition, batch(1), 1)
    assert await log.bounds(partition) == (0, 2, 2)
