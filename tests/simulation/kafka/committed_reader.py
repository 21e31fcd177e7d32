"""A reader of committed records: filters aborted records as Kafka's clients do, and checks the result."""

from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.kafka import frames
from tests.simulation.kafka.coordinator_client import CoordinatorClient, TopicPartition, by_topic
from tests.simulation.kafka.link import LOST, Link
from tests.simulation.kafka.response_checker import FETCH_RETRIED, GONE, NONE, OUT_OF_RANGE, Topic
from tests.simulation.readers import ATTRIBUTES, is_gap, rows_in

from lakestream.records.batch import CONTROL, TRANSACTIONAL
from lakestream.testing.batches import records_of

if TYPE_CHECKING:
    from tests.simulation.kafka.coordinator_checker import Ledger

COMMITTED_ONLY = 1
ABORT_KEY = bytes(4)
"""Key of an abort marker: version 0, type 0."""
PRODUCER_ID, OFFSET_DELTA = slice(43, 51), slice(23, 27)


class Read(NamedTuple):
    tp: TopicPartition
    offset: int
    value: bytes


class Session:
    """Polls partitions from given positions."""

    def __init__(self, client: CoordinatorClient, ledger: "Ledger", positions: dict[TopicPartition, int]) -> None:
        self.positions = dict(positions)
        self._client = client
        self._ledger = ledger
        self._last: dict[TopicPartition, int] = {}

    async def poll(self, bytes_max: int = 1_000) -> list[Read]:
        """Fetches once and returns the records. Errors are retried by the next poll."""
        client, records = self._client, []
        if not self.positions:
            return []
        link, began_s = client.link(), client.world.loop.now
        response = await self._fetch(link, bytes_max)
        if response is LOST:
            await client.back_off()
            return []
        for topic in response.responses:
            for part in topic.partitions:
                tp = self._tp(topic, part.partition_index)
                if part.error_code == NONE:
                    records += self._consume(tp, part)
                elif part.error_code == OUT_OF_RANGE and self.positions[tp] < self._ledger.log(tp).start:
                    self.positions[tp] = self._ledger.log(tp).start  # deleted by retention
                elif part.error_code in GONE:
                    client.checker.topic_denied(Topic(tp.topic, tp.topic_id), began_s, link.host)
                    del self.positions[tp]
                else:
                    client.world.tally[f"kafka fetch error {int(part.error_code)}"] += 1
                    if part.error_code not in FETCH_RETRIED:
                        client.world.oracle.report(
                            "clients can retry the error", f"fetch of {tp} returned {part.error_code!r}"
                        )
                    await client.back_off()
        return records

    def _tp(self, topic: Any, number: int) -> TopicPartition:
        """Finds a partition of the response by topic id, or by name if the version has no ids."""
        for tp in self.positions:
            same = topic.topic_id.hex == self._id(tp) if hasattr(topic, "topic_id") else topic.topic == tp.topic
            if same and tp.number == number:
                return tp
        raise AssertionError(f"partition {number} of {topic} was not requested")

    def _id(self, tp: TopicPartition) -> str:
        return tp.topic_id or self._client.world.oracle.topics[tp.topic].topic.topic_id

    async def _fetch(self, link: Link, bytes_max: int) -> Any:
        requested = {
            tp: {"fetch_offset": offset, "partition_max_bytes": bytes_max} for tp, offset in self.positions.items()
        }
        by_id = {tp._replace(topic_id=self._id(tp)): values for tp, values in requested.items()}
        return await link.request(
            frames.FETCH,
            {
                "replica_id": -1,
                "max_wait": timedelta(seconds=0.2),
                "min_bytes": 1,
                "max_bytes": 10_000,
                "isolation_level": COMMITTED_ONLY,
                "session_id": 0,
                "session_epoch": -1,
                "forgotten_topics_data": [],
                "rack_id": "",
                "topics": [{**topic, "topic": topic["name"]} for topic in by_topic(by_id, "partition")],
            },
        )

    def _consume(self, tp: TopicPartition, part: Any) -> list[Read]:
        """Returns the committed records of a response, checks them, and moves the position after them."""
        position = self.positions[tp]
        aborted = deque(sorted((entry.first_offset, entry.producer_id) for entry in part.aborted_transactions or ()))
        active: set[int] = set()
        records: list[Read] = []
        at = position
        for data in _batches(bytes(part.records or b"")):
            offset_next = int.from_bytes(data[:8], "big") + int.from_bytes(data[OFFSET_DELTA], "big") + 1
            producer_id = int.from_bytes(data[PRODUCER_ID], "big", signed=True)
            while aborted and aborted[0][0] < offset_next:
                active.add(aborted.popleft()[1])
            attributes = int.from_bytes(data[ATTRIBUTES], "big")
            at = max(at, offset_next)
            if is_gap(data):
                continue
            if attributes & CONTROL:
                if next(iter(records_of(data))).key == ABORT_KEY:
                    active.discard(producer_id)
            elif not (attributes & TRANSACTIONAL and producer_id in active):
                records += [Read(tp, row.offset, row.value) for row in rows_in(data) if row.offset >= position]
        self._check(tp, position, at, records)
        self.positions[tp] = at
        return records

    def _check(self, tp: TopicPartition, position: int, offset_next: int, records: list[Read]) -> None:
        client, last = self._client, self._last.get(tp, position - 1)
        for record in records:
            if record.offset <= last:
                client.world.oracle.report("nonmonotonic poll", f"{tp}:{record.offset} after {last}")
            last = record.offset
            self._ledger.record_read(tp, record.offset, record.value)
        self._last[tp] = last
        self._ledger.range_read(tp, position, offset_next, {record.offset for record in records})
        client.world.tally["committed records read"] += len(records)


def _batches(data: bytes) -> list[bytes]:
    records, at = [], 0
    while at < len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        records.append(data[at : at + size])
        at += size
    return records
