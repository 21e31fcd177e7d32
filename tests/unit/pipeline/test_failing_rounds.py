"""What a round that comes to nothing leaves behind: no files, no haste, and no record that nobody has."""

import pytest
from tests.unit.data.brokers import World, plain
from tests.unit.pipeline.driving import Driving, deleted_before_it_is_looked_at
from tests.unit.pipeline.typed_world import REGISTRY, Typed, encoded, record

from lakestream.batch import RecordBatch
from lakestream.catalog.shapes import Json
from lakestream.catalog.updates import AddSchema, SetCurrentSchema
from lakestream.data.log.log import Log
from lakestream.errors import Unavailable
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId
from lakestream.pipeline.plan import PlanSettings
from lakestream.pipeline.tasks import Outcome, Stuck
from lakestream.testing.batches import make_batch


async def fill(log: Log, partition: PartitionId, count: int) -> None:
    for number in range(count):
        await log.append(partition, plain(f"value {number}"))


async def data_files(world: World) -> list[str]:
    return [info.key async for page in world.objects.walk("tables/") for info in page if info.key.endswith(".parquet")]


async def drop_key_column(driving: Driving, topic_id: str) -> None:
    metadata = (await driving.catalog.load_id(topic_id)).metadata
    schema: Json = next(one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"])
    fields = [_without_key(field) if field["name"] == "_stream" else field for field in schema["fields"]]
    await driving.catalog.commit(topic_id, [], [AddSchema({**schema, "fields": fields}), SetCurrentSchema(-1)])


def _without_key(stream: Json) -> Json:
    fields = [field for field in stream["type"]["fields"] if field["name"] != "key"]
    return {**stream, "type": {**stream["type"], "fields": fields}}


async def test_no_files_are_made_for_a_table_that_was_altered(world: World) -> None:
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    await fill(log, partition, 3)
    await driving.rounds.run()
    await drop_key_column(driving, partition.topic_id)
    await fill(log, partition, 3)
    again = await Driving.start(world)
    done = await again.rounds.run()
    assert "_stream.key was dropped" in done.stuck[0]
    assert again.job.runs == []


async def test_files_for_a_table_that_is_altered_meanwhile_are_removed(world: World) -> None:
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    await fill(log, partition, 3)
    await driving.rounds.run()
    await fill(log, partition, 3)
    driving.changed.look_again([partition])

    async def altered(outcomes: list[Outcome]) -> list[Outcome]:
        await drop_key_column(driving, partition.topic_id)
        return outcomes

    driving.job.instead.append(altered)
    assert "_stream.key was dropped" in (await driving.rounds.run()).stuck[0]
    assert len(await data_files(world)) == 1


async def test_files_that_could_not_be_committed_are_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    await fill(log, partition, 3)
    create = world.objects.create

    async def full(key: str, body: list[bytes]) -> None:
        if key.endswith(".avro"):
            raise Unavailable(f"cannot create {key}: the disk is full")
        await create(key, body)

    with monkeypatch.context() as patch:
        patch.setattr(world.objects, "create", full)
        for _ in range(3):
            assert (await driving.rounds.run()).moves == 0
    assert await data_files(world) == []
    assert (await driving.rounds.run()).records == 3


async def test_a_large_backlog_that_cannot_be_moved_is_not_tried_again_at_once(world: World) -> None:
    (partition,) = await world.topic()
    log = await world.broker()
    driving = await Driving.start(world, PlanSettings(move_bytes_max=300, round_bytes_max=900))
    await fill(log, partition, 40)

    async def no_space(outcomes: list[Outcome]) -> list[Outcome]:
        return [Stuck(one.move, "the disk is full", True) for one in outcomes]

    driving.job.instead.append(no_space)
    assert not (await driving.rounds.run()).left
    assert (await driving.rounds.run()).left, "it goes on where something is moved"


async def test_a_table_that_is_ahead_of_its_log_costs_no_record(world: World) -> None:
    """The metadata store was restored from a backup, the table was not. Of logs that have come further nobody can tell;
    so none of the topic is moved or trimmed."""
    partitions = await world.topic(3)
    log, driving = await world.broker(), await Driving.start(world)
    for partition in partitions:
        await fill(log, partition, 10)
    await driving.rounds.run()
    newest = await driving.catalog.load_id(partitions[0].topic_id)

    restored = World()
    restored.objects = world.objects
    await restored.topics.create("t", Topic(newest.topic_id, 3))
    log, driving = await restored.broker(), await Driving.start(restored)
    await driving.catalog.register(newest.name, newest.metadata_location)
    for partition, count in zip(partitions, (12, 3, 12), strict=True):
        await fill(log, partition, count)
    for _ in range(3):
        done = await driving.rounds.run()
        assert "before offset 10 of partition 1, whose log ends at 3" in done.stuck[0]
        assert done.moves == 0
        restored.clock.ms += 31_000
    for partition in partitions:
        assert await restored.claims.floor(partition) == 0
        assert await restored.claims.table_end(partition) == 0
    await restored.close()


async def test_a_typed_topic_that_goes_while_it_is_looked_at_is_no_harm(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await world.topic(2)
    await world.topics.set("t", REGISTRY)
    log, driving = await world.broker(), await Driving.start(world)
    typed = Typed(world, log, driving, one)
    first = record(("a", "int"))
    await typed.append(encoded(first, {"a": 1}, await typed.register(first)))
    await driving.rounds.run()
    second = record(("a", "int"), ("b", ["null", "int"]))
    value = encoded(second, {"a": 1, "b": 2}, await typed.register(second))
    await typed.append(value)
    await log.append(two, RecordBatch.parse(make_batch([value])))
    driving.changed.look_again([one, two])
    deleted_before_it_is_looked_at(two, world, monkeypatch)
    done = await driving.rounds.run()
    assert (done.moves, done.stuck) == (0, [])
    typed.close()
