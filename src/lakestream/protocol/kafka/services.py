"""Contexts of the handlers: one for each folder of handlers, with the parts of the broker that they use.

The broker creates one `HandlerContext` with the fields of all contexts, and passes it to every handler. A handler
declares only the context of its folder, so the type checker rejects the use of other fields.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lakestream.catalog.pointers import NO_ROWS, TableSize
from lakestream.clock import Clock, Ids
from lakestream.config.settings import Profile
from lakestream.coordination.broker_registration import BrokerRegistration
from lakestream.coordination.dynamic_configs import broker_values
from lakestream.coordination.groups.coordinator import GroupCoordinator
from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.coordination.transactions.coordinator import TransactionCoordinator
from lakestream.coordination.validation.record_validator import RecordValidator
from lakestream.coordination.validation.schema_validation import SchemaValidator
from lakestream.data.log.log import Log
from lakestream.metadata.brokers import Broker
from lakestream.metadata.cluster import Cluster, ConfigStore
from lakestream.metadata.topics import Topics
from lakestream.protocol.kafka.network.request_metrics import ReadErrorCounter
from lakestream.protocol.kafka.network.timer_wheel import TimerWheel
from lakestream.schemas.layout_terms import Term


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    default_partitions: int = 4
    auto_create_topics: bool = True
    partitions_max: int = 100_000  # per topic
    profiles: frozenset[Profile] = frozenset(Profile)  # that topics may choose on this broker
    transaction_timeout_ms_max: int = 15 * 60 * 1000
    retention_interval_ms: int = 5 * 60 * 1000  # how often retention is applied to every partition

    def with_values(self, values: Mapping[str, Any]) -> "BrokerSettings":
        """Returns the settings with the values of broker configs."""
        fields = {field: values[name] for name, field in _BY_CONFIG.items() if name in values}
        return replace(self, **fields) if fields else self


_BY_CONFIG: Final = {
    "num.partitions": "default_partitions",
    "auto.create.topics.enable": "auto_create_topics",
    "transaction.max.timeout.ms": "transaction_timeout_ms_max",
}


async def _accept(topic_id: str, *_: object) -> None:
    """Accepts every setting. For brokers without tables."""


async def _no_table(topic_id: str) -> TableSize:
    return NO_ROWS


@dataclass(frozen=True, kw_only=True)
class BrokerContext:
    """Fields for all handlers."""

    registration: BrokerRegistration
    initial_settings: BrokerSettings
    metadata_cache: MetadataCache
    clock: Clock
    ids: Ids

    @property
    def broker(self) -> Broker:
        """Returns this broker as registered. Its node id may change when it registers again."""
        return self.registration.broker

    @property
    def settings(self) -> BrokerSettings:
        """Returns the settings with the broker configs that were altered since the start."""
        return self.initial_settings.with_values(broker_values(self.metadata_cache.configs, self.broker.node_id))


@dataclass(frozen=True, kw_only=True)
class TopicsContext(BrokerContext):
    topics: Topics
    on_topic_created: Callable[[str, str, Mapping[str, str]], Awaitable[None]]
    """Frees the table name of a new topic. Arguments: name, id and settings of the topic."""
    drop_table: Callable[[str], Awaitable[None]]
    """Drops the table of the topic with this id, and deletes its files."""


@dataclass(frozen=True, kw_only=True)
class ConfigsContext(BrokerContext):
    topics: Topics
    groups: GroupCoordinator
    configs: ConfigStore
    check_delta: Callable[[str], Awaitable[None]] = _accept
    """Raises Misconfigured if the table of the topic with this id cannot have a Delta table."""
    check_terms: Callable[[str, Sequence[Term], Sequence[Term]], Awaitable[None]] = _accept
    """Raises Misconfigured if the table of the topic with this id cannot have these partition and sort terms."""


@dataclass(frozen=True, kw_only=True)
class RecordsContext(BrokerContext):
    log: Log
    transactions: TransactionCoordinator
    validator: RecordValidator = field(default_factory=RecordValidator)
    schema_validator: SchemaValidator | None = None
    """Validates records against the schemas of their topics. None: topics with schemas are not validated."""
    read_errors: ReadErrorCounter = field(init=False)
    produce_timers: TimerWheel = field(init=False, default_factory=TimerWheel)

    def __post_init__(self) -> None:
        object.__setattr__(self, "read_errors", ReadErrorCounter(self.metadata_cache.cached_name, self.clock))


@dataclass(frozen=True, kw_only=True)
class GroupsContext(BrokerContext):
    groups: GroupCoordinator
    transactions: TransactionCoordinator


@dataclass(frozen=True, kw_only=True)
class TransactionsContext(GroupsContext):
    log: Log
    cluster: Cluster


@dataclass(frozen=True, kw_only=True)
class ClusterContext(TopicsContext):
    log: Log
    cluster_id: str
    table_size: Callable[[str], Coroutine[Any, Any, TableSize]] = _no_table
    """Returns the size of the table of the topic with this id, by one small read."""


@dataclass(frozen=True, kw_only=True)
class HandlerContext(ConfigsContext, RecordsContext, TransactionsContext, ClusterContext):
    """All contexts combined."""
