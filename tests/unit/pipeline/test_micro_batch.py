"""Tests micro-batches: each record becomes one row despite failures, and committed records leave the log."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.harness.log.brokers import NOW, World, plain
from tests.harness.pipeline.pipeline_driver import PipelineDriver, delete_topic_before_read

from lakestream.catalog.catalog import LoadedTable
from lakestream.catalog.errors import CommitStateUnknown
from lakestream.catalog.identifiers import TableName
from lakestream.catalog.operations.append import append as append_ranges
from lakestream.catalog.pointers import TableEntry
from lakestream.catalog.table_metadata.updates import RemoveProperties, SetProperties
from lakestream.catalog.topic_table.offsets import NEXT_OFFSETS
from lakestream.data.log.log import Log
from lakestream.errors import Unavailable
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId
from lakestream.pipeline import backlog, commit, table_setup
from lakestream.pipeline.plan import PlanSettings
from lakestream.pipeline.tasks import MoveFailed, Outcome
from lakestream.pipeline.unfinished_moves import STORED_MS_MAX

Rows = list[tuple[int, bytes | None]]


async def fill(log: Log, partition: PartitionId, start: int, end: int) -> None:
    for offset in range(start, end):
        await log.append(partition, plain(f"value {offset}"))


def rows(start: int, end: int) -> Rows:
    return [(offset, f"value {offset}".encode()) for offset in range(start, end)]


async def test_records_of_all_partitions_become_rows(world: World) -> None:
    one, two = await world.topic(2)
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await fill(log, one, 0, 5)
    await fill(log, two, 0, 3)
    done = await pipeline.micro_batches.run()
    assert (done.moves, done.records, done.tables, done.left, done.stalled) == (2, 8, 1, False, [])
    assert await pipeline.rows(one) == rows(0, 5)
    assert await pipeline.rows(two) == rows(0, 3)
    assert (await pipeline.catalog.load(TableName(("default",), "t"))).topic_id == one.topic_id


async def test_committed_records_are_trimmed_and_wal_objects_deleted(world: World) -> None:
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 0, 5)
    await pipeline.micro_batches.run()
    assert await world.claims.table_end(partition) == 5
    assert await world.claims.floor(partition) == 5
    world.clock.ms += 60_000
    await pipeline.micro_batches.run()
    world.clock.ms += 60_000
    await pipeline.micro_batches.run()
    assert await world.names() == []


async def test_each_micro_batch_continues_at_the_end_of_the_table(world: World) -> None:
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    for start in range(0, 30, 10):
        await fill(log, partition, start, start + 10)
        pipeline.changed.requeue([partition])
        assert (await pipeline.micro_batches.run()).records == 10
    assert (await pipeline.micro_batches.run()).moves == 0
    assert await pipeline.rows(partition) == rows(0, 30)


async def test_large_backlog_is_moved_in_several_micro_batches(world: World) -> None:
    (partition,) = await world.topic()
    log = await world.broker()
    pipeline = await PipelineDriver.start(world, PlanSettings(move_bytes_max=300, round_bytes_max=900))
    await fill(log, partition, 0, 40)
    total = 0
    while (done := await pipeline.micro_batches.run()).moves:
        total += done.records
        assert done.left == (total < 40)
    assert await pipeline.rows(partition) == rows(0, 40)


async def test_records_are_moved_once_when_two_drivers_run_concurrently(world: World) -> None:
    partitions = await world.topic(3)
    log, one, two = await world.broker(), await PipelineDriver.start(world), await PipelineDriver.start(world)
    for start in range(0, 20, 5):
        for partition in partitions:
            await fill(log, partition, start, start + 5)
        for pipeline in (one, two):
            pipeline.changed.requeue(partitions)
        await asyncio.gather(one.micro_batches.run(), two.micro_batches.run())
    for partition in partitions:
        await one.micro_batches.run()
        assert await one.rows(partition) == rows(0, 20)
    assert len(one.job.runs) + len(two.job.runs) > 4  # both drivers had moves


async def test_files_are_removed_when_another_driver_committed_first(world: World) -> None:
    (partition,) = await world.topic()
    log, one, two = await world.broker(), await PipelineDriver.start(world), await PipelineDriver.start(world)
    await fill(log, partition, 0, 5)

    async def commit_of_other_driver(outcomes: list[Outcome]) -> list[Outcome]:
        await two.micro_batches.run()
        return outcomes

    one.job.changes.append(commit_of_other_driver)
    assert (await one.micro_batches.run()).moves == 0
    assert await one.rows(partition) == rows(0, 5)
    files = [info.key async for page in world.objects.walk("tables/") for info in page if info.key.endswith(".parquet")]
    assert len(files) == 1


async def test_commit_succeeds_when_another_engine_committed_in_between(world: World) -> None:
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 0, 2)
    await pipeline.micro_batches.run()
    await pipeline.catalog.commit(partition.topic_id, [], [SetProperties({"owner": "team"})])
    await fill(log, partition, 2, 4)
    pipeline.changed.requeue([partition])
    assert (await pipeline.micro_batches.run()).records == 2
    assert await pipeline.rows(partition) == rows(0, 4)


async def test_log_is_trimmed_by_the_next_driver_after_a_crash_behind_the_commit(world: World) -> None:
    (partition,) = await world.topic()
    log, crashed = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 0, 5)

    async def no_trim() -> None:
        raise asyncio.CancelledError

    crashed.micro_batches._cleanup.trim = no_trim  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await crashed.micro_batches.run()
    assert await world.claims.table_end(partition) == 0
    pipeline = await PipelineDriver.start(world)
    assert (await pipeline.micro_batches.run()).moves == 0
    assert await world.claims.table_end(partition) == 5
    assert await pipeline.rows(partition) == rows(0, 5)


async def test_log_is_trimmed_by_the_next_driver_after_a_crash_before_the_trim(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (partition,) = await world.topic()
    log, crashed = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 0, 5)

    async def crash(*_: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(Log, "trim", crash)
    with pytest.raises(asyncio.CancelledError):
        await crashed.micro_batches.run()
    monkeypatch.undo()
    assert (await world.claims.table_end(partition), await world.claims.floor(partition)) == (5, 0)
    await (await PipelineDriver.start(world)).micro_batches.run()
    assert await world.claims.floor(partition) == 5


async def test_rows_are_kept_and_not_repeated_when_the_commit_state_was_unknown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit succeeded: no record is moved twice, and no file of the table is removed."""
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 0, 5)
    real = append_ranges

    async def append(*arguments: object) -> object:
        await real(*arguments)  # type: ignore[arg-type]
        raise CommitStateUnknown("no answer")

    monkeypatch.setattr(commit, "append", append)
    await pipeline.micro_batches.run()
    monkeypatch.undo()
    await pipeline.micro_batches.run()
    assert await pipeline.rows(partition) == rows(0, 5)
    assert await world.claims.table_end(partition) == 5
    world.clock.ms += STORED_MS_MAX
    await fill(log, partition, 5, 10)
    pipeline.changed.requeue([partition])
    await pipeline.micro_batches.run()
    assert await pipeline.rows(partition) == rows(0, 10)


async def test_other_topics_are_moved_when_a_topic_stalls_and_it_is_retried(world: World) -> None:
    (bad,), (good,) = await world.topic(name="bad"), await world.topic(name="good")
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    for partition in (bad, good):
        await fill(log, partition, 0, 3)

    async def damaged(outcomes: Sequence[Outcome]) -> list[Outcome]:
        return [
            MoveFailed(one.move, "a batch is damaged", False) if one.move.partition == bad else one for one in outcomes
        ]

    pipeline.job.changes.append(damaged)
    done = await pipeline.micro_batches.run()
    assert done.stalled == ["bad: partition 0, offsets 0 to 3: a batch is damaged"]
    assert await pipeline.rows(good) == rows(0, 3)
    assert (await pipeline.micro_batches.run()).moves == 0  # it is not retried yet
    world.clock.ms += 60_000
    done = await pipeline.micro_batches.run()
    assert (done.records, done.stalled) == (3, [])
    assert await pipeline.rows(bad) == rows(0, 3)


async def test_other_partitions_are_committed_when_one_is_damaged(world: World) -> None:
    bad, good = await world.topic(2)
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    for partition in (bad, good):
        await fill(log, partition, 0, 3)

    async def damaged(outcomes: Sequence[Outcome]) -> list[Outcome]:
        return [
            MoveFailed(one.move, "a batch is damaged", False) if one.move.partition == bad else one for one in outcomes
        ]

    pipeline.job.changes.append(damaged)
    done = await pipeline.micro_batches.run()
    assert done.stalled == ["t: partition 0, offsets 0 to 3: a batch is damaged"]
    assert (await pipeline.rows(bad), await pipeline.rows(good)) == ([], rows(0, 3))
    world.clock.ms += 60_000
    assert (await pipeline.micro_batches.run()).stalled == []
    assert await pipeline.rows(bad) == rows(0, 3)


async def test_lag_of_a_stalled_topic_is_reported(world: World) -> None:
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 0, 3)
    await pipeline.micro_batches.run()
    table = await pipeline.catalog.load_id(partition.topic_id)
    await pipeline.catalog.drop(partition.topic_id)
    await fill(log, partition, 3, 5)
    second = await PipelineDriver.start(world)
    for later in (0, 5_000, 60_000):
        world.clock.ms += later
        done = await second.micro_batches.run()
        assert "was dropped" in done.stalled[0]
        assert (done.lag_records, done.lag_ms) == (2, world.clock.ms - NOW)
        (status,) = second.micro_batches.statuses.by_id.values()
        assert (status.lag_records, status.oldest_ms) == (2, NOW)
    await pipeline.catalog.register(table.name, table.metadata_location)
    world.clock.ms += 60_000
    done = await second.micro_batches.run()
    assert (done.lag_records, done.lag_ms, done.stalled) == (0, 0, [])


async def test_topic_is_no_longer_stalled_when_it_was_repaired_and_has_no_new_records(world: World) -> None:
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 0, 3)
    await pipeline.micro_batches.run()
    offsets = (await pipeline.catalog.load_id(partition.topic_id)).metadata["properties"][NEXT_OFFSETS]
    await pipeline.catalog.commit(partition.topic_id, [], [SetProperties({NEXT_OFFSETS: "?"})])
    second = await PipelineDriver.start(world)
    assert NEXT_OFFSETS in (await second.micro_batches.run()).stalled[0]
    await pipeline.catalog.commit(partition.topic_id, [], [SetProperties({NEXT_OFFSETS: offsets})])
    assert len((await second.micro_batches.run()).stalled) == 1  # it is not retried yet
    world.clock.ms += 60_000
    assert (await second.micro_batches.run()).stalled == []


async def test_temporary_error_is_reported_until_a_move_succeeds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 0, 3)

    async def full(outcomes: Sequence[Outcome]) -> list[Outcome]:
        return [MoveFailed(one.move, "no space left on device", True) for one in outcomes]

    async def refused(*_: object) -> LoadedTable:
        raise Unavailable("the catalog refuses")

    pipeline.job.changes += [full, full]
    for _ in range(2):
        world.clock.ms += 1_000
        assert (await pipeline.micro_batches.run()).stalled == []
        (status,) = pipeline.micro_batches.statuses.by_id.values()
        assert status.error == "partition 0, offsets 0 to 3: no space left on device"
        assert status.error_since_ms == NOW + 1_000
    monkeypatch.setattr(commit, "append", refused)
    await pipeline.micro_batches.run()
    (status,) = pipeline.micro_batches.statuses.by_id.values()
    assert status.error == "the commit to its table failed: the catalog refuses"
    monkeypatch.undo()
    assert (await pipeline.micro_batches.run()).records == 3
    assert (status.error, status.lag_records) == ("", 0)


async def test_moves_behind_a_failed_one_are_not_committed(world: World) -> None:
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world, PlanSettings(move_bytes_max=150))
    await fill(log, partition, 0, 6)

    async def second_fails(outcomes: Sequence[Outcome]) -> list[Outcome]:
        assert len(outcomes) > 2
        return [MoveFailed(one.move, "no answer", True) if place == 1 else one for place, one in enumerate(outcomes)]

    pipeline.job.changes.append(second_fails)
    await pipeline.micro_batches.run()
    assert len(await pipeline.rows(partition)) < 6
    await pipeline.micro_batches.run()
    assert await pipeline.rows(partition) == rows(0, 6)


async def test_damaged_records_are_skipped_when_an_operator_deletes_them(world: World) -> None:
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 0, 4)

    async def damaged(outcomes: Sequence[Outcome]) -> list[Outcome]:
        return [MoveFailed(one.move, "a batch is damaged", False) for one in outcomes]

    pipeline.job.changes.append(damaged)
    await pipeline.micro_batches.run()
    await log.delete_before(partition, 2)
    world.clock.ms += 60_000
    await pipeline.micro_batches.run()
    assert await pipeline.rows(partition) == rows(2, 4)


async def test_deleted_records_become_rows_when_nothing_is_damaged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the topic stalled for another reason: the table keeps records that the log deletes."""
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 0, 4)

    async def unavailable(*_: object) -> LoadedTable:
        raise Unavailable("no answer")

    monkeypatch.setattr(table_setup, "ensure_table", unavailable)
    assert "cannot be created" in (await pipeline.micro_batches.run()).stalled[0]
    monkeypatch.undo()
    await log.delete_before(partition, 2)
    world.clock.ms += 60_000
    assert (await pipeline.micro_batches.run()).stalled == []
    assert await pipeline.rows(partition) == rows(0, 4)


async def test_topic_does_not_stall_when_its_table_cannot_be_read_to_check_a_failed_move(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 0, 4)
    real = pipeline.catalog.load_id

    async def unavailable(table_id: str, *, confirmed: bool = False) -> LoadedTable:
        raise Unavailable("no answer")

    async def damaged(outcomes: Sequence[Outcome]) -> list[Outcome]:
        monkeypatch.setattr(pipeline.catalog, "load_id", unavailable)
        return [MoveFailed(one.move, "the object is not there", False) for one in outcomes]

    pipeline.job.changes.append(damaged)
    assert (await pipeline.micro_batches.run()).stalled == []
    monkeypatch.setattr(pipeline.catalog, "load_id", real)
    assert (await pipeline.micro_batches.run()).records == 4


async def test_topic_deleted_during_the_read_does_not_stall(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = await world.topic(2)
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    for partition in (one, two):
        await fill(log, partition, 0, 2)

    delete_topic_before_read(two, world, monkeypatch)
    assert (await pipeline.micro_batches.run()).stalled == []


async def test_topic_stalls_when_its_table_was_dropped(world: World) -> None:
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 0, 3)
    await pipeline.micro_batches.run()
    await pipeline.catalog.drop(partition.topic_id)
    await fill(log, partition, 3, 5)
    again = await PipelineDriver.start(world)
    done = await again.micro_batches.run()
    assert done.moves == 0
    assert "was dropped" in done.stalled[0]


async def test_files_are_removed_when_the_table_is_purged_before_the_commit(world: World) -> None:
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 0, 3)

    async def dropped(outcomes: Sequence[Outcome]) -> list[Outcome]:
        await pipeline.catalog.drop(partition.topic_id, purge=True)
        return list(outcomes)

    pipeline.job.changes.append(dropped)
    await pipeline.micro_batches.run()
    keys = [info.key async for page in world.objects.walk("") for info in page]
    assert [key for key in keys if key.endswith(".parquet")] == []


async def test_topic_resumes_when_the_newest_file_of_its_dropped_table_is_registered(world: World) -> None:
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)

    async def later() -> list[str]:
        world.clock.ms += 60_000
        pipeline.changed.requeue([partition])
        return (await pipeline.micro_batches.run()).stalled

    async def table() -> LoadedTable:
        return await pipeline.catalog.load_id(partition.topic_id)

    await fill(log, partition, 0, 3)
    assert await later() == []
    old = await table()
    await fill(log, partition, 3, 5)
    assert await later() == []
    newest = await table()
    await pipeline.catalog.drop(newest.name)
    await fill(log, partition, 5, 7)
    await later()
    assert "was dropped" in (await later())[0]
    # With an older metadata file than the newest one, the topic stays stalled.
    await pipeline.catalog.register(newest.name, old.metadata_location)
    assert await later() != []
    await pipeline.catalog.drop(newest.name)
    await pipeline.catalog.register(newest.name, newest.metadata_location)
    assert await later() == []
    assert await pipeline.rows(partition) == rows(0, 7)


async def test_topic_does_not_stall_when_another_driver_creates_its_table_concurrently(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (partition,) = await world.topic()
    log, one, two = await world.broker(), await PipelineDriver.start(world), await PipelineDriver.start(world)
    await fill(log, partition, 0, 3)
    real = one.catalog.load_id

    async def commit_of_other_driver(table_id: str) -> LoadedTable:
        monkeypatch.undo()
        try:
            return await real(table_id)
        finally:
            await two.micro_batches.run()

    monkeypatch.setattr(one.catalog, "load_id", commit_of_other_driver)
    assert (await one.micro_batches.run()).stalled == []
    assert await one.rows(partition) == rows(0, 3)


async def test_next_micro_batch_reads_logs_that_the_last_one_failed_to_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 0, 3)
    await pipeline.changed.take()
    pipeline.changed.requeue([partition])

    async def unavailable() -> dict[str, Topic]:
        monkeypatch.undo()
        raise Unavailable("no answer")

    monkeypatch.setattr(world.topics, "all", unavailable)
    with pytest.raises(Unavailable):
        await pipeline.micro_batches.run()
    assert (await pipeline.micro_batches.run()).records == 3


async def test_topic_stalls_when_next_offsets_are_invalid_and_resumes_when_they_are_removed(world: World) -> None:
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 0, 3)
    await pipeline.micro_batches.run()
    await pipeline.catalog.commit(partition.topic_id, [], [SetProperties({NEXT_OFFSETS: "nonsense"})])
    await fill(log, partition, 3, 5)
    again = await PipelineDriver.start(world)
    done = await again.micro_batches.run()
    assert done.moves == 0
    assert NEXT_OFFSETS in done.stalled[0]
    await pipeline.catalog.commit(
        partition.topic_id, [], [RemoveProperties([NEXT_OFFSETS])]
    )  # the snapshot summary has them
    world.clock.ms += 60_000
    assert (await again.micro_batches.run()).records == 2
    assert await pipeline.rows(partition) == rows(0, 5)


async def test_deleted_topic_is_neither_moved_nor_stalled(world: World) -> None:
    (partition,) = await world.topic(name="t")
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 0, 3)
    await pipeline.micro_batches.run()
    await world.topics.delete("t")
    pipeline.changed.requeue([partition])
    done = await pipeline.micro_batches.run()
    assert (done.moves, done.stalled) == (0, [])


async def test_lag_is_reported_until_records_are_moved(world: World) -> None:
    (partition,) = await world.topic(name="t")
    log, pipeline = (
        await world.broker(),
        await PipelineDriver.start(world, PlanSettings(quiet_topics=1, quiet_bytes_max=0)),
    )
    await fill(log, partition, 0, 3)

    async def fails(outcomes: Sequence[Outcome]) -> list[Outcome]:
        return [MoveFailed(one.move, "no answer", True) for one in outcomes]

    pipeline.job.changes.append(fails)
    await pipeline.micro_batches.run()
    status = pipeline.micro_batches.statuses.by_name()["t"]
    assert (status.lag_records, status.oldest_ms) == (3, NOW)
    await pipeline.micro_batches.run()
    assert (status.lag_records, status.oldest_ms, status.records) == (0, 0, 3)


async def test_topic_does_not_stall_when_another_driver_moved_and_deleted_the_objects(world: World) -> None:
    (partition,) = await world.topic()
    log, one, two = await world.broker(), await PipelineDriver.start(world), await PipelineDriver.start(world)
    await fill(log, partition, 0, 5)

    async def gone(outcomes: Sequence[Outcome]) -> list[Outcome]:
        await two.micro_batches.run()
        return [MoveFailed(one.move, "the object is not there", False) for one in outcomes]

    one.job.changes.append(gone)
    done = await one.micro_batches.run()
    assert (done.moves, done.stalled) == (0, [])
    assert (await one.micro_batches.run()).stalled == []
    assert await one.rows(partition) == rows(0, 5)


async def test_driver_continues_at_the_table_end_of_another_driver(world: World) -> None:
    """Its cached table is older than the start of the log."""
    partitions = await world.topic(2)
    log, one, two = await world.broker(), await PipelineDriver.start(world), await PipelineDriver.start(world)
    for start, pipeline in ((0, one), (5, two), (10, one)):
        for partition in partitions:
            await fill(log, partition, start, start + 5)
        pipeline.changed.requeue(partitions)
        done = await pipeline.micro_batches.run()
        assert (done.records, done.stalled) == (10, [])
    for partition in partitions:
        assert await one.rows(partition) == rows(0, 15)


async def test_topic_does_not_stall_when_a_deposed_leader_returns_an_old_pointer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The returned table is older than the start of the log."""
    (partition,) = await world.topic()
    log, one, two = await world.broker(), await PipelineDriver.start(world), await PipelineDriver.start(world)
    await fill(log, partition, 0, 5)
    await one.micro_batches.run()
    real, old = one.catalog.pointers.find_id, await one.catalog.pointers.find_id(partition.topic_id)
    await fill(log, partition, 5, 10)
    two.changed.requeue([partition])
    await two.micro_batches.run()

    async def deposed(table_id: str, *, confirmed: bool = False) -> TableEntry:
        return await real(table_id, confirmed=True) if confirmed else old

    monkeypatch.setattr(one.catalog.pointers, "find_id", deposed)
    await fill(log, partition, 10, 15)
    one.changed.requeue([partition])
    assert (await one.micro_batches.run()).stalled == []


async def test_full_scan_finds_a_log_whose_change_event_was_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await pipeline.micro_batches.run()
    await fill(log, partition, 0, 5)
    assert (await pipeline.micro_batches.run()).records == 0
    monkeypatch.setattr(backlog, "FULL_SCAN_S", 0)
    assert (await pipeline.micro_batches.run()).records == 5


async def test_moves_have_the_write_properties_of_the_table(world: World) -> None:
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 0, 1)
    await pipeline.micro_batches.run()
    properties = SetProperties({"write.target-file-size-bytes": "1"})
    await pipeline.catalog.commit(partition.topic_id, [], [properties])
    again = await PipelineDriver.start(world)
    await fill(log, partition, 1, 2)
    await again.micro_batches.run()
    assert dict(again.job.runs[0][0].properties)["write.target-file-size-bytes"] == "1"
