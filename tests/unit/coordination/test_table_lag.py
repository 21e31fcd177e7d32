"""Lag of tables, measured by a broker without the pipeline."""

from collections.abc import AsyncIterator

import pytest
from tests.harness.log.brokers import NOW, World, plain

from lakestream.coordination import table_lag
from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.coordination.table_lag import TableLagMonitor
from lakestream.metadata.claims import Lag
from lakestream.metadata.store import Changes

EVERYTHING = Changes(frozenset(), everything=True)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


async def started_monitor(world: World) -> TableLagMonitor:
    cache = MetadataCache(world.metadata)
    await cache.refresh_topics()
    monitor = TableLagMonitor(world.metadata, cache)
    monitor.add_changes(EVERYTHING)
    return monitor


async def test_records_count_until_they_are_in_the_table(world: World) -> None:
    one, two = await world.topic(2)
    await world.topic(name="idle")
    log = await world.broker()
    monitor = await started_monitor(world)
    await monitor.refresh()
    assert monitor.by_topic() == {}
    await log.append(one, plain("a", "b"))
    world.clock.ms += 1_000
    await log.append(one, plain("c"))
    await log.append(two, plain("d"))
    await monitor.refresh()
    assert monitor.by_topic() == {}  # no change was reported
    monitor.add_changes(EVERYTHING)
    await monitor.refresh()
    assert monitor.by_topic() == {"t": Lag(4, NOW)}
    await world.move(log, one, 2)
    await monitor.refresh()
    assert monitor.by_topic() == {"t": Lag(2, NOW + 1_000)}
    await world.move(log, one, 3)
    await world.move(log, two, 1)
    await monitor.refresh()
    assert monitor.by_topic() == {}


async def test_watch_reports_partitions_with_new_records(world: World) -> None:
    one, two = await world.topic(2)
    log = await world.broker()
    monitor = await started_monitor(world)
    await monitor.refresh()
    for partition in (one, two):
        await log.append(partition, plain("a"))
    path = f"/log/{one.topic_id}/{one.number}/"
    monitor.add_changes(Changes(frozenset({f"{path}floor", f"{path}start"}), everything=False))
    await monitor.refresh()
    assert monitor.by_topic() == {}
    monitor.add_changes(Changes(frozenset({f"{path}{0:020d}"}), everything=False))
    await monitor.refresh()
    assert monitor.by_topic() == {"t": Lag(1, NOW)}


async def test_refresh_is_bounded_and_reaches_all_partitions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_lag, "PARTITIONS_PER_TICK", 3)
    partitions = await world.topic(10)
    log = await world.broker()
    for partition in partitions:
        await log.append(partition, plain("a"))
    monitor = await started_monitor(world)
    for read in (3, 6, 9, 10):
        await monitor.refresh()
        assert monitor.by_topic()["t"].records == read
    for partition in partitions:
        await world.move(log, partition, 1)
    for left in (7, 4, 1):
        await monitor.refresh()
        assert monitor.by_topic()["t"].records == left
    await monitor.refresh()
    assert monitor.by_topic() == {}


async def test_deleted_topic_has_no_lag(world: World) -> None:
    (partition,) = await world.topic()
    log = await world.broker()
    await log.append(partition, plain("a"))
    cache = MetadataCache(world.metadata)
    await cache.refresh_topics()
    monitor = TableLagMonitor(world.metadata, cache)
    monitor.add_changes(EVERYTHING)
    await monitor.refresh()
    assert monitor.by_topic() == {"t": Lag(1, NOW)}
    await world.topics.delete("t")
    await cache.refresh_topics()
    assert monitor.by_topic() == {}
    await monitor.refresh()
    assert not monitor._lagging
