"""The dead letters of one partition, by offset. Each file is scanned when it is reached.

Before: dry_run.py.  After: scan.py, which merges several partitions.  Memory holds the dead letters of files that
overlap, as Arrow tables; Python objects are created only for those that the query selects.
"""

from typing import Any

from lakestream.catalog.operations.rewrite_files import FilesChanged
from lakestream.catalog.topic_table.live_file import LiveFile
from lakestream.errors import Unavailable
from lakestream.model import Span
from lakestream.pipeline.dead_letters.dry_run import TableDryRun
from lakestream.pipeline.dead_letters.file_scan import NO_REASON, FileDeadLetters
from lakestream.pipeline.dead_letters.model import DeadLetter, DeadLetterQuery
from lakestream.pipeline.repair.repair import TRIES_MAX


class PartitionDeadLetters:
    """The dead letters of one partition, by offset; at most as many as the query selects."""

    def __init__(self, dry_run: TableDryRun, partition: int, query: DeadLetterQuery, left: list[str]) -> None:
        self._dry_run = dry_run
        self._partition = partition
        self._query = query
        self._left = left
        self._window = query.window
        """The offsets that were not returned yet."""
        self._files = self._in_order()
        self._open: list[_Cursor] = []
        self._tries = 0

    async def next(self) -> DeadLetter | None:
        """Returns None after the last one. Unavailable: other writers keep replacing the files."""
        while True:
            try:
                cursor = await self._first()
            except FilesChanged:
                await self._restart()
                continue
            if cursor is None:
                return None
            letter = cursor.letter(self._partition)
            if not cursor.step():
                self._open.remove(cursor)
            start, end = self._window
            self._window = Span(start, letter.offset) if self._query.newest_first else Span(letter.offset + 1, end)
            return letter

    async def _first(self) -> "_Cursor | None":
        """Returns the cursor with the next dead letter; first scans the files that may have an earlier one."""
        while True:
            first = min(self._open, key=lambda one: one.rank, default=None)
            if not self._files or (first is not None and first.rank < self._rank(self._files[0])):
                return first
            found = await self._dry_run.scan(self._files[0], self._window, self._query)
            self._files.pop(0)
            self._collect_left_out()
            if len(found.letters):
                self._open.append(_Cursor(found, newest_first=self._query.newest_first))

    def _rank(self, file: LiveFile) -> int:
        """A lower bound of the ranks of the file's rows."""
        return -(file.offset_last or 0) if self._query.newest_first else file.offset_first or 0

    async def _restart(self) -> None:
        """Lists the files again, and continues behind the last returned dead letter."""
        self._tries += 1
        if self._tries >= TRIES_MAX:
            raise too_many_changes()
        self._dry_run = await TableDryRun.begin(self._dry_run.dependencies, self._dry_run.named)
        self._files, self._open = self._in_order(), []

    def _in_order(self) -> list[LiveFile]:
        self._collect_left_out()
        files = self._dry_run.files(self._partition, self._window)
        return sorted(files, key=self._rank)

    def _collect_left_out(self) -> None:
        self._left += [reason for reason in self._dry_run.left if reason not in self._left]


class _Cursor:
    """Position in the dead letters of a file."""

    def __init__(self, found: FileDeadLetters, *, newest_first: bool) -> None:
        self._found = found
        self._step = -1 if newest_first else 1
        self._at = len(found.letters) - 1 if newest_first else 0
        self._offsets = found.letters.column("offset").to_numpy()

    @property
    def rank(self) -> int:
        return self._step * int(self._offsets[self._at])

    def step(self) -> bool:
        """Advances; returns False after the last dead letter."""
        self._at += self._step
        return 0 <= self._at < len(self._offsets)

    def letter(self, partition: int) -> DeadLetter:
        (row,) = self._found.letters.slice(self._at, 1).to_pylist()
        return DeadLetter(
            partition=partition,
            offset=row["offset"],
            timestamp_ms=row["timestamp_ms"],
            schema_id=row["schema_id"],
            reason=_reason(row, self._found),
            is_repairable=row["is_repairable"] and not self._found.blocked,
            key=row["key"],
            value=row["value"],
            value_size=row["value_size"] or 0,
        )


def _reason(row: dict[str, Any], found: FileDeadLetters) -> str:
    places = [row[name] for name in ("reason", "key_reason") if row[name] != NO_REASON]
    reasons = [found.reasons[place].text for place in places]
    return "; ".join(reasons) or (found.blocked if row["is_repairable"] else "")


def too_many_changes() -> Unavailable:
    return Unavailable(f"the files of the table were replaced by other writers {TRIES_MAX} times: retry")
