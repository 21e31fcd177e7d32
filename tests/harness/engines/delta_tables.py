"""Sync and reads of the Delta tables of running brokers' topics, with the code of the pipeline's driver."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import DeltaTable, QueryBuilder
from tests.harness.engines.engines import pyiceberg_of

from lakestream.catalog.catalog import open_catalog
from lakestream.clock import RandomIds, SystemClock
from lakestream.config.settings import Settings
from lakestream.metadata.claims import Claims
from lakestream.metadata.topics import Topics
from lakestream.pipeline.delta.sync_task import DeltaSyncTask
from lakestream.pipeline.maintenance.job import LocalRewrites
from lakestream.pipeline.maintenance.service import Maintenance, MaintenanceSettings, MaintenanceStats
from lakestream.pipeline.maintenance.small_files import MergeSettings
from lakestream.pipeline.maintenance.worker import FileRewriter
from lakestream.server.node import open_stores
from lakestream.testing.brokers import BrokerProcesses

BOTH = {"lakestream.table.formats": "iceberg,delta"}
EAGER = MaintenanceSettings(visit_ms=0, idle_ms=0, merge=MergeSettings(files_min=2, many=2, young_ms=0))


@contextmanager
def environment_of(cluster: BrokerProcesses) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update({name: text for name, text in cluster.environment.items() if name.startswith("AWS_")})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def maintain_tables(cluster: BrokerProcesses) -> MaintenanceStats:
    """Maintains all tables, then syncs the Delta tables, and asserts that none lags."""
    folder = cluster[0]._log.parent / "data"
    settings = Settings(data_dir=folder, metadata=cluster.metadata, storage=cluster.storage)

    async def maintain() -> MaintenanceStats:
        clock, ids = SystemClock(), RandomIds()
        async with open_stores(settings, clock, ids) as stores:
            catalog = open_catalog(stores.metadata, stores.objects, settings.storage_url, clock, ids)
            topics, now_ms = Topics(stores.metadata), stores.metadata.now_ms
            sync = DeltaSyncTask(catalog, topics, now_ms)
            await sync.sync_all()
            job = LocalRewrites(FileRewriter(stores.objects, catalog.locations, ids))
            stats = await Maintenance(catalog, topics, Claims(stores.metadata), job, now_ms, EAGER, sync).maintain()
            await sync.sync_all()
            assert {status.name: status.lagging for status in sync.statuses.values() if status.lagging} == {}
            return stats

    with environment_of(cluster):
        return asyncio.run(maintain())


def delta_root(cluster: BrokerProcesses, topic: str) -> str:
    return f"{pyiceberg_of(cluster).load_table(f'default.{topic}').location()}/data"


def delta_rows(cluster: BrokerProcesses, topic: str, value: str = "value") -> list[dict[str, Any]]:
    """Reads `_stream` and `value` with delta-rs."""
    with environment_of(cluster):
        table = DeltaTable(delta_root(cluster, topic), storage_options={"allow_http": "true"})
        result = QueryBuilder().register("t", table).execute(f'SELECT _stream, "{value}" AS value FROM t').read_all()
    return [row for batch in result.to_batches() for row in pa.record_batch(batch).to_pylist()]
