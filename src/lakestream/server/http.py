"""An HTTP process: the Iceberg catalog and the schema registry over the stores, in a process without Kafka clients.

It has no state that other processes need, so any number of them run on the same stores, with and without brokers on
their machine. One that runs beside brokers returns their metrics and their health too.
"""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import msgspec

from lakestream.aio.single_flight import Coalescer
from lakestream.catalog.catalog import open_catalog
from lakestream.catalog.locations import client_settings
from lakestream.catalog.purge import PurgeTask
from lakestream.clock import RandomIds, SystemClock
from lakestream.config.parsing import parse_address
from lakestream.config.settings import Settings
from lakestream.coordination.freshness import FreshReads
from lakestream.coordination.schema_registry.register import Limits
from lakestream.coordination.schema_registry.registry import SchemaRegistry
from lakestream.data.table.commit_check import CommitGuard
from lakestream.metadata.brokers import Brokers
from lakestream.metadata.cluster import Cluster
from lakestream.protocol.rest import prometheus
from lakestream.protocol.rest.api import ClusterInfo, LakestreamApi
from lakestream.protocol.rest.app import application
from lakestream.protocol.rest.health import Health
from lakestream.protocol.rest.home import HomePage
from lakestream.protocol.rest.iceberg.app import IcebergRest
from lakestream.protocol.rest.same_origin import HostNames, host_names
from lakestream.protocol.rest.schema_registry.app import RegistryRest
from lakestream.protocol.rest.server import HttpServer, HttpSettings, bound
from lakestream.server.metrics_collector import VERSION, HttpMetrics
from lakestream.server.node import open_node
from lakestream.server.process import PAGES_PER_BROKER, health_page, metrics_page
from lakestream.server.readiness import store_checks
from lakestream.server.shared_pages import SharedPages

WATCH_PAUSE_MS: Final = 100
"""Between reads of changed logs, which brokers change very often."""
METRICS_S_MAX: Final = 0.5
"""Wait for a broker's metrics. Those of a broker that is too slow are missing."""
HEALTH_S_MAX: Final = 2.5
"""Wait for a broker's health, which takes up to two seconds."""
PROGRAM: Final = (sys.executable, "-P", "-m", "lakestream")
WORKER: Final = "http"
"""Label of this process's own metrics."""

_decode_failures: Final = msgspec.msgpack.Decoder(dict[str, str]).decode


class BrokerPages:
    """Metrics and health of the brokers that the same parent has started."""

    def __init__(self, pages: SharedPages) -> None:
        self._pages = pages
        self._workers = range(pages.count // PAGES_PER_BROKER)

    async def readings(self) -> list[tuple[str, prometheus.Reading]]:
        """Returns the readings of all brokers that respond, each with the name of its worker."""
        asked = (self._pages.ask(metrics_page(worker), METRICS_S_MAX) for worker in self._workers)
        bodies = await asyncio.gather(*asked)
        return [
            (str(worker), one)
            for worker, body in zip(self._workers, bodies, strict=True)
            if body is not None
            for one in prometheus.decode_readings(body)
        ]

    async def failures(self) -> Mapping[str, str]:
        """Returns the failed checks of all brokers, by name."""
        asked = (self._pages.ask(health_page(worker), HEALTH_S_MAX) for worker in self._workers)
        failures: dict[str, str] = {}
        for worker, body in zip(self._workers, await asyncio.gather(*asked), strict=True):
            if body is None:
                failures[f"broker {worker}"] = f"no response within {HEALTH_S_MAX:g} s"
            else:
                failures |= _decode_failures(body)
        return failures


class HttpProcess:
    """HTTP on a port that is bound before the process is forked.

    So an address in use is reported before anything is opened, and clients wait while the process is restarted."""

    def __init__(self, settings: Settings, pages: SharedPages) -> None:
        """Misconfigured: the address is invalid, or in use."""
        self._settings = settings
        self._brokers = BrokerPages(pages)
        self._server = HttpServer(HttpSettings())
        self.listens = bound(self._server, settings.http, "--http", "choose another with --http, or --http off")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serves until the end of the block, which completes the requests in flight."""
        settings, clock, ids = self._settings, SystemClock(), RandomIds()
        async with AsyncExitStack() as opened:
            node = await opened.enter_async_context(open_node(settings, clock, ids, watch_pause_ms=WATCH_PAUSE_MS))
            metadata = node.stores.metadata
            catalog = open_catalog(metadata, node.stores.objects, settings.storage_url, clock, ids)
            await catalog.start()
            purging = PurgeTask(catalog, metadata, node.stores.objects)
            purging.start()
            opened.push_async_callback(purging.close)
            guard = CommitGuard(node.stores.objects, catalog.locations)
            opened.push_async_callback(guard.close)
            freshness = FreshReads(metadata, node.log, catalog, clock, ids)
            client_config = client_settings(catalog.locations.scheme, os.environ)
            iceberg = IcebergRest(catalog, guard, client_config, purging.wake, freshness.wait)
            limits = Limits(settings.schema_versions_max, settings.schema_bytes_max)
            registry = SchemaRegistry(metadata, ids, limits=limits)
            opened.push_async_callback(registry.close)
            cluster_id = await Cluster(metadata, ids).id()
            schemas = RegistryRest(registry, cluster_id)
            health = Health(await store_checks(node.stores), self._brokers.failures)
            metrics = HttpMetrics(self._server, node.stores.meter)
            metrics.start()
            opened.push_async_callback(metrics.close)

            async def read_metrics() -> bytes:
                own = [(WORKER, one) for one in metrics.own()]
                readings = [*await self._brokers.readings(), *own]
                return await asyncio.to_thread(prometheus.text, readings)

            scrapes: Coalescer[str, bytes] = Coalescer("http.metrics")
            opened.push_async_callback(scrapes.close)

            async def metrics_of_all() -> bytes:
                return await scrapes.read("", read_metrics)

            async def cluster() -> ClusterInfo:
                return ClusterInfo(cluster_id, VERSION, await Brokers(metadata).all())

            api = LakestreamApi(cluster, PROGRAM, settings.store_flags)
            opened.push_async_callback(api.close)
            home = HomePage(cluster)
            await self._server.serve(application(health, metrics_of_all, iceberg, schemas, self._hosts(), home, api))
            opened.push_async_callback(self._server.stop)
            opened.callback(freshness.close)  # ends the requests that wait, so that the server can stop
            yield

    def _hosts(self) -> HostNames:
        """Returns the names of the HTTP port: its own address, the advertised one and those in the settings."""
        settings = self._settings
        own, _ = parse_address(settings.http, "--http")
        kafka, port = parse_address(settings.kafka, "--kafka")
        advertised = parse_address(settings.advertise, "--advertise", port or 1)[0] if settings.advertise else kafka
        listens, _ = parse_address(self.listens, "--http")
        return host_names(listens, [own, advertised, *settings.http_hosts], socket.gethostname())
