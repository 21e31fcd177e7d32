"""What handlers work with: the parts of a broker that a request may need."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lakestream.clock import Clock, Ids
from lakestream.coordination.admission import Admission
from lakestream.coordination.cluster import ClusterView
from lakestream.coordination.groups.coordinator import Groups
from lakestream.coordination.transactions.coordinator import TransactionCoordinator
from lakestream.data.log.log import Log
from lakestream.metadata.brokers import Broker
from lakestream.metadata.claims import Claims
from lakestream.metadata.cluster import Cluster
from lakestream.metadata.topics import Topics
from lakestream.protocol.kafka.deadlines import Deadlines
from lakestream.protocol.kafka.unreadable import Unreadable
from lakestream.schemas.terms import Term
from lakestream.settings import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    default_partitions: int = 4
    auto_create_topics: bool = True
    partitions_max: int = 100_000  # of one topic
    profiles: frozenset[Profile] = frozenset(Profile)  # those that topics may choose here
    transaction_timeout_ms_max: int = 15 * 60 * 1000
    retention_round_ms: int = 5 * 60 * 1000  # every partition is held against its topic's retention this often


async def _nothing_against_it(topic_id: str, *_: object) -> None:
    """Where there are no tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    log: Log
    topics: Topics
    claims: Claims
    view: ClusterView
    groups: Groups
    transactions: TransactionCoordinator
    cluster: Cluster
    cluster_id: str
    who: Callable[[], Broker]
    clock: Clock
    ids: Ids
    settings: BrokerSettings
    topic_made: Callable[[str, str, Mapping[str, str]], Awaitable[None]]
    """There is a new topic with this name, id and settings: its table's name is to be free for it."""
    drop_table: Callable[[str], Awaitable[None]]
    """Of the topic with this id, and its files."""
    check_delta: Callable[[str], Awaitable[None]] = _nothing_against_it
    """Misconfigured: the table of the topic with this id cannot be a Delta table too."""
    check_terms: Callable[[str, Sequence[Term], Sequence[Term]], Awaitable[None]] = _nothing_against_it
    """Misconfigured: the table of the topic with this id cannot be partitioned, or sorted, by these."""
    admission: Admission | None = None
    """Whether records are what their topics say; None: nobody looks."""
    unreadable: Unreadable = field(init=False)
    deadlines: Deadlines = field(init=False, default_factory=Deadlines)
    """Of produce requests that wait for their offsets."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "unreadable", Unreadable(self.view.name_of, self.clock))

    @property
    def me(self) -> Broker:
        """This broker as it is registered now: its node id may have changed since the last look."""
        return self.who()
