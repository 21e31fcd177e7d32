"""Transactions in the table: cut where none is split, and a tag on the newest snapshot where none is."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from tests.unit.catalog.topic import foreign_commit
from tests.unit.data.brokers import World, plain
from tests.unit.pipeline.driving import Driving

from lakestream.batch import RecordBatch, control_batch
from lakestream.catalog.catalog import LoadedTable
from lakestream.catalog.expire import ExpirySettings, expiry
from lakestream.catalog.next_offsets import main_of, parsed
from lakestream.catalog.updates import RemoveProperties, RemoveSnapshotRef, SetProperties, SetSnapshotRef, Update
from lakestream.catalog.whole_tag import WHOLE_AT, WHOLE_TAG
from lakestream.data.log.log import Log
from lakestream.errors import Unavailable
from lakestream.model import PartitionId
from lakestream.pipeline import backlog
from lakestream.pipeline import rounds as rounds_module
from lakestream.pipeline.plan import PlanSettings
from lakestream.pipeline.tasks import Outcome, Stuck
from lakestream.testing.batches import make_batch

AT_ONCE = PlanSettings(whole_wait_ms=0)
"""Nobody waits for the rest of a transaction."""


class Writer:
    """Of transactions, whose markers come when a test says so."""

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


async def run(driving: Driving, partitions: Sequence[PartitionId], asked: frozenset[str] = frozenset()) -> None:
    """Until all is moved that a driver moves at once."""
    driving.changed.look_again(partitions)
    while (await driving.rounds.run(asked)).left:
        pass


async def values(driving: Driving, partitions: Sequence[PartitionId]) -> list[list[str]]:
    return [[(value or b"").decode() for _, value in await driving.rows(partition)] for partition in partitions]


async def table_of(driving: Driving, partition: PartitionId) -> LoadedTable:
    return await driving.catalog.load_id(partition.topic_id)


def tagged(table: LoadedTable) -> int | None:
    ref = table.metadata["refs"].get(WHOLE_TAG)
    return None if ref is None else ref["snapshot-id"]


def split(table: LoadedTable) -> Mapping[int, int]:
    return parsed(table.metadata["properties"][WHOLE_AT])


async def test_without_transactions_the_tag_is_on_the_newest_snapshot(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await world.topic(2)
    log, driving = await world.broker(), await Driving.start(world)
    monkeypatch.setattr(rounds_module, "whereabouts", None)  # nobody looks a second time
    for _ in range(3):
        await log.append(one, plain("a"))
        await log.append(two, plain("b"))
        await run(driving, [one, two])
        table = await table_of(driving, one)
        assert tagged(table) == main_of(table.metadata) is not None
        assert split(table) == {}


async def test_a_log_waits_for_the_rest_of_a_transaction(world: World) -> None:
    logs = await world.topic(3)
    one, two, _ = logs
    log, driving = await world.broker(), await Driving.start(world)
    writer = Writer(log, 1)
    await log.append(one, plain("before"))
    await writer.write(one, two)
    await writer.mark(one)  # the other one has no marker yet
    await log.append(one, plain("behind"))
    await run(driving, logs)
    assert await values(driving, logs) == [["before"], [], []]
    table = await table_of(driving, one)
    assert tagged(table) == main_of(table.metadata)
    await run(driving, [])
    assert (await table_of(driving, one)).metadata_location == table.metadata_location  # nothing but waiting
    await writer.mark(two)
    await run(driving, [])
    assert await values(driving, logs) == [["before", "1/1", "behind"], ["1/1"], []]
    table = await table_of(driving, one)
    assert tagged(table) == main_of(table.metadata)


async def test_it_waits_no_longer_than_it_may_and_the_tag_stays(world: World) -> None:
    logs = await world.topic(2)
    one, two = logs
    log, driving = await world.broker(), await Driving.start(world, PlanSettings(whole_wait_ms=300))
    writer, other = Writer(log, 1), Writer(log, 2)
    await other.commit(one, two)
    await writer.write(one, two)
    await writer.mark(one)
    await run(driving, logs)
    whole = await table_of(driving, one)
    assert tagged(whole) == main_of(whole.metadata)
    await asyncio.sleep(0.35)
    await run(driving, [])
    torn = await table_of(driving, one)
    assert await values(driving, logs) == [["2/1", "1/1"], ["2/1"]]
    assert (tagged(torn), split(torn)) == (main_of(whole.metadata), {1: 3})
    await other.commit(one, two)
    await writer.mark(two)
    await run(driving, logs)
    healed = await table_of(driving, one)
    assert await values(driving, logs) == [["2/1", "1/1", "2/2"], ["2/1", "1/1", "2/2"]]
    assert (tagged(healed), split(healed)) == (main_of(healed.metadata), {})


async def test_a_round_without_the_topic_does_not_make_it_wait_anew(world: World) -> None:
    logs, (other,) = await world.topic(2), await world.topic(name="other")
    log, driving = await world.broker(), await Driving.start(world, PlanSettings(whole_wait_ms=200))
    writer = Writer(log, 1)
    await writer.write(*logs)
    await writer.mark(logs[0])
    await run(driving, logs)
    held = driving.changed._changed
    await asyncio.sleep(0.15)
    driving.changed._changed = set()
    await log.append(other, plain("a"))
    await run(driving, [other])
    driving.changed._changed = held
    await asyncio.sleep(0.1)
    await run(driving, logs)
    assert await values(driving, logs) == [["1/1"], []]


async def test_who_waits_for_a_table_is_not_kept_waiting(world: World) -> None:
    logs = await world.topic(2)
    log, driving = await world.broker(), await Driving.start(world)
    writer = Writer(log, 1)
    await writer.write(*logs)
    await writer.mark(logs[0])
    await run(driving, logs, asked=frozenset({logs[0].topic_id}))
    assert await values(driving, logs) == [["1/1"], []]
    assert tagged(await table_of(driving, logs[0])) is None


async def test_a_transaction_that_another_open_one_cuts_in_two(world: World) -> None:
    """In one log: the last stable offset lies in the middle of what is committed."""
    (one,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world, AT_ONCE)
    writer, other = Writer(log, 1), Writer(log, 2)
    await writer.write(one)
    await other.write(one)
    await writer.commit(one)
    await run(driving, [one])
    table = await table_of(driving, one)
    assert await values(driving, [one]) == [["1/1"]]
    assert (tagged(table), split(table)) == (None, {0: 3})
    await other.mark(one, commit=False)
    await run(driving, [one])
    table = await table_of(driving, one)
    assert await values(driving, [one]) == [["1/1", "1/1"]]
    assert (tagged(table), split(table)) == (main_of(table.metadata), {})


async def test_the_open_one_is_waited_for(world: World) -> None:
    (one,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    writer, other = Writer(log, 1), Writer(log, 2)
    await writer.write(one)
    await other.write(one)
    await writer.commit(one)
    await run(driving, [one])
    assert driving.job.runs == []
    await other.mark(one)
    await run(driving, [])
    assert await values(driving, [one]) == [["1/1", "2/1", "1/1"]]


async def test_what_was_aborted_splits_nothing(world: World) -> None:
    logs = await world.topic(2)
    log, driving = await world.broker(), await Driving.start(world)
    writer = Writer(log, 1)
    await writer.write(*logs)
    await writer.mark(logs[0], commit=False)
    await log.append(logs[0], plain("behind"))
    await run(driving, logs)
    assert await values(driving, logs) == [["behind"], []]
    table = await table_of(driving, logs[0])
    assert tagged(table) == main_of(table.metadata)


async def test_a_full_round_ends_between_transactions(world: World) -> None:
    logs = await world.topic(2)
    log = await world.broker()
    driving = await Driving.start(world, PlanSettings(move_bytes_max=150, round_bytes_max=900))
    writer = Writer(log, 1)
    for _ in range(12):
        await writer.commit(*logs)
    driving.changed.look_again(logs)
    rounds = 0
    while (await driving.rounds.run()).left:
        rounds += 1
        one, two = await values(driving, logs)
        table = await table_of(driving, logs[0])
        assert one == two
        assert tagged(table) == main_of(table.metadata)
    assert rounds > 2
    assert [len(own) for own in await values(driving, logs)] == [12, 12]


async def test_one_that_is_larger_than_a_round_is_split(world: World) -> None:
    logs = await world.topic(2)
    log = await world.broker()
    driving = await Driving.start(world, PlanSettings(move_bytes_max=100, round_bytes_max=300))
    writer = Writer(log, 1)
    for _ in range(8):
        await writer.write(*logs)
    await writer.mark(*logs)
    driving.changed.look_again(logs)
    assert (await driving.rounds.run()).left
    assert tagged(await table_of(driving, logs[0])) is None
    await run(driving, logs)
    table = await table_of(driving, logs[0])
    assert [len(own) for own in await values(driving, logs)] == [8, 8]
    assert tagged(table) == main_of(table.metadata)


async def test_work_that_fails_for_one_log(world: World) -> None:
    logs = await world.topic(2)
    log, driving = await world.broker(), await Driving.start(world)
    await Writer(log, 1).commit(*logs)

    async def fails(outcomes: Sequence[Outcome]) -> list[Outcome]:
        return [Stuck(one.move, "no answer", True) if one.move.partition == logs[1] else one for one in outcomes]

    driving.job.instead.append(fails)
    await run(driving, logs)
    table = await table_of(driving, logs[0])
    assert await values(driving, logs) == [["1/1"], []]
    assert (tagged(table), split(table)) == (None, {1: 1})
    another = await Driving.start(world)  # who knows nothing but what the table says
    await run(another, logs)
    table = await table_of(driving, logs[0])
    assert (tagged(table), split(table)) == (main_of(table.metadata), {})


async def test_another_driver_takes_one_log_while_we_take_the_other(world: World) -> None:
    """What was whole when it was planned is judged anew by what the table says when it is committed."""
    logs = await world.topic(2)
    log, one, two = await world.broker(), await Driving.start(world), await Driving.start(world, AT_ONCE)
    first, second = Writer(log, 1), Writer(log, 2)
    await log.append(logs[0], plain("a"))
    await run(one, logs)
    await first.commit(logs[0])

    async def overtaken(outcomes: list[Outcome]) -> list[Outcome]:
        await second.write(*logs)
        await second.mark(logs[1])
        await run(two, [logs[1]])  # it splits the second transaction
        return outcomes

    one.job.instead.append(overtaken)
    await run(one, logs[:1])
    table = await table_of(one, logs[0])
    assert await values(one, logs) == [["a", "1/1"], ["2/1"]]
    assert split(table) == {0: 4}
    assert tagged(table) != main_of(table.metadata)
    await second.mark(logs[0])
    await run(one, logs)
    table = await table_of(one, logs[0])
    assert (tagged(table), split(table)) == (main_of(table.metadata), {})


async def test_a_topic_that_grows(world: World) -> None:
    (one,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world, AT_ONCE)
    await log.append(one, plain("a"))
    await run(driving, [one])
    two = (await world.topics.grow("t", 2)).partitions()[1]
    writer = Writer(log, 1)
    await writer.write(one, two)
    await writer.mark(one)
    await run(driving, [one])
    table = await table_of(driving, one)
    assert split(table) == {1: 1}
    assert tagged(table) != main_of(table.metadata)


async def test_foreign_changes_of_what_is_whole_are_whole(world: World) -> None:
    logs = await world.topic(2)
    log, driving = await world.broker(), await Driving.start(world, AT_ONCE)
    writer = Writer(log, 1)
    await writer.commit(*logs)
    await run(driving, logs)
    whole = await foreign_commit(driving.catalog, await table_of(driving, logs[0]), 77)
    assert tagged(whole) == main_of(whole.metadata) == 77
    await writer.write(*logs)
    await writer.mark(logs[0])
    await run(driving, logs)
    torn = await foreign_commit(driving.catalog, await table_of(driving, logs[0]), 78)
    assert (main_of(torn.metadata), tagged(torn)) == (78, 77)
    await writer.mark(logs[1])
    await run(driving, logs)
    healed = await table_of(driving, logs[0])
    assert tagged(healed) == main_of(healed.metadata)


async def test_who_moves_the_tag_or_rolls_back_has_his_way(world: World) -> None:
    (one,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    for _ in range(2):
        await log.append(one, plain("a"))
        await run(driving, [one])
    table = await table_of(driving, one)
    first, second = (snapshot["snapshot-id"] for snapshot in table.metadata["snapshots"])
    back = await driving.catalog.commit(table.table_id, [], [SetSnapshotRef("main", "branch", first)])
    assert tagged(back) == second
    forward = await driving.catalog.commit(table.table_id, [], [SetSnapshotRef("main", "branch", second)])
    gone = await driving.catalog.commit(table.table_id, [], [RemoveSnapshotRef(WHOLE_TAG)])
    assert (tagged(forward), tagged(gone)) == (second, None)
    await log.append(one, plain("a"))
    await run(driving, [one])
    table = await table_of(driving, one)
    assert tagged(table) == main_of(table.metadata)  # it comes back with the next records


async def test_the_tag_outlives_the_rule_for_other_tags(world: World) -> None:
    (one,) = await world.topic()
    log, driving = await world.broker(), await Driving.start(world)
    await log.append(one, plain("a"))
    await run(driving, [one])
    table = await table_of(driving, one)
    main = main_of(table.metadata)
    assert main is not None
    changes: list[Update] = [SetProperties({"history.expire.max-ref-age-ms": "1"}), SetSnapshotRef("mine", "tag", main)]
    table = await driving.catalog.commit(table.table_id, [], changes)
    found = expiry(table.metadata, table.metadata["last-updated-ms"] + 1_000_000, ExpirySettings())
    assert found.refs == ("mine",)


@pytest.mark.parametrize("change", [RemoveProperties([WHOLE_AT]), SetProperties({WHOLE_AT: "?"})])
async def test_where_it_was_forgotten_it_is_found_out(world: World, change: RemoveProperties | SetProperties) -> None:
    logs = await world.topic(2)
    log, driving = await world.broker(), await Driving.start(world, AT_ONCE)
    writer = Writer(log, 1)
    await writer.write(*logs)
    await writer.mark(logs[0])
    await run(driving, logs)
    torn = await table_of(driving, logs[0])
    await driving.catalog.commit(torn.table_id, [], [change])
    another = await Driving.start(world, AT_ONCE)
    await log.append(logs[0], plain("a"))
    await run(another, logs)
    table = await table_of(driving, logs[0])
    assert (tagged(table), split(table)) == (None, {1: 1})  # up to where the logs ended
    await writer.mark(logs[1])
    await run(another, logs)
    table = await table_of(driving, logs[0])
    assert tagged(table) == main_of(table.metadata)


async def test_a_log_that_is_too_far_behind_to_be_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = await world.topic(2)
    log, driving = await world.broker(), await Driving.start(world)
    await Writer(log, 1).commit(*logs)
    still_open = Writer(log, 2)
    await still_open.write(logs[1])
    for _ in range(20):
        await log.append(logs[1], plain("a"))
    monkeypatch.setattr(backlog, "SPOTS_MAX", 4)
    driving.changed.look_again(logs)
    await driving.rounds.run()
    monkeypatch.undo()
    table = await table_of(driving, logs[0])
    assert (tagged(table), split(table)) == (None, {1: 23})  # up to its end, whatever is in there
    await still_open.mark(logs[1])
    await run(driving, logs)
    table = await table_of(driving, logs[0])
    assert tagged(table) == main_of(table.metadata)


async def test_a_second_look_that_fails_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = await world.topic(2)
    log, driving = await world.broker(), await Driving.start(world)
    await Writer(log, 1).commit(*logs)

    async def fails(*_: object) -> int:
        raise Unavailable("no answer")

    monkeypatch.setattr(Log, "end_for_certain", fails)
    driving.changed.look_again(logs)
    done = await driving.rounds.run()
    (standing,) = driving.rounds.standings.values()
    assert (done.moves, standing.trouble) == (0, "its transactions cannot be looked for: no answer")
    monkeypatch.undo()
    await run(driving, [])
    assert await values(driving, logs) == [["1/1"], ["1/1"]]
    assert standing.trouble == ""
