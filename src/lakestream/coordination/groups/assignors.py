"""Server-side assignors of the consumer protocol. Pure, and deterministic: every broker computes the same assignment.

- **uniform**: all members get the same number of partitions, or one more, as far as subscriptions allow. No partition
  moves without need.
- **range**: each member gets a range of each topic, in the order of the members. Topics with the same number of
  partitions are split in the same way, so that partitions with the same number belong to one member.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from lakestream.metadata.group_records import NOTHING, Partitions
from lakestream.model import PartitionId


class Subscriber(NamedTuple):
    """The input of an assignor for one member."""

    topic_ids: frozenset[str]
    instance_id: str | None = None
    before: Partitions = NOTHING
    """Its previous target."""


Assigned: TypeAlias = dict[str, Partitions]
"""By member."""
Assignor: TypeAlias = Callable[[Mapping[str, Subscriber], Mapping[str, int]], Assigned]
"""From members, and the number of partitions of each topic."""


def uniform(members: Mapping[str, Subscriber], counts: Mapping[str, int]) -> Assigned:
    assignment = _UniformAssignment(members, counts)
    assignment.keep()
    assignment.assign_free()
    assignment.level()
    return assignment.assigned()


def range_(members: Mapping[str, Subscriber], counts: Mapping[str, int]) -> Assigned:
    assigned: dict[str, set[PartitionId]] = {member_id: set() for member_id in members}
    for topic_id, count in sorted(counts.items()):
        ranked = sorted(members, key=lambda member_id: _rank(member_id, members))
        subscribers = [member_id for member_id in ranked if topic_id in members[member_id].topic_ids]
        start = 0
        for index, member_id in enumerate(subscribers):
            end = start + count // len(subscribers) + (index < count % len(subscribers))
            assigned[member_id].update(PartitionId(topic_id, number) for number in range(start, end))
            start = end
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


ASSIGNORS: Final[dict[str, Assignor]] = {"uniform": uniform, "range": range_}
"""The first one is the default."""


def _rank(member_id: str, members: Mapping[str, Subscriber]) -> tuple[bool, str]:
    """Orders static members first: they rejoin with another member id and keep their rank."""
    instance_id = members[member_id].instance_id
    return (instance_id is None, instance_id or member_id)


class _UniformAssignment:
    """The assignment under construction."""

    def __init__(self, members: Mapping[str, Subscriber], counts: Mapping[str, int]) -> None:
        self._members = members
        self._counts = counts
        self._owned: dict[str, set[PartitionId]] = {member_id: set() for member_id in sorted(members)}
        self._free: list[PartitionId] = []
        self._subscribers: dict[str, list[str]] = defaultdict(list)
        self._queues: dict[str, list[tuple[int, str]]] = {}  # by topic: heap of (partition count, subscriber)
        self._shared: dict[tuple[str, ...], list[tuple[int, str]]] = {}
        self._queues_of: dict[str, list[list[tuple[int, str]]]] = defaultdict(list)
        for member_id in self._owned:
            for topic_id in members[member_id].topic_ids:
                self._subscribers[topic_id].append(member_id)

    def keep(self) -> None:
        """Keeps previous partitions that still exist and are still subscribed to; all others are free.

        Where all members subscribe to the same topics, no member keeps more than its fair number."""
        taken: set[PartitionId] = set()
        fair = self._fair_counts()
        for member_id, owned in self._owned.items():
            member = self._members[member_id]
            for partition in sorted(member.before):
                count = self._counts.get(partition.topic_id, 0)
                is_assignable = partition.topic_id in member.topic_ids and partition.number < count
                if is_assignable and partition not in taken and len(owned) < fair.get(member_id, len(member.before)):
                    owned.add(partition)
                    taken.add(partition)
        for topic_id, count in sorted(self._counts.items()):
            if self._subscribers.get(topic_id):
                numbered = (PartitionId(topic_id, number) for number in range(count))
                self._free += [partition for partition in numbered if partition not in taken]

    def _fair_counts(self) -> dict[str, int]:
        """Returns how many partitions each member may keep, or nothing if the members' subscriptions differ.

        If the partitions cannot be divided evenly, the members that had most keep one more."""
        if len({member.topic_ids for member in self._members.values()}) != 1:
            return {}
        topic_ids = next(iter(self._members.values())).topic_ids
        total = sum(self._counts.get(topic_id, 0) for topic_id in topic_ids)
        least, odd = divmod(total, len(self._members))
        by_need = sorted(self._owned, key=lambda member_id: (-len(self._members[member_id].before), member_id))
        return {member_id: least + (index < odd) for index, member_id in enumerate(by_need)}

    def assign_free(self) -> None:
        """Gives each free partition to the subscriber with fewest. Topics with fewest subscribers go first."""
        for partition in sorted(self._free, key=lambda one: (len(self._subscribers[one.topic_id]), one)):
            self._assign(partition, self._least(partition.topic_id))

    def level(self) -> None:
        """Moves single partitions to subscribers that have at least two fewer, until there are none."""
        moved = True
        while moved:
            moved = False
            for member_id in sorted(self._owned, key=lambda one: (-len(self._owned[one]), one)):
                for partition in sorted(self._owned[member_id]):
                    least = self._least(partition.topic_id)
                    if len(self._owned[least]) + 1 < len(self._owned[member_id]):
                        self._owned[member_id].remove(partition)
                        self._update_queues(member_id)
                        self._assign(partition, least)
                        moved = True

    def _assign(self, partition: PartitionId, member_id: str) -> None:
        self._owned[member_id].add(partition)
        self._update_queues(member_id)

    def _update_queues(self, member_id: str) -> None:
        for queue in self._queues_of[member_id]:
            heapq.heappush(queue, (len(self._owned[member_id]), member_id))

    def _least(self, topic_id: str) -> str:
        """Returns the subscriber with fewest partitions. Entries of a heap may be stale: a newer one follows then."""
        queue = self._queues.get(topic_id)
        if queue is None:
            queue = self._queues[topic_id] = self._queue_of(tuple(self._subscribers[topic_id]))
        while queue[0][0] != len(self._owned[queue[0][1]]):
            heapq.heappop(queue)
        return queue[0][1]

    def _queue_of(self, subscribers: tuple[str, ...]) -> list[tuple[int, str]]:
        """Returns the heap of these subscribers, which all topics with the same subscribers share."""
        queue = self._shared.get(subscribers)
        if queue is None:
            queue = self._shared[subscribers] = [(len(self._owned[member_id]), member_id) for member_id in subscribers]
            heapq.heapify(queue)
            for member_id in subscribers:
                self._queues_of[member_id].append(queue)
        return queue

    def assigned(self) -> Assigned:
        return {member_id: frozenset(owned) for member_id, owned in self._owned.items()}
