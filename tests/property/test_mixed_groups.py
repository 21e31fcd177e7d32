"""Groups whose members speak both protocols, with clients as they are: some of the new one, some of the classic one,
all of these eager or all cooperative. They come and go in any order, so that groups are upgraded and go back in every
state, and coordinators change. At no time do two have the same partition, and when all is quiet everything is
somebody's."""

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from lakestream.coordination.groups import steps
from lakestream.coordination.groups.embedded import read_assignment, read_subscription, write_assignment
from lakestream.coordination.groups.landscape import Landscape
from lakestream.coordination.groups.refusals import Refusal, Refused
from lakestream.coordination.groups.steps import Ground
from lakestream.coordination.groups.values import (
    LEAVE,
    Answer,
    AnyGroup,
    Beat,
    Beaten,
    ConsumerGroup,
    Group,
    Instant,
    Join,
    Joined,
    Leaver,
    Rules,
    Step,
    Sync,
    Synced,
)
from lakestream.metadata.group_records import AnyGroup as AnyRecord
from lakestream.metadata.group_records import GroupRecord, Partitions, Protocol, group_of, packed_group
from lakestream.metadata.store import Record
from lakestream.metadata.topics import Topic

COUNT = 6
ON = Ground(Landscape({"t": Topic("T", COUNT)}), Instant(0, 0), Rules(opening_ms=0))
Numbers = frozenset[int]
NONE: Numbers = frozenset()
EXPECTED = (Refusal.UNKNOWN_MEMBER_ID, Refusal.FENCED_MEMBER_EPOCH, Refusal.GROUP_ID_NOT_FOUND)


def numbers(partitions: Partitions) -> Numbers:
    return frozenset(partition.number for partition in partitions)


def partitions(some: Numbers) -> Partitions:
    return ON.landscape.partitions(("t", number) for number in some)


def subscription(owned: Numbers) -> bytes:
    """Version 1: one topic, no words of its own, and what it has."""
    return b"\0\1" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff" + write_assignment(1, {"t": sorted(owned)})[2:-4]


@dataclass
class Client:
    name: str
    owned: Numbers = NONE
    member_id: str = ""
    waits: bool = False

    def forget(self) -> None:
        self.owned = NONE


@dataclass
class New(Client):
    epoch: int = 0
    news: bool = True

    def act(self, world: "World") -> None:
        self.member_id = self.name
        names = ("t",) if self.epoch == 0 else None
        owned = partitions(self.owned) if self.news else None
        said = Beat(self.name, self.epoch, rebalance_ms=1000, names=names, owned=owned, ticket=world.ticket(self))
        try:
            step = steps.beat("g", world.group, said, ON)
        except Refused as refused:
            if refused.refusal not in EXPECTED:
                raise
            self.waits = False
            self.forget()
            return
        world.take(step)

    def hear(self, answer: Answer) -> None:
        assert isinstance(answer, Beaten)
        if answer.refusal is not None:
            self.forget()
            return
        self.epoch, self.news = answer.epoch, False
        if answer.assigned is not None and numbers(answer.assigned) != self.owned:
            self.owned, self.news = numbers(answer.assigned), True

    def forget(self) -> None:
        self.epoch, self.owned, self.news = 0, NONE, True


@dataclass
class Old(Client):
    cooperative: bool = False
    generation: int = -1
    joined: Joined | None = None
    """It is to ask for its share."""
    is_in: bool = False

    def act(self, world: "World") -> None:
        if self.is_in:
            step, refusal = steps.heartbeat(world.group, self.member_id, None, self.generation, ON)
            world.take(step)
            if refusal is not None:
                self.refused(refusal)
        elif self.joined is not None:
            shares = self.shares(self.joined)
            world.take(
                steps.sync(
                    world.group,
                    Sync(world.ticket(self), self.member_id, None, self.generation, None, None, shares),
                    ON,
                )
            )
        else:
            self.join(world)

    def join(self, world: "World") -> None:
        if not self.cooperative:
            self.owned = NONE
        protocol = Protocol("p", subscription(self.owned))
        new_id = f"{self.name}-{world.tickets}"
        world.take(
            steps.join(
                world.group,
                Join(world.ticket(self), self.member_id, new_id, None, "", "", 10_000, 1_000, "consumer", (protocol,)),
                ON,
            )
        )

    def shares(self, joined: Joined) -> dict[str, bytes]:
        """As a leader decides: to each in turn, but what somebody has goes to nobody else."""
        if joined.leader != self.member_id:
            return {}
        members = sorted(one.member_id for one in joined.members)
        owner = {number: one.member_id for one in joined.members for _, number in read_subscription(one.metadata).owned}
        given: dict[str, list[int]] = {member: [] for member in members}
        for number in range(COUNT):
            who = members[number % len(members)]
            if owner.get(number, who) == who:
                given[who].append(number)
        return {member: write_assignment(1, {"t": some}) for member, some in given.items()}

    def hear(self, answer: Answer) -> None:
        if answer.refusal is Refusal.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif answer.refusal is not None:
            self.refused(answer.refusal)
        elif isinstance(answer, Joined):
            self.member_id, self.generation, self.joined = answer.member_id, answer.generation, answer
        else:
            assert isinstance(answer, Synced)
            given = frozenset(number for _, number in read_assignment(answer.assignment))
            has_to_give_back = self.cooperative and not self.owned <= given
            self.owned, self.joined, self.is_in = given, None, not has_to_give_back

    def refused(self, refusal: Refusal) -> None:
        self.joined, self.is_in = None, False
        if refusal is not Refusal.REBALANCE_IN_PROGRESS:
            assert refusal in (Refusal.UNKNOWN_MEMBER_ID, Refusal.ILLEGAL_GENERATION)
            self.forget()
        if refusal is Refusal.UNKNOWN_MEMBER_ID:
            self.member_id = ""


@dataclass
class World:
    luck: random.Random
    cooperative: bool
    group: AnyGroup = field(default_factory=Group)
    stored: AnyRecord = field(default_factory=GroupRecord)
    clients: dict[str, New | Old] = field(default_factory=dict)
    waiting: dict[int, New | Old] = field(default_factory=dict)
    tickets: int = 0
    made: int = 0

    def ticket(self, client: New | Old) -> int:
        self.tickets += 1
        self.waiting[self.tickets] = client
        client.waits = True
        return self.tickets

    def take(self, step: Step[AnyGroup]) -> None:
        self.group = step.group
        if step.to_store:
            self.stored = step.group.record
        for ticket, answer in step.told:
            client = self.waiting.pop(ticket)
            client.waits = False
            client.hear(answer)

    def step(self) -> None:
        kind = self.luck.random()
        if kind < 0.06 and len(self.clients) < 6:
            self.come(New if self.luck.random() < 0.5 else Old)
        elif kind < 0.10 and self.clients:
            self.go(self.luck.choice(sorted(self.clients)))
        elif kind < 0.25:
            self.settle()
        elif kind < 0.27:
            self.take_over()
        elif self.clients:
            self.act(self.luck.choice(sorted(self.clients)))
        self.check()

    def come(self, kind: type[New | Old]) -> None:
        self.made += 1
        name = f"c{self.made}"
        self.clients[name] = New(name) if kind is New else Old(name, cooperative=self.cooperative)

    def act(self, name: str) -> None:
        client = self.clients[name]
        if not client.waits:
            client.act(self)

    def go(self, name: str) -> None:
        client = self.clients.pop(name)
        client.forget()
        if not client.member_id:
            return
        if isinstance(client, New) and client.epoch and self.luck.random() < 0.5:
            self.take(steps.beat("g", self.group, Beat(name, LEAVE, ticket=self.ticket(client)), ON))
        elif isinstance(client, Old):
            self.take(steps.leave(self.group, [Leaver(client.member_id)], ON).step)
        else:
            self.take(steps.expire(self.group, [client.member_id], ON))

    def settle(self) -> None:
        self.take(steps.settled(self.group, ON))

    def take_over(self) -> None:
        """The next coordinator knows what was stored; whoever waited asks it again."""
        self.group = steps.resumed(group_of(Record("g", packed_group(self.stored), 1, 0)), ON.now)
        for client in self.waiting.values():
            client.waits = False
        self.waiting.clear()

    def check(self) -> None:
        owned = [number for client in self.clients.values() for number in client.owned]
        assert len(owned) == len(set(owned)), "two have the same"


@given(st.integers(0, 2**32), st.booleans())
def test_nobody_shares_and_nothing_is_forgotten(seed: int, cooperative: bool) -> None:
    world = World(random.Random(seed), cooperative)
    for _ in range(250):
        world.step()
    world.come(New if seed % 2 else Old)
    for _ in range(40):
        for name in sorted(world.clients):
            world.act(name)
            world.check()
        world.settle()
    shares = [client.owned for client in world.clients.values()]
    assert sorted(number for share in shares for number in share) == list(range(COUNT))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    speaks_new = any(isinstance(client, New) for client in world.clients.values())
    assert isinstance(world.group, ConsumerGroup) == speaks_new
