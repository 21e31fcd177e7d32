"""Status and lag of topics, and the result of a micro-batch.

Before: micro_batch.py and its steps, which update them.  After: driver.py, which logs and stores them.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lakestream.aio.gather import gather_limited
from lakestream.clock import Clock
from lakestream.errors import LakestreamError
from lakestream.metadata.claims import Claims, Lag, lag_of
from lakestream.metadata.topics import NamedTopic
from lakestream.model import PartitionId
from lakestream.pipeline.tasks import MoveResult

log = logging.getLogger(__name__)

PARTITIONS_AT_ONCE: Final = 32
STALLED_RETRY_MS: Final = 30_000
STALLED_PARTITIONS_MAX: Final = 200
"""Partitions of stalled topics whose lag is read in each micro-batch."""


@dataclass(slots=True)
class TopicStatus:
    name: str
    stalled: str = ""
    """Why the topic is not moved; empty if it is."""
    tried_ms: int = 0
    """When a stalled topic was last tried."""
    error: str = ""
    """Why its last move failed, although the next may succeed; empty if it did not fail."""
    error_since_ms: int = 0
    failed_micro_batch: int = 0
    """Number of the last micro-batch in which the topic stalled or failed."""
    committed_ms: int = 0
    """Time of the last commit."""
    lag_records: int = 0
    oldest_ms: int = 0
    """When the first record that is not in the table was appended; 0 if all are in the table."""
    files: int = 0
    records: int = 0
    bytes: int = 0
    converted: int = 0
    unconverted: int = 0
    conversion_error: str = ""
    """The most frequent reason why values have no columns, from the last move that had such values."""
    pending_layout: str = ""
    """The layout settings that cannot be applied to the table now, and why."""


@dataclass(slots=True)
class MicroBatchResult:
    moves: int = 0
    records: int = 0
    bytes: int = 0
    files: int = 0
    tables: int = 0
    committed: set[str] = field(default_factory=set)
    """Ids of the topics whose tables were committed to."""
    stalled: list[str] = field(default_factory=list)
    left: bool = False
    """Whether the next micro-batch can start immediately, because this one reached its size limit."""
    lag_records: int = 0
    lag_ms: int = 0
    """Age of the oldest record that is not in its table."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By step."""

    def add_committed(self, topics: Mapping[str, Sequence[MoveResult]]) -> None:
        """Counts the committed moves of each topic id."""
        moved = [one for moves in topics.values() for one in moves]
        self.tables += len(topics)
        self.committed |= topics.keys()
        self.moves += len(moved)
        self.records += sum(one.record_count for one in moved)
        self.bytes += sum(one.move.size for one in moved)
        self.files += sum(len(one.files) for one in moved)

    def add(self, later: "MicroBatchResult") -> None:
        """Adds counts and seconds of a later micro-batch; lag and stalled topics are those of the later one."""
        self.moves += later.moves
        self.records += later.records
        self.bytes += later.bytes
        self.files += later.files
        self.tables = max(self.tables, later.tables)
        self.stalled = later.stalled
        self.lag_records, self.lag_ms = later.lag_records, later.lag_ms
        for step, seconds in later.seconds.items():
            self.seconds[step] = self.seconds.get(step, 0.0) + seconds


class TopicStatuses:
    """The topics of this driver and the status of each, by topic id."""

    def __init__(self, claims: Claims, clock: Clock) -> None:
        self._claims = claims
        self._clock = clock
        self._micro_batch = 0
        self.topics: dict[str, NamedTopic] = {}
        self.by_id: dict[str, TopicStatus] = {}

    def by_name(self) -> dict[str, TopicStatus]:
        return {status.name: status for status in self.by_id.values()}

    def name(self, topic_id: str) -> str:
        named = self.topics.get(topic_id)
        return topic_id if named is None else named.name

    def get(self, topic_id: str) -> TopicStatus:
        return self.by_id.setdefault(topic_id, TopicStatus(self.name(topic_id)))

    def start_micro_batch(self) -> None:
        self._micro_batch += 1

    def note_stalled(self, topic_id: str, reason: str) -> None:
        """The topic is retried after STALLED_RETRY_MS."""
        status = self.get(topic_id)
        if status.stalled != reason:
            log.error("pipeline.topic_stalled topic=%s reason=%s", status.name, reason)
        status.stalled, status.tried_ms = reason, self._clock.now_ms()
        status.error, status.failed_micro_batch = "", self._micro_batch

    def note_error(self, topic_id: str, reason: str) -> None:
        """The topic is retried by the next micro-batch."""
        status = self.get(topic_id)
        if not status.error:
            status.error_since_ms = self._clock.now_ms()
        status.error, status.failed_micro_batch = reason, self._micro_batch

    def note_committed(self, topic_id: str, moved: Sequence[MoveResult]) -> None:
        status = self.get(topic_id)
        status.committed_ms = self._clock.now_ms()
        if status.failed_micro_batch != self._micro_batch:  # else another partition of the topic failed
            status.stalled = status.error = ""
        for one in moved:
            status.records += one.record_count
            status.bytes += one.move.size
            status.files += len(one.files)
            status.converted += one.converted_count
            status.unconverted += one.unconverted_count
            if one.errors:
                first = one.errors[0]
                status.conversion_error = (
                    f"{first.reason}; first at offset {first.offset} of partition {one.move.partition.number}"
                )

    def is_waiting(self, topic_id: str) -> bool:
        """Whether the topic stalled so recently that it is not retried yet."""
        status = self.by_id.get(topic_id)
        return bool(status is not None and status.stalled and self._clock.now_ms() - status.tried_ms < STALLED_RETRY_MS)

    async def update_lags(self, lags: Mapping[PartitionId, Lag], checked: Iterable[str]) -> None:
        """Sets the lag of all topics. `checked`: ids of topics whose backlogs were read in this micro-batch.

        A checked topic that did not fail and has no lag has recovered.
        """
        stalled = await self._lags_of_stalled(lags)
        for status in self.by_id.values():
            status.lag_records = status.oldest_ms = 0
        for partition, lag in (*lags.items(), *stalled):
            if lag.records > 0:
                status = self.get(partition.topic_id)
                status.lag_records += lag.records
                status.oldest_ms = min(status.oldest_ms or lag.oldest_ms, lag.oldest_ms)
        for topic_id in checked:
            recovered = self.by_id.get(topic_id)
            if recovered and recovered.failed_micro_batch != self._micro_batch and not recovered.lag_records:
                recovered.stalled = recovered.error = ""

    async def _lags_of_stalled(self, lags: Mapping[PartitionId, Lag]) -> list[tuple[PartitionId, Lag]]:
        """Reads the lag of stalled topics, whose backlogs are not read until they are retried."""
        topics = [
            self.topics[topic_id] for topic_id, one in self.by_id.items() if one.stalled and topic_id in self.topics
        ]
        partitions = [one for named in topics for one in named.topic.partitions() if one not in lags]
        partitions = partitions[:STALLED_PARTITIONS_MAX]
        try:
            found = await gather_limited([lag_of(self._claims, one) for one in partitions], PARTITIONS_AT_ONCE)
        except LakestreamError as error:
            log.warning("pipeline.lag_failed error=%s", error)
            return []
        return list(zip(partitions, found, strict=True))

    def add_totals(self, result: MicroBatchResult) -> None:
        """Sets lag and stalled topics of a result."""
        statuses = self.by_id.values()
        result.lag_records = sum(one.lag_records for one in statuses)
        if oldest := [one.oldest_ms for one in statuses if one.oldest_ms]:
            result.lag_ms = max(0, self._clock.now_ms() - min(oldest))
        result.stalled = [f"{one.name}: {one.stalled}" for one in statuses if one.stalled]
