"""Fresh reads return after the table has all acknowledged records, or report the missing records; every wait ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.harness.log.brokers import World, plain
from tests.harness.pipeline.pipeline_driver import PipelineDriver

from lakestream.catalog.identifiers import TableName
from lakestream.clock import RandomIds
from lakestream.coordination.freshness import FreshReadResult, FreshReads
from lakestream.data.log.log import Log
from lakestream.metadata import keys
from lakestream.metadata.pipeline_status import PipelineReport, PipelineStatusStore, TopicReport
from lakestream.metadata.refresh_requests import ABANDONED_MS, RefreshRequests
from lakestream.metadata.store import put_one
from lakestream.pipeline.driver import Driver, PipelineOptions
from lakestream.pipeline.refresh_requests import RefreshRequestWatcher

T = TableName(("default",), "t")
HOUR_MS = 3_600_000


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


async def freshness(world: World, log: Log) -> FreshReads:
    store = world.server.client()
    catalog = (await PipelineDriver.start(world)).catalog
    return FreshReads(store, log, catalog, world.clock, RandomIds())


@asynccontextmanager
async def running_pipeline(world: World, interval_ms: int = HOUR_MS) -> AsyncIterator[Driver]:
    """A pipeline whose next micro-batch is in an hour unless it is requested; the first one has run."""
    table_driver = await PipelineDriver.start(world)
    store = world.server.client()
    options = PipelineOptions(interval_ms=interval_ms)
    requests = RefreshRequestWatcher(RefreshRequests(store), table_driver.changed)
    first = asyncio.Event()
    driver = Driver(
        table_driver.micro_batches,
        requests,
        PipelineStatusStore(store),
        world.clock,
        options,
        on_micro_batch=lambda _: first.set(),
    )
    running = asyncio.get_running_loop().create_task(driver.run())
    try:
        await asyncio.wait_for(first.wait(), 10)
        yield driver
    finally:
        running.cancel()
        await asyncio.wait([running])


async def remaining_requests(world: World) -> int:
    return len((await world.metadata.scan(keys.REFRESH_REQUESTS)).records)


async def test_request_wakes_the_pipeline_and_waits_for_the_table(world: World) -> None:
    one, two = await world.topic(2)
    log = await world.broker()
    fresh = await freshness(world, log)
    async with running_pipeline(world):
        await log.append(one, plain("a", "b"))
        await log.append(two, plain("c"))
        assert await fresh.wait(T, 10_000) == FreshReadResult(True, "")
        await log.append(one, plain("d"))
        assert await fresh.wait(T, 10_000) == FreshReadResult(True, "")
        assert await fresh.wait(T, 10_000) == FreshReadResult(True, "")  # the table has all records already
    table_driver = await PipelineDriver.start(world)
    assert await table_driver.rows(one) == [(0, b"a"), (1, b"b"), (2, b"d")]
    assert await table_driver.rows(two) == [(0, b"c")]
    assert await remaining_requests(world) == 0


async def test_concurrent_requests_succeed_with_two_pipelines(world: World) -> None:
    partitions = await world.topic(2)
    log = await world.broker()
    fresh = await freshness(world, log)
    async with running_pipeline(world), running_pipeline(world):
        for number in range(5):
            for partition in partitions:
                await log.append(partition, plain(str(number)))
            results = await asyncio.gather(*(fresh.wait(T, 10_000) for _ in range(5)))
            assert results == [FreshReadResult(True, "")] * 5
    table_driver = await PipelineDriver.start(world)
    for partition in partitions:
        assert await table_driver.rows(partition) == [(number, str(number).encode()) for number in range(5)]
    assert await remaining_requests(world) == 0


async def test_request_moves_one_idle_topic_among_many(world: World) -> None:
    """Without the request, the topic would wait for its turn."""
    log = await world.broker()
    fresh = await freshness(world, log)
    topics = [(await world.topic(name=f"t{number}"))[0] for number in range(40)]
    async with running_pipeline(world):
        for partition in topics:
            await log.append(partition, plain("x"))
        assert await fresh.wait(TableName(("default",), "t39"), 10_000) == FreshReadResult(True, "")


async def test_result_names_the_missing_pipeline(world: World) -> None:
    (partition,) = await world.topic()
    log = await world.broker()
    fresh = await freshness(world, log)
    await log.append(partition, plain("a"))
    result = await fresh.wait(T, 200)
    assert result == FreshReadResult(
        False, "not within 0.2 s: no pipeline has run yet, start one; partition 0 is at 0 of 1"
    )
    assert await remaining_requests(world) == 0


async def test_result_names_the_age_of_the_last_pipeline_status(world: World) -> None:
    (partition,) = await world.topic()
    log = await world.broker()
    fresh = await freshness(world, log)
    await log.append(partition, plain("a"))
    stalled = TopicReport(stalled="an old reason")
    await PipelineStatusStore(world.metadata).put(PipelineReport(world.clock.now_ms() - 600_000, {"t": stalled}))
    result = await fresh.wait(T, 200)
    assert result.reason == "not within 0.2 s: the pipeline wrote its last status 600 s ago; partition 0 is at 0 of 1"


async def test_request_does_not_wait_when_the_topic_is_stalled(world: World) -> None:
    (partition,) = await world.topic()
    log = await world.broker()
    fresh = await freshness(world, log)
    await log.append(partition, plain("a"))
    await PipelineStatusStore(world.metadata).put(
        PipelineReport(world.clock.now_ms(), {"t": TopicReport(stalled="disk full")})
    )
    async with asyncio.timeout(10):
        result = await fresh.wait(T, 60_000)
    assert result == FreshReadResult(False, "the topic is stalled: disk full; partition 0 is at 0 of 1")


async def test_request_does_not_wait_when_the_table_has_no_topic(world: World) -> None:
    log = await world.broker()
    fresh = await freshness(world, log)
    assert await fresh.wait(T, 60_000) == FreshReadResult(True, "the table has no topic")
    await world.topic()  # a topic without records is fresh
    assert await fresh.wait(T, 60_000) == FreshReadResult(True, "")


async def test_request_finds_the_topic_of_a_renamed_table(world: World) -> None:
    (partition,) = await world.topic()
    log = await world.broker()
    fresh = await freshness(world, log)
    table_driver = await PipelineDriver.start(world)
    await log.append(partition, plain("a"))
    await table_driver.micro_batches.run()
    other = TableName(("default",), "other")
    await table_driver.catalog.rename(T, other)
    assert await fresh.wait(other, 10_000) == FreshReadResult(True, "")
    await log.append(partition, plain("b"))
    assert not (await fresh.wait(other, 100)).is_fresh
    async with running_pipeline(world):
        assert await fresh.wait(other, 10_000) == FreshReadResult(True, "")


async def test_close_ends_all_waits(world: World) -> None:
    (partition,) = await world.topic()
    log = await world.broker()
    fresh = await freshness(world, log)
    await log.append(partition, plain("a"))
    waiting = asyncio.get_running_loop().create_task(fresh.wait(T, 60_000))
    async for _ in world.metadata.watch(keys.REFRESH_REQUESTS.path):
        if await remaining_requests(world):
            break
    fresh.close()
    async with asyncio.timeout(5):
        assert await waiting == FreshReadResult(False, "this server stops; partition 0 is at 0 of 1")
    assert await remaining_requests(world) == 0


async def test_abandoned_and_invalid_requests_are_removed(world: World) -> None:
    requests = RefreshRequests(world.metadata)
    await requests.put("dead", "topic", {0: 1})
    world.clock.ms += ABANDONED_MS + 1
    await requests.put("alive", "topic", {0: 1})
    await put_one(world.metadata, keys.REFRESH_REQUESTS.key("invalid"), b"{")
    assert [one.name for one in await requests.all()] == ["alive"]
    assert await remaining_requests(world) == 1
