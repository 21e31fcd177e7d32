"""Transactions over several brokers: when one stops at any point, another completes the transaction as a whole."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec.structs import replace
from tests.harness.groups.transaction_brokers import (
    WAIT_S,
    TransactionalProducer,
    TransactionBroker,
    TransactionCluster,
)
from tests.harness.log.brokers import World

from lakestream.coordination.transactions import completion, state_machine
from lakestream.coordination.transactions.coordinator import NotCoordinator
from lakestream.coordination.transactions.expiration import LEFTOVER_MS
from lakestream.coordination.transactions.id_limits import TooManyTransactionalIds
from lakestream.coordination.transactions.state_machine import CLASSIC, IMPLICIT, Busy
from lakestream.errors import Fenced, Unavailable, WrongTransaction
from lakestream.metadata import keys
from lakestream.metadata.group_records import CommitSequence, GroupRecord, packed_group, packed_offset
from lakestream.metadata.groups import Committed
from lakestream.metadata.store import ABSENT, put_one
from lakestream.metadata.transactions import PendingOffset, TransactionState
from lakestream.model import PartitionId


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[TransactionCluster]:
    world = World()
    cluster = TransactionCluster(world)
    yield cluster
    await cluster.close()
    await world.close()


@pytest_asyncio.fixture
async def two(cluster: TransactionCluster) -> tuple[TransactionBroker, TransactionBroker]:
    return await cluster.broker(), await cluster.broker()


async def begin(
    cluster: TransactionCluster, broker: TransactionBroker, *partitions: PartitionId, implicit: bool = False
) -> TransactionalProducer:
    """Begins a transaction with one record in each partition."""
    writer = TransactionalProducer(cluster, cluster.id_of(broker), implicit=implicit)
    await writer.init(broker)
    if not implicit:
        await writer.add(broker, *partitions)
    for partition in partitions:
        await writer.send(broker, partition, f"{partition.number}")
    return writer


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("commit", [False, True])
async def test_markers_are_written_into_all_partitions(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker], implicit: bool, commit: bool
) -> None:
    first, second = two
    partitions = await cluster.world.topic(3)
    writer = await begin(cluster, first, *partitions, implicit=implicit)
    await writer.send(second, partitions[0], "again")
    await writer.end(first, commit=commit)
    record = await cluster.until(writer.id, TransactionState.COMMITTED if commit else TransactionState.ABORTED)
    assert record.partitions == ()
    for partition in partitions:
        end = 3 if partition.number == 0 else 2
        assert await second.log.bounds(partition) == (0, end, end)
        assert await cluster.aborted(partition) == ([] if commit else [(0, end - 1)])


async def test_not_coordinator_on_other_brokers(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, second = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition)
    for request in (writer.init(second), writer.add(second, partition), writer.end(second)):
        with pytest.raises(NotCoordinator):
            await request


# ── brokers that stop ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_next_coordinator_completes_a_decided_transaction(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    """The first coordinator dies after it wrote one of two markers."""
    first, second = two
    partitions = await cluster.world.topic(2)
    writer = await begin(cluster, first, *partitions)
    first.metadata.cut_off = {partitions[1]}
    await writer.end(first)
    await cluster.until_stable(partitions[0], 2)
    assert (await cluster.record(writer.id)).state is TransactionState.COMMITTING
    await cluster.expire(first)
    await second.coordinator.expirer.run_once()
    await cluster.until(writer.id, TransactionState.COMMITTED)
    await cluster.until_stable(partitions[1], 2)
    assert [await cluster.aborted(partition) for partition in partitions] == [[], []]


async def test_former_coordinator_does_not_end_the_next_transaction(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, second = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition)
    first.metadata.cut_off = {partition}
    await writer.end(first, commit=False)
    await cluster.expire(first)
    await second.coordinator.expirer.run_once()
    await cluster.until(writer.id, TransactionState.ABORTED)
    await writer.add(second, partition)
    await writer.send(second, partition, "next")
    first.metadata.cut_off = set()
    await asyncio.sleep(0.3)  # it retries
    record = await cluster.record(writer.id)
    assert (record.state, record.number) == (TransactionState.ONGOING, 2)
    stable = (await second.log.bounds(partition)).stable
    await writer.end(second)
    await cluster.until(writer.id, TransactionState.COMMITTED)
    assert await cluster.aborted(partition) == [(0, 1)]
    assert stable < (await second.log.bounds(partition)).stable


async def test_repeated_end_gets_the_same_response(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    """The response to the first request was lost."""
    first, _ = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition, implicit=True)
    old = writer.identity
    await writer.end(first)
    repeated = await first.coordinator.end(writer.id, old, commit=True, protocol=IMPLICIT)
    assert repeated == writer.identity == (old.producer_id, old.epoch + 1)
    with pytest.raises(WrongTransaction):
        await first.coordinator.end(writer.id, old, commit=False, protocol=IMPLICIT)


async def test_transaction_completes_when_a_topic_was_deleted(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, _ = two
    (deleted,) = await cluster.world.topic(1, "deleted")
    (kept,) = await cluster.world.topic(1, "kept")
    writer = await begin(cluster, first, deleted, kept)
    await cluster.world.topics.delete("deleted")
    await writer.end(first)
    await cluster.until(writer.id, TransactionState.COMMITTED)
    assert (await first.log.bounds(kept)).stable == 2


# ── no transaction stays open ────────────────────────────────────────────────────────────────────────────────────────


async def test_batch_is_rejected_after_the_transaction_ended(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, second = two
    partitions = await cluster.world.topic(2)
    writer = TransactionalProducer(cluster, cluster.id_of(first))
    await writer.init(first)
    await writer.add(first, *partitions)
    number = await second.coordinator.number_for_batches(writer.id, writer.identity, partitions, CLASSIC)
    late = writer.batch(partitions[0], "late")
    await writer.end(first, commit=False)
    await cluster.until(writer.id, TransactionState.ABORTED)
    with pytest.raises(WrongTransaction):
        await second.log.append(partitions[0], late, number)
    assert await second.log.bounds(partitions[0]) == (0, 1, 1)


async def test_batch_of_a_fenced_producer_never_opens_a_transaction(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    """The batch was accepted before the next producer aborted its transaction, and reaches a log whose state no longer
    contains its producer."""
    first, second = two
    partitions = await cluster.world.topic(2)
    old = TransactionalProducer(cluster, cluster.id_of(first), implicit=True)
    await old.init(first)
    number = await second.coordinator.number_for_batches(old.id, old.identity, [partitions[0]], IMPLICIT)
    new = TransactionalProducer(cluster, old.id, implicit=True)
    await new.init(first)
    await new.send(first, partitions[1], "new")
    for partition in partitions:
        with pytest.raises(Fenced):
            await second.log.append(partition, old.batch(partition, "zombie"), number)
    with pytest.raises(Fenced):
        await old.send(second, partitions[1], "zombie")


async def test_next_transaction_is_found_by_brokers_that_cached_the_previous_one(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    """Clients of the classic protocol have the same epoch in both transactions."""
    first, second = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition)
    await writer.send(second, partition, "second")
    await writer.end(first)
    await writer.add(first, partition)  # waits until the previous transaction is complete
    number = second.coordinator.cached_number(writer.id, writer.identity, [partition])
    assert number == 1, "from the cache"
    await writer.send(second, partition, "next")
    assert (await second.log.producers(partition))[writer.identity.producer_id].transaction == 2
    await writer.end(first, commit=False)
    await cluster.until(writer.id, TransactionState.ABORTED)
    assert await cluster.aborted(partition) == [(3, 4)]


async def test_completion_is_stored_with_the_begin_of_the_next_transaction(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, _ = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition)
    await writer.end(first)
    await cluster.until_stable(partition, 2)
    await writer.add(first, partition)
    assert (await cluster.record(writer.id)).number == 2
    await asyncio.sleep(completion.CLASSIC_DELAY_MS / 1000 + 0.1)
    assert (await cluster.record(writer.id)).state is TransactionState.ONGOING


async def test_partitions_added_concurrently_by_several_brokers_are_all_stored(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, second = two
    partitions = await cluster.world.topic(8)
    writer = TransactionalProducer(cluster, cluster.id_of(first), implicit=True)
    await writer.init(first)
    await asyncio.gather(*(writer.send(two[one.number % 2], one, "x") for one in partitions))
    record = await cluster.record(writer.id)
    assert (record.number, record.partitions) == (1, tuple(partitions))
    await writer.end(first)
    await cluster.until(writer.id, TransactionState.COMMITTED)
    assert {(await second.log.bounds(one)).stable for one in partitions} == {2}


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("implicit", [False, True])
async def test_transaction_is_aborted_when_it_times_out(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker], implicit: bool
) -> None:
    first, second = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition, implicit=implicit)
    await first.coordinator.expirer.run_once()
    cluster.world.clock.ms += 60_001
    await second.coordinator.expirer.run_once()
    assert (await cluster.record(writer.id)).is_open, "it does not coordinate the id"
    await first.coordinator.expirer.run_once()
    await cluster.until(writer.id, TransactionState.ABORTED)
    assert await cluster.aborted(partition) == [(0, 1)]
    with pytest.raises(Fenced):
        await writer.send(second, partition, "late")
    with pytest.raises(Fenced):
        await writer.end(first)
    with pytest.raises(Fenced):
        await writer.init(first, resumes=True)
    await writer.init(first)
    if not implicit:
        await writer.add(first, partition)
    await writer.send(second, partition, "new")


async def test_timeout_is_that_of_the_current_transaction(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, _ = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition, implicit=True)
    await first.coordinator.expirer.run_once()
    cluster.world.clock.ms += 50_000
    await writer.end(first)
    await writer.send(first, partition, "next")
    cluster.world.clock.ms += 20_000
    await first.coordinator.expirer.run_once()
    assert (await cluster.record(writer.id)).is_open
    cluster.world.clock.ms += 40_001
    await first.coordinator.expirer.run_once()
    await cluster.until(writer.id, TransactionState.ABORTED)


async def test_unused_id_expires(cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]) -> None:
    first, _ = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition)
    old = writer.identity
    await writer.end(first)
    await cluster.until(writer.id, TransactionState.COMMITTED)
    cluster.world.clock.ms += state_machine.EXPIRY_MS + 1000
    first.coordinator.expirer._unconfirmed.add(writer.id)
    await first.coordinator.expirer.run_once()
    assert await cluster.records.load(writer.id) is None
    assert await cluster.records.names() == []
    await writer.init(first)
    assert writer.identity.producer_id != old.producer_id


async def test_init_waits_until_the_aborted_transaction_is_completed(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, _ = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition)
    new = TransactionalProducer(cluster, writer.id)
    await new.init(first)
    assert new.identity.epoch == writer.identity.epoch + 2
    await cluster.until_stable(partition, 2)
    assert await cluster.aborted(partition) == [(0, 1)]
    await new.add(first, partition)
    await new.send(first, partition, "new")
    first.metadata.cut_off = {partition}
    newer = TransactionalProducer(cluster, writer.id)
    with pytest.raises(Busy):
        await newer.init(first)
    first.metadata.cut_off = set()
    async with asyncio.timeout(WAIT_S):
        while newer.identity.epoch < 0:
            try:
                await newer.init(first)
            except Busy:
                continue
    assert newer.identity.epoch == new.identity.epoch + 2


async def test_producer_continues_after_its_own_init(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, _ = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition)
    old = writer.identity
    await writer.init(first, resumes=True)
    assert writer.identity == (old.producer_id, old.epoch + 1)
    await writer.add(first, partition)
    await writer.send(first, partition, "on")


async def test_new_ids_are_rejected_when_a_client_has_too_many(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, _ = two
    first.coordinator.id_limits.client_max = 2
    mine = [name for name in map(str, range(100)) if first.coordinator.coordinates(name)]
    one, other, third = (TransactionalProducer(cluster, name, client="10.0.0.1") for name in mine[:3])
    await one.init(first)
    await other.init(first)
    with pytest.raises(
        TooManyTransactionalIds, match=r"client address 10\.0\.0\.1 has 2 transactional ids, which is the"
    ):
        await third.init(first)
    assert third.id not in await cluster.records.names()
    await one.init(first)
    await TransactionalProducer(cluster, mine[3], client="10.0.0.2").init(first)

    async def scan() -> None:
        first.coordinator.expirer._full_scan_at_s = 0.0
        await first.coordinator.expirer.run_once()

    first.coordinator.id_limits.counted(0, [])  # as after a restart of the broker
    await scan()
    with pytest.raises(TooManyTransactionalIds):
        await third.init(first)
    cluster.world.clock.ms += state_machine.EXPIRY_MS + 1000
    await scan()
    await scan()
    await third.init(first)


async def test_new_ids_are_rejected_when_the_store_has_too_many(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, second = two
    for broker in two:
        broker.coordinator.id_limits.store_max = 2
    await TransactionalProducer(cluster, cluster.id_of(first)).init(first)
    await TransactionalProducer(cluster, cluster.id_of(second)).init(second)
    new = TransactionalProducer(
        cluster, next(f"new-{i}" for i in range(99) if first.coordinator.coordinates(f"new-{i}"))
    )
    first.coordinator.expirer._full_scan_at_s = 0.0
    await first.coordinator.expirer.run_once()
    with pytest.raises(TooManyTransactionalIds, match="the cluster has 2 transactional ids, which is the limit"):
        await new.init(first)


# ── offsets of groups ────────────────────────────────────────────────────────────────────────────────────────────────


SEQUENCES = itertools.count()


def next_sequence() -> CommitSequence:
    return CommitSequence(0, next(SEQUENCES))


async def version(cluster: TransactionCluster, partition: PartitionId) -> int:
    stored = (await cluster.groups.offsets("g")).get(partition)
    return ABSENT if stored is None else stored.version


async def put_pending_offset(
    cluster: TransactionCluster,
    broker: TransactionBroker,
    writer: TransactionalProducer,
    partition: PartitionId,
    offset: int,
) -> None:
    await broker.coordinator.ensure_group(writer.id, writer.identity, "g", writer.protocol)
    if await cluster.groups.get("g") is None:
        await put_one(cluster.world.metadata, keys.group_key("g"), packed_group(GroupRecord()), ABSENT)
    pending = PendingOffset(
        partition, Committed(offset, 0, "", 0, 1, sequence=next_sequence()), await version(cluster, partition)
    )
    await broker.coordinator.put_offsets(writer.id, writer.identity, "g", [pending], writer.protocol)


async def committed(cluster: TransactionCluster, partition: PartitionId) -> int:
    stored = (await cluster.groups.offsets("g")).get(partition)
    return -1 if stored is None else stored.committed.offset


async def commit_without_transaction(cluster: TransactionCluster, partition: PartitionId, offset: int) -> None:
    value = packed_offset(Committed(offset, 0, "", 0, 1, sequence=next_sequence()))
    await put_one(cluster.world.metadata, keys.offset_key("g", partition), value, await version(cluster, partition))


@pytest.mark.parametrize("commit", [False, True])
async def test_offsets_are_committed_with_the_transaction(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker], commit: bool
) -> None:
    first, second = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition, implicit=True)
    await put_pending_offset(cluster, second, writer, partition, 5)
    assert await committed(cluster, partition) == -1
    assert await first.coordinator.pending("g") == {partition}
    await writer.end(first, commit=commit)
    await cluster.until(writer.id, TransactionState.COMMITTED, TransactionState.ABORTED)
    assert await committed(cluster, partition) == (5 if commit else -1)
    assert await second.coordinator.pending("g") == set()


async def test_second_completion_does_not_revert_offsets(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    """The first coordinator resumes after later commits of the group."""
    first, second = two
    partition, other = await cluster.world.topic(2)
    writer = await begin(cluster, first, partition, implicit=True)
    await put_pending_offset(cluster, first, writer, partition, 5)
    await put_pending_offset(cluster, first, writer, other, 7)
    first.metadata.cut_off = {partition}
    await writer.end(first)
    decided = await cluster.records.load(writer.id)
    assert decided is not None
    assert decided.record.state is TransactionState.COMMITTING
    await cluster.expire(first)
    await second.coordinator.expirer.run_once()
    await cluster.until(writer.id, TransactionState.COMMITTED)
    await commit_without_transaction(cluster, partition, 50)
    await writer.send(second, partition, "next")
    await put_pending_offset(cluster, second, writer, other, 70)
    await writer.end(second)
    await cluster.until(writer.id, TransactionState.COMMITTED)
    await cluster.records.commit_offsets(decided.record)
    assert [await committed(cluster, partition), await committed(cluster, other)] == [50, 70]


async def test_offset_committed_without_a_transaction_is_not_overwritten(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, _ = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition, implicit=True)
    await put_pending_offset(cluster, first, writer, partition, 5)
    await commit_without_transaction(cluster, partition, 9)
    await writer.end(first)
    await cluster.until(writer.id, TransactionState.COMMITTED)
    assert await committed(cluster, partition) == 9


async def test_offsets_are_pending_until_their_transaction_has_ended(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, second = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition, implicit=True)
    await put_pending_offset(cluster, second, writer, partition, 5)
    first.metadata.cut_off = {partition}
    await writer.end(first)
    assert await second.coordinator.pending("g") == {partition}, "decided, and not completed yet"
    await cluster.expire(first)
    await second.coordinator.expirer.run_once()
    await cluster.until(writer.id, TransactionState.COMMITTED)
    assert await second.coordinator.pending("g") == set()
    assert await committed(cluster, partition) == 5


async def ids_of_group(cluster: TransactionCluster) -> list[str]:
    return [one.transactional_id for one in await cluster.records.by_group("g")]


async def until_ids_of_group(cluster: TransactionCluster, *ids: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while await ids_of_group(cluster) != list(ids):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_group_has_no_entry_of_an_id_that_no_longer_exists(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, _ = two
    await cluster.records.add_group("g", "never")
    assert await first.coordinator.pending("g") == set()
    assert await ids_of_group(cluster) == []


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("implicit", [False, True])
async def test_group_has_an_entry_only_while_a_transaction_has_offsets_of_it(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker], implicit: bool, commit: bool
) -> None:
    first, second = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition, implicit=implicit)
    for offset in range(3):
        if not implicit:
            await writer.add(first, partition)
            await first.coordinator.add_group(writer.id, writer.identity, "g")
        assert await ids_of_group(cluster) == []
        for broker in (first, second):
            await put_pending_offset(cluster, broker, writer, partition, offset)
            assert await second.coordinator.pending("g") == {partition}
        assert await ids_of_group(cluster) == [writer.id]
        await writer.end(first, commit=commit)
        await cluster.until(writer.id, TransactionState.COMMITTED, TransactionState.ABORTED)
        await until_ids_of_group(cluster)


async def test_reader_removes_an_entry_that_its_transaction_left(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    """A broker stopped after it had completed the transaction, or an older broker wrote the entry."""
    first, second = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition, implicit=True)
    await put_pending_offset(cluster, first, writer, partition, 5)
    await writer.end(first)
    await cluster.until(writer.id, TransactionState.COMMITTED)
    await until_ids_of_group(cluster)
    await cluster.records.add_group("g", writer.id)
    assert await second.coordinator.pending("g") == set()
    assert await ids_of_group(cluster) == []
    await put_pending_offset(cluster, first, writer, partition, 6)
    assert await second.coordinator.pending("g") == {partition}


async def test_late_completion_does_not_remove_the_entry_of_the_next_transaction(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    """The first coordinator was paused while it completed the transaction."""
    first, second = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition, implicit=True)
    await put_pending_offset(cluster, first, writer, partition, 5)
    first.metadata.cut_off = {partition}
    await writer.end(first)
    await asyncio.sleep(0.05)  # it has read the entry, and waits for its markers
    await cluster.expire(first)
    await second.coordinator.expirer.run_once()
    await cluster.until(writer.id, TransactionState.COMMITTED)
    await put_pending_offset(cluster, second, writer, partition, 6)
    first.metadata.cut_off = set()
    await asyncio.sleep(0.3)  # it retries
    assert await ids_of_group(cluster) == [writer.id]
    assert await second.coordinator.pending("g") == {partition}


async def test_next_transaction_keeps_its_entry_when_a_reader_saw_the_id_without_offsets(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, _ = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition, implicit=True)
    await cluster.records.add_group("g", writer.id)
    (seen,) = await cluster.records.by_group("g")
    await put_pending_offset(cluster, first, writer, partition, 5)
    await cluster.records.remove_group("g", seen)
    assert await first.coordinator.pending("g") == {partition}


async def test_classic_clients_must_add_the_group_first(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, second = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition)
    with pytest.raises(WrongTransaction):
        await put_pending_offset(cluster, second, writer, partition, 5)
    await first.coordinator.add_group(writer.id, writer.identity, "g")
    await put_pending_offset(cluster, second, writer, partition, 5)
    await writer.end(first)
    await cluster.until(writer.id, TransactionState.COMMITTED)
    assert await committed(cluster, partition) == 5


async def test_unavailable_when_the_producer_is_no_longer_cached(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, _ = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition)
    first.coordinator._transactional_ids.clear()
    info = (await first.log.claims(partition, 0))[0].claim.batches[0]
    with pytest.raises(Unavailable):
        await first.coordinator.transaction_of(partition, info)
    await writer.send(first, partition, "again")


async def test_offsets_added_while_the_previous_transaction_completes_replace_its_offsets(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, second = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition, implicit=True)
    for number in range(5, 15):
        await put_pending_offset(cluster, second, writer, partition, number)
        await writer.end(first)
    await cluster.until(writer.id, TransactionState.COMMITTED)
    assert await committed(cluster, partition) == 14


async def test_no_offset_is_lost_when_ids_alternate_on_one_group(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    """Each transaction begins after the previous one is decided, before its offset is committed."""
    first, second = two
    partition = await cluster.world.log()
    old = await begin(cluster, first, partition, implicit=True)
    new = await begin(cluster, second, partition, implicit=True)
    await put_pending_offset(cluster, first, old, partition, 1)
    first.metadata.cut_off = {partition}
    await old.end(first)
    await put_pending_offset(cluster, second, new, partition, 2)
    await cluster.expire(first)
    await second.coordinator.expirer.run_once()
    await cluster.until(old.id, TransactionState.COMMITTED)
    assert await committed(cluster, partition) == 1
    await new.end(second)
    await cluster.until(new.id, TransactionState.COMMITTED)
    assert await committed(cluster, partition) == 2


@pytest.mark.parametrize("later_ends_first", [False, True])
async def test_offset_with_the_later_sequence_stays(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker], later_ends_first: bool
) -> None:
    """As in Kafka, regardless of which transaction ends first."""
    first, _ = two
    partition = await cluster.world.log()
    writers = [await begin(cluster, broker, partition, implicit=True) for broker in two]
    for writer, offset in zip(writers, (10, 20), strict=True):
        await put_pending_offset(cluster, first, writer, partition, offset)
    for writer, broker in sorted(
        zip(writers, two, strict=True), key=lambda one: writers.index(one[0]), reverse=later_ends_first
    ):
        await writer.end(broker)
        await cluster.until(writer.id, TransactionState.COMMITTED)
    assert await committed(cluster, partition) == 20


async def test_deleted_group_gets_no_offsets(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    """Such offsets could be neither listed nor removed."""
    first, _ = two
    partition, other = await cluster.world.topic(2)
    await commit_without_transaction(cluster, other, 5)
    writer = await begin(cluster, first, partition, implicit=True)
    for one in (partition, other):
        await put_pending_offset(cluster, first, writer, one, 7)
    group = await cluster.groups.get("g")
    assert group is not None
    await cluster.groups.remove("g", group.version, ABSENT)
    await writer.end(first)
    await cluster.until(writer.id, TransactionState.COMMITTED)
    assert await cluster.groups.offsets("g") == {}


async def test_figures_count_open_overdue_and_completed_transactions(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, second = two
    partition = await cluster.world.log()
    writer = await begin(cluster, first, partition, implicit=True)
    await first.coordinator.expirer.run_once()
    cluster.world.clock.ms += 50_000
    figures = first.coordinator.figures()
    assert (figures.open, figures.overdue, figures.oldest_ms, figures.committed) == (1, 0, 50_000, 0)
    cluster.world.clock.ms += 10_001
    assert first.coordinator.figures().overdue == 1
    await first.coordinator.expirer.run_once()
    await cluster.until(writer.id, TransactionState.ABORTED)
    await first.coordinator.expirer.run_once()
    await writer.init(first)
    await writer.send(first, partition, "next")
    await writer.end(first)
    await cluster.until(writer.id, TransactionState.COMMITTED)
    assert first.coordinator.figures()[:3] == (0, 0, 0)
    assert first.coordinator.figures()[4:] == (1, 1, 1), "committed, aborted, timed out"
    await second.coordinator.expirer.run_once()
    assert second.coordinator.figures() == (0,) * 7


async def test_leftover_name_is_removed_after_an_hour(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    first, _ = two
    name = cluster.id_of(first)
    await cluster.records.add_name(name)
    expirer = first.coordinator.expirer

    async def names_after_run(ms: int) -> list[str]:
        cluster.world.clock.ms += ms
        expirer._full_scan_at_s = 0.0
        await expirer.run_once()
        return await cluster.records.names()

    assert await names_after_run(0) == [name]
    assert await names_after_run(LEFTOVER_MS) == [name]
    await cluster.records.add_name(name)  # a producer begins to use it
    assert await names_after_run(1) == [name]
    assert await names_after_run(LEFTOVER_MS) == [name]
    assert await names_after_run(1) == []
    writer = await begin(cluster, first, await cluster.world.log())
    assert await names_after_run(LEFTOVER_MS) == [writer.id]
    assert await names_after_run(LEFTOVER_MS) == [writer.id], "it has a record"


async def test_late_end_request_does_not_end_the_next_transaction(
    cluster: TransactionCluster, two: tuple[TransactionBroker, TransactionBroker]
) -> None:
    """Another broker ended the transaction, and the client of the classic protocol continued with the same epoch."""
    first, _ = two
    (partition,) = await cluster.world.topic(1)
    writer = await begin(cluster, first, partition)
    stored = await cluster.records.load(writer.id)
    assert stored is not None
    await cluster.records.save(writer.id, replace(stored.record, number=stored.record.number + 1), stored)
    with pytest.raises(Unavailable, match="another transaction since"):
        await writer.end(first)
    assert (await cluster.record(writer.id)).is_open
    await writer.end(first)  # a request for the second transaction
    await cluster.until(writer.id, TransactionState.COMMITTED)
