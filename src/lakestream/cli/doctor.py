"""`lakestream doctor`: opens the stores as a broker would, then holds every log's claims against the bytes they name,
which it reads, and every table against its log, its files and what Kafka serves of it.

Prints one line per check and ends with 1 if something is wrong. Reads only, apart from the probe of the storage, beside
whatever is running.
"""

import argparse
import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing

from lakestream.cli.doctor_findings import Finding, Level, bad
from lakestream.cli.doctor_tables import open_table_doctor
from lakestream.cli.options import add_options, settings_of
from lakestream.cli.text import human_size, plural
from lakestream.clock import RandomIds, SystemClock
from lakestream.data.log.inspect import Inspector
from lakestream.data.log.payloads import Payloads
from lakestream.errors import LakestreamError
from lakestream.metadata.topics import Topic, Topics
from lakestream.node import Stores, open_stores
from lakestream.settings import Settings


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("--topic", metavar="NAME", help="look at this topic only")
    parser.add_argument("--full", action="store_true", help="read every record of logs and tables, not some of them")
    parser.add_argument("--json", action="store_true", help="print a JSON object per line")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    return asyncio.run(_examine(settings, arguments.topic, full=arguments.full, as_json=arguments.json))


async def _examine(settings: Settings, topic: str | None, *, full: bool, as_json: bool) -> int:
    wrong = 0
    async with (
        open_stores(settings, SystemClock(), RandomIds()) as stores,
        aclosing(_findings(settings, stores, topic, full=full)) as findings,
    ):
        async for finding in findings:
            print(finding.json() if as_json else finding.line(), flush=True)
            wrong += finding.level is Level.BAD
    if not as_json:
        print("all is well" if not wrong else f"{plural(wrong, 'thing')} to mend")
    return 1 if wrong else 0


async def _findings(
    settings: Settings, stores: Stores, only: str | None, *, full: bool
) -> AsyncGenerator[Finding, None]:
    yield Finding("metadata", f"{settings.metadata} answers")
    yield Finding("storage", f"{settings.storage_url} can be written and read")
    yield Finding("segments", f"in {settings.segments_dir}" if settings.segments_dir else "none: profile cost only")
    names = Topics(stores.metadata)
    topics = await names.all() if only is None else {only: await names.get(only)}
    yield Finding("topics", str(len(topics)) if only is None else f"{only} only")
    async for finding in _logs(stores, topics, full=full):
        yield finding
    async with open_table_doctor(settings, stores, SystemClock(), RandomIds(), full=full) as tables:
        for name, topic in sorted(topics.items()):
            async for finding in tables.topic(name, topic):
                yield finding
        async for finding in tables.pipeline(set(topics)):
            yield finding


async def _logs(stores: Stores, topics: Mapping[str, Topic], *, full: bool) -> AsyncIterator[Finding]:
    inspector = Inspector(stores.metadata, stores.objects, stores.segments)
    payloads = Payloads(stores.metadata, stores.objects, stores.segments, random.Random(), full=full)
    for name, topic in sorted(topics.items()):
        for partition in topic.partitions():
            what = f"{name}/{partition.number}"
            try:
                health = await inspector.inspect(partition)
                checked = await payloads.check(partition)
            except LakestreamError as error:
                yield bad(what, str(error))
                continue
            claims = f"offsets {health.floor} to {health.offset_end} in {health.claims} claims"
            read = f"; {human_size(checked.bytes)} of {checked.claims} read" if checked.claims else ""
            yield Finding(what, claims + read)
            for trouble in health.troubles or checked.troubles:  # what is not there cannot be read either
                yield bad(what, trouble)
