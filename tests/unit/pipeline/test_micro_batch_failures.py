"""Tests micro-batches that fail: they leave no files, no busy loop, and lose no record."""

import asyncio
from typing import Any

import pytest
from tests.harness.log.brokers import World, plain
from tests.harness.pipeline.pipeline_driver import PipelineDriver, delete_topic_before_read
from tests.harness.pipeline.schema_topic import REGISTRY, SchemaTopic, encoded, record

from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.table_metadata.updates import AddSchema, SetCurrentSchema
from lakestream.data.log.log import Log
from lakestream.errors import Unavailable
from lakestream.metadata.pipeline_status import PipelineStatusStore
from lakestream.metadata.refresh_requests import RefreshRequests
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId
from lakestream.pipeline import commit, driver, micro_batch, table_setup
from lakestream.pipeline.plan import PlanSettings
from lakestream.pipeline.refresh_requests import RefreshRequestWatcher
from lakestream.pipeline.tasks import MoveFailed, Outcome
from lakestream.pipeline.topic_status import MicroBatchResult
from lakestream.records.batch import RecordBatch
from lakestream.testing.batches import make_batch


async def fill(log: Log, partition: PartitionId, count: int) -> None:
    for number in range(count):
        await log.append(partition, plain(f"value {number}"))


async def data_files(world: World) -> list[str]:
    return [info.key async for page in world.objects.walk("tables/") for info in page if info.key.endswith(".parquet")]


async def drop_key_column(pipeline: PipelineDriver, topic_id: str) -> None:
    metadata = (await pipeline.catalog.load_id(topic_id)).metadata
    schema: Json = next(one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"])
    fields = [_without_key(field) if field["name"] == "_stream" else field for field in schema["fields"]]
    await pipeline.catalog.commit(topic_id, [], [AddSchema({**schema, "fields": fields}), SetCurrentSchema(-1)])


def _without_key(stream: Json) -> Json:
    fields = [field for field in stream["type"]["fields"] if field["name"] != "key"]
    return {**stream, "type": {**stream["type"], "fields": fields}}


async def test_no_file_is_written_when_the_table_is_incompatible(world: World) -> None:
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 3)
    await pipeline.micro_batches.run()
    await drop_key_column(pipeline, partition.topic_id)
    await fill(log, partition, 3)
    again = await PipelineDriver.start(world)
    done = await again.micro_batches.run()
    assert "_stream.key was dropped" in done.stalled[0]
    assert again.job.runs == []


async def test_files_are_removed_when_the_table_becomes_incompatible_before_the_commit(world: World) -> None:
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 3)
    await pipeline.micro_batches.run()
    await fill(log, partition, 3)
    pipeline.changed.requeue([partition])

    async def altered(outcomes: list[Outcome]) -> list[Outcome]:
        await drop_key_column(pipeline, partition.topic_id)
        return outcomes

    pipeline.job.changes.append(altered)
    assert "_stream.key was dropped" in (await pipeline.micro_batches.run()).stalled[0]
    assert len(await data_files(world)) == 1


async def test_files_are_kept_for_one_more_attempt_when_the_commit_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (partition,) = await world.topic()
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    await fill(log, partition, 3)
    create = world.objects.create

    async def full(key: str, body: list[bytes]) -> None:
        if key.endswith(".avro"):
            raise Unavailable(f"cannot create {key}: the disk is full")
        await create(key, body)

    with monkeypatch.context() as patch:
        patch.setattr(world.objects, "create", full)
        for count in (1, 0, 1):
            assert (await pipeline.micro_batches.run()).moves == 0
            assert len(await data_files(world)) == count
    assert (await pipeline.micro_batches.run()).records == 3
    assert len(pipeline.job.runs) == 2
    assert len(await data_files(world)) == 1


async def test_failed_move_is_planned_smaller_until_it_succeeds(world: World) -> None:
    """A machine that cannot move more than 600 bytes in time, and a log that grows."""
    (partition,) = await world.topic()
    log, settings = await world.broker(), PlanSettings(move_bytes_max=8_000, move_bytes_min=200)
    pipeline = await PipelineDriver.start(world, settings)

    async def overloaded(outcomes: list[Outcome]) -> list[Outcome]:
        return [MoveFailed(one.move, "no response", True) if one.move.size > 600 else one for one in outcomes]

    await fill(log, partition, 60)
    failed, moved = 0, 0
    for _ in range(100):
        await fill(log, partition, 1)
        pipeline.changed.requeue([partition])
        pipeline.job.changes[:] = [overloaded]
        before = moved
        moved += (await pipeline.micro_batches.run()).records
        failed += moved == before
    assert moved == 160
    assert failed < 20, "few of the attempts, because the size grows slowly"
    assert [offset for offset, _ in await pipeline.rows(partition)] == list(range(160))


async def test_failed_move_is_not_retried_immediately_when_another_log_is_moved(world: World) -> None:
    bad, good = await world.topic(2)
    log = await world.broker()
    pipeline = await PipelineDriver.start(world, PlanSettings(move_bytes_min=100))
    await fill(log, bad, 40)

    async def one_fails(outcomes: list[Outcome]) -> list[Outcome]:
        return [MoveFailed(one.move, "no space", True) if one.move.partition == bad else one for one in outcomes]

    for _ in range(3):
        await fill(log, good, 1)
        pipeline.changed.requeue([good])
        pipeline.job.changes.append(one_fails)
        done = await pipeline.micro_batches.run()
        assert (done.records, done.left) == (1, False)


async def test_files_behind_a_failed_move_are_not_written_again(world: World) -> None:
    (partition,) = await world.topic()
    log, settings = await world.broker(), PlanSettings(move_bytes_max=300, move_bytes_min=100)
    pipeline = await PipelineDriver.start(world, settings)
    await fill(log, partition, 9)

    async def first_fails(outcomes: list[Outcome]) -> list[Outcome]:
        return [MoveFailed(outcomes[0].move, "no response", True), *outcomes[1:]]

    pipeline.job.changes.append(first_fails)
    assert (await pipeline.micro_batches.run()).moves == 0
    while (await pipeline.micro_batches.run()).left:
        pass
    rewritten = [move for moves in pipeline.job.runs[1:] for move in moves]
    first = pipeline.job.runs[0][0]
    assert len(pipeline.job.runs[0]) > 2
    assert rewritten[0].start == first.start
    assert all(move.end <= first.end and move.size < first.size for move in rewritten)
    assert [offset for offset, _ in await pipeline.rows(partition)] == list(range(9))
    # The test replaced the outcome of the first move, so its file is left.
    assert len(await data_files(world)) == len(pipeline.job.runs[0]) + len(rewritten)


@pytest.mark.parametrize("step", ["read_backlog", "check_columns", "append", "next_offsets", "incomplete_offsets"])
async def test_other_topics_are_moved_when_a_step_of_one_raises_a_bug(
    world: World, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bad,), (good,) = await world.topic(name="bad"), await world.topic(name="good")
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    for partition in (bad, good):
        await fill(log, partition, 3)
    await pipeline.micro_batches.run()
    for partition in (bad, good):
        await fill(log, partition, 3)
    table = await pipeline.catalog.load_id(bad.topic_id)
    modules = [one for one in (micro_batch, table_setup, commit) if hasattr(one, step)]
    original = getattr(modules[0], step)

    def failing(*arguments: Any, **named: Any) -> Any:
        if any(
            one == bad or one == table.metadata or getattr(one, "metadata", None) == table.metadata for one in arguments
        ):
            raise TypeError("a bug")
        return original(*arguments, **named)

    again = await PipelineDriver.start(world)
    with monkeypatch.context() as patch:
        for module in modules:
            patch.setattr(module, step, failing)
        done = await again.micro_batches.run()
    assert done.records == 3
    assert [one for one in done.stalled if one.startswith("bad: TypeError: a bug: this is a bug, please report it")]
    world.clock.ms += 60_000
    done = await again.micro_batches.run()
    assert (done.records, done.stalled) == (3, [])


async def test_driver_continues_when_a_micro_batch_raises_a_bug(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "RETRY_MS", 1)
    pipeline, store = await PipelineDriver.start(world), world.server.client()
    requests = RefreshRequestWatcher(RefreshRequests(store), pipeline.changed)
    options = driver.PipelineOptions(interval_ms=1)
    done = asyncio.Event()
    one = driver.Driver(
        pipeline.micro_batches,
        requests,
        PipelineStatusStore(store),
        world.clock,
        options,
        on_micro_batch=lambda _: done.set(),
    )
    run, failures = pipeline.micro_batches.run, [TypeError("a bug")]

    async def failing(names: frozenset[str]) -> MicroBatchResult:
        if failures:
            raise failures.pop()
        return await run(names)

    monkeypatch.setattr(pipeline.micro_batches, "run", failing)
    running = asyncio.get_running_loop().create_task(one.run())
    try:
        await asyncio.wait_for(done.wait(), 10)
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_large_backlog_is_not_retried_immediately_when_nothing_was_moved(world: World) -> None:
    (partition,) = await world.topic()
    log = await world.broker()
    pipeline = await PipelineDriver.start(world, PlanSettings(move_bytes_max=300, round_bytes_max=900))
    await fill(log, partition, 40)

    async def no_space(outcomes: list[Outcome]) -> list[Outcome]:
        return [MoveFailed(one.move, "the disk is full", True) for one in outcomes]

    pipeline.job.changes.append(no_space)
    assert not (await pipeline.micro_batches.run()).left
    assert (await pipeline.micro_batches.run()).left, "the next one can start immediately when records were moved"


async def test_topic_stalls_when_its_table_is_ahead_of_a_log(world: World) -> None:
    """The metadata store was restored from a backup, the table was not.

    Logs that end behind the table cannot be distinguished, so no log of the topic is moved or trimmed.
    """
    partitions = await world.topic(3)
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    for partition in partitions:
        await fill(log, partition, 10)
    await pipeline.micro_batches.run()
    newest = await pipeline.catalog.load_id(partitions[0].topic_id)

    restored = World()
    restored.objects = world.objects
    await restored.topics.create("t", Topic(newest.topic_id, 3))
    log, pipeline = await restored.broker(), await PipelineDriver.start(restored)
    await pipeline.catalog.register(newest.name, newest.metadata_location)
    for partition, count in zip(partitions, (12, 3, 12), strict=True):
        await fill(log, partition, count)
    for _ in range(3):
        done = await pipeline.micro_batches.run()
        assert "before offset 10 of partition 1, whose log ends at 3" in done.stalled[0]
        assert done.moves == 0
        restored.clock.ms += 31_000
    for partition in partitions:
        assert await restored.claims.floor(partition) == 0
        assert await restored.claims.table_end(partition) == 0
    await restored.close()


async def test_topic_with_schemas_deleted_during_the_read_does_not_stall(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await world.topic(2)
    await world.topics.set("t", REGISTRY)
    log, pipeline = await world.broker(), await PipelineDriver.start(world)
    topic = SchemaTopic(world, log, pipeline, one)
    first = record(("a", "int"))
    await topic.append(encoded(first, {"a": 1}, await topic.register(first)))
    await pipeline.micro_batches.run()
    second = record(("a", "int"), ("b", ["null", "int"]))
    value = encoded(second, {"a": 1, "b": 2}, await topic.register(second))
    await topic.append(value)
    await log.append(two, RecordBatch.parse(make_batch([value])))
    pipeline.changed.requeue([one, two])
    delete_topic_before_read(two, world, monkeypatch)
    done = await pipeline.micro_batches.run()
    assert (done.moves, done.stalled) == (0, [])
    topic.close()
