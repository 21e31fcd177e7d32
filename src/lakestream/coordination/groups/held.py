"""One group in the memory of the broker that coordinates it: the pure steps of steps.py with a clock, a store and
people who wait.

Before: coordinator.py.  After: steps.py, which decides; metadata/groups.py.

**Nobody hears of a step before it is stored.** Steps are taken at once, one after another; what they change is written
in rounds, one at a time, and whatever is asked meanwhile goes into the next. A round that is refused means that another
broker has the group by now: then all of this is thrown away, and everybody who waits is sent to look for the new
coordinator. Signs of life change nothing and write nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from lakestream.clock import Clock
from lakestream.coordination.groups import consumer, offsets, steps
from lakestream.coordination.groups.landscape import Landscape
from lakestream.coordination.groups.offsets import Committer
from lakestream.coordination.groups.refusals import Refusal, Refused
from lakestream.coordination.groups.steps import Ground
from lakestream.coordination.groups.values import (
    Answer,
    AnyGroup,
    Beat,
    Beaten,
    ConsumerGroup,
    Group,
    Instant,
    Join,
    Joined,
    Leaver,
    Rules,
    Step,
    Sync,
    Synced,
    Ticket,
    Told,
)
from lakestream.errors import Conflict, LakestreamError
from lakestream.metadata.group_records import AnyGroup as AnyRecord
from lakestream.metadata.group_records import Asked, Committed, GroupRecord, State
from lakestream.metadata.groups import Claimed, Groups, StoredOffset
from lakestream.metadata.store import ABSENT
from lakestream.model import PartitionId

log = logging.getLogger(__name__)

LOST_MAX: Final = 3
"""Tries to commit an offset that somebody else writes too."""

Spawn = Callable[[Coroutine[Any, Any, None]], None]


@dataclass(slots=True)
class _Round:
    """What is written together, and who hears of it then."""

    offsets: dict[PartitionId, Committed] = field(default_factory=dict)
    removed: set[PartitionId] = field(default_factory=set)
    record: bool = False
    told: list[Told] = field(default_factory=list)
    waiting: list["asyncio.Future[None]"] = field(default_factory=list)

    @property
    def is_needed(self) -> bool:
        return self.record or bool(self.offsets or self.removed or self.waiting)


@dataclass(slots=True)
class GroupCounts:
    """Of all groups of this broker, since it began."""

    rebalances: int = 0
    commits: int = 0


class Held:
    def __init__(
        self,
        name: str,
        claimed: Claimed,
        who: str,
        groups: Groups,
        clock: Clock,
        rules: Rules,
        landscape: Callable[[], Landscape],
        spawn: Spawn,
        counts: GroupCounts,
    ) -> None:
        self.name = name
        self._counts = counts
        self.doubted = False
        """This broker was away for a while: somebody else may have the group by now. `confirm` finds out."""
        self.dropped: Refused | None = None
        self.used_s = 0.0
        self.on_drop: Callable[[Held], None] = _nobody
        self._who = who
        self._groups = groups
        self._clock = clock
        self._rules = rules
        self._landscape = landscape
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._version = ABSENT if claimed.group is None else claimed.group.version
        self._versions = claimed.versions
        self._owner = claimed.owner
        record: AnyRecord = GroupRecord() if claimed.group is None else claimed.group.record
        self._group: AnyGroup = steps.resumed(record, self._now())
        self._heard_ms = dict.fromkeys(record.members, self._now().ms)
        self._tickets: dict[Ticket, asyncio.Future[Answer]] = {}
        self._ticket = 0
        self._asked = 0
        self._next = _Round()
        self._flying: _Round | None = None
        self._writing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._arm()

    @property
    def record(self) -> AnyRecord:
        return self._group.record

    @property
    def exists(self) -> bool:
        """For everybody: it was stored, or has members."""
        return self._version != ABSENT or bool(self.record.members)

    def is_settled(self, member_id: str) -> bool:
        """A member of the new protocol that has all that it shall have."""
        if not isinstance(self._group, ConsumerGroup):
            return False
        member = self._group.record.members.get(member_id)
        return member is not None and consumer.is_at_target(self._group.record, member)

    @property
    def is_idle(self) -> bool:
        """Nobody would miss it: it can be read again."""
        awaited = isinstance(self._group, Group) and self._group.pending
        return not (self.record.members or awaited or self._writing or self._next.is_needed)

    # ── what members and others ask ──────────────────────────────────────────────────────────────────────────────────

    async def join(self, wish: Join) -> Joined:
        ticket, answer = self._new_ticket()
        wish = wish._replace(ticket=ticket)
        self._take(steps.join(self._group, wish, self._ground()))
        try:
            joined = await answer
        except asyncio.CancelledError:
            if self.dropped is None:  # without this, all others would wait for it
                self._take(steps.abandoned(self._group, wish, self._ground()))
            raise
        finally:
            self._tickets.pop(ticket, None)
        assert isinstance(joined, Joined)
        return joined

    async def sync(self, wish: Sync) -> Synced:
        ticket, answer = self._new_ticket()
        self._take(steps.sync(self._group, wish._replace(ticket=ticket), self._ground()))
        try:
            synced = await answer
        finally:
            self._tickets.pop(ticket, None)
        assert isinstance(synced, Synced)
        return synced

    async def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> Refusal | None:
        self._check_alive()
        step, refusal = steps.heartbeat(self._group, member_id, instance_id, generation, self._ground())
        if step.group is not self._group:
            self._take(step)
        if refusal in (None, Refusal.REBALANCE_IN_PROGRESS):
            self._hear(member_id)
        await self._settled()
        return refusal

    async def beat(self, said: Beat) -> Beaten:
        """A heartbeat of the new protocol."""
        self._check_alive()
        try:
            step = steps.beat(self.name, self._group, said._replace(ticket=self._ticket + 1), self._ground())
        except Refused:
            await self._settled()
            raise
        ticket, answer = self._new_ticket()
        self._take(step)
        try:
            beaten = await answer
        finally:
            self._tickets.pop(ticket, None)
        assert isinstance(beaten, Beaten)
        return beaten

    async def leave(self, leavers: Sequence[Leaver]) -> tuple[Refusal | None, ...]:
        self._check_alive()
        step, refusals = steps.leave(self._group, leavers, self._ground())
        self._take(step)
        await self._settled()
        return refusals

    async def commit(self, who: Committer, wanted: Mapping[PartitionId, Committed]) -> Refusal | None:
        self._check_alive()
        refusal = offsets.commit_refusal(self.record if self.exists else None, who)
        if refusal is not None:
            await self._settled()
            return refusal
        self._hear(who.member_id)
        if wanted:
            asked = self.ask()
            self._next.removed.difference_update(wanted)
            self._next.offsets.update({name: replace(one, asked=asked) for name, one in wanted.items()})
            await self._written()
            self._counts.commits += 1
        return None

    def ask(self) -> Asked:
        """For an offset that is asked for now: later than for all before, by whichever broker."""
        self._asked += 1
        return Asked(self._owner, self._asked)

    async def check_commit(self, who: Committer, *, certain: bool) -> Refusal | None:
        """Of a transaction."""
        self._check_alive()
        refusal = offsets.transaction_refusal(self.record if self.exists else None, who)
        if refusal is None:
            self._hear(who.member_id)
        if certain and refusal is None:
            await self._written()
        else:
            await self._settled()
        return refusal

    async def check_reader(self, member_id: str, epoch: int) -> Refusal | None:
        """Whether a member may ask for the group's offsets."""
        self._check_alive()
        refusal = offsets.fetch_refusal(self.record, member_id, epoch)
        await self._settled()
        return refusal

    async def remove_offsets(self, partitions: Iterable[PartitionId]) -> None:
        """Those that there are."""
        self._check_alive()
        self._next.removed.update(one for one in partitions if one in self._versions or one in self._next.offsets)
        for partition in self._next.removed:
            self._next.offsets.pop(partition, None)
        if self._next.removed:
            await self._written()

    async def confirm(self) -> None:
        """Returns if this broker has the group still; it had it, then, all the time."""
        self._check_alive()
        if self._owner != ABSENT:
            await self._written()
        self.doubted = False
        self._arm()

    async def delete(self) -> Refusal | None:
        self._check_alive()
        await self._settled()
        if not self.exists:
            return Refusal.GROUP_ID_NOT_FOUND
        if not self.record.is_empty:
            return Refusal.NON_EMPTY_GROUP
        self._take(Step(Group(record=GroupRecord(state=State.DEAD)), (), to_store=True))
        await self._settled()
        try:
            await self._groups.remove(self.name, self._version, self._owner)
        finally:  # if it failed, whoever comes next goes on with it
            self.drop(Refused(Refusal.NOT_COORDINATOR, f"group {self.name} was deleted"))
        return None

    # ── coming and going ─────────────────────────────────────────────────────────────────────────────────────────────

    def drop(self, why: Refused) -> None:
        """Forget all of it; whoever waits hears why."""
        if self.dropped is not None:
            return
        self.dropped = why
        self.on_drop(self)
        if self._timer is not None:
            self._timer.cancel()
        rounds = [self._next, *([self._flying] if self._flying else [])]
        futures: list[asyncio.Future[Any]] = [future for one in rounds for future in one.waiting]
        for future in (*self._tickets.values(), *futures):
            if not future.done():
                future.set_exception(why)
                future.exception()  # who asked may have left

    def forgive(self, ms: int) -> None:
        """This broker was away for so long: that it heard nothing was its own fault."""
        self.doubted = True
        self._heard_ms = {member_id: heard_ms + ms for member_id, heard_ms in self._heard_ms.items()}
        self._group = steps.delayed(self._group, ms)
        self._arm()

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _now(self) -> Instant:
        return Instant(round(self._loop.time() * 1000), self._clock.now_ms())

    def _ground(self) -> Ground:
        return Ground(self._landscape(), self._now(), self._rules)

    def _check_alive(self) -> None:
        if self.dropped is not None:
            raise self.dropped
        if self.record.is_dead:
            raise Refused(Refusal.COORDINATOR_NOT_AVAILABLE, f"group {self.name} is being deleted")

    def _new_ticket(self) -> "tuple[Ticket, asyncio.Future[Answer]]":
        self._check_alive()
        self._ticket += 1
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._tickets[self._ticket] = answer
        return self._ticket, answer

    def _take(self, step: Step[AnyGroup]) -> None:
        self._counts.rebalances += _generation(step.group.record) > _generation(self.record)
        self._group = step.group
        if step.to_store:
            self._next.record = True
        for told in step.told:
            self._hear(told.answer.member_id)  # it waited: it is there
        behind = self._unstored
        if behind is None:
            self._tell(step.told)
        else:
            behind.told.extend(step.told)
        if behind is not None or self._is_asked:
            self._kick()
        if (deadline_ms := self._group.next_deadline_ms) is not None:
            self._arm_by(deadline_ms)

    def _tell(self, told: Iterable[Told]) -> None:
        for ticket, answer in told:
            future = self._tickets.get(ticket)
            if future is not None and not future.done():
                future.set_result(answer)
            self._hear(answer.member_id)

    @property
    def _is_asked(self) -> bool:
        """Somebody waits to be led on."""
        return isinstance(self._group, ConsumerGroup) and bool(self._group.asking)

    # ── rounds ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _unstored(self) -> _Round | None:
        """The round that stores the newest step, if it is not stored."""
        if self._next.record:
            return self._next
        return self._flying if self._flying is not None and self._flying.record else None

    async def _settled(self) -> None:
        """What this broker knows of the group is stored."""
        behind = self._unstored
        if behind is not None:
            await self._wait_for(behind)

    async def _written(self) -> None:
        await self._wait_for(self._next)

    async def _wait_for(self, one: _Round) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        one.waiting.append(future)
        self._kick()
        await future

    def _kick(self) -> None:
        if not self._writing:
            self._writing = True
            self._spawn(self._write())

    async def _write(self) -> None:
        try:
            while self.dropped is None and (self._is_asked or self._next.is_needed):
                if self._is_asked:
                    self._take(steps.settled(self._group, self._ground()))
                    if not self._next.is_needed:
                        continue
                self._flying, self._next = self._next, _Round()
                await self._write_round(self._flying)
                done, self._flying = self._flying, None
                if self.dropped is not None:
                    return
                self._tell(done.told)
                for future in done.waiting:
                    if not future.done():
                        future.set_result(None)
        except Conflict as error:
            log.info("groups.lost group=%s error=%s", self.name, error)
            self.drop(Refused(Refusal.NOT_COORDINATOR, f"another broker coordinates group {self.name} by now"))
        except LakestreamError as error:
            log.warning("groups.not_stored group=%s error=%s", self.name, error)
            self.drop(Refused(Refusal.COORDINATOR_NOT_AVAILABLE, f"group {self.name}: {error}"))
        finally:
            self._writing = False
            waits = self._flying is not None or self._is_asked
            if self.dropped is None and waits:  # cancelled, or a bug: nobody is to wait for ever
                self.drop(Refused(Refusal.COORDINATOR_NOT_AVAILABLE, f"group {self.name} is given up"))

    async def _write_round(self, one: _Round) -> None:
        record = self.record if one.record or self._version == ABSENT else None
        left = await self._write_offsets(one.offsets, record)
        for _ in range(LOST_MAX):
            if not left:
                break
            # Written by somebody else: an older coordinator that came too late, or a transaction. Whether this broker
            # still has the group is asked after the new versions are read: only then may it cover what is there.
            there = await self._groups.offsets(self.name)
            self._versions = {name: stored.version for name, stored in there.items()}
            await self._write_offsets({}, None)
            left = {name: one for name, one in left.items() if name not in there or _is_later(one, there[name])}
            left = await self._write_offsets(left, None)
        if left:
            raise Conflict(f"the offsets of group {self.name} change all the time")
        if one.removed:
            versions = {name: self._versions.pop(name) for name in one.removed if name in self._versions}
            await self._groups.remove_offsets(self.name, versions)

    async def _write_offsets(
        self, wanted: Mapping[PartitionId, Committed], record: AnyRecord | None
    ) -> dict[PartitionId, Committed]:
        """Those that were at other versions than expected."""
        expected = [(name, one, self._versions.get(name, ABSENT)) for name, one in wanted.items()]
        group = None if record is None else (record, self._version)
        written = await self._groups.write(self.name, self._who, self._owner, expected, group)
        self._owner = written.owner
        self._versions.update(written.versions)
        if written.group is not None:
            self._version = written.group
        return {name: wanted[name] for name in written.lost}

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _hear(self, member_id: str) -> None:
        member = self.record.members.get(member_id)
        if member is not None:
            now_ms = round(self._loop.time() * 1000)
            self._heard_ms[member_id] = now_ms
            self._arm_by(now_ms + steps.session_ms(member, self._rules))

    def _silent(self, now_ms: int) -> list[str]:
        return [one for one, until_ms in self._sessions() if until_ms <= now_ms]

    def _sessions(self) -> list[tuple[str, int]]:
        """Until when each must be heard of. Whoever waits for an answer is there."""
        group, now_ms = self._group, self._now().ms
        return [
            (one, self._heard_ms.setdefault(one, now_ms) + steps.session_ms(member, self._rules))
            for one, member in self.record.members.items()
            if not group.awaits(one)
        ]

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times_ms = [until_ms for _, until_ms in self._sessions()]
        if (deadline_ms := self._group.next_deadline_ms) is not None:
            times_ms.append(deadline_ms)
        if times_ms:
            self._arm_by(min(times_ms))

    def _arm_by(self, when_ms: int) -> None:
        """Look at the time then at the latest. Too early a look does no harm, so most calls change nothing."""
        if self.dropped is not None or (self._timer is not None and self._timer_ms <= when_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = when_ms
        self._timer = self._loop.call_at(when_ms / 1000, self._look_at_time)

    def _look_at_time(self) -> None:
        self._timer = None
        now = self._now()
        if self.dropped is not None or self.doubted:
            return  # `confirm` is next, and looks again
        self._heard_ms = {one: ms for one, ms in self._heard_ms.items() if one in self.record.members}
        if silent := self._silent(now.ms):
            log.info("groups.silent group=%s members=%s", self.name, ",".join(silent[:10]))
            self._take(steps.expire(self._group, silent, self._ground()))
        deadline_ms = self._group.next_deadline_ms
        if deadline_ms is not None and deadline_ms <= now.ms:
            self._take(steps.tick(self._group, self._ground()))
        self._arm()


def _generation(record: AnyRecord) -> int:
    return record.generation if isinstance(record, GroupRecord) else record.epoch


def _nobody(held: Held) -> None: ...


def _is_later(one: Committed, there: StoredOffset) -> bool:
    return one.asked > there.committed.asked
