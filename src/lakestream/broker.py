"""A broker: a node that Kafka clients can reach, known to the others."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from lakestream.addresses import cannot_listen, parse_address, shown_address
from lakestream.catalog.arranging import check_terms
from lakestream.catalog.delta.choosing import check_delta
from lakestream.catalog.purge import Purging
from lakestream.catalog.topic_tables import topic_deleted, topic_made
from lakestream.clock import Clock, Ids, RandomIds, SystemClock
from lakestream.coordination import topic_settings
from lakestream.coordination.admission import Admission
from lakestream.coordination.cluster import ClusterView
from lakestream.coordination.groups.coordinator import Groups, GroupSettings
from lakestream.coordination.groups.expiry import Expiry
from lakestream.coordination.groups.values import Rules
from lakestream.coordination.registration import Registration
from lakestream.coordination.retention import Retention
from lakestream.coordination.transactions.coordinator import TransactionCoordinator
from lakestream.data.log.sweeper import Sweeper
from lakestream.errors import LakestreamError, Misconfigured
from lakestream.metadata.brokers import Broker
from lakestream.metadata.claims import Claims
from lakestream.metadata.cluster import Cluster
from lakestream.metadata.node_ids import NodeIds
from lakestream.model import PartitionId
from lakestream.node import Node, open_node
from lakestream.protocol.kafka import handlers  # noqa: F401 -- they enter themselves into the table
from lakestream.protocol.kafka.counts import RequestCounts
from lakestream.protocol.kafka.dispatch import Dispatcher
from lakestream.protocol.kafka.server import KafkaServer, ServerSettings
from lakestream.protocol.kafka.services import BrokerSettings, Services
from lakestream.settings import Profile, Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBroker:
    node: Node
    services: Services
    server: KafkaServer
    counts: RequestCounts
    registration: Registration
    purging: Purging
    kafka: str
    """Where it listens."""


@asynccontextmanager
async def open_broker(
    settings: Settings, clock: Clock | None = None, ids: Ids | None = None
) -> AsyncIterator[RunningBroker]:
    """A broker that serves; leaving the block stops it, after it has answered what it accepted."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    profiles = _Profiles(settings.default_profile)
    async with AsyncExitStack() as opened:
        node = await opened.enter_async_context(open_node(settings, clock, ids, profiles.of))
        view = profiles.view = ClusterView(node.stores.metadata)
        node.log.when_gone(view.forget_log)
        await view.start()
        opened.push_async_callback(view.close)
        cluster = Cluster(node.stores.metadata, ids)
        transactions = TransactionCoordinator(
            node.stores.metadata,
            node.log,
            view,
            lambda: registration.broker,
            lambda: registration.holds,
            cluster,
            clock,
        )
        node.log.when_transactional(transactions.transaction_of)
        opened.push_async_callback(transactions.close)  # after the server: what it has decided it ends
        admission = Admission(node.stores.metadata, clock)
        opened.push_async_callback(admission.close)  # after the server: who still waits is answered
        server = KafkaServer(ServerSettings())
        host, port = await _bound(server, settings.kafka)
        opened.push_async_callback(server.stop)
        me = _advertised(settings, host, port)
        node_id = await NodeIds(node.stores.metadata).of(f"{me.host}:{me.port}")
        registration = Registration(node.stores.metadata, replace(me, node_id=node_id))
        opened.push_async_callback(registration.close)
        await registration.start()
        purging = Purging(node.catalog, node.stores.metadata, node.stores.objects)
        purging.start()
        opened.push_async_callback(purging.close)
        services = await _services(
            *(node, view, registration, purging, cluster, transactions, admission), settings, clock, ids
        )
        transactions.start()
        services.groups.start()
        opened.push_async_callback(services.groups.close)  # before the others hear that it goes: members ask them then
        expiry = Expiry(services.groups, view, clock, services.transactions.pending)
        expiry.start()
        opened.push_async_callback(expiry.close)
        retention = Retention(
            node.log, view, lambda: registration.broker.node_id, clock, services.settings.retention_round_ms
        )
        retention.start()
        opened.push_async_callback(retention.close)
        sweeping = Sweeping(node.sweeper, view, lambda: registration.broker.node_id, settings.log.wal.sweep_interval_ms)
        sweeping.start()
        opened.push_async_callback(sweeping.close)
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
            kafka=shown_address(host, port),
        )


async def _services(
    node: Node,
    view: ClusterView,
    registration: Registration,
    purging: Purging,
    cluster: Cluster,
    transactions: TransactionCoordinator,
    admission: Admission,
    settings: Settings,
    clock: Clock,
    ids: Ids,
) -> Services:
    metadata = node.stores.metadata
    await view.look_at_brokers()
    return Services(
        log=node.log,
        topics=node.topics,
        claims=Claims(metadata),
        view=view,
        groups=Groups(
            *(metadata, view, lambda: registration.broker, lambda: registration.holds, clock, ids),
            _group_settings(settings),
        ),
        transactions=transactions,
        cluster=cluster,
        cluster_id=await cluster.id(),
        who=lambda: registration.broker,
        clock=clock,
        ids=ids,
        settings=BrokerSettings(
            default_partitions=settings.default_partitions,
            auto_create_topics=settings.auto_create_topics,
            transaction_timeout_ms_max=settings.transaction_timeout_max_ms,
            profiles=frozenset(Profile if settings.segments_dir is not None else [Profile.COST]),
        ),
        topic_made=partial(topic_made, node.catalog),
        drop_table=partial(_drop_table, node, purging),
        check_delta=partial(check_delta, node.catalog),
        check_terms=partial(check_terms, node.catalog),
        admission=admission,
    )


def _group_settings(settings: Settings) -> GroupSettings:
    if settings.session_timeout_min_ms > settings.session_timeout_max_ms:
        raise Misconfigured("--session-timeout-min is longer than --session-timeout-max: no member could join")
    return GroupSettings(
        offsets_retention_ms=settings.offsets_retention_ms,
        rules=Rules(
            opening_ms=settings.rebalance_delay_ms,
            session_ms_min=settings.session_timeout_min_ms,
            session_ms_max=settings.session_timeout_max_ms,
        ),
    )


async def _drop_table(node: Node, purging: Purging, topic_id: str) -> None:
    await topic_deleted(node.catalog, topic_id, drop=True)
    purging.ask()


async def _warm(node: Node) -> None:
    with suppress(LakestreamError):  # then the first reader loads it, or hears what is wrong
        await node.history.warm()


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


class Sweeping:
    """Takes away what nobody claimed: the bytes of brokers that died between storing and claiming. One broker does it
    at a time, the first of those that live; two at once would do no harm."""

    def __init__(self, sweeper: Sweeper, view: ClusterView, node_id: Callable[[], int], interval_ms: int) -> None:
        self._sweeper = sweeper
        self._view = view
        self._node_id = node_id
        self._interval_ms = interval_ms
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="broker.sweeping")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            mine = self._node_id()
            if mine != min((broker.node_id for broker in self._view.brokers), default=mine):
                continue
            try:
                await self._sweeper.sweep()
            except LakestreamError as error:
                log.warning("broker.not_swept error=%s", error)


class _Profiles:
    """Which profile a partition's topic has chosen."""

    def __init__(self, default: Profile) -> None:
        self._default = default
        self.view: ClusterView | None = None

    def of(self, partition: PartitionId) -> Profile:
        name = None if self.view is None else self.view.name_of(partition.topic_id)
        topic = None if self.view is None or name is None else self.view.known(name)
        return (topic_settings.read(topic.settings).profile if topic else None) or self._default


async def _bound(server: KafkaServer, address: str) -> tuple[str, int]:
    host, port = parse_address(address, "--kafka")
    try:
        return await server.bind(host, port)
    except OSError as error:
        raise cannot_listen(address, error, "choose another with --kafka") from error


def _advertised(settings: Settings, host: str, port: int) -> Broker:
    if settings.advertise:
        told_host, told_port = parse_address(settings.advertise, "--advertise", port)
        return Broker(0, told_host, told_port, settings.zone)
    return Broker(0, "127.0.0.1" if host in ("0.0.0.0", "::") else host, port, settings.zone)
