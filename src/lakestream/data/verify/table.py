"""Checks a topic's table against the log, its own files, and the records that Kafka serves, for `lakestream doctor`.

    marks   floor ≤ table end ≤ next-offset ≤ log end, of every partition
    state   pointer → metadata file → list → manifests → files            table_state.py
    files   exist, with size, rows and bounds as in their manifests       file_checks.py, pure
            and every row in the partition of its file                    partition_checks.py
    rows    each offset once; Kafka serves the rows of the table          row_checks.py

Brokers, pipelines and engines change the table meanwhile: each problem is checked again, and only those that are found
every time are reported. Reads and keeps little at a time.
"""

import asyncio
import random
from collections.abc import Iterable
from typing import Final, NamedTuple

from lakestream.aio.gather import gather_limited
from lakestream.aio.threads import Run
from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import NoSuchTable
from lakestream.clock import Clock
from lakestream.data.table.read.snapshots import AGE_MS_MAX
from lakestream.data.verify.file_checks import PartitionOffsets, Problem
from lakestream.data.verify.sampling import SAMPLED, Depth, Sample, choose_sample
from lakestream.data.verify.snapshot_checks import Kafka, SnapshotCheck, TableReport
from lakestream.data.verify.table_state import READS_AT_ONCE, TableState, load_state, unreadable
from lakestream.errors import Corrupt, LakestreamError, Missing
from lakestream.metadata.claims import Claims
from lakestream.metadata.topics import Topic, Topics
from lakestream.model import PartitionId, Span

ORPHAN_AGE_MS: Final = 24 * 60 * 60 * 1000
ATTEMPTS_MAX: Final = 5
"""Two, and more if the table changed during the second."""
PAUSE_MS: Final = AGE_MS_MAX + 200
"""Before the second attempt: brokers may serve a snapshot that is so much older than the table."""


class _LogOffsets(NamedTuple):
    """Offsets of a partition that are read before its table."""

    floor: int
    table_end: int


class TableVerifier:
    def __init__(
        self,
        catalog: Catalog,
        claims: Claims,
        topics: Topics,
        kafka: Kafka,
        run: Run,
        clock: Clock,
        rng: random.Random,
        depth: Depth = SAMPLED,
        pause_ms: int = PAUSE_MS,
    ) -> None:
        self._catalog = catalog
        self._claims = claims
        self._topics = topics
        self._kafka = kafka
        self._run = run
        self._clock = clock
        self._rng = rng
        self._depth = depth
        self._pause_ms = pause_ms

    async def verify(self, name: str, topic: Topic) -> TableReport:
        """Checks the table of a topic. Raises LakestreamError if the stores fail."""
        first = TableReport()
        sample = await self._check(topic, first, None)
        for _ in range(ATTEMPTS_MAX - 1):
            if not first.problems:
                break
            await asyncio.sleep(self._pause_ms / 1000)
            try:
                topic_now = await self._topics.get(name)
            except Missing:
                return TableReport(summary="deleted meanwhile")
            if topic_now.topic_id != topic.topic_id:
                return TableReport(summary="deleted and created again meanwhile")
            again = TableReport()
            await self._check(topic_now, again, sample.narrowed(first.problems, first.windows))
            keys = {problem.key for problem in first.problems}
            first.problems = _unique(problem for problem in again.problems if problem.key in keys)
            if await self._is_unchanged(topic, again.metadata_location):
                break
        return first

    async def _is_unchanged(self, topic: Topic, metadata_location: str) -> bool:
        """Returns whether the table has not changed since it was checked, so that the problems are certain."""
        try:
            return (await self._catalog.pointers.find_id(topic.topic_id)).table.metadata_location == metadata_location
        except NoSuchTable:
            return not metadata_location

    async def _check(self, topic: Topic, report: TableReport, sample: Sample | None) -> Sample:
        """Checks the sample, or selects one if there is none; returns it."""
        logs = await self._log_offsets(topic)
        try:
            state = await load_state(self._catalog, topic.topic_id)
        except NoSuchTable:
            report.lag = sum(ends.end for ends in (await self._ends(logs)).values())
            _report_missing_table(logs, report)
            return Sample()
        except LakestreamError as error:
            report.problems.append(unreadable("table", "its table", error))
            return Sample()
        ends = await self._ends(logs)
        report.metadata_location = state.loaded.metadata_location
        report.problems += state.problems
        snapshot = SnapshotCheck(self._catalog, self._kafka, self._run, state, topic, report)
        offsets = state.next_offsets or {}
        snapshot.check_partition_offsets(
            {
                one.number: PartitionOffsets(*logs[one], offsets.get(one.number, 0), ends[one.number].end)
                for one in logs
                if one.number in ends
            }
        )
        await snapshot.check_folder(self._clock.now_ms() - ORPHAN_AGE_MS, self._depth.old_reads)
        if sample is None:
            sample = choose_sample(state, ends, self._depth, self._rng)
        await snapshot.check_files(sample)
        await snapshot.check_rows(sample, ends)
        report.summary = _summary(state, sample, report)
        return sample

    async def _log_offsets(self, topic: Topic) -> dict[PartitionId, _LogOffsets]:
        async def read(partition: PartitionId) -> tuple[PartitionId, _LogOffsets] | None:
            floor = await self._claims.floor(partition)
            return None if floor is None else (partition, _LogOffsets(floor, await self._claims.table_end(partition)))

        results = await gather_limited([read(partition) for partition in topic.partitions()], READS_AT_ONCE)
        return dict(one for one in results if one is not None)

    async def _ends(self, partitions: Iterable[PartitionId]) -> dict[int, Span]:
        async def read(partition: PartitionId) -> tuple[int, Span] | None:
            try:
                return partition.number, await self._kafka.ends(partition)
            except (Missing, Corrupt):  # deleted; or damaged, which the check of the log reports
                return None

        results = await gather_limited([read(partition) for partition in partitions], READS_AT_ONCE)
        return dict(one for one in results if one is not None)


def _report_missing_table(logs: dict[PartitionId, _LogOffsets], report: TableReport) -> None:
    """Reports a problem if records were moved from the log into a table that does not exist."""
    moved = [(partition.number, offsets.table_end) for partition, offsets in logs.items() if offsets.table_end]
    if not moved:
        report.summary = f"no table yet; {report.lag:,} offsets in the log"
        return
    number, end = moved[0]
    text = (
        f"its table was dropped, and with it the records before offset {end} of partition {number}"
        f"{' and of others' if len(moved) > 1 else ''}: register its newest metadata file again, or delete the topic"
    )
    report.problems.append(Problem("gone", "", text))


def _summary(state: TableState, sample: Sample, report: TableReport) -> str:
    rows, size = sum(file.rows for file in state.data), sum(file.size for file in state.data)
    deletes = f" and {len(state.deletes):,} delete files" if state.deletes else ""
    return (
        f"{state.name}: {rows:,} rows, {size:,} bytes in {len(state.data):,} files{deletes};"
        f" lag {report.lag:,} offsets; checked the content of {len(sample.files):,} files, compared"
        f" {len(sample.windows):,} parts with what Kafka serves"
    )


def _unique(problems: Iterable[Problem]) -> list[Problem]:
    """Removes duplicates, and puts each text on one line: messages of libraries in it may have several."""
    by_text = {" ".join(problem.text.split()): problem for problem in problems}
    return [problem._replace(text=text) for text, problem in by_text.items()]
