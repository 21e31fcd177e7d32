"""Groups of the classic protocol with clients as they are: they come, go, die, lose answers, ask twice, talk nonsense;
coordinators die with all that they have not stored. A plain book is kept of what everybody was told:

- of a generation everybody hears the same, one of them leads, and it is told of all members that there are;
- in a generation everybody has what its leader gave it, whoever asks, however often: no partition has two owners;
- generations only go forward; nobody is answered twice, nobody waits in vain, and nobody waits without an end;
- when all is quiet, everybody who lives is in, and has its share.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from lakestream.coordination.groups import classic
from lakestream.coordination.groups.refusals import Refusal
from lakestream.coordination.groups.values import (
    Answer,
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
from lakestream.metadata.groups import GroupRecord, Protocol, State

RULES = Rules(opening_ms=300, members_max=6)
SESSION_MS, REBALANCE_MS = 10_000, 30_000
PARTITIONS = 7


@dataclass(eq=False)
class Client:
    number: int
    instance: str | None
    version: int
    protocols: tuple[Protocol, ...]
    member_id: str = ""
    generation: int = -1
    ticket: int | None = None
    has: frozenset[int] | None = None
    leads: Joined | None = None
    heard_ms: int = 0
    lives: bool = True

    def hears(self, answer: Answer) -> None:
        self.ticket = None
        if answer.refusal is Refusal.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif answer.refusal is Refusal.FENCED_INSTANCE_ID:
            self.lives = False
        elif answer.refusal is Refusal.UNKNOWN_MEMBER_ID:
            self.member_id, self.generation, self.has = "", -1, None
        elif answer.refusal is not None:
            self.generation, self.has = -1, None
        elif isinstance(answer, Joined):
            self.member_id, self.generation, self.has = answer.member_id, answer.generation, None
            self.leads = answer if answer.leader == answer.member_id and not answer.skip_assignment else None
        elif isinstance(answer, Synced):
            self.has = frozenset(answer.assignment)


@dataclass
class Book:
    """What was told of each generation."""

    joined: dict[int, Joined] = field(default_factory=dict)
    led: dict[int, frozenset[str]] = field(default_factory=dict)
    given: dict[tuple[int, str], bytes] = field(default_factory=dict)
    owner: dict[tuple[int, int], str] = field(default_factory=dict)

    def note(self, answer: Answer, record: GroupRecord) -> None:
        if answer.refusal is not None:
            return
        if isinstance(answer, Joined):
            first = self.joined.setdefault(answer.generation, answer)
            assert (first.protocol, first.protocol_type) == (answer.protocol, answer.protocol_type)
            assert answer.generation == record.generation
            if answer.members:
                assert {one.member_id for one in answer.members} == set(record.members)
        elif isinstance(answer, Synced):
            self._note_share(answer, record)

    def _note_share(self, answer: Synced, record: GroupRecord) -> None:
        member = record.members[answer.member_id]
        # A static member that came back has another id, and what the one before it had.
        who = member.instance_id or answer.member_id
        known = self.given.setdefault((record.generation, who), answer.assignment)
        assert known == answer.assignment
        for partition in answer.assignment:
            assert self.owner.setdefault((record.generation, partition), who) == who


class World:
    def __init__(self, luck: random.Random) -> None:
        self.luck = luck
        self.group = Group()
        self.stored = GroupRecord()
        self.now_ms = 0
        self.tickets = 0
        self.clients: list[Client] = []
        self.waiting: dict[int, Client | None] = {}
        self.book = Book()
        self.made = 0

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms, self.now_ms)

    def take(self, step: Step[Group]) -> None:
        assert step.group.record.generation >= self.group.record.generation
        self.group = step.group
        if step.to_store:
            self.stored = step.group.record
        for ticket, answer in step.told:
            client = self.waiting.pop(ticket)  # KeyError: answered twice
            self.book.note(answer, self.group.record)
            if client is not None and client.ticket == ticket:
                client.heard_ms = self.now_ms
                client.hears(answer)
        self.check()

    def check(self) -> None:
        group, record = self.group, self.group.record
        members = set(record.members)
        assert (record.state is State.EMPTY) == (not members)
        assert (record.leader in members) or (record.leader is None and not members)
        assert set(group.joining) | set(group.syncing) | set(group.unsynced) <= members
        assert sorted(self.waiting) == sorted([*group.joining.values(), *group.syncing.values()])
        assert not self.waiting or group.deadline_ms is not None, "every wait has an end"
        assert not group.joining or record.state is State.PREPARING
        assert not group.syncing or record.state is State.COMPLETING
        assert group.size == sum(member.size for member in record.members.values())
        names = Counter(name for one in record.members.values() for name in {known.name for known in one.protocols})
        assert dict(group.supported) == dict(names)
        instances = [member.instance_id for member in record.members.values() if member.instance_id]
        assert len(instances) == len(set(instances))
        if record.state in (State.COMPLETING, State.STABLE):
            assert names[record.protocol or ""] == len(members)

    # ── what clients do ──────────────────────────────────────────────────────────────────────────────────────────────

    def ticket_of(self, client: Client | None) -> int:
        self.tickets += 1
        self.waiting[self.tickets] = client
        return self.tickets

    def come(self) -> None:
        self.made += 1
        names = self.luck.choice((("a",), ("a", "b"), ("b", "a")))
        protocols = tuple(Protocol(name, b"%d" % self.made) for name in names)
        instance = self.luck.choice((None, None, "i", "j"))
        self.clients.append(Client(self.made, instance, self.luck.choice((3, 4, 9)), protocols))

    def join(self, client: Client) -> None:
        client.ticket = self.ticket_of(client)
        self.made += 1
        wish = Join(
            client.ticket,
            client.member_id,
            f"m{self.made}",
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
        self.take(classic.join(self.group, wish, self.now, RULES))

    def sync(self, client: Client) -> None:
        client.ticket = self.ticket_of(client)
        given: dict[str, bytes] = {}
        if client.leads is not None:
            members = [one.member_id for one in client.leads.members]
            self.luck.shuffle(members)
            given = {one: bytes(range(place, PARTITIONS, len(members))) for place, one in enumerate(members)}
        wish = Sync(client.ticket, client.member_id, client.instance, client.generation, None, None, given)
        self.take(classic.sync(self.group, wish, self.now, RULES))

    def beat(self, client: Client) -> None:
        refusal = classic.heartbeat(self.group.record, client.member_id, client.instance, client.generation)
        if refusal in (None, Refusal.REBALANCE_IN_PROGRESS):
            client.heard_ms = self.now_ms
        if refusal is not None:
            client.hears(Synced(refusal, client.member_id))

    def act(self, client: Client) -> None:
        """What a client does next."""
        if client.ticket is not None:
            return
        if client.generation < 0:
            self.join(client)
        elif client.has is None:
            self.sync(client)
        else:
            self.beat(client)

    # ── what else happens ────────────────────────────────────────────────────────────────────────────────────────────

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        heard = {client.member_id: client.heard_ms for client in self.clients}
        silent = [one for one in self.group.record.members if heard.get(one, 0) + SESSION_MS <= self.now_ms]
        self.take(classic.expire(self.group, silent, self.now))
        self.take(classic.tick(self.group, self.now, RULES))

    def crash(self) -> None:
        """The coordinator dies; the next one has what was stored. Clients ask again."""
        self.group = classic.resumed(self.stored, self.now)
        for client in self.clients:
            client.heard_ms = self.now_ms
            client.ticket = None
        self.waiting.clear()
        self.check()

    def talk_nonsense(self) -> None:
        before = self.group
        who = self.luck.choice([*self.group.record.members, "nobody"])
        wrong = self.group.record.generation + self.luck.choice((-1, 1))
        refused = Sync(self.ticket_of(None), who, None, wrong, None, None, {"x": b"\0"})
        self.take(classic.sync(self.group, refused, self.now, RULES))
        left = classic.leave(self.group, [Leaver("nobody"), Leaver("", "nothing")], self.now)
        self.take(left.step)
        other = Join(
            self.ticket_of(None), "", "x", None, "", "", SESSION_MS, 0, "connect", (Protocol("z", b""),), False
        )
        if self.group.record.members:
            self.take(classic.join(self.group, other, self.now, RULES))
        else:
            del self.waiting[other.ticket]
        assert self.group == before, "the state is untouched"

    def leave(self, client: Client) -> None:
        client.lives = False
        if client.member_id:
            self.take(classic.leave(self.group, [Leaver(client.member_id, client.instance)], self.now).step)

    def step(self) -> None:
        kind = self.luck.random()
        living = [client for client in self.clients if client.lives]
        if not living or (kind < 0.08 and len(living) < 5):
            self.come()
            return
        client = self.luck.choice(living)
        if kind < 0.11:
            self.leave(client)
        elif kind < 0.14:
            client.lives = False  # it dies, and says nothing
        elif kind < 0.16:
            self.crash()
        elif kind < 0.20:
            self.talk_nonsense()
        elif kind < 0.25 and client.ticket is not None:
            client.ticket = None  # it gives up on the answer, and asks again
        elif kind < 0.27:
            client.protocols = tuple(Protocol(one.name, one.metadata + b"+") for one in client.protocols)
            client.generation, client.has = -1, None
        elif kind < 0.31 and client.ticket is None and client.has is not None:
            self.sync(client)  # once more: a leader may have changed its mind, which is too late
        elif kind < 0.45:
            self.pass_time(self.luck.choice((100, 300, 1_000, 5_000, REBALANCE_MS)))
        else:
            self.act(client)

    def calm_down(self) -> None:
        """Those who live do what they should. Of two with one instance id the older ends."""
        for _ in range(300):
            for client in self.clients:
                if client.lives:
                    self.act(client)
            self.pass_time(500)


@given(st.integers(0, 2**32), st.integers(10, 150))
def test_whatever_happens_everybody_hears_the_same(seed: int, steps: int) -> None:
    world = World(random.Random(seed))
    for _ in range(steps):
        world.step()
    world.calm_down()
    living = [client for client in world.clients if client.lives]
    record = world.group.record
    assert {client.member_id for client in living} == set(record.members)
    assert {client.generation for client in living} <= {record.generation}
    assert record.state is (State.STABLE if living else State.EMPTY)
    shares = [partition for client in living for partition in client.has or ()]
    assert sorted(shares) == (list(range(PARTITIONS)) if living else [])
