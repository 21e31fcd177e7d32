"""Groups and transactions in a run: who takes part, and what is checked when all is over."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from tests.simulation.kafka.committed import Session
from tests.simulation.kafka.coordinated import Coordinated, Place
from tests.simulation.kafka.followers import Follower
from tests.simulation.kafka.judge import Judge
from tests.simulation.kafka.ledger import Ledger
from tests.simulation.kafka.members import Member
from tests.simulation.kafka.programs import Program
from tests.simulation.kafka.transactors import Transactor
from tests.simulation.kafka.turns import TakingTurns
from tests.simulation.world import World

WATCHERS, MAKERS, FOLLOWERS, TURNS = "watchers", "makers", "followers", "turns"
POLLS_MAX = 1_000
BEATS_MAX = 120


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
        followers = [
            Follower(world, judge, ledger, f"f{i}", FOLLOWERS, self._topics, f"follower-{i}" if i % 2 else None)
            for i in range(mood.followers)
        ]
        programs = [Program(world, judge, ledger, f"w{i}", MAKERS, source, sinks) for i in range(mood.programs)]
        writers = [Transactor(world, judge, ledger, f"t{i}", f"id-{i}", places) for i in range(mood.transactors)]
        turns = TakingTurns(world, judge, ledger, "turns", TURNS, Place(source, 0))
        return [*(one.run() for one in (*members, *followers, *programs)), *(one.run() for one in writers), turns.run()]

    @property
    def _topics(self) -> tuple[str, ...]:
        return tuple(self.world.witness.names)

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
        if self.world.mood.followers:
            await self._check_followed()

    async def _check_followed(self) -> None:
        """Two members have all that there is; when one of them goes, the other."""
        pair = [Follower(self.world, self.judge, self.ledger, f"last-{i}", FOLLOWERS, self._topics) for i in range(2)]
        for members in (pair, pair[:1]):
            for _ in range(BEATS_MAX):
                for member in members:
                    await member.beat()
                if self._is_followed(members):
                    break
                await asyncio.sleep(0.5)
            else:
                places = [(member.name, member.places) for member in members]
                self.world.witness.accuse("every partition has an owner", f"{places}, there are {self._places()}")
            await members[-1].leave_group()

    def _is_followed(self, members: list[Follower]) -> bool:
        wanted = [place._replace(topic_id=self.ledger.partition(place).topic_id) for place in self._places()]
        return sorted(wanted) == sorted(place for member in members for place in member.places)

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
            session.positions.setdefault(place, before)  # who knew another one of that name may deny it once
            if session.positions[place] == before and not self._left(place, before):
                break
        else:
            self.world.witness.accuse("lost write", f"{place} cannot be read beyond {session.positions[place]}")
        client.leave()

    def _left(self, place: Place, offset: int) -> bool:
        partition = self.ledger.partition(place)
        return any(self.judge.is_served(partition, at) for at in range(offset, self.ledger.log(place).end))
