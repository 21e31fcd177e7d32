"""Groups of the new protocol with clients as they are: some lose answers, some die, some come late to their heartbeats.
At no time do two have the same partition, and when all is quiet everybody has its share."""

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from lakestream.coordination.groups.consumer import beat, settled, without
from lakestream.coordination.groups.landscape import Landscape
from lakestream.coordination.groups.refusals import Refusal, Refused
from lakestream.coordination.groups.values import LEAVE, Beat, Beaten, ConsumerGroup, Instant, Rules, Step
from lakestream.metadata.group_records import NOTHING, Partitions, Progress, group_of, packed_group
from lakestream.metadata.store import Record
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId

NOW, RULES = Instant(0, 0), Rules()


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

    def hears(self, answer: Beaten) -> None:
        self.news = False
        self.epoch = answer.epoch
        if answer.assigned is not None and answer.assigned != self.owned:
            self.owned, self.news = answer.assigned, True

    def is_fenced(self) -> None:
        self.epoch, self.owned, self.news = 0, NOTHING, True


@dataclass
class World:
    luck: random.Random
    group: ConsumerGroup = field(default_factory=ConsumerGroup)
    landscape: Landscape = field(default_factory=lambda: Landscape({"a": Topic("a0", 5)}))
    clients: dict[str, Client] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    deaf: set[str] = field(default_factory=set)

    def step(self) -> None:
        kind = self.luck.random()
        if kind < 0.08 and len(self.clients) < 6:
            name = f"m{self.luck.randrange(100)}"
            self.clients.setdefault(name, Client(name))
        elif kind < 0.12 and self.clients:
            self.die(self.luck.choice(sorted(self.clients)))
        elif kind < 0.15:
            name = self.luck.choice("ab")  # made, made again under another id, or grown
            topic = Topic(f"{name}{self.luck.randrange(3)}", self.luck.randrange(1, 9))
            self.landscape = Landscape({**self.landscape.topics, name: topic})
        elif kind < 0.18:
            self.settle()
        elif kind < 0.20:
            self.take_over()
        elif self.clients:
            self.hear(self.luck.choice(sorted(self.clients)), lost=self.luck.random())
        self.check()

    def die(self, name: str) -> None:
        client = self.clients.pop(name)
        if client.epoch and self.luck.random() < 0.5:
            self.say(Beat(name, LEAVE))
        else:
            self.take(without(self.group, [name], NOW))

    def hear(self, name: str, lost: float = 1.0) -> None:
        """The answer comes with the next settling, which may be shared with others."""
        client = self.clients[name]
        if lost < 0.1:
            return  # the heartbeat
        if name in self.waiting:
            self.settle()  # it has one heartbeat under way at a time
        says = client.says()
        if lost < 0.2:
            client.news = True  # the answer: it says all again
            self.deaf.add(name)
        try:
            self.say(says)
        except Refused:
            self.deaf.discard(name)
            client.is_fenced()
            return
        if lost < 0.5:
            return  # others are heard first
        self.settle()

    def say(self, said: Beat) -> None:
        step = beat(self.group, said, self.landscape, NOW, RULES)
        self.waiting.add(said.member_id)
        self.take(step)

    def settle(self) -> None:
        self.take(settled(self.group, self.landscape, NOW))
        assert not self.waiting

    def take(self, step: Step[ConsumerGroup]) -> None:
        assert step.to_store or step.group.record == self.group.record
        self.group = step.group
        for _, answer in step.told:
            assert isinstance(answer, Beaten)
            self.waiting.discard(answer.member_id)
            client = self.clients.get(answer.member_id)
            if client is None or answer.member_id in self.deaf:
                self.deaf.discard(answer.member_id)
            elif answer.refusal is Refusal.UNKNOWN_MEMBER_ID:
                client.is_fenced()
            else:
                client.hears(answer)

    def take_over(self) -> None:
        """The next coordinator knows what was stored."""
        self.settle()
        stored = group_of(Record("g", packed_group(self.group.record), 1, 0))
        assert stored == self.group.record
        self.group = ConsumerGroup(record=self.group.record)

    def check(self) -> None:
        owned = [partition for client in self.clients.values() for partition in client.owned]
        assert len(owned) == len(set(owned)), "two have the same"
        held = [partition for member in self.group.record.members.values() for partition in member.held]
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
    shapes = {shape.topic_id: shape.partition_count for shape in world.landscape.topics.values()}
    assert frozenset().union(*shares) == {
        PartitionId(topic_id, n) for topic_id, count in shapes.items() for n in range(count)
    }
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert {member.progress for member in world.group.record.members.values()} == {Progress.STABLE}
    assert {member.epoch for member in world.group.record.members.values()} == {world.group.record.epoch}
