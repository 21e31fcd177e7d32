"""What may go, and when; and above all what may not."""

import asyncio
import logging

import pytest
from tests.unit.data.brokers import HOUR, ShakyMetadata, Trouble, World, plain, read_all, sent

from lakestream.data.log import rules
from lakestream.data.log.log import Log
from lakestream.data.log.sweeper import Sweeper
from lakestream.data.wal.footers import SegmentFooters, segment_footers
from lakestream.data.wal.segments import SegmentFiles
from lakestream.errors import Unavailable
from lakestream.model import Buffer, PartitionId, Span
from lakestream.settings import LogSettings, Profile, WalSettings

GRACE = 60_000


async def write_together(log: Log, *partitions: PartitionId) -> None:
    """One object with a record of each."""
    await asyncio.gather(*(log.append(partition, plain("v")) for partition in partitions))


async def make_orphan(world: World, partition: PartitionId) -> str:
    """Bytes that nobody claimed: their broker died in between."""
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


async def test_nothing_is_swept_while_claims_name_it(world: World) -> None:
    (partition,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, partition)
    for _ in range(3):
        assert await sweeper.sweep() == []
        world.clock.ms += 10 * HOUR
    assert await read_all(await world.broker(), partition) == [(0, "v")]


async def test_an_object_goes_when_all_of_it_was_dropped(world: World) -> None:
    one, two = await world.topic(2)
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, one, two)
    (name,) = await world.names()
    await world.move(log, one, 1, sweeper)
    assert await sweeper.sweep() == []
    await world.move(log, two, 1, sweeper)
    assert await sweeper.sweep() == [name]
    assert await world.names() == []


async def test_it_goes_after_the_readers_grace(world: World) -> None:
    (partition,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper(GRACE)
    await write_together(log, partition)
    await world.move(log, partition, 1, sweeper)
    assert await sweeper.sweep() == []
    world.clock.ms += GRACE - 1
    assert await sweeper.sweep() == []
    world.clock.ms += 1
    assert len(await sweeper.sweep()) == 1


async def test_one_slow_partition_pins_only_its_own_objects(world: World) -> None:
    fast, slow = await world.topic(2)
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, fast, slow)
    for _ in range(5):
        await write_together(log, fast)
    pinned, *others = await world.names()
    await world.move(log, fast, 6, sweeper)
    assert sorted(await sweeper.sweep()) == others
    world.clock.ms += 10 * HOUR
    assert await sweeper.sweep() == []
    assert await read_all(await world.broker(), slow) == [(0, "v")]
    await world.move(log, slow, 1, sweeper)
    assert await sweeper.sweep() == [pinned]


async def test_an_object_with_a_refused_batch_in_it_goes_too(world: World) -> None:
    """Only a part of its extent was claimed: the rest was a duplicate."""
    (partition,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper()
    await log.append(partition, sent(0, "a"))
    await asyncio.gather(log.append(partition, sent(0, "a")), log.append(partition, plain("b")))
    await world.move(log, partition, 2, sweeper)
    assert len(await sweeper.sweep()) == 2


async def test_half_claimed_stays_until_no_claim_can_count_any_more(world: World) -> None:
    """One partition's claim was made and dropped, the other's may still come."""
    one, two = await world.topic(2)
    metadata, sweeper = ShakyMetadata(world.server), world.sweeper()
    log, other = await world.broker(metadata=metadata), await world.broker()
    metadata.cut_off = {two}
    doomed = asyncio.create_task(write_together(log, one, two))
    await asyncio.sleep(0.02)
    (half,) = await world.names()
    await world.move(other, one, 1, sweeper)
    assert await sweeper.sweep() == []
    world.clock.ms += rules.ORPHAN_AFTER_MS
    assert await sweeper.sweep() == []
    metadata.cut_off = set()  # and now it does come, three hours too late to count
    await doomed
    assert await sweeper.sweep() == []
    world.clock.ms += 1
    await world.move(other, two, 2, sweeper)
    assert half in await sweeper.sweep()


# ── what nobody saw being dropped ────────────────────────────────────────────────────────────────────────────────────


async def test_an_orphan_goes_after_six_hours_not_before(world: World) -> None:
    (partition,) = await world.topic()
    sweeper = world.sweeper()
    name = await make_orphan(world, partition)
    world.clock.ms += rules.ORPHAN_AFTER_MS
    assert await sweeper.sweep() == []
    world.clock.ms += 1
    assert await sweeper.sweep() == [name]


async def test_a_sweeper_that_was_restarted_finds_what_the_last_one_knew(world: World) -> None:
    one, two = await world.topic(2)
    log = await world.broker()
    await write_together(log, one, two)
    await write_together(log, one)
    await world.move(log, one, 2, world.sweeper())  # and that sweeper dies
    pinned, free = await world.names()
    sweeper = world.sweeper()
    assert await sweeper.sweep() == []
    world.clock.ms += rules.ORPHAN_AFTER_MS + 1
    assert await sweeper.sweep() == [free]
    await world.move(log, two, 1)
    assert await sweeper.sweep() == [pinned], "the table has gone by, though nobody told"


async def test_a_pinned_object_is_not_looked_at_again_before_the_table_moves(world: World) -> None:
    (partition,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, partition)
    world.clock.ms += rules.ORPHAN_AFTER_MS + 1
    await sweeper.sweep()
    reads = len(world.objects.reads)
    for _ in range(3):
        assert await sweeper.sweep() == []
    assert len(world.objects.reads) == reads


async def test_a_void_claim_pins_nothing(world: World) -> None:
    """A broker that slept through a trim claimed below the floor, and stored its bytes again."""
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
    await world.claims.drop_below(partition, 4)
    await sweeper.sweep()
    await write_together(sleeper, partition)
    void, live = await world.names()
    world.clock.ms += rules.ORPHAN_AFTER_MS + 1
    assert await sweeper.sweep() == [void]
    assert await read_all(await world.broker(), partition, 4) == [(4, "v")]
    assert await world.names() == [live]


async def test_more_claims_than_one_scan_returns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestream.data.log.sweeper.SCAN_CLAIMS", 3)
    (partition,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper()
    for _ in range(10):
        await write_together(log, partition)
    world.clock.ms += 10 * HOUR
    assert await sweeper.sweep() == []
    assert len(await read_all(await world.broker(), partition)) == 10


# ── deleted topics ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("grace_ms", [0, GRACE])
async def test_a_deleted_topics_objects_go_soon(world: World, grace_ms: int) -> None:
    (kept,) = await world.topic(name="kept")
    (gone,) = await world.topic(name="gone")
    log, sweeper = await world.broker(), world.sweeper(grace_ms)
    await write_together(log, gone)
    await write_together(log, gone, kept)
    only_gone, shared = await world.names()
    await sweeper.sweep()
    await world.topics.delete("gone")
    first = await sweeper.sweep()
    world.clock.ms += grace_ms
    assert first + await sweeper.sweep() == [only_gone]
    assert await read_all(await world.broker(), kept) == [(0, "v")]
    await world.move(log, kept, 1, sweeper)
    first = await sweeper.sweep()
    world.clock.ms += grace_ms
    assert first + await sweeper.sweep() == [shared]


async def test_a_deleted_topic_unpins(world: World) -> None:
    """It was seen that its table must move first; now it never will."""
    (partition,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, partition)
    world.clock.ms += rules.ORPHAN_AFTER_MS + 1
    assert await sweeper.sweep() == []
    await world.topics.delete("t")
    assert len(await sweeper.sweep()) == 1


async def test_a_recreated_topic_keeps_its_own(world: World) -> None:
    (old,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, old)
    await sweeper.sweep()
    (old_name,) = await world.names()
    await world.topics.delete("t")
    (new,) = await world.topic()
    await write_together(log, new)
    assert await sweeper.sweep() == [old_name]
    assert await read_all(await world.broker(), new) == [(0, "v")]


# ── segments ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_sealed_segment_goes_when_all_of_it_was_dropped(world: World) -> None:
    world.profile = Profile.LATENCY
    one, two = await world.topic(2)
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, one, two)
    await write_together(log, one)
    await log.close()
    other = await world.broker()
    await world.move(other, one, 2, sweeper)
    assert await sweeper.sweep() == []
    await world.move(other, two, 1, sweeper)
    assert len(await sweeper.sweep()) == 1
    assert await world.names() == []


async def test_a_segment_is_read_when_all_of_it_may_have_been_dropped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before it is sealed, and then once: what is in it no longer changes. It may hold thousands of frames."""
    world.profile = Profile.LATENCY
    one, two = await world.topic(2)
    log, sweeper = await world.broker(), world.sweeper()
    reads: list[str] = []

    async def counted(files: SegmentFiles, name: str) -> SegmentFooters:
        reads.append(name)
        return await segment_footers(files, name)

    monkeypatch.setattr("lakestream.data.log.sweeper.segment_footers", counted)
    for _ in range(3):
        await write_together(log, one, two)
    await world.move(log, one, 1, sweeper)
    assert await sweeper.sweep() == []
    assert reads == []
    await log.close()
    other = await world.broker()
    for _ in range(2):
        assert await sweeper.sweep() == []
    assert len(reads) == 1
    await world.move(other, one, 3, sweeper)
    assert await sweeper.sweep() == []
    assert len(reads) == 1
    await world.move(other, two, 3, sweeper)
    assert len(await sweeper.sweep()) == 1


async def test_a_sealed_segment_goes_though_a_topic_in_it_was_deleted(world: World) -> None:
    world.profile = Profile.LATENCY
    (kept,) = await world.topic(name="kept")
    (gone,) = await world.topic(name="gone")
    log, sweeper = await world.broker(), world.sweeper()
    for _ in range(2):
        await write_together(log, gone, kept)
    await log.close()
    other = await world.broker()
    await world.move(other, kept, 1, sweeper)
    assert await sweeper.sweep() == []
    await world.topics.delete("gone")
    assert await sweeper.sweep() == []
    await world.move(other, kept, 2, sweeper)
    assert len(await sweeper.sweep()) == 1


async def test_an_unsealed_segment_waits_for_six_hours(world: World) -> None:
    """Its writer may still be writing; after that nothing that it writes can count."""
    world.profile = Profile.LATENCY
    (partition,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, partition)
    await world.move(log, partition, 1, sweeper)
    assert await sweeper.sweep() == []
    world.clock.ms += rules.ORPHAN_AFTER_MS
    assert await sweeper.sweep() == []
    world.clock.ms += 1
    assert len(await sweeper.sweep()) == 1
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
    assert await sweeper.sweep() == [name]


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
    assert await sweeper.sweep() == []
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
        assert await sweeper.sweep() == [good]
        world.clock.ms += 10 * HOUR
        assert await sweeper.sweep() == []
        assert await sweeper.sweep() == []
    (report,) = caplog.records
    assert bad in report.getMessage()


async def test_what_is_not_ours_is_not_touched(world: World) -> None:
    sweeper = world.sweeper()
    for name in ("wal/README", "wal/001800000000000-w.wal", "wal/deep/001800000000000-w-0000000001.wal", "other/x"):
        await world.objects.put(name, [b"not ours"])
    world.clock.ms += 100 * HOUR
    assert await sweeper.sweep() == []
    assert len(await world.names()) == 3


async def test_two_sweepers_at_once(world: World) -> None:
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
    swept = await asyncio.gather(*(sweeper.sweep() for sweeper in sweepers))
    assert set(swept[0]) | set(swept[1]) == set(dropped)
    assert await world.names() == [live]
    assert [await sweeper.sweep() for sweeper in sweepers] == [[], []]


async def test_one_sweeper_asked_twice_at_once(world: World) -> None:
    (partition,) = await world.topic()
    log, sweeper = await world.broker(), world.sweeper()
    for _ in range(5):
        await write_together(log, partition)
    names = await world.names()
    await world.move(log, partition, 5, sweeper)
    await world.objects.delete(names[:2])  # another sweeper was here
    swept = await asyncio.gather(sweeper.sweep(), sweeper.sweep())
    assert set(swept[0]) | set(swept[1]) == set(names[2:])
    assert await world.names() == []


async def test_what_is_noted_during_a_sweep_is_not_forgotten(world: World) -> None:
    early, late = await world.topic(2)
    log, sweeper = await world.broker(), world.sweeper()
    await write_together(log, early)
    await write_together(log, late)
    await world.move(log, late, 1, sweeper)
    await world.claims.advance_table_end(early, 1)
    dropped = await log.trim(early, 1)
    sweeping = asyncio.create_task(sweeper.sweep())
    await world.objects.read.wait()
    sweeper.note_dropped(dropped)  # its object was passed over already
    await sweeping
    await sweeper.sweep()
    assert await world.names() == []


async def test_a_store_that_cannot_answer_ends_the_sweep_not_the_sweeper(world: World) -> None:
    (partition,) = await world.topic()
    log, metadata = await world.broker(), world.server.client()
    sweeper = Sweeper(metadata, world.objects, world.segments(), read_grace_ms=0)
    await write_together(log, partition)
    await world.move(log, partition, 1, sweeper)
    world.objects.fails = Unavailable("the bucket does not answer")
    with pytest.raises(Unavailable):
        await sweeper.sweep()
    world.objects.fails = None
    assert len(await sweeper.sweep()) == 1


async def test_a_live_log_under_a_busy_sweeper(world: World) -> None:
    """Whatever is readable stays readable while everything else goes."""
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
        await sweeper.sweep()
        world.clock.ms += HOUR
    for partition in partitions:
        bounds = await log.bounds(partition)
        found = await read_all(await world.broker(), partition, bounds.start)
        assert [offset for offset, _ in found] == list(range(bounds.start, 20))


async def moved_objects(world: World, count: int) -> tuple[Sweeper, list[str]]:
    """So many objects whose records have all left the chain."""
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


async def swept(world: World, sweeper: Sweeper) -> list[str]:
    """Now, or after its readers' time."""
    first = await sweeper.sweep()
    world.clock.ms += HOUR
    return [*first, *await sweeper.sweep()]


async def test_one_object_that_cannot_be_read_does_not_keep_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sweeper, names = await moved_objects(world, 4)
    with monkeypatch.context() as patch:
        unreadable(world, names[:1], patch)
        assert await swept(world, sweeper) == names[1:]
        assert sweeper.waits, "it is looked at again"
    assert caplog.text.count("wal.sweep_skips") == 1
    assert await swept(world, sweeper) == names[:1]


async def test_where_many_cannot_be_read_the_sweep_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeper, names = await moved_objects(world, 20)
    unreadable(world, names, monkeypatch)
    with pytest.raises(Unavailable, match="Input/output error"):
        await sweeper.sweep()
