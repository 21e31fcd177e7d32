"""Which objects and segments the garbage collector deletes, when, and which it must keep."""

import asyncio
import logging

import pytest
from tests.harness.log.brokers import HOUR, ShakyMetadata, Trouble, World, plain, read_all, sent

from lakestream.config.settings import LogSettings, Profile, WalSettings
from lakestream.data.log import rules
from lakestream.data.log.garbage_collector import WalGarbageCollector
from lakestream.data.log.log import Log
from lakestream.data.wal.footers import SegmentFooters, segment_footers
from lakestream.data.wal.segments import SegmentFiles
from lakestream.errors import Unavailable
from lakestream.model import Buffer, PartitionId, Span

GRACE = 60_000


async def write_together(log: Log, *partitions: PartitionId) -> None:
    """Writes one object with a record of each partition."""
    await asyncio.gather(*(log.append(partition, plain("v")) for partition in partitions))


async def make_orphan(world: World, partition: PartitionId) -> str:
    """Stores bytes without a claim, as a broker does that crashes in between."""
    metadata = ShakyMetadata(world.server)
    log = await world.broker(metadata=metadata)
    await log.bounds(partition)
    before = set(await world.names())
    metadata.always = Trouble.LOST_THERE
    doomed = asyncio.create_task(log.append(partition, plain("orphan")))
    await asyncio.sleep(0.02)
    log.kill()
    doomed.cancel()
    await asyncio.wait([doomed])
    world.brokers.remove(log)
    await asyncio.sleep(0)
    (name,) = set(await world.names()) - before
    return name


# ── objects that were claimed ────────────────────────────────────────────────────────────────────────────────────────


async def test_object_is_kept_while_claims_reference_it(world: World) -> None:
    (partition,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, partition)
    for _ in range(3):
        assert await sweeper.collect() == []
        world.clock.ms += 10 * HOUR
    assert await read_all(await world.broker(), partition) == [(0, "v")]


async def test_object_is_deleted_when_all_its_claims_were_dropped(world: World) -> None:
    one, two = await world.topic(2)
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, one, two)
    (name,) = await world.names()
    await world.move(log, one, 1, sweeper)
    assert await sweeper.collect() == []
    await world.move(log, two, 1, sweeper)
    assert await sweeper.collect() == [name]
    assert await world.names() == []


async def test_object_is_deleted_after_the_read_grace_period(world: World) -> None:
    (partition,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper(GRACE)
    await write_together(log, partition)
    await world.move(log, partition, 1, sweeper)
    assert await sweeper.collect() == []
    world.clock.ms += GRACE - 1
    assert await sweeper.collect() == []
    world.clock.ms += 1
    assert len(await sweeper.collect()) == 1


async def test_slow_partition_keeps_only_its_own_objects(world: World) -> None:
    fast, slow = await world.topic(2)
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, fast, slow)
    for _ in range(5):
        await write_together(log, fast)
    pinned, *others = await world.names()
    await world.move(log, fast, 6, sweeper)
    assert sorted(await sweeper.collect()) == others
    world.clock.ms += 10 * HOUR
    assert await sweeper.collect() == []
    assert await read_all(await world.broker(), slow) == [(0, "v")]
    await world.move(log, slow, 1, sweeper)
    assert await sweeper.collect() == [pinned]


async def test_object_with_a_rejected_batch_is_deleted(world: World) -> None:
    """Only a part of its extent was claimed: the rest were duplicates."""
    (partition,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper()
    await log.append(partition, sent(0, "a"))
    await asyncio.gather(log.append(partition, sent(0, "a")), log.append(partition, plain("b")))
    await world.move(log, partition, 2, sweeper)
    assert len(await sweeper.collect()) == 2


async def test_half_claimed_object_is_kept_until_claims_would_be_stale(world: World) -> None:
    """The claim of one partition was created and dropped, that of the other may still be created."""
    one, two = await world.topic(2)
    metadata, sweeper = ShakyMetadata(world.server), world.sweeper()
    log, other = await world.broker(metadata=metadata), await world.broker()
    metadata.cut_off = {two}
    doomed = asyncio.create_task(write_together(log, one, two))
    await asyncio.sleep(0.02)
    (half,) = await world.names()
    await world.move(other, one, 1, sweeper)
    assert await sweeper.collect() == []
    world.clock.ms += rules.ORPHAN_AFTER_MS
    assert await sweeper.collect() == []
    metadata.cut_off = set()  # now it is created, three hours too late, and void
    await doomed
    assert await sweeper.collect() == []
    world.clock.ms += 1
    await world.move(other, two, 2, sweeper)
    assert half in await sweeper.collect()


# ── what nobody saw being dropped ────────────────────────────────────────────────────────────────────────────────────


async def test_orphan_is_deleted_after_six_hours(world: World) -> None:
    (partition,) = await world.topic()
    sweeper = world.sweeper()
    name = await make_orphan(world, partition)
    world.clock.ms += rules.ORPHAN_AFTER_MS
    assert await sweeper.collect() == []
    world.clock.ms += 1
    assert await sweeper.collect() == [name]


async def test_restarted_collector_deletes_objects_noted_by_the_last_one(world: World) -> None:
    one, two = await world.topic(2)
    log = await world.broker()
    await write_together(log, one, two)
    await write_together(log, one)
    await world.move(log, one, 2, world.sweeper())  # and that process crashes
    pinned, free = await world.names()
    sweeper = world.sweeper()
    assert await sweeper.collect() == []
    world.clock.ms += rules.ORPHAN_AFTER_MS + 1
    assert await sweeper.collect() == [free]
    await world.move(log, two, 1)
    assert await sweeper.collect() == [pinned], "the table has passed the reference"


async def test_referenced_object_is_not_read_again_before_the_table_advances(world: World) -> None:
    (partition,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, partition)
    world.clock.ms += rules.ORPHAN_AFTER_MS + 1
    await sweeper.collect()
    reads = len(world.objects.reads)
    for _ in range(3):
        assert await sweeper.collect() == []
    assert len(world.objects.reads) == reads


async def test_void_claim_is_no_reference(world: World) -> None:
    """A broker that was paused during a trim claimed below the floor, and stored its bytes again."""
    (partition,) = await world.topic()
    sleeper, log, sweeper = (
        await world.broker(metadata=ShakyMetadata(world.server)),
        await world.broker(),
        world.sweeper(),
    )
    await write_together(sleeper, partition)
    for _ in range(3):
        await write_together(log, partition)
    await world.move(log, partition, 4, sweeper)
    await world.claims.delete_below(partition, 4)
    await sweeper.collect()
    await write_together(sleeper, partition)
    void, live = await world.names()
    world.clock.ms += rules.ORPHAN_AFTER_MS + 1
    assert await sweeper.collect() == [void]
    assert await read_all(await world.broker(), partition, 4) == [(4, "v")]
    assert await world.names() == [live]


async def test_more_claims_than_one_scan_returns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestream.data.log.garbage_collector.SCAN_CLAIMS", 3)
    (partition,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper()
    for _ in range(10):
        await write_together(log, partition)
    world.clock.ms += 10 * HOUR
    assert await sweeper.collect() == []
    assert len(await read_all(await world.broker(), partition)) == 10


# ── deleted topics ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("grace_ms", [0, GRACE])
async def test_objects_of_a_deleted_topic_are_deleted_soon(world: World, grace_ms: int) -> None:
    (kept,) = await world.topic(name="kept")
    (gone,) = await world.topic(name="gone")
    log, sweeper = await world.broker(), world.sweeper(grace_ms)
    await write_together(log, gone)
    await write_together(log, gone, kept)
    only_gone, shared = await world.names()
    await sweeper.collect()
    await world.topics.delete("gone")
    first = await sweeper.collect()
    world.clock.ms += grace_ms
    assert first + await sweeper.collect() == [only_gone]
    assert await read_all(await world.broker(), kept) == [(0, "v")]
    await world.move(log, kept, 1, sweeper)
    first = await sweeper.collect()
    world.clock.ms += grace_ms
    assert first + await sweeper.collect() == [shared]


async def test_reference_ends_when_the_topic_is_deleted(world: World) -> None:
    """The object waited for a table that will never advance."""
    (partition,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, partition)
    world.clock.ms += rules.ORPHAN_AFTER_MS + 1
    assert await sweeper.collect() == []
    await world.topics.delete("t")
    assert len(await sweeper.collect()) == 1


async def test_objects_of_a_recreated_topic_are_kept(world: World) -> None:
    (old,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, old)
    await sweeper.collect()
    (old_name,) = await world.names()
    await world.topics.delete("t")
    (new,) = await world.topic()
    await write_together(log, new)
    assert await sweeper.collect() == [old_name]
    assert await read_all(await world.broker(), new) == [(0, "v")]


# ── segments ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_sealed_segment_is_deleted_when_all_its_claims_were_dropped(world: World) -> None:
    world.profile = Profile.LATENCY
    one, two = await world.topic(2)
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, one, two)
    await write_together(log, one)
    await log.close()
    other = await world.broker()
    await world.move(other, one, 2, sweeper)
    assert await sweeper.collect() == []
    await world.move(other, two, 1, sweeper)
    assert len(await sweeper.collect()) == 1
    assert await world.names() == []


async def test_a_segment_is_read_when_all_of_it_may_have_been_dropped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read only when sealed, and then once: it no longer changes, and may have thousands of frames."""
    world.profile = Profile.LATENCY
    one, two = await world.topic(2)
    log, sweeper = await world.broker(), world.sweeper()
    reads: list[str] = []

    async def counted(files: SegmentFiles, name: str) -> SegmentFooters:
        reads.append(name)
        return await segment_footers(files, name)

    monkeypatch.setattr("lakestream.data.log.garbage_collector.segment_footers", counted)
    for _ in range(3):
        await write_together(log, one, two)
    await world.move(log, one, 1, sweeper)
    assert await sweeper.collect() == []
    assert reads == []
    await log.close()
    other = await world.broker()
    for _ in range(2):
        assert await sweeper.collect() == []
    assert len(reads) == 1
    await world.move(other, one, 3, sweeper)
    assert await sweeper.collect() == []
    assert len(reads) == 1
    await world.move(other, two, 3, sweeper)
    assert len(await sweeper.collect()) == 1


async def test_sealed_segment_with_a_deleted_topic_is_deleted(world: World) -> None:
    world.profile = Profile.LATENCY
    (kept,) = await world.topic(name="kept")
    (gone,) = await world.topic(name="gone")
    log, sweeper = await world.broker(), world.sweeper()
    for _ in range(2):
        await write_together(log, gone, kept)
    await log.close()
    other = await world.broker()
    await world.move(other, kept, 1, sweeper)
    assert await sweeper.collect() == []
    await world.topics.delete("gone")
    assert await sweeper.collect() == []
    await world.move(other, kept, 2, sweeper)
    assert len(await sweeper.collect()) == 1


async def test_an_unsealed_segment_waits_for_six_hours(world: World) -> None:
    """Its writer may still be writing; after that time all its claims would be void."""
    world.profile = Profile.LATENCY
    (partition,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, partition)
    await world.move(log, partition, 1, sweeper)
    assert await sweeper.collect() == []
    world.clock.ms += rules.ORPHAN_AFTER_MS
    assert await sweeper.collect() == []
    world.clock.ms += 1
    assert len(await sweeper.collect()) == 1
    await write_together(log, partition)
    assert await read_all(await world.broker(), partition, 1) == [(1, "v")], "its writer has rolled"


async def test_a_torn_tail_is_no_damage(world: World) -> None:
    world.profile = Profile.LATENCY
    (partition,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, partition)
    (name,) = await world.names()
    world.disk.files[name].data += b"LKWF" + b"\0" * 50
    await world.move(log, partition, 1, sweeper)
    world.clock.ms += rules.ORPHAN_AFTER_MS + 1
    assert await sweeper.collect() == [name]


async def test_an_old_segment_with_one_live_frame_stays(world: World) -> None:
    world.profile = Profile.LATENCY
    one, two = await world.topic(2)
    log, sweeper = await world.broker(), world.sweeper()
    for partition in (one, one, two, one):
        await write_together(log, partition)
    await log.close()
    other = await world.broker()
    await world.move(other, one, 3, sweeper)
    world.clock.ms += 10 * HOUR
    assert await sweeper.collect() == []
    assert await read_all(await world.broker(), two) == [(0, "v")]


# ── trouble ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("damage", ["empty", "garbage", "flipped"])
async def test_an_unreadable_object_is_left_alone_and_reported_once(
    world: World, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    (partition,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, partition)
    await write_together(log, partition)
    bad, good = await world.names()
    body = bytes(await world.objects.get(bad))
    flipped = body[:-30] + bytes([body[-30] ^ 1]) + body[-29:]
    await world.objects.put(bad, [{"empty": b"", "garbage": b"x" * 500, "flipped": flipped}[damage]])
    await world.move(log, partition, 2, sweeper)
    with caplog.at_level(logging.ERROR):
        assert await sweeper.collect() == [good]
        world.clock.ms += 10 * HOUR
        assert await sweeper.collect() == []
        assert await sweeper.collect() == []
    (report,) = caplog.records
    assert bad in report.getMessage()


async def test_foreign_objects_are_kept(world: World) -> None:
    sweeper = world.sweeper()
    for name in ("wal/README", "wal/001800000000000-w.wal", "wal/deep/001800000000000-w-0000000001.wal", "other/x"):
        await world.objects.put(name, [b"not ours"])
    world.clock.ms += 100 * HOUR
    assert await sweeper.collect() == []
    assert len(await world.names()) == 3


async def test_two_collectors_run_concurrently(world: World) -> None:
    one, two = await world.topic(2)
    log, sweepers = await world.broker(), [world.sweeper(), world.sweeper()]
    for _ in range(20):
        await write_together(log, one)
    await write_together(log, two)
    *dropped, live = await world.names()
    await world.claims.advance_table_end(one, 20)
    claims = await log.trim(one, 20)
    for sweeper in sweepers:
        sweeper.note_dropped(claims)
    swept = await asyncio.gather(*(sweeper.collect() for sweeper in sweepers))
    assert set(swept[0]) | set(swept[1]) == set(dropped)
    assert await world.names() == [live]
    assert [await sweeper.collect() for sweeper in sweepers] == [[], []]


async def test_one_collector_runs_twice_concurrently(world: World) -> None:
    (partition,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper()
    for _ in range(5):
        await write_together(log, partition)
    names = await world.names()
    await world.move(log, partition, 5, sweeper)
    await world.objects.delete(names[:2])  # by another process
    swept = await asyncio.gather(sweeper.collect(), sweeper.collect())
    assert set(swept[0]) | set(swept[1]) == set(names[2:])
    assert await world.names() == []


async def test_claims_noted_during_a_run_are_kept_for_the_next(world: World) -> None:
    early, late = await world.topic(2)
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, early)
    await write_together(log, late)
    await world.move(log, late, 1, sweeper)
    await world.claims.advance_table_end(early, 1)
    dropped = await log.trim(early, 1)
    sweeping = asyncio.create_task(sweeper.collect())
    await world.objects.read.wait()
    sweeper.note_dropped(dropped)  # the listing has passed its object already
    await sweeping
    await sweeper.collect()
    assert await world.names() == []


async def test_next_run_succeeds_after_a_store_error(world: World) -> None:
    (partition,) = await world.topic()
    log, metadata = await world.broker(), world.server.client()
    sweeper = WalGarbageCollector(metadata, world.objects, world.segments(), read_grace_ms=0)
    await write_together(log, partition)
    await world.move(log, partition, 1, sweeper)
    world.objects.fails = Unavailable("the bucket does not answer")
    with pytest.raises(Unavailable):
        await sweeper.collect()
    world.objects.fails = None
    assert len(await sweeper.collect()) == 1


async def test_live_records_stay_readable_during_garbage_collection(world: World) -> None:
    """Readable records stay readable while everything else is deleted."""
    settings = LogSettings(wal=WalSettings(flush_interval_ms=0, segment_bytes_max=500), retry_interval_ms=5)
    partitions = await world.topic(3)
    log, sweeper = await world.broker(settings=settings), world.sweeper()
    for number in range(60):
        world.profile = list(Profile)[number // 7 % 2]
        partition = partitions[number % 3]
        await log.append(partition, plain(str(number)))
        end = (await log.bounds(partition)).end
        if number % 5 == 0:
            await world.move(log, partition, end - 1, sweeper)
        await sweeper.collect()
        world.clock.ms += HOUR
    for partition in partitions:
        bounds = await log.bounds(partition)
        found = await read_all(await world.broker(), partition, bounds.start)
        assert [offset for offset, _ in found] == list(range(bounds.start, 20))


async def moved_objects(world: World, count: int) -> tuple[WalGarbageCollector, list[str]]:
    """Returns the names of objects whose claims were all dropped."""
    (partition,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper()
    for number in range(count):
        await log.append(partition, plain(f"value {number}"))
    await world.claims.advance_table_end(partition, count)
    sweeper.note_dropped(await log.trim(partition, count))
    return sweeper, await world.names()


def unreadable(world: World, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    get_ranges = world.objects.get_ranges

    async def failing(key: str, spans: list[Span]) -> list[Buffer]:
        if key in names:
            raise Unavailable(f"cannot read {key}: Input/output error")
        return await get_ranges(key, spans)

    monkeypatch.setattr(world.objects, "get_ranges", failing)


async def collected(world: World, sweeper: WalGarbageCollector) -> list[str]:
    """Runs now and after the read grace period; returns the deleted names."""
    first = await sweeper.collect()
    world.clock.ms += HOUR
    return [*first, *await sweeper.collect()]


async def test_unreadable_object_does_not_keep_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sweeper, names = await moved_objects(world, 4)
    with monkeypatch.context() as patch:
        unreadable(world, names[:1], patch)
        assert await collected(world, sweeper) == names[1:]
        assert sweeper.has_pending, "it is read again"
    assert caplog.text.count("gc.object_skipped") == 1
    assert await collected(world, sweeper) == names[:1]


async def test_run_fails_when_many_objects_are_unreadable(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeper, names = await moved_objects(world, 20)
    unreadable(world, names, monkeypatch)
    with pytest.raises(Unavailable, match="Input/output error"):
        await sweeper.collect()
