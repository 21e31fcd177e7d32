"""Programs that read, transform and write exactly once: group members that commit their offsets in the transaction of
their output."""

from tests.simulation.kafka.committed_reader import Session
from tests.simulation.kafka.coordinator_checker import Ledger, source_of
from tests.simulation.kafka.coordinator_client import TopicPartition
from tests.simulation.kafka.members import Member
from tests.simulation.kafka.response_checker import ResponseChecker
from tests.simulation.kafka.transactional_producers import TransactionFailed, Transactions
from tests.simulation.world import World

from lakestream.testing.fault_injection import log_uniform


class Program(Member):
    """Program with its own transactional id, which its replacement after a crash uses again."""

    def __init__(
        self,
        world: World,
        checker: ResponseChecker,
        ledger: Ledger,
        name: str,
        group: str,
        topic: str,
        sinks: list[TopicPartition],
    ) -> None:
        super().__init__(world, checker, ledger, name, group, topic)
        self.transactions = Transactions(self, ledger, f"{group}-{name}")
        self.sinks = sinks

    async def _run_actions(self) -> None:
        await super()._run_actions()
        await self.transactions.init()  # aborts an open transaction

    def _leave_zombie(self, session: Session | None) -> None:
        """Leaves no zombie: a program commits offsets only in transactions."""

    def _crash(self) -> None:
        super()._crash()
        self.transactions.identity = None

    async def _work(self) -> None:
        transactions, session = self.transactions, self.session
        if session is None:
            return
        records = await session.poll(bytes_max=self.world.rng.choice((1, 300)))
        if not records:
            return
        if transactions.identity is None or self.world.rng.random() < 0.05:
            await transactions.init()
        identity, attempt = transactions.identity, transactions.begin()
        assert identity is not None
        generation = {"member_id": self.member_id, "generation_id": self.generation, "group_instance_id": None}
        try:
            sink = self.world.rng.choice(self.sinks)
            await transactions.add(identity, [sink])
            values = tuple(
                f"{self.group}<{source_of(record.tp, record.offset)}>{self.name}/{transactions.count}".encode()
                for record in records
            )
            await transactions.send(identity, attempt, sink, values)
            if self.world.rng.random() < 0.15:
                await self.think(log_uniform(self.world.rng, 0.1, 20.0))
            await transactions.put_offsets(identity, attempt, self.group, session.positions, generation)
            await transactions.end(identity, attempt, commit=self.world.rng.random() < 0.85)
        except TransactionFailed:
            await transactions.init()  # aborts an open transaction, or completes a decided one
        if not attempt.outcome:
            self.drop_assignment()  # restarts from the committed offsets
