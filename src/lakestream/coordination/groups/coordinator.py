"""The groups that this broker coordinates: loads them into memory, and drops them.

Before: protocol/kafka/handlers.  After: group_runtime.py, one group; metadata/groups.py, its stored records.

A group's coordinator is a live broker, chosen by rendezvous hash (placement.py), so that all members use the same one.
It holds no exclusive state: when it dies, the next coordinator reads the group from the store, and the members continue
with their ids, generation, assignments and sessions. Two brokers that both consider themselves the coordinator do no
harm, since every write is fenced by the group's owner record (metadata/groups.py). A broker that is not registered, or
no longer chosen, drops its groups without a request.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from lakestream.aio.gather import gather_limited
from lakestream.aio.single_flight import Coalescer, shared
from lakestream.aio.threads import Threads
from lakestream.clock import Clock, Ids
from lakestream.coordination import dynamic_configs, placement
from lakestream.coordination.broker_registration import BrokerRegistration
from lakestream.coordination.groups import offset_rules as offsets
from lakestream.coordination.groups import regex_subscription
from lakestream.coordination.groups.errors import GroupError, GroupRequestFailed
from lakestream.coordination.groups.group_runtime import GroupCounts, GroupEnvironment, GroupRuntime
from lakestream.coordination.groups.messages import (
    JOIN,
    GroupLimits,
    HeartbeatRequest,
    HeartbeatResult,
    JoinRequest,
    JoinResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from lakestream.coordination.groups.offset_rules import Committer
from lakestream.coordination.groups.topics_image import TopicsImage
from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.coordination.store_clock import StoreClock
from lakestream.errors import LakestreamError
from lakestream.metadata.brokers import Broker
from lakestream.metadata.group_records import AnyGroupRecord, CommitSequence, Committed, ConsumerGroupRecord
from lakestream.metadata.groups import ClaimedGroup, NamedGroup, StoredOffset
from lakestream.metadata.groups import Groups as GroupRecords
from lakestream.metadata.store import ABSENT, MetadataStore
from lakestream.model import PartitionId

log = logging.getLogger(__name__)

TICK_MS: Final = 250
STALL_MS: Final = 2_000
"""A broker that was suspended for longer than this confirms in the store that it still owns its groups."""
REFRESH_MS: Final = 5_000
"""How often the live brokers are read, even without a change notification."""
DROP_MS: Final = 30_000
COUNT_MS: Final = 1_000
LOADS_AT_ONCE: Final = 64
NAME_BYTES_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    limits: GroupLimits = field(default_factory=GroupLimits)
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000  # after the last member left
    expiry_interval_ms: int = 10 * 60 * 1000  # between two scans for expired offsets
    groups_max: int = 20_000  # in memory; groups without members are dropped and read again on demand
    idle_ms: int = 5 * 60 * 1000  # time without a request after which a group without members is dropped from memory
    load_ms_max: int = 5_000
    heartbeat_ms: int = 5_000  # group.consumer.heartbeat.interval.ms, with many members
    heartbeat_ms_min: int = 500  # with few members, or during a rebalance

    def with_values(self, values: Mapping[str, Any]) -> "GroupSettings":
        """Returns the settings with the values of broker configs."""
        limits = {field: values[name] for name, field in _LIMITS.items() if name in values}
        retention_ms = values.get("offsets.retention.minutes", 0) * 60_000
        return replace(
            self,
            limits=replace(self.limits, **limits),
            offsets_retention_ms=retention_ms or self.offsets_retention_ms,
            heartbeat_ms=values.get(dynamic_configs.HEARTBEAT, self.heartbeat_ms),
        )


_LIMITS: Final = {
    "group.initial.rebalance.delay.ms": "initial_delay_ms",
    "group.min.session.timeout.ms": "session_ms_min",
    "group.max.session.timeout.ms": "session_ms_max",
    "group.max.size": "members_max",
    dynamic_configs.SESSION: "session_ms",
}
"""Fields of GroupLimits, by the broker config."""


class NamedRecord(NamedTuple):
    name: str
    record: AnyGroupRecord


class GroupFigures(NamedTuple):
    groups: int
    members: int
    rebalances: int
    commits: int


class ConsumerHeartbeat(NamedTuple):
    result: HeartbeatResult
    interval_ms: int
    """Until the member's next heartbeat."""


class GroupCoordinator:
    def __init__(
        self,
        store: MetadataStore,
        metadata_cache: MetadataCache,
        registration: BrokerRegistration,
        clock: Clock,
        ids: Ids,
        settings: GroupSettings | None = None,
    ) -> None:
        self.initial_settings = settings or GroupSettings()
        self.settings = self.initial_settings
        """With the broker configs that were altered since the start."""
        self._group_values: dict[str, dict[str, Any]] = {}
        self._configs: tuple[dynamic_configs.Configs, int] | None = None
        self._records = GroupRecords(store)
        self._metadata_cache = metadata_cache
        self._registration = registration
        self._counts = GroupCounts()
        self._store_clock = StoreClock(store.now_ms, clock)
        self._environment = GroupEnvironment(
            coordinator_id=ids.new(),
            records=self._records,
            clock=clock,
            store_now_ms=self._store_clock.now_ms,
            limits=self.settings.limits,
            image=self._topics_image,
            spawn=self._spawn,
            on_drop=self._remove,
            counts=self._counts,
        )
        self._groups: dict[str, GroupRuntime] = {}
        self._loading: dict[str, asyncio.Task[ClaimedGroup]] = {}
        self._offset_reads: Coalescer[str, dict[PartitionId, StoredOffset]] = Coalescer("groups.read")
        self._loads = asyncio.Semaphore(LOADS_AT_ONCE)
        self._patterns = Threads("groups.patterns", 1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._brokers: list[Broker] = []
        self._image = TopicsImage(metadata_cache.topics)
        self._consumer_members = 0
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._ticked_s = self._loop.time()

    def start(self) -> None:
        self._ticked_s = self._loop.time()
        self._spawn(self._tick())
        self._spawn(self._store_clock.run())

    async def close(self) -> None:
        """Drops all groups: clients whose requests wait are sent to the next coordinator."""
        self._closed = True
        self._drop(list(self._groups.values()), "this broker stops")
        tasks = [*self._tasks, *self._loading.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._offset_reads.close()
        await self._patterns.close()

    def __len__(self) -> int:
        return len(self._groups)

    def figures(self) -> GroupFigures:
        members = sum(len(group.record.members) for group in self._groups.values())
        return GroupFigures(len(self._groups), members, self._counts.rebalances, self._counts.commits)

    # ── choice of the coordinator ────────────────────────────────────────────────────────────────────────────────────

    def coordinator_of(self, name: str) -> Broker:
        return placement.chosen(f"group:{name}", self._metadata_cache.brokers or [self._registration.broker])

    def coordinates(self, name: str) -> bool:
        if self._closed or not self._registration.is_registered:
            return False
        return self.coordinator_of(name).node_id == self._registration.broker.node_id

    def check_coordinator(self, name: str) -> None:
        self._check_ownership()
        if name not in self._groups and not self.coordinates(name):
            raise GroupRequestFailed(GroupError.NOT_COORDINATOR, f"this broker does not coordinate group {name}")

    # ── requests of members ──────────────────────────────────────────────────────────────────────────────────────────

    async def join(self, name: str, request: JoinRequest) -> JoinResult:
        group = await self._group(check_name(name), create=not request.member_id)
        return (
            JoinResult(GroupError.UNKNOWN_MEMBER_ID, request.member_id) if group is None else await group.join(request)
        )

    async def sync(self, name: str, request: SyncRequest) -> SyncResult:
        group = await self._group(check_name(name))
        return (
            SyncResult(GroupError.UNKNOWN_MEMBER_ID, request.member_id) if group is None else await group.sync(request)
        )

    async def heartbeat(self, name: str, member_id: str, instance_id: str | None, generation: int) -> GroupError | None:
        group = await self._group(check_name(name))
        if group is None:
            return GroupError.UNKNOWN_MEMBER_ID
        return await group.heartbeat(member_id, instance_id, generation)

    async def consumer_heartbeat(self, name: str, request: HeartbeatRequest) -> ConsumerHeartbeat:
        if request.pattern:
            self.check_coordinator(check_name(name))
            await self._match(request.pattern)
        group = await self._group(check_name(name), create=request.epoch == JOIN)
        if group is None or not (group.exists or request.epoch == JOIN):
            raise GroupRequestFailed(GroupError.GROUP_ID_NOT_FOUND, f"group {name} does not exist")
        result = await group.consumer_heartbeat(request)
        return ConsumerHeartbeat(
            result, self._heartbeat_interval_ms(name, is_at_target=group.is_at_target(request.member_id))
        )

    async def _match(self, pattern: str) -> None:
        """Matches the pattern of a member with all topics in a thread, so that the group finds the result."""
        image = self._topics_image()
        if not image.knows(pattern):
            names = tuple(image.topics)
            image.remember(pattern, await self._patterns(lambda: regex_subscription.matching_in_time(pattern, names)))

    def _heartbeat_interval_ms(self, name: str, *, is_at_target: bool) -> int:
        """Returns the interval until the next heartbeat of a member of this group.

        It is short for members that are not at their target. For all other members it grows with their number, so that
        this broker gets at most a thousand heartbeats per second; a group's config may only make it longer.
        """
        settings = self.settings
        if not is_at_target:
            return settings.heartbeat_ms_min
        chosen_ms = self._group_values.get(name, {}).get(dynamic_configs.GROUP_HEARTBEAT, settings.heartbeat_ms_min)
        interval_ms = max(settings.heartbeat_ms_min, chosen_ms, min(settings.heartbeat_ms, self._consumer_members))
        return int(min(interval_ms, self._limits_of(name).session_ms // 2))

    def _limits_of(self, name: str) -> GroupLimits:
        session_ms = self._group_values.get(name, {}).get(dynamic_configs.GROUP_SESSION)
        limits = self.settings.limits
        return limits if session_ms is None else replace(limits, session_ms=session_ms)

    def _apply_configs(self) -> None:
        """Applies the configs of this broker and of its groups, if they have changed."""
        configs, node_id = self._metadata_cache.configs, self._registration.broker.node_id
        if self._configs is not None and self._configs[0] is configs and self._configs[1] == node_id:
            return
        self._configs = configs, node_id
        self.settings = self.initial_settings.with_values(dynamic_configs.broker_values(configs, node_id))
        self._group_values = dynamic_configs.group_values(configs)
        for group in self._groups.values():
            group.set_limits(self._limits_of(group.name))

    async def leave(self, name: str, leavers: Sequence[LeavingMember]) -> tuple[GroupError | None, ...]:
        group = await self._group(check_name(name))
        return (GroupError.UNKNOWN_MEMBER_ID,) * len(leavers) if group is None else await group.leave(leavers)

    async def commit(self, name: str, committer: Committer, new: Mapping[PartitionId, Committed]) -> GroupError | None:
        group = await self._group(check_name(name, may_be_empty=True), create=committer.generation < 0)
        return offsets.commit_error(None, committer) if group is None else await group.commit(committer, new)

    async def check_commit(self, name: str, committer: Committer, *, confirmed: bool) -> GroupError | None:
        """Checks whether a transaction may commit offsets for this member. `confirmed`: raises unless this broker owns
        the group, and has owned it all the time since the previous check."""
        group = await self._group(check_name(name, may_be_empty=True), create=committer.generation < 0)
        if group is None:
            return offsets.transaction_commit_error(None, committer)
        return await group.check_commit(committer, confirmed=confirmed)

    async def next_commit_sequence(self, name: str) -> CommitSequence:
        """Returns the sequence number for offsets that a transaction commits now."""
        group = await self._group(check_name(name, may_be_empty=True), create=True)
        assert group is not None
        return group.next_commit_sequence()

    async def check_offset_fetch(self, name: str, member_id: str, epoch: int) -> GroupError | None:
        """Checks whether a member may fetch the group's offsets. Returns None if the group does not exist."""
        group = await self._group(check_name(name, may_be_empty=True))
        return None if group is None else await group.check_offset_fetch(member_id, epoch)

    async def versions(self, name: str, partitions: Iterable[PartitionId]) -> dict[PartitionId, int]:
        """Returns the stored versions of committed offsets."""
        stored = await self._records.offsets(name)
        return {one: stored[one].version if one in stored else ABSENT for one in partitions}

    async def offsets(self, name: str) -> dict[PartitionId, Committed]:
        """Returns all offsets whose commit was acknowledged by any broker before this call.

        The result is empty if the group does not exist."""
        self.check_coordinator(check_name(name, may_be_empty=True))
        offsets = await self._offset_reads.read(name, lambda: self._records.offsets(name))
        return {partition: stored.committed for partition, stored in offsets.items()}

    # ── requests of administrators ───────────────────────────────────────────────────────────────────────────────────

    async def describe(self, name: str) -> AnyGroupRecord | None:
        group = await self._group(check_name(name, may_be_empty=True))
        return None if group is None or not group.exists else group.record

    async def list_coordinated(self) -> list[NamedRecord]:
        """Lists the groups that this broker coordinates. Each group is in the list of exactly one broker."""
        names = [named.name for named in await self.names()]
        new = [name for name, group in self._groups.items() if group.exists and name not in set(names)]
        records = await gather_limited([self._read(name) for name in (*names, *new)], LOADS_AT_ONCE)
        return [record for record in records if record is not None]

    async def names(self) -> list[NamedGroup]:
        self._check_ownership()
        return [named for named in await self._records.names() if self.coordinates(named.name)]

    async def delete(self, name: str) -> GroupError | None:
        group = await self._group(check_name(name, may_be_empty=True))
        return GroupError.GROUP_ID_NOT_FOUND if group is None else await group.delete()

    async def remove_offsets(self, name: str, partitions: Iterable[PartitionId]) -> None:
        group = await self._group(name)
        if group is not None:
            await group.remove_offsets(partitions)

    async def remove_leftover(self, named: NamedGroup) -> None:
        """Removes a name without a group, left by a broker that died while it created or deleted the group."""
        if named.name not in self._groups:
            await self._records.remove_name(named.name)

    async def _read(self, name: str) -> NamedRecord | None:
        """Reads a group without claiming it."""
        group = self._groups.get(name)
        if group is not None:
            return NamedRecord(name, group.record) if group.exists else None
        stored = await self._records.get(name)
        return None if stored is None or stored.record.is_dead else NamedRecord(name, stored.record)

    # ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _group(self, name: str, *, create: bool = False) -> GroupRuntime | None:
        """Returns the group from memory, else from the store. None if it does not exist and `create` is false."""
        self.check_coordinator(name)
        group = self._groups.get(name)
        if group is None:
            claimed = await self._claimed(name)
            group = self._groups.get(name)  # a concurrent request may have added it
            if group is None:
                if claimed.owner == ABSENT and not create:
                    return None
                group = self._add(name, claimed)
        if group.needs_ownership_check:
            await group.confirm()
        group.last_used_s = self._loop.time()
        return group

    def _add(self, name: str, claimed: ClaimedGroup) -> GroupRuntime:
        if len(self._groups) >= self.settings.groups_max:
            self._drop_idle(0)
        if len(self._groups) >= self.settings.groups_max:
            raise GroupRequestFailed(
                GroupError.COORDINATOR_NOT_AVAILABLE, f"this broker coordinates {len(self._groups)} groups already"
            )
        environment = replace(self._environment, limits=self._limits_of(name))
        group = self._groups[name] = GroupRuntime(name, claimed, environment)
        return group

    def _topics_image(self) -> TopicsImage:
        """Returns the same object until a topic is created, deleted or gets more partitions."""
        if self._image.topics is not self._metadata_cache.topics:
            self._image = self._image.renewed(self._metadata_cache.topics)
        return self._image

    async def _claimed(self, name: str) -> ClaimedGroup:
        task = self._loading.get(name)
        if task is None:
            task = self._loading[name] = self._loop.create_task(self._claim(name), name="groups.load")
            task.add_done_callback(_log_bug)
        try:
            async with asyncio.timeout(self.settings.load_ms_max / 1000):
                return await shared(task)
        except TimeoutError:
            raise GroupRequestFailed(
                GroupError.COORDINATOR_LOAD_IN_PROGRESS, f"group {name} is being loaded: retry"
            ) from None

    async def _claim(self, name: str) -> ClaimedGroup:
        try:
            async with self._loads:
                claimed = await self._records.claim(name, self._environment.coordinator_id)
                if claimed.group is not None and claimed.group.record.is_dead:
                    # Completes the deletion that another broker began before it died.
                    await self._records.remove(name, claimed.group.version, claimed.owner)
                    return ClaimedGroup(None, {}, ABSENT)
                return claimed
        finally:
            del self._loading[name]

    def _remove(self, group: GroupRuntime) -> None:
        if self._groups.get(group.name) is group:
            del self._groups[group.name]

    def _drop(self, groups: Iterable[GroupRuntime], reason: str) -> None:
        for group in groups:
            group.drop(GroupRequestFailed(GroupError.NOT_COORDINATOR, f"group {group.name}: {reason}"))

    def _drop_idle(self, idle_ms: int) -> None:
        before_s = self._loop.time() - idle_ms / 1000
        idle = [group for group in self._groups.values() if group.is_idle and group.last_used_s <= before_s]
        self._drop(idle, "it was idle")

    # ── background tasks ─────────────────────────────────────────────────────────────────────────────────────────────

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work, name="groups")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_log_bug)

    def _check_ownership(self) -> None:
        """Checks, before any reply from memory, that this broker was not suspended, is registered, and is chosen."""
        suspended_ms = round((self._loop.time() - self._ticked_s) * 1000)
        if suspended_ms > STALL_MS:
            log.warning("groups.stalled ms=%d", suspended_ms)
            self._ticked_s = self._loop.time()
            for group in list(self._groups.values()):
                group.extend_sessions(suspended_ms)
            self._spawn(self._confirm_all())
        self._apply_configs()
        if not self._groups:
            return
        if not self._registration.is_registered:
            self._drop(list(self._groups.values()), "this broker is not registered")
        elif self._metadata_cache.brokers != self._brokers:
            self._brokers = self._metadata_cache.brokers
            others = [group for group in self._groups.values() if not self.coordinates(group.name)]
            self._drop(others, "another broker coordinates it")

    async def _confirm_all(self) -> None:
        unconfirmed = [group for group in self._groups.values() if group.needs_ownership_check]
        await gather_limited([_confirm(group) for group in unconfirmed], LOADS_AT_ONCE)

    async def _tick(self) -> None:
        refreshed_s = dropped_s = counted_s = self._loop.time()
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            self._check_ownership()
            self._ticked_s = now_s = self._loop.time()
            if now_s - dropped_s >= DROP_MS / 1000:
                dropped_s = now_s
                self._drop_idle(self.settings.idle_ms)
            if now_s - counted_s >= COUNT_MS / 1000:
                counted_s = now_s
                self._consumer_members = self._count_consumer_members()
            if now_s - refreshed_s >= REFRESH_MS / 1000:
                refreshed_s = now_s
                self._spawn(self._refresh_brokers())

    def _count_consumer_members(self) -> int:
        records = (group.record for group in self._groups.values())
        return sum(len(record.members) for record in records if isinstance(record, ConsumerGroupRecord))

    async def _refresh_brokers(self) -> None:
        with contextlib.suppress(LakestreamError):  # the next refresh may succeed; a disconnected broker unregisters
            await self._metadata_cache.refresh_brokers()


def check_name(name: str, *, may_be_empty: bool = False) -> str:
    if not name and not may_be_empty:
        raise GroupRequestFailed(GroupError.INVALID_GROUP_ID, "the group id is empty")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise GroupRequestFailed(GroupError.INVALID_GROUP_ID, f"the group id is longer than {NAME_BYTES_MAX} bytes")
    return name


async def _confirm(group: GroupRuntime) -> None:
    with contextlib.suppress(LakestreamError):  # then the group is dropped
        await group.confirm()


def _log_bug(task: "asyncio.Task[Any]") -> None:
    """Logs unexpected errors. Expected errors are raised to the callers, unless all callers were cancelled."""
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, LakestreamError):
        log.error("groups.failed", exc_info=error)
