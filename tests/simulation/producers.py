"""Producers, as clients behave: they retry, they change brokers, and they believe what they are told.

An acknowledgement is held against the witness's log at once. A refusal is checked too: whoever did nothing wrong must
not hear that he did.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

from tests.simulation.world import Host, World

from lakestream.batch import RecordBatch, control_batch
from lakestream.data.wal.buffer import Appended
from lakestream.errors import Fenced, LakestreamError, Missing, OutOfOrder, Rejected, Unavailable, Uncertain
from lakestream.metadata.claims import NO_TRANSACTION
from lakestream.model import PartitionId
from lakestream.testing.batches import make_batch
from lakestream.testing.faults import spread


@dataclass(slots=True)
class Sent:
    """A batch that a producer wants in the log."""

    partition: PartitionId
    batch: RecordBatch
    values: tuple[bytes, ...]
    transaction: int = NO_TRANSACTION
    acked_at: int | None = None
    tries: int = 0


class Gone(Exception):
    """The topic was deleted: the producer has nothing more to do."""


class Producer:
    def __init__(self, world: World, name: str, partition: PartitionId) -> None:
        self.world = world
        self.name = name
        self.partition = partition
        self.broker = world.any_broker()
        self.count = 0

    async def run(self) -> None:
        try:
            for _ in range(self.world.mood.batches):
                await self.turn()
                await asyncio.sleep(spread(self.world.luck, 0.01, self.world.mood.think_s_max))
        except Gone:
            return

    async def turn(self) -> None:
        raise NotImplementedError

    def values(self, count: int, partition: PartitionId) -> tuple[bytes, ...]:
        self.count += 1
        luck, dialect = self.world.luck, self.world.dialects.get(partition.topic_id)
        labels = [f"{self.name}/{self.count}/{number}" for number in range(count)]
        if dialect is not None:
            return tuple(dialect.value(label, luck) for label in labels)
        padding = "." * luck.randint(0, 40)
        return tuple(f"{label}{padding}".encode() for label in labels)

    def batch(self, values: tuple[bytes, ...], partition: PartitionId, **options: Any) -> RecordBatch:
        dialect = self.world.dialects.get(partition.topic_id)
        around = dialect.around(len(values), self.world.luck) if dialect is not None else {}
        return RecordBatch.parse(make_batch(values, **around, **options))

    async def send(self, broker: Host, sent: Sent, *, may_cancel: bool = True) -> Appended | LakestreamError:
        """One try; the answer is checked."""
        sent.tries += 1
        self.world.tally["sends"] += 1
        try:
            answer = await broker.ask(
                lambda log: log.append(sent.partition, sent.batch, sent.transaction), may_cancel=may_cancel
            )
        except LakestreamError as error:
            self._check_error(sent, error)
            return error
        self._check_ack(sent, answer)
        return answer

    async def back_off(self, tries: int) -> None:
        """Longer after each failure, as clients do: a broker may sleep for hours."""
        await asyncio.sleep(spread(self.world.luck, 0.1, 30.0) * min(tries, 20))

    def change_broker(self) -> None:
        if self.world.luck.random() < 0.6:
            self.broker = self.world.any_broker()
        else:  # the same place: maybe another machine by now
            self.broker = next(
                (host for host in self.world.brokers if host.name == self.broker.name), self.world.any_broker()
            )

    def _check_ack(self, sent: Sent, answer: Appended) -> None:
        world, log = self.world, self.world.witness.log(sent.partition)
        world.tally["acks"] += 1
        world.tally["duplicates avoided"] += answer.duplicate
        for offset, value in enumerate(sent.values, answer.offset_start):
            true = log.records.get(offset)
            if true is None or true.value != value:
                found = "nothing" if true is None else repr(true.value)
                world.witness.accuse(
                    "what is acknowledged is stored",
                    f"{value!r} was acknowledged at {sent.partition}:{offset}, where {found} is",
                )
        if sent.acked_at is not None and sent.acked_at != answer.offset_start:
            world.witness.accuse("one answer", f"{sent.values} got {sent.acked_at} and {answer.offset_start}")
        sent.acked_at = answer.offset_start

    def _check_error(self, sent: Sent, error: LakestreamError) -> None:
        self.world.tally[f"errors {type(error).__name__}"] += 1
        if isinstance(error, Missing):
            if not self.world.witness.log(sent.partition).gone:
                self.world.witness.accuse("gone is gone", f"{sent.partition} is there, but {error}")
            raise Gone
        if not isinstance(error, (Unavailable, OutOfOrder, Fenced, Rejected)):
            self.world.witness.accuse("known errors", f"append of {sent.values} raised {error!r}")


class PlainProducer(Producer):
    """Sends each batch once: what fails is sent again as a new one."""

    def __init__(self, world: World, name: str, partition: PartitionId) -> None:
        super().__init__(world, name, partition)
        self._acked_up_to = -1

    async def turn(self) -> None:
        volley = []
        for _ in range(self.world.luck.randint(1, 3)):
            values = self.values(self.world.luck.randint(1, 3), self.partition)
            volley.append(Sent(self.partition, self.batch(values, self.partition), values))
        answers = await asyncio.gather(*(self.send(self.broker, sent) for sent in volley))
        for sent, answer in zip(volley, answers, strict=True):
            if isinstance(answer, Appended):
                self._check_order(answer)
            elif not isinstance(answer, Uncertain):
                self.world.witness.not_stored(sent.values)
            if isinstance(answer, Rejected):
                self.world.witness.accuse("no wrong refusal", f"plain batch of {self.name}: {answer!r}")
        if not all(isinstance(answer, Appended) for answer in answers):
            await asyncio.sleep(spread(self.world.luck, 0.1, 10.0))
            self.change_broker()

    def _check_order(self, answer: Appended) -> None:
        if answer.offset_start <= self._acked_up_to:
            self.world.witness.accuse(
                "order", f"{self.name} got offset {answer.offset_start} after {self._acked_up_to} in {self.partition}"
            )
        self._acked_up_to = answer.offset_end - 1


class IdempotentProducer(Producer):
    """Sends a batch until it is acknowledged, wherever that works. Now and then a new incarnation of it takes over."""

    def __init__(self, world: World, name: str, partition: PartitionId, producer_id: int) -> None:
        super().__init__(world, name, partition)
        self.producer_id = producer_id
        self.epoch = 0
        self.sequence = 0
        self._acked: list[Sent] = []
        self._strays: list[asyncio.Task[object]] = []

    async def run(self) -> None:
        await super().run()
        if self._strays:
            await asyncio.wait(self._strays)

    async def turn(self) -> None:
        luck = self.world.luck
        if luck.random() < 0.15:
            self._next_incarnation()
        window = [self._make() for _ in range(luck.randint(1, 3))]
        await self._deliver(window)
        self._acked = [*self._acked, *window][-3:]
        if luck.random() < 0.2:  # the network delivers an old packet again
            self._stray(luck.choice(self._acked))

    def _make(self) -> Sent:
        values = self.values(self.world.luck.randint(1, 3), self.partition)
        numbered = {"producer_id": self.producer_id, "epoch": self.epoch, "sequence": self.sequence}
        batch = self.batch(values, self.partition, **numbered)
        self.sequence += len(values)
        return Sent(self.partition, batch, values)

    def _next_incarnation(self) -> None:
        """The old one does not know yet, and sends once more."""
        self._stray(self._make())
        self.epoch += 1
        self.sequence = 0
        self._acked = []

    def _stray(self, sent: Sent) -> None:
        async def send() -> None:
            try:
                await asyncio.sleep(spread(self.world.luck, 0.01, 60.0))
                await self.send(self.world.any_broker(), sent)
            except Gone:
                return

        self._strays.append(asyncio.get_running_loop().create_task(send()))

    async def _deliver(self, window: list[Sent]) -> None:
        while window:
            # One connection: it cannot lose the first batch and deliver the second.
            alone = len(window) == 1
            answers = await asyncio.gather(*(self.send(self.broker, sent, may_cancel=alone) for sent in window))
            self._check_refusals(window, answers)
            window = [sent for sent in window if sent.acked_at is None]
            if window:
                await self.back_off(window[0].tries)
                self.change_broker()

    def _check_refusals(self, window: list[Sent], answers: list[Appended | LakestreamError]) -> None:
        """Only what follows a failed batch may be out of order, and the newest incarnation is never fenced."""
        failed = False
        for sent, answer in zip(window, answers, strict=True):
            wrong = isinstance(answer, Rejected | Fenced) and not (failed and isinstance(answer, OutOfOrder))
            if wrong:
                self.world.witness.accuse("no wrong refusal", f"{sent.values}: {answer!r}")
            failed = failed or not isinstance(answer, Appended)


class TransactionalProducer(Producer):
    """Writes transactions over all partitions. A commit comes when all its batches are known to be stored; an abort may
    come while some are still under way, and the next transaction then has a new epoch. A coordinator that wakes up late
    sends its markers once more."""

    def __init__(self, world: World, name: str, producer_id: int) -> None:
        super().__init__(world, name, world.any_partition())
        self.producer_id = producer_id
        self.transaction = 0
        self.epoch = 0
        self.committed: dict[int, bool] = world.outcomes.setdefault(producer_id, {})
        self._sequences: dict[PartitionId, int] = {}
        self._strays: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        await super().run()
        if self._strays:
            await asyncio.wait(self._strays)

    async def turn(self) -> None:
        luck = self.world.luck
        self.transaction += 1
        commits = self.committed[self.transaction] = luck.random() < 0.6
        sent = [self._make(self.world.any_partition()) for _ in range(luck.randint(1, 3))]
        doubt = False
        for batch in sent:
            if not doubt:  # what follows a batch in doubt is not sent any more
                doubt = not await self._acked(batch, None if commits else 2)
        epoch = self.epoch + (doubt and luck.random() < 0.5)  # a coordinator may fence with the marker itself
        for partition in dict.fromkeys(batch.partition for batch in sent):
            marker = self._marker(partition, epoch)
            await self._acked(marker, None)
            if luck.random() < 0.3:
                self._strays.append(asyncio.get_running_loop().create_task(self._stray(marker)))
        if doubt:
            self.epoch += 1
            self._sequences.clear()

    def _make(self, partition: PartitionId) -> Sent:
        values = self.values(self.world.luck.randint(1, 2), partition)
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + len(values)
        numbered = {"producer_id": self.producer_id, "epoch": self.epoch, "sequence": sequence}
        return Sent(partition, self.batch(values, partition, **numbered, transactional=True), values, self.transaction)

    def _marker(self, partition: PartitionId, epoch: int) -> Sent:
        batch = control_batch(self.producer_id, epoch, self.committed[self.transaction], 0, 0)
        return Sent(partition, RecordBatch.parse(batch), (), self.transaction)

    async def _stray(self, marker: Sent) -> None:
        await asyncio.sleep(spread(self.world.luck, 0.01, self.world.mood.think_s_max))
        again = Sent(marker.partition, marker.batch, (), marker.transaction)
        with contextlib.suppress(Gone):
            await self.send(self.world.any_broker(), again)

    async def _acked(self, sent: Sent, tries: int | None) -> bool:
        """Send it until it is acknowledged, or so often. A deleted topic needs no answer."""
        while tries is None or sent.tries < tries:
            try:
                answer = await self.send(self.broker, sent)
            except Gone:
                return True
            if isinstance(answer, Appended):
                return True
            if not isinstance(answer, Unavailable):
                self.world.witness.accuse("no wrong refusal", f"{sent.values} of {self.name}: {answer!r}")
                return True
            await self.back_off(sent.tries)
            self.change_broker()
        return False
