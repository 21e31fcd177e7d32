"""Checks of `lakestream doctor` for the tables of topics, and for the pipeline that writes them.

After: data/verify/table.py.  Reads as brokers do, through a log of its own, to which it appends nothing.
"""

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from lakestream.aio.progress import reported
from lakestream.aio.threads import Threads
from lakestream.catalog.catalog import Catalog, open_catalog
from lakestream.cli.doctor.dead_letters import dead_letter_findings
from lakestream.cli.doctor.delta import delta_findings
from lakestream.cli.doctor.findings import Finding, bad, note
from lakestream.cli.output.text import plural
from lakestream.clock import Clock, Ids
from lakestream.config.settings import Profile, Settings
from lakestream.coordination.schema_registry.schema_reader import SchemaReader
from lakestream.data.log.log import Log
from lakestream.data.log.partition_state import Aborted
from lakestream.data.table.history import TableHistory
from lakestream.data.table.history_types import HistoryRead
from lakestream.errors import LakestreamError, Misconfigured
from lakestream.metadata.claims import Claims
from lakestream.metadata.pipeline_status import PipelineReport, PipelineStatusStore
from lakestream.metadata.topics import Topic, Topics
from lakestream.model import MiB, PartitionId, Span
from lakestream.pipeline.spark.java import find_java
from lakestream.records.batch import CONTROL, HEADER_SIZE, TRANSACTIONAL
from lakestream.records.file_region import BufferOrFile, FileRegion
from lakestream.server.node import Stores

if TYPE_CHECKING:
    from lakestream.data.verify.table import TableVerifier

HISTORY_BYTES: Final = 64 * MiB
"""Size of the cache of history reads: doctor reads nothing twice."""
SILENT_MS: Final = 5 * 60 * 1000
"""An idle pipeline writes its status every minute."""
LAG_MS: Final = 60 * 1000
DELTA_LAG_MS: Final = 5 * 60 * 1000
"""Longer than LAG_MS, because maintenance must first rewrite files that have delete files."""
STALLED_AFTER_MS: Final = 30 * 1000
_PREFIX: Final = 16


class TableDoctor:
    def __init__(
        self,
        verifier: "TableVerifier",
        reports: PipelineStatusStore,
        clock: Clock,
        catalog: Catalog,
        registry: SchemaReader,
        *,
        full: bool,
    ) -> None:
        self._verifier = verifier
        self._catalog = catalog
        self._registry = registry
        self._full = full
        self._reports = reports
        self._clock = clock
        self._lag = 0

    async def topic(self, name: str, topic: Topic) -> AsyncIterator[Finding]:
        what = f"{name} table"
        try:
            with reported(f"checking the table of {name}"):
                report = await self._verifier.verify(name, topic)
        except LakestreamError as error:
            yield bad(what, f"cannot be checked: {error}")
            return
        except Exception as error:  # of a library that failed at damaged bytes; other topics are still checked
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            yield bad(
                what, f"cannot be checked ({reason}): read its newest files with another engine, and report the bug"
            )
            return
        self._lag += report.lag
        if report.summary:
            yield Finding(what, report.summary)
        for problem in report.problems:
            yield bad(what, problem.text)
        for text in report.notes:
            yield note(what, text)
        async for finding in delta_findings(self._catalog, name, topic):
            yield finding
        async for finding in dead_letter_findings(self._catalog, self._registry, name, topic, full=self._full):
            yield finding

    async def pipeline(self, names: set[str]) -> AsyncIterator[Finding]:
        """Yields findings of the pipelines' statuses, for the checked topics."""
        try:
            report = await self._reports.get()
        except LakestreamError as error:
            yield bad("pipeline", str(error))
            return
        silent_ms = None if report is None else self._clock.now_ms() - report.at_ms
        for finding in self._liveness(silent_ms):
            yield finding
        if report is not None:
            for finding in _topic_findings(report, names, self._clock.now_ms()):
                yield finding
        yield await _java(is_needed=bool(self._lag) and (silent_ms is None or silent_ms > SILENT_MS))

    def _liveness(self, silent_ms: int | None) -> Iterator[Finding]:
        start = "start it: lakestream serve has one, or run lakestream pipeline"
        waiting = f"{plural(self._lag, 'offset')} of the logs wait for it"
        if silent_ms is None:
            yield note("pipeline", f"no pipeline has run yet; {waiting}; {start}")
        elif silent_ms <= SILENT_MS:
            yield Finding("pipeline", f"last status {silent_ms // 1000:,} s ago")
        elif not self._lag:
            yield note("pipeline", f"last status {_minutes(silent_ms)} ago; no records wait for it")
        else:
            yield bad("pipeline", f"last status {_minutes(silent_ms)} ago, and {waiting}; {start}")


def _topic_findings(report: PipelineReport, names: set[str], now_ms: int) -> Iterator[Finding]:
    if report.error:
        yield bad("pipeline", f"its last micro-batch failed: {report.error}; the pipeline retries")
    for name, topic in sorted(report.topics.items()):
        if name not in names:
            continue
        if topic.stalled:
            yield bad("pipeline", f"topic {name} is stalled: {topic.stalled}; it resumes when that is repaired")
        elif topic.error:
            age_ms = now_ms - topic.error_since_ms
            text = f"topic {name} cannot be moved for {age_ms // 1000:,} s: {topic.error}; the pipeline retries"
            yield bad("pipeline", text) if age_ms >= STALLED_AFTER_MS else note("pipeline", text)
        elif topic.delta_lagging:
            age_ms = now_ms - topic.delta_lagging_since_ms
            text = f"the Delta table of topic {name} lags for {age_ms // 1000:,} s: {topic.delta_lagging}"
            yield bad("pipeline", text) if age_ms >= DELTA_LAG_MS else note("pipeline", text)
        elif topic.lag_ms > LAG_MS:
            lag = f"{plural(topic.lag_records, 'record')}, the oldest {topic.lag_ms // 1000:,} s old"
            yield note("pipeline", f"topic {name} lags by {lag}")
        if topic.pending_layout:
            yield note("layout", f"topic {name}: {topic.pending_layout}")
        if topic.conversion_error:
            yield note(
                "typed",
                f"topic {name}: values without columns ({topic.conversion_error});"
                f" lakestream table dead-letters {name}",
            )


async def _java(*, is_needed: bool) -> Finding:
    """Checks Java on this machine only: the pipeline may run on another one."""
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
    # Imported here: Arrow and the kernels take a second to load.
    with reported("loading the kernels, or compiling them at the first start"):
        from lakestream.data.verify.sampling import FULL, SAMPLED
        from lakestream.data.verify.table import TableVerifier

    logging.getLogger("lakestream").addHandler(logging.NullHandler())  # errors become findings
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
        verifier = TableVerifier(
            catalog,
            Claims(stores.metadata),
            Topics(stores.metadata),
            _Served(log, history),
            threads,
            clock,
            random.Random(),
            FULL if full else SAMPLED,
        )
        reports, registry = PipelineStatusStore(stores.metadata), SchemaReader(stores.metadata)
        yield TableDoctor(verifier, reports, clock, catalog, registry, full=full)


class _Served:
    """Reads records and history as a broker serves them."""

    def __init__(self, log: Log, history: TableHistory) -> None:
        self._log = log
        self._history = history

    async def ends(self, partition: PartitionId) -> Span:
        bounds = await self._log.bounds(partition)
        return Span(bounds.start, bounds.end)

    async def history(self, partition: PartitionId, offset: int, bytes_max: int) -> HistoryRead:
        return await self._history.read(partition, offset, bytes_max)

    async def read(self, partition: PartitionId, offset: int, bytes_max: int) -> HistoryRead:
        found = await self._log.read(partition, offset, bytes_max)
        if found.is_committed:
            return HistoryRead(found.batches, found.offset_next)
        aborted = self._log.aborted(partition, offset, found.offset_next)
        return HistoryRead([batch for batch in found.batches if _is_committed(*batch, aborted)], found.offset_next)


def _is_committed(offset: int, pieces: list[BufferOrFile], aborted: list[Aborted]) -> bool:
    """Returns whether a batch is neither a marker nor aborted, so that its records become rows."""
    head, rest = pieces[:2]
    assert not isinstance(head, FileRegion)
    assert not isinstance(rest, FileRegion)
    header = bytes(head) + bytes(rest[: HEADER_SIZE - _PREFIX])
    attributes, producer = (int.from_bytes(header[at:end], "big", signed=True) for at, end in ((21, 23), (43, 51)))
    if attributes & CONTROL:
        return False
    return not attributes & TRANSACTIONAL or not any(
        one.producer_id == producer and one.offset_first <= offset <= one.offset_last for one in aborted
    )
