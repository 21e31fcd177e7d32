"""Groups of the classic protocol with clients that join, leave, die, lose responses, and send duplicate and invalid
requests; coordinators die with all that they have not stored. A log of the responses is checked:

- all responses of a generation agree; one member is the leader, and its response lists all members;
- in a generation each member gets the leader's assignment, in every response: no partition assignment two owners;
- generations only increase; each request is answered once, and each wait assignment an end;
- at the end, every live client is a member and assignment its share.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from lakestream.coordination.groups import classic_group
from lakestream.coordination.groups.errors import GroupError
from lakestream.coordination.groups.messages import (
    Group,
    GroupLimits,
    GroupResult,
    Instant,
    JoinRequest,
    JoinResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
    Transition,
)
from lakestream.metadata.groups import GroupRecord, GroupState, MemberProtocol

RULES = GroupLimits(initial_delay_ms=300, members_max=6)
SESSION_MS, REBALANCE_MS = 10_000, 30_000
PARTITIONS = 7


@dataclass(eq=False)
class Client:
    number: int
    instance: str | None
    version: int
    protocols: tuple[MemberProtocol, ...]
    member_id: str = ""
    generation: int = -1
    ticket: int | None = None
    assignment: frozenset[int] | None = None
    leader_response: JoinResult | None = None
    contact_ms: int = 0
    is_alive: bool = True

    def receive(self, result: GroupResult) -> None:
        self.ticket = None
        if result.error is GroupError.MEMBER_ID_REQUIRED:
            self.member_id = result.member_id
        elif result.error is GroupError.FENCED_INSTANCE_ID:
            self.is_alive = False
        elif result.error is GroupError.UNKNOWN_MEMBER_ID:
            self.member_id, self.generation, self.assignment = "", -1, None
        elif result.error is not None:
            self.generation, self.assignment = -1, None
        elif isinstance(result, JoinResult):
            self.member_id, self.generation, self.assignment = result.member_id, result.generation, None
            self.leader_response = result if result.leader == result.member_id and not result.skip_assignment else None
        elif isinstance(result, SyncResult):
            self.assignment = frozenset(result.assignment)


@dataclass
class ResponseLog:
    """Responses of each generation."""

    joined: dict[int, JoinResult] = field(default_factory=dict)
    leaders: dict[int, frozenset[str]] = field(default_factory=dict)
    assigned: dict[tuple[int, str], bytes] = field(default_factory=dict)
    owner: dict[tuple[int, int], str] = field(default_factory=dict)

    def note(self, result: GroupResult, record: GroupRecord) -> None:
        if result.error is not None:
            return
        if isinstance(result, JoinResult):
            first = self.joined.setdefault(result.generation, result)
            assert (first.protocol, first.protocol_type) == (result.protocol, result.protocol_type)
            assert result.generation == record.generation
            if result.members:
                assert {one.member_id for one in result.members} == set(record.members)
        elif isinstance(result, SyncResult):
            self._note_assignment(result, record)

    def _note_assignment(self, result: SyncResult, record: GroupRecord) -> None:
        member = record.members[result.member_id]
        # A static member that came back assignment another id, and what the one before it had.
        who = member.instance_id or result.member_id
        known = self.assigned.setdefault((record.generation, who), result.assignment)
        assert known == result.assignment
        for partition in result.assignment:
            assert self.owner.setdefault((record.generation, partition), who) == who


class World:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.group = Group()
        self.stored = GroupRecord()
        self.now_ms = 0
        self.tickets = 0
        self.clients: list[Client] = []
        self.waiting: dict[int, Client | None] = {}
        self.responses = ResponseLog()
        self.counter = 0

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms, self.now_ms)

    def apply(self, step: Transition[Group]) -> None:
        assert step.group.record.generation >= self.group.record.generation
        self.group = step.group
        if step.to_store:
            self.stored = step.group.record
        for ticket, result in step.replies:
            client = self.waiting.pop(ticket)  # KeyError: answered twice
            self.responses.note(result, self.group.record)
            if client is not None and client.ticket == ticket:
                client.contact_ms = self.now_ms
                client.receive(result)
        self.check()

    def check(self) -> None:
        group, record = self.group, self.group.record
        members = set(record.members)
        assert (record.state is GroupState.EMPTY) == (not members)
        assert (record.leader in members) or (record.leader is None and not members)
        assert set(group.joining) | set(group.syncing) | set(group.unsynced) <= members
        assert sorted(self.waiting) == sorted([*group.joining.values(), *group.syncing.values()])
        assert not self.waiting or group.deadline_ms is not None, "every wait assignment an end"
        assert not group.joining or record.state is GroupState.PREPARING
        assert not group.syncing or record.state is GroupState.COMPLETING
        assert group.size == sum(member.size for member in record.members.values())
        names = Counter(name for one in record.members.values() for name in {known.name for known in one.protocols})
        assert dict(group.supported) == dict(names)
        instances = [member.instance_id for member in record.members.values() if member.instance_id]
        assert len(instances) == len(set(instances))
        if record.state in (GroupState.COMPLETING, GroupState.STABLE):
            assert names[record.protocol or ""] == len(members)

    # ── requests of clients ──────────────────────────────────────────────────────────────────────────────────────────

    def ticket_of(self, client: Client | None) -> int:
        self.tickets += 1
        self.waiting[self.tickets] = client
        return self.tickets

    def add_client(self) -> None:
        self.counter += 1
        names = self.rng.choice((("a",), ("a", "b"), ("b", "a")))
        protocols = tuple(MemberProtocol(name, b"%d" % self.counter) for name in names)
        instance = self.rng.choice((None, None, "i", "j"))
        self.clients.append(Client(self.counter, instance, self.rng.choice((3, 4, 9)), protocols))

    def join(self, client: Client) -> None:
        client.ticket = self.ticket_of(client)
        self.counter += 1
        request = JoinRequest(
            client.ticket,
            client.member_id,
            f"m{self.counter}",
            client.instance,
            "client",
            "/host",
            SESSION_MS,
            REBALANCE_MS,
            "consumer",
            client.protocols,
            client.version >= 4,
            client.version >= 9,
        )
        self.apply(classic_group.join(self.group, request, self.now, RULES))

    def sync(self, client: Client) -> None:
        client.ticket = self.ticket_of(client)
        assigned: dict[str, bytes] = {}
        if client.leader_response is not None:
            members = [one.member_id for one in client.leader_response.members]
            self.rng.shuffle(members)
            assigned = {member: bytes(range(index, PARTITIONS, len(members))) for index, member in enumerate(members)}
        request = SyncRequest(client.ticket, client.member_id, client.instance, client.generation, None, None, assigned)
        self.apply(classic_group.sync(self.group, request, self.now, RULES))

    def heartbeat(self, client: Client) -> None:
        error = classic_group.heartbeat(self.group.record, client.member_id, client.instance, client.generation)
        if error in (None, GroupError.REBALANCE_IN_PROGRESS):
            client.contact_ms = self.now_ms
        if error is not None:
            client.receive(SyncResult(error, client.member_id))

    def act(self, client: Client) -> None:
        """Sends the client's next request."""
        if client.ticket is not None:
            return
        if client.generation < 0:
            self.join(client)
        elif client.assignment is None:
            self.sync(client)
        else:
            self.heartbeat(client)

    # ── other events ─────────────────────────────────────────────────────────────────────────────────────────────────

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        heard = {client.member_id: client.contact_ms for client in self.clients}
        silent = [one for one in self.group.record.members if heard.get(one, 0) + SESSION_MS <= self.now_ms]
        self.apply(classic_group.expire(self.group, silent, self.now))
        self.apply(classic_group.tick(self.group, self.now, RULES))

    def crash(self) -> None:
        """Replaces the coordinator: the next one has the stored record, and clients send their requests again."""
        self.group = classic_group.resumed(self.stored, self.now)
        for client in self.clients:
            client.contact_ms = self.now_ms
            client.ticket = None
        self.waiting.clear()
        self.check()

    def send_invalid_requests(self) -> None:
        before = self.group
        member_id = self.rng.choice([*self.group.record.members, "unknown"])
        wrong = self.group.record.generation + self.rng.choice((-1, 1))
        invalid = SyncRequest(self.ticket_of(None), member_id, None, wrong, None, None, {"x": b"\0"})
        self.apply(classic_group.sync(self.group, invalid, self.now, RULES))
        left = classic_group.leave(self.group, [LeavingMember("unknown"), LeavingMember("", "unknown")], self.now)
        self.apply(left.transition)
        other = JoinRequest(
            self.ticket_of(None), "", "x", None, "", "", SESSION_MS, 0, "connect", (MemberProtocol("z", b""),), False
        )
        if self.group.record.members:
            self.apply(classic_group.join(self.group, other, self.now, RULES))
        else:
            del self.waiting[other.ticket]
        assert self.group == before, "the state is untouched"

    def leave(self, client: Client) -> None:
        client.is_alive = False
        if client.member_id:
            self.apply(
                classic_group.leave(self.group, [LeavingMember(client.member_id, client.instance)], self.now).transition
            )

    def step(self) -> None:
        kind = self.rng.random()
        live = [client for client in self.clients if client.is_alive]
        if not live or (kind < 0.08 and len(live) < 5):
            self.add_client()
            return
        client = self.rng.choice(live)
        if kind < 0.11:
            self.leave(client)
        elif kind < 0.14:
            client.is_alive = False  # dies without leaving the group
        elif kind < 0.16:
            self.crash()
        elif kind < 0.20:
            self.send_invalid_requests()
        elif kind < 0.25 and client.ticket is not None:
            client.ticket = None  # gives up waiting, and sends the request again
        elif kind < 0.27:
            client.protocols = tuple(MemberProtocol(one.name, one.metadata + b"+") for one in client.protocols)
            client.generation, client.assignment = -1, None
        elif kind < 0.31 and client.ticket is None and client.assignment is not None:
            self.sync(client)  # a duplicate, maybe with another assignment of the leader, which must be ignored
        elif kind < 0.45:
            self.pass_time(self.rng.choice((100, 300, 1_000, 5_000, REBALANCE_MS)))
        else:
            self.act(client)

    def finish(self) -> None:
        """Lets live clients complete their requests. Of two clients with one instance id, the older one is fenced."""
        for _ in range(300):
            for client in self.clients:
                if client.is_alive:
                    self.act(client)
            self.pass_time(500)


@given(st.integers(0, 2**32), st.integers(10, 150))
def test_members_agree_on_each_generation_and_share_partitions_at_the_end(seed: int, steps: int) -> None:
    world = World(random.Random(seed))
    for _ in range(steps):
        world.step()
    world.finish()
    live = [client for client in world.clients if client.is_alive]
    record = world.group.record
    assert {client.member_id for client in live} == set(record.members)
    assert {client.generation for client in live} <= {record.generation}
    assert record.state is (GroupState.STABLE if live else GroupState.EMPTY)
    shares = [partition for client in live for partition in client.assignment or ()]
    assert sorted(shares) == (list(range(PARTITIONS)) if live else [])
