"""Groups of the consumer protocol with clients that lose responses, die, and send heartbeats late.

No two clients ever own the same partition, and at the end every client has its share."""

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from lakestream.coordination.groups.consumer_group import heartbeat, reconcile, without_members
from lakestream.coordination.groups.errors import GroupError, GroupRequestFailed
from lakestream.coordination.groups.messages import (
    LEAVE,
    ConsumerGroup,
    GroupLimits,
    HeartbeatRequest,
    HeartbeatResult,
    Instant,
    Transition,
)
from lakestream.coordination.groups.topics_image import TopicsImage
from lakestream.metadata.group_records import NOTHING, Partitions, Progress, group_of, packed_group
from lakestream.metadata.store import Record
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId

NOW, RULES = Instant(0, 0), GroupLimits()


@dataclass
class Client:
    """Applies assignments as a consumer does: revokes immediately, and reports it with its next heartbeat."""

    member_id: str
    epoch: int = 0
    owned: Partitions = NOTHING
    changed: bool = True
    """The owned partitions have changed since the last heartbeat."""

    def request(self) -> HeartbeatRequest:
        names = ("a", "b") if self.epoch == 0 else None
        return HeartbeatRequest(self.member_id, self.epoch, names=names, owned=self.owned if self.changed else None)

    def receive(self, result: HeartbeatResult) -> None:
        self.changed = False
        self.epoch = result.epoch
        if result.assigned is not None and result.assigned != self.owned:
            self.owned, self.changed = result.assigned, True

    def reset(self) -> None:
        self.epoch, self.owned, self.changed = 0, NOTHING, True


@dataclass
class World:
    rng: random.Random
    group: ConsumerGroup = field(default_factory=ConsumerGroup)
    image: TopicsImage = field(default_factory=lambda: TopicsImage({"a": Topic("a0", 5)}))
    clients: dict[str, Client] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    lost_responses: set[str] = field(default_factory=set)

    def step(self) -> None:
        kind = self.rng.random()
        if kind < 0.08 and len(self.clients) < 6:
            name = f"m{self.rng.randrange(100)}"
            self.clients.setdefault(name, Client(name))
        elif kind < 0.12 and self.clients:
            self.remove(self.rng.choice(sorted(self.clients)))
        elif kind < 0.15:
            name = self.rng.choice("ab")  # created, recreated with another id, or with more partitions
            topic = Topic(f"{name}{self.rng.randrange(3)}", self.rng.randrange(1, 9))
            self.image = TopicsImage({**self.image.topics, name: topic})
        elif kind < 0.18:
            self.reconcile()
        elif kind < 0.20:
            self.take_over()
        elif self.clients:
            self.send_heartbeat(self.rng.choice(sorted(self.clients)), lost=self.rng.random())
        self.check()

    def remove(self, name: str) -> None:
        client = self.clients.pop(name)
        if client.epoch and self.rng.random() < 0.5:
            self.apply_heartbeat(HeartbeatRequest(name, LEAVE))
        else:
            self.apply(without_members(self.group, [name], NOW))

    def send_heartbeat(self, name: str, lost: float = 1.0) -> None:
        """Sends a heartbeat of a client. The response comes with the next reconciliation."""
        client = self.clients[name]
        if lost < 0.1:
            return  # the heartbeat
        if name in self.waiting:
            self.reconcile()  # a client has one heartbeat in flight
        request = client.request()
        if lost < 0.2:
            client.changed = True  # the response is lost: the next heartbeat is full again
            self.lost_responses.add(name)
        try:
            self.apply_heartbeat(request)
        except GroupRequestFailed:
            self.lost_responses.discard(name)
            client.reset()
            return
        if lost < 0.5:
            return  # other clients come first
        self.reconcile()

    def apply_heartbeat(self, request: HeartbeatRequest) -> None:
        step = heartbeat(self.group, request, self.image, NOW, RULES)
        self.waiting.add(request.member_id)
        self.apply(step)

    def reconcile(self) -> None:
        self.apply(reconcile(self.group, self.image, NOW))
        assert not self.waiting

    def apply(self, step: Transition[ConsumerGroup]) -> None:
        assert step.to_store or step.group.record == self.group.record
        self.group = step.group
        for _, result in step.replies:
            assert isinstance(result, HeartbeatResult)
            self.waiting.discard(result.member_id)
            client = self.clients.get(result.member_id)
            if client is None or result.member_id in self.lost_responses:
                self.lost_responses.discard(result.member_id)
            elif result.error is GroupError.UNKNOWN_MEMBER_ID:
                client.reset()
            else:
                client.receive(result)

    def take_over(self) -> None:
        """Replaces the coordinator: the next one has the stored record."""
        self.reconcile()
        stored = group_of(Record("g", packed_group(self.group.record), 1, 0))
        assert stored == self.group.record
        self.group = ConsumerGroup(record=self.group.record)

    def check(self) -> None:
        owned = [partition for client in self.clients.values() for partition in client.owned]
        assert len(owned) == len(set(owned)), "two clients own one partition"
        held = [partition for member in self.group.record.members.values() for partition in member.reserved]
        assert len(held) == len(set(held)), "one partition is assigned to two members"


@given(st.integers(0, 2**32))
def test_partitions_are_owned_once_and_shared_evenly_at_the_end(seed: int) -> None:
    world = World(random.Random(seed))
    for _ in range(200):
        world.step()
    world.clients.setdefault("last", Client("last"))
    for _ in range(12):
        for name in sorted(world.clients):
            world.send_heartbeat(name)
            world.check()
    shares = [client.owned for client in world.clients.values()]
    shapes = {shape.topic_id: shape.partition_count for shape in world.image.topics.values()}
    assert frozenset().union(*shares) == {
        PartitionId(topic_id, n) for topic_id, count in shapes.items() for n in range(count)
    }
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert {member.progress for member in world.group.record.members.values()} == {Progress.STABLE}
    assert {member.epoch for member in world.group.record.members.values()} == {world.group.record.epoch}
