"""`lakestream topic repair` and `lakestream table rejects`: rows of typed tables that keep their bytes.

Both open the stores as a pipeline does, and work in this process: no Spark is needed, nor a broker. `rejects` only
looks: which rows have bytes, and why they would have them if they were typed now. `repair` gives those that need them
no longer their columns, at the same offsets.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from lakestream.catalog.opening import open_catalog
from lakestream.cli.options import add_options, settings_of
from lakestream.cli.text import columns, plural
from lakestream.clock import RandomIds, SystemClock
from lakestream.coordination.schemas.shelf import SchemaShelf
from lakestream.metadata.topics import NamedTopic, Topics
from lakestream.node import open_stores
from lakestream.pipeline.maintenance.job import LocalRewrites
from lakestream.pipeline.maintenance.repair import RepairDone, Repairs
from lakestream.pipeline.typed_topics import TypedTopics
from lakestream.settings import Settings


def configure(parser: argparse.ArgumentParser) -> None:
    _common(parser, only_look=False)


def configure_rejects(parser: argparse.ArgumentParser) -> None:
    _common(parser, only_look=True)


def _common(parser: argparse.ArgumentParser, *, only_look: bool) -> None:
    parser.add_argument("topic")
    add_options(parser)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=run, only_look=only_look)


def run(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    done = asyncio.run(_done(settings, arguments.topic, only_look=arguments.only_look))
    if arguments.json:
        print(json.dumps(_as_json(arguments.topic, done)))
    else:
        for line in _lines(arguments.topic, done, only_look=arguments.only_look):
            print(line)
    return 1 if done.left else 0


class _Opened(NamedTuple):
    repairs: Repairs
    topics: Topics


async def _done(settings: Settings, topic: str, *, only_look: bool) -> RepairDone:
    async with _opened(settings) as opened:
        named = NamedTopic(topic, await opened.topics.get(topic))
        progress = _progress if sys.stderr.isatty() else None
        return await opened.repairs.run(named, only_look=only_look, progress=progress)


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[_Opened]:
    # Here and not above: whoever asks for help does not wait for the kernels.
    from lakestream.pipeline.maintenance.work import Rewriting

    clock, ids = SystemClock(), RandomIds()
    async with open_stores(settings, clock, ids) as stores:
        catalog = open_catalog(stores.metadata, stores.objects, settings.storage_url, clock, ids)
        typed = TypedTopics(catalog, SchemaShelf(stores.metadata), clock)
        job = LocalRewrites(Rewriting(stores.objects, catalog.locations, ids))
        yield _Opened(Repairs(catalog, typed, job), Topics(stores.metadata))


def _progress(seen: int, files: int) -> None:
    print(f"\r{seen:,} of {plural(files, 'file')}", end="\n" if seen >= files else "", file=sys.stderr, flush=True)


def _as_json(topic: str, done: RepairDone) -> dict[str, object]:
    return {
        "topic": topic,
        "rows": done.rows_before,
        "rows_left": done.rows_after,
        "files_written": done.files_written,
        "reasons": [
            {
                "reason": reason,
                "schema_id": schema_id or None,
                "rows": count,
                "partition": done.firsts[reason, schema_id][0],
                "offset": done.firsts[reason, schema_id][1],
            }
            for (reason, schema_id), count in done.reasons.most_common()
        ],
        "not_looked_at": done.left,
    }


def _lines(topic: str, done: RepairDone, *, only_look: bool) -> list[str]:
    rows, better = plural(done.rows_before, "row"), done.rows_before - done.rows_after
    if not done.rows_before and not done.files_written:
        said = ["every value has its columns"]
    elif only_look:
        said = [f"{rows} keep their bytes; {better:,} of them need not: lakestream topic repair {topic}"]
    elif better or not done.files_written:
        said = [f"{better:,} of {rows} have their columns now, in {plural(done.files_written, 'file')}"]
    else:
        said = [f"more is in columns now, in {plural(done.files_written, 'file')}; {rows} need their bytes beside them"]
    table = [
        (reason, str(schema_id or "-"), f"{count:,}", "{}/{}".format(*done.firsts[reason, schema_id]))
        for (reason, schema_id), count in done.reasons.most_common()
    ]
    if table:
        said += columns([("why they have no columns", "schema", "rows", "first at"), *table], frozenset({1, 2}))
    said[0] = f"topic {topic}: {said[0]}"
    return [*said, *(f"not looked at: {reason}" for reason in done.left)]
