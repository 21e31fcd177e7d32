"""A broker process: a broker, its probes, and its metrics for the HTTP process. `cli/serve.py` runs one or several."""

import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from lakestream.config.settings import Settings
from lakestream.errors import Unavailable
from lakestream.protocol.rest import prometheus
from lakestream.protocol.rest.app import application
from lakestream.protocol.rest.health import Health
from lakestream.protocol.rest.server import HttpServer, HttpSettings, bound
from lakestream.server.broker import RunningBroker, open_broker
from lakestream.server.metrics_collector import MetricsCollector
from lakestream.server.node import local_folders
from lakestream.server.readiness import store_checks
from lakestream.server.shared_pages import PageWriter, SharedPages
from lakestream.storage.disk_space import DiskSpace

PROBE: Final = HttpSettings(connections_max=64, connections_per_address_max=64, idle_s_max=10)
PAGES_PER_BROKER: Final = 2


def metrics_page(worker: int) -> int:
    return PAGES_PER_BROKER * worker


def health_page(worker: int) -> int:
    return PAGES_PER_BROKER * worker + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningProcess:
    broker: RunningBroker
    probe: str
    """Address of the probes; empty: none."""


@asynccontextmanager
async def open_process(settings: Settings, worker: int, pages: SharedPages) -> AsyncIterator[RunningProcess]:
    """Opens a broker and its probes. The end of the block stops both, after responses to accepted requests are sent.

    Probes are served once the broker is open, so that /readyz is true."""
    async with AsyncExitStack() as opened:
        probe = HttpServer(PROBE)
        opened.push_async_callback(probe.stop)
        listens = bound(probe, settings.probe, "--probe") if settings.probe else ""
        broker = await opened.enter_async_context(open_broker(settings))

        metrics = MetricsCollector(broker, worker)
        metrics.start()
        opened.push_async_callback(metrics.close)
        space = DiskSpace(local_folders(settings))
        opened.callback(space.close)
        health = await _health(broker, space)

        async def metrics_body() -> bytes:
            return prometheus.encode_readings(metrics.own())

        async def health_body() -> bytes:
            return msgspec.msgpack.encode(await health.failures())

        for page, body in ((metrics_page(worker), metrics_body), (health_page(worker), health_body)):
            writer = PageWriter(pages, page, body)
            writer.start()
            opened.push_async_callback(writer.close)
        if settings.probe:
            await probe.serve(application(health, metrics.page))
        yield RunningProcess(broker=broker, probe=listens)


async def _health(broker: RunningBroker, space: DiskSpace) -> Health:
    async def registration() -> None:
        if not broker.registration.is_registered:
            raise Unavailable("the broker's record in the metadata store was lost; the broker is registering again")

    checks = await store_checks(broker.node.stores)
    return Health({**checks, "registration": registration, "disk": space.check})


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
