"""Brokers that coordinate groups over one store in memory, and members that talk to them."""

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from tests.unit.data.brokers import HandClock

from lakestream.clock import SeededIds
from lakestream.coordination.cluster import ClusterView
from lakestream.coordination.groups.consumer import is_stable
from lakestream.coordination.groups.coordinator import Groups, GroupSettings, Heartbeat
from lakestream.coordination.groups.offsets import Committer
from lakestream.coordination.groups.refusals import Refusal
from lakestream.coordination.groups.values import Beat, Join, Joined, Leaver, Rules, Sync, Synced
from lakestream.errors import Conflict, Missing, Unavailable, Uncertain
from lakestream.metadata import keys
from lakestream.metadata.brokers import Broker, Brokers, Registered
from lakestream.metadata.group_records import (
    NOTHING,
    Committed,
    ConsumerGroupRecord,
    GroupRecord,
    Partitions,
    Protocol,
)
from lakestream.metadata.memory import MemoryServer, MemoryStore
from lakestream.metadata.store import Put, Stored
from lakestream.metadata.topics import Topic, Topics
from lakestream.model import PartitionId

QUICK: Final = GroupSettings(rules=Rules(opening_ms=0, session_ms_min=1))


class Shaky(MemoryStore):
    """Puts fail while `trouble` is set; `lost`: but they take effect."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.trouble: Unavailable | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.puts = 0

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        self.puts += 1
        await self.gate.wait()
        if self.trouble is None:
            return await super().put(puts)
        if isinstance(self.trouble, Uncertain):
            await super().put(puts)
        return [self.trouble for _ in puts]


class Coordinator:
    """One broker."""

    def __init__(self, world: "Cluster", node_id: int, view: ClusterView, store: Shaky, groups: Groups) -> None:
        self.world = world
        self.node_id = node_id
        self.view = view
        self.store = store
        self.groups = groups
        self.seen = True

    async def believes_alone(self) -> None:
        """It sees none of the others: everything is its own, it thinks."""
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
        self.brokers: list[Coordinator] = []

    async def broker(self, settings: GroupSettings = QUICK) -> Coordinator:
        node_id = len(self.brokers)
        mine = self.server.client()
        me = await Brokers(mine).register(
            Registered(Broker(node_id, "host", node_id), None), await mine.session(60_000)
        )
        view = ClusterView(mine)
        await view.start()
        store = Shaky(self.server)
        made = Coordinator(self, node_id, view, store, None)  # type: ignore[arg-type]
        made.groups = Groups(store, view, lambda: me.broker, lambda: made.seen, self.clock, self.ids, settings)
        made.groups.start()
        self.brokers.append(made)
        for other in self.brokers:
            await other.view.look_at_brokers()
        return made

    async def of(self, name: str) -> Coordinator:
        """Who coordinates the group, as all see it."""
        return self.brokers[self.brokers[0].groups.coordinator_of(name).node_id]

    async def bury(self, dead: Coordinator) -> None:
        """The others see that it is dead. It may think that it lives."""
        await self.server.client().delete(keys.broker_key(dead.node_id))
        for other in self.brokers:
            if other is not dead:
                await other.view.look_at_brokers()

    async def topic(self, name: str = "t", partitions: int = 1) -> PartitionId:
        made = await self.topics.create(name, Topic(self.ids.new(), partitions))
        await self.look_at_topics()
        return made.partitions()[0]

    async def look_at_topics(self) -> None:
        for broker in self.brokers:
            await broker.view.look_at_topics()

    async def close(self) -> None:
        for broker in self.brokers:
            await asyncio.wait_for(broker.close(), 10)


class Consumer:
    """A member: knows its id and generation, and asks whichever broker it is told to."""

    def __init__(
        self,
        at: Coordinator,
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

    async def join(self, *, id_first: bool = False) -> Joined:
        wish = Join(
            0,
            self.id,
            f"member-{self.at.world.ids.new()[:6]}",
            self.instance,
            "client",
            "/host",
            self.session_ms,
            5_000,
            "consumer",
            (Protocol("range", self.metadata),),
            asks_id_first=id_first,
        )
        joined = await asyncio.wait_for(self.at.groups.join(self.group, wish), 20)
        if joined.refusal is None:
            self.id, self.generation = joined.member_id, joined.generation
        return joined

    async def sync(self, **assignments: str) -> Synced:
        given = {member: text.encode() for member, text in assignments.items()}
        wish = Sync(0, self.id, self.instance, self.generation, None, None, given)
        return await asyncio.wait_for(self.at.groups.sync(self.group, wish), 20)

    async def alone(self) -> "Consumer":
        assert (await self.join()).refusal is None
        assert (await self.sync(**{self.id: "all"})).refusal is None
        return self

    async def beat(self) -> Refusal | None:
        return await self.at.groups.heartbeat(self.group, self.id, self.instance, self.generation)

    async def leave(self) -> Refusal | None:
        return (await self.at.groups.leave(self.group, [Leaver(self.id)]))[0]

    async def commit(self, partition: PartitionId, offset: int) -> Refusal | None:
        who = Committer(self.id, self.instance, self.generation)
        one = Committed(offset, 0, "", self.at.world.clock.now_ms(), self.generation)
        return await self.at.groups.commit(self.group, who, {partition: one})

    async def committed(self, partition: PartitionId) -> int | None:
        found = (await self.at.groups.offsets(self.group)).get(partition)
        return None if found is None else found.offset

    async def described(self) -> GroupRecord | None:
        record = await self.at.groups.describe(self.group)
        assert record is None or isinstance(record, GroupRecord)
        return record


class NewConsumer:
    """A member of the new protocol: takes what it is given, gives back what it is not, and says so."""

    def __init__(self, at: Coordinator, member_id: str, group: str = "g", instance: str | None = None) -> None:
        self.at = at
        self.id = member_id
        self.group = group
        self.instance = instance
        self.epoch = 0
        self.owned: Partitions = NOTHING
        self.names: tuple[str, ...] = ("t",)
        self.pattern: str | None = None
        self.rebalance_ms = 60_000
        self._told: Partitions | None = None

    async def beat(self) -> Heartbeat:
        """All that it has to say, with the rest left out as clients do."""
        joins = self.epoch == 0
        if joins:
            self.owned = NOTHING
        said = Beat(
            self.id,
            self.epoch,
            self.instance,
            client_id="client",
            host="/host",
            rebalance_ms=self.rebalance_ms if joins else -1,
            names=self.names if joins else None,
            pattern=self.pattern if joins else None,
            owned=self.owned if joins or self._told != self.owned else None,
        )
        told = await asyncio.wait_for(self.at.groups.beat(self.group, said), 20)
        self._told = self.owned
        if told.beaten.refusal is None:
            self.epoch = told.beaten.epoch
            if told.beaten.assigned is not None:
                self.owned = told.beaten.assigned
        return told

    async def leave(self, epoch: int = -1) -> None:
        await self.at.groups.beat(self.group, Beat(self.id, epoch, self.instance))

    async def commit(self, partition: PartitionId, offset: int) -> Refusal | None:
        one = Committed(offset, 0, "", self.at.world.clock.now_ms(), self.epoch)
        return await self.at.groups.commit(self.group, Committer(self.id, None, self.epoch), {partition: one})

    async def described(self) -> ConsumerGroupRecord:
        record = await self.at.groups.describe(self.group)
        assert isinstance(record, ConsumerGroupRecord)
        return record


async def settle(*members: NewConsumer) -> None:
    """Until everybody has its share."""
    for _ in range(6):
        for member in members:
            await member.beat()
    record = await members[0].described()
    assert is_stable(record)
