"""Measures the lag of consumer groups behind the ends of logs, in records and in time. Used for metrics only.

Each broker measures the groups that it coordinates, in the background. The watch of the store reports which groups
committed offsets and which partitions have new records; each tick reads a bounded number of them. Idle groups cost one
small scan a minute. No record bytes are read.

The oldest record that a group has not consumed is as old as the claim that contains its committed offset. A claim is
deleted when its records are in the table. Therefore a few append times of each partition are remembered; for an offset
below the log's floor they show when its record had been appended at the latest.
"""

import asyncio
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, Protocol

from lakestream.aio.background import BackgroundTasks, follow, run_every
from lakestream.aio.gather import gather_limited
from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.errors import LakestreamError
from lakestream.metadata import keys
from lakestream.metadata.claims import END_OF_TIME, Claim, Claims, Lag
from lakestream.metadata.groups import Groups, NamedGroup
from lakestream.metadata.store import Changes, MetadataStore
from lakestream.model import PartitionId

log = logging.getLogger(__name__)

TICK_S: Final = 5.0
TICKS_PER_LISTING: Final = 12
"""Once a minute groups are listed, and one of them is read in turn: events of the watch may be lost."""
WATCH_PAUSE_S: Final = 2.0
"""Pause between reads of the watch, which collects changes: a busy broker does not handle each append and commit."""
GROUPS_PER_TICK: Final = 50
POSITIONS_PER_TICK: Final = 200
"""Each costs three small reads at most."""
READS_AT_ONCE: Final = 8
POSITIONS_MAX: Final = 10_000
"""Committed offsets of all measured groups of this broker; further groups are only counted."""
ROWS_MAX: Final = 500
APPEND_TIMES_MAX: Final = 16


class Coordinator(Protocol):
    """The part of the group coordinator that this module uses."""

    def coordinates(self, name: str) -> bool: ...

    async def names(self) -> list[NamedGroup]:
        """Returns the groups that this broker coordinates."""
        ...


class Position(NamedTuple):
    group: str
    partition: PartitionId


class PositionLag(NamedTuple):
    offset: int
    """The committed offset that was measured."""
    lag: Lag


class GroupTopicLag(NamedTuple):
    group: str
    topic: str
    lag: Lag
    """Of the partitions with committed offsets: the sum of records, and the oldest of all."""


class AppendTimes:
    """Append times of a few claims of a partition, denser for newer ones."""

    __slots__ = ("_ends", "_times")

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._times: list[int] = []

    def add(self, claim: Claim) -> None:
        place = bisect_left(self._ends, claim.offset_end)
        if place < len(self._ends) and self._ends[place] == claim.offset_end:
            return
        self._ends.insert(place, claim.offset_end)
        self._times.insert(place, claim.appended_ms)
        if len(self._ends) > APPEND_TIMES_MAX:
            redundant = min(range(1, len(self._ends) - 1), key=self._gap)
            del self._ends[redundant], self._times[redundant]

    def appended_by(self, offset: int) -> int | None:
        """Returns a time at which the record at `offset` had been appended. None if there is none yet."""
        place = bisect_right(self._ends, offset)
        return self._times[place] if place < len(self._times) else None

    def _gap(self, place: int) -> float:
        """Returns the gap that the removal of an entry would leave, relative to its age."""
        times = self._times
        return (times[place + 1] - times[place - 1]) / (times[-1] - times[place] + 1)


class GroupLagMonitor:
    def __init__(self, store: MetadataStore, coordinator: Coordinator, metadata_cache: MetadataCache) -> None:
        self._store = store
        self._claims = Claims(store)
        self._records = Groups(store)
        self._coordinator = coordinator
        self._metadata_cache = metadata_cache
        self._committed: dict[str, dict[PartitionId, int]] = {}
        """Committed offsets by group, at most POSITIONS_MAX; the group that was read least recently first."""
        self._positions = 0
        self._groups_of: dict[PartitionId, dict[str, None]] = {}
        self._lags: dict[Position, PositionLag] = {}
        self._append_times: dict[PartitionId, AppendTimes] = {}
        self._unmeasured: set[str] = set()
        self._changed: dict[str, None] = {}  # groups whose offsets must be read, in the order of their changes
        self._stale: dict[Position, None] = {}  # whose lag must be measured
        self._brokers: object = None
        self._list_all = True
        self._ticks = 0
        self._rows: list[GroupTopicLag] = []
        self._topics: object = None
        self._is_outdated = False
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        for prefix, add in ((keys.OFFSETS, self.add_commits), (keys.LOGS, self.add_appends)):
            watch = partial(self._store.watch, prefix)
            work = follow(watch, partial(_add_changes, add), "group_lag.watch_failed", WATCH_PAUSE_S)
            self._tasks.start(work, "group_lag.watch")
        self._tasks.start(run_every(TICK_S, self.refresh, "group_lag.read_failed"), "group_lag.refresh")

    async def close(self) -> None:
        await self._tasks.close()

    @property
    def rows(self) -> list[GroupTopicLag]:
        """The lag of at most ROWS_MAX groups and topics, the largest first."""
        return self._rows

    @property
    def unmeasured(self) -> int:
        """Number of groups that are not measured, because there are too many committed offsets."""
        return len(self._unmeasured)

    def add_commits(self, changes: Changes) -> None:
        if changes.everything:
            self._list_all = True
        for path in changes.paths:
            group = keys.group_of_offset(path)
            if group is None or group in self._changed or group in self._unmeasured:  # they are read at listings
                continue
            if self._coordinator.coordinates(group):
                self._changed[group] = None

    def add_appends(self, changes: Changes) -> None:
        if not self._groups_of:
            return
        grown: Iterable[PartitionId | None] = map(keys.partition_of, changes.paths)
        for partition in self._groups_of if changes.everything else set(grown):
            if partition is not None:
                self._stale.update({Position(group, partition): None for group in self._groups_of.get(partition, ())})

    async def refresh(self) -> None:
        """Reads some of the groups that committed offsets, then measures some of the positions that changed."""
        await self._list_groups()
        await self._read_groups()
        await self._measure_positions()
        topics = self._metadata_cache.topics
        if self._is_outdated or self._topics is not topics:
            self._rows, self._topics, self._is_outdated = self._sorted_rows(), topics, False

    async def _list_groups(self) -> None:
        """Adds the groups that this broker coordinates now, and drops the others."""
        self._ticks += 1
        brokers = self._metadata_cache.brokers
        turn = self._ticks % TICKS_PER_LISTING == 0
        everything, self._list_all = self._list_all, False  # before the read: more events may be lost meanwhile
        if not (turn or everything or brokers is not self._brokers):
            return
        try:
            names = {named.name: None for named in await self._coordinator.names()}
        except LakestreamError:
            self._list_all = True
            raise
        for name in self._committed.keys() - names.keys():
            self._track(name, {})
        self._unmeasured &= names.keys()
        known = set() if everything else {*self._committed, *self._unmeasured}
        self._changed.update({name: None for name in names if name not in known})
        self._changed.update(dict.fromkeys([*islice(self._committed, turn), *islice(self._unmeasured, 1)]))
        self._brokers = brokers

    async def _read_groups(self) -> None:
        names = list(islice(self._changed, GROUPS_PER_TICK))
        for name in names:
            del self._changed[name]  # before the read: it may change again meanwhile
        names = list(filter(self._coordinator.coordinates, names))
        try:
            reads = [self._records.offsets(name, confirmed=False) for name in names]
            found = await gather_limited(reads, READS_AT_ONCE)
        except LakestreamError:
            self._changed.update(dict.fromkeys(names))
            raise
        for name, offsets in zip(names, found, strict=True):
            self._track(name, {one: stored.committed.offset for one, stored in offsets.items()})

    def _track(self, name: str, offsets: Mapping[PartitionId, int]) -> None:
        """Replaces the committed offsets of a group."""
        before = self._committed.pop(name, {})
        self._positions -= len(before)
        self._unmeasured.discard(name)
        if self._positions + len(offsets) > POSITIONS_MAX:
            self._unmeasured.add(name)
            offsets = {}
        for partition in before.keys() - offsets.keys():
            self._forget(Position(name, partition))
        for partition, offset in offsets.items():
            if before.get(partition) != offset:
                self._stale[Position(name, partition)] = None
                self._groups_of.setdefault(partition, {})[name] = None
        if offsets:
            self._committed[name] = dict(offsets)
            self._positions += len(offsets)

    def _forget(self, position: Position) -> None:
        self._lags.pop(position, None)
        self._is_outdated = True
        self._stale.pop(position, None)
        groups = self._groups_of[position.partition]
        del groups[position.group]
        if not groups:
            del self._groups_of[position.partition]
            self._append_times.pop(position.partition, None)

    async def _measure_positions(self) -> None:
        positions = list(islice(self._stale, POSITIONS_PER_TICK))
        self._is_outdated |= bool(positions)
        by_partition: dict[PartitionId, list[Position]] = {}
        for position in positions:
            del self._stale[position]
            by_partition.setdefault(position.partition, []).append(position)
        try:
            await gather_limited([self._measure(*item) for item in by_partition.items()], READS_AT_ONCE)
        except LakestreamError:
            self._stale.update(dict.fromkeys(positions))
            raise

    async def _measure(self, partition: PartitionId, positions: Iterable[Position]) -> None:
        newest = await self._claims.claim_at(partition, END_OF_TIME)
        if newest is None:  # no records, or the topic was deleted
            self._lags.update({one: PositionLag(self._offset(one), Lag()) for one in positions})
            return
        times = self._append_times.setdefault(partition, AppendTimes())
        times.add(newest.claim)
        for position in positions:
            offset, before = self._offset(position), self._lags.get(position)
            records, oldest_ms = newest.claim.offset_end - offset, 0
            if records > 0:
                if before is not None and before.lag.records and before.offset == offset:
                    oldest_ms = before.lag.oldest_ms
                else:
                    oldest_ms = await self._appended_by(partition, offset, newest.claim, times)
            self._lags[position] = PositionLag(offset, Lag(max(0, records), oldest_ms))

    def _offset(self, position: Position) -> int:
        return self._committed[position.group][position.partition]

    async def _appended_by(self, partition: PartitionId, offset: int, newest: Claim, times: AppendTimes) -> int:
        """Returns when the record at `offset` was appended; in history, a time at which it had been appended."""
        if newest.offset_start <= offset:
            return newest.appended_ms
        stored = await self._claims.claim_at(partition, offset)
        if stored is not None and stored.claim.offset_end > offset:
            times.add(stored.claim)
            return stored.claim.appended_ms
        for first in (await self._claims.scan(partition, offset, limit=1)).claims:
            times.add(first.claim)
        return times.appended_by(offset) or newest.appended_ms

    def _sorted_rows(self) -> list[GroupTopicLag]:
        lags: dict[tuple[str, str], Lag] = {}
        for (group, partition), (_, lag) in self._lags.items():
            before = lags.get((group, partition.topic_id), Lag())
            oldest_ms = min(before.oldest_ms or lag.oldest_ms, lag.oldest_ms or before.oldest_ms)
            lags[group, partition.topic_id] = Lag(before.records + lag.records, oldest_ms)
        largest = sorted(lags.items(), key=lambda item: (-item[1].records, item[0]))
        named = ((group, self._metadata_cache.cached_name(topic_id), lag) for (group, topic_id), lag in largest)
        rows = (GroupTopicLag(group, name, lag) for group, name, lag in named if name is not None)
        return list(islice(rows, ROWS_MAX))


async def _add_changes(add: Callable[[Changes], None], changes: Changes) -> None:
    add(changes)
    await asyncio.sleep(WATCH_PAUSE_S)
