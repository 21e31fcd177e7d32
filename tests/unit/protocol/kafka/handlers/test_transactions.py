"""Tests of transactions through requests: error codes, and the records that consumers read."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.harness.groups.fixed_registration import FixedRegistration
from tests.harness.kafka.group_scenarios import Member
from tests.harness.kafka.kafka_handlers import Serving
from tests.harness.kafka.transaction_scenarios import (
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
    POLICY_VIOLATION,
    UNSTABLE,
    Producer,
    offset,
    read,
    ready,
    until_offset,
    until_read,
    until_stable,
)
from tests.harness.log.brokers import World

from lakestream.coordination.transactions.coordinator import TransactionCoordinator
from lakestream.metadata.memory import MemoryMetadataStore
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


async def test_policy_violation_when_there_are_too_many_transactional_ids(serving: Serving) -> None:
    serving.services.transactions.id_limits.store_max = 1
    first = await ready(serving)
    assert await Producer(serving, "another").init() == POLICY_VIOLATION
    assert await first.init() == 0


@pytest.mark.parametrize("implicit", [False, True])
async def test_only_committed_records_are_returned_when_reading_committed(serving: Serving, implicit: bool) -> None:
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


async def test_fetch_of_committed_records_stops_at_an_open_transaction(serving: Serving) -> None:
    producer = await ready(serving)
    await producer.add(0)
    await serving.produce("t", "before")
    assert await producer.send("open") == 0
    await serving.produce("t", "after")
    assert await read(serving) == ["before"]
    assert await read(serving, committed=False) == ["before", "open", "after"]
    await producer.end(False)
    await until_read(serving, "before", "after")


async def test_transaction_ends_when_abort_is_sent_before_the_add_partitions_response(serving: Serving) -> None:
    """librdkafka does not wait for the response. If the abort ran first, it would abort nothing or count as a retry of
    the previous one, and the transaction that the partitions then begin would stay open.
    """
    producer = await ready(serving)
    for _ in range(3):
        added, with_group, ended = await asyncio.gather(producer.add(0), producer.add_group(), producer.end(False))
        assert (added, with_group, ended) == ([0], 0, 0)
        record = await serving.services.transactions.describe("x")
        assert record is not None
        assert not record.is_open


async def test_batch_is_rejected_when_its_partition_was_not_added_in_the_older_protocol(serving: Serving) -> None:
    producer = await ready(serving)
    assert await producer.send("x", version=10) == INVALID_STATE
    assert await producer.send("x", version=11) == ABORTABLE
    await producer.add(1)
    response = await serving.request(
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
    assert f"t-0 (topic id {log.topic_id})" in response.responses[0].partition_responses[0].error_message
    assert await producer.send("x", version=9) == INVALID_STATE
    assert await producer.send("x", partition=1) == 0
    await producer.end()
    await until_stable(serving, 1, 2)
    assert await producer.send("late", partition=1) == ABORTABLE
    assert await producer.send("late", partition=1, version=8) == INVALID_STATE


@pytest.mark.parametrize("implicit", [False, True])
async def test_old_producer_is_fenced_when_a_new_one_has_its_transactional_id(serving: Serving, implicit: bool) -> None:
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


async def test_batch_is_rejected_when_its_producer_or_transactional_id_is_unknown(serving: Serving) -> None:
    unknown = Producer(serving, "unknown")
    unknown.id, unknown.epoch = 99, 0
    assert await unknown.send("x") == INVALID_MAPPING
    assert await unknown.send("x", version=12) == INVALID_MAPPING
    unknown.transactional_id = ""
    assert await unknown.send("x") == INVALID_REQUEST
    batch = make_batch([b"x"], producer_id=5, epoch=0, sequence=0, transactional=True)
    assert (await serving.send("t", batch)).error_code == NO_ID


async def test_batch_is_stored_once_when_it_is_retried(serving: Serving) -> None:
    producer = await ready(serving, implicit=True)
    batch = producer.batch("x")
    for _ in range(3):
        assert await producer.send_batch(batch, version=12) == 0
    assert await producer.end() == 0
    await until_read(serving, "x")
    assert await producer.send_batch(batch, version=12) == INVALID_EPOCH, (
        "the batch belongs to the previous transaction"
    )


async def test_next_transaction_begins_without_retries_while_markers_are_written(serving: Serving) -> None:
    for implicit in (False, True):
        producer = await ready(serving, implicit=implicit)
        for number in range(20):
            if not implicit:
                assert await producer.add(0) == [0]
            assert await producer.send(f"{number}") == 0
            assert await producer.end(number % 3 != 0) == 0
    expected = [f"{number}" for number in range(20) if number % 3]
    await until_read(serving, *expected, *expected)


async def test_batches_are_stored_in_order_when_they_are_concurrent(serving: Serving) -> None:
    producer = await ready(serving, implicit=True)
    batches = []
    for number in range(5):
        batches.append(producer.batch(f"{number}"))
        producer.sequences["t", 0] = number + 1
    codes = await asyncio.gather(*(producer.send_batch(batch, version=12) for batch in batches))
    assert codes == [0] * 5
    await producer.end()
    await until_read(serving, "0", "1", "2", "3", "4")


async def test_not_coordinator_is_returned_by_every_other_broker(serving: Serving) -> None:
    other = await Serving.open(serving.world, node_id=1)
    await serving.services.metadata_cache.refresh_brokers()
    try:
        name = next(n for n in map(str, range(100)) if other.services.transactions.coordinates(n))
        producer = Producer(serving, name)
        assert await producer.init() == NOT_COORDINATOR
        assert await producer.add(0) == [NOT_COORDINATOR]
        assert await producer.end() == NOT_COORDINATOR
        response = await serving.request(65, 0, {"transactional_ids": [name]})
        assert response.transaction_states[0].error_code == NOT_COORDINATOR
        producer = await ready(other, name, implicit=True)
        producer.serving = serving
        assert await producer.send("through another broker") == 0
        producer.serving = other
        assert await producer.end() == 0
        await until_read(serving, "through another broker")
        listed = [
            await one.request(66, 0, {"state_filters": [], "producer_id_filters": []}) for one in (serving, other)
        ]
        assert [len(one.transaction_states) for one in listed] == [0, 1]
    finally:
        await other.close()


async def test_describe_returns_not_found_when_the_transactional_id_is_unknown(serving: Serving) -> None:
    response = await serving.request(65, 0, {"transactional_ids": ["unknown"]})
    assert response.transaction_states[0].error_code == ID_NOT_FOUND


# ── offsets of groups ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("implicit", [False, True])
async def test_offsets_are_committed_when_the_transaction_of_the_member_commits(
    serving: Serving, implicit: bool
) -> None:
    member = Member(serving)
    await member.join()
    await member.sync({member.id: b"all"})
    fields: dict[str, Any] = {"member_id": member.id, "generation_id": member.generation}
    producer = await ready(serving, implicit=implicit)
    for number, commit in ((5, False), (6, True), (9, True)):
        if not implicit:
            assert await producer.add_group() == 0
        assert await producer.commit_offset(number, **fields) == 0
        assert (await offset(serving, stable=True))[1] == UNSTABLE
        assert await producer.commit_offset(3, **(fields | {"generation_id": 99})) == ILLEGAL_GENERATION
        assert await producer.end(commit) == 0
    await until_offset(serving, 9)


async def test_offset_commit_is_rejected_when_its_generation_is_old(serving: Serving) -> None:
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


async def test_fetch_of_all_stable_offsets_returns_unstable_for_pending_offsets(serving: Serving) -> None:
    producer = await ready(serving, implicit=True)
    assert await producer.commit_offset(5) == 0
    response = await serving.request(9, 7, {"group_id": "g", "topics": None, "require_stable": True})
    (topic,) = response.topics
    assert [(one.committed_offset, one.error_code) for one in topic.partitions] == [(-1, UNSTABLE)]
    await producer.end()
    await until_offset(serving, 5)


class CountingStore(MemoryMetadataStore):
    reads = 0

    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        self.reads += 1
        await asyncio.sleep(0)
        return await super().get(key, confirmed=confirmed)


async def test_store_reads_are_shared_when_stable_offset_fetches_are_concurrent(serving: Serving) -> None:
    """Without sharing, each fetch reads all transactional ids of the group: n times n reads after a rebalance."""
    ids = 5
    for number in range(ids):
        producer = await ready(serving, f"id-{number}", implicit=True)
        assert await producer.commit_offset(number) == 0
        assert await producer.end() == 0
    await until_offset(serving, ids - 1)
    store, services = CountingStore(serving.world.server), serving.services
    registration = FixedRegistration(services.broker)
    coordinator = TransactionCoordinator(
        store, services.log, services.metadata_cache, registration, services.cluster, services.clock
    )
    pending = await asyncio.gather(*(coordinator.pending("g") for _ in range(20)))
    assert pending == [frozenset()] * 20
    assert store.reads <= 2 * ids
    await coordinator.close()
