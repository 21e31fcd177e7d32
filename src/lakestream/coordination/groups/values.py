"""The nouns of the classic protocol: what members ask, what they are told, and a group between the two.

Used by classic.py, which decides; held.py has the clock, the store and those who wait.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from lakestream.coordination.groups.refusals import Refusal
from lakestream.metadata.groups import GroupRecord, Protocol

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


Answer: TypeAlias = Joined | Synced


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


class Step(NamedTuple):
    group: Group
    told: tuple[Told, ...]
    to_store: bool = False
    """Nobody may hear of this step before it is stored."""


class Left(NamedTuple):
    step: Step
    refusals: tuple[Refusal | None, ...]
    """One for each who leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    session_ms_min: int = 6_000
    session_ms_max: int = 30 * 60 * 1000
    opening_ms: int = 200
    """How long an empty group waits for more members. Kafka's brokers wait 3 s."""
    members_max: int = 10_000
    bytes_max: int = 1_500_000
    """Of what is stored of one group: a record that every metadata store can take."""
