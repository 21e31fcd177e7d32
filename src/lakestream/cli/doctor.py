"""`lakestream doctor`: opens the stores as a broker would, then holds every log's claims against the bytes they name.

Prints one line per check and ends with 1 if something is wrong. Reads only, apart from the probe of the storage.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from lakestream.cli.options import add_options, settings_of
from lakestream.clock import RandomIds, SystemClock
from lakestream.data.log.inspect import Inspector
from lakestream.errors import LakestreamError
from lakestream.metadata.topics import Topics
from lakestream.node import Stores, open_stores
from lakestream.settings import Settings


class Finding(NamedTuple):
    what: str
    said: str
    good: bool = True


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_examine(settings_of(arguments)))


async def _examine(settings: Settings) -> int:
    bad = 0
    async with open_stores(settings, SystemClock(), RandomIds()) as stores:
        async for finding in _findings(settings, stores):
            print(f"{'ok ' if finding.good else 'BAD'}  {finding.what:<24} {finding.said}")
            bad += not finding.good
    print("all is well" if not bad else f"{bad} thing{'s' if bad > 1 else ''} to mend")
    return 1 if bad else 0


async def _findings(settings: Settings, stores: Stores) -> AsyncIterator[Finding]:
    yield Finding("metadata", f"{settings.metadata} answers")
    yield Finding("storage", f"{settings.storage_url} can be written and read")
    yield Finding("segments", f"in {settings.segments_dir}" if settings.segments_dir else "none: profile cost only")
    topics = await Topics(stores.metadata).all()
    yield Finding("topics", str(len(topics)))
    inspector = Inspector(stores.metadata, stores.objects, stores.segments)
    for name, topic in sorted(topics.items()):
        for partition in topic.partitions():
            what = f"{name}/{partition.number}"
            try:
                health = await inspector.inspect(partition)
            except LakestreamError as error:
                yield Finding(what, str(error), good=False)
                continue
            yield Finding(what, f"offsets {health.floor} to {health.offset_end} in {health.claims} claims")
            for trouble in health.troubles:
                yield Finding(what, trouble, good=False)
