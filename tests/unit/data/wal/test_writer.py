"""The writer alone: when it seals, what it holds, in which order it hands on."""

import asyncio
from collections.abc import Sequence

import pytest

from lakestream.batch import RecordBatch
from lakestream.data.log.routes import Numbers
from lakestream.data.wal.buffer import Appended, Extent, Location
from lakestream.data.wal.writer import GATHER_BYTES_MAX, Writer, WriterSettings
from lakestream.errors import LakestreamError, Unavailable
from lakestream.metadata.claims import Medium
from lakestream.model import PartitionId
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
    """Keeps what it is told to store; each store waits for its turn to end, in any order that the test likes."""

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
            extent.stored(Location(Medium.OBJECT, f"o{sequence}", 0, 0), 0)

    def let(self, sequence: int) -> None:
        self.turns.setdefault(sequence, asyncio.Event()).set()

    async def close(self) -> None:
        self.closed = True


class Desk:
    """Takes the claimer's place: notes what arrives and answers when told."""

    def __init__(self) -> None:
        self.extents: list[Extent] = []
        self.errors: list[LakestreamError] = []

    def claim(self, extents: list[Extent]) -> None:
        self.extents += extents

    def fail(self, extents: list[Extent], error: LakestreamError) -> None:
        self.errors.append(error)
        for extent in extents:
            for item in extent.items:
                item.answer.set_exception(error)
            extent.on_settled(extent)

    def answer_all(self) -> None:
        extents, self.extents = self.extents, []
        for extent in extents:
            for item in extent.items:
                if not item.answer.done():
                    item.answer.set_result(Appended(item.number, item.number + 1))
            extent.on_settled(extent)


@pytest.fixture
def frames() -> Frames:
    return Frames()


@pytest.fixture
def desk() -> Desk:
    return Desk()


def made(frames: Frames, desk: Desk, **settings: int) -> Writer:
    usual = {
        "flush_interval_ms": 60_000,
        "flush_bytes_max": 5 * SIZE,
        "buffer_bytes_max": 20 * SIZE,
        "claim_batches_max": 100,
        "writes_max": 2,
    }
    return Writer("w", frames, desk, WriterSettings(**{**usual, **settings}), Numbers().next)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def numbers(extents: Sequence[Extent]) -> list[int]:
    return [item.number for extent in extents for item in extent.items]


async def test_it_seals_by_size(frames: Frames, desk: Desk) -> None:
    writer = made(frames, desk)
    for _ in range(4):
        writer.place(ONE, batch(), -1)
    await settled()
    assert frames.stored == []
    writer.place(TWO, batch(), -1)
    await settled()
    assert [[extent.partition for extent in frame] for frame in frames.stored] == [[ONE, TWO]]
    writer.kill()


async def test_it_seals_by_time_counted_from_the_first_batch(frames: Frames, desk: Desk) -> None:
    writer = made(frames, desk, flush_interval_ms=200)
    loop = asyncio.get_running_loop()
    start = loop.time()
    writer.place(ONE, batch(), -1)
    await asyncio.sleep(0.01)
    writer.place(ONE, batch(), -1)
    await asyncio.wait_for(frames.called.wait(), 5)
    assert loop.time() - start > 0.19
    assert numbers(frames.stored[0]) == [1, 2]
    await settled()
    frames.called.clear()
    writer.place(ONE, batch(), -1)
    await asyncio.wait_for(frames.called.wait(), 5)
    assert numbers(frames.stored[1]) == [3], "the timer was wound up again"
    await settled()


async def test_without_an_interval_what_arrives_together_is_written_together(frames: Frames, desk: Desk) -> None:
    writer = made(frames, desk, flush_interval_ms=0, writes_max=1)
    for _ in range(3):
        writer.place(ONE, batch(), -1)
    await asyncio.sleep(0.005)
    assert [numbers(frame) for frame in frames.stored] == [[1, 2, 3]]


async def test_group_commit_the_next_flush_starts_when_the_last_one_ends(frames: Frames, desk: Desk) -> None:
    writer = made(frames, desk, flush_interval_ms=0, writes_max=1, flush_bytes_max=1000 * SIZE)
    frames.patient = True
    writer.place(ONE, batch(), -1)
    await asyncio.sleep(0.005)
    for _ in range(3):
        writer.place(ONE, batch(), -1)
        await asyncio.sleep(0.002)
    assert [numbers(frame) for frame in frames.stored] == [[1]]
    frames.let(1)
    await asyncio.sleep(0.005)
    assert [numbers(frame) for frame in frames.stored] == [[1], [2, 3, 4]]
    frames.let(2)
    await settled()
    writer.kill()


@pytest.mark.parametrize("claimed", [True, False], ids=["claimed", "claims that take long"])
async def test_the_next_flush_waits_for_the_claims_of_the_last_one(frames: Frames, desk: Desk, claimed: bool) -> None:
    """For as long as it may: one log that struggles does not hold up the others."""
    wait_ms = 60_000 if claimed else 30
    writer = made(frames, desk, flush_interval_ms=0, writes_max=1, claim_wait_ms=wait_ms)
    writer.place(ONE, batch(), -1)
    writer.place(TWO, batch(), -1)
    await asyncio.sleep(0.005)
    writer.place(ONE, batch(), -1)
    await asyncio.sleep(0.005)
    assert [numbers(frame) for frame in frames.stored] == [[1, 2]]
    if claimed:
        desk.answer_all()
    else:
        await asyncio.sleep(0.06)
    await asyncio.sleep(0.005)
    assert [numbers(frame) for frame in frames.stored] == [[1, 2], [3]]
    desk.answer_all()
    await settled()
    writer.kill()


async def frame_of_two_and_a_third_batch(frames: Frames, desk: Desk, gather_ms: int, **settings: int) -> Writer:
    """Two were just answered; one waits that came meanwhile."""
    settings = {"flush_bytes_max": 5_000 * SIZE, "buffer_bytes_max": 9_000 * SIZE} | settings
    writer = made(
        frames, desk, flush_interval_ms=0, writes_max=1, claim_wait_ms=60_000, gather_ms=gather_ms, **settings
    )
    writer.place(ONE, batch(), -1)
    writer.place(TWO, batch(), -1)
    await settled()
    writer.place(ONE, batch(), -1)
    await settled()
    desk.answer_all()
    await asyncio.sleep(0.005)
    assert [numbers(frame) for frame in frames.stored] == [[1, 2]]
    return writer


async def test_a_frame_waits_for_those_who_were_just_answered(frames: Frames, desk: Desk) -> None:
    writer = await frame_of_two_and_a_third_batch(frames, desk, gather_ms=60_000)
    writer.place(TWO, batch(), -1)
    await asyncio.sleep(0.005)
    assert len(frames.stored) == 1
    writer.place(TWO, batch(), -1)
    await settled()
    assert sorted(numbers(frames.stored[1])) == [3, 4, 5]
    desk.answer_all()
    writer.kill()


async def test_it_does_not_wait_for_long(frames: Frames, desk: Desk) -> None:
    writer = await frame_of_two_and_a_third_batch(frames, desk, gather_ms=30)
    await asyncio.sleep(0.06)
    assert numbers(frames.stored[1]) == [3]
    desk.answer_all()
    await asyncio.sleep(0.06)
    writer.place(ONE, batch(), -1)
    await settled()
    assert numbers(frames.stored[2]) == [4], "whoever comes later finds nobody waiting for others"
    writer.kill()


async def test_a_large_frame_waits_for_nobody(frames: Frames, desk: Desk) -> None:
    writer = await frame_of_two_and_a_third_batch(frames, desk, gather_ms=60_000)
    for count in (2_000, GATHER_BYTES_MAX // SIZE + 1):
        for _ in range(count):
            writer.place(ONE, batch(), -1)
        await settled()
        desk.answer_all()
    assert len(frames.stored) == 3
    writer.kill()


async def test_frames_are_stored_in_parallel_and_handed_on_in_seal_order(frames: Frames, desk: Desk) -> None:
    writer = made(frames, desk, flush_bytes_max=1, writes_max=3)
    frames.patient = True
    for _ in range(4):
        writer.place(ONE, batch(), -1)
    await settled()
    assert len(frames.stored) == 3, "as many at once as there are slots"
    frames.let(3)
    frames.let(2)
    await settled()
    assert desk.extents == []
    assert len(frames.stored) == 4, "a slot is free as soon as the bytes are stored"
    frames.let(1)
    await settled()
    assert numbers(desk.extents) == [1, 2, 3]
    frames.let(4)
    await settled()
    assert numbers(desk.extents) == [1, 2, 3, 4]


async def test_a_failed_frame_is_failed_in_its_turn_and_the_next_goes_on(frames: Frames, desk: Desk) -> None:
    writer = made(frames, desk, flush_bytes_max=1, writes_max=3)
    frames.errors[2] = Unavailable("the disk is full")
    answers = [writer.place(ONE, batch(), -1) for _ in range(3)]
    await settled()
    assert numbers(desk.extents) == [1, 3]
    with pytest.raises(Unavailable, match="the disk is full"):
        await answers[1]


async def test_a_bug_in_storing_answers_the_producers_too(
    frames: Frames, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    writer = made(frames, desk, flush_bytes_max=1)
    frames.errors[1] = ZeroDivisionError()
    with pytest.raises(Unavailable, match="ZeroDivisionError"):
        await writer.place(ONE, batch(), -1)
    assert "wal.write_failed" in caplog.text
    writer.place(ONE, batch(), -1)
    await settled()
    assert numbers(desk.extents) == [2]


async def test_what_is_held_is_bounded_and_the_rest_waits_in_order(frames: Frames, desk: Desk) -> None:
    writer = made(frames, desk, flush_interval_ms=0)
    answers = [writer.place(ONE, batch(), -1) for _ in range(50)]
    held = []
    while not all(answer.done() for answer in answers):
        await asyncio.sleep(0.001)
        held.append(writer.bytes_held)
        desk.answer_all()
    assert max(held) == 20 * SIZE
    assert numbers([extent for frame in frames.stored for extent in frame]) == list(range(1, 51))
    assert writer.bytes_held == 0


async def test_a_small_batch_does_not_overtake_a_large_one_that_waits(frames: Frames, desk: Desk) -> None:
    writer = made(frames, desk, flush_interval_ms=0, buffer_bytes_max=SIZE + SIZE // 2)
    writer.place(ONE, batch(), -1)
    writer.place(ONE, batch(), -1)
    small = RecordBatch.parse(make_batch([b"x"]))
    assert small.size < SIZE // 2
    writer.place(ONE, small, -1)
    await asyncio.sleep(0.005)
    assert numbers(desk.extents) == [1]
    desk.answer_all()
    await asyncio.sleep(0.005)
    desk.answer_all()
    await asyncio.sleep(0.005)
    assert numbers([extent for frame in frames.stored for extent in frame]) == [1, 2, 3]


async def test_extents_are_cut_to_what_a_claim_may_hold(frames: Frames, desk: Desk) -> None:
    writer = made(frames, desk, claim_batches_max=2)
    for _ in range(5):
        writer.place(ONE, batch(), -1)
    await settled()
    assert [len(extent.items) for extent in frames.stored[0]] == [2, 2, 1]
    assert [extent.extent_id for extent in frames.stored[0]] == ["w.1.0", "w.1.1", "w.1.2"]


async def test_stored_again_under_another_id(frames: Frames, desk: Desk) -> None:
    writer = made(frames, desk, flush_bytes_max=1)
    writer.place(ONE, batch(), -1)
    await settled()
    (extent,) = desk.extents
    tried = [extent.next_claim_id(), extent.next_claim_id()]
    await writer.store_again(extent)
    assert [*tried, extent.next_claim_id()] == ["w.1.0.1", "w.1.0.2", "w.2.0.1"]
    assert extent.location is not None
    assert extent.location.name == "o2"


async def test_flush_does_not_wait_for_the_timer(frames: Frames, desk: Desk) -> None:
    writer = made(frames, desk)
    writer.flush()
    writer.place(ONE, batch(), -1)
    writer.flush()
    await settled()
    assert [numbers(frame) for frame in frames.stored] == [[1]]


async def test_drain_hands_on_all_that_was_taken_and_takes_no_more(frames: Frames, desk: Desk) -> None:
    writer = made(frames, desk, buffer_bytes_max=6 * SIZE)
    for _ in range(15):
        writer.place(ONE, batch(), -1)

    async def answer() -> None:
        while True:
            await asyncio.sleep(0.001)
            desk.answer_all()

    answering = asyncio.create_task(answer())
    draining = asyncio.create_task(writer.drain())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="stopping"):
        writer.place(ONE, batch(), -1)
    await asyncio.wait_for(draining, 2)
    answering.cancel()
    assert numbers([extent for frame in frames.stored for extent in frame]) == list(range(1, 16))
    await writer.close()
    assert frames.closed


async def test_kill_answers_nobody_and_leaves_no_task(frames: Frames, desk: Desk) -> None:
    writer = made(frames, desk, flush_bytes_max=1, writes_max=1)
    frames.patient = True
    answers = [writer.place(ONE, batch(), -1) for _ in range(30)]
    await settled()
    writer.kill()
    await settled()
    assert not any(answer.done() for answer in answers)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert desk.extents == []
