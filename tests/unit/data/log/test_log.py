"""The public methods of Log, with stores in memory."""

import asyncio
import gc
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine

import pytest
from tests.harness.log.brokers import (
    HOUR,
    NOW,
    QUICK,
    HandClock,
    ShakyMetadata,
    Trouble,
    World,
    plain,
    read_all,
    records,
    sent,
)

from lakestream.config.settings import LogSettings, Profile, WalSettings
from lakestream.data.log import rules
from lakestream.data.log.log import Log
from lakestream.data.log.partition_state import Aborted
from lakestream.data.log.partition_view import OBJECTS_MAX
from lakestream.data.table.history_types import HistoryFile, HistoryRead
from lakestream.data.wal.buffer import Appended
from lakestream.errors import (
    Corrupt,
    Fenced,
    LakestreamError,
    Misconfigured,
    Missing,
    OutOfOrder,
    OutOfRange,
    Rejected,
    Unavailable,
    Uncertain,
)
from lakestream.metadata import keys
from lakestream.metadata.store import Changes, Key, put_one
from lakestream.metadata.topics import Topic
from lakestream.model import KiB, PartitionId
from lakestream.records.batch import RecordBatch, control_batch
from lakestream.records.file_region import as_bytes
from lakestream.testing.batches import make_batch

ALL = 1 << 20
PROFILES = pytest.mark.parametrize("profile", list(Profile))


async def fill(log: Log, partition: PartitionId, count: int, start: int = 0) -> None:
    """One record per batch, one batch per claim; the value is the offset."""
    for number in range(start, start + count):
        assert await log.append(partition, plain(str(number))) == Appended(number, number + 1)


def expected(start: int, end: int) -> list[tuple[int, str]]:
    return [(number, str(number)) for number in range(start, end)]


# ── append and read ──────────────────────────────────────────────────────────────────────────────────────────────────


@PROFILES
async def test_appended_records_are_read(world: World, profile: Profile) -> None:
    world.profile = profile
    partition, log = await world.log(), await world.broker()
    assert await log.append(partition, plain("a", "b")) == Appended(0, 2)
    assert await log.append(partition, plain("c")) == Appended(2, 3)
    found = await log.read(partition, 0, ALL)
    assert records(found) == [(0, "a"), (1, "b"), (2, "c")]
    assert found.offset_next == 3
    assert found.bounds == (0, 3, 3)


@PROFILES
async def test_another_broker_reads_records_from_storage(world: World, profile: Profile) -> None:
    world.profile = profile
    partition, log = await world.log(), await world.broker()
    await fill(log, partition, 5)
    assert await read_all(await world.broker(), partition) == expected(0, 5)


async def test_own_writes_are_served_from_memory(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await fill(log, partition, 5)
    assert await read_all(log, partition) == expected(0, 5)
    assert world.objects.reads == []


async def test_a_read_inside_a_batch_returns_the_whole_batch(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await log.append(partition, plain("a", "b", "c"))
    await log.append(partition, plain("d"))
    for offset in range(3):
        found = await log.read(partition, offset, ALL)
        assert records(found) == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    assert records(await log.read(partition, 3, ALL)) == [(3, "d")]


async def test_a_read_inside_a_claim_with_many_batches(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await asyncio.gather(*(log.append(partition, plain(str(number))) for number in range(10)))
    assert len((await world.claims.scan(partition, 0)).claims) == 1
    for reader in (log, await world.broker()):
        for offset in range(10):
            assert records(await reader.read(partition, offset, ALL)) == expected(offset, 10)


async def test_read_returns_at_least_one_batch_and_at_most_bytes_max(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await fill(log, partition, 5)
    size = plain("0").size
    for bytes_max, count in ((0, 1), (1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (5 * size, 5), (ALL, 5)):
        found = await log.read(partition, 0, bytes_max)
        assert records(found) == expected(0, count)
        assert found.offset_next == count


async def test_read_opens_a_bounded_number_of_objects(world: World) -> None:
    """A consumer that begins at a long tail of small objects gets the first records before all of them are read."""
    world.profile = Profile.COST
    partition, log = await world.log(), await world.broker()
    await fill(log, partition, OBJECTS_MAX + 5)
    reader = await world.broker()
    found = await reader.read(partition, 0, ALL)
    assert records(found) == expected(0, OBJECTS_MAX)
    assert found.offset_next == OBJECTS_MAX
    assert len(world.objects.reads) == OBJECTS_MAX
    assert await read_all(reader, partition) == expected(0, OBJECTS_MAX + 5)


async def test_read_is_empty_at_the_end_and_out_of_range_beyond_it(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    for end in range(3):
        found = await log.read(partition, end, ALL)
        assert (found.batches, found.offset_next, found.bounds) == ([], end, (0, end, end))
        with pytest.raises(
            OutOfRange, match=f"partition {partition}: offset {end + 1} is beyond the log end offset {end}"
        ):
            await log.read(partition, end + 1, ALL)
        await fill(log, partition, 1, end)
    with pytest.raises(OutOfRange, match="before the log start offset"):
        await log.read(partition, -1, ALL)


async def test_partitions_have_separate_offsets(world: World) -> None:
    partitions, log = await world.topic(20), await world.broker()
    answers = await asyncio.gather(*(log.append(partition, plain(str(partition.number))) for partition in partitions))
    assert set(answers) == {Appended(0, 1)}
    assert world.objects.puts == 1, "one object for all of them"
    for partition in partitions:
        assert await read_all(log, partition) == [(0, str(partition.number))]


async def test_batches_beyond_the_claim_limit_get_several_claims(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "CLAIM_BATCHES_MAX", 3)
    partition, log = await world.log(), await world.broker()
    answers = await asyncio.gather(*(log.append(partition, plain(str(number))) for number in range(10)))
    assert [answer.offset_start for answer in answers] == list(range(10))
    assert [len(dated.claim.batches) for dated in (await world.claims.scan(partition, 0)).claims] == [3, 3, 3, 1]
    assert await read_all(await world.broker(), partition) == expected(0, 10)


async def test_old_claims_are_paged_in(world: World) -> None:
    """Reads from any offset of far more claims than a view keeps."""
    settings = LogSettings(tail_claims_max=4, fold_every_claims=50, wal=WalSettings(flush_interval_ms=0))
    partition, log = await world.log(), await world.broker(settings=settings)
    await fill(log, partition, 300)
    for reader in (log, await world.broker(settings=settings)):
        for offset in (0, 1, 127, 128, 129, 255, 290, 299):
            assert records(await reader.read(partition, offset, 1)) == expected(offset, offset + 1)
        assert await read_all(reader, partition) == expected(0, 300)


async def test_loaded_view_keeps_few_claims_in_memory(world: World) -> None:
    """Five thousand partitions may be loaded: each may keep some claims, not all since the last saved state."""
    partition, log = await world.log(), await world.broker()
    await fill(log, partition, 200)
    other = await world.broker()
    await other.bounds(partition)
    view = other._views.cached(partition)
    assert view is not None
    assert len(view.tail) <= 2 * QUICK.tail_claims_max


# ── two brokers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def deaf(world: World) -> ShakyMetadata:
    """Returns a client that gets no events."""
    return ShakyMetadata(world.server)


async def test_a_broker_that_missed_events_does_not_read_what_was_deleted(world: World) -> None:
    partition, metadata = await world.log(), deaf(world)
    one, two = await world.broker(), await world.broker(metadata=metadata)
    await fill(one, partition, 3)
    assert len(await read_all(two, partition)) == 3
    await one.delete_before(partition, 2)
    metadata.watchers.notify_everything()  # events were missed
    await asyncio.sleep(0)
    with pytest.raises(OutOfRange, match="before the log start offset 2"):
        await two.read(partition, 1, 1000)


@PROFILES
async def test_brokers_read_one_anothers_writes_without_an_event(world: World, profile: Profile) -> None:
    world.profile = profile
    partition = await world.log()
    one, two = await world.broker(metadata=deaf(world)), await world.broker(metadata=deaf(world))
    for number in range(0, 20, 2):
        await fill(one, partition, 1, number)
        assert (await two.bounds(partition)).end == number + 1
        await fill(two, partition, 1, number + 1)
        assert records(await one.read(partition, number + 1, ALL)) == expected(number + 1, number + 2)
    assert await read_all(one, partition) == await read_all(two, partition) == expected(0, 20)


async def test_many_append_to_one_log_at_once(world: World) -> None:
    partition = await world.log()
    brokers = [await world.broker(metadata=deaf(world)) for _ in range(4)]

    async def producer(log: Log, name: str) -> list[tuple[int, str]]:
        done = []
        for number in range(25):
            answer = await log.append(partition, plain(f"{name}-{number}"))
            done.append((answer.offset_start, f"{name}-{number}"))
        return done

    told = await asyncio.gather(*(producer(log, f"{n}") for n, log in enumerate(brokers)))
    found = await read_all(await world.broker(), partition)
    assert found == sorted(record for part in told for record in part)
    assert [offset for offset, _ in found] == list(range(100))


async def test_wait_returns_after_an_append_of_any_broker(world: World) -> None:
    partition, one, two = await world.log(), await world.broker(), await world.broker()
    for number, writer in enumerate((one, two, one, two)):
        waiting = [asyncio.create_task(log.wait(partition, number, 5_000)) for log in (one, two, one)]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in waiting)
        await fill(writer, partition, 1, number)
        async with asyncio.timeout(1):
            assert await asyncio.gather(*waiting) == [True] * 3


async def test_wait_returns_false_after_the_timeout(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    assert not await log.wait(partition, 0, 20)
    await fill(log, partition, 1)
    assert await log.wait(partition, 0, 0)
    assert not await log.wait(partition, 1, 0)


async def test_wait_refreshes_the_end_before_it_returns(world: World) -> None:
    partition, one, two = await world.log(), await world.broker(metadata=deaf(world)), await world.broker()
    assert (await one.bounds(partition)).end == 0
    await fill(two, partition, 1)
    assert await one.wait(partition, 0, 0)


# ── idempotent producers ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_retry_gets_the_offset_of_the_first_attempt(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await log.append(partition, sent(0, "a", "b"))
    await log.append(partition, plain("x"))
    await log.append(partition, sent(2, "c"))
    assert await log.append(partition, sent(2, "c")) == Appended(3, 4, duplicate=True)
    assert await log.append(partition, sent(0, "a", "b")) == Appended(0, 2, duplicate=True)
    assert len(await read_all(log, partition)) == 4


async def test_a_retry_at_another_broker(world: World) -> None:
    partition = await world.log()
    one, two = await world.broker(metadata=deaf(world)), await world.broker(metadata=deaf(world))
    await two.bounds(partition)
    await one.append(partition, sent(0, "a"))
    assert await two.append(partition, sent(0, "a")) == Appended(0, 1, duplicate=True)
    assert await two.append(partition, sent(1, "b")) == Appended(1, 2)
    assert await one.append(partition, sent(1, "b")) == Appended(1, 2, duplicate=True)
    assert await read_all(one, partition) == [(0, "a"), (1, "b")]


async def test_a_retry_after_the_claims_are_gone(world: World) -> None:
    partition = await world.log()
    one, two = await world.broker(), await world.broker(metadata=deaf(world))
    await two.bounds(partition)
    for sequence in range(3):
        await one.append(partition, sent(sequence, "v"))
    await world.move(one, partition, 3)
    assert [dated.claim.offset_start for dated in (await world.claims.scan(partition, 0)).claims] == [2]
    for log in (two, await world.broker()):
        for sequence in range(3):
            expected = Appended(sequence, sequence + 1, duplicate=True)
            assert await log.append(partition, sent(sequence, "v")) == expected
        assert (await log.bounds(partition)).end == 3
    assert await two.append(partition, sent(3, "w")) == Appended(3, 4)


async def test_sequence_gap_is_rejected_by_a_broker_with_a_stale_view(world: World) -> None:
    partition = await world.log()
    one, two = await world.broker(metadata=deaf(world)), await world.broker(metadata=deaf(world))
    await two.bounds(partition)
    await one.append(partition, sent(0, "a"))
    with pytest.raises(OutOfOrder, match="sequence 2 does not follow 0"):
        await two.append(partition, sent(2, "c"))
    await one.append(partition, sent(1, "b"))
    assert await two.append(partition, sent(2, "c")) == Appended(2, 3), "its own view would have refused it"


async def test_an_old_epoch_is_fenced(world: World) -> None:
    partition = await world.log()
    one, two = await world.broker(metadata=deaf(world)), await world.broker(metadata=deaf(world))
    await one.append(partition, sent(0, "a", epoch=0))
    await two.append(partition, sent(0, "b", epoch=1))
    with pytest.raises(Fenced, match="epoch 0 is fenced"):
        await one.append(partition, sent(1, "c", epoch=0))
    assert await read_all(one, partition) == [(0, "a"), (1, "b")]


async def test_rejected_batch_does_not_delay_other_producers(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await log.append(partition, sent(0, "a"))
    answers = await asyncio.gather(
        log.append(partition, sent(9, "gap")),
        log.append(partition, sent(0, "other", producer=8)),
        log.append(partition, plain("x")),
        log.append(partition, sent(0, "a")),
        return_exceptions=True,
    )
    assert isinstance(answers[0], OutOfOrder)
    assert list(answers[1:]) == [Appended(1, 2), Appended(2, 3), Appended(0, 1, duplicate=True)]


async def test_pipelined_batches_of_a_producer_keep_their_order(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    answers = await asyncio.gather(*(log.append(partition, sent(number, str(number))) for number in range(50)))
    assert [answer.offset_start for answer in answers] == list(range(50))
    assert await read_all(log, partition) == expected(0, 50)


# ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────────


def transactional(sequence: int, value: str, producer: int = 7) -> RecordBatch:
    body = make_batch([value.encode()], producer_id=producer, epoch=0, sequence=sequence, transactional=True)
    return RecordBatch.parse(body)


def marker(*, commit: bool, producer: int = 7) -> RecordBatch:
    return RecordBatch.parse(control_batch(producer, 0, commit, NOW, 1))


async def test_the_last_stable_offset_and_aborted_ranges(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    other = await world.broker()
    await log.append(partition, plain("x"))
    await log.append(partition, transactional(0, "a"), 1)
    await log.append(partition, transactional(0, "b", producer=8), 5)
    assert await log.bounds(partition) == (0, 3, 1)
    assert await log.append(partition, marker(commit=False), 1) == Appended(3, 4)
    assert await log.bounds(partition) == (0, 4, 2)
    await log.append(partition, marker(commit=True, producer=8), 5)
    for broker in (log, other):
        assert await broker.bounds(partition) == (0, 5, 5)
        assert broker.aborted(partition, 0, 5) == [Aborted(7, 1, 3)]
        assert broker.aborted(partition, 4, 5) == []


async def test_a_late_batch_of_an_ended_transaction_is_rejected(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await log.append(partition, transactional(0, "a"), 1)
    await log.append(partition, marker(commit=True), 1)
    with pytest.raises(Rejected, match="transaction 1 has ended"):
        await log.append(partition, transactional(1, "b"), 1)
    assert (await log.bounds(partition)).stable == 2


async def test_invalid_control_batch_is_rejected_on_append(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    body = bytearray(control_batch(7, 0, True, NOW, 1))
    body[69] = 9  # the marker's type
    with pytest.raises(Rejected, match="unknown control batch type"):
        await log.append(partition, RecordBatch(bytes(body)), 1)
    await fill(log, partition, 1)


# ── trim ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_trim_takes_only_what_is_in_the_table(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await fill(log, partition, 10)
    assert await log.trim(partition, 10) == []
    await world.claims.advance_table_end(partition, 4)
    assert [claim.offset_start for claim in await log.trim(partition, 10)] == [0, 1, 2, 3]
    assert await log.bounds(partition) == (4, 10, 10)
    assert await log.trim(partition, 10) == []
    assert await read_all(log, partition, 4) == expected(4, 10)
    for reader in (log, await world.broker()):
        with pytest.raises(OutOfRange, match="before the log start offset 4"):
            await reader.read(partition, 3, ALL)


async def test_a_claim_that_is_not_wholly_moved_stays(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await log.append(partition, plain("a", "b", "c"))
    await log.append(partition, plain("d", "e", "f"))
    await world.move(log, partition, 5)
    assert await log.bounds(partition) == (3, 6, 6)
    await world.move(log, partition, 2)
    assert await log.bounds(partition) == (3, 6, 6)


async def test_a_whole_log_may_be_trimmed_and_written_on(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await fill(log, partition, 5)
    await world.move(log, partition, 5)
    for broker in (log, await world.broker()):
        assert await broker.bounds(partition) == (5, 5, 5)
        found = await broker.read(partition, 5, ALL)
        assert found.batches == []
    await fill(log, partition, 1, 5)
    assert await read_all(await world.broker(), partition, 5) == expected(5, 6)


async def test_paused_broker_appends_at_the_end_after_a_trim(world: World) -> None:
    partition = await world.log()
    sleeper, log = await world.broker(metadata=deaf(world)), await world.broker()
    await fill(sleeper, partition, 1)
    await fill(log, partition, 9, 1)
    await world.move(log, partition, 10)
    await world.claims.delete_below(partition, 10)  # also the last claim, which would refuse the create
    assert await sleeper.append(partition, plain("10")) == Appended(10, 11)
    assert await read_all(log, partition, 10) == expected(10, 11)


async def test_two_trims_at_once(world: World) -> None:
    partition = await world.log()
    brokers = [await world.broker(metadata=deaf(world)) for _ in range(3)]
    await fill(brokers[0], partition, 30)
    await world.claims.advance_table_end(partition, 25)
    dropped = await asyncio.gather(
        *(log.trim(partition, upto) for log, upto in zip(brokers, (10, 25, 20), strict=True))
    )
    assert {claim.offset_start for part in dropped for claim in part} == set(range(25))
    for log in brokers:
        assert await log.bounds(partition) == (25, 30, 30)


async def test_next_trim_finishes_an_interrupted_one(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await fill(log, partition, 10)
    await world.claims.advance_table_end(partition, 8)
    await log.trim(partition, 2)
    await world.claims.raise_floor(partition, 5)  # and crashed
    assert [claim.offset_start for claim in await log.trim(partition, 8)] == [5, 6, 7]
    assert [dated.claim.offset_start for dated in (await world.claims.scan(partition, 0)).claims] == [8, 9]


async def test_state_is_saved_every_n_claims(world: World) -> None:
    settings = LogSettings(fold_every_claims=10, wal=WalSettings(flush_interval_ms=0))
    partition = await world.log()
    one, two = await world.broker(settings=settings), await world.broker(settings=settings)
    for number in range(25):
        await fill((one, two)[number % 2], partition, 1, number)
    await asyncio.sleep(0.01)
    stored = await world.claims.load_state(partition)
    assert stored is not None
    await world.move(one, partition, 25)
    assert await read_all(await world.broker(), partition, 25) == []


# ── topics come and go ───────────────────────────────────────────────────────────────────────────────────────────────


async def every_call_says_missing(log: Log, partition: PartitionId) -> None:
    calls: list[Awaitable[object]] = [
        log.append(partition, plain("x")),
        log.read(partition, 0, ALL),
        log.bounds(partition),
        log.wait(partition, 0, 50),
        log.trim(partition, 5),
    ]
    for call in calls:
        with pytest.raises(Missing, match=f"{partition} (is gone|does not exist)"):
            await call


async def test_calls_raise_missing_for_an_unknown_partition(world: World) -> None:
    await every_call_says_missing(await world.broker(), PartitionId("nowhere", 0))
    assert (await world.claims.scan(PartitionId("nowhere", 0), 0)).claims == []


async def test_deleted_topic_is_missing_and_empty_when_created_again(world: World) -> None:
    (partition,) = await world.topic()
    heard, slept, new = await world.broker(), await world.broker(metadata=deaf(world)), await world.broker()
    await fill(heard, partition, 3)
    await fill(slept, partition, 3, 3)
    await world.topics.delete("t")
    for log in (heard, slept, new):
        await every_call_says_missing(log, partition)
    assert (await world.claims.scan(partition, 0)).claims == [], "no claim is left behind in a dead topic"
    (again,) = await world.topic()
    assert again != partition
    assert await heard.bounds(again) == (0, 0, 0)
    await fill(slept, again, 1)
    assert await read_all(heard, again) == expected(0, 1)


async def test_partition_is_missing_while_it_is_being_deleted(world: World) -> None:
    """Also when the deleting process crashed."""
    (partition,) = await world.topic()
    log, other = await world.broker(), await world.broker()
    await fill(log, partition, 3)
    await other.bounds(partition)
    await world.claims.raise_floor(partition, 2**63 - 1)
    async with asyncio.timeout(1):
        for broker in (log, other, await world.broker()):
            await every_call_says_missing(broker, partition)


async def test_wait_raises_missing_when_the_topic_is_deleted(world: World) -> None:
    (partition,) = await world.topic()
    log = await world.broker()
    await fill(log, partition, 1)
    waiting = asyncio.create_task(log.wait(partition, 1, 5_000))
    await asyncio.sleep(0.01)
    await world.topics.delete("t")
    with pytest.raises(Missing):
        await asyncio.wait_for(waiting, 1)


async def test_a_name_is_taken_once(world: World) -> None:
    first = await world.topics.create("t", Topic("one", 2))
    results = await asyncio.gather(
        *(world.topics.create("t", Topic(f"id{n}", 2)) for n in range(3)), return_exceptions=True
    )
    assert all(isinstance(result, Exception) for result in results)
    assert await world.topics.get("t") == first
    assert await world.claims.floor(PartitionId("id1", 0)) is None, "the logs of those that lost are gone again"


# ── profiles ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_producer_order_is_kept_when_the_profile_changes_under_load(world: World) -> None:
    partitions, log = await world.topic(3), await world.broker()

    async def producer(partition: PartitionId, producer_id: int) -> None:
        for start in range(0, 60, 5):
            await asyncio.gather(
                *(log.append(partition, sent(start + n, f"{start + n}", producer=producer_id)) for n in range(5))
            )

    async def switch() -> None:
        while True:
            await asyncio.sleep(0.004)
            world.profile = Profile.LATENCY if world.profile is Profile.COST else Profile.COST

    switching = asyncio.create_task(switch())
    await asyncio.gather(*(producer(partition, number) for partition in partitions for number in range(1, 4)))
    switching.cancel()
    await asyncio.wait([switching])
    media = set()
    for partition in partitions:
        found = await read_all(await world.broker(), partition)
        assert [offset for offset, _ in found] == list(range(180))
        media |= {dated.claim.medium for dated in (await world.claims.scan(partition, 0)).claims}
    assert len(media) == 2, "both profiles were used"


async def test_batches_after_a_profile_change_wait_for_earlier_ones(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    world.objects.gate.clear()
    before = asyncio.create_task(log.append(partition, plain("0")))
    await asyncio.sleep(0.01)
    world.profile = Profile.LATENCY
    after = [asyncio.create_task(log.append(partition, plain(str(n)))) for n in (1, 2)]
    await asyncio.sleep(0.01)
    world.profile = Profile.COST
    last = asyncio.create_task(log.append(partition, plain("3")))
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in (before, *after, last))
    world.objects.gate.set()
    await asyncio.gather(before, *after, last)
    assert await read_all(log, partition) == expected(0, 4)


async def test_latency_profile_without_a_wal_folder_is_misconfigured(world: World) -> None:
    partition, log = await world.log(), await world.broker(without_disk=True)
    world.profile = Profile.LATENCY
    with pytest.raises(Misconfigured, match="--wal-dir"):
        await log.append(partition, plain("x"))
    world.profile = Profile.COST
    await fill(log, partition, 1)


async def test_cancelled_append_during_a_profile_change_does_no_harm(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    partition, log = await world.log(), await world.broker()
    world.objects.gate.clear()
    before = asyncio.create_task(log.append(partition, plain("0")))
    await asyncio.sleep(0.01)
    world.profile = Profile.LATENCY
    world.disk.size_max = 0
    leaves = asyncio.create_task(log.append(partition, plain("1")))
    await asyncio.sleep(0.01)
    leaves.cancel()
    world.objects.gate.set()
    await before
    await asyncio.sleep(0.05)
    world.disk.size_max = None
    await fill(log, partition, 1, 1)
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []


# ── back-pressure ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_append_waits_while_the_bytes_in_flight_are_at_their_bound(world: World) -> None:
    wal = WalSettings(flush_interval_ms=1, flush_bytes_max=8 * KiB, buffer_bytes_max=32 * KiB)
    partition, log = await world.log(), await world.broker(settings=LogSettings(wal=wal))
    writer = log._writers[Profile.COST]
    world.objects.gate.clear()
    batches = [plain(str(number).rjust(2000)) for number in range(100)]
    waiting = [asyncio.create_task(log.append(partition, batch)) for batch in batches]
    held = []
    for _ in range(20):
        await asyncio.sleep(0.002)
        held.append(writer.bytes_in_flight)
    assert max(held) <= 32 * KiB
    assert min(held[5:]) > 24 * KiB
    assert not any(task.done() for task in waiting)
    world.objects.gate.set()
    answers = await asyncio.gather(*waiting)
    assert [answer.offset_start for answer in answers] == list(range(100)), "in the order in which they came"
    assert writer.bytes_in_flight == 0


async def test_batch_larger_than_the_buffer_is_appended_alone(world: World) -> None:
    wal = WalSettings(flush_interval_ms=1, flush_bytes_max=KiB, buffer_bytes_max=KiB)
    partition, log = await world.log(), await world.broker(settings=LogSettings(wal=wal))
    answers = await asyncio.gather(*(log.append(partition, plain("x" * 5000)) for _ in range(3)))
    assert [answer.offset_start for answer in answers] == [0, 1, 2]


# ── stores in trouble ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_failed_put_raises_unavailable_and_the_next_append_succeeds(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    world.objects.fails = Unavailable("the bucket does not answer")
    with pytest.raises(Unavailable, match="the bucket does not answer"):
        await log.append(partition, plain("x"))
    world.objects.fails = None
    await fill(log, partition, 3)
    assert await read_all(log, partition) == expected(0, 3)


@pytest.mark.parametrize(
    "error",
    [Uncertain("put got no answer"), Misconfigured("bucket lake is not writable"), Missing("there is no bucket lake")],
    ids=lambda error: type(error).__name__,
)
async def test_any_storage_error_raises_unavailable_without_an_append(world: World, error: LakestreamError) -> None:
    """Without a claim nothing was appended, and neither the batch nor its partition is invalid."""
    partition, log = await world.log(), await world.broker()
    world.objects.failures.append(error)
    with pytest.raises(Unavailable, match=str(error)) as failed:
        await log.append(partition, plain("x"))
    assert not isinstance(failed.value, Uncertain)
    assert (await log.bounds(partition)).end == 0


async def test_a_full_disk_is_unavailable_and_works_again_with_space(world: World) -> None:
    world.profile = Profile.LATENCY
    partition, log = await world.log(), await world.broker()
    await fill(log, partition, 2)
    world.disk.size_max = world.disk.size + 10
    for _ in range(3):
        with pytest.raises(Unavailable, match="the disk is full"):
            await log.append(partition, plain("x"))
    world.disk.size_max = None
    await fill(log, partition, 2, 2)
    assert await read_all(await world.broker(), partition) == expected(0, 4)


async def test_queued_batches_of_a_producer_fail_after_a_failed_one(world: World) -> None:
    wal = WalSettings(flush_interval_ms=1, flush_bytes_max=1)  # every batch a frame
    partition, log = await world.log(), await world.broker(settings=LogSettings(wal=wal))
    world.objects.failures.append(Unavailable("the bucket does not answer"))
    world.objects.gate.clear()
    mine = [asyncio.create_task(log.append(partition, sent(number, "mine"))) for number in range(3)]
    others = [asyncio.create_task(log.append(partition, sent(number, "other", producer=8))) for number in range(3)]
    await asyncio.sleep(0.01)
    world.objects.gate.set()
    for failed in await asyncio.gather(*mine, return_exceptions=True):
        assert isinstance(failed, Unavailable)
    assert [answer.offset_start for answer in await asyncio.gather(*others)] == [0, 1, 2]
    again = await asyncio.gather(*(log.append(partition, sent(number, "mine")) for number in range(3)))
    assert [answer.offset_start for answer in again] == [3, 4, 5]


async def test_a_producer_that_fails_twice_still_does_not_overtake_itself(world: World) -> None:
    """Its second failure is a new one: the producer received the first."""
    wal = WalSettings(flush_interval_ms=1, flush_bytes_max=1)
    partition, log = await world.log(), await world.broker(settings=LogSettings(wal=wal))
    for _ in range(2):
        world.objects.failures.append(Unavailable("the bucket does not answer"))
        tries = await asyncio.gather(
            *(log.append(partition, sent(number, "v")) for number in range(3)), return_exceptions=True
        )
        assert [type(failed) for failed in tries] == [Unavailable] * 3
    again = await asyncio.gather(*(log.append(partition, sent(number, "v")) for number in range(3)))
    assert [answer.offset_start for answer in again] == [0, 1, 2]


async def test_later_batches_fail_when_a_cancelled_one_failed(world: World) -> None:
    wal = WalSettings(flush_interval_ms=1, flush_bytes_max=1)
    partition, log = await world.log(), await world.broker(settings=LogSettings(wal=wal))
    world.objects.failures.append(Unavailable("the bucket does not answer"))
    world.objects.gate.clear()
    first = asyncio.create_task(log.append(partition, sent(0, "v")))
    second = asyncio.create_task(log.append(partition, sent(1, "v")))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0)
    world.objects.gate.set()
    with pytest.raises(Unavailable):
        await second
    assert await log.append(partition, sent(0, "v")) == Appended(0, 1)


@pytest.mark.parametrize("trouble", [Trouble.REFUSED, Trouble.LOST_THERE, Trouble.LOST_BACK])
@pytest.mark.parametrize("times", [1, 3])
async def test_lost_responses_of_creates_cause_no_duplicate(world: World, trouble: Trouble, times: int) -> None:
    partitions, metadata = await world.topic(3), ShakyMetadata(world.server)
    log = await world.broker(metadata=metadata)
    for partition in partitions:
        await fill(log, partition, 1)
    metadata.troubles.extend([trouble] * times)
    answers = await asyncio.gather(*(log.append(partition, plain("1")) for partition in partitions))
    assert answers == [Appended(1, 2)] * 3
    for partition in partitions:
        assert await read_all(await world.broker(), partition) == expected(0, 2)


async def test_claim_is_retried_behind_another_after_a_lost_request(world: World) -> None:
    """The create did not arrive, and another broker claimed the offset: the batch is appended behind it."""
    partition, metadata = await world.log(), ShakyMetadata(world.server)
    log, other = await world.broker(metadata=metadata), await world.broker()
    await fill(log, partition, 1)
    await fill(other, partition, 1, 1)
    metadata.troubles.append(Trouble.LOST_THERE)
    assert await log.append(partition, plain("2")) == Appended(2, 3)
    assert await read_all(other, partition) == expected(0, 3)


@pytest.mark.parametrize("idempotent", [True, False])
async def test_lost_response_before_a_trim_causes_no_duplicate(world: World, idempotent: bool) -> None:
    """The claim took effect, its response was lost, and it was moved and trimmed before it was read: only the producer
    in the state shows it. Without a producer id the outcome is uncertain."""
    partition, metadata = await world.log(), ShakyMetadata(world.server)
    log, other = await world.broker(metadata=metadata), await world.broker()
    await fill(log, partition, 1)

    async def trimmed() -> None:
        metadata.after_create = None
        await fill(other, partition, 1, 2)
        await world.move(other, partition, 3)

    metadata.after_create = trimmed
    metadata.troubles.append(Trouble.LOST_BACK)
    if idempotent:
        assert await log.append(partition, sent(0, "1")) == Appended(1, 2, duplicate=True)
    else:
        with pytest.raises(Uncertain):
            await log.append(partition, plain("1"))
    assert (await log.bounds(partition)).end == 3
    world.profile = Profile.LATENCY
    async with asyncio.timeout(1):
        await fill(log, partition, 1, 3)  # completed futures delay no other batch


async def test_claim_below_the_floor_is_void_and_created_again(world: World) -> None:
    """A create that succeeds where the chain was trimmed assigns no offsets."""
    partition = await world.log()
    sleeper, log = await world.broker(metadata=deaf(world)), await world.broker()
    await fill(sleeper, partition, 1)
    await fill(log, partition, 4, 1)
    await world.move(log, partition, 5)
    await world.claims.delete_below(partition, 5)
    puts = world.objects.puts
    assert await sleeper.append(partition, plain("5")) == Appended(5, 6)
    assert world.objects.puts == puts + 2, "its bytes were stored again: an extent is never claimed twice"
    assert [dated.claim.offset_start for dated in (await world.claims.scan(partition, 0)).claims] == [1, 5]
    for reader in (log, sleeper, await world.broker()):
        assert await read_all(reader, partition, 5) == expected(5, 6)


async def test_stale_claim_is_void_and_its_records_are_appended_again(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await fill(log, partition, 1)
    world.objects.gate.clear()
    slow = asyncio.create_task(log.append(partition, plain("late")))
    await asyncio.sleep(0.1)
    world.clock.ms += rules.STALE_AFTER_MS + 1
    world.objects.gate.set()
    assert await slow == Appended(2, 3)
    await log.append(partition, plain("next"))
    for reader in (log, await world.broker()):
        assert await read_all(reader, partition) == [(0, "0"), (2, "late"), (3, "next")]
        assert records(await reader.read(partition, 1, ALL)) == [(2, "late"), (3, "next")]


async def test_read_at_a_gap_at_the_end_returns_the_next_offset(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    world.objects.gate.clear()
    slow = asyncio.create_task(log.append(partition, plain("late")))
    await asyncio.sleep(0.1)
    world.clock.ms += rules.STALE_AFTER_MS + 1
    world.objects.fails = Unavailable("no")
    world.objects.gate.set()
    with pytest.raises(Unavailable):
        await slow
    found = await (await world.broker()).read(partition, 0, ALL)
    assert (found.batches, found.offset_next) == ([], found.bounds.end)


async def test_create_without_response_is_resolved_before_the_deadline(world: World) -> None:
    partition, metadata = await world.log(), ShakyMetadata(world.server)
    settings = LogSettings(append_timeout_ms=1_000, retry_interval_ms=5, wal=WalSettings(flush_interval_ms=1))
    log = await world.broker(metadata=metadata, settings=settings)
    await fill(log, partition, 1)
    metadata.always = Trouble.SILENT
    async with asyncio.timeout(20):
        assert (await log.append(partition, plain("1"))).offset_start == 1
    assert await read_all(log, partition) == expected(0, 2)


async def test_error_names_the_store_error_when_the_last_retry_hangs(world: World) -> None:
    partition, metadata = await world.log(), ShakyMetadata(world.server)
    settings = LogSettings(append_timeout_ms=300, retry_interval_ms=5, wal=WalSettings(flush_interval_ms=1))
    log = await world.broker(metadata=metadata, settings=settings)
    await fill(log, partition, 1)
    metadata.always, metadata.scans_until = Trouble.REFUSED, metadata.creates + 2
    with pytest.raises(Unavailable, match="the store cannot answer now"):
        await log.append(partition, plain("1"))


async def test_append_raises_uncertain_when_the_outcome_stays_unknown(world: World) -> None:
    partition, metadata = await world.log(), ShakyMetadata(world.server)
    settings = LogSettings(append_timeout_ms=100, retry_interval_ms=5, wal=WalSettings(flush_interval_ms=1))
    log = await world.broker(metadata=metadata, settings=settings)
    metadata.always = Trouble.LOST_THERE
    async with asyncio.timeout(20):
        with pytest.raises(Uncertain, match="may or may not be stored"):
            await log.append(partition, sent(0, "0"))
    metadata.always = Trouble.NONE
    answer = await log.append(partition, sent(0, "0"))
    assert answer.offset_start == 0
    assert await read_all(log, partition) == expected(0, 1)


@pytest.mark.parametrize("idempotent", [True, False])
async def test_deadline_counts_from_stored_bytes_for_queued_extents(world: World, idempotent: bool) -> None:
    """The deadline counts from stored bytes to the response, however many extents are queued before."""
    partition, metadata = await world.log(), ShakyMetadata(world.server)
    settings = LogSettings(append_timeout_ms=1_000, retry_interval_ms=5, wal=WalSettings(flush_interval_ms=1))
    log = await world.broker(metadata=metadata, settings=settings)
    await fill(log, partition, 1)
    metadata.always = Trouble.LOST_THERE
    waiting = []
    for number in range(10):
        batch = sent(number, "x") if idempotent else plain("x")
        waiting.append(asyncio.create_task(log.append(partition, batch)))
        await asyncio.sleep(0.01)  # each in a frame of its own
    async with asyncio.timeout(5):
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(answer, Unavailable) for answer in answers)
    metadata.always = Trouble.NONE
    answer = await log.append(partition, plain("1"))
    assert answer.offset_start >= 1


async def test_a_log_that_cannot_be_opened_is_unavailable_not_uncertain(world: World) -> None:
    partition = await world.log()
    settings = LogSettings(append_timeout_ms=100, retry_interval_ms=5, wal=WalSettings(flush_interval_ms=1))
    log = await world.broker(settings=settings, metadata=(metadata := world.server.client()))
    await metadata.close()
    with pytest.raises(Unavailable, match="the batch is not stored") as failed:
        await log.append(partition, plain("0"))
    assert not isinstance(failed.value, Uncertain)


@pytest.mark.parametrize("key", [keys.fold_key, keys.floor_key])
async def test_a_damaged_metadata_record_is_corrupt_and_named(world: World, key: Callable[[PartitionId], Key]) -> None:
    partition, log = await world.log(), await world.broker()
    await fill(log, partition, 3)
    await world.move(log, partition, 1)
    await put_one(world.metadata, key(partition), b"\xffgarbage")
    other = await world.broker()
    calls: list[Coroutine[None, None, object]] = [
        other.read(partition, 1, ALL),
        other.append(partition, plain("x")),
        other.bounds(partition),
    ]
    for failed in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(failed, Corrupt)
        assert partition.topic_id in str(failed)


async def test_a_damaged_claim_is_corrupt_and_named(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await fill(log, partition, 3)
    await put_one(world.metadata, keys.claim_key(partition, 1), b"\xffgarbage")
    with pytest.raises(Corrupt, match=f"{partition}/0*1 is not a claim"):
        await (await world.broker()).read(partition, 0, ALL)


# ── clocks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("skew_ms", "way"), [(61_000, "61 s ahead of"), (-61_000, "61 s behind")])
async def test_start_fails_with_a_wrong_clock(world: World, skew_ms: int, way: str) -> None:
    with pytest.raises(Unavailable, match=f"clock is {way} the metadata store's; set it") as failed:
        await world.broker(clock=HandClock(NOW + skew_ms))
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize("skew_ms", [60_000, -60_000])
async def test_start_succeeds_with_a_clock_one_minute_off(world: World, skew_ms: int) -> None:
    partition, log = await world.log(), await world.broker(clock=HandClock(NOW + skew_ms))
    await fill(log, partition, 2)


async def test_a_clock_that_goes_wrong_stops_appends_until_it_is_right(world: World) -> None:
    clock = HandClock()
    partition, log = await world.log(), await world.broker(clock=clock)
    clock.ms += HOUR
    await log.append(partition, plain("0"))  # the first answer shows it
    for _ in range(2):
        with pytest.raises(Unavailable, match="3600 s ahead"):
            await log.append(partition, plain("x"))
    assert await read_all(log, partition) == expected(0, 1), "reads go on"
    clock.ms += 5_000
    world.clock.ms = clock.ms
    with pytest.raises(Unavailable, match="3600 s ahead"):
        await log.append(partition, plain("x"))  # it does not wait, but starts a new measurement
    await asyncio.sleep(0.01)
    await fill(log, partition, 1, 1)


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_missing_object_is_corrupt_and_named(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await fill(log, partition, 3)
    (_, second, _) = await world.names()
    await world.objects.delete([second])
    other = await world.broker()
    assert records(await other.read(partition, 0, ALL)) == expected(0, 1), "what lies before it is served"
    with pytest.raises(Corrupt, match=f"partition {partition}: {second}.* from offset 1 on, is missing"):
        await other.read(partition, 1, ALL)
    assert records(await other.read(partition, 2, ALL)) == expected(2, 3)
    assert await read_all(log, partition) == expected(0, 3), "who has it in memory still serves it"


# ── the end of a broker ──────────────────────────────────────────────────────────────────────────────────────────────


@PROFILES
async def test_close_completes_submitted_batches_and_rejects_new_ones(world: World, profile: Profile) -> None:
    world.profile = profile
    wal = WalSettings(flush_interval_ms=60_000, buffer_bytes_max=8 * KiB, flush_bytes_max=2 * KiB)
    partition, log = await world.log(), await world.broker(settings=LogSettings(wal=wal))
    taken = [asyncio.create_task(log.append(partition, plain(str(n).rjust(500)))) for n in range(50)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(log.close())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="this broker is stopping"):
        await log.append(partition, plain("more"))
    answers = await asyncio.gather(*taken)
    assert [answer.offset_start for answer in answers] == list(range(50))
    await closing
    assert len(await read_all(await world.broker(), partition)) == 50


async def test_close_twice_and_before_anything_happened(world: World) -> None:
    log = await world.broker()
    await log.close()
    await log.close()


async def test_close_returns_before_the_deadline_while_the_store_is_down(world: World) -> None:
    partition, metadata = await world.log(), ShakyMetadata(world.server)
    settings = LogSettings(append_timeout_ms=200, retry_interval_ms=5, wal=WalSettings(flush_interval_ms=1))
    log = await world.broker(metadata=metadata, settings=settings)
    metadata.always = Trouble.LOST_THERE
    pending = asyncio.create_task(log.append(partition, plain("0")))
    await asyncio.sleep(0.01)
    await asyncio.wait_for(log.close(), 2)
    with pytest.raises(Uncertain):
        await pending


@PROFILES
async def test_kill_leaves_nothing_behind(world: World, profile: Profile, caplog: pytest.LogCaptureFixture) -> None:
    world.profile = profile
    metadata = ShakyMetadata(world.server)
    partition, log = await world.log(), await world.broker(metadata=metadata)
    await fill(log, partition, 2)
    metadata.always = Trouble.SILENT
    doomed: list[asyncio.Task[object]] = [asyncio.create_task(log.wait(partition, 99, 60_000))]
    doomed += [asyncio.create_task(log.append(partition, plain("x"))) for _ in range(5)]
    await asyncio.sleep(0.01)
    log.kill()
    await asyncio.sleep(0.01)
    for task in doomed:
        task.cancel()
    await asyncio.wait(doomed)
    del doomed, log
    world.brokers.clear()
    gc.collect()
    await asyncio.sleep(0)
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []
    found = await read_all(await world.broker(), partition)
    assert found[:2] == expected(0, 2)


# ── history ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Table:
    """A fake table with all records below some offset."""

    async def start(self, partition: PartitionId) -> int | None:
        return 1

    def cached_start(self, partition: PartitionId) -> int:
        return 0

    async def read(self, partition: PartitionId, offset: int, bytes_max: int) -> HistoryRead:
        return HistoryRead([(offset, [plain("from the table").data])], offset + 1)

    async def files(self, partition: PartitionId, offset: int) -> list[HistoryFile]:
        return []

    async def first_at(self, partition: PartitionId, offset: int, timestamp: int) -> tuple[int, int] | None:
        return None

    async def newest(self, partition: PartitionId, offset: int) -> tuple[int, int] | None:
        return None


async def test_trimmed_records_are_read_from_the_table(world: World) -> None:
    partition, log = await world.log(), await world.broker(history=Table())
    await fill(log, partition, 5)
    await world.move(log, partition, 3)
    assert (await log.read(partition, 2, ALL)).offset_next == 3
    assert b"from the table" in as_bytes((await log.read(partition, 2, ALL)).batches[0][1])
    assert records(await log.read(partition, 3, ALL)) == expected(3, 5)
    assert await log.bounds(partition) == (1, 5, 5)


@pytest.mark.parametrize("history", [None, Table()])
async def test_read_continues_in_the_table_when_its_object_was_deleted(world: World, history: Table | None) -> None:
    """The view still has the claim and the object was deleted: the records were moved, and nothing is damaged."""
    partition, log = await world.log(), await world.broker()
    sleeper = await world.broker(metadata=deaf(world), history=history)
    await fill(log, partition, 3)
    await sleeper.bounds(partition)
    sweeper = world.sweeper()
    await world.move(log, partition, 2, sweeper)
    assert len(await sweeper.collect()) == 2
    if history is None:
        with pytest.raises(OutOfRange, match="before the log start offset 2"):
            await sleeper.read(partition, 0, ALL)
    else:
        assert (await sleeper.read(partition, 0, ALL)).offset_next == 1
    assert records(await sleeper.read(partition, 2, ALL)) == expected(2, 3)


# ── what else may happen ─────────────────────────────────────────────────────────────────────────────────────────────


class BrokenFeed(ShakyMetadata):
    """A client whose watch fails at every third event."""

    broken = 0

    async def watch(self, prefix: str) -> AsyncGenerator[Changes, None]:
        changes = super().watch(prefix)
        try:
            for _ in range(3):
                yield await anext(changes)
        finally:
            await changes.aclose()
        self.broken += 1
        raise Unavailable("the change feed broke")


async def test_watch_is_started_again_after_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestream.data.log.fetch_wait.WATCH_RETRY_MS", 1)
    metadata = BrokenFeed(world.server)
    world.server._clients[metadata] = None  # so that it gets events
    partition, log, other = await world.log(), await world.broker(metadata=metadata), await world.broker()
    for number in range(12):
        waiting = asyncio.create_task(log.wait(partition, number, 5_000))
        await asyncio.sleep(0.005)
        await fill(other, partition, 1, number)
        async with asyncio.timeout(1):
            assert await waiting
    assert metadata.broken >= 3


async def test_cancelled_append_does_not_affect_other_producers(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    world.objects.gate.clear()
    tasks = [asyncio.create_task(log.append(partition, sent(number, str(number)))) for number in range(5)]
    await asyncio.sleep(0.01)
    tasks[1].cancel()
    tasks[4].cancel()
    world.objects.gate.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [answer.offset_start for answer in answers if isinstance(answer, Appended)] == [0, 2, 3]
    assert await log.append(partition, sent(1, "1")) == Appended(1, 2, duplicate=True), "it was appended all the same"
    assert await read_all(log, partition) == expected(0, 5)


async def test_retry_during_the_first_attempt_is_a_duplicate(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    world.objects.gate.clear()
    first = asyncio.create_task(log.append(partition, sent(0, "a")))
    await asyncio.sleep(0.01)
    again = asyncio.create_task(log.append(partition, sent(0, "a")))
    together = asyncio.create_task(log.append(partition, sent(1, "b")))
    also = asyncio.create_task(log.append(partition, sent(1, "b")))
    await asyncio.sleep(0.01)
    world.objects.gate.set()
    assert list(await asyncio.gather(first, again, together, also)) == [
        Appended(0, 1),
        Appended(0, 1, duplicate=True),
        Appended(1, 2),
        Appended(1, 2, duplicate=True),
    ]
    assert len(await read_all(log, partition)) == 2
