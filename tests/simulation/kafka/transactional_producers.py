"""Transactional producers that behave as clients: both protocols, retries with equal sequences, a new epoch after fatal
errors. Some pause for longer than their transaction timeout, some continue after another producer has taken over.

The ledger records the outcome of each transaction and compares transactions with the logs.
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from tests.simulation.kafka import frames
from tests.simulation.kafka.coordinator_checker import Attempt, Ledger
from tests.simulation.kafka.coordinator_client import CoordinatorClient, Kind, TopicPartition, by_topic
from tests.simulation.kafka.link import LOST
from tests.simulation.kafka.members import committed_values
from tests.simulation.kafka.producers import FIRST_MS
from tests.simulation.kafka.response_checker import GONE, NONE, RETRIED, ResponseChecker
from tests.simulation.world import World

from lakestream.testing.batches import make_batch
from lakestream.testing.fault_injection import log_uniform

CONCURRENT = 51
FATAL = (45, 47, 48, 49, 90, 120)
"""Out of order, invalid epoch, invalid state, unknown mapping, fenced, abortable."""
DELETED_TOPIC_ERRORS = (*GONE, 45, 55, 120)
"""Also the errors of a recreated topic: out of order, partition not in the transaction, operation not attempted."""
TIMEOUTS_S = (5, 60, 600)
CLOCK_DIFFERENCE_S = 45 + 150
"""How far two brokers may differ about the age of a transaction: clock skew, and clocks that stop during a pause."""

PROTOCOL_V1 = {frames.PRODUCE: 11, frames.END_TXN: 3, frames.TXN_OFFSET_COMMIT: 3, frames.INIT_PRODUCER_ID: 5}
PROTOCOL_V2 = {frames.PRODUCE: 13, frames.END_TXN: 5, frames.TXN_OFFSET_COMMIT: 5, frames.INIT_PRODUCER_ID: 5}


@dataclass(slots=True)
class Identity:
    """Producer id and epoch of an incarnation, with its sequences."""

    producer_id: int = -1
    epoch: int = -1
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    began_s: float = 0.0
    """Start of its transaction."""


class TransactionFailed(Exception):
    """The transaction cannot be completed: the producer must call `init` again."""


class Transactions:
    """The transactions of one transactional id, used by a client of any kind."""

    def __init__(self, client: CoordinatorClient, ledger: Ledger, transactional_id: str) -> None:
        self.client = client
        self.world = client.world
        self.ledger = ledger
        self.id = transactional_id
        rng = self.world.rng
        self.implicit = rng.random() < 0.5
        client.versions.update(PROTOCOL_V2 if self.implicit else PROTOCOL_V1)
        self.timeout_s = rng.choice(TIMEOUTS_S)
        self.identity: Identity | None = None
        self.zombies = 0
        """Incarnations that may still be active: they can fence each other."""
        self.count = 0

    # ── transaction steps ────────────────────────────────────────────────────────────────────────────────────────────

    async def init(self) -> Identity:
        before, continues = self.identity, self.world.rng.random() < 0.5
        current = before if continues and before is not None else Identity()
        while True:
            response = await self._request(
                frames.INIT_PRODUCER_ID,
                {
                    "transaction_timeout": timedelta(seconds=self.timeout_s),
                    "producer_id": current.producer_id,
                    "producer_epoch": current.epoch,
                    "enable_2pc": False,
                    "keep_prepared_txn": False,
                },
            )
            if response is LOST:
                continue
            if response.error_code == NONE:
                break
            if not await self._backed_off(response.error_code):
                if current.producer_id < 0:
                    self._report_rejection("init", response.error_code)
                current = Identity()  # another producer has taken over: fence it
        self.identity = Identity(response.producer_id, response.producer_epoch)
        self.world.tally["transactional producers"] += 1
        return self.identity

    def begin(self) -> Attempt:
        assert self.identity is not None
        self.count += 1
        self.identity.began_s = self.world.loop.now
        attempt = Attempt(f"{self.client.name}/{self.id}/{self.count}")
        self.ledger.attempts.append(attempt)
        return attempt

    async def add(self, identity: Identity, tps: Collection[TopicPartition]) -> None:
        """Adds partitions to the transaction, as clients of the older protocol do before they write."""
        if self.implicit:
            return
        topics: dict[str, list[int]] = {}
        for tp in tps:
            topics.setdefault(tp.topic, []).append(tp.number)
        values = {
            "v3_and_below_transactional_id": self.id,
            "v3_and_below_producer_id": identity.producer_id,
            "v3_and_below_producer_epoch": identity.epoch,
            "v3_and_below_topics": [{"name": name, "partitions": tuple(numbers)} for name, numbers in topics.items()],
        }

        def codes(response: Any) -> int:
            errors = [
                part.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for part in topic.results_by_partition
            ]
            return int(max(errors))

        await self._request_until_done("add partitions", identity, frames.ADD_PARTITIONS_TO_TXN, values, codes, tps)

    async def send(self, identity: Identity, attempt: Attempt, tp: TopicPartition, values: tuple[bytes, ...]) -> None:
        sequence = identity.sequences.get(tp, 0)
        identity.sequences[tp] = sequence + len(values)
        attempt.sent.update(dict.fromkeys(values, tp))
        batch = make_batch(
            values,
            producer_id=identity.producer_id,
            epoch=identity.epoch,
            sequence=sequence,
            transactional=True,
            timestamp_ms=FIRST_MS + int(self.world.loop.now * 1000),
        )
        for _ in range(8):
            response = await self.client.link().request(frames.PRODUCE, _produce(self.id, self.world, tp, batch))
            if response is LOST:
                await self.client.back_off()
                continue
            code = response.responses[0].partition_responses[0].error_code
            if code == NONE:
                self.client.succeeded()
                attempt.acked.update(values)
                return
            await self._retry_or_fail("produce", identity, code, [tp])
        raise TransactionFailed("no response to a batch")

    async def put_offsets(
        self,
        identity: Identity,
        attempt: Attempt,
        group: str,
        offsets: Mapping[TopicPartition, int],
        member: Mapping[str, Any],
    ) -> None:
        """Commits the group's offsets as a part of the transaction."""
        fields = {"transactional_id": self.id, "producer_id": identity.producer_id, "producer_epoch": identity.epoch}
        if not self.implicit:
            await self._request_until_done(
                "add offsets",
                identity,
                frames.ADD_OFFSETS_TO_TXN,
                {**fields, "group_id": group},
                lambda response: int(response.error_code),
            )
        values = {**fields, **member, "group_id": group, "topics": by_topic(committed_values(offsets))}
        newest = self.ledger.generation(group)
        for _ in range(8):
            response = await self.client.request_coordinator(Kind.GROUP, group, frames.TXN_OFFSET_COMMIT, values)
            if response is LOST:
                continue
            code = max(part.error_code for topic in response.topics for part in topic.partitions)
            if code == NONE:
                self.ledger.committed(group, member["generation_id"], newest, {})
                attempt.group, attempt.offsets = group, dict(offsets)
                return
            if not await self.client.backed_off(Kind.GROUP, group, code):
                self.world.tally[f"transaction offsets error {int(code)}"] += 1
                if code != CONCURRENT:
                    raise TransactionFailed(f"offsets were rejected with {code}")
                await self.client.back_off()
        raise TransactionFailed("no response to offsets")

    async def end(self, identity: Identity, attempt: Attempt, *, commit: bool) -> None:
        fields = {"transactional_id": self.id, "producer_id": identity.producer_id, "producer_epoch": identity.epoch}
        response = await self._request_until_done(
            "end", identity, frames.END_TXN, {**fields, "committed": commit}, lambda response: int(response.error_code)
        )
        self.ledger.ended(attempt, -1, commit)
        if self.implicit and (response.producer_id, response.producer_epoch) != (identity.producer_id, identity.epoch):
            identity.producer_id, identity.epoch, identity.sequences = response.producer_id, response.producer_epoch, {}
        elif self.implicit:
            self.world.oracle.report("each transaction has its epoch", f"{self.id} continues with {identity}")

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _request_until_done(
        self,
        what: str,
        identity: Identity,
        key: int,
        values: Mapping[str, Any],
        code_of: Any,
        tps: Collection[TopicPartition] = (),
    ) -> Any:
        for _ in range(20):
            response = await self._request(key, values)
            if response is LOST:
                continue
            code = code_of(response)
            if code == NONE:
                self.client.succeeded()
                return response
            await self._retry_or_fail(what, identity, code, tps)
        raise TransactionFailed(f"no response to {what}")

    async def _request(self, key: int, values: Mapping[str, Any]) -> Any:
        return await self.client.request_coordinator(
            Kind.TRANSACTION, self.id, key, {"transactional_id": self.id, **values}
        )

    async def _retry_or_fail(self, what: str, identity: Identity, code: int, tps: Collection[TopicPartition]) -> None:
        """Backs off after a retriable error, and raises TransactionFailed after any other."""
        if await self._backed_off(code):
            return
        self.world.tally[f"transaction error {int(code)}"] += 1
        may_be_deleted = code in DELETED_TOPIC_ERRORS and any(tp.topic in self.ledger.recreated_topics for tp in tps)
        if not may_be_deleted and (code not in FATAL or self._is_valid(identity)):
            self._report_rejection(what, code)
        raise TransactionFailed(f"{what} was rejected with {code}")

    async def _backed_off(self, code: int) -> bool:
        if await self.client.backed_off(Kind.TRANSACTION, self.id, code):
            return True
        if code == CONCURRENT or code in RETRIED:
            await self.client.back_off()
            return True
        return False

    def _is_valid(self, identity: Identity) -> bool:
        """Returns whether requests must not be rejected: no other producer has the id, and no timeout has passed."""
        open_s = self.world.loop.now - identity.began_s
        return not self.zombies and identity is self.identity and open_s + CLOCK_DIFFERENCE_S < self.timeout_s

    def _report_rejection(self, what: str, code: int) -> None:
        self.world.oracle.report(
            "valid requests are not rejected", f"{self.client.name}, {self.id}: {what} was rejected with {code!r}"
        )


class TransactionalProducer(CoordinatorClient):
    """Writes transactions over many partitions. A zombie with the same transactional id may run concurrently."""

    def __init__(
        self,
        world: World,
        checker: ResponseChecker,
        ledger: Ledger,
        name: str,
        transactional_id: str,
        tps: list[TopicPartition],
    ) -> None:
        super().__init__(world, checker, name)
        self.transactions = Transactions(self, ledger, transactional_id)
        self.tps = tps
        self._zombie_tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        transactions, rng = self.transactions, self.world.rng
        for _ in range(self.world.scenario.batches):
            if transactions.identity is None or rng.random() < 0.1:
                await transactions.init()
            try:
                await self._transaction()
            except TransactionFailed:
                transactions.identity = transactions.identity if rng.random() < 0.5 else None
                await transactions.init()
            await self.think(self.world.scenario.think_s_max / 2)
        if self._zombie_tasks:
            await asyncio.wait(self._zombie_tasks)
        await transactions.init()  # aborts an open transaction
        self.disconnect()

    async def _transaction(self) -> None:
        transactions, rng = self.transactions, self.world.rng
        identity, attempt = transactions.identity, transactions.begin()
        assert identity is not None
        tps = rng.sample(self.tps, rng.randint(1, min(3, len(self.tps))))
        await transactions.add(identity, tps)
        for number, tp in enumerate(tps):
            values = tuple(f"{attempt.name}/{number}/{one}".encode() for one in range(rng.randint(1, 2)))
            await transactions.send(identity, attempt, tp, values)
            if rng.random() < 0.1:
                await asyncio.sleep(
                    log_uniform(rng, 0.5, 2.5 * transactions.timeout_s if transactions.timeout_s <= 60 else 5.0)
                )
        if rng.random() < 0.1:
            self._leave_zombie(identity, attempt, tps)  # a new producer takes over
            return
        await transactions.end(identity, attempt, commit=rng.random() < 0.7)

    def _leave_zombie(self, identity: Identity, attempt: Attempt, tps: list[TopicPartition]) -> None:
        """Continues the transaction later with the old epoch, when another producer may have taken over."""
        transactions = self.transactions
        transactions.identity = None
        transactions.zombies += 1
        self.world.tally["transactional zombies"] += 1

        async def resume() -> None:
            await asyncio.sleep(log_uniform(self.world.rng, 0.05, 30.0))
            try:
                if self.world.rng.random() < 0.5:
                    await transactions.send(identity, attempt, tps[0], (f"{attempt.name}/late".encode(),))
                await transactions.end(identity, attempt, commit=True)
            except TransactionFailed:
                return

        self._zombie_tasks.append(asyncio.get_running_loop().create_task(resume()))


def _produce(transactional_id: str, world: World, tp: TopicPartition, batch: bytes) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout": timedelta(seconds=30),
        "topic_data": [
            {
                "name": tp.topic,
                "topic_id": UUID(hex=list(world.oracle.names[tp.topic])[-1]),  # the topic may be deleted now
                "partition_data": [{"index": tp.number, "records": batch}],
            }
        ],
    }
