"""Who asks for a fresh table gets what was acknowledged before, or what there is and why; nobody waits for ever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.unit.data.brokers import World, plain
from tests.unit.pipeline.driving import Driving

from lakestream.catalog.names import TableName
from lakestream.clock import RandomIds
from lakestream.coordination.cluster import ClusterView
from lakestream.coordination.freshness import Fresh, Freshness
from lakestream.data.log.log import Log
from lakestream.metadata import keys
from lakestream.metadata.asks import LEFT_MS, Asks
from lakestream.metadata.reports import PipelineReport, Reports, TopicReport
from lakestream.metadata.store import put_one
from lakestream.pipeline.asked import AskedTopics
from lakestream.pipeline.driver import Driver, PipelineOptions

T = TableName(("default",), "t")
HOUR_MS = 3_600_000


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


async def freshness(world: World, log: Log) -> Freshness:
    store = world.server.client()
    catalog = (await Driving.start(world)).catalog
    return Freshness(store, log, catalog, ClusterView(store), world.clock, RandomIds())


@asynccontextmanager
async def pipeline(world: World, interval_ms: int = HOUR_MS) -> AsyncIterator[Driver]:
    """One that makes its next round in an hour, unless it is asked; its first one is over."""
    driving = await Driving.start(world)
    store = world.server.client()
    options = PipelineOptions(interval_ms=interval_ms)
    asked = AskedTopics(Asks(store), driving.changed)
    driver = Driver(driving.rounds, driving.changed, asked, Reports(store), world.clock, options)
    first = asyncio.Event()
    driver.on_round = lambda done: first.set()
    running = asyncio.get_running_loop().create_task(driver.run())
    try:
        await asyncio.wait_for(first.wait(), 10)
        yield driver
    finally:
        running.cancel()
        await asyncio.wait([running])


async def asks_left(world: World) -> int:
    return len((await world.metadata.scan(keys.ASKED)).records)


async def test_the_pipeline_is_woken_and_the_table_has_it(world: World) -> None:
    one, two = await world.topic(2)
    log = await world.broker()
    fresh = await freshness(world, log)
    async with pipeline(world):
        await log.append(one, plain("a", "b"))
        await log.append(two, plain("c"))
        assert await fresh.wait(T, 10_000) == Fresh(True, "")
        await log.append(one, plain("d"))
        assert await fresh.wait(T, 10_000) == Fresh(True, "")
        assert await fresh.wait(T, 10_000) == Fresh(True, "")  # nothing to wait for
    driving = await Driving.start(world)
    assert await driving.rows(one) == [(0, b"a"), (1, b"b"), (2, b"d")]
    assert await driving.rows(two) == [(0, b"c")]
    assert await asks_left(world) == 0


async def test_two_pipelines_and_many_who_ask(world: World) -> None:
    partitions = await world.topic(2)
    log = await world.broker()
    fresh = await freshness(world, log)
    async with pipeline(world), pipeline(world):
        for turn in range(5):
            for partition in partitions:
                await log.append(partition, plain(str(turn)))
            answers = await asyncio.gather(*(fresh.wait(T, 10_000) for _ in range(5)))
            assert answers == [Fresh(True, "")] * 5
    driving = await Driving.start(world)
    for partition in partitions:
        assert await driving.rows(partition) == [(turn, str(turn).encode()) for turn in range(5)]
    assert await asks_left(world) == 0


async def test_a_quiet_topic_among_many_is_moved_when_asked_for(world: World) -> None:
    """Else it would wait for its turn."""
    log = await world.broker()
    fresh = await freshness(world, log)
    topics = [(await world.topic(name=f"t{number}"))[0] for number in range(40)]
    async with pipeline(world):
        for partition in topics:
            await log.append(partition, plain("x"))
        assert await fresh.wait(TableName(("default",), "t39"), 10_000) == Fresh(True, "")


async def test_without_a_pipeline_it_ends_and_says_so(world: World) -> None:
    (partition,) = await world.topic()
    log = await world.broker()
    fresh = await freshness(world, log)
    await log.append(partition, plain("a"))
    said = await fresh.wait(T, 200)
    assert said == Fresh(False, "not within 0.2 s: no pipeline has run yet, start one; partition 0 is at 0 of 1")
    assert await asks_left(world) == 0


async def test_a_pipeline_that_has_died_is_named(world: World) -> None:
    (partition,) = await world.topic()
    log = await world.broker()
    fresh = await freshness(world, log)
    await log.append(partition, plain("a"))
    stuck = TopicReport(stuck="an old story")
    await Reports(world.metadata).put(PipelineReport(world.clock.now_ms() - 600_000, {"t": stuck}))
    said = await fresh.wait(T, 200)
    assert said.why == "not within 0.2 s: the pipeline was last heard of 600 s ago; partition 0 is at 0 of 1"


async def test_a_stuck_topic_is_not_waited_for(world: World) -> None:
    (partition,) = await world.topic()
    log = await world.broker()
    fresh = await freshness(world, log)
    await log.append(partition, plain("a"))
    await Reports(world.metadata).put(PipelineReport(world.clock.now_ms(), {"t": TopicReport(stuck="mend it")}))
    async with asyncio.timeout(10):
        said = await fresh.wait(T, 60_000)
    assert said == Fresh(False, "the topic is stuck: mend it; partition 0 is at 0 of 1")


async def test_what_no_topic_stands_behind_is_not_waited_for(world: World) -> None:
    log = await world.broker()
    fresh = await freshness(world, log)
    assert await fresh.wait(T, 60_000) == Fresh(True, "no topic stands behind this table")
    await world.topic()  # and one without a record has all that it could have
    assert await fresh.wait(T, 60_000) == Fresh(True, "")


async def test_a_table_that_was_renamed_is_still_its_topics(world: World) -> None:
    (partition,) = await world.topic()
    log = await world.broker()
    fresh = await freshness(world, log)
    driving = await Driving.start(world)
    await log.append(partition, plain("a"))
    await driving.rounds.run()
    other = TableName(("default",), "other")
    await driving.catalog.rename(T, other)
    assert await fresh.wait(other, 10_000) == Fresh(True, "")
    await log.append(partition, plain("b"))
    assert not (await fresh.wait(other, 100)).is_fresh
    async with pipeline(world):
        assert await fresh.wait(other, 10_000) == Fresh(True, "")


async def test_who_closes_sends_everybody_home(world: World) -> None:
    (partition,) = await world.topic()
    log = await world.broker()
    fresh = await freshness(world, log)
    await log.append(partition, plain("a"))
    waiting = asyncio.get_running_loop().create_task(fresh.wait(T, 60_000))
    async for _ in world.metadata.watch(keys.ASKED.path):
        if await asks_left(world):
            break
    fresh.close()
    async with asyncio.timeout(5):
        assert await waiting == Fresh(False, "this server stops; partition 0 is at 0 of 1")
    assert await asks_left(world) == 0


async def test_what_the_dead_and_the_mad_left_is_removed(world: World) -> None:
    asks = Asks(world.metadata)
    await asks.put("dead", "topic", {0: 1})
    world.clock.ms += LEFT_MS + 1
    await asks.put("alive", "topic", {0: 1})
    await put_one(world.metadata, keys.ASKED.key("mad"), b"{")
    assert [one.name for one in await asks.all()] == ["alive"]
    assert await asks_left(world) == 1
