"""A transaction starts in a partition only while it is ongoing: a late batch can never leave it open for ever."""

import asyncio
from dataclasses import dataclass, field

import pytest
from tests.harness.log.brokers import NOW, World

from lakestream.data.log.log import Log
from lakestream.data.wal.buffer import Appended
from lakestream.errors import LakestreamError, Rejected, Unavailable, WrongTransaction
from lakestream.metadata.claims import BatchInfo
from lakestream.model import PartitionId
from lakestream.records.batch import RecordBatch, control_batch
from lakestream.testing.batches import make_batch

ENDED = Rejected("the transaction has ended")


@dataclass
class Coordinator:
    """Returns the ongoing transaction; can be slow or unavailable for some calls."""

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
    return await world.log(), await world.broker(check_transaction=coordinator.transaction_of)


async def test_transaction_is_checked_for_its_first_batch_only(world: World, coordinator: Coordinator) -> None:
    partition, log = await opened(world, coordinator)
    await asyncio.gather(*(log.append(partition, batch(number), 1) for number in range(3)))
    await log.append(partition, batch(3), 1)
    assert coordinator.asked == [(7, 1)]
    coordinator.ongoing = 2
    await log.append(partition, marker(), 1)
    assert await log.append(partition, batch(4), 2) == Appended(5, 6)
    assert coordinator.asked == [(7, 1), (7, 2)]


async def test_only_the_batch_of_the_ended_transaction_is_rejected(world: World, coordinator: Coordinator) -> None:
    partition, log = await opened(world, coordinator)
    coordinator.fenced = {7}
    late, good = await asyncio.gather(
        log.append(partition, batch(0), 1), log.append(partition, batch(0, producer=8), 1), return_exceptions=True
    )
    assert late is ENDED
    assert good == Appended(0, 1)
    assert (await log.bounds(partition)).stable == 0


async def test_append_waits_while_the_coordinator_is_unavailable(world: World, coordinator: Coordinator) -> None:
    partition, log = await opened(world, coordinator)
    coordinator.away = 3
    assert await log.append(partition, batch(0), 1) == Appended(0, 1)
    assert len(coordinator.asked) == 4


async def test_batch_is_rejected_when_a_marker_is_appended_after_the_check(
    world: World, coordinator: Coordinator
) -> None:
    """The transaction was ongoing when it was checked, and ended before the claim was created."""
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


async def test_batch_is_moved_to_the_ongoing_transaction(world: World, coordinator: Coordinator) -> None:
    """The batch was submitted with the transaction before, or with none."""
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


async def test_batch_is_accepted_when_the_view_lacks_the_last_marker(world: World, coordinator: Coordinator) -> None:
    """The marker of the transaction before is beyond the end of this broker's view."""
    partition, log = await opened(world, coordinator)
    other = await world.broker(check_transaction=coordinator.transaction_of)
    await log.append(partition, batch(0), 1)
    coordinator.ongoing = 2
    await other.append(partition, marker(), 1)
    assert await log.append(partition, batch(1), 2) == Appended(2, 3)


async def test_batch_of_an_ended_transaction_is_rejected_without_a_next_one(
    world: World, coordinator: Coordinator
) -> None:
    partition, log = await opened(world, coordinator)
    await log.append(partition, batch(0), 1)
    coordinator.ongoing = None
    await log.append(partition, marker(), 1)
    with pytest.raises(Rejected):
        await log.append(partition, batch(1), 1)
    coordinator.ongoing = 1  # the coordinator is wrong
    with pytest.raises(WrongTransaction):
        await log.append(partition, batch(1), 1)
    assert await log.bounds(partition) == (0, 2, 2)
