"""Groups and transactions in a run: who takes part, and what is checked when all is over."""

from collections.abc import Coroutine
from typing import Any

from tests.simulation.kafka.committed import Session
from tests.simulation.kafka.coordinated import Coordinated, Place
from tests.simulation.kafka.judge import Judge
from tests.simulation.kafka.ledger import Ledger
from tests.simulation.kafka.members import Member
from tests.simulation.kafka.programs import Program
from tests.simulation.kafka.transactors import Transactor
from tests.simulation.world import World

WATCHERS, MAKERS = "watchers", "makers"
POLLS_MAX = 1_000


class Coordination:
    def __init__(self, world: World, judge: Judge) -> None:
        self.world = world
        self.judge = judge
        self.ledger = Ledger(world, judge)

    def clients(self, source: str, sink: str) -> list[Coroutine[Any, Any, None]]:
        world, judge, ledger, mood = self.world, self.judge, self.ledger, self.world.mood
        places = self._places()
        sinks = [place for place in places if place.topic == sink]
        ledger.programs[MAKERS] = (source, sink)
        members = [
            Member(world, judge, ledger, f"m{i}", WATCHERS, source, f"static-{i}" if i % 2 else None)
            for i in range(mood.members)
        ]
        programs = [Program(world, judge, ledger, f"w{i}", MAKERS, source, sinks) for i in range(mood.programs)]
        writers = [Transactor(world, judge, ledger, f"t{i}", f"id-{i}", places) for i in range(mood.transactors)]
        return [*(one.run() for one in (*members, *programs)), *(one.run() for one in writers)]

    def _places(self) -> list[Place]:
        return [
            Place(name, number)
            for name, named in self.world.witness.topics.items()
            for number in range(named.topic.partition_count)
        ]

    async def check(self) -> None:
        self.ledger.check()
        for place in self._places():
            await self._check_readable(place)

    async def _check_readable(self, place: Place) -> None:
        """One who reads all that was committed comes to the end."""
        client = Coordinated(self.world, self.judge, "last")
        session = Session(client, self.ledger, {place: 0})
        log = self.ledger.log(place)
        for _ in range(POLLS_MAX):
            if session.positions[place] >= log.end:
                break
            before = session.positions[place]
            await session.poll()
            if session.positions[place] == before and not self._left(place, before):
                break
        else:
            self.world.witness.accuse("lost write", f"{place} cannot be read beyond {session.positions[place]}")
        client.leave()

    def _left(self, place: Place, offset: int) -> bool:
        partition = self.ledger.partition(place)
        return any(self.judge.is_served(partition, at) for at in range(offset, self.ledger.log(place).end))
