"""How far tables are behind, as a broker sees it without asking the pipeline."""

from collections.abc import AsyncIterator

import pytest
from tests.unit.data.brokers import NOW, World, plain

from lakestream.coordination import lags as lags_module
from lakestream.coordination.cluster import ClusterView
from lakestream.coordination.lags import Lags
from lakestream.metadata.lag import Lag
from lakestream.metadata.store import Changes

EVERYTHING = Changes(frozenset(), everything=True)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


async def lags_of(world: World) -> Lags:
    view = ClusterView(world.metadata)
    await view.look_at_topics()
    lags = Lags(world.metadata, view)
    lags.note(EVERYTHING)
    return lags


async def test_records_count_until_they_are_in_the_table(world: World) -> None:
    one, two = await world.topic(2)
    await world.topic(name="quiet")
    log = await world.broker()
    lags = await lags_of(world)
    await lags.look()
    assert lags.by_topic() == {}
    await log.append(one, plain("a", "b"))
    world.clock.ms += 1_000
    await log.append(one, plain("c"))
    await log.append(two, plain("d"))
    await lags.look()
    assert lags.by_topic() == {}  # nobody has told it
    lags.note(EVERYTHING)
    await lags.look()
    assert lags.by_topic() == {"t": Lag(4, NOW)}
    await world.move(log, one, 2)
    await lags.look()
    assert lags.by_topic() == {"t": Lag(2, NOW + 1_000)}
    await world.move(log, one, 3)
    await world.move(log, two, 1)
    await lags.look()
    assert lags.by_topic() == {}


async def test_the_feed_names_the_logs(world: World) -> None:
    one, two = await world.topic(2)
    log = await world.broker()
    lags = await lags_of(world)
    await lags.look()
    for partition in (one, two):
        await log.append(partition, plain("a"))
    path = f"/log/{one.topic_id}/{one.number}/"
    lags.note(Changes(frozenset({f"{path}floor", f"{path}start"}), everything=False))
    await lags.look()
    assert lags.by_topic() == {}
    lags.note(Changes(frozenset({f"{path}{0:020d}"}), everything=False))
    await lags.look()
    assert lags.by_topic() == {"t": Lag(1, NOW)}


async def test_a_look_is_bounded_and_all_have_their_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lags_module, "LOGS_PER_TICK", 3)
    partitions = await world.topic(10)
    log = await world.broker()
    for partition in partitions:
        await log.append(partition, plain("a"))
    lags = await lags_of(world)
    for seen in (3, 6, 9, 10):
        await lags.look()
        assert lags.by_topic()["t"].records == seen
    for partition in partitions:
        await world.move(log, partition, 1)
    for left in (7, 4, 1):
        await lags.look()
        assert lags.by_topic()["t"].records == left
    await lags.look()
    assert lags.by_topic() == {}


async def test_a_topic_that_is_gone_is_not_behind(world: World) -> None:
    (partition,) = await world.topic()
    log = await world.broker()
    await log.append(partition, plain("a"))
    view = ClusterView(world.metadata)
    await view.look_at_topics()
    lags = Lags(world.metadata, view)
    lags.note(EVERYTHING)
    await lags.look()
    assert lags.by_topic() == {"t": Lag(1, NOW)}
    await world.topics.delete("t")
    await view.look_at_topics()
    assert lags.by_topic() == {}
    await lags.look()
    assert not lags._behind
