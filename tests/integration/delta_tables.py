"""The Delta tables of running brokers' topics: led on as the pipeline's driver does it, and read."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import DeltaTable, QueryBuilder
from tests.integration.engines import pyiceberg_of

from lakestream.catalog.opening import open_catalog
from lakestream.clock import RandomIds, SystemClock
from lakestream.metadata.claims import Claims
from lakestream.metadata.topics import Topics
from lakestream.node import open_stores
from lakestream.pipeline.delta.mirror import DeltaMirror
from lakestream.pipeline.maintenance.job import LocalRewrites
from lakestream.pipeline.maintenance.maintain import Done, Maintenance, MaintenanceSettings
from lakestream.pipeline.maintenance.merging import MergeSettings
from lakestream.pipeline.maintenance.work import Rewriting
from lakestream.settings import Settings
from lakestream.testing.brokers import Brokers

BOTH = {"lakestream.table.formats": "iceberg,delta"}
EAGER = MaintenanceSettings(look_ms=0, idle_ms=0, merge=MergeSettings(files_min=2, many=2, young_ms=0))


@contextmanager
def environment_of(cluster: Brokers) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update({name: text for name, text in cluster.environment.items() if name.startswith("AWS_")})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def maintained(cluster: Brokers) -> Done:
    """All tables, and the Delta tables after that: none of them is behind then."""
    folder = cluster[0]._log.parent / "data"
    settings = Settings(data_dir=folder, metadata=cluster.metadata, storage=cluster.storage)

    async def maintain() -> Done:
        clock, ids = SystemClock(), RandomIds()
        async with open_stores(settings, clock, ids) as stores:
            catalog = open_catalog(stores.metadata, stores.objects, settings.storage_url, clock, ids)
            topics, now_ms = Topics(stores.metadata), stores.metadata.now_ms
            mirror = DeltaMirror(catalog, topics, now_ms)
            await mirror.look()
            job = LocalRewrites(Rewriting(stores.objects, catalog.locations, ids))
            done = await Maintenance(catalog, topics, Claims(stores.metadata), job, now_ms, EAGER, mirror).maintain()
            await mirror.look()
            assert {one.name: one.behind for one in mirror.standings.values() if one.behind} == {}
            return done

    with environment_of(cluster):
        return asyncio.run(maintain())


def delta_root(cluster: Brokers, topic: str) -> str:
    return f"{pyiceberg_of(cluster).load_table(f'default.{topic}').location()}/data"


def delta_rows(cluster: Brokers, topic: str, value: str = "value") -> list[dict[str, Any]]:
    """By delta-rs: `_stream` and `value`."""
    with environment_of(cluster):
        table = DeltaTable(delta_root(cluster, topic), storage_options={"allow_http": "true"})
        found = QueryBuilder().register("t", table).execute(f'SELECT _stream, "{value}" AS value FROM t').read_all()
    return [row for batch in found.to_batches() for row in pa.record_batch(batch).to_pylist()]
