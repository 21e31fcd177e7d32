"""`lakestream doctor`: verifies the stores, the claims of every log and every table.

It compares claims with the bytes that they name, and tables with their logs, their files and the records that brokers
serve from them. It prints one line per check and exits with 1 if a check fails. It only reads, apart from the startup
check of the storage, and may run at the same time as brokers and pipelines.
"""

import argparse
import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing

from lakestream.aio.progress import reported
from lakestream.cli.doctor.findings import Finding, Severity, bad
from lakestream.cli.doctor.tables import open_table_doctor
from lakestream.cli.options import add_options, settings_of
from lakestream.cli.output.text import human_size, plural
from lakestream.cli.server import add_server_of_stores
from lakestream.clock import RandomIds, SystemClock
from lakestream.config.settings import Settings
from lakestream.data.verify.log import LogVerifier
from lakestream.data.verify.payloads import PayloadVerifier
from lakestream.errors import LakestreamError
from lakestream.metadata.topics import Topic, Topics
from lakestream.server.node import Access, Stores, metadata_name, open_stores


def configure(parser: argparse.ArgumentParser) -> None:
    add_server_of_stores(parser)
    add_options(parser)
    parser.add_argument("--topic", metavar="NAME", help="check this topic only")
    parser.add_argument("--full", action="store_true", help="read every record of logs and tables, not some of them")
    parser.add_argument("--json", action="store_true", help="print a JSON object per line")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    return asyncio.run(_check(settings, arguments.topic, full=arguments.full, as_json=arguments.json))


async def _check(settings: Settings, topic: str | None, *, full: bool, as_json: bool) -> int:
    failed = 0
    async with (
        open_stores(settings, SystemClock(), RandomIds(), access=Access.EXISTING) as stores,
        aclosing(_findings(settings, stores, topic, full=full)) as findings,
    ):
        async for finding in findings:
            print(finding.json() if as_json else finding.line(), flush=True)
            failed += finding.level is Severity.BAD
    if not as_json:
        print(f"{plural(failed, 'problem')} found" if failed else "no problems found")
    return 1 if failed else 0


async def _findings(
    settings: Settings, stores: Stores, only: str | None, *, full: bool
) -> AsyncGenerator[Finding, None]:
    yield Finding("metadata", f"{metadata_name(settings)} is reachable")
    yield Finding("storage", f"{settings.storage_url} can be written and read")
    yield Finding(
        "segments", f"in {settings.segments_dir.absolute()}" if settings.segments_dir else "none: profile cost only"
    )
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
    verifier = LogVerifier(stores.metadata, stores.objects, stores.segments)
    payloads = PayloadVerifier(stores.metadata, stores.objects, stores.segments, random.Random(), full=full)
    for name, topic in sorted(topics.items()):
        for partition in topic.partitions():
            what = f"{name}/{partition.number}"
            try:
                with reported(f"checking the log of {what}"):
                    report = await verifier.verify(partition)
                    checked = await payloads.check(partition)
            except LakestreamError as error:
                yield bad(what, str(error))
                continue
            claims = f"offsets {report.floor} to {report.offset_end} in {report.claims} claims"
            read = f"; {human_size(checked.bytes)} of {checked.claims} read" if checked.claims else ""
            yield Finding(what, claims + read)
            for problem in report.problems or checked.problems:  # missing bytes cannot be read either
                yield bad(what, problem)
