"""What failed moves and commits leave to the next micro-batch: smaller moves, and files that are stored already.

Before: commit.py, which notes failures and commits.  After: plan.py, which plans the next moves of these logs.

A move fails temporarily because the machine or a store is overloaded, and its log grows while it is retried. So the log
gets one move per micro-batch, half as large with each failure and a quarter larger with each commit. It grows slowly,
because a failure costs all the time until it is certain.

Files behind a failed move, and files whose commit failed, are kept for one more attempt, so that they are not written
again. If it fails too, they are removed: on a full disk they may be the reason.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from lakestream.clock import Clock
from lakestream.model import PartitionId
from lakestream.pipeline.plan import PlanSettings, Retries, reached
from lakestream.pipeline.tasks import Move, MoveResult

GROWTH: Final = 4
"""Each commit makes the moves of a limited log larger by one part in so many."""
STORED_MS_MAX: Final = 10 * 60 * 1000
"""Files are not committed later than this: after days without a commit, maintenance and engines remove orphan files."""


class StoredMoves(NamedTuple):
    usable: list[MoveResult]
    """Results of planned moves."""
    stale: list[MoveResult]
    """Results that are not planned any more, whose files are to be removed."""


class _Stored(NamedTuple):
    result: MoveResult
    stored_ms: int


class UnfinishedMoves:
    def __init__(self, settings: PlanSettings, clock: Clock) -> None:
        self._bytes_min = settings.move_bytes_min
        self._bytes_max = settings.move_bytes_max
        self._clock = clock
        self._limits: dict[PartitionId, int] = {}
        self._stored: dict[PartitionId, list[_Stored]] = {}
        self._taken: set[tuple[PartitionId, int]] = set()  # partition and start of results in their second attempt

    def retries(self) -> Retries:
        stored = {partition: [one.result.move for one in own] for partition, own in self._stored.items()}
        return Retries(dict(self._limits), stored)

    def take(self, moves: Sequence[Move]) -> StoredMoves:
        """Returns what is stored of planned moves, which are not to be run, and what will not be used."""
        planned = {(move.partition, move.start): move for move in moves}
        ends = reached(moves)
        now_ms = self._clock.now_ms()
        found = StoredMoves([], [])
        for partition, own in list(self._stored.items()):
            left = []
            for one in own:
                move = one.result.move
                if not 0 <= now_ms - one.stored_ms < STORED_MS_MAX:
                    found.stale.append(one.result)
                elif planned.get((partition, move.start)) == move:
                    found.usable.append(one.result)
                elif move.start < ends.get(partition, 0):
                    found.stale.append(one.result)
                else:
                    left.append(one)
            self._stored[partition] = left
        self._stored = {partition: own for partition, own in self._stored.items() if own}
        self._taken = {(one.move.partition, one.move.start) for one in found.usable}
        return found

    def note_failed(self, partition: PartitionId, size: int, stored: Sequence[MoveResult] = ()) -> list[MoveResult]:
        """Notes that a move of this size failed. Keeps its `stored` results; returns those to be removed."""
        removed = [one.result for one in self._stored.pop(partition, ())]
        fresh = [one for one in stored if (partition, one.move.start) not in self._taken]
        removed += (one for one in stored if (partition, one.move.start) in self._taken)
        if fresh:
            now_ms = self._clock.now_ms()
            self._stored[partition] = [_Stored(one, now_ms) for one in fresh]
        half = min(size, self._limits.get(partition, self._bytes_max)) // 2
        self._limits[partition] = max(self._bytes_min, half)
        return removed

    def note_committed(self, partitions: Iterable[PartitionId]) -> None:
        for partition in set(partitions) & self._limits.keys():
            self._limits[partition] += max(1, self._limits[partition] // GROWTH)
            if self._limits[partition] >= self._bytes_max:
                del self._limits[partition]

    def forget_deleted(self, topics: Iterable[str]) -> None:
        """Forgets the limits of deleted topics. Their stored files become stale with time."""
        existing = set(topics)
        self._limits = {one: limit for one, limit in self._limits.items() if one.topic_id in existing}
