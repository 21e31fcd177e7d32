"""Brokers that coordinate groups over one in-memory store, and members that send requests to them."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any, Final

from tests.harness.groups.fixed_registration import FixedRegistration
from tests.harness.log.brokers import HandClock

from lakestream.clock import SeededIds
from lakestream.coordination.groups.consumer_group import is_stable
from lakestream.coordination.groups.coordinator import ConsumerHeartbeat, GroupCoordinator, GroupSettings
from lakestream.coordination.groups.errors import GroupError
from lakestream.coordination.groups.messages import (
    GroupLimits,
    HeartbeatRequest,
    JoinRequest,
    JoinResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from lakestream.coordination.groups.offset_rules import Committer
from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.errors import Conflict, Missing, Unavailable, Uncertain
from lakestream.metadata import keys
from lakestream.metadata.brokers import Broker, Brokers, RegisteredBroker
from lakestream.metadata.group_records import (
    NOTHING,
    Committed,
    ConsumerGroupRecord,
    GroupRecord,
    MemberProtocol,
    Partitions,
)
from lakestream.metadata.memory import MemoryMetadataStore, MemoryServer
from lakestream.metadata.store import Folder, Key, Put, Record, Scanned, Stored
from lakestream.metadata.topics import Topic, Topics
from lakestream.model import PartitionId

QUICK: Final = GroupSettings(limits=GroupLimits(initial_delay_ms=0, session_ms_min=1))


class FaultyStore(MemoryMetadataStore):
    """Store whose puts fail while `error` is set. With Uncertain they take effect."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.error: Unavailable | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.readable = asyncio.Event()
        self.readable.set()
        self.puts = 0

    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        await self.readable.wait()
        return await super().get(key, confirmed=confirmed)

    async def scan(self, folder: Folder, *args: Any, **options: Any) -> Scanned:
        await self.readable.wait()
        return await super().scan(folder, *args, **options)

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        self.puts += 1
        await self.gate.wait()
        if self.error is None:
            return await super().put(puts)
        if isinstance(self.error, Uncertain):
            await super().put(puts)
        return [self.error for _ in puts]


class GroupBroker:
    """One broker of the cluster."""

    def __init__(
        self,
        world: "Cluster",
        view: MetadataCache,
        store: FaultyStore,
        registration: FixedRegistration,
        groups: GroupCoordinator,
    ) -> None:
        self.world = world
        self.node_id = registration.broker.node_id
        self.view = view
        self.store = store
        self.registration = registration
        self.groups = groups

    async def isolate(self) -> None:
        """Isolates the broker: it reads no other registration, and considers itself the coordinator of every group."""
        await self.view.close()
        self.view.brokers = [Broker(self.node_id, "host", self.node_id)]

    async def close(self) -> None:
        await self.groups.close()
        await self.view.close()


class Cluster:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.server = MemoryServer(self.clock)
        self.ids = SeededIds(random.Random(1))
        self.topics = Topics(self.server.client())
        self.brokers: list[GroupBroker] = []

    async def broker(self, settings: GroupSettings = QUICK) -> GroupBroker:
        node_id = len(self.brokers)
        metadata = self.server.client()
        registered = await Brokers(metadata).register(
            RegisteredBroker(Broker(node_id, "host", node_id), None), await metadata.session(60_000)
        )
        view = MetadataCache(metadata)
        await view.start()
        store = FaultyStore(self.server)
        registration = FixedRegistration(registered.broker)
        groups = GroupCoordinator(store, view, registration, self.clock, self.ids, settings)
        broker = GroupBroker(self, view, store, registration, groups)
        broker.groups.start()
        self.brokers.append(broker)
        for other in self.brokers:
            await other.view.refresh_brokers()
        return broker

    async def of(self, name: str) -> GroupBroker:
        """Returns the broker that all brokers consider the coordinator of the group."""
        return self.brokers[self.brokers[0].groups.coordinator_of(name).node_id]

    async def expire_broker(self, dead: GroupBroker) -> None:
        """Removes the broker's registration, for all brokers except itself."""
        await self.server.client().delete(keys.broker_key(dead.node_id))
        for other in self.brokers:
            if other is not dead:
                await other.view.refresh_brokers()

    async def topic(self, name: str = "t", partitions: int = 1) -> PartitionId:
        broker = await self.topics.create(name, Topic(self.ids.new(), partitions))
        await self.refresh_topics()
        return broker.partitions()[0]

    async def refresh_topics(self) -> None:
        for broker in self.brokers:
            await broker.view.refresh_topics()

    async def close(self) -> None:
        for broker in self.brokers:
            await asyncio.wait_for(broker.close(), 10)


class ClassicMember:
    """Member of the classic protocol, with its id and generation, that sends requests to one broker."""

    def __init__(
        self,
        at: GroupBroker,
        group: str = "g",
        session_ms: int = 10_000,
        instance: str | None = None,
        metadata: bytes = b"m",
    ) -> None:
        self.at = at
        self.group = group
        self.session_ms = session_ms
        self.metadata = metadata
        self.instance = instance
        self.id = ""
        self.generation = -1

    async def join(self, *, id_first: bool = False) -> JoinResult:
        request = JoinRequest(
            0,
            self.id,
            f"member-{self.at.world.ids.new()[:6]}",
            self.instance,
            "client",
            "/host",
            self.session_ms,
            5_000,
            "consumer",
            (MemberProtocol("range", self.metadata),),
            requires_known_member_id=id_first,
        )
        joined = await asyncio.wait_for(self.at.groups.join(self.group, request), 20)
        if joined.error is None:
            self.id, self.generation = joined.member_id, joined.generation
        return joined

    async def sync(self, **assignments: str) -> SyncResult:
        encoded = {member: text.encode() for member, text in assignments.items()}
        request = SyncRequest(0, self.id, self.instance, self.generation, None, None, encoded)
        return await asyncio.wait_for(self.at.groups.sync(self.group, request), 20)

    async def alone(self) -> "ClassicMember":
        assert (await self.join()).error is None
        assert (await self.sync(**{self.id: "all"})).error is None
        return self

    async def beat(self) -> GroupError | None:
        return await self.at.groups.heartbeat(self.group, self.id, self.instance, self.generation)

    async def leave(self) -> GroupError | None:
        return (await self.at.groups.leave(self.group, [LeavingMember(self.id)]))[0]

    async def commit(self, partition: PartitionId, offset: int) -> GroupError | None:
        committer = Committer(self.id, self.instance, self.generation)
        offset_commit = Committed(offset, 0, "", self.at.world.clock.now_ms(), self.generation)
        return await self.at.groups.commit(self.group, committer, {partition: offset_commit})

    async def committed(self, partition: PartitionId) -> int | None:
        stored = (await self.at.groups.offsets(self.group)).get(partition)
        return None if stored is None else stored.offset

    async def described(self) -> GroupRecord | None:
        record = await self.at.groups.describe(self.group)
        assert record is None or isinstance(record, GroupRecord)
        return record


class ConsumerProtocolMember:
    """Member of the consumer protocol: it owns the assigned partitions, and reports them in its heartbeats."""

    def __init__(self, at: GroupBroker, member_id: str, group: str = "g", instance: str | None = None) -> None:
        self.at = at
        self.id = member_id
        self.group = group
        self.instance = instance
        self.epoch = 0
        self.owned: Partitions = NOTHING
        self.names: tuple[str, ...] = ("t",)
        self.pattern: str | None = None
        self.rebalance_ms = 60_000
        self._reported: Partitions | None = None

    async def beat(self) -> ConsumerHeartbeat:
        """Sends a heartbeat without the fields that have not changed, as clients do."""
        joins = self.epoch == 0
        if joins:
            self.owned = NOTHING
        request = HeartbeatRequest(
            self.id,
            self.epoch,
            self.instance,
            client_id="client",
            host="/host",
            rebalance_ms=self.rebalance_ms if joins else -1,
            names=self.names if joins else None,
            pattern=self.pattern if joins else None,
            owned=self.owned if joins or self._reported != self.owned else None,
        )
        response = await asyncio.wait_for(self.at.groups.consumer_heartbeat(self.group, request), 20)
        self._reported = self.owned
        if response.result.error is None:
            self.epoch = response.result.epoch
            if response.result.assigned is not None:
                self.owned = response.result.assigned
        return response

    async def leave(self, epoch: int = -1) -> None:
        await self.at.groups.consumer_heartbeat(self.group, HeartbeatRequest(self.id, epoch, self.instance))

    async def commit(self, partition: PartitionId, offset: int) -> GroupError | None:
        offset_commit = Committed(offset, 0, "", self.at.world.clock.now_ms(), self.epoch)
        return await self.at.groups.commit(self.group, Committer(self.id, None, self.epoch), {partition: offset_commit})

    async def described(self) -> ConsumerGroupRecord:
        record = await self.at.groups.describe(self.group)
        assert isinstance(record, ConsumerGroupRecord)
        return record


async def heartbeat_until_stable(*members: ConsumerProtocolMember) -> None:
    """Sends heartbeats until all members have reached their target."""
    for _ in range(6):
        for member in members:
            await member.beat()
    record = await members[0].described()
    assert is_stable(record)
