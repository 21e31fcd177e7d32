"""Retention: the pure decisions, and the task that applies them."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.harness.log.brokers import HOUR, NOW, World, read_all
from tests.harness.pipeline.pipeline_driver import PipelineDriver

from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.coordination.retention import (
    Retention,
    skip_old_claims,
    skip_old_files,
    skip_surplus_claims,
    skip_surplus_files,
)
from lakestream.data.log.log import Log
from lakestream.data.table.history import TableHistory
from lakestream.data.table.history_types import HistoryFile
from lakestream.metadata.brokers import Broker, Brokers, RegisteredBroker
from lakestream.metadata.claims import BatchInfo, Claim, Medium, StoredClaim
from lakestream.metadata.topics import Topic
from lakestream.model import MiB, PartitionId
from lakestream.records.batch import RecordBatch
from lakestream.testing.batches import make_batch


def claim(start: int, end: int, *, newest_ms: int = -1, appended_ms: int = 0, size: int = 10) -> StoredClaim:
    batch = BatchInfo(0, size, end - start)
    return StoredClaim(Claim(start, end, "c.0", "w", Medium.OBJECT, "o", 0, appended_ms, newest_ms, (batch,)), 0)


# ── decisions ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_old_claims_are_skipped_by_their_newest_record() -> None:
    claims = [claim(0, 5, newest_ms=10), claim(5, 7, newest_ms=20), claim(7, 9, newest_ms=30)]
    assert skip_old_claims(claims, 0, 10) == 0
    assert skip_old_claims(claims, 0, 11) == 5
    assert skip_old_claims(claims, 2, 25) == 7
    assert skip_old_claims(claims, 0, 99) == 9
    assert skip_old_claims([], 3, 99) == 3


def test_claims_after_a_young_claim_stay() -> None:
    claims = [claim(0, 5, newest_ms=10), claim(5, 7, newest_ms=99), claim(7, 9, newest_ms=10)]
    assert skip_old_claims(claims, 0, 50) == 5


def test_records_without_a_timestamp_count_from_their_append() -> None:
    assert skip_old_claims([claim(0, 5, appended_ms=60)], 0, 50) == 0
    assert skip_old_claims([claim(0, 5, appended_ms=40)], 0, 50) == 5


def test_claims_within_the_size_limit_stay() -> None:
    claims = [claim(0, 5), claim(5, 7), claim(7, 9)]
    assert skip_surplus_claims(claims, 0, 9) == (0, 0)
    assert skip_surplus_claims(claims, 0, 10) == (5, 0)
    assert skip_surplus_claims(claims, 0, 29) == (7, 0)
    assert skip_surplus_claims(claims, 0, 35) == (9, 5)


def history_file(first: int, end: int, *, newest_ms: int = 0, size: int = 10) -> HistoryFile:
    return HistoryFile(first, end, size, newest_ms)


def test_old_files_are_skipped_by_their_newest_record() -> None:
    files = [history_file(0, 5, newest_ms=10), history_file(5, 7, newest_ms=20), history_file(9, 12, newest_ms=30)]
    assert skip_old_files(files, 0, 10) == 0
    assert skip_old_files(files, 0, 11) == 5
    assert skip_old_files(files, 2, 25) == 9
    assert skip_old_files(files, 0, 99) == 12
    assert skip_old_files([], 3, 99) == 3


def test_overlapping_files_stay_with_the_younger_one() -> None:
    """Files overlap after an engine has sorted the table by another column."""
    files = [history_file(0, 50, newest_ms=10), history_file(3, 40, newest_ms=99), history_file(7, 60, newest_ms=10)]
    assert skip_old_files(files, 0, 50) == 3


def test_files_within_the_size_limit_stay() -> None:
    files = [history_file(0, 5), history_file(5, 7), history_file(9, 12)]
    assert skip_surplus_files(files, 0, 9) == (0, 0)
    assert skip_surplus_files(files, 0, 10) == (5, 0)
    assert skip_surplus_files(files, 0, 29) == (9, 0)
    assert skip_surplus_files(files, 0, 35) == (12, 5)


# ── the task ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class RetentionBroker:
    """A broker that runs retention."""

    def __init__(self, world: World, log: Log, cache: MetadataCache, node_id: int, interval_ms: int) -> None:
        self.world, self.log, self.cache = world, log, cache
        self.retention = Retention(log, cache, lambda: node_id, world.clock, interval_ms)

    @classmethod
    async def open(
        cls, world: World, node_id: int = 0, interval_ms: int = 10, history: TableHistory | None = None
    ) -> "RetentionBroker":
        metadata = world.server.client()
        new = RegisteredBroker(Broker(node_id, "host", 1), None)
        await Brokers(metadata).register(new, await metadata.session(60_000))
        cache = MetadataCache(metadata)
        await cache.start()
        return cls(world, await world.broker(history=history), cache, node_id, interval_ms)

    async def topic(self, **settings: str) -> PartitionId:
        name = self.world.ids.new()
        config = {key.replace("_", "."): value for key, value in settings.items()}
        topic = await self.world.topics.create(name, Topic(self.world.ids.new(), 1, config))
        self.cache.remember_topic(name, topic)
        return topic.partitions()[0]

    async def fill(self, partition: PartitionId, count: int, timestamp_ms: int = NOW) -> None:
        for number in range(count):
            batch = make_batch([str(number).encode()], timestamp_ms=timestamp_ms)
            await self.log.append(partition, RecordBatch.parse(batch))

    async def close(self) -> None:
        await self.retention.close()
        await self.cache.close()


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[RetentionBroker]:
    world = World()
    broker = await RetentionBroker.open(world)
    yield broker
    await broker.close()
    await world.close()


async def test_start_moves_over_old_records(broker: RetentionBroker) -> None:
    partition = await broker.topic(retention_ms=str(HOUR))
    await broker.fill(partition, 3, NOW - 2 * HOUR)
    await broker.fill(partition, 2, NOW)
    assert await broker.retention.expire(partition) == 3
    assert [offset for offset, _ in await read_all(broker.log, partition, 3)] == [3, 4]
    assert await broker.retention.expire(partition) == 3
    broker.world.clock.ms += 2 * HOUR
    assert await broker.retention.expire(partition) == 5
    assert await broker.log.bounds(partition) == (5, 5, 5)


async def test_start_moves_over_surplus_bytes(broker: RetentionBroker) -> None:
    size = len(make_batch([b"0"]))
    partition = await broker.topic(retention_bytes=str(2 * size + 1), retention_ms="-1")
    await broker.fill(partition, 3)
    assert await broker.retention.expire(partition) == 0
    await broker.fill(partition, 3)
    assert await broker.retention.expire(partition) == 3
    assert (await broker.log.size(partition)).bytes == 3 * size


async def test_start_moves_over_many_pages_of_claims(broker: RetentionBroker) -> None:
    partition = await broker.topic(retention_ms="1")
    await broker.fill(partition, 300, NOW - HOUR)
    other = await RetentionBroker.open(broker.world, node_id=1)
    other.cache.remember_topic("t", broker.cache.topics[broker.cache.cached_name(partition.topic_id) or ""])
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
async def test_start_follows_the_topic_settings(broker: RetentionBroker, settings: dict[str, str], start: int) -> None:
    partition = await broker.topic(**settings)
    await broker.fill(partition, 3, NOW - HOUR)
    assert await broker.retention.expire(partition) == start


async def test_deleted_topic_is_skipped(broker: RetentionBroker) -> None:
    deleted, kept = await broker.topic(retention_ms="0"), await broker.topic(retention_ms="0")
    await broker.fill(deleted, 1, NOW - HOUR)
    await broker.fill(kept, 1, NOW - HOUR)
    name = broker.cache.cached_name(deleted.topic_id)
    assert name is not None
    await broker.world.topics.delete(name)
    broker.retention.start()
    async with asyncio.timeout(5):
        while (await broker.log.bounds(kept)).start == 0:  # noqa: ASYNC110 -- no event reports the move of the pointer
            await asyncio.sleep(0.01)


async def test_each_partition_is_handled_by_one_broker(broker: RetentionBroker) -> None:
    other = await RetentionBroker.open(broker.world, node_id=1)
    await broker.cache.refresh_brokers()
    partitions = [PartitionId("topic", number) for number in range(50)]
    own = {partition for partition in partitions if broker.retention.is_assigned(partition)}
    assert own
    assert own ^ {partition for partition in partitions if other.retention.is_assigned(partition)} == set(partitions)
    await other.close()


async def test_retention_counts_the_files_of_the_table() -> None:
    """The table's files count first, then the claims, by time and by size."""
    world = World()
    pipeline = await PipelineDriver.start(world)
    history = TableHistory(pipeline.catalog, world.objects, MiB)
    broker = await RetentionBroker.open(world, history=history)
    partition = await broker.topic(retention_ms=str(HOUR))
    for number, age_ms in enumerate((3 * HOUR, 2 * HOUR, 0)):
        await broker.fill(partition, 2, NOW - age_ms)
        if number < 2:
            pipeline.changed.requeue([partition])
            await pipeline.micro_batches.run()
    assert (await broker.log.bounds(partition)).start == 0
    files = await broker.log.history_files(partition, 0)
    assert [(file.offset_first, file.offset_end) for file in files] == [(0, 2), (2, 4)]
    broker.world.clock.ms = NOW - HOUR - 1
    assert await broker.retention.expire(partition) == 2
    broker.world.clock.ms = NOW
    assert await broker.retention.expire(partition) == 4
    assert await broker.log.history_files(partition, 4) == []

    by_size = await broker.topic(retention_ms="-1", retention_bytes="1")
    await broker.fill(by_size, 2)
    pipeline.changed.requeue([by_size])
    await pipeline.micro_batches.run()
    await broker.fill(by_size, 2)
    assert await broker.retention.expire(by_size) == 3
    await history.close()
    await broker.close()
    await world.close()
