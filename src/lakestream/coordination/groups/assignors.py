"""Who gets which partition, decided by the coordinator for groups of the new protocol. Pure, and the same for the same
input, whichever broker computes it.

- **uniform**: everybody has the same number, or one more, as far as subscriptions allow; nobody loses a partition
  without need.
- **range**: of each topic everybody has a range, in the order of the members: topics of as many partitions are split
  alike, so that what belongs together meets in one member.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from lakestream.metadata.group_records import NOTHING, Partitions
from lakestream.model import PartitionId


class Subscriber(NamedTuple):
    """A member as an assignor sees it."""

    topic_ids: frozenset[str]
    instance_id: str | None = None
    before: Partitions = NOTHING
    """What it was given the last time."""


Assigned: TypeAlias = dict[str, Partitions]
"""By member."""
Assignor: TypeAlias = Callable[[Mapping[str, Subscriber], Mapping[str, int]], Assigned]
"""Members, and how many partitions each topic has."""


def uniform(members: Mapping[str, Subscriber], counts: Mapping[str, int]) -> Assigned:
    shares = _Shares(members, counts)
    shares.keep()
    shares.hand_out()
    shares.level()
    return shares.assigned()


def range_(members: Mapping[str, Subscriber], counts: Mapping[str, int]) -> Assigned:
    assigned: dict[str, set[PartitionId]] = {member_id: set() for member_id in members}
    for topic_id, count in sorted(counts.items()):
        takers = [
            who for who in sorted(members, key=lambda who: _rank(who, members)) if topic_id in members[who].topic_ids
        ]
        start = 0
        for place, member_id in enumerate(takers):
            end = start + count // len(takers) + (place < count % len(takers))
            assigned[member_id].update(PartitionId(topic_id, number) for number in range(start, end))
            start = end
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


ASSIGNORS: Final[dict[str, Assignor]] = {"uniform": uniform, "range": range_}
"""The first one is taken where nobody asks for another."""


def _rank(member_id: str, members: Mapping[str, Subscriber]) -> tuple[bool, str]:
    """Static members first: they come back under another id and keep their place."""
    instance_id = members[member_id].instance_id
    return (instance_id is None, instance_id or member_id)


class _Shares:
    """What everybody has, while it is being dealt out."""

    def __init__(self, members: Mapping[str, Subscriber], counts: Mapping[str, int]) -> None:
        self._members = members
        self._counts = counts
        self._has: dict[str, set[PartitionId]] = {member_id: set() for member_id in sorted(members)}
        self._free: list[PartitionId] = []
        self._takers: dict[str, list[str]] = defaultdict(list)
        self._queues: dict[str, list[tuple[int, str]]] = {}  # by topic: how many each of its takers has, least first
        self._shared: dict[tuple[str, ...], list[tuple[int, str]]] = {}
        self._queues_of: dict[str, list[list[tuple[int, str]]]] = defaultdict(list)
        for member_id in self._has:
            for topic_id in members[member_id].topic_ids:
                self._takers[topic_id].append(member_id)

    def keep(self) -> None:
        """Everybody what he had, as far as it is still there and still his to have, and he has not more than is fair
        where all want the same; the rest is free."""
        taken: set[PartitionId] = set()
        fair = self._fair_shares()
        for member_id, has in self._has.items():
            member = self._members[member_id]
            for partition in sorted(member.before):
                count = self._counts.get(partition.topic_id, 0)
                wanted = partition.topic_id in member.topic_ids and partition.number < count
                if wanted and partition not in taken and len(has) < fair.get(member_id, len(member.before)):
                    has.add(partition)
                    taken.add(partition)
        for topic_id, count in sorted(self._counts.items()):
            if self._takers.get(topic_id):
                numbered = (PartitionId(topic_id, number) for number in range(count))
                self._free += [partition for partition in numbered if partition not in taken]

    def _fair_shares(self) -> dict[str, int]:
        """How many each may keep, where all subscribe to the same topics: those who had most keep the odd ones."""
        if len({member.topic_ids for member in self._members.values()}) != 1:
            return {}
        topic_ids = next(iter(self._members.values())).topic_ids
        total = sum(self._counts.get(topic_id, 0) for topic_id in topic_ids)
        least, odd = divmod(total, len(self._members))
        by_need = sorted(self._has, key=lambda member_id: (-len(self._members[member_id].before), member_id))
        return {member_id: least + (place < odd) for place, member_id in enumerate(by_need)}

    def hand_out(self) -> None:
        """What is free goes to whoever has least of those who may have it: what few may have goes first."""
        for partition in sorted(self._free, key=lambda one: (len(self._takers[one.topic_id]), one)):
            self._give(partition, self._least(partition.topic_id))

    def level(self) -> None:
        """Move single partitions from those who have more to those who have two less, until there are none."""
        moved = True
        while moved:
            moved = False
            for member_id in sorted(self._has, key=lambda one: (-len(self._has[one]), one)):
                for partition in sorted(self._has[member_id]):
                    least = self._least(partition.topic_id)
                    if len(self._has[least]) + 1 < len(self._has[member_id]):
                        self._has[member_id].remove(partition)
                        self._note(member_id)
                        self._give(partition, least)
                        moved = True

    def _give(self, partition: PartitionId, member_id: str) -> None:
        self._has[member_id].add(partition)
        self._note(member_id)

    def _note(self, member_id: str) -> None:
        for queue in self._queues_of[member_id]:
            heapq.heappush(queue, (len(self._has[member_id]), member_id))

    def _least(self, topic_id: str) -> str:
        """Who has least of those who may have the topic. What a queue says of somebody may be old: then it says it
        again, further back."""
        queue = self._queues.get(topic_id)
        if queue is None:
            queue = self._queues[topic_id] = self._queue_of(tuple(self._takers[topic_id]))
        while queue[0][0] != len(self._has[queue[0][1]]):
            heapq.heappop(queue)
        return queue[0][1]

    def _queue_of(self, takers: tuple[str, ...]) -> list[tuple[int, str]]:
        """Topics with the same subscribers share one."""
        queue = self._shared.get(takers)
        if queue is None:
            queue = self._shared[takers] = [(len(self._has[member_id]), member_id) for member_id in takers]
            heapq.heapify(queue)
            for member_id in takers:
                self._queues_of[member_id].append(queue)
        return queue

    def assigned(self) -> Assigned:
        return {member_id: frozenset(has) for member_id, has in self._has.items()}
