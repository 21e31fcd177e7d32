"""Finds the dead letters of a file: checks for each row what a repair would do now.

Before: dry_run.py, which passes the file and the schemas.  The steps are those of repair/worker.py, one row group at a
time, but nothing is written. The result is an Arrow table with two kinds of rows:

    with a reason    columns are missing, and a repair would not add them; or the row is a record batch that could not
                     be read (arrow/unreadable_batches.py), with or without a schema
    repairable       columns are missing, and a repair would add some

A row with all columns that also keeps its bytes, because the columns do not restore them (another spelling, or content
without a column), is not a dead letter, even if a repair could remove the bytes now.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from lakestream.catalog.topic_table.columns import COLUMNS, STREAM, VALUE
from lakestream.data.table.arrow.byte_spans import numbers
from lakestream.data.table.arrow.unreadable_batches import unreadable_rows
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.typed.values_to_columns import ConversionFailure, ConversionStats, ValueConverter
from lakestream.model import Span
from lakestream.pipeline.dead_letters.model import DeadLetterQuery
from lakestream.pipeline.maintenance.table_file import TableFile, times_of
from lakestream.pipeline.repair.file_rows import (
    BEFORE,
    Filled,
    Mask,
    by_offset,
    filled,
    foreign_column,
    produced,
    records_of,
    rows_with_bytes,
)
from lakestream.pipeline.tasks import Reason
from lakestream.schemas.columns import Column
from lakestream.schemas.value_format import ConversionSettings, SchemaMode, ValuePart
from lakestream.schemas.writer_schema import ColumnBinding, WriterSchema

HEADERS_ID: Final = next(column.field_id for column in COLUMNS[1].fields if column.name == "headers")
NO_REASON: Final = -1
NOTHING_FILLED: Final = "all of its columns are null"
OTHERS_LOSE: Final = (
    "other rows of its file would lose their columns with the topic's current settings: repair skips the file"
)
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
"""Reasons are indexes of `FileDeadLetters.reasons`, or NO_REASON. Only the first bytes of keys and values are kept."""


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """What to scan in one file."""

    partition: int
    window: Span
    """The requested offsets that were not returned yet."""
    query: DeadLetterQuery
    columns: tuple[Column, ...]
    conversion: ConversionSettings
    writers: tuple[WriterSchema, ...]
    """The writer schemas of all rows of the table."""
    own_ids: tuple[int, ...]

    @property
    def has_schema(self) -> bool:
        """Whether values have a schema; else only keys have."""
        return self.conversion.value.mode is not SchemaMode.NONE

    @property
    def own_columns(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.field_id in self.own_ids)


@dataclass(frozen=True, slots=True, eq=False)
class FileDeadLetters:
    letters: Any = field(default_factory=LETTERS.empty_table)
    """By offset. Complete up to the limit of the query; after that number, some may be missing."""
    reasons: tuple[Reason, ...] = ()
    spelled: int = 0
    """Rows with all columns that also keep bytes, because the columns do not restore them."""
    blocked: str = ""
    """Why a repair skips the file although some of its rows could get columns; empty if it does not."""


async def scan_file(file: TableFile, request: ScanRequest) -> FileDeadLetters:
    """Returns the dead letters of a file.

    SchemasMissingError: the caller must look up schemas first. Corrupt: the file is damaged.
    """
    groups = range(len(file.footer.groups))
    has_bytes = [await _has_bytes(file, group, request) for group in groups]
    if request.conversion.key.mode is SchemaMode.NONE and not any(has_bytes):
        return FileDeadLetters()
    scan = _Scan(request, ValueConverter(request.columns, request.conversion, stats=ConversionStats(failures=[])))
    for group in groups:
        rows = by_offset(await produced(file, group, request.writers))
        scan.group(await _before(file, group, request), records_of(rows, file.footer.location, request.partition))
    return scan.result(foreign_column(file.footer, request.own_ids))


async def _has_bytes(file: TableFile, group: int, request: ScanRequest) -> bool:
    """Whether some row may be a dead letter for its value."""
    batches = await file.rows(group, BEFORE if request.has_schema else (*BEFORE, HEADERS_ID))
    return any(
        rows_with_bytes(batch, has_schema=request.has_schema).any()
        or (not request.has_schema and unreadable_rows(batch.column(STREAM)))
        for batch in batches
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Before:
    """The current rows of a group, by offset."""

    offsets: Longs
    numbers: Longs
    """Numbers of their writer schemas, or their schema ids; 0 if they have none."""
    has_bytes: Mask
    filled: Filled

    def picked(self, places: Longs | slice) -> "_Before":
        full = Filled(self.filled.values[places], self.filled.keys[places])
        return _Before(self.offsets[places], self.numbers[places], self.has_bytes[places], full)


async def _before(file: TableFile, group: int, request: ScanRequest) -> _Before:
    batches, own = await file.rows(group, BEFORE), request.own_columns
    streams = [batch.column(STREAM) for batch in batches]
    full = [filled(batch, own) for batch in (await file.whole_rows(group, own) if own else batches)]
    none, no_rows = np.empty(0, np.int64), np.empty(0, np.bool_)  # all rows of a group may have been deleted
    before = _Before(
        np.concatenate([none, *(numbers(one.field("offset"), -1) for one in streams)]),
        np.concatenate([none, *(numbers(one.field("schema_id"), 0) for one in streams)]),
        np.concatenate([no_rows, *(rows_with_bytes(batch, has_schema=request.has_schema) for batch in batches)]),
        Filled(
            np.concatenate([no_rows, *(one.values for one in full)]),
            np.concatenate([no_rows, *(one.keys for one in full)]),
        ),
    )
    return before.picked(np.argsort(before.offsets, kind="stable"))


class _Scan:
    """State of the scan of one file."""

    def __init__(self, request: ScanRequest, converter: ValueConverter) -> None:
        self._request = request
        self._converter = converter
        self._own = request.own_columns
        self._schema_ids = {writer.number: writer.schema_id for writer in request.writers}
        self._lacking = [writer.number for writer in request.writers if not _is_whole(writer.columns)]
        self._reasons: dict[Reason, int] = {}
        self._letters: list[Any] = []
        self._spelled = 0
        self._gained = 0
        """Rows that lose their bytes minus rows that get bytes, the criterion of repair/worker.py."""
        self._filled = 0
        """Values and keys that get columns minus those that lose them."""

    def group(self, before: _Before, records: Iterator[Any]) -> None:
        at = 0
        for batch in records:
            start = 0
            for converted in self._converter.convert([batch]):
                self._rows(before.picked(slice(at, at + len(converted))), batch.slice(start, len(converted)), converted)
                at, start = at + len(converted), start + len(converted)
        assert at == len(before.offsets), "every row is a record"

    def result(self, foreign: str) -> FileDeadLetters:
        blocked = ""
        if foreign:
            blocked = f"its file has the column {foreign}, which is not the stream's own: repair skips the file"
        elif self._gained <= 0 and self._filled <= 0:
            blocked = OTHERS_LOSE
        letters = pa.concat_tables([LETTERS.empty_table(), *self._letters]).sort_by("offset")
        return FileDeadLetters(letters, tuple(self._reasons), self._spelled, blocked)

    def _rows(self, before: _Before, batch: Any, converted: Any) -> None:
        after, has_bytes = filled(converted, self._own), np.asarray(converted.column(STREAM).field("value").is_valid())
        self._count(before, after, has_bytes)
        reasons, key_reasons = self._reasons_of(before.offsets)
        # Rows that are complete in the table are no dead letters, even if the topic's settings have changed.
        reasons[~(before.has_bytes | _is_unreadable(batch))] = NO_REASON
        key_reasons[before.filled.keys & ~after.keys] = NO_REASON
        lacks = ~before.filled.values | np.isin(before.numbers, self._lacking)
        gains = before.has_bytes & ~has_bytes & lacks
        gains |= (after.values & ~before.filled.values) | (after.keys & ~before.filled.keys)
        if self._request.has_schema:
            is_empty = before.has_bytes & ~before.filled.values & ~gains & (reasons == NO_REASON)
            reasons[is_empty] = self._number(Reason(NOTHING_FILLED, 0))
        is_requested = (before.offsets >= self._request.window.start) & (before.offsets < self._request.window.end)
        is_dead = gains | (reasons != NO_REASON) | (key_reasons != NO_REASON)
        self._spelled += int(np.count_nonzero(is_requested & before.has_bytes & ~is_dead))
        shown = np.flatnonzero(is_requested & is_dead)
        if shown.size:
            self._add(before, batch, shown, (reasons, key_reasons, gains))

    def _count(self, before: _Before, after: Filled, has_bytes: Mask) -> None:
        self._gained += int(np.count_nonzero(before.has_bytes)) - int(np.count_nonzero(has_bytes))
        for now, then in zip(after, before.filled, strict=True):
            self._filled += int(np.count_nonzero(now)) - int(np.count_nonzero(then))

    def _reasons_of(self, offsets: Longs) -> tuple[Longs, Longs]:
        """Returns, for each row, the reason of its value and of its key in the converter's last failures."""
        reasons = {part: np.full(len(offsets), NO_REASON, np.int64) for part in ValuePart}
        failures: Sequence[ConversionFailure] = self._converter.stats.failures or ()
        for failure in failures:
            number = self._number(Reason(failure.message, failure.schema_id))
            reasons[failure.part][np.searchsorted(offsets, failure.offsets)] = number
        self._converter.stats.failures = []
        return reasons[ValuePart.VALUE], reasons[ValuePart.KEY]

    def _number(self, reason: Reason) -> int:
        return self._reasons.setdefault(reason, len(self._reasons))

    def _add(self, before: _Before, batch: Any, shown: Longs, reasons: tuple[Longs, Longs, Mask]) -> None:
        shown = shown[self._request.query.first]  # per batch, so that the first ones of the file are among them
        stream, places = batch.column(STREAM), pa.array(shown)
        key, value = (one.cast(pa.large_binary()).take(places) for one in (stream.field("key"), batch.column(VALUE)))
        columns = [
            before.offsets[shown],
            times_of(batch)[shown],
            self._schema_id(before.numbers[shown]),
            *(one[shown] for one in reasons),
            *(pc.binary_slice(one, 0, self._request.query.bytes_shown) for one in (key, value)),
            pc.binary_length(value),
        ]
        self._letters.append(pa.table([pa.array(column) for column in columns], LETTERS))

    def _schema_id(self, writers: Longs) -> Longs:
        """Returns the schema ids of writer numbers; negative numbers are assigned by the table."""
        distinct, places = np.unique(writers, return_inverse=True)
        ids = [self._schema_ids.get(number, max(number, 0)) for number in distinct.tolist()]
        return np.array(ids, np.int64)[places]


def _is_unreadable(batch: Any) -> Mask:
    """Returns which rows are record batches that could not be read.

    Without a schema their bytes are in `value`, like the bytes of all rows.
    """
    mask = np.zeros(len(batch), np.bool_)
    for _, places in unreadable_rows(batch.column(STREAM)):
        mask[places] = True
    return mask


def _is_whole(bounds: Sequence[ColumnBinding | None]) -> bool:
    """Whether every field of the schema has a column."""
    return all(one is not None and _is_whole(one.children) for one in bounds)
