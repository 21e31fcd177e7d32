"""One server process: a broker, and HTTP if the settings have an HTTP port. `cli/serve.py` runs one or several."""

import gc
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from lakestream.catalog.catalog import open_catalog
from lakestream.catalog.locations import client_settings
from lakestream.clock import RandomIds, SystemClock
from lakestream.config.parsing import cannot_listen, format_address, parse_address
from lakestream.config.settings import Settings
from lakestream.coordination.freshness import FreshReads
from lakestream.coordination.schema_registry.register import Limits
from lakestream.coordination.schema_registry.registry import SchemaRegistry
from lakestream.data.table.commit_check import CommitGuard
from lakestream.errors import Missing, Unavailable
from lakestream.protocol.rest.app import application
from lakestream.protocol.rest.health import Health
from lakestream.protocol.rest.iceberg.app import IcebergRest
from lakestream.protocol.rest.same_origin import HostNames, host_names
from lakestream.protocol.rest.schema_registry.app import RegistryRest
from lakestream.protocol.rest.server import HttpServer, HttpSettings
from lakestream.server.broker import RunningBroker, open_broker
from lakestream.server.metrics_collector import MetricsCollector
from lakestream.server.node import local_folders
from lakestream.server.worker_metrics import SharedMetricsPages
from lakestream.storage.disk_space import DiskSpace

READY_OBJECT: Final = "probe/ready"
"""Object that every start writes and /readyz checks: a storage without it was lost, emptied or replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningProcess:
    broker: RunningBroker
    http: str
    """Address on which HTTP listens; empty: no HTTP."""


@asynccontextmanager
async def open_process(
    settings: Settings, *, worker: int = 0, pages: SharedMetricsPages | None = None
) -> AsyncIterator[RunningProcess]:
    """Opens a broker and HTTP. The end of the block stops both, after the responses to accepted requests are sent.

    HTTP is served once the broker is open, so that /readyz is true."""
    async with AsyncExitStack() as opened:
        http = HttpServer(HttpSettings())
        opened.push_async_callback(http.stop)
        bound = await _bound(http, settings.http) if settings.http else ("", 0)
        broker = await opened.enter_async_context(open_broker(settings))

        await broker.node.stores.objects.put(READY_OBJECT, [b"lakestream"])
        metrics = MetricsCollector(broker, worker, pages or SharedMetricsPages(1))
        metrics.start()
        opened.push_async_callback(metrics.close)
        if settings.http:
            iceberg = await opened.enter_async_context(_open_iceberg(broker, settings))
            limits = Limits(settings.schema_versions_max, settings.schema_bytes_max)
            registry = SchemaRegistry(broker.node.stores.metadata, RandomIds(), limits=limits)
            opened.push_async_callback(registry.close)
            schemas = RegistryRest(registry, broker.services.cluster_id)
            hosts = _hosts(bound[0], broker, settings)
            space = DiskSpace(local_folders(settings))
            opened.callback(space.close)
            await http.serve(application(_health(broker, space), metrics.page, iceberg, schemas, hosts))
        yield RunningProcess(broker=broker, http=format_address(*bound) if settings.http else "")


@asynccontextmanager
async def _open_iceberg(broker: RunningBroker, settings: Settings) -> AsyncIterator[IcebergRest]:
    stores = broker.node.stores
    catalog = open_catalog(stores.metadata, stores.objects, settings.storage_url, SystemClock(), RandomIds())
    await catalog.start()
    clock, ids = SystemClock(), RandomIds()
    freshness = FreshReads(stores.metadata, broker.node.log, catalog, broker.services.metadata_cache, clock, ids)
    client_config = client_settings(catalog.locations.scheme, os.environ)
    guard = CommitGuard(stores.objects, catalog.locations)
    try:
        yield IcebergRest(catalog, guard, client_config, broker.purging.wake, freshness.wait)
    finally:
        freshness.close()
        await guard.close()


def _health(broker: RunningBroker, space: DiskSpace) -> Health:
    stores = broker.node.stores

    async def metadata() -> None:
        await stores.metadata.now_ms()

    async def storage() -> None:
        try:
            await stores.objects.head(READY_OBJECT)
        except Missing as error:
            raise Unavailable(
                f"storage: object {READY_OBJECT} is missing: check the mount and the storage URL"
            ) from error

    async def registration() -> None:
        if not broker.registration.is_registered:
            raise Unavailable("the broker's record in the metadata store was lost; the broker is registering again")

    checks = {"metadata": metadata, "storage": storage, "registration": registration, "disk": space.check}
    return Health(checks)


def _hosts(listens: str, broker: RunningBroker, settings: Settings) -> HostNames:
    """Returns the names of the HTTP port: its own address, the advertised one and those in the settings."""
    own, _ = parse_address(settings.http, "--http")
    advertised = broker.registration.broker.host
    return host_names(listens, [own, advertised, *settings.http_hosts], socket.gethostname())


async def _bound(http: HttpServer, address: str) -> tuple[str, int]:
    host, port = parse_address(address, "--http")
    try:
        return await http.bind(host, port)
    except OSError as error:
        raise cannot_listen(address, error, "choose another with --http, or --http off") from error


GC_YOUNG_OBJECTS: Final = 50_000
"""New objects before a collection of the youngest generation: about as many as are in flight at full load."""
GC_GENERATION_RATIO: Final = 20


def tune_gc() -> None:
    """Configures Python's cyclic garbage collector for a broker: exempts existing objects, and collects rarely.

    Reference counts free the objects of each batch (futures, claims, views of buffers), so collections find nothing in
    them. With Python's default, a collection after each 700 new objects and a full one after a quarter more of them,
    collections took half of the broker's CPU with 5,000 active partitions.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS, GC_GENERATION_RATIO, GC_GENERATION_RATIO)
