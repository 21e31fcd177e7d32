"""Records become rows, once, whatever goes wrong on the way, and what is in the table leaves the log."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.unit.data.brokers import NOW, World, plain
from tests.unit.pipeline.driving import Driving, deleted_before_it_is_looked_at

from lakestream.catalog.append import append as append_ranges
from lakestream.catalog.catalog import LoadedTable
from lakestream.catalog.errors import CommitUnknown
from lakestream.catalog.names import TableName
from lakestream.catalog.next_offsets import NEXT_OFFSETS
from lakestream.catalog.pointers import Found
from lakestream.catalog.updates import RemoveProperties, SetProperties
from lakestream.data.log.log import Log
from lakestream.errors import Unavailable
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId
from lakestream.pipeline import backlog
from lakestream.pipeline import rounds as rounds_module
from lakestream.pipeline.plan import PlanSettings
from lakestream.pipeline.tasks import Outcome, Stuck

Rows = list[tuple[int, bytes | None]]


async def fill(log: Log, partition: PartitionId, start: int, end: int) -> None:
    for offset in range(start, end):
        await log.append(partition, plain(f"value {offset}"))


def rows(start: int, end: int) -> Rows:
    return [(offset, f"value {offset}".encode()) for offset in range(start, end)]


async def test_what_is_in_the_log_is_in_the_table(world: World) -> None:
    one, two = await world.topic(2)
    log, driving = await world.broker(), await Driving.start(world)
    await fill(log, one, 0, 5)
    await fill(log, two, 0, 3)
    done = await driving.rounds.run()
    assert (done.moves, done.records, done.tables, done.left, done.stuck) == (2, 8, 1, False, [])
    assert await driving.rows(one) == rows(0, 5)
    assert await driving.rows(two) == rows(0, 3)
    assert (await driving.catalog.load(TableName(("default",), "t"))).topic_id == one.topic_id


async def test_what_is_in_the_table_leaves_the_log(world: World) -> None:
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    await fill(log, partition, 0, 5)
    await driving.rounds.run()
    assert await world.claims.table_end(partition) == 5
    assert await world.claims.floor(partition) == 5
    world.clock.ms += 60_000
    await driving.rounds.run()
    world.clock.ms += 60_000
    await driving.rounds.run()
    assert await world.names() == []


async def test_rounds_go_on_where_the_last_one_ended(world: World) -> None:
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    for start in range(0, 30, 10):
        await fill(log, partition, start, start + 10)
        driving.changed.look_again([partition])
        assert (await driving.rounds.run()).records == 10
    assert (await driving.rounds.run()).moves == 0
    assert await driving.rows(partition) == rows(0, 30)


async def test_a_large_backlog_takes_several_moves_and_rounds(world: World) -> None:
    (partition,) = await world.topic()
    log = await world.broker()
    driving = await Driving.start(world, PlanSettings(move_bytes_max=300, round_bytes_max=900))
    await fill(log, partition, 0, 40)
    total = 0
    while (done := await driving.rounds.run()).moves:
        total += done.records
        assert done.left == (total < 40)
    assert await driving.rows(partition) == rows(0, 40)


async def test_two_drivers_move_everything_once(world: World) -> None:
    partitions = await world.topic(3)
    log, one, two = await world.broker(), await Driving.start(world), await Driving.start(world)
    for start in range(0, 20, 5):
        for partition in partitions:
            await fill(log, partition, start, start + 5)
        for driving in (one, two):
            driving.changed.look_again(partitions)
        await asyncio.gather(one.rounds.run(), two.rounds.run())
    for partition in partitions:
        await one.rounds.run()
        assert await one.rows(partition) == rows(0, 20)
    assert len(one.job.runs) + len(two.job.runs) > 4  # they did meet


async def test_files_of_a_commit_that_was_refused_are_removed(world: World) -> None:
    (partition,) = await world.topic()
    log, one, two = await world.broker(), await Driving.start(world), await Driving.start(world)
    await fill(log, partition, 0, 5)

    async def overtaken(outcomes: list[Outcome]) -> list[Outcome]:
        await two.rounds.run()
        return outcomes

    one.job.instead.append(overtaken)
    assert (await one.rounds.run()).moves == 0
    assert await one.rows(partition) == rows(0, 5)
    files = [info.key async for page in world.objects.walk("tables/") for info in page if info.key.endswith(".parquet")]
    assert len(files) == 1


async def test_a_foreign_commit_in_between_does_not_matter(world: World) -> None:
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    await fill(log, partition, 0, 2)
    await driving.rounds.run()
    await driving.catalog.commit(partition.topic_id, [], [SetProperties({"owner": "somebody"})])
    await fill(log, partition, 2, 4)
    driving.changed.look_again([partition])
    assert (await driving.rounds.run()).records == 2
    assert await driving.rows(partition) == rows(0, 4)


async def test_who_dies_after_the_commit_is_followed_up(world: World) -> None:
    (partition,) = await world.topic()
    log, dead = await world.broker(), await Driving.start(world)
    await fill(log, partition, 0, 5)

    async def no_trim() -> None:
        raise asyncio.CancelledError

    dead.rounds._trim = no_trim  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await dead.rounds.run()
    assert await world.claims.table_end(partition) == 0
    driving = await Driving.start(world)
    assert (await driving.rounds.run()).moves == 0
    assert await world.claims.table_end(partition) == 5
    assert await driving.rows(partition) == rows(0, 5)


async def test_who_dies_between_table_end_and_trim_is_followed_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (partition,) = await world.topic()
    log, dead = await world.broker(), await Driving.start(world)
    await fill(log, partition, 0, 5)

    async def dies(*_: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(Log, "trim", dies)
    with pytest.raises(asyncio.CancelledError):
        await dead.rounds.run()
    monkeypatch.undo()
    assert (await world.claims.table_end(partition), await world.claims.floor(partition)) == (5, 0)
    await (await Driving.start(world)).rounds.run()
    assert await world.claims.floor(partition) == 5


async def test_a_commit_whose_outcome_is_not_known(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took effect all the same: nothing is moved twice, nothing that is in the table is removed."""
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    await fill(log, partition, 0, 5)
    real = append_ranges

    async def append(*arguments: object) -> object:
        await real(*arguments)  # type: ignore[arg-type]
        raise CommitUnknown("no answer")

    monkeypatch.setattr(rounds_module, "append", append)
    await driving.rounds.run()
    monkeypatch.undo()
    await driving.rounds.run()
    assert await driving.rows(partition) == rows(0, 5)
    assert await world.claims.table_end(partition) == 5


async def test_a_stuck_topic_stops_alone_says_why_and_goes_on(world: World) -> None:
    (bad,), (good,) = await world.topic(name="bad"), await world.topic(name="good")
    log, driving = await world.broker(), await Driving.start(world)
    for partition in (bad, good):
        await fill(log, partition, 0, 3)

    async def damaged(outcomes: Sequence[Outcome]) -> list[Outcome]:
        return [Stuck(one.move, "a batch is damaged", False) if one.move.partition == bad else one for one in outcomes]

    driving.job.instead.append(damaged)
    done = await driving.rounds.run()
    assert done.stuck == ["bad: partition 0, offsets 0 to 3: a batch is damaged"]
    assert await driving.rows(good) == rows(0, 3)
    assert (await driving.rounds.run()).moves == 0  # it rests
    world.clock.ms += 60_000
    done = await driving.rounds.run()
    assert (done.records, done.stuck) == (3, [])
    assert await driving.rows(bad) == rows(0, 3)


async def test_one_damaged_partition_does_not_stop_what_was_made_of_the_others(world: World) -> None:
    bad, good = await world.topic(2)
    log, driving = await world.broker(), await Driving.start(world)
    for partition in (bad, good):
        await fill(log, partition, 0, 3)

    async def damaged(outcomes: Sequence[Outcome]) -> list[Outcome]:
        return [Stuck(one.move, "a batch is damaged", False) if one.move.partition == bad else one for one in outcomes]

    driving.job.instead.append(damaged)
    done = await driving.rounds.run()
    assert done.stuck == ["t: partition 0, offsets 0 to 3: a batch is damaged"]
    assert (await driving.rows(bad), await driving.rows(good)) == ([], rows(0, 3))
    world.clock.ms += 60_000
    assert (await driving.rounds.run()).stuck == []
    assert await driving.rows(bad) == rows(0, 3)


async def test_the_lag_of_a_stuck_topic_is_seen(world: World) -> None:
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    await fill(log, partition, 0, 3)
    await driving.rounds.run()
    table = await driving.catalog.load_id(partition.topic_id)
    await driving.catalog.drop(partition.topic_id)
    await fill(log, partition, 3, 5)
    another = await Driving.start(world)
    for later in (0, 5_000, 60_000):
        world.clock.ms += later
        done = await another.rounds.run()
        assert "was dropped" in done.stuck[0]
        assert (done.lag_records, done.lag_ms) == (2, world.clock.ms - NOW)
        (standing,) = another.rounds.standings.values()
        assert (standing.lag_records, standing.oldest_ms) == (2, NOW)
    await driving.catalog.register(table.name, table.metadata_location)
    world.clock.ms += 60_000
    done = await another.rounds.run()
    assert (done.lag_records, done.lag_ms, done.stuck) == (0, 0, [])


async def test_a_topic_that_was_mended_while_nothing_waited_is_not_stuck(world: World) -> None:
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    await fill(log, partition, 0, 3)
    await driving.rounds.run()
    offsets = (await driving.catalog.load_id(partition.topic_id)).metadata["properties"][NEXT_OFFSETS]
    await driving.catalog.commit(partition.topic_id, [], [SetProperties({NEXT_OFFSETS: "?"})])
    another = await Driving.start(world)
    assert NEXT_OFFSETS in (await another.rounds.run()).stuck[0]
    await driving.catalog.commit(partition.topic_id, [], [SetProperties({NEXT_OFFSETS: offsets})])
    assert len((await another.rounds.run()).stuck) == 1  # it rests
    world.clock.ms += 60_000
    assert (await another.rounds.run()).stuck == []


async def test_trouble_that_may_pass_is_told_until_it_has(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    await fill(log, partition, 0, 3)

    async def full(outcomes: Sequence[Outcome]) -> list[Outcome]:
        return [Stuck(one.move, "no space left on device", True) for one in outcomes]

    async def refused(*_: object) -> LoadedTable:
        raise Unavailable("the catalog refuses")

    driving.job.instead += [full, full]
    for _ in range(2):
        world.clock.ms += 1_000
        assert (await driving.rounds.run()).stuck == []
        (standing,) = driving.rounds.standings.values()
        assert standing.trouble == "partition 0, offsets 0 to 3: no space left on device"
        assert standing.trouble_ms == NOW + 1_000
    monkeypatch.setattr(rounds_module, "append", refused)
    await driving.rounds.run()
    (standing,) = driving.rounds.standings.values()
    assert standing.trouble == "its table cannot be committed to: the catalog refuses"
    monkeypatch.undo()
    assert (await driving.rounds.run()).records == 3
    assert (standing.trouble, standing.lag_records) == ("", 0)


async def test_what_follows_a_move_that_failed_is_not_committed(world: World) -> None:
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world, PlanSettings(move_bytes_max=150))
    await fill(log, partition, 0, 6)

    async def second_fails(outcomes: Sequence[Outcome]) -> list[Outcome]:
        assert len(outcomes) > 2
        return [Stuck(one.move, "no answer", True) if place == 1 else one for place, one in enumerate(outcomes)]

    driving.job.instead.append(second_fails)
    await driving.rounds.run()
    assert len(await driving.rows(partition)) < 6
    await driving.rounds.run()
    assert await driving.rows(partition) == rows(0, 6)


async def test_deleted_records_do_not_hold_up_a_stuck_topic(world: World) -> None:
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    await fill(log, partition, 0, 4)

    async def damaged(outcomes: Sequence[Outcome]) -> list[Outcome]:
        return [Stuck(one.move, "a batch is damaged", False) for one in outcomes]

    driving.job.instead.append(damaged)
    await driving.rounds.run()
    await log.delete_before(partition, 2)
    world.clock.ms += 60_000
    await driving.rounds.run()
    assert await driving.rows(partition) == rows(2, 4)


async def test_deleted_records_become_rows_where_nothing_is_damaged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the topic was stuck for another reason: the table remembers what the stream forgets."""
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    await fill(log, partition, 0, 4)

    async def nobody(*_: object) -> LoadedTable:
        raise Unavailable("no answer")

    monkeypatch.setattr(rounds_module, "ensure_table", nobody)
    assert "cannot be made" in (await driving.rounds.run()).stuck[0]
    monkeypatch.undo()
    await log.delete_before(partition, 2)
    world.clock.ms += 60_000
    assert (await driving.rounds.run()).stuck == []
    assert await driving.rows(partition) == rows(0, 4)


async def test_nothing_is_called_damaged_while_nobody_knows_whether_another_driver_has_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    await fill(log, partition, 0, 4)
    real = driving.catalog.load_id

    async def nobody(table_id: str, *, confirmed: bool = False) -> LoadedTable:
        raise Unavailable("no answer")

    async def damaged(outcomes: Sequence[Outcome]) -> list[Outcome]:
        monkeypatch.setattr(driving.catalog, "load_id", nobody)
        return [Stuck(one.move, "the object is not there", False) for one in outcomes]

    driving.job.instead.append(damaged)
    assert (await driving.rounds.run()).stuck == []
    monkeypatch.setattr(driving.catalog, "load_id", real)
    assert (await driving.rounds.run()).records == 4


async def test_a_topic_that_goes_while_it_is_looked_at_is_no_harm(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await world.topic(2)
    log, driving = await world.broker(), await Driving.start(world)
    for partition in (one, two):
        await fill(log, partition, 0, 2)

    deleted_before_it_is_looked_at(two, world, monkeypatch)
    assert (await driving.rounds.run()).stuck == []


async def test_a_table_that_was_dropped_is_not_begun_anew(world: World) -> None:
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    await fill(log, partition, 0, 3)
    await driving.rounds.run()
    await driving.catalog.drop(partition.topic_id)
    await fill(log, partition, 3, 5)
    again = await Driving.start(world)
    done = await again.rounds.run()
    assert done.moves == 0
    assert "was dropped" in done.stuck[0]


async def test_files_for_a_table_that_was_dropped_meanwhile_are_removed(world: World) -> None:
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    await fill(log, partition, 0, 3)

    async def dropped(outcomes: Sequence[Outcome]) -> list[Outcome]:
        await driving.catalog.drop(partition.topic_id, purge=True)
        return list(outcomes)

    driving.job.instead.append(dropped)
    await driving.rounds.run()
    keys = [info.key async for page in world.objects.walk("") for info in page]
    assert [key for key in keys if key.endswith(".parquet")] == []


async def test_a_dropped_table_that_is_registered_again_goes_on(world: World) -> None:
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)

    async def later() -> list[str]:
        world.clock.ms += 60_000
        driving.changed.look_again([partition])
        return (await driving.rounds.run()).stuck

    async def table() -> LoadedTable:
        return await driving.catalog.load_id(partition.topic_id)

    await fill(log, partition, 0, 3)
    assert await later() == []
    old = await table()
    await fill(log, partition, 3, 5)
    assert await later() == []
    newest = await table()
    await driving.catalog.drop(newest.name)
    await fill(log, partition, 5, 7)
    await later()
    assert "was dropped" in (await later())[0]
    # An older file than the newest is told, never believed.
    await driving.catalog.register(newest.name, old.metadata_location)
    assert await later() != []
    await driving.catalog.drop(newest.name)
    await driving.catalog.register(newest.name, newest.metadata_location)
    assert await later() == []
    assert await driving.rows(partition) == rows(0, 7)


async def test_a_table_that_another_driver_has_just_made_was_not_dropped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (partition,) = await world.topic()
    log, one, two = await world.broker(), await Driving.start(world), await Driving.start(world)
    await fill(log, partition, 0, 3)
    real = one.catalog.load_id

    async def overtaken(table_id: str) -> LoadedTable:
        monkeypatch.undo()
        try:
            return await real(table_id)
        finally:
            await two.rounds.run()

    monkeypatch.setattr(one.catalog, "load_id", overtaken)
    assert (await one.rounds.run()).stuck == []
    assert await one.rows(partition) == rows(0, 3)


async def test_what_a_round_could_not_look_at_is_looked_at_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    await fill(log, partition, 0, 3)
    await driving.changed.take()
    driving.changed.look_again([partition])

    async def nobody() -> dict[str, Topic]:
        monkeypatch.undo()
        raise Unavailable("no answer")

    monkeypatch.setattr(world.topics, "all", nobody)
    with pytest.raises(Unavailable):
        await driving.rounds.run()
    assert (await driving.rounds.run()).records == 3


async def test_a_table_whose_offsets_are_gone_is_not_guessed(world: World) -> None:
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    await fill(log, partition, 0, 3)
    await driving.rounds.run()
    await driving.catalog.commit(partition.topic_id, [], [SetProperties({NEXT_OFFSETS: "nonsense"})])
    await fill(log, partition, 3, 5)
    again = await Driving.start(world)
    done = await again.rounds.run()
    assert done.moves == 0
    assert NEXT_OFFSETS in done.stuck[0]
    await driving.catalog.commit(partition.topic_id, [], [RemoveProperties([NEXT_OFFSETS])])  # the summary has it
    world.clock.ms += 60_000
    assert (await again.rounds.run()).records == 2
    assert await driving.rows(partition) == rows(0, 5)


async def test_a_deleted_topic_is_forgotten(world: World) -> None:
    (partition,) = await world.topic(name="t")
    log, driving = await world.broker(), await Driving.start(world)
    await fill(log, partition, 0, 3)
    await driving.rounds.run()
    await world.topics.delete("t")
    driving.changed.look_again([partition])
    done = await driving.rounds.run()
    assert (done.moves, done.stuck) == (0, [])


async def test_lag_is_told(world: World) -> None:
    (partition,) = await world.topic(name="t")
    log, driving = await world.broker(), await Driving.start(world, PlanSettings(quiet_topics=1, quiet_bytes_max=0))
    await fill(log, partition, 0, 3)

    async def fails(outcomes: Sequence[Outcome]) -> list[Outcome]:
        return [Stuck(one.move, "no answer", True) for one in outcomes]

    driving.job.instead.append(fails)
    await driving.rounds.run()
    standing = driving.rounds.named_standings()["t"]
    assert (standing.lag_records, standing.oldest_ms) == (3, NOW)
    await driving.rounds.run()
    assert (standing.lag_records, standing.oldest_ms, standing.records) == (0, 0, 3)


async def test_a_move_whose_bytes_another_driver_has_swept_is_not_stuck(world: World) -> None:
    (partition,) = await world.topic()
    log, one, two = await world.broker(), await Driving.start(world), await Driving.start(world)
    await fill(log, partition, 0, 5)

    async def gone(outcomes: Sequence[Outcome]) -> list[Outcome]:
        await two.rounds.run()
        return [Stuck(one.move, "the object is not there", False) for one in outcomes]

    one.job.instead.append(gone)
    done = await one.rounds.run()
    assert (done.moves, done.stuck) == (0, [])
    assert (await one.rounds.run()).stuck == []
    assert await one.rows(partition) == rows(0, 5)


async def test_a_driver_that_another_one_has_overtaken_goes_on_where_that_one_is(world: World) -> None:
    """It knows an old state of the table; what comes after that has been moved, and has left the log."""
    partitions = await world.topic(2)
    log, one, two = await world.broker(), await Driving.start(world), await Driving.start(world)
    for start, driving in ((0, one), (5, two), (10, one)):
        for partition in partitions:
            await fill(log, partition, start, start + 5)
        driving.changed.look_again(partitions)
        done = await driving.rounds.run()
        assert (done.records, done.stuck) == (10, [])
    for partition in partitions:
        assert await one.rows(partition) == rows(0, 15)


async def test_a_driver_that_an_old_leader_misleads_is_not_stuck(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told an old state of the table, while the log has gone on without what was moved since."""
    (partition,) = await world.topic()
    log, one, two = await world.broker(), await Driving.start(world), await Driving.start(world)
    await fill(log, partition, 0, 5)
    await one.rounds.run()
    real, old = one.catalog.pointers.find_id, await one.catalog.pointers.find_id(partition.topic_id)
    await fill(log, partition, 5, 10)
    two.changed.look_again([partition])
    await two.rounds.run()

    async def deposed(table_id: str, *, confirmed: bool = False) -> Found:
        return await real(table_id, confirmed=True) if confirmed else old

    monkeypatch.setattr(one.catalog.pointers, "find_id", deposed)
    await fill(log, partition, 10, 15)
    one.changed.look_again([partition])
    assert (await one.rounds.run()).stuck == []


async def test_a_log_that_grew_unheard_is_found_after_a_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    await driving.rounds.run()
    await fill(log, partition, 0, 5)
    assert (await driving.rounds.run()).records == 0
    monkeypatch.setattr(backlog, "FULL_LOOK_S", 0)
    assert (await driving.rounds.run()).records == 5


async def test_files_are_written_as_the_table_asks(world: World) -> None:
    (partition,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    await fill(log, partition, 0, 1)
    await driving.rounds.run()
    asked = SetProperties({"write.target-file-size-bytes": "1"})
    await driving.catalog.commit(partition.topic_id, [], [asked])
    again = await Driving.start(world)
    await fill(log, partition, 1, 2)
    await again.rounds.run()
    assert dict(again.job.runs[0][0].properties)["write.target-file-size-bytes"] == "1"
