"""Coordinators of consumer protocol groups: what is stored and when, changes of coordinators, timeouts, changes of
topics, and many concurrent members."""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace

import pytest
import pytest_asyncio
from tests.harness.groups.group_brokers import (
    ClassicMember,
    Cluster,
    ConsumerProtocolMember,
    GroupBroker,
    heartbeat_until_stable,
)

from lakestream.coordination.groups import regex_subscription
from lakestream.coordination.groups.coordinator import GroupSettings
from lakestream.coordination.groups.errors import GroupError, GroupRequestFailed
from lakestream.coordination.groups.messages import LEAVE_STATIC, GroupLimits
from lakestream.coordination.groups.offset_rules import Committer
from lakestream.errors import LakestreamError, Unavailable
from lakestream.metadata.cluster import GROUP_KIND, ConfigResource
from lakestream.metadata.group_records import GroupRecord
from lakestream.model import PartitionId

QUICK = GroupSettings(limits=GroupLimits(initial_delay_ms=0, session_ms_min=1, session_ms=2_000))


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    yield cluster
    await cluster.close()


def raises(error: GroupError) -> "pytest.RaisesExc[GroupRequestFailed]":
    return pytest.raises(GroupRequestFailed, check=lambda raised: raised.error is error)


async def only_broker(cluster: Cluster, settings: GroupSettings | None = None, partitions: int = 4) -> GroupBroker:
    broker = await (cluster.broker() if settings is None else cluster.broker(settings))
    await cluster.topic(partitions=partitions)
    return broker


async def test_heartbeat_writes_nothing(cluster: Cluster) -> None:
    broker = await only_broker(cluster)
    one, two = ConsumerProtocolMember(broker, "one"), ConsumerProtocolMember(broker, "two")
    await one.beat()
    await heartbeat_until_stable(one, two)
    puts = broker.store.puts
    for _ in range(10):
        assert (await one.beat()).result.assigned is None
        await two.beat()
    assert broker.store.puts == puts


async def test_heartbeat_writes_nothing_when_the_member_waits_for_partitions(cluster: Cluster) -> None:
    broker = await only_broker(cluster)
    one, two = ConsumerProtocolMember(broker, "one"), ConsumerProtocolMember(broker, "two")
    await one.beat()
    await two.beat()
    puts = broker.store.puts
    for _ in range(5):
        response = await two.beat()
        assert (response.result.epoch, two.owned) == (2, frozenset())
        assert response.interval_ms == broker.groups.settings.heartbeat_ms_min, "it is to send the next heartbeat soon"
    assert broker.store.puts == puts


async def test_a_pattern_is_matched_in_a_thread_and_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    fullmatch = regex_subscription.matching_in_time

    def recorded(pattern: str, names: Sequence[str]) -> list[str]:
        threads.append(threading.get_ident())
        return fullmatch(pattern, names)

    def on_the_loop(pattern: str, names: Iterable[str]) -> list[str]:
        raise AssertionError("matched on the event loop")

    monkeypatch.setattr(regex_subscription, "matching_in_time", recorded)
    monkeypatch.setattr(regex_subscription, "matching", on_the_loop)
    broker = await only_broker(cluster)
    members = [ConsumerProtocolMember(broker, name) for name in ("one", "two")]
    for member in members:
        member.names, member.pattern = (), "t[0-9]?"
    await members[0].beat()
    await heartbeat_until_stable(*members)
    assert len(members[0].owned) == 2
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


async def test_a_member_is_rejected_when_its_pattern_is_too_large(cluster: Cluster) -> None:
    broker = await only_broker(cluster)
    member = ConsumerProtocolMember(broker, "one")
    member.names, member.pattern = (), "(a?){1000}" * 10
    with raises(GroupError.INVALID_REGULAR_EXPRESSION):
        await member.beat()


async def test_no_reply_is_sent_before_the_transition_is_stored(cluster: Cluster) -> None:
    broker = await only_broker(cluster)
    one, two = ConsumerProtocolMember(broker, "one"), ConsumerProtocolMember(broker, "two")
    await one.beat()
    broker.store.gate.clear()
    joining = asyncio.create_task(two.beat())
    await asyncio.sleep(0.02)
    beating = asyncio.create_task(one.beat())
    await asyncio.sleep(0.02)
    assert not joining.done()
    assert not beating.done()
    broker.store.gate.set()
    assert (await joining).result.epoch == 2
    assert len((await beating).result.assigned or ()) == 2


async def test_members_continue_without_a_rebalance_when_the_coordinator_dies(cluster: Cluster) -> None:
    for _ in range(3):
        await cluster.broker()
    partition = await cluster.topic(partitions=4)
    first = await cluster.of("g")
    one, two = ConsumerProtocolMember(first, "one"), ConsumerProtocolMember(first, "two")
    await heartbeat_until_stable(one, two)
    before = await one.described()
    assert await one.commit(partition, 5) is None
    await cluster.expire_broker(first)
    one.at = two.at = next(other for other in cluster.brokers if other is not first and other.groups.coordinates("g"))
    for member in (one, two):
        epoch = member.epoch
        response = await member.beat()
        assert (response.result.epoch, response.result.assigned) == (epoch, None)
    assert await one.described() == before
    assert await one.commit(partition, 6) is None


async def test_member_that_died_gets_no_whole_session_from_the_next_coordinator(cluster: Cluster) -> None:
    settings = GroupSettings(limits=replace(QUICK.limits, session_ms=3_000))
    old = await only_broker(cluster, settings)
    dead, loud = ConsumerProtocolMember(old, "dead"), ConsumerProtocolMember(old, "loud")
    await heartbeat_until_stable(dead, loud)
    cluster.clock.ms += 2_800
    new = await cluster.broker(settings)
    await old.isolate()
    await new.isolate()
    loud.at = new
    await loud.beat()
    before_s = asyncio.get_running_loop().time()
    while "dead" in (await loud.described()).members:
        await asyncio.sleep(0.1)
        await loud.beat()
    lasted_s = asyncio.get_running_loop().time() - before_s
    assert 1.4 < lasted_s < 2.5
    await heartbeat_until_stable(loud)
    assert len(loud.owned) == 4


async def test_epoch_is_issued_by_only_one_coordinator(cluster: Cluster) -> None:
    one, other = await cluster.broker(), await cluster.broker()
    await cluster.topic(partitions=4)
    await one.isolate()
    await other.isolate()
    old = ConsumerProtocolMember(one, "m")
    await old.beat()
    assert (await ConsumerProtocolMember(other, "n").beat()).result.epoch == 2
    with raises(GroupError.NOT_COORDINATOR):
        await ConsumerProtocolMember(one, "o").beat()
    assert set((await old.described()).members) == {"m", "n"}


async def test_coordinator_not_available_when_the_store_does_not_answer(cluster: Cluster) -> None:
    broker = await only_broker(cluster)
    one = ConsumerProtocolMember(broker, "one")
    await one.beat()
    broker.store.error = Unavailable("no answer")
    with raises(GroupError.COORDINATOR_NOT_AVAILABLE):
        await ConsumerProtocolMember(broker, "two").beat()
    broker.store.error = None
    assert set((await one.described()).members) == {"one"}
    assert (await one.beat()).result.epoch == 1


async def test_check_commit_returns_only_errors_that_producers_support(cluster: Cluster) -> None:
    broker = await only_broker(cluster)
    member = ConsumerProtocolMember(broker, "m")
    await member.beat()
    for confirmed in (False, True):
        check = broker.groups.check_commit
        assert await check("g", Committer("m", None, 1), confirmed=confirmed) is None
        assert await check("g", Committer("m", None, 9), confirmed=confirmed) is GroupError.ILLEGAL_GENERATION
        assert await check("g", Committer("x", None, 1), confirmed=confirmed) is GroupError.UNKNOWN_MEMBER_ID
        assert await check("g", Committer(), confirmed=confirmed) is None, "a client of old"


async def test_empty_group_is_deleted(cluster: Cluster) -> None:
    broker = await only_broker(cluster)
    member = ConsumerProtocolMember(broker, "m")
    await member.beat()
    assert await broker.groups.delete("g") is GroupError.NON_EMPTY_GROUP
    await member.leave()
    assert await broker.groups.delete("g") is None
    assert await broker.groups.names() == []
    with raises(GroupError.GROUP_ID_NOT_FOUND):
        await member.leave()
    member.epoch = 0
    assert (await member.beat()).result.epoch == 1, "a new group of that name"


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def beats_until_all_is_its_own(member: ConsumerProtocolMember) -> None:
    async with asyncio.timeout(30):
        while len(member.owned) < 4:
            await asyncio.sleep(0.1)
            await member.beat()


async def test_member_is_removed_when_its_session_expires(cluster: Cluster) -> None:
    broker = await only_broker(cluster, QUICK)
    silent, loud = ConsumerProtocolMember(broker, "silent"), ConsumerProtocolMember(broker, "loud")
    await heartbeat_until_stable(silent, loud)
    await beats_until_all_is_its_own(loud)
    with raises(GroupError.UNKNOWN_MEMBER_ID):
        await silent.beat()


async def test_session_of_the_group_is_that_of_its_config(cluster: Cluster) -> None:
    broker = await only_broker(cluster, QUICK)
    one = ConsumerProtocolMember(broker, "one")
    await one.beat()
    texts = {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "9000"}
    broker.view.remember_configs(ConfigResource(GROUP_KIND, "g"), texts)
    await heartbeat_until_stable(one)
    assert (await one.beat()).interval_ms == 9_000
    await asyncio.sleep(2.4)
    assert set((await one.described()).members) == {"one"}


async def test_shorter_session_applies_from_the_next_heartbeat_on(cluster: Cluster) -> None:
    broker = await only_broker(cluster, QUICK)
    one = ConsumerProtocolMember(broker, "one")
    await heartbeat_until_stable(one)
    broker.groups._groups["g"].set_limits(GroupLimits(session_ms=300))
    await asyncio.sleep(0.7)
    assert set((await one.described()).members) == {"one"}, "it still has the longer heartbeat interval"
    await one.beat()
    await asyncio.sleep(0.7)
    assert (await one.described()).members == {}


async def test_commit_extends_the_session(cluster: Cluster) -> None:
    broker = await only_broker(cluster, QUICK)
    member = ConsumerProtocolMember(broker, "m")
    await member.beat()
    for offset in range(5):
        await asyncio.sleep(0.5)
        assert await member.commit(PartitionId("aa", 0), offset) is None


async def test_member_is_removed_when_it_does_not_revoke_in_time(cluster: Cluster) -> None:
    broker = await only_broker(cluster)
    slow, waits = ConsumerProtocolMember(broker, "slow"), ConsumerProtocolMember(broker, "waits")
    slow.rebalance_ms = 1_000
    await slow.beat()
    await waits.beat()
    await slow.beat()  # it must revoke, and does not confirm it
    await beats_until_all_is_its_own(waits)
    with raises(GroupError.UNKNOWN_MEMBER_ID):
        await slow.beat()


async def test_static_member_is_removed_when_it_does_not_come_back(cluster: Cluster) -> None:
    broker = await only_broker(cluster, QUICK)
    away, stays = ConsumerProtocolMember(broker, "away", instance="i"), ConsumerProtocolMember(broker, "stays")
    await heartbeat_until_stable(away, stays)
    await away.leave(LEAVE_STATIC)
    await stays.beat()
    assert len(stays.owned) == 2
    await beats_until_all_is_its_own(stays)


async def test_suspended_broker_confirms_ownership_before_it_replies(cluster: Cluster) -> None:
    broker = await only_broker(cluster, QUICK)
    member = ConsumerProtocolMember(broker, "m")
    await member.beat()
    time.sleep(2.3)  # noqa: ASYNC251 -- suspends the whole process
    assert (await member.beat()).result.epoch == 1, "it could receive no heartbeats while it was suspended"


async def test_heartbeat_interval_grows_with_the_number_of_members(cluster: Cluster) -> None:
    broker = await only_broker(cluster)
    one = ConsumerProtocolMember(broker, "one")
    assert (await one.beat()).interval_ms == 500
    broker.groups._consumer_members = 2_000
    assert (await one.beat()).interval_ms == 2_000
    broker.groups._consumer_members = 20_000
    assert (await one.beat()).interval_ms == 5_000


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_target_follows_created_deleted_and_grown_topics(cluster: Cluster) -> None:
    broker = await only_broker(cluster, partitions=1)
    named, fits = ConsumerProtocolMember(broker, "named"), ConsumerProtocolMember(broker, "fits", "h")
    fits.names, fits.pattern = (), "t[0-9]?"
    await named.beat()
    await fits.beat()
    assert len(named.owned) == len(fits.owned) == 1
    await cluster.topics.grow("t", 3)
    await cluster.topic("t2")
    await cluster.topic("other")
    await named.beat()
    await fits.beat()
    assert (len(named.owned), len(fits.owned)) == (3, 4)
    await cluster.topics.delete("t")
    await cluster.refresh_topics()
    await heartbeat_until_stable(named)
    await heartbeat_until_stable(fits)
    assert (len(named.owned), len(fits.owned)) == (0, 1)


async def test_epoch_stays_when_a_topic_setting_changes(cluster: Cluster) -> None:
    broker = await only_broker(cluster)
    member = ConsumerProtocolMember(broker, "m")
    await member.beat()
    puts = broker.store.puts
    await cluster.topics.set("t", {"retention.ms": "1000"})
    await cluster.refresh_topics()
    assert (await member.beat()).result.epoch == 1
    assert broker.store.puts == puts


# ── both protocols ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_group_of_both_protocols_continues_on_the_next_coordinator(cluster: Cluster) -> None:
    for _ in range(2):
        await cluster.broker()
    await cluster.topic(partitions=4)
    first = await cluster.of("g")
    new = ConsumerProtocolMember(first, "new")
    await new.beat()
    old = ClassicMember(first, metadata=b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff")
    assert (await old.join()).error is None
    share = (await old.sync()).assignment
    await new.beat()
    await new.beat()
    assert await old.beat() is GroupError.REBALANCE_IN_PROGRESS, "the partitions it waits for are free"
    assert (await old.join()).error is None
    share = (await old.sync()).assignment
    before = await new.described()
    await cluster.expire_broker(first)
    new.at = old.at = next(other for other in cluster.brokers if other is not first)
    assert await old.beat() is None
    assert (await new.beat()).result.assigned is None
    assert (await old.sync()).assignment == share
    assert await new.described() == before
    await new.leave()
    record = await old.described()
    assert isinstance(record, GroupRecord)
    assert set(record.members) == {old.id}


async def test_classic_member_is_removed_when_its_join_is_cancelled(cluster: Cluster) -> None:
    broker = await only_broker(cluster)
    new = ConsumerProtocolMember(broker, "new")
    await new.beat()
    broker.store.gate.clear()
    joining = asyncio.create_task(ClassicMember(broker, metadata=b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff").join())
    await asyncio.sleep(0.01)
    joining.cancel()
    await asyncio.wait([joining])
    broker.store.gate.set()
    await new.beat()
    assert set((await new.described()).members) == {"new"}


# ── many ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_thousand_members_join_with_few_writes(cluster: Cluster) -> None:
    broker = await only_broker(cluster, partitions=2_000)
    members = [ConsumerProtocolMember(broker, f"member-{number:04}") for number in range(1_000)]
    began = time.process_time()
    for _ in range(3):
        await asyncio.gather(*(member.beat() for member in members))
    shares = [member.owned for member in members]
    assert {len(share) for share in shares} == {2}
    assert len(frozenset().union(*shares)) == 2_000
    took_s, puts = time.process_time() - began, broker.store.puts
    began = time.process_time()
    await asyncio.gather(*(member.beat() for member in members))
    beat_s = time.process_time() - began
    late = ConsumerProtocolMember(broker, "late")
    await late.beat()
    print(f"1,000 members joined in {took_s:.2f} s with {puts} writes; a heartbeat of each takes {beat_s:.3f} s")
    assert puts < 20
    assert took_s < 5
    assert beat_s < 1


async def test_ten_thousand_groups_are_coordinated_by_one_broker(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakestream.coordination.groups.coordinator.STALL_MS", 600_000)  # the machine may be busy
    settings = GroupSettings(limits=GroupLimits(session_ms=600_000))  # no time of a heartbeat is due to be stored
    broker = await only_broker(cluster, settings, partitions=1)
    members = [ConsumerProtocolMember(broker, "m", f"group-{number}") for number in range(10_000)]

    async def all_beat() -> None:
        for start in range(0, len(members), 200):
            await asyncio.gather(*(member.beat() for member in members[start : start + 200]))

    began = time.process_time()
    await all_beat()
    took_s = time.process_time() - began
    began, puts = time.process_time(), broker.store.puts
    await all_beat()
    beat_s = time.process_time() - began
    print(f"10,000 groups were created in {took_s:.2f} s; a heartbeat in each takes {beat_s:.2f} s")
    assert broker.store.puts == puts
    assert {len(member.owned) for member in members} == {1}
    assert took_s < 20
    assert beat_s < 5


# ── whatever happens ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(10))
async def test_no_partition_has_two_owners_when_coordinators_change(cluster: Cluster, seed: int) -> None:
    """Members join, leave and lose responses; coordinators change, and former ones do not always notice."""
    rng = random.Random(seed)
    for _ in range(2):
        await cluster.broker()
    await cluster.topic(partitions=5)
    for broker in cluster.brokers:
        await broker.isolate()
    members: list[ConsumerProtocolMember] = []
    for step in range(150):
        if rng.random() < 0.1 and len(members) < 5:
            members.append(ConsumerProtocolMember(rng.choice(cluster.brokers), f"m{step}"))
        elif rng.random() < 0.05 and members:
            await _left(members.pop(rng.randrange(len(members))))
        some = rng.sample(members, rng.randrange(len(members) + 1))
        await asyncio.gather(*(_sent_heartbeat(member, rng) for member in some))
        owned = [partition for member in members for partition in member.owned]
        assert len(owned) == len(set(owned)), "two members own the same partition"
    at = cluster.brokers[0]
    members.append(ConsumerProtocolMember(at, "last"))
    for member in members:
        member.at = at
    for _ in range(12):
        for member in members:
            await _sent_heartbeat(member, None)
    shares = [len(member.owned) for member in members]
    assert sum(shares) == 5
    assert max(shares) - min(shares) <= 1


async def _left(member: ConsumerProtocolMember) -> None:
    for _ in range(3):  # a broker that lost the group drops it, and loads it again
        try:
            await member.leave()
            return
        except GroupRequestFailed as refused:
            if refused.error is not GroupError.NOT_COORDINATOR:
                return


async def _sent_heartbeat(member: ConsumerProtocolMember, rng: random.Random | None) -> None:
    """Sends a heartbeat as clients do: finds the coordinator after NOT_COORDINATOR, and rejoins when it must."""
    if rng is not None and rng.random() < 0.1:
        member.at = rng.choice(member.at.world.brokers)
    epoch, owned = member.epoch, member.owned
    try:
        await member.beat()
    except GroupRequestFailed as refused:
        if refused.error in (GroupError.UNKNOWN_MEMBER_ID, GroupError.FENCED_MEMBER_EPOCH):
            member.epoch, member.owned = 0, frozenset()
        return
    except LakestreamError:
        return
    if rng is not None and rng.random() < 0.1 and epoch:
        member.epoch, member.owned, member._reported = (
            epoch,
            owned,
            None,
        )  # the response was lost: it sends all fields again
