"""A broker: a node that serves Kafka clients and is registered in the metadata store."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from msgspec.structs import replace

from lakestream.aio.progress import reported
from lakestream.catalog.delta.schema import check_delta
from lakestream.catalog.operations.create_topic_table import topic_created, topic_deleted
from lakestream.catalog.operations.update_layout import check_terms
from lakestream.catalog.purge import PurgeTask
from lakestream.clock import Clock, Ids, RandomIds, SystemClock
from lakestream.config.parsing import cannot_listen, format_address, parse_address
from lakestream.config.settings import Profile, Settings
from lakestream.coordination import topic_config
from lakestream.coordination.broker_registration import BrokerRegistration
from lakestream.coordination.groups.coordinator import GroupCoordinator, GroupSettings
from lakestream.coordination.groups.messages import GroupLimits
from lakestream.coordination.groups.offset_expiration import OffsetExpiration
from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.coordination.retention import Retention
from lakestream.coordination.transactions.coordinator import TransactionCoordinator
from lakestream.coordination.validation.record_validator import RecordValidator
from lakestream.coordination.validation.schema_validation import SchemaValidator
from lakestream.errors import LakestreamError, Misconfigured
from lakestream.metadata.brokers import Broker
from lakestream.metadata.cluster import Cluster, ConfigStore, NodeIds
from lakestream.model import PartitionId
from lakestream.protocol.kafka import handlers  # noqa: F401 -- the import registers them
from lakestream.protocol.kafka.dispatch import Dispatcher
from lakestream.protocol.kafka.network.limits import ServerSettings
from lakestream.protocol.kafka.network.request_metrics import RequestCounts
from lakestream.protocol.kafka.network.server import KafkaServer
from lakestream.protocol.kafka.services import BrokerSettings, HandlerContext
from lakestream.server.gc_task import GcTask
from lakestream.server.node import Node, open_node

log = logging.getLogger(__name__)

LOADING: Final = "loading the kernels, or compiling them at the first start"
ALL_ADDRESSES: Final = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBroker:
    node: Node
    services: HandlerContext
    server: KafkaServer
    counts: RequestCounts
    registration: BrokerRegistration
    purging: PurgeTask
    kafka: str
    """Address on which it listens."""


@asynccontextmanager
async def open_broker(
    settings: Settings, clock: Clock | None = None, ids: Ids | None = None
) -> AsyncIterator[RunningBroker]:
    """Opens a broker. The end of the block stops it, after it has sent the responses to accepted requests."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    topics = _CachedTopics(settings.default_profile)
    async with AsyncExitStack() as opened:
        validator = RecordValidator()
        opened.push_async_callback(validator.close)
        loading = asyncio.get_running_loop().create_task(validator.load(), name="broker.load")
        opened.push_async_callback(_ended, loading)
        node = await opened.enter_async_context(open_node(settings, clock, ids, topics.profile_of, topics.evict))
        metadata_cache = topics.cache = MetadataCache(node.stores.metadata)
        await metadata_cache.start()
        opened.push_async_callback(metadata_cache.close)
        cluster = Cluster(node.stores.metadata, ids)
        registration = BrokerRegistration(node.stores.metadata)
        transactions = TransactionCoordinator(
            node.stores.metadata, node.log, metadata_cache, registration, cluster, clock
        )
        node.log.set_transaction_check(transactions.transaction_of)
        opened.push_async_callback(transactions.close)  # after the server: completes decided transactions
        schema_validator = SchemaValidator(node.stores.metadata, clock)
        opened.push_async_callback(schema_validator.close)  # after the server: fails waiting requests
        server = KafkaServer(ServerSettings())
        host, port = await _bound(server, settings.kafka)
        opened.push_async_callback(server.stop)
        advertised = _advertised(settings, host, port)
        node_id = await NodeIds(node.stores.metadata).of(f"{advertised.host}:{advertised.port}")
        with reported(LOADING):
            await loading
        # From the registration on, clients are directed to this broker: it must accept them immediately after.
        opened.push_async_callback(registration.close)
        await registration.start(replace(advertised, node_id=node_id))
        purging = PurgeTask(node.catalog, node.stores.metadata, node.stores.objects)
        purging.start()
        opened.push_async_callback(purging.close)
        services = await _services(
            *(node, metadata_cache, registration, purging, cluster, transactions, schema_validator, validator),
            settings,
            clock,
            ids,
        )
        transactions.start()
        services.groups.start()
        # Closed before the registration: the members of its groups are sent to the other brokers.
        opened.push_async_callback(services.groups.close)
        expiry = OffsetExpiration(services.groups, metadata_cache, clock, services.transactions.pending)
        expiry.start()
        opened.push_async_callback(expiry.close)
        retention = Retention(
            node.log,
            metadata_cache,
            lambda: registration.broker.node_id,
            clock,
            services.initial_settings.retention_interval_ms,
        )
        retention.start()
        opened.push_async_callback(retention.close)
        gc_task = GcTask(
            node.garbage_collector,
            metadata_cache,
            lambda: registration.broker.node_id,
            settings.log.wal.sweep_interval_ms,
        )
        gc_task.start()
        opened.push_async_callback(gc_task.close)
        dispatcher = Dispatcher(services)
        await server.serve(dispatcher.handle)
        warming = asyncio.get_running_loop().create_task(_warm(node), name="broker.warm")
        opened.push_async_callback(_ended, warming)
        yield RunningBroker(
            node=node,
            services=services,
            server=server,
            counts=dispatcher.counts,
            registration=registration,
            purging=purging,
            kafka=format_address(host, port),
        )


async def _services(
    node: Node,
    metadata_cache: MetadataCache,
    registration: BrokerRegistration,
    purging: PurgeTask,
    cluster: Cluster,
    transactions: TransactionCoordinator,
    schema_validator: SchemaValidator,
    validator: RecordValidator,
    settings: Settings,
    clock: Clock,
    ids: Ids,
) -> HandlerContext:
    metadata = node.stores.metadata
    await metadata_cache.refresh_brokers()
    return HandlerContext(
        log=node.log,
        topics=node.topics,
        metadata_cache=metadata_cache,
        groups=GroupCoordinator(metadata, metadata_cache, registration, clock, ids, _group_settings(settings)),
        transactions=transactions,
        cluster=cluster,
        cluster_id=await cluster.id(),
        registration=registration,
        clock=clock,
        ids=ids,
        configs=ConfigStore(metadata),
        initial_settings=BrokerSettings(
            default_partitions=settings.default_partitions,
            auto_create_topics=settings.auto_create_topics,
            transaction_timeout_ms_max=settings.transaction_timeout_max_ms,
            profiles=frozenset(Profile if settings.segments_dir is not None else [Profile.COST]),
        ),
        on_topic_created=partial(topic_created, node.catalog),
        drop_table=partial(_drop_table, node, purging),
        table_size=node.catalog.pointers.size_of,
        check_delta=partial(check_delta, node.catalog),
        check_terms=partial(check_terms, node.catalog),
        schema_validator=schema_validator,
        validator=validator,
    )


def _group_settings(settings: Settings) -> GroupSettings:
    if settings.session_timeout_min_ms > settings.session_timeout_max_ms:
        raise Misconfigured("--session-timeout-min is above --session-timeout-max, so no member could join: lower it")
    return GroupSettings(
        offsets_retention_ms=settings.offsets_retention_ms,
        limits=GroupLimits(
            initial_delay_ms=settings.rebalance_delay_ms,
            session_ms_min=settings.session_timeout_min_ms,
            session_ms_max=settings.session_timeout_max_ms,
        ),
    )


async def _drop_table(node: Node, purging: PurgeTask, topic_id: str) -> None:
    await topic_deleted(node.catalog, topic_id, drop=True)
    purging.wake()


async def _warm(node: Node) -> None:
    with suppress(LakestreamError):  # the first read retries, and fails with the error
        await node.history.warm()


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


class _CachedTopics:
    """Access of the log to the metadata cache, which is opened after the log."""

    def __init__(self, default: Profile) -> None:
        self._default = default
        self.cache: MetadataCache | None = None

    def evict(self, partition: PartitionId) -> None:
        if self.cache is not None:
            self.cache.evict_topic_of(partition)

    def profile_of(self, partition: PartitionId) -> Profile:
        name = None if self.cache is None else self.cache.cached_name(partition.topic_id)
        topic = None if self.cache is None or name is None else self.cache.cached_topic(name)
        return (topic_config.read(topic.settings).profile if topic else None) or self._default


async def _bound(server: KafkaServer, address: str) -> tuple[str, int]:
    host, port = parse_address(address, "--kafka")
    try:
        return await server.bind(host, port)
    except OSError as error:
        raise cannot_listen(address, error, "choose another with --kafka") from error


def _advertised(settings: Settings, host: str, port: int) -> Broker:
    if settings.advertise:
        return Broker(0, *parse_address(settings.advertise, "--advertise", port), settings.zone)
    if host in ALL_ADDRESSES:
        log.warning(
            "broker.loopback_advertised listens=%s advertised=127.0.0.1:%d: clients on other machines cannot connect:"
            " set --advertise HOST[:PORT]",
            *(format_address(host, port), port),
        )
        return Broker(0, "127.0.0.1", port, settings.zone)
    return Broker(0, host, port, settings.zone)
