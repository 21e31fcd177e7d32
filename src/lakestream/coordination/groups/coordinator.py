"""The groups that this broker coordinates: which they are, how they come into memory, and how they leave it.

Before: protocol/kafka/handlers.  After: held.py, one group; metadata/groups.py, what is stored of it.

A group's coordinator is a live broker, chosen by rendezvous hash (placement.py), so that its members meet somewhere. It
owns nothing: when it dies, the next one reads the group from the store, and its members go on with their ids,
generation and assignments. Two that both believe to be chosen do no harm, since every write says whose turn it is
(metadata/groups.py). A broker that is not seen by the others, or not chosen any longer, forgets its groups by itself.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from lakestream.clock import Clock, Ids
from lakestream.coordination import placement
from lakestream.coordination.cluster import ClusterView
from lakestream.coordination.groups import offsets
from lakestream.coordination.groups.held import GroupCounts, Held
from lakestream.coordination.groups.landscape import Landscape
from lakestream.coordination.groups.offsets import Committer
from lakestream.coordination.groups.refusals import Refusal, Refused
from lakestream.coordination.groups.values import JOIN, Beat, Beaten, Join, Joined, Leaver, Rules, Sync, Synced
from lakestream.coordination.looks import Looks
from lakestream.errors import LakestreamError
from lakestream.metadata.brokers import Broker
from lakestream.metadata.group_records import AnyGroup, Committed, ConsumerGroupRecord
from lakestream.metadata.groups import Asked, Claimed, NamedGroup, StoredOffset
from lakestream.metadata.groups import Groups as GroupRecords
from lakestream.metadata.store import ABSENT, MetadataStore
from lakestream.model import PartitionId
from lakestream.storage.together import together

log = logging.getLogger(__name__)

TICK_MS: Final = 250
STALL_MS: Final = 2_000
"""A broker that slept for longer than this asks before it believes that its groups are still its own."""
LOOK_MS: Final = 5_000
"""Who lives is looked at this often, whatever the change feed says."""
FORGET_MS: Final = 30_000
COUNT_MS: Final = 1_000
LOADS_AT_ONCE: Final = 64
NAME_BYTES_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    rules: Rules = field(default_factory=Rules)
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000  # after the last member left
    expiry_round_ms: int = 10 * 60 * 1000  # between looks for what is to be forgotten
    groups_max: int = 20_000  # in memory; those without members are read again when they are needed
    idle_ms: int = 5 * 60 * 1000  # a group without members that nobody asks for leaves the memory
    load_ms_max: int = 5_000
    heartbeat_ms: int = 5_000  # group.consumer.heartbeat.interval.ms, where there are many members
    heartbeat_ms_min: int = 500  # where there are few, or things are moving


class NamedRecord(NamedTuple):
    name: str
    record: AnyGroup


class GroupFigures(NamedTuple):
    groups: int
    members: int
    rebalances: int
    commits: int


class Heartbeat(NamedTuple):
    """What a member of the new protocol is told."""

    beaten: Beaten
    next_ms: int


class Groups:
    def __init__(
        self,
        store: MetadataStore,
        view: ClusterView,
        who: Callable[[], Broker],
        is_seen: Callable[[], bool],
        clock: Clock,
        ids: Ids,
        settings: GroupSettings | None = None,
    ) -> None:
        self.settings = settings or GroupSettings()
        self._records = GroupRecords(store)
        self._view = view
        self._who = who
        self._is_seen = is_seen
        self._clock = clock
        self._id = ids.new()
        self._counts = GroupCounts()
        self._held: dict[str, Held] = {}
        self._loading: dict[str, asyncio.Task[Claimed]] = {}
        self._looks: Looks[dict[PartitionId, StoredOffset]] = Looks()
        self._loads = asyncio.Semaphore(LOADS_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._brokers: list[Broker] = []
        self._landscape = Landscape(view.topics)
        self._beating = 0
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._ticked_s = self._loop.time()

    def start(self) -> None:
        self._ticked_s = self._loop.time()
        self._spawn(self._tick())

    async def close(self) -> None:
        """Whoever waits is sent to the next coordinator."""
        self._closed = True
        self._drop(list(self._held.values()), "this broker stops")
        tasks = [*self._tasks, *self._loading.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._looks.close()

    def __len__(self) -> int:
        return len(self._held)

    def figures(self) -> GroupFigures:
        members = sum(len(held.record.members) for held in self._held.values())
        return GroupFigures(len(self._held), members, self._counts.rebalances, self._counts.commits)

    # ── whose a group is ─────────────────────────────────────────────────────────────────────────────────────────────

    def coordinator_of(self, name: str) -> Broker:
        return placement.chosen(f"group:{name}", self._view.brokers or [self._who()])

    def is_mine(self, name: str) -> bool:
        return not self._closed and self._is_seen() and self.coordinator_of(name).node_id == self._who().node_id

    def check_mine(self, name: str) -> None:
        self._look_around()
        if name not in self._held and not self.is_mine(name):
            raise Refused(Refusal.NOT_COORDINATOR, f"this broker does not coordinate group {name}")

    # ── what members ask ─────────────────────────────────────────────────────────────────────────────────────────────

    async def join(self, name: str, wish: Join) -> Joined:
        held = await self._group(check_name(name), create=not wish.member_id)
        return Joined(Refusal.UNKNOWN_MEMBER_ID, wish.member_id) if held is None else await held.join(wish)

    async def sync(self, name: str, wish: Sync) -> Synced:
        held = await self._group(check_name(name))
        return Synced(Refusal.UNKNOWN_MEMBER_ID, wish.member_id) if held is None else await held.sync(wish)

    async def heartbeat(self, name: str, member_id: str, instance_id: str | None, generation: int) -> Refusal | None:
        held = await self._group(check_name(name))
        if held is None:
            return Refusal.UNKNOWN_MEMBER_ID
        return await held.heartbeat(member_id, instance_id, generation)

    async def beat(self, name: str, said: Beat) -> Heartbeat:
        """A heartbeat of the new protocol."""
        held = await self._group(check_name(name), create=said.epoch == JOIN)
        if held is None or not (held.exists or said.epoch == JOIN):
            raise Refused(Refusal.GROUP_ID_NOT_FOUND, f"there is no group {name}")
        beaten = await held.beat(said)
        return Heartbeat(beaten, self._next_beat_ms(is_settled=held.is_settled(said.member_id)))

    def _next_beat_ms(self, *, is_settled: bool) -> int:
        """Soon, if it waits for others or they for it; else so that all members together do not ask more than a
        thousand times in a second."""
        settings = self.settings
        if not is_settled:
            return settings.heartbeat_ms_min
        return max(settings.heartbeat_ms_min, min(settings.heartbeat_ms, self._beating))

    async def leave(self, name: str, leavers: Sequence[Leaver]) -> tuple[Refusal | None, ...]:
        held = await self._group(check_name(name))
        return (Refusal.UNKNOWN_MEMBER_ID,) * len(leavers) if held is None else await held.leave(leavers)

    async def commit(self, name: str, who: Committer, wanted: Mapping[PartitionId, Committed]) -> Refusal | None:
        held = await self._group(check_name(name, may_be_empty=True), create=who.generation < 0)
        return offsets.commit_refusal(None, who) if held is None else await held.commit(who, wanted)

    async def check_commit(self, name: str, who: Committer, *, certain: bool) -> Refusal | None:
        """Whether it may commit as a part of a transaction. `certain`: this broker has the group, and had it all the
        time since this was last asked."""
        held = await self._group(check_name(name, may_be_empty=True), create=who.generation < 0)
        return offsets.transaction_refusal(None, who) if held is None else await held.check_commit(who, certain=certain)

    async def ask(self, name: str) -> Asked:
        """For offsets that a transaction asks for now."""
        held = await self._group(check_name(name, may_be_empty=True), create=True)
        assert held is not None
        return held.ask()

    async def check_reader(self, name: str, member_id: str, epoch: int) -> Refusal | None:
        """Whether a member of the new protocol may ask for the group's offsets. Anybody may of a group that is none."""
        held = await self._group(check_name(name, may_be_empty=True))
        return None if held is None else await held.check_reader(member_id, epoch)

    async def versions(self, name: str, partitions: Iterable[PartitionId]) -> dict[PartitionId, int]:
        """Of committed offsets, as they are now."""
        found = await self._records.offsets(name)
        return {one: found[one].version if one in found else ABSENT for one in partitions}

    async def offsets(self, name: str) -> dict[PartitionId, Committed]:
        """All that was acknowledged before, by whichever broker. Of a group that does not exist: none."""
        self.check_mine(check_name(name, may_be_empty=True))
        found = await self._looks.look(name, lambda: self._records.offsets(name))
        return {partition: stored.committed for partition, stored in found.items()}

    # ── what administrators ask ──────────────────────────────────────────────────────────────────────────────────────

    async def describe(self, name: str) -> AnyGroup | None:
        held = await self._group(check_name(name, may_be_empty=True))
        return None if held is None or not held.exists else held.record

    async def mine(self) -> list[NamedRecord]:
        """Those that this broker coordinates: all brokers together have all of them, each once."""
        names = [named.name for named in await self.names()]
        new = [name for name, held in self._held.items() if held.exists and name not in set(names)]
        found = await together([self._read(name) for name in (*names, *new)], LOADS_AT_ONCE)
        return [one for one in found if one is not None]

    async def names(self) -> list[NamedGroup]:
        self._look_around()
        return [named for named in await self._records.names() if self.is_mine(named.name)]

    async def delete(self, name: str) -> Refusal | None:
        held = await self._group(check_name(name, may_be_empty=True))
        return Refusal.GROUP_ID_NOT_FOUND if held is None else await held.delete()

    async def remove_offsets(self, name: str, partitions: Iterable[PartitionId]) -> None:
        held = await self._group(name)
        if held is not None:
            await held.remove_offsets(partitions)

    async def remove_leftover(self, named: NamedGroup) -> None:
        """A name without a group: whoever made it, or removed the group, died."""
        if named.name not in self._held:
            await self._records.remove_name(named.name)

    async def _read(self, name: str) -> NamedRecord | None:
        """Without taking it over."""
        held = self._held.get(name)
        if held is not None:
            return NamedRecord(name, held.record) if held.exists else None
        stored = await self._records.get(name)
        return None if stored is None or stored.record.is_dead else NamedRecord(name, stored.record)

    # ── into memory and out of it ────────────────────────────────────────────────────────────────────────────────────

    async def _group(self, name: str, *, create: bool = False) -> Held | None:
        """From memory, else from the store. None: there is none, and none was to be made."""
        self.check_mine(name)
        held = self._held.get(name)
        if held is None:
            claimed = await self._claimed(name)
            held = self._held.get(name)  # others may have waited too
            if held is None:
                if claimed.owner == ABSENT and not create:
                    return None
                held = self._hold(name, claimed)
        if held.doubted:
            await held.confirm()
        held.used_s = self._loop.time()
        return held

    def _hold(self, name: str, claimed: Claimed) -> Held:
        if len(self._held) >= self.settings.groups_max:
            self._forget_idle(0)
        if len(self._held) >= self.settings.groups_max:
            raise Refused(
                Refusal.COORDINATOR_NOT_AVAILABLE, f"this broker coordinates {len(self._held)} groups already"
            )
        rules = self.settings.rules
        held = Held(name, claimed, self._id, self._records, self._clock, rules, self._topics, self._spawn, self._counts)
        held.on_drop = self._forget
        self._held[name] = held
        return held

    def _topics(self) -> Landscape:
        """The same object for as long as no topic comes, goes or grows."""
        if self._landscape.topics is not self._view.topics:
            self._landscape = Landscape(self._view.topics)
        return self._landscape

    async def _claimed(self, name: str) -> Claimed:
        task = self._loading.get(name)
        if task is None:
            task = self._loading[name] = self._loop.create_task(self._claim(name), name="groups.load")
            task.add_done_callback(_heard)
        try:
            async with asyncio.timeout(self.settings.load_ms_max / 1000):
                return await asyncio.shield(task)
        except TimeoutError:
            raise Refused(Refusal.COORDINATOR_LOAD_IN_PROGRESS, f"group {name} is being read; ask again") from None

    async def _claim(self, name: str) -> Claimed:
        try:
            async with self._loads:
                claimed = await self._records.claim(name, self._id)
                if claimed.group is not None and claimed.group.record.is_dead:
                    await self._records.remove(name, claimed.group.version, claimed.owner)  # begun by somebody who died
                    return Claimed(None, {}, ABSENT)
                return claimed
        finally:
            del self._loading[name]

    def _forget(self, held: Held) -> None:
        if self._held.get(held.name) is held:
            del self._held[held.name]

    def _drop(self, some: Iterable[Held], why: str) -> None:
        for held in some:
            held.drop(Refused(Refusal.NOT_COORDINATOR, f"group {held.name}: {why}"))

    def _forget_idle(self, idle_ms: int) -> None:
        before_s = self._loop.time() - idle_ms / 1000
        idle = [held for held in self._held.values() if held.is_idle and held.used_s <= before_s]
        self._drop(idle, "nobody asked for it for a while")

    # ── time and others ──────────────────────────────────────────────────────────────────────────────────────────────

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work, name="groups")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_heard)

    def _look_around(self) -> None:
        """Before anything is said from memory: is this broker awake, seen, and chosen?"""
        away_ms = round((self._loop.time() - self._ticked_s) * 1000)
        if away_ms > STALL_MS:
            log.warning("groups.stalled ms=%d", away_ms)
            self._ticked_s = self._loop.time()
            for held in list(self._held.values()):
                held.forgive(away_ms)
            self._spawn(self._confirm_all())
        if not self._held:
            return
        if not self._is_seen():
            self._drop(list(self._held.values()), "this broker is not seen by the others")
        elif self._view.brokers != self._brokers:
            self._brokers = self._view.brokers
            others = [held for held in self._held.values() if not self.is_mine(held.name)]
            self._drop(others, "another broker coordinates it")

    async def _confirm_all(self) -> None:
        doubted = [held for held in self._held.values() if held.doubted]
        await together([_confirmed(held) for held in doubted], LOADS_AT_ONCE)

    async def _tick(self) -> None:
        looked_s = forgot_s = counted_s = self._loop.time()
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            self._look_around()
            self._ticked_s = now_s = self._loop.time()
            if now_s - forgot_s >= FORGET_MS / 1000:
                forgot_s = now_s
                self._forget_idle(self.settings.idle_ms)
            if now_s - counted_s >= COUNT_MS / 1000:
                counted_s = now_s
                self._beating = self._members_of_the_new_protocol()
            if now_s - looked_s >= LOOK_MS / 1000:
                looked_s = now_s
                self._spawn(self._look_at_brokers())

    def _members_of_the_new_protocol(self) -> int:
        records = (held.record for held in self._held.values())
        return sum(len(record.members) for record in records if isinstance(record, ConsumerGroupRecord))

    async def _look_at_brokers(self) -> None:
        with contextlib.suppress(LakestreamError):  # the next look may work; a broker that is cut off is not seen
            await self._view.look_at_brokers()


def check_name(name: str, *, may_be_empty: bool = False) -> str:
    if not name and not may_be_empty:
        raise Refused(Refusal.INVALID_GROUP_ID, "a group must have a name")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise Refused(Refusal.INVALID_GROUP_ID, f"the name of a group may have {NAME_BYTES_MAX} bytes")
    return name


async def _confirmed(held: Held) -> None:
    with contextlib.suppress(LakestreamError):  # then it is dropped, and nobody misses it here
        await held.confirm()


def _heard(task: "asyncio.Task[Any]") -> None:
    """All who waited may have left: its error is nobody's then, unless it is a bug."""
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, LakestreamError):
        log.error("groups.failed", exc_info=error)
