"""`lakestream topic repair`: rows that need their bytes no longer get their columns, at the same offsets.

Opens the stores as a pipeline does, and works in this process: no Spark is needed, nor a broker. What could be
repaired, and what not and why, is shown before by `lakestream table rejects` (rejects.py).
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.opening import open_catalog
from lakestream.cli.options import add_options, settings_of
from lakestream.cli.reasons import reasons_as_json, reasons_in_columns
from lakestream.cli.text import plural
from lakestream.clock import RandomIds, SystemClock
from lakestream.coordination.schemas.shelf import SchemaShelf
from lakestream.metadata.topics import NamedTopic, Topics
from lakestream.node import open_stores
from lakestream.pipeline.maintenance.job import LocalRewrites
from lakestream.pipeline.maintenance.repair import RepairDone, Repairs
from lakestream.pipeline.typed_topics import TypedTopics
from lakestream.settings import Settings


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    add_options(parser)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    done = asyncio.run(_done(settings_of(arguments), arguments.topic))
    if arguments.json:
        print(json.dumps(_as_json(arguments.topic, done)))
    else:
        for line in _lines(arguments.topic, done):
            print(line)
    return 1 if done.left else 0


async def _done(settings: Settings, topic: str) -> RepairDone:
    # Here and not above: whoever asks for help does not wait for the kernels.
    from lakestream.pipeline.maintenance.work import Rewriting

    async with opened(settings, topic) as its:
        typed = TypedTopics(its.catalog, its.registry, its.catalog.clock)
        job = LocalRewrites(Rewriting(its.catalog.objects, its.catalog.locations, its.catalog.ids))
        return await Repairs(its.catalog, typed, job).run(its.named, progress())


class Opened(NamedTuple):
    named: NamedTopic
    catalog: Catalog
    registry: SchemaShelf


@asynccontextmanager
async def opened(settings: Settings, topic: str) -> AsyncIterator[Opened]:
    """Missing: there is no such topic."""
    clock, ids = SystemClock(), RandomIds()
    async with open_stores(settings, clock, ids) as stores:
        catalog = open_catalog(stores.metadata, stores.objects, settings.storage_url, clock, ids)
        named = NamedTopic(topic, await Topics(stores.metadata).get(topic))
        yield Opened(named, catalog, SchemaShelf(stores.metadata))


def progress() -> Callable[[int, int], None] | None:
    """How far it is, for who looks on."""
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
    if not done.rows_before and not done.files_written:
        said = ["every value has its columns"]
    elif better or not done.files_written:
        said = [f"{better:,} of {rows} have their columns now, in {plural(done.files_written, 'file')}"]
    else:
        said = [f"more is in columns now, in {plural(done.files_written, 'file')}; {rows} need their bytes beside them"]
    said += reasons_in_columns("why they have no columns", done.reasons, done.firsts)
    said[0] = f"topic {topic}: {said[0]}"
    return [*said, *(f"not looked at: {reason}" for reason in done.left)]
