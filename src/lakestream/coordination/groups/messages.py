"""Requests and results of groups of both protocols, and the state of a group between two requests.

Used by classic_group.py and consumer_group.py, which compute transitions, and by group_runtime.py, which adds the
clock, the store and the waiting requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from lakestream.coordination.groups.errors import GroupError
from lakestream.coordination.groups.topics_image import TopicsImage
from lakestream.metadata.group_records import ConsumerGroupRecord, GroupRecord, MemberProtocol, Partitions

Ticket: TypeAlias = int
"""Identifies a request that waits for its result."""


class Instant(NamedTuple):
    ms: int
    """Of the monotonic clock, for deadlines."""
    wall_ms: int
    """Of the wall clock, for what is stored."""


class JoinRequest(NamedTuple):
    ticket: Ticket
    member_id: str
    """Empty for a new member without an id."""
    new_id: str
    """The id that a new member gets."""
    instance_id: str | None
    client_id: str
    host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    requires_known_member_id: bool = True
    """The client expects MEMBER_ID_REQUIRED with its new id, and joins again with that id."""
    supports_skipping_assignment: bool = True
    """A leader of this client version accepts a response that has it assign nothing."""


class SyncRequest(NamedTuple):
    ticket: Ticket
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


class LeavingMember(NamedTuple):
    member_id: str
    instance_id: str | None = None


class MemberSubscription(NamedTuple):
    """A member as the leader receives it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    error: GroupError | None
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[MemberSubscription, ...] = ()
    """For the leader only: the members it assigns partitions to."""
    skip_assignment: bool = False


class SyncResult(NamedTuple):
    error: GroupError | None
    member_id: str
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


# ── the consumer protocol (KIP-848) ──────────────────────────────────────────────────────────────────────────────────

JOIN: Final = 0
LEAVE: Final = -1
LEAVE_STATIC: Final = -2
"""Epoch of a static member that leaves for a while: it rejoins with another member id and gets its partitions back."""
UNCHANGED_MS: Final = -1


class HeartbeatRequest(NamedTuple):
    """A ConsumerGroupHeartbeat. Fields that are None have not changed since the member's last heartbeat."""

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


class HeartbeatResult(NamedTuple):
    error: GroupError | None
    member_id: str
    epoch: int = LEAVE
    assigned: Partitions | None = None
    """None if the member has received this assignment already."""


class PendingHeartbeat(NamedTuple):
    """A request of a member that waits for its next step towards the target."""

    ticket: Ticket
    member_id: str
    owned: Partitions | None
    """The partitions that the member reports as its own; None if unchanged."""
    last_assigned: Partitions | None = None
    """The assignment that the member received last; None if it received none."""
    is_full: bool = False
    is_classic_join: bool = False
    """The member uses the classic protocol and gets a JoinResult."""


# ── both protocols ───────────────────────────────────────────────────────────────────────────────────────────────────

GroupResult: TypeAlias = JoinResult | SyncResult | HeartbeatResult


class Reply(NamedTuple):
    ticket: Ticket
    result: GroupResult


class InitialRebalanceDelay(NamedTuple):
    """The wait of an empty group for more members. Each new member extends it, up to a limit."""

    remaining_ms: int
    has_new_members: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group of the classic protocol: its stored record, and its coordinator's waiting requests and deadlines."""

    record: GroupRecord = field(default_factory=GroupRecord)
    joining: Mapping[str, Ticket] = field(default_factory=dict)
    syncing: Mapping[str, Ticket] = field(default_factory=dict)
    unsynced: frozenset[str] = frozenset()
    """Members that have not requested their assignment of this generation yet."""
    pending: Mapping[str, int] = field(default_factory=dict)
    """Member ids that clients received but have not joined with, and the deadline to join with each."""
    deadline_ms: int | None = None
    """Members that have not joined, or not requested their assignment, by then are removed."""
    initial_delay: InitialRebalanceDelay | None = None
    supported: Mapping[str, int] = field(default_factory=dict)
    """Number of members that support each protocol."""
    size: int = 0
    """Bytes of the members' metadata and assignments."""

    @property
    def next_deadline_ms(self) -> int | None:
        return min((ms for ms in (self.deadline_ms, *self.pending.values()) if ms is not None), default=None)

    def has_waiting_request(self, member_id: str) -> bool:
        """Such a member is alive, although it sends no heartbeats."""
        return member_id in self.joining or member_id in self.syncing


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroup:
    """A group of the consumer protocol: its stored record, and its coordinator's waiting requests and deadlines."""

    record: ConsumerGroupRecord = field(default_factory=ConsumerGroupRecord)
    image: TopicsImage | None = None
    """The topics against which the target was checked last."""
    pending_heartbeats: tuple[PendingHeartbeat, ...] = ()
    deadlines_ms: Mapping[str, int] = field(default_factory=dict)
    """When a member must have revoked its partitions; a member of the classic protocol: when it must have joined
    again, or requested its assignment."""
    size: int = 0
    """Bytes of the members' metadata."""

    @property
    def next_deadline_ms(self) -> int | None:
        return min(self.deadlines_ms.values(), default=None)

    def has_waiting_request(self, member_id: str) -> bool:
        return False  # no request waits for other members here


AnyGroup: TypeAlias = Group | ConsumerGroup
G = TypeVar("G", bound=AnyGroup, covariant=True)


class Transition(NamedTuple, Generic[G]):
    """A group after a request or a timeout, and the replies that follow from it."""

    group: G
    replies: tuple[Reply, ...]
    to_store: bool = False
    """No reply may be sent before this state is stored."""


class LeaveTransition(NamedTuple, Generic[G]):
    transition: Transition[G]
    errors: tuple[GroupError | None, ...]
    """One per leaving member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    session_ms_min: int = 6_000
    session_ms_max: int = 30 * 60 * 1000
    initial_delay_ms: int = 200
    """How long an empty group waits for more members. Kafka's brokers wait 3 s."""
    members_max: int = 10_000
    session_ms: int = 45_000
    """For members of the consumer protocol: group.consumer.session.timeout.ms."""
    bytes_max: int = 1_500_000
    """Of one stored group: a record of this size fits into every metadata store."""
