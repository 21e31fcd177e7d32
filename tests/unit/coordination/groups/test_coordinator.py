"""Groups when coordinators change or run concurrently, and when the store fails: no state is lost or reverted."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from tests.harness.groups.group_brokers import QUICK, ClassicMember, Cluster

from lakestream.coordination.groups.coordinator import GroupSettings
from lakestream.coordination.groups.errors import GroupError, GroupRequestFailed
from lakestream.coordination.groups.messages import GroupLimits
from lakestream.coordination.groups.offset_expiration import LEFTOVER_MS, OffsetExpiration
from lakestream.coordination.groups.offset_rules import Committer
from lakestream.errors import LakestreamError, Unavailable, Uncertain
from lakestream.metadata import keys
from lakestream.metadata.group_records import BlockId, CommitSequence, packed_block, packed_offset
from lakestream.metadata.groups import Committed, GroupRecord, GroupState, OffsetBlock
from lakestream.metadata.groups import Groups as GroupRecords
from lakestream.metadata.store import ABSENT, put_one
from lakestream.model import PartitionId

P, Q = PartitionId("aa", 0), PartitionId("aa", 1)
DAY = 24 * 60 * 60 * 1000


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    yield cluster
    await cluster.close()


async def no_pending_offsets(group: str) -> set[PartitionId]:
    """No offset is pending in a transaction."""
    return set()


def raises(error: GroupError) -> "pytest.RaisesExc[GroupRequestFailed]":
    return pytest.raises(GroupRequestFailed, check=lambda raised: raised.error is error)


async def test_heartbeat_writes_nothing(cluster: Cluster) -> None:
    broker = await cluster.broker()
    member = await ClassicMember(broker).alone()
    puts = broker.store.puts
    assert await member.beat() is None
    assert broker.store.puts == puts


async def test_no_reply_is_sent_before_the_transition_is_stored(cluster: Cluster) -> None:
    broker = await cluster.broker()
    member = await ClassicMember(broker).alone()
    broker.store.gate.clear()
    joining = asyncio.create_task(member.join())
    await asyncio.sleep(0.02)
    beating = asyncio.create_task(member.beat())
    await asyncio.sleep(0.02)
    assert not joining.done()
    assert not beating.done(), "the reply would name a generation that is not stored"
    broker.store.gate.set()
    assert (await joining).generation == 2
    assert await beating is GroupError.ILLEGAL_GENERATION


async def test_members_continue_without_a_rebalance_when_the_coordinator_dies(cluster: Cluster) -> None:
    for _ in range(3):
        await cluster.broker()
    first = await cluster.of("g")
    member = await ClassicMember(first).alone()
    assert await member.commit(P, 5) is None
    await cluster.expire_broker(first)
    second = next(other for other in cluster.brokers if other is not first and other.groups.coordinates("g"))
    member.at = second
    assert await member.beat() is None
    assert (await member.sync()).assignment == b"all"
    assert await member.committed(P) == 5
    assert await member.commit(P, 6) is None
    record = await member.described()
    assert record is not None
    assert (record.generation, record.state) == (1, GroupState.STABLE)


@pytest.mark.parametrize("kind", ["block", "single"])
async def test_commit_to_a_new_group_wins_over_an_offset_of_a_deleted_group(cluster: Cluster, kind: str) -> None:
    """A suspended coordinator of the deleted group wrote it late, or a transaction did."""
    broker = await cluster.broker()
    stored = await put_one(broker.store, keys.owner_key("other"), b"")  # a version of the store's counter
    late = Committed(5, 0, "", 0, 1, sequence=CommitSequence(stored.version, 7))
    if kind == "block":
        await put_one(broker.store, keys.offset_block_key("g", *BlockId.of(P)), packed_block({P.number: late}))
    else:
        await put_one(broker.store, keys.offset_key("g", P), packed_offset(late))
    assert await broker.groups.commit("g", Committer(), {P: Committed(9, 0, "", 0, 1)}) is None
    assert (await broker.groups.offsets("g"))[P].offset == 9


@pytest.mark.parametrize("ahead_ms", [0, 10 * DAY, -10 * DAY])
async def test_member_that_died_gets_no_whole_session_from_the_next_coordinator(
    cluster: Cluster, ahead_ms: int
) -> None:
    """A wrong clock moves the end of a session by at most half a session."""
    old = await cluster.broker()
    await old.isolate()
    dead = await ClassicMember(old, session_ms=3_000).alone()
    cluster.clock.ms += 2_800 + ahead_ms
    dead.at = await cluster.broker()
    await dead.at.isolate()
    before_s = asyncio.get_running_loop().time()
    while (record := await dead.described()) is not None and record.members:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    lasted_s = asyncio.get_running_loop().time() - before_s
    assert record is not None
    assert lasted_s > 1.45, "a member that is alive has to find its new coordinator"
    assert lasted_s < (4 if ahead_ms < 0 else 2.5)


async def test_sessions_continue_from_the_last_heartbeats_when_the_coordinator_changes(cluster: Cluster) -> None:
    """All heartbeats after the last rebalance are only in the memory of the first coordinator."""
    old = await cluster.broker()
    member = await ClassicMember(old, session_ms=2_000).alone()
    began_s, puts = asyncio.get_running_loop().time(), old.store.puts
    for _ in range(12):
        await asyncio.sleep(0.3)
        assert await member.beat() is None
    claimed = await GroupRecords(cluster.server.client()).claim("g", "another")
    elapsed_s = asyncio.get_running_loop().time() - began_s
    heard_s = (claimed.heard_ms[member.id] - cluster.clock.now_ms()) / 1000
    assert elapsed_s - heard_s < 2
    assert old.store.puts - puts <= elapsed_s, "the times are stored at most every half session"


async def test_heartbeats_continue_when_their_times_cannot_be_stored(cluster: Cluster) -> None:
    broker = await cluster.broker()
    member = await ClassicMember(broker, session_ms=2_000).alone()
    broker.store.error = Unavailable("no answer")
    for _ in range(8):
        await asyncio.sleep(0.3)
        assert await member.beat() is None
    broker.store.error = None
    assert await member.commit(P, 5) is None


async def test_not_coordinator_when_the_broker_is_not_chosen(cluster: Cluster) -> None:
    for _ in range(2):
        await cluster.broker()
    other = next(one for one in cluster.brokers if not one.groups.coordinates("g"))
    with raises(GroupError.NOT_COORDINATOR):
        await ClassicMember(other).join()
    with raises(GroupError.NOT_COORDINATOR):
        await ClassicMember(other).committed(P)


async def test_members_get_not_coordinator_when_another_broker_is_chosen(cluster: Cluster) -> None:
    names = [f"g{number}" for number in range(20)]
    first = await cluster.broker()
    members = [await ClassicMember(first, name).alone() for name in names]
    waiting = asyncio.create_task(ClassicMember(first, names[0]).join())
    await asyncio.sleep(0)
    second = await cluster.broker()
    moved = [member for member in members if second.groups.coordinates(member.group)]
    assert 0 < len(moved) < 20
    for member in members:
        if member in moved:
            with raises(GroupError.NOT_COORDINATOR):
                await member.beat()
            member.at = second
        assert await member.beat() in (None, GroupError.REBALANCE_IN_PROGRESS)
    waiting.cancel()


async def test_unregistered_broker_drops_its_groups(cluster: Cluster) -> None:
    broker = await cluster.broker()
    member = await ClassicMember(broker).alone()
    broker.registration.registered = False
    with raises(GroupError.NOT_COORDINATOR):
        await member.beat()
    broker.registration.registered = True
    assert await member.beat() is None


# ── two coordinators ──────────────────────────────────────────────────────────────────────────────────────────────────


async def two(cluster: Cluster) -> tuple[ClassicMember, ClassicMember]:
    """Returns members of two brokers that both consider themselves the coordinator. The second owns the group."""
    one, other = await cluster.broker(), await cluster.broker()
    await one.isolate()
    await other.isolate()
    old = await ClassicMember(one).alone()
    new = ClassicMember(other)
    new.id, new.generation = old.id, old.generation
    assert await new.beat() is None
    return old, new


async def test_commit_through_the_former_coordinator_is_rejected(cluster: Cluster) -> None:
    old, new = await two(cluster)
    assert await new.commit(P, 7) is None
    with raises(GroupError.NOT_COORDINATOR):
        await old.commit(P, 5)
    assert await new.committed(P) == 7
    assert await old.committed(P) == 7, "it never returns stale offsets"


async def test_generation_is_issued_by_only_one_coordinator(cluster: Cluster) -> None:
    old, new = await two(cluster)
    answers = await asyncio.gather(old.join(), new.join(), return_exceptions=True)
    won = [answer for answer in answers if not isinstance(answer, BaseException)]
    lost = [answer for answer in answers if isinstance(answer, GroupRequestFailed)]
    assert [answer.generation for answer in won] == [2]
    assert [error.error for error in lost] == [GroupError.NOT_COORDINATOR]


async def test_late_commit_of_the_former_coordinator_does_not_stop_the_new_one(cluster: Cluster) -> None:
    """The write took effect in the store, and its answer was lost."""
    _, new = await two(cluster)
    late = packed_block({one.number: Committed(5, 0, "", 0, 1) for one in (P, Q)})
    await put_one(new.at.store, keys.offset_block_key("g", *BlockId.of(P)), late)
    assert await new.commit(P, 7) is None
    assert (await new.committed(P), await new.committed(Q)) == (7, 5)
    assert await new.commit(P, 8) is None


async def test_former_coordinator_does_not_overwrite_newer_offsets_when_it_retries(cluster: Cluster) -> None:
    """After it read the new version of an offset, it confirms its ownership before it overwrites the offset."""
    old, new = await two(cluster)
    assert await new.commit(P, 7) is None
    for offset in (1, 2, 3):
        with raises(GroupError.NOT_COORDINATOR):
            await old.commit(P, offset)
        assert await new.committed(P) == 7
        assert await new.beat() is None  # loading the group claims it
        assert await old.beat() is None
        with raises(GroupError.NOT_COORDINATOR):
            await new.commit(P, 7)
        assert await new.beat() is None


# ── failures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("error", [Unavailable("no answer"), Uncertain("no answer")])
async def test_coordinator_not_available_and_no_commit_is_lost_when_the_store_does_not_respond(
    cluster: Cluster, error: Unavailable
) -> None:
    broker = await cluster.broker()
    member = await ClassicMember(broker).alone()
    assert await member.commit(P, 5) is None
    broker.store.error = error
    with raises(GroupError.COORDINATOR_NOT_AVAILABLE):
        await member.commit(P, 6)
    with pytest.raises(Unavailable):
        await member.beat()
    broker.store.error = None
    assert await member.beat() is None
    assert await member.committed(P) in (5, 6)
    assert await member.commit(P, 7) is None
    assert await member.committed(P) == 7


async def test_suspended_broker_confirms_ownership_before_it_replies(cluster: Cluster) -> None:
    broker = await cluster.broker()
    member = await ClassicMember(broker, session_ms=1_000).alone()
    records = GroupRecords(cluster.server.client())
    time.sleep(2.3)  # noqa: ASYNC251 -- suspends the whole process
    assert await member.beat() is None, "it could receive no heartbeats while it was suspended"
    claimed = await records.claim("g", "another")
    time.sleep(2.3)  # noqa: ASYNC251
    with raises(GroupError.NOT_COORDINATOR):
        await member.beat()
    assert claimed.group is not None


async def test_member_is_removed_when_its_session_expires(cluster: Cluster) -> None:
    broker = await cluster.broker()
    silent = await ClassicMember(broker, session_ms=1_000).alone()
    loud = ClassicMember(broker, session_ms=5_000)
    joining = asyncio.create_task(loud.join())
    assert (await joining).members[0].member_id == loud.id
    await loud.sync()
    assert await silent.beat() is GroupError.UNKNOWN_MEMBER_ID
    assert await loud.beat() is None
    async with asyncio.timeout(30):
        while (record := await loud.described()) is None or record.state is not GroupState.EMPTY:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert record.members == {}


async def test_heartbeat_extends_the_session(cluster: Cluster) -> None:
    member = await ClassicMember(await cluster.broker(), session_ms=1_500).alone()
    for _ in range(4):
        await asyncio.sleep(0.5)
        assert await member.beat() is None


async def test_commit_extends_the_session(cluster: Cluster) -> None:
    member = await ClassicMember(await cluster.broker(), session_ms=1_500).alone()
    for offset in range(4):
        await asyncio.sleep(0.5)
        assert await member.commit(P, offset) is None


async def test_cancelled_join_of_a_new_member_does_not_delay_the_rebalance(cluster: Cluster) -> None:
    broker = await cluster.broker()
    leader = await ClassicMember(broker).alone()
    cancelled = asyncio.create_task(ClassicMember(broker).join())
    await asyncio.sleep(0.01)
    assert await leader.beat() is GroupError.REBALANCE_IN_PROGRESS
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert [one.member_id for one in (await leader.join()).members] == [leader.id]


async def test_waiting_members_get_not_coordinator_when_the_broker_stops(cluster: Cluster) -> None:
    broker = await cluster.broker()
    await ClassicMember(broker).alone()
    joining = asyncio.create_task(ClassicMember(broker).join())
    await asyncio.sleep(0.01)
    await broker.groups.close()
    with raises(GroupError.NOT_COORDINATOR):
        await joining
    with raises(GroupError.NOT_COORDINATOR):
        await ClassicMember(broker).join()


async def test_requests_that_wait_for_the_store_get_an_error_when_the_broker_stops(cluster: Cluster) -> None:
    """Shared reads are cancelled. A request that were cancelled with them would have no response."""
    first = await cluster.broker()
    member = await ClassicMember(first).alone()
    await first.isolate()
    member.at = broker = await cluster.broker()
    await broker.isolate()
    broker.store.readable.clear()
    loading, fetching = asyncio.create_task(member.beat()), asyncio.create_task(member.committed(P))
    await asyncio.sleep(0.02)
    await broker.groups.close()
    with pytest.raises(LakestreamError):
        await loading
    with pytest.raises(LakestreamError):
        await fetching


# ── into memory and out of it ────────────────────────────────────────────────────────────────────────────────────────


async def test_requests_for_a_missing_group_store_nothing(cluster: Cluster) -> None:
    broker = await cluster.broker()
    unknown = ClassicMember(broker)
    unknown.id = "unknown"
    assert await unknown.beat() is GroupError.UNKNOWN_MEMBER_ID
    assert (await unknown.join()).error is GroupError.UNKNOWN_MEMBER_ID
    assert await unknown.leave() is GroupError.UNKNOWN_MEMBER_ID
    assert await unknown.described() is None
    assert await unknown.committed(P) is None
    assert await broker.groups.delete("g") is GroupError.GROUP_ID_NOT_FOUND
    assert len(broker.groups) == 0
    assert broker.store.puts == 0
    assert (await ClassicMember(broker).join(id_first=True)).error is GroupError.MEMBER_ID_REQUIRED
    assert broker.store.puts == 0, "an id that was only given out is not stored"
    assert await broker.groups.list_coordinated() == []


async def test_idle_groups_are_dropped_when_the_limit_is_reached(cluster: Cluster) -> None:
    broker = await cluster.broker(GroupSettings(limits=QUICK.limits, groups_max=2))
    idle = ClassicMember(broker, "idle")
    assert await idle.commit(P, 5) is None
    await ClassicMember(broker, "one").alone()
    await ClassicMember(broker, "two").alone()  # the idle group was dropped
    with raises(GroupError.COORDINATOR_NOT_AVAILABLE):
        await ClassicMember(broker, "three").join()
    assert await idle.committed(P) == 5
    assert {named.name for named in await broker.groups.list_coordinated()} == {"idle", "one", "two"}


async def test_thousand_members_join_and_sync_in_one_generation(cluster: Cluster) -> None:
    broker = await cluster.broker(GroupSettings(limits=GroupLimits(initial_delay_ms=200)))
    members = [ClassicMember(broker) for _ in range(1_000)]
    joined = await asyncio.gather(*(member.join() for member in members))
    leader = next(member for member, answer in zip(members, joined, strict=True) if answer.members)
    assert {member.generation for member in members} == {1}
    synced = await asyncio.gather(
        *(member.sync(**({one.id: one.id for one in members} if member is leader else {})) for member in members)
    )
    assert [answer.assignment.decode() for answer in synced] == [member.id for member in members]
    assert await asyncio.gather(*(member.beat() for member in members)) == [None] * 1_000
    assert broker.store.puts < 20


async def test_interrupted_deletion_is_completed_by_the_next_coordinator(cluster: Cluster) -> None:
    broker = await cluster.broker()
    records = GroupRecords(cluster.server.client())
    one = Committed(5, 0, "", 0, -1)
    blocks = {BlockId.of(P): OffsetBlock({P.number: one}, ABSENT)}
    await records.write("g", "dead", ABSENT, blocks, (GroupRecord(state=GroupState.DEAD), ABSENT))
    assert await broker.groups.list_coordinated() == []
    assert await ClassicMember(broker).described() is None
    assert await records.names() == []
    assert await records.offsets("g") == {}
    await ClassicMember(broker).alone()


# ── what is forgotten ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_offsets_expire_some_time_after_the_last_member_left(cluster: Cluster) -> None:
    broker = await cluster.broker()
    topic = await cluster.topic()
    expiry = OffsetExpiration(broker.groups, broker.view, cluster.clock, no_pending_offsets)
    member = await ClassicMember(broker).alone()
    assert await member.commit(topic, 5) is None
    cluster.clock.ms += 30 * DAY
    await expiry.expire_all()
    assert await member.committed(topic) == 5, "it has members"
    await member.leave()
    cluster.clock.ms += 7 * DAY - 1
    await expiry.expire_all()
    assert await member.committed(topic) == 5
    cluster.clock.ms += 1
    await expiry.expire_all()
    assert await member.committed(topic) is None
    assert await broker.groups.list_coordinated() == []


async def test_offsets_do_not_expire_while_a_transaction_contains_them(cluster: Cluster) -> None:
    """A group has no offsets before the first transaction with offsets of it has completed."""
    broker = await cluster.broker()
    topic = await cluster.topic()
    pending_offsets = {topic}

    async def pending(group: str) -> set[PartitionId]:
        return pending_offsets

    expiry = OffsetExpiration(broker.groups, broker.view, cluster.clock, pending)
    assert await broker.groups.check_commit("g", Committer(), confirmed=True) is None
    await expiry.expire_all()
    assert [one.name for one in await broker.groups.list_coordinated()] == ["g"]
    pending_offsets = set()
    await expiry.expire_all()
    assert await broker.groups.list_coordinated() == []


async def test_commit_sequences_grow_across_brokers(cluster: Cluster) -> None:
    for _ in range(2):
        await cluster.broker()
    first = await cluster.of("g")
    member = await ClassicMember(first).alone()
    sequences = [await first.groups.next_commit_sequence("g"), await first.groups.next_commit_sequence("g")]
    assert await member.commit(P, 5) is None
    sequences += [
        (await GroupRecords(first.store).offsets("g"))[P].committed.sequence,
        await first.groups.next_commit_sequence("g"),
    ]
    await cluster.expire_broker(first)
    sequences.append(await (await cluster.of("g")).groups.next_commit_sequence("g"))
    assert sequences == sorted(set(sequences))


async def test_removed_offset_is_removed_from_all_its_records(cluster: Cluster) -> None:
    """Another broker completes a transaction with offsets of the group after this one has loaded the group."""
    broker = await cluster.broker()
    member = await ClassicMember(broker).alone()
    assert await member.commit(P, 5) is None
    for partition in (P, Q):
        sequence = await broker.groups.next_commit_sequence("g")
        value = packed_offset(Committed(7, 0, "", 0, 1, sequence=sequence))
        await put_one(broker.store, keys.offset_key("g", partition), value)
    await broker.groups.remove_offsets("g", [P])
    assert (await member.committed(P), await member.committed(Q)) == (None, 7)
    await broker.groups.remove_offsets("g", [Q])
    assert [record.name for record in (await broker.store.scan(keys.offsets_folder("g"))).records] == [keys.OWNER_NAME]
    assert await member.commit(P, 8) is None
    assert await member.committed(P) == 8


@pytest.mark.parametrize("own_is_later", [False, True])
async def test_interrupted_removal_does_not_restore_an_older_offset(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, own_is_later: bool
) -> None:
    broker = await cluster.broker()
    member = await ClassicMember(broker).alone()
    before = await broker.groups.next_commit_sequence("g")
    assert await member.commit(P, 5) is None
    sequence = await broker.groups.next_commit_sequence("g") if own_is_later else before
    own = packed_offset(Committed(7, 0, "", 0, 1, sequence=sequence))
    await put_one(broker.store, keys.offset_key("g", P), own)
    seen: list[int | None] = []

    def and_read(write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def write_and_read(*arguments: Any) -> Any:
            result = await write(*arguments)
            stored = await GroupRecords(cluster.server.client()).offsets("g")
            seen.append(stored[P].committed.offset if P in stored else None)
            return result

        return write_and_read

    for name in ("put", "delete"):
        monkeypatch.setattr(broker.store, name, and_read(getattr(broker.store, name)))
    await broker.groups.remove_offsets("g", [P])
    assert list(dict.fromkeys(seen)) == [7 if own_is_later else 5, None]


async def test_offset_of_an_earlier_version_is_replaced(cluster: Cluster) -> None:
    """Earlier versions of Lakestream put the offset of each partition as its own record."""
    broker = await cluster.broker()
    member = await ClassicMember(broker).alone()
    for partition in (P, Q):
        value = packed_offset(Committed(5, 0, "", 0, 1, sequence=CommitSequence(1, 1)))
        await put_one(broker.store, keys.offset_key("g", partition), value)
    assert (await member.committed(P), await member.committed(Q)) == (5, 5)
    assert await member.commit(P, 4) is None
    assert (await member.committed(P), await member.committed(Q)) == (4, 5)


async def test_offsets_expire_with_their_topic(cluster: Cluster) -> None:
    broker = await cluster.broker()
    expiry = OffsetExpiration(broker.groups, broker.view, cluster.clock, no_pending_offsets)
    deleted, kept = await cluster.topic("deleted"), await cluster.topic("kept")
    member = await ClassicMember(broker).alone()
    for topic in (deleted, kept):
        assert await member.commit(topic, 5) is None
    await cluster.topics.delete("deleted")
    await broker.view.refresh_topics()
    await expiry.expire_all()
    assert await member.committed(deleted) is None
    assert await member.committed(kept) == 5
    assert await member.commit(kept, 6) is None


async def test_leftover_group_name_is_removed_after_an_hour(cluster: Cluster) -> None:
    broker = await cluster.broker()
    expiry = OffsetExpiration(broker.groups, broker.view, cluster.clock, no_pending_offsets)
    await put_one(broker.store, keys.group_name_key("left"), b"")
    await expiry.expire_all()
    assert len(await broker.groups.names()) == 1, "its group may be created in a moment"
    cluster.clock.ms += LEFTOVER_MS + 1
    await expiry.expire_all()
    assert await broker.groups.names() == []


async def test_figures_count_rebalances_and_commits(cluster: Cluster) -> None:
    broker = await cluster.broker()
    member = await ClassicMember(broker).alone()
    assert await member.commit(P, 5) is None
    assert await ClassicMember(broker).commit(P, 6) is not None, "rejected"
    assert broker.groups.figures() == (1, 1, 1, 1)
    await member.beat()
    assert broker.groups.figures() == (1, 1, 1, 1)
    await member.leave()
    assert await broker.groups.delete("g") is None
    assert broker.groups.figures() == (0, 0, 2, 1)
