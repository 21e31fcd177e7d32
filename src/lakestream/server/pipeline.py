"""The composition root of a pipeline: opens the stores, the catalog and a driver."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from lakestream.catalog.catalog import open_catalog
from lakestream.clock import Clock, Ids, RandomIds, SystemClock
from lakestream.config.settings import Settings
from lakestream.coordination.schema_registry.schema_reader import SchemaReader
from lakestream.metadata.claims import Claims
from lakestream.metadata.pipeline_status import PipelineStatusStore
from lakestream.metadata.refresh_requests import RefreshRequests
from lakestream.pipeline.backlog import ChangedPartitions
from lakestream.pipeline.delta.sync_task import DeltaSyncTask
from lakestream.pipeline.driver import ConcurrentTasks, Driver, PipelineOptions
from lakestream.pipeline.maintenance.service import Maintenance, RewriteJob
from lakestream.pipeline.micro_batch import Job, MicroBatches
from lakestream.pipeline.plan import PlanSettings
from lakestream.pipeline.refresh_requests import RefreshRequestWatcher
from lakestream.pipeline.table_setup import PipelineContext
from lakestream.pipeline.topic_schemas import TopicSchemas
from lakestream.server.node import Access, open_node

WATCH_PAUSE_MS: Final = 100
"""Between reads of changed logs: micro-batches start once a second at most, and brokers commit very often."""


@asynccontextmanager
async def open_driver(
    settings: Settings,
    options: PipelineOptions,
    job: Job,
    rewrites: RewriteJob | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> AsyncIterator[Driver]:
    """Opens a driver. `rewrites` runs the jobs of maintenance; None: no maintenance.

    With `once` the stores must exist."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    access = Access.EXISTING if options.once else Access.CREATE
    async with open_node(settings, clock, ids, watch_pause_ms=WATCH_PAUSE_MS, access=access, patient=True) as node:
        metadata = node.stores.metadata
        catalog = open_catalog(metadata, node.stores.objects, settings.storage_url, clock, ids)
        await catalog.start()
        context = PipelineContext(
            log=node.log,
            claims=Claims(metadata),
            topics=node.topics,
            gc=node.garbage_collector,
            objects=node.stores.objects,
            catalog=catalog,
            clock=clock,
            changed=ChangedPartitions(metadata, node.topics),
        )
        schemas = TopicSchemas(catalog, SchemaReader(metadata), clock)
        delta_sync = DeltaSyncTask(catalog, node.topics, metadata.now_ms)
        maintenance = None
        if rewrites is not None:
            maintenance = Maintenance(
                catalog, node.topics, context.claims, rewrites, metadata.now_ms, delta_sync=delta_sync
            )
        yield Driver(
            MicroBatches(context, job, _plan(options), schemas),
            RefreshRequestWatcher(RefreshRequests(metadata), context.changed),
            PipelineStatusStore(metadata),
            clock,
            options,
            ConcurrentTasks(maintenance=maintenance, delta_sync=delta_sync),
            name=ids.new()[:8],
        )


def _plan(options: PipelineOptions) -> PlanSettings:
    if options.once:
        # All records in one micro-batch, without a wait for open transactions.
        return PlanSettings(interval_ms=0, commits_max=10**9, whole_wait_ms=0)
    return PlanSettings(interval_ms=options.interval_ms)
