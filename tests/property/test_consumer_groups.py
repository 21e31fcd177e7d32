"""Groups of the new protocol with clients as they are: some lose answers, some die, some come late to their heartbeats.
At no time do two have the same partition, and when all is quiet everybody has its share."""

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from lakestream.coordination.groups.assignors import Partitions
from lakestream.coordination.groups.consumer import (
    LEAVE,
    Answer,
    Beat,
    Group,
    Refused,
    State,
    TopicShape,
    beat,
    removed,
)
from lakestream.model import PartitionId

NOTHING: Partitions = frozenset()


@dataclass
class Client:
    """Takes and gives back as a consumer does: gives back at once, and says so with its next heartbeat."""

    member_id: str
    epoch: int = 0
    owned: Partitions = NOTHING
    news: bool = True
    """It has not told what it has since that changed."""

    def says(self) -> Beat:
        names = ("a", "b") if self.epoch == 0 else None
        return Beat(self.member_id, self.epoch, names=names, owned=self.owned if self.news else None)

    def hears(self, answer: Answer) -> None:
        self.news = False
        self.epoch = answer.epoch
        if answer.assigned is not None and answer.assigned != self.owned:
            self.owned, self.news = answer.assigned, True

    def is_fenced(self) -> None:
        self.epoch, self.owned, self.news = 0, NOTHING, True


@dataclass
class World:
    luck: random.Random
    group: Group = field(default_factory=Group)
    topics: dict[str, TopicShape] = field(default_factory=lambda: {"a": TopicShape("a0", 5)})
    clients: dict[str, Client] = field(default_factory=dict)

    def step(self) -> None:
        kind = self.luck.random()
        if kind < 0.08 and len(self.clients) < 6:
            name = f"m{self.luck.randrange(100)}"
            self.clients.setdefault(name, Client(name))
        elif kind < 0.12 and self.clients:
            self.die(self.luck.choice(sorted(self.clients)))
        elif kind < 0.15:
            name = self.luck.choice("ab")  # made, made again under another id, or grown
            self.topics[name] = TopicShape(f"{name}{self.luck.randrange(3)}", self.luck.randrange(1, 9))
        elif self.clients:
            self.hear(self.luck.choice(sorted(self.clients)), lost=self.luck.random())
        self.check()

    def die(self, name: str) -> None:
        client = self.clients.pop(name)
        if client.epoch and self.luck.random() < 0.5:
            self.group, _ = beat(self.group, Beat(name, LEAVE), self.topics, lambda _: ())
        else:
            self.group = removed(self.group, name)

    def hear(self, name: str, lost: float = 1.0) -> None:
        client = self.clients[name]
        if lost < 0.1:
            return  # the heartbeat
        try:
            self.group, answer = beat(self.group, client.says(), self.topics, lambda _: ())
        except Refused:
            client.is_fenced()
            return
        if lost < 0.2:
            client.news = True  # the answer: it says all again
        else:
            client.hears(answer)

    def check(self) -> None:
        owned = [partition for client in self.clients.values() for partition in client.owned]
        assert len(owned) == len(set(owned)), "two have the same"
        held = [partition for member in self.group.members.values() for partition in member.held]
        assert len(held) == len(set(held)), "two are told that they have the same"


@given(st.integers(0, 2**32))
def test_nobody_shares_and_nothing_is_forgotten(seed: int) -> None:
    world = World(random.Random(seed))
    for _ in range(200):
        world.step()
    world.clients.setdefault("last", Client("last"))
    for _ in range(12):
        for name in sorted(world.clients):
            world.hear(name)
            world.check()
    shares = [client.owned for client in world.clients.values()]
    shapes = {shape.topic_id: shape.partition_count for shape in world.topics.values()}
    assert frozenset().union(*shares) == {
        PartitionId(topic_id, n) for topic_id, count in shapes.items() for n in range(count)
    }
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert {member.state for member in world.group.members.values()} == {State.STABLE}
    assert {member.epoch for member in world.group.members.values()} == {world.group.epoch}
