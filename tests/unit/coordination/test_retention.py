"""What the stream forgets: the pure decisions, and the task that applies them."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.unit.data.brokers import HOUR, NOW, World, read_all
from tests.unit.pipeline.driving import Driving

from lakestream.batch import RecordBatch
from lakestream.coordination.cluster import ClusterView
from lakestream.coordination.retention import Retention, past_too_much, past_too_old, too_much, too_old
from lakestream.data.log.log import Log
from lakestream.data.table.history import TableHistory
from lakestream.data.table.past import PastFile
from lakestream.metadata.brokers import Broker, Brokers, Registered
from lakestream.metadata.claims import BatchInfo, Claim, Dated, Medium
from lakestream.metadata.topics import Topic
from lakestream.model import MiB, PartitionId
from lakestream.testing.batches import make_batch


def claim(start: int, end: int, *, newest_ms: int = -1, appended_ms: int = 0, size: int = 10) -> Dated:
    batch = BatchInfo(0, size, end - start)
    return Dated(Claim(start, end, "c.0", "w", Medium.OBJECT, "o", 0, appended_ms, newest_ms, (batch,)), 0)


# ── decisions ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_claims_go_when_their_newest_record_is_too_old() -> None:
    claims = [claim(0, 5, newest_ms=10), claim(5, 7, newest_ms=20), claim(7, 9, newest_ms=30)]
    assert too_old(claims, 0, 10) == 0
    assert too_old(claims, 0, 11) == 5
    assert too_old(claims, 2, 25) == 7
    assert too_old(claims, 0, 99) == 9
    assert too_old([], 3, 99) == 3


def test_a_young_claim_keeps_those_behind_it() -> None:
    claims = [claim(0, 5, newest_ms=10), claim(5, 7, newest_ms=99), claim(7, 9, newest_ms=10)]
    assert too_old(claims, 0, 50) == 5


def test_records_without_a_time_count_from_their_append() -> None:
    assert too_old([claim(0, 5, appended_ms=60)], 0, 50) == 0
    assert too_old([claim(0, 5, appended_ms=40)], 0, 50) == 5


def test_at_least_what_is_to_stay_stays() -> None:
    claims = [claim(0, 5), claim(5, 7), claim(7, 9)]
    assert too_much(claims, 0, 9) == (0, 0)
    assert too_much(claims, 0, 10) == (5, 0)
    assert too_much(claims, 0, 29) == (7, 0)
    assert too_much(claims, 0, 35) == (9, 5)


def past(first: int, end: int, *, newest_ms: int = 0, size: int = 10) -> PastFile:
    return PastFile(first, end, size, newest_ms)


def test_files_of_the_table_go_when_their_newest_record_is_too_old() -> None:
    files = [past(0, 5, newest_ms=10), past(5, 7, newest_ms=20), past(9, 12, newest_ms=30)]
    assert past_too_old(files, 0, 10) == 0
    assert past_too_old(files, 0, 11) == 5
    assert past_too_old(files, 2, 25) == 9
    assert past_too_old(files, 0, 99) == 12
    assert past_too_old([], 3, 99) == 3


def test_files_that_overlap_keep_what_the_younger_one_has() -> None:
    """As they are when somebody has sorted the table by another column."""
    files = [past(0, 50, newest_ms=10), past(3, 40, newest_ms=99), past(7, 60, newest_ms=10)]
    assert past_too_old(files, 0, 50) == 3


def test_at_least_what_is_to_stay_stays_of_the_table_too() -> None:
    files = [past(0, 5), past(5, 7), past(9, 12)]
    assert past_too_much(files, 0, 9) == (0, 0)
    assert past_too_much(files, 0, 10) == (5, 0)
    assert past_too_much(files, 0, 29) == (9, 0)
    assert past_too_much(files, 0, 35) == (12, 5)


# ── the task ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Keeper:
    """A broker with its retention."""

    def __init__(self, world: World, log: Log, view: ClusterView, node_id: int, round_ms: int) -> None:
        self.world, self.log, self.view = world, log, view
        self.retention = Retention(log, view, lambda: node_id, world.clock, round_ms)

    @classmethod
    async def open(
        cls, world: World, node_id: int = 0, round_ms: int = 10, history: TableHistory | None = None
    ) -> "Keeper":
        metadata = world.server.client()
        new = Registered(Broker(node_id, "host", 1), None)
        await Brokers(metadata).register(new, await metadata.session(60_000))
        view = ClusterView(metadata)
        await view.start()
        return cls(world, await world.broker(history=history), view, node_id, round_ms)

    async def topic(self, **settings: str) -> PartitionId:
        name = self.world.ids.new()
        chosen = {key.replace("_", "."): value for key, value in settings.items()}
        topic = await self.world.topics.create(name, Topic(self.world.ids.new(), 1, chosen))
        self.view.learn(name, topic)
        return topic.partitions()[0]

    async def fill(self, partition: PartitionId, count: int, timestamp_ms: int = NOW) -> None:
        for number in range(count):
            batch = make_batch([str(number).encode()], timestamp_ms=timestamp_ms)
            await self.log.append(partition, RecordBatch.parse(batch))

    async def close(self) -> None:
        await self.retention.close()
        await self.view.close()


@pytest_asyncio.fixture
async def keeper() -> AsyncIterator[Keeper]:
    world = World()
    keeper = await Keeper.open(world)
    yield keeper
    await keeper.close()
    await world.close()


async def test_old_records_go(keeper: Keeper) -> None:
    partition = await keeper.topic(retention_ms=str(HOUR))
    await keeper.fill(partition, 3, NOW - 2 * HOUR)
    await keeper.fill(partition, 2, NOW)
    assert await keeper.retention.expire(partition) == 3
    assert [offset for offset, _ in await read_all(keeper.log, partition, 3)] == [3, 4]
    assert await keeper.retention.expire(partition) == 3
    keeper.world.clock.ms += 2 * HOUR
    assert await keeper.retention.expire(partition) == 5
    assert await keeper.log.bounds(partition) == (5, 5, 5)


async def test_too_many_bytes_go(keeper: Keeper) -> None:
    size = len(make_batch([b"0"]))
    partition = await keeper.topic(retention_bytes=str(2 * size + 1), retention_ms="-1")
    await keeper.fill(partition, 3)
    assert await keeper.retention.expire(partition) == 0
    await keeper.fill(partition, 3)
    assert await keeper.retention.expire(partition) == 3
    assert await keeper.log.size(partition) == 3 * size


async def test_many_claims_are_passed_over_page_by_page(keeper: Keeper) -> None:
    partition = await keeper.topic(retention_ms="1")
    await keeper.fill(partition, 300, NOW - HOUR)
    other = await Keeper.open(keeper.world, node_id=1)
    other.view.learn("t", keeper.view.topics[keeper.view.name_of(partition.topic_id) or ""])
    assert await other.retention.expire(partition) == 300
    await other.close()


@pytest.mark.parametrize(
    ("settings", "start"),
    [
        ({"retention_ms": "-1"}, 0),
        ({"retention_ms": "0"}, 3),
        ({"retention_ms": "0", "cleanup_policy": "compact"}, 0),
        ({"retention_bytes": "0", "cleanup_policy": "compact"}, 0),
        ({"retention_ms": "0", "cleanup_policy": "compact,delete"}, 3),
        ({"retention_ms": "-1", "retention_bytes": "0"}, 3),
        ({}, 0),
    ],
)
async def test_what_a_topic_wants(keeper: Keeper, settings: dict[str, str], start: int) -> None:
    partition = await keeper.topic(**settings)
    await keeper.fill(partition, 3, NOW - HOUR)
    assert await keeper.retention.expire(partition) == start


async def test_a_deleted_topic_is_passed_over(keeper: Keeper) -> None:
    gone, kept = await keeper.topic(retention_ms="0"), await keeper.topic(retention_ms="0")
    await keeper.fill(gone, 1, NOW - HOUR)
    await keeper.fill(kept, 1, NOW - HOUR)
    name = keeper.view.name_of(gone.topic_id)
    assert name is not None
    await keeper.world.topics.delete(name)
    keeper.retention.start()
    async with asyncio.timeout(5):
        while (await keeper.log.bounds(kept)).start == 0:  # noqa: ASYNC110 -- nothing tells when the pointer moves
            await asyncio.sleep(0.01)


async def test_each_partition_is_looked_after_by_one_broker(keeper: Keeper) -> None:
    other = await Keeper.open(keeper.world, node_id=1)
    await keeper.view.look_at_brokers()
    partitions = [PartitionId("topic", number) for number in range(50)]
    mine = {partition for partition in partitions if keeper.retention.is_mine(partition)}
    assert mine
    assert mine ^ {partition for partition in partitions if other.retention.is_mine(partition)} == set(partitions)
    await other.close()


async def test_what_has_left_the_chain_for_the_table_counts_too() -> None:
    """Files of the table, and then claims, by time and by size."""
    world = World()
    driving = await Driving.start(world)
    history = TableHistory(driving.catalog, world.objects, MiB)
    keeper = await Keeper.open(world, history=history)
    partition = await keeper.topic(retention_ms=str(HOUR))
    for number, age_ms in enumerate((3 * HOUR, 2 * HOUR, 0)):
        await keeper.fill(partition, 2, NOW - age_ms)
        if number < 2:
            driving.changed.look_again([partition])
            await driving.rounds.run()
    assert (await keeper.log.bounds(partition)).start == 0
    files = await keeper.log.past_files(partition, 0)
    assert [(file.offset_first, file.offset_end) for file in files] == [(0, 2), (2, 4)]
    keeper.world.clock.ms = NOW - HOUR - 1
    assert await keeper.retention.expire(partition) == 2
    keeper.world.clock.ms = NOW
    assert await keeper.retention.expire(partition) == 4
    assert await keeper.log.past_files(partition, 4) == []

    by_size = await keeper.topic(retention_ms="-1", retention_bytes="1")
    await keeper.fill(by_size, 2)
    driving.changed.look_again([by_size])
    await driving.rounds.run()
    await keeper.fill(by_size, 2)
    assert await keeper.retention.expire(by_size) == 3
    await history.close()
    await keeper.close()
    await world.close()
