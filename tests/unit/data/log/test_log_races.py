"""Races of append, claim retry, trim and garbage collection that a review found."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from tests.harness.log.brokers import QUICK, StubWriter, World, plain, read_all, sent

from lakestream.config.settings import LogSettings, Profile
from lakestream.data.log import rules
from lakestream.data.log.claimer import PartitionQueue
from lakestream.data.log.partition_state import BatchValidation, PartitionState
from lakestream.data.verify.log import LogVerifier
from lakestream.data.wal.buffer import Extent, PendingBatch
from lakestream.data.wal.footers import segment_footers
from lakestream.errors import Conflict, Missing, Unavailable, Uncertain
from lakestream.metadata.claims import Claims
from lakestream.metadata.memory import MemoryMetadataStore, MemoryServer
from lakestream.metadata.store import Create, Created, Put, Stored
from lakestream.model import PartitionId


class Repeating(MemoryMetadataStore):
    """A client that repeats a create by itself when its response was lost, as the one for Oxia does."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.between: Callable[[], Awaitable[None]] | None = None

    async def create(self, creates: Sequence[Create]) -> list[Created | Conflict | Unavailable]:
        answers = await super().create(creates)
        if self.between is None:
            return answers
        between, self.between = self.between, None
        await between()
        again = await super().create(creates)
        return [a._replace(repeated=True) if isinstance(a, Created) else a for a in again]


async def test_append_raises_uncertain_when_the_client_repeated_its_create(world: World) -> None:
    """Its first try took effect, was moved and trimmed; the second lands below the floor. Storing a plain batch again
    would give it two offsets."""
    partition, other = await world.log(), await world.broker()
    metadata = Repeating(world.server)
    log = await world.broker(metadata=metadata)
    await log.append(partition, plain("a"))

    async def move_and_trim() -> None:
        end = (await other.bounds(partition)).end
        await other.append(partition, plain("later"))
        await world.move(other, partition, end)

    metadata.between = move_and_trim
    (answer,) = await asyncio.gather(log.append(partition, plain("once")), return_exceptions=True)
    assert isinstance(answer, Uncertain)
    left = await read_all(other, partition, (await other.bounds(partition)).start)
    assert "once" not in str(left)


async def test_batch_queued_by_a_profile_change_fails_with_the_one_before(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    world.profile = Profile.COST
    world.objects.gate.clear()
    world.objects.failures.append(Unavailable("down"))
    first = log.submit(partition, sent(0, "b1"))
    await asyncio.sleep(0.02)
    world.profile = Profile.LATENCY
    second = log.submit(partition, sent(1, "b2"))  # queued: sent before the producer received the error
    world.objects.gate.set()
    answers = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
    assert (await log.append(partition, sent(0, "b1"))).offset_start == 0
    assert (await log.append(partition, sent(1, "b2"))).offset_start == 1


async def test_failures_out_of_order_are_merged(world: World) -> None:
    loop = asyncio.get_running_loop()

    def extent(number: int, sequence: int) -> Extent:
        item = PendingBatch(sent(sequence, "x"), -1, number, loop.create_future())
        return Extent(PartitionId("t", 0), [item], f"e{number}", StubWriter())

    queue = PartitionQueue(PartitionId("t", 0))
    one, two, three = extent(1, 0), extent(2, 1), extent(3, 2)
    queue.fail(three, Unavailable("3 could not be stored"), 3)
    queue.fail(one, Unavailable("1 was not claimed"), 3)
    assert "1 was not claimed" in str(queue.failure_of(two.items[0], BatchValidation(PartitionState(), 0)))
    for failed in (one, three):
        failed.items[0].future.exception()


async def test_merged_failure_keeps_the_first_failed_batch() -> None:
    """Between the two a batch waits in the queue: it would be the first one appended."""
    loop = asyncio.get_running_loop()

    def extent(number: int, sequence: int) -> Extent:
        item = PendingBatch(sent(sequence, "x"), -1, number, loop.create_future())
        return Extent(PartitionId("t", 0), [item], f"e{number}", StubWriter())

    queue, validation = PartitionQueue(PartitionId("t", 0)), BatchValidation(PartitionState(), 0)
    first, between, later, again = extent(1, 0), extent(2, 1), extent(3, 2), extent(4, 0)
    queue.fail(first, Unavailable("1 could not be stored"), 1)
    assert queue.failure_of(between.items[0], validation) is not None
    queue.fail(later, Unavailable("3 could not be stored"), 3)
    assert queue.failure_of(between.items[0], validation) is not None
    queue.fail(again, Unavailable("1 could not be stored again"), 4)
    assert queue.failure_of(between.items[0], validation) is not None
    assert queue.failure_of(extent(5, 0).items[0], validation) is None, "the producer starts again"
    assert queue.failure_of(extent(6, 1).items[0], validation) is None
    for failed in (first, later, again):
        failed.items[0].future.exception()


async def test_batches_after_a_failed_one_fail_until_it_is_sent_again(world: World) -> None:
    """The producer sends the second batch before it receives the error of the first. It is unknown to the partition, so
    any sequence would be accepted."""
    partition, log = await world.log(), await world.broker()
    world.objects.failures.append(Unavailable("down"))
    for sequence in (0, 1):
        with pytest.raises(Unavailable, match="down"):
            await log.append(partition, sent(sequence, f"b{sequence}"))
    assert (await log.append(partition, sent(0, "b0"))).offset_start == 0
    assert (await log.append(partition, sent(1, "b1"))).offset_start == 1


async def test_failure_ends_when_another_broker_appended_the_batch(world: World) -> None:
    partition, log, other = await world.log(), await world.broker(), await world.broker()
    world.objects.failures.append(Unavailable("down"))
    with pytest.raises(Unavailable, match="down"):
        await log.append(partition, sent(0, "b0"))
    assert (await other.append(partition, sent(0, "b0"))).offset_start == 0
    assert (await log.append(partition, sent(1, "b1"))).offset_start == 1


async def test_save_state_returns_while_claims_arrive_faster(world: World) -> None:
    """It saves up to the end at its call, or it would save again and again, and a trim would never return."""
    partition = await world.log()
    metadata = SlowFolds(world.server)
    log = await world.broker(metadata=metadata, settings=LogSettings(fold_every_claims=20, wal=QUICK.wal))

    async def append_on() -> None:
        while True:
            await log.append(partition, plain("x"))

    appending = asyncio.create_task(append_on())
    await asyncio.sleep(0.3)
    claims = (await log.bounds(partition)).end
    await Claims(world.server.client()).advance_table_end(partition, claims)
    async with asyncio.timeout(20):
        await log.trim(partition, claims)
    appending.cancel()
    await asyncio.gather(appending, return_exceptions=True)
    end = (await log.bounds(partition)).end
    assert metadata.folds <= end / 20 + 2


class SlowFolds(MemoryMetadataStore):
    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.folds = 0

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        if any(put.key.path.startswith("/fold/") for put in puts):
            self.folds += 1
            await asyncio.sleep(0.02)
        return await super().put(puts)


async def test_frames_of_a_segment_have_increasing_numbers(world: World) -> None:
    partition = await world.log()
    world.profile = Profile.LATENCY
    log = await world.broker()
    await log.append(partition, plain("a"))
    writer = log._writers[Profile.LATENCY]
    item = PendingBatch(plain("again"), -1, 99, asyncio.get_running_loop().create_future())
    answer = log.submit(partition, plain("b"))
    writer.flush()  # its frame has a number, and is not written yet
    await writer.rewrite_extent(Extent(partition, [item], "x", writer))
    await answer
    files = world.segments()
    for info in await files.walk():
        numbers = [footer.sequence for footer in (await segment_footers(files, info.name)).footers]
        assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("before", [True, False], ids=["before it looks", "while it looks"])
async def test_verifier_reports_nothing_after_a_concurrent_trim_and_deletion(world: World, before: bool) -> None:
    partition, log, sweeper = await world.log(), await world.broker(), world.sweeper()
    for number in range(5):
        await log.append(partition, plain(str(number)))

    async def trim_and_sweep() -> None:
        await world.move(log, partition, 3, sweeper)
        await sweeper.collect()

    class Trimmed(Claims):
        async def scan(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            if before:
                await trim_and_sweep()
                return await super().scan(*args, **kwargs)
            chain = await super().scan(*args, **kwargs)
            await trim_and_sweep()
            return chain

    verifier = LogVerifier(world.server.client(), world.objects, None)
    verifier._claims = Trimmed(world.server.client())
    health = await verifier.verify(partition)
    assert (health.floor, health.offset_end, health.problems) == (3, 5, [])


async def test_offset_lookup_skips_a_stale_claim(world: World) -> None:
    """Its bytes may have been deleted."""
    partition, log = await world.log(), await world.broker()
    world.objects.gate.clear()
    late = asyncio.create_task(log.append(partition, plain("late")))
    await asyncio.sleep(0.1)
    world.clock.ms += rules.STALE_AFTER_MS + 1
    world.objects.gate.set()
    assert (await late).offset_start == 1
    await world.objects.delete([(await world.names())[0]])
    found = await log.first_at(partition, 0)
    assert found is not None
    assert found.offset == 1
