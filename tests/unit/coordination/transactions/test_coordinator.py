"""Transactions over several brokers: whoever stops, wherever, another one goes on, and nothing is torn."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec.structs import replace
from tests.unit.coordination.transactions.place import WAIT_S, Member, Place, Writer
from tests.unit.data.brokers import World

from lakestream.coordination.transactions import ending, machine
from lakestream.coordination.transactions.coordinator import NotCoordinator
from lakestream.coordination.transactions.machine import CLASSIC, IMPLICIT, Busy
from lakestream.coordination.transactions.patrol import LEFTOVER_MS
from lakestream.errors import Fenced, Unavailable, WrongTransaction
from lakestream.metadata import keys
from lakestream.metadata.group_records import Asked, GroupRecord, packed_group, packed_offset
from lakestream.metadata.groups import Committed
from lakestream.metadata.store import ABSENT, put_one
from lakestream.metadata.transactions import PendingOffset, State
from lakestream.model import PartitionId


@pytest_asyncio.fixture
async def place() -> AsyncIterator[Place]:
    world = World()
    place = Place(world)
    yield place
    await place.close()
    await world.close()


@pytest_asyncio.fixture
async def two(place: Place) -> tuple[Member, Member]:
    return await place.member(), await place.member()


async def begun(place: Place, member: Member, *partitions: PartitionId, implicit: bool = False) -> Writer:
    """A transaction with one record in each log."""
    writer = Writer(place, place.id_of(member), implicit=implicit)
    await writer.init(member)
    if not implicit:
        await writer.add(member, *partitions)
    for partition in partitions:
        await writer.send(member, partition, f"{partition.number}")
    return writer


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("commit", [False, True])
async def test_it_ends_in_all_its_logs(place: Place, two: tuple[Member, Member], implicit: bool, commit: bool) -> None:
    first, second = two
    partitions = await place.world.topic(3)
    writer = await begun(place, first, *partitions, implicit=implicit)
    await writer.send(second, partitions[0], "again")
    await writer.end(first, commit=commit)
    record = await place.until(writer.id, State.COMMITTED if commit else State.ABORTED)
    assert record.partitions == ()
    for partition in partitions:
        end = 3 if partition.number == 0 else 2
        assert await second.log.bounds(partition) == (0, end, end)
        assert await place.aborted(partition) == ([] if commit else [(0, end - 1)])


async def test_only_the_coordinator_answers(place: Place, two: tuple[Member, Member]) -> None:
    first, second = two
    partition = await place.world.log()
    writer = await begun(place, first, partition)
    for asked in (writer.init(second), writer.add(second, partition), writer.end(second)):
        with pytest.raises(NotCoordinator):
            await asked


# ── stops ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_next_coordinator_ends_what_was_decided(place: Place, two: tuple[Member, Member]) -> None:
    """The first one dies after one of two logs has its marker."""
    first, second = two
    partitions = await place.world.topic(2)
    writer = await begun(place, first, *partitions)
    first.metadata.cut_off = {partitions[1]}
    await writer.end(first)
    await place.until_stable(partitions[0], 2)
    assert (await place.record(writer.id)).state is State.COMMITTING
    await place.leave(first)
    await second.coordinator.patrol.round()
    await place.until(writer.id, State.COMMITTED)
    await place.until_stable(partitions[1], 2)
    assert [await place.aborted(partition) for partition in partitions] == [[], []]


async def test_an_old_coordinator_that_wakes_up_ends_nothing_of_the_next_transaction(
    place: Place, two: tuple[Member, Member]
) -> None:
    first, second = two
    partition = await place.world.log()
    writer = await begun(place, first, partition)
    first.metadata.cut_off = {partition}
    await writer.end(first, commit=False)
    await place.leave(first)
    await second.coordinator.patrol.round()
    await place.until(writer.id, State.ABORTED)
    await writer.add(second, partition)
    await writer.send(second, partition, "next")
    first.metadata.cut_off = set()
    await asyncio.sleep(0.3)  # it tries again
    record = await place.record(writer.id)
    assert (record.state, record.number) == (State.ONGOING, 2)
    stable = (await second.log.bounds(partition)).stable
    await writer.end(second)
    await place.until(writer.id, State.COMMITTED)
    assert await place.aborted(partition) == [(0, 1)]
    assert stable < (await second.log.bounds(partition)).stable


async def test_who_does_not_know_whether_it_was_decided_looks(place: Place, two: tuple[Member, Member]) -> None:
    """The answer of the store was lost: asked again, the same is said."""
    first, _ = two
    partition = await place.world.log()
    writer = await begun(place, first, partition, implicit=True)
    old = writer.who
    await writer.end(first)
    again = await first.coordinator.end(writer.id, old, commit=True, protocol=IMPLICIT)
    assert again == writer.who == (old.producer_id, old.epoch + 1)
    with pytest.raises(WrongTransaction):
        await first.coordinator.end(writer.id, old, commit=False, protocol=IMPLICIT)


async def test_a_topic_that_is_deleted_holds_nothing_up(place: Place, two: tuple[Member, Member]) -> None:
    first, _ = two
    (gone,) = await place.world.topic(1, "gone")
    (there,) = await place.world.topic(1, "there")
    writer = await begun(place, first, gone, there)
    await place.world.topics.delete("gone")
    await writer.end(first)
    await place.until(writer.id, State.COMMITTED)
    assert (await first.log.bounds(there)).stable == 2


# ── the rule that nothing hangs ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_batch_that_comes_after_the_end_is_refused(place: Place, two: tuple[Member, Member]) -> None:
    first, second = two
    partitions = await place.world.topic(2)
    writer = Writer(place, place.id_of(first))
    await writer.init(first)
    await writer.add(first, *partitions)
    number = await second.coordinator.admit(writer.id, writer.who, partitions, CLASSIC)
    late = writer.batch(partitions[0], "late")
    await writer.end(first, commit=False)
    await place.until(writer.id, State.ABORTED)
    with pytest.raises(WrongTransaction):
        await second.log.append(partitions[0], late, number)
    assert await second.log.bounds(partitions[0]) == (0, 1, 1)


async def test_a_batch_of_a_fenced_producer_never_opens_a_transaction(place: Place, two: tuple[Member, Member]) -> None:
    """It was admitted before its transaction was aborted by the next producer, and comes to a log that has forgotten
    everything about it."""
    first, second = two
    partitions = await place.world.topic(2)
    old = Writer(place, place.id_of(first), implicit=True)
    await old.init(first)
    number = await second.coordinator.admit(old.id, old.who, [partitions[0]], IMPLICIT)
    new = Writer(place, old.id, implicit=True)
    await new.init(first)
    await new.send(first, partitions[1], "new")
    for partition in partitions:
        with pytest.raises(Fenced):
            await second.log.append(partition, old.batch(partition, "zombie"), number)
    with pytest.raises(Fenced):
        await old.send(second, partitions[1], "zombie")


async def test_the_next_transaction_is_known_to_brokers_that_remember_the_one_before(
    place: Place, two: tuple[Member, Member]
) -> None:
    """Clients of the older protocol have the same epoch in both."""
    first, second = two
    partition = await place.world.log()
    writer = await begun(place, first, partition)
    await writer.send(second, partition, "second")
    await writer.end(first)
    await writer.add(first, partition)  # waits for the end of the one before
    number = second.coordinator.number_known(writer.id, writer.who, [partition])
    assert number == 1, "from memory"
    await writer.send(second, partition, "next")
    assert (await second.log.producers(partition))[writer.who.producer_id].transaction == 2
    await writer.end(first, commit=False)
    await place.until(writer.id, State.ABORTED)
    assert await place.aborted(partition) == [(3, 4)]


async def test_what_is_said_of_the_end_is_stored_with_the_next_beginning(
    place: Place, two: tuple[Member, Member]
) -> None:
    first, _ = two
    partition = await place.world.log()
    writer = await begun(place, first, partition)
    await writer.end(first)
    await place.until_stable(partition, 2)
    await writer.add(first, partition)
    assert (await place.record(writer.id)).number == 2
    await asyncio.sleep(ending.LATER_MS / 1000 + 0.1)
    assert (await place.record(writer.id)).state is State.ONGOING


async def test_brokers_that_add_at_once_all_do(place: Place, two: tuple[Member, Member]) -> None:
    first, second = two
    partitions = await place.world.topic(8)
    writer = Writer(place, place.id_of(first), implicit=True)
    await writer.init(first)
    await asyncio.gather(*(writer.send(two[one.number % 2], one, "x") for one in partitions))
    record = await place.record(writer.id)
    assert (record.number, record.partitions) == (1, tuple(partitions))
    await writer.end(first)
    await place.until(writer.id, State.COMMITTED)
    assert {(await second.log.bounds(one)).stable for one in partitions} == {2}


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("implicit", [False, True])
async def test_one_that_takes_too_long_is_aborted(place: Place, two: tuple[Member, Member], implicit: bool) -> None:
    first, second = two
    partition = await place.world.log()
    writer = await begun(place, first, partition, implicit=implicit)
    await first.coordinator.patrol.round()
    place.world.clock.ms += 60_001
    await second.coordinator.patrol.round()
    assert (await place.record(writer.id)).is_open, "it is not its coordinator"
    await first.coordinator.patrol.round()
    await place.until(writer.id, State.ABORTED)
    assert await place.aborted(partition) == [(0, 1)]
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


async def test_nobody_is_aborted_early_because_his_time_was_that_of_the_transaction_before(
    place: Place, two: tuple[Member, Member]
) -> None:
    first, _ = two
    partition = await place.world.log()
    writer = await begun(place, first, partition, implicit=True)
    await first.coordinator.patrol.round()
    place.world.clock.ms += 50_000
    await writer.end(first)
    await writer.send(first, partition, "next")
    place.world.clock.ms += 20_000
    await first.coordinator.patrol.round()
    assert (await place.record(writer.id)).is_open
    place.world.clock.ms += 40_001
    await first.coordinator.patrol.round()
    await place.until(writer.id, State.ABORTED)


async def test_an_id_that_nobody_uses_is_forgotten(place: Place, two: tuple[Member, Member]) -> None:
    first, _ = two
    partition = await place.world.log()
    writer = await begun(place, first, partition)
    old = writer.who
    await writer.end(first)
    await place.until(writer.id, State.COMMITTED)
    place.world.clock.ms += machine.EXPIRY_MS + 1000
    first.coordinator.patrol._doubted.add(writer.id)
    await first.coordinator.patrol.round()
    assert await place.records.load(writer.id) is None
    assert await place.records.names() == []
    await writer.init(first)
    assert writer.who.producer_id != old.producer_id


async def test_init_waits_for_what_it_aborts(place: Place, two: tuple[Member, Member]) -> None:
    first, _ = two
    partition = await place.world.log()
    writer = await begun(place, first, partition)
    new = Writer(place, writer.id)
    await new.init(first)
    assert new.who.epoch == writer.who.epoch + 2
    await place.until_stable(partition, 2)
    assert await place.aborted(partition) == [(0, 1)]
    await new.add(first, partition)
    await new.send(first, partition, "new")
    first.metadata.cut_off = {partition}
    newer = Writer(place, writer.id)
    with pytest.raises(Busy):
        await newer.init(first)
    first.metadata.cut_off = set()
    async with asyncio.timeout(WAIT_S):
        while newer.who.epoch < 0:
            try:
                await newer.init(first)
            except Busy:
                continue
    assert newer.who.epoch == new.who.epoch + 2


async def test_a_producer_goes_on_after_its_own_init(place: Place, two: tuple[Member, Member]) -> None:
    first, _ = two
    partition = await place.world.log()
    writer = await begun(place, first, partition)
    old = writer.who
    await writer.init(first, resumes=True)
    assert writer.who == (old.producer_id, old.epoch + 1)
    await writer.add(first, partition)
    await writer.send(first, partition, "on")


# ── offsets of groups ────────────────────────────────────────────────────────────────────────────────────────────────


ASKED = itertools.count()


def asked() -> Asked:
    return Asked(0, next(ASKED))


async def version(place: Place, partition: PartitionId) -> int:
    found = (await place.groups.offsets("g")).get(partition)
    return ABSENT if found is None else found.version


async def held(place: Place, member: Member, writer: Writer, partition: PartitionId, offset: int) -> None:
    await member.coordinator.hold_group(writer.id, writer.who, "g", writer.protocol)
    if await place.groups.get("g") is None:
        await put_one(place.world.metadata, keys.group_key("g"), packed_group(GroupRecord()), ABSENT)
    pending = PendingOffset(partition, Committed(offset, 0, "", 0, 1, asked=asked()), await version(place, partition))
    await member.coordinator.put_offsets(writer.id, writer.who, "g", [pending], writer.protocol)


async def committed(place: Place, partition: PartitionId) -> int:
    found = (await place.groups.offsets("g")).get(partition)
    return -1 if found is None else found.committed.offset


async def commit_plainly(place: Place, partition: PartitionId, offset: int) -> None:
    value = packed_offset(Committed(offset, 0, "", 0, 1, asked=asked()))
    await put_one(place.world.metadata, keys.offset_key("g", partition), value, await version(place, partition))


@pytest.mark.parametrize("commit", [False, True])
async def test_offsets_are_committed_with_the_transaction(
    place: Place, two: tuple[Member, Member], commit: bool
) -> None:
    first, second = two
    partition = await place.world.log()
    writer = await begun(place, first, partition, implicit=True)
    await held(place, second, writer, partition, 5)
    assert await committed(place, partition) == -1
    assert await first.coordinator.pending("g") == {partition}
    await writer.end(first, commit=commit)
    await place.until(writer.id, State.COMMITTED, State.ABORTED)
    assert await committed(place, partition) == (5 if commit else -1)
    assert await second.coordinator.pending("g") == set()


async def test_ending_twice_takes_no_offset_back(place: Place, two: tuple[Member, Member]) -> None:
    """The first coordinator wakes up when the group has long gone on."""
    first, second = two
    partition, other = await place.world.topic(2)
    writer = await begun(place, first, partition, implicit=True)
    await held(place, first, writer, partition, 5)
    await held(place, first, writer, other, 7)
    first.metadata.cut_off = {partition}
    await writer.end(first)
    ending_one = await place.records.load(writer.id)
    assert ending_one is not None
    assert ending_one.record.state is State.COMMITTING
    await place.leave(first)
    await second.coordinator.patrol.round()
    await place.until(writer.id, State.COMMITTED)
    await commit_plainly(place, partition, 50)
    await writer.send(second, partition, "next")
    await held(place, second, writer, other, 70)
    await writer.end(second)
    await place.until(writer.id, State.COMMITTED)
    await place.records.commit_offsets(ending_one.record)
    assert [await committed(place, partition), await committed(place, other)] == [50, 70]


async def test_what_is_committed_meanwhile_stays(place: Place, two: tuple[Member, Member]) -> None:
    first, _ = two
    partition = await place.world.log()
    writer = await begun(place, first, partition, implicit=True)
    await held(place, first, writer, partition, 5)
    await commit_plainly(place, partition, 9)
    await writer.end(first)
    await place.until(writer.id, State.COMMITTED)
    assert await committed(place, partition) == 9


async def test_offsets_are_pending_until_their_transaction_has_ended(place: Place, two: tuple[Member, Member]) -> None:
    first, second = two
    partition = await place.world.log()
    writer = await begun(place, first, partition, implicit=True)
    await held(place, second, writer, partition, 5)
    first.metadata.cut_off = {partition}
    await writer.end(first)
    assert await second.coordinator.pending("g") == {partition}, "decided, and nobody has done it yet"
    await place.leave(first)
    await second.coordinator.patrol.round()
    await place.until(writer.id, State.COMMITTED)
    assert await second.coordinator.pending("g") == set()
    assert await committed(place, partition) == 5


async def test_a_group_forgets_ids_that_are_forgotten(place: Place, two: tuple[Member, Member]) -> None:
    first, _ = two
    await place.records.note_group("g", "never")
    assert await first.coordinator.pending("g") == set()
    assert await place.records.of_group("g") == []


async def test_a_group_has_to_be_added_by_clients_of_the_older_protocol(
    place: Place, two: tuple[Member, Member]
) -> None:
    first, second = two
    partition = await place.world.log()
    writer = await begun(place, first, partition)
    with pytest.raises(WrongTransaction):
        await held(place, second, writer, partition, 5)
    await first.coordinator.add_group(writer.id, writer.who, "g")
    await held(place, second, writer, partition, 5)
    await writer.end(first)
    await place.until(writer.id, State.COMMITTED)
    assert await committed(place, partition) == 5


async def test_a_producer_that_is_not_known_any_longer_comes_again(place: Place, two: tuple[Member, Member]) -> None:
    first, _ = two
    partition = await place.world.log()
    writer = await begun(place, first, partition)
    first.coordinator._ids.clear()
    info = (await first.log.claims(partition, 0))[0].claim.batches[0]
    with pytest.raises(Unavailable):
        await first.coordinator.transaction_of(partition, info)
    await writer.send(first, partition, "again")


async def test_offsets_that_come_while_the_transaction_before_ends_replace_its_own(
    place: Place, two: tuple[Member, Member]
) -> None:
    first, second = two
    partition = await place.world.log()
    writer = await begun(place, first, partition, implicit=True)
    for number in range(5, 15):
        await held(place, second, writer, partition, number)
        await writer.end(first)
    await place.until(writer.id, State.COMMITTED)
    assert await committed(place, partition) == 14


async def test_ids_that_take_turns_on_one_group_lose_no_offset(place: Place, two: tuple[Member, Member]) -> None:
    """Each begins when the one before is decided; its offset is not the group's yet, and then is."""
    first, second = two
    partition = await place.world.log()
    old = await begun(place, first, partition, implicit=True)
    new = await begun(place, second, partition, implicit=True)
    await held(place, first, old, partition, 1)
    first.metadata.cut_off = {partition}
    await old.end(first)
    await held(place, second, new, partition, 2)
    await place.leave(first)
    await second.coordinator.patrol.round()
    await place.until(old.id, State.COMMITTED)
    assert await committed(place, partition) == 1
    await new.end(second)
    await place.until(new.id, State.COMMITTED)
    assert await committed(place, partition) == 2


@pytest.mark.parametrize("later_ends_first", [False, True])
async def test_the_offset_stays_that_was_asked_for_later(
    place: Place, two: tuple[Member, Member], later_ends_first: bool
) -> None:
    """As in Kafka: whichever of two transactions ends first."""
    first, _ = two
    partition = await place.world.log()
    writers = [await begun(place, member, partition, implicit=True) for member in two]
    for writer, offset in zip(writers, (10, 20), strict=True):
        await held(place, first, writer, partition, offset)
    for writer, member in sorted(
        zip(writers, two, strict=True), key=lambda one: writers.index(one[0]), reverse=later_ends_first
    ):
        await writer.end(member)
        await place.until(writer.id, State.COMMITTED)
    assert await committed(place, partition) == 20


async def test_a_group_that_was_deleted_meanwhile_gets_no_offsets(place: Place, two: tuple[Member, Member]) -> None:
    """Nobody could list or remove them."""
    first, _ = two
    partition, other = await place.world.topic(2)
    await commit_plainly(place, other, 5)
    writer = await begun(place, first, partition, implicit=True)
    for one in (partition, other):
        await held(place, first, writer, one, 7)
    group = await place.groups.get("g")
    assert group is not None
    await place.groups.remove("g", group.version, ABSENT)
    await writer.end(first)
    await place.until(writer.id, State.COMMITTED)
    assert await place.groups.offsets("g") == {}


async def test_it_counts_what_it_does(place: Place, two: tuple[Member, Member]) -> None:
    first, second = two
    partition = await place.world.log()
    writer = await begun(place, first, partition, implicit=True)
    await first.coordinator.patrol.round()
    place.world.clock.ms += 50_000
    figures = first.coordinator.figures()
    assert (figures.open, figures.overdue, figures.oldest_ms, figures.committed) == (1, 0, 50_000, 0)
    place.world.clock.ms += 10_001
    assert first.coordinator.figures().overdue == 1
    await first.coordinator.patrol.round()
    await place.until(writer.id, State.ABORTED)
    await first.coordinator.patrol.round()
    await writer.init(first)
    await writer.send(first, partition, "next")
    await writer.end(first)
    await place.until(writer.id, State.COMMITTED)
    assert first.coordinator.figures()[:3] == (0, 0, 0)
    assert first.coordinator.figures()[4:] == (1, 1, 1), "committed, aborted, timed out"
    await second.coordinator.patrol.round()
    assert second.coordinator.figures() == (0,) * 7


async def test_a_name_that_was_left_over_goes_after_an_hour(place: Place, two: tuple[Member, Member]) -> None:
    first, _ = two
    name = place.id_of(first)
    await place.records.name(name)
    patrol = first.coordinator.patrol

    async def look_after(ms: int) -> list[str]:
        place.world.clock.ms += ms
        patrol._all_at_s = 0.0
        await patrol.round()
        return await place.records.names()

    assert await look_after(0) == [name]
    assert await look_after(LEFTOVER_MS) == [name]
    await place.records.name(name)  # somebody is about to use it
    assert await look_after(1) == [name]
    assert await look_after(LEFTOVER_MS) == [name]
    assert await look_after(1) == []
    writer = await begun(place, first, await place.world.log())
    assert await look_after(LEFTOVER_MS) == [writer.id]
    assert await look_after(LEFTOVER_MS) == [writer.id], "it has a record"


async def test_who_asked_for_an_end_too_late_does_not_end_the_next(place: Place, two: tuple[Member, Member]) -> None:
    """Another broker ended it, and the client of the older protocol went on under the same epoch."""
    first, _ = two
    (partition,) = await place.world.topic(1)
    writer = await begun(place, first, partition)
    known = await place.records.load(writer.id)
    assert known is not None
    await place.records.save(writer.id, replace(known.record, number=known.record.number + 1), known)
    with pytest.raises(Unavailable, match="another transaction meanwhile"):
        await writer.end(first)
    assert (await place.record(writer.id)).is_open
    await writer.end(first)  # asked of that one
    await place.until(writer.id, State.COMMITTED)
