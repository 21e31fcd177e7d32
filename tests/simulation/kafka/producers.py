"""Kafka producers that behave as clients: several requests in flight, retries to another broker with equal sequences.

An idempotent producer retries until its topic is deleted. Producers that use topic ids mark their records with the id:
such a record must not be stored in any other topic.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from tests.simulation.kafka import frames
from tests.simulation.kafka.client import Client
from tests.simulation.kafka.link import LOST, Link
from tests.simulation.kafka.response_checker import GONE, NONE, OUT_OF_ORDER, RETRIED, ResponseChecker, Topic
from tests.simulation.oracle import ID_DIGITS, TOPIC_MARK
from tests.simulation.world import World

from lakestream.records.batch import NO_PRODUCER, NO_SEQUENCE
from lakestream.testing.batches import make_batch

IN_FLIGHT_MAX = 5
FIRST_MS = 1_700_000_000_000


@dataclass(slots=True, eq=False)
class Sent:
    """A batch that a producer sends until it is stored."""

    topic: Topic
    batch: bytes
    values: tuple[bytes, ...]
    number: int
    """Position among the batches of its producer."""
    began_s: float = 0.0
    offset: int | None = None


class Producer(Client):
    def __init__(self, world: World, checker: ResponseChecker, name: str, topic_name: str, number: int) -> None:
        super().__init__(world, checker, name)
        self.topic_name = topic_name
        self.number = number
        self.by_id = world.rng.random() < 0.5
        self.topic: Topic | None = None
        """The topic by the last metadata response; None: metadata is needed."""
        self.count = 0

    def link(self) -> Link:
        link = super().link()
        by_id = [version for version in frames.VERSIONS[frames.PRODUCE] if version >= frames.PRODUCE_BY_ID_FROM]
        by_name = [version for version in frames.VERSIONS[frames.PRODUCE] if version < frames.PRODUCE_BY_ID_FROM]
        if link.versions[frames.PRODUCE] not in (allowed := by_id if self.by_id else by_name):
            link.versions[frames.PRODUCE] = self.world.rng.choice(allowed)
        return link

    async def update_topic(self) -> bool:
        topic_id = await self.find_topic(self.topic_name)
        if topic_id is None:
            await self.back_off()
            return False
        self.topic = Topic(self.topic_name, topic_id if self.by_id else None)
        if self.world.scenario.arrivals:
            self.disconnect()  # so that it writes to another broker, which may not have read the topic yet
        return True

    def make(self, producer_id: int = NO_PRODUCER, epoch: int = -1, sequence: int = NO_SEQUENCE) -> Sent:
        assert self.topic is not None
        rng = self.world.rng
        self.count += 1
        mark = "" if self.topic.topic_id is None else TOPIC_MARK.decode() + self.topic.topic_id[:ID_DIGITS]
        padding = "." * rng.randint(0, 40)
        values = tuple(
            f"{self.name}/{self.count}/{number}{mark}{padding}".encode() for number in range(rng.randint(1, 3))
        )
        moment_ms = FIRST_MS + int(self.world.loop.now * 1000) + rng.randint(-5_000, 5_000)
        batch = make_batch(
            values, producer_id=producer_id, epoch=epoch, sequence=sequence, timestamp_ms=max(moment_ms, FIRST_MS)
        )
        return Sent(self.topic, batch, values, self.count)

    def begin(self, link: Link, sent: Sent) -> "asyncio.Future[Any]":
        sent.began_s = self.world.loop.now
        self.world.tally["kafka batches sent"] += 1
        return link.begin(frames.PRODUCE, _produce_request(sent, self.number, acks=-1))

    def received(self, link: Link, sent: Sent, response: Any) -> int | None:
        """Checks a response and returns its error code, or None without a response."""
        if response is LOST:
            return None
        (topic,) = response.responses
        (part,) = topic.partition_responses
        code = int(part.error_code)
        if code == NONE:
            self.acknowledged(sent, part.base_offset)
        elif code in GONE:
            self.checker.topic_denied(sent.topic, sent.began_s, link.host)
        else:
            self.world.tally[f"kafka produce error {code}"] += 1
        return code

    def acknowledged(self, sent: Sent, offset: int) -> None:
        self.world.tally["kafka batches acknowledged"] += 1
        self.checker.batch_acknowledged(sent.topic, self.number, sent.values, offset)
        sent.offset = offset


class PlainProducer(Producer):
    """Producer without idempotence: sends each batch once, and new batches after a failure. Sometimes uses acks=0."""

    async def run(self) -> None:
        for _ in range(self.world.scenario.batches):
            while self.topic is None and not await self.update_topic():
                pass
            await self._send_batches()
            await self.think(self.world.scenario.think_s_max)
        self.disconnect()

    async def _send_batches(self) -> None:
        rng, link = self.world.rng, self.link()
        if rng.random() < 0.2:
            link.send(frames.PRODUCE, _produce_request(self.make(), self.number, acks=0))
        batches = [self.make() for _ in range(rng.randint(1, IN_FLIGHT_MAX))]
        responses = [self.begin(link, sent) for sent in batches]
        codes = [self.received(link, sent, await response) for sent, response in zip(batches, responses, strict=True)]
        self._check_order([sent.offset for sent in batches if sent.offset is not None])
        for code in codes:
            if code is not None and code not in (NONE, *GONE, *RETRIED):
                self.world.oracle.report("valid requests are not rejected", f"a plain batch of {self.name}: {code}")
        if any(code != NONE for code in codes):
            self.topic = None
            await self.back_off()
        else:
            self.succeeded()

    def _check_order(self, offsets: list[int]) -> None:
        """Checks the offsets of batches on one connection, unless the topic was recreated."""
        recreated = len(self.world.oracle.names[self.topic_name]) > 1
        if offsets != sorted(offsets) and not recreated:
            self.world.oracle.report(
                "offsets follow the send order", f"{self.name} got offsets {offsets} for batches in send order"
            )


class IdempotentProducer(Producer):
    """Sends a batch to any broker until it is acknowledged, and new batches after those in flight."""

    def __init__(self, world: World, checker: ResponseChecker, name: str, topic_name: str, number: int) -> None:
        super().__init__(world, checker, name, topic_name, number)
        self.producer_id, self.epoch, self.sequence = NO_PRODUCER, -1, 0
        self.pending: list[Sent] = []
        """Batches that are not acknowledged yet, in order."""
        self._acked: list[Sent] = []
        """The last acknowledged batches, in order of sequence."""

    async def run(self) -> None:
        while self.count < self.world.scenario.batches or self.pending:
            if self.topic is None:
                await self._refresh_topic()
            elif self.producer_id == NO_PRODUCER or (not self.pending and self.world.rng.random() < 0.05):
                await self._get_id()
            elif await self._send_window():
                self.succeeded()
                await self.think(self.world.scenario.think_s_max)
            else:
                await self.back_off()
        self.disconnect()

    async def _refresh_topic(self) -> None:
        before = self.pending[0].topic if self.pending else None
        if await self.update_topic() and before is not None and self.topic != before:
            self._start_over()

    def _start_over(self) -> None:
        """Gives up the pending batches, because the topic was recreated."""
        self.world.tally["kafka batches given up"] += len(self.pending)
        self.pending.clear()
        self.producer_id = NO_PRODUCER
        self._acked.clear()

    async def _get_id(self) -> None:
        """Requests a new producer id, or the next epoch of the present one."""
        bumps_epoch = self.producer_id != NO_PRODUCER and self.link().versions[frames.INIT_PRODUCER_ID] >= 3
        response = await self.request(
            frames.INIT_PRODUCER_ID,
            {
                "transactional_id": None,
                "transaction_timeout": timedelta(seconds=60),
                "producer_id": self.producer_id if bumps_epoch else -1,
                "producer_epoch": self.epoch if bumps_epoch else -1,
            },
        )
        if response is LOST or response.error_code != NONE:
            await self.back_off()
            return
        identity = (response.producer_id, response.producer_epoch)
        if identity in self.world.producer_ids:
            self.world.oracle.report("producer ids are unique", f"{identity} was returned to {self.name} too")
        self.world.producer_ids.add(identity)
        self.producer_id, self.epoch = identity
        self.sequence = 0

    async def _send_window(self) -> bool:
        """Sends the pending batches and some new ones. Returns whether all were acknowledged."""
        rng, link = self.world.rng, self.link()
        to_send = deque(self.pending)
        new_count = rng.randint(1, 8) if self.count < self.world.scenario.batches else 0
        in_flight: deque[tuple[Sent, asyncio.Future[Any]]] = deque()
        all_acknowledged = True
        while True:
            while (
                all_acknowledged and len(in_flight) < IN_FLIGHT_MAX and (to_send or (new_count and self._may_send_new))
            ):
                if not to_send:
                    new_count -= 1
                    to_send.append(self._new_batch())
                sent = to_send.popleft()
                in_flight.append((sent, self.begin(link, sent)))
                if rng.random() < 0.2:
                    await self.think(0.1)
            if not in_flight:
                return all_acknowledged
            sent, response = in_flight.popleft()
            all_acknowledged = self._complete(link, sent, await response, all_acknowledged) and all_acknowledged

    @property
    def _may_send_new(self) -> bool:
        """Whether a new batch keeps all pending ones within the five batches that a log remembers of a producer."""
        return not self.pending or self.count - self.pending[0].number < IN_FLIGHT_MAX - 1

    def _new_batch(self) -> Sent:
        sent = self.make(self.producer_id, self.epoch, self.sequence)
        self.sequence += len(sent.values)
        self.pending.append(sent)
        return sent

    def _complete(self, link: Link, sent: Sent, response: Any, all_acknowledged: bool) -> bool:
        """Checks a result and returns whether it is an acknowledgement. Only a batch after a failed one may be out of
        order."""
        code = self.received(link, sent, response)
        if sent not in self.pending:
            return False  # given up
        if code == NONE:
            self._check_order(sent)
            self.pending.remove(sent)
            return True
        if code in GONE:
            self.topic = None
        elif code == OUT_OF_ORDER and all_acknowledged:
            if self._was_recreated:
                self._start_over()
                self.topic = None
            else:
                self.world.oracle.report(
                    "valid requests are not rejected", f"{sent.values} of {self.name} is out of order"
                )
        elif code is not None and code not in (OUT_OF_ORDER, *RETRIED):
            self.world.oracle.report("valid requests are not rejected", f"{sent.values} of {self.name}: error {code}")
        return False

    @property
    def _was_recreated(self) -> bool:
        """Whether the topic was recreated and this producer, which uses no topic ids, cannot detect it."""
        return not self.by_id and len(self.world.oracle.names[self.topic_name]) > 1

    def _check_order(self, sent: Sent) -> None:
        """Checks that offsets are in the order of sequences. Responses need not be: a duplicate may be acknowledged
        after an earlier batch has failed again."""
        if self._was_recreated:
            return
        self._acked = sorted([*self._acked, sent], key=lambda one: one.number)[-2 * IN_FLIGHT_MAX :]
        offsets = [one.offset for one in self._acked if one.offset is not None]
        if offsets != sorted(set(offsets)):
            self.world.oracle.report(
                "offsets follow the send order", f"{self.name} got offsets {offsets} for batches in order of sequence"
            )


def _produce_request(sent: Sent, number: int, acks: int) -> dict[str, Any]:
    topic = sent.topic
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout": timedelta(seconds=30),
        "topic_data": [
            {
                "name": topic.name,
                "topic_id": None if topic.topic_id is None else UUID(hex=topic.topic_id),
                "partition_data": [{"index": number, "records": sent.batch}],
            }
        ],
    }
