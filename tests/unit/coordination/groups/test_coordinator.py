"""Coordinators that come and go, two at once, a store that does not answer: members go on, and nothing goes back."""

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from tests.unit.coordination.groups.brokers import QUICK, Cluster, Consumer

from lakestream.coordination.groups.coordinator import GroupSettings
from lakestream.coordination.groups.expiry import LEFTOVER_MS, Expiry
from lakestream.coordination.groups.offsets import Committer
from lakestream.coordination.groups.refusals import Refusal, Refused
from lakestream.coordination.groups.values import Rules
from lakestream.errors import Unavailable, Uncertain
from lakestream.metadata import keys
from lakestream.metadata.groups import Committed, GroupRecord, State
from lakestream.metadata.groups import Groups as GroupRecords
from lakestream.metadata.store import ABSENT, put_one
from lakestream.model import PartitionId

P = PartitionId("aa", 0)
DAY = 24 * 60 * 60 * 1000


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    yield cluster
    await cluster.close()


async def nothing_held(group: str) -> set[PartitionId]:
    """By transactions."""
    return set()


def refuses(refusal: Refusal) -> "pytest.RaisesExc[Refused]":
    return pytest.raises(Refused, check=lambda error: error.refusal is refusal)


async def test_a_sign_of_life_writes_nothing(cluster: Cluster) -> None:
    broker = await cluster.broker()
    member = await Consumer(broker).alone()
    puts = broker.store.puts
    assert await member.beat() is None
    assert broker.store.puts == puts


async def test_nobody_hears_of_a_step_before_it_is_stored(cluster: Cluster) -> None:
    broker = await cluster.broker()
    member = await Consumer(broker).alone()
    broker.store.gate.clear()
    joining = asyncio.create_task(member.join())
    await asyncio.sleep(0.02)
    beating = asyncio.create_task(member.beat())
    await asyncio.sleep(0.02)
    assert not joining.done()
    assert not beating.done(), "what it would hear is of a generation that nobody knows"
    broker.store.gate.set()
    assert (await joining).generation == 2
    assert await beating is Refusal.ILLEGAL_GENERATION


async def test_when_the_coordinator_dies_its_members_go_on_without_a_rebalance(cluster: Cluster) -> None:
    for _ in range(3):
        await cluster.broker()
    first = await cluster.of("g")
    member = await Consumer(first).alone()
    assert await member.commit(P, 5) is None
    await cluster.bury(first)
    second = next(other for other in cluster.brokers if other is not first and other.groups.is_mine("g"))
    member.at = second
    assert await member.beat() is None
    assert (await member.sync()).assignment == b"all"
    assert await member.committed(P) == 5
    assert await member.commit(P, 6) is None
    record = await member.described()
    assert record is not None
    assert (record.generation, record.state) == (1, State.STABLE)


async def test_who_is_not_chosen_says_so(cluster: Cluster) -> None:
    for _ in range(2):
        await cluster.broker()
    other = next(one for one in cluster.brokers if not one.groups.is_mine("g"))
    with refuses(Refusal.NOT_COORDINATOR):
        await Consumer(other).join()
    with refuses(Refusal.NOT_COORDINATOR):
        await Consumer(other).committed(P)


async def test_who_is_no_longer_chosen_sends_its_members_away(cluster: Cluster) -> None:
    names = [f"g{number}" for number in range(20)]
    first = await cluster.broker()
    members = [await Consumer(first, name).alone() for name in names]
    waiting = asyncio.create_task(Consumer(first, names[0]).join())
    await asyncio.sleep(0)
    second = await cluster.broker()
    moved = [member for member in members if second.groups.is_mine(member.group)]
    assert 0 < len(moved) < 20
    for member in members:
        if member in moved:
            with refuses(Refusal.NOT_COORDINATOR):
                await member.beat()
            member.at = second
        assert await member.beat() in (None, Refusal.REBALANCE_IN_PROGRESS)
    waiting.cancel()


async def test_who_is_not_seen_by_the_others_forgets_its_groups(cluster: Cluster) -> None:
    broker = await cluster.broker()
    member = await Consumer(broker).alone()
    broker.seen = False
    with refuses(Refusal.NOT_COORDINATOR):
        await member.beat()
    broker.seen = True
    assert await member.beat() is None


# ── two at once ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def two(cluster: Cluster) -> tuple[Consumer, Consumer]:
    """A member of each of two brokers that both believe to coordinate the group. The second has it."""
    one, other = await cluster.broker(), await cluster.broker()
    await one.believes_alone()
    await other.believes_alone()
    old = await Consumer(one).alone()
    new = Consumer(other)
    new.id, new.generation = old.id, old.generation
    assert await new.beat() is None
    return old, new


async def test_a_commit_through_the_old_one_is_refused(cluster: Cluster) -> None:
    old, new = await two(cluster)
    assert await new.commit(P, 7) is None
    with refuses(Refusal.NOT_COORDINATOR):
        await old.commit(P, 5)
    assert await new.committed(P) == 7
    assert await old.committed(P) == 7, "what it says of offsets is never old"


async def test_a_generation_is_given_out_by_one_only(cluster: Cluster) -> None:
    old, new = await two(cluster)
    answers = await asyncio.gather(old.join(), new.join(), return_exceptions=True)
    won = [answer for answer in answers if not isinstance(answer, BaseException)]
    lost = [answer for answer in answers if isinstance(answer, Refused)]
    assert [answer.generation for answer in won] == [2]
    assert [error.refusal for error in lost] == [Refusal.NOT_COORDINATOR]


async def test_a_commit_that_came_too_late_does_not_stop_the_new_one(cluster: Cluster) -> None:
    """It took effect in the store, though nobody was told so."""
    _, new = await two(cluster)
    await put_one(new.at.store, keys.offset_key("g", P), msgspec.msgpack.encode(Committed(5, 0, "", 0, 1)))
    assert await new.commit(P, 7) is None
    assert await new.committed(P) == 7
    assert await new.commit(P, 8) is None


async def test_the_old_one_does_not_cover_what_is_newer_although_it_looks_again(cluster: Cluster) -> None:
    """It finds the new version of an offset, and asks whether it has the group still before it writes over it."""
    old, new = await two(cluster)
    assert await new.commit(P, 7) is None
    for offset in (1, 2, 3):
        with refuses(Refusal.NOT_COORDINATOR):
            await old.commit(P, offset)
        assert await new.committed(P) == 7
        assert await new.beat() is None  # who loads it takes it over
        assert await old.beat() is None
        with refuses(Refusal.NOT_COORDINATOR):
            await new.commit(P, 7)
        assert await new.beat() is None


# ── trouble ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("trouble", [Unavailable("no answer"), Uncertain("no answer")])
async def test_a_store_that_does_not_answer_is_told_so_and_nothing_is_lost(
    cluster: Cluster, trouble: Unavailable
) -> None:
    broker = await cluster.broker()
    member = await Consumer(broker).alone()
    assert await member.commit(P, 5) is None
    broker.store.trouble = trouble
    with refuses(Refusal.COORDINATOR_NOT_AVAILABLE):
        await member.commit(P, 6)
    with pytest.raises(Unavailable):
        await member.beat()
    broker.store.trouble = None
    assert await member.beat() is None
    assert await member.committed(P) in (5, 6)
    assert await member.commit(P, 7) is None
    assert await member.committed(P) == 7


async def test_a_broker_that_slept_asks_before_it_believes(cluster: Cluster) -> None:
    broker = await cluster.broker()
    member = await Consumer(broker, session_ms=1_000).alone()
    records = GroupRecords(cluster.server.client())
    time.sleep(2.3)  # noqa: ASYNC251 -- the whole process sleeps
    assert await member.beat() is None, "that it heard nothing was its own fault"
    claimed = await records.claim("g", "another")
    time.sleep(2.3)  # noqa: ASYNC251
    with refuses(Refusal.NOT_COORDINATOR):
        await member.beat()
    assert claimed.group is not None


async def test_who_is_silent_is_put_out(cluster: Cluster) -> None:
    broker = await cluster.broker()
    silent = await Consumer(broker, session_ms=1_000).alone()
    loud = Consumer(broker, session_ms=5_000)
    joining = asyncio.create_task(loud.join())
    assert (await joining).members[0].member_id == loud.id
    await loud.sync()
    assert await silent.beat() is Refusal.UNKNOWN_MEMBER_ID
    assert await loud.beat() is None
    async with asyncio.timeout(30):
        while (record := await loud.described()) is None or record.state is not State.EMPTY:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert record.members == {}


async def test_a_sign_of_life_keeps_a_member_in(cluster: Cluster) -> None:
    member = await Consumer(await cluster.broker(), session_ms=1_500).alone()
    for _ in range(4):
        await asyncio.sleep(0.5)
        assert await member.beat() is None


async def test_a_commit_is_a_sign_of_life(cluster: Cluster) -> None:
    member = await Consumer(await cluster.broker(), session_ms=1_500).alone()
    for offset in range(4):
        await asyncio.sleep(0.5)
        assert await member.commit(P, offset) is None


async def test_a_member_that_never_heard_its_id_holds_up_nobody(cluster: Cluster) -> None:
    broker = await cluster.broker()
    leader = await Consumer(broker).alone()
    gone = asyncio.create_task(Consumer(broker).join())
    await asyncio.sleep(0.01)
    assert await leader.beat() is Refusal.REBALANCE_IN_PROGRESS
    gone.cancel()
    await asyncio.wait([gone])
    assert [one.member_id for one in (await leader.join()).members] == [leader.id]


async def test_when_it_stops_whoever_waits_is_sent_to_the_next(cluster: Cluster) -> None:
    broker = await cluster.broker()
    await Consumer(broker).alone()
    joining = asyncio.create_task(Consumer(broker).join())
    await asyncio.sleep(0.01)
    await broker.groups.close()
    with refuses(Refusal.NOT_COORDINATOR):
        await joining
    with refuses(Refusal.NOT_COORDINATOR):
        await Consumer(broker).join()


# ── into memory and out of it ────────────────────────────────────────────────────────────────────────────────────────


async def test_to_ask_for_a_group_that_is_not_there_leaves_nothing(cluster: Cluster) -> None:
    broker = await cluster.broker()
    nobody = Consumer(broker)
    nobody.id = "nobody"
    assert await nobody.beat() is Refusal.UNKNOWN_MEMBER_ID
    assert (await nobody.join()).refusal is Refusal.UNKNOWN_MEMBER_ID
    assert await nobody.leave() is Refusal.UNKNOWN_MEMBER_ID
    assert await nobody.described() is None
    assert await nobody.committed(P) is None
    assert await broker.groups.delete("g") is Refusal.GROUP_ID_NOT_FOUND
    assert len(broker.groups) == 0
    assert broker.store.puts == 0
    assert (await Consumer(broker).join(id_first=True)).refusal is Refusal.MEMBER_ID_REQUIRED
    assert broker.store.puts == 0, "an id that was only given out is not worth a write"
    assert await broker.groups.mine() == []


async def test_only_so_many_groups_are_held(cluster: Cluster) -> None:
    broker = await cluster.broker(GroupSettings(rules=QUICK.rules, groups_max=2))
    idle = Consumer(broker, "idle")
    assert await idle.commit(P, 5) is None
    await Consumer(broker, "one").alone()
    await Consumer(broker, "two").alone()  # the idle one made room
    with refuses(Refusal.COORDINATOR_NOT_AVAILABLE):
        await Consumer(broker, "three").join()
    assert await idle.committed(P) == 5
    assert {named.name for named in await broker.groups.mine()} == {"idle", "one", "two"}


async def test_a_thousand_members(cluster: Cluster) -> None:
    broker = await cluster.broker(GroupSettings(rules=Rules(opening_ms=200)))
    members = [Consumer(broker) for _ in range(1_000)]
    joined = await asyncio.gather(*(member.join() for member in members))
    leader = next(member for member, answer in zip(members, joined, strict=True) if answer.members)
    assert {member.generation for member in members} == {1}
    synced = await asyncio.gather(
        *(member.sync(**({one.id: one.id for one in members} if member is leader else {})) for member in members)
    )
    assert [answer.assignment.decode() for answer in synced] == [member.id for member in members]
    assert await asyncio.gather(*(member.beat() for member in members)) == [None] * 1_000
    assert broker.store.puts < 20


async def test_a_deletion_that_was_broken_off_is_finished_by_whoever_comes_next(cluster: Cluster) -> None:
    broker = await cluster.broker()
    records = GroupRecords(cluster.server.client())
    one = Committed(5, 0, "", 0, -1)
    await records.write("g", "dead", ABSENT, [(P, one, ABSENT)], (GroupRecord(state=State.DEAD), ABSENT))
    assert await broker.groups.mine() == []
    assert await Consumer(broker).described() is None
    assert await records.names() == []
    assert await records.offsets("g") == {}
    await Consumer(broker).alone()


# ── what is forgotten ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_offsets_are_forgotten_some_time_after_the_last_member_left(cluster: Cluster) -> None:
    broker = await cluster.broker()
    topic = await cluster.topic()
    expiry = Expiry(broker.groups, broker.view, cluster.clock, nothing_held)
    member = await Consumer(broker).alone()
    assert await member.commit(topic, 5) is None
    cluster.clock.ms += 30 * DAY
    await expiry.round()
    assert await member.committed(topic) == 5, "it has members"
    await member.leave()
    cluster.clock.ms += 7 * DAY - 1
    await expiry.round()
    assert await member.committed(topic) == 5
    cluster.clock.ms += 1
    await expiry.round()
    assert await member.committed(topic) is None
    assert await broker.groups.mine() == []


async def test_what_a_transaction_holds_is_not_forgotten(cluster: Cluster) -> None:
    """A group has no offsets before the first transaction that commits some has ended."""
    broker = await cluster.broker()
    topic = await cluster.topic()
    held = {topic}

    async def pending(group: str) -> set[PartitionId]:
        return held

    expiry = Expiry(broker.groups, broker.view, cluster.clock, pending)
    assert await broker.groups.check_commit("g", Committer(), certain=True) is None
    await expiry.round()
    assert [one.name for one in await broker.groups.mine()] == ["g"]
    held = set()
    await expiry.round()
    assert await broker.groups.mine() == []


async def test_who_asks_later_is_later_on_whichever_broker(cluster: Cluster) -> None:
    for _ in range(2):
        await cluster.broker()
    first = await cluster.of("g")
    member = await Consumer(first).alone()
    asked = [await first.groups.ask("g"), await first.groups.ask("g")]
    assert await member.commit(P, 5) is None
    asked += [(await GroupRecords(first.store).offsets("g"))[P].committed.asked, await first.groups.ask("g")]
    await cluster.bury(first)
    asked.append(await (await cluster.of("g")).groups.ask("g"))
    assert asked == sorted(set(asked))


async def test_offsets_go_with_their_topic(cluster: Cluster) -> None:
    broker = await cluster.broker()
    expiry = Expiry(broker.groups, broker.view, cluster.clock, nothing_held)
    gone, stays = await cluster.topic("gone"), await cluster.topic("stays")
    member = await Consumer(broker).alone()
    for topic in (gone, stays):
        assert await member.commit(topic, 5) is None
    await cluster.topics.delete("gone")
    await broker.view.look_at_topics()
    await expiry.round()
    assert await member.committed(gone) is None
    assert await member.committed(stays) == 5
    assert await member.commit(stays, 6) is None


async def test_a_name_without_a_group_is_forgotten_after_a_while(cluster: Cluster) -> None:
    broker = await cluster.broker()
    expiry = Expiry(broker.groups, broker.view, cluster.clock, nothing_held)
    await put_one(broker.store, keys.group_name_key("left"), b"")
    await expiry.round()
    assert len(await broker.groups.names()) == 1, "its group may be about to be made"
    cluster.clock.ms += LEFTOVER_MS + 1
    await expiry.round()
    assert await broker.groups.names() == []


async def test_it_counts_what_it_does(cluster: Cluster) -> None:
    broker = await cluster.broker()
    member = await Consumer(broker).alone()
    assert await member.commit(P, 5) is None
    assert await Consumer(broker).commit(P, 6) is not None, "refused"
    assert broker.groups.figures() == (1, 1, 1, 1)
    await member.beat()
    assert broker.groups.figures() == (1, 1, 1, 1)
    await member.leave()
    assert await broker.groups.delete("g") is None
    assert broker.groups.figures() == (0, 0, 2, 1)
