"""In a worker: the values of a file are typed anew, as if they came out of the log now.

    rows → the bytes that were produced (`data/typed/restoring.py`) → record batches → decode.py → typing.py → Parquet

That is the way of a consumer and then that of a move, so what comes out is what would have come out if the schema had
been known then: the same offsets, keys, headers and times, and columns instead of bytes where they give them back.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from lakestream.catalog.topic_layout import FIRST_FREE_ID, OFFSET_ID, RAW_VALUE_ID, STREAM, VALUE, VALUE_ID
from lakestream.data.table.decode import decode
from lakestream.data.table.encode import encode_rows
from lakestream.data.table.footers import Footer
from lakestream.data.table.groups import Part, read_rows, record_columns, sorted_rows
from lakestream.data.table.heads import Source
from lakestream.data.table.parquet import ParquetSettings, WrittenFile
from lakestream.data.table.rows import Rows
from lakestream.data.table.splitting import write_files
from lakestream.data.typed.typing import Typist
from lakestream.errors import Corrupt
from lakestream.model import Span
from lakestream.pipeline.maintenance.files import TableFile
from lakestream.pipeline.maintenance.tasks import Repair, RepairWants
from lakestream.schemas.columns import Column
from lakestream.schemas.matching import KEY
from lakestream.schemas.typing import Misfits, Mode, Wanted
from lakestream.schemas.writers import NoWriter

EVERYTHING: Final = Span(0, 2**63 - 1)
STEP: Final = 32_768
"""Rows that are made records of at a time, where they are not as they lie in the file."""


@dataclass(frozen=True, slots=True)
class Retyped:
    written: tuple[WrittenFile, ...] = ()
    """Empty: nothing would be better than it is, or it was only to look."""
    rows_before: int = 0
    rows_after: int = 0
    misfits: tuple[Misfits, ...] = ()


async def retyped(file: TableFile, task: Repair, place: Callable[[int], str]) -> Retyped | RepairWants:
    """Corrupt: it has columns of others, which would be lost, or is damaged."""
    before = await _raw_rows(file, task)
    if not before and task.typing.key.mode is Mode.NONE:
        return Retyped()
    _check_own(file.footer, task)
    rows = _by_offset([part for group in range(len(file.footer.groups)) for part in await _rows(file, group, task)])
    typist = Typist(task.columns, task.typing)
    settings = replace(ParquetSettings.of(dict(task.writing.properties)), file_bytes_max=task.target)
    full = _Full(_own_columns(task))
    try:
        again, layout = full.counted(typist.typed(_again(rows, file.footer, task))), task.writing.layout
        written = tuple(write_files(again, place, settings, typist.columns, layout, task.partition))
    except Wanted as wanted:
        return RepairWants(wanted.schemas, wanted.inferred)
    after = typist.tally.raw
    keeps = task.only_look or (after >= before and full.rows <= await _full_rows(file, task))
    return Retyped(() if keeps else written, before, after, typist.tally.misfits())


async def _raw_rows(file: TableFile, task: Repair) -> int:
    """That have bytes, in whichever place. Where values have no schema, it is theirs to have them in their column."""
    has_schema, count = task.typing.value.mode is not Mode.NONE, 0
    for group in range(len(file.footer.groups)):
        for batch in await file.rows(group, (OFFSET_ID, RAW_VALUE_ID, VALUE_ID)):
            raw = batch.column(STREAM).field("value")
            plain = batch.column(VALUE) if has_schema and VALUE in batch.schema.names else raw
            count += int(np.count_nonzero(np.asarray(raw.is_valid()) | np.asarray(plain.is_valid())))
    return count


async def _full_rows(file: TableFile, task: Repair) -> int:
    full = _Full(_own_columns(task))
    for group in range(len(file.footer.groups)):
        for _ in full.counted(await file.whole_rows(group, full.columns)):
            pass
    return full.rows


def _own_columns(task: Repair) -> tuple[Column, ...]:
    return tuple(column for column in task.columns if column.field_id in task.own_ids)


@dataclass(slots=True)
class _Full:
    """Counts rows that have something in their columns: those of the value, and that of the key for itself."""

    columns: tuple[Column, ...]
    rows: int = 0

    def counted(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            by_part = {KEY: np.zeros(len(batch), np.bool_), VALUE: np.zeros(len(batch), np.bool_)}
            for column in self.columns:
                if column.name in batch.schema.names:
                    is_there = np.asarray(batch.column(column.name).is_valid())
                    by_part[KEY if column.name == KEY else VALUE] |= is_there
            self.rows += sum(int(np.count_nonzero(one)) for one in by_part.values())
            yield batch


def _check_own(footer: Footer, task: Repair) -> None:
    foreign = {one for one in footer.paths if one >= FIRST_FREE_ID} - set(task.own_ids)
    if foreign:
        name = ".".join(footer.paths[min(foreign)])
        raise Corrupt(f"{footer.location} has the column {name}, which is not the stream's own: it is left as it is")


async def _rows(file: TableFile, group: int, task: Repair) -> list[Rows]:
    part = Part(file.footer, file.footer.groups[group], None, file.deleted, is_typed=True)
    writers = {writer.number: writer for writer in task.writers}
    columns = record_columns(part, writers)
    spans = file.footer.spans(group, columns)
    bodies = await file.read_spans(spans)
    try:
        return read_rows(part, columns, spans, bodies, EVERYTHING, writers)
    except NoWriter as error:
        raise Corrupt(f"{file.footer.location}: {error}, so nobody knows what its rows were") from error


def _by_offset(rows: list[Rows]) -> list[Rows]:
    """As ours lie in their files; whoever wrote this one may have sorted it by something else."""
    offsets = np.concatenate([part.offsets for part in rows]) if rows else np.empty(0, np.int64)
    if (np.diff(offsets) > 0).all():
        return rows
    whole = sorted_rows(rows)
    return [whole.picked(np.arange(start, min(start + STEP, len(whole)))) for start in range(0, len(whole), STEP)]


def _again(rows: Sequence[Rows], footer: Footer, task: Repair) -> Iterator[Any]:
    for part in rows:
        if len(part):
            made = encode_rows(part, name=footer.location)
            source = Source(footer.location, made.data, made.starts, made.ends, made.base_offsets)
            yield from decode([source], task.partition)
