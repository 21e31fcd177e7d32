"""The dead letters of one partition, by offset: a file is looked at when its turn comes.

Before: sheet.py.  After: dead_letters.py, which joins those of several partitions.  In memory are the letters of files
that overlap, in Arrow's arrays; Python objects are made of those only that are asked for.
"""

from typing import Any

from lakestream.catalog.listing import LiveFile
from lakestream.catalog.rewrite import FilesChanged
from lakestream.errors import Unavailable
from lakestream.model import Span
from lakestream.pipeline.maintenance.dead_letter import Asked, DeadLetter
from lakestream.pipeline.maintenance.looking import NO_REASON, Looked
from lakestream.pipeline.maintenance.repair import TRIES_MAX
from lakestream.pipeline.maintenance.sheet import Sheet


class PartitionLetters:
    """The dead letters of one partition, one after the other; no more than are asked for."""

    def __init__(self, sheet: Sheet, partition: int, asked: Asked, left: list[str]) -> None:
        self._sheet = sheet
        self._partition = partition
        self._asked = asked
        self._left = left
        self._window = asked.window
        """What is still to come."""
        self._files = self._in_order()
        self._open: list[_Cursor] = []
        self._tries = 0

    async def next(self) -> DeadLetter | None:
        while True:
            try:
                cursor = await self._first()
            except FilesChanged:
                await self._begin_again()
                continue
            if cursor is None:
                return None
            letter = cursor.letter(self._partition)
            if not cursor.step():
                self._open.remove(cursor)
            start, end = self._window
            self._window = Span(start, letter.offset) if self._asked.newest_first else Span(letter.offset + 1, end)
            return letter

    async def _first(self) -> "_Cursor | None":
        """Where the next one is. Files are looked at as long as one of them may have it."""
        while True:
            first = min(self._open, key=lambda one: one.rank, default=None)
            if not self._files or (first is not None and first.rank < self._rank(self._files[0])):
                return first
            found = await self._sheet.look(self._files[0], self._window, self._asked)
            self._files.pop(0)
            self._note_left()
            if len(found.letters):
                self._open.append(_Cursor(found, newest_first=self._asked.newest_first))

    def _rank(self, file: LiveFile) -> int:
        """No row of it comes earlier."""
        return -(file.offset_last or 0) if self._asked.newest_first else file.offset_first or 0

    async def _begin_again(self) -> None:
        """Behind what was told already."""
        self._tries += 1
        if self._tries >= TRIES_MAX:
            raise restless()
        self._sheet = await Sheet.begin(self._sheet.desk, self._sheet.named)
        self._files, self._open = self._in_order(), []

    def _in_order(self) -> list[LiveFile]:
        self._note_left()
        files = self._sheet.files(self._partition, self._window)
        return sorted(files, key=self._rank)

    def _note_left(self) -> None:
        self._left += [reason for reason in self._sheet.left if reason not in self._left]


class _Cursor:
    """At one of the dead letters of a file."""

    def __init__(self, found: Looked, *, newest_first: bool) -> None:
        self._found = found
        self._step = -1 if newest_first else 1
        self._at = len(found.letters) - 1 if newest_first else 0
        self._offsets = found.letters.column("offset").to_numpy()

    @property
    def rank(self) -> int:
        return self._step * int(self._offsets[self._at])

    def step(self) -> bool:
        """False: that was the last."""
        self._at += self._step
        return 0 <= self._at < len(self._offsets)

    def letter(self, partition: int) -> DeadLetter:
        (row,) = self._found.letters.slice(self._at, 1).to_pylist()
        return DeadLetter(
            partition=partition,
            offset=row["offset"],
            timestamp_ms=row["timestamp_ms"],
            schema_id=row["schema_id"],
            reason=_said(row, self._found),
            is_repairable=row["is_repairable"] and not self._found.blocked,
            key=row["key"],
            value=row["value"],
            value_size=row["value_size"] or 0,
        )


def _said(row: dict[str, Any], found: Looked) -> str:
    places = [row[name] for name in ("reason", "key_reason") if row[name] != NO_REASON]
    reasons = [found.reasons[place].said for place in places]
    return "; ".join(reasons) or (found.blocked if row["is_repairable"] else "")


def restless() -> Unavailable:
    return Unavailable("the files of the table change all the time: try again")
