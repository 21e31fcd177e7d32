"""Tests transactions in tables: logs are cut where no transaction is split, and the tag marks such snapshots."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from tests.harness.catalog.topic_tables import foreign_commit
from tests.harness.log.brokers import World, plain
from tests.harness.pipeline.pipeline_driver import PipelineDriver

from lakestream.catalog.catalog import LoadedTable
from lakestream.catalog.operations.expire_snapshots import ExpirySettings, expiry
from lakestream.catalog.table_metadata.updates import (
    RemoveProperties,
    RemoveSnapshotRef,
    SetProperties,
    SetSnapshotRef,
    Update,
)
from lakestream.catalog.topic_table.offsets import main_of, parse_offsets
from lakestream.catalog.topic_table.transactions_tag import WHOLE_AT, WHOLE_TAG
from lakestream.data.log.log import Log
from lakestream.errors import Unavailable
from lakestream.model import PartitionId
from lakestream.pipeline import backlog, micro_batch
from lakestream.pipeline.plan import PlanSettings
from lakestream.pipeline.tasks import MoveFailed, Outcome
from lakestream.records.batch import RecordBatch, control_batch
from lakestream.testing.batches import make_batch

WITHOUT_WAIT = PlanSettings(whole_wait_ms=0)
"""Nothing is deferred."""


class TransactionalProducer:
    """Writes transactions; a test decides when their markers are written."""

    def __init__(self, log: Log, producer_id: int) -> None:
        self._log = log
        self.producer_id = producer_id
        self.number = 1
        self._sequences: dict[PartitionId, int] = {}

    async def write(self, *partitions: PartitionId) -> None:
        for partition in partitions:
            sequence = self._sequences.get(partition, 0)
            self._sequences[partition] = sequence + 1
            value = f"{self.producer_id}/{self.number}".encode()
            batch = make_batch([value], producer_id=self.producer_id, epoch=0, sequence=sequence, transactional=True)
            await self._log.append(partition, RecordBatch.parse(batch), self.number)

    async def mark(self, *partitions: PartitionId, commit: bool = True) -> None:
        for partition in partitions:
            marker = control_batch(self.producer_id, 0, commit, 0, 0)
            await self._log.append(partition, RecordBatch.parse(marker), self.number)

    async def commit(self, *partitions: PartitionId) -> None:
        await self.write(*partitions)
        await self.mark(*partitions)
        self.number += 1


async def run(
    pipeline: PipelineDriver, partitions: Sequence[PartitionId], requested: frozenset[str] = frozenset()
) -> None:
    """Runs micro-batches until nothing is left that can be moved now."""
    pipeline.changed.requeue(partitions)
    while (await pipeline.micro_batches.run(requested)).left:
        pass


async def values(pipeline: PipelineDriver, partitions: Sequence[PartitionId]) -> list[list[str]]:
    return [[(value or b"").decode() for _, value in await pipeline.rows(partition)] for partition in partitions]


async def table_of(pipeline: PipelineDriver, partition: PartitionId) -> LoadedTable:
    return await pipeline.catalog.load_id(partition.topic_id)


def tagged(table: LoadedTable) -> int | None:
    ref = table.metadata["refs"].get(WHOLE_TAG)
    return None if ref is None else ref["snapshot-id"]


def split(table: LoadedTable) -> Mapping[int, int]:
    return parse_offsets(table.metadata["properties"][WHOLE_AT])


async def test_tag_is_on_the_newest_snapshot_when_there_are_no_transactions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await world.topic(2)
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    monkeypatch.setattr(micro_batch, "read_transaction_ranges", None)  # no second read
    for _ in range(3):
        await log.append(one, plain("a"))
        await log.append(two, plain("b"))
        await run(pipeline, [one, two])
        table = await table_of(pipeline, one)
        assert tagged(table) == main_of(table.metadata) is not None
        assert split(table) == {}


async def test_log_is_deferred_until_the_rest_of_its_transaction_can_be_moved(world: World) -> None:
    logs = await world.topic(3)
    one, two, _ = logs
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    producer = TransactionalProducer(log, 1)
    await log.append(one, plain("before"))
    await producer.write(one, two)
    await producer.mark(one)  # the other log has no marker yet
    await log.append(one, plain("behind"))
    await run(pipeline, logs)
    assert await values(pipeline, logs) == [["before"], [], []]
    table = await table_of(pipeline, one)
    assert tagged(table) == main_of(table.metadata)
    await run(pipeline, [])
    assert (
        await table_of(pipeline, one)
    ).metadata_location == table.metadata_location  # nothing is committed during the wait
    await producer.mark(two)
    await run(pipeline, [])
    assert await values(pipeline, logs) == [["before", "1/1", "behind"], ["1/1"], []]
    table = await table_of(pipeline, one)
    assert tagged(table) == main_of(table.metadata)


async def test_transaction_is_split_after_the_longest_wait_and_the_tag_stays(world: World) -> None:
    logs = await world.topic(2)
    one, two = logs
    log, pipeline = await world.broker(), await PipelineDriver.start(world, PlanSettings(whole_wait_ms=300))
    producer, other = TransactionalProducer(log, 1), TransactionalProducer(log, 2)
    await other.commit(one, two)
    await producer.write(one, two)
    await producer.mark(one)
    await run(pipeline, logs)
    whole = await table_of(pipeline, one)
    assert tagged(whole) == main_of(whole.metadata)
    await asyncio.sleep(0.35)
    await run(pipeline, [])
    split_table = await table_of(pipeline, one)
    assert await values(pipeline, logs) == [["2/1", "1/1"], ["2/1"]]
    assert (tagged(split_table), split(split_table)) == (main_of(whole.metadata), {1: 3})
    await other.commit(one, two)
    await producer.mark(two)
    await run(pipeline, logs)
    whole_again = await table_of(pipeline, one)
    assert await values(pipeline, logs) == [["2/1", "1/1", "2/2"], ["2/1", "1/1", "2/2"]]
    assert (tagged(whole_again), split(whole_again)) == (main_of(whole_again.metadata), {})


async def test_wait_continues_when_a_micro_batch_does_not_include_the_topic(world: World) -> None:
    logs, (other,) = await world.topic(2), await world.topic(name="other")
    log, pipeline = await world.broker(), await PipelineDriver.start(world, PlanSettings(whole_wait_ms=200))
    producer = TransactionalProducer(log, 1)
    await producer.write(*logs)
    await producer.mark(logs[0])
    await run(pipeline, logs)
    deferred = pipeline.changed._changed
    await asyncio.sleep(0.15)
    pipeline.changed._changed = set()
    await log.append(other, plain("a"))
    await run(pipeline, [other])
    pipeline.changed._changed = deferred
    await asyncio.sleep(0.1)
    await run(pipeline, logs)
    assert await values(pipeline, logs) == [["1/1"], []]


async def test_nothing_is_deferred_when_a_refresh_is_requested(world: World) -> None:
    logs = await world.topic(2)
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    producer = TransactionalProducer(log, 1)
    await producer.write(*logs)
    await producer.mark(logs[0])
    await run(pipeline, logs, requested=frozenset({logs[0].topic_id}))
    assert await values(pipeline, logs) == [["1/1"], []]
    assert tagged(await table_of(pipeline, logs[0])) is None


async def test_committed_transaction_is_split_at_an_open_one_in_the_same_log(world: World) -> None:
    """In one log: the last stable offset is between two batches of the committed transaction."""
    (one,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world, WITHOUT_WAIT)
    producer, other = TransactionalProducer(log, 1), TransactionalProducer(log, 2)
    await producer.write(one)
    await other.write(one)
    await producer.commit(one)
    await run(pipeline, [one])
    table = await table_of(pipeline, one)
    assert await values(pipeline, [one]) == [["1/1"]]
    assert (tagged(table), split(table)) == (None, {0: 3})
    await other.mark(one, commit=False)
    await run(pipeline, [one])
    table = await table_of(pipeline, one)
    assert await values(pipeline, [one]) == [["1/1", "1/1"]]
    assert (tagged(table), split(table)) == (main_of(table.metadata), {})


async def test_committed_transaction_is_deferred_until_an_overlapping_one_ends(world: World) -> None:
    (one,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    producer, other = TransactionalProducer(log, 1), TransactionalProducer(log, 2)
    await producer.write(one)
    await other.write(one)
    await producer.commit(one)
    await run(pipeline, [one])
    assert pipeline.job.runs == []
    await other.mark(one)
    await run(pipeline, [])
    assert await values(pipeline, [one]) == [["1/1", "2/1", "1/1"]]


async def test_aborted_transaction_defers_nothing(world: World) -> None:
    logs = await world.topic(2)
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    producer = TransactionalProducer(log, 1)
    await producer.write(*logs)
    await producer.mark(logs[0], commit=False)
    await log.append(logs[0], plain("behind"))
    await run(pipeline, logs)
    assert await values(pipeline, logs) == [["behind"], []]
    table = await table_of(pipeline, logs[0])
    assert tagged(table) == main_of(table.metadata)


async def test_full_micro_batch_ends_between_transactions(world: World) -> None:
    logs = await world.topic(2)
    log = await world.broker()
    pipeline = await PipelineDriver.start(world, PlanSettings(move_bytes_max=150, round_bytes_max=900))
    producer = TransactionalProducer(log, 1)
    for _ in range(12):
        await producer.commit(*logs)
    pipeline.changed.requeue(logs)
    rounds = 0
    while (await pipeline.micro_batches.run()).left:
        rounds += 1
        one, two = await values(pipeline, logs)
        table = await table_of(pipeline, logs[0])
        assert one == two
        assert tagged(table) == main_of(table.metadata)
    assert rounds > 2
    assert [len(own) for own in await values(pipeline, logs)] == [12, 12]


async def test_transaction_larger_than_a_micro_batch_is_split(world: World) -> None:
    logs = await world.topic(2)
    log = await world.broker()
    pipeline = await PipelineDriver.start(world, PlanSettings(move_bytes_max=100, round_bytes_max=300))
    producer = TransactionalProducer(log, 1)
    for _ in range(8):
        await producer.write(*logs)
    await producer.mark(*logs)
    pipeline.changed.requeue(logs)
    assert (await pipeline.micro_batches.run()).left
    assert tagged(await table_of(pipeline, logs[0])) is None
    await run(pipeline, logs)
    table = await table_of(pipeline, logs[0])
    assert [len(own) for own in await values(pipeline, logs)] == [8, 8]
    assert tagged(table) == main_of(table.metadata)


async def test_tag_waits_for_the_log_whose_move_failed(world: World) -> None:
    logs = await world.topic(2)
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await TransactionalProducer(log, 1).commit(*logs)

    async def fails(outcomes: Sequence[Outcome]) -> list[Outcome]:
        return [MoveFailed(one.move, "no answer", True) if one.move.partition == logs[1] else one for one in outcomes]

    pipeline.job.changes.append(fails)
    await run(pipeline, logs)
    table = await table_of(pipeline, logs[0])
    assert await values(pipeline, logs) == [["1/1"], []]
    assert (tagged(table), split(table)) == (None, {1: 1})
    second_driver = await PipelineDriver.start(world)  # without a cache: it reads the property of the table
    await run(second_driver, logs)
    table = await table_of(pipeline, logs[0])
    assert (tagged(table), split(table)) == (main_of(table.metadata), {})


async def test_tag_is_decided_by_the_table_at_the_commit_when_another_driver_split_a_transaction(world: World) -> None:
    """The plan split no transaction, but the other driver committed before."""
    logs = await world.topic(2)
    log, one, two = (
        await world.broker(),
        await PipelineDriver.start(world),
        await PipelineDriver.start(world, WITHOUT_WAIT),
    )
    first, second = TransactionalProducer(log, 1), TransactionalProducer(log, 2)
    await log.append(logs[0], plain("a"))
    await run(one, logs)
    await first.commit(logs[0])

    async def commit_of_other_driver(outcomes: list[Outcome]) -> list[Outcome]:
        await second.write(*logs)
        await second.mark(logs[1])
        await run(two, [logs[1]])  # it splits the second transaction
        return outcomes

    one.job.changes.append(commit_of_other_driver)
    await run(one, logs[:1])
    table = await table_of(one, logs[0])
    assert await values(one, logs) == [["a", "1/1"], ["2/1"]]
    assert split(table) == {0: 4}
    assert tagged(table) != main_of(table.metadata)
    await second.mark(logs[0])
    await run(one, logs)
    table = await table_of(one, logs[0])
    assert (tagged(table), split(table)) == (main_of(table.metadata), {})


async def test_transaction_in_an_added_partition_is_split_until_it_is_moved(world: World) -> None:
    (one,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world, WITHOUT_WAIT)
    await log.append(one, plain("a"))
    await run(pipeline, [one])
    two = (await world.topics.grow("t", 2)).partitions()[1]
    producer = TransactionalProducer(log, 1)
    await producer.write(one, two)
    await producer.mark(one)
    await run(pipeline, [one])
    table = await table_of(pipeline, one)
    assert split(table) == {1: 1}
    assert tagged(table) != main_of(table.metadata)


async def test_tag_moves_with_commits_of_other_engines_on_whole_snapshots(world: World) -> None:
    logs = await world.topic(2)
    log, pipeline = await world.broker(), await PipelineDriver.start(world, WITHOUT_WAIT)
    producer = TransactionalProducer(log, 1)
    await producer.commit(*logs)
    await run(pipeline, logs)
    whole = await foreign_commit(pipeline.catalog, await table_of(pipeline, logs[0]), 77)
    assert tagged(whole) == main_of(whole.metadata) == 77
    await producer.write(*logs)
    await producer.mark(logs[0])
    await run(pipeline, logs)
    split_table = await foreign_commit(pipeline.catalog, await table_of(pipeline, logs[0]), 78)
    assert (main_of(split_table.metadata), tagged(split_table)) == (78, 77)
    await producer.mark(logs[1])
    await run(pipeline, logs)
    whole_again = await table_of(pipeline, logs[0])
    assert tagged(whole_again) == main_of(whole_again.metadata)


async def test_tag_stays_after_a_rollback_and_comes_back_after_it_was_dropped(world: World) -> None:
    (one,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    for _ in range(2):
        await log.append(one, plain("a"))
        await run(pipeline, [one])
    table = await table_of(pipeline, one)
    first, second = (snapshot["snapshot-id"] for snapshot in table.metadata["snapshots"])
    back = await pipeline.catalog.commit(table.table_id, [], [SetSnapshotRef("main", "branch", first)])
    assert tagged(back) == second
    forward = await pipeline.catalog.commit(table.table_id, [], [SetSnapshotRef("main", "branch", second)])
    gone = await pipeline.catalog.commit(table.table_id, [], [RemoveSnapshotRef(WHOLE_TAG)])
    assert (tagged(forward), tagged(gone)) == (second, None)
    await log.append(one, plain("a"))
    await run(pipeline, [one])
    table = await table_of(pipeline, one)
    assert tagged(table) == main_of(table.metadata)  # the next records create it again


async def test_tag_does_not_expire_with_other_tags(world: World) -> None:
    (one,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await log.append(one, plain("a"))
    await run(pipeline, [one])
    table = await table_of(pipeline, one)
    main = main_of(table.metadata)
    assert main is not None
    changes: list[Update] = [SetProperties({"history.expire.max-ref-age-ms": "1"}), SetSnapshotRef("mine", "tag", main)]
    table = await pipeline.catalog.commit(table.table_id, [], changes)
    found = expiry(table.metadata, table.metadata["last-updated-ms"] + 1_000_000, ExpirySettings())
    assert found.refs == ("mine",)


@pytest.mark.parametrize("change", [RemoveProperties([WHOLE_AT]), SetProperties({WHOLE_AT: "?"})])
async def test_ends_of_logs_are_used_when_the_whole_at_property_is_lost(
    world: World, change: RemoveProperties | SetProperties
) -> None:
    logs = await world.topic(2)
    log, pipeline = await world.broker(), await PipelineDriver.start(world, WITHOUT_WAIT)
    producer = TransactionalProducer(log, 1)
    await producer.write(*logs)
    await producer.mark(logs[0])
    await run(pipeline, logs)
    split_table = await table_of(pipeline, logs[0])
    await pipeline.catalog.commit(split_table.table_id, [], [change])
    second_driver = await PipelineDriver.start(world, WITHOUT_WAIT)
    await log.append(logs[0], plain("a"))
    await run(second_driver, logs)
    table = await table_of(pipeline, logs[0])
    assert (tagged(table), split(table)) == (None, {1: 1})  # the end of the log
    await producer.mark(logs[1])
    await run(second_driver, logs)
    table = await table_of(pipeline, logs[0])
    assert tagged(table) == main_of(table.metadata)


async def test_transactions_are_split_when_a_log_cannot_be_read_to_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = await world.topic(2)
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await TransactionalProducer(log, 1).commit(*logs)
    still_open = TransactionalProducer(log, 2)
    await still_open.write(logs[1])
    for _ in range(20):
        await log.append(logs[1], plain("a"))
    monkeypatch.setattr(backlog, "BATCHES_MAX", 4)
    pipeline.changed.requeue(logs)
    await pipeline.micro_batches.run()
    monkeypatch.undo()
    table = await table_of(pipeline, logs[0])
    assert (tagged(table), split(table)) == (None, {1: 23})  # the end of the log, which was not read
    await still_open.mark(logs[1])
    await run(pipeline, logs)
    table = await table_of(pipeline, logs[0])
    assert tagged(table) == main_of(table.metadata)


async def test_read_of_transactions_is_retried_when_it_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = await world.topic(2)
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await TransactionalProducer(log, 1).commit(*logs)

    async def fails(*_: object) -> int:
        raise Unavailable("no answer")

    monkeypatch.setattr(Log, "confirmed_end", fails)
    pipeline.changed.requeue(logs)
    done = await pipeline.micro_batches.run()
    (status,) = pipeline.micro_batches.statuses.by_id.values()
    assert (done.moves, status.error) == (0, "its transactions cannot be read: no answer")
    monkeypatch.undo()
    await run(pipeline, [])
    assert await values(pipeline, logs) == [["1/1"], ["1/1"]]
    assert status.error == ""
