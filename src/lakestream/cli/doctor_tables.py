"""The part of `lakestream doctor` that is about tables: each topic's, and the pipeline that fills them.

Below: data/table/examine.py.  Reads as brokers do, through a log of its own that nobody writes to.
"""

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from lakestream.batch import CONTROL, HEADER_SIZE, TRANSACTIONAL
from lakestream.catalog.catalog import Catalog
from lakestream.catalog.opening import open_catalog
from lakestream.cli.doctor_delta import delta_findings
from lakestream.cli.doctor_findings import Finding, bad, note
from lakestream.cli.text import plural
from lakestream.clock import Clock, Ids
from lakestream.data.log.fold import Aborted
from lakestream.data.log.log import Log
from lakestream.data.table.history import TableHistory
from lakestream.data.table.past import Past
from lakestream.data.table.threads import Threads
from lakestream.errors import LakestreamError, Misconfigured
from lakestream.filed import FileSpan, Piece
from lakestream.metadata.claims import Claims
from lakestream.metadata.reports import PipelineReport, Reports
from lakestream.metadata.topics import Topic, Topics
from lakestream.model import MiB, PartitionId, Span
from lakestream.node import Stores
from lakestream.pipeline.java import find_java
from lakestream.settings import Profile, Settings

if TYPE_CHECKING:
    from lakestream.data.table.examine import Examiner

HISTORY_BYTES: Final = 64 * MiB
"""Of what was served, kept: doctor comes back to none of it."""
SILENT_MS: Final = 5 * 60 * 1000
"""A pipeline that has nothing to do says so every minute."""
LAG_MS: Final = 60 * 1000
DELTA_BEHIND_MS: Final = 5 * 60 * 1000
"""Maintenance has to write files anew first, where rows were deleted beside them."""
TROUBLE_LASTS_MS: Final = 30 * 1000
_PREFIX: Final = 16


class TableDoctor:
    def __init__(self, examiner: "Examiner", reports: Reports, clock: Clock, catalog: Catalog) -> None:
        self._examiner = examiner
        self._catalog = catalog
        self._reports = reports
        self._clock = clock
        self._behind = 0

    async def topic(self, name: str, topic: Topic) -> AsyncIterator[Finding]:
        what = f"{name} table"
        try:
            seen = await self._examiner.examine(name, topic)
        except LakestreamError as error:
            yield bad(what, f"could not be examined: {error}")
            return
        except Exception as error:  # of a library that was given bytes nobody has thought of; others go on
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            yield bad(
                what, f"could not be examined ({reason}): look at its newest files with another engine, report it"
            )
            return
        self._behind += seen.behind
        if seen.said:
            yield Finding(what, seen.said)
        for trouble in seen.troubles:
            yield bad(what, trouble.text)
        for said in seen.notes:
            yield note(what, said)
        async for finding in delta_findings(self._catalog, name, topic):
            yield finding

    async def pipeline(self, names: set[str]) -> AsyncIterator[Finding]:
        """Of the topics that were looked at."""
        try:
            report = await self._reports.get()
        except LakestreamError as error:
            yield bad("pipeline", str(error))
            return
        silent_ms = None if report is None else self._clock.now_ms() - report.at_ms
        for finding in self._heard(silent_ms):
            yield finding
        if report is not None:
            for finding in _topics_reported(report, names, self._clock.now_ms()):
                yield finding
        yield await _java(is_needed=bool(self._behind) and (silent_ms is None or silent_ms > SILENT_MS))

    def _heard(self, silent_ms: int | None) -> Iterator[Finding]:
        start = "start it: lakestream serve has one, or run lakestream pipeline"
        waiting = f"{plural(self._behind, 'offset')} of the logs wait for it"
        if silent_ms is None:
            yield note("pipeline", f"none has run yet; {waiting}; {start}")
        elif silent_ms <= SILENT_MS:
            yield Finding("pipeline", f"heard of {silent_ms // 1000:,} s ago")
        elif not self._behind:
            yield note("pipeline", f"last heard of {_minutes(silent_ms)} ago; nothing waits for it")
        else:
            yield bad("pipeline", f"last heard of {_minutes(silent_ms)} ago, and {waiting}; {start}")


def _topics_reported(report: PipelineReport, names: set[str], now_ms: int) -> Iterator[Finding]:
    if report.trouble:
        yield bad("pipeline", f"its last round failed: {report.trouble}; it is tried again all the time")
    for name, topic in sorted(report.topics.items()):
        if name not in names:
            continue
        if topic.stuck:
            yield bad("pipeline", f"topic {name} is stuck: {topic.stuck}; it goes on by itself when that is mended")
        elif topic.trouble:
            age_ms = now_ms - topic.trouble_ms
            said = (
                f"topic {name} is not moved for {age_ms // 1000:,} s: {topic.trouble}; it is tried again all the time"
            )
            yield bad("pipeline", said) if age_ms >= TROUBLE_LASTS_MS else note("pipeline", said)
        elif topic.delta_behind:
            age_ms = now_ms - topic.delta_behind_ms
            said = f"the Delta table of topic {name} is behind for {age_ms // 1000:,} s: {topic.delta_behind}"
            yield bad("pipeline", said) if age_ms >= DELTA_BEHIND_MS else note("pipeline", said)
        elif topic.lag_ms > LAG_MS:
            lag = f"{plural(topic.lag_records, 'record')}, the oldest {topic.lag_ms // 1000:,} s old"
            yield note("pipeline", f"topic {name} is behind by {lag}")
        if topic.unmet:
            yield note("layout", f"topic {name}: {topic.unmet}")
        if topic.misfit:
            yield note(
                "typed", f"topic {name}: values without columns ({topic.misfit}); lakestream table rejects {name}"
            )


async def _java(*, is_needed: bool) -> Finding:
    """Only of this machine: the pipeline may run on another one."""
    try:
        java = await asyncio.to_thread(find_java, os.environ)
    except Misconfigured as error:
        return bad("java", str(error)) if is_needed else note("java", f"{error} (if the pipeline is to run here)")
    return Finding("java", f"{java.version} in {java.program}")


def _minutes(age_ms: int) -> str:
    return plural(age_ms // 60_000, "minute")


@asynccontextmanager
async def open_table_doctor(
    settings: Settings, stores: Stores, clock: Clock, ids: Ids, *, full: bool
) -> AsyncIterator[TableDoctor]:
    # Here and not above: Arrow and the kernels take a second to load.
    from lakestream.data.table.examine import Examiner
    from lakestream.data.table.examine_choice import FULL, SAMPLED

    logging.getLogger("lakestream").addHandler(logging.NullHandler())  # what is wrong is said as a finding
    async with AsyncExitStack() as opened:
        catalog = open_catalog(stores.metadata, stores.objects, settings.storage_url, clock, ids)
        history = TableHistory(catalog, stores.objects, HISTORY_BYTES)
        opened.push_async_callback(history.close)
        log = Log(
            stores.metadata,
            stores.objects,
            stores.segments,
            settings.log,
            clock,
            ids,
            profile_of=lambda _: Profile.COST,  # nothing is appended
            history=history,
        )
        await log.start()
        opened.push_async_callback(log.close)
        threads = Threads()
        opened.push_async_callback(threads.close)
        examiner = Examiner(
            catalog,
            Claims(stores.metadata),
            Topics(stores.metadata),
            _Served(log, history),
            threads,
            clock,
            random.Random(),
            FULL if full else SAMPLED,
        )
        yield TableDoctor(examiner, Reports(stores.metadata), clock, catalog)


class _Served:
    """What a broker would serve."""

    def __init__(self, log: Log, history: TableHistory) -> None:
        self._log = log
        self._history = history

    async def ends(self, partition: PartitionId) -> Span:
        bounds = await self._log.bounds(partition)
        return Span(bounds.start, bounds.end)

    async def history(self, partition: PartitionId, offset: int, bytes_max: int) -> Past:
        return await self._history.read(partition, offset, bytes_max)

    async def read(self, partition: PartitionId, offset: int, bytes_max: int) -> Past:
        found = await self._log.read(partition, offset, bytes_max)
        if found.is_decided:
            return Past(found.batches, found.offset_next)
        aborted = self._log.aborted(partition, offset, found.offset_next)
        return Past([batch for batch in found.batches if _is_committed(*batch, aborted)], found.offset_next)


def _is_committed(offset: int, pieces: list[Piece], aborted: list[Aborted]) -> bool:
    """Neither a marker nor aborted: so they become rows."""
    head, rest = pieces[:2]
    assert not isinstance(head, FileSpan)
    assert not isinstance(rest, FileSpan)
    header = bytes(head) + bytes(rest[: HEADER_SIZE - _PREFIX])
    attributes, producer = (int.from_bytes(header[at:end], "big", signed=True) for at, end in ((21, 23), (43, 51)))
    if attributes & CONTROL:
        return False
    return not attributes & TRANSACTIONAL or not any(
        one.producer_id == producer and one.offset_first <= offset <= one.offset_last for one in aborted
    )
