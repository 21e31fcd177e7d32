"""A simulated broker that Kafka clients can reach: the real parts, put together as in `broker.py`, without a socket."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tests.simulation.world import CLOSE_S_MAX, Host, World

from lakestream.broker import Sweeping
from lakestream.catalog.topic_tables import topic_deleted, topic_made
from lakestream.clock import SeededIds
from lakestream.coordination.cluster import ClusterView
from lakestream.coordination.groups.coordinator import Groups, GroupSettings
from lakestream.coordination.groups.values import Rules
from lakestream.coordination.registration import Registration
from lakestream.coordination.retention import Retention
from lakestream.coordination.transactions.coordinator import TransactionCoordinator
from lakestream.errors import LakestreamError
from lakestream.metadata.brokers import Broker
from lakestream.metadata.claims import Claims
from lakestream.metadata.cluster import Cluster
from lakestream.metadata.topics import Topics
from lakestream.protocol.kafka.dispatch import Dispatcher
from lakestream.protocol.kafka.server import KafkaServer, ServerSettings
from lakestream.protocol.kafka.services import BrokerSettings, Services
from lakestream.testing.simulation import Died

if TYPE_CHECKING:
    from tests.simulation.kafka.wire import BrokersEnd, Wire

T = TypeVar("T")

GROUPS = GroupSettings(rules=Rules(session_ms=10_000))
"""Members of the new protocol are missed sooner than by default, about as soon as the others."""


class KafkaHost(Host):
    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.world = world
        self.wires: dict[Wire, None] = {}
        self.connected: dict[BrokersEnd, None] = {}
        self.server = KafkaServer(ServerSettings())
        self.view = ClusterView(self.metadata)
        self.log.when_gone(self.view.forget_log)
        zone = world.luck.choice(("", "a", "b"))
        self.registration = Registration(self.metadata, Broker(0, name, 9092, zone))
        self.retention: Retention | None = None
        self.sweeping: Sweeping | None = None
        self.groups: Groups | None = None
        self.transactions: TransactionCoordinator | None = None
        self.dispatcher: Dispatcher
        self.resumed_s = 0.0
        """When it last went on after a pause."""
        self.machine.on_death.append(self._break_off)
        self.machine.on_resume.append(self._note_resumed)

    @property
    def serves(self) -> bool:
        return self.started and self.machine.alive

    async def start(self) -> None:
        """Until it works, as one that is started again whenever it cannot start."""
        await self._until_it_works(self.log.start)
        await self._until_it_works(self.view.start)
        await self._until_it_works(self.registration.start)
        services = await self._until_it_works(self._services)
        me = self.registration
        self.retention = Retention(self.log, self.view, lambda: me.broker.node_id, self.clock, 300_000)
        self.retention.start()
        self.sweeping = Sweeping(self.sweeper, self.view, lambda: me.broker.node_id, 600_000)
        self.sweeping.start()
        services.groups.start()
        self.groups = services.groups
        services.transactions.start()
        self.transactions = services.transactions
        self.dispatcher = Dispatcher(services)
        self.started = True

    async def _until_it_works(self, step: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await step()
            except LakestreamError:
                await asyncio.sleep(1.0)
                self.clock.set_right()

    def _broker(self) -> Broker:
        return self.registration.broker

    async def _services(self) -> Services:
        await self.view.look_at_brokers()
        ids = SeededIds(self.world.luck)
        cluster = Cluster(self.metadata, ids)
        transactions = TransactionCoordinator(
            self.metadata, self.log, self.view, self._broker, lambda: self.registration.holds, cluster, self.clock
        )
        self.log.when_transactional(transactions.transaction_of)
        return Services(
            log=self.log,
            topics=Topics(self.metadata),
            claims=Claims(self.metadata),
            view=self.view,
            groups=Groups(
                self.metadata, self.view, self._broker, lambda: self.registration.holds, self.clock, ids, GROUPS
            ),
            transactions=transactions,
            cluster=cluster,
            cluster_id=await cluster.id(),
            who=self._broker,
            clock=self.clock,
            ids=ids,
            settings=BrokerSettings(default_partitions=self.world.mood.partitions),
            topic_made=partial(topic_made, self.catalog),
            drop_table=partial(topic_deleted, self.catalog, drop=True),
        )

    async def restart(self) -> None:
        """Stop in good order: take nothing more, answer what was taken, go."""
        if not self.serves:
            return
        self.started = False
        try:
            await self.machine.call(self._stopped())
        except Died:
            return
        self.world.tally["brokers stopped"] += 1
        self.machine.kill()

    async def _stopped(self) -> None:
        began, stalled = self.world.loop.now, self.machine.stalled_s
        assert self.retention is not None
        assert self.sweeping is not None
        await self.sweeping.close()
        await self.retention.close()
        assert self.groups is not None
        await self.groups.close()
        await self.registration.close()
        await self._answer_all()
        assert self.transactions is not None
        await self.transactions.close()
        await self.view.close()
        await self.log.close()
        took = self.world.loop.now - began - (self.machine.stalled_s - stalled)
        if took > CLOSE_S_MAX:
            self.world.witness.accuse("every wait ends", f"{self.name} took {took:.0f} s to stop")

    async def _answer_all(self) -> None:
        """As `KafkaServer.stop` does: a while for what was taken, then the end."""
        tasks = [task for end in self.connected for task in end.tasks]
        if tasks:
            await asyncio.wait(tasks, timeout=self.server.settings.stop_ms_max / 1000)
        for end in list(self.connected):
            end.close()

    def _note_resumed(self) -> None:
        self.resumed_s = self.world.loop.now

    def _break_off(self) -> None:
        for wire in list(self.wires):
            wire.broken_off()
