"""One look at one state of a table: below examine.py, which looks again before it accuses anybody.

marks → what lies in the folder → files → rows, and what Kafka serves of them
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.manifests import DATA
from lakestream.catalog.next_offsets import main_of
from lakestream.data.table import examine_files as pure
from lakestream.data.table import examine_rows
from lakestream.data.table.examine_choice import Choice, Window
from lakestream.data.table.examine_files import RESTORE, Content, Marks, NamedFile, Trouble
from lakestream.data.table.examine_partitions import misplaced, partitioned_by
from lakestream.data.table.examine_reading import Reading
from lakestream.data.table.examine_state import READS_AT_ONCE, State, named_by, unreadable
from lakestream.data.table.footers import Footer, RowGroup
from lakestream.data.table.past import Past
from lakestream.data.table.threads import Run
from lakestream.errors import LakestreamError, OutOfRange, Unavailable
from lakestream.filed import Piece
from lakestream.metadata.topics import Topic
from lakestream.model import MiB, PartitionId, Span
from lakestream.storage.together import together

ORPHANS_MAX: Final = 100_000
"""Files that are held against older snapshots."""
BORDER: Final = 1_000
"""Offsets on both sides of the border between table and log that are compared."""
READ_BYTES: Final = 4 * MiB


class Kafka(Protocol):
    """What consumers are served."""

    async def ends(self, partition: PartitionId) -> Span:
        """Where the log starts and ends. Missing: it is gone."""
        ...

    async def history(self, partition: PartitionId, offset: int, bytes_max: int) -> Past:
        """Out of the table."""
        ...

    async def read(self, partition: PartitionId, offset: int, bytes_max: int) -> Past:
        """Committed records out of table and log, wherever the border is. OutOfRange: they were deleted."""
        ...


@dataclass(slots=True)
class Examined:
    """What was seen of one topic's table."""

    said: str = ""
    troubles: list[Trouble] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    """Where some of them were found."""
    notes: list[str] = field(default_factory=list)
    metadata_location: str = ""
    """Of the state that was looked at."""
    behind: int = 0
    """Offsets that are in the log and not in the table."""


class Look:
    def __init__(self, catalog: Catalog, kafka: Kafka, run: Run, state: State, topic: Topic, seen: Examined) -> None:
        self._catalog = catalog
        self._kafka = kafka
        self._run = run
        self._state = state
        self._topic = topic
        self._seen = seen
        self._reading = Reading(catalog, run)
        self._wrong: set[str] = {trouble.subject for trouble in state.troubles}
        """Files that something is wrong with: nobody looks into them twice."""

    def _say(self, troubles: Iterable[Trouble]) -> None:
        for trouble in troubles:
            self._wrong.add(trouble.subject)
            self._seen.troubles.append(trouble)

    def _has_said(self, kind: str, subject: str) -> bool:
        return any(trouble.key == (kind, subject) for trouble in self._seen.troubles)

    # ── marks and bounds ─────────────────────────────────────────────────────────────────────────────────────────────

    def check_marks(self, marks: Mapping[int, Marks]) -> None:
        offsets = self._state.next_offsets
        if offsets is None:
            return
        for number, one in marks.items():
            self._say(pure.check_marks(number, one))
            self._seen.behind += max(0, one.end - one.next_offset)
        self._say(pure.check_bounds(self._state.data, offsets, self._topic.partition_count))
        self._say(pure.check_deletes(self._state.deletes))

    # ── what lies in its folder ──────────────────────────────────────────────────────────────────────────────────────

    async def check_folder(self, aged_ms: int, old_reads: int) -> None:
        """All files at once: a listing is one call for a thousand of them. One that is not in it may be newer."""
        expected = {self._key(file.location): file for file in self._state.files}
        missing = dict(expected)
        known = {self._key(location) for location in (*self._state.lists, *self._state.metadata_files())}
        orphans: dict[str, int] = {}
        async for page in self._catalog.objects.walk(self._key(self._state.metadata["location"])):
            for info in page:
                if (file := expected.get(info.key)) is not None:
                    missing.pop(info.key, None)
                    self._say(pure.check_size(file, info.size))
                elif info.key not in known and info.modified_ms < aged_ms and len(orphans) < ORPHANS_MAX:
                    orphans[info.key] = info.size
        await together([self._check_there(key, file) for key, file in missing.items()], READS_AT_ONCE)
        if orphans:
            await self._note_orphans(orphans, old_reads)

    async def _check_there(self, key: str, file: NamedFile) -> None:
        try:
            self._say(pure.check_size(file, (await self._catalog.objects.head(key)).size))
        except LakestreamError as error:
            self._say([unreadable("file", file.location, error)])

    async def _note_orphans(self, orphans: Mapping[str, int], old_reads: int) -> None:
        """Older snapshots have files that the newest has not."""
        main = main_of(self._state.metadata)
        older = [one for one in reversed(self._state.metadata["snapshots"]) if one["snapshot-id"] != main]
        named = await named_by(self._catalog, older, set(self._state.lists), old_reads)
        if named is None:
            self._seen.notes.append(
                f"{len(orphans):,} files older than a day are not in the newest snapshot; it was not looked into all"
                " older ones which of them are orphans (--full does)"
            )
            return
        names = {self._key(location) for location in named}
        left = {key: size for key, size in orphans.items() if key not in names}
        if left:
            self._seen.notes.append(
                f"{len(left):,} orphans older than a day, {sum(left.values()):,} bytes, such as {min(left)}:"
                " maintenance removes them, or CALL system.remove_orphan_files"
            )

    def _key(self, location: str) -> str:
        try:
            return self._catalog.locations.key_of(location)
        except LakestreamError:
            return location  # no key of ours; who asks for it is told why

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def check_files(self, choice: Choice) -> None:
        chosen = choice.files | choice.row_files
        files = [file for file in self._state.files if file.location in chosen and file.location not in self._wrong]

        async def check(file: NamedFile) -> None:
            try:
                if file.content != DATA:
                    await self._reading.deletes(file)
                else:
                    await self._check_file(file, into_rows=file.location in choice.row_files)
            except LakestreamError as error:
                self._say([unreadable("file", file.location, error)])

        await together([check(file) for file in files], READS_AT_ONCE)

    async def _check_file(self, file: NamedFile, *, into_rows: bool) -> None:
        footer = await self._reading.footer(file)
        self._say(pure.check_content(file, examine_rows.footer_content(footer), "its footer"))
        if into_rows and file.location not in self._wrong:
            await self._check_places(file, footer)
        if into_rows and file.location not in self._wrong:
            await self._check_partition(file, footer)

    async def _check_places(self, file: NamedFile, footer: Footer) -> None:
        """Every row's partition and offset."""
        parts: list[Content] = []
        is_sorted = True
        for group in footer.groups:
            places = await self._reading.places(footer, group.number)
            if not len(places.offsets):
                continue
            part = places.content()
            is_sorted = is_sorted and places.is_sorted and not (parts and pure.overlap(parts[-1], part))
            parts.append(part)
            self._check_group(file, group, part)
        whole = pure.joined(parts)
        self._say(pure.check_content(file, whole, "it"))
        self._say(pure.check_sorted(file, is_sorted))
        if self._state.next_offsets is not None:
            self._say(pure.check_reach(file.location, whole, self._state.next_offsets))

    async def _check_partition(self, file: NamedFile, footer: Footer) -> None:
        """Every row is of the partition of the table that the file is in."""
        metadata = self._state.metadata
        fields = partitioned_by(metadata, file.spec_id)
        for group in footer.groups if fields else ():
            found = await self._reading.misplaced(footer, group.number, metadata, file, fields)
            if found is not None:
                self._say(misplaced(file, found))
                return

    def _check_group(self, file: NamedFile, group: RowGroup, part: Content) -> None:
        assert part.offsets is not None
        low, high = part.offsets
        if low < group.offset_lo or high > group.offset_hi:
            said = f"its footer says {group.offset_lo} to {group.offset_hi}"
            text = f"{file.location}: row group {group.number} has offsets {low} to {high}, {said}; {RESTORE}"
            self._say([Trouble("file", file.location, text)])

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def check_rows(self, choice: Choice, ends: Mapping[int, Span]) -> None:
        offsets = self._state.next_offsets
        if offsets is None:
            return
        for window in choice.windows:
            await self._asked(window, self._check_window)
        for number in choice.borders:
            if number in ends and offsets.get(number, 0):
                start, end = ends[number]
                border = Span(max(start, offsets[number] - BORDER), min(end, offsets[number] + BORDER))
                if border.size > 0:
                    await self._asked(Window(number, border, is_border=True), self._check_border)
        for number in offsets:
            if not self._has_said("twice", str(number)):
                sound = [file for file in self._state.of_partition(number) if file.location not in self._wrong]
                self._say(pure.check_counts(number, sound, bool(self._state.deletes)))

    async def _asked(self, window: Window, check: Callable[[Window], Awaitable[None]]) -> None:
        before = len(self._seen.troubles)
        try:
            await check(window)
        except OutOfRange:
            return  # deleted meanwhile, by retention or by hand
        except LakestreamError as error:
            where = f"partition {window.partition}, offsets {window.span.start} to {window.span.end}"
            self._say([Trouble("served", window.subject, f"{where} cannot be served: {error}")])
        finally:
            if len(self._seen.troubles) > before:
                self._seen.windows.append(window)

    async def _check_window(self, window: Window) -> None:
        rows = await self._rows(window.partition, window.span)
        if rows is None:
            return
        batches = await self._batches(self._kafka.history, window)
        served = await self._served(batches, window.partition, window.span)
        difference = await self._run(partial(examine_rows.compared, rows, served))
        self._say(pure.differences(window.partition, window.subject, difference, "out of the table"))

    async def _check_border(self, window: Window) -> None:
        """What a consumer gets who comes out of the table into the log."""
        assert self._state.next_offsets is not None
        inside = Span(window.span.start, min(window.span.end, self._state.next_offsets[window.partition]))
        rows = await self._rows(window.partition, inside)
        if rows is None:
            return
        batches = await self._batches(self._kafka.read, window)
        await self._served(batches, window.partition, window.span)  # all of it is sound
        served = await self._served(batches, window.partition, inside)
        difference = await self._run(partial(examine_rows.compared, rows, served))
        if not self._state.is_only_appended:  # the log may still have what somebody has deleted from the table
            difference = difference._replace(not_in_table=None)
        self._say(pure.differences(window.partition, window.subject, difference, "where table and log meet"))

    async def _batches(
        self, read: Callable[[PartitionId, int, int], Awaitable[Past]], window: Window
    ) -> list[tuple[int, list[Piece]]]:
        partition = PartitionId(self._topic.topic_id, window.partition)
        batches: list[tuple[int, list[Piece]]] = []
        at = window.span.start
        while at < window.span.end:
            past = await read(partition, at, READ_BYTES)
            if past.offset_next <= at:
                raise Unavailable(f"offset {at} is not served, although the log goes on behind it")
            batches += past.batches
            at = past.offset_next
        return batches

    async def _served(self, batches: Sequence[tuple[int, list[Piece]]], partition: int, span: Span) -> Any:
        name = f"what Kafka serves of partition {partition}"
        return await self._run(partial(examine_rows.served_records, batches, partition, span, name))

    async def _rows(self, partition: int, span: Span) -> Any | None:
        """As the table has them. None: something is wrong with them, and it was said."""
        parts: list[tuple[str, Any]] = []
        for file in self._state.of_partition(partition):
            if not file.may_reach(span):
                continue
            if file.location in self._wrong:
                return None
            try:
                parts += await self._rows_of(file, partition, span)
            except LakestreamError as error:
                self._say([unreadable("file", file.location, error)])
                return None
        found = await self._run(partial(examine_rows.gathered, parts))
        if found.doubled is None:
            return found.rows
        if not self._has_said("twice", str(partition)):
            self._say([pure.twice(partition, *found.doubled)])
        return None

    async def _rows_of(self, file: NamedFile, partition: int, span: Span) -> list[tuple[str, Any]]:
        footer = await self._reading.footer(file)
        deletes = pure.deletes_of(file, self._state.deletes)
        return [
            (file.location, await self._reading.records(footer, group.number, partition, span, deletes))
            for group in footer.groups
            if group.offset_hi >= span.start and group.offset_lo < span.end
        ]
