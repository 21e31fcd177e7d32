"""Groups of the new protocol with a clock and a store: what is stored and when, coordinators that come and go, time,
topics that change, and many members at once."""

import asyncio
import random
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.unit.coordination.groups.brokers import Cluster, Consumer, Coordinator, NewConsumer, settle

from lakestream.coordination.groups.coordinator import GroupSettings
from lakestream.coordination.groups.offsets import Committer
from lakestream.coordination.groups.refusals import Refusal, Refused
from lakestream.coordination.groups.values import LEAVE_FOR_A_WHILE, Rules
from lakestream.errors import LakestreamError, Unavailable
from lakestream.metadata.group_records import GroupRecord
from lakestream.model import PartitionId

QUICK = GroupSettings(rules=Rules(opening_ms=0, session_ms_min=1, session_ms=2_000))


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    yield cluster
    await cluster.close()


def refuses(refusal: Refusal) -> "pytest.RaisesExc[Refused]":
    return pytest.raises(Refused, check=lambda error: error.refusal is refusal)


async def alone(cluster: Cluster, settings: GroupSettings | None = None, partitions: int = 4) -> Coordinator:
    broker = await (cluster.broker() if settings is None else cluster.broker(settings))
    await cluster.topic(partitions=partitions)
    return broker


async def test_a_sign_of_life_writes_nothing(cluster: Cluster) -> None:
    broker = await alone(cluster)
    one, two = NewConsumer(broker, "one"), NewConsumer(broker, "two")
    await one.beat()
    await settle(one, two)
    puts = broker.store.puts
    for _ in range(10):
        assert (await one.beat()).beaten.assigned is None
        await two.beat()
    assert broker.store.puts == puts


async def test_who_waits_for_others_writes_nothing_either(cluster: Cluster) -> None:
    broker = await alone(cluster)
    one, two = NewConsumer(broker, "one"), NewConsumer(broker, "two")
    await one.beat()
    await two.beat()
    puts = broker.store.puts
    for _ in range(5):
        told = await two.beat()
        assert (told.beaten.epoch, two.owned) == (2, frozenset())
        assert told.next_ms == broker.groups.settings.heartbeat_ms_min, "it need not wait for long"
    assert broker.store.puts == puts


async def test_nobody_hears_of_a_step_before_it_is_stored(cluster: Cluster) -> None:
    broker = await alone(cluster)
    one, two = NewConsumer(broker, "one"), NewConsumer(broker, "two")
    await one.beat()
    broker.store.gate.clear()
    joining = asyncio.create_task(two.beat())
    await asyncio.sleep(0.02)
    beating = asyncio.create_task(one.beat())
    await asyncio.sleep(0.02)
    assert not joining.done()
    assert not beating.done()
    broker.store.gate.set()
    assert (await joining).beaten.epoch == 2
    assert len((await beating).beaten.assigned or ()) == 2


async def test_when_the_coordinator_dies_its_members_go_on_without_a_rebalance(cluster: Cluster) -> None:
    for _ in range(3):
        await cluster.broker()
    partition = await cluster.topic(partitions=4)
    first = await cluster.of("g")
    one, two = NewConsumer(first, "one"), NewConsumer(first, "two")
    await settle(one, two)
    before = await one.described()
    assert await one.commit(partition, 5) is None
    await cluster.bury(first)
    one.at = two.at = next(other for other in cluster.brokers if other is not first and other.groups.is_mine("g"))
    for member in (one, two):
        epoch = member.epoch
        told = await member.beat()
        assert (told.beaten.epoch, told.beaten.assigned) == (epoch, None)
    assert await one.described() == before
    assert await one.commit(partition, 6) is None


async def test_an_epoch_is_given_out_by_one_only(cluster: Cluster) -> None:
    one, other = await cluster.broker(), await cluster.broker()
    await cluster.topic(partitions=4)
    await one.believes_alone()
    await other.believes_alone()
    old = NewConsumer(one, "m")
    await old.beat()
    assert (await NewConsumer(other, "n").beat()).beaten.epoch == 2
    with refuses(Refusal.NOT_COORDINATOR):
        await NewConsumer(one, "o").beat()
    assert set((await old.described()).members) == {"m", "n"}


async def test_a_store_that_does_not_answer_is_told_so(cluster: Cluster) -> None:
    broker = await alone(cluster)
    one = NewConsumer(broker, "one")
    await one.beat()
    broker.store.trouble = Unavailable("no answer")
    with refuses(Refusal.COORDINATOR_NOT_AVAILABLE):
        await NewConsumer(broker, "two").beat()
    broker.store.trouble = None
    assert set((await one.described()).members) == {"one"}
    assert (await one.beat()).beaten.epoch == 1


async def test_a_transaction_is_told_of_an_epoch_in_words_that_producers_know(cluster: Cluster) -> None:
    broker = await alone(cluster)
    member = NewConsumer(broker, "m")
    await member.beat()
    for certain in (False, True):
        check = broker.groups.check_commit
        assert await check("g", Committer("m", None, 1), certain=certain) is None
        assert await check("g", Committer("m", None, 9), certain=certain) is Refusal.ILLEGAL_GENERATION
        assert await check("g", Committer("x", None, 1), certain=certain) is Refusal.UNKNOWN_MEMBER_ID
        assert await check("g", Committer(), certain=certain) is None, "a client of old"


async def test_an_empty_group_is_deleted_and_forgotten(cluster: Cluster) -> None:
    broker = await alone(cluster)
    member = NewConsumer(broker, "m")
    await member.beat()
    assert await broker.groups.delete("g") is Refusal.NON_EMPTY_GROUP
    await member.leave()
    assert await broker.groups.delete("g") is None
    assert await broker.groups.names() == []
    with refuses(Refusal.GROUP_ID_NOT_FOUND):
        await member.leave()
    member.epoch = 0
    assert (await member.beat()).beaten.epoch == 1, "another group of that name"


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def beats_until_all_is_its_own(member: NewConsumer) -> None:
    async with asyncio.timeout(30):
        while len(member.owned) < 4:
            await asyncio.sleep(0.1)
            await member.beat()


async def test_who_is_silent_is_put_out(cluster: Cluster) -> None:
    broker = await alone(cluster, QUICK)
    silent, loud = NewConsumer(broker, "silent"), NewConsumer(broker, "loud")
    await settle(silent, loud)
    await beats_until_all_is_its_own(loud)
    with refuses(Refusal.UNKNOWN_MEMBER_ID):
        await silent.beat()


async def test_a_commit_is_a_sign_of_life(cluster: Cluster) -> None:
    broker = await alone(cluster, QUICK)
    member = NewConsumer(broker, "m")
    await member.beat()
    for offset in range(5):
        await asyncio.sleep(0.5)
        assert await member.commit(PartitionId("aa", 0), offset) is None


async def test_who_does_not_give_back_in_time_is_put_out(cluster: Cluster) -> None:
    broker = await alone(cluster)
    slow, waits = NewConsumer(broker, "slow"), NewConsumer(broker, "waits")
    slow.rebalance_ms = 1_000
    await slow.beat()
    await waits.beat()
    await slow.beat()  # it is told to give back, and does not say that it did
    await beats_until_all_is_its_own(waits)
    with refuses(Refusal.UNKNOWN_MEMBER_ID):
        await slow.beat()


async def test_a_static_member_that_does_not_come_back_is_put_out(cluster: Cluster) -> None:
    broker = await alone(cluster, QUICK)
    away, stays = NewConsumer(broker, "away", instance="i"), NewConsumer(broker, "stays")
    await settle(away, stays)
    await away.leave(LEAVE_FOR_A_WHILE)
    await stays.beat()
    assert len(stays.owned) == 2
    await beats_until_all_is_its_own(stays)


async def test_a_broker_that_slept_asks_before_it_believes(cluster: Cluster) -> None:
    broker = await alone(cluster, QUICK)
    member = NewConsumer(broker, "m")
    await member.beat()
    time.sleep(2.3)  # noqa: ASYNC251 -- the whole process sleeps
    assert (await member.beat()).beaten.epoch == 1, "that it heard nothing was its own fault"


async def test_few_members_are_heard_often(cluster: Cluster) -> None:
    broker = await alone(cluster)
    one = NewConsumer(broker, "one")
    assert (await one.beat()).next_ms == 500
    broker.groups._beating = 2_000
    assert (await one.beat()).next_ms == 2_000
    broker.groups._beating = 20_000
    assert (await one.beat()).next_ms == 5_000


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_topics_that_come_go_and_grow_are_noticed(cluster: Cluster) -> None:
    broker = await alone(cluster, partitions=1)
    named, fits = NewConsumer(broker, "named"), NewConsumer(broker, "fits", "h")
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
    await cluster.look_at_topics()
    await settle(named)
    await settle(fits)
    assert (len(named.owned), len(fits.owned)) == (0, 1)


async def test_a_setting_of_a_topic_changes_nothing(cluster: Cluster) -> None:
    broker = await alone(cluster)
    member = NewConsumer(broker, "m")
    await member.beat()
    puts = broker.store.puts
    await cluster.topics.set("t", {"retention.ms": "1000"})
    await cluster.look_at_topics()
    assert (await member.beat()).beaten.epoch == 1
    assert broker.store.puts == puts


# ── both protocols ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_group_of_both_protocols_outlives_its_coordinator(cluster: Cluster) -> None:
    for _ in range(2):
        await cluster.broker()
    await cluster.topic(partitions=4)
    first = await cluster.of("g")
    new = NewConsumer(first, "new")
    await new.beat()
    old = Consumer(first, metadata=b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff")
    assert (await old.join()).refusal is None
    share = (await old.sync()).assignment
    await new.beat()
    await new.beat()
    assert await old.beat() is Refusal.REBALANCE_IN_PROGRESS, "what it waits for is free"
    assert (await old.join()).refusal is None
    share = (await old.sync()).assignment
    before = await new.described()
    await cluster.bury(first)
    new.at = old.at = next(other for other in cluster.brokers if other is not first)
    assert await old.beat() is None
    assert (await new.beat()).beaten.assigned is None
    assert (await old.sync()).assignment == share
    assert await new.described() == before
    await new.leave()
    record = await old.described()
    assert isinstance(record, GroupRecord)
    assert set(record.members) == {old.id}


async def test_a_classic_member_that_never_heard_its_id_is_gone(cluster: Cluster) -> None:
    broker = await alone(cluster)
    new = NewConsumer(broker, "new")
    await new.beat()
    broker.store.gate.clear()
    joining = asyncio.create_task(Consumer(broker, metadata=b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff").join())
    await asyncio.sleep(0.01)
    joining.cancel()
    await asyncio.wait([joining])
    broker.store.gate.set()
    await new.beat()
    assert set((await new.described()).members) == {"new"}


# ── many ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_thousand_members(cluster: Cluster) -> None:
    broker = await alone(cluster, partitions=2_000)
    members = [NewConsumer(broker, f"member-{number:04}") for number in range(1_000)]
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
    late = NewConsumer(broker, "late")
    await late.beat()
    print(f"1,000 members came in {took_s:.2f} s with {puts} writes; a heartbeat of each takes {beat_s:.3f} s")
    assert puts < 20
    assert took_s < 5
    assert beat_s < 1


async def test_ten_thousand_groups(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestream.coordination.groups.coordinator.STALL_MS", 600_000)  # machines may be busy
    broker = await alone(cluster, partitions=1)
    members = [NewConsumer(broker, "m", f"group-{number}") for number in range(10_000)]

    async def all_beat() -> None:
        for start in range(0, len(members), 200):
            await asyncio.gather(*(member.beat() for member in members[start : start + 200]))

    began = time.process_time()
    await all_beat()
    took_s = time.process_time() - began
    began, puts = time.process_time(), broker.store.puts
    await all_beat()
    beat_s = time.process_time() - began
    print(f"10,000 groups were made in {took_s:.2f} s; a heartbeat in each takes {beat_s:.2f} s")
    assert broker.store.puts == puts
    assert {len(member.owned) for member in members} == {1}
    assert took_s < 20
    assert beat_s < 5


# ── whatever happens ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(10))
async def test_nobody_shares_whoever_coordinates(cluster: Cluster, seed: int) -> None:
    """Members come, go and lose their answers; coordinators change, and the old one does not always know."""
    luck = random.Random(seed)
    for _ in range(2):
        await cluster.broker()
    await cluster.topic(partitions=5)
    for broker in cluster.brokers:
        await broker.believes_alone()
    members: list[NewConsumer] = []
    for step in range(150):
        if luck.random() < 0.1 and len(members) < 5:
            members.append(NewConsumer(luck.choice(cluster.brokers), f"m{step}"))
        elif luck.random() < 0.05 and members:
            await _left(members.pop(luck.randrange(len(members))))
        some = luck.sample(members, luck.randrange(len(members) + 1))
        await asyncio.gather(*(_asked(member, luck) for member in some))
        owned = [partition for member in members for partition in member.owned]
        assert len(owned) == len(set(owned)), "two have the same"
    at = cluster.brokers[0]
    members.append(NewConsumer(at, "last"))
    for member in members:
        member.at = at
    for _ in range(12):
        for member in members:
            await _asked(member, None)
    shares = [len(member.owned) for member in members]
    assert sum(shares) == 5
    assert max(shares) - min(shares) <= 1


async def _left(member: NewConsumer) -> None:
    for _ in range(3):  # whoever does not coordinate it learns so, and reads it again
        try:
            await member.leave()
            return
        except Refused as refused:
            if refused.refusal is not Refusal.NOT_COORDINATOR:
                return


async def _asked(member: NewConsumer, luck: random.Random | None) -> None:
    """A client: looks for the coordinator where it is told that it is not here, and joins again where it has to."""
    if luck is not None and luck.random() < 0.1:
        member.at = luck.choice(member.at.world.brokers)
    epoch, owned = member.epoch, member.owned
    try:
        await member.beat()
    except Refused as refused:
        if refused.refusal in (Refusal.UNKNOWN_MEMBER_ID, Refusal.FENCED_MEMBER_EPOCH):
            member.epoch, member.owned = 0, frozenset()
        return
    except LakestreamError:
        return
    if luck is not None and luck.random() < 0.1 and epoch:
        member.epoch, member.owned, member._told = epoch, owned, None  # the answer was lost: it says all again
