"""Transactions as clients see them: what they are told when something is wrong, and what readers find."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.unit.data.brokers import World
from tests.unit.protocol.kafka.group_scenarios import Member
from tests.unit.protocol.kafka.serving import Serving
from tests.unit.protocol.kafka.transaction_scenarios import (
    ABORTABLE,
    FENCED,
    ID_NOT_FOUND,
    ILLEGAL_GENERATION,
    INVALID_EPOCH,
    INVALID_MAPPING,
    INVALID_REQUEST,
    INVALID_STATE,
    NO_ID,
    NOT_COORDINATOR,
    UNSTABLE,
    Producer,
    offset,
    read,
    ready,
    until_offset,
    until_read,
    until_stable,
)

from lakestream.coordination.transactions.coordinator import TransactionCoordinator
from lakestream.metadata.memory import MemoryStore
from lakestream.metadata.store import Key, Record
from lakestream.testing.batches import make_batch


@pytest_asyncio.fixture
async def serving() -> AsyncIterator[Serving]:
    world = World()
    serving = await Serving.open(world)
    await serving.topic()
    yield serving
    await serving.close()
    await world.close()


@pytest.mark.parametrize("implicit", [False, True])
async def test_readers_see_what_is_committed_and_only_that(serving: Serving, implicit: bool) -> None:
    producer = await ready(serving, implicit=implicit)
    for number, commit in enumerate((True, False, True)):
        if not implicit:
            assert await producer.add(0) == [0]
        assert await producer.send(f"a{number}", f"b{number}") == 0
        assert await producer.send(f"c{number}") == 0
        assert f"a{number}" not in await read(serving)
        assert f"a{number}" in await read(serving, committed=False)
        assert await producer.end(commit) == 0
    await until_stable(serving, 0, 12)
    assert await read(serving) == ["a0", "b0", "c0", "a2", "b2", "c2"]


async def test_what_others_write_waits_behind_an_open_transaction(serving: Serving) -> None:
    producer = await ready(serving)
    await producer.add(0)
    await serving.produce("t", "before")
    assert await producer.send("open") == 0
    await serving.produce("t", "behind")
    assert await read(serving) == ["before"]
    assert await read(serving, committed=False) == ["before", "open", "behind"]
    await producer.end(False)
    await until_read(serving, "before", "behind")


async def test_an_abort_behind_partitions_that_are_still_being_added_ends_what_they_began(serving: Serving) -> None:
    """librdkafka does not wait for the answer. Taken before them, the abort would be of nothing, or be taken for a
    repetition of the one before, and what they begin then would stay open."""
    producer = await ready(serving)
    for _ in range(3):
        added, with_group, ended = await asyncio.gather(producer.add(0), producer.add_group(), producer.end(False))
        assert (added, with_group, ended) == ([0], 0, 0)
        found = await serving.services.transactions.describe("x")
        assert found is not None
        assert not found.is_open


async def test_a_partition_that_was_not_added_is_refused_to_clients_of_the_older_protocol(serving: Serving) -> None:
    producer = await ready(serving)
    assert await producer.send("x", version=10) == INVALID_STATE
    assert await producer.send("x", version=11) == ABORTABLE
    await producer.add(1)
    told = await serving.ask(
        0,
        11,
        {
            "transactional_id": "x",
            "acks": -1,
            "timeout": 5000,
            "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": producer.batch("x")}]}],
        },
    )
    log = await serving.log_of("t")
    assert f"t-0 (topic id {log.topic_id})" in told.responses[0].partition_responses[0].error_message
    assert await producer.send("x", version=9) == INVALID_STATE
    assert await producer.send("x", partition=1) == 0
    await producer.end()
    await until_stable(serving, 1, 2)
    assert await producer.send("late", partition=1) == ABORTABLE
    assert await producer.send("late", partition=1, version=8) == INVALID_STATE


@pytest.mark.parametrize("implicit", [False, True])
async def test_a_zombie_is_fenced(serving: Serving, implicit: bool) -> None:
    old = await ready(serving, implicit=implicit)
    if not implicit:
        await old.add(0)
    assert await old.send("old") == 0
    new = await ready(serving, implicit=implicit)
    assert await old.send("late") == INVALID_EPOCH
    assert await old.end() == FENCED
    assert await old.add(0) == [FENCED]
    assert await old.add_group() == FENCED
    assert await old.commit_offset(1) == INVALID_EPOCH
    assert await old.init(resumes=True) == FENCED
    if not implicit:
        await new.add(0)
    assert await new.send("new") == 0
    assert await new.end() == 0
    await until_read(serving, "new")


async def test_who_is_not_known_is_told_so(serving: Serving) -> None:
    stranger = Producer(serving, "nobody")
    stranger.id, stranger.epoch = 99, 0
    assert await stranger.send("x") == INVALID_MAPPING
    assert await stranger.send("x", version=12) == INVALID_MAPPING
    stranger.transactional_id = ""
    assert await stranger.send("x") == INVALID_REQUEST
    batch = make_batch([b"x"], producer_id=5, epoch=0, sequence=0, transactional=True)
    assert (await serving.send("t", batch)).error_code == NO_ID


async def test_a_batch_that_is_sent_again_is_stored_once(serving: Serving) -> None:
    producer = await ready(serving, implicit=True)
    batch = producer.batch("x")
    for _ in range(3):
        assert await producer.send_batch(batch, version=12) == 0
    assert await producer.end() == 0
    await until_read(serving, "x")
    assert await producer.send_batch(batch, version=12) == INVALID_EPOCH, "it is of the transaction before"


async def test_transactions_follow_one_another_without_a_pause(serving: Serving) -> None:
    """No client has to come again, though markers are under way when it begins anew."""
    for implicit in (False, True):
        producer = await ready(serving, implicit=implicit)
        for number in range(20):
            if not implicit:
                assert await producer.add(0) == [0]
            assert await producer.send(f"{number}") == 0
            assert await producer.end(number % 3 != 0) == 0
    expected = [f"{number}" for number in range(20) if number % 3]
    await until_read(serving, *expected, *expected)


async def test_batches_under_way_together_stay_in_order(serving: Serving) -> None:
    producer = await ready(serving, implicit=True)
    batches = []
    for number in range(5):
        batches.append(producer.batch(f"{number}"))
        producer.sequences["t", 0] = number + 1
    codes = await asyncio.gather(*(producer.send_batch(batch, version=12) for batch in batches))
    assert codes == [0] * 5
    await producer.end()
    await until_read(serving, "0", "1", "2", "3", "4")


async def test_a_broker_that_is_not_the_coordinator_says_so(serving: Serving) -> None:
    other = await Serving.open(serving.world, node_id=1)
    await serving.services.view.look_at_brokers()
    try:
        name = next(n for n in map(str, range(100)) if other.services.transactions.is_mine(n))
        producer = Producer(serving, name)
        assert await producer.init() == NOT_COORDINATOR
        assert await producer.add(0) == [NOT_COORDINATOR]
        assert await producer.end() == NOT_COORDINATOR
        answer = await serving.ask(65, 0, {"transactional_ids": [name]})
        assert answer.transaction_states[0].error_code == NOT_COORDINATOR
        producer = await ready(other, name, implicit=True)
        producer.serving = serving
        assert await producer.send("through another broker") == 0
        producer.serving = other
        assert await producer.end() == 0
        await until_read(serving, "through another broker")
        listed = [await one.ask(66, 0, {"state_filters": [], "producer_id_filters": []}) for one in (serving, other)]
        assert [len(one.transaction_states) for one in listed] == [0, 1]
    finally:
        await other.close()


async def test_an_id_that_is_not_there(serving: Serving) -> None:
    answer = await serving.ask(65, 0, {"transactional_ids": ["nobody"]})
    assert answer.transaction_states[0].error_code == ID_NOT_FOUND


# ── offsets of groups ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("implicit", [False, True])
async def test_a_member_commits_with_its_transaction(serving: Serving, implicit: bool) -> None:
    member = Member(serving)
    await member.join()
    await member.sync({member.id: b"all"})
    mine: dict[str, Any] = {"member_id": member.id, "generation_id": member.generation}
    producer = await ready(serving, implicit=implicit)
    for number, commit in ((5, False), (6, True), (9, True)):
        if not implicit:
            assert await producer.add_group() == 0
        assert await producer.commit_offset(number, **mine) == 0
        assert (await offset(serving, stable=True))[1] == UNSTABLE
        assert await producer.commit_offset(3, **(mine | {"generation_id": 99})) == ILLEGAL_GENERATION
        assert await producer.end(commit) == 0
    await until_offset(serving, 9)


async def test_the_generation_before_commits_nothing(serving: Serving) -> None:
    member = Member(serving)
    await member.join()
    await member.sync({member.id: b"all"})
    old: dict[str, Any] = {"member_id": member.id, "generation_id": member.generation}
    producer = await ready(serving, implicit=True)
    await member.join()
    await member.sync({member.id: b"all"})
    assert old["generation_id"] != member.generation
    assert await producer.commit_offset(5, **old) == ILLEGAL_GENERATION
    assert await offset(serving, stable=True) == (-1, 0)


async def test_all_offsets_of_a_group_show_those_that_wait(serving: Serving) -> None:
    producer = await ready(serving, implicit=True)
    assert await producer.commit_offset(5) == 0
    answer = await serving.ask(9, 7, {"group_id": "g", "topics": None, "require_stable": True})
    (topic,) = answer.topics
    assert [(one.committed_offset, one.error_code) for one in topic.partitions] == [(-1, UNSTABLE)]
    await producer.end()
    await until_offset(serving, 5)


class CountedReads(MemoryStore):
    reads = 0

    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        self.reads += 1
        await asyncio.sleep(0)
        return await super().get(key, confirmed=confirmed)


async def test_all_members_that_ask_for_stable_offsets_at_once_share_a_look(serving: Serving) -> None:
    """Each of them alone would read every transactional id of the group: after a rebalance, all times all."""
    ids = 5
    for number in range(ids):
        producer = await ready(serving, f"id-{number}", implicit=True)
        assert await producer.commit_offset(number) == 0
        assert await producer.end() == 0
    await until_offset(serving, ids - 1)
    store, services = CountedReads(serving.world.server), serving.services
    coordinator = TransactionCoordinator(
        store, services.log, services.view, services.who, lambda: True, services.cluster, services.clock
    )
    found = await asyncio.gather(*(coordinator.pending("g") for _ in range(20)))
    assert found == [frozenset()] * 20
    assert store.reads <= 2 * ids
    await coordinator.close()
