"""Reading the bytes of claims: from the cache, from storage, shared by concurrent reads, always verified."""

import asyncio
import random

import msgspec
import pytest
from tests.harness.log.brokers import NOW, HandClock, ShakyObjects, StubWriter, plain

from lakestream.aio.cache import LruCache
from lakestream.config.settings import WalSettings
from lakestream.data.wal.buffer import Appended, Extent, PendingBatch
from lakestream.data.wal.frame_store import ObjectFrames, SegmentFrames
from lakestream.data.wal.reader import Batches, Reader
from lakestream.errors import Corrupt, Misconfigured, Missing
from lakestream.metadata.claims import Claim
from lakestream.model import PartitionId
from lakestream.records.batch import loaded
from lakestream.testing.memory_segments import MemoryDisk, MemorySegments


class Bench:
    def __init__(self, cache_bytes_max: int = 1 << 20) -> None:
        clock = HandClock()
        self.store = ShakyObjects(clock)
        self.disk = MemoryDisk()
        self.files = MemorySegments(self.disk, clock, random.Random(1))
        self.objects = ObjectFrames(self.store, "w", clock)
        self.segments = SegmentFrames(self.files, "w", WalSettings(), clock)
        self.cache: LruCache[str, Batches] = LruCache(cache_bytes_max)
        self.reader = Reader(self.store, self.files, self.cache)
        self.sequence = 0

    async def write(self, *values: tuple[str, ...], on_disk: bool = False) -> list[Claim]:
        """Writes one frame with an extent per tuple; returns a claim for each."""
        self.sequence += 1
        extents = [_extent(f"w.{self.sequence}.{n}", part) for n, part in enumerate(values)]
        await (self.segments if on_disk else self.objects).store(extents, self.sequence)
        return [_claim(extent) for extent in extents]


def _extent(extent_id: str, values: tuple[str, ...]) -> Extent:
    future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    items = [PendingBatch(plain(value), -1, n, future) for n, value in enumerate(values)]
    return Extent(PartitionId("t", 0), items, extent_id, StubWriter())


def _claim(extent: Extent) -> Claim:
    assert extent.location is not None
    medium, name, _, stored_ms = extent.location
    count = len(extent.items)
    return Claim(0, count, extent.next_claim_id(), "w", medium, name, stored_ms, NOW, 0, tuple(extent.batches))


def expect(found: Batches, *values: str) -> None:
    assert [bytes(loaded(batch)) for batch in found] == [bytes(plain(value).data) for value in values]


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("on_disk", [False, True])
async def test_batches_are_returned_in_the_order_of_the_claims(bench: Bench, on_disk: bool) -> None:
    one, two = await bench.write(("a", "b"), ("c",), on_disk=on_disk)
    (three,) = await bench.write(("d",), on_disk=on_disk)
    found = await bench.reader.read([three, two, one])
    expect(found[0], "d")
    expect(found[1], "c")
    expect(found[2], "a", "b")


async def test_no_claims_need_no_read(bench: Bench) -> None:
    assert await bench.reader.read([]) == []


async def test_claims_of_one_object_are_read_in_one_call(bench: Bench) -> None:
    claims = await bench.write(("a",), ("b",), ("c",))
    await bench.reader.read(claims)
    ((_, spans),) = bench.store.reads
    assert len(spans) == 3


async def test_read_or_written_batches_are_served_from_the_cache(bench: Bench) -> None:
    one, two = await bench.write(("a",), ("b",))
    bench.reader.keep(one, (plain("a").data,))
    await bench.reader.read([one])
    assert bench.store.reads == []
    await bench.reader.read([two])
    await bench.reader.read([one, two])
    assert len(bench.store.reads) == 1


async def test_cache_is_bounded() -> None:
    bench = Bench(cache_bytes_max=150)
    claims = [claim for n in range(5) for claim in await bench.write((str(n),))]
    for claim in claims:
        await bench.reader.read([claim])
        assert bench.cache.weight <= 150
    assert len(bench.cache) >= 1


async def test_concurrent_reads_of_a_claim_share_one_call(bench: Bench) -> None:
    one, two, three = await bench.write(("a",), ("b",), ("c",))
    found = await asyncio.gather(
        bench.reader.read([one, two]), bench.reader.read([one]), bench.reader.read([two, three])
    )
    expect(found[0][0], "a")
    expect(found[1][0], "a")
    expect(found[2][0], "b")
    expect(found[2][1], "c")
    assert sum(len(spans) for _, spans in bench.store.reads) == 3


async def test_cancelled_read_does_not_cancel_the_shared_one(bench: Bench) -> None:
    (claim,) = await bench.write(("a",))
    leaves, stays = (asyncio.create_task(bench.reader.read([claim])) for _ in range(2))
    await asyncio.sleep(0)
    leaves.cancel()
    expect((await stays)[0], "a")
    assert leaves.cancelled()


async def test_error_is_raised_in_all_waiting_reads_and_not_cached(bench: Bench) -> None:
    (claim,) = await bench.write(("a",))
    body = await bench.store.get(claim.name)
    await bench.store.delete([claim.name])
    failed = await asyncio.gather(*(bench.reader.read([claim]) for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in failed] == [Missing] * 3
    await bench.store.put(claim.name, [body])
    expect((await bench.reader.read([claim]))[0], "a")


async def test_a_missing_object_is_named(bench: Bench) -> None:
    (claim,) = await bench.write(("a",))
    await bench.store.delete([claim.name])
    with pytest.raises(Missing, match=f"{claim.name}.*offset 0 on, is missing"):
        await bench.reader.read([claim])


async def test_a_claim_of_some_batches_of_an_extent(bench: Bench) -> None:
    """A duplicate in the middle is not in the claim; its bytes are stored all the same."""
    (whole,) = await bench.write(("a", "b", "c"))
    part = msgspec.structs.replace(whole, batches=(whole.batches[0], whole.batches[2]))
    expect((await bench.reader.read([part]))[0], "a", "c")


@pytest.mark.parametrize("on_disk", [False, True])
async def test_a_shortened_object_is_corrupt(bench: Bench, on_disk: bool) -> None:
    (claim,) = await bench.write(("a",), on_disk=on_disk)
    end = claim.batches[-1].byte_end - 1
    if on_disk:
        del bench.disk.files[claim.name].data[end:]
    else:
        await bench.store.put(claim.name, [bytes(await bench.store.get(claim.name))[:end]])
    with pytest.raises(Corrupt, match=f"{claim.name} is shorter than its claims require"):
        await bench.reader.read([claim])


async def test_any_flipped_bit_is_corrupt_or_makes_no_difference(bench: Bench) -> None:
    """Only base offset and leader epoch lie outside the checksum, and those are rewritten on the way out."""
    (claim,) = await bench.write(("a", "b"))
    body = bytes(await bench.store.get(claim.name))
    start, end = claim.batches[0].byte_start, claim.batches[-1].byte_end
    rewritten = {*range(0, 8), *range(12, 16)}
    for at in range(start, end):
        damaged = bytearray(body)
        damaged[at] ^= 1 << (at % 8)
        await bench.store.put(claim.name, [damaged])
        reader = Reader(bench.store, bench.files, LruCache(0))
        within = (at - start) % (claim.batches[0].byte_end - start)
        if within in rewritten:
            await reader.read([claim])
        else:
            with pytest.raises(Corrupt, match=claim.name):
                await reader.read([claim])


async def test_batch_that_differs_from_its_claim_is_corrupt(bench: Bench) -> None:
    """Valid bytes with a valid checksum, but of another batch."""
    (claim,) = await bench.write(("a",))
    two_records = msgspec.structs.replace(claim.batches[0], record_count=2)
    wrong = msgspec.structs.replace(claim, batches=(two_records,))
    with pytest.raises(Corrupt, match=wrong.name):
        await bench.reader.read([wrong])


async def test_damage_is_not_cached(bench: Bench) -> None:
    (claim,) = await bench.write(("a",))
    body = bytes(await bench.store.get(claim.name))
    await bench.store.put(claim.name, [body[:100] + b"!" + body[101:]])
    with pytest.raises(Corrupt):
        await bench.reader.read([claim])
    await bench.store.put(claim.name, [body])
    expect((await bench.reader.read([claim]))[0], "a")


async def test_a_segment_without_a_disk(bench: Bench) -> None:
    (claim,) = await bench.write(("a",), on_disk=True)
    with pytest.raises(Misconfigured, match="--wal-dir"):
        await Reader(bench.store, None, LruCache(0)).read([claim])


async def test_kill_ends_reads_under_way(bench: Bench) -> None:
    (claim,) = await bench.write(("a",))
    task = asyncio.create_task(bench.reader.read([claim]))
    await asyncio.sleep(0)
    bench.reader.kill()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}
