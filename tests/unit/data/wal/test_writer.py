"""The WAL writer alone: when it seals, its bound of bytes in flight, the order in which it passes extents on."""

import asyncio
from collections.abc import Sequence

import pytest

from lakestream.data.log.writer_router import ArrivalSequence
from lakestream.data.wal.buffer import Appended, Extent, Location
from lakestream.data.wal.writer import GATHER_BYTES_MAX, WalWriter, WriterSettings
from lakestream.errors import LakestreamError, Unavailable
from lakestream.metadata.claims import Medium
from lakestream.model import PartitionId
from lakestream.records.batch import RecordBatch
from lakestream.testing.batches import make_batch

ONE, TWO = PartitionId("t", 1), PartitionId("t", 2)
SIZE = 200


def batch(value: str = "v") -> RecordBatch:
    """Exactly SIZE bytes."""
    room = SIZE - len(make_batch([b""])) - 1  # lengths above 63 take two bytes, in two places
    made = RecordBatch.parse(make_batch([value.encode().ljust(room - 1, b".")]))
    assert made.size == SIZE
    return made


class Frames:
    """A fake frame store; a test can let each call return, in any order."""

    def __init__(self) -> None:
        self.stored: list[list[Extent]] = []
        self.called = asyncio.Event()
        self.turns: dict[int, asyncio.Event] = {}
        self.patient = False
        self.errors: dict[int, Exception] = {}
        self.closed = False

    async def store(self, extents: Sequence[Extent], sequence: int) -> None:
        self.stored.append(list(extents))
        self.called.set()
        if self.patient:
            await self.turns.setdefault(sequence, asyncio.Event()).wait()
        if sequence in self.errors:
            raise self.errors[sequence]
        for extent in extents:
            extent.set_location(Location(Medium.OBJECT, f"o{sequence}", 0, 0), 0)

    def let(self, sequence: int) -> None:
        self.turns.setdefault(sequence, asyncio.Event()).set()

    async def close(self) -> None:
        self.closed = True


class FakeClaimer:
    """Records the extents and completes them when the test calls it."""

    def __init__(self) -> None:
        self.extents: list[Extent] = []
        self.errors: list[LakestreamError] = []

    def claim(self, extents: list[Extent]) -> None:
        self.extents += extents

    def fail(self, extents: list[Extent], error: LakestreamError) -> None:
        self.errors.append(error)
        for extent in extents:
            for item in extent.items:
                item.future.set_exception(error)
            extent.writer.finish(extent)

    def complete_all(self) -> None:
        extents, self.extents = self.extents, []
        for extent in extents:
            for item in extent.items:
                if not item.future.done():
                    item.future.set_result(Appended(item.number, item.number + 1))
            extent.writer.finish(extent)


@pytest.fixture
def frames() -> Frames:
    return Frames()


@pytest.fixture
def claimer() -> FakeClaimer:
    return FakeClaimer()


def made(frames: Frames, claimer: FakeClaimer, **settings: int) -> WalWriter:
    usual = {
        "flush_interval_ms": 60_000,
        "flush_bytes_max": 5 * SIZE,
        "buffer_bytes_max": 20 * SIZE,
        "claim_batches_max": 100,
        "writes_max": 2,
    }
    return WalWriter(
        "w", frames, claimer, WriterSettings(**{**usual, **settings}), ArrivalSequence().next, lambda *_: None
    )


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def numbers(extents: Sequence[Extent]) -> list[int]:
    return [item.number for extent in extents for item in extent.items]


async def test_buffer_is_sealed_by_size(frames: Frames, claimer: FakeClaimer) -> None:
    writer = made(frames, claimer)
    for _ in range(4):
        writer.submit(ONE, batch(), -1)
    await settled()
    assert frames.stored == []
    writer.submit(TWO, batch(), -1)
    await settled()
    assert [[extent.partition for extent in frame] for frame in frames.stored] == [[ONE, TWO]]
    writer.kill()


async def test_buffer_is_sealed_by_time_from_its_first_batch(frames: Frames, claimer: FakeClaimer) -> None:
    writer = made(frames, claimer, flush_interval_ms=200)
    loop = asyncio.get_running_loop()
    start = loop.time()
    writer.submit(ONE, batch(), -1)
    await asyncio.sleep(0.01)
    writer.submit(ONE, batch(), -1)
    await asyncio.wait_for(frames.called.wait(), 5)
    assert loop.time() - start > 0.19
    assert numbers(frames.stored[0]) == [1, 2]
    await settled()
    frames.called.clear()
    writer.submit(ONE, batch(), -1)
    await asyncio.wait_for(frames.called.wait(), 5)
    assert numbers(frames.stored[1]) == [3], "the timer was wound up again"
    await settled()


async def test_batches_of_one_loop_turn_share_a_frame_without_an_interval(frames: Frames, claimer: FakeClaimer) -> None:
    writer = made(frames, claimer, flush_interval_ms=0, writes_max=1)
    for _ in range(3):
        writer.submit(ONE, batch(), -1)
    await asyncio.sleep(0.005)
    assert [numbers(frame) for frame in frames.stored] == [[1, 2, 3]]


async def test_next_flush_starts_when_the_last_one_ends(frames: Frames, claimer: FakeClaimer) -> None:
    writer = made(frames, claimer, flush_interval_ms=0, writes_max=1, flush_bytes_max=1000 * SIZE)
    frames.patient = True
    writer.submit(ONE, batch(), -1)
    await asyncio.sleep(0.005)
    for _ in range(3):
        writer.submit(ONE, batch(), -1)
        await asyncio.sleep(0.002)
    assert [numbers(frame) for frame in frames.stored] == [[1]]
    frames.let(1)
    await asyncio.sleep(0.005)
    assert [numbers(frame) for frame in frames.stored] == [[1], [2, 3, 4]]
    frames.let(2)
    await settled()
    writer.kill()


@pytest.mark.parametrize("claimed", [True, False], ids=["claimed", "claims that take long"])
async def test_the_next_flush_waits_for_the_claims_of_the_last_one(
    frames: Frames, claimer: FakeClaimer, claimed: bool
) -> None:
    """Up to a limit: a claim retry of one partition does not delay the others."""
    wait_ms = 60_000 if claimed else 30
    writer = made(frames, claimer, flush_interval_ms=0, writes_max=1, claim_wait_ms=wait_ms)
    writer.submit(ONE, batch(), -1)
    writer.submit(TWO, batch(), -1)
    await asyncio.sleep(0.005)
    writer.submit(ONE, batch(), -1)
    await asyncio.sleep(0.005)
    assert [numbers(frame) for frame in frames.stored] == [[1, 2]]
    if claimed:
        claimer.complete_all()
    else:
        await asyncio.sleep(0.06)
    await asyncio.sleep(0.005)
    assert [numbers(frame) for frame in frames.stored] == [[1, 2], [3]]
    claimer.complete_all()
    await settled()
    writer.kill()


async def frame_of_two_and_a_third_batch(
    frames: Frames, claimer: FakeClaimer, gather_ms: int, **settings: int
) -> WalWriter:
    """Two requests just completed; one batch arrived meanwhile and waits."""
    settings = {"flush_bytes_max": 5_000 * SIZE, "buffer_bytes_max": 9_000 * SIZE} | settings
    writer = made(
        frames, claimer, flush_interval_ms=0, writes_max=1, claim_wait_ms=60_000, gather_ms=gather_ms, **settings
    )
    writer.submit(ONE, batch(), -1)
    writer.submit(TWO, batch(), -1)
    await settled()
    writer.submit(ONE, batch(), -1)
    await settled()
    claimer.complete_all()
    await asyncio.sleep(0.005)
    assert [numbers(frame) for frame in frames.stored] == [[1, 2]]
    return writer


async def test_frame_waits_for_producers_whose_requests_completed(frames: Frames, claimer: FakeClaimer) -> None:
    writer = await frame_of_two_and_a_third_batch(frames, claimer, gather_ms=60_000)
    writer.submit(TWO, batch(), -1)
    await asyncio.sleep(0.005)
    assert len(frames.stored) == 1
    writer.submit(TWO, batch(), -1)
    await settled()
    assert sorted(numbers(frames.stored[1])) == [3, 4, 5]
    claimer.complete_all()
    writer.kill()


async def test_gather_wait_ends_after_its_timeout(frames: Frames, claimer: FakeClaimer) -> None:
    writer = await frame_of_two_and_a_third_batch(frames, claimer, gather_ms=30)
    await asyncio.sleep(0.06)
    assert numbers(frames.stored[1]) == [3]
    claimer.complete_all()
    await asyncio.sleep(0.06)
    writer.submit(ONE, batch(), -1)
    await settled()
    assert numbers(frames.stored[2]) == [4], "a later batch does not wait for others"
    writer.kill()


async def test_large_frame_does_not_wait_for_more_batches(frames: Frames, claimer: FakeClaimer) -> None:
    writer = await frame_of_two_and_a_third_batch(frames, claimer, gather_ms=60_000)
    for count in (2_000, GATHER_BYTES_MAX // SIZE + 1):
        for _ in range(count):
            writer.submit(ONE, batch(), -1)
        await settled()
        claimer.complete_all()
    assert len(frames.stored) == 3
    writer.kill()


async def test_frames_are_stored_in_parallel_and_claimed_in_seal_order(frames: Frames, claimer: FakeClaimer) -> None:
    writer = made(frames, claimer, flush_bytes_max=1, writes_max=3)
    frames.patient = True
    for _ in range(4):
        writer.submit(ONE, batch(), -1)
    await settled()
    assert len(frames.stored) == 3, "as many at once as there are slots"
    frames.let(3)
    frames.let(2)
    await settled()
    assert claimer.extents == []
    assert len(frames.stored) == 4, "a slot is free as soon as the bytes are stored"
    frames.let(1)
    await settled()
    assert numbers(claimer.extents) == [1, 2, 3]
    frames.let(4)
    await settled()
    assert numbers(claimer.extents) == [1, 2, 3, 4]


async def test_failed_frame_fails_in_seal_order_and_the_next_is_claimed(frames: Frames, claimer: FakeClaimer) -> None:
    writer = made(frames, claimer, flush_bytes_max=1, writes_max=3)
    frames.errors[2] = Unavailable("the disk is full")
    futures = [writer.submit(ONE, batch(), -1) for _ in range(3)]
    await settled()
    assert numbers(claimer.extents) == [1, 3]
    with pytest.raises(Unavailable, match="the disk is full"):
        await futures[1]


async def test_unexpected_store_error_completes_the_futures(
    frames: Frames, claimer: FakeClaimer, caplog: pytest.LogCaptureFixture
) -> None:
    writer = made(frames, claimer, flush_bytes_max=1)
    frames.errors[1] = ZeroDivisionError()
    with pytest.raises(Unavailable, match="ZeroDivisionError"):
        await writer.submit(ONE, batch(), -1)
    assert "wal.write_failed" in caplog.text
    writer.submit(ONE, batch(), -1)
    await settled()
    assert numbers(claimer.extents) == [2]


async def test_bytes_in_flight_are_bounded_and_blocked_batches_keep_their_order(
    frames: Frames, claimer: FakeClaimer
) -> None:
    writer = made(frames, claimer, flush_interval_ms=0)
    futures = [writer.submit(ONE, batch(), -1) for _ in range(50)]
    held = []
    while not all(answer.done() for answer in futures):
        await asyncio.sleep(0.001)
        held.append(writer.bytes_in_flight)
        claimer.complete_all()
    assert max(held) == 20 * SIZE
    assert numbers([extent for frame in frames.stored for extent in frame]) == list(range(1, 51))
    assert writer.bytes_in_flight == 0


async def test_a_small_batch_does_not_overtake_a_large_one_that_waits(frames: Frames, claimer: FakeClaimer) -> None:
    writer = made(frames, claimer, flush_interval_ms=0, buffer_bytes_max=SIZE + SIZE // 2)
    writer.submit(ONE, batch(), -1)
    writer.submit(ONE, batch(), -1)
    small = RecordBatch.parse(make_batch([b"x"]))
    assert small.size < SIZE // 2
    writer.submit(ONE, small, -1)
    await asyncio.sleep(0.005)
    assert numbers(claimer.extents) == [1]
    claimer.complete_all()
    await asyncio.sleep(0.005)
    claimer.complete_all()
    await asyncio.sleep(0.005)
    assert numbers([extent for frame in frames.stored for extent in frame]) == [1, 2, 3]


async def test_extents_are_split_at_the_claim_limit(frames: Frames, claimer: FakeClaimer) -> None:
    writer = made(frames, claimer, claim_batches_max=2)
    for _ in range(5):
        writer.submit(ONE, batch(), -1)
    await settled()
    assert [len(extent.items) for extent in frames.stored[0]] == [2, 2, 1]
    assert [extent.extent_id for extent in frames.stored[0]] == ["w.1.0", "w.1.1", "w.1.2"]


async def test_store_again_uses_another_extent_id(frames: Frames, claimer: FakeClaimer) -> None:
    writer = made(frames, claimer, flush_bytes_max=1)
    writer.submit(ONE, batch(), -1)
    await settled()
    (extent,) = claimer.extents
    tried = [extent.next_claim_id(), extent.next_claim_id()]
    await writer.rewrite_extent(extent)
    assert [*tried, extent.next_claim_id()] == ["w.1.0.1", "w.1.0.2", "w.2.0.1"]
    assert extent.location is not None
    assert extent.location.name == "o2"


async def test_flush_does_not_wait_for_the_timer(frames: Frames, claimer: FakeClaimer) -> None:
    writer = made(frames, claimer)
    writer.flush()
    writer.submit(ONE, batch(), -1)
    writer.flush()
    await settled()
    assert [numbers(frame) for frame in frames.stored] == [[1]]


async def test_drain_claims_all_submitted_batches_and_rejects_new_ones(frames: Frames, claimer: FakeClaimer) -> None:
    writer = made(frames, claimer, buffer_bytes_max=6 * SIZE)
    for _ in range(15):
        writer.submit(ONE, batch(), -1)

    async def answer() -> None:
        while True:
            await asyncio.sleep(0.001)
            claimer.complete_all()

    answering = asyncio.create_task(answer())
    draining = asyncio.create_task(writer.drain())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="stopping"):
        writer.submit(ONE, batch(), -1)
    await asyncio.wait_for(draining, 2)
    answering.cancel()
    assert numbers([extent for frame in frames.stored for extent in frame]) == list(range(1, 16))
    await writer.close()
    assert frames.closed


async def test_kill_completes_no_futures_and_leaves_no_task(frames: Frames, claimer: FakeClaimer) -> None:
    writer = made(frames, claimer, flush_bytes_max=1, writes_max=1)
    frames.patient = True
    futures = [writer.submit(ONE, batch(), -1) for _ in range(30)]
    await settled()
    writer.kill()
    await settled()
    assert not any(answer.done() for answer in futures)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert claimer.extents == []
