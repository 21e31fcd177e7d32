"""Kafka producers, as clients behave: several requests in flight, retries at another broker with the same sequences.

An idempotent one gives up never, unless its topic was deleted. Those who know topic ids mark their records with the id:
such a record must not turn up in any other topic.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from tests.simulation.kafka import frames
from tests.simulation.kafka.client import Client
from tests.simulation.kafka.judge import GONE, NONE, OUT_OF_ORDER, RETRIED, Judge, Topic
from tests.simulation.kafka.link import LOST, Link
from tests.simulation.witness import ID_DIGITS, MEANT_FOR
from tests.simulation.world import World

from lakestream.batch import NO_PRODUCER, NO_SEQUENCE
from lakestream.testing.batches import make_batch

IN_FLIGHT_MAX = 5
FIRST_MS = 1_700_000_000_000


@dataclass(slots=True, eq=False)
class Sent:
    """A batch that a producer wants in the log."""

    topic: Topic
    batch: bytes
    values: tuple[bytes, ...]
    number: int
    """Of the batches of its producer."""
    began_s: float = 0.0
    offset: int | None = None


class Producer(Client):
    def __init__(self, world: World, judge: Judge, name: str, topic_name: str, number: int) -> None:
        super().__init__(world, judge, name)
        self.topic_name = topic_name
        self.number = number
        self.by_id = world.luck.random() < 0.5
        self.topic: Topic | None = None
        """As it knows it now; None: it must ask."""
        self.count = 0

    def link(self) -> Link:
        link = super().link()
        by_id = [version for version in frames.VERSIONS[frames.PRODUCE] if version >= frames.PRODUCE_BY_ID_FROM]
        by_name = [version for version in frames.VERSIONS[frames.PRODUCE] if version < frames.PRODUCE_BY_ID_FROM]
        if link.versions[frames.PRODUCE] not in (allowed := by_id if self.by_id else by_name):
            link.versions[frames.PRODUCE] = self.world.luck.choice(allowed)
        return link

    async def look_up(self) -> bool:
        topic_id = await self.look(self.topic_name)
        if topic_id is None:
            await self.back_off()
            return False
        self.topic = Topic(self.topic_name, topic_id if self.by_id else None)
        if self.world.mood.arrivals:
            self.leave()  # it writes to one that was not asked, and may never have heard of the topic
        return True

    def make(self, producer_id: int = NO_PRODUCER, epoch: int = -1, sequence: int = NO_SEQUENCE) -> Sent:
        assert self.topic is not None
        luck = self.world.luck
        self.count += 1
        mark = "" if self.topic.topic_id is None else MEANT_FOR.decode() + self.topic.topic_id[:ID_DIGITS]
        padding = "." * luck.randint(0, 40)
        values = tuple(
            f"{self.name}/{self.count}/{number}{mark}{padding}".encode() for number in range(luck.randint(1, 3))
        )
        moment_ms = FIRST_MS + int(self.world.loop.now * 1000) + luck.randint(-5_000, 5_000)
        batch = make_batch(
            values, producer_id=producer_id, epoch=epoch, sequence=sequence, timestamp_ms=max(moment_ms, FIRST_MS)
        )
        return Sent(self.topic, batch, values, self.count)

    def begin(self, link: Link, sent: Sent) -> "asyncio.Future[Any]":
        sent.began_s = self.world.loop.now
        self.world.tally["kafka batches sent"] += 1
        return link.begin(frames.PRODUCE, _request(sent, self.number, acks=-1))

    def heard(self, link: Link, sent: Sent, answer: Any) -> int | None:
        """The error code, checked as far as it can be; None: no answer."""
        if answer is LOST:
            return None
        (topic,) = answer.responses
        (part,) = topic.partition_responses
        code = int(part.error_code)
        if code == NONE:
            self.acked(sent, part.base_offset)
        elif code in GONE:
            self.judge.denied(sent.topic, sent.began_s, link.host)
        else:
            self.world.tally[f"kafka produce error {code}"] += 1
        return code

    def acked(self, sent: Sent, offset: int) -> None:
        self.world.tally["kafka batches acknowledged"] += 1
        self.judge.appended(sent.topic, self.number, sent.values, offset)
        sent.offset = offset


class PlainProducer(Producer):
    """Sends each batch once: what fails is sent again as a new one. Now and then one without acks."""

    async def run(self) -> None:
        for _ in range(self.world.mood.batches):
            while self.topic is None and not await self.look_up():
                pass
            await self._volley()
            await self.think(self.world.mood.think_s_max)
        self.leave()

    async def _volley(self) -> None:
        luck, link = self.world.luck, self.link()
        if luck.random() < 0.2:
            link.send(frames.PRODUCE, _request(self.make(), self.number, acks=0))
        volley = [self.make() for _ in range(luck.randint(1, IN_FLIGHT_MAX))]
        answers = [self.begin(link, sent) for sent in volley]
        codes = [self.heard(link, sent, await answer) for sent, answer in zip(volley, answers, strict=True)]
        self._check_order([sent.offset for sent in volley if sent.offset is not None])
        for code in codes:
            if code is not None and code not in (NONE, *GONE, *RETRIED):
                self.world.witness.accuse("no wrong refusal", f"a plain batch of {self.name}: {code}")
        if any(code != NONE for code in codes):
            self.topic = None
            await self.back_off()
        else:
            self.works()

    def _check_order(self, offsets: list[int]) -> None:
        """Of one connection, unless the topic is another one meanwhile."""
        reborn = len(self.world.witness.names[self.topic_name]) > 1
        if offsets != sorted(offsets) and not reborn:
            self.world.witness.accuse("order", f"{self.name} got offsets {offsets} for batches sent one after another")


class IdempotentProducer(Producer):
    """Sends a batch until it is acknowledged, wherever that works, and new ones behind those that are under way."""

    def __init__(self, world: World, judge: Judge, name: str, topic_name: str, number: int) -> None:
        super().__init__(world, judge, name, topic_name, number)
        self.producer_id, self.epoch, self.sequence = NO_PRODUCER, -1, 0
        self.pending: list[Sent] = []
        """Made and not acknowledged, in order."""
        self._acked: list[Sent] = []
        """The last ones, in order of sequence."""

    async def run(self) -> None:
        while self.count < self.world.mood.batches or self.pending:
            if self.topic is None:
                await self._look_again()
            elif self.producer_id == NO_PRODUCER or (not self.pending and self.world.luck.random() < 0.05):
                await self._get_id()
            elif await self._stream():
                self.works()
                await self.think(self.world.mood.think_s_max)
            else:
                await self.back_off()
        self.leave()

    async def _look_again(self) -> None:
        before = self.pending[0].topic if self.pending else None
        if await self.look_up() and before is not None and self.topic != before:
            self._start_over()

    def _start_over(self) -> None:
        """The topic is another one: what was meant for the old one is given up."""
        self.world.tally["kafka batches given up"] += len(self.pending)
        self.pending.clear()
        self.producer_id = NO_PRODUCER
        self._acked.clear()

    async def _get_id(self) -> None:
        """A new id, or the next epoch of the one it has."""
        goes_on = self.producer_id != NO_PRODUCER and self.link().versions[frames.INIT_PRODUCER_ID] >= 3
        answer = await self.ask(
            frames.INIT_PRODUCER_ID,
            {
                "transactional_id": None,
                "transaction_timeout": timedelta(seconds=60),
                "producer_id": self.producer_id if goes_on else -1,
                "producer_epoch": self.epoch if goes_on else -1,
            },
        )
        if answer is LOST or answer.error_code != NONE:
            await self.back_off()
            return
        identity = (answer.producer_id, answer.producer_epoch)
        if identity in self.world.producers_made:
            self.world.witness.accuse("a producer id is given once", f"{identity} was given to {self.name} too")
        self.world.producers_made.add(identity)
        self.producer_id, self.epoch = identity
        self.sequence = 0

    async def _stream(self) -> bool:
        """Send what is pending, and some new ones behind it. True: all of it was acknowledged."""
        luck, link = self.world.luck, self.link()
        to_send = deque(self.pending)
        to_make = luck.randint(1, 8) if self.count < self.world.mood.batches else 0
        flying: deque[tuple[Sent, asyncio.Future[Any]]] = deque()
        well = True
        while True:
            while well and len(flying) < IN_FLIGHT_MAX and (to_send or (to_make and self._may_make)):
                if not to_send:
                    to_make -= 1
                    to_send.append(self._made())
                sent = to_send.popleft()
                flying.append((sent, self.begin(link, sent)))
                if luck.random() < 0.2:
                    await self.think(0.1)
            if not flying:
                return well
            sent, answer = flying.popleft()
            well = self._settle(link, sent, await answer, well) and well

    @property
    def _may_make(self) -> bool:
        """A log remembers five batches of a producer: no new one while one is open that lies further back."""
        return not self.pending or self.count - self.pending[0].number < IN_FLIGHT_MAX - 1

    def _made(self) -> Sent:
        sent = self.make(self.producer_id, self.epoch, self.sequence)
        self.sequence += len(sent.values)
        self.pending.append(sent)
        return sent

    def _settle(self, link: Link, sent: Sent, answer: Any, well: bool) -> bool:
        """True: acknowledged. Only what follows a failed batch may be out of order."""
        code = self.heard(link, sent, answer)
        if sent not in self.pending:
            return False  # given up meanwhile
        if code == NONE:
            self._check_order(sent)
            self.pending.remove(sent)
            return True
        if code in GONE:
            self.topic = None
        elif code == OUT_OF_ORDER and well:
            if self._reborn:
                self._start_over()
                self.topic = None
            else:
                self.world.witness.accuse("no wrong refusal", f"{sent.values} of {self.name} is out of order")
        elif code is not None and code not in (OUT_OF_ORDER, *RETRIED):
            self.world.witness.accuse("no wrong refusal", f"{sent.values} of {self.name}: error {code}")
        return False

    @property
    def _reborn(self) -> bool:
        """A producer that knows only names cannot see that its topic is another one."""
        return not self.by_id and len(self.world.witness.names[self.topic_name]) > 1

    def _check_order(self, sent: Sent) -> None:
        """Offsets are in the order of sequences. Answers need not be: a batch may be told that it is stored already
        after one before it failed once more."""
        if self._reborn:
            return
        self._acked = sorted([*self._acked, sent], key=lambda one: one.number)[-2 * IN_FLIGHT_MAX :]
        offsets = [one.offset for one in self._acked if one.offset is not None]
        if offsets != sorted(set(offsets)):
            self.world.witness.accuse("order", f"{self.name} got offsets {offsets} for batches in order of sequence")


def _request(sent: Sent, number: int, acks: int) -> dict[str, Any]:
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
