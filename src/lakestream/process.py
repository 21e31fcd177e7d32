"""One process of Lakestream: a broker, and HTTP where it is asked for. `cli/serve.py` runs one or several."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from lakestream.addresses import cannot_listen, parse_address, shown_address
from lakestream.board import Board
from lakestream.broker import RunningBroker, open_broker
from lakestream.catalog.client_settings import client_settings
from lakestream.catalog.opening import open_catalog
from lakestream.clock import RandomIds, SystemClock
from lakestream.coordination.freshness import Freshness
from lakestream.coordination.naming import topics_named_in_logs
from lakestream.coordination.schemas.registry import SchemaRegistry
from lakestream.errors import Missing, Unavailable
from lakestream.measures import Measures
from lakestream.protocol.rest.app import application
from lakestream.protocol.rest.health import Health
from lakestream.protocol.rest.iceberg.app import IcebergRest
from lakestream.protocol.rest.registry.app import RegistryRest
from lakestream.protocol.rest.server import HttpServer, HttpSettings
from lakestream.settings import Settings

SIGN: Final = "probe/ready"
"""Written at every start and looked at by /readyz: a storage without it is gone, emptied or another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningProcess:
    broker: RunningBroker
    http: str
    """Where it listens; empty: it does not."""


@asynccontextmanager
async def open_process(
    settings: Settings, *, worker: int = 0, board: Board | None = None
) -> AsyncIterator[RunningProcess]:
    """Serves until the block is left; then answers what it accepted. HTTP says "ready" only when it is true."""
    async with AsyncExitStack() as opened:
        http = HttpServer(HttpSettings())
        opened.push_async_callback(http.stop)
        address = await _bound(http, settings.http) if settings.http else ""
        broker = await opened.enter_async_context(open_broker(settings))
        opened.enter_context(topics_named_in_logs(broker.services.view.name_of))
        await broker.node.stores.objects.put(SIGN, [b"lakestream"])
        measures = Measures(broker, worker, board or Board(1))
        measures.start()
        opened.push_async_callback(measures.close)
        if settings.http:
            iceberg = await opened.enter_async_context(_open_iceberg(broker, settings))
            registry = SchemaRegistry(broker.node.stores.metadata, RandomIds())
            opened.callback(registry.close)
            schemas = RegistryRest(registry, broker.services.cluster_id)
            await http.serve(application(_health(broker), measures.page, iceberg, schemas))
        yield RunningProcess(broker=broker, http=address)


@asynccontextmanager
async def _open_iceberg(broker: RunningBroker, settings: Settings) -> AsyncIterator[IcebergRest]:
    stores = broker.node.stores
    catalog = open_catalog(stores.metadata, stores.objects, settings.storage_url, SystemClock(), RandomIds())
    await catalog.start()
    clock, ids = SystemClock(), RandomIds()
    freshness = Freshness(stores.metadata, broker.node.log, catalog, broker.services.view, clock, ids)
    settings_told = client_settings(catalog.locations.scheme, os.environ)
    try:
        yield IcebergRest(catalog, settings_told, broker.purging.ask, freshness.wait)
    finally:
        freshness.close()


def _health(broker: RunningBroker) -> Health:
    stores = broker.node.stores

    async def metadata() -> None:
        await stores.metadata.now_ms()

    async def storage() -> None:
        try:
            await stores.objects.head(SIGN)
        except Missing as error:
            raise Unavailable(f"the storage has lost {SIGN}: is it mounted, is it the same one?") from error

    async def registration() -> None:
        if not broker.registration.holds:
            raise Unavailable("the broker's record in the metadata store was lost; it is being made anew")

    return Health({"metadata": metadata, "storage": storage, "registration": registration})


async def _bound(http: HttpServer, address: str) -> str:
    host, port = parse_address(address, "--http")
    try:
        return shown_address(*await http.bind(host, port))
    except OSError as error:
        raise cannot_listen(address, error, "choose another with --http, or --http off") from error
