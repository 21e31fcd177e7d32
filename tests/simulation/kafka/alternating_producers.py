"""Two transactional ids that alternate in one group: each adds its offsets before the other's transaction has ended.

They are not members of the group, so no generation fences them. Of two offsets, the one that was added later must stay,
in whatever order the transactions end.
"""

from tests.simulation.kafka import frames
from tests.simulation.kafka.coordinator_checker import Attempt, Ledger
from tests.simulation.kafka.coordinator_client import CoordinatorClient, Kind, TopicPartition
from tests.simulation.kafka.link import LOST
from tests.simulation.kafka.response_checker import NONE, ResponseChecker
from tests.simulation.kafka.transactional_producers import Identity, TransactionFailed, Transactions
from tests.simulation.world import World

NO_MEMBER = {"member_id": "", "generation_id": -1, "group_instance_id": None}
IDS = 2


class AlternatingProducers(CoordinatorClient):
    def __init__(
        self, world: World, checker: ResponseChecker, ledger: Ledger, name: str, group: str, tp: TopicPartition
    ) -> None:
        super().__init__(world, checker, name)
        self.ledger = ledger
        self.group = group
        self.tp = tp
        self.ids = [Transactions(self, ledger, f"{group}-{i}") for i in range(IDS)]
        for transactions in self.ids:
            transactions.implicit = self.ids[-1].implicit  # a client uses one protocol
            transactions.timeout_s = 600

    async def run(self) -> None:
        pending: tuple[Transactions, Identity, Attempt] | None = None
        for turn in range(1, 2 * self.world.scenario.batches + 1):
            transactions = self.ids[turn % IDS]
            added = await self._add_offsets(transactions, turn)
            if pending is not None:
                await self._end(*pending)
            pending = None if added is None else (transactions, *added)
            if self.world.rng.random() < 0.3:
                await self._check_committed()
            await self.think(self.world.scenario.think_s_max / 4)
        for transactions in self.ids:
            await transactions.init()  # aborts an open transaction
        await self._check_committed()
        self.disconnect()

    async def _add_offsets(self, transactions: Transactions, offset: int) -> tuple[Identity, Attempt] | None:
        identity, attempt = transactions.identity or await transactions.init(), transactions.begin()
        try:
            await transactions.put_offsets(identity, attempt, self.group, {self.tp: offset}, NO_MEMBER)
        except TransactionFailed:
            await transactions.init()
            return None
        return identity, attempt

    async def _end(self, transactions: Transactions, identity: Identity, attempt: Attempt) -> None:
        try:
            await transactions.end(identity, attempt, commit=self.world.rng.random() < 0.8)
        except TransactionFailed:
            await transactions.init()

    async def _check_committed(self) -> None:
        """Fetches the group's committed offset and checks it."""
        before = self.ledger.committed_before(self.group, self.tp)
        request = {
            "group_id": self.group,
            "topics": [{"name": self.tp.topic, "partition_indexes": (self.tp.number,)}],
            "member_id": None,
            "member_epoch": -1,
        }
        response = await self.request_coordinator(
            Kind.GROUP, self.group, frames.OFFSET_FETCH, {**request, "groups": [request], "require_stable": True}
        )
        if response is LOST:
            return
        (group,) = getattr(response, "groups", [response])
        for part in (part for topic in group.topics for part in topic.partitions):
            if group.error_code == NONE and part.error_code == NONE:
                self.ledger.offset_fetched(self.group, self.tp, part.committed_offset, before)
