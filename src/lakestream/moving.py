"""The pipeline's working parts, opened: what broker.py is for brokers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from lakestream.catalog.opening import open_catalog
from lakestream.clock import Clock, Ids, RandomIds, SystemClock
from lakestream.coordination.schemas.shelf import SchemaShelf
from lakestream.metadata.asks import Asks
from lakestream.metadata.claims import Claims
from lakestream.metadata.reports import Reports
from lakestream.node import open_node
from lakestream.pipeline.asked import AskedTopics
from lakestream.pipeline.backlog import ChangedLogs
from lakestream.pipeline.delta.mirror import DeltaMirror
from lakestream.pipeline.driver import Driver, PipelineOptions
from lakestream.pipeline.maintenance.maintain import Maintenance, RewriteJob
from lakestream.pipeline.plan import PlanSettings
from lakestream.pipeline.rounds import Job, Rounds
from lakestream.pipeline.typed_topics import TypedTopics
from lakestream.settings import Settings

REST_MS: Final = 100
"""Between looks at which logs grew: rounds begin once in a second or less often, and brokers commit very often."""


@asynccontextmanager
async def open_driver(
    settings: Settings,
    options: PipelineOptions,
    job: Job,
    rewrites: RewriteJob | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> AsyncIterator[Driver]:
    """`rewrites`: who does the work of maintenance; without it there is none."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    async with open_node(settings, clock, ids, rest_ms=REST_MS) as node:
        metadata = node.stores.metadata
        catalog = open_catalog(metadata, node.stores.objects, settings.storage_url, clock, ids)
        await catalog.start()
        changed = ChangedLogs(metadata, node.topics)
        rounds = Rounds(
            node.log,
            Claims(metadata),
            node.topics,
            node.sweeper,
            node.stores.objects,
            catalog,
            job,
            clock,
            changed,
            _plan(options),
            TypedTopics(catalog, SchemaShelf(metadata), clock),
        )
        mirror = DeltaMirror(catalog, node.topics, metadata.now_ms)
        maintenance = None
        if rewrites is not None:
            maintenance = Maintenance(catalog, node.topics, Claims(metadata), rewrites, metadata.now_ms, mirror=mirror)
        asked = AskedTopics(Asks(metadata), changed)
        yield Driver(rounds, changed, asked, Reports(metadata), clock, options, maintenance, ids.new()[:8], mirror)


def _plan(options: PipelineOptions) -> PlanSettings:
    if options.once:
        return PlanSettings(
            interval_ms=0, commits_max=10**9, whole_wait_ms=0
        )  # everything, and nobody waits for others
    return PlanSettings(interval_ms=options.interval_ms)
