"""Programs that read, transform and write, exactly once: members of a group that commit their offsets as a part of the
transaction in which their output is."""

from tests.simulation.kafka.committed import Session
from tests.simulation.kafka.coordinated import Place
from tests.simulation.kafka.judge import Judge
from tests.simulation.kafka.ledger import Ledger, made_of
from tests.simulation.kafka.members import Member
from tests.simulation.kafka.transactors import GaveUp, Transactions
from tests.simulation.world import World

from lakestream.testing.faults import spread


class Program(Member):
    """Each has a transactional id of its own, which the next one in its place uses again."""

    def __init__(
        self, world: World, judge: Judge, ledger: Ledger, name: str, group: str, topic: str, sinks: list[Place]
    ) -> None:
        super().__init__(world, judge, ledger, name, group, topic)
        self.transactions = Transactions(self, ledger, f"{group}-{name}")
        self.sinks = sinks

    async def _live(self) -> None:
        await super()._live()
        await self.transactions.init()  # so that nothing stays open

    def _sleep_on(self, session: Session | None) -> None:
        """Who has transactions commits in no other way."""

    def _crash(self) -> None:
        super()._crash()
        self.transactions.who = None

    async def _work(self) -> None:
        it, session = self.transactions, self.session
        if session is None:
            return
        found = await session.poll(bytes_max=self.world.luck.choice((1, 300)))
        if not found:
            return
        if it.who is None or self.world.luck.random() < 0.05:
            await it.init()
        who, attempt = it.who, it.begin()
        assert who is not None
        generation = {"member_id": self.member_id, "generation_id": self.generation, "group_instance_id": None}
        try:
            sink = self.world.luck.choice(self.sinks)
            await it.add(who, [sink])
            values = tuple(
                f"{self.group}<{made_of(one.place, one.offset)}>{self.name}/{it.count}".encode() for one in found
            )
            await it.send(who, attempt, sink, values)
            if self.world.luck.random() < 0.15:
                await self.think(spread(self.world.luck, 0.1, 20.0))
            await it.put_offsets(who, attempt, self.group, session.positions, generation)
            await it.end(who, attempt, commit=self.world.luck.random() < 0.85)
        except GaveUp:
            await it.init()  # what is open is aborted with it, or ends as it was decided
        if not attempt.told:
            self.lose()  # it starts again from what was committed
