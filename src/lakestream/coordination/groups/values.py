"""The nouns of both protocols: what members ask, what they are told, and a group between the two.

Used by classic.py and consumer.py, which decide; held.py has the clock, the store and those who wait.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from lakestream.coordination.groups.landscape import Landscape
from lakestream.coordination.groups.refusals import Refusal
from lakestream.metadata.group_records import ConsumerGroupRecord, GroupRecord, Partitions, Protocol

Ticket: TypeAlias = int
"""Stands for somebody who waits for an answer."""


class Instant(NamedTuple):
    ms: int
    """Of a clock that only goes forward: for waits."""
    wall_ms: int
    """What is written down."""


class Join(NamedTuple):
    ticket: Ticket
    member_id: str
    """Empty: it has none yet."""
    new_id: str
    """What it will be called if it is new."""
    instance_id: str | None
    client_id: str
    host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    asks_id_first: bool = True
    """It knows that it may be told its id and sent away, to come again with it."""
    may_skip: bool = True
    """It knows that a leader may be told to assign nothing."""


class Sync(NamedTuple):
    ticket: Ticket
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


class Leaver(NamedTuple):
    member_id: str
    instance_id: str | None = None


class Present(NamedTuple):
    """A member, as its leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(NamedTuple):
    refusal: Refusal | None
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[Present, ...] = ()
    """For the leader only: to each of them it will assign something."""
    skip_assignment: bool = False


class Synced(NamedTuple):
    refusal: Refusal | None
    member_id: str
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


# ── the new protocol ─────────────────────────────────────────────────────────────────────────────────────────────────

JOIN: Final = 0
LEAVE: Final = -1
LEAVE_FOR_A_WHILE: Final = -2
"""Of a static member: it comes back under another id and finds its partitions."""
UNCHANGED_MS: Final = -1


class Beat(NamedTuple):
    """A heartbeat of the new protocol. What is None did not change since the last one."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    host: str = ""
    rebalance_ms: int = UNCHANGED_MS
    names: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    ticket: Ticket = 0

    @property
    def is_full(self) -> bool:
        subscribed = self.names is not None or self.pattern is not None
        return self.epoch == JOIN or (self.rebalance_ms != UNCHANGED_MS and subscribed and self.owned is not None)


class Beaten(NamedTuple):
    refusal: Refusal | None
    member_id: str
    epoch: int = LEAVE
    assigned: Partitions | None = None
    """None: as the member knows it."""


class Asked(NamedTuple):
    """Who waits for its next step towards the target."""

    ticket: Ticket
    member_id: str
    owned: Partitions | None
    """What it says it has."""
    knew: Partitions | None = None
    """What it was told last; None: nothing."""
    wants_all: bool = False
    joins: bool = False
    """It speaks the classic protocol, and is told what a JoinGroup is told."""


# ── both ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

Answer: TypeAlias = Joined | Synced | Beaten


class Told(NamedTuple):
    ticket: Ticket
    answer: Answer


class Opening(NamedTuple):
    """An empty group waits a little for more members, a little more with each that comes, but not for ever."""

    left_ms: int
    newcomers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What is stored, and what only its coordinator knows: who waits, and until when."""

    record: GroupRecord = field(default_factory=GroupRecord)
    joining: Mapping[str, Ticket] = field(default_factory=dict)
    syncing: Mapping[str, Ticket] = field(default_factory=dict)
    unsynced: frozenset[str] = frozenset()
    """Members that have not asked yet for what they have in this generation."""
    pending: Mapping[str, int] = field(default_factory=dict)
    """Ids that were given out, and until when somebody may come with them."""
    deadline_ms: int | None = None
    """Who has not joined, or not asked for its assignment, by then is out."""
    opening: Opening | None = None
    supported: Mapping[str, int] = field(default_factory=dict)
    """How many members know a protocol."""
    size: int = 0
    """Bytes of what members say of themselves, and of their assignments."""

    @property
    def next_deadline_ms(self) -> int | None:
        return min((ms for ms in (self.deadline_ms, *self.pending.values()) if ms is not None), default=None)

    def awaits(self, member_id: str) -> bool:
        """It waits for an answer, so it is there."""
        return member_id in self.joining or member_id in self.syncing


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroup:
    """A group of the new protocol: what is stored, and what only its coordinator knows."""

    record: ConsumerGroupRecord = field(default_factory=ConsumerGroupRecord)
    landscape: Landscape | None = None
    """The topics for which the target was looked at last."""
    asking: tuple[Asked, ...] = ()
    until: Mapping[str, int] = field(default_factory=dict)
    """By when a member has to have given back what it should; one that speaks the classic protocol: to have joined
    again, or to have asked for its assignment."""
    size: int = 0
    """Bytes of what members say of themselves."""

    @property
    def next_deadline_ms(self) -> int | None:
        return min(self.until.values(), default=None)

    def awaits(self, member_id: str) -> bool:
        return False  # nobody waits for others here


AnyGroup: TypeAlias = Group | ConsumerGroup
G = TypeVar("G", bound=AnyGroup, covariant=True)


class Step(NamedTuple, Generic[G]):
    group: G
    told: tuple[Told, ...]
    to_store: bool = False
    """Nobody may hear of this step before it is stored."""


class Left(NamedTuple, Generic[G]):
    step: Step[G]
    refusals: tuple[Refusal | None, ...]
    """One for each who leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    session_ms_min: int = 6_000
    session_ms_max: int = 30 * 60 * 1000
    opening_ms: int = 200
    """How long an empty group waits for more members. Kafka's brokers wait 3 s."""
    members_max: int = 10_000
    session_ms: int = 45_000
    """Of members that speak the new protocol: group.consumer.session.timeout.ms."""
    bytes_max: int = 1_500_000
    """Of what is stored of one group: a record that every metadata store can take."""
