"""Damaged records: clients hear of them at a bearable pace, the log says which and where, and somebody counts."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.unit.data.brokers import HandClock, World, plain
from tests.unit.protocol.kafka.serving import Serving

from lakestream.data.table.past import Past, PastFile
from lakestream.errors import Corrupt, Unavailable
from lakestream.model import PartitionId
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.unreadable import OTHERS, TOPICS_MAX, Unreadable
from lakestream.seldom import REASONS_MAX, SAID_AGAIN_MS

REASON = "tables/t/data/a.parquet is damaged; restore it from a backup"


class Damaged:
    """A history that nobody can read."""

    async def read(self, partition: PartitionId, offset: int, bytes_max: int) -> Past:
        raise Corrupt(REASON)

    async def start(self, partition: PartitionId) -> int | None:
        return 0

    def start_known(self, partition: PartitionId) -> int:
        return 0

    async def files(self, partition: PartitionId, offset: int) -> list[PastFile]:
        raise Corrupt(REASON)

    async def first_at(self, partition: PartitionId, offset: int, timestamp: int) -> tuple[int, int] | None:
        raise Corrupt(REASON)

    async def newest(self, partition: PartitionId, offset: int) -> tuple[int, int] | None:
        raise Corrupt(REASON)


@pytest_asyncio.fixture
async def serving() -> AsyncIterator[Serving]:
    world = World()
    serving = await Serving.open(world)
    object.__setattr__(serving.services, "log", await world.broker(history=Damaged()))
    yield serving
    await serving.close()
    await world.close()


async def topic_with_history(serving: Serving, name: str) -> PartitionId:
    (partition,) = await serving.world.topic(name=name)
    for number in range(4):
        await serving.services.log.append(partition, plain(f"{number}"))
    await serving.world.move(serving.services.log, partition, 2)
    return partition


def fetching(*names: str, wait_ms: int) -> dict[str, object]:
    partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "log_start_offset": -1}]
    return {
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "topics": [{"topic": name, "partitions": partitions} for name in names],
    }


async def test_a_consumer_is_told_when_its_time_to_wait_is_over(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    """aiokafka asks again at once whatever it is told, thousands of times a second."""
    await topic_with_history(serving, "orders")
    begun_s = asyncio.get_running_loop().time()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            (topic,) = (await serving.ask(1, 4, fetching("orders", wait_ms=100))).responses
            assert topic.partitions[0].error_code == Code.CORRUPT_MESSAGE
    assert asyncio.get_running_loop().time() - begun_s >= 0.2
    (line,) = [record.getMessage() for record in caplog.records if "kafka.unreadable" in record.getMessage()]
    assert "topic=orders partition=0 offset=0" in line
    assert REASON in line
    assert serving.services.unreadable.counts["orders"] >= 3


async def test_others_in_the_same_request_do_not_wait(serving: Serving) -> None:
    await topic_with_history(serving, "orders")
    (good,) = await serving.world.topic(name="good")
    await serving.services.log.append(good, plain("x"))
    async with asyncio.timeout(5):
        bad, good_topic = (await serving.ask(1, 4, fetching("orders", "good", wait_ms=60_000))).responses
    assert bad.partitions[0].error_code == Code.CORRUPT_MESSAGE
    assert good_topic.partitions[0].error_code == 0
    (later,) = await serving.world.topic(name="later")
    waits = asyncio.create_task(serving.ask(1, 4, fetching("orders", "later", wait_ms=60_000)))
    await asyncio.sleep(0.05)
    await serving.services.log.append(later, plain("y"))
    async with asyncio.timeout(5):
        assert (await waits).responses[1].partitions[0].records


class Away(Damaged):
    """A history whose store does not answer now."""

    async def read(self, partition: PartitionId, offset: int, bytes_max: int) -> Past:
        raise Unavailable("the bucket is away")


async def test_nobody_asks_on_and_on_for_what_is_away(serving: Serving) -> None:
    object.__setattr__(serving.services, "log", await serving.world.broker(history=Away()))
    await topic_with_history(serving, "orders")
    begun_s = asyncio.get_running_loop().time()
    (topic,) = (await serving.ask(1, 4, fetching("orders", wait_ms=100))).responses
    assert topic.partitions[0].error_code == Code.NOT_LEADER_OR_FOLLOWER
    assert asyncio.get_running_loop().time() - begun_s >= 0.09


async def test_a_time_that_cannot_be_looked_up(serving: Serving) -> None:
    await topic_with_history(serving, "orders")
    asked = {"replica_id": -1, "topics": [{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": 1}]}]}
    (topic,) = (await serving.ask(2, 1, asked)).topics
    assert topic.partitions[0].error_code == Code.CORRUPT_MESSAGE
    assert serving.services.unreadable.counts["orders"] == 1


def test_the_same_is_not_said_all_the_time(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    unreadable = Unreadable({"id": "orders"}.get, clock)
    for number in range(50):
        unreadable.note(PartitionId("id", number), 7, Corrupt(REASON))
    unreadable.note(PartitionId("id", 0), 7, Unavailable("no answer"))
    assert (len(caplog.records), unreadable.counts["orders"]) == (1, 50)
    clock.ms += SAID_AGAIN_MS
    unreadable.note(PartitionId("id", 0), 7, Corrupt(REASON))
    assert len(caplog.records) == 2
    for number in range(10 * REASONS_MAX):
        unreadable.note(PartitionId("id", 0), 7, Corrupt(f"file {number} is missing"))
    assert len(caplog.records) <= REASONS_MAX + 1


def test_it_does_not_grow_with_the_number_of_topics() -> None:
    unreadable = Unreadable(lambda topic_id: topic_id, HandClock())
    for number in range(TOPICS_MAX + 10):
        unreadable.note(PartitionId(f"t{number}", 0), 7, Corrupt(REASON))
    assert (len(unreadable.counts), unreadable.counts[OTHERS]) == (TOPICS_MAX + 1, 10)


class Unknown(Damaged):
    async def start(self, partition: PartitionId) -> int | None:
        raise Corrupt(REASON)


async def test_a_history_without_a_start_is_said_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    log = await world.broker(history=Unknown())
    partitions = await world.topic(2)
    for partition in partitions:
        for value in "abc":
            await log.append(partition, plain(value))
        await world.move(log, partition, 2)
    for wait_ms in (0, SAID_AGAIN_MS):
        world.clock.ms += wait_ms
        caplog.clear()
        for partition in partitions * 3:
            assert (await log.bounds(partition)).end == 3
        (record,) = caplog.records
        assert record.getMessage() == f"log.history_unknown partition={partitions[0]} error={REASON}"
    await world.close()
