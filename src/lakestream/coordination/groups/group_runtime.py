"""Runs one group in the memory of its coordinator: applies transitions, stores them and replies to waiting requests.

Before: coordinator.py.  After: transitions.py, which computes transitions; metadata/groups.py, which stores them.

**No response is sent before its state change is stored.** Transitions are applied in memory immediately, one after
another; their records are written in batches, one batch at a time. Requests that arrive during a write join the next
batch. A write that is rejected means that another broker coordinates the group now: then this broker drops the group,
and the waiting clients must find the new coordinator. Heartbeats change nothing and write nothing; their times are
stored now and then (member_sessions.py).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from lakestream.clock import Clock
from lakestream.coordination.groups import consumer_group, transitions
from lakestream.coordination.groups import offset_rules as offsets
from lakestream.coordination.groups.errors import GroupError, GroupRequestFailed
from lakestream.coordination.groups.member_sessions import MemberSessions
from lakestream.coordination.groups.messages import (
    AnyGroup,
    ConsumerGroup,
    Group,
    GroupLimits,
    GroupResult,
    HeartbeatRequest,
    HeartbeatResult,
    Instant,
    JoinRequest,
    JoinResult,
    LeavingMember,
    Reply,
    SyncRequest,
    SyncResult,
    Ticket,
    Transition,
)
from lakestream.coordination.groups.offset_rules import Committer
from lakestream.coordination.groups.topics_image import TopicsImage
from lakestream.coordination.groups.transitions import TransitionContext
from lakestream.errors import Conflict, LakestreamError
from lakestream.metadata.group_records import (
    BLOCK_PARTITIONS,
    AnyGroupRecord,
    BlockId,
    CommitSequence,
    Committed,
    GroupRecord,
    GroupState,
)
from lakestream.metadata.groups import ClaimedGroup, Groups, OffsetBlock
from lakestream.metadata.store import ABSENT
from lakestream.model import PartitionId

log = logging.getLogger(__name__)

CONFLICTS_MAX: Final = 3
"""Attempts to commit an offset that another broker writes at the same time."""
_NO_BLOCK: Final = OffsetBlock({}, ABSENT)


@dataclass(slots=True)
class GroupCounts:
    """Totals over all groups of this broker since it started."""

    rebalances: int = 0
    commits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEnvironment:
    """What all groups of one coordinator share."""

    coordinator_id: str
    records: Groups
    clock: Clock
    store_now_ms: Callable[[], int]
    limits: GroupLimits
    image: Callable[[], TopicsImage]
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    on_drop: Callable[["GroupRuntime"], None]
    counts: GroupCounts


@dataclass(slots=True)
class _WriteBatch:
    """Changes that are written together, and the replies and futures that wait for them."""

    offsets: dict[PartitionId, Committed] = field(default_factory=dict)
    removed: set[PartitionId] = field(default_factory=set)
    record: bool = False
    replies: list[Reply] = field(default_factory=list)
    waiting: list["asyncio.Future[None]"] = field(default_factory=list)

    @property
    def is_needed(self) -> bool:
        return self.record or bool(self.offsets or self.removed or self.waiting)


class GroupWriter:
    """Writes one group's record and offsets by compare-and-set, and keeps the versions of the stored records."""

    def __init__(self, name: str, claimed: ClaimedGroup, environment: GroupEnvironment) -> None:
        self.owner = claimed.owner
        self.version = ABSENT if claimed.group is None else claimed.group.version
        self._blocks = claimed.blocks
        self._name = name
        self._coordinator_id = environment.coordinator_id
        self._records = environment.records

    async def write(self, batch: _WriteBatch, current: AnyGroupRecord, heard_ms: Mapping[str, int] | None) -> None:
        """Raises Conflict if another broker owns the group, or other writers keep changing its offsets."""
        if self.owner == ABSENT and batch.offsets:
            await self._create_owner(batch)
        record = current if batch.record or self.version == ABSENT else None
        single = await self._remove_superseded(batch.removed) if batch.removed else {}
        left = await self._put(self._changed_blocks(batch), record, heard_ms)
        for _ in range(CONFLICTS_MAX):
            if not left:
                break
            # Written by a former coordinator, whose write arrived late. The ownership is checked after the new versions
            # are read: only the owner may overwrite what is stored.
            self._blocks = (await self._records.stored_offsets(self._name)).blocks
            await self._put({}, None)
            changed = self._changed_blocks(batch)
            left = await self._put({one: block for one, block in changed.items() if one in left}, None)
        if left:
            raise Conflict(f"group {self._name}: its offsets changed during {CONFLICTS_MAX} write attempts")
        if batch.removed:
            await self._records.remove_offsets(self._name, single)
            await self._remove_empty_blocks()

    async def _create_owner(self, batch: _WriteBatch) -> None:
        """Gives the first commits of a group a term that is above those of a deleted group of the same name.

        A suspended coordinator of that group may write its last commits late, and has no reason to stop before."""
        await self._put({}, None)
        batch.offsets.update(
            (partition, replace(one, sequence=one.sequence._replace(term=self.owner)))
            for partition, one in list(batch.offsets.items())
        )

    async def remove(self) -> None:
        await self._records.remove(self._name, self.version, self.owner)

    def _changed_blocks(self, batch: _WriteBatch) -> dict[BlockId, OffsetBlock]:
        """Returns the blocks that the batch changes, with all their offsets."""
        changed: dict[BlockId, OffsetBlock] = {}
        for block_id, committed in _by_block(batch.offsets).items():
            offsets = self._copied(block_id, changed)
            for number, new in committed.items():
                stored = offsets.get(number)
                if stored is None or stored.sequence < new.sequence:
                    offsets[number] = new
        for partition in batch.removed:
            block_id = BlockId.of(partition)
            if partition.number in self._blocks.get(block_id, _NO_BLOCK).offsets:
                self._copied(block_id, changed).pop(partition.number, None)
        return changed

    def _copied(self, block_id: BlockId, changed: dict[BlockId, OffsetBlock]) -> dict[int, Committed]:
        block = changed.get(block_id)
        if block is None:
            stored = self._blocks.get(block_id, _NO_BLOCK)
            block = changed[block_id] = OffsetBlock(dict(stored.offsets), stored.version)
        return block.offsets

    async def _remove_superseded(self, partitions: Set[PartitionId]) -> dict[PartitionId, int]:
        """Removes the partitions' own records that have an older offset than the block, and returns the versions of the
        others, which must be removed after the offset in the block: an interrupted removal must not restore the older
        of two offsets."""
        stored = await self._records.stored_offsets(self._name)
        single = {one: stored.single[one] for one in partitions if one in stored.single}
        latest = stored.latest()
        older = {one: own.version for one, own in single.items() if latest[one].committed is not own.committed}
        if older:
            await self._put({}, None)  # only the owner may remove them
            await self._records.remove_offsets(self._name, older)
        return {one: own.version for one, own in single.items() if one not in older}

    async def _remove_empty_blocks(self) -> None:
        empty = {one: block.version for one, block in self._blocks.items() if not block.offsets}
        await self._records.remove_blocks(self._name, empty)
        for block_id in empty:
            del self._blocks[block_id]

    async def _put(
        self,
        blocks: Mapping[BlockId, OffsetBlock],
        record: AnyGroupRecord | None,
        heard_ms: Mapping[str, int] | None = None,
    ) -> frozenset[BlockId]:
        """Returns the blocks that were not written, because their stored versions are not the expected ones."""
        group = None if record is None else (record, self.version)
        written = await self._records.write(self._name, self._coordinator_id, self.owner, blocks, group, heard_ms)
        self.owner = written.owner
        for block_id, version in written.versions.items():
            self._blocks[block_id] = OffsetBlock(blocks[block_id].offsets, version)
        if written.group is not None:
            self.version = written.group
        return written.lost


def _by_block(offsets: Mapping[PartitionId, Committed]) -> dict[BlockId, dict[int, Committed]]:
    blocks: dict[BlockId, dict[int, Committed]] = {}
    last: BlockId | None = None
    block: dict[int, Committed] = {}
    for partition, committed in offsets.items():  # neighbours follow each other, so most are in the last block
        topic_id, number = partition
        if last is None or topic_id != last.topic_id or number // BLOCK_PARTITIONS != last.number:
            last = BlockId.of(partition)
            block = blocks.setdefault(last, {})
        block[number] = committed
    return blocks


class GroupRuntime:
    def __init__(self, name: str, claimed: ClaimedGroup, environment: GroupEnvironment) -> None:
        self.name = name
        self.needs_ownership_check = False
        """This broker was suspended: another broker may own the group now. `confirm` checks it."""
        self.dropped: GroupRequestFailed | None = None
        self.last_used_s = 0.0
        self._environment = environment
        self._limits = environment.limits
        self._loop = asyncio.get_running_loop()
        self._writer = GroupWriter(name, claimed, environment)
        record: AnyGroupRecord = GroupRecord() if claimed.group is None else claimed.group.record
        self._group: AnyGroup = transitions.resumed(record, self._instant())
        self._sessions = MemberSessions(
            environment.limits, claimed.heard_ms, environment.store_now_ms(), self._instant().ms
        )
        self._waiting: dict[Ticket, asyncio.Future[GroupResult]] = {}
        self._last_ticket = 0
        self._last_sequence = 0
        self._queued = _WriteBatch()
        self._in_flight: _WriteBatch | None = None
        self._writing = False
        self._storing_heartbeats = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._reset_timer()

    @property
    def record(self) -> AnyGroupRecord:
        return self._group.record

    @property
    def exists(self) -> bool:
        """Returns whether clients can see the group: it is stored, or has members."""
        return self._writer.version != ABSENT or bool(self.record.members)

    def is_at_target(self, member_id: str) -> bool:
        """Returns whether a member of the consumer protocol has all partitions of its target assignment."""
        if not isinstance(self._group, ConsumerGroup):
            return False
        member = self._group.record.members.get(member_id)
        return member is not None and consumer_group.is_at_target(self._group.record, member)

    @property
    def is_idle(self) -> bool:
        """Returns whether the group can leave the memory: it can be read again from the store."""
        pending = isinstance(self._group, Group) and self._group.pending
        return not (self.record.members or pending or self._writing or self._queued.is_needed)

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def join(self, request: JoinRequest) -> JoinResult:
        ticket, future = self._new_ticket()
        request = request._replace(ticket=ticket)
        self._apply(transitions.join(self._group, request, self._context()))
        try:
            result = await future
        except asyncio.CancelledError:
            if self.dropped is None:  # else all other members would wait for this member
                self._apply(transitions.cancel_join(self._group, request, self._context()))
            raise
        finally:
            self._waiting.pop(ticket, None)
        assert isinstance(result, JoinResult)
        return result

    async def sync(self, request: SyncRequest) -> SyncResult:
        ticket, future = self._new_ticket()
        self._apply(transitions.sync(self._group, request._replace(ticket=ticket), self._context()))
        try:
            result = await future
        finally:
            self._waiting.pop(ticket, None)
        assert isinstance(result, SyncResult)
        return result

    async def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> GroupError | None:
        self._check_alive()
        transition, error = transitions.heartbeat(self._group, member_id, instance_id, generation, self._context())
        if transition.group is not self._group:
            self._apply(transition)
        if error in (None, GroupError.REBALANCE_IN_PROGRESS):
            self._touch(member_id)
        await self._wait_stored()
        return error

    async def consumer_heartbeat(self, request: HeartbeatRequest) -> HeartbeatResult:
        self._check_alive()
        try:
            transition = transitions.consumer_heartbeat(
                self.name, self._group, request._replace(ticket=self._last_ticket + 1), self._context()
            )
        except GroupRequestFailed:
            await self._wait_stored()
            raise
        ticket, future = self._new_ticket()
        self._apply(transition)
        try:
            result = await future
        finally:
            self._waiting.pop(ticket, None)
        assert isinstance(result, HeartbeatResult)
        return result

    async def leave(self, leavers: Sequence[LeavingMember]) -> tuple[GroupError | None, ...]:
        self._check_alive()
        transition, errors = transitions.leave(self._group, leavers, self._context())
        self._apply(transition)
        await self._wait_stored()
        return errors

    async def commit(self, committer: Committer, new: Mapping[PartitionId, Committed]) -> GroupError | None:
        self._check_alive()
        error = offsets.commit_error(self.record if self.exists else None, committer)
        if error is not None:
            await self._wait_stored()
            return error
        self._touch(committer.member_id)
        if new:
            sequence = self.next_commit_sequence()
            self._queued.removed.difference_update(new)
            self._queued.offsets.update({partition: replace(one, sequence=sequence) for partition, one in new.items()})
            await self._wait_written()
            self._environment.counts.commits += 1
        return None

    def next_commit_sequence(self) -> CommitSequence:
        """Returns a sequence number above those of all earlier commits to this group, through any broker."""
        self._last_sequence += 1
        return CommitSequence(self._writer.owner, self._last_sequence)

    async def check_commit(self, committer: Committer, *, confirmed: bool) -> GroupError | None:
        """Checks whether a transaction may commit offsets for this member. See GroupCoordinator.check_commit."""
        self._check_alive()
        error = offsets.transaction_commit_error(self.record if self.exists else None, committer)
        if error is None:
            self._touch(committer.member_id)
        if confirmed and error is None:
            await self._wait_written()
        else:
            await self._wait_stored()
        return error

    async def check_offset_fetch(self, member_id: str, epoch: int) -> GroupError | None:
        self._check_alive()
        error = offsets.offset_fetch_error(self.record, member_id, epoch)
        await self._wait_stored()
        return error

    async def remove_offsets(self, partitions: Iterable[PartitionId]) -> None:
        """Removes the offsets of these partitions, if they exist."""
        self._check_alive()
        batch = self._queued
        batch.removed.update(partitions)
        for partition in batch.removed:
            batch.offsets.pop(partition, None)
        if batch.removed:
            await self._wait_written()

    async def confirm(self) -> None:
        """Returns if this broker still owns the group. Then it has owned it all the time."""
        self._check_alive()
        if self._writer.owner != ABSENT:
            await self._wait_written()
        self.needs_ownership_check = False
        self._reset_timer()

    async def delete(self) -> GroupError | None:
        self._check_alive()
        await self._wait_stored()
        if not self.exists:
            return GroupError.GROUP_ID_NOT_FOUND
        if not self.record.is_empty:
            return GroupError.NON_EMPTY_GROUP
        self._apply(Transition(Group(record=GroupRecord(state=GroupState.DEAD)), (), to_store=True))
        await self._wait_stored()
        try:
            await self._writer.remove()
        finally:  # if it failed, the next broker that loads the group completes the deletion
            self.drop(GroupRequestFailed(GroupError.NOT_COORDINATOR, f"group {self.name} was deleted"))
        return None

    # ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def drop(self, reason: GroupRequestFailed) -> None:
        """Removes the group from memory. All waiting requests fail with `reason`."""
        if self.dropped is not None:
            return
        self.dropped = reason
        self._environment.on_drop(self)
        if self._timer is not None:
            self._timer.cancel()
        batches = [self._queued, *([self._in_flight] if self._in_flight else [])]
        futures: list[asyncio.Future[Any]] = [future for batch in batches for future in batch.waiting]
        for future in (*self._waiting.values(), *futures):
            if not future.done():
                future.set_exception(reason)
                future.exception()  # its request may have been cancelled

    def extend_sessions(self, ms: int) -> None:
        """Extends all sessions by the time that this broker was suspended and could receive no heartbeats."""
        self.needs_ownership_check = True
        self._sessions.extend(ms)
        self._group = transitions.extend_deadlines(self._group, ms)
        self._reset_timer()

    def set_limits(self, limits: GroupLimits) -> None:
        self._limits = limits
        self._sessions.set_limits(limits, self._group)

    # ── transitions ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _instant(self) -> Instant:
        return Instant(round(self._loop.time() * 1000), self._environment.clock.now_ms())

    def _context(self) -> TransitionContext:
        return TransitionContext(self._environment.image(), self._instant(), self._limits)

    def _check_alive(self) -> None:
        if self.dropped is not None:
            raise self.dropped
        if self.record.is_dead:
            raise GroupRequestFailed(GroupError.COORDINATOR_NOT_AVAILABLE, f"group {self.name} is being deleted")

    def _new_ticket(self) -> "tuple[Ticket, asyncio.Future[GroupResult]]":
        self._check_alive()
        self._last_ticket += 1
        future: asyncio.Future[GroupResult] = self._loop.create_future()
        self._waiting[self._last_ticket] = future
        return self._last_ticket, future

    def _apply(self, transition: Transition[AnyGroup]) -> None:
        self._environment.counts.rebalances += _generation(transition.group.record) > _generation(self.record)
        self._group = transition.group
        if transition.to_store:
            self._queued.record = True
        for reply in transition.replies:
            self._touch(reply.result.member_id)  # its request waited until now: it is alive
        unstored = self._unstored
        if unstored is None:
            self._reply(transition.replies)
        else:
            unstored.replies.extend(transition.replies)
        if unstored is not None or self._has_pending_heartbeats:
            self._start_writing()
        if (deadline_ms := self._group.next_deadline_ms) is not None:
            self._set_timer(deadline_ms)

    def _reply(self, replies: Iterable[Reply]) -> None:
        for ticket, result in replies:
            future = self._waiting.get(ticket)
            if future is not None and not future.done():
                future.set_result(result)
            self._touch(result.member_id)

    @property
    def _has_pending_heartbeats(self) -> bool:
        return isinstance(self._group, ConsumerGroup) and bool(self._group.pending_heartbeats)

    # ── writes ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _unstored(self) -> _WriteBatch | None:
        """The batch that stores the newest transition, or None if that transition is stored."""
        if self._queued.record:
            return self._queued
        return self._in_flight if self._in_flight is not None and self._in_flight.record else None

    async def _wait_stored(self) -> None:
        """Waits until the group's state in memory is stored."""
        unstored = self._unstored
        if unstored is not None:
            await self._wait_for(unstored)

    async def _wait_written(self) -> None:
        """Waits for a write that begins after this call."""
        await self._wait_for(self._queued)

    async def _wait_for(self, batch: _WriteBatch) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        batch.waiting.append(future)
        self._start_writing()
        await future

    def _start_writing(self) -> None:
        if not self._writing:
            self._writing = True
            self._environment.spawn(self._write())

    async def _write(self) -> None:
        try:
            while self.dropped is None and (self._has_pending_heartbeats or self._queued.is_needed):
                if self._has_pending_heartbeats:
                    self._apply(transitions.reconciled(self._group, self._context()))
                    if not self._queued.is_needed:
                        continue
                self._in_flight, self._queued = self._queued, _WriteBatch()
                heard_ms = self._heartbeats_to_store() if self._in_flight.record and self.record.members else None
                await self._writer.write(self._in_flight, self.record, heard_ms)
                done, self._in_flight = self._in_flight, None
                if self.dropped is not None:
                    return
                self._reply(done.replies)
                for future in done.waiting:
                    if not future.done():
                        future.set_result(None)
        except Conflict as error:
            log.info("groups.ownership_lost group=%s error=%s", self.name, error)
            self.drop(
                GroupRequestFailed(GroupError.NOT_COORDINATOR, f"another broker coordinates group {self.name} now")
            )
        except LakestreamError as error:
            log.warning("groups.write_failed group=%s error=%s", self.name, error)
            self.drop(GroupRequestFailed(GroupError.COORDINATOR_NOT_AVAILABLE, f"group {self.name}: {error}"))
        finally:
            self._writing = False
            waits = self._in_flight is not None or self._has_pending_heartbeats
            if self.dropped is None and waits:  # cancelled, or a bug: no request may wait forever
                text = f"group {self.name}: the write was cancelled"
                self.drop(GroupRequestFailed(GroupError.COORDINATOR_NOT_AVAILABLE, text))

    def _heartbeats_to_store(self) -> dict[str, int]:
        heard_ms = self._sessions.to_store(self._group, self._environment.store_now_ms(), self._instant().ms)
        if (due_ms := self._sessions.store_due_ms(self._group)) is not None:
            self._set_timer(due_ms)
        return heard_ms

    async def _store_heartbeats(self, heard_ms: Mapping[str, int]) -> None:
        """Stores the times of the last heartbeats. If it fails, the next attempt is after half a session."""
        try:
            await self._environment.records.put_heartbeats(self.name, heard_ms)
        except LakestreamError as error:
            log.info("groups.heartbeat_write_failed group=%s error=%s", self.name, error)
        finally:
            self._storing_heartbeats = False

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _touch(self, member_id: str) -> None:
        """Restarts the member's session timeout."""
        member = self.record.members.get(member_id)
        if member is not None:
            now_ms = round(self._loop.time() * 1000)
            self._sessions.heard(member_id, now_ms)
            self._set_timer(now_ms + transitions.session_ms(member, self._limits))

    def _reset_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        expirations_ms = self._sessions.expirations_ms(self._group, self._instant().ms).values()
        others_ms = (self._group.next_deadline_ms, self._sessions.store_due_ms(self._group))
        if times_ms := [*expirations_ms, *(ms for ms in others_ms if ms is not None)]:
            self._set_timer(min(times_ms))

    def _set_timer(self, when_ms: int) -> None:
        """Sets the timer to run at `when_ms` at the latest. An early run does no harm, so most calls change nothing."""
        if self.dropped is not None or (self._timer is not None and self._timer_ms <= when_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = when_ms
        self._timer = self._loop.call_at(when_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._instant()
        if self.dropped is not None or self.needs_ownership_check:
            return  # `confirm` sets the timer again
        self._sessions.forget_others(self.record.members)
        expirations_ms = self._sessions.expirations_ms(self._group, now.ms)
        if expired := [member_id for member_id, expiry_ms in expirations_ms.items() if expiry_ms <= now.ms]:
            log.info("groups.session_expired group=%s members=%s", self.name, ",".join(expired[:10]))
            self._apply(transitions.expire(self._group, expired, self._context()))
        deadline_ms = self._group.next_deadline_ms
        if deadline_ms is not None and deadline_ms <= now.ms:
            self._apply(transitions.tick(self._group, self._context()))
        due_ms = self._sessions.store_due_ms(self._group)
        if due_ms is not None and due_ms <= now.ms:
            heard_ms = self._heartbeats_to_store()
            if not self._storing_heartbeats:  # else the store does not respond
                self._storing_heartbeats = True
                self._environment.spawn(self._store_heartbeats(heard_ms))
        self._reset_timer()


def _generation(record: AnyGroupRecord) -> int:
    return record.generation if isinstance(record, GroupRecord) else record.epoch
