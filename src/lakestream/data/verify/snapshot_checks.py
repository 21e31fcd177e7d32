"""Checks one snapshot of a table. Used by table.py, which checks again before it reports a problem.

Order: partition offsets → files in the folder → content of files → rows, and the records that Kafka serves
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from lakestream.aio.gather import gather_limited
from lakestream.aio.threads import Run
from lakestream.catalog.catalog import Catalog
from lakestream.catalog.manifests.manifest import DATA
from lakestream.catalog.topic_table.offsets import main_of
from lakestream.data.table.history_types import HistoryRead
from lakestream.data.table.read.manifest_index import UNKNOWN
from lakestream.data.table.read.parquet_footer import Footer, RowGroup
from lakestream.data.verify import file_checks, row_checks
from lakestream.data.verify.file_checks import RESTORE, FileContent, NamedFile, PartitionOffsets, Problem
from lakestream.data.verify.file_reader import TableFileReader
from lakestream.data.verify.partition_checks import misplaced, partitioned_by
from lakestream.data.verify.sampling import Sample, Window
from lakestream.data.verify.table_state import READS_AT_ONCE, TableState, named_by, unreadable
from lakestream.errors import LakestreamError, OutOfRange, Unavailable
from lakestream.metadata.topics import Topic
from lakestream.model import MiB, PartitionId, Span
from lakestream.records.file_region import BufferOrFile

ORPHANS_MAX: Final = 100_000
"""Files that are searched in older snapshots."""
BORDER: Final = 1_000
"""Offsets on both sides of the border between table and log that are compared."""
READ_BYTES: Final = 4 * MiB


class Kafka(Protocol):
    """Reads records as consumers get them."""

    async def ends(self, partition: PartitionId) -> Span:
        """Returns start and end of the log. Raises Missing if the partition was deleted."""
        ...

    async def history(self, partition: PartitionId, offset: int, bytes_max: int) -> HistoryRead:
        """Reads from the table."""
        ...

    async def read(self, partition: PartitionId, offset: int, bytes_max: int) -> HistoryRead:
        """Reads committed records from table and log. Raises OutOfRange if they were deleted."""
        ...


@dataclass(slots=True)
class TableReport:
    """Result of the checks of one topic's table."""

    summary: str = ""
    problems: list[Problem] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    """Windows in which problems were found."""
    notes: list[str] = field(default_factory=list)
    metadata_location: str = ""
    """Of the checked state."""
    lag: int = 0
    """Offsets in the log that are not in the table yet."""


class SnapshotCheck:
    def __init__(
        self, catalog: Catalog, kafka: Kafka, run: Run, state: TableState, topic: Topic, report: TableReport
    ) -> None:
        self._catalog = catalog
        self._kafka = kafka
        self._run = run
        self._state = state
        self._topic = topic
        self._result = report
        self._folder = catalog.locations.table(state.metadata["location"])
        self._reader = TableFileReader(catalog, self._folder, run)
        self._wrong: set[str] = {problem.subject for problem in state.problems}
        """Files with problems, which are not checked further."""

    def _report(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self._wrong.add(problem.subject)
            self._result.problems.append(problem)

    def _is_reported(self, kind: str, subject: str) -> bool:
        return any(problem.key == (kind, subject) for problem in self._result.problems)

    # ── marks and bounds ─────────────────────────────────────────────────────────────────────────────────────────────

    def check_partition_offsets(self, marks: Mapping[int, PartitionOffsets]) -> None:
        offsets = self._state.next_offsets
        if offsets is None:
            return
        for number, one in marks.items():
            self._report(file_checks.check_partition_offsets(number, one))
            self._result.lag += max(0, one.end - one.next_offset)
        self._report(file_checks.check_bounds(self._state.data, offsets, self._topic.partition_count))
        self._report(file_checks.check_deletes(self._state.deletes))
        for file in self._state.data:
            self._check_offsets(file, file.offsets_null or 0)

    def _check_offsets(self, file: NamedFile, offsets_null: int) -> None:
        """Reports rows without offsets. Not with `_report`: the other rows of the file are checked as usual."""
        self._result.problems += file_checks.check_offsets(file, offsets_null, self._state.deletes)

    # ── files in its folder ──────────────────────────────────────────────────────────────────────────────────────────

    async def check_folder(self, aged_ms: int, old_reads: int) -> None:
        """Checks all files with a listing, one call for a thousand files. A file missing in it may be newer than it."""
        expected = {self._key(file.location): file for file in self._state.files}
        missing = dict(expected)
        known = {self._key(location) for location in (*self._state.lists, *self._state.metadata_files())}
        orphans: dict[str, int] = {}
        async for page in self._catalog.objects.walk(self._key(self._state.metadata["location"])):
            for info in page:
                if (file := expected.get(info.key)) is not None:
                    missing.pop(info.key, None)
                    self._report(file_checks.check_size(file, info.size))
                elif info.key not in known and info.modified_ms < aged_ms and len(orphans) < ORPHANS_MAX:
                    orphans[info.key] = info.size
        await gather_limited([self._check_there(key, file) for key, file in missing.items()], READS_AT_ONCE)
        if orphans:
            await self._note_orphans(orphans, old_reads)

    async def _check_there(self, key: str, file: NamedFile) -> None:
        try:
            self._report(file_checks.check_size(file, (await self._catalog.objects.head(key)).size))
        except LakestreamError as error:
            self._report([unreadable("file", file.location, error)])

    async def _note_orphans(self, orphans: Mapping[str, int], old_reads: int) -> None:
        """Notes orphans: files that no snapshot names, also no older one."""
        main = main_of(self._state.metadata)
        older = [one for one in reversed(self._state.metadata["snapshots"]) if one["snapshot-id"] != main]
        named = await named_by(self._catalog, self._folder, older, set(self._state.lists), old_reads)
        if named is None:
            self._result.notes.append(
                f"{len(orphans):,} files older than a day are not in the newest snapshot; not all older ones were read"
                " to find which of them are orphans (--full does)"
            )
            return
        names = {self._key(location) for location in named}
        left = {key: size for key, size in orphans.items() if key not in names}
        if left:
            self._result.notes.append(
                f"{len(left):,} orphans older than a day, {sum(left.values()):,} bytes, such as {min(left)}:"
                " maintenance removes them, or CALL system.remove_orphan_files"
            )

    def _key(self, location: str) -> str:
        try:
            return self._catalog.locations.key_of(location)
        except LakestreamError:
            return location  # outside of the storage: a read of it fails with the reason

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def check_files(self, sample: Sample) -> None:
        chosen = sample.files | sample.row_files
        files = [file for file in self._state.files if file.location in chosen and file.location not in self._wrong]

        async def check(file: NamedFile) -> None:
            try:
                if file.content != DATA:
                    await self._reader.deletes(file)
                else:
                    await self._check_file(file, into_rows=file.location in sample.row_files)
            except LakestreamError as error:
                self._report([unreadable("file", file.location, error)])

        await gather_limited([check(file) for file in files], READS_AT_ONCE)

    async def _check_file(self, file: NamedFile, *, into_rows: bool) -> None:
        footer = await self._reader.footer(file)
        if file.offsets_null is None and footer.offsets_null != UNKNOWN:
            self._check_offsets(file, footer.offsets_null)
        self._report(file_checks.check_content(file, row_checks.footer_content(footer), "its footer"))
        if footer.offsets_null == file.rows:
            return
        if into_rows and file.location not in self._wrong:
            await self._check_places(file, footer)
        if into_rows and file.location not in self._wrong:
            await self._check_partition(file, footer)

    async def _check_places(self, file: NamedFile, footer: Footer) -> None:
        """Checks every row's partition and offset."""
        parts: list[FileContent] = []
        is_sorted = True
        for group in footer.groups:
            offsets = await self._reader.row_offsets(footer, group.number)
            if not len(offsets.offsets):
                continue
            part = offsets.content()
            is_sorted = is_sorted and offsets.is_sorted and not (parts and file_checks.overlap(parts[-1], part))
            parts.append(part)
            if part.offsets is not None:
                self._check_group(file, group, *part.offsets)
        whole = file_checks.joined(parts)
        self._report(file_checks.check_content(file, whole, "it"))
        self._report(file_checks.check_sorted(file, is_sorted))
        if self._state.next_offsets is not None:
            self._report(file_checks.check_reach(file.location, whole, self._state.next_offsets))

    async def _check_partition(self, file: NamedFile, footer: Footer) -> None:
        """Checks that every row has the partition values of its file."""
        metadata = self._state.metadata
        fields = partitioned_by(metadata, file.spec_id)
        for group in footer.groups if fields else ():
            found = await self._reader.misplaced(footer, group.number, metadata, file, fields)
            if found is not None:
                self._report(misplaced(file, found))
                return

    def _check_group(self, file: NamedFile, group: RowGroup, low: int, high: int) -> None:
        if low < group.offset_lo or high > group.offset_hi:
            expected = f"its footer says {group.offset_lo} to {group.offset_hi}"
            text = f"{file.location}: row group {group.number} has offsets {low} to {high}, {expected}; {RESTORE}"
            self._report([Problem("file", file.location, text)])

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def check_rows(self, sample: Sample, ends: Mapping[int, Span]) -> None:
        offsets = self._state.next_offsets
        if offsets is None:
            return
        for window in sample.windows:
            await self._run_check(window, self._check_window)
        for number in sample.borders:
            if number in ends and offsets.get(number, 0):
                start, end = ends[number]
                border = Span(max(start, offsets[number] - BORDER), min(end, offsets[number] + BORDER))
                if border.size > 0:
                    await self._run_check(Window(number, border, is_border=True), self._check_border)
        for number in offsets:
            if not self._is_reported("twice", str(number)):
                sound = [file for file in self._state.of_partition(number) if self._is_without_problems(file)]
                self._report(file_checks.check_counts(number, sound, bool(self._state.deletes)))

    def _is_without_problems(self, file: NamedFile) -> bool:
        return file.location not in self._wrong and not self._is_reported("no_offset", file.location)

    async def _run_check(self, window: Window, check: Callable[[Window], Awaitable[None]]) -> None:
        before = len(self._result.problems)
        try:
            await check(window)
        except OutOfRange:
            return  # deleted meanwhile, by retention or DeleteRecords
        except LakestreamError as error:
            where = f"partition {window.partition}, offsets {window.span.start} to {window.span.end}"
            self._report([Problem("served", window.subject, f"{where} cannot be served: {error}")])
        finally:
            if len(self._result.problems) > before:
                self._result.windows.append(window)

    async def _check_window(self, window: Window) -> None:
        rows = await self._rows(window.partition, window.span)
        if rows is None:
            return
        batches = await self._batches(self._kafka.history, window)
        served = await self._served(batches, window.partition, window.span)
        difference = await self._run(partial(row_checks.compared, rows, served))
        self._report(file_checks.differences(window.partition, window.subject, difference, "out of the table"))

    async def _check_border(self, window: Window) -> None:
        """Checks the records that a consumer gets when it passes from the table to the log."""
        assert self._state.next_offsets is not None
        inside = Span(window.span.start, min(window.span.end, self._state.next_offsets[window.partition]))
        rows = await self._rows(window.partition, inside)
        if rows is None:
            return
        batches = await self._batches(self._kafka.read, window)
        await self._served(batches, window.partition, window.span)  # all of it is sound
        served = await self._served(batches, window.partition, inside)
        difference = await self._run(partial(row_checks.compared, rows, served))
        if not self._state.is_only_appended:  # the log may still have rows that an engine deleted from the table
            difference = difference._replace(not_in_table=None)
        self._report(file_checks.differences(window.partition, window.subject, difference, "where table and log meet"))

    async def _batches(
        self, read: Callable[[PartitionId, int, int], Awaitable[HistoryRead]], window: Window
    ) -> list[tuple[int, list[BufferOrFile]]]:
        partition = PartitionId(self._topic.topic_id, window.partition)
        batches: list[tuple[int, list[BufferOrFile]]] = []
        at = window.span.start
        while at < window.span.end:
            result = await read(partition, at, READ_BYTES)
            if result.offset_next <= at:
                raise Unavailable(f"offset {at} is not served, although the log has records after it")
            batches += result.batches
            at = result.offset_next
        return batches

    async def _served(self, batches: Sequence[tuple[int, list[BufferOrFile]]], partition: int, span: Span) -> Any:
        name = f"what Kafka serves of partition {partition}"
        return await self._run(partial(row_checks.served_records, batches, partition, span, name))

    async def _rows(self, partition: int, span: Span) -> Any | None:
        """Returns the table's rows, or None if a problem with them was reported."""
        parts: list[tuple[str, Any]] = []
        for file in self._state.of_partition(partition):
            if not file.may_reach(span):
                continue
            if file.location in self._wrong:
                return None
            try:
                parts += await self._rows_of(file, partition, span)
            except LakestreamError as error:
                self._report([unreadable("file", file.location, error)])
                return None
        joined = await self._run(partial(row_checks.window_rows, parts))
        if joined.duplicate is None:
            return joined.rows
        if not self._is_reported("twice", str(partition)):
            self._report([file_checks.twice(partition, *joined.duplicate)])
        return None

    async def _rows_of(self, file: NamedFile, partition: int, span: Span) -> list[tuple[str, Any]]:
        footer = await self._reader.footer(file)
        deletes = file_checks.deletes_of(file, self._state.deletes)
        return [
            (file.location, await self._reader.records(footer, group.number, partition, span, deletes))
            for group in footer.groups
            if group.offset_hi >= span.start and group.offset_lo < span.end
        ]
