"""Storing frames: objects, and segments that are rolled, sealed and broken."""

import asyncio
import random

import pytest
from tests.harness.log.brokers import NOW, HandClock, StubWriter, plain

from lakestream.config.settings import WalSettings
from lakestream.data.wal.buffer import Appended, Extent, PendingBatch
from lakestream.data.wal.footers import object_footer, segment_footers
from lakestream.data.wal.format import decode, walk_segment
from lakestream.data.wal.frame_store import ObjectFrames, SegmentFrames
from lakestream.data.wal.names import parse_object_key, parse_segment_name
from lakestream.errors import Unavailable
from lakestream.metadata.claims import Medium
from lakestream.model import PartitionId
from lakestream.storage.memory import MemoryObjectStore
from lakestream.testing.memory_segments import MemoryDisk, MemorySegments


def extent(number: int = 1, values: tuple[str, ...] = ("a", "b")) -> Extent:
    future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    items = [PendingBatch(plain(value), -1, n, future) for n, value in enumerate(values)]
    return Extent(PartitionId("t", number), items, f"w.1.{number}", StubWriter())


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


# ── objects ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_object_per_frame(clock: HandClock) -> None:
    store = MemoryObjectStore(clock)
    frames = ObjectFrames(store, "w", clock)
    one, two = extent(1), extent(2, ("c",))
    await frames.store([one, two], 7)
    assert one.location is not None
    assert one.location == two.location
    name = one.location.name
    assert one.location == (Medium.OBJECT, name, 0, NOW)
    assert parse_object_key(name) == (NOW, "w", 7)
    body = bytes(await store.get(name))
    whole = decode(body, name)
    assert [part.claim_id for part in whole.ranges] == ["w.1.1", "w.1.2"]
    for part in (one, two):
        for item, info in zip(part.items, part.batches, strict=True):
            assert body[info.byte_start : info.byte_end] == bytes(item.batch.data)
    assert (await object_footer(store, name, len(body))).stored_ms == NOW
    await frames.close()


async def test_names_sort_by_age(clock: HandClock) -> None:
    store = MemoryObjectStore(clock)
    frames, names = ObjectFrames(store, "w", clock), []
    for sequence in (1, 2, 99):
        part = extent()
        await frames.store([part], sequence)
        assert part.location is not None
        names.append(part.location.name)
        clock.ms += 1
    assert names == sorted(names)


async def test_stored_time_is_from_before_the_put(clock: HandClock) -> None:
    """A claim may have an earlier time than its bytes, never a later one."""

    class SlowStore(MemoryObjectStore):
        async def put(self, key: str, body: object) -> None:
            clock.ms += 5000
            await super().put(key, body)  # type: ignore[arg-type]

    part = extent()
    await ObjectFrames(SlowStore(clock), "w", clock).store([part], 1)
    assert part.location is not None
    assert part.location.stored_ms == NOW


# ── segments ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Bench:
    def __init__(self, clock: HandClock, **settings: int) -> None:
        self.clock = clock
        self.disk = MemoryDisk()
        self.files = MemorySegments(self.disk, clock, random.Random(1))
        self.frames = SegmentFrames(self.files, "w", WalSettings(**settings), clock)
        self.sequence = 0

    async def store(self, *extents: Extent) -> str:
        self.sequence += 1
        extents = extents or (extent(),)
        await self.frames.store(extents, self.sequence)
        location = extents[0].location
        assert location is not None
        assert location.medium is Medium.SEGMENT
        return location.name

    async def sealed(self, name: str) -> bool:
        return (await segment_footers(self.files, name)).sealed


async def test_frames_are_appended_to_one_segment(clock: HandClock) -> None:
    bench = Bench(clock)
    parts = [extent(n) for n in range(5)]
    names = {await bench.store(part) for part in parts}
    (name,) = names
    assert parse_segment_name(name) == (NOW, "w", 1)
    body = bytes(bench.disk.files[name].data)
    for part in parts:
        for item, info in zip(part.items, part.batches, strict=True):
            assert body[info.byte_start : info.byte_end] == bytes(item.batch.data)
    whole = walk_segment(body, name)
    assert [frame.footer.sequence for frame in whole.frames] == [1, 2, 3, 4, 5]
    assert not whole.sealed
    await bench.frames.close()
    assert await bench.sealed(name)


async def test_segment_is_rolled_by_size(clock: HandClock) -> None:
    measured = Bench(clock)
    await measured.store()
    bench = Bench(clock, segment_bytes_max=measured.disk.size + 1)
    names = [await bench.store() for _ in range(6)]
    assert [names.index(name) for name in names] == [0, 0, 2, 2, 4, 4]
    assert [await bench.sealed(name) for name in names] == [True] * 4 + [False] * 2
    await bench.frames.close()
    assert await bench.sealed(names[-1])


async def test_segment_is_rolled_by_age(clock: HandClock) -> None:
    bench = Bench(clock, segment_age_ms_max=1000)
    first = await bench.store()
    clock.ms += 999
    assert await bench.store() == first
    clock.ms += 1
    second = await bench.store()
    assert second != first
    assert await bench.sealed(first)
    assert parse_segment_name(second) == (NOW + 1000, "w", 2)
    await bench.frames.close()


async def test_all_claims_have_the_creation_time_of_their_segment(clock: HandClock) -> None:
    bench = Bench(clock)
    await bench.store()
    clock.ms += 5000
    part = extent()
    await bench.store(part)
    assert part.location is not None
    assert part.location.stored_ms == NOW
    await bench.frames.close()


async def test_a_failed_append_goes_to_a_new_segment_next_time(clock: HandClock) -> None:
    bench = Bench(clock)
    first = await bench.store()
    bench.disk.syncs_fail = True
    part = extent()
    with pytest.raises(Unavailable, match=f"cannot sync {first}"):
        await bench.store(part)
    assert part.location is None
    bench.disk.syncs_fail = False
    second = await bench.store()
    assert second != first
    kept = await segment_footers(bench.files, first)
    assert [footer.sequence for footer in kept.footers][:1] == [1]
    assert not kept.sealed, "what became of its tail is not known"
    await bench.frames.close()


async def test_empty_segment_is_kept_while_the_disk_is_full(clock: HandClock) -> None:
    bench = Bench(clock)
    first = await bench.store()
    bench.disk.size_max = bench.disk.size
    for _ in range(3):
        with pytest.raises(Unavailable, match="the disk is full"):
            await bench.store()
    bench.disk.size_max = None
    name = await bench.store()
    assert [info.name for info in await bench.files.walk()] == [first, name], "no empty files"
    assert len((await segment_footers(bench.files, name)).footers) == 1
    await bench.frames.close()
    assert await bench.sealed(name)


async def test_failed_seal_does_not_fail_the_next_frame(clock: HandClock, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(clock, segment_age_ms_max=1000)
    first = await bench.store()
    bench.disk.size_max = bench.disk.size
    clock.ms += 1000
    with pytest.raises(Unavailable):
        await bench.store()
    assert f"wal.seal_failed segment={first}" in caplog.text
    bench.disk.size_max = None
    await bench.store()
    await bench.frames.close()


async def test_a_cancelled_append_breaks_its_segment(clock: HandClock) -> None:
    bench = Bench(clock)
    bench.files = MemorySegments(bench.disk, clock, random.Random(1), append_s=(10.0, 10.0))
    bench.frames = SegmentFrames(bench.files, "w", WalSettings(), clock)
    task = asyncio.create_task(bench.store())
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    bench.files._append_s = (0.0, 0.0)
    name = await bench.store()
    parsed = parse_segment_name(name)
    assert parsed is not None
    assert parsed.number == 2
    await bench.frames.close()


async def test_concurrent_frames_are_appended_in_turn(clock: HandClock) -> None:
    bench = Bench(clock)
    parts = [extent(n) for n in range(8)]
    await asyncio.gather(*(bench.frames.store([part], n) for n, part in enumerate(parts, 1)))
    (name,) = bench.disk.files
    body = bytes(bench.disk.files[name].data)
    assert len(walk_segment(body, name).frames) == 8
    for part in parts:
        info = part.batches[0]
        assert body[info.byte_start : info.byte_end] == bytes(part.items[0].batch.data)
    await bench.frames.close()


async def test_close_without_a_segment(clock: HandClock) -> None:
    bench = Bench(clock)
    await bench.frames.close()
    await bench.frames.close()
    assert bench.disk.files == {}
