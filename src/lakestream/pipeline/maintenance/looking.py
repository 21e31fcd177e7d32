"""What would become of the rows of a file if they were repaired now, row by row: the view of dead letters.

Before: sheet.py, which says which file, and what is known of schemas.  The steps are those of repairing.py, a row group
at a time; nothing is written. What comes out are the rows that somebody has to know of, in Arrow's arrays:

    rejected      it has no columns, or not all of them, and would not have them now either: there is a reason
    repairable    it has not, and a repair would give it some

Rows that have their columns, and bytes beside them that these do not give back (spelled otherwise, or with what no
column can say), are none of these, also where a repair could spare the bytes by now.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from lakestream.catalog.topic_layout import STREAM, VALUE
from lakestream.data.table.compiled import Longs
from lakestream.data.table.located import numbers
from lakestream.data.typed.typing import Note, Tally, Typist
from lakestream.model import Span
from lakestream.pipeline.maintenance.dead_letter import Asked, Reason
from lakestream.pipeline.maintenance.files import TableFile, times_of
from lakestream.pipeline.maintenance.produced import (
    BEFORE,
    Filled,
    Mask,
    by_offset,
    filled,
    foreign_column,
    keep_bytes,
    produced,
    records_of,
)
from lakestream.schemas.columns import Column
from lakestream.schemas.typing import Mode, Part, Typing
from lakestream.schemas.writers import Bound, Writer

NO_REASON: Final = -1
NOTHING_FILLED: Final = "there is nothing in any of its columns"
OTHERS_LOSE: Final = "other rows of its file would lose their columns as the topic is set now: repair leaves it"
LETTERS: Final = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("schema_id", pa.int64()),
        ("reason", pa.int64()),
        ("key_reason", pa.int64()),
        ("is_repairable", pa.bool_()),
        ("key", pa.large_binary()),
        ("value", pa.large_binary()),
        ("value_size", pa.int64()),
    ]
)
"""Reasons are places in `Looked.reasons`, or NO_REASON. Of keys and values only the beginning is kept."""


@dataclass(frozen=True, slots=True)
class Look:
    """At one file."""

    partition: int
    window: Span
    """Of offsets that are asked for, and not told yet."""
    asked: Asked
    columns: tuple[Column, ...]
    typing: Typing
    writers: tuple[Writer, ...]
    """All that rows of the table are of."""
    own_ids: tuple[int, ...]

    @property
    def has_schema(self) -> bool:
        """Values have; else only keys."""
        return self.typing.value.mode is not Mode.NONE

    @property
    def own_columns(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.field_id in self.own_ids)


@dataclass(frozen=True, slots=True, eq=False)
class Looked:
    letters: Any = field(default_factory=LETTERS.empty_table)
    """By offset. As many as are asked for are without gaps, behind these some may lack."""
    reasons: tuple[Reason, ...] = ()
    spelled: int = 0
    """Rows that have their columns, and bytes that these do not give back."""
    blocked: str = ""
    """Why a repair leaves the file as it is, though rows of it could be better."""


async def looked(file: TableFile, look: Look) -> Looked:
    """Wanted: there are schemas that somebody has to be asked for. Corrupt: it is damaged."""
    groups = range(len(file.footer.groups))
    has_bytes = [await _has_bytes(file, group, look) for group in groups]
    if look.typing.key.mode is Mode.NONE and not any(has_bytes):
        return Looked()
    seen = _Seen(look, Typist(look.columns, look.typing, tally=Tally(notes=[])))
    for group in groups:
        rows = by_offset(await produced(file, group, look.writers))
        seen.group(await _before(file, group, look), records_of(rows, file.footer.location, look.partition))
    return seen.looked(foreign_column(file.footer, look.own_ids))


async def _has_bytes(file: TableFile, group: int, look: Look) -> bool:
    return any(keep_bytes(batch, has_schema=look.has_schema).any() for batch in await file.rows(group, BEFORE))


@dataclass(frozen=True, slots=True, eq=False)
class _Before:
    """What the rows of a group have now, by offset."""

    offsets: Longs
    numbers: Longs
    """Of their writers, or the id that they name; 0: none."""
    has_bytes: Mask
    filled: Filled

    def picked(self, places: Longs | slice) -> "_Before":
        full = Filled(self.filled.values[places], self.filled.keys[places])
        return _Before(self.offsets[places], self.numbers[places], self.has_bytes[places], full)


async def _before(file: TableFile, group: int, look: Look) -> _Before:
    batches, own = await file.rows(group, BEFORE), look.own_columns
    streams = [batch.column(STREAM) for batch in batches]
    full = [filled(batch, own) for batch in (await file.whole_rows(group, own) if own else batches)]
    none, nobody = np.empty(0, np.int64), np.empty(0, np.bool_)  # all rows of a group may have been deleted
    before = _Before(
        np.concatenate([none, *(numbers(one.field("offset"), -1) for one in streams)]),
        np.concatenate([none, *(numbers(one.field("schema_id"), 0) for one in streams)]),
        np.concatenate([nobody, *(keep_bytes(batch, has_schema=look.has_schema) for batch in batches)]),
        Filled(
            np.concatenate([nobody, *(one.values for one in full)]),
            np.concatenate([nobody, *(one.keys for one in full)]),
        ),
    )
    return before.picked(np.argsort(before.offsets, kind="stable"))


class _Seen:
    """Of one file."""

    def __init__(self, look: Look, typist: Typist) -> None:
        self._look = look
        self._typist = typist
        self._own = look.own_columns
        self._schema_ids = {writer.number: writer.schema_id for writer in look.writers}
        self._lacking = [writer.number for writer in look.writers if not _is_whole(writer.columns)]
        self._reasons: dict[Reason, int] = {}
        self._letters: list[Any] = []
        self._spelled = 0
        self._gained = 0
        """Rows that have their bytes no more, without those that get some: what repairing.py goes by."""
        self._filled = 0
        """Values and keys that get columns, without those that lose them."""

    def group(self, before: _Before, records: Iterator[Any]) -> None:
        at = 0
        for batch in records:
            start = 0
            for made in self._typist.typed([batch]):
                self._rows(before.picked(slice(at, at + len(made))), batch.slice(start, len(made)), made)
                at, start = at + len(made), start + len(made)
        assert at == len(before.offsets), "every row is a record"

    def looked(self, foreign: str) -> Looked:
        blocked = ""
        if foreign:
            blocked = f"its file has the column {foreign}, which is not the stream's own: repair leaves it"
        elif self._gained <= 0 and self._filled <= 0:
            blocked = OTHERS_LOSE
        letters = pa.concat_tables([LETTERS.empty_table(), *self._letters]).sort_by("offset")
        return Looked(letters, tuple(self._reasons), self._spelled, blocked)

    def _rows(self, before: _Before, batch: Any, made: Any) -> None:
        after, has_bytes = filled(made, self._own), np.asarray(made.column(STREAM).field("value").is_valid())
        self._count(before, after, has_bytes)
        reasons, key_reasons = self._told(before.offsets)
        # Whatever is well in the table now is no dead letter, also where the topic's settings are others by now.
        reasons[~before.has_bytes] = NO_REASON
        key_reasons[before.filled.keys & ~after.keys] = NO_REASON
        lacks = ~before.filled.values | np.isin(before.numbers, self._lacking)
        gains = before.has_bytes & ~has_bytes & lacks
        gains |= (after.values & ~before.filled.values) | (after.keys & ~before.filled.keys)
        if self._look.has_schema:
            is_empty = before.has_bytes & ~before.filled.values & ~gains & (reasons == NO_REASON)
            reasons[is_empty] = self._number(Reason(NOTHING_FILLED, 0))
        is_asked = (before.offsets >= self._look.window.start) & (before.offsets < self._look.window.end)
        is_told = gains | (reasons != NO_REASON) | (key_reasons != NO_REASON)
        self._spelled += int(np.count_nonzero(is_asked & before.has_bytes & ~is_told))
        shown = np.flatnonzero(is_asked & is_told)
        if shown.size:
            self._keep(before, batch, shown, (reasons, key_reasons, gains))

    def _count(self, before: _Before, after: Filled, has_bytes: Mask) -> None:
        self._gained += int(np.count_nonzero(before.has_bytes)) - int(np.count_nonzero(has_bytes))
        for now, then in zip(after, before.filled, strict=True):
            self._filled += int(np.count_nonzero(now)) - int(np.count_nonzero(then))

    def _told(self, offsets: Longs) -> tuple[Longs, Longs]:
        """Of each row, why its value and why its key has no columns, as the typist has just said."""
        found = {part: np.full(len(offsets), NO_REASON, np.int64) for part in Part}
        notes: Sequence[Note] = self._typist.tally.notes or ()
        for note in notes:
            number = self._number(Reason(note.said, note.schema_id))
            found[note.part][np.searchsorted(offsets, note.offsets)] = number
        self._typist.tally.notes = []
        return found[Part.VALUE], found[Part.KEY]

    def _number(self, reason: Reason) -> int:
        return self._reasons.setdefault(reason, len(self._reasons))

    def _keep(self, before: _Before, batch: Any, shown: Longs, told: tuple[Longs, Longs, Mask]) -> None:
        shown = shown[self._look.asked.first]  # of each batch: no others are the first of the file
        stream, places = batch.column(STREAM), pa.array(shown)
        key, value = (one.cast(pa.large_binary()).take(places) for one in (stream.field("key"), batch.column(VALUE)))
        columns = [
            before.offsets[shown],
            times_of(batch)[shown],
            self._schema_id(before.numbers[shown]),
            *(one[shown] for one in told),
            *(pc.binary_slice(one, 0, self._look.asked.bytes_shown) for one in (key, value)),
            pc.binary_length(value),
        ]
        self._letters.append(pa.table([pa.array(column) for column in columns], LETTERS))

    def _schema_id(self, writers: Longs) -> Longs:
        """The registry's, of the numbers that rows have: those that are negative are the table's own."""
        distinct, places = np.unique(writers, return_inverse=True)
        known = [self._schema_ids.get(number, max(number, 0)) for number in distinct.tolist()]
        return np.array(known, np.int64)[places]


def _is_whole(bounds: Sequence[Bound | None]) -> bool:
    """Every field of the schema has a column."""
    return all(one is not None and _is_whole(one.children) for one in bounds)
