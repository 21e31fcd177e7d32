"""A simulated broker for Kafka clients: the production parts, composed as in `broker.py`, without a socket."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tests.simulation.world import CLOSE_S_MAX, Host, World

from lakestream.catalog.operations.create_topic_table import topic_created, topic_deleted
from lakestream.clock import SeededIds
from lakestream.coordination.broker_registration import BrokerRegistration
from lakestream.coordination.groups.coordinator import GroupCoordinator, GroupSettings
from lakestream.coordination.groups.messages import GroupLimits
from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.coordination.retention import Retention
from lakestream.coordination.transactions.coordinator import TransactionCoordinator
from lakestream.errors import LakestreamError
from lakestream.metadata.brokers import Broker
from lakestream.metadata.cluster import Cluster, ConfigStore
from lakestream.metadata.topics import Topics
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Dispatcher
from lakestream.protocol.kafka.network.limits import ServerSettings
from lakestream.protocol.kafka.network.server import KafkaServer
from lakestream.protocol.kafka.services import BrokerSettings, HandlerContext
from lakestream.server.gc_task import GcTask
from lakestream.testing.simulation import Died

if TYPE_CHECKING:
    from tests.simulation.kafka.wire import ServerConnection, Wire

T = TypeVar("T")

GROUPS = GroupSettings(limits=GroupLimits(session_ms=10_000))
"""Members of the consumer protocol time out sooner than by default, about as soon as classic members."""


class KafkaHost(Host):
    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.world = world
        self.wires: dict[Wire, None] = {}
        self.connected: dict[ServerConnection, None] = {}
        self.server = KafkaServer(ServerSettings())
        self.view = MetadataCache(self.metadata)
        zone = world.rng.choice(("", "a", "b"))
        self.advertised = Broker(0, name, 9092, zone)
        self.registration = BrokerRegistration(self.metadata)
        self.retention: Retention | None = None
        self.gc_task: GcTask | None = None
        self.groups: GroupCoordinator | None = None
        self.transactions: TransactionCoordinator | None = None
        self.dispatcher: Dispatcher
        self.resumed_s = 0.0
        """Time at which its last pause ended."""
        self.machine.on_death.append(self._disconnect_all)
        self.machine.on_resume.append(self._note_resumed)

    def _partition_deleted(self, partition: PartitionId) -> None:
        self.view.evict_topic_of(partition)

    @property
    def serves(self) -> bool:
        return self.started and self.machine.alive

    async def start(self) -> None:
        """Starts all parts. Retries each one, as an operator restarts a broker that cannot start."""
        await self._retry(self.log.start)
        await self._retry(self.view.start)
        await self._retry(lambda: self.registration.start(self.advertised))
        services = await self._retry(self._services)
        me = self.registration
        self.retention = Retention(self.log, self.view, lambda: me.broker.node_id, self.clock, 300_000)
        self.retention.start()
        self.gc_task = GcTask(self.gc, self.view, lambda: me.broker.node_id, 600_000)
        self.gc_task.start()
        services.groups.start()
        self.groups = services.groups
        services.transactions.start()
        self.transactions = services.transactions
        self.dispatcher = Dispatcher(services)
        self.started = True

    async def _retry(self, step: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await step()
            except LakestreamError:
                await asyncio.sleep(1.0)
                self.clock.synchronize()

    async def _services(self) -> HandlerContext:
        await self.view.refresh_brokers()
        ids = SeededIds(self.world.rng)
        cluster = Cluster(self.metadata, ids)
        transactions = TransactionCoordinator(
            self.metadata, self.log, self.view, self.registration, cluster, self.clock
        )
        self.log.set_transaction_check(transactions.transaction_of)
        return HandlerContext(
            log=self.log,
            topics=Topics(self.metadata),
            metadata_cache=self.view,
            groups=GroupCoordinator(self.metadata, self.view, self.registration, self.clock, ids, GROUPS),
            transactions=transactions,
            cluster=cluster,
            cluster_id=await cluster.id(),
            registration=self.registration,
            clock=self.clock,
            ids=ids,
            configs=ConfigStore(self.metadata),
            initial_settings=BrokerSettings(default_partitions=self.world.scenario.partitions),
            on_topic_created=partial(topic_created, self.catalog),
            drop_table=partial(topic_deleted, self.catalog, drop=True),
        )

    async def restart(self) -> None:
        """Shuts the broker down cleanly: rejects new requests, completes pending ones, then ends its machine."""
        if not self.serves:
            return
        self.started = False
        try:
            await self.machine.call(self._stop())
        except Died:
            return
        self.world.tally["brokers stopped"] += 1
        self.machine.kill()

    async def _stop(self) -> None:
        began, stalled = self.world.loop.now, self.machine.stalled_s
        assert self.retention is not None
        assert self.gc_task is not None
        await self.gc_task.close()
        await self.retention.close()
        assert self.groups is not None
        await self.groups.close()
        await self.registration.close()
        await self._finish_requests()
        assert self.transactions is not None
        await self.transactions.close()
        await self.view.close()
        await self.log.close()
        took = self.world.loop.now - began - (self.machine.stalled_s - stalled)
        if took > CLOSE_S_MAX:
            self.world.oracle.report("requests end in time", f"{self.name} took {took:.0f} s to stop")

    async def _finish_requests(self) -> None:
        """Waits for pending requests for a limited time, then closes the connections, as `KafkaServer.stop` does."""
        tasks = [task for connection in self.connected for task in connection.tasks]
        if tasks:
            await asyncio.wait(tasks, timeout=self.server.settings.stop_ms_max / 1000)
        for connection in list(self.connected):
            connection.close()

    def _note_resumed(self) -> None:
        self.resumed_s = self.world.loop.now

    def _disconnect_all(self) -> None:
        for wire in list(self.wires):
            wire.disconnected()
