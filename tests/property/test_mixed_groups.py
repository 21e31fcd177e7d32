"""Groups with members of both protocols: the consumer protocol, and the classic one, eager or cooperative.

Clients join and leave in any order, so that groups are upgraded and downgraded in every state, and coordinators change.
No two clients ever own the same partition, and at the end every partition is owned."""

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from lakestream.coordination.groups import transitions
from lakestream.coordination.groups.consumer_protocol import read_assignment, read_subscription, write_assignment
from lakestream.coordination.groups.errors import GroupError, GroupRequestFailed
from lakestream.coordination.groups.messages import (
    LEAVE,
    AnyGroup,
    ConsumerGroup,
    Group,
    GroupLimits,
    GroupResult,
    HeartbeatRequest,
    HeartbeatResult,
    Instant,
    JoinRequest,
    JoinResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
    Transition,
)
from lakestream.coordination.groups.topics_image import TopicsImage
from lakestream.coordination.groups.transitions import TransitionContext
from lakestream.metadata.group_records import (
    AnyGroupRecord,
    GroupRecord,
    MemberProtocol,
    Partitions,
    group_of,
    packed_group,
)
from lakestream.metadata.store import Record
from lakestream.metadata.topics import Topic

COUNT = 6
ON = TransitionContext(TopicsImage({"t": Topic("T", COUNT)}), Instant(0, 0), GroupLimits(initial_delay_ms=0))
Numbers = frozenset[int]
NONE: Numbers = frozenset()
EXPECTED = (GroupError.UNKNOWN_MEMBER_ID, GroupError.FENCED_MEMBER_EPOCH, GroupError.GROUP_ID_NOT_FOUND)


def numbers(partitions: Partitions) -> Numbers:
    return frozenset(partition.number for partition in partitions)


def partitions(selected: Numbers) -> Partitions:
    return ON.image.partitions(("t", number) for number in selected)


def subscription(owned: Numbers) -> bytes:
    """Encodes a subscription of version 1: one topic, no user data, and the owned partitions."""
    return b"\0\1" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff" + write_assignment(1, {"t": sorted(owned)})[2:-4]


@dataclass
class Client:
    name: str
    owned: Numbers = NONE
    member_id: str = ""
    waits: bool = False

    def reset(self) -> None:
        self.owned = NONE


@dataclass
class ConsumerMember(Client):
    epoch: int = 0
    changed: bool = True

    def act(self, world: "World") -> None:
        self.member_id = self.name
        names = ("t",) if self.epoch == 0 else None
        owned = partitions(self.owned) if self.changed else None
        request = HeartbeatRequest(
            self.name, self.epoch, rebalance_ms=1000, names=names, owned=owned, ticket=world.ticket(self)
        )
        try:
            step = transitions.consumer_heartbeat("g", world.group, request, ON)
        except GroupRequestFailed as error:
            if error.error not in EXPECTED:
                raise
            self.waits = False
            self.reset()
            return
        world.apply(step)

    def receive(self, result: GroupResult) -> None:
        assert isinstance(result, HeartbeatResult)
        if result.error is not None:
            self.reset()
            return
        self.epoch, self.changed = result.epoch, False
        if result.assigned is not None and numbers(result.assigned) != self.owned:
            self.owned, self.changed = numbers(result.assigned), True

    def reset(self) -> None:
        self.epoch, self.owned, self.changed = 0, NONE, True


@dataclass
class ClassicMember(Client):
    cooperative: bool = False
    generation: int = -1
    joined: JoinResult | None = None
    """The JoinGroup response, until SyncGroup is answered."""
    is_synced: bool = False

    def act(self, world: "World") -> None:
        if self.is_synced:
            step, error = transitions.heartbeat(world.group, self.member_id, None, self.generation, ON)
            world.apply(step)
            if error is not None:
                self.handle_error(error)
        elif self.joined is not None:
            shares = self.shares(self.joined)
            world.apply(
                transitions.sync(
                    world.group,
                    SyncRequest(world.ticket(self), self.member_id, None, self.generation, None, None, shares),
                    ON,
                )
            )
        else:
            self.join(world)

    def join(self, world: "World") -> None:
        if not self.cooperative:
            self.owned = NONE
        protocol = MemberProtocol("p", subscription(self.owned))
        new_id = f"{self.name}-{world.tickets}"
        world.apply(
            transitions.join(
                world.group,
                JoinRequest(
                    world.ticket(self), self.member_id, new_id, None, "", "", 10_000, 1_000, "consumer", (protocol,)
                ),
                ON,
            )
        )

    def shares(self, joined: JoinResult) -> dict[str, bytes]:
        """Assigns as a leader: round-robin, without partitions that another member still owns."""
        if joined.leader != self.member_id:
            return {}
        members = sorted(one.member_id for one in joined.members)
        owner = {number: one.member_id for one in joined.members for _, number in read_subscription(one.metadata).owned}
        assigned: dict[str, list[int]] = {member: [] for member in members}
        for number in range(COUNT):
            member_id = members[number % len(members)]
            if owner.get(number, member_id) == member_id:
                assigned[member_id].append(number)
        return {member: write_assignment(1, {"t": share}) for member, share in assigned.items()}

    def receive(self, result: GroupResult) -> None:
        if result.error is GroupError.MEMBER_ID_REQUIRED:
            self.member_id = result.member_id
        elif result.error is not None:
            self.handle_error(result.error)
        elif isinstance(result, JoinResult):
            self.member_id, self.generation, self.joined = result.member_id, result.generation, result
        else:
            assert isinstance(result, SyncResult)
            assigned = frozenset(number for _, number in read_assignment(result.assignment))
            must_revoke = self.cooperative and not self.owned <= assigned
            self.owned, self.joined, self.is_synced = assigned, None, not must_revoke

    def handle_error(self, error: GroupError) -> None:
        self.joined, self.is_synced = None, False
        if error is not GroupError.REBALANCE_IN_PROGRESS:
            assert error in (GroupError.UNKNOWN_MEMBER_ID, GroupError.ILLEGAL_GENERATION)
            self.reset()
        if error is GroupError.UNKNOWN_MEMBER_ID:
            self.member_id = ""


@dataclass
class World:
    rng: random.Random
    cooperative: bool
    group: AnyGroup = field(default_factory=Group)
    stored: AnyGroupRecord = field(default_factory=GroupRecord)
    clients: dict[str, ConsumerMember | ClassicMember] = field(default_factory=dict)
    waiting: dict[int, ConsumerMember | ClassicMember] = field(default_factory=dict)
    tickets: int = 0
    clients_added: int = 0

    def ticket(self, client: ConsumerMember | ClassicMember) -> int:
        self.tickets += 1
        self.waiting[self.tickets] = client
        client.waits = True
        return self.tickets

    def apply(self, step: Transition[AnyGroup]) -> None:
        self.group = step.group
        if step.to_store:
            self.stored = step.group.record
        for ticket, result in step.replies:
            client = self.waiting.pop(ticket)
            client.waits = False
            client.receive(result)

    def step(self) -> None:
        kind = self.rng.random()
        if kind < 0.06 and len(self.clients) < 6:
            self.add_client(ConsumerMember if self.rng.random() < 0.5 else ClassicMember)
        elif kind < 0.10 and self.clients:
            self.remove_client(self.rng.choice(sorted(self.clients)))
        elif kind < 0.25:
            self.reconcile()
        elif kind < 0.27:
            self.take_over()
        elif self.clients:
            self.act(self.rng.choice(sorted(self.clients)))
        self.check()

    def add_client(self, kind: type[ConsumerMember | ClassicMember]) -> None:
        self.clients_added += 1
        name = f"c{self.clients_added}"
        self.clients[name] = (
            ConsumerMember(name) if kind is ConsumerMember else ClassicMember(name, cooperative=self.cooperative)
        )

    def act(self, name: str) -> None:
        client = self.clients[name]
        if not client.waits:
            client.act(self)

    def remove_client(self, name: str) -> None:
        client = self.clients.pop(name)
        client.reset()
        if not client.member_id:
            return
        if isinstance(client, ConsumerMember) and client.epoch and self.rng.random() < 0.5:
            self.apply(
                transitions.consumer_heartbeat(
                    "g", self.group, HeartbeatRequest(name, LEAVE, ticket=self.ticket(client)), ON
                )
            )
        elif isinstance(client, ClassicMember):
            self.apply(transitions.leave(self.group, [LeavingMember(client.member_id)], ON).transition)
        else:
            self.apply(transitions.expire(self.group, [client.member_id], ON))

    def reconcile(self) -> None:
        self.apply(transitions.reconciled(self.group, ON))

    def take_over(self) -> None:
        """Replaces the coordinator: the next one has the stored record, and clients send their requests again."""
        self.group = transitions.resumed(group_of(Record("g", packed_group(self.stored), 1, 0)), ON.now)
        for client in self.waiting.values():
            client.waits = False
        self.waiting.clear()

    def check(self) -> None:
        owned = [number for client in self.clients.values() for number in client.owned]
        assert len(owned) == len(set(owned)), "two clients own one partition"


@given(st.integers(0, 2**32), st.booleans())
def test_partitions_are_owned_once_and_shared_evenly_at_the_end(seed: int, cooperative: bool) -> None:
    world = World(random.Random(seed), cooperative)
    for _ in range(250):
        world.step()
    world.add_client(ConsumerMember if seed % 2 else ClassicMember)
    for _ in range(40):
        for name in sorted(world.clients):
            world.act(name)
            world.check()
        world.reconcile()
    shares = [client.owned for client in world.clients.values()]
    assert sorted(number for share in shares for number in share) == list(range(COUNT))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    has_consumer_member = any(isinstance(client, ConsumerMember) for client in world.clients.values())
    assert isinstance(world.group, ConsumerGroup) == has_consumer_member
