"""Transactional producers, as clients behave: both protocols, retries with the same sequences, a new incarnation after
whatever cannot be repaired. Some sleep through their time-out, some go on although another has taken over.

What becomes of every transaction is noted in the ledger, which holds it against the logs.
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from tests.simulation.kafka import frames
from tests.simulation.kafka.coordinated import Coordinated, Kind, Place, by_topic
from tests.simulation.kafka.judge import GONE, NONE, RETRIED, Judge
from tests.simulation.kafka.ledger import Attempt, Ledger
from tests.simulation.kafka.link import LOST
from tests.simulation.kafka.members import committed_values
from tests.simulation.kafka.producers import FIRST_MS
from tests.simulation.world import World

from lakestream.testing.batches import make_batch
from lakestream.testing.faults import spread

CONCURRENT = 51
FATAL = (45, 47, 48, 49, 90, 120)
"""Out of order, invalid epoch, invalid state, unknown mapping, fenced, to be aborted."""
OF_A_DELETED_TOPIC = (*GONE, 45, 55, 120)
"""Also what the next one of that name makes of it: out of order, no part of the transaction; and not tried, where
another one of the request is gone."""
TIMEOUTS_S = (5, 60, 600)
CLOCKS_APART_S = 45 + 150
"""By as much two brokers may disagree on how long a transaction has been open: skew, and a clock that stood still."""

OLD = {frames.PRODUCE: 11, frames.END_TXN: 3, frames.TXN_OFFSET_COMMIT: 3, frames.INIT_PRODUCER_ID: 5}
NEW = {frames.PRODUCE: 13, frames.END_TXN: 5, frames.TXN_OFFSET_COMMIT: 5, frames.INIT_PRODUCER_ID: 5}


@dataclass(slots=True)
class Identity:
    """What an incarnation signs with."""

    producer_id: int = -1
    epoch: int = -1
    sequences: dict[Place, int] = field(default_factory=dict)
    began_s: float = 0.0
    """When its transaction began."""


class GaveUp(Exception):
    """Nothing more can be done with this transaction: its producer has to begin anew."""


class Transactions:
    """The transactions of one transactional id, for a client that is whatever else it is."""

    def __init__(self, client: Coordinated, ledger: Ledger, transactional_id: str) -> None:
        self.client = client
        self.world = client.world
        self.ledger = ledger
        self.id = transactional_id
        luck = self.world.luck
        self.implicit = luck.random() < 0.5
        client.versions.update(NEW if self.implicit else OLD)
        self.timeout_s = luck.choice(TIMEOUTS_S)
        self.who: Identity | None = None
        self.rivals = 0
        """Incarnations that may still be at work: whoever is told that he is fenced may be right."""
        self.count = 0

    # ── its life ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def init(self) -> Identity:
        before, goes_on = self.who, self.world.luck.random() < 0.5
        known = before if goes_on and before is not None else Identity()
        while True:
            answer = await self._ask(
                frames.INIT_PRODUCER_ID,
                {
                    "transaction_timeout": timedelta(seconds=self.timeout_s),
                    "producer_id": known.producer_id,
                    "producer_epoch": known.epoch,
                    "enable_2pc": False,
                    "keep_prepared_txn": False,
                },
            )
            if answer is LOST:
                continue
            if answer.error_code == NONE:
                break
            if not await self._is_passing(answer.error_code):
                if known.producer_id < 0:
                    self._surprised("init", answer.error_code)
                known = Identity()  # another has taken over: it takes over in turn
        self.who = Identity(answer.producer_id, answer.producer_epoch)
        self.world.tally["transactional producers"] += 1
        return self.who

    def begin(self) -> Attempt:
        assert self.who is not None
        self.count += 1
        self.who.began_s = self.world.loop.now
        attempt = Attempt(f"{self.client.name}/{self.id}/{self.count}")
        self.ledger.attempts.append(attempt)
        return attempt

    async def add(self, who: Identity, places: Collection[Place]) -> None:
        """Before a client of the older protocol writes."""
        if self.implicit:
            return
        topics: dict[str, list[int]] = {}
        for place in places:
            topics.setdefault(place.topic, []).append(place.number)
        values = {
            "v3_and_below_transactional_id": self.id,
            "v3_and_below_producer_id": who.producer_id,
            "v3_and_below_producer_epoch": who.epoch,
            "v3_and_below_topics": [{"name": name, "partitions": tuple(some)} for name, some in topics.items()],
        }

        def codes(answer: Any) -> int:
            found = [
                part.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for part in topic.results_by_partition
            ]
            return int(max(found))

        await self._until_done("add partitions", who, frames.ADD_PARTITIONS_TO_TXN, values, codes, places)

    async def send(self, who: Identity, attempt: Attempt, place: Place, values: tuple[bytes, ...]) -> None:
        sequence = who.sequences.get(place, 0)
        who.sequences[place] = sequence + len(values)
        attempt.sent.update(dict.fromkeys(values, place))
        batch = make_batch(
            values,
            producer_id=who.producer_id,
            epoch=who.epoch,
            sequence=sequence,
            transactional=True,
            timestamp_ms=FIRST_MS + int(self.world.loop.now * 1000),
        )
        for _ in range(8):
            answer = await self.client.link().ask(frames.PRODUCE, _produce(self.id, self.world, place, batch))
            if answer is LOST:
                await self.client.back_off()
                continue
            code = answer.responses[0].partition_responses[0].error_code
            if code == NONE:
                self.client.works()
                attempt.acked.update(values)
                return
            await self._retried("produce", who, code, [place])
        raise GaveUp("no answer to a batch")

    async def put_offsets(
        self, who: Identity, attempt: Attempt, group: str, offsets: Mapping[Place, int], member: Mapping[str, Any]
    ) -> None:
        """How far its group has read, as a part of the transaction."""
        identity = {"transactional_id": self.id, "producer_id": who.producer_id, "producer_epoch": who.epoch}
        if not self.implicit:
            await self._until_done(
                "add offsets",
                who,
                frames.ADD_OFFSETS_TO_TXN,
                {**identity, "group_id": group},
                lambda answer: int(answer.error_code),
            )
        values = {**identity, **member, "group_id": group, "topics": by_topic(committed_values(offsets))}
        newest = self.ledger.generation(group)
        for _ in range(8):
            answer = await self.client.ask_coordinator(Kind.GROUP, group, frames.TXN_OFFSET_COMMIT, values)
            if answer is LOST:
                continue
            code = max(part.error_code for topic in answer.topics for part in topic.partitions)
            if code == NONE:
                self.ledger.committed(group, member["generation_id"], newest, {})
                attempt.group, attempt.offsets = group, dict(offsets)
                return
            if not await self.client.is_passing(Kind.GROUP, group, code):
                self.world.tally[f"transaction offsets error {int(code)}"] += 1
                if code != CONCURRENT:
                    raise GaveUp(f"offsets were refused with {code}")
                await self.client.back_off()
        raise GaveUp("no answer to offsets")

    async def end(self, who: Identity, attempt: Attempt, *, commit: bool) -> None:
        identity = {"transactional_id": self.id, "producer_id": who.producer_id, "producer_epoch": who.epoch}
        answer = await self._until_done(
            "end", who, frames.END_TXN, {**identity, "committed": commit}, lambda answer: int(answer.error_code)
        )
        self.ledger.ended(attempt, -1, commit)
        if self.implicit and (answer.producer_id, answer.producer_epoch) != (who.producer_id, who.epoch):
            who.producer_id, who.epoch, who.sequences = answer.producer_id, answer.producer_epoch, {}
        elif self.implicit:
            self.world.witness.accuse("each transaction has its epoch", f"{self.id} goes on with {who}")

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _until_done(
        self,
        what: str,
        who: Identity,
        key: int,
        values: Mapping[str, Any],
        code_of: Any,
        places: Collection[Place] = (),
    ) -> Any:
        for _ in range(20):
            answer = await self._ask(key, values)
            if answer is LOST:
                continue
            code = code_of(answer)
            if code == NONE:
                self.client.works()
                return answer
            await self._retried(what, who, code, places)
        raise GaveUp(f"no answer to {what}")

    async def _ask(self, key: int, values: Mapping[str, Any]) -> Any:
        return await self.client.ask_coordinator(
            Kind.TRANSACTION, self.id, key, {"transactional_id": self.id, **values}
        )

    async def _retried(self, what: str, who: Identity, code: int, places: Collection[Place]) -> None:
        """GaveUp: it does not help to try again."""
        if await self._is_passing(code):
            return
        self.world.tally[f"transaction error {int(code)}"] += 1
        may_be_gone = code in OF_A_DELETED_TOPIC and any(place.topic in self.ledger.passing for place in places)
        if not may_be_gone and (code not in FATAL or self._is_entitled(who)):
            self._surprised(what, code)
        raise GaveUp(f"{what} was refused with {code}")

    async def _is_passing(self, code: int) -> bool:
        if await self.client.is_passing(Kind.TRANSACTION, self.id, code):
            return True
        if code == CONCURRENT or code in RETRIED:
            await self.client.back_off()
            return True
        return False

    def _is_entitled(self, who: Identity) -> bool:
        """There is no reason to refuse it anything: it is the only one of its id, and in time."""
        open_s = self.world.loop.now - who.began_s
        return not self.rivals and who is self.who and open_s + CLOCKS_APART_S < self.timeout_s

    def _surprised(self, what: str, code: int) -> None:
        self.world.witness.accuse(
            "no wrong refusal", f"{self.client.name}, {self.id}: {what} was refused with {code!r}"
        )


class Transactor(Coordinated):
    """Writes transactions over many partitions. One may have several, under the same id: then they fence each other."""

    def __init__(
        self, world: World, judge: Judge, ledger: Ledger, name: str, transactional_id: str, places: list[Place]
    ) -> None:
        super().__init__(world, judge, name)
        self.transactions = Transactions(self, ledger, transactional_id)
        self.places = places
        self._strays: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        it, luck = self.transactions, self.world.luck
        for _ in range(self.world.mood.batches):
            if it.who is None or luck.random() < 0.1:
                await it.init()
            try:
                await self._transaction()
            except GaveUp:
                it.who = it.who if luck.random() < 0.5 else None
                await it.init()
            await self.think(self.world.mood.think_s_max / 2)
        if self._strays:
            await asyncio.wait(self._strays)
        await it.init()  # so that nothing stays open
        self.leave()

    async def _transaction(self) -> None:
        it, luck = self.transactions, self.world.luck
        who, attempt = it.who, it.begin()
        assert who is not None
        places = luck.sample(self.places, luck.randint(1, min(3, len(self.places))))
        await it.add(who, places)
        for number, place in enumerate(places):
            values = tuple(f"{attempt.name}/{number}/{one}".encode() for one in range(luck.randint(1, 2)))
            await it.send(who, attempt, place, values)
            if luck.random() < 0.1:
                await asyncio.sleep(spread(luck, 0.5, 2.5 * it.timeout_s if it.timeout_s <= 60 else 5.0))
        if luck.random() < 0.1:
            self._stray(who, attempt, places)  # the client seems to be gone, and another one comes
            return
        await it.end(who, attempt, commit=luck.random() < 0.7)

    def _stray(self, who: Identity, attempt: Attempt, places: list[Place]) -> None:
        """It wakes up some time, and goes on as if it were the only one."""
        it = self.transactions
        it.who = None
        it.rivals += 1
        self.world.tally["transactional zombies"] += 1

        async def wake_up() -> None:
            await asyncio.sleep(spread(self.world.luck, 0.05, 30.0))
            try:
                if self.world.luck.random() < 0.5:
                    await it.send(who, attempt, places[0], (f"{attempt.name}/late".encode(),))
                await it.end(who, attempt, commit=True)
            except GaveUp:
                return

        self._strays.append(asyncio.get_running_loop().create_task(wake_up()))


def _produce(transactional_id: str, world: World, place: Place, batch: bytes) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout": timedelta(seconds=30),
        "topic_data": [
            {
                "name": place.topic,
                "topic_id": UUID(hex=list(world.witness.names[place.topic])[-1]),  # it may be gone by now
                "partition_data": [{"index": place.number, "records": batch}],
            }
        ],
    }
