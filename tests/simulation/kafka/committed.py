"""A reader of committed records: what it is given it filters as Kafka's clients do, and holds against the truth."""

from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.kafka import frames
from tests.simulation.kafka.coordinated import Coordinated, Place, by_topic
from tests.simulation.kafka.judge import FETCH_RETRIED, GONE, NONE, OUT_OF_RANGE, Topic
from tests.simulation.kafka.link import LOST, Link
from tests.simulation.readers import ATTRIBUTES, is_gap, rows_in

from lakestream.batch import CONTROL, TRANSACTIONAL
from lakestream.testing.batches import records_of

if TYPE_CHECKING:
    from tests.simulation.kafka.ledger import Ledger

COMMITTED_ONLY = 1
ABORT_KEY = bytes(4)
"""Of the record of a control batch: version 0, type 0."""
PRODUCER_ID, OFFSET_DELTA = slice(43, 51), slice(23, 27)


class Read(NamedTuple):
    place: Place
    offset: int
    value: bytes


class Session:
    """Polls from where it begins, of some partitions."""

    def __init__(self, client: Coordinated, ledger: "Ledger", positions: dict[Place, int]) -> None:
        self.positions = dict(positions)
        self._client = client
        self._ledger = ledger
        self._last: dict[Place, int] = {}

    async def poll(self, bytes_max: int = 1_000) -> list[Read]:
        """One fetch. What went wrong is for the next one."""
        client, found = self._client, []
        if not self.positions:
            return []
        link, began_s = client.link(), client.world.loop.now
        answer = await self._fetch(link, bytes_max)
        if answer is LOST:
            await client.back_off()
            return []
        for topic in answer.responses:
            for part in topic.partitions:
                place = self._place(topic, part.partition_index)
                if part.error_code == NONE:
                    found += self._taken(place, part)
                elif part.error_code == OUT_OF_RANGE and self.positions[place] < self._ledger.log(place).start:
                    self.positions[place] = self._ledger.log(place).start  # it had its time
                elif part.error_code in GONE:
                    client.judge.denied(Topic(place.topic, place.topic_id), began_s, link.host)
                    del self.positions[place]
                else:
                    client.world.tally[f"kafka fetch error {int(part.error_code)}"] += 1
                    if part.error_code not in FETCH_RETRIED:
                        client.world.witness.accuse(
                            "errors that clients retry", f"fetch of {place} was answered with {part.error_code!r}"
                        )
                    await client.back_off()
        return found

    def _place(self, topic: Any, number: int) -> Place:
        """By its topic's id, where answers have it."""
        for place in self.positions:
            same = topic.topic_id.hex == self._id(place) if hasattr(topic, "topic_id") else topic.topic == place.topic
            if same and place.number == number:
                return place
        raise AssertionError(f"nobody asked for partition {number} of {topic}")

    def _id(self, place: Place) -> str:
        return place.topic_id or self._client.world.witness.topics[place.topic].topic.topic_id

    async def _fetch(self, link: Link, bytes_max: int) -> Any:
        wanted = {
            place: {"fetch_offset": offset, "partition_max_bytes": bytes_max}
            for place, offset in self.positions.items()
        }
        by_id = {place._replace(topic_id=self._id(place)): values for place, values in wanted.items()}
        return await link.ask(
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

    def _taken(self, place: Place, part: Any) -> list[Read]:
        """The records that count, checked; the position moves behind them."""
        position = self.positions[place]
        aborted = deque(sorted((one.first_offset, one.producer_id) for one in part.aborted_transactions or ()))
        active: set[int] = set()
        found: list[Read] = []
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
                found += [Read(place, row.offset, row.value) for row in rows_in(data) if row.offset >= position]
        self._check(place, position, at, found)
        self.positions[place] = at
        return found

    def _check(self, place: Place, position: int, offset_next: int, found: list[Read]) -> None:
        client, last = self._client, self._last.get(place, position - 1)
        for one in found:
            if one.offset <= last:
                client.world.witness.accuse("nonmonotonic poll", f"{place}:{one.offset} after {last}")
            last = one.offset
            self._ledger.read(place, one.offset, one.value)
        self._last[place] = last
        self._ledger.read_all(place, position, offset_next, {one.offset for one in found})
        client.world.tally["committed records read"] += len(found)


def _batches(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        found.append(data[at : at + size])
        at += size
    return found
