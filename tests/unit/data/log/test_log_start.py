"""Log start offsets, offset lookup by timestamp, and log sizes."""

import asyncio
from typing import Any, cast

import pytest
from tests.harness.log.brokers import NOW, ShakyMetadata, World, plain, read_all, records, sent
from tests.harness.log.unreadable_batches import UNREADABLE

from lakestream.data.log.log import Log
from lakestream.data.log.offset_lookup import TimestampOffset, timestamps
from lakestream.errors import Missing, OutOfRange
from lakestream.metadata import keys
from lakestream.metadata.memory import MemoryMetadataStore
from lakestream.metadata.store import Key, Record
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId
from lakestream.records.batch import RecordBatch, build
from lakestream.testing.batches import make_batch

ALL = 1 << 20


async def fill(log: Log, partition: PartitionId, count: int) -> None:
    for number in range(count):
        await log.append(partition, plain(str(number)))


def timed(*times: int) -> RecordBatch:
    """One record per timestamp, all of them within 60 ms."""
    encoded = []
    for delta, time in enumerate(times):
        body = bytes(
            (0, (time - times[0]) * 2 if time >= times[0] else (times[0] - time) * 2 - 1, delta * 2, 1, 2, 65, 0)
        )
        encoded.append(bytes((len(body) * 2,)) + body)
    return RecordBatch.parse(
        build(
            b"".join(encoded),
            len(times),
            attributes=0,
            base_timestamp=times[0],
            max_timestamp=max(times),
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
        )
    )


# ── the pointer ──────────────────────────────────────────────────────────────────────────────────────────────────────


class SlowReads(MemoryMetadataStore):
    """The response of one read arrives when its gate is opened."""

    gate: asyncio.Event | None = None

    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        gate, self.gate = self.gate, None
        found = await super().get(key, confirmed=confirmed)
        if gate is not None:
            await gate.wait()
        return found


async def test_slow_refresh_of_the_start_does_not_move_it_back(world: World) -> None:
    partition, metadata = await world.log(), SlowReads(world.server)
    log = await world.broker(metadata=metadata)
    await fill(log, partition, 5)
    gate = metadata.gate = asyncio.Event()
    look = asyncio.create_task(log.bounds(partition))
    await asyncio.sleep(0.01)
    assert await log.delete_before(partition, 3) == 3
    gate.set()
    assert (await look).start == 3
    with pytest.raises(OutOfRange):
        await log.read(partition, 0, ALL)


async def test_deleted_records_are_not_served(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await fill(log, partition, 5)
    assert await log.delete_before(partition, 3) == 3
    assert await log.bounds(partition) == (3, 5, 5)
    assert await read_all(log, partition, 3) == [(3, "3"), (4, "4")]
    with pytest.raises(OutOfRange, match=r"offset 2 is before the log start offset 3"):
        await log.read(partition, 2, ALL)


async def test_log_start_never_moves_back(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await fill(log, partition, 5)
    await log.delete_before(partition, 3)
    assert await log.delete_before(partition, 1) == 3
    assert await log.delete_before(partition, 5) == 5
    assert await log.bounds(partition) == (5, 5, 5)
    assert (await log.read(partition, 5, ALL)).batches == []
    assert (await log.append(partition, plain("more"))).offset_start == 5


async def test_delete_beyond_the_end_is_out_of_range(world: World) -> None:
    partition, log, other = await world.log(), await world.broker(), await world.broker()
    await other.bounds(partition)
    await fill(log, partition, 2)
    with pytest.raises(OutOfRange, match=r"offset 3 is beyond the log end offset 2"):
        await other.delete_before(partition, 3)
    assert await other.delete_before(partition, 2) == 2


async def test_bounds_of_another_broker_have_the_new_start(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    deaf = await world.broker(metadata=ShakyMetadata(world.server))
    await fill(log, partition, 5)
    assert await deaf.bounds(partition) == (0, 5, 5)
    await log.delete_before(partition, 3)
    assert await deaf.bounds(partition) == (3, 5, 5)
    with pytest.raises(OutOfRange):
        await deaf.read(partition, 2, ALL)


async def test_watch_moves_the_start_of_other_brokers(world: World) -> None:
    partition, log, other = await world.log(), await world.broker(), await world.broker()
    await fill(log, partition, 5)
    await read_all(other, partition)
    await log.delete_before(partition, 3)
    await other.wait(partition, 5, 20)
    with pytest.raises(OutOfRange):
        await other.read(partition, 2, ALL)


async def test_new_broker_reads_the_start(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await fill(log, partition, 5)
    await log.delete_before(partition, 3)
    with pytest.raises(OutOfRange):
        await (await world.broker()).read(partition, 0, ALL)


async def test_a_start_inside_a_batch_serves_the_whole_batch(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await log.append(partition, plain("a", "b", "c"))
    assert await log.delete_before(partition, 1) == 1
    assert records(await log.read(partition, 1, ALL)) == [(0, "a"), (1, "b"), (2, "c")]


async def test_trim_and_delete_before_are_independent(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await fill(log, partition, 6)
    await log.delete_before(partition, 2)
    await world.move(log, partition, 4)
    assert (await log.bounds(partition)).start == 4
    assert await log.delete_before(partition, 5) == 5
    assert await read_all(log, partition, 5) == [(5, "5")]


async def test_deleted_topic_has_no_start_record(world: World) -> None:
    topic = await world.topics.create("t", Topic("id", 1))
    (partition,) = topic.partitions()
    log = await world.broker()
    await fill(log, partition, 2)
    await log.delete_before(partition, 1)
    assert world.server.get(keys.start_key(partition).path) is not None
    await world.topics.delete("t")
    assert world.server.get(keys.start_key(partition).path) is None
    with pytest.raises(Missing):
        await log.delete_before(partition, 2)
    assert world.server.get(keys.start_key(partition).path) is None


# ── times ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_offset_lookup_begins_at_the_log_start(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await log.append(partition, timed(NOW + 9, NOW + 1, NOW + 5))
    await log.append(partition, timed(NOW + 2, NOW + 3))
    assert await log.first_at(partition, NOW) == TimestampOffset(NOW + 9, 0)
    assert await log.newest_time(partition) == TimestampOffset(NOW + 9, 0)
    await log.delete_before(partition, 1)
    assert await log.first_at(partition, NOW) == TimestampOffset(NOW + 1, 1)
    assert await log.first_at(partition, NOW + 2) == TimestampOffset(NOW + 5, 2)
    assert await log.first_at(partition, NOW + 6) is None
    assert await log.newest_time(partition) == TimestampOffset(NOW + 5, 2)
    await log.delete_before(partition, 3)
    assert await log.newest_time(partition) == TimestampOffset(NOW + 3, 4)
    await log.delete_before(partition, 5)
    assert await log.first_at(partition, NOW) is None
    assert await log.newest_time(partition) is None


@pytest.mark.parametrize("name", UNREADABLE)
async def test_unreadable_batch_has_the_max_timestamp_of_its_header(world: World, name: str) -> None:
    partition, log = await world.log(), await world.broker()
    batch = RecordBatch.parse(UNREADABLE[name][0]())
    await log.append(partition, batch)
    await log.append(partition, timed(NOW, NOW + 1))
    assert await log.first_at(partition, 0) == TimestampOffset(batch.max_timestamp, 0)
    assert await log.first_at(partition, NOW + 1) == TimestampOffset(NOW + 1, batch.record_count + 1)
    assert await log.newest_time(partition) == TimestampOffset(NOW + 1, batch.record_count + 1)


def test_record_of_negative_size_makes_the_batch_unreadable() -> None:
    """With that size the same bytes would be decoded again for each of a billion records."""
    data = build(
        b"\x05" + bytes(20),
        2**30,
        attributes=0,
        base_timestamp=1,
        max_timestamp=5,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )
    assert timestamps(RecordBatch.parse(data)) == [(0, 5)]


async def test_records_without_a_time_have_no_newest(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await log.append(partition, RecordBatch.parse(make_batch([b"a"], timestamp_ms=-1)))
    assert await log.newest_time(partition) is None


async def test_an_empty_log_has_no_newest_time(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    assert await log.newest_time(partition) is None
    assert await log.first_at(partition, 0) is None


# ── sizes and producers ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_size_counts_from_the_start_on(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    assert (await log.size(partition)).bytes == 0
    await fill(log, partition, 5)
    one = len(make_batch([b"0"]))
    assert (await log.size(partition)).bytes == 5 * one
    await log.delete_before(partition, 2)
    assert (await log.size(partition)).bytes == 3 * one
    await fill(log, partition, 2)
    assert (await log.size(partition)).bytes == 5 * one
    await world.move(log, partition, 4)
    assert (await log.size(partition)).bytes == 3 * one
    assert await (await world.broker()).size(partition) == (3 * one, 4)
    await log.delete_before(partition, 7)
    assert (await log.size(partition)).bytes == 0


class UnreadHistory:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the table was read: {name}")

    def cached_start(self, partition: PartitionId) -> int:
        return 0


async def test_size_is_returned_without_a_read_of_the_table(world: World) -> None:
    partition, log = await world.log(), await world.broker(history=cast(Any, UnreadHistory()))
    await fill(log, partition, 3)
    await world.move(log, partition, 2)
    assert await log.size(partition) == (len(make_batch([b"2"])), 2)


async def test_many_claims_are_walked_page_by_page(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await fill(log, partition, 300)
    other = await world.broker()
    assert (await other.size(partition)).bytes == sum(len(make_batch([str(number).encode()])) for number in range(300))
    seen, offset = 0, 0
    while claims := await other.claims(partition, offset):
        seen += len(claims)
        offset = claims[-1].claim.offset_end
    assert seen == 300


async def test_producers_returns_active_producers(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    await log.append(partition, sent(0, "a", "b", producer=7, epoch=2))
    await log.append(partition, plain("c"))
    producers = await (await world.broker()).producers(partition)
    assert list(producers) == [7]
    assert (producers[7].epoch, producers[7].sequence_last) == (2, 1)
