"""Tests of reads of damaged records: delayed responses, a log line with topic and file, and a counter."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.harness.kafka.kafka_handlers import Serving
from tests.harness.log.brokers import HandClock, World, plain

from lakestream.aio.log_limiter import KEYS_MAX, REPEAT_MS
from lakestream.data.log.topic_counts import OTHER_TOPICS, TOPICS_MAX
from lakestream.data.table.history_types import HistoryFile, HistoryRead
from lakestream.errors import Corrupt, Unavailable
from lakestream.model import PartitionId
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.network.request_metrics import ReadErrorCounter

REASON = "tables/t/data/a.parquet is damaged; restore it from a backup"


class DamagedHistory:
    """A history whose files are all damaged."""

    async def read(self, partition: PartitionId, offset: int, bytes_max: int) -> HistoryRead:
        raise Corrupt(REASON)

    async def start(self, partition: PartitionId) -> int | None:
        return 0

    def cached_start(self, partition: PartitionId) -> int:
        return 0

    async def files(self, partition: PartitionId, offset: int) -> list[HistoryFile]:
        raise Corrupt(REASON)

    async def first_at(self, partition: PartitionId, offset: int, timestamp: int) -> tuple[int, int] | None:
        raise Corrupt(REASON)

    async def newest(self, partition: PartitionId, offset: int) -> tuple[int, int] | None:
        raise Corrupt(REASON)


@pytest_asyncio.fixture
async def serving() -> AsyncIterator[Serving]:
    world = World()
    serving = await Serving.open(world)
    object.__setattr__(serving.services, "log", await world.broker(history=DamagedHistory()))
    yield serving
    await serving.close()
    await world.close()


async def topic_with_history(serving: Serving, name: str) -> PartitionId:
    (partition,) = await serving.world.topic(name=name)
    for number in range(4):
        await serving.services.log.append(partition, plain(f"{number}"))
    await serving.world.move(serving.services.log, partition, 2)
    return partition


def fetch_request(*names: str, wait_ms: int) -> dict[str, object]:
    partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "log_start_offset": -1}]
    return {
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "topics": [{"topic": name, "partitions": partitions} for name in names],
    }


async def test_corrupt_message_is_returned_after_max_wait_when_records_are_damaged(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    """aiokafka retries any error immediately, thousands of times a second."""
    await topic_with_history(serving, "orders")
    begun_s = asyncio.get_running_loop().time()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            (topic,) = (await serving.request(1, 4, fetch_request("orders", wait_ms=100))).responses
            assert topic.partitions[0].error_code == Code.CORRUPT_MESSAGE
    assert asyncio.get_running_loop().time() - begun_s >= 0.2
    (line,) = [record.getMessage() for record in caplog.records if "kafka.read_failed" in record.getMessage()]
    assert "topic=orders partition=0 offset=0" in line
    assert REASON in line
    assert serving.services.read_errors.counts["orders"] >= 3


async def test_wait_ends_when_an_intact_partition_of_the_request_has_records(serving: Serving) -> None:
    await topic_with_history(serving, "orders")
    (good,) = await serving.world.topic(name="good")
    await serving.services.log.append(good, plain("x"))
    async with asyncio.timeout(5):
        bad, good_topic = (await serving.request(1, 4, fetch_request("orders", "good", wait_ms=60_000))).responses
    assert bad.partitions[0].error_code == Code.CORRUPT_MESSAGE
    assert good_topic.partitions[0].error_code == 0
    (later,) = await serving.world.topic(name="later")
    fetch = asyncio.create_task(serving.request(1, 4, fetch_request("orders", "later", wait_ms=60_000)))
    await asyncio.sleep(0.05)
    await serving.services.log.append(later, plain("y"))
    async with asyncio.timeout(5):
        assert (await fetch).responses[1].partitions[0].records


class UnavailableHistory(DamagedHistory):
    """A history whose store is unavailable."""

    async def read(self, partition: PartitionId, offset: int, bytes_max: int) -> HistoryRead:
        raise Unavailable("the bucket does not respond")


async def test_not_leader_is_returned_after_max_wait_when_the_store_is_unavailable(serving: Serving) -> None:
    object.__setattr__(serving.services, "log", await serving.world.broker(history=UnavailableHistory()))
    await topic_with_history(serving, "orders")
    begun_s = asyncio.get_running_loop().time()
    (topic,) = (await serving.request(1, 4, fetch_request("orders", wait_ms=100))).responses
    assert topic.partitions[0].error_code == Code.NOT_LEADER_OR_FOLLOWER
    assert asyncio.get_running_loop().time() - begun_s >= 0.09


async def test_list_offsets_returns_corrupt_message_when_the_history_is_damaged(serving: Serving) -> None:
    await topic_with_history(serving, "orders")
    request = {"replica_id": -1, "topics": [{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": 1}]}]}
    (topic,) = (await serving.request(2, 1, request)).topics
    assert topic.partitions[0].error_code == Code.CORRUPT_MESSAGE
    assert serving.services.read_errors.counts["orders"] == 1


def test_read_error_is_logged_once_a_minute_and_always_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    read_errors = ReadErrorCounter({"id": "orders"}.get, clock)
    for number in range(50):
        read_errors.note(PartitionId("id", number), 7, Corrupt(REASON))
    read_errors.note(PartitionId("id", 0), 7, Unavailable("no response"))
    assert (len(caplog.records), read_errors.counts["orders"]) == (1, 50)
    clock.ms += REPEAT_MS
    read_errors.note(PartitionId("id", 0), 7, Corrupt(REASON))
    assert len(caplog.records) == 2
    for number in range(10 * KEYS_MAX):
        read_errors.note(PartitionId("id", 0), 7, Corrupt(f"file {number} is missing"))
    assert len(caplog.records) <= KEYS_MAX + 1


def test_number_of_counted_topics_is_bounded() -> None:
    read_errors = ReadErrorCounter(lambda topic_id: topic_id, HandClock())
    for number in range(TOPICS_MAX + 10):
        read_errors.note(PartitionId(f"t{number}", 0), 7, Corrupt(REASON))
    assert (len(read_errors.counts), read_errors.counts[OTHER_TOPICS]) == (TOPICS_MAX + 1, 10)


class HistoryWithoutStart(DamagedHistory):
    async def start(self, partition: PartitionId) -> int | None:
        raise Corrupt(REASON)


async def test_unavailable_history_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    log = await world.broker(history=HistoryWithoutStart())
    partitions = await world.topic(2)
    for partition in partitions:
        for value in "abc":
            await log.append(partition, plain(value))
        await world.move(log, partition, 2)
    for wait_ms in (0, REPEAT_MS):
        world.clock.ms += wait_ms
        caplog.clear()
        for partition in partitions * 3:
            assert (await log.bounds(partition)).end == 3
        (record,) = caplog.records
        assert record.getMessage() == f"log.history_unavailable partition={partitions[0]} error={REASON}"
    await world.close()
