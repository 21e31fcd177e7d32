"""`lakestream table repair`: fills the columns of rows that keep their bytes, at the same offsets.

The command opens the stores itself: it needs neither Spark nor a broker. `lakestream table dead-letters`
(dead_letters.py) shows beforehand which rows can be repaired, and why others cannot.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from lakestream.aio.progress import reported
from lakestream.catalog.catalog import Catalog, open_catalog
from lakestream.cli.options import add_options, settings_of
from lakestream.cli.output.text import plural, reasons_as_json, reasons_in_columns
from lakestream.cli.server import add_server_of_stores
from lakestream.clock import RandomIds, SystemClock
from lakestream.config.settings import Settings
from lakestream.coordination.schema_registry.schema_reader import SchemaReader
from lakestream.errors import Missing
from lakestream.metadata.topics import NamedTopic, Topics
from lakestream.pipeline.maintenance.job import LocalRewrites
from lakestream.pipeline.repair.repair import RepairDone, Repairs
from lakestream.pipeline.topic_schemas import TopicSchemas
from lakestream.server.node import Access, metadata_name, open_stores


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    add_server_of_stores(parser)
    add_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    done = asyncio.run(_repair(settings_of(arguments), arguments.topic))
    if arguments.json:
        print(json.dumps(_as_json(arguments.topic, done)))
    else:
        for line in _lines(arguments.topic, done):
            print(line)
    return 1 if done.left else 0


async def _repair(settings: Settings, topic: str) -> RepairDone:
    # Imported here, so that --help does not load the kernels.
    with reported("loading the kernels, or compiling them at the first start"):
        from lakestream.pipeline.maintenance.worker import FileRewriter

    async with opened(settings, topic, Access.EXISTING) as stores:
        schemas = TopicSchemas(stores.catalog, stores.registry, stores.catalog.clock)
        job = LocalRewrites(FileRewriter(stores.catalog.objects, stores.catalog.locations, stores.catalog.ids))
        return await Repairs(stores.catalog, schemas, job).run(stores.named, progress())


class Opened(NamedTuple):
    named: NamedTopic
    catalog: Catalog
    registry: SchemaReader


@asynccontextmanager
async def opened(settings: Settings, topic: str, access: Access) -> AsyncIterator[Opened]:
    """Opens the stores. Missing if the topic or a store does not exist."""
    clock, ids = SystemClock(), RandomIds()
    async with open_stores(settings, clock, ids, access=access) as stores:
        catalog = open_catalog(stores.metadata, stores.objects, settings.storage_url, clock, ids)
        try:
            named = NamedTopic(topic, await Topics(stores.metadata).get(topic))
        except Missing as error:
            raise Missing(f"{error} (metadata store: {metadata_name(settings)})") from error
        yield Opened(named, catalog, SchemaReader(stores.metadata))


def progress() -> Callable[[int, int], None] | None:
    """Returns a function that prints progress to a terminal; None if standard error is not a terminal."""
    return _progress if sys.stderr.isatty() else None


def _progress(seen: int, files: int) -> None:
    print(f"\r{seen:,} of {plural(files, 'file')}", end="\n" if seen >= files else "", file=sys.stderr, flush=True)


def _as_json(topic: str, done: RepairDone) -> dict[str, object]:
    return {
        "topic": topic,
        "rows": done.rows_before,
        "rows_left": done.rows_after,
        "files_written": done.files_written,
        "reasons": reasons_as_json(done.reasons, done.firsts),
        "not_looked_at": done.left,
    }


def _lines(topic: str, done: RepairDone) -> list[str]:
    rows, better = plural(done.rows_before, "row"), done.rows_before - done.rows_after
    files = plural(done.files_written, "file")
    if not done.rows_before and not done.files_written:
        result = "every value has its columns"
    elif better or not done.files_written:
        result = f"{better:,} of {rows} have their columns now, in {files}"
    else:
        result = f"more is in columns now, in {files}; {rows} still keep their bytes"
    reasons = reasons_in_columns("why they have no columns", done.reasons, done.firsts)
    return [f"topic {topic}: {result}", *reasons, *(f"not read: {reason}" for reason in done.left)]
