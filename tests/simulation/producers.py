"""Producers that behave as Kafka clients: they retry, change brokers, and rely on the responses.

Each acknowledgement is compared with the oracle's log immediately. Rejections are checked, too: a valid batch must not
be rejected.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

from tests.simulation.world import Host, World

from lakestream.data.wal.buffer import Appended
from lakestream.errors import Fenced, LakestreamError, Missing, OutOfOrder, Rejected, Unavailable, Uncertain
from lakestream.metadata.claims import NO_TRANSACTION
from lakestream.model import PartitionId
from lakestream.records.batch import RecordBatch, control_batch
from lakestream.testing.batches import make_batch
from lakestream.testing.fault_injection import log_uniform


@dataclass(slots=True)
class Sent:
    """A batch that a producer sends until it is stored."""

    partition: PartitionId
    batch: RecordBatch
    values: tuple[bytes, ...]
    transaction: int = NO_TRANSACTION
    acked_at: int | None = None
    tries: int = 0


class TopicDeleted(Exception):
    """The topic was deleted: the producer ends."""


class Producer:
    def __init__(self, world: World, name: str, partition: PartitionId) -> None:
        self.world = world
        self.name = name
        self.partition = partition
        self.broker = world.any_broker()
        self.count = 0

    async def run(self) -> None:
        try:
            for _ in range(self.world.scenario.batches):
                await self.turn()
                await asyncio.sleep(log_uniform(self.world.rng, 0.01, self.world.scenario.think_s_max))
        except TopicDeleted:
            return

    async def turn(self) -> None:
        raise NotImplementedError

    def values(self, count: int, partition: PartitionId) -> tuple[bytes, ...]:
        self.count += 1
        rng, generator = self.world.rng, self.world.generators.get(partition.topic_id)
        labels = [f"{self.name}/{self.count}/{number}" for number in range(count)]
        if generator is not None:
            return tuple(generator.value(label, rng) for label in labels)
        padding = "." * rng.randint(0, 40)
        return tuple(f"{label}{padding}".encode() for label in labels)

    def batch(self, values: tuple[bytes, ...], partition: PartitionId, **options: Any) -> RecordBatch:
        generator = self.world.generators.get(partition.topic_id)
        extra = generator.batch_options(len(values), self.world.rng) if generator is not None else {}
        return RecordBatch.parse(make_batch(values, **extra, **options))

    async def send(self, broker: Host, sent: Sent, *, may_cancel: bool = True) -> Appended | LakestreamError:
        """Sends the batch once and checks the result."""
        sent.tries += 1
        self.world.tally["sends"] += 1
        try:
            result = await broker.call(
                lambda log: log.append(sent.partition, sent.batch, sent.transaction), may_cancel=may_cancel
            )
        except LakestreamError as error:
            self._check_error(sent, error)
            return error
        self._check_ack(sent, result)
        return result

    async def back_off(self, tries: int) -> None:
        """Waits longer after each failure, as clients do: a broker may be paused for hours."""
        await asyncio.sleep(log_uniform(self.world.rng, 0.1, 30.0) * min(tries, 20))

    def change_broker(self) -> None:
        if self.world.rng.random() < 0.6:
            self.broker = self.world.any_broker()
        else:  # the same broker, or another one if it was replaced
            self.broker = next(
                (host for host in self.world.brokers if host.name == self.broker.name), self.world.any_broker()
            )

    def _check_ack(self, sent: Sent, result: Appended) -> None:
        world, log = self.world, self.world.oracle.log(sent.partition)
        world.tally["acks"] += 1
        world.tally["duplicates avoided"] += result.duplicate
        for offset, value in enumerate(sent.values, result.offset_start):
            true = log.records.get(offset)
            if true is None or true.value != value:
                stored = "nothing" if true is None else repr(true.value)
                world.oracle.report(
                    "acknowledged records are stored",
                    f"{value!r} was acknowledged at {sent.partition}:{offset}, which contains {stored}",
                )
        if sent.acked_at is not None and sent.acked_at != result.offset_start:
            world.oracle.report(
                "a retry returns the same offset", f"{sent.values} got {sent.acked_at} and {result.offset_start}"
            )
        sent.acked_at = result.offset_start

    def _check_error(self, sent: Sent, error: LakestreamError) -> None:
        self.world.tally[f"errors {type(error).__name__}"] += 1
        if isinstance(error, Missing):
            if not self.world.oracle.log(sent.partition).deleted:
                self.world.oracle.report("existing topics are found", f"{sent.partition} exists, but {error}")
            raise TopicDeleted
        if not isinstance(error, (Unavailable, OutOfOrder, Fenced, Rejected)):
            self.world.oracle.report("only documented errors", f"append of {sent.values} raised {error!r}")


class PlainProducer(Producer):
    """Producer without idempotence: sends each batch once, and new batches after a failure."""

    def __init__(self, world: World, name: str, partition: PartitionId) -> None:
        super().__init__(world, name, partition)
        self._acked_up_to = -1

    async def turn(self) -> None:
        batches = []
        for _ in range(self.world.rng.randint(1, 3)):
            values = self.values(self.world.rng.randint(1, 3), self.partition)
            batches.append(Sent(self.partition, self.batch(values, self.partition), values))
        results = await asyncio.gather(*(self.send(self.broker, sent) for sent in batches))
        for sent, result in zip(batches, results, strict=True):
            if isinstance(result, Appended):
                self._check_order(result)
            elif not isinstance(result, Uncertain):
                self.world.oracle.not_stored(sent.values)
            if isinstance(result, Rejected):
                self.world.oracle.report("valid requests are not rejected", f"plain batch of {self.name}: {result!r}")
        if not all(isinstance(result, Appended) for result in results):
            await asyncio.sleep(log_uniform(self.world.rng, 0.1, 10.0))
            self.change_broker()

    def _check_order(self, result: Appended) -> None:
        if result.offset_start <= self._acked_up_to:
            self.world.oracle.report(
                "offsets follow the send order",
                f"{self.name} got offset {result.offset_start} after {self._acked_up_to} in {self.partition}",
            )
        self._acked_up_to = result.offset_end - 1


class IdempotentProducer(Producer):
    """Sends a batch to any broker until it is acknowledged. Sometimes a new epoch of the producer takes over."""

    def __init__(self, world: World, name: str, partition: PartitionId, producer_id: int) -> None:
        super().__init__(world, name, partition)
        self.producer_id = producer_id
        self.epoch = 0
        self.sequence = 0
        self._acked: list[Sent] = []
        self._late_sends: list[asyncio.Task[object]] = []

    async def run(self) -> None:
        await super().run()
        if self._late_sends:
            await asyncio.wait(self._late_sends)

    async def turn(self) -> None:
        rng = self.world.rng
        if rng.random() < 0.15:
            self._next_epoch()
        window = [self._make() for _ in range(rng.randint(1, 3))]
        await self._deliver(window)
        self._acked = [*self._acked, *window][-3:]
        if rng.random() < 0.2:  # the network delivers an old packet again
            self._send_late(rng.choice(self._acked))

    def _make(self) -> Sent:
        values = self.values(self.world.rng.randint(1, 3), self.partition)
        numbered = {"producer_id": self.producer_id, "epoch": self.epoch, "sequence": self.sequence}
        batch = self.batch(values, self.partition, **numbered)
        self.sequence += len(values)
        return Sent(self.partition, batch, values)

    def _next_epoch(self) -> None:
        """Begins a new epoch. The old one is not fenced yet and sends once more."""
        self._send_late(self._make())
        self.epoch += 1
        self.sequence = 0
        self._acked = []

    def _send_late(self, sent: Sent) -> None:
        async def send() -> None:
            try:
                await asyncio.sleep(log_uniform(self.world.rng, 0.01, 60.0))
                await self.send(self.world.any_broker(), sent)
            except TopicDeleted:
                return

        self._late_sends.append(asyncio.get_running_loop().create_task(send()))

    async def _deliver(self, window: list[Sent]) -> None:
        while window:
            # All use one connection, which cannot lose the first batch and deliver the second.
            alone = len(window) == 1
            results = await asyncio.gather(*(self.send(self.broker, sent, may_cancel=alone) for sent in window))
            self._check_rejections(window, results)
            window = [sent for sent in window if sent.acked_at is None]
            if window:
                await self.back_off(window[0].tries)
                self.change_broker()

    def _check_rejections(self, window: list[Sent], results: list[Appended | LakestreamError]) -> None:
        """Checks that only a batch after a failed one is out of order, and that the newest epoch is not fenced."""
        failed = False
        for sent, result in zip(window, results, strict=True):
            wrong = isinstance(result, Rejected | Fenced) and not (failed and isinstance(result, OutOfOrder))
            if wrong:
                self.world.oracle.report("valid requests are not rejected", f"{sent.values}: {result!r}")
            failed = failed or not isinstance(result, Appended)


class TransactionalProducer(Producer):
    """Writes transactions over all partitions.

    A commit follows when all batches are acknowledged. An abort may be sent while batches are in flight; the next
    transaction then has a new epoch. A coordinator that was paused sends its markers again."""

    def __init__(self, world: World, name: str, producer_id: int) -> None:
        super().__init__(world, name, world.any_partition())
        self.producer_id = producer_id
        self.transaction = 0
        self.epoch = 0
        self.committed: dict[int, bool] = world.outcomes.setdefault(producer_id, {})
        self._sequences: dict[PartitionId, int] = {}
        self._late_sends: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        await super().run()
        if self._late_sends:
            await asyncio.wait(self._late_sends)

    async def turn(self) -> None:
        rng = self.world.rng
        self.transaction += 1
        commits = self.committed[self.transaction] = rng.random() < 0.6
        sent = [self._make(self.world.any_partition()) for _ in range(rng.randint(1, 3))]
        unknown = False
        for batch in sent:
            if not unknown:  # no batch is sent after one whose result is unknown
                unknown = not await self._acked(batch, None if commits else 2)
        epoch = self.epoch + (unknown and rng.random() < 0.5)  # a coordinator may fence with the marker itself
        for partition in dict.fromkeys(batch.partition for batch in sent):
            marker = self._marker(partition, epoch)
            await self._acked(marker, None)
            if rng.random() < 0.3:
                self._late_sends.append(asyncio.get_running_loop().create_task(self._send_late(marker)))
        if unknown:
            self.epoch += 1
            self._sequences.clear()

    def _make(self, partition: PartitionId) -> Sent:
        values = self.values(self.world.rng.randint(1, 2), partition)
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + len(values)
        numbered = {"producer_id": self.producer_id, "epoch": self.epoch, "sequence": sequence}
        return Sent(partition, self.batch(values, partition, **numbered, transactional=True), values, self.transaction)

    def _marker(self, partition: PartitionId, epoch: int) -> Sent:
        batch = control_batch(self.producer_id, epoch, self.committed[self.transaction], 0, 0)
        return Sent(partition, RecordBatch.parse(batch), (), self.transaction)

    async def _send_late(self, marker: Sent) -> None:
        await asyncio.sleep(log_uniform(self.world.rng, 0.01, self.world.scenario.think_s_max))
        again = Sent(marker.partition, marker.batch, (), marker.transaction)
        with contextlib.suppress(TopicDeleted):
            await self.send(self.world.any_broker(), again)

    async def _acked(self, sent: Sent, tries: int | None) -> bool:
        """Sends the batch until it is acknowledged, at most `tries` times. A deleted topic counts as acknowledged."""
        while tries is None or sent.tries < tries:
            try:
                result = await self.send(self.broker, sent)
            except TopicDeleted:
                return True
            if isinstance(result, Appended):
                return True
            if not isinstance(result, Unavailable):
                self.world.oracle.report("valid requests are not rejected", f"{sent.values} of {self.name}: {result!r}")
                return True
            await self.back_off(sent.tries)
            self.change_broker()
        return False
