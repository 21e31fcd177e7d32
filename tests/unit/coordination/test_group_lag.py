"""Lag of groups, measured by their coordinator from claims and committed offsets."""

from collections.abc import AsyncIterator

import pytest
from tests.harness.log.brokers import NOW, World, plain

from lakestream.coordination import group_lag
from lakestream.coordination.group_lag import APPEND_TIMES_MAX, AppendTimes, GroupLagMonitor, GroupTopicLag
from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.data.log.log import Log
from lakestream.errors import Unavailable
from lakestream.metadata import keys
from lakestream.metadata.brokers import Broker
from lakestream.metadata.claims import Claim, Lag, Medium
from lakestream.metadata.group_records import Committed, packed_offset
from lakestream.metadata.groups import Groups, NamedGroup
from lakestream.metadata.store import ANY, Changes, put_one
from lakestream.model import PartitionId

EVERYTHING = Changes(frozenset(), everything=True)


class SomeGroups:
    """The coordinator of all groups of a store but those in `others`."""

    def __init__(self, world: World) -> None:
        self._groups = Groups(world.metadata)
        self.others: set[str] = set()
        self.listings = 0

    def coordinates(self, name: str) -> bool:
        return name not in self.others

    async def names(self) -> list[NamedGroup]:
        self.listings += 1
        return [named for named in await self._groups.names() if self.coordinates(named.name)]


class Measured:
    """A monitor, its coordinator, and a world with one log."""

    def __init__(self, world: World, log: Log) -> None:
        self.world = world
        self.log = log
        self.cache = MetadataCache(world.metadata)
        self.coordinator = SomeGroups(world)
        self.monitor = GroupLagMonitor(world.metadata, self.coordinator, self.cache)

    async def topic(self, partitions: int = 1, name: str = "t") -> list[PartitionId]:
        created = await self.world.topic(partitions, name)
        await self.cache.refresh_topics()
        return created

    async def append(self, partition: PartitionId, *values: str, after_ms: int = 0) -> None:
        self.world.clock.ms += after_ms
        await self.log.append(partition, plain(*values))
        path = keys.claim_key(partition, 0).path
        self.monitor.add_appends(Changes(frozenset({path}), everything=False))

    async def commit(self, group: str, partition: PartitionId, offset: int) -> None:
        key = keys.offset_key(group, partition)
        await put_one(self.world.metadata, keys.group_name_key(group), b"", ANY)
        await put_one(self.world.metadata, key, packed_offset(Committed(offset, 0, "", 0, 0)), ANY)
        self.monitor.add_commits(Changes(frozenset({key.path, keys.owner_key(group).path}), everything=False))

    async def rows(self) -> list[GroupTopicLag]:
        await self.monitor.refresh()
        return self.monitor.rows


@pytest.fixture
async def measured() -> AsyncIterator[Measured]:
    world = World()
    yield Measured(world, await world.broker())
    await world.close()


def claim(offset_end: int, appended_ms: int) -> Claim:
    return Claim(offset_end - 1, offset_end, "", "", Medium.OBJECT, "", 0, appended_ms, 0, ())


async def test_lag_is_the_sum_of_records_and_the_age_of_the_oldest(measured: Measured) -> None:
    one, two = await measured.topic(2)
    await measured.append(one, "a", "b")
    await measured.append(one, "c", after_ms=1_000)
    await measured.append(two, "d", after_ms=1_000)
    assert await measured.rows() == []
    await measured.commit("g", one, 1)  # within a claim
    assert await measured.rows() == [GroupTopicLag("g", "t", Lag(2, NOW))]
    await measured.commit("g", two, 0)
    assert await measured.rows() == [GroupTopicLag("g", "t", Lag(3, NOW))]
    await measured.commit("g", one, 2)
    assert await measured.rows() == [GroupTopicLag("g", "t", Lag(2, NOW + 1_000))]
    await measured.commit("g", one, 3)
    await measured.commit("g", two, 1)
    assert await measured.rows() == [GroupTopicLag("g", "t", Lag())]
    await measured.append(one, "e", after_ms=500)
    assert await measured.rows() == [GroupTopicLag("g", "t", Lag(1, NOW + 2_500))]


async def test_age_stays_when_the_record_moves_to_the_table(measured: Measured) -> None:
    (partition,) = await measured.topic()
    await measured.append(partition, "a")
    await measured.append(partition, "b", after_ms=1_000)
    await measured.commit("g", partition, 0)
    assert await measured.rows() == [GroupTopicLag("g", "t", Lag(2, NOW))]
    await measured.world.move(measured.log, partition, 2)
    await measured.append(partition, "c", after_ms=1_000)
    assert await measured.rows() == [GroupTopicLag("g", "t", Lag(3, NOW))]


async def test_age_is_a_lower_bound_when_the_claims_were_never_seen(measured: Measured) -> None:
    (partition,) = await measured.topic()
    for after_ms in (0, 1_000, 1_000, 1_000):
        await measured.append(partition, "a", after_ms=after_ms)
    await measured.world.move(measured.log, partition, 2)
    await measured.commit("g", partition, 0)
    assert await measured.rows() == [GroupTopicLag("g", "t", Lag(4, NOW + 2_000))], "the first claim that is left"
    await measured.world.move(measured.log, partition, 4)
    await measured.append(partition, "b", after_ms=60_000)
    await measured.rows()
    await measured.world.move(measured.log, partition, 5)
    await measured.commit("g", partition, 1)  # the age of the next record is not that of the newest claim
    assert await measured.rows() == [GroupTopicLag("g", "t", Lag(4, NOW + 2_000))]


async def test_append_times_are_remembered_when_claims_are_trimmed(measured: Measured) -> None:
    (partition,) = await measured.topic()
    await measured.commit("g", partition, 0)
    for number in range(10):
        await measured.append(partition, "a", after_ms=1_000)
        await measured.rows()
        await measured.world.move(measured.log, partition, number + 1)
    for offset in range(10):
        await measured.commit("g", partition, offset)
        assert await measured.rows() == [GroupTopicLag("g", "t", Lag(10 - offset, NOW + 1_000 * (offset + 1)))]


def test_append_times_are_bounded_and_denser_for_newer_records() -> None:
    times = AppendTimes()
    for number in range(1, 10_001):
        times.add(claim(number, 1_000 * number))
        times.add(claim(number, 0))  # is known already
    assert len(times._ends) == APPEND_TIMES_MAX
    assert times.appended_by(10_000) is None
    for offset in (0, 5_000, 9_000, 9_900, 9_990, 9_998, 9_999):
        appended_by = times.appended_by(offset)
        assert appended_by is not None
        age, age_at_least = 10_000_000 - 1_000 * (offset + 1), 10_000_000 - appended_by
        assert age >= age_at_least >= age / 3


async def test_reads_of_a_tick_are_bounded_and_reach_all(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_lag, "GROUPS_PER_TICK", 2)
    monkeypatch.setattr(group_lag, "POSITIONS_PER_TICK", 3)
    partitions = await measured.topic(4)
    for partition in partitions:
        await measured.append(partition, "a")
    for group in ("g", "h", "i"):
        for partition in partitions:
            await measured.commit(group, partition, 0)
    assert [sum(row.lag.records for row in await measured.rows()) for _ in range(4)] == [3, 6, 9, 12]
    assert [row[:2] for row in measured.monitor.rows] == [("g", "t"), ("h", "t"), ("i", "t")]


async def test_only_the_largest_lags_are_shown(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_lag, "ROWS_MAX", 2)
    (partition,) = await measured.topic()
    await measured.append(partition, "a", "b", "c")
    for offset in range(4):
        await measured.commit(f"at {offset}", partition, offset)
    assert [(row.group, row.lag.records) for row in await measured.rows()] == [("at 0", 3), ("at 1", 2)]


async def test_groups_are_only_counted_when_there_are_too_many_offsets(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_lag, "POSITIONS_MAX", 3)
    partitions = await measured.topic(2)
    for group in ("g", "h"):
        for partition in partitions:
            await measured.commit(group, partition, 0)
    assert [row.group for row in await measured.rows()] == ["g"]
    assert measured.monitor.unmeasured == 1
    measured.coordinator.others.add("g")
    measured.cache.brokers = [Broker(1, "a", 1, "")]
    await measured.monitor.refresh()
    await measured.commit("h", partitions[0], 0)
    assert [row.group for row in await measured.rows()] == ["h"]
    assert measured.monitor.unmeasured == 0


async def test_groups_are_listed_at_the_start_and_when_brokers_change(measured: Measured) -> None:
    (partition,) = await measured.topic()
    await measured.append(partition, "a")
    await measured.commit("g", partition, 0)
    measured.monitor = GroupLagMonitor(measured.world.metadata, measured.coordinator, measured.cache)
    assert [row.group for row in await measured.rows()] == ["g"]
    measured.coordinator.others.add("g")
    assert [row.group for row in await measured.rows()] == ["g"]
    measured.cache.brokers = [Broker(1, "a", 1, "")]
    assert await measured.rows() == []
    await measured.commit("g", partition, 1)
    assert await measured.rows() == []
    measured.coordinator.others.clear()
    await measured.commit("g", partition, 1)
    measured.coordinator.others.add("g")  # after its commit was seen
    assert await measured.rows() == []
    measured.coordinator.others.clear()
    measured.cache.brokers = [Broker(1, "a", 1, ""), Broker(2, "a", 2, "")]
    assert [row.group for row in await measured.rows()] == ["g"]
    assert measured.coordinator.listings == 3


async def test_lost_events_are_made_up_for(measured: Measured) -> None:
    (partition,) = await measured.topic()
    await measured.append(partition, "a")
    await measured.commit("g", partition, 0)
    assert [row.lag.records for row in await measured.rows()] == [1]
    await put_one(measured.world.metadata, keys.offset_key("g", partition), packed_offset(Committed(1, 0, "", 0, 0)))
    for _ in range(group_lag.TICKS_PER_LISTING):
        await measured.monitor.refresh()
    assert [row.lag.records for row in measured.monitor.rows] == [0]
    await measured.log.append(partition, plain("b"))
    measured.monitor.add_appends(EVERYTHING)
    assert [row.lag.records for row in await measured.rows()] == [1]


async def test_deleted_groups_and_topics_have_no_lag(measured: Measured) -> None:
    (one,) = await measured.topic()
    (two,) = await measured.topic(name="u")
    for partition in (one, two):
        await measured.append(partition, "a")
        await measured.commit("g", partition, 0)
    assert {row.topic for row in await measured.rows()} == {"t", "u"}
    await measured.world.topics.delete("u")
    await measured.cache.refresh_topics()
    assert [row.topic for row in await measured.rows()] == ["t"]
    for partition in (one, two):
        key = keys.offset_key("g", partition)
        await measured.world.metadata.delete(key)
        measured.monitor.add_commits(Changes(frozenset({key.path}), everything=False))
    assert await measured.rows() == []
    assert not measured.monitor._groups_of
    assert not measured.monitor._append_times


async def test_failed_reads_are_retried(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    (partition,) = await measured.topic()
    await measured.append(partition, "a")
    await measured.commit("g", partition, 0)
    for method in ("scan", "scan", "floor"):  # names, offsets, claims
        with monkeypatch.context() as patch:

            async def failing(*_: object, **__: object) -> None:
                raise Unavailable("no response")

            patch.setattr(measured.world.metadata, method, failing)
            with pytest.raises(Unavailable):
                await measured.monitor.refresh()
        assert measured.monitor.rows == []
        if measured.coordinator.listings == 1:
            await measured.monitor._list_groups()  # so that the next failure is that of the offsets
    assert [row.lag.records for row in await measured.rows()] == [1]
