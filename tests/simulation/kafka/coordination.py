"""Groups and transactions of a run: starts their clients, and checks them at the end."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from tests.simulation.kafka.alternating_producers import AlternatingProducers
from tests.simulation.kafka.committed_reader import Session
from tests.simulation.kafka.consumer_group_members import ConsumerGroupMember
from tests.simulation.kafka.coordinator_checker import Ledger
from tests.simulation.kafka.coordinator_client import CoordinatorClient, TopicPartition
from tests.simulation.kafka.members import Member
from tests.simulation.kafka.programs import Program
from tests.simulation.kafka.response_checker import ResponseChecker
from tests.simulation.kafka.transactional_producers import TransactionalProducer
from tests.simulation.world import World

CLASSIC_GROUP, PROGRAM_GROUP = "watchers", "makers"
CONSUMER_GROUP, ALTERNATING_GROUP = "followers", "turns"
POLLS_MAX = 1_000
HEARTBEATS_MAX = 120


class Coordination:
    def __init__(self, world: World, checker: ResponseChecker) -> None:
        self.world = world
        self.checker = checker
        self.ledger = Ledger(world, checker)

    def clients(self, source: str, sink: str) -> list[Coroutine[Any, Any, None]]:
        world, checker, ledger, scenario = self.world, self.checker, self.ledger, self.world.scenario
        tps = self._tps()
        sinks = [tp for tp in tps if tp.topic == sink]
        ledger.programs[PROGRAM_GROUP] = (source, sink)
        members = [
            Member(world, checker, ledger, f"m{i}", CLASSIC_GROUP, source, f"static-{i}" if i % 2 else None)
            for i in range(scenario.members)
        ]
        consumer_members = [
            ConsumerGroupMember(
                world, checker, ledger, f"f{i}", CONSUMER_GROUP, self._topics, f"follower-{i}" if i % 2 else None
            )
            for i in range(scenario.consumer_members)
        ]
        programs = [
            Program(world, checker, ledger, f"w{i}", PROGRAM_GROUP, source, sinks) for i in range(scenario.programs)
        ]
        writers = [
            TransactionalProducer(world, checker, ledger, f"t{i}", f"id-{i}", tps)
            for i in range(scenario.transactional_ids)
        ]
        alternating = AlternatingProducers(
            world, checker, ledger, "turns", ALTERNATING_GROUP, TopicPartition(source, 0)
        )
        return [
            *(one.run() for one in (*members, *consumer_members, *programs)),
            *(one.run() for one in writers),
            alternating.run(),
        ]

    @property
    def _topics(self) -> tuple[str, ...]:
        return tuple(self.world.oracle.names)

    def _tps(self) -> list[TopicPartition]:
        return [
            TopicPartition(name, number)
            for name, named in self.world.oracle.topics.items()
            for number in range(named.topic.partition_count)
        ]

    async def check(self) -> None:
        self.ledger.check()
        for tp in self._tps():
            await self._check_readable(tp)
        if self.world.scenario.consumer_members:
            await self._check_all_assigned()

    async def _check_all_assigned(self) -> None:
        """Checks that two members own all partitions, and one member after the other has left."""
        pair = [
            ConsumerGroupMember(self.world, self.checker, self.ledger, f"last-{i}", CONSUMER_GROUP, self._topics)
            for i in range(2)
        ]
        for members in (pair, pair[:1]):
            for _ in range(HEARTBEATS_MAX):
                for member in members:
                    await member.heartbeat()
                if self._all_assigned(members):
                    break
                await asyncio.sleep(0.5)
            else:
                tps = [(member.name, member.tps) for member in members]
                self.world.oracle.report("every partition has an owner", f"{tps}, there are {self._tps()}")
            await members[-1].leave_group()

    def _all_assigned(self, members: list[ConsumerGroupMember]) -> bool:
        expected = [tp._replace(topic_id=self.ledger.partition(tp).topic_id) for tp in self._tps()]
        return sorted(expected) == sorted(tp for member in members for tp in member.tps)

    async def _check_readable(self, tp: TopicPartition) -> None:
        """Checks that a reader of committed records reaches the end of the log."""
        client = CoordinatorClient(self.world, self.checker, "last")
        session = Session(client, self.ledger, {tp: 0})
        log = self.ledger.log(tp)
        for _ in range(POLLS_MAX):
            if session.positions[tp] >= log.end:
                break
            before = session.positions[tp]
            await session.poll()
            session.positions.setdefault(
                tp, before
            )  # a broker with a deleted topic of that name in its cache may deny it once
            if session.positions[tp] == before and not self._has_readable(tp, before):
                break
        else:
            self.world.oracle.report("lost write", f"{tp} cannot be read beyond {session.positions[tp]}")
        client.disconnect()

    def _has_readable(self, tp: TopicPartition, offset: int) -> bool:
        partition = self.ledger.partition(tp)
        return any(self.checker.is_readable(partition, at) for at in range(offset, self.ledger.log(tp).end))
