"""Brokers that coordinate transactions, over stores in memory. A test calls `patrol.round`: nobody else does."""

import asyncio

from tests.unit.data.brokers import ShakyMetadata, World, read_all

from lakestream.batch import RecordBatch
from lakestream.coordination.cluster import ClusterView
from lakestream.coordination.transactions.coordinator import TransactionCoordinator
from lakestream.coordination.transactions.machine import CLASSIC, IMPLICIT
from lakestream.data.log.log import Log
from lakestream.metadata.brokers import Broker, Brokers, Registered
from lakestream.metadata.cluster import Cluster
from lakestream.metadata.groups import Groups
from lakestream.metadata.store import Session
from lakestream.metadata.transactions import Identity, State, Transaction, Transactions
from lakestream.model import PartitionId
from lakestream.testing.batches import make_batch

WAIT_S = 5


class Member:
    """One broker."""

    def __init__(
        self,
        metadata: ShakyMetadata,
        log: Log,
        view: ClusterView,
        session: Session,
        coordinator: TransactionCoordinator,
    ) -> None:
        self.metadata = metadata
        self.log = log
        self.view = view
        self.session = session
        self.coordinator = coordinator
        self.seen = True


class Place:
    def __init__(self, world: World) -> None:
        self.world = world
        self.members: list[Member] = []
        self.records = Transactions(world.metadata)
        self.groups = Groups(world.metadata)

    async def member(self) -> Member:
        metadata = ShakyMetadata(self.world.server)
        log = await self.world.broker(metadata=metadata)
        view = ClusterView(self.world.metadata)
        session = await self.world.metadata.session(60_000)
        node_id = len(self.members)
        me = (await Brokers(self.world.metadata).register(Registered(Broker(node_id, "h", 1), None), session)).broker
        cluster = Cluster(self.world.metadata, self.world.ids)
        coordinator = TransactionCoordinator(
            self.world.metadata, log, view, lambda: me, lambda: member.seen, cluster, self.world.clock
        )
        member = Member(metadata, log, view, session, coordinator)
        log.when_transactional(coordinator.transaction_of)
        self.members.append(member)
        await self.look()
        return member

    async def look(self) -> None:
        for member in self.members:
            await member.view.look_at_brokers()

    async def leave(self, member: Member) -> None:
        """It dies, as far as the others can tell."""
        await member.session.close()
        member.seen = False
        await self.look()

    async def close(self) -> None:
        for member in self.members:
            await member.coordinator.endings.close()
            await member.view.close()

    def id_of(self, member: Member) -> str:
        """One that it coordinates."""
        return next(name for name in map(str, range(1000)) if member.coordinator.is_mine(name))

    async def record(self, transactional_id: str) -> Transaction:
        known = await self.records.load(transactional_id)
        assert known is not None
        return known.record

    async def until(self, transactional_id: str, *states: State) -> Transaction:
        async with asyncio.timeout(WAIT_S):
            while (record := await self.record(transactional_id)).state not in states:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return record

    async def until_stable(self, partition: PartitionId, offset: int) -> None:
        log = self.members[-1].log
        async with asyncio.timeout(WAIT_S):
            while (await log.bounds(partition)).stable != offset:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def aborted(self, partition: PartitionId) -> list[tuple[int, int]]:
        log = self.members[-1].log
        end = (await log.bounds(partition)).end
        return [(one.offset_first, one.offset_last) for one in log.aborted(partition, 0, end)]

    async def values(self, partition: PartitionId) -> list[str]:
        return [value for _, value in await read_all(self.members[-1].log, partition)]


class Writer:
    """A transactional producer that may write through any broker."""

    def __init__(self, place: Place, transactional_id: str, *, implicit: bool = False) -> None:
        self.place = place
        self.id = transactional_id
        self.protocol = IMPLICIT if implicit else CLASSIC
        self.who = Identity(-1, -1)
        self.sequences: dict[PartitionId, int] = {}

    async def init(self, member: Member, *, resumes: bool = False) -> None:
        self._is(await member.coordinator.init(self.id, 60_000, self.who if resumes else None))

    def _is(self, who: Identity) -> None:
        if who != self.who:
            self.who = who
            self.sequences.clear()

    async def add(self, member: Member, *partitions: PartitionId) -> None:
        await member.coordinator.add_partitions(self.id, self.who, partitions)

    async def send(self, member: Member, partition: PartitionId, value: str) -> None:
        number = await member.coordinator.admit(self.id, self.who, [partition], self.protocol)
        await member.log.append(partition, self.batch(partition, value), number)
        self.sequences[partition] = self.sequences.get(partition, 0) + 1

    def batch(self, partition: PartitionId, value: str) -> RecordBatch:
        sequence = self.sequences.get(partition, 0)
        producer_id, epoch = self.who
        body = make_batch([value.encode()], producer_id=producer_id, epoch=epoch, sequence=sequence, transactional=True)
        return RecordBatch.parse(body)

    async def end(self, member: Member, *, commit: bool = True) -> None:
        self._is(await member.coordinator.end(self.id, self.who, commit=commit, protocol=self.protocol))
