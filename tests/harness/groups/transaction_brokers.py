"""Brokers that coordinate transactions over in-memory stores. Only tests call `expirer.run_once`."""

import asyncio

from tests.harness.groups.fixed_registration import FixedRegistration
from tests.harness.log.brokers import ShakyMetadata, World, read_all

from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.coordination.transactions.coordinator import TransactionCoordinator
from lakestream.coordination.transactions.state_machine import CLASSIC, IMPLICIT
from lakestream.data.log.log import Log
from lakestream.metadata.brokers import Broker, Brokers, RegisteredBroker
from lakestream.metadata.cluster import Cluster
from lakestream.metadata.groups import Groups
from lakestream.metadata.store import Session
from lakestream.metadata.transactions import Identity, Transaction, Transactions, TransactionState
from lakestream.model import PartitionId
from lakestream.records.batch import RecordBatch
from lakestream.testing.batches import make_batch

WAIT_S = 5


class TransactionBroker:
    """One broker of the cluster."""

    def __init__(
        self,
        metadata: ShakyMetadata,
        log: Log,
        view: MetadataCache,
        session: Session,
        registration: FixedRegistration,
        coordinator: TransactionCoordinator,
    ) -> None:
        self.metadata = metadata
        self.log = log
        self.view = view
        self.session = session
        self.registration = registration
        self.coordinator = coordinator


class TransactionCluster:
    def __init__(self, world: World) -> None:
        self.world = world
        self.brokers: list[TransactionBroker] = []
        self.records = Transactions(world.metadata)
        self.groups = Groups(world.metadata)

    async def broker(self) -> TransactionBroker:
        metadata = ShakyMetadata(self.world.server)
        log = await self.world.broker(metadata=metadata)
        view = MetadataCache(self.world.metadata)
        session = await self.world.metadata.session(60_000)
        node_id = len(self.brokers)
        registered = (
            await Brokers(self.world.metadata).register(RegisteredBroker(Broker(node_id, "h", 1), None), session)
        ).broker
        ids = Cluster(self.world.metadata, self.world.ids)
        registration = FixedRegistration(registered)
        coordinator = TransactionCoordinator(self.world.metadata, log, view, registration, ids, self.world.clock)
        broker = TransactionBroker(metadata, log, view, session, registration, coordinator)
        log.set_transaction_check(coordinator.transaction_of)
        self.brokers.append(broker)
        await self.refresh_brokers()
        return broker

    async def refresh_brokers(self) -> None:
        for broker in self.brokers:
            await broker.view.refresh_brokers()

    async def expire(self, broker: TransactionBroker) -> None:
        """Ends the broker's session, so that the other brokers remove it."""
        await broker.session.close()
        broker.registration.registered = False
        await self.refresh_brokers()

    async def close(self) -> None:
        for broker in self.brokers:
            await broker.coordinator.completer.close()
            await broker.view.close()

    def id_of(self, broker: TransactionBroker) -> str:
        """Returns a transactional id that the broker coordinates."""
        return next(name for name in map(str, range(1000)) if broker.coordinator.coordinates(name))

    async def record(self, transactional_id: str) -> Transaction:
        stored = await self.records.load(transactional_id)
        assert stored is not None
        return stored.record

    async def until(self, transactional_id: str, *states: TransactionState) -> Transaction:
        async with asyncio.timeout(WAIT_S):
            while (record := await self.record(transactional_id)).state not in states:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return record

    async def until_stable(self, partition: PartitionId, offset: int) -> None:
        log = self.brokers[-1].log
        async with asyncio.timeout(WAIT_S):
            while (await log.bounds(partition)).stable != offset:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def aborted(self, partition: PartitionId) -> list[tuple[int, int]]:
        log = self.brokers[-1].log
        end = (await log.bounds(partition)).end
        return [(aborted.offset_first, aborted.offset_last) for aborted in log.aborted(partition, 0, end)]

    async def values(self, partition: PartitionId) -> list[str]:
        return [value for _, value in await read_all(self.brokers[-1].log, partition)]


class TransactionalProducer:
    """Transactional producer that can write through any broker."""

    def __init__(
        self, cluster: TransactionCluster, transactional_id: str, *, implicit: bool = False, client: str = ""
    ) -> None:
        self.client = client
        self.cluster = cluster
        self.id = transactional_id
        self.protocol = IMPLICIT if implicit else CLASSIC
        self.identity = Identity(-1, -1)
        self.sequences: dict[PartitionId, int] = {}

    async def init(self, broker: TransactionBroker, *, resumes: bool = False) -> None:
        self._adopt(await broker.coordinator.init(self.id, 60_000, self.identity if resumes else None, self.client))

    def _adopt(self, identity: Identity) -> None:
        if identity != self.identity:
            self.identity = identity
            self.sequences.clear()

    async def add(self, broker: TransactionBroker, *partitions: PartitionId) -> None:
        await broker.coordinator.add_partitions(self.id, self.identity, partitions)

    async def send(self, broker: TransactionBroker, partition: PartitionId, value: str) -> None:
        number = await broker.coordinator.number_for_batches(self.id, self.identity, [partition], self.protocol)
        await broker.log.append(partition, self.batch(partition, value), number)
        self.sequences[partition] = self.sequences.get(partition, 0) + 1

    def batch(self, partition: PartitionId, value: str) -> RecordBatch:
        sequence = self.sequences.get(partition, 0)
        producer_id, epoch = self.identity
        body = make_batch([value.encode()], producer_id=producer_id, epoch=epoch, sequence=sequence, transactional=True)
        return RecordBatch.parse(body)

    async def end(self, broker: TransactionBroker, *, commit: bool = True) -> None:
        self._adopt(await broker.coordinator.end(self.id, self.identity, commit=commit, protocol=self.protocol))
