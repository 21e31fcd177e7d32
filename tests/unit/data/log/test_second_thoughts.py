"""Holes that a second reader found, each with the story that showed it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from tests.unit.data.brokers import QUICK, World, plain, read_all, sent

from lakestream.data.log import rules
from lakestream.data.log.claimer import Lane
from lakestream.data.log.fold import Fold, Trial
from lakestream.data.log.inspect import Inspector
from lakestream.data.wal.buffer import Extent, Placed
from lakestream.data.wal.footers import segment_footers
from lakestream.errors import Conflict, Missing, Unavailable, Uncertain
from lakestream.metadata.claims import Claims
from lakestream.metadata.memory import MemoryServer, MemoryStore
from lakestream.metadata.store import Create, Created, Put, Stored
from lakestream.model import PartitionId
from lakestream.settings import LogSettings, Profile


class Repeating(MemoryStore):
    """A client that sends a create again by itself when its answer was lost, as the one for Oxia does."""

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


async def test_a_create_that_was_repeated_below_us_leaves_a_doubt(world: World) -> None:
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


async def test_a_batch_held_back_by_a_change_of_profile_does_not_overtake(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    world.profile = Profile.COST
    world.objects.gate.clear()
    world.objects.failures.append(Unavailable("down"))
    first = log.place(partition, sent(0, "b1"))
    await asyncio.sleep(0.02)
    world.profile = Profile.LATENCY
    second = log.place(partition, sent(1, "b2"))  # held: sent before its producer could know
    world.objects.gate.set()
    answers = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
    assert (await log.append(partition, sent(0, "b1"))).offset_start == 0
    assert (await log.append(partition, sent(1, "b2"))).offset_start == 1


async def test_failures_that_come_out_of_order_are_one(world: World) -> None:
    loop = asyncio.get_running_loop()

    def extent(number: int, sequence: int) -> Extent:
        item = Placed(sent(sequence, "x"), -1, number, loop.create_future())
        return Extent(PartitionId("t", 0), [item], f"e{number}", "w")

    lane = Lane(PartitionId("t", 0))
    one, two, three = extent(1, 0), extent(2, 1), extent(3, 2)
    lane.fail(three, Unavailable("3 could not be stored"), 3)
    lane.fail(one, Unavailable("1 struggled in vain"), 3)
    assert "1 struggled" in str(lane.failure_of(two.items[0], Trial(Fold(), 0)))
    for failed in (one, three):
        failed.items[0].answer.exception()


async def test_a_failure_further_behind_does_not_cover_the_first() -> None:
    """Between the two there is a batch that waits in the lane: it would be the first that the log hears of."""
    loop = asyncio.get_running_loop()

    def extent(number: int, sequence: int) -> Extent:
        item = Placed(sent(sequence, "x"), -1, number, loop.create_future())
        return Extent(PartitionId("t", 0), [item], f"e{number}", "w")

    lane, trial = Lane(PartitionId("t", 0)), Trial(Fold(), 0)
    first, between, later, again = extent(1, 0), extent(2, 1), extent(3, 2), extent(4, 0)
    lane.fail(first, Unavailable("1 could not be stored"), 1)
    assert lane.failure_of(between.items[0], trial) is not None
    lane.fail(later, Unavailable("3 could not be stored"), 3)
    assert lane.failure_of(between.items[0], trial) is not None
    lane.fail(again, Unavailable("1 could not be stored again"), 4)
    assert lane.failure_of(between.items[0], trial) is not None
    assert lane.failure_of(extent(5, 0).items[0], trial) is None, "it has heard, and begins again"
    assert lane.failure_of(extent(6, 1).items[0], trial) is None
    for failed in (first, later, again):
        failed.items[0].answer.exception()


async def test_what_arrives_behind_a_failed_batch_waits_for_it_to_come_again(world: World) -> None:
    """Its producer is told that the first batch failed, but on a network he sends the second before he hears it. To the
    log he is new, and any sequence is a fine first one."""
    partition, log = await world.log(), await world.broker()
    world.objects.failures.append(Unavailable("down"))
    for sequence in (0, 1):
        with pytest.raises(Unavailable, match="down"):
            await log.append(partition, sent(sequence, f"b{sequence}"))
    assert (await log.append(partition, sent(0, "b0"))).offset_start == 0
    assert (await log.append(partition, sent(1, "b1"))).offset_start == 1


async def test_a_batch_that_failed_here_and_succeeded_elsewhere_holds_back_nothing(world: World) -> None:
    partition, log, other = await world.log(), await world.broker(), await world.broker()
    world.objects.failures.append(Unavailable("down"))
    with pytest.raises(Unavailable, match="down"):
        await log.append(partition, sent(0, "b0"))
    assert (await other.append(partition, sent(0, "b0"))).offset_start == 0
    assert (await log.append(partition, sent(1, "b1"))).offset_start == 1


async def test_a_fold_is_saved_though_claims_come_faster(world: World) -> None:
    """It aims at the end as it was, or it would be written back to back and a trim never return."""
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


class SlowFolds(MemoryStore):
    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.folds = 0

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        if any(put.key.path.startswith("/fold/") for put in puts):
            self.folds += 1
            await asyncio.sleep(0.02)
        return await super().put(puts)


async def test_a_segment_is_sound_whichever_frame_comes_first(world: World) -> None:
    partition = await world.log()
    world.profile = Profile.LATENCY
    log = await world.broker()
    await log.append(partition, plain("a"))
    writer = log._writers[Profile.LATENCY]
    item = Placed(plain("again"), -1, 99, asyncio.get_running_loop().create_future())
    answer = log.place(partition, plain("b"))
    writer.flush()  # its frame is numbered, and not begun
    await writer.store_again(Extent(partition, [item], "x", writer.writer_id))
    await answer
    files = world.segments()
    for info in await files.walk():
        numbers = [footer.sequence for footer in (await segment_footers(files, info.name)).footers]
        assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("before", [True, False], ids=["before it looks", "while it looks"])
async def test_a_trim_and_a_sweep_beside_the_doctor_are_no_trouble(world: World, before: bool) -> None:
    partition, log, sweeper = await world.log(), await world.broker(), world.sweeper()
    for number in range(5):
        await log.append(partition, plain(str(number)))

    async def trim_and_sweep() -> None:
        await world.move(log, partition, 3, sweeper)
        await sweeper.sweep()

    class Trimmed(Claims):
        async def scan(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            if before:
                await trim_and_sweep()
                return await super().scan(*args, **kwargs)
            chain = await super().scan(*args, **kwargs)
            await trim_and_sweep()
            return chain

    inspector = Inspector(world.server.client(), world.objects, None)
    inspector._claims = Trimmed(world.server.client())
    health = await inspector.inspect(partition)
    assert (health.floor, health.offset_end, health.troubles) == (3, 5, [])


async def test_an_offset_by_time_passes_over_a_claim_that_came_too_late(world: World) -> None:
    """Its bytes may have been swept."""
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
